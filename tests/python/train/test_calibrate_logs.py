"""moesim calibrate: speeds of a dashboard and logs of Megatron-LM in place of measured times."""

import json

import pytest
from command_line import as_json, expect_error, moesim, needs_binary, succeed, written

pytestmark = needs_binary
JOB = ("--model", "qwen3-30b-a3b", "--profile", "h100-sxm", "--gpus", 16, "--expert-parallel", 8)
LINE = (" [2025-06-01 10:00:0{0}] iteration        {0}/     100 | consumed samples:         1536 | elapsed time per iteration "
        "(ms): {1:.1f} | learning rate: 1.000000E-04 | global batch size:   {2} | lm loss: 1.1E+01 |\n")


@pytest.fixture(scope="module")
def step():
    return as_json("train", *JOB, "--global-batch", 512)


def calibrated(tmp_path, *words):
    out = tmp_path / "mine.json"
    result = moesim("calibrate", *words, "--out", out)
    assert result.returncode == 0, result.stderr
    return json.loads(out.read_text())["fitted"]["level"], result


def test_speeds_are_measured_values(tmp_path, step):
    rows = [{"global_batch": 512, "tokens_per_s_per_gpu": step["tokens_per_s_per_gpu"] / 1.3}]
    level, result = calibrated(tmp_path, written(tmp_path / "steps.csv", rows), *JOB)
    assert level == pytest.approx(1.3, rel=0.01)
    assert f"{1.3 * step['step_ms']:,.0f}" in result.stdout
    # Of one GPU, not of all.
    rows[0]["tokens_per_s_per_gpu"] *= 16 * 4
    expect_error(moesim("calibrate", written(tmp_path / "steps.csv", rows), *JOB), 2, "column tokens_per_s_per_gpu",
                 "tokens per second of one GPU?")


@pytest.mark.parametrize("column", ["tokens_per_s", "tflops_per_gpu", "throughput"])
def test_other_speeds_are_refused_with_the_way(tmp_path, column):
    rows = [{"global_batch": 512, column: 400}]
    expect_error(moesim("calibrate", written(tmp_path / "steps.csv", rows), *JOB), 2, f"column {column}", "measured_ms",
                 "global batch x sequence length x 1000 / tokens per second of all GPUs")


def test_a_csv_of_train_without_measured_times_has_none(tmp_path):
    path = tmp_path / "steps.csv"
    succeed("train", *JOB, "--format", "csv", "--out", path)
    expect_error(moesim("calibrate", path), 2, "measured_ms")


def test_a_log_of_megatron_is_one_step(tmp_path, step):
    log = tmp_path / "run.log"
    usual = 1.2 * step["step_ms"]
    lines = [LINE.format(place, ms, 512) for place, ms in
             enumerate((9 * usual, 0.99 * usual, usual, 1.02 * usual), start=1)]
    log.write_text("building GPT model ...\n" + "training ...\n".join(lines))
    level, result = calibrated(tmp_path, log, *JOB)
    assert level == pytest.approx(1.2, rel=0.01)
    assert f"{usual:.1f} ms, the median of 3 iterations after 1 of warm-up, global batch 512" in result.stderr
    # Its step is of the batch that it says.
    assert "note: --global-batch 256 has no effect" in calibrated(tmp_path, log, *JOB, "--global-batch", 256)[1].stderr
    # The job was killed while it wrote its last line.
    log.write_text("".join(lines) + lines[1][:-40])
    level, result = calibrated(tmp_path, log, *JOB)
    assert level == pytest.approx(1.2, rel=0.01)
    assert "the median of 3 iterations after 1 of warm-up, global batch 512; line 5, cut short, is left out; " in result.stderr
    log.write_text(lines[2])
    result = calibrated(tmp_path, log, *JOB)[1]
    assert f"one step, {usual:.1f} ms, of its only iteration, which has all the warm-up in it, global batch 512; " in result.stderr
    log.write_text(lines[0] + LINE.format(2, usual, 1024))
    expect_error(moesim("calibrate", log, *JOB), 2, "run.log: line 2: global batch 1024 after 512")
    log.write_text(lines[0].replace(f"{9 * usual:.1f}", "nan"))
    expect_error(moesim("calibrate", log, *JOB), 2, "run.log: line 1: expected a time above 0", "'nan'")
