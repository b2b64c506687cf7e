"""--megatron FILE: arguments of Megatron-DeepSpeed."""

import json

import pytest
from command_line import as_json, expect_error, moesim, needs_binary
from megatron_files import write

pytestmark = needs_binary

DEEPSPEED = """deepspeed --num_nodes 8 --num_gpus 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \\
  --num-experts 128 --topk 2 --expert-interval 3 --moe-expert-parallel-size 64 --moe-train-capacity-factor 1.25 \\
  --moe-eval-capacity-factor 1 --moe-min-capacity 8 --moe-loss-coeff 0.01 --mlp-type standard --micro-batch-size 4 \\
  --global-batch-size 256 --seq-length 2048 --vocab-size 50257 --bf16 --zero-stage 1 --deepspeed --deepspeed_config x.json \\
  --no-pipeline-parallel --checkpoint-activations --checkpoint-num-layers 2 --deepspeed-activation-checkpointing"""


def in_megatrons_words(topk, interval, rest):
    groups = "+".join([f"[0]*{interval - 1}+[1]*1"] * (24 // interval))
    return ("torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 "
            f'--num-experts 128 --moe-router-topk {topk} --moe-layer-freq "({groups})" --micro-batch-size 4 --global-batch-size 256 '
            f"--seq-length 2048 --vocab-size 50257 --bf16 {rest}\n")


def test_arguments_of_megatron_deepspeed_have_counterparts(tmp_path):
    result = moesim("train", "--megatron", write(tmp_path, DEEPSPEED), "--format", "json")
    assert "priced as Megatron-Core's" in result.stderr and " 0 not understood" in result.stderr
    words = in_megatrons_words(2, 3, "--expert-model-parallel-size 64 --use-distributed-optimizer --recompute-granularity full "
                                     "--recompute-method uniform --recompute-num-layers 2 --moe-expert-capacity-factor 1.25")
    assert json.loads(result.stdout) == as_json("train", "--megatron", write(tmp_path, words), "--router-dialect", "deepspeed",
                                                "--min-capacity", 8)
    typed = as_json("train", "--megatron", write(tmp_path, DEEPSPEED), "--router-dialect", "megatron", "--zero", 3)
    assert typed["zero"] == 3 and typed["router_dialect"] == "megatron"
    hidden = write(tmp_path, DEEPSPEED.replace("--zero-stage 1", ""))
    assert as_json("layout", "--megatron", hidden, "--zero", 2)["zero"] == 2


def test_defaults_of_megatron_deepspeed_are_its_own(tmp_path):
    script = DEEPSPEED
    for argument in ("--topk 2", "--expert-interval 3", "--moe-train-capacity-factor 1.25", "--checkpoint-num-layers 2",
                     "--moe-min-capacity 8"):
        script = script.replace(argument, "")
    words = in_megatrons_words(1, 2, "--expert-model-parallel-size 64 --use-distributed-optimizer --recompute-granularity full "
                                     "--moe-expert-capacity-factor 1.0")
    assert as_json("train", "--megatron", write(tmp_path, script)) == \
        as_json("train", "--megatron", write(tmp_path, words), "--router-dialect", "deepspeed")
    dropless = as_json("train", "--megatron", write(tmp_path, script + " --disable-moe-token-dropping"))
    assert dropless == as_json("train", "--megatron", write(tmp_path, words.replace("--moe-expert-capacity-factor 1.0", "")))
    dense = write(tmp_path, script.replace("--num-experts 128", "--num-experts 1").replace("--moe-expert-parallel-size 64", ""))
    assert as_json("layout", "--megatron", dense)["expert_parallel"] == 1


@pytest.mark.parametrize("old, new, why", [
    ("--num-experts 128", "--num-experts 64 128", "--num-experts: layers with different numbers"),
    ("--mlp-type standard", "--mlp-type residual", "--mlp-type: a dense unit beside the experts"),
    ("--zero-stage 1", "", "--deepspeed: the stage of ZeRO is in a file that is not read"),
    ("--zero-stage 1", "--zero-stage 1.5", "--zero-stage: '1.5': known are 0, 1, 2, 3"),
    ("--bf16", "--bf16 --ds-sequence-parallel-size 2", "--ds-sequence-parallel-size: DeepSpeed's sequence parallelism"),
])
def test_what_megatron_deepspeed_has_alone_is_refused(tmp_path, old, new, why):
    expect_error(moesim("train", "--megatron", write(tmp_path, DEEPSPEED.replace(old, new))), 2, why)
