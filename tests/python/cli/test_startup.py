"""What starting the program costs: it is linked to no library of CUDA and needs little memory."""

import os
import shutil
import subprocess
import sys

import pytest

from command_line import BINARY, SMALL, needs_binary

pytestmark = needs_binary

# What CUDA and its drivers call their libraries. The runtime itself is linked statically.
CUDA = ("libcuda", "libcudart", "libcublas", "libnvrtc", "libnccl", "libcudnn", "libcupti", "libnv")
MOST_MIB = 15

# Runs a program and prints its peak resident memory in KiB. The kernel counts what the process held
# before it became the program, too: a bare interpreter holds less than the bound.
PEAK = """import os, sys
file = os.open(os.devnull, os.O_WRONLY)
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ,
                       file_actions=[(os.POSIX_SPAWN_DUP2, file, 1)])
_, status, usage = os.wait4(child, 0)
print(usage.ru_maxrss if status == 0 else "failed")"""


def test_no_library_of_cuda_is_linked():
    if shutil.which("readelf") is None:
        pytest.skip("readelf is not there (binutils)")
    text = subprocess.run(["readelf", "-d", BINARY], capture_output=True, text=True, check=True).stdout
    needed = [line.split("[")[1].rstrip("]") for line in text.splitlines() if "(NEEDED)" in line]
    assert any(name.startswith("libc.so") for name in needed)
    assert [name for name in needed if name.startswith(CUDA)] == []


def test_no_library_of_cuda_is_loaded_by_a_simulation():
    # The dynamic linker's own list, of all that is loaded while the program runs.
    result = subprocess.run(
        [BINARY, "simulate", *SMALL],
        env={**os.environ, "LD_DEBUG": "files"}, capture_output=True, text=True, check=True)
    loaded = {line.split("file=")[1].split()[0] for line in result.stderr.splitlines()
              if "file=" in line}
    assert any(name.startswith("libc.so") for name in loaded)
    assert [name for name in loaded if os.path.basename(name).startswith(CUDA)] == []


@pytest.mark.parametrize("words", [["--version"], ["--help"]])
def test_starting_takes_little_memory(words):
    if "libasan" in subprocess.run(["ldd", BINARY], capture_output=True, text=True, check=False).stdout:
        pytest.skip("a build with a sanitizer keeps memory of its own")
    peak = int(subprocess.run([sys.executable, "-ISc", PEAK, BINARY, *words], capture_output=True,
                              text=True, check=True).stdout)
    assert peak < MOST_MIB * 1024, f"{peak} KiB"
