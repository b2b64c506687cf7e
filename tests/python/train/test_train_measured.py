"""`train --measured`: of the part that differs most, what may be the matter and what to do next; the same as JSON."""

import json
from pathlib import Path

import pytest
from command_line import as_json, expect_error, moesim, needs_binary, succeed

pytestmark = needs_binary
JOB = ("train", "--model", "qwen3-30b-a3b", "--gpus", 64, "--expert-parallel", 16, "--global-batch", 256)


PROFILES = Path(__file__).resolve().parents[3] / "profiles"


def slow_cluster(folder):
    """Its NICs reach half of their line rate."""
    document = json.loads((PROFILES / "clusters" / "hgx-h100.json").read_text())
    document["name"] = "slow"
    document["nic"]["efficiency"] |= {"value": 0.5, "low": 0.45, "high": 0.55}
    (folder / "slow.json").write_text(json.dumps(document))
    return folder / "slow.json"


def measured(folder, *run, told=()):
    """What train says of a step with the options `run`, where it expects `told`."""
    trace = folder / "rank0.json"
    run = [slow_cluster(folder) if word == "SLOW" else word for word in run]
    succeed(*JOB, *run, "--timeline", trace)
    return as_json(*JOB, *told, "--measured", trace)["measured"], succeed(*JOB, *told, "--measured", trace)


@pytest.mark.parametrize(("run", "told", "part", "words"), [
    (("--launch-us", 45, "--host-read-us", 60), (), "host", ("--launch-us", "--cuda-graphs", "calibrate")),
    (("--router", "topk", "--routing", "zipf:0.8"), (), "dispatch", ("uneven routing", "--routing trace:FOLDER")),
    (("--cluster", "SLOW"), (), "dispatch", ("slower links", "nccl-tests", "moesim import")),
    (("--recompute", "full"), (), "compute", ("computed again", "--recompute as in the run")),
    ((), ("--recompute", "full"), "compute", ("recomputation that the layout has", "without --recompute"))])
def test_the_largest_part_has_a_cause_and_a_next_step(tmp_path, run, told, part, words):
    result, text = measured(tmp_path, *run, told=told)
    largest = result["largest"]
    assert largest["part"] == part
    assert abs(largest["difference_ms"]) == max(abs(row["difference_ms"]) for row in result["parts"])
    for word in words:
        assert word in largest["suspect"] + largest["next"]
        assert word in text.split("\nlargest: ")[1]


HOST_LIMITED = ("train", "--model", "qwen3-30b-a3b", "--gpus", 16, "--expert-parallel", 8, "--global-batch", 64)


@pytest.mark.parametrize(("run", "told", "part", "word"), [
    (("--routing", "zipf:0.6"), (), "dispatch", "uneven routing"),
    (("--recompute", "core_attn"), (), "compute", "computed again"),
    ((), ("--recompute", "core_attn"), "compute", "recomputation that the layout has")])
def test_where_the_host_limits_idle_time_that_kernels_leave_is_no_cause(tmp_path, run, told, part, word):
    """Longer kernels take their time out of the host's row: it differs by as much or more, but the step not in its direction."""
    trace = tmp_path / "rank0.json"
    succeed(*HOST_LIMITED, *run, "--timeline", trace)
    result = as_json(*HOST_LIMITED, *told, "--measured", trace)["measured"]
    rows = {row["part"]: row["difference_ms"] for row in result["parts"]}
    assert abs(rows.pop("host")) >= 0.999 * max(map(abs, rows.values()))
    assert result["largest"]["part"] == part == max(rows, key=lambda key: abs(rows[key]))
    assert word in result["largest"]["suspect"]


def test_a_faster_host_is_a_cause_where_the_step_is_shorter(tmp_path):
    trace = tmp_path / "rank0.json"
    succeed(*HOST_LIMITED, "--timeline", trace)
    largest = as_json(*HOST_LIMITED, "--launch-us", 30, "--measured", trace)["measured"]["largest"]
    assert largest["part"] == "host" and "a faster host" in largest["suspect"]


@pytest.mark.parametrize(("run", "told", "function"), [
    ("all-to-all", "deepep", "ncclDevKernel_SendRecv"), ("deepep", "all-to-all", "deepep::"), ("hybridep", "all-to-all", "hybridep::"),
    ("allgather", "all-to-all", "ncclDevKernel_AllGather"), ("all-to-all", "allgather", "ncclDevKernel_SendRecv")])
def test_another_dispatcher_is_told_by_the_names_of_its_kernels(tmp_path, run, told, function):
    trace = tmp_path / "rank0.json"
    succeed(*HOST_LIMITED, "--dispatcher", run, "--timeline", trace)
    largest = as_json(*HOST_LIMITED, "--dispatcher", told, "--measured", trace)["measured"]["largest"]
    assert largest["suspect"].startswith("another dispatcher than the layout's: " + function)
    assert largest["next"] == "--dispatcher as in the run"
    assert "largest" not in as_json(*HOST_LIMITED, "--dispatcher", run, "--measured", trace)["measured"]


def test_names_of_kernels_as_libraries_have_them_and_a_document_of_ones_own(tmp_path):
    trace = tmp_path / "rank0.json"
    succeed(*HOST_LIMITED, "--dispatcher", "deepep", "--timeline", trace)
    text = trace.read_text().replace("deepep::dispatch", "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)")
    trace.write_text(text.replace("deepep::combine", "deep_ep::intranode::combine<__nv_bfloat16, 8>(int4*)"))
    suspect = as_json(*HOST_LIMITED, "--measured", trace)["measured"]["largest"]["suspect"]
    assert any(f"layout's: deep_ep::intranode::{name} carries" in suspect for name in ("dispatch", "combine"))
    # Which kernels a document of one's own is of, it does not say.
    own = tmp_path / "own.json"
    own.write_text((PROFILES / "dispatchers" / "deepep.json").read_text())
    succeed(*HOST_LIMITED, "--timeline", trace)
    suspect = as_json(*HOST_LIMITED, "--dispatcher", own, "--measured", trace)["measured"]["largest"]["suspect"]
    assert "carries the rows" not in suspect and "another dispatcher" in suspect


def changed(trace, by):
    """Kernels of a part take `by` times as long; all others start as much later."""
    document = json.loads(trace.read_text())
    kernels = sorted((event for event in document["traceEvents"] if event.get("cat") == "kernel"), key=lambda event: event["ts"])
    later = 0
    for event in kernels:
        event["ts"] += later
        more = event["dur"] * (by.get(event["args"].get("part"), 1) - 1)
        event["dur"] += more
        later += more
    trace.write_text(json.dumps(document))


@pytest.mark.parametrize(("parts", "words", "others"), [
    (("dispatch", "combine", "router and rows"), ("another dispatcher", "slower links", "--dispatcher as in the run", "nccl-tests"), ()),
    (("dispatch", "combine"), ("slower links", "nccl-tests"), ("dispatcher",)),
    (("dispatch", "combine", "router and rows", "attention"), ("slower links",), ("dispatcher",))])
def test_gathering_and_sorting_that_differ_too_may_be_another_dispatcher(tmp_path, parts, words, others):
    trace = tmp_path / "rank0.json"
    succeed(*HOST_LIMITED, "--timeline", trace)
    changed(trace, dict.fromkeys(parts, 1.5) | {"attention": 1.2 if "attention" in parts else 1})
    largest = as_json(*HOST_LIMITED, "--measured", trace)["measured"]["largest"]
    text = largest["suspect"] + largest["next"]
    assert largest["part"] == "dispatch"
    assert all(word in text for word in words) and not any(word in text for word in others)


def test_more_even_routing_than_told_is_no_faster_link(tmp_path):
    trace = tmp_path / "rank0.json"
    succeed(*HOST_LIMITED, "--timeline", trace)
    largest = as_json(*HOST_LIMITED, "--routing", "zipf:0.6", "--measured", trace)["measured"]["largest"]
    assert largest["part"] == "dispatch" and largest["difference_ms"] < 0
    assert "more even routing" in largest["suspect"] and "links" not in largest["suspect"]


def test_an_expected_step_has_no_cause(tmp_path):
    result, text = measured(tmp_path)
    assert "largest" not in result and "largest:" not in text and result["band_level"] == 0.5


@pytest.mark.parametrize("modules", ["moe_act", "core_attn", "layernorm"])
def test_experts_stay_apart_where_their_products_are_not_recomputed(tmp_path, modules):
    """Uneven experts are told from slow GPUs, though other kernels are computed again."""
    told = ("--recompute", modules, "--router", "topk")
    result, _ = measured(tmp_path, *told, "--routing", "zipf:0.8", told=told)
    rows = {row["part"]: row for row in result["parts"]}
    assert rows["experts"]["measured_ms"] > 1.3 * rows["experts"]["expected_ms"] and "compute" in rows
    assert "uneven routing" in result["largest"]["suspect"]
    again, _ = measured(tmp_path, "--recompute", "full", told=("--recompute", "full"))
    assert "experts" not in {row["part"] for row in again["parts"]}


def test_forward_kernels_that_run_twice_are_recomputation_not_routing(tmp_path):
    """Names as PyTorch has them: grouped products and exchanges take longer too, as with uneven routing."""
    layers = [("flash_fwd_kernel", 4000), ("ncclDevKernel_SendRecv(x)", 30000), ("cutlass::Kernel<GemmGrouped>", 9000)]
    back = [("flash_bwd_kernel", 8000)]
    events, now = [], 0
    for name, length in (layers * 2 + back) * 48:
        events.append({"ph": "X", "cat": "kernel", "name": name, "ts": now, "dur": length, "pid": 0, "tid": 7})
        now += length
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": events}))
    largest = as_json(*JOB, "--measured", trace)["measured"]["largest"]
    assert largest["part"] == "dispatch" and "computed again" in largest["suspect"]
    told = as_json(*JOB, "--recompute", "core_attn", "--measured", trace)["measured"]["largest"]
    assert "computed again" not in told["suspect"]


def test_json_has_the_step_and_what_was_measured_and_csv_is_refused():
    plain = as_json(*JOB)
    result = as_json(*JOB, "--measured", f"{1.5 * plain['step_ms']}ms")
    assert result.pop("measured")["multiplier"] == pytest.approx(1.5, rel=1e-5)
    assert result == plain
    assert as_json(*JOB, "--measured", "900s")["measured"]["band_level"] is None
    expect_error(moesim(*JOB, "--measured", "1s", "--format", "csv"), 2, "--measured: is compared in a table or JSON")
