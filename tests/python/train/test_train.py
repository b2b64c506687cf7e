"""moesim train: one training step under any layout, its parts, its options and its row."""

import re

import pytest
from command_line import as_json, as_rows, expect_error, moesim, needs_binary, succeed
from options_document import document
from train_command import QWEN

pytestmark = needs_binary


def test_table_csv_and_json_agree():
    words = (*QWEN, "--gpus", 64, "--pipeline-parallel", 2)
    result = as_json(*words)
    (row,) = as_rows(*words)
    assert float(row["step_ms"]) == result["step_ms"]
    assert (result["data_parallel"], result["micro_batches"], result["tokens"]) == (32, 8, 2**20)
    parts = [result[name] for name in document()["training_parts"] if name in result]
    assert len(parts) > 10 and sum(parts) == pytest.approx(result["step_ms"])
    table = succeed(*words)
    assert f"{result['tokens_per_s_per_gpu']:.0f} tokens/s/GPU" in table
    assert len(result["memory_gib_of_rank"]) == 2
    assert max(result["memory_gib_of_rank"]) == pytest.approx(result["memory_gib"])


def test_the_heading_counts_micro_batches():
    batches = {count: succeed(*QWEN, "--gpus", 8, "--micro-batch", 1, "--global-batch", 8 * count) for count in (1, 2)}
    assert ": 1 micro-batch of 1 per pipeline;" in batches[1] and ": 2 micro-batches of 1 per pipeline;" in batches[2]


def test_parameters_are_those_published():
    # Qwen3-30B-A3B's card: 30.5 billion in total, 3.3 billion activated.
    assert "30.53 billion, 3.35 billion of them used by a token, with the input embedding" in succeed(*QWEN, "--gpus", 64)
    assert re.search(r"parameters +6.738 billion\n", succeed("train", "--model", "llama2-7b", "--gpus", 8))


def test_more_gpus_for_the_same_batch_leave_the_end_of_the_step():
    """Micro-batches fall as 1 / GPUs, what is done once per step does not."""
    few, many = (as_json(*QWEN, "--gpus", gpus, "--global-batch", 1024) for gpus in (64, 512))
    assert (few["micro_batches"], many["micro_batches"]) == (16, 2)
    assert few["experts_ms"] == pytest.approx(8 * many["experts_ms"])
    assert few["step_ms"] < 8 * many["step_ms"]


def test_a_dispatcher_and_overlap_change_the_exchange_alone():
    nccl = as_json(*QWEN[:3], "--expert-parallel", 32, "--gpus", 32)
    deepep = as_json(*QWEN[:3], "--expert-parallel", 32, "--gpus", 32, "--dispatcher", "deepep")
    hidden = as_json(*QWEN[:3], "--expert-parallel", 32, "--gpus", 32, "--ep-overlap", "on")
    assert deepep["dispatch_ms"] < nccl["dispatch_ms"]
    assert deepep["experts_ms"] == nccl["experts_ms"]
    # Of 132 SMs an exchange beside them takes 32.
    assert 1 < hidden["experts_ms"] / nccl["experts_ms"] <= 132 / 100
    assert hidden["dispatch_ms"] + hidden["combine_ms"] < nccl["dispatch_ms"] + nccl["combine_ms"]


def test_recipes_differ_in_the_parts_that_they_name():
    def parts(*words):
        row = as_json(*QWEN, "--gpus", 64, "--profile", "gb200", "--precision", "mxfp8", *words)
        return {name: row[name] for name in ("attention_ms", "experts_ms")} | {
            "memory": row["memory_gib"],
            "recipe": (row["gradients"], row["fused_experts"], row["attention_precision"])}

    plain = parts()
    fused = parts("--fused-experts", "on")
    attention = parts("--attention-precision", "fp8")
    gradients = parts("--gradients", "bf16")
    assert fused["experts_ms"] < plain["experts_ms"] and fused["attention_ms"] == plain["attention_ms"]
    assert attention["attention_ms"] < plain["attention_ms"]
    assert attention["experts_ms"] == plain["experts_ms"]
    # Weight gradients are added up in half the bytes.
    assert gradients["memory"] < plain["memory"]
    assert gradients["attention_ms"] < plain["attention_ms"]
    assert [case["recipe"] for case in (plain, fused, attention, gradients)] == [
        ("fp32", "off", "bf16"), ("fp32", "on", "bf16"), ("fp32", "off", "fp8"),
        ("bf16", "off", "bf16")]
    assert "bf16 gradients" in succeed(*QWEN, "--gpus", 64, "--gradients", "bf16")


def test_the_part_of_shared_experts_is_named():
    # Pipeline ranks without a dense layer have it too.
    text = succeed("train", "--model", "deepseek-v2-lite", "--gpus", 8, "--profile", "h100-sxm")
    assert "\ndense FFN, shared experts " in text
    assert "shared experts" not in succeed(*QWEN, "--gpus", 8, "--profile", "h100-sxm")


def test_the_likely_step_is_printed_below_its_bands():
    line, = [line for line in succeed(*QWEN, "--gpus", 64).splitlines() if line.startswith("likely  ")]
    _, ratio, step, unit, tokens, _, hours = line.split()
    row = as_json(*QWEN, "--gpus", 64)
    likely = row["step_ms_likely"]
    assert float(ratio) == pytest.approx(likely / row["step_ms"], abs=0.006)
    assert float(step) * {"s": 1e3, "ms": 1}[unit] == pytest.approx(likely, rel=0.006)
    speed = row["tokens_per_s_per_gpu"] * row["step_ms"] / likely
    assert float(tokens) == pytest.approx(speed, abs=0.6)
    assert hours == f"{1e12 / speed / 3600:,.0f}"


def test_bands_are_wider_where_less_is_known():
    def width(*words):
        row = as_json(*QWEN, "--gpus", 64, *words)
        assert row["step_ms_low"] < row["step_ms_likely"] < row["step_ms_high"]
        tokens = row["tokens_per_s_per_gpu"]
        assert row["tokens_per_s_per_gpu_low"] * row["step_ms_high"] == \
            pytest.approx(tokens * row["step_ms"])
        return row["band_level"], row["step_ms_high"] / row["step_ms_low"], row["band_basis"]

    known = width("--software", "megatron-bridge")
    assert (known[0], known[2]) == (0.9, "model")
    elsewhere = width("--software", "megatron-bridge", "--profile", "h200-sxm")
    unknown = width()
    # Fewer groups say less: 80 % of steps in a band that is wide all the same.
    assert (elsewhere[0], elsewhere[2]) == (0.8, "software")
    assert (unknown[0], unknown[2]) == (0.8, "nothing")
    table = succeed(*QWEN, "--gpus", 64)
    assert "80 %" in table and "90 %" not in table
    assert "the software is not named" in table and "moesim calibrate" in table
    assert "90 %" in succeed(*QWEN, "--gpus", 64, "--software", "megatron-bridge")


def test_memory_of_every_rank_is_in_the_csv():
    words = (*QWEN, "--gpus", 64, "--pipeline-parallel", 4)
    (row,) = as_rows(*words)
    ranks = [float(text) for text in row["memory_gib_by_rank"].split()]
    assert ranks == pytest.approx(as_json(*words)["memory_gib_of_rank"], abs=0.01)


def test_ranks_placed_in_a_domain_decide_what_crosses():
    words = ("train", "--model", "qwen3-30b-a3b", "--gpus", 16, "--expert-parallel", 8)
    inside, across = as_json(*words), as_json(*words, "--ranks-per-domain", 4)
    assert (inside["ranks_per_domain"], across["ranks_per_domain"]) == (8, 4)
    assert across["dispatch_ms"] > 1.5 * inside["dispatch_ms"]
    assert across["experts_ms"] == inside["experts_ms"]


def test_shared_weights_trade_memory_for_exchanges():
    words = (*QWEN, "--gpus", 64)
    once, shared = as_json(*words), as_json(*words, "--zero", 3)
    hybrid = as_json(*words, "--zero", 3, "--optimizer-instances", 2)
    assert shared["memory_gib"] < once["memory_gib"] and shared["memory_gib"] < hybrid["memory_gib"]
    assert shared["parameters_ms"] > once["parameters_ms"]
    assert hybrid["optimizer_instances"] == 2


OFFLOADED = ("train", "--model", "mixtral-8x7b", "--gpus", 128, "--tensor-parallel", 2, "--expert-parallel", 4,
             "--expert-tensor-parallel", 2, "--global-batch", 768, "--profile", "b200-sxm", "--precision", "fp8-delayed",
             "--ep-overlap", "on", "--offload", "expert_fc1,moe_act")
SHARDED = ("train", "--model", "deepseek-v2", "--gpus", 128, "--tensor-parallel", 4, "--expert-parallel", 16,
           "--global-batch", 256, "--profile", "gb200", "--zero", 3, "--ep-overlap", "on")


@pytest.mark.parametrize("job", [OFFLOADED, SHARDED])
def test_a_slower_host_makes_no_step_faster(job):
    """Copies and gathers under the wait for the host lie open in pairs of chunks, which do not wait."""
    steps = [as_json(*job, "--launch-us", launch_us)["step_ms"] for launch_us in (0, 5, 10, 15, 20, 30)]
    assert steps == sorted(steps)


def test_recomputed_norms_cost_two_norms():
    """Without residuals, rotary embedding and norms inside attention: a row of 2,048 read and written in bf16."""
    without_host = (*QWEN, "--gpus", 8, "--global-batch", 64, "--profile", "h200-sxm", "--launch-us", 0,
                    "--host-read-us", 0)
    again = as_json(*without_host, "--recompute", "layernorm")["recompute_ms"]
    (norm,) = succeed("predict", "--op", "memory", "--kernel", "normalization", "--bytes", 2 * 2 * 4096 * 2048,
                      "--profile", "h200-sxm").splitlines()[1:]
    norm_us = float(norm.split("normalization")[1].split()[0])
    assert again == pytest.approx(8 * 48 * 2 * 1.5 * norm_us / 1e3, rel=0.01)


@pytest.mark.parametrize("schedule, waiting", [("zb-h1", 3), ("zb-h2", 3)])
def test_a_delayed_weight_gradient_holds_what_was_recomputed(schedule, waiting):
    """On the last rank that is nearly what is held without recomputing, on the first one far less."""
    job = (*QWEN, "--gpus", 64, "--pipeline-parallel", 4, "--global-batch", 256, "--pipeline-schedule")

    def by_rank(*words):
        return [float(gib) for gib in as_json(*job, *words)["memory_gib_by_rank"].split()]

    plain, recomputed = by_rank(schedule), by_rank(schedule, "--recompute", "full")
    of_1f1b = by_rank("1f1b", "--recompute", "full")
    assert recomputed[0] < 0.65 * plain[0] and abs(recomputed[-1] / plain[-1] - 1) < 0.03
    assert recomputed[-1] - of_1f1b[-1] > 6 * waiting  # GiB


def test_recomputed_blocks_take_their_share_and_its_launches():
    """48 layers in one chunk: half of them recomputed take half the work, launched again."""
    words = (*QWEN, "--gpus", 64, "--launch-us", 0)
    whole, half = (as_json(*words, "--recompute", text) for text in ("full", "full:block:24"))
    assert half["recompute_ms"] == pytest.approx(whole["recompute_ms"] / 2)
    slow = (*QWEN, "--gpus", 64, "--launch-us", 100)
    assert as_json(*slow, "--recompute", "full")["step_ms"] > 1.2 * as_json(*slow)["step_ms"]


def test_overlap_does_not_hide_launches():
    slow = (*QWEN, "--gpus", 64, "--launch-us", 100)
    apart, beside = as_json(*slow), as_json(*slow, "--ep-overlap", "on")
    assert beside["step_ms"] == pytest.approx(apart["step_ms"], rel=0.02)
    assert sum(value for key, value in beside.items()
               if key.endswith("_ms") and key not in ("step_ms", "step_overhead_ms")) == \
        pytest.approx(beside["step_ms"])


def test_launches_lengthen_no_exchange_of_a_pair():
    """The host is waited for behind the two passes, whose exchanges take what they take."""
    job = (*QWEN, "--gpus", 64, "--expert-parallel", 8, "--global-batch", 512, "--ep-overlap", "on")
    fast, slow = (as_json(*job, "--launch-us", us) for us in (0.001, 10))
    # Longer passes hide more of the gradients' exchange.
    assert slow["host_ms"] - fast["host_ms"] == pytest.approx(slow["step_ms"] - fast["step_ms"], rel=0.02)
    assert slow["host_ms"] > 10 * fast["host_ms"]
    for part in ("dispatch_ms", "combine_ms", "attention_ms", "experts_ms"):
        assert slow[part] == pytest.approx(fast[part])


def test_a_row_contains_its_options():
    words = (*QWEN, "--gpus", 64, "--zero", 2, "--optimizer-moments", "bf16", "--pipeline-parallel", 2,
             "--virtual-pipeline", 2, "--global-batch", 512, "--launch-us", 7)
    (row,) = as_rows(*words)
    assert (row["zero"], row["optimizer_moments"], row["launch_us"], row["global_batch"],
            row["pipeline_schedule"]) == ("2", "bf16", "7", "512", "interleaved")


def test_the_table_has_each_part_with_forced_balance_beside_it():
    text = succeed(*QWEN, "--gpus", 32, "--router", "dropless", "--routing", "gaussian:0.5")
    head, *lines = text[text.index("part of the step"):].splitlines()
    assert head.split()[-2:] == ["forced", "balance"]
    experts = next(line.split() for line in lines if line.startswith("experts"))
    # experts, time, unit, share, %, time, unit: the busiest rank has more rows than the others
    assert float(experts[1]) > 1.1 * float(experts[5]) and experts[2] == experts[6] == "ms"
    assert "forced balance" not in succeed(*QWEN, "--gpus", 32)


def test_layout_has_the_memory_options_of_train():
    words = ("--model", "qwen3-30b-a3b", "--gpus", 16, "--expert-parallel", 8, "--zero", 2, "--gradients", "bf16")
    row = as_rows("layout", *words, "--profile", "h100-sxm")[0]
    step = as_json("train", *words)
    assert float(row["memory_gib"]) == pytest.approx(step["memory_gib"], rel=0.005)
    expect_error(moesim("layout", *words, "--profile", "h100-sxm", "--precision", "nvfp4"), 2, "has no such products")


# Columns of the band of a step.
BAND = {"software", "band_level", "step_ms_low", "step_ms_likely", "step_ms_high", "tokens_per_s_per_gpu_low",
        "tokens_per_s_per_gpu_high", "tflops_per_gpu_low", "tflops_per_gpu_high", "band_basis", "widest_term", "not_measured", "not_measured_deviation",
        "not_measured_deviations", "host_slower", "host_faster"}


@pytest.mark.parametrize("words", [
    ("--capacity-factor", 1, "--offload", "moe_act"), ("--rank-capacity", 1.5, "--cuda-graphs", "layers"),
    ("--model", "mixtral-8x7b", "--routing", "trace:tiny-moe-top2", "--router", "top2", "--gpus", 8, "--sequence-length", 128)])
def test_all_columns_of_a_row_are_declared(words):
    """Charts have their units from there."""
    said = document()
    options = {option["column"] for option in (*said["options"], *said["training_options"])}
    figures = {column["name"] for column in said["training_columns"]}
    (row,) = as_rows(*QWEN, "--gpus", 64, *words)
    assert set(row) - options - figures - set(said["training_parts"]) - BAND == set()
    assert len(figures & set(row)) > 20
