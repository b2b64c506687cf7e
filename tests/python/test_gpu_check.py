"""tools/gpu-check with stand-ins for the programs: order, time, resuming, exit codes."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "gpu-check"
HAS_GPU = any(Path("/dev").glob("nvidia[0-9]*"))
PARTS = ["facts", "tests", "sanitizer", "profile", "simulate", "layer", "benchmarks"]


def check(*words, script=SCRIPT, env=None):
    return subprocess.run([str(script), *map(str, words)], capture_output=True, text=True,
                          env={**os.environ, **(env or {})}, timeout=120, check=False)


def states(folder):
    return {path.stem: path.read_text().strip() for path in folder.glob("*.state")}


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
def test_without_a_gpu_every_part_is_skipped_and_said(tmp_path):
    result = check("--out", tmp_path / "results")
    assert result.returncode == 0, result.stderr
    assert "0 passed, 0 failed, 7 skipped" in result.stderr
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

    def program(name, body):
        path = programs / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>"{tmp_path}/calls"\n{body}\n')
        path.chmod(0o755)

    program("moesim", f'[ "$1" = profile ] && echo "{{}}" >"{tmp_path}/results/node.json"; exit 0')
    program("test_gpu", "exit 0")
    program("compute-sanitizer", "shift 4; exit 0")

    def run(*words, python=""):
        return check("--bin", programs, "--out", tmp_path / "results", *words,
                     script=tools / "gpu-check",
                     env={"PATH": f"{programs}:{os.environ['PATH']}",
                          "MOESIM_PYTHON": str(programs / python) if python else ""})

    run.program = program
    run.lines = lambda: (tmp_path / "calls").read_text().splitlines()
    run.folder = tmp_path / "results"
    run.calls = lambda: [line.split()[0:2] for line in (tmp_path / "calls").read_text().splitlines()]
    return run


def test_parts_run_in_order_of_worth(machine):
    result = machine()
    assert result.returncode == 0, result.stderr
    assert states(machine.folder) == {
        **dict.fromkeys(PARTS[:5], "passed"), "layer": "skipped", "benchmarks": "skipped"}
    words = [" ".join(call) for call in machine.calls() if call[0] != "nvidia-smi"]
    assert [word.split()[0] if word.startswith("test_gpu") else word for word in words] == [
        "moesim doctor", "test_gpu", "compute-sanitizer --error-exitcode", "moesim profile",
        "moesim simulate"]


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
    machine.program("moesim", f'echo "{{}}" >"{machine.folder}/node.json"; exit 124')
    assert machine("--parts", "profile").returncode == 0
    (machine.folder / "node.json").unlink()
    machine.program("moesim", "exit 124")
    assert machine("--parts", "profile").returncode == 1


def test_a_part_that_hangs_is_ended_and_the_rest_said_to_be_left(machine):
    machine.program("test_gpu", "sleep 60")
    result = machine("--parts", "tests,facts", "--seconds", "6")
    assert result.returncode == 1
    assert "out of time" in result.stderr
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
    assert calls[1] == (f"bench_gpu_kernels --out {machine.folder} "
                        f"--peers {machine.folder}/peers.json")


def test_benchmarks_run_without_pytorch_too(machine):
    machine.program("bench_gpu_kernels", "exit 0")
    machine.program("python3", "exit 1")
    assert machine("--parts", "benchmarks", python="python3").returncode == 0
    assert machine.lines()[-1] == f"bench_gpu_kernels --out {machine.folder}"
    assert "no peers" in (machine.folder / "benchmarks.log").read_text()


@pytest.mark.parametrize("code, state, said", [
    (3, "skipped", "found no GPU"), (4, "failed", "exit code 4"), (5, "failed", "exit code 5")])
def test_benchmarks_that_find_no_gpu_or_fall_short(machine, code, state, said):
    machine.program("bench_gpu_kernels", f"exit {code}")
    machine.program("python3", "exit 1")
    result = machine("--parts", "benchmarks", python="python3")
    assert states(machine.folder) == {"benchmarks": state}
    assert said in result.stderr


def test_peers_without_pytorch_say_so():
    script = ROOT / "tests" / "bench" / "gpu_peers.py"
    result = subprocess.run([sys.executable, "-c", (
        "import sys, runpy; sys.modules['torch'] = None; sys.argv = ['gpu_peers.py'];"
        f"runpy.run_path({str(script)!r}, run_name='__main__')")],
        capture_output=True, text=True, check=False)
    assert result.returncode == 3
    assert "no PyTorch" in result.stderr
