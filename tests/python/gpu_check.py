"""Runs tools/gpu-check with stand-ins for the programs."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "gpu-check"
PARTS = ["facts", "tests", "profile", "simulate", "layer", "benchmarks", "ranks", "sanitizer"]
SYNTHETIC = """{"points": [{"synthetic": true}]}"""


def check(*words, script=SCRIPT, env=None):
    return subprocess.run([str(script), *map(str, words)], capture_output=True, text=True,
                          env={**os.environ, **(env or {})}, timeout=120, check=False)


def states(folder):
    return {path.stem: path.read_text().strip() for path in folder.glob("*.state")}


class Machine:
    """The script as it runs on a machine with a GPU, and programs that note how they were called."""

    def __init__(self, folder):
        self.tree = folder / "tree"
        self.bin = folder / "bin"
        self.folder = folder / "results"
        self._calls = folder / "calls"
        self._script = self.tree / "tools" / "gpu-check"
        self._script.parent.mkdir(parents=True)
        self.bin.mkdir()
        for name in ("gpu-check", "common.sh", "gpu_parts.sh", "gpu_pack.sh"):
            text = (ROOT / "tools" / name).read_text()
            (self.tree / "tools" / name).write_text(text.replace("/dev/nvidia[0-9]*", "/dev/null"))
        self._script.chmod(0o755)
        # Writes the --out of a profile.
        self.program("moesim", f"""[ "$1" = profile ] || exit 0
while [ $# -gt 1 ]; do [ "$1" = --out ] && echo '{SYNTHETIC}' >"$2"; shift; done; exit 0""")
        self.program("test_gpu", "exit 0")
        self.program("compute-sanitizer", "exit 0")

    def program(self, name, body, asked="exit 2"):
        """`asked`: what it does when it is asked of its driver."""
        path = self.bin / name
        path.write_text(f'#!/bin/sh\nif [ "$2" = --gpus ]; then {asked}; fi\n'
                        f'echo "{name} $*" >>"{self._calls}"\n{body}\n')
        path.chmod(0o755)

    def several(self, count):
        """As if there were so many GPUs."""
        for index in range(count):
            (self.tree.parent / f"gpu{index}").touch()
        text = self._script.read_text()
        self._script.write_text(text.replace("/dev/null'", f"{self.tree.parent}/gpu[0-9]*'"))

    def __call__(self, *words, python=""):
        """The script with `words`; with `python` it runs that program in the place of Python."""
        return check("--bin", self.bin, "--out", self.folder, *words, script=self._script,
                     env={"PATH": f"{self.bin}:{os.environ['PATH']}",
                          "MOESIM_PYTHON": str(self.bin / python) if python else ""})

    def lines(self):
        """Each call of a program, as it was typed."""
        return self._calls.read_text().splitlines()

    def calls(self):
        """Each call of a program: its name and first argument."""
        return [line.split()[0:2] for line in self.lines()]
