"""tools/gpu-check --pack: programs with their libraries, for a machine that has nothing else."""

import os
import subprocess
import sys

import pytest
from gpu_check import check, ROOT


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


def tracked_bytes():
    names = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=True)
    return sum((ROOT / name).lstat().st_size for name in names.stdout.split("\0") if name)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout: no files are tracked")
@pytest.mark.parametrize("name, kinds, said", [
    ("packed", "80;90;100", "the programs are for the GPUs 80;90;100: build for one, "
     "-DMOESIM_CUDA_ARCHITECTURES=90, or --pack packed.tar.xz, which is smaller"),
    ("packed", "90", "MiB: --pack packed.tar.xz, which is smaller"),
    pytest.param("packed.tar.xz", "90", "MiB: build for one GPU, with fewer wheels", marks=pytest.mark.slow)],
    ids=["three kinds", "one kind", "one file"])
def test_a_pack_that_cannot_be_carried_with_the_tracked_files_fails(tmp_path, built, name, kinds, said):
    # Each alone is under the limit: the pack has 2 MiB and more, the profiles among them.
    most = (tracked_bytes() >> 20) + 2
    (built / "bench_gpu_kernels").write_bytes(b"#!/bin/sh\nexit 0\n" + os.urandom(2 << 20))
    (built / "CMakeCache.txt").write_text(f"MOESIM_CUDA_ARCHITECTURES:STRING={kinds}\n")
    result = check("--bin", built, "--pack", tmp_path / name, "--most", most)
    assert result.returncode == 1
    assert f"files that git tracks are over {most} MiB: " in result.stderr and said in result.stderr
    assert "1 thing(s) are wrong" in result.stderr
    assert check("--bin", built, "--pack", tmp_path / name, "--most", most + 40).returncode == 0


@pytest.mark.slow
def test_a_pack_in_one_file_is_small_and_runs_where_it_is_unpacked(tmp_path, built):
    (built / "bench_gpu_kernels").write_bytes(b"#!/bin/sh\nexit 0\n" + bytes(60 << 20))
    kept = tmp_path / "packed" / "mine"
    kept.mkdir(parents=True)
    result = check("--bin", built, "--pack", tmp_path / "packed.tar.xz")
    assert result.returncode == 0, result.stderr
    assert "on the other machine: tar -xf packed.tar.xz && packed/tools/gpu-check" in result.stderr
    assert kept.exists() and (tmp_path / "packed.tar.xz").stat().st_size < 8 << 20
    other = tmp_path / "other"
    other.mkdir()
    subprocess.run(["tar", "-C", other, "-xf", tmp_path / "packed.tar.xz"], check=True)
    listed = subprocess.run([other / "packed" / "tools" / "gpu-check", "--list"], check=False, text=True,
                            env={"PATH": "/usr/bin:/bin"}, capture_output=True)
    assert listed.returncode == 0, listed.stderr


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
