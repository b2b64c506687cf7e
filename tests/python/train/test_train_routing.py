"""Training steps with drawn routing: loss, uneven ranks, capacities."""

import csv
import io
import re

import pytest
from command_line import as_json, as_rows, needs_binary, succeed
from train_command import QWEN, ROUTED

pytestmark = needs_binary


def test_copies_of_hot_experts_level_ranks():
    words = (*QWEN, "--gpus", 64, "--router", "dropless", "--routing", "gaussian:1")
    none, copied = as_json(*words), as_json(*words, "--redundant-experts", 32)
    assert copied["imbalance"] < none["imbalance"] and copied["step_ms"] < none["step_ms"]
    assert copied["balanced_step_ms"] == none["balanced_step_ms"]


def test_the_blocks_of_a_group_are_those_of_balance_and_padding_too():
    """A capacity that nothing reaches pads blocks as --padding busiest does; all formats say so."""
    words = ("train", "--model", "mixtral-8x7b", "--expert-parallel", 8, "--gpus", 64, "--router", "topk", "--routing", "gaussian:0.3")
    group = ("--capacity-factor", 4, "--capacity-scope", "group")
    longest, roomy = as_json(*words, "--padding", "busiest"), as_json(*words, *group)
    assert roomy["padded"] == pytest.approx(longest["padded"], rel=1e-6)
    assert roomy["balanced_step_ms"] < roomy["step_ms"]
    text = succeed(*words, *group)
    assert f"{100 * roomy['padded']:.2f} % of slots padded" in text
    assert f"{100 * (roomy['step_ms'] / roomy['balanced_step_ms'] - 1):+.1f} % of step time" in text
    (row,) = as_rows(*words, *group)
    assert float(row["padded"]) == roomy["padded"]
    assert float(row["balanced_step_ms"]) == roomy["balanced_step_ms"]


def test_drawn_routing_says_loss_and_what_imbalance_costs():
    """Parts still sum to the step; without options of routing the columns stay as they were."""
    plain, drawn = as_json(*ROUTED), as_json(*ROUTED, "--capacity-factor", 1)
    assert set(plain) < set(drawn) and "residual_loss" not in plain
    assert (drawn["router"], drawn["capacity"], drawn["capacity_convention"]) == ("top8", 256, "library")
    assert 0.02 < drawn["residual_loss"] < drawn["failed"] < 0.2
    assert drawn["step_ms"] == pytest.approx(drawn["balanced_step_ms"])
    parts = [value for key, value in drawn.items() if key.endswith("_ms")
             and key not in ("step_ms", "step_overhead_ms", "balanced_step_ms")]
    assert sum(parts) == pytest.approx(drawn["step_ms"])
    table = succeed(*ROUTED, "--capacity-factor", 1)
    assert f"token loss   {100 * drawn['residual_loss']:.2f} %" in table
    assert "with forced balance" in table


DEEPSEEK = ("train", "--model", "deepseek-v3-4layers", "--gpus", 64, "--expert-parallel", 32, "--recompute", "full")


def test_the_models_own_router_without_a_capacity_loses_nothing():
    """As recommend counts it; what its groups and bias pass over is said by its name."""
    own = as_json(*DEEPSEEK, "--routing", "gaussian:0.3")
    assert own["counted_loss"] == own["failed"] == 0 and own["residual_loss"] > 0.005
    text = succeed(*DEEPSEEK, "--routing", "gaussian:0.3")
    assert "token loss   0.00 %; 0.00 % of routes failed\n" in text
    assert f"not chosen   {100 * own['residual_loss']:.2f} % of the weight of a token's 8 best experts" in text
    uneven = succeed(*DEEPSEEK, "--routing", "gaussian:0.1,gaussian:0.3")
    assert "token loss %" in uneven.splitlines()[0] and len(re.findall(r" 0\.00 +1\.\d+$", uneven, re.M)) == 2
    assert "token loss: not counted is " in uneven
    assert f" to {100 * own['residual_loss']:.2f} % of the weight of a token's k best" in uneven
    # Of routes that a capacity drops the two are one, and the text has one.
    dropping = as_json(*ROUTED, "--capacity-factor", 1)
    assert dropping["counted_loss"] == dropping["residual_loss"] > 0
    assert "not chosen" not in succeed(*ROUTED, "--capacity-factor", 1)


def test_balanced_draws_are_the_step_without_options():
    assert succeed(*ROUTED, "--routing-draws", "balanced") == succeed(*ROUTED)


def test_loss_agrees_with_route_at_the_same_tokens_per_gpu():
    words = ("--router", "topk", "--top-k", 8, "--capacity-factor", 1, "--capacity-convention", "library",
             "--seed", 3)
    alone = as_json("route", "--model", "qwen3-30b-a3b", "--gpus", 64, "--expert-parallel", 8,
                    "--tokens-per-gpu", 4096, "--replicas", 1, "--fidelity", "counts",
                    *words)
    drawn = as_json(*ROUTED, "--sequence-length", 4096, "--global-batch", 256, *words,
                    "--routing-draws", "per-micro-batch")
    assert drawn["failed"] == pytest.approx(alone["failed"], abs=0.0005)
    assert drawn["residual_loss"] == pytest.approx(alone["residual_loss"], abs=0.002)


@pytest.mark.parametrize("router, words", [
    ("top1", ("--score-function", "sigmoid")),
    ("top2", ("--second-expert", "sampled")),
    ("top2", ("--router-dtype", "bf16")),
    ("top2", ("--capacity-alignment", 512)),
    ("group-limited:8:4", ("--group-score", "topk")),
])
def test_rare_options_of_a_router_mean_what_they_do_in_route(tmp_path, router, words):
    """Each drops what `route` drops of the same scores, has a column of its own, and is read back from it."""
    router = ("--router", router, "--capacity-factor", 0.5, "--capacity-convention", "library", "--fidelity", "tokens",
              "--seed", 3)
    sizes = ("--sequence-length", 512, "--global-batch", 64)
    alone = as_json("route", "--model", "qwen3-30b-a3b", "--gpus", 8, "--expert-parallel", 8,
                    "--tokens-per-gpu", 512, "--replicas", 1, *router, *words)
    job = (*ROUTED, *sizes, *router)
    drawn = as_json(*job, *words)
    assert drawn["failed"] == pytest.approx(alone["failed"], rel=1e-9)
    assert drawn[words[0][2:].replace("-", "_")] == words[1]
    table = tmp_path / "step.csv"
    succeed(*job, *words, "--out", table)
    assert as_json("train", "--from", f"{table}:1")["failed"] == drawn["failed"]
    assert f", {words[0][2:]} {words[1]}; " in succeed(*job, *words)
    assert set(drawn) - set(as_json(*job)) == {words[0][2:].replace("-", "_")}


def test_hot_ranks_cost_time_and_a_capacity_buys_it_back():
    hot = (*ROUTED, "--routing", "hot-rank:3", "--routing-draws", "per-micro-batch")
    dropless, dropping = as_json(*hot), as_json(*hot, "--capacity-factor", 1.25, "--padding", "none")
    assert dropless["imbalance"] > 2 and dropless["residual_loss"] == 0
    assert dropping["step_ms"] < dropless["step_ms"] and dropping["residual_loss"] > 0.04


def test_a_rank_capacity_says_chance_and_cost_of_reruns():
    result = as_json(*ROUTED, "--rank-capacity", 1.5, "--cuda-graphs", "layers")
    assert result["rank_capacity_rows"] % 256 == 0 and 0 <= result["overflow_chance"] < 1e-6
    assert 1 < result["rank_capacity_for_one_percent"] < 1.5
    assert result["reruns_ms"] == pytest.approx(result["overflow_chance"] * result["rerun_step_ms"])
    assert "of steps overflow" in succeed(*ROUTED, "--rank-capacity", 1.5)


def test_rare_options_are_in_the_row_of_steps_that_have_them(tmp_path):
    words = (*QWEN, "--gpus", 16, "--tensor-parallel", 2, "--precision", "fp8-block")
    rare = {"offload", "offload_ms", "offloaded_gib", "dispatch_precision", "tensor_overlap"}
    assert not rare & set(as_json(*words))
    more = ("--offload", "expert_fc1,moe_act", "--dispatch-precision", "low", "--tensor-overlap", "on")
    row = as_json(*words, *more)
    assert rare <= set(row)
    assert (row["offload"], row["tensor_overlap"]) == ("expert_fc1,moe_act", "on")
    assert "GiB for each GPU, offloaded: expert_fc1,moe_act" in succeed(*words, *more)
    # Sets of modules are told apart by a slash, and a row reproduces itself.
    out = tmp_path / "steps.csv"
    succeed(*words, "--offload", "none/moe_act/expert_fc1,moe_act", "--out", out)
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [each["offload"] for each in rows] == ["", "moe_act", "expert_fc1,moe_act"]
    assert float(rows[0]["memory_gib"]) > float(rows[1]["memory_gib"]) > float(rows[2]["memory_gib"])
    again = as_json("train", "--from", f"{out}:3")
    assert again["step_ms"] == pytest.approx(float(rows[2]["step_ms"]))
    assert again["offload"] == "expert_fc1,moe_act"
