"""Rows that moesim calibrate reads: what is wrong with them, what is noted and warned of."""

import json
import re

import pytest
from command_line import as_json, expect_error, moesim, needs_binary, succeed, written
from measured_steps import COMMON, LAYOUTS, predicted, predicted_exchange

pytestmark = needs_binary


def test_the_column_software_is_the_option(tmp_path, steps):
    def calibrated(names, *words):
        out = tmp_path / "mine.json"
        rows = [{**row, "software": name} for row, name in zip(steps, names)]
        result = moesim("calibrate", written(tmp_path / "steps.csv", rows), *COMMON, "--out", out, *words)
        assert result.returncode == 0, result.stderr
        return json.loads(out.read_text()), result.stderr

    typed, notes = calibrated([""] * 3, "--software", "simumax")
    assert typed["software"] == "simumax" and "column software" not in notes
    assert calibrated(["simumax", "", "simumax"])[0] == typed
    assert calibrated([""] * 3)[0] != typed
    same, notes = calibrated(["aws", "aws", "megatron-bridge"], "--software", "simumax")
    assert same == typed and "steps.csv: line 2 has aws in the column software" in notes
    own = tmp_path / "own.json"
    own.write_text(json.dumps(typed))
    assert calibrated([own] * 3)[0] == typed  # whose steps it was fitted from


@pytest.mark.parametrize(("names", "text"), [
    (("simumax", "", "aws"), "steps.csv: line 4, column software: aws, line 2 has simumax"),
    (("simumacs",) * 3, "steps.csv: line 2, column software: unknown 'simumacs' (did you mean 'simumax'?)"),
    (("gone.json",) * 3, "steps.csv: line 2, column software: gone.json"),
])
def test_a_column_software_that_cannot_be_is_named(tmp_path, steps, names, text):
    rows = [{**row, "software": name} for row, name in zip(steps, names)]
    expect_error(moesim("calibrate", written(tmp_path / "steps.csv", rows), *COMMON), 2, text)


def test_a_measured_step_that_does_not_fit_in_memory_is_said(tmp_path):
    """Its row lacks recomputation, say: without it the prediction is of another step."""
    common = ("--profile", "h100-sxm", "--gpus", 16, "--model", "qwen3-30b-a3b", "--expert-parallel", 8)
    def warnings(recompute):
        rows = [{"micro_batch": batch, "pipeline_parallel": 1, "recompute": recompute, "measured_ms": ms}
                for batch, ms in ((4, 7000), (1, 7500))]
        result = moesim("calibrate", written(tmp_path / "steps.csv", rows + rows[:1]), *common, "--global-batch", 128)
        assert result.returncode == 0, result.stderr
        return result.stderr
    warning = warnings("none")
    assert re.search(r"steps.csv: line 2: 1\d\d\.\d GiB do not fit the 80 GiB of NVIDIA H100", warning)
    assert warning.count("line 2: ") == 1 and "line 4" not in warning
    assert "do not fit" not in warnings("full")


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

    (tmp_path / "steps.csv").write_text("gpus,measured_ms\n")
    expect_error(moesim("calibrate", tmp_path / "steps.csv", *COMMON), 2, "steps.csv")
    refused([{**row, "gpu_count": 8} for row in steps[:3]], "column gpu_count")
    refused([{**row, "measured_s": 1} for row in steps[:3]], "milliseconds")
    refused([{"gpus": 8}, {"gpus": 8}], "measured_ms")
    machines = [{**row, "profile": name} for row, name in zip(steps, ("b200-sxm", "b200-sxm", "h100-sxm"))]
    refused(machines, "line 4", "one machine", words=COMMON[2:])
    expect_error(moesim("calibrate"), 2, "which file?")


def test_software_of_another_machine_is_refused(tmp_path, steps):
    out = tmp_path / "mine.json"
    succeed("calibrate", written(tmp_path / "steps.csv", steps[:3]), *COMMON, "--out", out)
    expect_error(moesim("train", "--profile", "h100-sxm", "--software", out), 2, "calibrated on NVIDIA B200",
                 f"give --profile {out} in its place", "calibrate with steps of NVIDIA H100")
    exchange = predicted_exchange(out, "all-to-all", 8, "1MiB")
    assert exchange["provenance"].endswith(f"; not scaled: {out} was calibrated without exchanges")
    document = json.loads(out.read_text())
    # Two of the prior and of three rows what the unknowns leave.
    assert 2 < document["scatters"]["step"]["degrees"] < 5
    document["scatters"]["step"]["degrees"] = -1
    out.write_text(json.dumps(document))
    expect_error(moesim("train", "--profile", "b200-sxm", "--software", out), 2, "mine.json", "degrees")


def test_an_option_that_every_row_has_of_its_own_is_noted(tmp_path, steps):
    rows = [{**row, "profile": "b200-sxm"} for row in steps[:3]]
    def said(rows, profile):
        result = moesim("calibrate", written(tmp_path / "steps.csv", rows), *COMMON[2:], "--profile", profile)
        assert result.returncode == 0, result.stderr
        return "has no effect" in result.stderr
    result = moesim("calibrate", written(tmp_path / "steps.csv", rows), *COMMON[2:], "--profile", "h100-sxm")
    assert "note: --profile h100-sxm has no effect: each row of " in result.stderr
    assert not said(rows, "b200-sxm")  # the same
    assert not said([{**rows[0], "profile": ""}, *rows[1:]], "b200-sxm")


def test_a_column_that_others_call_otherwise_is_named(tmp_path, steps):
    rows = [{**{key: value for key, value in row.items() if key != "pipeline_parallel"}, "tp": 1} for row in steps[:3]]
    result = moesim("calibrate", written(tmp_path / "steps.csv", rows), *COMMON)
    expect_error(result, 2, "column tp", "did you mean 'tensor-parallel'?")


def test_rows_that_contradict_each_other_are_said(tmp_path, steps, exchanges):
    slow = [{**row, "measured_us": 5 * float(row["measured_us"])} for row in exchanges]
    result = moesim("calibrate", written(tmp_path / "steps.csv", steps[:3]),
                    written(tmp_path / "exchanges.csv", slow), *COMMON)
    assert result.returncode == 0 and "contradict" in result.stderr


def test_a_column_of_the_other_command_is_said_to_be_one(tmp_path, steps):
    rows = [{**row, "mode": "train"} for row in steps]
    result = moesim("calibrate", written(tmp_path / "steps.csv", rows), *COMMON, "--out", tmp_path / "m.json")
    expect_error(result, 2, "column mode", "simulate has it", "--command simulate")


def test_steps_faster_than_the_peak_are_refused(tmp_path):
    layout = LAYOUTS[0]
    row = json.loads(succeed("train", *COMMON, "--format", "json",
                             *(word for key, value in layout.items() for word in (f"--{key.replace('_', '-')}", value))))
    shortest = row["step_ms"] * row["mfu"]
    path = tmp_path / "steps.csv"
    for precision, floor in (("bf16", shortest), ("mxfp8", shortest / 2)):
        rows = [{**layout, "precision": precision, "measured_ms": f"{share * floor:.3f}"} for share in (1.02, 0.98)]
        expect_error(moesim("calibrate", written(path, rows), *COMMON), 2, "line 3, column measured_ms: in ",
                     f"102 % of what NVIDIA B200 can do in {precision}: is it the time of a whole step")


def test_model_flops_of_dropped_routes_are_no_speed(tmp_path):
    """They count as if no route were dropped: the prediction itself is above the peak."""
    words = ("--model", "mixtral-8x7b", "--gpus", 8, "--router", "topk", "--capacity-factor", 0.25)
    row = as_json("train", *words)
    assert row["mfu"] > 1
    rows = [{"global_batch": batch, "measured_ms": f"{1.1 * row['step_ms'] * batch / row['global_batch']:.3f}"}
            for batch in (row["global_batch"], 2 * row["global_batch"])]
    succeed("calibrate", written(tmp_path / "steps.csv", rows), *words)


def test_rows_that_say_nothing_of_one_another_are_said(tmp_path):
    rows = [{**layout, "measured_ms": f"{factor * sum(predicted(layout)):.3f}"}
            for layout, factor in zip(LAYOUTS, (1, 2.5, 6), strict=False)]
    warning = moesim("calibrate", written(tmp_path / "steps.csv", rows), *COMMON).stderr
    assert re.search(r"warning: rows are \d\d+ % off in the median when the others predict them", warning)


def test_a_level_that_no_published_step_has_is_said(tmp_path):
    rows = [{**layout, "measured_ms": f"{6 * sum(predicted(layout)):.3f}"} for layout in LAYOUTS]
    path = written(tmp_path / "steps.csv", rows)
    assert re.search(r"warning: rows take [56]\.\d+ times their prediction, published steps mostly 0\.\d+ to 1\.\d+: ",
                     moesim("calibrate", path, *COMMON).stderr)


def test_an_odd_row_is_named(tmp_path):
    rows = [{**layout, "measured_ms": f"{1.2 * sum(predicted(layout)):.3f}"} for layout in LAYOUTS]
    path = written(tmp_path / "steps.csv", rows)
    assert "warning" not in moesim("calibrate", path, *COMMON).stderr
    rows[2]["measured_ms"] = str(float(rows[2]["measured_ms"]) * 10)
    warning = moesim("calibrate", written(tmp_path / "steps.csv", rows), *COMMON).stderr
    assert "steps.csv: line 4: measured is 10 times what the other rows predict" in warning
    assert warning.count("warning") == 1
