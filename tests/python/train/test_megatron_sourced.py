"""Files that launch scripts read: sourced ones, and those of arguments and of variables."""

import pytest
from command_line import needs_binary, refused
from launch_scripts import bash, layout, needs_bash, notes, script_of
from megatron_files import write

pytestmark = needs_binary


@needs_bash
def test_exports_from_a_file_are_read(tmp_path):
    write(tmp_path, "TP=4\nMBS=2\n", "env.txt")
    text = "export $(cat env.txt)\nRUN --tensor-model-parallel-size ${TP:-1} --micro-batch-size ${MBS:-1}"
    _, runs = bash(tmp_path, text)
    assert runs[-1][-3:] == ["4", "--micro-batch-size", "2"]
    read = layout(tmp_path, text)
    assert (read["tensor_parallel"], read["micro_batch"]) == (4, 2)


@needs_bash
@pytest.mark.parametrize("command", ["$(cat args.txt)", "$(< args.txt)", "$(<args.txt)", "`cat args.txt`"])
def test_a_file_of_arguments_is_read(tmp_path, command):
    write(tmp_path, "--micro-batch-size 4\n--tensor-model-parallel-size 2\n", "args.txt")
    text = f"RUN {command}"
    _, runs = bash(tmp_path, text)
    assert runs[-1][-3:] == ["4", "--tensor-model-parallel-size", "2"]
    read = layout(tmp_path, text)
    assert (read["tensor_parallel"], read["micro_batch"]) == (2, 4)
    assert notes(tmp_path, text) == ["args.txt (line 1) is read too"]


# Scripts that source a file, the file, and how a note names it.
SOURCES = [
    ("source args.sh\nRUN \"${ARGS[@]}\"", "args.sh", "args.sh (line 1)"),
    ("source $(dirname $0)/conf/args.sh\nRUN ${ARGS[@]}", "conf/args.sh", "conf/args.sh (line 1)"),
    ("DIR=\"$(cd \"$(dirname \"${BASH_SOURCE[0]}\")\" &>/dev/null && pwd)\"\n. \"${DIR}/conf/args.sh\"\nRUN \"${ARGS[@]}\"",
     "conf/args.sh", "conf/args.sh (line 2)"),
    ("M=moe\nsource conf/$M.sh\nRUN \"${ARGS[@]}\"", "conf/moe.sh", "conf/moe.sh (line 2)"),
    ("ARGS=(--micro-batch-size 8)\nsource $PWD/args.sh\nRUN \"${ARGS[@]}\"", "args.sh", "args.sh (line 2)"),
    ("cd conf\nsource args.sh\ncd ..\nRUN \"${ARGS[@]}\"", "conf/args.sh", "conf/args.sh (line 2)"),
]


@needs_bash
@pytest.mark.parametrize("text, name, told", SOURCES)
def test_a_file_that_is_sourced_is_read(tmp_path, text, name, told):
    write(tmp_path, "ARGS=(\n  --tensor-model-parallel-size 2\n  --micro-batch-size 4  # of each\n)\n", name)
    _, runs = bash(tmp_path, text)
    assert runs[-1][-3:] == ["2", "--micro-batch-size", "4"]
    read = layout(tmp_path, text)
    assert (read["tensor_parallel"], read["micro_batch"]) == (2, 4)
    assert notes(tmp_path, text) == [f"{told} is read too"]


def test_errors_name_the_file_that_is_sourced(tmp_path):
    write(tmp_path, "# sizes\nARGS=(--num-layers x)\n", "args.sh")
    path = write(tmp_path, script_of('source args.sh\nRUN "${ARGS[@]}"'))
    refused("layout", "--megatron", path, parts=("args.sh:2: --num-layers: 'x' is not a whole number",))


def test_a_file_that_is_sourced_and_not_there_is_told_of(tmp_path):
    text = 'source args.sh\nsource ~/.bashrc\nRUN --micro-batch-size ${MBS:-4} "${ARGS[@]}"'
    assert layout(tmp_path, text)["micro_batch"] == 4
    assert notes(tmp_path, text) == ["args.sh (line 1) is not found: what it has is not known",
                                     "${ARGS[@]} (line 3) is not known: arguments in it are not read"]
