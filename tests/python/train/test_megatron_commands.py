"""--megatron FILE: which of a script's lists of arguments reach the command that trains."""

import json

import pytest
from command_line import as_json, expect_error, moesim, needs_binary
from megatron_files import layout_of, SCRIPT, write

pytestmark = needs_binary

HEAD, COMMAND = SCRIPT.split("torchrun ")
COMMAND = COMMAND.replace(" | tee log.txt", "").rstrip()
ONE_LINE = COMMAND.replace("\\\n", " ")


def test_fallbacks_are_expanded_and_nested_arithmetic_counts(tmp_path):
    """As Megatron-LM's own examples write them: ${NAME:-"2"}."""
    script = SCRIPT.replace("NNODES=${NNODES:-8}      # nodes", "D=8\n: ${NNODES:=${D}}") \
                   .replace("TP=1; PP=2; EP=8", "TP=${TP:-'1'}; PP=${PP:-\"2\"}; EP=${EP:-$((2 * (1 + 3)))}") \
                   .replace("GBS=$((NNODES * GPUS_PER_NODE * 4))", "GBS=$(((NNODES * GPUS_PER_NODE) * (8 / (1 + 1))))")
    assert script != SCRIPT
    figures_of = as_json("train", "--megatron", write(tmp_path, script))
    assert figures_of == as_json("train", "--megatron", write(tmp_path, SCRIPT))


@pytest.mark.parametrize("lines, size", [
    ("N=6400", "${N:0:3}"), ("N=x640y", "${N:1:-1}"), ("N=1", "${N:+640}"), ("N=640", "${N:+$N}"), ("N=", "${N:-640}"),
])
def test_operations_on_a_variable_are_done(tmp_path, lines, size):
    script = SCRIPT.replace("MBS=2\n", f"MBS=2\n{lines}\n").replace('"$GBS"', f'"{size}" ${{N:+--fp8-format hybrid}} ${{M:+--fp16}}')
    read = as_json("layout", "--megatron", write(tmp_path, script))
    assert read["global_batch"] == 640
    precision = as_json("train", "--megatron", write(tmp_path, script))["precision"]
    assert precision == ("bf16" if lines == "N=" else "fp8-delayed")


@pytest.mark.parametrize("size", ["${N%0}", "${N#6}", "${N/%0/}", "${N//[0]/}", "${N^^}", "${M:0:2}"])
def test_an_operation_that_is_not_done_is_refused(tmp_path, size):
    script = SCRIPT.replace("MBS=2\n", "MBS=2\nN=6400\n").replace('"$GBS"', f'"{size}"')
    expect_error(moesim("train", "--megatron", write(tmp_path, script)), 2, f"--global-batch-size: '{size}'", "put its value there")


def test_fallbacks_of_a_script_with_many_variables_take_no_minutes(tmp_path):
    """Each was read with a copy of all variables."""
    variables = "".join(f"unused_{number}=1\n" for number in range(25_000))
    script = SCRIPT.replace("#!/bin/bash", "#!/bin/bash\n" + variables + "echo " + 20_000 * "${OTHER:-}")
    assert moesim("train", "--megatron", write(tmp_path, script), timeout=30).returncode == 0


def test_lists_that_no_command_uses_are_left_out_and_named(tmp_path):
    old = "OLD=(--fp8-format hybrid\n --recompute-granularity full)\nOLDER='--fp16'\n"
    script = SCRIPT.replace("torchrun ", old + "torchrun ")
    result = moesim("train", "--megatron", write(tmp_path, script), "--format", "json")
    assert json.loads(result.stdout) == as_json("train", "--megatron", write(tmp_path, SCRIPT))
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
    assert as_json("layout", "--megatron", write(tmp_path, script))["global_batch"] == 512


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
    assert json.loads(result.stdout) == as_json("train", "--megatron", write(tmp_path, SCRIPT))
    assert "1 not understood: --warp-drive" in result.stderr
    assert "left out" not in result.stderr


@pytest.mark.parametrize("begin, end", [('export ALL="', '"'), ("ALL=(", ")")])
def test_lists_of_a_command_that_is_not_seen_are_taken_with_a_note(tmp_path, begin, end):
    arguments = ONE_LINE.replace('"${DATA}"', "/data").replace('"${MODEL_ARGS[@]}"', "").replace('"', "")
    script = f"{HEAD}{begin}{arguments}{end}\n. ./common.sh\nbash inner.sh --fast\n"
    result = moesim("train", "--megatron", write(tmp_path, script), "--format", "json")
    assert json.loads(result.stdout) == as_json("train", "--megatron", write(tmp_path, SCRIPT))
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
    assert json.loads(result.stdout) == as_json("train", "--megatron", write(tmp_path, SCRIPT))
    assert "1 not understood: --warp-drive; arguments left out: " in result.stderr
    assert " of tools/run_server.py (line " in result.stderr


def test_what_runs_the_training_is_taken(tmp_path):
    script = SCRIPT.replace("--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES", "") + "srun -N 2 nvidia-smi --query\n"
    for run, end in (("srun -N 4 --ntasks-per-node 8", ""), ("srun -N 4 --ntasks-per-node 8 bash <<EOF\n", "EOF\n")):
        path = write(tmp_path, script.replace("torchrun ", f"{run} torchrun ").replace("log.txt\n", f"log.txt\n{end}"))
        assert as_json("layout", "--megatron", path)["gpus"] == 32
    # A script that another command runs.
    written = script.replace("torchrun ", "cat > job.sh <<EOF\npython ").replace("log.txt\n", "log.txt\nEOF\n")
    written = written.replace("srun -N 2 nvidia-smi --query", "torchrun --nproc-per-node 8 --nnodes 4 job.sh")
    assert as_json("layout", "--megatron", write(tmp_path, written))["gpus"] == 32


@pytest.mark.parametrize("hidden", ["$(cat args.txt)", '"${!REST}"', "$REST"])
def test_lists_count_where_the_command_hides_its_arguments(tmp_path, hidden):
    first, command = SCRIPT.split("torchrun ")
    rest = ONE_LINE.split('"${MODEL_ARGS[@]}"')[1].replace('"${DATA}"', "/data").replace('"', "")
    script = f"{first}cat > args.txt <<EOF\n--bf16 ${{MODEL_ARGS[*]}} {rest}\nEOF\n" \
             f"torchrun $DISTRIBUTED_ARGS pretrain_gpt.py --lr 1 {hidden}\n"
    result = moesim("train", "--megatron", write(tmp_path, script), "--format", "json")
    assert json.loads(result.stdout) == as_json("train", "--megatron", write(tmp_path, SCRIPT))
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
    read = as_json("train", "--megatron", write(tmp_path, script))
    assert (read["precision"], read["recompute"]) == ("fp8-delayed", "full")


def test_a_here_document_is_read_whatever_its_apostrophes(tmp_path):
    first, command = SCRIPT.split("torchrun ")
    script = f"{first}sbatch <<'EOF'\n# the user's own\ntorchrun {command}EOF\n"
    assert as_json("train", "--megatron", write(tmp_path, script)) == \
        as_json("train", "--megatron", write(tmp_path, SCRIPT))


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
    read = as_json("train", "--megatron", write(tmp_path, SCRIPT + 20_000 * "<<A\n"))
    assert read == as_json("train", "--megatron", write(tmp_path, SCRIPT))
