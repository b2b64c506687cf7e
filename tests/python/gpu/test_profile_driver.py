"""`moesim profile` of a CUDA build with a driver that is not there, too old or refuses: a stand-in
for libcuda.so.1 answers as such drivers do."""

import csv
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from command_line import BINARY, needs_binary
from test_profile_command import has_gpu

SOURCE = Path(__file__).resolve().parents[2] / "support" / "fake_cuda" / "driver.c"
pytestmark = [needs_binary,
              pytest.mark.skipif(bool(has_gpu()), reason="this machine has a driver of its own")]


def measure(folder, **variables):
    return subprocess.run([BINARY, "profile", "--out", "node.json"], cwd=folder, timeout=60,
                          capture_output=True, text=True, check=False,
                          env={**os.environ, **variables})


@pytest.fixture(name="driver", scope="module")
def fixture_driver(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in of the driver")
    folder = tmp_path_factory.mktemp("driver")
    if "no CUDA" in measure(folder).stderr:
        pytest.skip("this build has no CUDA")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libcuda.so.1", SOURCE], check=True)
    return folder


@pytest.mark.parametrize("variables, said", [
    # A driver of CUDA 11.4 under a runtime of 12 or later.
    ({"FAKE_DRIVER_VERSION": "11040"}, ["too old", "CUDA 11.4", "update"]),
    ({"FAKE_INIT": "100"}, ["shows no GPU", "CUDA_VISIBLE_DEVICES"]),
    # CUDA_ERROR_SYSTEM_NOT_READY: an NVSwitch node without its fabric manager.
    ({"FAKE_INIT": "802"}, ["cudaErrorSystemNotReady", "fabric manager"]),
    # CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: the driver was updated, the kernel module was not.
    ({"FAKE_INIT": "803"}, ["cudaErrorSystemDriverMismatch", "reboot"]),
])
def test_a_driver_that_refuses_is_told_apart(driver, tmp_path, variables, said):
    result = measure(tmp_path, LD_LIBRARY_PATH=str(driver), **variables)
    assert result.returncode == 3, result.stderr
    assert all(word in result.stderr for word in said), result.stderr
    assert result.stdout == "" and list(tmp_path.iterdir()) == []


def test_an_old_driver_is_said_in_the_words_that_gpu_check_looks_for(driver, tmp_path):
    script = (SOURCE.parents[3] / "tools" / "gpu-check").read_text()
    words = script.partition('"$moesim" profile --gpus ')[2].split()[0]
    result = subprocess.run([BINARY, "profile", "--gpus", words], cwd=tmp_path, timeout=60,
                            capture_output=True, text=True, check=False, env={
                                **os.environ, "LD_LIBRARY_PATH": str(driver),
                                "FAKE_DRIVER_VERSION": "11040"})
    assert "the driver is too old: it knows CUDA 11.4, this build needs " in result.stderr


def test_no_driver_at_all(driver, tmp_path):
    assert driver.is_dir()  # the build has CUDA
    result = measure(tmp_path)
    assert result.returncode == 3
    assert "no NVIDIA driver is loaded" in result.stderr


@pytest.mark.parametrize("words, variables, loading", [
    (["profile"], {"CUDA_VISIBLE_DEVICES": "0,1"}, "EAGER"),
    (["profile"], {"CUDA_VISIBLE_DEVICES": "0"}, "not set"),
    (["profile", "--gpus", "8"], {}, "EAGER"),
    (["profile", "--gpus", "8", "--suite", "gemm,overlap"], {}, "EAGER"),
    (["profile", "--gpus", "8", "--suite", "gemm,experts"], {}, "not set"),
    (["profile", "--gpus", "1"], {"CUDA_VISIBLE_DEVICES": "0,1"}, "not set"),
    (["profile"], {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_MODULE_LOADING": "LAZY"}, "LAZY"),
    # A process for each GPU.
    (["profile", "--rank", "0", "--ranks", "2", "--local-rank", "0", "--address", "127.0.0.1:1"],
     {"CUDA_VISIBLE_DEVICES": "0,1"}, "not set"),
    (["bench_layer_gpu", "--gpus", "2"], {}, "EAGER"),
    (["bench_layer_gpu"], {"CUDA_VISIBLE_DEVICES": "0,1"}, "not set"),
])
def test_kernels_are_loaded_early_where_a_process_drives_several_gpus(
        driver, tmp_path, words, variables, loading):
    program = [BINARY, "profile"]
    if words[0] != "profile":
        program = [Path(BINARY).parents[1] / "tests" / words[0]]
        if not program[0].exists():
            pytest.skip(f"{words[0]} is not built")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    result = subprocess.run([*program, *words[1:]], cwd=tmp_path, timeout=60, check=False,
                            capture_output=True, text=True, env={
                                **environment, "LD_LIBRARY_PATH": str(driver),
                                "FAKE_DRIVER_LOG": str(tmp_path / "log"), **variables})
    assert result.returncode == 3, result.stderr
    assert (tmp_path / "log").read_text() == loading


def doctor(driver, *words, **variables):
    return subprocess.run([BINARY, "doctor", *words], timeout=60, capture_output=True, text=True,
                          check=False, env={**os.environ, "LD_LIBRARY_PATH": str(driver), **variables})


@pytest.mark.parametrize("words", [[], ["--format", "csv"]])
def test_doctor_prints_what_it_found_before_a_driver_that_ends_the_process(driver, words):
    result = doctor(driver, *words, FAKE_INIT="-1")
    assert result.returncode == -signal.SIGABRT
    for name in ("CPU", "NVIDIA driver", "cuBLAS", "NCCL", "cuDNN", "CUPTI", "profiles", "clusters"):
        assert name in result.stdout
    assert "no NVIDIA" not in result.stdout


def test_doctor_prints_a_file_whole_or_not_at_all(driver, tmp_path):
    assert doctor(driver, "--out", tmp_path / "a.csv", FAKE_INIT="-1").returncode == -signal.SIGABRT
    assert not (tmp_path / "a.csv").exists()


def test_doctor_finds_the_same_in_every_format(driver, tmp_path):
    """The GPU last: a call of the driver may never return."""
    found = json.loads(doctor(driver, "--format", "json").stdout)["findings"]
    assert found[-1]["name"] == "GPU" and "shows no GPU" in found[-1]["detail"]
    printed = doctor(driver, "--format", "csv").stdout
    assert doctor(driver, "--out", tmp_path / "a.csv").stdout == ""
    assert (tmp_path / "a.csv").read_text() == printed
    rows = list(csv.DictReader(printed.splitlines()))
    assert [(row["name"], row["detail"]) for row in rows] == [
        (finding["name"], finding["detail"]) for finding in found]
    # Names and details stand in columns, whatever was written when.
    lines = [line for line in doctor(driver).stdout.splitlines()[2:] if line[:3].strip()]
    assert len(lines) == len(found)
    starts = {line.index(finding["detail"]) for line, finding in zip(lines, found)}
    assert len(starts) == 1, lines
