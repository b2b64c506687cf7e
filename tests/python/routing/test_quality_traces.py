"""The recorded logits of tools/quality drive the simulator: what it loses on them is what the
experiment's own router lost (losses.csv, in PyTorch), row by row."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from command_line import needs_binary, succeed

TRACES = Path(__file__).resolve().parents[3] / "traces"
NAMES = ("tiny-moe-top1", "tiny-moe-top2")


@needs_binary
@pytest.mark.parametrize("name", NAMES)
def test_losses_are_those_of_the_experiment(name, tmp_path):
    with open(TRACES / name / "losses.csv", newline="", encoding="utf-8") as file:
        recorded = {(row["router"], float(row["capacity_factor"])): row
                    for row in csv.DictReader(file)}
    out = tmp_path / "s.csv"
    # As many replicas as steps, GPUs as ranks, tokens as recorded: each logit counts once.
    succeed("sweep", "--routing", f"trace:{TRACES / name}", "--experts", "8",
            "--gpus", "8", "--expert-parallel", "8", "--sequence-length", "128", "--micro-batch",
            "1", "--replicas", "8", "--router", ",".join(dict.fromkeys(key[0] for key in recorded)),
            "--capacity-factor", ",".join(dict.fromkeys(f"{key[1]:g}" for key in recorded)),
            "--out", out)
    with open(out, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(recorded) == 32
    for row in rows:
        expected = recorded[row["router"], float(row["capacity_factor"])]
        for share in ("failed", "residual_loss"):  # both are written with 9 digits
            assert float(row[share]) == pytest.approx(float(expected[share]), abs=2e-9)


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_trace_is_what_it_says(name):
    document = json.loads((TRACES / name / "trace.json").read_text())
    logits = np.load(TRACES / name / document["array"])
    assert document["name"] == name
    assert logits.shape == (len(document["steps"]), 8, len(document["layers"]),
                            document["tokens"], document["experts"])
    # Steps of training differ: the router has learnt in between.
    assert all((one != other).any() for one, other in zip(logits, logits[1:]))
