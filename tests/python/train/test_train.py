"""moesim train: one training step under any layout; moesim validate training."""

import csv
import io
import json
import pathlib
import re
import shlex

import pytest
from command_line import expect_error, moesim, needs_binary, succeed
from public_tables import folder_of

pytestmark = needs_binary
QWEN = ("train", "--model", "qwen3-30b-a3b", "--expert-parallel", 8)


def as_json(*words):
    return json.loads(succeed(*words, "--format", "json"))


def test_nics_that_the_measured_steps_did_not_have_are_said():
    """NVIDIA's steps on B300 are in line with 400 Gb/s a GPU, the datasheet has 800."""
    words = ("--model", "qwen3-30b-a3b", "--profile", "b300-sxm", "--software", "megatron-bridge")
    faster = moesim("train", *words, "--gpus", 64)
    assert "in line with 400 Gb/s a GPU between nodes; hgx-b300 has 800" in faster.stderr
    assert "5 other machines" in faster.stdout
    # AWS has no steps there at all.
    assert "in line with" not in moesim("train", *words[:4], "--software", "aws", "--gpus", 64).stderr
    for same in (("--gpus", 64, "--cluster", "hgx-b300-400g"), ("--gpus", 8)):  # 8: no NIC is used
        known = moesim("train", *words, *same)
        assert known.stderr == ""
        assert "3 models with megatron-bridge on NVIDIA B300 took" in known.stdout


def test_graphs_of_layers_without_a_capacity_say_what_memory_leaves_out():
    words = (*QWEN, "--gpus", 64, "--dispatcher", "deepep", "--cuda-graphs", "layers")
    assert "up to 8 times balance" in moesim(*words).stderr
    assert "balance" not in moesim(*words, "--rank-capacity", 2).stderr
    assert "balance" not in moesim(*words, "--capacity-factor", 1).stderr


def test_bands_of_an_unknown_software_say_that_they_held_less():
    """As the page has it: fewer of the steps of a software that was left out were inside 80 % bands."""
    assert "a software left out" in succeed(*QWEN, "--gpus", 64)
    assert "a software left out" not in succeed(*QWEN, "--gpus", 64, "--software", "megatron-bridge")
    page = (pathlib.Path(__file__).resolve().parents[3] / "profiles" / "ACCURACY.md").read_text(encoding="utf-8")
    (inside, points), = re.findall(r"\| a software left out \| 80 % \| (\d+) of (\d+)", page)
    assert int(inside) / int(points) < 0.75


LONG = (*QWEN, "--gpus", 64, "--software", "megatron-bridge", "--global-batch", 512)


def test_what_no_measured_step_has_is_named_and_widens_the_band():
    """Steps of 4,096 and 8,192 tokens without context parallelism were published."""
    usual, same = as_json(*LONG), as_json(*LONG, "--sequence-length", 8192)
    assert usual["not_measured"] == same["not_measured"] == []
    assert usual["not_measured_deviation"] == 0

    def width(row):
        return row["step_ms_high"] / row["step_ms_low"]
    assert width(same) == pytest.approx(width(usual))
    far = (*LONG, "--sequence-length", 32768, "--context-parallel", 2, "--zero", 2)
    row = as_json(*far)
    assert row["not_measured"] == ["context parallelism", "sequences of 32768 tokens (at most 8192 measured)",
                                   "ZeRO 2"]
    assert width(row) > 1.15 * width(usual)
    # By the share of the step that the parts take.
    short = as_json(*LONG, "--context-parallel", 2)
    assert short["not_measured"] == ["context parallelism"]
    assert width(usual) < width(short) < width(row)
    text = succeed(*far)
    assert "not measured: context parallelism, sequences of 32768 tokens" in text
    assert "no measured step has context parallelism, which decides" in text
    assert "not measured" not in succeed(*LONG)
    (written,) = csv.DictReader(io.StringIO(succeed(*far, "--format", "csv")))
    assert written["not_measured"] == "; ".join(row["not_measured"])


@pytest.mark.parametrize("form", ["csv", "json"])
def test_what_both_steps_have_that_none_has_cancels_in_their_ratio(form, tmp_path):
    def band(base, words):
        path = tmp_path / f"base.{form}"
        path.write_text(succeed(*LONG, *base, "--format", form))
        row = as_json(*LONG, *words, "--baseline", path)
        return row["speed_over_baseline_high"] / row["speed_over_baseline_low"]
    zero = ("--zero", 2, "--context-parallel", 2)
    same = band((), ())
    assert band(zero, zero) == pytest.approx(same, rel=0.02)
    assert band((), zero) > 1.01 * same
    assert band(zero, ()) == pytest.approx(band((), zero), rel=0.02)


def test_table_csv_and_json_agree():
    words = (*QWEN, "--gpus", 64, "--pipeline-parallel", 2)
    result = as_json(*words)
    (row,) = csv.DictReader(io.StringIO(succeed(*words, "--format", "csv")))
    assert float(row["step_ms"]) == result["step_ms"]
    assert (result["data_parallel"], result["micro_batches"], result["tokens"]) == (32, 8, 2**20)
    parts = [value for key, value in result.items() if key.endswith("_ms")
             and key not in ("step_ms", "step_overhead_ms")]
    assert len(parts) == 15 and sum(parts) == pytest.approx(result["step_ms"])
    table = succeed(*words)
    assert f"{result['tokens_per_s_per_gpu']:.0f} tokens/s/GPU" in table
    assert len(result["memory_gib_of_rank"]) == 2
    assert max(result["memory_gib_of_rank"]) == pytest.approx(result["memory_gib"])


def test_the_cost_of_a_run():
    words = (*QWEN, "--gpus", 64, "--train-tokens", "15T", "--gpu-hour-price", 2.5)
    result = as_json(*words)
    hours = 15 * result["gpu_hours_per_1e12_tokens"]
    assert result["train_tokens"] == 15e12
    assert result["run_days"] == pytest.approx(hours / 64 / 24)
    assert result["run_cost"] == pytest.approx(2.5 * hours)
    widest = result["step_ms_high"] / result["step_ms"]
    assert result["run_cost_high"] == pytest.approx(widest * result["run_cost"])
    table = succeed(*words)
    assert (f"{hours:,.0f} GPU hours for 15 trillion tokens, {hours / 64 / 24:.1f} days; "
            f"{2.5 * hours:,.0f} at 2.5 a GPU hour") in table
    assert f"{result['run_days_low']:.1f} to {result['run_days_high']:.1f}" in table
    assert as_json(*words[:-4], "--gpu-hour-price", 2.5)["cost_per_1e12_tokens"] == pytest.approx(result["run_cost"] / 15)
    assert not [name for name in as_json(*words[:-4]) if "cost" in name or "run_" in name]


def test_tables_have_the_cost_of_runs(tmp_path):
    words = (*QWEN, "--gpus", "32,64", "--gpu-hour-price", 2.5)
    heading, one, two = succeed(*words, "--train-tokens", "15T").splitlines()[:3]
    assert re.search(r"memory GiB +days +cost", heading)
    row = as_json(*words[:-4], "--gpus", 64, *words[-2:], "--train-tokens", "15T")
    assert re.search(rf" {row['run_days']:.1f} +{row['run_cost']:.0f}\b", two), (one, two)
    assert "cost/1e12 tokens" in succeed(*words).splitlines()[0]
    expect_error(moesim(*words, "--train-tokens", "15T,20T"), 2, "--train-tokens: '15T,20T' is no")
    path = tmp_path / "steps.csv"
    succeed(*words, "--train-tokens", "15T", "--out", path)
    assert "GPU hours for 15 trillion tokens" in succeed("recommend", "--from", f"{path}:2")


@pytest.mark.parametrize("command", ["train", "recommend"])
def test_a_run_has_the_tokens_of_a_step_at_least(command):
    words = (command, "--model", "qwen3-30b-a3b", "--gpus", 64, "--global-batch", 1024, "--sequence-length", 4096)
    expect_error(moesim(*words, "--train-tokens", 10), 2, "--train-tokens 10: one step has 4,194,304 tokens")


def test_a_wrong_cost_is_said_before_a_search():
    expect_error(moesim("recommend", "--model", "no-such-model", "--train-tokens", "15t"), 2, "--train-tokens: '15t' is no")


@pytest.mark.parametrize("flag,value", [("train-tokens", value) for value in ("T", "15X", "15t", "-1", "nan", "inf", "1e305T")]
                         + [("gpu-hour-price", value) for value in ("0", "-2", "$2", "nan")])
def test_no_cost_of_a_run_without_numbers(flag, value):
    expect_error(moesim(*QWEN, "--gpus", 64, f"--{flag}", value), 2, f"--{flag}: '{value}' is no")


def test_parameters_are_those_published():
    # Qwen3-30B-A3B's card: 30.5 billion in total, 3.3 billion activated.
    assert "30.53 billion, 3.35 billion of them used by a token" in succeed(*QWEN, "--gpus", 64)
    assert re.search(r"parameters +6.738 billion\n", succeed("train", "--model", "llama2-7b", "--gpus", 8))


@pytest.mark.parametrize("words,note", [
    (("--context-method", "all-gather"), "--context-method has no effect: --context-parallel 1"),
    (("--tensor-overlap", "on"), "--tensor-overlap has no effect: --tensor-parallel 1"),
    (("--micro-batch-group", 4), "--micro-batch-group has no effect: only the interleaved schedule"),
    (("--recompute", "mlp,layernorm,shared_experts"),
     "mlp,shared_experts in --recompute have no effect: no layer of qwen3-30b-a3b has them"),
    (("--offload", "moe_act", "--recompute", "moe"), "--offload has no effect: of these modules nothing is kept"),
    (("--capacity-factor", 1, "--padding", "busiest"), "--capacity-factor has no effect: --padding busiest drops nothing"),
    (("--router", "dropless", "--padding", "none"), "--padding has no effect: no router of this run has slots that may stay empty"),
])
def test_an_option_that_changes_nothing_is_said(words, note):
    ran = moesim(*QWEN, "--gpus", 64, "--pipeline-parallel", 2, *words)
    assert ran.returncode == 0
    assert f"note: {note}" in ran.stderr


@pytest.mark.parametrize("words,option", [
    (("--dispatcher", "deepep"), "--dispatcher"),
    (("--fused-experts", "on"), "--fused-experts"),
    (("--host-read-us", 100), "--host-read-us"),
    (("--cuda-graphs", "router"), "--cuda-graphs router"),
    (("--precision", "fp8-block", "--dispatch-precision", "low"), "--dispatch-precision"),
    (("--cuda-graphs", "parts"), ""),
])
def test_options_of_experts_change_nothing_in_a_dense_model(words, option):
    ran = moesim("train", "--model", "llama2-7b", "--gpus", 16, *words)
    assert ran.returncode == 0
    if option:
        assert f"note: {option} has no effect: llama2-7b has no experts\n" in ran.stderr
    else:
        assert "no effect" not in ran.stderr


def test_only_the_interleaved_schedule_has_groups():
    words = (*QWEN, "--gpus", 64, "--pipeline-parallel", 2)
    assert as_json(*words)["micro_batch_group"] is None
    assert as_json(*words, "--virtual-pipeline", 2)["micro_batch_group"] == 2


def test_an_offload_without_its_modules_does_not_blame_recomputation():
    ran = moesim("train", "--model", "llama2-7b", "--gpus", 16, "--offload", "moe_act")
    assert "note: --offload has no effect: no layer of llama2-7b has these modules\n" in ran.stderr


def test_one_rank_of_experts_reads_no_row_counts():
    words = ("train", "--model", "mixtral-8x7b", "--gpus", 16, "--host-read-us", 100)
    said = "note: --host-read-us has no effect: with --expert-parallel 1 the host reads no row counts"
    assert said in moesim(*words, "--expert-parallel", 1).stderr
    assert said not in moesim(*words, "--expert-parallel", 2).stderr


def test_rows_that_do_not_travel_have_no_format_of_their_own():
    words = ("train", "--model", "qwen3-30b-a3b", "--gpus", 16, "--precision", "fp8-block")
    low = ("--dispatch-precision", "low")
    said = "note: --dispatch-precision has no effect: with --expert-parallel 1 no rows travel"
    alone = moesim(*words, "--expert-parallel", 1, *low)
    assert said in alone.stderr and alone.stdout == succeed(*words, "--expert-parallel", 1)
    assert said not in moesim(*words, "--expert-parallel", 2, *low).stderr
    slices = (*words, "--expert-parallel", 1, "--expert-tensor-parallel", 2, "--dispatcher", "deepep")
    assert said not in moesim(*slices, *low).stderr and succeed(*slices, *low) != succeed(*slices)


def working_layouts(*words):
    said = moesim("train", *words)
    assert said.returncode == 2 and said.stdout == ""
    proposals = said.stderr.split("nearest layouts that work: ")[1].strip().split("; ")
    changed = []
    for proposal in proposals:
        options = dict(zip(words[::2], words[1::2]))
        typed = shlex.split(proposal)
        changed.append({**options, **dict(zip(typed[::2], typed[1::2]))})
    return said.stderr, changed


@pytest.mark.parametrize("words,refused", [
    (("--model", "mixtral-8x7b", "--gpus", 16, "--tensor-parallel", 4, "--pipeline-parallel", 4, "--expert-parallel", 2,
      "--micro-batch", 12, "--global-batch", 128, "--optimizer-instances", 2), "is no multiple of --micro-batch"),
    (("--model", "deepseek-v2", "--profile", "h100-sxm", "--gpus", 512, "--tensor-parallel", 2, "--pipeline-parallel", 2,
      "--expert-parallel", 64, "--expert-tensor-parallel", 4, "--dispatcher", "trtllm"), "does not divide the 160 experts"),
    (("--model", "qwen3-30b-a3b", "--gpus", 16, "--expert-parallel", 16, "--dispatcher", "trtllm"),
     "works inside one NVLink domain"),
    (("--model", "qwen3-30b-a3b", "--gpus", 64, "--rank-capacity", 1.2, "--tensor-parallel", 5, "--sequence-length", 512),
     "is no multiple of --tensor-parallel 5"),
    (("--model", "qwen3-30b-a3b", "--gpus", 64, "--fidelity", "counts", "--tensor-parallel", 4, "--sequence-length", 512),
     "128 tokens per GPU are too few"),
    (("--model", "qwen3-30b-a3b", "--gpus", 128, "--pipeline-parallel", 4, "--expert-tensor-parallel", 3,
      "--dispatcher", "low-latency", "--sequence-length", 1000), "is no multiple of --expert-tensor-parallel 3"),
    (("--model", "kimi-k2", "--gpus", 24, "--expert-parallel", 3, "--dispatcher", "deepep"),
     "--expert-parallel 3 x --expert-tensor-parallel 1 = 3 ranks do not divide among 2 domains"),
    (("--model", "qwen3-30b-a3b", "--gpus", 6, "--expert-parallel", 2, "--expert-tensor-parallel", 3,
      "--dispatcher", "deepep"), "--expert-tensor-parallel 3 does not divide 8 ranks of a domain"),
    # Its experts fit no ranks either, which the layout decides.
    (("--model", "mixtral-8x7b", "--gpus", 128, "--pipeline-parallel", 5, "--expert-parallel", 32, "--dispatcher", "deepep",
      "--capacity-factor", 1), "--gpus 128 is no multiple of"),
])
def test_layouts_that_are_said_to_work_do(words, refused):
    said, changed = working_layouts(*words)
    assert refused in said and changed
    for options in changed:
        ran = moesim("train", *(word for pair in options.items() for word in pair))
        assert ran.returncode == 0, (options, ran.stderr)


def test_more_tokens_than_a_gpu_holds_are_a_fault_of_the_request():
    expect_error(moesim("train", "--model", "deepseek-v3", "--profile", "h100-sxm", "--gpus", 64, "--expert-parallel", 8,
                        "--micro-batch", 8, "--global-batch", 512, "--sequence-length", 131072), 2,
                 "permute of 126 GiB", "take fewer tokens")


def test_a_batch_that_no_replica_divides_is_refused():
    expect_error(moesim("train", "--gpus", 8, "--tensor-parallel", 16, "--global-batch", 32, "--micro-batch-group", 4),
                 2, "--gpus 8 is no multiple of --tensor-parallel 16")


def test_a_recomputed_dense_layer_needs_no_room_for_an_moe_layer():
    words = ("train", "--model", "deepseek-v2-lite", "--gpus", 8, "--expert-parallel", 8, "--format", "json")
    plain, block = (json.loads(succeed(*words, *more)) for more in ((), ("--recompute", "full:block:1")))
    assert block["memory_gib"] <= plain["memory_gib"] + 2 * 2048 * 4096 / 2**30


def test_a_default_that_is_typed_is_no_news():
    assert "no effect" not in moesim(*QWEN, "--gpus", 64, "--context-method", "ring", "--recompute", "layernorm").stderr


def test_a_head_in_low_precision_needs_a_low_precision():
    expect_error(moesim(*QWEN, "--gpus", 64, "--head-precision", "low"), 2, "--head-precision low with --precision bf16")


def test_memory_that_does_not_fit_is_said():
    words = ("train", "--model", "deepseek-v3", "--gpus", 256, "--pipeline-parallel", 2,
             "--pipeline-layout", "Et*30|t*31mL", "--expert-parallel", 8)
    assert as_json(*words)["fits_memory"] is False
    assert "DOES NOT FIT" in succeed(*words)
    assert as_json(*QWEN, "--gpus", 64)["fits_memory"] is True


def test_where_no_option_is_enough_the_search_is_a_command_to_paste(tmp_path):
    shipped = pathlib.Path(__file__).resolve().parents[3] / "profiles/models/deepseek-v3.json"
    model = tmp_path / "my model.json"
    model.write_text(json.dumps(json.loads(shipped.read_text()) | {"name": "mine"}))
    words = ("train", "--model", model, "--gpus", 256, "--expert-parallel", 8, "--global-batch", 2048)
    note = moesim(*words).stderr
    assert "needs 691" in note and "no option alone is enough" in note
    command = shlex.split(note.splitlines()[-1])
    assert command[:2] == ["moesim", "recommend"] and str(model) in command and "--expert-parallel" not in command
    found = json.loads(succeed(*command[1:], "--best", 1, "--jobs", 1, "--format", "json"))
    assert found[0]["memory_gib"] < 80


def test_what_is_said_to_fit_does_and_has_the_speed_that_is_said():
    words = ("train", "--model", "mixtral-8x7b", "--gpus", 32, "--pipeline-parallel", 2, "--expert-parallel", 8,
             "--micro-batch", 4)
    before = as_json(*words)
    warning = moesim(*words).stderr
    assert before["fits_memory"] is False and f"needs {before['memory_gib']:.1f} of 80 GiB" in warning
    hints = re.findall(r"(--[^(]+) \((\d+) GiB, ([+-]\d+) % speed\)", warning)
    assert len(hints) >= 3 and {"--micro-batch", "--recompute"} <= {hint[0].split()[0] for hint in hints}
    for options, gib, faster in hints:
        after = as_json(*words, *options.split())
        assert after["global_batch"] == before["global_batch"]  # the default of another layout is another
        assert after["memory_gib"] < 0.9 * 80 and after["memory_gib"] == pytest.approx(int(gib), abs=0.51)
        assert "TIGHT" not in succeed(*words, *options.split())
        ratio = after["tokens_per_s_per_gpu"] / before["tokens_per_s_per_gpu"]
        assert 100 * (ratio - 1) == pytest.approx(int(faster), abs=0.51)
    assert "moesim recommend" in moesim("train", "--model", "kimi-k2", "--gpus", 64).stderr


def test_more_gpus_for_the_same_batch_leave_the_end_of_the_step():
    """Micro-batches fall as 1 / GPUs, what is done once per step does not."""
    few, many = (as_json(*QWEN, "--gpus", gpus, "--global-batch", 1024) for gpus in (64, 512))
    assert (few["micro_batches"], many["micro_batches"]) == (16, 2)
    assert few["experts_ms"] == pytest.approx(8 * many["experts_ms"])
    assert few["step_ms"] < 8 * many["step_ms"]


def test_a_dispatcher_beyond_what_it_was_measured_at_is_said():
    words = (*QWEN, "--gpus", 8, "--dispatcher", "low-latency", "--sequence-length")
    said = "; extrapolated from 1 to 2048 tokens of a GPU"
    based = lambda tokens: re.search(r"^based on: .*$", succeed(*words, tokens), re.M).group()
    assert said in based(4096) and said not in based(2048)
    assert "extrapolated" not in re.search(r"^based on: .*$", succeed(*QWEN, "--gpus", 8), re.M).group()


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


def test_the_band_has_a_cost():
    words = (*QWEN, "--gpus", 64, "--software", "megatron-bridge")
    row = as_json(*words)
    low, high = (f"{1e12 / row[f'tokens_per_s_per_gpu_{end}'] / 3600:,.0f}" for end in ("high", "low"))
    assert re.search(rf"\n90 % .* {low} to {high}\n", succeed(*words))


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


@pytest.mark.parametrize(("words", "text"), [
    (("--gpus", 64, "--software", "megatron-bridg"), "did you mean 'megatron-bridge'?"),
    (("--gpus", 12), "--gpus 12 is no multiple"),
    (("--gpus", 64, "--attention-precision", "fp8"), "give --precision, such as fp8-current"),
    (("--gpus", 64, "--gradients", "fp8"), "--gradients"),
    (("--gpus", 64, "--launch-us", "-1"), "--launch-us: '-1' is not a number from 0 to 1000"),
    (("--gpus", 64, "--cuda-graphs", "layers"), "--cuda-graphs layers"),
    (("--gpus", 64, "--expert-load", "0.5"), "--expert-load"),
    (("--gpus", 64, "--expert-load", "8.1"), "--expert-load 8.1: at most 8 of 8 expert-parallel ranks"),
    (("--gpus", 64, "--recompute", "attention"), "--recompute"),
    (("--gpus", 64, "--expert-load", "2", "--capacity-factor", "1"), "give one of them"),
    (("--gpus", 64, "--router", "soft"), "--router: soft mixes all tokens"),
    (("--gpus", 64, "--router", "top2", "--top-k", 4), "it says 2 experts per token"),
    (("--gpus", 64, "--capacity-factor", "0"), "leaves the experts no slot"),
    (("--gpus", 64, "--routing", "gausian:1"), "--routing"),
    (("--gpus", 64, "--routing", "gaussian:-1"), "choose one of gaussian:SIGMA, zipf:A, dirichlet:A, counts:FILE, balanced, "
     "hot-expert:X, hot-rank:X, spread-heat:X, rotating:X, burst:X:SHARE, scores:FILE, trace:FILE, trace-repeat:FILE ("),
    (("--gpus", 64, "--router", "group-limited:7:2"), "choose a number of groups that divides 128, or a --model whose experts "
     "number 126 or 133"),
    (("--gpus", 64, "--router", "top200"), "use a smaller k or a --model with more experts"),
    (("--gpus", 64, "--rank-capacity", "0.9"), "from 1 (balanced)"),
    (("--gpus", 64, "--rank-capacity", "1.5", "--capacity-factor", "1"), "leave --capacity-factor out"),
    (("--gpus", 64, "--rank-capacity", "1.5", "--router", "sinkhorn"), "from counts"),
    (("--gpus", 64, "--routing-draws", "each"), "--routing-draws"),
    (("--gpus", 64, "--routing-draws", "balanced", "--router", "dropless"), "draws no routing"),
    (("--gpus", 64, "--precision", "mxfp8"), "it has bf16, fp8-delayed, fp8-current, fp8-block"),
    (("--gpus", 64, "--precision", "nvfp4"), "--precision nvfp4: the GPU of profile h100-sxm has no such products"),
    (("--gpus", 64, "--dispatch-precision", "low"), "give --precision, such as fp8-block"),
    (("--gpus", 64, "--offload", "experts"), "--offload: unknown value 'experts'"),
    (("--gpus", 64, "--offload", "moe_act", "--recompute", "full"), "--recompute full"),
    (("--gpus", 64, "--optimizer-instances", 5), "must divide the ranks that have the same weights: 64"),
    (("--gpus", 64, "--zero", 0, "--optimizer-instances", 2), "--zero 0"),
    (("--gpus", 64, "--ranks-per-domain", 9), "a domain of hgx-h100 has 8 GPUs"),
    (("--gpus", 64, "--redundant-experts", 8), "draw routing"),
    (("--gpus", 64, "--redundant-experts", 4, "--router", "dropless"), "132 experts and copies"),
    (("--gpus", 64, "--redundant-experts", 8, "--capacity-factor", 1), "leave the capacity out"),
    (("--gpus", 64, "--dispatcher", "nccl"), "unknown dispatcher 'nccl'"),
])
def test_what_cannot_be_is_named(words, text):
    expect_error(moesim(*QWEN, *words), 2, text)


def test_memory_of_every_rank_is_in_the_csv():
    words = (*QWEN, "--gpus", 64, "--pipeline-parallel", 4)
    (row,) = csv.DictReader(io.StringIO(succeed(*words, "--format", "csv")))
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


@pytest.mark.parametrize("drawn", [("--rank-capacity", 1.2), ("--capacity-factor", 1, "--fidelity", "counts")])
def test_what_drawn_routing_refuses_is_no_hint_against_full_memory(drawn):
    """More tensor ranks would leave a GPU fewer tokens than counts can be drawn of."""
    result = moesim("train", "--model", "mixtral-8x7b", "--gpus", 8, "--sequence-length", 256, *drawn)
    assert result.returncode == 0, result.stderr
    assert "GiB per GPU" in result.stderr and "too few" not in result.stderr


def test_copies_of_hot_experts_level_ranks():
    words = (*QWEN, "--gpus", 64, "--router", "dropless", "--routing", "gaussian:1")
    none, copied = as_json(*words), as_json(*words, "--redundant-experts", 32)
    assert copied["imbalance"] < none["imbalance"] and copied["step_ms"] < none["step_ms"]
    assert copied["balanced_step_ms"] == none["balanced_step_ms"]


def test_the_blocks_of_a_group_are_those_of_balance_and_padding_too():
    """A capacity that nothing reaches pads blocks as --padding busiest does; all formats say so."""
    words = (*QWEN, "--gpus", 64, "--router", "topk", "--routing", "gaussian:0.3")
    group = ("--capacity-factor", 16, "--capacity-scope", "group")
    longest, roomy = as_json(*words, "--padding", "busiest"), as_json(*words, *group)
    assert roomy["padded"] == pytest.approx(longest["padded"], rel=1e-6)
    assert roomy["balanced_step_ms"] < roomy["step_ms"]
    text = succeed(*words, *group)
    assert f"{100 * roomy['padded']:.2f} % of slots padded" in text
    assert f"{100 * (roomy['step_ms'] / roomy['balanced_step_ms'] - 1):+.1f} % of step time" in text
    (row,) = csv.DictReader(io.StringIO(succeed(*words, *group, "--format", "csv")))
    assert float(row["padded"]) == roomy["padded"]
    assert float(row["balanced_step_ms"]) == roomy["balanced_step_ms"]


ROUTED = (*QWEN, "--gpus", 64, "--pipeline-parallel", 2)


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


DEEPSEEK = ("train", "--model", "deepseek-v3", "--gpus", 64, "--expert-parallel", 32, "--recompute", "full")


def test_the_models_own_router_without_a_capacity_loses_nothing():
    """As recommend counts it; what its groups and bias pass over is said by its name."""
    own = as_json(*DEEPSEEK, "--routing", "gaussian:0.3")
    assert own["counted_loss"] == own["failed"] == 0 and own["residual_loss"] > 0.005
    text = succeed(*DEEPSEEK, "--routing", "gaussian:0.3")
    assert "token loss   0.00 %; 0.00 % of routes failed\n" in text
    assert f"not chosen   {100 * own['residual_loss']:.2f} % of the weight of a token's 8 best experts" in text
    uneven = succeed(*DEEPSEEK, "--routing", "gaussian:0.1,gaussian:0.3")
    assert "token loss %" in uneven.splitlines()[0] and len(re.findall(r" 0\.00 +[\d.]+  does not fit", uneven)) == 2
    assert "token loss 0.00: no route is dropped; not counted: " in uneven
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
    alone = json.loads(succeed("route", "--model", "qwen3-30b-a3b", "--gpus", 64, "--expert-parallel", 8,
                               "--tokens-per-gpu", 4096, "--replicas", 1, "--fidelity", "counts",
                               *words, "--format", "json"))
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
    alone = json.loads(succeed("route", "--model", "qwen3-30b-a3b", "--gpus", 8, "--expert-parallel", 8,
                               "--tokens-per-gpu", 512, "--replicas", 1, *router, *words, "--format", "json"))
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


def test_a_rank_capacity_says_chance_and_cost_of_reruns():
    result = as_json(*ROUTED, "--rank-capacity", 1.5, "--cuda-graphs", "layers")
    assert result["rank_capacity_rows"] % 256 == 0 and 0 <= result["overflow_chance"] < 1e-6
    assert 1 < result["rank_capacity_for_one_percent"] < 1.5
    assert result["reruns_ms"] == pytest.approx(result["overflow_chance"] * result["rerun_step_ms"])
    assert "of steps overflow" in succeed(*ROUTED, "--rank-capacity", 1.5)


def test_a_profile_without_the_curves_is_refused_with_what_is_missing():
    expect_error(moesim(*QWEN, "--gpus", 8, "--profile", "l40s"), 1, "profile l40s has no curve")


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
    (row,) = csv.DictReader(io.StringIO(succeed(*words, "--format", "csv")))
    assert (row["zero"], row["optimizer_moments"], row["launch_us"], row["global_batch"],
            row["pipeline_schedule"]) == ("2", "bf16", "7", "512", "interleaved")


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


ROW = {"config_id": "a1", "source": "Made-up 1", "model": "Qwen3-30B-A3B", "system": "DGX-H100", "gpus": "64",
       "tp": "1", "pp": "2", "vp": "1", "cp": "1", "ep": "8", "etp": "1", "mbs": "1", "gbs": "256",
       "seq": "4096", "precision": "BF16", "dispatcher_overlap_options": "alltoall",
       "capacity_factor_or_dropless": "dropless", "recompute": "none", "metric": "step_time",
       "value": "", "derived_step_s": ""}


def validate_rows(tmp_path, *rows):
    with open(tmp_path / "moe_training_steps.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ROW)
        writer.writeheader()
        writer.writerows(rows)
    return moesim("validate", "training", "--data", tmp_path, "--format", "json")


def test_validation_compares_what_train_predicts(tmp_path):
    predicted = as_json(*QWEN, "--gpus", 64, "--pipeline-parallel", 2, "--global-batch", 256)["step_ms"]
    slower = {**ROW, "derived_step_s": f"{2 * predicted / 1e3}", "value": "1"}
    fp4 = {**ROW, "config_id": "a2", "precision": "NVFP4", "derived_step_s": "1", "value": "1"}
    document = json.loads(validate_rows(tmp_path, slower, fp4).stdout)
    (row,) = document["rows"]
    assert row["predicted"] == pytest.approx(predicted)
    assert row["error"] == pytest.approx(-0.5)
    texts = [verdict["text"] for verdict in document["verdicts"]]
    assert any("1 configurations left out" in text and "nvfp4" in text for text in texts)


def test_validation_casts_as_train_does(tmp_path):
    """On Hopper products with one scale per tensor read a transposed copy, which is cast too."""
    predicted = as_json(*QWEN, "--gpus", 64, "--pipeline-parallel", 2, "--global-batch", 256,
                        "--precision", "fp8-current")["step_ms"]
    row = {**ROW, "precision": "FP8-CS", "derived_step_s": f"{predicted / 1e3}", "value": "1"}
    (row,) = json.loads(validate_rows(tmp_path, row).stdout)["rows"]
    assert row["predicted"] == pytest.approx(predicted)


def test_factors_come_from_other_models(tmp_path):
    """A system that takes twice the predicted time for two models: each is right by the other's factor."""
    rows = []
    for number, (name, model) in enumerate((("Qwen3-30B-A3B", "qwen3-30b-a3b"),
                                            ("GPT OSS 120B", "gpt-oss-120b"))):
        predicted = as_json("train", "--model", model, "--expert-parallel", 8, "--gpus", 64,
                            "--pipeline-parallel", 2, "--global-batch", 256,
                            "--sequence-length", 4096)["step_ms"]
        rows.append({**ROW, "config_id": f"b{number}", "model": name, "value": "1",
                     "derived_step_s": f"{2 * predicted / 1e3}"})
    document = json.loads(validate_rows(tmp_path, *rows).stdout)
    assert [row["left_out_error"] for row in document["rows"]] == pytest.approx([0, 0], abs=1e-6)


def test_a_bad_cell_of_the_table_is_named(tmp_path):
    result = validate_rows(tmp_path, {**ROW, "ep": "eight", "derived_step_s": "1", "value": "1"})
    assert result.returncode == 1 and "no row can be predicted" in result.stderr
    assert "line 2, column ep: 'eight'" in result.stderr


def test_the_public_table_is_compared():
    document = json.loads(moesim("validate", "training", "--data", folder_of("moe_training_steps.csv"),
                                 "--format", "json").stdout)
    assert len(document["rows"]) >= 22
    assert all(row["predicted"] > 0 for row in document["rows"])


TABLE = {"config_id": "a1", "source": "Own pages 1.0", "model": "GPT OSS 120B", "system": "DGX-H200", "gpus": "64",
         "tp": "1", "pp": "1", "vp": "1", "cp": "1", "ep": "8", "etp": "1", "mbs": "1", "gbs": "512", "seq": "4096",
         "precision": "BF16", "dispatcher_overlap_options": "", "capacity_factor_or_dropless": "dropless",
         "recompute": "none", "routing": "forced balance", "metric": "step_time", "value": "9", "unit": "s/step",
         "derived_step_s": "9", "std": "", "notes": ""}


def test_a_table_of_other_models_and_machines_is_compared_row_by_row(tmp_path):
    """Any shipped model and machine, however its name is written; a row that cannot be is left out by itself."""
    changes = [{}, {"model": "Qwen3_235B_a22B (own)"}, {"model": "Kimi-K2"}, {"system": "p5en.48xlarge (8x H200)"},
               {"precision": "fp8-block"}, {"capacity_factor_or_dropless": "1.25"}]
    refused = [({"model": "Nemotron"}, "no document of its model"), ({"system": "MI300X"}, "no profile of its GPU"),
               ({"precision": "TF32"}, "steps in TF32 are not modelled"), ({"ep": "48"}, "--expert-parallel 48"),
               ({"recompute": "selective"}, "unknown value 'selective'"), ({"mbs": "x"}, "column mbs: 'x'"),
               ({"dispatcher_overlap_options": "pp_layout=rubbish"}, "--pipeline-layout 'rubbish'"),
               ({"capacity_factor_or_dropless": "some"}, "capacity 'some'")]
    with (tmp_path / "moe_training_steps.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, TABLE)
        table.writeheader()
        for place, change in enumerate(changes + [change for change, _ in refused]):
            table.writerow({**TABLE, **change, "config_id": f"a{place}"})
    document = json.loads(moesim("validate", "training", "--data", tmp_path, "--format", "json").stdout)
    assert [row["subject"].split(":")[0] for row in document["rows"]] == [f"a{n}" for n in range(len(changes))]
    predicted = [row["predicted"] for row in document["rows"]]
    assert predicted[5] != predicted[0] == predicted[3] and predicted[4] < predicted[0] < predicted[1]
    left_out = "\n".join(verdict["text"] for verdict in document["verdicts"])
    for _, reason in refused:
        assert reason in left_out, reason


def test_a_step_beside_a_baseline_says_whether_the_difference_is_noise(tmp_path):
    words = (*QWEN, "--gpus", 64, "--software", "megatron-bridge")
    base = tmp_path / "base.csv"
    succeed(*words, "--out", base)
    alike = as_json(*words, "--launch-us", 14, "--baseline", base)
    assert 1 <= alike["speed_over_baseline"] < 1.1 and alike["within_noise"] is True
    assert alike["speed_over_baseline_low"] < 1 < alike["speed_over_baseline_high"]
    far = as_json(*words, "--launch-us", 300, "--baseline", base)
    assert far["within_noise"] is False and far["speed_over_baseline_high"] < 1
    assert far["beyond_noise_level"] == 0.9 and alike["beyond_noise_level"] is None
    assert "more than noise at 90 %" in succeed(*words, "--launch-us", 300, "--baseline", base)
    expect_error(moesim(*words, "--profile", "h200-sxm", "--baseline", base), 2, "base.csv", "do not cancel")
    elsewhere = ("--profile", "h100-sxm", "--cluster", "hgx-h200")
    expect_error(moesim(*words, *elsewhere, "--baseline", base), 2, "a step on hgx-h100", "do not cancel")
    expect_error(moesim(*words[:-1], "simumax", "--baseline", base), 2, "a step of megatron-bridge", "do not cancel")
    assert as_json(*words[:-2], "--baseline", base)["speed_over_baseline"] == pytest.approx(1)
    base.write_text("model,profile\na,b\n")
    expect_error(moesim(*words, "--baseline", base), 2, "base.csv", "tokens_per_s_per_gpu")


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_a_baseline_of_another_capacity_alone_is_compared_by_pairs_of_capacity(tmp_path, suffix):
    """As sweep --baseline compares them: both padded, all but router and capacity the same."""
    base = tmp_path / f"base.{suffix}"
    words = ("train", "--model", "mixtral-8x7b", "--gpus", 64, "--pipeline-parallel", 4, "--expert-parallel", 8,
             "--software", "megatron-bridge")
    padded = (*words, "--capacity-factor", 1.25)
    succeed(*padded, "--out", base, "--format", suffix)

    def width(*words):
        step = as_json(*words, "--baseline", base)
        return step["speed_over_baseline_high"] / step["speed_over_baseline_low"]

    less = (*words, "--capacity-factor", 1)
    assert width(*less) < 1.25 and width(*less, "--router", "topk+ir", "--seed", 3) < 1.25
    # Another number of choices is another amount of work, and a dispatcher sends what blocks keep.
    assert width(*less, "--top-k", 4) > 1.25
    sent = tmp_path / f"sent.{suffix}"
    succeed(*padded, "--dispatcher", "deepep", "--out", sent, "--format", suffix)
    one = as_json(*less, "--dispatcher", "deepep", "--baseline", sent)
    assert one["speed_over_baseline_high"] > 1.25 * one["speed_over_baseline_low"]
    text = succeed(*less, "--baseline", base)
    assert "more than noise at 90 %; by 48 published pairs that differ in router and capacity alone, as these do" in text
    # More differs, or blocks are not padded: what they take depends on a routing that nobody told.
    for wide in ((*less, "--micro-batch", 2), (*words, "--router", "dropless"), (*less, "--padding", "none")):
        assert width(*wide) > 1.5
        assert "groups of pairs of steps on one machine" in succeed(*wide, "--baseline", base)


def slices_of(path):
    document = json.loads(path.read_text())
    streams = {(event["pid"], event["tid"]): event["args"]["name"].split(" ", 2)[2]
               for event in document["traceEvents"] if event["name"] == "thread_name"}
    tracks = {}
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], streams[event["pid"], event["tid"]]), []).append(event)
    for events in tracks.values():
        events.sort(key=lambda event: event["ts"])
    return tracks


@pytest.mark.parametrize("words", [
    ("--virtual-pipeline", 2), ("--virtual-pipeline", 2, "--ep-overlap", "on"), ("--pipeline-schedule", "zb-h1"),
    ("--recompute", "full:block:6"), ("--pipeline-schedule", "dualpipe"), ("--host-read-us", 500)])
def test_the_timeline_has_every_pass_piece_and_bucket(tmp_path, words):
    out = tmp_path / "step.json"
    job = (*QWEN, "--gpus", 64, "--pipeline-parallel", 4, "--routing-draws", "per-micro-batch", *words)
    result = as_json(*job, "--timeline", out)
    tracks = slices_of(out)
    assert sorted({gpu for gpu, _ in tracks}) in ([0, 16, 32, 48], [8, 24, 40, 56])  # of one of two groups
    end = max(event["ts"] + event["dur"] for events in tracks.values() for event in events)
    assert end == pytest.approx(result["step_ms"] * 1e3, rel=1e-8)  # printed with nine digits
    for (gpu, stream), events in tracks.items():
        for one, other in zip(events, events[1:]):
            assert one["ts"] + one["dur"] <= other["ts"] + 1e-5, (gpu, stream, one, other)
    for gpu in {gpu for gpu, _ in tracks}:
        passes = tracks[gpu, "pipeline"]
        texts = [text for event in passes for text in event["name"].split("; ")]
        assert len(set(texts)) == len(texts)
        forward = [text for text in texts if text.startswith("forward")]
        assert len(forward) == result["micro_batches"] * (2 if "--virtual-pipeline" in words else 1)
        pieces = [event for stream in ("compute", "communication", "host") for event in tracks.get((gpu, stream), [])
                  if event["name"] not in ("gradient norm, optimizer", "fixed part of the step")]
        busy, inside = (sum(event["dur"] for event in events) for events in (passes, pieces))
        if "--ep-overlap" in words or "dualpipe" in words:
            assert busy < inside  # exchanges run beside computation
        else:
            assert busy == pytest.approx(inside, rel=1e-6)
        # Kernels between, which exchange or wait, divide a bucket into several.
        numbers = [int(event["args"]["detail"].split()[1]) for event in buckets_of(tracks, gpu)
                   if event["args"]["Process Group Description"] == "expert_data_parallel"]
        assert numbers == sorted(numbers) and set(numbers) == set(range(1, max(numbers) + 1))


def buckets_of(tracks, gpu):
    return [event for event in tracks[gpu, "gradients"] if event["args"].get("detail", "").startswith("bucket")]


@pytest.mark.parametrize("schedule,share", [("1f1b", 1), ("dualpipe", 0.5)])
def test_the_timeline_shows_one_of_the_reductions_of_zero_2(tmp_path, schedule, share):
    """Each micro-batch of a stage reduces its gradients; the end of the last one is drawn. Behind it DualPipe's copies
    of a stage exchange their shards, once."""
    out = tmp_path / "step.json"
    result = as_json(*QWEN, "--gpus", 64, "--pipeline-parallel", 4, "--pipeline-schedule", schedule, "--zero", 2,
                     "--timeline", out)
    tracks = slices_of(out)
    ends = {}
    for gpu in {gpu for gpu, _ in tracks}:
        last = max(event["ts"] + event["dur"] for event in tracks[gpu, "pipeline"])
        ends[gpu] = max(event["ts"] + event["dur"] for event in buckets_of(tracks, gpu)) - last
    longest = max(ends, key=ends.get)
    shards = sum(event["dur"] for event in buckets_of(tracks, longest) if "other copy" in event["args"]["detail"])
    assert (shards > 0) == (schedule == "dualpipe")
    each = (1e3 * result["gradients_ms"] - shards) / (share * result["micro_batches"])
    assert ends[longest] == pytest.approx(each + shards, rel=1e-6)


def test_a_timeline_that_cannot_be_written_is_named(tmp_path):
    expect_error(moesim(*ROUTED, "--timeline", tmp_path / "no" / "t.json"), 1, "t.json")


def test_the_table_has_each_part_with_forced_balance_beside_it():
    text = succeed(*QWEN, "--gpus", 32, "--router", "dropless", "--routing", "gaussian:0.5")
    head, *lines = text[text.index("part of the step"):].splitlines()
    assert head.split()[-2:] == ["forced", "balance"]
    experts = next(line.split() for line in lines if line.startswith("experts"))
    # experts, time, unit, share, %, time, unit: the busiest rank has more rows than the others
    assert float(experts[1]) > 1.1 * float(experts[5]) and experts[2] == experts[6] == "ms"
    assert "forced balance" not in succeed(*QWEN, "--gpus", 32)


@pytest.mark.parametrize("words", [("--offload", "expert_fc1", "--micro-batch", 2, "--expert-parallel", 8),
                                   ("--redundant-experts", 8, "--router", "dropless", "--expert-parallel", 4),
                                   ("--optimizer-instances", 4, "--expert-parallel", 4, "--micro-batch", 4)])
def test_a_hint_that_cannot_be_does_not_end_a_step(words):
    result = moesim("train", "--model", "qwen3-30b-a3b", "--gpus", 16, *words)
    assert result.returncode == 0, result.stderr
    assert "DOES NOT FIT" in result.stdout


def test_the_search_that_a_hint_names_is_of_the_same_step():
    result = moesim("train", "--model", "mixtral-8x7b", "--gpus", 8, "--dispatch-precision", "low", "--precision",
                    "fp8-current")
    command = next(line for line in result.stderr.splitlines() if "moesim recommend" in line).strip()
    assert "--global-batch 32" in command and "--dispatch-precision low" in command
    search = moesim(*command.split()[1:])
    assert search.returncode == 0 or "fits in" in search.stderr, search.stderr


@pytest.mark.parametrize("words,option", [
    (("--model", "deepseek-v3", "--gpus", 64, "--pipeline-layout", "Et*61mL"), " --mtp 1"),
    (("--model", "kimi-k2", "--gpus", 64, "--ranks-per-domain", 4), " --ranks-per-domain 4"),
    (("--model", "kimi-k2", "--gpus", 64, "--rank-capacity", 1.2), "searches all layouts, without --rank-capacity:"),
])
def test_the_search_that_a_hint_names_keeps_what_is_no_choice_of_layout(words, option):
    said = moesim("train", *words).stderr
    assert "moesim recommend" in said and option in said


def test_a_table_marks_what_is_tight_and_shows_the_baseline(tmp_path):
    base = tmp_path / "base.csv"
    words = ("train", "--model", "qwen3-30b-a3b", "--gpus", 16, "--expert-parallel", 8)
    succeed(*words, "--recompute", "full", "--format", "csv", "--out", base)
    table = succeed(*words, "--recompute", "full/moe_act/none", "--baseline", base)
    rows = [line.split() for line in table.splitlines() if line.split()[:1] in (["full"], ["moe_act"], ["none"])]
    gib = {row[0]: float(row[7]) for row in rows}
    assert "speed over baseline" in table.splitlines()[0]
    for row in rows:
        text = " ".join(row).removesuffix(" host limits").removesuffix(",")
        ends = {"fit": "does not fit", "TIGHT": "TIGHT"}.get(text.split()[-1], "")
        assert ends == ("does not fit" if gib[row[0]] > 80 else "TIGHT" if gib[row[0]] > 72 else "")
    assert "TIGHT" in table and "\nTIGHT: more than 90 % of a GPU's memory; libraries need some too\n" in table
    assert "TIGHT" not in succeed(*words, "--recompute", "full", "--micro-batch", "1,2")
    assert float(rows[0][8]) == pytest.approx(1, abs=0.1)


def test_layout_has_the_memory_options_of_train():
    words = ("--model", "qwen3-30b-a3b", "--gpus", 16, "--expert-parallel", 8, "--zero", 2, "--gradients", "bf16")
    row = next(csv.DictReader(io.StringIO(succeed("layout", *words, "--profile", "h100-sxm", "--format", "csv"))))
    step = as_json("train", *words)
    assert float(row["memory_gib"]) == pytest.approx(step["memory_gib"], rel=0.005)
    expect_error(moesim("layout", *words, "--profile", "h100-sxm", "--precision", "nvfp4"), 2, "has no such products")
