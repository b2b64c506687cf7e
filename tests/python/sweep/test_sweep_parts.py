"""Sweeps in shards and under a launcher: the bytes of one process, also after a kill."""

import os
import shutil
import signal
import subprocess
import time

import pytest

from command_line import BINARY, moesim, needs_binary, refused, succeed

pytestmark = needs_binary
GRID = ("sweep", "--gpus", "8,16", "--mode", "prefill", "--sequence-length", 256, "--micro-batch", 1, "--replicas", 2,
        "--router", "top1,top2,top2+fr+ir,dropless", "--capacity-factor", "0.5:2:0.5", "--jobs", 1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "sweep.csv"
    succeed(*GRID, "--out", out)
    return out.read_bytes()


@pytest.mark.parametrize("count", [1, 3, 40])
def test_shards_together_are_the_sweep(tmp_path, whole, count):
    files = [tmp_path / f"part-{number}.csv" for number in range(1, count + 1)]
    for number, file in enumerate(files, 1):
        succeed(*GRID, "--shard", f"{number}/{count}", "--out", file)
    succeed("merge", *files[::-1], "--out", tmp_path / "sweep.csv")
    assert (tmp_path / "sweep.csv").read_bytes() == whole
    assert succeed("merge", *files).encode() == whole
    rows = [len(file.read_text().splitlines()) - 1 for file in files]
    assert sum(rows) == len(whole.splitlines()) - 1
    if count == 40:
        empty = files[rows.index(0)]  # more shards than chunks
        refused("merge", empty, empty, "--out", tmp_path / "none.csv", parts=["no file holds a row"], code=1)
        assert not (tmp_path / "none.csv").exists()
    if count == 3:
        assert max(rows) - min(rows) <= 4
        refused("merge", *files[:2], parts=["rows are in no file"], code=1)
        # A shard of another division of the same sweep fits, and equal rows count once.
        succeed(*GRID, "--shard", "2/2", "--out", tmp_path / "half.csv")
        assert succeed("merge", *files, tmp_path / "half.csv").encode() == whole
        succeed(*GRID, "--seed", 2, "--shard", "2/2", "--out", tmp_path / "other.csv")
        refused("merge", *files, tmp_path / "other.csv", parts=["other.csv", "of another sweep"])
        text = files[0].read_text()
        half = (tmp_path / "half.csv").read_text().splitlines()
        shared = next(line for line in half[1:] if line in text)
        files[0].write_text(text.replace(shared, shared.replace("prefill", "train")))
        refused("merge", *files, tmp_path / "half.csv", parts=["differs from that of another file"])


def test_a_finished_shard_is_not_computed_again(tmp_path):
    file = tmp_path / "part.csv"
    succeed(*GRID, "--shard", "1/4", "--out", file)
    before = file.read_bytes()
    result = moesim(*GRID, "--shard", "1/4", "--out", file, "--resume")
    assert result.returncode == 0 and "already complete" in result.stderr
    assert file.read_bytes() == before
    refused(*GRID, "--seed", 2, "--shard", "1/4", "--out", file, "--resume", parts=["another sweep"])


def test_the_first_run_of_a_shard_with_resume_says_that_it_starts(tmp_path):
    """As sim/study/sweep/README.md has it for Slurm; of a run without --resume there is nothing to say."""
    words = (*GRID, "--shard", "1/40", "--out", tmp_path / "part.csv")
    assert "starting from the first scenario" in moesim(*words, "--resume").stderr
    assert "starting" not in moesim(*words, "--resume").stderr  # finished
    assert "starting" not in moesim(*words).stderr


def test_what_is_no_shard_is_refused(tmp_path):
    for text in ("0/4", "5/4", "1", "a/b", "1/0"):
        refused(*GRID, "--shard", text, "--out", tmp_path / "p.csv", parts=["--shard", "I from 1 to N"])
    refused(*GRID, "--shard", "1/2", "--format", "json", parts=["--shard", "CSV"])
    refused("merge", parts=["no file"])
    (tmp_path / "part.csv").write_text("x")
    refused("merge", tmp_path / "part.csv", "--out", tmp_path / "part.csv", parts=["part.csv", "would replace what the command reads"])
    assert (tmp_path / "part.csv").read_text() == "x"
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    refused("merge", tmp_path / "x.csv", parts=["x.csv", "no part of a sweep"])
    (tmp_path / "x.csv").write_text("a,grid_row\n1,2\n")
    refused("merge", tmp_path / "x.csv", parts=["x.csv, line 2", "names no row"])


def launch(out, size, *more, job="1"):
    """As mpirun starts them, without it."""
    processes = []
    for rank in range(size):
        environment = {**os.environ, "OMPI_COMM_WORLD_SIZE": str(size), "OMPI_COMM_WORLD_RANK": str(rank),
                       "PMIX_NAMESPACE": job}
        processes.append(subprocess.Popen([BINARY, *map(str, GRID), "--out", str(out), *map(str, more)], env=environment,
                                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    return processes


def finish(processes):
    return [(process.communicate(timeout=300)[1], process.returncode) for process in processes]


@pytest.mark.parametrize("size", [2, 5])
def test_processes_that_were_launched_together_share_the_sweep(tmp_path, whole, size):
    out = tmp_path / "sweep.csv"
    results = finish(launch(out, size))
    assert [code for _, code in results] == [0] * size, results
    assert out.read_bytes() == whole
    assert not (tmp_path / "sweep.csv.parts").exists()
    assert sum(f"by {size} processes" in text for text, _ in results) == 1


def wait_for_part(folder, ranks):
    """Until a chunk is finished and every rank has begun: nobody waits for one that never did."""
    end = time.monotonic() + 60
    while not list(folder.glob("*.csv")) or not all((folder / f"rank-{rank}").exists() for rank in range(ranks)):
        assert time.monotonic() < end
        time.sleep(0.005)


def test_the_chunk_of_a_killed_process_is_taken_by_another(tmp_path, whole):
    out = tmp_path / "sweep.csv"
    processes = launch(out, 3)
    wait_for_part(tmp_path / "sweep.csv.parts", 3)
    processes[1].send_signal(signal.SIGKILL)
    results = finish(processes)
    assert results[0][1] == results[2][1] == 0
    assert out.read_bytes() == whole


def test_a_run_whose_processes_were_all_killed_is_continued(tmp_path, whole):
    out = tmp_path / "sweep.csv"
    processes = launch(out, 2)
    wait_for_part(tmp_path / "sweep.csv.parts", 2)
    for process in processes:
        process.send_signal(signal.SIGKILL)
    finish(processes)
    parts = {file: file.stat().st_mtime_ns for file in (tmp_path / "sweep.csv.parts").glob("*.csv")}
    assert parts and not out.exists()
    text, code = finish(launch(out, 2, job="2"))[0]
    assert code == 2 and "--resume continues" in text
    assert {file: file.stat().st_mtime_ns for file in parts} == parts
    link = tmp_path / "elsewhere" / "link.csv"  # that leads to the same file
    link.parent.mkdir()
    link.symlink_to(out)
    results = finish(launch(link, 3, "--resume", job="3"))
    assert [code for _, code in results] == [0] * 3, results
    assert out.read_bytes() == whole and link.is_symlink() and list(link.parent.iterdir()) == [link]
    assert not (tmp_path / "sweep.csv.parts").exists()
    again = finish(launch(out, 2, "--resume", job="4"))
    assert [code for _, code in again] == [0, 0] and out.read_bytes() == whole
    assert "already complete" in again[0][0]


def test_under_mpirun(tmp_path, whole):
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("mpirun is missing (openmpi-bin)")
    out = tmp_path / "sweep.csv"
    result = subprocess.run([mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "2", BINARY, *map(str, GRID),
                             "--out", str(out)], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert out.read_bytes() == whole and "by 2 processes" in result.stderr


def test_a_run_under_mpirun_of_which_a_rank_was_killed_is_whole_after_resume(tmp_path, whole):
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("mpirun is missing (openmpi-bin)")
    out = tmp_path / "sweep.csv"
    started = (mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "2", BINARY, *map(str, GRID), "--out", str(out))
    with subprocess.Popen(started, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        folder = tmp_path / "sweep.csv.parts"
        wait_for_part(folder, 2)
        children = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(running.pid)], capture_output=True, text=True,
                                  check=True).stdout.splitlines()
        ranks = [int(line.split()[0]) for line in children if BINARY in line]
        assert len(ranks) == 2, children
        os.kill(ranks[0], signal.SIGSTOP)  # or it might finish the sweep before mpirun ends it
        os.kill(ranks[1], signal.SIGKILL)
        running.communicate(timeout=300)
    # mpirun ends the others when one dies by a signal, and fails.
    assert running.returncode != 0 and (list(folder.glob("*.csv")) or out.read_bytes() == whole)
    result = subprocess.run([*started, "--resume"], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert out.read_bytes() == whole
