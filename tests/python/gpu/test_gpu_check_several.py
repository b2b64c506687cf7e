"""Parts of tools/gpu-check on several GPUs: those that exchange run in processes of their own."""

import pytest
from command_line import needs_binary, succeed
from gpu_check import SCRIPT, SYNTHETIC


def test_several_gpus_whose_exchanges_hang_leave_a_profile_without_them(machine):
    machine.several(8)
    # Whatever may exchange hangs as NCCL starts.
    machine.program("moesim", f"""case "$*" in *--suite*) ;; *) exit 124 ;; esac
echo '{{}}' >{machine.folder}/node.json; exit 0""")
    result = machine("--parts", "profile")
    assert result.returncode == 1
    assert "2 point(s) broke the run" in result.stderr
    assert (machine.folder / "node.json").exists()
    suites = [line.partition("--suite ")[2].split(" ")[0] for line in machine.lines()]
    assert suites[1:3] == ["", ""]
    assert suites[3] == suites[0] + ",attention,attention-backward"
    assert "collectives" not in suites[3] and "overlap" not in suites[3]
    # So that the later ones continue the first.
    assert ["--resume" in line for line in machine.lines()] == [False, True, True, True]
    assert all("--stall 90" in line for line in machine.lines())


@needs_binary
def test_the_suites_of_one_gpu_and_those_of_several_are_all_there_are(machine):
    listed = succeed("profile", "--list")
    names = {line.split()[0] for line in listed.split("\n\n")[0].splitlines()[1:]}
    alone = SCRIPT.with_name("gpu_parts.sh").read_text().partition("local alone=")[2].split()[0].split(",")
    assert {*alone, "attention", "attention-backward", "collectives", "overlap"} == names


def test_several_gpus_that_exchange_are_profiled_in_two_runs(machine):
    machine.several(8)
    assert machine("--parts", "profile").returncode == 0
    first, second = machine.lines()
    assert "--suite" in first and "collectives" not in first and "--resume" not in first
    assert "--suite" not in second and "--resume" in second


def test_wrong_results_of_the_first_run_are_not_forgotten(machine):
    machine.several(2)
    machine.program("moesim", f"""echo '{{}}' >{machine.folder}/node.json
case "$*" in *--suite*) exit 4 ;; esac""")
    result = machine("--parts", "profile")
    assert result.returncode == 1
    assert "exit code 4" in result.stderr


def test_tests_of_several_gpus_run_last_in_a_process_of_their_own(machine):
    machine.several(2)
    machine.program("test_gpu", 'case "$*" in *"[gpus]") exit 124 ;; esac; echo "All tests passed"')
    result = machine("--parts", "tests")
    assert result.returncode == 1
    assert machine.lines() == [f"test_gpu --durations yes {those}" for those in ("~[gpus]~[.]", "[gpus]")]
    assert "All tests passed" in (machine.folder / "test_gpu.txt").read_text()


def test_tests_of_several_gpus_run_though_others_failed_and_must_not_skip(machine):
    machine.several(2)
    machine.program("test_gpu", 'case "$*" in *"[gpus]") echo "SKIPPED: here is 1" ;; esac')
    assert machine("--parts", "tests").returncode == 1
    assert "a test of several GPUs was skipped" in (machine.folder / "tests.log").read_text()
    machine.program("test_gpu", """case "$*" in
*names-only*) echo broken ;;
*"[gpus]") echo "All tests passed" ;;
*) exit 1 ;;
esac""")
    assert machine("--parts", "tests").returncode == 1
    assert "All tests passed" in (machine.folder / "test_gpus.txt").read_text()
    # One by one only those that failed, and when all have had their turn.
    assert machine.lines()[-3:] == ["test_gpu --durations yes [gpus]",
                                    "test_gpu --list-test-names-only ~[gpus]~[.]", "test_gpu broken"]


@pytest.mark.parametrize("gpus, group", [(1, None), (2, 2), (3, 2), (8, 8), (16, 8)])
def test_layers_run_on_one_gpu_and_on_a_group_that_shares_the_experts(machine, gpus, group):
    machine.several(gpus)
    machine.program("bench_layer_gpu", "exit 0")
    assert machine("--parts", "layer").returncode == 0
    calls = [line.split() for line in machine.lines()]
    assert len(calls) == (2 if group else 1)
    assert calls[0][2] == str(machine.folder) and "--gpus" not in calls[0]
    if group:
        assert calls[1][2] == str(machine.folder / f"layer-{group}")
        assert calls[1][-2:] == ["--gpus", str(group)]
        assert (machine.folder / f"layer-{group}").is_dir()
        # Half of 570 s, less what the last layer may take.
        assert int(calls[0][4]) <= 275 < int(calls[1][4])
    # Several GPUs load all kernels as they are opened.
    assert [call[call.index("--stall") + 1] for call in calls] == ["40", "90"][:len(calls)]


@pytest.mark.parametrize("alone, together", [(0, 124), (4, 5), (5, 4), (0, 1)])
def test_a_layer_that_fails_alone_or_in_a_group_fails_the_part(machine, alone, together):
    machine.several(8)
    machine.program("bench_layer_gpu", f'case "$*" in *--gpus*) exit {together} ;; esac; exit {alone}')
    result = machine("--parts", "layer")
    assert result.returncode == 1
    assert ("out of time" if together == 124 else f"exit code {min(alone, together) or max(alone, together)}") in result.stderr
    assert len(machine.lines()) == 2


def test_a_layer_alone_below_its_bar_is_said_though_the_group_meets_it(machine):
    machine.several(8)
    machine.program("bench_layer_gpu", 'case "$*" in *--gpus*) exit 0 ;; esac; exit 5')
    assert machine("--parts", "layer").returncode == 5


def test_layers_of_a_group_that_ran_out_of_time_count_if_some_were_measured(machine):
    machine.several(8)
    machine.program("bench_layer_gpu", """case "$*" in
*--gpus*) while [ $# -gt 1 ]; do [ "$1" = --out ] && echo '{"stages": []}' >"$2/measured-layer.json"; shift; done
  exit 124 ;;
esac""")
    assert machine("--parts", "layer").returncode == 124
    assert "not all layers were measured" in (machine.folder / "layer.log").read_text()


def test_several_gpus_exchange_among_processes_with_a_gpu_each(machine):
    machine.several(4)
    machine.program("moesim", f"""echo "$*: host ${{NCCL_HOSTID:-own}}"
while [ $# -gt 1 ]; do [ "$1" = --out ] && echo '{SYNTHETIC}' >"$2"; shift; done""")
    (machine.folder).mkdir()
    (machine.folder / "node.json").write_text("{}")
    result = machine("--parts", "ranks")
    assert result.returncode == 0, result.stderr
    lines = machine.lines()
    own, shared = sorted(lines[:4]), sorted(lines[4:])
    assert len(shared) == 2
    for rank, line in enumerate(own):
        assert f"--rank {rank} --ranks 4 --local-rank {rank} " in line
        assert "--suite collectives,overlap" in line and f"--base {machine.folder}/node.json" in line
        assert f"--out {machine.folder}/exchanges.json" in line
    assert len({line.split("--address ")[1].split()[0] for line in own}) == 1
    for rank, line in enumerate(shared):
        assert f"--rank {rank} --ranks 2 --local-rank 0 " in line and "--only bytes=65536" in line
    log = (machine.folder / "ranks.log").read_text()
    assert log.count("host own") == 4 and "host moesim-1" in log


def test_processes_with_a_gpu_each_that_fail_do_not_keep_two_from_sharing_one(machine):
    machine.several(2)
    machine.program("moesim", f"""case "$*" in *overlap*) exit 1 ;; esac
echo '{SYNTHETIC}' >{machine.folder}/ranks.json""")
    result = machine("--parts", "ranks")
    assert result.returncode == 1
    assert "exit code 1" in result.stderr
    assert len(machine.lines()) == 4


def test_several_gpus_get_more_of_the_time_for_layers_and_ranks(machine):
    def most():
        return {line.split()[0]: int(line.split(" s ")[0].split()[-1])
                for line in machine("--list").stdout.splitlines()}
    alone = most()
    machine.several(8)
    together = most()
    assert together["layer"] > 1.5 * alone["layer"] and together["ranks"] > 1.5 * alone["ranks"]
    # Exchanges and overlaps of 8 GPUs take about 56 s.
    assert together["ranks"] * 3 / 4 - 20 > 30
    assert sum(together.values()) <= 570
