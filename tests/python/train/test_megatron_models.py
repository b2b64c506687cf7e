"""--megatron FILE and --model FILE: the model of a script."""

import csv
import json
import pathlib

import pytest
from command_line import as_json, expect_error, moesim, needs_binary, succeed
from megatron_files import KEYS, of_keys, SCRIPT, with_argument, write

pytestmark = needs_binary


def test_the_model_of_a_script_alone(tmp_path):
    script = write(tmp_path, SCRIPT)
    result = as_json("train", "--model", script, "--gpus", 64, "--expert-parallel", 8)
    shipped = as_json("train", "--model", "qwen3-30b-a3b", "--gpus", 64, "--expert-parallel", 8)
    assert result["step_ms"] == shipped["step_ms"]


def test_a_model_from_a_script_says_that_the_layout_is_not_taken(tmp_path):
    path = write(tmp_path, SCRIPT)
    note = moesim("train", "--model", path, "--gpus", 64).stderr
    assert "the model alone is taken from it, not --tensor-model-parallel-size" in note
    assert f"--megatron {path} takes these too" in note
    typed = ("--tensor-parallel", 1, "--pipeline-parallel", 1, "--expert-parallel", 8, "--micro-batch", 1,
             "--global-batch", 256, "--recompute", "none", "--dispatcher", "deepep", "--zero", 1)
    assert "the model alone" not in moesim("train", "--model", path, "--gpus", 64, *typed).stderr
    assert "the model alone" not in moesim("train", "--megatron", path, "--model", path).stderr
    model = SCRIPT.split("MODEL_ARGS=(")[1].split("--moe-token-dispatcher-type")[0]
    assert "the model alone" not in moesim("train", "--model", write(tmp_path, "x " + model.replace("\n", " ") + "\n"),
                                           "--gpus", 64).stderr


ONE = ("--replicas", 1)


@pytest.mark.parametrize("words, more", [
    (("simulate", *ONE), "moesim train --megatron FILE takes these too"),
    (("sweep", *ONE, "--router", "top1,top2"), "moesim train --megatron FILE takes these too"),
    (("route", *ONE), "moesim train --megatron FILE takes these too"),
    (("explain", *ONE, "--measured", "3.3s"), "a training step of this script: moesim train --megatron FILE --measured 3.3s"),
    (("recommend", "--max-loss", "x"), "--megatron FILE takes these too"),
    (("layout",), "--megatron FILE takes these too"),
])
def test_every_command_says_that_the_model_alone_is_taken(tmp_path, words, more):
    path = write(tmp_path, SCRIPT.replace("--num-layers 48", "--num-layers 4"))
    told = moesim(*words, "--model", path, "--gpus", 8).stderr
    assert told.count(f"--model {path}: the model alone is taken from it, not --tensor-model-parallel-size") == 1
    assert more.replace("FILE", str(path)) in told
    assert "not its GPUs, --tensor-model-parallel-size" in moesim(*words, "--model", path).stderr


def test_a_sweep_takes_the_model_of_a_script(tmp_path):
    path = write(tmp_path, SCRIPT.replace("--num-layers 48", "--num-layers 4"))
    rows = succeed("sweep", "--model", path, "--router", "top1,top2", "--gpus", 8, *ONE, "--format", "csv").splitlines()
    assert [row["router"] for row in csv.DictReader(rows)] == ["top1", "top2"]
    one = as_json("simulate", "--model", path, "--router", "top2", "--gpus", 8, *ONE)
    assert float(list(csv.DictReader(rows))[1]["step_ms"]) == pytest.approx(one["step_ms"])


def test_a_typed_model_leaves_out_that_of_the_script(tmp_path):
    path = write(tmp_path, SCRIPT.replace("--vocab-size 151936", ""))
    result = moesim("train", "--megatron", path, "--model", "qwen3-30b-a3b", "--format", "json")
    whole = as_json("train", "--megatron", write(tmp_path, SCRIPT, "whole.sh"))
    assert json.loads(result.stdout)["step_ms"] == whole["step_ms"]
    assert "14 of the model left out, which is that of --model" in result.stderr
    assert "1 not understood: --warp-drive" in result.stderr


def test_every_argument_of_a_model_is_one_that_a_typed_model_leaves_out(tmp_path):
    arguments = ("--num-layers 4 --hidden-size 64 --swiglu --quick-geglu --ffn-hidden-size 64 --num-attention-heads 4 "
                 "--group-query-attention --num-query-groups 2 --kv-channels 16 --qk-layernorm --window-size 8,0 "
                 "--window-attn-skip-freq 2 --multi-latent-attention --q-lora-rank 8 --kv-lora-rank 8 --qk-head-dim 8 "
                 "--qk-pos-emb-head-dim 8 --v-head-dim 8 --vocab-size 99 --make-vocab-size-divisible-by 4 "
                 "--untie-embeddings-and-output-weights --mtp-num-layers 1 --num-experts 4 --moe-router-topk 2 "
                 "--moe-router-num-groups 2 --moe-router-group-topk 1 --moe-router-enable-expert-bias "
                 "--moe-ffn-hidden-size 64 --moe-shared-expert-intermediate-size 64 --moe-layer-freq 1 "
                 "--disable-bias-linear --activation-func-clamp-value 7.0 --seq-length 128")
    path = write(tmp_path, f"torchrun --nproc_per_node 8 x.py {arguments}\n")
    assert " 0 not understood" in moesim("train", "--megatron", path, "--model", "qwen3-30b-a3b").stderr


@pytest.mark.parametrize("tokenizer, size", [
    ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model mistralai/Mixtral-8x7B-v0.1", 32000),
    ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model /models/Mixtral-8x22B-Instruct-v0.1/", 32768),
    ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Meta-Llama-3-8B", 128256),
    ("--tokenizer-type Llama2Tokenizer --tokenizer-model $UNSET/tokenizer.model", 32000),
    ("--tokenizer-type Llama3Tokenizer --tokenizer-model /data/tokenizer.model", 128256),
    ("--tokenizer-type GPT2BPETokenizer --vocab-file gpt2-vocab.json", 50257),
])
def test_a_known_tokenizer_gives_the_vocabulary(tmp_path, tokenizer, size):
    named = write(tmp_path, SCRIPT.replace("--vocab-size 151936", tokenizer), "named.sh")
    typed = write(tmp_path, SCRIPT.replace("--vocab-size 151936", f"--vocab-size {size}"), "typed.sh")
    result = moesim("train", "--megatron", named, "--format", "json")
    assert result.returncode == 0, result.stderr
    assert f"note: {named}: no --vocab-size: {size} is taken, by --tokenizer-" in result.stderr
    assert json.loads(result.stdout)["step_ms"] == as_json("train", "--megatron", typed)["step_ms"]


def test_latent_attention_dense_layers_and_groups(tmp_path):
    text = """torchrun --nproc_per_node 8 --nnodes 32 x.py --num-layers 61 --hidden-size 7168 \\
      --ffn-hidden-size 18432 --num-attention-heads 128 --multi-latent-attention --q-lora-rank 1536 \\
      --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 --swiglu --disable-bias-linear \\
      --seq-length 4096 --vocab-size 129280 --untie-embeddings-and-output-weights --num-experts 256 \\
      --moe-router-topk 8 --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048 \\
      --moe-layer-freq "([0]*3+[1]*58)" --moe-router-num-groups 8 --moe-router-group-topk 4 \\
      --moe-router-enable-expert-bias --pipeline-model-parallel-size 8 --expert-model-parallel-size 32 \\
      --pipeline-model-parallel-layout "Et*8|(t*8|)*6t*5L" --moe-token-dispatcher-type alltoall \\
      --fp8-format e4m3 --fp8-recipe blockwise --use-distributed-optimizer --mtp-num-layers 1
    """
    read = as_json("train", "--megatron", write(tmp_path, text), "--global-batch", 1024)
    typed = as_json("train", "--model", "deepseek-v3", "--gpus", 256, "--pipeline-parallel", 8,
                    "--expert-parallel", 32, "--global-batch", 1024, "--pipeline-layout", "Et*8|(t*8|)*6t*5L", "--precision", "fp8-block")
    assert read["step_ms"] == typed["step_ms"]
    assert read["precision"] == "fp8-block"


def test_a_gated_gelu_has_three_matrices(tmp_path):
    geglu = as_json("train", "--megatron", write(tmp_path, SCRIPT.replace("--swiglu", "--quick-geglu")))
    assert geglu["step_ms"] == as_json("train", "--megatron", write(tmp_path, SCRIPT))["step_ms"]


def test_clamps_before_the_activation_take_time_and_memory(tmp_path):
    assert "--recompute-modules moe_act" in SCRIPT  # which keeps their memory away
    script = SCRIPT.replace("--recompute-modules moe_act layernorm", "--recompute-modules layernorm")
    plain = as_json("train", "--megatron", write(tmp_path, script))
    clamped = as_json("train", "--megatron",
                      write(tmp_path, script.replace("--swiglu", "--swiglu --activation-func-clamp-value 7.0")))
    assert clamped["step_ms"] > 1.01 * plain["step_ms"]
    assert clamped["memory_gib"] > plain["memory_gib"]


def test_units_without_a_gate_clamp_nothing(tmp_path):
    plain = SCRIPT.replace("--swiglu", "")
    clamped = SCRIPT.replace("--swiglu", "--activation-func-clamp-value 7.0")
    words = ("train", "--format", "json", "--megatron")
    result = moesim(*words, write(tmp_path, clamped))
    assert "note: " in result.stderr and "--activation-func-clamp-value has no effect: Megatron-LM clamps in gated units alone" in result.stderr
    assert json.loads(result.stdout)["step_ms"] == as_json("train", "--megatron", write(tmp_path, plain, "plain.sh"))["step_ms"]
    gated = moesim(*words, write(tmp_path, clamped.replace("--activation-func", "--swiglu --activation-func"), "gated.sh"))
    assert "has no effect" not in gated.stderr


@pytest.mark.parametrize("frequency", ["1 2>&1", "1 > log.txt", "[0]*0+[1]*48 2>&1", "[0]*0 + [1]*48"])
def test_words_behind_a_frequency_are_not_of_it(tmp_path, frequency):
    script = with_argument(tmp_path, f"--moe-layer-freq {frequency} --swiglu")
    assert as_json("train", "--megatron", script) == as_json("train", "--megatron", write(tmp_path, SCRIPT))


@pytest.mark.parametrize("pattern", ["01", "0001"])
def test_lists_of_moe_layers_are_joined(tmp_path, pattern):
    layers = (pattern * 48)[:48]
    flow = KEYS + f"  moe_layer_freq: [{', '.join(layers)}]\n"
    block = KEYS + "  moe_layer_freq:\n" + "".join(f"  - {each}\n" for each in layers)
    flow, block = (text.replace("ENV_VARS:\n  CUDA_DEVICE_MAX_CONNECTIONS: 1\n", "") for text in (flow, block))
    assert of_keys(tmp_path, flow)[0] == of_keys(tmp_path, block)[0]
    groups = "+".join([f"[0]*{len(pattern) - 1}+[1]*1"] * (48 // len(pattern)))
    script = SCRIPT.replace("--swiglu", f'--swiglu --moe-layer-freq "({groups})"')
    read = as_json("train", "--megatron", write(tmp_path, script))
    for key in ("step_ms", "memory_gib", "model_gflop_per_token"):
        assert of_keys(tmp_path, flow)[0].get(key) == read.get(key)


@pytest.mark.parametrize("argument, why", [
    ("--hybrid-override-pattern M-M-M*", "layers of several kinds, Mamba (M) among them"),
    ("--hybrid-layer-pattern MEMEM*E|MEMDE/*E", "layers of several kinds, Mamba (M), sparse attention (D) among them"),
    ("--hybrid-layer-pattern GEGEGE*E", "attention and FFN as layers of several kinds (--num-layers, --moe-layer-freq and "
                                        "--linear-attention-freq describe a model of pairs)"),
    ("--linear-attention-type mamba", "linear attention"), ("--experimental-attention-variant gdn2", "attention of another kind"),
    ("--experimental-attention-variant dsa", "attention of another kind"), ("--moe-latent-size 512", "experts of a latent size"),
    ("--hybrid-attention-ratio 0.1", "layers of several kinds"),
    ("--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec", "Mamba or hybrid layers"),
])
def test_arguments_of_other_models_are_refused(tmp_path, argument, why):
    name, value = argument.split(maxsplit=1)
    argument = argument if name == "--spec" else f"{name} '{value}'"
    script = write(tmp_path, SCRIPT.replace("--warp-drive 9", argument))
    expect_error(moesim("train", "--megatron", script), 2, f"{name}: {why}: no such model is known")
    expect_error(moesim("layout", "--model", script), 2, name)
    result = moesim("layout", "--megatron", script, "--model", "qwen3-30b-a3b")
    assert result.returncode == 0 and "0 not understood" in result.stderr


def test_layers_of_another_program_are_not_read_and_said_so(tmp_path):
    script = write(tmp_path, SCRIPT.replace("--warp-drive 9", "--spec slime_plugins.models.qwen3_5 get_qwen3_5_spec"))
    said = moesim("layout", "--megatron", script).stderr
    assert f"note: {script}: --spec slime_plugins.models.qwen3_5: layers that it makes are not read" in said
    script = write(tmp_path, SCRIPT.replace("--warp-drive 9", "--spec megatron.core.models.gpt.gpt_layer_specs some_spec"))
    assert "--spec" not in moesim("layout", "--megatron", script).stderr


def test_a_ratio_of_no_other_layers_is_none(tmp_path):
    script = SCRIPT.replace("--warp-drive 9", "--hybrid-attention-ratio 0.0 --hybrid-mlp-ratio 0")
    assert as_json("layout", "--megatron", write(tmp_path, script)) == as_json("layout", "--megatron", write(tmp_path, SCRIPT))


NEXT = """
    --num-layers 48 --hidden-size 2048 --ffn-hidden-size 5120 --num-attention-heads 16
    --group-query-attention --num-query-groups 2 --kv-channels 256 --qk-layernorm --swiglu
    --attention-output-gate --experimental-attention-variant gated_delta_net --linear-attention-freq 4
    --linear-num-key-heads 16 --linear-num-value-heads 32 --linear-key-head-dim 128 --linear-value-head-dim 128
    --linear-conv-kernel-dim 4 --seq-length 4096 --vocab-size 151936 --untie-embeddings-and-output-weights
    --num-experts 512 --moe-router-topk 10 --moe-ffn-hidden-size 512 --moe-shared-expert-intermediate-size 512
    --disable-bias-linear
"""


def test_linear_attention_is_that_of_the_preset(tmp_path):
    script = write(tmp_path, f"python pretrain_gpt.py {' '.join(NEXT.split())}")
    layout = ("layout", "--gpus", "64", "--pipeline-parallel", "2", "--expert-parallel", "16")
    preset = as_json(*layout, "--model", "qwen3-next-80b-a3b") | {"model": ""}
    assert as_json(*layout, "--model", script) | {"model": ""} == preset
    # As lists, by other names of releases, and as keys of a YAML.
    for old, new in (("freq 4", "freq '([1]*3+[0]*1)*12'"),
                     ("freq 4", f"freq [{','.join(12 * ['1,1,1,0'])}]"),
                     ("gated_delta_net", "gdn"), ("--experimental-attention-variant", "--linear-attention-type")):
        changed = " ".join(NEXT.split()).replace(old, new)
        assert as_json(*layout, "--model", write(tmp_path, f"python pretrain_gpt.py {changed}")) | {"model": ""} == preset
    words = " ".join(NEXT.split()).split(" --")
    keys = "".join(f"  {each.removeprefix('--').replace('-', '_').replace(' ', ': ')}" + ("" if " " in each else ": true") + "\n"
                   for each in words)
    for freq in ("4", f"[{', '.join(12 * ['1, 1, 1, 0'])}]", "([1]*3+[0]*1)*12"):
        yaml = write(tmp_path, "model:\n" + keys.replace("linear_attention_freq: 4", f"linear_attention_freq: {freq}"), "run.yaml")
        assert as_json(*layout, "--model", yaml) | {"model": ""} == preset
    for old, new, why in (
        ("--linear-num-key-heads 16", "", "--linear-num-key-heads is missing beside --experimental-attention-variant"),
        ("--linear-attention-freq 4", "", "--linear-attention-freq is missing beside"),
        ("--linear-attention-freq 4", "--linear-attention-freq 1", "no layer has linear attention"),
        ("--linear-attention-freq 4", "--linear-attention-freq '([1]*3+[0]*1)*11'", "has 44 layers of 48"),
        ("--linear-attention-freq 4", "--linear-attention-freq '([0]*1+[1]*3)*12'", "layer 1 breaks the pattern"),
        ("gated_delta_net", "dsa", "attention of another kind: no such model is known"),
        ("--experimental-attention-variant gated_delta_net", "", "linear attention: no such model is known"),
    ):
        changed = " ".join(NEXT.split())
        assert old in changed
        script = write(tmp_path, f"python pretrain_gpt.py {changed.replace(old, new)}")
        expect_error(moesim("layout", "--model", script), 2, why)


def test_a_script_of_qwen3_5_is_understood(tmp_path):
    """35B-A3B as Megatron-LM's scripts have it, with a prediction depth: its own vocabulary, the gate of the shared expert."""
    arguments = " ".join(NEXT.split()).replace("--num-layers 48", "--num-layers 40").replace("--num-experts 512", "--num-experts 256")
    arguments = arguments.replace("--moe-router-topk 10", "--moe-router-topk 8").replace("--vocab-size 151936", "--vocab-size 248320")
    script = write(tmp_path, f"torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py {arguments} --make-vocab-size-divisible-by 485 "
                             "--mtp-num-layers 1 --moe-shared-expert-gate --expert-model-parallel-size 16 --context-parallel-size 4 "
                             "--micro-batch-size 1 --global-batch-size 64 --bf16")
    result = moesim("layout", "--megatron", script)
    assert "0 not understood" in result.stderr
    read = as_json("layout", "--megatron", script)
    path = str(pathlib.Path(__file__).resolve().parents[2] / "data" / "hugging_face" / "qwen3.5-35b-a3b.json")
    typed = as_json("layout", "--model", path, "--gpus", 64, "--expert-parallel", 16, "--context-parallel", 4,
                    "--global-batch", 64, "--pipeline-layout", "Et*40mL", "--zero", 0)
    for key in ("model_gflop_per_token", "pipeline_layout", "micro_batches"):
        assert read[key] == typed[key]
