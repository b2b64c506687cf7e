"""Recorded routing in a training step."""
import json

import pytest
from command_line import as_json, as_rows, expect_error, moesim, needs_binary, succeed

pytestmark = needs_binary

# 8 steps of 8 ranks of 128 tokens, 2 MoE layers of 8 experts: layers of the model take them in turn.
SIZES = ("--model", "mixtral-8x7b", "--routing", "trace:tiny-moe-top2", "--router", "top2")
STEP = ("train", *SIZES, "--gpus", 8, "--expert-parallel", 8, "--sequence-length", 128, "--profile", "h100-sxm")


def test_a_step_is_the_mean_of_the_recorded_ones():
    mean = as_json(*STEP)
    steps = as_rows(*STEP, "--trace-step", "1:8:1")
    assert [row["trace_step"] for row in steps] == [str(step) for step in range(1, 9)]
    for figure in ("step_ms", "dispatch_ms", "imbalance"):
        assert mean[figure] == pytest.approx(sum(float(row[figure]) for row in steps) / 8, rel=1e-6)
    assert mean["memory_gib"] == pytest.approx(max(float(row["memory_gib"]) for row in steps), abs=0.01)
    assert mean["trace_step"] is None and mean["recorded_steps"] == mean["taken_steps"] == 8
    # The collapse of a layer begins in the second: the first alone says little.
    assert mean["imbalance"] > 1.2 * float(steps[0]["imbalance"])
    assert "trace        8 recorded steps: the mean step\n" in succeed(*STEP)
    assert "trace        step 3 of 8\n" in succeed(*STEP, "--trace-step", 3)


@pytest.mark.parametrize("router", ["top2", "top2+fr"])
def test_losses_are_those_of_route_over_all_steps(router):
    words = ("--capacity-factor", 2, "--capacity-convention", "paper", "--router", router)
    alone = as_json("route", *SIZES, *words, "--gpus", 8, "--tokens-per-gpu", 128, "--replicas", 8)
    trained = as_json(*STEP, *words)
    assert trained["failed"] == pytest.approx(alone["failed"], rel=1e-6)
    assert trained["residual_loss"] == pytest.approx(alone["residual_loss"], rel=1e-6)


def test_micro_batches_take_steps_evenly_spread():
    words = (*STEP, "--routing-draws", "per-micro-batch")
    text = succeed(*words, "--global-batch", 16)
    assert "trace        2 of 8 recorded steps, evenly spread, one micro-batch after another\n" in text
    taken = [as_json(*STEP, "--trace-step", step)["imbalance"] for step in (1, 5)]
    assert as_json(*words, "--global-batch", 16)["imbalance"] == pytest.approx(sum(taken) / 2, rel=1e-6)
    all_of_them = as_json(*words, "--global-batch", 64)
    assert all_of_them["taken_steps"] == 8
    assert all_of_them["imbalance"] == pytest.approx(as_json(*STEP)["imbalance"], rel=1e-6)


def test_a_recorded_step_is_read_back_from_its_row(tmp_path):
    table = tmp_path / "step.csv"
    succeed(*STEP, "--trace-step", "2,7", "--out", table)
    again = as_json("train", "--from", f"{table}:2")
    assert again["trace_step"] == 7 and again["step_ms"] == as_json(*STEP, "--trace-step", 7)["step_ms"]


def test_a_timeline_says_which_recorded_step_it_shows(tmp_path):
    out = tmp_path / "step.json"
    said = moesim(*STEP, "--timeline", out).stderr
    shown = int(said.split("recorded step ")[1].split(" of 8")[0])
    end = max(event["ts"] + event["dur"] for event in json.loads(out.read_text())["traceEvents"] if event["ph"] == "X")
    assert end == pytest.approx(as_json(*STEP, "--trace-step", shown)["step_ms"] * 1e3, rel=1e-6)
    assert "recorded step" not in moesim(*STEP, "--trace-step", 2, "--timeline", out).stderr


def test_steps_that_were_not_recorded_are_refused():
    expect_error(moesim(*STEP, "--trace-step", 9), 2, "--trace-step is 9", "has 8 recorded steps")
    expect_error(moesim(*STEP, "--trace-step", 0), 2, "--trace-step")
    expect_error(moesim(*STEP, "--routing", "gaussian:0.1", "--trace-step", 1), 2, "has no recorded steps")


def test_a_trace_has_the_ranks_of_a_stage():
    """8 recorded ranks: two groups of 4, of which the first stands for both, or each has its own."""
    words = (*STEP[:-2], "--profile", "h100-sxm", "--expert-parallel", 4)
    text = succeed(*words)
    assert "trace        8 recorded steps: the mean step; ranks 1 to 4 of 8, the same routing in all groups\n" in text
    assert "ranks" not in succeed(*words, "--routing-draws", "per-micro-batch").split("trace  ")[1].split("\n")[0]
    expect_error(moesim(*words, "--gpus", 4), 2, "it has 8 ranks, the job 4 GPUs: choose --gpus 8 or a multiple")


SEARCH = ("recommend", *SIZES, "--gpus", 32, "--sequence-length", 128, "--tensor-parallel", 1, "--context-parallel", 1,
          "--pipeline-parallel", 1, "--expert-parallel", 8, "--micro-batch", 1, "--zero", 1, "--recompute", "none",
          "--capacity-factor", "2", "--max-loss", "90%", "--best", 1)


@pytest.mark.parametrize("words", [(), ("--trace-step", 2)])
def test_a_search_takes_the_same_steps(words):
    best = as_rows(*SEARCH, *words)[0]
    step = as_json(*best["command"].split()[1:])
    assert step["step_ms"] == float(best["step_ms"])
    assert step["residual_loss"] == float(best["residual_loss"])
    assert step["taken_steps"] == (1 if words else 8)
    taken = "step 2 of 8" if words else "8 recorded steps"
    assert f"routing drawn, trace:tiny-moe-top2 ({taken}); searched: " in succeed(*SEARCH, *words)
