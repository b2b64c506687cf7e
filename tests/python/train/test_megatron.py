"""--megatron FILE: arguments of Megatron-LM as options of train and layout; a model of such a file."""

import csv
import json
import os
import pathlib
import subprocess

import pytest
from command_line import BINARY, expect_error, moesim, needs_binary, succeed

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
    script = write(tmp_path, text, name)
    read = figures("train", "--megatron", script, *gpus)
    typed = figures(*TYPED)
    assert read["model"] == str(script)
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


def test_weights_are_gathered_in_bf16_unless_the_script_says_otherwise(tmp_path):
    low = write(tmp_path, SCRIPT.replace("--bf16", "--fp8-format hybrid --fp8-param-gather"), "low.sh")
    kept = write(tmp_path, SCRIPT.replace("--bf16", "--fp8-format hybrid"), "kept.sh")
    typed = figures(*TYPED, "--precision", "fp8-delayed")
    assert figures("train", "--megatron", low)["memory_gib"] == typed["memory_gib"]
    read = figures("train", "--megatron", kept)
    bf16 = figures(*TYPED, "--precision", "fp8-delayed", "--gather-precision", "bf16")
    assert read["gather_precision"] == bf16["gather_precision"] == "bf16"
    assert read["memory_gib"] == bf16["memory_gib"]
    assert read["step_ms"] == bf16["step_ms"] > typed["step_ms"]


def test_a_typed_format_is_gathered_as_the_script_says(tmp_path):
    script = write(tmp_path, SCRIPT.replace("--bf16", "--fp8-format hybrid --fp8-recipe tensorwise"))
    read = figures("train", "--megatron", script)
    typed = figures("train", "--megatron", script, "--precision", "fp8-current")
    assert (typed["gather_precision"], typed["memory_gib"]) == ("bf16", read["memory_gib"])


def test_a_key_without_a_value_is_not_set(tmp_path):
    blank = write(tmp_path, YAML.replace("--", "").replace("fp8-format: null", "fp8_format:"), "blank.yaml")
    assert figures("train", "--megatron", blank, "--gpus", 64)["precision"] == "bf16"


def test_performance_scripts_may_be_run_by_a_module_and_take_equal_signs(tmp_path):
    run = "python -m torch.distributed.run --nproc_per_node=8 --nnodes=8 scripts/performance/run_script.py"
    script = write(tmp_path, f"{run} -ng 64 --compute_dtype fp8_mx -ep=8 -mb=2 -gb=512\n")
    read = figures("train", "--megatron", script, "--model", "qwen3-30b-a3b", "--profile", "b200-sxm")
    assert (read["precision"], read["expert_parallel"], read["micro_batch"]) == ("mxfp8", 8, 2)


def test_overrides_of_nemo_say_the_gpus(tmp_path):
    script = write(tmp_path, "python megatron_gpt_pretraining.py trainer.devices=8 trainer.num_nodes=16 "
                             "model.tensor_model_parallel_size=1 model.micro_batch_size=1\n")
    assert figures("train", "--megatron", script, "--model", "qwen3-30b-a3b")["gpus"] == 128


def test_a_dense_model_may_do_without_sequence_parallelism(tmp_path):
    text = """torchrun --nproc_per_node=8 pretrain_gpt.py --tensor-model-parallel-size 8 --num-layers 32 --hidden-size 4096
        --ffn-hidden-size 11008 --num-attention-heads 32 --swiglu --seq-length 4096 --vocab-size 32000
        --normalization RMSNorm --disable-bias-linear --micro-batch-size 1 --global-batch-size 8"""
    text = text.replace("\n", " ")
    without = figures("train", "--megatron", write(tmp_path, text, "without.sh"))
    shared = figures("train", "--megatron", write(tmp_path, text + " --sequence-parallel", "with.sh"))
    typed = figures("train", "--megatron", tmp_path / "with.sh", "--sequence-parallel", "off")
    assert without["memory_gib"] == typed["memory_gib"]
    # What lies between the products stays whole on every rank: 8 h bytes a token and layer of norms'
    # and products' inputs (Korthikanti et al. 2022), of which a rank else has an eighth.
    more = 8 * 4096 * 4096 * 32 * 7 / 8 / 2**30
    assert without["memory_gib"] - shared["memory_gib"] == pytest.approx(more, rel=0.1)


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
    read = figures("train", "--megatron", write(tmp_path, text), "--global-batch", 1024)
    typed = figures("train", "--model", "deepseek-v3", "--gpus", 256, "--pipeline-parallel", 8,
                    "--expert-parallel", 32, "--global-batch", 1024, "--pipeline-layout", "Et*8|(t*8|)*6t*5L", "--precision", "fp8-block")
    assert read["step_ms"] == typed["step_ms"]
    assert read["precision"] == "fp8-block"


@pytest.mark.parametrize("text, why", [
    ("echo nothing\n", "no argument of Megatron-LM"),
    (SCRIPT.replace("--vocab-size 151936", ""), "run.sh, or give --model"),
    (SCRIPT.replace("--vocab-size 151936", "--tokenizer-type HuggingFaceTokenizer --tokenizer-model own/codellama-34b"),
     "--vocab-size is missing"),
    (SCRIPT.replace("--hidden-size 2048", "--hidden-size two"), "run.sh:12: --hidden-size: 'two'"),
    (SCRIPT.replace("MBS=2\n", ""), "--micro-batch-size: '$MBS': the script does not set it"),
    (SCRIPT.replace("--bf16", "--cp-comm-type a2a+p2p"), "known are a2a, all_gather, p2p"),
    (SCRIPT.replace("TP=1", "TP=2"), "--sequence-parallel is missing"),
    (SCRIPT.replace("--bf16", "--fp16"), "fp16"),
    (SCRIPT.replace("--recompute-granularity selective", "--recompute-granularity some"), "known are full, selective"),
    (SCRIPT.replace("#!/bin/bash", "A='open"), "has no end"),
    (SCRIPT.replace("#!/bin/bash", "A=x\n" + 60 * "A=$A$A\n"), "run.sh:23: variables have more than 4 MiB where they are used"),
    # Numbers whose products no integer of 64 bits holds, lists that no memory holds.
    (SCRIPT.replace("--hidden-size 2048", "--hidden-size 4000000000000000000"),
     "run.sh:12: --hidden-size: 4000000000000000000 is too large: at most 2147483647"),
    (SCRIPT.replace("--num-layers 48", "--num-layers 99999999999"), "run.sh:11: --num-layers: 99999999999 is too large"),
    (SCRIPT.replace("--num-layers 48", "--num-layers 65536"), "run.sh:11: --num-layers: 65536 is too large: at most 65535"),
    (SCRIPT.replace("--num-layers 48", "--num-layers 65535 --moe-layer-freq [" + 100_000 * "0" + "]*65535"),
     "has 6553500000 layers of 65535"),
    (SCRIPT.replace("TP=1;", "TP=$((1073741824 * 1073741824 * 1073741824));"), "'$((1073741824 * 1073741824 * 1073741824))'"),
    (SCRIPT.replace("TP=1;", "TP=$((2147483647 * 2147483647 * 2 + 2147483647 * 2147483647 * 2));"), "is not known: put its value there"),
    (SCRIPT.replace("TP=1;", "A=-8; B=-1; TP=$((1073741824 * 1073741824 * A / B));"), "is not known: put its value there"),
])
def test_errors_name_file_line_and_argument(tmp_path, text, why):
    expect_error(moesim("train", "--megatron", write(tmp_path, text)), 2, why)


def test_a_script_may_have_an_ending_of_slurm(tmp_path):
    read = figures("train", "--megatron", write(tmp_path, SCRIPT))
    again = write(tmp_path, SCRIPT, "run.sbatch")
    assert figures("train", "--megatron", again) == {**read, "model": str(again)}
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


def test_fallbacks_are_expanded_and_nested_arithmetic_counts(tmp_path):
    """As Megatron-LM's own examples write them: ${NAME:-"2"}."""
    script = SCRIPT.replace("NNODES=${NNODES:-8}      # nodes", "D=8\n: ${NNODES:=${D}}") \
                   .replace("TP=1; PP=2; EP=8", "TP=${TP:-'1'}; PP=${PP:-\"2\"}; EP=${EP:-$((2 * (1 + 3)))}") \
                   .replace("GBS=$((NNODES * GPUS_PER_NODE * 4))", "GBS=$(((NNODES * GPUS_PER_NODE) * (8 / (1 + 1))))")
    assert script != SCRIPT
    figures_of = figures("train", "--megatron", write(tmp_path, script))
    assert figures_of == figures("train", "--megatron", write(tmp_path, SCRIPT))


@pytest.mark.parametrize("lines, size", [
    ("N=6400", "${N:0:3}"), ("N=x640y", "${N:1:-1}"), ("N=1", "${N:+640}"), ("N=640", "${N:+$N}"), ("N=", "${N:-640}"),
])
def test_operations_on_a_variable_are_done(tmp_path, lines, size):
    script = SCRIPT.replace("MBS=2\n", f"MBS=2\n{lines}\n").replace('"$GBS"', f'"{size}" ${{N:+--fp8-format hybrid}} ${{M:+--fp16}}')
    read = figures("layout", "--megatron", write(tmp_path, script))
    assert read["global_batch"] == 640
    precision = figures("train", "--megatron", write(tmp_path, script))["precision"]
    assert precision == ("bf16" if lines == "N=" else "fp8-delayed")


@pytest.mark.parametrize("size", ["${N%0}", "${N#6}", "${N/%0/}", "${N//[0]/}", "${N^^}", "${M:0:2}"])
def test_an_operation_that_is_not_done_is_refused(tmp_path, size):
    script = SCRIPT.replace("MBS=2\n", "MBS=2\nN=6400\n").replace('"$GBS"', f'"{size}"')
    expect_error(moesim("train", "--megatron", write(tmp_path, script)), 2, f"--global-batch-size: '{size}'", "put its value there")


def test_a_here_document_is_read_whatever_its_apostrophes(tmp_path):
    first, command = SCRIPT.split("torchrun ")
    script = f"{first}sbatch <<'EOF'\n# the user's own\ntorchrun {command}EOF\n"
    assert figures("train", "--megatron", write(tmp_path, script)) == \
        figures("train", "--megatron", write(tmp_path, SCRIPT))


def test_lists_that_no_command_uses_are_left_out_and_named(tmp_path):
    old = "OLD=(--fp8-format hybrid\n --recompute-granularity full)\nOLDER='--fp16'\n"
    script = SCRIPT.replace("torchrun ", old + "torchrun ")
    result = moesim("train", "--megatron", write(tmp_path, script), "--format", "json")
    assert json.loads(result.stdout) == figures("train", "--megatron", write(tmp_path, SCRIPT))
    assert "; arguments left out: 2 of OLD (line 28), which no command uses, 1 of OLDER (line 30), which" in result.stderr


@pytest.mark.parametrize("first, second, used", [
    ("B=(--global-batch-size 512)", "A=(--global-batch-size 1024)", '"${A[@]}" "${B[@]}"'),
    ("B=(--global-batch-size 512)", "A=(--global-batch-size 1024)", "${A[@]} ${B[*]}"),
    ("B='--global-batch-size 512'", 'A="--global-batch-size 1024"', "$A $B"),
    ("B='--global-batch-size 512'", "A=(--global-batch-size 1024 $B)", '"${A[@]}"'),
    ("A=(--global-batch-size 1024)", "A+=(--global-batch-size 512)", '"${A[@]}"'),
    ("A='--global-batch-size 1024'", "A+=' --global-batch-size 512'", "$A"),
    ("A=(--global-batch-size 1024)", "A=(--global-batch-size 512)", '"${A[@]}"'),
])
def test_lists_stand_where_they_are_used(tmp_path, first, second, used):
    script = SCRIPT.replace("torchrun ", f"{first}\n{second}\ntorchrun ").replace('--global-batch-size "$GBS"', used)
    assert figures("layout", "--megatron", write(tmp_path, script))["global_batch"] == 512


HEAD, COMMAND = SCRIPT.split("torchrun ")
COMMAND = COMMAND.replace(" | tee log.txt", "").rstrip()
ONE_LINE = COMMAND.replace("\\\n", " ")


@pytest.mark.parametrize("script", [
    f'run() {{\n  torchrun {COMMAND}\n}}\n{HEAD}run | tee log.txt\n',
    f'run() {{\n  torchrun {COMMAND}\n}}\n{HEAD}srun bash -c run\n',  # called where it is not seen
    f'run() {{\n  local name=$1; shift\n  torchrun "$@"\n}}\n{HEAD}run qwen {COMMAND}\n',
    f'{HEAD}main() {{ torchrun {ONE_LINE}; }}\nmain "$@"\n',
    f'{HEAD}ALL=({COMMAND.replace(chr(92), "")})\nCMD=(torchrun "${{ALL[@]}}")\n"${{CMD[@]}}"\n',
    f'{HEAD}NAME=MODEL_ARGS\ntorchrun {COMMAND.replace("MODEL_ARGS[@]", "!NAME")}\n',
    f'{HEAD}CMD="torchrun {ONE_LINE.replace(chr(34), "")}"\necho $CMD\neval $CMD 2>&1 | tee log.txt\n',
    f'{HEAD}CMD="torchrun {ONE_LINE.replace(chr(34), "")}"\neval "$CMD"\n',
    f'{HEAD}CMD="torchrun {ONE_LINE.replace(chr(34), "")}"\nsrun bash -c "cd work; $CMD"\n',
    f"{HEAD}export A=\"${{MODEL_ARGS[*]}}\" DISTRIBUTED_ARGS TP PP EP MBS GBS\nsrun bash -c 'torchrun {ONE_LINE.replace('${MODEL_ARGS[@]}', '$A')}'\n",
    f'{HEAD}sbatch <<EOF\n#!/bin/bash\nsrun torchrun {COMMAND}\nEOF\n',
    f"sbatch <<'EOF'\n{HEAD}srun torchrun {COMMAND}\nEOF\n",
    f'{HEAD}sbatch --wrap="torchrun {ONE_LINE.replace(chr(34), "")}"\n',
    f'{HEAD}ARGS=$(cat <<EOF\n{ONE_LINE.replace(chr(34), "")}\nEOF\n)\ntorchrun $ARGS\n',
    f'{HEAD}if true; then\n  ARGS=({COMMAND.replace(chr(92), "")})\nfi\n(\n  torchrun "${{ARGS[@]}}"\n)\n',
])
def test_lists_reach_the_command_on_other_ways(tmp_path, script):
    result = moesim("train", "--megatron", write(tmp_path, script), "--format", "json")
    assert json.loads(result.stdout) == figures("train", "--megatron", write(tmp_path, SCRIPT))
    assert "1 not understood: --warp-drive" in result.stderr
    assert "left out" not in result.stderr


@pytest.mark.parametrize("begin, end", [('export ALL="', '"'), ("ALL=(", ")")])
def test_lists_of_a_command_that_is_not_seen_are_taken_with_a_note(tmp_path, begin, end):
    arguments = ONE_LINE.replace('"${DATA}"', "/data").replace('"${MODEL_ARGS[@]}"', "").replace('"', "")
    script = f"{HEAD}{begin}{arguments}{end}\n. ./common.sh\nbash inner.sh --fast\n"
    result = moesim("train", "--megatron", write(tmp_path, script), "--format", "json")
    assert json.loads(result.stdout) == figures("train", "--megatron", write(tmp_path, SCRIPT))
    assert "run.sh: the command that trains is not in it, or uses variables that it does not set" in result.stderr


SERVER = "python tools/run_server.py --micro-batch-size 4 --recompute-granularity full --port 80"


@pytest.mark.parametrize("before, after", [
    ("", f"{SERVER}\n"),
    (f"{SERVER}\n", ""),
    ("", "ARGS='--micro-batch-size 4 --recompute-granularity full --port 80'\npython tools/run_server.py $ARGS\n"),
    ("", f"echo torchrun pretrain_gpt.py --micro-batch-size 4\nsrun --nodes 2 --ntasks-per-node 4 {SERVER}\n"),
    ("", f"srun --nodes 2 bash <<EOF\n{SERVER}\nEOF\n"),
    ("", f"srun --nodes 2 bash -c '{SERVER}'\n"),
    ("", f"serve() {{\n  {SERVER}\n}}\nserve --nodes 2\n"),
])
@pytest.mark.parametrize("name", ["pretrain_gpt.py", "/work/Megatron-LM/pretrain.py", "x.py", "finetune"])
def test_other_commands_are_left_out_and_named(tmp_path, name, before, after):
    script = SCRIPT.replace("pretrain_gpt.py", name)
    result = moesim("train", "--megatron", write(tmp_path, script.replace("torchrun ", f"{before}torchrun ") + after),
                    "--format", "json")
    assert json.loads(result.stdout) == figures("train", "--megatron", write(tmp_path, SCRIPT))
    assert "1 not understood: --warp-drive; arguments left out: " in result.stderr
    assert " of tools/run_server.py (line " in result.stderr


def test_what_runs_the_training_is_taken(tmp_path):
    script = SCRIPT.replace("--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES", "") + "srun -N 2 nvidia-smi --query\n"
    for run, end in (("srun -N 4 --ntasks-per-node 8", ""), ("srun -N 4 --ntasks-per-node 8 bash <<EOF\n", "EOF\n")):
        path = write(tmp_path, script.replace("torchrun ", f"{run} torchrun ").replace("log.txt\n", f"log.txt\n{end}"))
        assert figures("layout", "--megatron", path)["gpus"] == 32
    # A script that another command runs.
    written = script.replace("torchrun ", "cat > job.sh <<EOF\npython ").replace("log.txt\n", "log.txt\nEOF\n")
    written = written.replace("srun -N 2 nvidia-smi --query", "torchrun --nproc-per-node 8 --nnodes 4 job.sh")
    assert figures("layout", "--megatron", write(tmp_path, written))["gpus"] == 32


@pytest.mark.parametrize("hidden", ["$(cat args.txt)", '"${!REST}"', "$REST"])
def test_lists_count_where_the_command_hides_its_arguments(tmp_path, hidden):
    first, command = SCRIPT.split("torchrun ")
    rest = ONE_LINE.split('"${MODEL_ARGS[@]}"')[1].replace('"${DATA}"', "/data").replace('"', "")
    script = f"{first}cat > args.txt <<EOF\n--bf16 ${{MODEL_ARGS[*]}} {rest}\nEOF\n" \
             f"torchrun $DISTRIBUTED_ARGS pretrain_gpt.py --lr 1 {hidden}\n"
    result = moesim("train", "--megatron", write(tmp_path, script), "--format", "json")
    assert json.loads(result.stdout) == figures("train", "--megatron", write(tmp_path, SCRIPT))
    assert "uses variables that it does not set" in result.stderr


def test_lists_of_all_branches_are_read(tmp_path):
    branches = """if [ "$KIND" = large ]; then
  EXTRA=(--fp8-format hybrid)
else
  EXTRA=(--recompute-granularity full)
fi
[ -n "$MORE" ] && EXTRA=(--seed 3)
"""
    script = SCRIPT.replace("torchrun ", branches + "torchrun ").replace("--lr 1e-4", '--lr 1e-4 "${EXTRA[@]}"') \
                   .replace("--recompute-granularity selective", "")
    read = figures("train", "--megatron", write(tmp_path, script))
    assert (read["precision"], read["recompute"]) == ("fp8-delayed", "full")


LAYOUT = "--pipeline-model-parallel-layout Et*20|t*28L"


@pytest.mark.parametrize("begin, end, quote", [
    ("bash <<EOF", "EOF", '"'), ("bash <<EOF", "EOF", "'"), ("srun bash <<'EOF'", "EOF", '"'),
    ("cat > run.sh <<-\"END\"", "\tEND", "'"),
])
def test_a_layout_in_a_here_document_keeps_its_bars(tmp_path, begin, end, quote):
    first, command = SCRIPT.split("torchrun ")
    command = command.replace("--lr 1e-4", LAYOUT.replace("Et", quote + "Et") + quote)
    script = f"{first}{begin}\ntorchrun {command}{end}\n"
    assert layout_of(write(tmp_path, script)) == "Et*20|t*28L"


def test_a_list_in_quotes_has_quotes_of_its_own(tmp_path):
    layout = LAYOUT.replace("Et", "'Et") + "'"
    script = SCRIPT.replace("torchrun ", f'LIST="--lr 1e-4 {layout} --seed 1"\ntorchrun ').replace("--lr 1e-4 --data", "$LIST --data")
    assert layout_of(write(tmp_path, script)) == "Et*20|t*28L"


def test_here_documents_in_here_documents_end_at_some_depth(tmp_path):
    """Each was read into a text of its own: gigabytes of a script of 80 KB, and the end of the stack."""
    read = figures("train", "--megatron", write(tmp_path, SCRIPT + 20_000 * "<<A\n"))
    assert read == figures("train", "--megatron", write(tmp_path, SCRIPT))


def test_fallbacks_of_a_script_with_many_variables_take_no_minutes(tmp_path):
    """Each was read with a copy of all variables."""
    variables = "".join(f"unused_{number}=1\n" for number in range(25_000))
    script = SCRIPT.replace("#!/bin/bash", "#!/bin/bash\n" + variables + "echo " + 20_000 * "${OTHER:-}")
    assert moesim("train", "--megatron", write(tmp_path, script), timeout=30).returncode == 0


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


@pytest.mark.parametrize("yes, no", [
    ("true", "false"), ("TRUE", "FALSE"), ("True", "False"), ("yes", "no"), ("YES", "NO"), ("Yes", "No"), ("on", "off"),
    ("ON", "OFF"), ("On", "Off"), ("true", "~"), ("true", "null"), ("true", "NULL"), ("true", "None"),
])
def test_booleans_of_a_yaml_are_those_of_pyyaml(tmp_path, yes, no):
    text = YAML.replace(": true", f": {yes}").replace(": null", f": {no}")
    text += f"  --overlap-moe-expert-parallel-comm: {no}  # not\n  add_bias_linear: {no}\n  --fp8-output-proj: {no}\n"
    path = write(tmp_path, text, "run.yaml")
    assert figures("train", "--megatron", path, "--gpus", 64) == \
        figures("train", "--megatron", write(tmp_path, YAML, "run.yaml"), "--gpus", 64)
    off = write(tmp_path, text.replace(f"use-distributed-optimizer: {yes}", f"use-distributed-optimizer: {no}"), "off.yaml")
    assert figures("train", "--megatron", off, "--gpus", 64)["zero"] == 0


@pytest.mark.parametrize("value", ["'no'", '"off"', "nO", "y", "n", "offs"])
def test_other_values_of_a_yaml_are_no_booleans(tmp_path, value):
    path = write(tmp_path, YAML.replace("--fp8-format: null", f"--fp8-format: {value}"), "run.yaml")
    assert figures("train", "--megatron", path, "--gpus", 64)["precision"] == "fp8-delayed"


def layout_of(path, *words):
    return figures("layout", "--megatron", path, *words)["pipeline_layout"]


FIRST_AND_LAST = "--decoder-first-pipeline-num-layers 10 --decoder-last-pipeline-num-layers 10"
COUNTED = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"


@pytest.mark.parametrize("layers, ranks, arguments, layout", [
    (92, 8, FIRST_AND_LAST, "Et*10|(t*12|)*6t*10L"),
    (92, 8, FIRST_AND_LAST + " --num-virtual-stages-per-pipeline-rank 2", "Et*5|(t*6|)*6t*5|t*5|(t*6|)*6t*5L"),
    (92, 8, FIRST_AND_LAST + " --mtp-num-layers 1", "Et*10|(t*12|)*6t*10mL"),
    (58, 4, "--decoder-first-pipeline-num-layers 13", "Et*13|t*15|t*15|t*15L"),
    (61, 4, "--decoder-last-pipeline-num-layers 13", "Et*16|t*16|t*16|t*13L"),
    (20, 2, FIRST_AND_LAST, "Et*10|t*10L"),
    (62, 4, COUNTED, "Et*15|t*16|t*16|t*15L"),
    (46, 4, COUNTED + " --num-layers-per-virtual-pipeline-stage 4", "Ettt|(t*4|)*10tttL"),
    (63, 4, "--account-for-loss-in-pipeline-split", "Et*16|t*16|t*16|t*15L"),
    (61, 8, "--pipeline-model-parallel-layout 'Et*4,|(t*9|)*6,t*3L'", "Et*4|(t*9|)*6tttL"),
])
def test_uneven_stages_are_divided_as_megatron_core_does(tmp_path, layers, ranks, arguments, layout):
    script = (SCRIPT.replace("--num-layers 48", f"--num-layers {layers}").replace("PP=2", f"PP={ranks}")
              .replace("--lr 1e-4", arguments))
    path = write(tmp_path, script)
    assert layout_of(path) == layout
    assert "1 not understood: --warp-drive" in moesim("train", "--megatron", path).stderr


def test_uneven_stages_of_a_yaml_are_those_of_a_script(tmp_path):
    lines = ("  num_layers_in_first_pipeline_stage: 22\n  num_layers_in_last_pipeline_stage: 26\n"
             "  account_for_loss_in_pipeline_split: false\n")
    assert layout_of(write(tmp_path, YAML + lines, "run.yaml"), "--gpus", 64) == "Et*22|t*26L"
    counted = YAML.replace("num-layers: 48", "num-layers: 47") + "  account_for_embedding_in_pipeline_split: true\n"
    assert layout_of(write(tmp_path, counted, "run.yaml"), "--gpus", 64) == "Et*23|t*24L"


@pytest.mark.parametrize("arguments, why", [
    ("--decoder-first-pipeline-num-layers 49", "the model has 48 layers"),
    ("--decoder-first-pipeline-num-layers 9 --decoder-last-pipeline-num-layers 9", "30 of 48 layers are left for 0"),
    ("--decoder-first-pipeline-num-layers 9 --num-virtual-stages-per-pipeline-rank 2", "9 layers of a pipeline rank"),
    ("--decoder-first-pipeline-num-layers 8 --num-layers-per-virtual-pipeline-stage 2",
     "--num-virtual-stages-per-pipeline-rank in its place"),
    ("--decoder-last-pipeline-num-layers 8 --account-for-loss-in-pipeline-split", "not beside --decoder-first"),
    ("--account-for-loss-in-pipeline-split", "49 of 48 layers, embedding or loss are left for 2 pipeline ranks"),
    ("--account-for-loss-in-pipeline-split --pipeline-model-parallel-layout 'Et*24|t*24L'",
     "not beside --pipeline-model-parallel-layout"),
])
def test_stages_that_megatron_refuses_are_refused_with_the_argument(tmp_path, arguments, why):
    script = SCRIPT.replace("--lr 1e-4", arguments)
    expect_error(moesim("train", "--megatron", write(tmp_path, script)), 2, "run.sh:3", why)


def test_typed_sizes_divide_the_layers_anew(tmp_path):
    path = write(tmp_path, SCRIPT.replace("--lr 1e-4", "--decoder-first-pipeline-num-layers 18"))
    assert layout_of(path) == "Et*18|t*30L"
    assert layout_of(path, "--pipeline-parallel", 4) == "Et*18|t*10|t*10|t*10L"
    assert layout_of(path, "--pipeline-parallel", 1) == "Et*48L"
    assert layout_of(path, "--pipeline-layout", "Et*20|t*28L") == "Et*20|t*28L"
    expect_error(moesim("train", "--megatron", path, "--pipeline-parallel", "2,4"), 2, "goes with one --model")
    chunks = write(tmp_path, SCRIPT.replace("--lr 1e-4", "--num-virtual-stages-per-pipeline-rank 4"))
    assert figures("layout", "--megatron", chunks)["virtual_pipeline"] == 4
    assert layout_of(chunks, "--pipeline-layout", "Et*20|t*28L") == "Et*20|t*28L"


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
    assert json.loads(result.stdout)["step_ms"] == figures("train", "--megatron", typed)["step_ms"]


def test_a_typed_model_leaves_out_that_of_the_script(tmp_path):
    path = write(tmp_path, SCRIPT.replace("--vocab-size 151936", ""))
    result = moesim("train", "--megatron", path, "--model", "qwen3-30b-a3b", "--format", "json")
    whole = figures("train", "--megatron", write(tmp_path, SCRIPT, "whole.sh"))
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


def test_groups_that_do_not_divide_the_experts_are_refused_when_read(tmp_path):
    script = SCRIPT.replace("--num-experts 128", "--num-experts 128 --moe-router-num-groups 7 --moe-router-group-topk 3")
    assert script != SCRIPT
    path = write(tmp_path, script)
    expect_error(moesim("train", "--megatron", path), 2, f"{path}:", "--moe-router-num-groups",
                 "128 experts (--num-experts) do not divide into 7 groups")
    for groups, kept in ((8, 9), (64, 1)):
        path = write(tmp_path, SCRIPT.replace(
            "--num-experts 128", f"--num-experts 128 --moe-router-num-groups {groups} --moe-router-group-topk {kept}"))
        expect_error(moesim("train", "--megatron", path), 2, f"{path}:", "--moe-router-group-topk",
                     f"{kept} of {groups} groups (--moe-router-num-groups) of 128 experts")


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


@pytest.mark.parametrize("first, nodes", [
    ("#SBATCH --nodes=8\n", "$SLURM_NNODES"),
    ("#SBATCH -N 8\n", "${SLURM_JOB_NUM_NODES}"),
    ("#SBATCH -N8 --gres=gpu:8\nNNODES=${SLURM_NNODES:-1}\n", "$NNODES"),
    ("#SBATCH --nodes 8\nNNODES=$(scontrol show hostnames | wc -l)\n", "$NNODES"),
])
def test_the_nodes_are_those_of_slurm(tmp_path, first, nodes):
    script = SCRIPT.replace("#SBATCH --job-name=qwen\n", first).replace("NNODES=${NNODES:-8}      # nodes\n", "") \
                   .replace("--nnodes $NNODES", f"--nnodes {nodes}").replace("GBS=$((NNODES * GPUS_PER_NODE * 4))", "GBS=256")
    assert figures("train", "--megatron", write(tmp_path, script)) == figures("train", "--megatron", write(tmp_path, SCRIPT))


def launched(tmp_path, command):
    """A script of which the last line of `command` begins the one that trains."""
    model = SCRIPT.split("MODEL_ARGS=(")[1].split(")")[0]
    *first, last = command.split("\n")
    return write(tmp_path, "\n".join([*first, f"ARGS=({model})", f"{last} pretrain_gpt.py ${{ARGS[@]}} --bf16\n"]))


@pytest.mark.parametrize("command, gpus", [
    ("#SBATCH -N 16\n#SBATCH --gres=gpu:h100:8 --ntasks-per-node=1\nsrun", 128),
    ("#SBATCH --nodes=4 --ntasks-per-node=8 --gpus-per-node=8\nsrun --ntasks-per-node=8", 32),
    ("srun -N 2 -n 16", 16),
    ("#!/bin/bash\n\n# nodes\n#SBATCH -N 4 --gpus-per-node=8\nmodule load x\n#SBATCH -N 16\nsrun", 32),
    ("#SBATCH -n 24\nsrun", 24),
    ("#SBATCH -N 8\n#SBATCH -G 64\nsrun", 64),
    ("#SBATCH --gpus=h100:64\nsrun", 64),
    ("#SBATCH --nodes=8 --ntasks-per-node=1 --gpus-per-task=8\nsrun", 64),
    ("#SBATCH --ntasks=16 --gpus-per-task=1\nsrun", 16),
    ("#SBATCH --nodes 8 --gres=gpu:a100:8,nvme:1\nsrun", 64),
    ("#SBATCH --nodes 8 --gres=nvme:1,gpu:8\nsrun", 64),
    ("#SBATCH --nodes 8-8 --gres=gpu\nsrun", 8),
    ("#SBATCH --nodes 8 --gres=gpu:a100:8,nvme:1 --ntasks-per-node=1\nsrun torchrun --nproc-per-node $SLURM_GPUS_ON_NODE", 64),
    ("#SBATCH --nodes 8 --gpus-per-node=8 --ntasks-per-node=1\nsrun torchrun --nproc-per-node gpu --nnodes 8", 64),
    ("mpirun -np 64 -npernode 8", 64),
    ("mpiexec -n 64", 64),
    ("/usr/bin/mpirun -np 64", 64),
    ("env A=1 /opt/slurm/bin/srun -N 8 --ntasks-per-node=8", 64),
    ("timeout 60 mpirun -np 64", 64),
    ("torchrun --nproc_per_node 8 --nnodes 8:8", 64),
    ("torchrun --nproc_per_node 8 --nnodes=8:8", 64),
    ("accelerate launch --num_processes 64 --num_machines 8", 64),
])
def test_slurm_alone_says_how_many_gpus(tmp_path, command, gpus):
    result = moesim("layout", "--megatron", launched(tmp_path, command + " python"), "--format", "json")
    assert "how many GPUs" not in result.stderr
    first = json.loads(result.stdout)
    assert first["gpus"] == gpus
    assert first["global_batch"] == gpus  # Megatron-LM's default: a micro-batch of each pipeline


def test_deepspeed_starts_gpus_on_each_node(tmp_path):
    assert figures("layout", "--megatron", launched(tmp_path, "deepspeed --num_nodes 4 --num_gpus 8"))["gpus"] == 32


@pytest.mark.parametrize("command", [
    "python", "bash -c 'python' python", "srun python", "#SBATCH --nodes=8 --ntasks-per-node=1\nsrun python",
    "#SBATCH -N 8 -n 8\nsrun python", "python -n 4 -N 2 -G 8", "docker run --gpus all python",
])
def test_the_default_number_of_gpus_is_said(tmp_path, command):
    script = launched(tmp_path, command)
    result = moesim("layout", "--megatron", script, "--format", "json")
    assert json.loads(result.stdout)["gpus"] == 32
    assert "it does not say how many GPUs there are: --gpus 32, the default" in result.stderr
    assert "how many GPUs" not in moesim("layout", "--megatron", script, "--gpus", 8).stderr


@pytest.mark.parametrize("command, why", [
    ("#SBATCH --nodes=8 --ntasks-per-node=1\nsrun torchrun --nproc_per_node=$GPUS_PER_NODE", "'$GPUS_PER_NODE': the script does not set it"),
    ("torchrun --nproc_per_node gpu --nnodes 4", "'gpu': the file does not say how many GPUs a node has"),
])
def test_an_unknown_number_of_gpus_on_a_node_is_refused(tmp_path, command, why):
    script = launched(tmp_path, command)
    expect_error(moesim("layout", "--megatron", script), 2, "--nproc-per-node", why)
    assert figures("layout", "--megatron", script, "--gpus", 16)["gpus"] == 16


@pytest.mark.parametrize("command, why", [
    ("torchrun --nproc_per_node 8 --nnodes 2:16", "--nnodes: '2:16' may be 2 nodes or 16: put their number there, or give --gpus"),
    ("#SBATCH --nodes=2-16 --gpus-per-node=8\nsrun", "--nodes: '2-16' may be 2 nodes or 16"),
    ("torchrun --nproc_per_node 8 --nnodes 16:x", "'16:x' is not a whole number"),
])
def test_a_number_of_nodes_that_may_be_several_is_refused(tmp_path, command, why):
    script = launched(tmp_path, command)
    expect_error(moesim("layout", "--megatron", script), 2, why)
    assert figures("layout", "--megatron", script, "--gpus", 16)["gpus"] == 16


def test_typed_options_win_over_values_that_no_option_has(tmp_path):
    script = (SCRIPT.replace("MBS=2\n", "").replace("GPUS_PER_NODE=8", "").replace("GBS=$((NNODES * * 4))", "")
              .replace("--bf16", "--fp16 --cp-comm-type a2a+p2p"))
    read = figures("train", "--megatron", write(tmp_path, script), "--gpus", 64, "--micro-batch", 2, "--global-batch", 256,
                   "--precision", "bf16", "--context-method", "ring")
    assert read["step_ms"] == figures("train", "--megatron", write(tmp_path, SCRIPT))["step_ms"]


def test_older_and_newer_names_are_understood(tmp_path):
    names = "--moe-layer-recompute --moe-token-drop-policy probs --fp8-recipe delayed --main-grads-dtype bf16 --rope-type rope"
    script = SCRIPT.replace("--recompute-granularity selective --recompute-modules moe_act layernorm", names)
    result = moesim("train", "--megatron", write(tmp_path, script), "--format", "json")
    assert "1 not understood: --warp-drive" in result.stderr
    read = json.loads(result.stdout)
    assert (read["recompute"], read["gradients"], read["precision"]) == ("core_attn,moe", "bf16", "bf16")


def test_a_gated_gelu_has_three_matrices(tmp_path):
    geglu = figures("train", "--megatron", write(tmp_path, SCRIPT.replace("--swiglu", "--quick-geglu")))
    assert geglu["step_ms"] == figures("train", "--megatron", write(tmp_path, SCRIPT))["step_ms"]


def test_clamps_before_the_activation_take_time_and_memory(tmp_path):
    assert "--recompute-modules moe_act" in SCRIPT  # which keeps their memory away
    script = SCRIPT.replace("--recompute-modules moe_act layernorm", "--recompute-modules layernorm")
    plain = figures("train", "--megatron", write(tmp_path, script))
    clamped = figures("train", "--megatron",
                      write(tmp_path, script.replace("--swiglu", "--swiglu --activation-func-clamp-value 7.0")))
    assert clamped["step_ms"] > 1.01 * plain["step_ms"]
    assert clamped["memory_gib"] > plain["memory_gib"]


def test_units_without_a_gate_clamp_nothing(tmp_path):
    plain = SCRIPT.replace("--swiglu", "")
    clamped = SCRIPT.replace("--swiglu", "--activation-func-clamp-value 7.0")
    words = ("train", "--format", "json", "--megatron")
    result = moesim(*words, write(tmp_path, clamped))
    assert "note: " in result.stderr and "--activation-func-clamp-value has no effect: Megatron-LM clamps in gated units alone" in result.stderr
    assert json.loads(result.stdout)["step_ms"] == figures("train", "--megatron", write(tmp_path, plain, "plain.sh"))["step_ms"]
    gated = moesim(*words, write(tmp_path, clamped.replace("--activation-func", "--swiglu --activation-func"), "gated.sh"))
    assert "has no effect" not in gated.stderr


def with_capacity(arguments=""):
    return (SCRIPT.replace("--num-experts 128", f"--moe-expert-capacity-factor 1.0 {arguments} --num-experts 128")
            .replace("--num-layers 48", "--num-layers 4"))


@pytest.mark.parametrize("arguments, typed, priority", [
    ("", (), "own-weight"),  # a softmax over the 8 that a token chooses
    ("--moe-token-drop-policy probs", (), "own-weight"),
    ("--moe-router-score-function sigmoid", (), "own-weight"),  # over the sum of the 8
    ("--moe-router-pre-softmax", (), "own-score"),
    ("--moe-router-score-function softmax --moe-router-pre-softmax", (), "own-score"),
    ("--moe-router-score-function sigmoid --moe-router-pre-softmax", (), "own-weight"),  # of a softmax alone
    ("--moe-router-score-function sigmoid --moe-router-pre-softmax", ("--top-k", 1), "own-score"),
    ("--moe-token-drop-policy position", (), "token-order"),
    ("", ("--router", "top1"), "own-score"),  # a softmax over one is 1 for all
    ("", ("--top-k", 1), "own-score"),
    ("", ("--router", "top2"), "own-weight"),
    ("", ("--priority", "random"), "random"),
])
def test_a_capacity_drops_by_megatrons_rule(tmp_path, arguments, typed, priority):
    script = with_capacity(arguments)
    read = figures("train", "--megatron", write(tmp_path, script), *typed)
    assert read["priority"] == priority
    assert "moe-router-pre-softmax" not in moesim("layout", "--megatron", write(tmp_path, script)).stderr


@pytest.mark.parametrize("arguments", [
    "", "--moe-pad-expert-input-to-capacity", "--moe-token-drop-policy position", "--moe-router-pre-softmax",
    "--moe-router-score-function sigmoid"])
def test_a_typed_capacity_is_as_if_it_stood_in_the_script(tmp_path, arguments):
    script = with_capacity(arguments)
    read = figures("train", "--megatron", write(tmp_path, script))
    without = write(tmp_path, script.replace("--moe-expert-capacity-factor 1.0", ""), "without.sh")
    typed = figures("train", "--megatron", without, "--capacity-factor", "1.0")
    assert typed["padding"] == ("capacity" if "pad" in arguments else "none") and typed["residual_loss"] > 0
    assert {key: value for key, value in typed.items() if key != "model"} == \
        {key: value for key, value in read.items() if key != "model"}
    grid = succeed("train", "--megatron", without, "--capacity-factor", "1,1.25", "--format", "csv").splitlines()
    assert next(csv.DictReader(grid))["padding"] == typed["padding"]


def test_a_typed_dialect_says_how_a_capacity_drops(tmp_path):
    script = write(tmp_path, with_capacity("--moe-token-drop-policy position"))
    read = figures("train", "--megatron", script, "--router-dialect", "paper")
    assert (read["padding"], read["priority"]) == ("capacity", "token-max")


@pytest.mark.parametrize("arguments, columns", [
    ("", {}),
    ("--moe-router-score-function sigmoid", {"score_function": "sigmoid"}),
    # A bias: topk in the place of a router without capacity.
    ("--moe-router-score-function sigmoid --moe-router-enable-expert-bias", {"score_function": "sigmoid"}),
    ("--moe-router-num-groups 8 --moe-router-group-topk 4", {"group_score": "topk-logits"}),
    ("--moe-router-num-groups 8 --moe-router-group-topk 4 --moe-router-pre-softmax", {"group_score": "topk"}),
])
def test_scores_are_those_of_the_script(tmp_path, arguments, columns):
    read = figures("train", "--megatron", write(tmp_path, with_capacity(arguments)))
    assert {name: read[name] for name in ("score_function", "group_score") if name in read} == columns


def test_no_routing_is_drawn_for_scores_alone(tmp_path):
    scores = SCRIPT.replace("--num-experts 128", "--moe-router-num-groups 8 --moe-router-group-topk 4 --num-experts 128")
    assert "router" not in figures("train", "--megatron", write(tmp_path, scores))


@pytest.mark.parametrize("arguments, typed", [
    ("", ("--top-k", "1,2")),
    ("", ("--top-k", "1:3:1")),
    ("", ("--router", "top1,top2")),
    ("", ("--router", "topk,top1", "--model", "qwen3-30b-a3b")),
])
def test_one_priority_is_not_of_tokens_with_one_expert_and_of_more(tmp_path, arguments, typed):
    script = write(tmp_path, with_capacity(arguments))
    expect_error(moesim("train", "--megatron", script, *typed), 2, f"{typed[0]} {typed[1]}: with a capacity",
                 "own-score where a token chooses one expert, else by own-weight", "type a --priority")
    succeed("train", "--megatron", script, *typed, "--priority", "own-score")


@pytest.mark.parametrize("arguments, typed, priority", [
    ("", ("--top-k", "2,4"), "own-weight"),
    ("", ("--router", "top1,top1+ir"), "own-score"),
    ("", ("--router", "dropless,top1"), "own-score"),  # of those that drop
    ("--moe-router-pre-softmax", ("--top-k", "1,2"), "own-score"),
    ("--moe-token-drop-policy position", ("--top-k", "1,2"), "token-order"),
])
def test_lists_of_one_rule_have_its_priority(tmp_path, arguments, typed, priority):
    script = write(tmp_path, with_capacity(arguments))
    rows = succeed("train", "--megatron", script, *typed, "--format", "csv").splitlines()
    found = {cells["priority"] for cells in csv.DictReader(rows)} - {""}
    assert found == {priority}


def test_a_drop_policy_is_one_of_megatrons(tmp_path):
    script = write(tmp_path, with_capacity("--moe-token-drop-policy nonsense"))
    expect_error(moesim("train", "--megatron", script), 2, "--moe-token-drop-policy: 'nonsense': known are position, probs")


def test_what_the_file_says_is_not_noted_as_typed(tmp_path):
    script = write(tmp_path, with_capacity())
    assert "has no effect" not in moesim("train", "--megatron", script, "--router", "dropless").stderr
    typed = moesim("train", "--megatron", script, "--router", "dropless", "--priority", "random")
    assert "--priority has no effect" in typed.stderr


def test_dropping_by_weight_loses_less_than_by_the_best_score(tmp_path):
    script = write(tmp_path, with_capacity())
    read, best = (figures("train", "--megatron", script, "--seed", 2, *words) for words in ((), ("--priority", "token-max")))
    dialect = figures("train", "--megatron", script, "--seed", 2, "--router-dialect", "megatron")
    assert read["residual_loss"] == dialect["residual_loss"] < 0.9 * best["residual_loss"]


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
    assert json.loads(result.stdout) == figures("train", *HYDRA_TYPED)
    assert "the recipe of Megatron-Bridge that it names is not read" in result.stderr
    assert "0 not understood" in result.stderr
    assert "priced as without --first-last-layers-bf16" in result.stderr


def test_a_recipe_alone_has_no_model(tmp_path):
    expect_error(moesim("train", "--megatron", write(tmp_path, HYDRA)), 2, "--num-layers is missing", "give --model")


PERFORMANCE = """python scripts/performance/setup_experiment.py --account x -p y -m qwen -mr qwen3_30b_a3b --gpu h100 -ng 64 -gn 8 \\
  -tp 1 -pp 2 -vp 4 -ep 8 -cp 1 -mb 2 -gb 512 -sl 4096 --compute_dtype fp8_cs --recompute_modules moe_act,layernorm \\
  --moe_a2a_overlap false --use_megatron_fsdp false --moe_flex_dispatcher_backend deepep"""


def test_options_of_megatron_bridges_performance_scripts(tmp_path):
    typed = ("--model", "qwen3-30b-a3b", "--gpus", 64, "--pipeline-parallel", 2, "--expert-parallel", 8, "--micro-batch", 2,
             "--global-batch", 512, "--precision", "fp8-current", "--gradients", "bf16", "--recompute", "moe_act,layernorm",
             "--dispatcher", "deepep")
    result = moesim("train", "--megatron", write(tmp_path, PERFORMANCE), "--model", "qwen3-30b-a3b", "--format", "json")
    assert json.loads(result.stdout) == figures("train", *typed, "--virtual-pipeline", 4)
    assert "3 not understood: -m -mr -p" in result.stderr
    long = (PERFORMANCE.replace("-ng 64", "--num_gpus 64").replace("-tp 1", "--tensor_model_parallel_size 1").replace("-vp 4", "-vp None")
            .replace("--compute_dtype fp8_cs", "-c fp8_cs"))
    assert figures("train", "--megatron", write(tmp_path, long), "--model", "qwen3-30b-a3b") == figures("train", *typed)
    overlap = PERFORMANCE.replace("overlap false", "overlap true")
    assert figures("train", "--megatron", write(tmp_path, overlap), "--model", "qwen3-30b-a3b") == \
        figures("train", *typed, "--virtual-pipeline", 4, "--ep-overlap", "on")
    assert "--delay-wgrad-compute" not in moesim("layout", "--megatron", write(tmp_path, overlap), "--model", "qwen3-30b-a3b").stderr
    layers = PERFORMANCE.replace("--recompute_modules moe_act,layernorm", "-rl 3")
    assert figures("layout", "--megatron", write(tmp_path, layers), "--model", "qwen3-30b-a3b")["recompute"] == "full:block:3"
    expect_error(moesim("train", "--megatron", write(tmp_path, PERFORMANCE.replace("fp8_cs", "fp9")), "--model", "qwen3-30b-a3b"),
                 2, "run.sh:2: --compute_dtype: 'fp9'", "fp8_mx")


def test_gpus_of_a_performance_script_are_the_profile(tmp_path):
    words = ("train", "--model", "qwen3-30b-a3b", "--megatron")
    script = write(tmp_path, PERFORMANCE.replace("--gpu h100", "--gpu gb200"))
    assert figures(*words, script)["profile"] == "gb200"
    assert figures(*words, script, "--profile", "h200-sxm")["profile"] == "h200-sxm"
    assert figures(*words, script, "--cluster", "hgx-h100")["profile"] == "h100-sxm"
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
    assert json.loads(result.stdout) == figures("train", "--megatron", write(tmp_path, SCRIPT))


@pytest.mark.parametrize("text, name, rest", [
    ("python train.py --config x.toml --lr 1e-4\n", "run.sh", "only --config --lr"),
    ("torchrun train.py -tp 4 --lr 1\n", "run.sh", "only -tp --lr"),
    ("parallelism:\n  expert_parallel_degree: 8\n", "run.yaml", "only --expert-parallel-degree"),
])
def test_arguments_of_other_software_are_refused(tmp_path, text, name, rest):
    expect_error(moesim("train", "--megatron", write(tmp_path, text, name), "--model", "qwen3-30b-a3b"), 2, name,
                 "neither a size of the model nor a layout in it", rest)


KEYS = YAML.replace("  --", "  ").replace("swiglu: true", "gated_linear_unit: true").replace("MODEL_ARGS", "model")


def of_keys(tmp_path, text):
    result = moesim("train", "--megatron", write(tmp_path, text, "run.yaml"), "--gpus", 64, "--format", "json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout), result.stderr


@pytest.mark.parametrize("recipe, precision", [
    ("bf16_mixed", "bf16"), ("bf16_with_fp8_current_scaling_mixed", "fp8-current"), ("bf16-with-fp8-current-scaling-mixed", "fp8-current"),
    ("bf16_with_fp8_delayed_scaling_mixed", "fp8-delayed"), ("bf16_with_fp8_subchannel_scaling_mixed", "fp8-block"),
])
def test_recipes_of_mixed_precision_are_read(tmp_path, recipe, precision):
    gathered = "bf16" if "subchannel" in recipe else "low"
    typed = figures("train", "--megatron", write(tmp_path, YAML, "run.yaml"), "--gpus", 64, "--precision", precision,
                    "--gather-precision", gathered)
    read, said = of_keys(tmp_path, KEYS + f"mixed_precision: {recipe}\nddp:\n  grad_reduce_in_fp32: false\n")
    assert read == typed
    assert "--bf16, which it does not have" not in said


def test_other_recipes_of_mixed_precision_are_refused_or_not_understood(tmp_path):
    blackwell = write(tmp_path, KEYS + "mixed_precision: bf16_with_mxfp8_mixed\n", "run.yaml")
    assert figures("train", "--megatron", blackwell, "--gpus", 64, "--profile", "b200-sxm")["precision"] == "mxfp8"
    half = write(tmp_path, KEYS + "mixed_precision: fp16_mixed\n", "run.yaml")
    expect_error(moesim("train", "--megatron", half), 2, "--fp16")
    assert "1 not understood: --mixed-precision" in of_keys(tmp_path, KEYS + "mixed_precision: nemotron_9_mixed\n")[1]


def test_the_model_of_a_file_with_a_vision_tower_is_the_language_model(tmp_path):
    tower = "vision_config:\n  num_layers: 24\n  hidden_size: 1152\n  num_attention_heads: 16\n"
    read, said = of_keys(tmp_path, KEYS + tower)
    assert read == of_keys(tmp_path, KEYS)[0]
    assert "arguments left out: 3 of vision_config (line " in said


def test_a_key_with_two_values_is_noted(tmp_path):
    read, said = of_keys(tmp_path, KEYS.replace("model:", "a:") + "b:\n  num_layers: 24\n")
    assert "--num-layers is given twice, as 48 (line 6) and as 24 (line " in said
    assert read["step_ms"] < 0.7 * of_keys(tmp_path, KEYS)[0]["step_ms"]
    assert "given twice" not in of_keys(tmp_path, KEYS + "tokenizer:\n  vocab_size: 32000\n")[1]


@pytest.mark.parametrize("frequency", ["1 2>&1", "1 > log.txt", "[0]*0+[1]*48 2>&1", "[0]*0 + [1]*48"])
def test_words_behind_a_frequency_are_not_of_it(tmp_path, frequency):
    script = with_argument(tmp_path, f"--moe-layer-freq {frequency} --swiglu")
    assert figures("train", "--megatron", script) == figures("train", "--megatron", write(tmp_path, SCRIPT))


@pytest.mark.parametrize("pattern", ["01", "0001"])
def test_lists_of_moe_layers_are_joined(tmp_path, pattern):
    layers = (pattern * 48)[:48]
    flow = KEYS + f"  moe_layer_freq: [{', '.join(layers)}]\n"
    block = KEYS + "  moe_layer_freq:\n" + "".join(f"  - {each}\n" for each in layers)
    flow, block = (text.replace("ENV_VARS:\n  CUDA_DEVICE_MAX_CONNECTIONS: 1\n", "") for text in (flow, block))
    assert of_keys(tmp_path, flow)[0] == of_keys(tmp_path, block)[0]
    groups = "+".join([f"[0]*{len(pattern) - 1}+[1]*1"] * (48 // len(pattern)))
    script = SCRIPT.replace("--swiglu", f'--swiglu --moe-layer-freq "({groups})"')
    read = figures("train", "--megatron", write(tmp_path, script))
    for key in ("step_ms", "memory_gib", "model_gflop_per_token"):
        assert of_keys(tmp_path, flow)[0].get(key) == read.get(key)


def test_a_layout_as_a_list_of_lists_is_its_text(tmp_path):
    def listed(groups):
        return "  pipeline_model_parallel_layout:\n" + "".join(
            "".join(("  - - " if at == 0 else "    - ") + name + "\n" for at, name in enumerate(group)) for group in groups)

    keys = KEYS.replace("ENV_VARS:\n  CUDA_DEVICE_MAX_CONNECTIONS: 1\n", "") + "  mtp_num_layers: 1\n"
    groups = [["embedding"] + ["decoder"] * 26, ["decoder"] * 22 + ["mtp", "loss"]]
    block = write(tmp_path, keys + listed(groups), "run.yaml")
    assert layout_of(block, "--gpus", 64) == "Et*26|t*22mL"
    inline = "  pipeline_model_parallel_layout: [" + ", ".join(f"[{', '.join(group)}]" for group in groups) + "]\n"
    assert layout_of(write(tmp_path, keys + inline, "run.yaml"), "--gpus", 64) == "Et*26|t*22mL"
    wrong = write(tmp_path, keys + listed([["embedding", "encoder"], ["loss"]]), "run.yaml")
    expect_error(moesim("layout", "--megatron", wrong, "--gpus", 64), 2, "--pipeline-model-parallel-layout: 'encoder': known are")


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
    assert json.loads(result.stdout) == figures("train", "--megatron", write(tmp_path, words), "--router-dialect", "deepspeed",
                                                "--min-capacity", 8)
    typed = figures("train", "--megatron", write(tmp_path, DEEPSPEED), "--router-dialect", "megatron", "--zero", 3)
    assert typed["zero"] == 3 and typed["router_dialect"] == "megatron"
    hidden = write(tmp_path, DEEPSPEED.replace("--zero-stage 1", ""))
    assert figures("layout", "--megatron", hidden, "--zero", 2)["zero"] == 2


def test_defaults_of_megatron_deepspeed_are_its_own(tmp_path):
    script = DEEPSPEED
    for argument in ("--topk 2", "--expert-interval 3", "--moe-train-capacity-factor 1.25", "--checkpoint-num-layers 2",
                     "--moe-min-capacity 8"):
        script = script.replace(argument, "")
    words = in_megatrons_words(1, 2, "--expert-model-parallel-size 64 --use-distributed-optimizer --recompute-granularity full "
                                     "--moe-expert-capacity-factor 1.0")
    assert figures("train", "--megatron", write(tmp_path, script)) == \
        figures("train", "--megatron", write(tmp_path, words), "--router-dialect", "deepspeed")
    dropless = figures("train", "--megatron", write(tmp_path, script + " --disable-moe-token-dropping"))
    assert dropless == figures("train", "--megatron", write(tmp_path, words.replace("--moe-expert-capacity-factor 1.0", "")))
    dense = write(tmp_path, script.replace("--num-experts 128", "--num-experts 1").replace("--moe-expert-parallel-size 64", ""))
    assert figures("layout", "--megatron", dense)["expert_parallel"] == 1


@pytest.mark.parametrize("old, new, why", [
    ("--num-experts 128", "--num-experts 64 128", "--num-experts: layers with different numbers"),
    ("--mlp-type standard", "--mlp-type residual", "--mlp-type: a dense unit beside the experts"),
    ("--zero-stage 1", "", "--deepspeed: the stage of ZeRO is in a file that is not read"),
    ("--zero-stage 1", "--zero-stage 1.5", "--zero-stage: '1.5': known are 0, 1, 2, 3"),
    ("--bf16", "--bf16 --ds-sequence-parallel-size 2", "--ds-sequence-parallel-size: DeepSpeed's sequence parallelism"),
])
def test_what_megatron_deepspeed_has_alone_is_refused(tmp_path, old, new, why):
    expect_error(moesim("train", "--megatron", write(tmp_path, DEEPSPEED.replace(old, new))), 2, why)


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
    preset = figures(*layout, "--model", "qwen3-next-80b-a3b") | {"model": ""}
    assert figures(*layout, "--model", script) | {"model": ""} == preset
    # As lists, by other names of releases, and as keys of a YAML.
    for old, new in (("freq 4", "freq '([1]*3+[0]*1)*12'"),
                     ("freq 4", f"freq [{','.join(12 * ['1,1,1,0'])}]"),
                     ("gated_delta_net", "gdn"), ("--experimental-attention-variant", "--linear-attention-type")):
        changed = " ".join(NEXT.split()).replace(old, new)
        assert figures(*layout, "--model", write(tmp_path, f"python pretrain_gpt.py {changed}")) | {"model": ""} == preset
    words = " ".join(NEXT.split()).split(" --")
    keys = "".join(f"  {each.removeprefix('--').replace('-', '_').replace(' ', ': ')}" + ("" if " " in each else ": true") + "\n"
                   for each in words)
    for freq in ("4", f"[{', '.join(12 * ['1, 1, 1, 0'])}]", "([1]*3+[0]*1)*12"):
        yaml = write(tmp_path, "model:\n" + keys.replace("linear_attention_freq: 4", f"linear_attention_freq: {freq}"), "run.yaml")
        assert figures(*layout, "--model", yaml) | {"model": ""} == preset
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
    read = figures("layout", "--megatron", script)
    path = str(pathlib.Path(__file__).resolve().parents[2] / "data" / "hugging_face" / "qwen3.5-35b-a3b.json")
    typed = figures("layout", "--model", path, "--gpus", 64, "--expert-parallel", 16, "--context-parallel", 4,
                    "--global-batch", 64, "--pipeline-layout", "Et*40mL", "--zero", 0)
    for key in ("model_gflop_per_token", "pipeline_layout", "micro_batches"):
        assert read[key] == typed[key]


def test_a_ratio_of_no_other_layers_is_none(tmp_path):
    script = SCRIPT.replace("--warp-drive 9", "--hybrid-attention-ratio 0.0 --hybrid-mlp-ratio 0")
    assert figures("layout", "--megatron", write(tmp_path, script)) == figures("layout", "--megatron", write(tmp_path, SCRIPT))


NEMO = """
name: megatron_gpt
trainer:
  devices: 8
  num_nodes: 4
  precision: bf16
model:
  mcore_gpt: True
  micro_batch_size: 1
  global_batch_size: 256
  tensor_model_parallel_size: 2
  sequence_parallel: True
  encoder_seq_length: 4096
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 14336
  num_attention_heads: 32
  num_query_groups: 8
  bias: false
  activation: fast-swiglu
  share_embeddings_and_output_weights: False
  activations_checkpoint_granularity: full
  activations_checkpoint_method: block
  activations_checkpoint_num_layers: 3
  vocab_size: 32000
  optim:
    name: distributed_fused_adam
"""


def test_keys_of_nemo_1_have_counterparts(tmp_path):
    words = ("torchrun --nproc-per-node 8 --nnodes 4 pretrain.py --micro-batch-size 1 --global-batch-size 256 --sequence-parallel "
             "--tensor-model-parallel-size 2 --seq-length 4096 --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 "
             "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --disable-bias-linear --swiglu "
             "--untie-embeddings-and-output-weights --recompute-granularity full --recompute-method block "
             "--recompute-num-layers 3 --vocab-size 32000 --use-distributed-optimizer --bf16\n")
    read = figures("train", "--megatron", write(tmp_path, NEMO, "run.yaml"))
    typed = figures("train", "--megatron", write(tmp_path, words))
    assert read == {**typed, "model": read["model"]}
    assert (read["gpus"], read["zero"]) == (32, 1)
    half = write(tmp_path, NEMO.replace("precision: bf16", "precision: 16-mixed"), "run.yaml")
    expect_error(moesim("train", "--megatron", half), 2, "--fp16")


def test_a_method_of_recomputation_alone_was_full_once(tmp_path):
    old = SCRIPT.replace("--recompute-granularity selective --recompute-modules moe_act layernorm", "--activations-checkpoint-method uniform")
    assert figures("layout", "--megatron", write(tmp_path, old))["recompute"] == "full"


def with_argument(tmp_path, argument):
    return write(tmp_path, SCRIPT.replace("--warp-drive 9", argument))


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
    assert json.loads(result.stdout) == figures("train", "--megatron", write(tmp_path, SCRIPT))


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


def test_limited_devices_are_groups_of_a_rank(tmp_path):
    limited = with_argument(tmp_path, "--moe-router-topk-limited-devices 3")
    drawn = ("--routing", "gaussian:0.5", "--capacity-factor", 1)
    read = figures("train", "--megatron", limited, *drawn)
    groups = SCRIPT.replace("--warp-drive 9", "--moe-router-num-groups 8 --moe-router-group-topk 3")
    assert read == figures("train", "--megatron", write(tmp_path, groups), *drawn, "--group-score", "max")
    assert read["router"] == "group-limited:8:3"
