"""Names in the glossary exist in the code and in the list of options and columns."""

import re
from pathlib import Path

import pytest
from command_line import as_json, needs_binary

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "sim" / "GLOSSARY.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines()
        if line.startswith("| ") and not line.startswith("| term ")]


def names(column):
    """The names in backquotes of a column of all tables."""
    return [name for row in ROWS for name in re.findall(r"`([^`]+)`", row[column])]


def test_every_row_is_whole_and_every_term_is_there_once():
    assert all(len(row) == 6 and row[0] and row[2] for row in ROWS)
    terms = [row[0] for row in ROWS]
    assert len(set(terms)) == len(terms) >= 40


def test_names_of_the_code_occur_in_it():
    words = set()
    for tree in ("sim", "kernels"):
        for path in (ROOT / tree).glob("**/*"):
            if path.suffix in (".hpp", ".cpp", ".cuh", ".cu"):
                words |= set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    assert names(3)
    assert [name for name in names(3) if name not in words] == []


@pytest.fixture(scope="module")
def document():
    return as_json("options")


@needs_binary
def test_options_are_those_of_the_program(document):
    known = {f"--{option['name']}" for option in document["options"]}
    assert names(4)
    assert [name for name in names(4) if name not in known] == []


@needs_binary
def test_columns_are_those_of_the_program(document):
    known = {column["name"] for column in document["columns"]}
    assert names(5)
    assert [name for name in names(5) if name not in known] == []
