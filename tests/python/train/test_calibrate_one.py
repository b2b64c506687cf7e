"""moesim calibrate with one configuration."""

import json

import pytest
from command_line import as_json, moesim, needs_binary, succeed, written

pytestmark = needs_binary
JOB = ("--model", "qwen3-30b-a3b", "--profile", "h100-sxm", "--gpus", 16, "--expert-parallel", 8)


@pytest.mark.parametrize("software", ["megatron-bridge", "simumax", "aws", ""])
def test_one_configuration_comes_back(tmp_path, software):
    """Whatever steps that were published of this software take: it is this one that was measured."""
    usual = as_json("train", *JOB)["step_ms"]
    known = ("--software", software) if software else ()
    for factor in (0.7, 1.1, 1.3, 1.6, 2.2):
        out = tmp_path / "mine.json"
        # One row, and the same row again.
        for count in (1, 2):
            rows = [{"micro_batch": 1, "measured_ms": f"{factor * usual:.3f}"}] * count
            result = moesim("calibrate", written(tmp_path / "steps.csv", rows), *JOB, *known, "--out", out)
            assert result.returncode == 0, result.stderr
            assert f"warning: {count} row" in result.stderr and "1 configuration" in result.stderr
            assert json.loads(out.read_text())["fitted"]["level"] == pytest.approx(factor, rel=0.03)
        same = as_json("train", *JOB, "--software", out)
        assert same["step_ms"] == pytest.approx(factor * usual, rel=0.03)
        # As scatter a factor of 2.2 would be a band of a factor of 13 and more.
        assert same["step_ms_low"] < factor * usual < same["step_ms_high"] < 10 * same["step_ms_low"]


def test_what_a_slow_cluster_may_be_instead_is_said(tmp_path):
    """Two steps of like shares: all of them slower, or their exchanges."""
    job = (*JOB[:4], "--gpus", 64, "--global-batch", 512)
    layouts = [{"expert_parallel": 8, "micro_batch": micro} for micro in (1, 2)]
    rows = []
    for layout in layouts:
        words = [word for key, value in layout.items() for word in (f"--{key.replace('_', '-')}", value)]
        rows.append({**layout, "measured_ms": 1.3 * as_json("train", *job, *words)["step_ms"]})
    out = tmp_path / "mine.json"
    text = succeed("calibrate", written(tmp_path / "steps.csv", rows), *job, "--software", "megatron-bridge", "--out", out)
    assert json.loads(out.read_text())["fitted"]["level"] == pytest.approx(1.3, rel=0.05)
    assert "fit alike: a step that exchanges far less" in text and "(taken) or level 1.0" in text
