"""--megatron with a job of Hugging Face's Trainer or Accelerate: the error says how to price it."""

import pytest
from command_line import expect_error, moesim, needs_binary, succeed
from megatron_files import write

pytestmark = needs_binary
TRAINER = """#!/bin/bash
export BS=2
accelerate launch --num_processes 64 --num_machines 8 train.py \\
  --model_name_or_path Qwen/Qwen3-30B-A3B --per_device_train_batch_size $BS --gradient_accumulation_steps 4 \\
  --bf16 True --gradient_checkpointing True --max_seq_length 4096 --deepspeed z3.json
"""
FSDP = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_activation_checkpointing: true
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""


@pytest.mark.parametrize("text, name, command", [
    (TRAINER, "run.sh", "moesim train --model CONFIG.JSON --gpus 64 --zero STAGE --precision bf16 --recompute full "
     "--sequence-length 4096 --micro-batch 2 --global-batch 512"),
    (TRAINER.replace("--deepspeed z3.json", '--fsdp "full_shard auto_wrap"').replace("_checkpointing True", "_checkpointing False"),
     "run.sh", "moesim train --model CONFIG.JSON --gpus 64 --zero 3 --precision bf16 --sequence-length 4096 --micro-batch 2 --global-batch 512"),
    (TRAINER.replace("--deepspeed z3.json", "").replace("--num_processes 64", ""), "run.sh",
     "moesim train --model CONFIG.JSON --gpus GPUS --zero 0 --precision bf16 --recompute full --sequence-length 4096 --micro-batch 2"),
    (FSDP, "run.yaml", "moesim train --model CONFIG.JSON --gpus 16 --zero 3 --precision bf16 --recompute full"),
    (FSDP.replace("FULL_SHARD", "SHARD_GRAD_OP").replace("bf16", "fp8"), "run.yaml",
     "moesim train --model CONFIG.JSON --gpus 16 --zero 2 --precision fp8-delayed --recompute full"),
    (FSDP.replace("FULL_SHARD", "HYBRID_SHARD"), "run.yaml",
     "moesim train --model CONFIG.JSON --gpus 16 --zero 3 --optimizer-instances NODES --precision bf16 --recompute full"),
    (FSDP.replace("FULL_SHARD", "HYBRID_SHARD_ZERO2"), "run.yaml",
     "moesim train --model CONFIG.JSON --gpus 16 --zero 2 --optimizer-instances NODES --precision bf16 --recompute full"),
    ("distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n  gradient_accumulation_steps: 4\nnum_processes: 8\n",
     "run.yaml", "moesim train --model CONFIG.JSON --gpus 8 --zero 3"),
])
def test_a_job_of_hugging_face_is_refused_with_its_command(tmp_path, text, name, command):
    result = moesim("train", "--megatron", write(tmp_path, text, name))
    expect_error(result, 2, "a job of Hugging Face's Trainer or Accelerate, not of Megatron-LM")
    assert result.stderr.rstrip().endswith("of what is read here: " + command)


@pytest.mark.parametrize("text, remarks, precision", [
    (FSDP.replace("bf16", "fp16"), "fp16 takes as long as bf16; words in capitals are to be put in", "--precision bf16"),
    (FSDP.replace("bf16", "'no'"), "fp32 is not priced, bf16 in its place; words in capitals are to be put in", None),
    (FSDP, "words in capitals are to be put in", "--precision bf16"),
])
def test_its_command_says_what_to_know_before_it_is_typed(tmp_path, text, remarks, precision):
    result = moesim("train", "--megatron", write(tmp_path, text, "run.yaml"))
    assert f"make a step ({remarks}), of what is read here" in result.stderr
    assert (precision in result.stderr) if precision else ("--precision" not in result.stderr)
    with_model = moesim("train", "--megatron", write(tmp_path, FSDP, "run.yaml"), "--model", "mixtral-8x7b")
    assert "make a step, of what is read here: moesim train --model mixtral-8x7b --gpus 16" in with_model.stderr


def test_its_command_runs(tmp_path):
    result = moesim("train", "--megatron", write(tmp_path, TRAINER), "--model", "qwen3-30b-a3b", "--gpus", 128)
    command = result.stderr.rstrip().split("of what is read here: moesim ")[1]
    assert command.startswith("train --model qwen3-30b-a3b --gpus 128 ") and command.endswith("--global-batch 1024")
    assert "ZeRO 3" in succeed(*command.replace("--zero STAGE", "--zero 3").split())


def test_a_script_of_megatron_may_name_such_a_model(tmp_path):
    script = write(tmp_path, "torchrun pretrain_gpt.py --model-name-or-path Qwen/Qwen3-30B-A3B --tensor-model-parallel-size 2\n")
    expect_error(moesim("train", "--megatron", script), 2, "--num-layers is missing")
