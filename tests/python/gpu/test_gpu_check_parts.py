"""Parts of tools/gpu-check on one GPU: tests, profile, ranks, layer, benchmarks, sanitizer."""

import subprocess
import sys

import pytest
from gpu_check import ROOT, states, SYNTHETIC


def test_gpu_tests_that_fail_together_run_one_by_one(machine):
    machine.program("test_gpu", """case "$1" in
--list-test-names-only) printf 'sound\nbroken, by commas\n' ;;
sound) exit 0 ;;
*) exit 1 ;;
esac""")
    result = machine("--parts", "tests")
    assert result.returncode == 1
    log = (machine.folder / "tests.log").read_text()
    assert "passed: sound" in log and "failed with 1: broken, by commas" in log
    assert machine.lines()[-1] == "test_gpu broken\\, by commas"


@pytest.mark.parametrize("seconds, least, most", [(600, 60, 60), (20, 5, 19)])
def test_gpu_tests_that_run_one_by_one_get_a_minute_each_of_what_is_left(machine, seconds, least, most):
    machine.program("test_gpu", '[ "$1" = --list-test-names-only ] && echo sound || exit 1')
    machine.program("timeout", 'while [ "${1#--}" != "$1" ]; do shift; done; shift; exec "$@"')
    machine("--parts", "tests", "--seconds", seconds)
    (given,) = [line.split()[2] for line in machine.lines()
                if line.startswith("timeout") and line.endswith("test_gpu sound")]
    assert least <= int(given) <= most


def test_gpu_tests_that_all_skip_have_not_passed(machine):
    machine.program("test_gpu", 'echo "SKIPPED: no usable GPU: cudaErrorSystemNotReady"')
    result = machine("--parts", "tests")
    assert result.returncode == 1
    assert "no test ran" in result.stderr


def test_a_point_that_breaks_the_profile_is_passed_over(machine):
    # Twice the process dies, then the rest is measured.
    machine.program("moesim", f"""count=$(grep -c . {machine.tree.parent}/calls)
[ "$count" -le 2 ] && exit 139
echo '{{}}' >{machine.folder}/node.json; exit 0""")
    result = machine("--parts", "profile", "--first", "none")
    assert result.returncode == 1
    assert "2 point(s) broke the run" in result.stderr
    lines = machine.lines()
    assert len(lines) == 3
    assert "--resume" not in lines[0] and "--resume" in lines[1] and "--resume" in lines[2]
    assert all("--stall 40" in line for line in lines)


def test_a_profile_that_ran_out_of_time_is_continued_if_it_was_written(machine):
    # Alone the profile gets all of it: of 60 s not enough to go on after a point that may have hung.
    machine.program("moesim", f'echo "{{}}" >"{machine.folder}/node.json"; exit 124')
    result = machine("--parts", "profile", "--seconds", "60")
    assert result.returncode == 124
    assert states(machine.folder) == {"profile": "partial"}
    assert "out of time: the profile holds what was measured" in result.stderr
    before = len(machine.lines())
    machine.program("moesim", "exit 0")
    assert machine("--parts", "profile", "--seconds", "60", "--resume").returncode == 0
    assert states(machine.folder) == {"profile": "passed"}
    again = machine.lines()[before:]
    assert again and all("--resume" in line for line in again)
    assert (machine.folder / "node.json").read_text() == "{}\n"
    (machine.folder / "node.json").unlink()
    machine.program("moesim", "exit 124")
    assert machine("--parts", "profile", "--seconds", "60").returncode == 1


def test_a_profile_of_an_earlier_call_does_not_count(machine):
    machine("--parts", "profile,ranks")
    assert (machine.folder / "node.json").exists() and (machine.folder / "ranks.json").exists()
    machine.program("moesim", "exit 124")
    assert machine("--parts", "profile,ranks", "--seconds", "60", "--resume").returncode == 0
    assert machine("--parts", "profile,ranks", "--seconds", "60").returncode == 1
    assert states(machine.folder) == {"profile": "failed", "ranks": "failed"}
    assert not (machine.folder / "node.json").exists()


def test_two_ranks_share_the_gpu_under_names_of_their_own(machine):
    machine.program("moesim", f"""echo "host $NCCL_HOSTID $NCCL_NET $NCCL_SOCKET_IFNAME"
echo '{SYNTHETIC}' >{machine.folder}/ranks.json""")
    result = machine("--parts", "ranks")
    assert result.returncode == 0, result.stderr
    log = (machine.folder / "ranks.log").read_text()
    assert "host moesim-0 Socket lo" in log and "host moesim-1 Socket lo" in log
    ranks = sorted(machine.lines())
    assert "--rank 0 --ranks 2 --local-rank 0" in ranks[0] and "--rank 1" in ranks[1]
    assert ranks[0].split("--address ")[1].split()[0] == ranks[1].split("--address ")[1].split()[0]


@pytest.mark.parametrize("body, said", [
    ("exit 1", "exit code 1"),
    ("echo '{\"synthetic\": false}' >\"$6\"; exit 0", "not marked synthetic")])
def test_ranks_that_fail_or_pass_for_real_are_refused(machine, body, said):
    machine.program("moesim", body.replace('"$6"', f'"{machine.folder}/ranks.json"'))
    result = machine("--parts", "ranks")
    assert result.returncode == 1
    assert said in result.stderr


def test_the_layer_is_held_to_the_profile(machine):
    machine.program("bench_layer_gpu", "exit 0")
    machine("--parts", "profile,layer")
    assert machine.lines()[-1].startswith(
        f"bench_layer_gpu --profile {machine.folder}/node.json --out {machine.folder} --timeout ")


def test_benchmarks_get_their_peers_where_pytorch_is(machine):
    machine.program("bench_gpu_kernels", "exit 0")
    machine.program("python3", """[ "$1" = -c ] && exit 0
while [ $# -gt 1 ]; do [ "$1" = --out ] && echo '{}' >"$2"; shift; done""")
    result = machine("--parts", "benchmarks", python="python3")
    assert result.returncode == 0, result.stderr
    assert states(machine.folder) == {"benchmarks": "passed"}
    calls = [line for line in machine.lines() if "--out" in line]
    assert calls[0].startswith("python3 ") and "gpu_peers.py --out" in calls[0]
    # All of 570 s but 35 for the kernels, less what the last one that began may take.
    assert 505 < int(calls[0].split("--seconds ")[1]) <= 525
    assert "--wheels" not in calls[0] and "--resume" not in calls[0]
    # All of 570 s, less what it takes to end.
    assert calls[1].rsplit(" ", 1)[0] == (
        f"bench_gpu_kernels --out {machine.folder} --peers {machine.folder}/peers.json --timeout")
    assert 500 < int(calls[1].rsplit(" ", 1)[1]) <= 555


def test_peers_and_kernels_share_a_little_time(machine):
    machine.program("bench_gpu_kernels", "exit 0")
    machine.program("python3", "exit 0")
    machine("--parts", "benchmarks", "--seconds", "40", python="python3")
    calls = [line for line in machine.lines() if "--out" in line]
    # A third of 38 s.
    assert 1 <= int(calls[0].split("--seconds ")[1]) <= 7
    assert 15 < int(calls[1].split("--timeout ")[1]) <= 23


def test_benchmarks_run_without_pytorch_too(machine):
    machine.program("bench_gpu_kernels", "exit 0")
    machine.program("python3", "exit 1")
    assert machine("--parts", "benchmarks", python="python3").returncode == 0
    assert machine.lines()[-1].startswith(f"bench_gpu_kernels --out {machine.folder} --timeout ")
    assert "no peers" in (machine.folder / "benchmarks.log").read_text()


def test_peers_without_pytorch_say_so():
    script = ROOT / "tests" / "bench" / "gpu_peers.py"
    result = subprocess.run([sys.executable, "-c", (
        "import sys, runpy; sys.modules['torch'] = None; sys.argv = ['gpu_peers.py'];"
        f"runpy.run_path({str(script)!r}, run_name='__main__')")],
        capture_output=True, text=True, check=False)
    assert result.returncode == 3
    assert "no PyTorch" in result.stderr


@pytest.mark.parametrize("code, state, said", [
    (3, "skipped", "found no GPU"), (4, "failed", "exit code 4"), (5, "unmet", "a bar is not met")])
def test_benchmarks_that_find_no_gpu_or_fall_short(machine, code, state, said):
    machine.program("bench_gpu_kernels", f"exit {code}")
    machine.program("python3", "exit 1")
    result = machine("--parts", "benchmarks", python="python3")
    assert states(machine.folder) == {"benchmarks": state}
    assert said in result.stderr
    assert result.returncode == {3: 0, 4: 1, 5: 5}[code]


def test_benchmarks_that_ran_out_of_time_count_if_rows_were_written(machine):
    machine.program("python3", "exit 1")
    machine.program("bench_gpu_kernels", "exit 124")
    assert machine("--parts", "benchmarks", python="python3").returncode == 1
    machine.program("bench_gpu_kernels", 'echo "{}" >"$2/gpu_kernels.json"; exit 124')
    assert machine("--parts", "benchmarks", python="python3").returncode == 124
    assert states(machine.folder) == {"benchmarks": "partial"}
    assert "after some of the benchmarks" in (machine.folder / "benchmarks.log").read_text()


def test_a_sanitizer_under_which_the_tests_skip_has_not_passed(machine):
    machine.program("compute-sanitizer", 'echo "SKIPPED: no usable GPU"')
    result = machine("--parts", "sanitizer")
    assert result.returncode == 1
    assert "memcheck: a test was skipped" in (machine.folder / "sanitizer.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("code, state, said", [
    (0, "partial", "no time for racecheck"), (1, "failed", "exit code 1")])
def test_a_sanitizer_that_gets_no_time_is_skipped_unless_another_found_something(
        machine, code, state, said):
    # No more than five of seven seconds are left after the first.
    machine.program("compute-sanitizer", f"sleep 2; exit {code}")
    result = machine("--parts", "sanitizer", "--seconds", "7")
    assert states(machine.folder) == {"sanitizer": state}
    assert said in result.stderr
    assert [line.split()[2] for line in machine.lines() if "--tool" in line] == ["memcheck"]
