"""Where the command is, and how it is started."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Dict

_PACKED = Path(__file__).parent / "program" / "bin" / "moesim"


class MoesimError(RuntimeError):
    """The command failed: its message, and `code`, its exit code (2: an option or a file is
    wrong; `moesim --help` lists all)."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def binary() -> str:
    """The command that is run: $MOESIM_BIN, the one of this package, or the one on the PATH."""
    chosen = os.environ.get("MOESIM_BIN")
    if chosen:
        if not os.access(chosen, os.X_OK):
            raise MoesimError(f"MOESIM_BIN: {chosen} is no program: unset it, or name moesim", 127)
        return chosen
    if _PACKED.is_file():
        return str(_PACKED)
    found = shutil.which("moesim")
    if found is None:
        raise MoesimError("there is no moesim: install the wheel that tools/wheel makes, or set "
                          "MOESIM_BIN", 127)
    return found


def environment() -> Dict[str, str]:
    """This process's, with this interpreter for the plotter."""
    return {"MOESIM_PYTHON": sys.executable, **os.environ}


def main() -> None:
    """The command itself: what the console script runs."""
    try:
        program = binary()
    except MoesimError as error:
        sys.exit(f"moesim: error: {error}")
    os.execve(program, [program, *sys.argv[1:]], environment())
