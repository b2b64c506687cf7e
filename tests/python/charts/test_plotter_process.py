"""The process that draws: where its chart goes, and that no signal leaves it running or ends another."""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from command_line import BINARY, SMALL, moesim, needs_binary
from preloaded import preloaded
import plotter  # noqa: F401 (skips without Matplotlib)

pytestmark = needs_binary


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    assert moesim("sweep", *SMALL, "--out", path).returncode == 0
    return path


def test_a_pipe_gets_the_chart(tmp_path, rows):
    pipe = tmp_path / "chart.svg"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    result = moesim("plot", rows, "--out", pipe)
    reader.join(timeout=30)
    assert result.returncode == 0 and f"chart: {pipe}" in result.stderr
    assert pipe.is_fifo() and read and b"<svg" in read[0] and list(tmp_path.iterdir()) == [pipe]


def test_stdout_is_that_of_the_command(tmp_path, rows):
    """The plotter's own is the command's stderr. (Not with /dev/null: where this fails, the superuser would replace it.)"""
    link = tmp_path / "out.png"
    link.symlink_to("/dev/stdout")
    result = subprocess.run([BINARY, "plot", rows, "--out", link], capture_output=True, check=False)
    assert result.returncode == 0 and link.is_symlink()
    assert result.stdout.startswith(b"\x89PNG") and b"PNG" not in result.stderr


def test_the_chart_of_a_search_goes_into_a_pipe_too(tmp_path):
    pipe = tmp_path / "front.png"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    result = moesim("recommend", "--model", "qwen3-30b-a3b", "--gpus", 16, "--global-batch", 16, "--tensor-parallel", 1,
                    "--pipeline-parallel", 1, "--recompute", "full", "--chart", pipe)
    reader.join(timeout=30)
    assert result.returncode == 0 and pipe.is_fifo() and read and read[0].startswith(b"\x89PNG"), result.stderr


# A signal comes at once behind the call that CAUGHT_IN names; CHILD and ENDED are files of process ids.
CAUGHT = """
static void note(const char* variable, pid_t pid) {
  FILE* file = fopen(getenv(variable), "a");
  fprintf(file, "%d\\n", pid);
  fclose(file);
}
static int is_in(const char* name) { return getenv("CAUGHT_IN")[0] == name[0]; }
int posix_spawnp(pid_t* pid, const char* file, const posix_spawn_file_actions_t* actions, const posix_spawnattr_t* attributes,
                 char* const words[], char* const environment[]) {
  int (*real)(pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*, char* const[], char* const[]);
  real = dlsym(RTLD_NEXT, "posix_spawnp");
  int code = real(pid, file, actions, attributes, words, environment);
  note("CHILD", *pid);
  if (is_in("spawn")) raise(SIGTERM);
  return code;
}
pid_t waitpid(pid_t pid, int* status, int options) {
  pid_t found = ((pid_t (*)(pid_t, int*, int))dlsym(RTLD_NEXT, "waitpid"))(pid, status, options);
  if (is_in("wait")) raise(SIGTERM);
  return found;
}
int kill(pid_t pid, int number) {
  note("ENDED", pid);
  return ((int (*)(pid_t, int))dlsym(RTLD_NEXT, "kill"))(pid, number);
}
"""


def is_running(pid):
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


@pytest.mark.parametrize("call", ["spawn", "wait"])
def test_a_signal_beside_the_start_or_the_end_of_the_plotter(tmp_path, rows, call):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexec sleep {60 if call == 'spawn' else 0}\n")
    python.chmod(0o755)
    child, ended = tmp_path / "child", tmp_path / "ended"
    result = moesim("plot", rows, "--out", tmp_path / "chart.png",
                    env={"MOESIM_PYTHON": str(python), "CHILD": str(child), "ENDED": str(ended), "CAUGHT_IN": call,
                         **preloaded(tmp_path, CAUGHT)})
    assert result.returncode == 130 and "interrupted" in result.stderr
    pid, = map(int, child.read_text().split())
    if call == "wait":  # The number may be another process's by now.
        assert not ended.exists()
        return
    deadline = time.monotonic() + 10
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    running = is_running(pid)
    if running:
        os.kill(pid, signal.SIGKILL)
    assert not running and ended.read_text().split() == [str(pid)]
