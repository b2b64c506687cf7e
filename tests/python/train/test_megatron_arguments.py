"""--megatron FILE: single arguments that change a step, and what is said where one does not fit."""

import pytest
from command_line import as_json, as_rows, expect_error, moesim, needs_binary
from megatron_files import SCRIPT, write, YAML

pytestmark = needs_binary

SHORT = SCRIPT.replace("--num-layers 48", "--num-layers 4").replace("PP=2", "PP=1")
CAPACITY = "--moe-expert-capacity-factor 1 "


def with_words(tmp_path, words, name="run.sh"):
    return write(tmp_path, SHORT.replace("--warp-drive 9", words), name)


def test_random_logits_are_balanced(tmp_path):
    script = with_words(tmp_path, CAPACITY + "--moe-router-force-load-balancing")
    read, skewed = as_json("train", "--megatron", script), as_json("train", "--megatron", with_words(tmp_path, CAPACITY, "not.sh"))
    typed = as_json("train", "--megatron", script, "--routing", "gaussian:0.1")
    assert read["routing"] == "balanced" and typed["routing"] == "gaussian:0.1"
    # An expert meets binomial(8 S, 1 / 128) routes of S = 8192 tokens, s = sqrt(512): beyond the mean
    # are s / sqrt(2 pi) of 512, a share of 1.8 %.
    assert read["failed"] == pytest.approx(0.018, rel=0.1) and skewed["failed"] > 2 * read["failed"]
    assert "routing" not in as_json("train", "--megatron", with_words(tmp_path, "--moe-router-force-load-balancing", "no.sh"))


def test_the_all_gather_dispatcher_is_priced_where_it_is_named(tmp_path):
    without = SHORT.replace("--moe-token-dispatcher-type flex", "").replace("--moe-enable-deepep", "")
    named_there = without.replace("--warp-drive 9", "--moe-token-dispatcher-type allgather")
    named = as_json("train", "--megatron", write(tmp_path, named_there, "a.sh"))
    assert named["dispatcher"] == "allgather"
    silent = moesim("train", "--megatron", write(tmp_path, without, "b.sh"), "--format", "json")
    assert "is not given, whose default is allgather: priced as an all-to-all" in silent.stderr
    typed = as_json("train", "--megatron", tmp_path / "b.sh", "--dispatcher", "allgather")
    assert typed["step_ms"] == named["step_ms"]
    assert "all-to-all" not in moesim("train", "--megatron", tmp_path / "b.sh", "--dispatcher", "allgather").stderr
    found = as_rows("recommend", "--megatron", tmp_path / "a.sh", "--gpus", 16, "--best", 1)[0]
    assert found["dispatcher"] == "allgather" and "--dispatcher allgather" in found["command"]


@pytest.mark.parametrize("words, method", [
    ("allgather", "all-gather"), ("all_gather", "all-gather"), ("a2a a2a", "all-to-all"), ("p2p", "ring")])
def test_one_exchange_of_keys_is_that_of_all_layers(tmp_path, words, method):
    script = with_words(tmp_path, f"--context-parallel-size 2 --cp-comm-type {words}")
    assert as_json("layout", "--megatron", script)["context_method"] == method


@pytest.mark.parametrize("words, why", [
    ("--cp-comm-type p2p a2a", "--cp-comm-type: 'p2p a2a': one for each layer is not modelled: give --context-method"),
    ("--cp-comm-type a2a+p2p", "known are a2a, all_gather, p2p; the nearest are --context-method all-to-all and ring"),
])
def test_exchanges_that_are_not_modelled_are_refused(tmp_path, words, why):
    script = with_words(tmp_path, words)
    expect_error(moesim("train", "--megatron", script), 2, why)
    assert as_json("layout", "--megatron", script, "--context-parallel", 2, "--context-method", "ring")["context_method"] == "ring"


@pytest.mark.parametrize("launcher", ["deepspeed --hostfile hosts --num_gpus 8", "deepspeed -H hosts --num_gpus=8"])
def test_nodes_of_a_hostfile_are_asked_for(tmp_path, launcher):
    script = SHORT.replace("torchrun $DISTRIBUTED_ARGS", launcher)
    expect_error(moesim("train", "--megatron", write(tmp_path, script)), 2, "--num-gpus: 8 are those of a node", "give --gpus")
    assert as_json("layout", "--megatron", write(tmp_path, script), "--gpus", 32)["gpus"] == 32
    nodes = write(tmp_path, script.replace("--num_gpus", "--num_nodes 2 --num_gpus"))
    assert as_json("layout", "--megatron", nodes)["gpus"] == 16


@pytest.mark.parametrize("line, profile", [
    ("--gres=gpu:a100:8", "a100-sxm-80gb"), ("--gpus-per-node=b200:8", "b200-sxm"), ("--gres=gpu:h100:8", ""), ("--gres=gpu:8", "")])
def test_another_gpu_of_slurm_is_noted(tmp_path, line, profile):
    script = write(tmp_path, SHORT.replace("#SBATCH --job-name=qwen", f"#SBATCH {line}"))
    told = moesim("train", "--megatron", script).stderr
    assert (f"names another GPU than the default h100-sxm: give --profile {profile}" in told) == (profile != "")
    assert "names another GPU" not in moesim("train", "--megatron", script, "--profile", "h200-sxm").stderr


def test_a_capacity_below_zero_is_none(tmp_path):
    script = with_words(tmp_path, "--moe-expert-capacity-factor -1")
    without = with_words(tmp_path, "", "without.sh")
    assert {**as_json("train", "--megatron", script), "model": ""} == {**as_json("train", "--megatron", without), "model": ""}


def test_padding_goes_with_a_capacity(tmp_path):
    script = with_words(tmp_path, "--moe-pad-expert-input-to-capacity")
    why = "--moe-pad-expert-input-to-capacity has no effect, and Megatron-Core refuses it, without --moe-expert-capacity-factor"
    assert why in moesim("train", "--megatron", script).stderr
    assert why not in moesim("train", "--megatron", script, "--capacity-factor", 1).stderr
    plain, note = with_words(tmp_path, "", "plain.sh"), "--padding capacity drops and pads"
    assert note in moesim("train", "--megatron", plain, "--capacity-factor", 1).stderr
    assert note not in moesim("train", "--megatron", plain, "--capacity-factor", 1, "--padding", "capacity").stderr
    assert note not in moesim("train", "--megatron", with_words(tmp_path, CAPACITY, "given.sh")).stderr


def test_fsdp2_shards_all(tmp_path):
    sharded = SHORT.replace("--use-distributed-optimizer", "--use-torch-fsdp2")
    script = write(tmp_path, sharded.replace("EP=8", "EP=1"))
    assert as_json("train", "--megatron", script)["zero"] == 3
    assert as_json("train", "--megatron", script, "--zero", 1)["zero"] == 1
    told = moesim("train", "--megatron", script).stderr
    assert "--use-torch-fsdp2 is priced as Megatron-FSDP's --zero 3" in told and "fsdp2" not in told.split("not understood")[1]


@pytest.mark.parametrize("text, words, with_what", [
    (lambda text: text, (), "expert parallelism, here 8"),
    (lambda text: text.replace("EP=8", "EP=1").replace("PP=1", "PP=2"), (), "pipeline parallelism, here 2"),
    (lambda text: text.replace("EP=8", "EP=1"), ("--pipeline-parallel", 4), "pipeline parallelism, here 4"),
    (lambda text: text.replace("EP=8", "EP=1").replace("--bf16", "--fp16"), (), "--fp16"),
    (lambda text: text.replace("EP=8", "EP=1 # ").replace("--bf16", "--bf16 --use-distributed-optimizer"), (),
     "--use-distributed-optimizer"),
])
def test_fsdp2_is_refused_where_megatron_refuses_it(tmp_path, text, words, with_what):
    script = write(tmp_path, text(SHORT.replace("--use-distributed-optimizer", "--use-torch-fsdp2")))
    expect_error(moesim("train", "--megatron", script, *words), 2,
                 f"--use-torch-fsdp2: Megatron-LM refuses it with {with_what}: --zero 3 prices")
    # What is typed wins: no FSDP2 then.
    assert as_json("train", "--megatron", script, *words, "--zero", 3)["zero"] == 3


def test_weights_gathered_in_bf16_though_fp8_is_asked_for(tmp_path):
    blocks = "--fp8-format e4m3 --fp8-recipe blockwise"
    asked, without = (write(tmp_path, SHORT.replace("--bf16", words), name) for words, name in (
        (f"{blocks} --fp8-param-gather", "asked.sh"), (blocks, "without.sh")))
    note = "--fp8-param-gather changes nothing with scales per block: weights are priced as gathered in bf16"
    assert note in moesim("train", "--megatron", asked).stderr
    assert note not in moesim("train", "--megatron", without).stderr
    assert as_json("train", "--megatron", asked)["step_ms"] == as_json("train", "--megatron", without)["step_ms"]
    current = write(tmp_path, SHORT.replace("--bf16", "--fp8-format hybrid --fp8-recipe tensorwise --fp8-param-gather"), "current.sh")
    assert "--fp8-param-gather changes" not in moesim("train", "--megatron", current).stderr
    fsdp2 = write(tmp_path, SHORT.replace("--use-distributed-optimizer", "--use-torch-fsdp2").replace("EP=8", "EP=1").replace(
        "--bf16", "--fp8-format hybrid --fp8-recipe tensorwise --fp8-param-gather"), "fsdp2.sh")
    assert "changes nothing with --use-torch-fsdp2" in moesim("train", "--megatron", fsdp2).stderr
    assert as_json("train", "--megatron", fsdp2)["gather_precision"] == "bf16"


def test_fp16_is_priced_as_bf16(tmp_path):
    half = write(tmp_path, SHORT.replace("--bf16", "--fp16"), "half.sh")
    whole = write(tmp_path, SHORT)
    assert as_json("train", "--megatron", half)["step_ms"] == as_json("train", "--megatron", whole)["step_ms"]
    told = moesim("train", "--megatron", half).stderr
    assert "--fp16 is priced as --bf16, which takes as long" in told and "priced as with --bf16" not in told
    none = write(tmp_path, SHORT.replace("--bf16", ""), "none.sh")
    assert "--bf16, which it does not have" in moesim("train", "--megatron", none).stderr.replace("--overlap-param-gather, ", "").replace(
        "--moe-grouped-gemm, --moe-permute-fusion, ", "")
    assert "--bf16" not in moesim("train", "--megatron", none, "--precision", "bf16").stderr


def test_keys_of_nemo_are_read(tmp_path):
    keys = YAML.replace("  --vocab-size: 151936\n", "").replace("  --fp8-format: null\n", "").replace("MODEL_ARGS", "model").replace(
        "ENV_VARS:\n  CUDA_DEVICE_MAX_CONNECTIONS: 1\n",
        "  ub_tp_comm_overlap: true\n  tokenizer:\n    library: huggingface\n    type: mistralai/Mixtral-8x7B-v0.1\n"
        "  optim:\n    overlap_grad_sync: true\n    overlap_param_sync: true\n").replace("  --", "  ")
    told = moesim("train", "--megatron", write(tmp_path, keys, "nemo.yaml"), "--gpus", 64)
    assert told.returncode == 0, told.stderr
    assert "no --vocab-size: 32000 is taken" in told.stderr and "0 not understood" in told.stderr
    assert "--overlap-grad-reduce" not in told.stderr and "--overlap-param-gather" not in told.stderr
    other = write(tmp_path, keys.replace("mistralai/Mixtral-8x7B-v0.1", "my/own"), "own.yaml")
    expect_error(moesim("train", "--megatron", other, "--gpus", 64), 2, "--vocab-size is missing", f"add vocab_size: N to {other}")


def test_a_configuration_that_is_not_read_is_named(tmp_path):
    script = write(tmp_path, "torchrun --nproc-per-node 8 pretrain_gpt.py --yaml-cfg conf.yaml --micro-batch-size 1\n")
    expect_error(moesim("train", "--megatron", script), 2, "--yaml-cfg: --num-layers is missing, and conf.yaml is not read")
