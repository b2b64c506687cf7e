"""`moesim import` and `--routing trace:FILE`: every kind of source, what drives the simulator, and
what is refused; the expected figures are counted here with NumPy."""

import csv
import gzip
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import as_json, moesim, needs_binary, refused, succeed, trace_document
from public_tables import folder_of

np = pytest.importorskip("numpy", reason="NumPy is not installed")
ROOT = Path(__file__).resolve().parents[3]

pytestmark = needs_binary


def route(trace, *words):
    return as_json("route", "--routing", f"trace:{trace}", *words)


def capacity(factor, tokens, experts):
    """ceil(factor * tokens / experts), the factor in hundredths."""
    return -(-round(factor * 100) * tokens // (100 * experts))


def counted_loss(counts, slots):
    return np.maximum(counts - slots, 0).sum() / counts.sum()


def suggested(result):
    """The words of the command that an import says to try."""
    return re.search(r"try: moesim (.*)", result.stderr).group(1).split()


TABLE = """domain,layer,expert,count
c4,0,0,70
c4,0,2,30
c4,3,1,50
c4,3,3,50
book,0,0,100
book,3,1,100
"""


def test_a_table_becomes_a_trace_and_a_missing_expert_a_zero(tmp_path):
    (tmp_path / "counts.csv").write_text(TABLE)
    result = moesim("import", tmp_path / "counts.csv", "--where", "domain=c4", "--experts", 4,
                    "--top-k", 1, "--out", tmp_path / "trace", "--licence", "Apache-2.0",
                    "--origin", "synthetic")
    assert result.returncode == 0, result.stderr
    counts = np.load(tmp_path / "trace" / "counts.npy")
    assert counts.tolist() == [[[[70, 0, 30, 0], [0, 50, 0, 50]]]]
    text = trace_document(tmp_path / "trace")
    assert text["layers"] == [0, 3] and text["tokens"] == 100 and text["licence"] == "Apache-2.0"
    assert "domain = c4" in text["note"]
    # C = 25: 45 + 5 of 100 and 25 + 25 of 100; the 16 layers of the default model alternate.
    rows = as_json(*suggested(result))
    assert rows["failed"] == pytest.approx(0.5)


def test_a_table_is_refused_by_its_line(tmp_path):
    table = tmp_path / "counts.csv"
    table.write_text(TABLE)
    start = ("import", table, "--top-k", 1, "--out", tmp_path / "trace")
    refused(*start, "--experts", 4, parts=["line 6", "twice", "domain=book|c4"])
    refused(*start, "--experts", 4, "--where", "domain=c5", parts=["domain=c5", "book, c4"])
    refused(*start, "--experts", 4, "--where", "set=c4", parts=["no column 'set'"])
    refused(*start, "--where", "domain=c4", parts=["--experts is missing"])
    refused(*start, "--where", "domain=c4", "--experts", 3, parts=["line 5", "'3'"])
    refused(*start, "--where", "domain=c4", "--experts", 4, "--axes", "expert",
            parts=["--axes: means nothing"])
    table.write_text(TABLE.replace("c4,3,3,50", "c4,3,3,40"))
    refused(*start, "--where", "domain=c4", "--experts", 4,
            parts=["layer 1: the counts add up to 90, not to 100"])
    assert not (tmp_path / "trace").exists()


def drifting(steps=3, ranks=2, layers=2, micro=2, experts=4, routes=64):
    random = np.random.default_rng(5)
    popularity = random.dirichlet(np.ones(experts), (steps, ranks, layers, micro))
    counts = np.array([random.multinomial(routes, p) for p in popularity.reshape(-1, experts)])
    return np.minimum(counts, routes).reshape(steps, ranks, layers, micro, experts)


@pytest.mark.parametrize("packed", [False, True])
def test_an_array_of_an_npz_becomes_a_trace_of_all_its_steps(tmp_path, packed):
    counts = drifting()
    save = np.savez_compressed if packed else np.savez
    save(tmp_path / "run.npz", counts=counts.astype("uint16"), iterations=np.array([1, 51, 101]))
    result = moesim("import", tmp_path / "run.npz", "--array", "counts", "--axes",
                    "step,rank,layer,micro-batch,expert", "--steps", "iterations", "--top-k", 1,
                    "--out", tmp_path / "trace")
    assert result.returncode == 0, result.stderr
    flat = counts.transpose(0, 3, 1, 2, 4).reshape(6, 2, 2, 4)
    assert (np.load(tmp_path / "trace" / "counts.npy") == flat).all()
    assert trace_document(tmp_path / "trace")["steps"] == [1, 1, 51, 51, 101, 101]
    for factor in (0.5, 1, 1.75):
        row = as_json(*suggested(result), "--capacity-factor", factor)
        assert row["failed"] == pytest.approx(counted_loss(flat, capacity(factor, 64, 4)))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "run.npz").read_bytes()[:-40])
    words = ("--axes", "step,rank,layer,micro-batch,expert", "--top-k", 1, "--out",
             tmp_path / "other")
    refused("import", tmp_path / "cut.npz", "--array", "counts", *words,
            parts=["cut.npz", "cut short"])
    refused("import", tmp_path / "run.npz", *words, parts=["--array", "counts, iterations"])
    refused("import", tmp_path / "run.npz", "--array", "count", *words,
            parts=["did you mean 'counts'?"])
    refused("import", tmp_path / "run.npz", "--array", "counts", "--axes", "step,rank,expert",
            "--top-k", 1, "--out", tmp_path / "other", parts=["[3, 2, 2, 2, 4]", "--axes names 3"])
    damaged = bytearray((tmp_path / "run.npz").read_bytes())
    damaged[len(damaged) // 3] ^= 1
    (tmp_path / "damaged.npz").write_bytes(damaged)
    refused("import", tmp_path / "damaged.npz", "--array", "counts", *words, parts=["damaged"])


def test_one_replica_is_one_step_and_a_sweep_takes_traces(tmp_path):
    counts = drifting(micro=1)[:, :, :, 0]
    np.save(tmp_path / "counts.npy", counts)
    succeed("import", tmp_path / "counts.npy", "--axes", "step,rank,layer,expert", "--top-k", 1,
            "--out", tmp_path / "trace")
    sizes = ("--experts", 4, "--router", "top1", "--gpus", 2, "--tokens-per-gpu", 64)
    one = route(tmp_path / "trace", *sizes, "--replicas", 1)
    assert one["failed"] == pytest.approx(counted_loss(counts[0], 16))
    assert route(tmp_path / "trace", *sizes, "--replicas", 3)["failed"] == pytest.approx(
        np.mean([counted_loss(step, 16) for step in counts]))
    rows = succeed("sweep", "--routing", f"trace:{tmp_path / 'trace'}", *sizes, "--replicas", 1,
                   "--sequence-length", 64, "--capacity-factor", "1,2", "--format", "csv")
    header, first, second = (line.split(",") for line in rows.splitlines())
    at = header.index("failed")
    assert float(first[at]) == pytest.approx(counted_loss(counts[0], 16))
    assert float(second[at]) == pytest.approx(counted_loss(counts[0], 32))
    step = as_json("simulate", "--routing", f"trace:{tmp_path / 'trace'}", *sizes,
                   "--sequence-length", 64, "--replicas", 1)
    assert step["failed"] == pytest.approx(one["failed"]) and step["step_ms"] > 0


def test_the_snippet_of_the_readme_saves_a_trace_that_is_routed_exactly(tmp_path):
    text = (ROOT / "traces" / "README.md").read_text()
    snippet = re.search(r"```python\n(.*?)```", text, re.S).group(1)

    class Tensor(np.ndarray):  # what of torch.Tensor the snippet uses
        def float(self):
            return self.astype("float32")

        def cpu(self):
            return self

        def numpy(self):
            return np.asarray(self)

    space = {}
    exec(compile(snippet, "traces/README.md", "exec"), space)
    logits = np.random.default_rng(3).normal(size=(2, 200, 8)).astype("float32")
    space["save_trace"](tmp_path, list(logits.view(Tensor)), "tiny", 1)
    row = route(tmp_path, "--experts", 8, "--tokens-per-gpu", 200, "--gpus", 1, "--router", "top1",
                "--replicas", 1)
    counts = np.array([np.bincount(layer.argmax(1), minlength=8) for layer in logits])
    assert row["failed"] == pytest.approx(counted_loss(counts, 25))


def trace_folder(folder, array, **other):
    folder.mkdir(exist_ok=True)
    np.save(folder / "array.npy", array)
    text = {"format": "moesim trace 1", "name": "t", "model": "m", "source": "s", "licence": "l",
            "origin": "synthetic", "kind": "counts", "axes": ["expert"], "tokens": 8, "experts": 4,
            "top_k": 1, "array": "array.npy", **other}
    (folder / "trace.json").write_text(json.dumps(text))
    return folder


def test_bad_traces_and_jobs_are_named(tmp_path):
    good = np.array([4, 2, 1, 1])
    base = ("--experts", 4, "--router", "top1", "--gpus", 1, "--tokens-per-gpu", 8)

    def wrong(array, parts, *words, **other):
        folder = trace_folder(tmp_path / "bad", array, **other)
        refused("route", "--routing", f"trace:{folder}", *(words or base), parts=parts)

    assert route(trace_folder(tmp_path / "good", good), *base)["failed"] == pytest.approx(0.25)
    wrong(np.array([4, 2, 1, 2]), ["array.npy", "add up to 9, not to 8"])
    wrong(good.astype("float32"), ["dtype '<f4' instead of whole numbers"])
    wrong(good[:3], ["shape [3]", "experts 4"])
    wrong(good, ["/tokens"], tokens=0)
    wrong(good, ["did you mean 'experts'?"], expert=4)
    wrong(good, ["--experts 4"], "--experts", 8, "--router", "top1", "--gpus", 1,
          "--tokens-per-gpu", 8)
    wrong(good, ["--tokens-per-gpu 8", "trace-repeat:"], "--experts", 4, "--router", "top1",
          "--gpus", 1, "--tokens-per-gpu", 16)
    wrong(good, ["--top-k 1"], "--experts", 4, "--router", "top2", "--gpus", 1,
          "--tokens-per-gpu", 8)
    many = np.tile(good, (40, 1))
    wrong(many, ["40 MoE layers, the model 16"], *base, "--model", "llama2-7b-moe8",
          axes=["layer", "expert"])
    wrong(many, ["40 ranks, the job 1 GPUs", "--gpus 40"], axes=["rank", "expert"])
    path = trace_folder(tmp_path / "cut", good) / "array.npy"
    path.write_bytes(path.read_bytes()[:-3])
    refused("route", "--routing", f"trace:{tmp_path / 'cut'}", *base,
            parts=["array.npy", "truncated"])
    refused("route", "--routing", f"trace:{tmp_path / 'none'}", *base, parts=["none"])
    (tmp_path / "cut" / "trace.json").write_text("{")
    refused("route", "--routing", f"trace:{tmp_path / 'cut'}", *base,
            parts=["trace.json", "line 1"])


def profiler_trace(rank, exchanges, text=True, **more):
    """What Kineto writes of all_to_allv: the CPU event, and a kernel that repeats its arguments."""
    events = [{"ph": "M", "name": "process_name"}]
    for index, (sent, received) in enumerate(exchanges):
        split = json.dumps if text else list
        arguments = {"Collective name": "all_to_allv", "dtype": "BFloat16", "Group size": len(sent),
                     "In msg nelems": sum(sent), "Out msg nelems": sum(received),
                     "In split size": split(sent), "Out split size": split(received),
                     "Process Group Name": "7", "Rank": rank,
                     "Process Group Description": "EXPERT_MODEL_PARALLEL", **more}
        event = {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "ts": 10.0 * index,
                 "dur": 3, "args": arguments}
        events.append(event)
        events.append({**event, "cat": "kernel", "name": "ncclDevKernel_SendRecv"})
    other = {"Collective name": "allreduce", "Process Group Name": "0", "Rank": rank}
    events.append({"ph": "X", "name": "record_param_comms", "ts": 1, "args": other})
    return {"schemaVersion": 1, "distributedInfo": {"rank": rank}, "traceEvents": events[::-1]}


def matrix_runs(sends, backward):
    """Per rank: (sent, received) of dispatch and combine of each layer, backward layers mirrored.
    sends[step][layer] is a matrix [source, target]."""
    ranks = len(sends[0][0])
    runs = [[] for _ in range(ranks)]
    for step in sends:
        for matrix in step + (step[::-1] if backward else []):
            for rank in range(ranks):
                row = [int(value) for value in matrix[rank]]
                column = [int(value) for value in matrix[:, rank]]
                runs[rank] += [(row, column), (column, row)]
    return runs


@pytest.mark.parametrize("backward,packed,text", [(False, False, True), (True, True, False)])
def test_split_sizes_of_profiler_traces_become_counts_per_rank(tmp_path, backward, packed, text):
    random = np.random.default_rng(2)
    sends = [[random.multinomial(96, [0.6, 0.3, 0.1], 3) for _ in range(2)] for _ in range(4)]
    files = []
    for rank, exchanges in enumerate(matrix_runs(sends, backward)):
        content = json.dumps(profiler_trace(rank, exchanges, text))
        files.append(tmp_path / f"rank{rank}.json{'.gz' if packed else ''}")
        files[-1].write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    words = ("--layers", 2, "--top-k", 1, "--out", tmp_path / "trace") + (
        ("--backward",) if backward else ())
    result = moesim("import", *files[::-1], *words)
    assert result.returncode == 0, result.stderr
    counts = np.array(sends).transpose(0, 2, 1, 3)
    assert (np.load(tmp_path / "trace" / "counts.npy") == counts).all()
    assert trace_document(tmp_path / "trace")["per"] == "rank"
    row = as_json(*suggested(result))
    assert row["failed"] == pytest.approx(counted_loss(counts, 32))
    refused("route", "--routing", f"trace:{tmp_path / 'trace'}", "--experts", 6, "--gpus", 3,
            "--router", "top1", "--tokens-per-gpu", 96, parts=["per receiving GPU", "change --experts to 3"])
    refused("import", *files[:2], *words, parts=["rank 2 is missing"])
    refused("import", *files, *words[2:], parts=["--layers is missing"])
    refused("import", *files, "--layers", 3, *words[2:], parts=["no whole number of steps"])
    refused("import", *files, "--exchanges-per-layer", 4, *words, parts=["does not return"])


HIDDEN, CAPACITY, TOKENS = 64, 5, 32  # of 16 experts, 4 on each of 4 ranks, top-2: ceil(1.25 * 2 * 32 / 16)


def padded_files(folder, listed, layers=2, steps=3):
    """Traces of 4 ranks with equal blocks, with split sizes or, as of all_to_all_single without them, none.
    The exchange of rank r takes 100 + r us; a product of 300 us follows each."""
    files, block = [], 4 * CAPACITY
    for rank in range(4):
        sizes = [block] * 4 if listed else []
        document = profiler_trace(rank, [(sizes, sizes)] * (2 * layers * steps),
                                  **{"Collective name": "all_to_allv" if listed else "all_to_all", "Group size": 4,
                                     "In msg nelems": 4 * block * HIDDEN, "Out msg nelems": 4 * block * HIDDEN})
        for event in document["traceEvents"]:
            if event.get("cat") == "kernel":
                event.update(pid=rank, tid=20, dur=100 + rank, ts=1000 * event["ts"])
        document["traceEvents"] += [{"ph": "X", "cat": "kernel", "name": "grouped_gemm_kernel", "pid": rank, "tid": 7,
                                     "ts": 10000 * index + 500, "dur": 300} for index in range(2 * layers * steps)]
        files.append(folder / f"rank{rank}.json")
        files[-1].write_text(json.dumps(document))
    return files


def test_the_capacity_factor_that_is_named_has_that_capacity(tmp_path):
    # 16 x 5 / (2 x 33) = 1.2121...: rounded up it would give 6 rows.
    result = moesim("import", *padded_files(tmp_path, True), "--layers", 2, "--top-k", 2, "--experts", 16,
                    "--tokens", 33, "--out", tmp_path / "padded")
    assert result.returncode == 0, result.stderr
    assert as_json(*suggested(result))["capacity"] == CAPACITY
    result = moesim("import", *padded_files(tmp_path, True), "--layers", 2, "--top-k", 1, "--experts", 16,
                    "--tokens", 300, "--out", tmp_path / "padded")
    assert as_json(*suggested(result))["capacity"] == CAPACITY


@pytest.mark.parametrize("listed", [True, False])
def test_padded_exchanges_say_their_capacity_and_times(tmp_path, listed):
    files = padded_files(tmp_path, listed)
    words = ("import", *files, "--layers", 2, "--top-k", 2)
    row_values = () if listed else ("--row-values", HIDDEN)
    out = tmp_path / "padded"
    result = moesim(*words, *row_values, "--experts", 16, "--tokens", TOKENS, "--out", out)
    assert result.returncode == 0, result.stderr
    assert "each of 4 ranks sends 20 rows to each" in result.stderr and not (out / "trace.json").exists()
    assert "capacity 5 rows of each expert and rank: a capacity factor above 1, up to 1.25" in result.stderr
    # The command that it says to try has this capacity: 16 experts of 4 x 5 rows each.
    assert as_json(*suggested(result))["capacity"] == CAPACITY
    with open(out / "exchanges.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12 and [row["layer"] for row in rows[:5]] == ["0", "0", "1", "1", "0"]
    assert {(row["padded"], row["rows_max"], row["bytes_max"], row["kernel_us_fastest"], row["kernel_us_slowest"])
            for row in rows} == {("1", "80", str(80 * HIDDEN * 2), "100", "103")}
    with open(out / "parts.csv", newline="", encoding="utf-8") as file:
        parts = {row["part"]: row for row in csv.DictReader(file)}
    assert {name: int(row["calls"]) for name, row in parts.items()} == {"expert": 12, "exposed_exchange": 12, "idle": 0}
    assert float(parts["expert"]["kernel_ms"]) == pytest.approx(12 * 0.3)
    # All GPUs take the same time: the first stands for them.
    assert float(parts["exposed_exchange"]["kernel_ms"]) == pytest.approx(12 * 0.1)
    # From the first exchange to the end of the last product, which is alone.
    assert sum(float(row["exposed_ms"]) for row in parts.values()) == pytest.approx(11 * 10 + 0.8)
    without = moesim(*words, *row_values, "--out", tmp_path / "less")
    assert without.returncode == 0 and "with --experts E" in without.stderr
    refused(*words, *row_values, "--experts", 6, "--out", out, parts=["--experts", "6 do not divide over the 4 ranks"])
    refused(*words, *row_values, "--experts", 12, "--out", out, parts=["--experts", "blocks of 20"])
    if not listed:
        refused(*words, "--out", out, parts=["rank0.json", "--row-values", "hidden size"])
        refused(*words, "--row-values", 3 * HIDDEN, "--out", out, parts=["no whole number of rows"])


def test_uneven_exchanges_have_their_times_too_and_padded_ones_among_them_are_refused(tmp_path):
    sends = [[np.array([[5, 3], [2, 6]])]] * 2
    runs = matrix_runs(sends, False)
    for rank, exchanges in enumerate(runs):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(profiler_trace(rank, exchanges)))
    files = [tmp_path / "rank0.json", tmp_path / "rank1.json"]
    words = ("import", *files, "--layers", 1, "--top-k", 1)
    succeed(*words, "--out", tmp_path / "trace")
    with open(tmp_path / "trace" / "exchanges.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["padded"], row["rows_mean"], row["rows_max"]) for row in rows] == [("0", "8", "8"), ("0", "8", "9")] * 2
    refused(*words, "--experts", 2, "--out", tmp_path / "x", parts=["--experts", "uneven"])
    # A trace that is there stays.
    equal = padded_files(tmp_path, True)
    refused("import", *equal, "--layers", 2, "--top-k", 2, "--out", tmp_path / "trace", parts=["--out", "is a trace"])
    for rank, exchanges in enumerate(runs):
        document = profiler_trace(rank, exchanges)
        for event in document["traceEvents"]:
            if event.get("ts") == 10.0:
                event["args"].update({"In split size": "[]", "Out split size": "[]", "In msg nelems": 8, "Out msg nelems": 8})
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    refused(*words, "--row-values", 1, "--out", tmp_path / "x", parts=["of equal blocks (padded), others are not"])


def test_profiler_traces_that_say_too_little_are_refused(tmp_path):
    file = tmp_path / "rank0.json"
    words = ("import", file, "--layers", 1, "--top-k", 1, "--out", tmp_path / "trace")

    def wrong(content, *parts):
        file.write_text(json.dumps(content))
        refused(*words, parts=["rank0.json", *parts])

    both = [([5, 3], [5, 2]), ([5, 2], [5, 3])]
    wrong({"events": []}, "no \"traceEvents\"")
    wrong(profiler_trace(0, []), "no all_to_allv")
    wrong(profiler_trace(0, [([], []), ([], [])]), "equal blocks (padded", '"Group size"')
    cut = {"In split size": "[1, 2, ...]"}
    wrong(profiler_trace(0, both, **cut), "cut short")
    wrong(profiler_trace(0, [([2**62, 2**62], [0, 0])]), "no whole number of rows")
    timeless = profiler_trace(0, both)
    for event in timeless["traceEvents"]:
        event["ts"] = "0.5 us"
    wrong(timeless, '"ts"')
    wrong(profiler_trace(0, both), "rank 1 is missing")
    (tmp_path / "rank1.json").write_text(
        json.dumps(profiler_trace(1, [([1, 7], [3, 7]), ([3, 7], [1, 7])])))
    # Rank 0 says that it receives 2 rows of rank 1, which sends 1.
    refused(*words, tmp_path / "rank1.json", parts=["sends 1 rows to rank 0", "not of one run"])
    mixed = profiler_trace(0, both)
    mixed["traceEvents"][1]["args"]["Process Group Description"] = "OTHER"
    mixed["traceEvents"][2]["args"]["Process Group Description"] = "OTHER"
    wrong(mixed, "--process-group", "7 (OTHER)")


def test_flags_and_files_that_mean_nothing_are_refused(tmp_path):
    refused("import", "--out", tmp_path, parts=["no file given"])
    refused("import", "x.dat", "--top-k", 1, "--out", tmp_path, parts=["x.dat", ".npz"])
    refused("import", "x.csv", "--top-k", 1, parts=["--out is missing"])
    refused("import", "x.csv", "y.csv", "--top-k", 1, "--out", tmp_path, parts=["y.csv"])
    (tmp_path / "counts.csv").write_text(TABLE)
    refused("import", tmp_path / "counts.csv", "--where", "domain=c4", "--experts", 4, "--top-k", 1,
            "--out", tmp_path / "t", "--origin", "real", parts=["--origin", "published"])


def test_smartmoe_counts_lose_what_direct_counting_says(tmp_path):
    archive = folder_of("smartmoe_routing_trace.npz") / "smartmoe_routing_trace.npz"
    counts = np.load(archive)["counts"].astype(int)
    succeed("import", archive, "--array", "counts", "--axes",
            "step,rank,layer,micro-batch,expert", "--steps", "iterations", "--top-k", 2, "--out",
            tmp_path / "trace")
    # 32 layers of Mixtral take the 24 of the trace and then the first 8 again.
    layers = np.r_[0:24, 0:8]
    flat = counts.transpose(0, 3, 1, 2, 4).reshape(84, 16, 24, 32)[:3][:, :, layers]
    for factor in (1, 2, 4):
        row = route(tmp_path / "trace", "--model", "mixtral-8x7b", "--experts", 32, "--gpus", 16,
                    "--router", "top2", "--tokens-per-gpu", 2048, "--capacity-factor", factor,
                    "--replicas", 3)
        assert row["failed"] == pytest.approx(counted_loss(flat, math.ceil(factor * 64)), rel=1e-7)


def test_olmoe_counts_lose_what_the_table_says(tmp_path):
    succeed("import", folder_of("expert_counts.csv") / "expert_counts.csv", "--where",
            "model=OLMoE-1B-7B-0924,kind=topk,domain=c4", "--experts", 64, "--top-k", 8, "--out",
            tmp_path / "trace")
    assert trace_document(tmp_path / "trace")["layers"] == [0, 7, 15]
    counts = np.load(tmp_path / "trace" / "counts.npy")
    for factor, quoted in ((1, 0.151), (1.25, 0.073)):
        lost = [counted_loss(counts[0, 0, layer], factor * 208896 * 8 / 64) for layer in range(3)]
        assert np.mean(lost) == pytest.approx(quoted, abs=0.0005)
        slots = math.ceil(factor * 208896 * 8 / 64)
        # The 16 layers of OLMoE take the three in turn: 6, 5 and 5 times.
        exact = [counted_loss(counts[0, 0, layer % 3], slots) for layer in range(16)]
        row = route(tmp_path / "trace", "--model", "olmoe-1b-7b", "--experts", 64, "--gpus", 1,
                    "--router", "topk", "--top-k", 8, "--tokens-per-gpu", 208896,
                    "--capacity-factor", factor, "--capacity-convention", "library", "--replicas",
                    1)
        assert row["failed"] == pytest.approx(np.mean(exact), rel=1e-7)


def test_the_shipped_trace_is_what_its_script_makes_and_its_counts_are_exact(tmp_path):
    shipped = ROOT / "traces" / "synthetic-drift"
    subprocess.run([sys.executable, shipped / "make.py", tmp_path], check=True)
    counts = np.load(shipped / "counts.npy")
    assert (np.load(tmp_path / "counts.npy") == counts).all()
    assert trace_document(tmp_path) == trace_document(shipped)
    row = route(shipped, "--tokens-per-gpu", 512, "--gpus", 8, "--router", "top2",
                "--capacity-factor", 2, "--replicas", 4)
    assert row["failed"] == pytest.approx(counted_loss(counts, 128))


def imported_note(tmp_path, array):
    np.save(tmp_path / "logits.npy", np.ascontiguousarray(array, np.float32))
    result = moesim("import", tmp_path / "logits.npy", "--top-k", 2, "--out", tmp_path / "trace")
    assert result.returncode == 0, result.stderr
    return result.stderr


def test_probabilities_and_swapped_axes_get_a_warning(tmp_path):
    logits = np.random.default_rng(1).normal(size=(2048, 16))
    weights = np.exp(logits)
    said = imported_note(tmp_path, weights / weights.sum(axis=1, keepdims=True))
    assert "warning" in said and "as after a softmax" in said
    assert "2048 experts for 16 tokens: are the axes swapped?" in imported_note(tmp_path, logits.T)
    assert "warning" not in imported_note(tmp_path, logits)
    # Inside 0..1, but no softmax.
    assert "warning" not in imported_note(tmp_path, 1 / (1 + np.exp(-logits)))


def test_counts_in_floating_point_are_no_logits(tmp_path):
    counts = np.random.default_rng(1).integers(0, 500, size=(2, 4, 16)).astype(np.float64)
    np.save(tmp_path / "counts.npy", counts)
    start = ("import", tmp_path / "counts.npy", "--top-k", 2, "--out", tmp_path / "trace")
    for axes in ("rank,layer,expert", "step,layer,expert"):
        refused(*start, "--axes", axes, parts=["--axes: token is missing", "counts.npy", "array.astype(int)"])
    assert not (tmp_path / "trace").exists()
    # Without --axes they may be logits of tokens.
    assert "all values are whole numbers, as counts are" in imported_note(tmp_path, counts)
    counts[0, 0, 0] = 1e300
    np.save(tmp_path / "counts.npy", counts)
    refused(*start, parts=["counts.npy: 1e+300 at [0, 0, 0] is too large for float32"])
    counts[0, 0, 0] = 0
    counts[1, 3, 2] = -1e300
    np.save(tmp_path / "counts.npy", counts)
    refused(*start, parts=["counts.npy: -1e+300 at [1, 3, 2] is too small for float32"])


@pytest.mark.parametrize("option, said", [("--profile", "--base NAME"), ("--cluster", "--cluster NAME")])
def test_a_log_for_a_document_says_import(tmp_path, option, said):
    (tmp_path / "nccl.log").write_text("# nThread 1 nGpus 8\n  1024  256  float\n")
    refused("simulate", option, tmp_path / "nccl.log",
            parts=["is a file, but no JSON document", "moesim import", said])
    (tmp_path / "odd").write_text(' {"format": "moesim"}')  # read, then refused by its contents
    assert "no JSON document" not in moesim("simulate", option, tmp_path / "odd").stderr
