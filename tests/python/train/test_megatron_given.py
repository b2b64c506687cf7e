"""--megatron FILE with values that the script does not set: typed options win, the call of the script gives them."""

import pytest
from command_line import as_json, expect_error, moesim, needs_binary
from megatron_files import SCRIPT, write, YAML

pytestmark = needs_binary

BASE = SCRIPT.replace("--num-layers 48", "--num-layers 4")
VIRTUAL = BASE.replace("--lr 1e-4", "--num-layers-per-virtual-pipeline-stage 1")
CAPACITY = BASE.replace("--num-experts 128", "--moe-expert-capacity-factor 1 --moe-token-drop-policy probs --num-experts 128")


@pytest.mark.parametrize("script, value, typed", [
    (BASE, "--tensor-model-parallel-size ${TP}", ("--tensor-parallel", 1)),
    (BASE, "--pipeline-model-parallel-size $PP", ("--pipeline-parallel", 2)),
    (BASE, "--expert-model-parallel-size=$EP", ("--expert-parallel", 8)),
    (BASE.replace("--lr", "--expert-tensor-parallel-size 1 --lr"), "--expert-tensor-parallel-size 1", ("--expert-tensor-parallel", 1)),
    (BASE.replace("--lr", "--context-parallel-size 2 --cp-comm-type a2a --lr"), "--cp-comm-type a2a", ("--context-method", "all-to-all")),
    (BASE, "--micro-batch-size $MBS", ("--micro-batch", 2)),
    (BASE, '--global-batch-size "$GBS"', ("--global-batch", 256)),
    (BASE, "--seq-length 4096", ("--sequence-length", 4096)),
    (BASE, "--recompute-granularity selective", ("--recompute", "moe_act,layernorm")),
    (BASE, "--recompute-modules moe_act layernorm", ("--recompute", "moe_act,layernorm")),
    (BASE, "--moe-token-dispatcher-type flex", ("--dispatcher", "deepep")),
    (BASE, "--moe-flex-dispatcher-backend deepep", ("--dispatcher", "deepep")),
    (VIRTUAL, "--num-layers-per-virtual-pipeline-stage 1", ("--virtual-pipeline", 2)),
    (BASE.replace("--bf16", "--fp8-format hybrid --fp8-recipe tensorwise"), "--fp8-recipe tensorwise", ("--precision", "fp8-current")),
    (BASE.replace("--bf16", "--bf16 --main-grads-dtype bf16"), "--main-grads-dtype bf16", ("--gradients", "bf16")),
    (BASE.replace("--bf16", "--bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"), "--exp-avg-dtype bf16",
     ("--optimizer-moments", "bf16")),
    (BASE.replace("--bf16", "--bf16 --use-megatron-fsdp --data-parallel-sharding-strategy optim"),
     "--data-parallel-sharding-strategy optim", ("--zero", 1)),
    (BASE.replace("--bf16", "--bf16 --cuda-graph-impl local --cuda-graph-scope attn"), "--cuda-graph-scope attn",
     ("--cuda-graphs", "parts")),
    (CAPACITY, "--moe-expert-capacity-factor 1", ("--capacity-factor", 1)),
    (CAPACITY, "--moe-token-drop-policy probs", ("--priority", "own-weight")),
])
def test_what_is_typed_wins_over_a_value_that_is_not_known(tmp_path, script, value, typed):
    argument = value.split("=")[0].split()[0]
    assert value in script
    unset = write(tmp_path, script.replace(value, f"{argument} $UNSET"))
    expect_error(moesim("train", "--megatron", unset), 2, f"{argument}: '$UNSET': the script does not set it",
                 f"or in the call: 'UNSET=VALUE {unset}'")
    by_hand = as_json("train", "--megatron", write(tmp_path, script, "set.sh"), *typed)
    assert {**as_json("train", "--megatron", unset, *typed), "model": ""} == {**by_hand, "model": ""}


def test_one_error_names_all_values_that_are_not_set(tmp_path):
    text = SCRIPT.replace("TP=1; PP=2; EP=8\nMBS=2\n", "").replace("--hidden-size 2048", "--hidden-size $1").replace(
        "GPUS_PER_NODE=8\n", "").replace("GBS=$((NNODES * GPUS_PER_NODE * 4))\n", "")
    path = write(tmp_path, text)
    result = moesim("train", "--megatron", path)
    expect_error(result, 2, f"{path}: it does not set --expert-model-parallel-size '$EP'")
    told = result.stderr
    for value in ("--global-batch-size '$GBS'", "--hidden-size '$1'", "--micro-batch-size '$MBS'", "--nproc-per-node '$GPUS_PER_NODE'",
                  "--pipeline-model-parallel-size '$PP'", "--tensor-model-parallel-size '${TP}'"):
        assert value in told
    assert "note:" not in told  # none of what would follow from them
    assert f"GBS=VALUE MBS=VALUE GPUS_PER_NODE=VALUE PP=VALUE TP=VALUE {path} ARGUMENTS'" in told.replace("EP=VALUE ", "")
    call = f"EP=8 GBS=256 MBS=2 GPUS_PER_NODE=8 PP=2 TP=1 {path} 2048"
    read = as_json("train", "--megatron", call)
    assert {**read, "model": ""} == {**as_json("train", "--megatron", write(tmp_path, SCRIPT, "set.sh")), "model": ""}
    assert read["model"] == call  # what the row can be predicted from again


def test_a_call_gives_variables_and_arguments(tmp_path):
    text = BASE.replace("--bf16", "--bf16 --sequence-parallel").replace("TP=1; PP=2; EP=8\n", 'TP=${TP:-1}\nPP=$1\nif [ "$2" = wide ]; then EP=16; else EP=8; fi\n')
    path = write(tmp_path, text)
    read = as_json("layout", "--megatron", f"TP='2' {path} 2 \"wide\"")
    assert (read["pipeline_parallel"], read["expert_parallel"], read["tensor_parallel"]) == (2, 16, 2)
    assert as_json("layout", "--megatron", f"{path} 2 narrow")["expert_parallel"] == 8
    spaced = write(tmp_path, BASE, "a folder/my run.sh")
    assert as_json("layout", "--megatron", spaced)["pipeline_parallel"] == 2
    assert as_json("layout", "--model", f"X=1 {path} 1", "--gpus", 8)["gpus"] == 8


def test_a_yaml_takes_variables_and_its_own_keys(tmp_path):
    text = YAML.replace("pipeline-model-parallel-size: 2", "pipeline-model-parallel-size: ${PP}").replace(
        "--micro-batch-size: 2", '--micro-batch-size: "${data.rows}"') + "data:\n  rows: ${other}\nother: 4\n"
    path = write(tmp_path, text, "run.yaml")
    expect_error(moesim("layout", "--megatron", path, "--gpus", 64), 2, "--pipeline-model-parallel-size: '${PP}'",
                 f"in the call: 'PP=VALUE {path}'")
    read = as_json("layout", "--megatron", f"PP=2 {path}", "--gpus", 64)
    assert (read["pipeline_parallel"], read["micro_batch"]) == (2, 4)
    expect_error(moesim("layout", "--megatron", f"PP=2 {path} 4"), 2, "a YAML takes no arguments: '4'")
    ring = write(tmp_path, YAML.replace("--micro-batch-size: 2", "--micro-batch-size: ${one}") + "one: ${two}\ntwo: ${one}\n", "ring.yaml")
    expect_error(moesim("layout", "--megatron", ring), 2, "--micro-batch-size")


def test_a_model_without_a_length_needs_one_typed(tmp_path):
    path = write(tmp_path, BASE.replace("--seq-length 4096", ""))
    expect_error(moesim("train", "--megatron", path), 2, "--seq-length is missing, or not known: add it, or give --sequence-length")
    assert as_json("train", "--megatron", path, "--sequence-length", 4096)["sequence_length"] == 4096
    expect_error(moesim("simulate", "--model", path), 2, "--seq-length is missing, or not known")
