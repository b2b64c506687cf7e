"""What the compiler makes of the kernels (tools/sass_facts.py): kept figures, no GPU needed."""

import csv
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

TOP = pathlib.Path(__file__).parents[3]
KEPT = TOP / "tests/data/sass_facts.csv"
sys.path.insert(0, str(TOP / "tools"))
import sass_facts  # noqa: E402

SASS = """
Fatbin elf code:
================
arch = sm_90
	code for sm_90
		Function : _ZN6moesim7kernels8exchange4copyILi8EEEvPKf
        /*0000*/                   LDC R1, c[0x0][0x28] ;                /* 0x00000a00ff017b82 */
                                                                         /* 0x000fe20000000800 */
        /*0010*/              @!P0 STL.64 [R1], R2 ;                     /* 0x0 */
        /*0020*/                   LDSM.16.M88.4 R4, [R3] ;              /* 0x0 */
        /*0030*/                   HMMA.16816.F32.BF16 R8, R4, R6, R8 ;  /* 0x0 */
        /*0040*/              @P1  LDGSTS.E.BYPASS.128 [R2], [R4.64] ;   /* 0x0 */
        /*0050*/               @P0 BRA 0x30 ;                            /* 0x0 */
        /*0060*/                   IADD3 R2, R2, 0x1, RZ ;               /* 0x0 */
        /*0070*/              @!P2 BRA 0x20 ;                            /* 0x0 */
        /*0080*/                   EXIT ;                                /* 0x0 */
        /*0090*/                   BRA 0x90;                             /* 0x0 */
"""
RESOURCES = """
Fatbin elf code:
================
arch = sm_90
Resource usage:
 Common:
  GLOBAL:0
 Function _ZN6moesim7kernels8exchange4copyILi8EEEvPKf:
  REG:32 STACK:8 SHARED:0 LOCAL:0 CONSTANT[0]:536 TEXTURE:0 SURFACE:0 SAMPLER:0
"""


def test_facts_of_a_listing():
    (row,) = sass_facts.facts_of(SASS, RESOURCES)
    # The inner loop (0x30 to 0x50) holds the only matrix product; the branch to itself is no loop.
    assert row == ("copy<8>", "sm_90", 32, 8, 1, 10, 3, 1, 0, 1, 0)


def test_a_loop_without_products_is_the_longest_inner_one():
    instructions = [(16 * at, "NOP") for at in range(10)]
    instructions[4] = (64, "@P0 BRA 0x20")  # 2 to 4
    instructions[7] = (112, "BRA.U 0x10")  # 1 to 7, around it
    instructions[9] = (144, "@P0 BRA `(0x80)")  # 8 to 9
    assert sass_facts.main_loop(instructions) == (2, 4)
    assert sass_facts.main_loop([(0, "EXIT")]) is None


def test_without_objects_it_says_what_it_takes(tmp_path):
    if sass_facts.find_cuobjdump() is None:
        pytest.skip("no cuobjdump (CUDA toolkit, or nvidia-cuda-cuobjdump from PyPI)")
    file = tmp_path / "plain.o"
    file.write_text("no object")
    done = subprocess.run(
        [sys.executable, TOP / "tools/sass_facts.py", file], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"sass_facts: {file}: ")


def rows_of_build():
    if sass_facts.find_cuobjdump() is None:
        pytest.skip("no cuobjdump (CUDA toolkit, or nvidia-cuda-cuobjdump from PyPI)")
    build = pathlib.Path(os.environ["MOESIM_BIN"]).parents[1]
    objects = sorted(map(str, build.glob("kernels/**/*.cu.o")))
    if not objects:
        pytest.skip(f"{build}: no kernels built")
    return sass_facts.read_objects(sass_facts.find_cuobjdump(), objects)


@pytest.mark.slow
def test_no_kernel_spills_in_its_loop_and_all_are_as_kept():
    rows = rows_of_build()
    # Two words outside the loop are cheaper than the registers, which would halve the occupancy of
    # these kernels; more, or in the loop, are not.
    spilled = {row.kernel: row.stack_bytes for row in rows if row.stack_bytes > 0}
    assert spilled.keys() <= {"combine_rows_backward<float>", "route_backward<32, 1>"}
    assert all(size <= 8 for size in spilled.values())
    assert [row.kernel for row in rows if row.loop_local_accesses > 0] == []
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    release = re.search(
        r"release (\S+),",
        subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout,
    )[1]
    if os.environ.get("MOESIM_UPDATE_GOLDEN"):
        KEPT.write_text(f"# nvcc {release}\n" + sass_facts.as_csv(rows))
        pytest.skip(f"{KEPT.name} written anew")
    first, _, table = KEPT.read_text().partition("\n")
    if first != f"# nvcc {release}":
        pytest.skip(f"nvcc {release}; figures are kept for {first.removeprefix('# ')}")
    kept = {(row["kernel"], row["arch"]): row for row in csv.DictReader(table.splitlines())}
    found = {
        (row.kernel, row.arch): {name: str(value) for name, value in row._asdict().items()}
        for row in rows
    }
    architectures = {arch for _, arch in found}
    assert found == {key: row for key, row in kept.items() if key[1] in architectures}
