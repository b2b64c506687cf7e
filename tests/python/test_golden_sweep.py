"""Small sweeps, kept: a change of the model shows as a change of these files in review.

To accept new figures: MOESIM_UPDATE_GOLDEN=1 pytest tests/python/test_golden_sweep.py, and say in the
commit message which figures moved and why.
"""

import csv
import os
from pathlib import Path

import pytest
from command_line import needs_binary, succeed

GOLDEN = Path(__file__).parents[1] / "golden" / "sweep"
# Two libraries of mathematical functions differ in the last bit of a double; a model does not
# change by so little.
TOLERANCE = 1e-7

SWEEPS = {
    "train": ("--mode", "train", "--checkpointing", "full",
              "--router", "dense,top1,top2+ir,top2+fr+ir"),
    "einsum": ("--mode", "prefill", "--dispatch", "einsum", "--router", "top1+fr,top2"),
    "two-nodes": ("--mode", "prefill", "--expert-parallel", "16", "--experts", "16",
                  "--router", "top2+ir@node"),
}


def same(cell, kept):
    if cell == kept:
        return True
    try:
        return abs(float(cell) - float(kept)) <= TOLERANCE * abs(float(kept))
    except ValueError:
        return False


@needs_binary
@pytest.mark.parametrize("name", sorted(SWEEPS))
def test_a_sweep_gives_the_kept_figures(name, tmp_path):
    out = tmp_path / "sweep.csv"
    succeed("sweep", "--gpus", 16, "--micro-batch", 1, "--replicas", 3, "--capacity-factor", "1,1.5",
            *SWEEPS[name], "--out", out)
    golden = GOLDEN / f"{name}.csv"
    if os.environ.get("MOESIM_UPDATE_GOLDEN"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(out.read_text())
    rows, kept = (list(csv.DictReader(open(path, encoding="utf-8"))) for path in (out, golden))
    assert len(rows) == len(kept)
    moved = [f"row {index} {column}: {kept[index].get(column)} -> {cell}"
             for index, row in enumerate(rows) for column, cell in row.items()
             if not same(cell, kept[index].get(column, ""))]
    assert not moved, "\n".join(moved)
