"""moesim calibrate: a software document from a few measured steps."""

import csv
import io
import json
import random
import re
import shutil
from pathlib import Path

import pytest
from command_line import as_json, expect_error, moesim, needs_binary, succeed, written
from measured_steps import COMMON, LAYOUTS, predicted

pytestmark = needs_binary
PROFILES = Path(__file__).resolve().parents[3] / "profiles"


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
        row = as_json("train", *COMMON, *words, "--software", out)
        measured = float(step["measured_ms"])
        assert row["step_ms"] == pytest.approx(measured, rel=0.06)
        assert row["step_ms_low"] < measured < row["step_ms_high"]
        parts = sum(value for key, value in row.items() if key.endswith("_ms")
                    and key not in ("step_ms", "step_overhead_ms", "host_gain_ms"))
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


@pytest.mark.parametrize("words", [("--train-tokens", "15T", "--gpu-hour-price", 2), ("--gpu-hour-price", 2)])
def test_a_csv_of_train_with_costs_and_a_baseline_is_one_too(tmp_path, words):
    base, path = tmp_path / "base.csv", tmp_path / "steps.csv"
    step = ("train", "--model", "deepseek-v3-4layers", *COMMON)
    succeed(*step, "--format", "csv", "--out", base)
    succeed(*step, "--global-batch", "16,32,64", *words, "--baseline", base, "--out", path)
    rows = [{**row, "measured_ms": 1.4 * float(row["step_ms"])} for row in csv.DictReader(path.open(encoding="utf-8"))]
    assert rows[0]["speed_over_baseline"] and rows[0]["gpu_hour_price"] == "2"
    assert "3 rows decide" in succeed("calibrate", written(path, rows))


def test_a_fixed_cost_that_is_asked_for_is_found(tmp_path):
    rows = []
    for layout in LAYOUTS:
        compute, exchange, host = predicted(layout)
        rows.append({**layout, "measured_ms": f"{1.5 * (compute + exchange + host) + 100:.3f}"})
    out = tmp_path / "mine.json"
    succeed("calibrate", written(tmp_path / "steps.csv", rows), *COMMON, "--fit", "level,fixed-ms", "--out", out)
    fitted = json.loads(out.read_text())["fitted"]
    assert fitted["level"] == pytest.approx(1.5, rel=0.02)
    assert fitted["fixed_ms"] == pytest.approx(100, rel=0.2)


def repeated(step, times):
    """The step measured so often, with 0.4 % of noise."""
    noise = random.Random(7)
    return [{**step, "measured_ms": f"{float(step['measured_ms']) * noise.gauss(1, 0.004):.3f}"} for _ in range(times)]


def test_repeats_of_one_configuration_say_nothing_of_others(tmp_path, steps):
    """Twenty iterations of one step leave its band as wide as two do: the scatter is that of configurations."""
    def fitted(times):
        out = tmp_path / f"{times}.json"
        result = moesim("calibrate", written(tmp_path / "steps.csv", repeated(steps[0], times)), *COMMON, "--out", out)
        assert result.returncode == 0, result.stderr
        document = json.loads(out.read_text())
        assert document["rows"] == 1 and "leave_one_out" not in document
        assert f"{times} rows of 1 configuration decide " in result.stdout and f"mean of {times} rows" in result.stdout
        assert "left out:" not in result.stdout and "one configuration, which no other predicts" in result.stdout
        assert f"warning: {times} rows of 1 configuration" in result.stderr
        words = ("train", "--model", LAYOUTS[0]["model"], *COMMON, "--expert-parallel", 8, "--software", out)
        assert "one configuration, which tells nothing of how far others scatter" in succeed(*words)
        row = as_json(*words, "--micro-batch", 2)
        return document, row["step_ms_high"] / row["step_ms_low"]

    (two, width_of_two), (twenty, width_of_twenty) = fitted(2), fitted(20)
    assert width_of_twenty == pytest.approx(width_of_two, rel=0.01)
    assert twenty["fitted"]["level"] == pytest.approx(two["fitted"]["level"], rel=0.01)
    assert twenty["scatters"]["step"] == pytest.approx(two["scatters"]["step"], rel=0.01)


def test_repeats_count_as_their_geometric_mean(tmp_path, steps):
    def fitted(name, rows, *words):
        out = tmp_path / f"{name}.json"
        table = succeed("calibrate", written(tmp_path / "steps.csv", rows), *COMMON, "--out", out, *words)
        document = json.loads(out.read_text())
        return {key: value for key, value in document.items() if key != "name"}, table

    apart = [{**steps[0], "measured_ms": 4 * float(steps[0]["measured_ms"]) / 4.4},
             {**steps[0], "measured_ms": 4.4 * float(steps[0]["measured_ms"]) / 4}]
    once, before = fitted("once", steps[:3])
    both, table = fitted("both", [apart[0], *steps[1:3], apart[1]])
    assert both["fitted"] == pytest.approx(once["fitted"]) and both["leave_one_out"] == pytest.approx(once["leave_one_out"])
    assert both["scatters"]["step"] == pytest.approx(once["scatters"]["step"])
    assert "each row left out" in before and "4 rows of 3 configurations decide" in table
    assert "each configuration left out" in table and "mean of 2 rows" in table
    expect_error(moesim("calibrate", written(tmp_path / "steps.csv", repeated(steps[0], 9)), *COMMON, "--fit",
                        "level,exchange"), 2, "9 rows of 1 configuration do not determine the 2 parameters")


def test_the_order_of_rows_of_several_models_does_not_matter(tmp_path):
    """What is known before of a model in bf16 and of another in FP8 differs, in mean and scatter."""
    rows = [{"model": "qwen3-30b-a3b", "precision": "bf16", "measured_ms": 4300},
            {"model": "olmoe-1b-7b", "precision": "fp8-current", "measured_ms": 900}]
    fits = []
    for place, order in enumerate((rows, rows[::-1])):
        out = tmp_path / f"{place}.json"
        succeed("calibrate", written(tmp_path / "steps.csv", order), "--gpus", 16, "--software", "simumax", "--out", out)
        fits.append(json.loads(out.read_text()))
    assert fits[0]["fitted"] == pytest.approx(fits[1]["fitted"], rel=1e-9)
    assert fits[0]["scatters"]["step"] == pytest.approx(fits[1]["scatters"]["step"], rel=1e-9)
    for one, other in zip(fits[0]["covariance"], fits[1]["covariance"]):
        assert one == pytest.approx(other, rel=1e-9)


def test_more_rows_narrow_the_band(tmp_path, steps):
    def width(count):
        out = tmp_path / f"{count}.json"
        succeed("calibrate", written(tmp_path / "steps.csv", steps[:count]), *COMMON, "--out", out)
        row = as_json("train", *COMMON, "--model", "deepseek-v2-4layers", "--software", out)
        return row["step_ms_high"] / row["step_ms_low"]

    assert width(8) < width(4) < width(2)


def test_a_calibrated_step_has_no_ratio_to_one_that_is_not(tmp_path, steps):
    out, other = tmp_path / "mine.json", tmp_path / "other.json"
    succeed("calibrate", written(tmp_path / "steps.csv", steps[:3]), *COMMON, "--out", out)
    succeed("calibrate", written(tmp_path / "steps.csv", steps[3:6]), *COMMON, "--out", other)
    shutil.copyfile(out, tmp_path / "copy.json")
    words = ("train", *COMMON[2:], "--model", "deepseek-v2-4layers", "--expert-parallel", 8)
    for profile, form in (("b200-sxm", "csv"), (out, "json")):
        base = tmp_path / f"base.{form}"
        succeed(*words, "--profile", profile, "--format", form, "--out", base)
    plain, own = tmp_path / "base.csv", tmp_path / "base.json"
    for how in (("--profile", out), ("--profile", "b200-sxm", "--software", out)):
        expect_error(moesim(*words, *how, "--baseline", plain), 2, "base.csv: its step is not calibrated",
                     f"this one is calibrated by {out}")
        assert "1.000 times as fast" in succeed(*words, *how, "--baseline", own)
    expect_error(moesim(*words, "--profile", "b200-sxm", "--baseline", own), 2, f"calibrated by {out}",
                 "this one is not calibrated")
    expect_error(moesim(*words, "--profile", other, "--baseline", own), 2, "that of the calibration")
    assert "1.000 times as fast" in succeed(*words, "--profile", "copy.json", "--baseline", own, cwd=tmp_path)


def test_a_timeline_of_a_calibrated_step_says_that_it_is_not_scaled(tmp_path, steps):
    out, timeline = tmp_path / "mine.json", tmp_path / "step.json"
    succeed("calibrate", written(tmp_path / "steps.csv", steps[:3]), *COMMON, "--out", out)
    words = ("train", *COMMON[2:], "--model", "deepseek-v2-4layers", "--expert-parallel", 8, "--timeline", timeline)
    plain = moesim(*words, "--profile", "b200-sxm", "--format", "json")
    assert "--timeline" not in plain.stderr
    for how in (("--profile", out), ("--profile", "b200-sxm", "--software", out)):
        result = moesim(*words, *how, "--format", "json")
        before, after = (json.loads(one.stdout)["step_ms"] for one in (plain, result))
        assert f"of the step before {out} scales it: {before:.4g} ms, not the {after:.4g} ms" in result.stderr
        end = max(event["ts"] + event["dur"] for event in json.loads(timeline.read_text())["traceEvents"]
                  if event["ph"] == "X")
        assert end == pytest.approx(1e3 * before, rel=1e-6) and after > 1.3 * before


def test_software_beside_another_profile_than_it_was_fitted_with_is_noted(tmp_path, steps):
    out, copy = tmp_path / "mine.json", tmp_path / "other.json"
    succeed("calibrate", written(tmp_path / "steps.csv", steps[:3]), *COMMON, "--out", out)
    assert json.loads(out.read_text())["profile"] == "b200-sxm"
    shutil.copyfile(PROFILES / "hardware/b200-sxm.json", copy)
    words = ("train", *COMMON[2:], "--model", "deepseek-v2-4layers", "--expert-parallel", 8, "--software", out)
    result = moesim(*words, "--profile", copy)
    assert result.returncode == 0, result.stderr
    assert f"was fitted to what b200-sxm predicts, this step is predicted by {copy}" in result.stderr
    assert "was fitted to what" not in moesim(*words, "--profile", "b200-sxm").stderr
    assert "was fitted to what" not in moesim(*words[:-2], "--profile", out).stderr


@pytest.mark.parametrize("software", [(), ("--software", "megatron-bridge")])
@pytest.mark.parametrize("factor", [0.5, 1.3, 1.8, 3, 5])
def test_a_level_far_from_what_is_known_is_found(tmp_path, factor, software):
    """Three steps that all take so many times their prediction: not scatter."""
    rows = [{**layout, "measured_ms": f"{factor * sum(predicted(layout)):.3f}"} for layout in LAYOUTS[1::3]]
    out = tmp_path / "mine.json"
    succeed("calibrate", written(tmp_path / "steps.csv", rows), *COMMON, "--out", out, *software)
    assert json.loads(out.read_text())["fitted"]["level"] == pytest.approx(factor, rel=0.08)


def test_another_cluster_than_that_of_the_rows_is_less_certain(tmp_path, steps):
    out = tmp_path / "mine.json"
    succeed("calibrate", written(tmp_path / "steps.csv", steps), *COMMON, "--out", out)
    assert json.loads(out.read_text())["clusters"] == ["hgx-b200"]
    words = ("train", "--model", "deepseek-v3-4layers", "--profile", out, "--gpus", 64, "--expert-parallel", 32)

    def width(cluster):
        row = as_json(*words, "--cluster", cluster)
        return row["step_ms_high"] / row["step_ms_low"]
    assert width("generic-8x100g") > 1.1 * width("hgx-b200")
    assert "none of them on generic-8x100g" in succeed(*words, "--cluster", "generic-8x100g")
    assert "none of them on" not in succeed(*words)


def test_the_advice_on_a_band_is_true(tmp_path, steps):
    """Where steps of this software and machine were published, three more leave the band as wide."""
    words = ("train", "--model", "qwen3-30b-a3b", "--profile", "h100-sxm", "--gpus", 16, "--expert-parallel", 8)
    assert re.search("narrower with:? six or more of your own measured steps: moesim calibrate --software megatron-bridge\n",
                     succeed(*words, "--software", "megatron-bridge"))
    # Nor where they are of other models.
    others = succeed("train", "--model", "mixtral-8x7b", "--gpus", 64, "--pipeline-parallel", 4, "--software", "megatron-bridge")
    assert re.search("narrower with:? six or more of your own measured steps: moesim calibrate --software megatron-bridge", others)
    waiting = succeed(*words[:3], "--gpus", 8, "--profile", "gb200", "--expert-parallel", 8, "--precision", "mxfp8",
                      "--software", "simumax")
    assert ("narrower with: --launch-us from a trace of the framework; or three of your own measured steps: moesim calibrate "
            "--software simumax\n") in waiting
    assert "or three of your own measured steps: moesim calibrate\n" in succeed(*words)
    crossing = succeed(*words[:-2], "--gpus", 64, "--expert-parallel", 64, "--software", "megatron-bridge")
    assert "because: exchanges, between nodes by one law" in crossing
    assert re.search("\nnarrower with: nccl-tests of your nodes", crossing)
    out = tmp_path / "mine.json"
    succeed("calibrate", written(tmp_path / "steps.csv", steps[:3]), *COMMON, "--out", out)
    own = succeed("train", *COMMON, "--model", LAYOUTS[0]["model"], "--expert-parallel", 8, "--profile", out)
    assert "because: 3 rows leave open what this one spends its time on" in own
    assert "narrower with: rows with other shares of exchanges and host: moesim calibrate" in own


def test_what_none_of_the_calibrated_steps_has_is_named_and_widens_the_band(tmp_path, steps):
    succeed("calibrate", written(tmp_path / "s.csv", steps[:4]), *COMMON, "--out", tmp_path / "mine.json")
    document = json.loads((tmp_path / "mine.json").read_text())
    assert document["traits"]["pipeline-parallel"] == 2 and document["traits"]["sequence-length"] == 4096
    assert {"precision:bf16", "dispatcher:all-to-all"} < set(document["traits"])
    # As older ones are.
    (tmp_path / "old.json").write_text(json.dumps({key: value for key, value in document.items() if key != "traits"}))

    def asked(name, *more):
        return ("train", "--model", steps[0]["model"], *COMMON, "--expert-parallel", 4, "--software", tmp_path / name, *more)

    assert "none of your calibrated steps" not in succeed(*asked("mine.json"))
    other = ("--precision", "mxfp8", "--dispatcher", "hybridep", "--zero", 2)
    text = succeed(*asked("mine.json", *other))
    assert ("not measured: products in mxfp8, dispatcher hybridep, ZeRO 2: none of your calibrated steps has these; "
            "the band is wider, as if by ") in text
    assert "none of your calibrated steps" not in succeed(*asked("old.json", *other))
    new, old = (json.loads(succeed(*asked(name, *other, "--format", "json"))) for name in ("mine.json", "old.json"))
    assert new["not_measured"] == ["products in mxfp8", "dispatcher hybridep", "ZeRO 2"] and old["not_measured"] == []
    assert new["step_ms"] == old["step_ms"]
    assert new["step_ms_low"] < old["step_ms_low"] and old["step_ms_high"] < new["step_ms_high"]
    table = succeed(*asked("mine.json", "--zero", "1,2"))
    assert "not measured: ZeRO 2 (row 2): none of your calibrated steps has this, so bands are wider" in table
    found = succeed("recommend", "--model", steps[0]["model"], *COMMON, "--zero", 2, "--software", tmp_path / "mine.json")
    assert ": none of your calibrated steps has th" in found and "ZeRO 2" in found
