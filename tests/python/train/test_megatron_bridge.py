"""--megatron FILE: overrides, performance scripts and recipes of Megatron-Bridge and NeMo."""

import json

import pytest
from command_line import as_json, expect_error, moesim, needs_binary
from megatron_files import KEYS, of_keys, SCRIPT, write, YAML

pytestmark = needs_binary

HYDRA = """torchrun --nproc_per_node=8 --nnodes=8 scripts/pretrain.py --recipe qwen3_30b_a3b_pretrain_config \\
  model.tensor_model_parallel_size=4 ++model.expert_model_parallel_size=8 model.virtual_pipeline_model_parallel_size=2 \\
  +model.pipeline_model_parallel_size=2 train.global_batch_size=512 train.micro_batch_size=2 model.sequence_parallel=true \\
  'model.recompute_modules=[moe_act,layernorm]' model.recompute_granularity=selective model.seq_length=8192 \\
  mixed_precision=bf16_with_fp8_current_scaling_mixed comm_overlap.overlap_grad_reduce=True model.fp8_margin=0 \\
  model.context_parallel_size=2 model.context_parallel_size=1 ddp.use_megatron_fsdp=true ddp.use_megatron_fsdp=false"""

HYDRA_TYPED = ("--model", "qwen3-30b-a3b", "--gpus", 64, "--tensor-parallel", 4, "--pipeline-parallel", 2, "--virtual-pipeline", 2,
               "--expert-parallel", 8, "--micro-batch", 2, "--global-batch", 512, "--recompute", "moe_act,layernorm",
               "--sequence-length", 8192, "--precision", "fp8-current")


def test_overrides_of_a_configuration_are_its_keys(tmp_path):
    result = moesim("train", "--megatron", write(tmp_path, HYDRA), "--model", "qwen3-30b-a3b", "--format", "json")
    assert json.loads(result.stdout) == as_json("train", *HYDRA_TYPED)
    assert "the recipe of Megatron-Bridge that it names is not read" in result.stderr
    assert "0 not understood" in result.stderr
    assert "priced as without --first-last-layers-bf16" in result.stderr


def test_a_recipe_alone_has_no_model(tmp_path):
    expect_error(moesim("train", "--megatron", write(tmp_path, HYDRA)), 2, "--num-layers is missing", "give --model")


def test_overrides_of_nemo_say_the_gpus(tmp_path):
    script = write(tmp_path, "python megatron_gpt_pretraining.py trainer.devices=8 trainer.num_nodes=16 "
                             "model.tensor_model_parallel_size=1 model.micro_batch_size=1\n")
    assert as_json("train", "--megatron", script, "--model", "qwen3-30b-a3b")["gpus"] == 128


PERFORMANCE = """python scripts/performance/setup_experiment.py --account x -p y -m qwen -mr qwen3_30b_a3b --gpu h100 -ng 64 -gn 8 \\
  -tp 1 -pp 2 -vp 4 -ep 8 -cp 1 -mb 2 -gb 512 -sl 4096 --compute_dtype fp8_cs --recompute_modules moe_act,layernorm \\
  --moe_a2a_overlap false --use_megatron_fsdp false --moe_flex_dispatcher_backend deepep"""


def test_options_of_megatron_bridges_performance_scripts(tmp_path):
    typed = ("--model", "qwen3-30b-a3b", "--gpus", 64, "--pipeline-parallel", 2, "--expert-parallel", 8, "--micro-batch", 2,
             "--global-batch", 512, "--precision", "fp8-current", "--gradients", "bf16", "--recompute", "moe_act,layernorm",
             "--dispatcher", "deepep")
    result = moesim("train", "--megatron", write(tmp_path, PERFORMANCE), "--model", "qwen3-30b-a3b", "--format", "json")
    assert json.loads(result.stdout) == as_json("train", *typed, "--virtual-pipeline", 4)
    assert "3 not understood: -m -mr -p" in result.stderr
    long = (PERFORMANCE.replace("-ng 64", "--num_gpus 64").replace("-tp 1", "--tensor_model_parallel_size 1").replace("-vp 4", "-vp None")
            .replace("--compute_dtype fp8_cs", "-c fp8_cs"))
    assert as_json("train", "--megatron", write(tmp_path, long), "--model", "qwen3-30b-a3b") == as_json("train", *typed)
    overlap = PERFORMANCE.replace("overlap false", "overlap true")
    assert as_json("train", "--megatron", write(tmp_path, overlap), "--model", "qwen3-30b-a3b") == \
        as_json("train", *typed, "--virtual-pipeline", 4, "--ep-overlap", "on")
    assert "--delay-wgrad-compute" not in moesim("layout", "--megatron", write(tmp_path, overlap), "--model", "qwen3-30b-a3b").stderr
    layers = PERFORMANCE.replace("--recompute_modules moe_act,layernorm", "-rl 3")
    assert as_json("layout", "--megatron", write(tmp_path, layers), "--model", "qwen3-30b-a3b")["recompute"] == "full:block:3"
    expect_error(moesim("train", "--megatron", write(tmp_path, PERFORMANCE.replace("fp8_cs", "fp9")), "--model", "qwen3-30b-a3b"),
                 2, "run.sh:2: --compute_dtype: 'fp9'", "fp8_mx")


def test_performance_scripts_may_be_run_by_a_module_and_take_equal_signs(tmp_path):
    run = "python -m torch.distributed.run --nproc_per_node=8 --nnodes=8 scripts/performance/run_script.py"
    script = write(tmp_path, f"{run} -ng 64 --compute_dtype fp8_mx -ep=8 -mb=2 -gb=512\n")
    read = as_json("train", "--megatron", script, "--model", "qwen3-30b-a3b", "--profile", "b200-sxm")
    assert (read["precision"], read["expert_parallel"], read["micro_batch"]) == ("mxfp8", 8, 2)


def test_gpus_of_a_performance_script_are_the_profile(tmp_path):
    words = ("train", "--model", "qwen3-30b-a3b", "--megatron")
    script = write(tmp_path, PERFORMANCE.replace("--gpu h100", "--gpu gb200"))
    assert as_json(*words, script)["profile"] == "gb200"
    assert as_json(*words, script, "--profile", "h200-sxm")["profile"] == "h200-sxm"
    assert as_json(*words, script, "--cluster", "hgx-h100")["profile"] == "h100-sxm"
    unknown = write(tmp_path, PERFORMANCE.replace("--gpu h100", "--gpu vr200"))
    result = moesim(*words, unknown, "--format", "json")
    assert json.loads(result.stdout)["profile"] == "h100-sxm"
    assert f"warning: {unknown}: --gpu vr200 is not known, and not taken: give --profile\n" in result.stderr
    # A layout has no GPUs that it is priced on.
    assert "--gpu" not in moesim("layout", *words[1:], script).stderr


def test_the_software_of_a_performance_script_is_suggested(tmp_path):
    words = ("train", "--model", "qwen3-30b-a3b", "--megatron", write(tmp_path, PERFORMANCE))
    suggested = "its command is Megatron-Bridge's: with --software megatron-bridge the band is by steps measured with it"
    assert suggested in moesim(*words).stderr
    assert suggested not in moesim(*words, "--software", "megatron-bridge").stderr
    assert suggested not in moesim("train", "--megatron", write(tmp_path, SCRIPT)).stderr


@pytest.mark.parametrize("recipe, precision", [
    ("bf16_mixed", "bf16"), ("bf16_with_fp8_current_scaling_mixed", "fp8-current"), ("bf16-with-fp8-current-scaling-mixed", "fp8-current"),
    ("bf16_with_fp8_delayed_scaling_mixed", "fp8-delayed"), ("bf16_with_fp8_subchannel_scaling_mixed", "fp8-block"),
])
def test_recipes_of_mixed_precision_are_read(tmp_path, recipe, precision):
    gathered = "bf16" if "subchannel" in recipe else "low"
    typed = as_json("train", "--megatron", write(tmp_path, YAML, "run.yaml"), "--gpus", 64, "--precision", precision,
                    "--gather-precision", gathered)
    read, said = of_keys(tmp_path, KEYS + f"mixed_precision: {recipe}\nddp:\n  grad_reduce_in_fp32: false\n")
    assert read == typed
    assert "--bf16, which it does not have" not in said


def test_other_recipes_of_mixed_precision_are_noted_or_not_understood(tmp_path):
    blackwell = write(tmp_path, KEYS + "mixed_precision: bf16_with_mxfp8_mixed\n", "run.yaml")
    assert as_json("train", "--megatron", blackwell, "--gpus", 64, "--profile", "b200-sxm")["precision"] == "mxfp8"
    half = write(tmp_path, KEYS + "mixed_precision: fp16_mixed\n", "run.yaml")
    assert "--fp16 is priced as --bf16" in moesim("train", "--megatron", half).stderr
    assert "1 not understood: --mixed-precision" in of_keys(tmp_path, KEYS + "mixed_precision: nemotron_9_mixed\n")[1]
