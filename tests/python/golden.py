"""Kept figures and texts, compared within the rounding of another library.

To accept new ones: MOESIM_UPDATE_GOLDEN=1 pytest tests/python -m golden, and say in the commit message
which figures moved and why.
"""

import csv
import os
import re
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden"
# Two libraries of mathematical functions differ in the last bit of a double; a model does not
# change by so little.
TOLERANCE = 1e-7
NUMBER = re.compile(r"(-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?)")


def updating():
    return bool(os.environ.get("MOESIM_UPDATE_GOLDEN"))


def same_number(one, other):
    return abs(one - other) <= TOLERANCE * abs(other)


def same_text(text, kept):
    """Equal but for the numbers in it, and those within the tolerance."""
    if text == kept:
        return True
    parts, kept_parts = NUMBER.split(text), NUMBER.split(kept)
    return parts[::2] == kept_parts[::2] and all(
        same_number(float(one.replace(",", "")), float(other.replace(",", "")))
        for one, other in zip(parts[1::2], kept_parts[1::2]))


def set_columns(rows):
    """The columns that are not blank in every row, in their order."""
    return [column for column in rows[0] if any(row[column] for row in rows)]


def differences(rows, kept):
    """What differs between two tables, as lists of dictionaries, in either direction."""
    if not rows or len(rows) != len(kept):
        return [f"{len(rows)} rows, kept are {len(kept)}"]
    columns, kept_columns = set_columns(rows), set_columns(kept)
    found = [f"column {column} is new" for column in columns if column not in kept_columns]
    found += [f"column {column} is gone" for column in kept_columns if column not in columns]
    for index, (row, kept_row) in enumerate(zip(rows, kept)):
        found += [f"row {index} {column}: {kept_row[column]!r} -> {row[column]!r}"
                  for column in columns if column in kept_columns
                  and not same_text(row[column], kept_row[column])]
    return found


def check_table(csv_text, name, leave_out=()):
    """Compares a CSV with tests/golden/NAME, which holds the columns that are set."""
    rows = [{column: cell for column, cell in row.items() if column not in leave_out}
            for row in csv.DictReader(csv_text.splitlines())]
    path = FOLDER / name
    if updating():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, set_columns(rows), extrasaction="ignore",
                                    lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    with path.open(encoding="utf-8", newline="") as file:
        found = differences(rows, list(csv.DictReader(file)))
    assert not found, "\n".join([str(path), *found])


def check_text(text, name):
    """Compares a text with tests/golden/NAME, line by line."""
    path = FOLDER / name
    if updating():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    lines, kept = text.split("\n"), path.read_text(encoding="utf-8").split("\n")
    found = [f"line {number}:\n  {old}\n  {new}"
             for number, (new, old) in enumerate(zip(lines, kept), 1) if not same_text(new, old)]
    if len(lines) != len(kept):
        found.append(f"{len(lines)} lines, kept are {len(kept)}")
    assert not found, "\n".join([str(path), *found])
