"""tests/bench/gpu_peers.py without a GPU: what is written when, how it is timed, and, where there
is a PyTorch, that each peer's result is compared with a reference that tells right from wrong."""

import importlib.util
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import gpu_peers  # noqa: E402
from peers import timer, wheels  # noqa: E402

HAS_TORCH = importlib.util.find_spec("torch") is not None
FIGURES = {"median_us": 2.0, "p05_us": 1.0, "p95_us": 3.0, "ci95_us": 0.1, "n": 30}


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Peers:
    """A bench whose peers take ten seconds each, of the given outcomes."""

    def __init__(self, outcomes):
        self.clock, self.outcomes, self.said, self.written = Clock(), outcomes, [], []
        self.peers = [SimpleNamespace(benchmark="choose", name=name) for name in outcomes]

    def run(self, peer):
        self.clock.now += 10
        outcome = self.outcomes[peer.name]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def alive(self, error):
        if "illegal" in str(error):
            raise gpu_peers.DeviceLost(str(error))

    def measure(self, seconds=0):
        document = {"peers": [], "missing": []}
        kept = gpu_peers.measure(self, self.peers, document,
                                 lambda each: self.written.append(json.loads(json.dumps(each))),
                                 seconds, self.clock, self.said.append)
        return kept, document


def test_all_is_written_after_each_peer():
    bench = Peers({"a": {"cold": FIGURES, "hot": FIGURES},
                   "b": {"cold": FIGURES, "hot": None, "no_hot": "it waits for the host"}})
    kept, document = bench.measure()
    assert kept and [len(each["peers"]) for each in bench.written] == [1, 2]
    assert document["peers"][1] == {"benchmark": "choose", "name": "b", "cold": FIGURES,
                                    "hot": None, "no_hot": "it waits for the host"}
    assert "none: it waits for the host" in bench.said[1]


def test_a_peer_that_is_wrong_or_fails_is_missing_with_the_reason():
    bench = Peers({"wrong": ValueError("wrong: element [0, 1] is 2, expected 3"),
                   "absent": wheels.Absent("no --wheels with SGLang 0.5.23"),
                   "fails": RuntimeError("out of resource: shared memory\nand more"),
                   "right": {"cold": FIGURES, "hot": FIGURES}})
    kept, document = bench.measure()
    assert kept and [peer["name"] for peer in document["peers"]] == ["right"]
    assert [each["reason"] for each in document["missing"]] == [
        "wrong: element [0, 1] is 2, expected 3", "no --wheels with SGLang 0.5.23",
        "RuntimeError: out of resource: shared memory"]


def test_no_peer_begins_after_the_limit_of_time():
    bench = Peers(dict.fromkeys("abcd", {"cold": FIGURES, "hot": FIGURES}))
    _, document = bench.measure(seconds=15)
    assert [peer["name"] for peer in document["peers"]] == ["a", "b"]
    assert [each["reason"] for each in document["missing"]] == [
        "the time limit of 15 s was over"] * 2
    assert len(bench.written) == 4


def test_peers_measured_before_are_kept_and_the_others_run(tmp_path):
    head = {"format": "moesim-gpu-peers", "device": "NVIDIA H200", "versions": {"PyTorch": "2.11.0"}}
    path = tmp_path / "peers.json"
    measured = [{"benchmark": "choose", "name": "a", "cold": FIGURES, "hot": FIGURES}]
    path.write_text(json.dumps({**head, "peers": measured, "missing": [
        {"benchmark": "choose", "name": "b", "reason": "the time limit of 15 s was over"}]}))
    bench = Peers(dict.fromkeys("abc", {"cold": FIGURES, "hot": FIGURES}))

    def left(**other):
        document = {**head, **other, "peers": [], "missing": []}
        peers = gpu_peers.take_over(str(path), document, bench.peers)
        return [peer.name for peer in peers], document["peers"]
    assert left() == (["b", "c"], measured)
    assert left(device="NVIDIA A100") == (["a", "b", "c"], [])
    assert left(versions={"PyTorch": "2.12.0"}) == (["a", "b", "c"], [])
    path.write_text("{")
    assert left() == (["a", "b", "c"], [])


def test_kernels_made_for_this_are_measured_before_pytorch_and_before_what_takes_long(monkeypatch):
    # What builds them needs PyTorch; their order does not.
    for name in ("torch_peers", "triton_peers"):
        monkeypatch.setitem(sys.modules, f"peers.{name}", MagicMock())
        monkeypatch.setattr(f"peers.{name}", MagicMock(), raising=False)
    catalogue = runpy.run_path(str(BENCH / "peers" / "catalogue.py"))
    kinds = ["slow" if peer in catalogue["SLOW"] else peer.name.partition(":")[0] for peer in catalogue["PEERS"]]
    first = {kind: kinds.index(kind) for kind in ("SGLang", "TE", "PyTorch", "torch.compile", "slow")}
    assert list(first.values()) == sorted(first.values())


def test_a_lost_device_ends_it():
    bench = Peers({"a": {"cold": FIGURES, "hot": FIGURES}, "b": RuntimeError("illegal address"),
                   "c": {"cold": FIGURES, "hot": FIGURES}})
    kept, document = bench.measure()
    assert not kept and bench.clock.now == 20
    assert all("the device was lost" in each["reason"] for each in document["missing"])


def test_the_file_is_whole_at_any_time(tmp_path):
    path = tmp_path / "peers.json"
    gpu_peers.write_whole(str(path), {"peers": [1]})
    with pytest.raises(TypeError):
        gpu_peers.write_whole(str(path), {"peers": [1, object()]})
    assert json.loads(path.read_text()) == {"peers": [1]}


class Cuda:
    """As much of torch as the timer calls: notes what is queued; the device works at `late` runs
    before all of one is queued."""

    class Event:
        def __init__(self, cuda):
            self.cuda = cuda

        def record(self):
            self.cuda.queued.append("event")

        def query(self):
            self.cuda.late -= 1
            return self.cuda.late >= 0

        def synchronize(self):
            pass

        def elapsed_time(self, stop):
            return self.cuda.took_ms

    def __init__(self, late=0, took_ms=0.004):
        self.queued, self.late, self.took_ms, self.held = [], late, took_ms, []
        noted = lambda word: (lambda *_: self.queued.append(word))
        buffers = iter([SimpleNamespace(fill_=noted("fill"), sum=None),
                        SimpleNamespace(fill_=None, sum=noted("read"))])
        self.int32 = None
        self.zeros = lambda *_, **options: next(buffers)
        facts = SimpleNamespace(L2_cache_size=1 << 20)
        self.cuda = SimpleNamespace(
            get_device_properties=lambda _: facts, current_stream=lambda: "default",
            set_stream=lambda stream: self.queued.append(f"on {stream}"),
            Event=lambda enable_timing: Cuda.Event(self), CUDAGraph=lambda: self, graph=self.graph,
            _sleep=lambda cycles: (self.held.append(cycles), self.queued.append("hold")))
        self.replay = noted("replay")

    def graph(self, _):
        return self

    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


def timer_on(cuda):
    clock = Clock()

    def passed():
        clock.now += 0.001
        return clock.now

    return timer.Timer(cuda, timer.Rule(), passed)


def test_cold_is_flushed_by_a_fill_and_a_read_and_held_until_all_is_queued():
    cuda = Cuda()
    copies = []
    figures = timer_on(cuda).cold(lambda copy: (copies.append(copy), cuda.queued.append("work")), 3)
    assert cuda.queued[:6] == ["fill", "read", "hold", "event", "work", "event"]
    assert set(copies) == {0, 1, 2}
    assert figures["median_us"] == pytest.approx(4) and figures["n"] >= 30


def test_a_run_that_was_not_held_does_not_count_and_the_next_is_held_longer():
    cuda = Cuda(late=3)
    timer_on(cuda).cold(lambda copy: None, 1)
    assert cuda.held[:4] == [1_000_000, 2_000_000, 4_000_000, 8_000_000]
    assert set(cuda.held[3:]) == {8_000_000}
    with pytest.raises(timer.NotMeasurable, match="the host takes longer"):
        timer_on(Cuda(late=1000)).cold(lambda copy: None, 1)


def test_hot_is_a_graphs_time_over_its_calls_and_its_last_result_is_checked():
    cuda = Cuda(took_ms=1.0)
    checked, calls = [], []

    def work(copy):
        calls.append(copy)
        return f"result {len(calls)}"

    figures = timer_on(cuda).hot(work, 2, 4.0, lambda *it: checked.append(it) or "")
    assert len(calls) == figures["calls"] == 250  # a millisecond of 4 us
    assert figures["median_us"] == pytest.approx(4)
    assert checked == [("result 250", 1)]
    assert cuda.queued[0] == "on default"
    assert "fill" not in cuda.queued and cuda.queued.count("replay") == figures["n"] + 1
    with pytest.raises(timer.NotMeasurable, match="in a CUDA graph: zeros"):
        timer_on(Cuda()).hot(work, 2, 4.0, lambda *_: "zeros")


def test_the_stream_is_left_when_a_capture_fails():
    def waits(copy):
        raise RuntimeError("operation not permitted when stream is capturing")

    cuda = Cuda()
    with pytest.raises(RuntimeError, match="not permitted"):
        timer_on(cuda).hot(waits, 1, 4.0, None)
    assert cuda.queued == ["on default"]


def test_wheels_are_of_the_versions_that_the_peers_were_written_for(tmp_path):
    assert wheels.Wheels("", None, "cpu").versions() == {}
    with pytest.raises(wheels.Absent, match="no --wheels with SGLang"):
        wheels.Wheels("", None, "cpu").module("sglang.kernels.ops.moe.router")
    with pytest.raises(wheels.Absent, match="TransformerEngine not at all, wanted"):
        wheels.Wheels(str(tmp_path), None, "cpu").module("transformer_engine.pytorch.triton.x")
    facts = tmp_path / "sglang-0.0.1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.4\nName: sglang\nVersion: 0.0.1\n")
    found = wheels.Wheels(str(tmp_path), None, "cpu")
    assert found.versions() == {"SGLang": "0.0.1"}
    with pytest.raises(wheels.Absent, match=f"SGLang 0.0.1, wanted {wheels.VERSIONS['sglang']}"):
        found.module("sglang.kernels.ops.moe.router")


@pytest.mark.parametrize("words, said", [
    (("--seconds", "-1"), "--seconds"), (("--seconds", "soon"), "--seconds"),
    (("--wheels", "/no/such/folder"), "no folder")])
def test_a_wrong_option_is_refused(words, said):
    result = subprocess.run([sys.executable, BENCH / "gpu_peers.py", *words], capture_output=True,
                            text=True, check=False)
    assert result.returncode == 2 and said in result.stderr


needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="no PyTorch here")


@needs_torch
@pytest.mark.slow
def test_every_peer_is_right_at_small_shapes(tmp_path):
    """Those of wheels only where MOESIM_PEER_WHEELS names their files: minutes in Triton's
    interpreter."""
    out = tmp_path / "peers.json"
    result = subprocess.run([sys.executable, BENCH / "gpu_peers.py", "--check", "--out", out],
                            capture_output=True, text=True, check=False,
                            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert result.returncode == 0, result.stdout + result.stderr
    document = json.loads(out.read_text())
    from peers import catalogue
    right = {(peer["benchmark"], peer["name"]) for peer in document["peers"]}
    for peer in catalogue.PEERS:
        of_wheels = "SGLang" in peer.name or "TE:" in peer.name or "TE " in peer.name
        if not of_wheels or (os.environ.get("MOESIM_PEER_WHEELS") and peer.interpreted):
            assert (peer.benchmark, peer.name) in right
    reasons = {each["reason"] for each in document["missing"]}
    assert not any(reason.startswith("wrong") for reason in reasons)


@needs_torch
def test_a_wrong_result_is_told_from_a_right_one():
    import torch
    from peers import cases, shapes
    place = cases.Place("cpu")
    make = lambda benchmark: cases.make(benchmark, shapes.SMALL, place)

    choose = make("choose-top2-e64")
    share, expert = torch.softmax(choose.logits, -1).topk(2)
    assert choose.check((share, expert), 0) == ""
    assert choose.check((share.flip(1), expert.flip(1)), 0) == ""
    assert "share" in choose.check((share.flip(1), expert), 0)
    assert "not among the best" in choose.check((share, expert.roll(1, 0)), 0)
    assert "twice" in choose.check((share, expert[:, :1].expand(-1, 2)), 0)
    assert "does not exist" in choose.check((share, expert + 99), 0)

    permute = make("permute-top2")
    rows = permute.x[1][permute.routes.token_of_row]
    assert permute.check(rows, 1) == ""
    assert "element" in permute.check(rows, 0)  # of the other copy
    assert "element" in permute.check(rows * float("nan"), 1)
    assert "shape" in permute.check(rows[1:], 1)

    combine = make("combine-top2")
    row, weight = combine.routes.row, combine.routes.weight
    right = sum(combine.rows[0][row[:, each]].float() * weight[:, each, None] for each in (0, 1))
    assert combine.check(right.bfloat16(), 0) == ""
    assert "element" in combine.check((2 * right).bfloat16(), 0)

    every = make("route-top8-e256")
    share, expert = torch.softmax(every.logits, -1).topk(8)
    row = expert.reshape(-1).argsort(stable=True).argsort().view_as(expert)
    assert every.check((share, expert, row), 0) == ""
    assert "order" in every.check((share, expert, row.flip(0)), 0)
    assert "one by one" in every.check((share, expert, row * 0), 0)


@needs_torch
def test_slots_go_to_the_tokens_with_the_largest_shares_first():
    import torch
    from peers import cases
    share = torch.tensor([[0.5, 0.1], [0.9, 0.05], [0.7, 0.2]])
    expert = torch.tensor([[0, 1], [0, 1], [0, 2]])
    # Two slots each. First choices, largest share first: tokens 1, 2, 0; then second choices.
    assert cases.plain_slots(share, expert, 3, 2, True).tolist() == [[-1, 0, 1], [1, 0, 0]]
    assert cases.plain_slots(share, expert, 3, 2, False).tolist() == [[0, 1, -1], [0, 1, 0]]


@needs_torch
def test_every_expert_has_as_many_rows_and_no_token_one_twice():
    from peers import cases, shapes
    shape = shapes.SMALL.of["permute-top8-h7168"]
    routes = cases.Routes(cases.Place("cpu"), shape)
    each = shape.tokens * shape.k // shape.experts
    assert routes.expert.reshape(-1).bincount().tolist() == [each] * shape.experts
    assert all(len(set(token)) == shape.k for token in routes.expert.tolist())
    for token in range(shape.tokens):
        for choice in range(shape.k):
            row = routes.row[token, choice]
            assert routes.token_of_row[row] == token
            assert row // each == routes.expert[token, choice]
