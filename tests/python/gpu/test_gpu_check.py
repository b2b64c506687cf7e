"""tools/gpu-check with stand-ins for the programs: order, time, resuming, exit codes."""

import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "tools" / "gpu-check"
HAS_GPU = any(Path("/dev").glob("nvidia[0-9]*"))
PARTS = ["facts", "tests", "profile", "simulate", "layer", "benchmarks", "ranks", "sanitizer"]
SYNTHETIC = """{"points": [{"synthetic": true}]}"""


def check(*words, script=SCRIPT, env=None):
    return subprocess.run([str(script), *map(str, words)], capture_output=True, text=True,
                          env={**os.environ, **(env or {})}, timeout=120, check=False)


def states(folder):
    return {path.stem: path.read_text().strip() for path in folder.glob("*.state")}


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
def test_without_a_gpu_every_part_is_skipped_and_said(tmp_path):
    result = check("--out", tmp_path / "results")
    assert result.returncode == 0, result.stderr
    assert "0 passed, 0 failed, 8 skipped" in result.stderr
    assert states(tmp_path / "results") == dict.fromkeys(PARTS, "skipped")
    assert "no NVIDIA GPU" in (tmp_path / "results" / "summary.txt").read_text()
    with tarfile.open(tmp_path / "results.tar.gz") as archive:
        assert "results/summary.txt" in archive.getnames()


@pytest.mark.parametrize("words, said", [
    (("--parts", "facts,tets"), "unknown part 'tets'"),
    (("--seconds", "0"), "--seconds"),
    (("--seconds", "ten"), "--seconds"),
    (("--bin", "/no/such/folder"), "--bin"),
    (("--frob",), "unknown option '--frob'"),
    (("--parts", ""), "--parts"),
])
def test_a_wrong_option_is_refused(words, said, tmp_path):
    result = check(*words, "--out", tmp_path / "results")
    assert result.returncode == 2
    assert said in result.stderr


@pytest.fixture
def machine(tmp_path):
    """The script as it runs on a machine with a GPU, and programs that note how they were called."""
    tools = tmp_path / "tree" / "tools"
    tools.mkdir(parents=True)
    for name in ("gpu-check", "common.sh"):
        text = (ROOT / "tools" / name).read_text()
        (tools / name).write_text(text.replace("/dev/nvidia[0-9]*", "/dev/null"))
    (tools / "gpu-check").chmod(0o755)
    programs = tmp_path / "bin"
    programs.mkdir()

    def program(name, body, asked="exit 2"):
        """`asked`: what it does when it is asked of its driver."""
        path = programs / name
        path.write_text(f'#!/bin/sh\nif [ "$2" = --gpus ]; then {asked}; fi\n'
                        f'echo "{name} $*" >>"{tmp_path}/calls"\n{body}\n')
        path.chmod(0o755)

    # Writes the --out of a profile.
    program("moesim", f"""[ "$1" = profile ] || exit 0
while [ $# -gt 1 ]; do [ "$1" = --out ] && echo '{SYNTHETIC}' >"$2"; shift; done; exit 0""")
    program("test_gpu", "exit 0")
    program("compute-sanitizer", "exit 0")

    def run(*words, python=""):
        return check("--bin", programs, "--out", tmp_path / "results", *words,
                     script=tools / "gpu-check",
                     env={"PATH": f"{programs}:{os.environ['PATH']}",
                          "MOESIM_PYTHON": str(programs / python) if python else ""})

    def several(count):
        """As if there were so many GPUs."""
        text = (tools / "gpu-check").read_text()
        for index in range(count):
            (tmp_path / f"gpu{index}").touch()
        (tools / "gpu-check").write_text(text.replace("/dev/null'", f"{tmp_path}/gpu[0-9]*'"))

    run.several = several
    run.program = program
    run.tree = tools.parent
    run.bin = programs
    run.lines = lambda: (tmp_path / "calls").read_text().splitlines()
    run.folder = tmp_path / "results"
    run.calls = lambda: [line.split()[0:2] for line in (tmp_path / "calls").read_text().splitlines()]
    return run


def test_parts_run_in_order_of_importance(machine):
    result = machine()
    assert result.returncode == 0, result.stderr
    assert states(machine.folder) == {
        **dict.fromkeys(PARTS, "passed"), "layer": "skipped", "benchmarks": "skipped"}
    words = [" ".join(call) for call in machine.calls() if call[0] != "nvidia-smi"]
    assert [word.split()[0] if word.startswith("test_gpu") else word for word in words] == [
        "moesim doctor", "test_gpu", "moesim profile", "moesim simulate", "moesim profile",
        "moesim profile", *["compute-sanitizer --tool"] * 4]
    tools = [line.split()[2] for line in machine.lines() if line.startswith("compute-sanitizer")]
    assert tools == ["memcheck", "racecheck", "synccheck", "initcheck"]
    assert all(line.endswith("test_gpu [sanitizer]") for line in machine.lines()
               if line.startswith("compute-sanitizer"))


def test_list_says_what_is_there_and_runs_nothing(machine):
    result = machine("--list")
    assert result.returncode == 0, result.stderr
    lines = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert list(lines) == PARTS
    # 40 % of 600 s less 20 for the archive; all shares together are no more than that.
    assert lines["profile"].endswith("ready") and "232 s" in lines["profile"]
    assert sum(int(line.split(" s ")[0].split()[-1]) for line in lines.values()) <= 580
    assert "no layer" in lines["layer"]
    assert not machine.folder.exists() and not (machine.tree.parent / "calls").exists()


@pytest.fixture
def built(tmp_path):
    """A folder of programs that stand for the built ones."""
    programs = tmp_path / "build"
    programs.mkdir()
    # Any program stands for them; this one needs more than the C library.
    for name in ("moesim", "test_gpu", "bench_layer_gpu", "bench_gpu_kernels"):
        shutil.copy("/bin/ls", programs / name)
    return programs


def test_packed_programs_carry_their_libraries_and_start_from_nothing(tmp_path, built):
    packed = tmp_path / "packed"
    result = check("--bin", built, "--pack", packed)
    assert result.returncode == 0, result.stderr
    names = {path.name for path in (packed / "lib").iterdir()}
    assert names and not any(name.startswith(("libc.so", "libstdc++", "libcublas")) for name in names)
    peers = subprocess.run([sys.executable, packed / "tests" / "bench" / "gpu_peers.py", "--help"],
                           capture_output=True, text=True, check=False)
    assert peers.returncode == 0, peers.stderr
    assert (packed / "tests" / "bench" / "peers" / "timer.py").exists()
    assert not (packed / "peer-wheels").exists()
    assert (packed / "profiles" / "hardware").is_dir()
    # Where there is nothing but the pack: no checkout, no environment.
    moved = tmp_path / "elsewhere"
    packed.rename(moved)
    listed = subprocess.run([moved / "tools" / "gpu-check", "--list"], check=False, text=True,
                            env={"PATH": "/usr/bin:/bin"}, capture_output=True)
    assert listed.returncode == 0, listed.stderr
    for part in ("tests", "profile", "layer", "benchmarks"):
        assert [line for line in listed.stdout.splitlines() if line.startswith(part)][0].endswith("ready")


def test_a_pack_that_lacks_a_program_fails_and_names_it(tmp_path, built):
    (built / "test_gpu").unlink()
    (built / "bench_layer_gpu").write_text("#!/bin/sh\nexit 1\n")
    result = check("--bin", built, "--pack", tmp_path / "packed")
    assert result.returncode == 1
    assert "test_gpu is not in" in result.stderr
    assert "bench_layer_gpu does not start from an empty environment" in result.stderr
    assert "2 thing(s) are wrong" in result.stderr


def test_a_pack_over_48_mib_fails(tmp_path, built):
    with open(built / "bench_gpu_kernels", "ab") as file:
        file.truncate(0)
        file.write(b"#!/bin/sh\nexit 0\n" + os.urandom(50 << 20))
    result = check("--bin", built, "--pack", tmp_path / "packed")
    assert result.returncode == 1
    assert "over 48 MiB" in result.stderr


def test_the_archive_is_whole_after_every_part(machine):
    archive = machine.tree.parent / "home" / "all.tar.gz"
    # The second part looks at what the first has left, and is then cut off.
    machine.program("test_gpu", f"""[ "$1" = --list-test-names-only ] && exit 0
tar -tzf {archive} >{machine.tree.parent}/seen; exit 1""")
    machine("--parts", "facts,tests", "--archive", archive)
    assert "results/facts.log" in (machine.tree.parent / "seen").read_text().splitlines()
    assert [path.name for path in archive.parent.iterdir()] == ["all.tar.gz"]
    with tarfile.open(archive) as whole:
        assert "results/tests.log" in whole.getnames()


def test_a_program_that_cannot_start_names_its_libraries(machine):
    machine.program("ldd", 'echo "	libfmt.so.9 => not found"')
    result = machine("--parts", "facts")
    assert result.returncode == 1
    assert "cannot start here: it lacks libfmt.so.9" in result.stderr


OLD = "the driver is too old: it knows CUDA 12.4, this build needs 13.0: update the driver"


def test_a_driver_older_than_the_programs_cuda_is_said_once_with_what_helps(machine):
    machine.program("moesim", "exit 0", asked=f"echo '{OLD}' >&2; exit 3")
    machine.program("nvidia-smi", "echo 550.54.15")
    result = machine()
    assert result.returncode == 1
    assert states(machine.folder) == {**dict.fromkeys(PARTS, "skipped"), "facts": "passed"}
    for text in (result.stderr, (machine.folder / "summary.txt").read_text()):
        assert ("the driver 550.54.15 is too old: it knows CUDA 12.4, the programs need 13.0 "
                "(driver 580 or newer). One of these helps:") in text
        assert f"cuda-compat-13-0; data-centre GPUs only)\n    in /usr/local/cuda-13.0/compat or {machine.bin}" in text
        assert "such as 12.8 (driver 525 or newer)" in text and "a newer driver" in text
    assert [line for line in machine.lines() if not line.startswith("nvidia-smi")] == ["moesim doctor"]


@pytest.mark.parametrize("with_compat, code", [("this machine has 1 GPU(s)", 0), ("no GPU", 1)])
def test_an_old_driver_is_made_up_for_by_compat_libraries_that_work(machine, with_compat, code):
    (machine.bin / "compat").mkdir()
    (machine.bin / "compat" / "libcuda.so.1").touch()
    machine.program("moesim", 'echo "LD=$LD_LIBRARY_PATH"', asked=(
        f"case $LD_LIBRARY_PATH in *compat*) echo '{with_compat}' ;; *) echo '{OLD}' ;; esac; exit 3"))
    result = machine("--parts", "facts,simulate")
    assert result.returncode == code
    assert (f"compat libraries of {machine.bin}/compat" in result.stderr) == (code == 0)
    assert ("is too old" in result.stderr) == (code == 1)
    found = (machine.folder / "facts.log").read_text().split("LD=")[1]
    assert found.startswith(f"{machine.bin}/compat:") == (code == 0)


def test_our_programs_find_the_libraries_of_python_packages(machine):
    folder = machine.tree.parent / "site" / "nvidia" / "nccl" / "lib"
    folder.mkdir(parents=True)
    machine.program("moesim", 'echo "LD=$LD_LIBRARY_PATH"')
    machine.program("python3", f'PYTHONPATH={folder.parents[2]} exec {sys.executable} "$@"')
    result = machine("--parts", "facts", python="python3")
    assert result.returncode == 0, result.stderr
    assert str(folder) in (machine.folder / "facts.log").read_text().split("LD=")[1]


def test_a_point_that_breaks_the_profile_is_passed_over(machine):
    # Twice the process dies, then the rest is measured.
    machine.program("moesim", f"""count=$(grep -c . {machine.tree.parent}/calls)
[ "$count" -le 2 ] && exit 139
echo '{{}}' >{machine.folder}/node.json; exit 0""")
    result = machine("--parts", "profile")
    assert result.returncode == 1
    assert "2 point(s) broke the run" in result.stderr
    lines = machine.lines()
    assert len(lines) == 3
    assert "--resume" not in lines[0] and "--resume" in lines[1] and "--resume" in lines[2]
    assert all("--stall 40" in line for line in lines)


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


def test_the_suites_of_one_gpu_and_those_of_several_are_all_there_are(machine):
    listed = subprocess.run([os.environ["MOESIM_BIN"], "profile", "--list"],
                            capture_output=True, text=True, check=True).stdout
    names = {line.split()[0] for line in listed.split("\n\n")[0].splitlines()[1:]}
    alone = SCRIPT.read_text().partition("local alone=")[2].split()[0].split(",")
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


def test_a_sanitizer_under_which_the_tests_skip_has_not_passed(machine):
    machine.program("compute-sanitizer", 'echo "SKIPPED: no usable GPU"')
    result = machine("--parts", "sanitizer")
    assert result.returncode == 1
    assert "memcheck: a test was skipped" in (machine.folder / "sanitizer.log").read_text()


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


def test_a_failed_part_does_not_keep_the_next_from_running(machine):
    machine.program("test_gpu", 'echo "row 3 differs"; exit 1')
    result = machine("--parts", "tests,profile")
    assert result.returncode == 1
    assert "row 3 differs" in result.stderr
    assert states(machine.folder) == {"tests": "failed", "profile": "passed"}
    assert "1 passed, 1 failed, 0 skipped" in result.stderr


def test_resume_runs_what_has_not_passed(machine):
    machine.program("test_gpu", "exit 1")
    machine("--parts", "facts,tests")
    machine.program("test_gpu", "exit 0")
    before = len(machine.calls())
    result = machine("--parts", "facts,tests", "--resume")
    assert result.returncode == 0
    assert [call[0] for call in machine.calls()[before:]] == ["test_gpu"]
    assert states(machine.folder) == {"facts": "passed", "tests": "passed"}


def test_a_profile_that_ran_out_of_time_counts_if_it_was_written(machine):
    # Alone the profile gets all of it: of 60 s not enough to go on after a point that may have hung.
    machine.program("moesim", f'echo "{{}}" >"{machine.folder}/node.json"; exit 124')
    assert machine("--parts", "profile", "--seconds", "60").returncode == 0
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


def test_a_part_that_hangs_is_ended_and_the_next_one_runs(machine):
    machine.program("test_gpu", '[ "$1" = --list-test-names-only ] || exec sleep 60')
    began = time.monotonic()
    result = machine("--parts", "tests,profile", "--seconds", "24")
    assert result.returncode == 1
    assert states(machine.folder) == {"tests": "failed", "profile": "passed"}
    assert time.monotonic() - began < 20  # a quarter of the time, not all of it


def test_what_there_is_no_time_for_is_said_to_be_left(machine):
    # Killed five seconds after it was asked to end, so that less than five of nine are left.
    machine.program("test_gpu", '[ "$1" = --list-test-names-only ] || { trap "" TERM; exec sleep 60; }')
    result = machine("--parts", "tests,facts", "--seconds", "9")
    assert states(machine.folder) == {"tests": "failed", "facts": "skipped"}
    assert "--resume runs the rest" in result.stderr


def test_benchmarks_get_their_peers_where_pytorch_is(machine):
    machine.program("bench_gpu_kernels", "exit 0")
    machine.program("python3", """[ "$1" = -c ] && exit 0
while [ $# -gt 1 ]; do [ "$1" = --out ] && echo '{}' >"$2"; shift; done""")
    result = machine("--parts", "benchmarks", python="python3")
    assert result.returncode == 0, result.stderr
    assert states(machine.folder) == {"benchmarks": "passed"}
    calls = [line for line in machine.lines() if "--out" in line]
    assert calls[0].startswith("python3 ") and "gpu_peers.py --out" in calls[0]
    # A third of 580 s, less what the last one that began may take.
    assert 170 < int(calls[0].split("--seconds ")[1]) <= 184 and "--wheels" not in calls[0]
    # All of 570 s, less what it takes to end.
    assert calls[1].rsplit(" ", 1)[0] == (
        f"bench_gpu_kernels --out {machine.folder} --peers {machine.folder}/peers.json --timeout")
    assert 500 < int(calls[1].rsplit(" ", 1)[1]) <= 565


def test_peers_of_wheels_are_carried_in_the_pack_and_found_there(machine, tmp_path, built):
    wheels = tmp_path / "wheels"
    (wheels / "sglang").mkdir(parents=True)
    packed = tmp_path / "packed"
    result = check("--bin", built, "--pack", packed, env={"MOESIM_PEER_WHEELS": str(wheels)})
    assert result.returncode == 0, result.stderr
    assert (packed / "peer-wheels" / "sglang").is_dir()

    machine.program("bench_gpu_kernels", "exit 0")
    machine.program("python3", "exit 0")
    (machine.tree / "peer-wheels").mkdir()
    assert machine("--parts", "benchmarks", python="python3").returncode == 0
    call = [line for line in machine.lines() if "--out" in line][0]
    assert call.endswith(f"--wheels {machine.tree}/peer-wheels")


def test_benchmarks_run_without_pytorch_too(machine):
    machine.program("bench_gpu_kernels", "exit 0")
    machine.program("python3", "exit 1")
    assert machine("--parts", "benchmarks", python="python3").returncode == 0
    assert machine.lines()[-1].startswith(f"bench_gpu_kernels --out {machine.folder} --timeout ")
    assert "no peers" in (machine.folder / "benchmarks.log").read_text()


@pytest.mark.parametrize("code, state, said", [
    (3, "skipped", "found no GPU"), (4, "failed", "exit code 4"), (5, "failed", "exit code 5")])
def test_benchmarks_that_find_no_gpu_or_fall_short(machine, code, state, said):
    machine.program("bench_gpu_kernels", f"exit {code}")
    machine.program("python3", "exit 1")
    result = machine("--parts", "benchmarks", python="python3")
    assert states(machine.folder) == {"benchmarks": state}
    assert said in result.stderr


def test_benchmarks_that_ran_out_of_time_count_if_rows_were_written(machine):
    machine.program("python3", "exit 1")
    machine.program("bench_gpu_kernels", "exit 124")
    assert machine("--parts", "benchmarks", python="python3").returncode == 1
    machine.program("bench_gpu_kernels", 'echo "{}" >"$2/gpu_kernels.json"; exit 124')
    assert machine("--parts", "benchmarks", python="python3").returncode == 0
    assert "after some of the benchmarks" in (machine.folder / "benchmarks.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("code, state, said", [
    (0, "skipped", "no time for racecheck"), (1, "failed", "exit code 1")])
def test_a_sanitizer_that_gets_no_time_is_skipped_unless_another_found_something(
        machine, code, state, said):
    # No more than five of seven seconds are left after the first.
    machine.program("compute-sanitizer", f"sleep 2; exit {code}")
    result = machine("--parts", "sanitizer", "--seconds", "7")
    assert states(machine.folder) == {"sanitizer": state}
    assert said in result.stderr
    assert [line.split()[2] for line in machine.lines() if "--tool" in line] == ["memcheck"]


def test_peers_without_pytorch_say_so():
    script = ROOT / "tests" / "bench" / "gpu_peers.py"
    result = subprocess.run([sys.executable, "-c", (
        "import sys, runpy; sys.modules['torch'] = None; sys.argv = ['gpu_peers.py'];"
        f"runpy.run_path({str(script)!r}, run_name='__main__')")],
        capture_output=True, text=True, check=False)
    assert result.returncode == 3
    assert "no PyTorch" in result.stderr


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
        # Half of 580 s, less what the last layer may take.
        assert int(calls[0][4]) <= 275 < int(calls[1][4])
    # Several GPUs load all kernels as they are opened.
    assert [call[call.index("--stall") + 1] for call in calls] == ["40", "90"][:len(calls)]


@pytest.mark.parametrize("alone, together", [(5, 0), (0, 124), (4, 5), (0, 1)])
def test_a_layer_that_fails_alone_or_in_a_group_fails_the_part(machine, alone, together):
    machine.several(8)
    machine.program("bench_layer_gpu", f'case "$*" in *--gpus*) exit {together} ;; esac; exit {alone}')
    result = machine("--parts", "layer")
    assert result.returncode == 1
    assert ("out of time" if together == 124 else f"exit code {alone or together}") in result.stderr
    assert len(machine.lines()) == 2


def test_layers_of_a_group_that_ran_out_of_time_count_if_some_were_measured(machine):
    machine.several(8)
    machine.program("bench_layer_gpu", """case "$*" in
*--gpus*) while [ $# -gt 1 ]; do [ "$1" = --out ] && echo '{"stages": []}' >"$2/measured-layer.json"; shift; done
  exit 124 ;;
esac""")
    assert machine("--parts", "layer").returncode == 0
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
    assert sum(together.values()) <= 580
