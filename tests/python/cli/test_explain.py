"""`moesim explain`: the simulator's own timelines give its own parts, a change is found where it was made, and a trace with the
names of PyTorch's kernels counts as its comments say."""

import gzip
import json
import re
from pathlib import Path

import pytest

from command_line import as_json, expect_error, moesim, needs_binary, succeed

pytestmark = needs_binary
DATA = Path(__file__).resolve().parents[2] / "data"
JOB = ("--gpus", 4, "--expert-parallel", 4, "--replicas", 2, "--sequence-length", 512, "--micro-batch", 1, "--capacity-factor", 1.25)
ROUTED = (*JOB, "--router", "top2+fr+ir")
PARTS = ("attention", "dense_ffn", "router", "dispatch_combine", "expert", "rectify", "exposed_exchange", "gradient",
         "optimizer", "other")


def own_timeline(folder, *job):
    """Files of all GPUs, and the result of simulate."""
    step = as_json("simulate", *job, "--timeline", folder / "rank{rank}.json")
    return step, [folder / f"rank{rank}.json" for rank in range(4)]


def explained(files, *job):
    return as_json("explain", *files, *job)


def by_part(result):
    return {"+".join(row["parts"]): row for row in result["parts_exposed"]}


def scaled(file, part, factor):
    """The kernels of a part take so many times as long; later ones of all streams start later."""
    trace = json.loads(file.read_text())
    events = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    longer = sorted((event["ts"], event["dur"] * (factor - 1)) for event in events if event["args"]["part"] == part)
    old = {id(event): event["ts"] for event in events}
    for event in events:
        event["ts"] += sum(more for start, more in longer if start < old[id(event)])
        if event["args"]["part"] == part:
            event["dur"] *= factor
    file.write_text(json.dumps(trace))


@pytest.mark.parametrize("more", [("--router", "top2+fr+ir"), ("--router", "top2", "--mode", "prefill"),
                                  ("--router", "dropless", "--zero", 3), ("--router", "top1+ir", "--overlap", "gradient"),
                                  ("--router", "base"), ("--router", "top2", "--global-batch", 8, "--zero", 0)])
def test_the_own_timeline_has_no_difference_in_any_part(tmp_path, more):
    step, files = own_timeline(tmp_path, *JOB, *more)
    result = explained(files, *JOB, *more)
    # A trace is of one GPU, which waits for others; parts of simulate are those of the others then.
    is_equal = "+ir" not in more[1] and "dropless" not in more
    assert result["multiplier"] == pytest.approx(1, abs=1e-6)
    assert result["measured_ms"] == pytest.approx(step["step_ms"], rel=1e-6)
    assert result["suspicions"] == [] and result["unknown_share"] == 0 and result["any_part_share"] == 0
    for name, row in by_part(result).items():
        assert row["measured_ms"] == pytest.approx(row["simulated_ms"], abs=1e-3), name
        # Without overlap and with equal GPUs, exposed time is what simulate prints.
        if name != "idle" and "gradient" not in more and is_equal:
            assert row["simulated_ms"] == pytest.approx(step[f"{name}_ms"], rel=1e-3, abs=2e-3), name


@pytest.mark.parametrize("more", [("--router", "dropless", "--routing", "zipf:1", "--mode", "prefill"),
                                  ("--router", "top2+ir", "--routing", "zipf:0.7", "--jitter", 0.02),
                                  ("--router", "topk", "--slow-gpu", "1:1.3", "--slow-link", "2:4")])
def test_the_order_of_the_traces_does_not_matter(tmp_path, more):
    """Uneven GPUs wait for each other and end together: the one that the others wait for is compared, whatever file is first."""
    job = ("--gpus", 12, "--experts", 12, "--expert-parallel", 12, *JOB[4:], *more)
    step = as_json("simulate", *job, "--timeline", tmp_path / "rank{rank}.json")
    ascending = [tmp_path / f"rank{rank}.json" for rank in range(12)]
    result = explained(ascending, *job)
    assert result["suspicions"] == [] and result["measured_ms"] == pytest.approx(step["step_ms"], rel=1e-6)
    # A shell's * has rank10 before rank2.
    for files in (ascending[::-1], sorted(ascending, key=str), ascending[5:] + ascending[:5]):
        assert explained(files, *job) == result


def test_parts_of_uneven_gpus_are_those_of_one_gpu_and_of_simulate_those_of_the_busiest_of_each_layer(tmp_path):
    more = ("--router", "dropless", "--mode", "prefill")
    step, files = own_timeline(tmp_path, *JOB, *more)
    experts = {}  # us by layer and GPU
    for rank, file in enumerate(files):
        for event in json.loads(file.read_text())["traceEvents"]:
            if event.get("cat") == "kernel" and event["args"]["part"] == "expert":
                experts.setdefault(event["args"]["layer"], {})[rank] = event["dur"]
    busiest = sum(max(layer.values()) for layer in experts.values()) / 1e3
    one_gpu = max(sum(layer[rank] for layer in experts.values()) for rank in range(4)) / 1e3
    rows = by_part(explained(files, *JOB, *more))
    assert one_gpu < 0.99 * busiest
    assert step["expert_ms"] == pytest.approx(busiest, rel=5e-3)
    assert rows["expert"]["simulated_ms"] == pytest.approx(one_gpu, rel=1e-3)
    # What that GPU does not compute, or sort by expert, it waits.
    waits = rows["exposed_exchange"]["simulated_ms"] - step["exposed_exchange_ms"]
    spared = sum(step[f"{part}_ms"] - rows[part]["simulated_ms"] for part in ("expert", "dispatch_combine"))
    assert waits == pytest.approx(spared, rel=0.02, abs=0.02)


@pytest.mark.parametrize("part", ["attention", "dense_ffn", "expert", "rectify", "optimizer"])
@pytest.mark.parametrize("factor", [1.5, 0.6])
def test_a_part_that_was_changed_in_the_trace_is_named(tmp_path, part, factor):
    step, files = own_timeline(tmp_path, *ROUTED)
    for file in files:
        scaled(file, part, factor)
    result = explained(files, *ROUTED)
    assert [one["parts"] for one in result["suspicions"]] == [[part]]
    only = result["suspicions"][0]
    assert only["difference_ms"] == pytest.approx((factor - 1) * step[f"{part}_ms"], rel=1e-2)
    assert only["share"] > 0.9 and only["suspect"] and only["next"]


def test_a_difference_within_the_error_of_its_curve_is_listed_as_such(tmp_path):
    """Products and attention are known to 13 % (p95), so that 1.1 times is within and 1.5 times beyond."""
    step, files = own_timeline(tmp_path, *ROUTED)
    for file in files:
        scaled(file, "attention", 1.1)
        scaled(file, "optimizer", 1.5)
    result = explained(files, *ROUTED)
    found = {"+".join(one["parts"]): one for one in result["suspicions"]}
    assert {part: one["within_error"] for part, one in found.items()} == {"attention": True, "optimizer": False}
    assert found["attention"]["difference_ms"] == pytest.approx(0.1 * step["attention_ms"], rel=1e-2)
    sizes = [abs(one["difference_ms"]) for one in result["suspicions"]]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] >= 0.01 * result["measured_ms"]
    text = succeed("explain", *files, *ROUTED)
    assert re.search(r"\nattention .* 1\.10 +within its error \(0\.89 to 1\.13\)", text)
    assert re.search(r"\ndense FFN .* 1\.00 +as simulated\n", text)
    assert "within its error (0.89 to 1.13), which alone may explain it" in text


@pytest.mark.parametrize("router", ["top2+fr+ir", "dropless"])
def test_a_slow_gpu_is_one_suspect_where_traces_of_several_are_given(tmp_path, router):
    job = (*JOB, "--router", router)
    _, files = own_timeline(tmp_path, *job, "--slow-gpu", "2:1.3")
    result = explained(files, *job)
    assert [(one["device"], one["factor"]) for one in result["slow_gpus"]] == [("2", pytest.approx(1.3, rel=1e-3))]
    first = result["suspicions"][0]
    assert first["slow_gpu"] and {"attention", "router", "expert", "optimizer"} <= set(first["parts"])
    # 1.3 times all that it computes; the rest waits less, or is routing.
    computed = [row for part, row in by_part(result).items() if part not in ("exposed_exchange", "gradient", "idle")]
    assert first["difference_ms"] == pytest.approx(sum(row["measured_ms"] for row in computed) * (1 - 1 / 1.3), rel=1e-3)
    assert not any(one["slow_gpu"] or "attention" in one["parts"] for one in result["suspicions"][1:])
    assert f"GPU 2 ({files[2]}) is 1.30 times slower than the other 3: +" in succeed("explain", *files, *job)
    # Its trace alone says of each part that it is slow; a scenario that has the slow GPU says nothing.
    alone = explained(files[2:3], *job)
    assert alone["slow_gpus"] == [] and ["attention"] in [one["parts"] for one in alone["suspicions"]]
    assert explained(files, *job, "--slow-gpu", "2:1.3")["slow_gpus"] == []


def test_names_as_pytorch_has_them(tmp_path):
    """Three steps. The first two last until the next one's first kernel, 1000 us; the third until its last kernel."""
    job = (*JOB, "--router", "top2")
    file = DATA / "kineto_excerpt.json"
    result = explained([file], *job)
    kernels = {row["name"].split("(")[0][:30]: row for row in result["trace"]["kernels"]}
    assert result["trace"]["has_marks"] and result["trace"]["gpus"] == 1
    assert result["trace"]["steps_ms"] == pytest.approx([1.0, 1.0, 0.672])
    assert result["measured_ms"] == pytest.approx(1.0)
    places = {}
    for row in result["trace"]["kernels"]:
        places[row["counted_to"]] = places.get(row["counted_to"], 0) + row["sum_ms"]
    # norm 10, products 90 + 40 and flash 60 inside SelfAttention; reduction 100, of which 60 beside a product
    assert places == pytest.approx({"attention": 0.200, "router": 0.015, "dispatch_combine": 0.040, "exposed_exchange": 0.100,
                                    "expert": 0.120, "any_memory": 0.032, "any_product": 0.060, "gradient": 0.100,
                                    "optimizer": 0.050, "unknown": 0.005})
    assert kernels["nvjet_hsh_128x256_64x4_1x2_h_b"]["counted_to"] == "any_product"
    rows = by_part(result)
    assert set(rows) == {"attention+dense_ffn+router+dispatch_combine+rectify+other", "expert", "exposed_exchange", "gradient",
                         "optimizer", "idle"}
    assert rows["gradient"]["measured_ms"] == pytest.approx(0.040)
    assert rows["exposed_exchange"]["measured_ms"] == pytest.approx(0.100)
    assert result["unknown_share"] == pytest.approx(0.005) and result["any_part_share"] == pytest.approx(0.092)
    assert sum(row["measured_ms"] for row in rows.values()) == pytest.approx(1.0)
    (tmp_path / "excerpt.json.gz").write_bytes(gzip.compress(file.read_bytes()))
    packed = explained([tmp_path / "excerpt.json.gz"], *job)
    assert packed["parts_exposed"] == result["parts_exposed"]
    text = succeed("explain", file, *job)
    for part in ("parts told apart only in sum*", "no kernel runs", 'counted to "other": 0.5 %', "3 steps", "suspect:"):
        assert part in text


def test_a_time_alone_is_held_against_the_band():
    job = (*JOB, "--router", "top2")
    step = as_json("simulate", *job)
    for time, inside, same in ((step["step_ms"], True, True), (step["step_ms_p95"] * 1.01, False, False),
                               (step["step_ms_p95"] * 0.99, True, False), (step["step_ms_p05"] * 0.99, False, False)):
        result = as_json("explain", "--measured", f"{time}ms", *job)
        assert (result["inside_band"], result["inside_same_band"]) == (inside, same)
        assert result["multiplier"] == pytest.approx(time / step["step_ms"], rel=1e-6)
        assert "parts_exposed" not in result
    results = [succeed("explain", "--measured", time, *job) for time in ("1250ms", "1.25s", "1.25 s", "1250000us")]
    assert len(set(results)) == 1 and "OUTSIDE" in succeed("explain", "--measured", "90s", *job)
    # Twice the simulated step: no single run's noise, but software explains it.
    terms = as_json("explain", "--measured", f"{2 * step['step_ms']}ms", *job)["terms"]
    answers = {term["name"]: term["explains_alone"] for term in terms}
    assert [name for name, yes in answers.items() if yes] == [name for name in answers if name.startswith("software that was never")]


def test_a_time_and_a_trace(tmp_path):
    _, files = own_timeline(tmp_path, *ROUTED)
    result = explained([*files, "--measured", "900ms"], *ROUTED)
    alone = explained(files, *ROUTED)
    assert result["measured_ms"] == 900
    longer = 900 / alone["measured_ms"]
    assert abs(longer - 1) > 0.05
    for part, row in by_part(result).items():
        assert row["measured_ms"] == pytest.approx(longer * by_part(alone)[part]["measured_ms"], rel=1e-6)
    text = succeed("explain", *files, "--measured", "900ms", *ROUTED)
    assert f"parts are {longer:.2f} times as long, to make up 900.0 ms" in text
    assert "times as long" not in succeed("explain", *files, *ROUTED)


@pytest.mark.parametrize(("words", "parts"), [
    ((), ["--measured 812ms", "torch.profiler"]), (("--measured", "812"), ["--measured", "'812'", "unit"]),
    (("--measured", "-3ms"), ["--measured", "more than 0"]), (("--measured", "nan ms"), ["--measured"]),
    (("--measured", "1min"), ["'1min'"]), (("trace.txt",), ["trace.txt", ".json.gz"]), (("absent.json",), ["absent.json"]),
    (("--measured", "1s", "--format", "csv"), ["--format"])])
def test_what_cannot_be_is_refused(words, parts):
    expect_error(moesim("explain", *words, *JOB), 2, *parts)


def test_traces_are_of_different_gpus_of_the_job(tmp_path):
    _, files = own_timeline(tmp_path, *ROUTED)
    again = tmp_path / "nowhere" / ".." / files[1].name
    expect_error(moesim("explain", *files, again, *ROUTED), 2, f"{again}: given twice")
    few = ("--gpus", 2, "--expert-parallel", 2, *ROUTED[4:])
    expect_error(moesim("explain", *files, *few), 2, "the traces are of 4 GPUs, the job has 2")
    expect_error(moesim(*TRAINED, "--gpus", 2, "--expert-parallel", 2, "--measured", ",".join(map(str, files))), 2,
                 "the traces are of 4 GPUs, the job has 2")
    succeed("explain", *files[:2], *few)


@pytest.mark.parametrize(("content", "part"), [
    ("{", "line 1"), ('{"events": []}', "traceEvents"), ('{"traceEvents": 3}', "traceEvents"), ('{"traceEvents": []}', "no kernels"),
    ('[3, null, {"ph": "X", "cat": "kernel", "ts": "a", "dur": 1}]', "no kernels"),
    ('[{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 0, "pid": 0, "tid": 7}]', "takes time"),
    ('[{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "pid": 0, "tid": 7, "args": 5},'
     '{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 9, "dur": 2, "pid": 1, "tid": 1}]', "ProfilerStep#")])
def test_files_that_are_no_traces_are_refused(tmp_path, content, part):
    file = tmp_path / "rank0.json"
    file.write_text(content)
    expect_error(moesim("explain", file, *JOB), 2, part)


TRAINED = ("train", "--model", "qwen3-30b-a3b", "--gpus", 8, "--expert-parallel", 8, "--global-batch", 16)


def kineto(folder, kernels):
    """A trace of one step: (name, start and duration in us)."""
    events = [{"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": length, "pid": 0, "tid": 7,
               "args": {"device": 0, "stream": 7}} for name, start, length in kernels]
    file = folder / "trace.json"
    file.write_text(json.dumps({"traceEvents": events}))
    return file


def test_a_training_step_is_held_against_a_measured_time():
    step = as_json(*TRAINED)["step_ms"]
    text = succeed(*TRAINED, "--measured", f"{step}ms").split("\nmeasured ")[1]
    assert ": 1.000 times, inside the " in text and "part" not in text
    assert "outside of all bands" in succeed(*TRAINED, "--measured", f"{20 * step}ms")
    expect_error(moesim(*TRAINED, "--measured", "812"), 2, "--measured: '812' is no time")
    expect_error(moesim(*TRAINED, "--measured", "1s", "--format", "csv"), 2, "--measured: is compared in a table or JSON")


def test_a_training_step_is_held_against_a_trace_part_by_part(tmp_path):
    file = kineto(tmp_path, [("flash_fwd_kernel", 0, 3000), ("grouped_gemm_kernel", 3000, 5000),
                             ("ncclDevKernel_SendRecv(x)", 7000, 4000), ("multi_tensor_apply_adam", 12000, 1000)])
    text = succeed(*TRAINED, "--measured", file).split("\nmeasured ")[1]
    assert text.startswith("13.00 ms, expected ")
    rows = {line[:42].split("  ")[0]: line.split()[-3:] for line in text.splitlines()[2:] if line.count(".") >= 3}
    # The exchange is hidden for 1 ms by the grouped product, and nothing runs for 1 ms.
    assert {name: float(figures[1]) for name, figures in rows.items()} == pytest.approx(
        {"attention": 3, "experts": 5, "dispatch, combine": 3, "optimizer": 1, "host, bubble and p2p": 1,
         **{name: 0 for name in rows if name not in (
             "attention", "experts", "dispatch, combine", "optimizer", "host, bubble and p2p")}})
    printed = as_json(*TRAINED)
    assert sum(float(figures[0]) for figures in rows.values()) == pytest.approx(printed["step_ms"], abs=0.05)
    for figures in rows.values():
        assert float(figures[2]) == pytest.approx(float(figures[1]) - float(figures[0]), abs=0.011)


def compared(text):
    """Rows of the table of train --measured: expected, measured and difference in ms."""
    lines = [line for line in text.splitlines()[2:] if re.search(r"[+-]\d+\.\d\d$", line)]
    return {re.split("  +", line)[0]: tuple(map(float, line.split()[-3:])) for line in lines}


QWEN = ("train", "--model", "qwen3-30b-a3b", "--gpus", 64)
PIPELINE = (*QWEN, "--pipeline-parallel", 4)


@pytest.mark.parametrize("job", [
    QWEN, (*QWEN, "--context-parallel", 2, "--dispatcher", "deepep"), (*QWEN, "--tensor-parallel", 2, "--zero", 3),
    (*PIPELINE, "--virtual-pipeline", 2), (*PIPELINE, "--pipeline-schedule", "zb-h1"), (*PIPELINE, "--zero", 2),
    (*PIPELINE, "--recompute", "full:block:6"),
    ("train", "--model", "qwen3-30b-a3b", "--gpus", 32, "--expert-parallel", 8, "--optimizer-instances", 4),
    (*QWEN, "--zero", 3, "--optimizer-instances", 2), (*PIPELINE, "--zero", 2, "--optimizer-instances", 2),
    (*QWEN, "--expert-parallel", 32, "--zero", 3, "--router", "topk", "--routing", "zipf:0.6", "--redundant-experts", 32),
    (*PIPELINE, "--routing-draws", "per-micro-batch", "--host-read-us", 500)])
def test_the_own_timeline_of_a_training_step_has_no_difference_in_any_part(tmp_path, job):
    succeed(*job, "--timeline", tmp_path / "rank{rank}.json")
    files = sorted(tmp_path.iterdir())
    assert len(files) == (4 if "--pipeline-parallel" in job else 1)
    text = succeed(*job, "--measured", ",".join(map(str, files))).split("\nmeasured ")[1]
    assert ": 1.000 times, inside the " in text
    rows = compared(text)
    assert rows["dispatch, combine"][0] > 0 and rows["host, bubble and p2p"][0] > 0
    assert all(difference == pytest.approx(0, abs=0.02) for _, _, difference in rows.values()), rows
    assert ("have names that no rule knows" in text) == ("--recompute" in job)  # 0.0 % of them


def test_passes_of_the_own_timeline_are_annotations_around_kernels(tmp_path):
    """A reader that took them for kernels would find the GPU busy all the time."""
    succeed(*PIPELINE, "--timeline", tmp_path / "all.json")
    bars = [event for event in json.loads((tmp_path / "all.json").read_text())["traceEvents"] if event["ph"] == "X"]
    ranges = [event for event in bars if event["name"].startswith(("forward:", "backward:"))]
    assert ranges and {event["cat"] for event in ranges} == {"gpu_user_annotation"}
    kernels = {event["name"] for event in bars if event["cat"] == "kernel"}
    assert "ncclDevKernel_SendRecv" in kernels and not any(":" in name for name in kernels)


INTERLEAVED = (*PIPELINE, "--virtual-pipeline", 2, "--ep-overlap", "on")


@pytest.mark.parametrize("job", [
    (*QWEN, "--expert-parallel", 8, "--global-batch", 512, "--ep-overlap", "on"), INTERLEAVED,
    (*INTERLEAVED, "--launch-us", 0.001, "--tensor-parallel", 2, "--context-parallel", 2),
    (*INTERLEAVED, "--zero", 3), (*INTERLEAVED, "--offload", "expert_fc1,moe_act"),
    (*INTERLEAVED, "--dispatcher", "deepep", "--recompute", "layernorm,moe_act"),
    (*PIPELINE, "--pipeline-schedule", "dualpipe"),
    (*PIPELINE, "--pipeline-schedule", "dualpipe", "--routing-draws", "per-micro-batch"),
    ("train", "--model", "deepseek-v3", "--gpus", 128, "--pipeline-parallel", 4, "--expert-parallel", 32,
     "--pipeline-layout", "Et*8|t*8|t*8|t*8|t*8|t*8|t*8|t*5mL", "--ep-overlap", "on", "--global-batch", 256)])
def test_the_own_timeline_of_pairs_has_no_difference_in_any_part(tmp_path, job):
    succeed(*job, "--timeline", tmp_path / "rank{rank}.json")
    files = ",".join(map(str, sorted(tmp_path.iterdir())))
    rows = compared(succeed(*job, "--measured", files).split("\nmeasured ")[1])
    assert rows["dispatch, combine"][0] > 0 and ("attention" in rows or "--recompute" in job)
    # The trace's rank may wait for the gradients of another one.
    ends = [rows.pop(name) for name in ("gradients, parameters", "host, bubble and p2p")]
    assert sum(difference for _, _, difference in ends) == pytest.approx(0, abs=0.02)
    assert all(abs(difference) < 3 for _, _, difference in ends)
    assert all(difference == pytest.approx(0, abs=0.02) for _, _, difference in rows.values()), rows


def test_parts_that_kernels_do_not_tell_apart_are_one_row(tmp_path):
    file = kineto(tmp_path, [("flash_fwd_kernel", 0, 3000), ("ncclDevKernel_SendRecv(x)", 3000, 4000)])
    words = ("train", "--model", "qwen3-30b-a3b", "--gpus", 16, "--expert-parallel", 8, "--global-batch", 64)
    text = succeed(*words, "--pipeline-parallel", 2, "--recompute", "full", "--measured", file).split("\nmeasured ")[1]
    assert "\ncompute " in text and "\ndispatch, combine, bubble, host " in text and "\nattention" not in text
