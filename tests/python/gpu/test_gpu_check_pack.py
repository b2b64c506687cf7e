"""tools/gpu-check --pack: programs with their libraries, for a machine that has nothing else."""

import os
import subprocess
import sys

from gpu_check import check


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


def test_a_pack_over_48_mib_fails(tmp_path, built):
    with open(built / "bench_gpu_kernels", "ab") as file:
        file.truncate(0)
        file.write(b"#!/bin/sh\nexit 0\n" + os.urandom(50 << 20))
    result = check("--bin", built, "--pack", tmp_path / "packed")
    assert result.returncode == 1
    assert "over 48 MiB" in result.stderr


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
