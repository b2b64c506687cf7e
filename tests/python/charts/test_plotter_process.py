"""The process that draws: where its chart goes."""

import os
import subprocess
import threading

import pytest
from command_line import BINARY, SMALL, moesim, needs_binary
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
