"""--megatron FILE: arguments of Megatron-LM as options of train and layout; a model of such a file."""

import json

import pytest
from command_line import expect_error, moesim, needs_binary, succeed

pytestmark = needs_binary

SCRIPT = r"""#!/bin/bash
#SBATCH --job-name=qwen
NNODES=${NNODES:-8}      # nodes
GPUS_PER_NODE=8
TP=1; PP=2; EP=8
MBS=2
GBS=$((NNODES * GPUS_PER_NODE * 4))

DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --master_port 6000"
MODEL_ARGS=(
    --num-layers 48
    --hidden-size 2048  # narrow
    --ffn-hidden-size 6144
    --num-attention-heads 32
    --group-query-attention --num-query-groups 4
    --kv-channels 128
    --qk-layernorm
    --swiglu
    --seq-length 4096
    --vocab-size 151936
    --make-vocab-size-divisible-by 128
    --untie-embeddings-and-output-weights
    --num-experts 128 --moe-router-topk 8
    --moe-ffn-hidden-size 768
    --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep
    --disable-bias-linear --normalization RMSNorm
)
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py "${MODEL_ARGS[@]}" \
    --tensor-model-parallel-size ${TP} \
    --pipeline-model-parallel-size $PP --expert-model-parallel-size=$EP \
    --micro-batch-size $MBS --global-batch-size "$GBS" \
    --recompute-granularity selective --recompute-modules moe_act layernorm \
    --use-distributed-optimizer --overlap-grad-reduce --bf16 \
    --lr 1e-4 --data-path "${DATA}" --warp-drive 9 | tee log.txt
"""

YAML = """
MODEL_ARGS:
  --tensor-model-parallel-size: 1
  --pipeline-model-parallel-size: 2
  --expert-model-parallel-size: 8   # of 128
  --num-layers: 48
  --hidden-size: 2048
  --ffn-hidden-size: 6144
  --num-attention-heads: 32
  --group-query-attention: true
  --num-query-groups: 4
  --kv-channels: 128
  --qk-layernorm: true
  --swiglu: true
  --seq-length: 4096
  --vocab-size: 151936
  --untie-embeddings-and-output-weights: true
  --num-experts: 128
  --moe-router-topk: 8
  --moe-ffn-hidden-size: 768
  --moe-token-dispatcher-type: flex
  --disable-bias-linear: true
  --micro-batch-size: 2
  --global-batch-size: 256
  --recompute-granularity: selective
  --recompute-modules: [moe_act, layernorm]
  --use-distributed-optimizer: true
  --fp8-format: null
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
"""

TYPED = ("train", "--model", "qwen3-30b-a3b", "--gpus", 64, "--pipeline-parallel", 2, "--expert-parallel", 8,
         "--micro-batch", 2, "--global-batch", 256, "--recompute", "moe_act,layernorm", "--dispatcher", "deepep")


def write(tmp_path, text, name="run.sh"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def figures(*words):
    return json.loads(succeed(*words, "--format", "json"))


@pytest.mark.parametrize("text, name, gpus", [(SCRIPT, "run.sh", ()), (YAML, "run.yaml", ("--gpus", 64))])
def test_a_script_and_a_yaml_are_the_options_typed(tmp_path, text, name, gpus):
    read = figures("train", "--megatron", write(tmp_path, text, name), *gpus)
    typed = figures(*TYPED)
    assert read["model"] == "run"
    for key in typed:
        if key != "model" and "p05" not in key and "p95" not in key and not key.startswith("band"):
            assert read[key] == typed[key], key


def test_what_is_not_understood_is_listed_and_typed_options_win(tmp_path):
    script = write(tmp_path, SCRIPT)
    result = moesim("train", "--megatron", script, "--pipeline-parallel", 1, "--format", "json")
    assert json.loads(result.stdout)["pipeline_parallel"] == 1
    assert "1 not understood: --warp-drive" in result.stderr


def test_the_model_of_a_script_alone(tmp_path):
    script = write(tmp_path, SCRIPT)
    result = figures("train", "--model", script, "--gpus", 64, "--expert-parallel", 8)
    shipped = figures("train", "--model", "qwen3-30b-a3b", "--gpus", 64, "--expert-parallel", 8)
    assert result["step_ms"] == shipped["step_ms"]


def test_layout_takes_it_too(tmp_path):
    shown = succeed("layout", "--megatron", write(tmp_path, SCRIPT))
    assert "64" in shown


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
    read = figures("train", "--megatron", write(tmp_path, text))
    typed = figures("train", "--model", "deepseek-v3", "--gpus", 256, "--pipeline-parallel", 8,
                    "--expert-parallel", 32, "--pipeline-layout", "Et*8|(t*8|)*6t*5L", "--precision", "fp8-block")
    assert read["step_ms"] == typed["step_ms"]
    assert read["precision"] == "fp8-block"


@pytest.mark.parametrize("text, why", [
    ("echo nothing\n", "no argument of Megatron-LM"),
    (SCRIPT.replace("--vocab-size 151936", ""), "--vocab-size is missing"),
    (SCRIPT.replace("--hidden-size 2048", "--hidden-size two"), "run.sh:12: --hidden-size: 'two'"),
    (SCRIPT.replace("MBS=2\n", ""), "--micro-batch-size: '$MBS': the script does not set it"),
    (SCRIPT.replace("TP=1", "TP=2"), "--sequence-parallel is missing"),
    (SCRIPT.replace("--bf16", "--fp16"), "fp16"),
    (SCRIPT.replace("--recompute-granularity selective", "--recompute-granularity some"), "known are full, selective"),
    (SCRIPT.replace("#!/bin/bash", "A='open"), "has no end"),
])
def test_errors_name_file_line_and_argument(tmp_path, text, why):
    expect_error(moesim("train", "--megatron", write(tmp_path, text)), 2, why)


def test_a_file_that_is_not_there():
    expect_error(moesim("train", "--megatron", "none.sh"), 2, "none.sh")


def test_fallbacks_are_expanded_and_nested_arithmetic_counts(tmp_path):
    """As Megatron-LM's own examples write them: ${NAME:-"2"}."""
    script = SCRIPT.replace("NNODES=${NNODES:-8}      # nodes", "D=8\n: ${NNODES:=${D}}") \
                   .replace("TP=1; PP=2; EP=8", "TP=${TP:-'1'}; PP=${PP:-\"2\"}; EP=${EP:-$((2 * (1 + 3)))}") \
                   .replace("GBS=$((NNODES * GPUS_PER_NODE * 4))", "GBS=$(((NNODES * GPUS_PER_NODE) * (8 / (1 + 1))))")
    assert script != SCRIPT
    figures_of = figures("train", "--megatron", write(tmp_path, script))
    assert figures_of == figures("train", "--megatron", write(tmp_path, SCRIPT))


def test_a_here_document_is_read_whatever_its_apostrophes(tmp_path):
    first, command = SCRIPT.split("torchrun ")
    script = f"{first}sbatch <<'EOF'\n# the user's own\ntorchrun {command}EOF\n"
    assert figures("train", "--megatron", write(tmp_path, script)) == \
        figures("train", "--megatron", write(tmp_path, SCRIPT))


def test_multi_token_prediction_is_on_the_last_stage(tmp_path):
    script = SCRIPT.replace("--lr 1e-4", "--mtp-num-layers 1 --lr 1e-4")
    path = write(tmp_path, script)
    by_hand = json.loads(succeed("train", "--megatron", path, "--pipeline-layout", "Et*24|t*24mL", "--format", "json"))
    assert json.loads(succeed("train", "--megatron", path, "--format", "json")) == by_hand
    without = json.loads(succeed("train", "--megatron", write(tmp_path, SCRIPT, "less.sh"), "--format", "json"))
    assert by_hand["step_ms"] > 1.01 * without["step_ms"]


def test_keys_of_a_transformer_config_are_its_arguments(tmp_path):
    """As Megatron-LM's --yaml-cfg, Megatron-Bridge and NeMo name them."""
    arguments = YAML.replace("  --", "  ")
    keys = (arguments.replace("num-experts:", "num_moe_experts:").replace("swiglu: true", "gated_linear_unit: true")
            .replace("  group-query-attention: true\n", ""))
    keys += "  fp8: hybrid\n  fp8_recipe: tensorwise\n  add_bias_linear: False\n  share_embeddings_and_output_weights: False\n"
    assert "num_moe_experts" in keys and "gated_linear_unit" in keys and "group-query-attention" not in keys
    by_arguments = YAML + "  --fp8-format: hybrid\n  --fp8-recipe: tensorwise\n  --disable-bias-linear: true\n" \
                          "  --untie-embeddings-and-output-weights: true\n"
    assert figures("train", "--megatron", write(tmp_path, keys, "run.yaml"), "--gpus", 64) == \
        figures("train", "--megatron", write(tmp_path, by_arguments, "run.yaml"), "--gpus", 64)
    assert figures("train", "--megatron", write(tmp_path, keys, "run.yaml"), "--gpus", 64)["precision"] == "fp8-current"
