"""Figures of the command line that agree with each other: efficiency, memory, model FLOPs."""

import json
import re

import pytest
from command_line import SMALL, as_json, moesim, needs_binary, refused, succeed

pytestmark = needs_binary


def test_efficiency_and_memory_have_columns_that_agree():
    row = as_json("simulate", *SMALL)
    steps = row["detail"]["replica_step_ms"]
    assert sorted(steps)[1] == row["step_ms"]  # of three
    in_long_run = row["tokens_per_s_per_gpu"] * row["step_ms"] / (sum(steps) / 3)
    assert row["tokens_per_day"] == pytest.approx(in_long_run * 8 * 86400, rel=1e-8)
    assert row["gpu_hours_per_1e12_tokens"] == pytest.approx(1e12 / in_long_run / 3600, rel=1e-8)
    assert row["mfu"] == pytest.approx(row["tflops_per_gpu"] / 312, rel=1e-3)  # of an A100
    parts = [row[name] for name in ("parameters_gib", "gradients_gib", "optimizer_gib", "activations_gib",
                                    "buffers_gib")]
    assert all(part > 0 for part in parts) and sum(parts) == pytest.approx(row["memory_gib"], rel=1e-8)
    forward = as_json("simulate", *SMALL, "--mode", "prefill")
    # A forward pass has a third of the FLOPs: TFLOP/s over tokens/s says how many a token takes.
    assert 3 * forward["tflops_per_gpu"] / forward["tokens_per_s_per_gpu"] == pytest.approx(
        row["tflops_per_gpu"] / row["tokens_per_s_per_gpu"], rel=1e-7)
    assert forward["gradients_gib"] == forward["optimizer_gib"] == 0


def test_a_burst_in_some_steps_costs_what_they_take():
    """Of 8 steps 3 have a burst: the median does not, GPU hours and losses do."""
    words = ("--gpus", 16, "--tokens-per-gpu", 2048, "--router", "dropless", "--fidelity", "counts", "--replicas", 8)
    calm = as_json("simulate", *words, "--routing", "balanced")
    row = as_json("simulate", *words, "--routing", "burst:8:0.4")
    steps = row["detail"]["replica_step_ms"]
    slow = [step for step in steps if step > 1.1 * calm["step_ms"]]
    assert 0 < len(slow) < len(steps) / 2
    assert row["step_ms"] == pytest.approx(calm["step_ms"], rel=0.02)
    assert row["tokens_per_s_per_gpu"] == pytest.approx(2048 / row["step_ms"] * 1e3)
    hours = sum(steps) / len(steps) / 1e3 / 2048 / 3600 * 1e12
    assert row["gpu_hours_per_1e12_tokens"] == pytest.approx(hours) and hours > 1.05 * calm["gpu_hours_per_1e12_tokens"]
    assert row["tokens_per_day"] == pytest.approx(16 * 24 * 1e12 / hours)
    mean = sum(steps) / len(steps)
    text = succeed("simulate", *words, "--routing", "burst:8:0.4")
    assert f"by the mean step, {mean:.1f} ms" in text or f"by the mean step, {mean / 1e3:.3f} s" in text
    assert "by the mean step" not in succeed("simulate", *words[:-2], "--replicas", 1)


OF_16 = ("--gpus", 16, "--micro-batch", 1, "--replicas", 1, "--format", "json")


def flops_per_token(*words):
    row = json.loads(succeed("simulate", *OF_16, *words))
    return row["tflops_per_gpu"] * 1e12 / row["tokens_per_s_per_gpu"]


def test_model_flops_of_expert_choice_are_of_the_slots_per_token():
    chosen = {factor: flops_per_token("--router", "expert-choice", "--top-k", 2, "--capacity-factor", factor)
              for factor in (1, 2)}
    assert chosen[2] == pytest.approx(flops_per_token("--router", "top2"))
    assert chosen[1] == pytest.approx(flops_per_token("--router", "top1"))
    library = flops_per_token("--router", "expert-choice", "--top-k", 2, "--capacity-factor", 1,
                              "--capacity-convention", "library")
    assert library == pytest.approx(chosen[2])


def test_an_mfu_above_one_is_explained(tmp_path):
    words = ("--gpus", 8, "--replicas", 1, "--router", "top2", "--capacity-factor")
    why = "model FLOPs count dropped routes as if they were kept"
    low = moesim("simulate", *words, 0.5, "--format", "json")
    assert json.loads(low.stdout)["mfu"] > 1 and low.stderr.count(why) == 1
    usual = moesim("simulate", *words, 2, "--format", "json")
    assert json.loads(usual.stdout)["mfu"] < 1 and why not in usual.stderr
    grid = moesim("sweep", *words, "0.5,2", "--out", tmp_path / "rows.csv")
    assert f"1 of 2 scenarios have an mfu above 1, which is no error: {why}" in grid.stderr


def test_mfu_over_kept_routes_leaves_dropped_ones_out():
    words = ("simulate", *SMALL, "--router")
    dropping = as_json(*words, "top2", "--capacity-factor", 1)
    # Of a forward and backward pass: 6 FLOPs for each of the 3 x 4,096 x 11,008 weights of an expert, 2 of them in each MoE layer.
    layers = len(dropping["detail"]["layer_failed"])
    experts = layers * 2 * 6 * 3 * 4096 * 11008 * dropping["tokens_per_s_per_gpu"] * 1e-12 / dropping["tflops_per_gpu"]
    assert dropping["mfu_kept"] / dropping["mfu"] == pytest.approx(1 - dropping["failed"] * experts, rel=1e-6)
    text = succeed(*words, "top2", "--capacity-factor", 1)
    assert f"{100 * dropping['mfu_kept']:.1f} % of the peak with the kept routes alone, " in text
    for router in ("dropless", "expert-choice"):  # which has no empty slots, whatever its tokens' own choices are
        kept = as_json(*words, router)
        assert kept["mfu_kept"] == kept["mfu"]
        assert "kept routes" not in succeed(*words, router)
    assert as_json(*words, "dense")["mfu_kept"] is None


def test_model_flops_are_those_of_train():
    words = ("--model", "qwen3-30b-a3b", "--gpus", "8", "--profile", "h100-sxm", "--sequence-length", "4096",
             "--micro-batch", "1", "--format", "json")
    step = json.loads(succeed("train", *words))
    row = json.loads(succeed("simulate", *words, "--replicas", "1"))
    assert row["tflops_per_gpu"] / row["tokens_per_s_per_gpu"] == pytest.approx(
        step["tflops_per_gpu"] / step["tokens_per_s_per_gpu"], rel=1e-7)


def test_long_steps_are_in_seconds():
    text = succeed("simulate", *SMALL, "--global-batch", "32000", "--replicas", "1")
    step = next(line for line in text.splitlines() if line.startswith("step "))
    assert re.match(r"step +[\d.]+ s ", step) and re.search(r"where the time goes +s +share", text)
    table = succeed("sweep", *SMALL, "--global-batch", "8,32000", "--replicas", "1")
    assert "step s" in table.splitlines()[0]


FORWARD = ("--model", "qwen3-30b-a3b", "--profile", "h100-sxm", "--gpus", 8, "--sequence-length", 1024, "--micro-batch", 2, "--replicas", 1,
           "--routing", "balanced", "--router", "dropless", "--fusion", "fused")


def test_fused_experts_of_a_forward_pass_take_the_published_call():
    def of(products, *more):
        return as_json("simulate", *FORWARD, "--mode", "prefill", "--expert-products", products, *more)
    for more, ranks in (((), 8), (("--dispatcher", "deepep"), 8), (("--expert-parallel", 1), 1)):
        batched, fused = of("batched", *more), of("fused", *more)
        # 2,048 tokens of each GPU choose 8 of 128 experts. Chance gives the busiest of 8 GPUs 1 % more rows (moesim route:
        # gpu_rows_busiest_over_mean), which makes blocks of 128 rows of an expert more.
        rows = round((1.01 if ranks > 1 else 1) * 2048 * 8)
        call = as_json("predict", "--profile", "h100-sxm", "--op", "expert-ffn", "--hidden", 2048, "--ffn", 768,
                       "--rows", rows, "--experts", 128 // ranks)["time_us"]
        assert fused["expert_ms"] == pytest.approx(48 * call / 1e3, rel=0.005), more
        assert fused["expert_ms"] > batched["expert_ms"], more
        assert fused["dispatch_combine_ms"] < batched["dispatch_combine_ms"], more
        assert fused["attention_ms"] == batched["attention_ms"], more
    # Of what moves rows the residual alone is left: read twice, written once.
    residual = as_json("predict", "--profile", "h100-sxm", "--op", "memory", "--bytes", 3 * 2 * 2048 * 2048)["time_us"]
    assert fused["dispatch_combine_ms"] == pytest.approx(48 * residual / 1e3, rel=1e-3)


@pytest.mark.parametrize("more, said", [
    (("--mode", "train"), "add --mode prefill"),
    (("--mode", "prefill", "--profile", "l40s", "--gpus", 1), "choose --expert-products batched"),
    (("--mode", "prefill", "--model", "switch-base-8"), "gated activation"),
    (("--mode", "prefill", "--router", "topk", "--dispatch", "einsum"), "use --dispatch index"),
    (("--mode", "prefill", "--router", "topk+ir", "--ir-compute", "grouped"), "--ir-compute separate or overlap")])
def test_fused_experts_are_refused_where_no_published_call_is_like_them(more, said):
    own = {word for word in more[::2]}
    few = [word for at in range(0, len(FORWARD), 2) if FORWARD[at] not in own for word in FORWARD[at:at + 2]]
    refused("simulate", *few, *more, "--expert-products", "fused", parts=("--expert-products fused: ", said))
