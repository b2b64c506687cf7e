"""--megatron FILE: arguments of Megatron-LM as options of train and layout."""

import json
import os
import subprocess

import pytest
from command_line import BINARY, as_json, expect_error, moesim, needs_binary, succeed
from megatron_files import SCRIPT, with_argument, write, YAML

pytestmark = needs_binary

TYPED = ("train", "--model", "qwen3-30b-a3b", "--gpus", 64, "--pipeline-parallel", 2, "--expert-parallel", 8,
         "--micro-batch", 2, "--global-batch", 256, "--recompute", "moe_act,layernorm", "--dispatcher", "deepep")


@pytest.mark.parametrize("text, name, gpus", [(SCRIPT, "run.sh", ()), (YAML, "run.yaml", ("--gpus", 64))])
def test_a_script_and_a_yaml_are_the_options_typed(tmp_path, text, name, gpus):
    script = write(tmp_path, text, name)
    read = as_json("train", "--megatron", script, *gpus)
    typed = as_json(*TYPED)
    assert read["model"] == str(script)
    for key in typed:
        if key != "model" and "p05" not in key and "p95" not in key and not key.startswith("band"):
            assert read[key] == typed[key], key


def test_what_is_not_understood_is_listed_and_typed_options_win(tmp_path):
    script = write(tmp_path, SCRIPT)
    result = moesim("train", "--megatron", script, "--pipeline-parallel", 1, "--format", "json")
    assert json.loads(result.stdout)["pipeline_parallel"] == 1
    assert "1 not understood: --warp-drive" in result.stderr


def test_typed_options_win_over_values_that_no_option_has(tmp_path):
    script = (SCRIPT.replace("MBS=2\n", "").replace("GPUS_PER_NODE=8", "").replace("GBS=$((NNODES * * 4))", "")
              .replace("--bf16", "--fp16 --cp-comm-type a2a+p2p"))
    read = as_json("train", "--megatron", write(tmp_path, script), "--gpus", 64, "--micro-batch", 2, "--global-batch", 256,
                   "--precision", "bf16", "--context-method", "ring")
    assert read["step_ms"] == as_json("train", "--megatron", write(tmp_path, SCRIPT))["step_ms"]


def test_layout_takes_it_too(tmp_path):
    shown = succeed("layout", "--megatron", write(tmp_path, SCRIPT))
    assert "64" in shown


def test_weights_are_gathered_in_bf16_unless_the_script_says_otherwise(tmp_path):
    low = write(tmp_path, SCRIPT.replace("--bf16", "--fp8-format hybrid --fp8-param-gather"), "low.sh")
    kept = write(tmp_path, SCRIPT.replace("--bf16", "--fp8-format hybrid"), "kept.sh")
    typed = as_json(*TYPED, "--precision", "fp8-delayed")
    assert as_json("train", "--megatron", low)["memory_gib"] == typed["memory_gib"]
    read = as_json("train", "--megatron", kept)
    bf16 = as_json(*TYPED, "--precision", "fp8-delayed", "--gather-precision", "bf16")
    assert read["gather_precision"] == bf16["gather_precision"] == "bf16"
    assert read["memory_gib"] == bf16["memory_gib"]
    assert read["step_ms"] == bf16["step_ms"] > typed["step_ms"]


def test_a_typed_format_is_gathered_as_the_script_says(tmp_path):
    script = write(tmp_path, SCRIPT.replace("--bf16", "--fp8-format hybrid --fp8-recipe tensorwise"))
    read = as_json("train", "--megatron", script)
    typed = as_json("train", "--megatron", script, "--precision", "fp8-current")
    assert (typed["gather_precision"], typed["memory_gib"]) == ("bf16", read["memory_gib"])


def test_a_dense_model_may_do_without_sequence_parallelism(tmp_path):
    text = """torchrun --nproc_per_node=8 pretrain_gpt.py --tensor-model-parallel-size 8 --num-layers 32 --hidden-size 4096
        --ffn-hidden-size 11008 --num-attention-heads 32 --swiglu --seq-length 4096 --vocab-size 32000
        --normalization RMSNorm --disable-bias-linear --micro-batch-size 1 --global-batch-size 8"""
    text = text.replace("\n", " ")
    without = as_json("train", "--megatron", write(tmp_path, text, "without.sh"))
    shared = as_json("train", "--megatron", write(tmp_path, text + " --sequence-parallel", "with.sh"))
    typed = as_json("train", "--megatron", tmp_path / "with.sh", "--sequence-parallel", "off")
    assert without["memory_gib"] == typed["memory_gib"]
    # What lies between the products stays whole on every rank: 8 h bytes a token and layer of norms'
    # and products' inputs (Korthikanti et al. 2022), of which a rank else has an eighth.
    more = 8 * 4096 * 4096 * 32 * 7 / 8 / 2**30
    assert without["memory_gib"] - shared["memory_gib"] == pytest.approx(more, rel=0.1)


@pytest.mark.parametrize("text, why", [
    ("echo nothing\n", "no argument of Megatron-LM"),
    (SCRIPT.replace("--vocab-size 151936", ""), "run.sh, or give --model"),
    (SCRIPT.replace("--vocab-size 151936", "--tokenizer-type HuggingFaceTokenizer --tokenizer-model own/codellama-34b"),
     "--vocab-size is missing"),
    (SCRIPT.replace("--hidden-size 2048", "--hidden-size two"), "run.sh:12: --hidden-size: 'two'"),
    (SCRIPT.replace("MBS=2\n", ""), "--micro-batch-size: '$MBS': the script does not set it"),
    (SCRIPT.replace("--bf16", "--cp-comm-type a2a+p2p"), "known are a2a, all_gather, p2p"),
    (SCRIPT.replace("TP=1", "TP=2"), "--sequence-parallel is missing"),
    (SCRIPT.replace("--recompute-granularity selective", "--recompute-granularity some"), "known are full, selective"),
    (SCRIPT.replace("#!/bin/bash", "A='open"), "has no end"),
    (SCRIPT.replace("#!/bin/bash", "A=x\n" + 60 * "A=$A$A\n"), "run.sh:23: variables have more than 4 MiB where they are used"),
    # Numbers whose products no integer of 64 bits holds, lists that no memory holds.
    (SCRIPT.replace("--hidden-size 2048", "--hidden-size 4000000000000000000"),
     "run.sh:12: --hidden-size: 4000000000000000000 is too large: at most 2147483647"),
    (SCRIPT.replace("--num-layers 48", "--num-layers 99999999999"), "run.sh:11: --num-layers: 99999999999 is too large"),
    (SCRIPT.replace("--num-layers 48", "--num-layers 65536"), "run.sh:11: --num-layers: 65536 is too large: at most 65535"),
    (SCRIPT.replace("--num-layers 48", "--num-layers 65535 --moe-layer-freq [" + 50_000 * "0," + "]*65535"),
     "has 3276750000 layers of 65535"),
    (SCRIPT.replace("TP=1;", "TP=$((1073741824 * 1073741824 * 1073741824));"), "'$((1073741824 * 1073741824 * 1073741824))'"),
    (SCRIPT.replace("TP=1;", "TP=$((2147483647 * 2147483647 * 2 + 2147483647 * 2147483647 * 2));"), "is not known: put its value there"),
    (SCRIPT.replace("TP=1;", "A=-8; B=-1; TP=$((1073741824 * 1073741824 * A / B));"), "is not known: put its value there"),
])
def test_errors_name_file_line_and_argument(tmp_path, text, why):
    expect_error(moesim("train", "--megatron", write(tmp_path, text)), 2, why)


def test_a_script_may_have_an_ending_of_slurm(tmp_path):
    read = as_json("train", "--megatron", write(tmp_path, SCRIPT))
    again = write(tmp_path, SCRIPT, "run.sbatch")
    assert as_json("train", "--megatron", again) == {**read, "model": str(again)}
    other = write(tmp_path, SCRIPT, "run.txt")
    expect_error(moesim("train", "--megatron", other), 2, "a script ends in .sh, .bash, .slurm or .sbatch")


def test_a_script_whose_name_is_no_utf8(tmp_path):
    path = os.fsencode(tmp_path) + b"/run\xff.sh"
    with open(path, "w", encoding="utf-8") as out:
        out.write(SCRIPT)
    result = subprocess.run([BINARY, "layout", "--model", path], check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert result.returncode == 0, result.stdout


def test_a_file_that_is_not_there():
    expect_error(moesim("train", "--megatron", "none.sh"), 2, "none.sh")


def test_older_and_newer_names_are_understood(tmp_path):
    names = "--moe-layer-recompute --moe-token-drop-policy probs --fp8-recipe delayed --main-grads-dtype bf16 --rope-type rope"
    script = SCRIPT.replace("--recompute-granularity selective --recompute-modules moe_act layernorm", names)
    result = moesim("train", "--megatron", write(tmp_path, script), "--format", "json")
    assert "1 not understood: --warp-drive" in result.stderr
    read = json.loads(result.stdout)
    assert (read["recompute"], read["gradients"], read["precision"]) == ("core_attn,moe", "bf16", "bf16")


def test_a_method_of_recomputation_alone_was_full_once(tmp_path):
    old = SCRIPT.replace("--recompute-granularity selective --recompute-modules moe_act layernorm", "--activations-checkpoint-method uniform")
    assert as_json("layout", "--megatron", write(tmp_path, old))["recompute"] == "full"


def test_defaults_that_the_environment_has_others_of_are_noted(tmp_path):
    """As of "NNODES=4 sbatch run.sh", of which the file says nothing."""
    script = write(tmp_path, "LOGS=${LOGS:-/logs}\nWANDB_API_KEY=${WANDB_API_KEY:-}\n" + SCRIPT)
    noted = f"note: {script}: its defaults NNODES=8 are taken, though your environment has other values"
    result = moesim("train", "--megatron", script, "--format", "json", env={"NNODES": "4", "LOGS": "/x", "WANDB_API_KEY": "secret"})
    assert noted in result.stderr and "secret" not in result.stderr and "LOGS" not in result.stderr
    assert json.loads(result.stdout)["gpus"] == 64
    for env in ({"NNODES": "8"}, {"NNODES": ""}, {"MBS": "4"}):
        assert "environment" not in moesim("layout", "--megatron", script, env=env).stderr


def test_short_options_of_other_scripts_are_not_understood(tmp_path):
    script = SCRIPT.replace("--warp-drive 9", "-tp 8 -x -4 --lr-decay -1").replace("pretrain_gpt.py", "-m pretrain_gpt.py")
    result = moesim("train", "--megatron", write(tmp_path, script), "--format", "json")
    assert "2 not understood: -tp -x" in result.stderr
    assert json.loads(result.stdout) == as_json("train", "--megatron", write(tmp_path, SCRIPT))


@pytest.mark.parametrize("text, name, rest", [
    ("python train.py --config x.toml --lr 1e-4\n", "run.sh", "only --config --lr"),
    ("torchrun train.py -tp 4 --lr 1\n", "run.sh", "only -tp --lr"),
    ("parallelism:\n  expert_parallel_degree: 8\n", "run.yaml", "only --expert-parallel-degree"),
])
def test_arguments_of_other_software_are_refused(tmp_path, text, name, rest):
    expect_error(moesim("train", "--megatron", write(tmp_path, text, name), "--model", "qwen3-30b-a3b"), 2, name,
                 "neither a size of the model nor a layout in it", rest)


@pytest.mark.parametrize("argument, why", [
    ("--attention-backend unfused", "'unfused' keeps the scores of all pairs"), ("--attention-backend local", "'local' keeps the scores"),
    ("--transformer-impl local", "'local' keeps the scores of all pairs"), ("--optimizer sgd", "'sgd': its states and its work"),
    ("--optimizer dist_muon", "'dist_muon': its states"),
])
def test_arguments_of_which_nothing_near_is_modelled_are_refused(tmp_path, argument, why):
    expect_error(moesim("train", "--megatron", with_argument(tmp_path, argument)), 2, f"{argument.split()[0]}: {why}")


@pytest.mark.parametrize("argument", [
    "--moe-shared-expert-overlap", "--moe-deepep-num-sms 24", "--moe-hybridep-num-sms 32", "--moe-router-load-balancing-type sinkhorn",
    "--optimizer-cpu-offload",
])
def test_what_a_step_is_priced_without_is_named(tmp_path, argument):
    result = moesim("train", "--megatron", with_argument(tmp_path, argument), "--format", "json")
    assert f"priced as without {argument}, whose effect on a step is not modelled" in result.stderr
    assert " 0 not understood" in result.stderr
    assert json.loads(result.stdout) == as_json("train", "--megatron", write(tmp_path, SCRIPT))


def test_local_layers_with_flash_attention_are_priced_as_others(tmp_path):
    script = with_argument(tmp_path, "--transformer-impl local --use-flash-attn")
    assert "priced as without --transformer-impl local," in moesim("layout", "--megatron", script).stderr


@pytest.mark.parametrize("argument", [
    "--attention-backend flash", "--attention-backend AttnBackend.auto", "--transformer-impl transformer_engine", "--optimizer adam",
    "--moe-router-load-balancing-type seq_aux_loss", "--moe-router-load-balancing-type none", "--moe-deepep-num-sms 20",
    "--moe-router-dtype fp32", "--moe-router-force-load-balancing", "--first-last-layers-bf16", "--use-flash-attn",
    "--exp-avg-dtype fp32 --exp-avg-sq-dtype fp32",
])
def test_what_has_no_effect_is_not_named(tmp_path, argument):
    said = moesim("layout", "--megatron", with_argument(tmp_path, argument)).stderr
    assert "priced as without" not in said and "counted as" not in said and " 0 not understood" in said


def test_fused_kernels_are_assumed_and_named(tmp_path):
    def assumed(script):
        said = moesim("layout", "--megatron", write(tmp_path, script)).stderr
        return said.split("priced as with ")[1].split(", which it does not have")[0] if "priced as with " in said else ""

    assert assumed(SCRIPT) == "--overlap-param-gather, --moe-grouped-gemm, --moe-permute-fusion"
    given = SCRIPT.replace("--warp-drive 9", "--overlap-param-gather --moe-grouped-gemm --moe-permute-fusion")
    assert assumed(given) == ""
    overlap = given.replace("--bf16", "--bf16 --overlap-moe-expert-parallel-comm")
    assert assumed(overlap.replace("PP=2", "PP=1")) == "--delay-wgrad-compute"
    assert assumed(overlap.replace("PP=2", "PP=1").replace("--bf16", "--bf16 --delay-wgrad-compute")) == ""
    assert "--moe" not in assumed(SCRIPT.replace("--num-experts 128 --moe-router-topk 8", "").replace("--moe-ffn-hidden-size 768", "")
                                  .replace("--expert-model-parallel-size=$EP", ""))


@pytest.mark.parametrize("first, second, moments, counted", [
    ("bf16", "bf16", "bf16", False), ("fp16", "fp16", "bf16", False), ("fp8", "fp8", "bf16", True), ("bf16", "fp32", "fp32", True),
    ("fp32", "fp8", "fp32", True),
])
def test_moments_of_one_type_are_counted_and_others_named(tmp_path, first, second, moments, counted):
    script = with_argument(tmp_path, f"--exp-avg-dtype {first} --exp-avg-sq-dtype {second}")
    result = moesim("layout", "--megatron", script, "--format", "json")
    assert json.loads(result.stdout)["optimizer_moments"] == moments
    assert (f"--exp-avg-dtype {first} with --exp-avg-sq-dtype {second} is counted as {moments} for both" in result.stderr) == counted
