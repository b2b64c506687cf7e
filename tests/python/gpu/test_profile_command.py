"""`moesim profile` where there is no GPU: what works, what refuses, and with which exit code."""

import os
import shutil
import subprocess

import pytest

from command_line import moesim, needs_binary, succeed

pytestmark = needs_binary
LAUNCHERS = ("OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "RANK", "WORLD_SIZE")


def has_gpu():
    return shutil.which("nvidia-smi") and subprocess.run(
        ["nvidia-smi", "-L"], capture_output=True, check=False).stdout.strip()


def test_list_names_every_suite_and_what_is_not_measured():
    text = succeed("profile", "--list")
    for suite in ("gemm", "memory", "attention", "collectives"):
        assert f"\n{suite} " in text
    assert "layer: " in text.split("Not measured")[1]
    assert "linear attention: no suite runs its kernels" in text.split("Not measured")[1]


def test_dry_run_lists_points_with_times_and_is_deterministic():
    first = succeed("profile", "--dry-run", "--suite", "gemm", "--only", "m=16")
    lines = first.splitlines()
    assert lines[0].split() == ["suite", "about", "point"]
    assert len(lines) > 10
    assert all(" m=16 " in line for line in lines[1:])
    assert first == succeed("profile", "--dry-run", "--suite", "gemm", "--only", "m=16")
    other = succeed("profile", "--dry-run", "--suite", "gemm", "--only", "m=16", "--seed", "2")
    assert other != first and sorted(other.splitlines()) == sorted(lines)


def test_dry_run_of_one_gpu_says_that_exchanges_are_left_out():
    result = moesim("profile", "--dry-run", "--gpus", "1")
    assert result.returncode == 0
    assert "collectives left out" in result.stderr
    assert "all-to-all" not in result.stdout


@pytest.mark.parametrize("words, said", [
    (("--suite", "gem"), "did you mean 'gemm'"),
    (("--only", "m=17", "--suite", "gemm", "--dry-run"), "leaves nothing"),
    (("--gpus", "0"), "--gpus"),
    (("--timeout", "-1"), "--timeout"),
    (("--rank", "0"), "--ranks"),
    (("--rank", "2", "--ranks", "2", "--address", "here:99"), "rank 2 of 2"),
    (("--base", "h2000"), "h2000"),
    (("stray",), "stray"),
])
def test_a_wrong_request_is_a_usage_error(words, said):
    result = moesim("profile", *words)
    assert result.returncode == 2, result.stderr
    assert said in result.stderr and result.stdout == ""


def test_half_a_launch_is_a_usage_error():
    result = moesim("profile", env={"RANK": "1", "WORLD_SIZE": "2"})
    assert result.returncode == 2
    assert "LOCAL_RANK" in result.stderr


@pytest.mark.skipif(bool(has_gpu()), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
    result = subprocess.run([os.environ["MOESIM_BIN"], "profile", "--out", "node.json"],
                            capture_output=True, text=True, cwd=tmp_path, env=environment,
                            check=False, timeout=60)
    assert result.returncode == 3
    assert "error" in result.stderr and result.stdout == ""
    assert any(word in result.stderr for word in ("no CUDA", "driver", "no GPU"))
    assert list(tmp_path.iterdir()) == []
