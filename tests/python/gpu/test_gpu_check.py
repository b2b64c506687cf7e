"""tools/gpu-check with stand-ins for the programs: options, order, time, resuming, exit codes."""

import sys
import tarfile
import time
from pathlib import Path

import pytest
from gpu_check import check, PARTS, states

HAS_GPU = any(Path("/dev").glob("nvidia[0-9]*"))


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
def test_without_a_gpu_every_part_is_skipped_and_said(tmp_path):
    result = check("--out", tmp_path / "results")
    assert result.returncode == 0, result.stderr
    assert "0 passed, 0 failed, 8 skipped, 0 not all measured, 0 below a bar" in result.stderr
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


def test_parts_run_in_order_of_importance(machine):
    result = machine()
    assert result.returncode == 0, result.stderr
    assert states(machine.folder) == {
        **dict.fromkeys(PARTS, "passed"), "layer": "skipped", "benchmarks": "skipped"}
    words = [" ".join(call) for call in machine.calls() if call[0] != "nvidia-smi"]
    assert [word.split()[0] if word.startswith("test_gpu") else word for word in words] == [
        "moesim doctor", "test_gpu", "moesim profile", "moesim profile", "moesim simulate", "moesim profile",
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
    # 50 of 104 of 590 s less 20 for the archive; all shares together are no more than that.
    assert lines["profile"].endswith("ready") and "274 s" in lines["profile"]
    assert sum(int(line.split(" s ")[0].split()[-1]) for line in lines.values()) <= 570
    assert "no layer" in lines["layer"]
    assert not machine.folder.exists() and not (machine.tree.parent / "calls").exists()


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
    assert result.returncode == 1
