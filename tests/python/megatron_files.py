"""A launch script and a YAML of Megatron-LM for the tests of --megatron, which change parts of them."""

import json

from command_line import as_json, moesim

# It trains qwen3-30b-a3b on 64 GPUs; --warp-drive is no argument of Megatron-LM.
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

# The same as the keys of a configuration, as Megatron-Bridge and NeMo name them.
KEYS = YAML.replace("  --", "  ").replace("swiglu: true", "gated_linear_unit: true").replace("MODEL_ARGS", "model")


def write(tmp_path, text, name="run.sh"):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def with_argument(tmp_path, argument):
    """The script with `argument`, for one that is not understood."""
    return write(tmp_path, SCRIPT.replace("--warp-drive 9", argument))


def layout_of(path, *words):
    """The pipeline layout of a script or YAML."""
    return as_json("layout", "--megatron", path, *words)["pipeline_layout"]


def of_keys(tmp_path, text):
    """The step of a YAML with these keys on 64 GPUs, and what is printed on stderr."""
    result = moesim("train", "--megatron", write(tmp_path, text, "run.yaml"), "--gpus", 64, "--format", "json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout), result.stderr
