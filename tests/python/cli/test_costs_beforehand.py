"""A run that takes a minute of CPU time or more says so before it starts, and what takes less."""

import json
import subprocess
from pathlib import Path

import pytest

from command_line import BINARY, needs_binary

pytestmark = needs_binary

ROOT = Path(__file__).resolve().parents[3]
HOST = ["--model", "switch-base-8", "--profile", "h100-sxm", "--router", "top1"]


def first_note(*words):
    """The first line on stderr; the run is stopped then."""
    process = subprocess.Popen([BINARY, "simulate", *words], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    try:
        return process.stderr.readline()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_exact_flows_among_many_ranks():
    note = first_note(*HOST, "--gpus", "2048", "--experts", "8192", "--expert-parallel", "2048",
                      "--network", "flows", "--replicas", "1")
    assert "exact flows among 2048 GPUs take about 2 min" in note
    assert "--network fast takes seconds" in note and "replicas" not in note


def test_counts_of_very_many_experts():
    note = first_note(*HOST, "--gpus", "16384", "--experts", "16384", "--expert-parallel", "16384")
    # 16,384 GPUs x 16,384 experts x 12 layers
    assert "3221 million counts a replica, 12 layers" in note
    assert "in 16 replicas" in note and "--replicas 3, fewer GPUs take less" in note


def test_very_many_layers(tmp_path):
    model = json.loads((ROOT / "profiles/models/olmoe-1b-7b.json").read_text())
    model.pop("published")
    model["layers"] = 65535
    path = tmp_path / "deep.json"
    path.write_text(json.dumps(model))
    note = first_note("--model", str(path), "--gpus", "8")
    assert "65535 layers: routing takes about" in note and "of CPU time" in note


@pytest.mark.parametrize("words", [["--gpus", "64", "--experts", "64", "--expert-parallel", "64"],
                                   ["--gpus", "8", "--network", "flows"]])
def test_short_runs_say_nothing(words):
    result = subprocess.run([BINARY, "simulate", *HOST, "--replicas", "1", *words], check=True,
                            capture_output=True, text=True, timeout=120)
    assert "CPU time" not in result.stderr
