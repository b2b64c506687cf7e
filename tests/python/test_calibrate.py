"""moesim calibrate: a software document from a few measured steps."""

import csv
import io
import json
import random
import re

import pytest
from command_line import expect_error, moesim, needs_binary, succeed

pytestmark = needs_binary
COMMON = ("--profile", "b200-sxm", "--gpus", 8, "--sequence-length", 4096)
LAYOUTS = [{"model": model, "pipeline_parallel": stages, "expert_parallel": 8 // stages,
            "global_batch": batch}
           for model in ("deepseek-v2-4layers", "deepseek-v3-4layers")
           for stages in (1, 2) for batch in (16, 64)]


def predicted(layout):
    """Compute, exchange and host of a step, as classes of parts."""
    words = [word for key, value in layout.items() for word in (f"--{key.replace('_', '-')}", value)]
    row = json.loads(succeed("train", *COMMON, *words, "--format", "json"))
    exchange = sum(row[f"{part}_ms"] for part in ("tensor_exchange", "context_exchange", "dispatch",
                                                  "combine", "gradients", "parameters"))
    return row["step_ms"] - exchange - row["host_ms"], exchange, row["host_ms"]


def written(path, rows):
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, rows[0].keys())
        out.writeheader()
        out.writerows(rows)
    return path


@pytest.fixture(scope="module")
def steps():
    """Steps of a software that takes 1.7 times the prediction, a further 1.2 on exchanges, and 6 ms."""
    noise = random.Random(3)
    rows = []
    for layout in LAYOUTS:
        compute, exchange, host = predicted(layout)
        ms = 1.7 * (compute + 1.2 * exchange + host) + 6
        rows.append({**layout, "measured_ms": f"{ms * noise.gauss(1, 0.01):.2f}"})
    return rows


def test_three_steps_predict_the_others(tmp_path, steps):
    out = tmp_path / "mine.json"
    chosen = [steps[0], steps[3], steps[5]]
    table = succeed("calibrate", written(tmp_path / "steps.csv", chosen), *COMMON, "--out", out)
    assert "each row left out" in table and "3 rows decide" in table
    document = json.loads(out.read_text())
    assert document["fitted"]["level"] == pytest.approx(1.7, rel=0.1)
    assert document["rows"] == 3
    for step in steps:
        words = [word for key, value in step.items() if key != "measured_ms"
                 for word in (f"--{key.replace('_', '-')}", value)]
        row = json.loads(succeed("train", *COMMON, *words, "--software", out, "--format", "json"))
        measured = float(step["measured_ms"])
        assert row["step_ms"] == pytest.approx(measured, rel=0.06)
        assert row["step_ms_low"] < measured < row["step_ms_high"]
        parts = sum(value for key, value in row.items() if key.endswith("_ms")
                    and key not in ("step_ms", "step_overhead_ms"))
        assert parts == pytest.approx(row["step_ms"])
        assert (row["band_level"], row["band_basis"]) == (0.9, "own")


def test_a_csv_of_train_with_measured_times_is_one_of_calibrate(tmp_path):
    rows = []
    for batch in (16, 32, 64):
        text = succeed("train", "--model", "deepseek-v3-4layers", *COMMON, "--global-batch", batch,
                       "--ep-overlap", "off", "--format", "csv")
        (row,) = csv.DictReader(io.StringIO(text))
        rows.append({**row, "measured_ms": 1.4 * float(row["step_ms"])})
    table = succeed("calibrate", written(tmp_path / "own.csv", rows))
    assert "nothing is kept without --out" in moesim("calibrate", tmp_path / "own.csv").stderr
    error = re.search(r"each row left out: ([0-9.]+) % off in the median", table)
    assert float(error[1]) < 5  # published steps pull a little


def test_more_rows_narrow_the_band(tmp_path, steps):
    def width(count):
        out = tmp_path / f"{count}.json"
        succeed("calibrate", written(tmp_path / "steps.csv", steps[:count]), *COMMON, "--out", out)
        row = json.loads(succeed("train", *COMMON, "--model", "deepseek-v2-4layers", "--software", out,
                                 "--format", "json"))
        return row["step_ms_high"] / row["step_ms_low"]

    assert width(8) < width(4) < width(2)


@pytest.mark.parametrize(("change", "words", "text"), [
    ({1: {"pipeline_parallel": "3"}}, (), "steps.csv: line 3: "),
    ({1: {"measured_ms": "0.5"}}, (), "steps.csv: line 3, column measured_ms: 0.5 ms"),
    ({1: {"measured_ms": "812 ms"}}, (), "line 3, column measured_ms: '812 ms' is not a number"),
    ({1: {"measured_ms": "-3"}}, (), "line 3, column measured_ms"),
    ({2: dict(LAYOUTS[0], measured_ms="1200")}, (), "steps.csv: line 4: the same options as line 2"),
    ({}, ("--fit", "level,exchange,host,fixed-ms"), "3 rows do not determine the 4 parameters"),
    ({}, ("--fit", "level,speed"), "--fit"),
    ({}, ("--software", "megatron"), "unknown 'megatron'"),
])
def test_what_is_wrong_with_a_row_is_named(tmp_path, steps, change, words, text):
    rows = [{**row, **change.get(place, {})} for place, row in enumerate(steps[:3])]
    file = written(tmp_path / "steps.csv", rows)
    expect_error(moesim("calibrate", file, *COMMON, *words), 2, text)


def test_what_is_wrong_with_a_file_is_named(tmp_path, steps):
    def refused(rows, *parts, words=COMMON):
        expect_error(moesim("calibrate", written(tmp_path / "steps.csv", rows), *words), 2,
                     "steps.csv", *parts)

    refused(steps[:1], "1 measured step:", "at least two")
    refused([{**row, "gpu_count": 8} for row in steps[:3]], "column gpu_count")
    refused([{**row, "measured_s": 1} for row in steps[:3]], "milliseconds")
    refused([{"gpus": 8}, {"gpus": 8}], "measured_ms")
    machines = [{**row, "profile": name} for row, name in zip(steps, ("b200-sxm", "b200-sxm", "h100-sxm"))]
    refused(machines, "line 4", "one machine", words=COMMON[2:])
    expect_error(moesim("calibrate"), 2, "which file?")


def test_software_of_another_machine_is_refused(tmp_path, steps):
    out = tmp_path / "mine.json"
    succeed("calibrate", written(tmp_path / "steps.csv", steps[:3]), *COMMON, "--out", out)
    expect_error(moesim("train", "--profile", "h100-sxm", "--software", out), 2, "calibrated on NVIDIA B200")
    out.write_text(out.read_text().replace('"degrees": 5.0', '"degrees": -1'))
    expect_error(moesim("train", "--profile", "b200-sxm", "--software", out), 2, "mine.json", "degrees")
