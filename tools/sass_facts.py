#!/usr/bin/env python3
"""Prints what the compiler made of each CUDA kernel: registers, spills, instructions of its main loop.

A GPU is not needed. Reads object files of nvcc with cuobjdump, of the CUDA toolkit or of the PyPI
package nvidia-cuda-cuobjdump (and nvidia-cuda-nvdisasm beside it).

The main loop of a kernel is the loop with the most matrix products (HMMA); without any, the one
with the most asynchronous copies (LDGSTS); without any, the longest loop that has no other inside.
"""

import argparse
import csv
import glob
import io
import os
import re
import shutil
import subprocess
import sys
from collections import namedtuple

COLUMNS = (
    "kernel arch registers stack_bytes local_accesses instructions "
    "loop_instructions loop_hmma loop_ldsm loop_ldgsts loop_local_accesses"
).split()
Facts = namedtuple("Facts", COLUMNS)
Loop = namedtuple("Loop", "first last")  # places in the list of instructions, both inside

INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(\S[^;]*);")
BRANCH = re.compile(r"\bBRA\b.*?0x([0-9a-f]+)")
RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+)")


def find_cuobjdump():
    """The program's path, or None."""
    folders = [
        os.path.join(os.environ[name], "bin")
        for name in ("CUDA_HOME", "CUDA_PATH")
        if os.environ.get(name)
    ]
    folders.append("/usr/local/cuda/bin")
    for root in sys.path:
        folders += sorted(glob.glob(os.path.join(root or ".", "nvidia", "*", "bin")))
    path = os.pathsep.join([os.environ.get("PATH", ""), *folders])
    return shutil.which("cuobjdump", path=path)


def is_operation(text, name):
    """Whether an instruction, maybe behind a predicate (@!P0), is `name` or `name.SUFFIX`."""
    return re.match(rf"(@!?U?P\w+\s+)?{name}\b", text) is not None


def loops_of(instructions):
    """Loops as backward branches make them. `instructions`: [(address, text)] in order."""
    place = {address: at for at, (address, _) in enumerate(instructions)}
    found = []
    for at, (_, text) in enumerate(instructions):
        branch = BRANCH.search(text)
        if branch is None:
            continue
        to = place.get(int(branch[1], 16))
        # A branch to itself pads the end of a kernel.
        if to is not None and to < at:
            found.append(Loop(to, at))
    return found


def count(instructions, loop, name):
    return sum(is_operation(text, name) for _, text in instructions[loop.first : loop.last + 1])


def local_accesses(instructions, loop):
    """Loads and stores of the thread's own memory: spilled registers, arrays with indices."""
    return count(instructions, loop, "STL") + count(instructions, loop, "LDL")


def main_loop(instructions):
    """As said above; None for a kernel without loops."""
    loops = loops_of(instructions)
    for name in ("HMMA", "LDGSTS"):
        most = max((count(instructions, loop, name) for loop in loops), default=0)
        if most > 0:
            # The innermost of those that hold them all.
            return min(
                (loop for loop in loops if count(instructions, loop, name) == most),
                key=lambda loop: loop.last - loop.first,
            )
    inner = [
        loop
        for loop in loops
        if not any(loop.first <= other.first and other.last < loop.last for other in loops)
    ]
    return max(inner, key=lambda loop: loop.last - loop.first, default=None)


def parse_sass(text):
    """{(kernel, arch): [(address, instruction)]} of what cuobjdump -sass prints."""
    kernels = {}
    arch = current = None
    for line in text.splitlines():
        if match := re.match(r"^\s*code for (sm_\w+)", line):
            arch = match[1]
        elif match := re.match(r"^\s*Function : (\S+)", line):
            current = kernels.setdefault((match[1], arch), [])
        elif current is not None and (match := INSTRUCTION.match(line)):
            current.append((int(match[1], 16), match[2].strip()))
    return kernels


def parse_resources(text):
    """{(kernel, arch): (registers, stack bytes)} of what cuobjdump -res-usage prints."""
    usage = {}
    arch = kernel = None
    for line in text.splitlines():
        if match := re.match(r"^arch = (sm_\w+)", line):
            arch = match[1]
        elif match := re.match(r"^\s*Function (\S+):", line):
            kernel = match[1]
        elif kernel is not None and (match := RESOURCES.search(line)):
            usage[kernel, arch] = (int(match[1]), int(match[2]))
            kernel = None
    return usage


def demangle(names):
    """Short names: without namespaces and arguments, with template arguments."""
    shown = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
    ).stdout
    short = {}
    for name, full in zip(names, shown.splitlines()):
        full = re.sub(r"^void ", "", full)
        full = re.sub(r"\((?!anonymous).*$", "", full.replace("(anonymous namespace)::", ""))
        short[name] = re.sub(r"[\w]+::", "", full)
    return short


def facts_of(sass, resources):
    """[Facts], by kernel and architecture, of the two texts of cuobjdump."""
    kernels = parse_sass(sass)
    usage = parse_resources(resources)
    names = demangle(sorted({name for name, _ in kernels}))
    rows = []
    for (name, arch), instructions in kernels.items():
        if (name, arch) not in usage:
            raise ValueError(f"{name}: cuobjdump -res-usage does not name it for {arch}")
        loop = main_loop(instructions)
        everything = Loop(0, len(instructions) - 1)
        of_loop = [0] * 5
        if loop is not None:
            named = [count(instructions, loop, name) for name in ("HMMA", "LDSM", "LDGSTS")]
            of_loop = [loop.last - loop.first + 1, *named, local_accesses(instructions, loop)]
        local = local_accesses(instructions, everything)
        rows.append(
            Facts(names[name], arch, *usage[name, arch], local, len(instructions), *of_loop)
        )
    return sorted(rows, key=lambda row: (row.kernel, int(re.sub(r"\D", "", row.arch))))


def read_objects(cuobjdump, files):
    def run(option, file):
        done = subprocess.run(
            [cuobjdump, option, file], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ValueError(f"{file}: {cuobjdump} {option}: {done.stderr.strip() or 'failed'}")
        return done.stdout

    rows = []
    for file in files:
        rows += facts_of(run("-sass", file), run("-res-usage", file))
    if not rows:
        raise ValueError(f"{', '.join(files)}: no kernel in it: give object files that nvcc made")
    return rows


def as_csv(rows):
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows)
    return text.getvalue()


def as_table(rows):
    cells = [COLUMNS] + [tuple(map(str, row)) for row in rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(COLUMNS))]
    lines = []
    for row in cells:
        lines.append(
            "  ".join(
                cell.ljust(width) if at < 2 else cell.rjust(width)
                for at, (cell, width) in enumerate(zip(row, widths))
            )
        )
    return "\n".join(line.rstrip() for line in lines) + "\n"


def main():
    parser = argparse.ArgumentParser(
        prog="tools/sass_facts.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "objects",
        nargs="+",
        metavar="OBJECT",
        help="object files of nvcc, as build/release/kernels/routing/CMakeFiles/*/launch.cu.o",
    )
    parser.add_argument(
        "--kernel", default="", metavar="REGEX", help="only kernels whose name matches"
    )
    parser.add_argument(
        "--arch", action="append", metavar="sm_90", help="only this architecture; can be repeated"
    )
    parser.add_argument(
        "--csv", action="store_true", help="print CSV, as tests/data/sass_facts.csv keeps it"
    )
    options = parser.parse_args()
    cuobjdump = find_cuobjdump()
    if cuobjdump is None:
        sys.exit(
            "sass_facts: no cuobjdump: install the CUDA toolkit's, or from PyPI nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm"
        )
    try:
        rows = read_objects(cuobjdump, options.objects)
    except ValueError as error:
        sys.exit(f"sass_facts: {error}")
    rows = [
        row
        for row in rows
        if re.search(options.kernel, row.kernel) and (not options.arch or row.arch in options.arch)
    ]
    print(as_csv(rows) if options.csv else as_table(rows), end="")


if __name__ == "__main__":
    main()
