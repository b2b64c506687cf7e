"""What moesim train says of its band and of what it was not measured at, and options that change nothing."""

import json
import pathlib
import re
import subprocess

import pytest
from command_line import BINARY, Terminal, as_json, as_rows, moesim, needs_binary, succeed
from train_command import LONG, QWEN

pytestmark = needs_binary
MODELS = pathlib.Path(__file__).resolve().parents[3] / "profiles" / "models"


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
        assert "in line with" not in known.stderr
        assert "3 models with megatron-bridge on NVIDIA B300 took" in known.stdout


def test_options_that_the_measured_steps_had_are_named_where_nobody_chose():
    """A band is of steps with the options of their software: defaults may be others."""
    words = ("train", "--model", "deepseek-v3", "--profile", "gb300", "--gpus", 256, "--expert-parallel", 64,
             "--precision", "mxfp8", "--software", "megatron-bridge", "--dispatcher", "hybridep", "--rank-capacity", 2)
    theirs = "(megatron-bridge on NVIDIA GB300, deepseek-v3) had "
    graphs = ("--cuda-graphs", "layers")
    recipe = ("--attention-precision", "fp8", "--fused-experts", "on", "--gradients", "bf16", "--head-precision", "low",
              "--optimizer-moments", "bf16")
    assert theirs + " ".join(recipe) + ", this one has the defaults" in moesim(*words, *graphs).stderr
    # What was typed is the user's choice, a default too.
    assert theirs + " ".join(recipe[2:]) + "," in moesim(*words, *graphs, *recipe[:2]).stderr
    fp32 = moesim(*words, "--cuda-graphs", "parts", "--gradients", "fp32").stderr
    assert theirs + "--optimizer-moments bf16," in fp32
    assert theirs not in moesim(*words, *graphs, *recipe).stderr
    # Other steps of it were built otherwise: the nearest are meant.
    assert theirs + "--gradients bf16 --optimizer-moments bf16," in moesim(*words, "--cuda-graphs", "parts").stderr
    assert "had " not in moesim(*words[:-5], "--rank-capacity", 2).stderr  # no software is named


def test_options_of_measured_steps_are_named_where_the_step_can_have_them():
    """Graphs of layers need an exchange that the host does not wait for: NCCL's is none."""
    words = ("train", "--model", "qwen3-30b-a3b", "--profile", "gb200", "--gpus", 64, "--precision", "mxfp8",
             "--software", "megatron-bridge")
    named = re.search(r"qwen3-30b-a3b\) had (.*), this one has", moesim(*words).stderr).group(1).split()
    assert named == ["--cuda-graphs", "router", "--gradients", "bf16"]
    followed = moesim(*words, *named)
    assert followed.returncode == 0
    assert "this one has" not in followed.stderr


def test_a_model_without_measured_steps_is_held_against_others_of_its_software():
    words = ("--model", "mixtral-8x7b", "--gpus", 64, "--software")
    assert "(megatron-bridge on NVIDIA H100 80GB HBM3) had --gradients bf16," in moesim("train", *words, "megatron-bridge").stderr
    for command in ("train", "recommend"):
        assert "(aws on NVIDIA H100 80GB HBM3) had --cluster aws-p5," in moesim(command, *words, "aws").stderr
    # Which graphs, a search decides.
    gpt_oss = ("--model", "gpt-oss-120b", "--profile", "gb200", "--gpus", 64, "--software", "megatron-bridge")
    assert "had --gradients bf16," in moesim("recommend", *gpt_oss).stderr


def test_graphs_of_layers_without_a_capacity_say_what_memory_leaves_out():
    words = (*QWEN, "--gpus", 64, "--dispatcher", "deepep", "--cuda-graphs", "layers")
    assert "up to 8 times balance" in moesim(*words).stderr
    assert "balance" not in moesim(*words, "--rank-capacity", 2).stderr
    assert "balance" not in moesim(*words, "--capacity-factor", 1).stderr


def test_sharing_gradients_under_a_pipeline_is_said_to_be_rare():
    words = (*QWEN, "--gpus", 64, "--pipeline-parallel")
    rare = "with --pipeline-parallel above 1: few frameworks run it, and DeepSpeed refuses it: gradients are reduced"
    assert f"note: --zero 2 {rare} in every micro-batch" in moesim(*words, 2, "--zero", 2).stderr
    assert f"note: --zero 3 {rare} and weights gathered in every micro-batch" in moesim(*words, "1,2", "--zero", 3).stderr
    for pipeline, zero in ((2, 1), (1, 2), (1, 3)):
        assert "few frameworks" not in moesim(*words, pipeline, "--zero", zero).stderr


def test_bands_of_an_unknown_software_say_that_they_held_less():
    """As the page has it: fewer of the steps of a software that was left out were inside 80 % bands."""
    assert "a software left out" in succeed(*QWEN, "--gpus", 64)
    assert "a software left out" not in succeed(*QWEN, "--gpus", 64, "--software", "megatron-bridge")
    page = (pathlib.Path(__file__).resolve().parents[3] / "profiles" / "ACCURACY.md").read_text(encoding="utf-8")
    (inside, points), = re.findall(r"\| a software left out \| 80 % \| (\d+) of (\d+)", page)
    assert int(inside) / int(points) < 0.75


def test_what_no_measured_step_has_is_named_and_widens_the_band():
    """Steps of 4,096 and 8,192 tokens without context parallelism were published."""
    usual, same = as_json(*LONG), as_json(*LONG, "--sequence-length", 8192)
    assert usual["not_measured"] == same["not_measured"] == []
    assert usual["not_measured_deviation"] == same["not_measured_deviation"] == 0

    def width(row):
        return row["step_ms_high"] / row["step_ms_low"]
    # Longer sequences wait less for the host.
    assert width(same) <= width(usual)
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
    (written,) = as_rows(*far)
    assert written["not_measured"] == "; ".join(row["not_measured"])


@pytest.mark.parametrize("words,note", [
    (("--context-method", "all-gather"), "--context-method has no effect: --context-parallel 1"),
    (("--tensor-overlap", "on"), "--tensor-overlap has no effect: --tensor-parallel 1"),
    (("--micro-batch-group", 4), "--micro-batch-group has no effect: only the interleaved schedule"),
    (("--recompute", "mlp,layernorm,shared_experts"),
     "mlp,shared_experts in --recompute have no effect: no layer of qwen3-30b-a3b has them"),
    (("--offload", "moe_act", "--recompute", "moe"), "--offload has no effect: of these modules nothing is kept"),
    (("--capacity-factor", 1, "--padding", "busiest"), "--capacity-factor has no effect: --padding busiest drops nothing"),
    (("--gather-precision", "bf16"), "--gather-precision bf16 has no effect: bf16 gathers bf16"),
    (("--precision", "fp8-block", "--gather-precision", "bf16"), "--gather-precision bf16 has no effect: fp8-block"),
    (("--recompute", "moe,moe_act"), "moe_act in --recompute has no effect: moe computes it again too"),
    (("--recompute", "full:block:100"), "--recompute full:block:100 is the same as full:block:24: no pipeline chunk"),
    (("--recompute", "full:uniform:25"), "--recompute full:uniform:25 is the same as full:uniform:24: no pipeline chunk"),
    (("--capacity-factor", 1, "--host-read-us", 100), "--host-read-us has no effect: blocks padded to their capacity"),
    (("--router", "dropless", "--router-dialect", "megatron"),
     "--router-dialect has no effect: no router of this run has a capacity"),
    (("--router", "dropless", "--rank-capacity", 1.2, "--router-dialect", "tutel"),
     "--router-dialect has no effect: no router of this run has a capacity"),
    (("--router", "dropless", "--padding", "none"), "--padding has no effect: no router of this run has slots that may stay empty"),
])
def test_an_option_that_changes_nothing_is_said(words, note):
    ran = moesim(*QWEN, "--gpus", 64, "--pipeline-parallel", 2, *words)
    assert ran.returncode == 0
    assert f"note: {note}" in ran.stderr


def test_core_attention_of_linear_layers_is_not_recomputed_and_said_so(tmp_path):
    job = ("--gpus", 64, "--expert-parallel", 16, "--recompute", "core_attn")
    for command in ("train", "layout"):
        said = moesim(command, "--model", "qwen3-next-80b-a3b", *job).stderr
        assert "note: core_attn in --recompute has no effect on 36 of 48 layers: they have linear attention" in said
    document = json.loads((MODELS / "qwen3-next-80b-a3b.json").read_text(encoding="utf-8"))
    document["linear"]["full_every"] = 0
    path = tmp_path / "linear.json"
    path.write_text(json.dumps(document))
    ran = moesim("train", "--model", path, *job)
    assert f"note: core_attn in --recompute has no effect: no layer of {path} has it" in ran.stderr
    without = as_json("train", "--model", path, *job[:-2])
    assert as_json("train", "--model", path, *job)["step_ms"] == without["step_ms"]


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


def test_a_default_that_is_typed_is_no_news():
    assert "no effect" not in moesim(*QWEN, "--gpus", 64, "--context-method", "ring", "--recompute", "layernorm").stderr


def test_a_dispatcher_beyond_what_it_was_measured_at_is_said():
    words = (*QWEN, "--gpus", 8, "--dispatcher", "low-latency", "--sequence-length")
    said = "; extrapolated from 1 to 2048 tokens of a GPU"
    based = lambda tokens: re.search(r"^based on: .*$", succeed(*words, tokens), re.M).group()
    assert said in based(4096) and said not in based(2048)
    assert "extrapolated" not in re.search(r"^based on: .*$", succeed(*QWEN, "--gpus", 8), re.M).group()


@pytest.mark.parametrize("less,more", [
    ((), ("--gather-precision", "bf16")), (("--recompute", "moe"), ("--recompute", "moe,moe_act")),
    (("--recompute", "full:block:24"), ("--recompute", "full:block:25")),
    (("--recompute", "full:uniform:24"), ("--recompute", "full:uniform:100")),
    (("--capacity-factor", 1), ("--capacity-factor", 1, "--host-read-us", 100)),
    (("--router", "dropless"), ("--router", "dropless", "--router-dialect", "megatron"))])
def test_what_is_said_to_have_no_effect_has_none(less, more):
    words = (*QWEN, "--gpus", 64, "--pipeline-parallel", 2)
    figures = ("step_ms", "memory_gib", "tokens_per_s_per_gpu", "step_ms_low", "step_ms_high")
    one, other = as_json(*words, *less), as_json(*words, *more)
    assert [one[name] for name in figures] == [other[name] for name in figures]


def test_an_option_that_has_an_effect_is_not_said_to_have_none():
    words = (*QWEN, "--gpus", 64, "--pipeline-parallel", 2)
    for more in (("--precision", "fp8-current", "--gather-precision", "bf16"), ("--recompute", "full:block:23"),
                 ("--host-read-us", 100), ("--router", "dropless", "--rank-capacity", 1.1, "--host-read-us", 100),
                 ("--capacity-factor", 1, "--router-dialect", "tutel"), ("--dispatcher", "deepep"),
                 ("--router", "top2", "--router-dialect", "deepspeed"), ("--router-dialect", "megatron")):
        said = moesim(*words, *more).stderr
        assert "no effect" not in said and "the same as" not in said


def test_a_dispatcher_of_one_rank_sends_nothing():
    words = ("train", "--model", "qwen3-30b-a3b", "--gpus", 64, "--expert-parallel", 1)
    said = "note: --dispatcher has no effect: with --expert-parallel 1 no rows travel"
    alone = moesim(*words, "--dispatcher", "deepep")
    assert said in alone.stderr
    assert as_json(*words, "--dispatcher", "deepep")["step_ms"] == as_json(*words)["step_ms"]
    assert said not in moesim(*words, "--dispatcher", "deepep", "--expert-tensor-parallel", 2).stderr


def test_slots_that_nothing_fills_are_said():
    """C = ceil(2 CF 4096 / 8) = 1024 CF slots of 4,096 tokens, which CF 4 fills."""
    words = ("train", "--model", "mixtral-8x7b", "--expert-parallel", 8, "--gpus", 64, "--sequence-length", 4096, "--capacity-factor")
    said = ("note: --capacity-factor: C = 4352 slots of an expert for the 4096 tokens of a source, which choose an expert "
            "once: 256 of them (5.88 %) are always empty")
    assert said in moesim(*words, 4.25).stderr
    assert "slots" not in moesim(*words, 4).stderr
    assert "slots" not in moesim(*words, 4.25, "--padding", "none").stderr
    assert "note: --min-capacity: C = 5000 slots" in moesim(*words, 1, "--min-capacity", 5000).stderr


def test_drawing_routing_shows_progress_on_a_terminal_alone(tmp_path):
    words = ("train", "--model", "deepseek-v2-lite", "--gpus", 8, "--expert-parallel", 8, "--router", "bias-balanced",
             "--routing", "gaussian:1")
    terminal = Terminal()
    text = subprocess.run([BINARY, *map(str, words)], stdout=subprocess.PIPE, stderr=terminal.end, text=True, timeout=120,
                          check=True).stdout
    shown = terminal.text()
    assert "of 26 layers routed, " in shown and "\n" not in shown.replace("\r\n", "").rstrip("\n")
    quiet = moesim(*words)
    assert quiet.stdout == text and "routed" not in quiet.stderr
