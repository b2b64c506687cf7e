"""`moesim train` with lists and ranges: a row for each training step, charts of them."""

import csv
import re

import pytest
from command_line import as_json, as_rows, expect_error, moesim, needs_binary, succeed

pytestmark = needs_binary

QWEN = ("train", "--model", "qwen3-30b-a3b", "--profile", "h100-sxm", "--gpus", 16, "--global-batch", 32)
# Routing of few experts is drawn quickly.
DRAWN = ("train", "--model", "mixtral-8x7b", "--profile", "h100-sxm", "--gpus", 16, "--global-batch", 32, "--expert-parallel", 8)


def test_rows_say_what_no_measured_step_has():
    words = ("train", "--model", "qwen3-30b-a3b", "--gpus", 64, "--expert-parallel", 8, "--global-batch", 512,
             "--software", "megatron-bridge", "--context-parallel", "1,2")
    assert "not measured: context parallelism (row 2): no published step has this" in succeed(*words)
    rows = as_json(*words)
    assert [row["not_measured"] for row in rows] == [[], ["context parallelism"]]


def test_the_ratio_of_rows_is_less_sure_by_what_one_of_them_has_alone(tmp_path):
    """As --baseline has it, of ZeRO 3, which no measured step has, beside ZeRO 1."""
    words = ("train", "--model", "qwen3-30b-a3b", "--gpus", 64, "--sequence-length", 8192, "--software", "megatron-bridge")
    succeed(*words, "--zero", 1, "--format", "json", "--out", tmp_path / "one.json")
    three = as_json(*words, "--zero", 3, "--baseline", tmp_path / "one.json")
    # The line of a table has the first row's speed over the other's.
    low, high = (100 * (three["speed_over_baseline"] / three[f"speed_over_baseline_{end}"] - 1) for end in ("high", "low"))
    assert f"{low:+.0f} to {high:+.0f} % with 90 % chance" in succeed(*words, "--zero", "1,3")


def test_each_row_is_that_of_the_step_alone():
    grid = as_rows(*DRAWN, "--router", "topk,topk+ir", "--capacity-factor", "0.75:1.25:0.25")
    assert [(row["router"], row["capacity_factor"]) for row in grid] == [
        (router, factor) for router in ("top2", "top2+ir") for factor in ("0.75", "1", "1.25")]
    for row in grid:
        alone, = as_rows(*DRAWN, "--router", row["router"].replace("2", "k"), "--capacity-factor",
                         row["capacity_factor"])
        assert {"status": "ok", "reason": "", **alone} == row
    assert float(grid[0]["residual_loss"]) > float(grid[2]["residual_loss"]) > 0


def test_every_number_takes_a_range():
    rows = as_rows(*DRAWN, "--capacity-factor", 1, "--capacity-alignment", "16:64:16")
    assert [row["capacity_alignment"] for row in rows] == ["16", "32", "48", "64"]


def test_a_row_reproduces_itself(tmp_path):
    path = tmp_path / "steps.csv"
    succeed(*DRAWN, "--router", "topk+fr+ir,dropless", "--capacity-factor", "1,1.5", "--router-dialect",
            "paper,tutel", "--fill-order", "priority", "--ir-duplicates", "exclude", "--min-capacity", 64,
            "--pipeline-parallel", "1,2", "--recompute", "none/moe_act,layernorm", "--seed", 3, "--out", path)
    rows = list(csv.DictReader(path.open(encoding="utf-8")))
    assert {row["recompute"] for row in rows} == {"none", "layernorm,moe_act"}
    assert {row["min_capacity"] for row in rows} == {"64", ""}
    for place in range(1, len(rows) + 1, 6):
        again, = as_rows("train", "--from", f"{path}:{place}")
        there = rows[place - 1]
        assert {name: text for name, text in there.items() if name in again} == again
        assert all(not there[name] for name in there if name not in again and name != "status")


@pytest.mark.parametrize(("router", "fidelity"), [("sinkhorn", "auto"), ("dropless", "counts")])
def test_a_row_says_how_its_routing_was_drawn_as_the_option_takes_it(tmp_path, router, fidelity):
    path = tmp_path / "step.csv"
    succeed(*DRAWN, "--router", router, "--format", "csv", "--out", path)
    row, = csv.DictReader(path.open(encoding="utf-8"))
    assert row["fidelity"] == fidelity
    assert [row] == as_rows("train", "--from", f"{path}:1")


def test_rows_of_two_clusters_have_a_ratio_to_a_baseline_alone(tmp_path):
    assert "between two rows errors of software and machine cancel" in succeed(*QWEN, "--pipeline-parallel", "1,2")
    both = ("--cluster", "hgx-h100,hgx-h200")
    assert "cancel" not in succeed(*QWEN, *both)
    base = tmp_path / "base.csv"
    succeed(*QWEN, "--format", "csv", "--out", base)
    here, there = as_rows(*QWEN, *both, "--baseline", base)
    assert (here["status"], there["status"]) == ("ok", "ok")
    assert float(here["speed_over_baseline"]) == pytest.approx(1)
    assert float(there["speed_over_baseline_low"]) < float(there["speed_over_baseline"]) < float(there["speed_over_baseline_high"])


def test_rows_of_other_capacities_have_the_ratio_of_such_pairs():
    """Those that differ in more keep the wider one, and a table of both says both."""
    alone = succeed(*DRAWN, "--capacity-factor", "1,1.25")
    assert "48 published pairs that differ in router and capacity alone" in alone and "more than routing" not in alone
    both = succeed(*DRAWN, "--router", "topk,dropless", "--capacity-factor", "1,1.25")
    assert "groups of published pairs, which differ in more than routing" in both
    assert "but of rows that are padded to a capacity and differ in router and capacity alone by" in both
    narrow = both.split("capacity alone by")[1]
    assert re.search(r"\+(\d+) % with 90 %", alone)[1] == re.search(r"\+(\d+) % with 90 %", narrow)[1]
    assert "router and capacity alone" not in succeed(*DRAWN, "--capacity-factor", 1, "--micro-batch", "1,2")


def test_combinations_without_effect_are_left_out():
    result = moesim(*DRAWN, "--router", "dropless,topk", "--capacity-factor", "1,1.5,2")
    assert result.returncode == 0
    assert "2 of 6 combinations left out: they differ from another only in what has no effect" in result.stderr
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["dropless", "topk", "topk", "topk"]
    assert lines[0].split()[:2] == ["router", "capacity_factor"]
    assert re.match(r"dropless  +\d+\.\d", lines[1])  # no capacity factor
    assert "no effect:" not in result.stderr  # it has one, on topk


def test_what_cannot_be_is_a_row_with_its_reason(tmp_path):
    path = tmp_path / "steps.csv"
    result = moesim(*QWEN, "--pipeline-parallel", "1,3,2", "--out", path)
    assert result.returncode == 0
    rows = list(csv.DictReader(path.open(encoding="utf-8")))
    assert [(row["pipeline_parallel"], row["status"]) for row in rows] == [
        ("1", "ok"), ("3", "refused"), ("2", "ok")]
    assert "--gpus 16 is no multiple" in rows[1]["reason"] and rows[1]["step_ms"] == ""
    assert "1 of 3 steps were refused" in result.stderr and "3 steps: " in result.stderr
    expect_error(moesim(*QWEN, "--pipeline-parallel", "3,5", "--out", path), 2, "all 2 steps were refused",
                 "--gpus 16 is no multiple")
    assert len(list(csv.DictReader(path.open(encoding="utf-8")))) == 3  # left as it was


def test_what_does_not_fit_is_said():
    result = moesim(*QWEN, "--gpus", "8,16", "--zero", 0)
    assert result.stdout.count("does not fit") == 2 and "2 of 2 steps do not fit" in result.stderr


def test_threads_change_nothing():
    words = (*DRAWN, "--capacity-factor", "1,1.25,1.5", "--router", "topk,topk+ir", "--format", "csv")
    assert succeed(*words, "--jobs", 1) == succeed(*words, "--jobs", 2)


def test_parts_are_those_that_options_names():
    parts = as_json("options")["training_parts"]
    step, = as_rows(*QWEN)
    there = [name for name in parts if name in step]
    assert set(parts) - set(there) == {"reruns_ms", "offload_ms"}  # of a rank capacity, of --offload
    assert sum(float(step[name]) for name in there) == pytest.approx(float(step["step_ms"]), rel=1e-6)


def test_json_is_an_array():
    steps = as_json(*QWEN, "--micro-batch", "1,2")
    assert [step["micro_batch"] for step in steps] == [1, 2]
    assert all(step["status"] == "ok" and step["reason"] is None for step in steps)


@pytest.mark.parametrize(("words", "parts"), [
    (("--gpus", "8,,16"), ("--gpus: '8,,16' has an empty item",)),
    (("--gpus", "16:8:2"), ("--gpus", "16:8:2")),
    (("--seed", "1:1000:1", "--launch-us", "1:200:1"), ("more than 100000 steps",)),
    (("--micro-batch", "1,2", "--measured", "812ms"), ("--measured with several values of --micro-batch",)),
    (("--micro-batch", "1,2", "--timeline", "t.json"), ("--timeline with several values of --micro-batch",)),
])
def test_bad_lists(words, parts):
    expect_error(moesim(*QWEN, *words), 2, *parts)


def test_charts_of_training_steps(tmp_path):
    path, chart = tmp_path / "steps.csv", tmp_path / "steps.svg"
    succeed(*DRAWN, "--router", "topk,dropless", "--capacity-factor", "1,1.5,2", "--pipeline-parallel", "1,2",
            "--out", path)
    succeed("plot", path, "--out", chart)
    text = chart.read_text(encoding="utf-8")
    for part in ("mixtral-8x7b on 16 x h100-sxm", "training step, bf16", "pipeline parallel 2"):
        assert part in text
    # What follows from the number of pipeline ranks is no label of a line.
    assert "micro batch group" not in text and "pipeline layout" not in text
    succeed("plot", path, "--x", "pipeline_parallel", "--y", "mfu", "--where", "router=top2", "--group",
            "capacity_factor", "--out", chart)
    assert "MFU" in chart.read_text(encoding="utf-8")
    succeed("plot", path, "--chart", "breakdown", "--out", chart)
    text = chart.read_text(encoding="utf-8")
    for part in ("top2, capacity factor 1.5, pipeline parallel 2", "bubble and p2p", "dispatch"):
        assert part in text
    # Without drawn routing there is no token loss to draw beside the speed.
    succeed(*QWEN, "--micro-batch", "1,2", "--out", path)
    expect_error(moesim("plot", path, "--out", chart), 2, "steps.csv: its steps have no router", "--x micro_batch")
    succeed("plot", path, "--x", "micro_batch", "--out", chart)


def test_rows_that_wait_for_the_host_are_said(tmp_path):
    words = ("train", "--model", "mixtral-8x7b", "--profile", "h200-sxm", "--gpus", 64, "--expert-parallel", 8,
             "--pipeline-parallel", 2, "--sequence-length", 256, "--router", "top2", "--capacity-factor", "0.5,1,1.25")
    table = succeed(*words)
    said = ("host limits 3 of 3 steps: what the GPU does faster does not shorten them; try\n"
            "  --cuda-graphs or a larger --micro-batch\n")
    assert said in table
    assert len(re.findall(r"host limits$", table, re.MULTILINE)) == 3
    rows = as_rows(*words)
    assert len({row["step_ms"][:5] for row in rows}) == 1  # which nothing else explains
    assert [row["warnings"] for row in rows] == 3 * ["host limits"]
    alone = as_json(*words[:-2], "--capacity-factor", 1)
    assert alone["warnings"] == "host limits"
    path, chart = tmp_path / "steps.csv", tmp_path / "steps.svg"
    succeed(*words, "--out", path)
    succeed("plot", path, "--out", chart)
    assert "host limits 3 of 3 steps" in chart.read_text(encoding="utf-8")
    mixed = succeed(*words[:-2], "--capacity-factor", 1, "--cuda-graphs", "none,layers")
    assert "host limits 1 of 2 steps" in mixed
    # As many as say so alone.
    alone = "  the host limits: what the GPU does faster does not shorten the step; try\n  --cuda-graphs or a larger"
    for graphs, waits in (("none", True), ("layers", False)):
        assert (alone in succeed(*words[:-2], "--capacity-factor", 1, "--cuda-graphs", graphs)) == waits


def test_slots_that_are_not_sent_are_empty_not_padded():
    few = (*DRAWN, "--router", "topk", "--capacity-factor", "1,1.5")
    heading = lambda *more: succeed(*few, *more).splitlines()[0]
    assert " padded %" in heading() and " empty %" not in heading()
    for more in (("--router-dialect", "megatron"), ("--padding", "none"), ("--padding", "none,capacity")):
        assert " empty %" in heading(*more) and "padded" not in heading(*more), more
    one = (*DRAWN, "--router", "topk", "--capacity-factor", 1.5)
    assert re.search(r"[\d.]+ % of slots padded", succeed(*one))
    assert re.search(r"not padded;.*\n.*[\d.]+ % of slots empty", succeed(*one, "--router-dialect", "megatron"))
    assert "padded" in as_rows(*few, "--padding", "none")[0]  # columns keep their names
    # Without a capacity there are no slots.
    dropless = (*DRAWN, "--router", "dropless")
    assert "of slots" not in succeed(*dropless) and "of routes failed\n" in succeed(*dropless)
    assert re.search(r"[\d.]+ % of slots padded", succeed(*dropless, "--padding", "busiest"))
    table = succeed(*DRAWN, "--router", "dropless,dropless")
    assert "empty" not in table and "padded" not in table and " token loss %  imbalance" in table
    header, lossless, full = succeed(*DRAWN, "--router", "dropless,topk", "--capacity-factor", 1.5).splitlines()[:3]
    end = header.index(" padded %") + len(" padded %")
    assert not lossless[end - 9:end].strip() and re.fullmatch(r" +\d+\.\d\d", full[end - 9:end])
    assert "padded" in as_rows(*dropless)[0]


def test_slots_that_simulate_sweep_and_route_do_not_send_are_empty_too():
    few = ("--gpus", 8, "--micro-batch", 1, "--sequence-length", 512, "--replicas", 1, "--router")
    for command in ("simulate", "route"):
        def line(*more):
            return re.findall(r"^(padded|empty) .*expert slots", succeed(command, *few, *more), re.MULTILINE)
        assert line("topk") == ["padded"] and line("topk", "--padding", "none") == ["empty"], command
        assert line("dropless") == [] and line("dropless", "--padding", "busiest") == ["padded"], command
    for command in ("sweep", "route"):
        def heading(*more):
            return succeed(command, *few, *more).splitlines()[0]
        assert " padded %" in heading("topk,dropless"), command
        table = succeed(command, *few, "dropless", "--seed", "1,2")
        assert "empty" not in table and "padded" not in table and "dropless" in table, command
        header, *lines = succeed(command, *few, "topk,dropless,base,dense" if command == "sweep" else
                                 "topk,dropless,base").splitlines()
        end = header.index(" padded %") + len(" padded %")
        shares = {line.split()[0]: line[end - 9:end].strip() for line in lines if line[:1] in "tdb"}
        assert float(shares["top2"]) > 0 and shares["dropless"] == "" and shares["base"] == "0.00", command
        assert shares.get("dense", "") == "", command
        assert "padded" in succeed(command, *few, "dropless", "--format", "csv").splitlines()[0], command
        assert " empty %" in heading("topk", "--padding", "none,capacity"), command
