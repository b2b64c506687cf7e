"""Of "TP=4 sbatch run.sh" the script says nothing: which defaults are noted where the environment has other values."""

import json

import pytest
from command_line import moesim, needs_binary

pytestmark = needs_binary

SCRIPT = """#!/bin/bash
#SBATCH --job-name=moe
TP=${TP:-2}
EP=${EP:-8}
PORT=${PORT:-6000}
ITERS=${ITERS:-100}
UNUSED=${UNUSED:-1}
MORE=${MORE:-}
torchrun --nproc_per_node ${GPUS:-8} --nnodes 2 --master_port $PORT pretrain_gpt.py --bf16 --swiglu --sequence-parallel \\
  --use-distributed-optimizer --num-layers 8 --hidden-size 1024 --ffn-hidden-size 2048 --num-attention-heads 16 \\
  --vocab-size 32000 --seq-length 2048 --micro-batch-size 1 --global-batch-size 32 --num-experts 16 --moe-router-topk 2 \\
  --moe-token-dispatcher-type alltoall --expert-tensor-parallel-size 1 \\
  --tensor-model-parallel-size $TP --expert-model-parallel-size $EP --train-iters $ITERS $MORE
"""


@pytest.fixture(name="script")
def fixture_script(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT)
    return path


def noted(script, env, *words):
    """The defaults that the note names."""
    result = moesim("layout", "--megatron", script, *words, env=env)
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stderr.splitlines() if "environment has other values" in line]
    return [line.partition("its defaults ")[2].partition(" are taken")[0] for line in lines]


def test_defaults_that_change_no_option_are_not_noted(script):
    assert noted(script, {"TP": "4", "PORT": "7000", "ITERS": "5", "UNUSED": "2"}) == ["TP=2"]
    assert noted(script, {"TP": "4", "EP": "4"}) == ["EP=8, TP=2"]
    assert noted(script, {"PORT": "7000", "ITERS": "5", "EP": "8"}) == []
    assert noted(script, {"MORE": "--pipeline-model-parallel-size 2"}) == ["MORE=''"]
    assert noted(script, {"MORE": "--train-samples 2 --save '/x y'"}) == []


def test_a_value_that_would_be_refused_is_noted(script):
    assert noted(script, {"TP": "some"}) == ["TP=2"]


def test_defaults_of_what_is_typed_are_not_noted(script):
    assert noted(script, {"TP": "4"}, "--tensor-parallel", 4) == []
    assert noted(script, {"GPUS": "4"}) == ["GPUS=8"]
    assert noted(script, {"GPUS": "4"}, "--gpus", 16) == []


def test_a_list_of_layers_that_python_refuses_is_refused(script):
    for layers in ("[1 0 1 0 1 0 1 0]", "[01010101]", "[000]"):
        script.write_text(SCRIPT.replace("--bf16", f"--bf16 --moe-layer-freq '{layers}'"))
        result = moesim("train", "--megatron", script)
        assert result.returncode == 2
        assert f"--moe-layer-freq: '{layers}' is no list of 0 and 1 for layers, such as [0,0,1,1]" in result.stderr
    script.write_text(SCRIPT.replace("--bf16", "--bf16 --moe-layer-freq '[1, 0]*4'"))
    ran = moesim("train", "--megatron", script, "--format", "json")
    assert ran.returncode == 0 and json.loads(ran.stdout)["step_ms"] > 0
