"""The public tables of measurements: small ones in tests/data, all of them where MOESIM_DATA says."""

import functools
import json
import os
from pathlib import Path

import pytest

from command_line import moesim

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [Path(os.environ.get("MOESIM_DATA", ROOT.parent / "shared" / "data")),
           ROOT / "tests" / "data"]


def folder_of(*names):
    """The first folder that has all of these tables; skips the test where there is none."""
    for folder in FOLDERS:
        if all((folder / name).is_file() for name in names):
            return folder
    pytest.skip(f"{', '.join(names)}: not all of them in one folder of "
                f"{' and '.join(map(str, FOLDERS))}; MOESIM_DATA names another")


@functools.cache
def validation_of(folder):
    """The exit code and the document, which takes seconds."""
    result = moesim("validate", "exchanges", "--data", folder, "--format", "json")
    return result.returncode, json.loads(result.stdout)


def validated(folder):
    return validation_of(folder)[1]


def all_exchanges():
    return validated(folder_of("nccl_intranode.csv.gz"))
