"""What tests of tools/gpu-check run it on."""

import shutil

import pytest
from gpu_check import Machine


@pytest.fixture
def machine(tmp_path):
    """The script as it runs on a machine with a GPU."""
    return Machine(tmp_path)


@pytest.fixture
def built(tmp_path):
    """A folder of programs that stand for the built ones."""
    programs = tmp_path / "build"
    programs.mkdir()
    # Any program stands for them; this one needs more than the C library.
    for name in ("moesim", "test_gpu", "bench_layer_gpu", "bench_gpu_kernels"):
        shutil.copy("/bin/ls", programs / name)
    return programs
