"""moesim calibrate: a software document from a few measured steps."""

import csv
import io
import json
import random
import re
import shlex
import shutil
from pathlib import Path

import pytest
from command_line import expect_error, moesim, needs_binary, succeed, written

pytestmark = needs_binary
PROFILES = Path(__file__).resolve().parents[3] / "profiles"
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
        row = json.loads(succeed(*words, "--micro-batch", 2, "--format", "json"))
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

    refused(steps[:1], "1 measured row:", "at least two")
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
    out.write_text(out.read_text().replace('"degrees": 5.0', '"degrees": -1'))
    expect_error(moesim("train", "--profile", "b200-sxm", "--software", out), 2, "mine.json", "degrees")


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


def predicted_exchange(profile, op, gpus, size):
    return json.loads(succeed("predict", "--profile", profile, "--op", op, "--gpus", gpus, "--bytes", size,
                              "--format", "json"))


EXCHANGES = [("all-to-all", 8, "64MiB"), ("all-to-all", 8, "256MiB"), ("all-to-all", 16, "64MiB"),
             ("all-to-all", 16, "256MiB"), ("all-gather", 16, "256MiB")]


@pytest.fixture(scope="module")
def exchanges():
    """Exchanges that take 1.2 times as long as predicted, 1.8 times through NICs."""
    noise = random.Random(4)
    rows = []
    for op, gpus, size in EXCHANGES:
        us = predicted_exchange("b200-sxm", op, gpus, size)["time_us"] * (1.8 if gpus > 8 else 1.2)
        rows.append({"op": op, "gpus": gpus, "bytes": size, "measured_us": f"{us * noise.gauss(1, 0.01):.2f}"})
    return rows


def united(*rows):
    """Rows of different columns, those that a row lacks empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name, "") for name in names} for row in rows]


def test_exchanges_in_a_file_of_their_own_set_the_rate_of_nics(tmp_path, steps, exchanges):
    out = tmp_path / "mine.json"
    table = succeed("calibrate", written(tmp_path / "steps.csv", [steps[0], steps[3], steps[5]]),
                    written(tmp_path / "exchanges.csv", exchanges), *COMMON, "--out", out)
    assert "steps.csv:2" in table and "exchanges.csv:4" in table
    assert "each step left out" in table and "each exchange left out" in table
    share = re.search(r"NICs carry (\d+) % of what they were expected to", table)
    assert float(share[1]) == pytest.approx(100 / 1.8, rel=0.06)
    for op, gpus, size in (("all-to-all", 8, "128MiB"), ("all-to-all", 32, "128MiB"), ("all-gather", 16, "64MiB")):
        before = predicted_exchange("b200-sxm", op, gpus, size)
        after = predicted_exchange(out, op, gpus, size)
        factor = 1.8 if gpus > 8 else 1.2
        assert after["time_us"] / before["time_us"] == pytest.approx(factor, rel=0.06)
        assert after["time_us_p05"] < factor * before["time_us"] < after["time_us_p95"]
        assert "mine.json" in after["provenance"]
        assert max(after["rank_finish_us"]) == pytest.approx(after["time_us"])
    # The profile of hardware alone answers what it answered.
    row = json.loads(succeed("train", "--profile", out, "--model", "deepseek-v3-4layers", "--format", "json"))
    same = json.loads(succeed("train", "--profile", "b200-sxm", "--software", out, "--model", "deepseek-v3-4layers",
                              "--format", "json"))
    assert row["step_ms"] == same["step_ms"] and row["software"] == same["software"] == str(out)


def calibrated_exchanges(tmp_path, gpus, factor):
    """A document of three exchanges of 64 to 256 MiB that take so many times their prediction."""
    out = tmp_path / "mine.json"
    rows = [{"op": "all-to-all", "gpus": gpus, "bytes": size, "measured_us": factor * predicted_exchange(
        "b200-sxm", "all-to-all", gpus, size)["time_us"]} for size in ("64MiB", "128MiB", "256MiB")]
    result = moesim("calibrate", written(tmp_path / "exchanges.csv", rows), "--profile", "b200-sxm", "--out", out)
    assert result.returncode == 0, result.stderr
    return out, result.stdout


@pytest.mark.parametrize(("measured", "other", "kind"), [(16, 8, "inside a domain"), (8, 16, "between domains")])
def test_exchanges_of_a_kind_that_no_row_has_are_not_scaled(tmp_path, measured, other, kind):
    out, table = calibrated_exchanges(tmp_path, measured, 1.4)
    assert f"no row is an exchange {kind}: predict does not scale these\n" in table
    for size in ("4KiB", "64MiB"):
        before, after = (predicted_exchange(name, "all-to-all", other, size) for name in ("b200-sxm", out))
        assert all(after[name] == before[name] for name in ("time_us", "time_us_p05", "time_us_p95"))
        assert after["provenance"].endswith(f"; not scaled: {out} was calibrated without exchanges {kind}")
    before, after = (predicted_exchange(name, "all-to-all", measured, "64MiB") for name in ("b200-sxm", out))
    assert after["time_us"] / before["time_us"] == pytest.approx(1.4, rel=0.05)


def test_a_scaled_exchange_keeps_the_error_of_the_law(tmp_path):
    out, _ = calibrated_exchanges(tmp_path, 16, 1.4)
    for size in ("16MiB", "64MiB", "1GiB"):
        before, after = (predicted_exchange(name, "all-to-all", 16, size) for name in ("b200-sxm", out))
        for one, other in (("time_us_p05", "time_us"), ("time_us", "time_us_p95")):
            assert after[other] / after[one] > before[other] / before[one]


@pytest.mark.parametrize(("gpus", "size", "factor"), [(16, "4KiB", 1), (16, "2GiB", None), (512, "64MiB", 1), (128, "64MiB", None)])
def test_far_from_the_measured_sizes_the_band_holds_both_times(tmp_path, gpus, size, factor):
    """One factor of large exchanges says nothing of starts."""
    out, _ = calibrated_exchanges(tmp_path, 16, 1.4)
    document = json.loads(out.read_text())
    assert document["exchanges"] == {"across": {"rows": 3, "bytes": [2**26, 2**28], "gpus": [16, 16]}}
    before, after = (predicted_exchange(name, "all-to-all", gpus, size) for name in ("b200-sxm", out))
    assert "whose rows (64 to 256 MiB on 16 GPUs) take 1." in after["provenance"]
    assert after["time_us_p05"] <= before["time_us_p05"] and after["time_us_p95"] > 1.3 * before["time_us_p95"]
    scaled = after["time_us"] / before["time_us"]
    assert scaled == pytest.approx(factor) if factor else 1 < scaled < 1.38
    # A document that does not say what was measured scales all sizes, inside and across.
    old = tmp_path / "old.json"
    old.write_text(json.dumps({key: value for key, value in document.items() if key != "exchanges"}))
    assert predicted_exchange(old, "all-to-all", gpus, size)["time_us"] / before["time_us"] == pytest.approx(1.4, rel=0.05)
    assert "times 1." in predicted_exchange(old, "all-to-all", 8, size)["provenance"]


def test_nics_of_which_no_row_says_anything_are_not_fitted(tmp_path):
    rows = [{"op": "all-to-all", "gpus": 8, "bytes": size, "measured_us": 900} for size in ("64MiB", "128MiB", "192MiB")]
    path = written(tmp_path / "exchanges.csv", rows)
    expect_error(moesim("calibrate", path, "--profile", "b200-sxm", "--fit", "nic"), 2, "--fit nic: no row says anything about it")
    out = tmp_path / "mine.json"
    table = succeed("calibrate", path, "--profile", "b200-sxm", "--out", out)
    assert re.search(r"nic +1\.000 .*not fitted", table)
    assert json.loads(out.read_text())["covariance"][5][5] == pytest.approx(0.04)


def test_layers_tell_experts_from_the_rest(tmp_path, steps):
    """Layers whose experts take 1.3 times as long as the rest of the step."""
    common = {"model": "deepseek-v3-4layers", "expert_parallel": 8, "gpus": 8}
    rows = []
    for batch in (1, 2, 4):
        for extent in ("moe-layer", "layer"):
            rows.append({"op": extent, "pass": "forward", **common, "micro_batch": batch})
    text = succeed("calibrate", written(tmp_path / "guess.csv", [{**row, "measured_ms": 10} for row in rows]),
                   "--profile", "b200-sxm", "--sequence-length", 4096)
    guesses = [float(line.split()[2]) for line in text.splitlines()[1:1 + len(rows)]]
    assert all(whole > moe for moe, whole in zip(guesses[0::2], guesses[1::2]))
    assert guesses[0] < guesses[2] < guesses[4]  # more tokens take longer
    backward = [{**row, "pass": "backward", "measured_ms": 20} for row in rows[:2]]
    text = succeed("calibrate", written(tmp_path / "back.csv", backward), "--profile", "b200-sxm",
                   "--sequence-length", 4096)
    assert float(text.splitlines()[1].split()[2]) > 1.5 * guesses[0]
    measured = [{**row, "measured_ms": 1.5 * guess} for row, guess in zip(rows, guesses)]
    out = tmp_path / "mine.json"
    table = succeed("calibrate", written(tmp_path / "rows.csv", united(*measured, *[
        {"op": "step", **step} for step in steps[:3]])), *COMMON, "--out", out)
    assert "each layer left out" in table and "layer-alone" in table
    document = json.loads(out.read_text())
    assert document["scatters"]["layer"]["rows"] == 6 and document["scatters"]["step"]["rows"] == 3


@pytest.mark.parametrize("op", ["moe-layer", "layer"])
def test_a_layer_without_a_pass_is_not_taken_for_a_forward_one(tmp_path, steps, op):
    row = {key: value for key, value in steps[0].items() if key != "measured_ms"}
    rows = united(steps[0], {"op": op, **row, "measured_ms": 10})
    expect_error(moesim("calibrate", written(tmp_path / "rows.csv", rows), *COMMON), 2,
                 "rows.csv: line 3: column pass", f"a row of {op} is of one pass", "forward or backward")


def test_exchanges_alone_are_enough_for_predict(tmp_path, exchanges):
    out = tmp_path / "mine.json"
    succeed("calibrate", written(tmp_path / "exchanges.csv", exchanges), "--profile", "b200-sxm", "--out", out)
    before = predicted_exchange("b200-sxm", "all-to-all", 16, "128MiB")
    after = predicted_exchange(out, "all-to-all", 16, "128MiB")
    assert after["time_us"] / before["time_us"] == pytest.approx(1.8, rel=0.06)
    gemm = ("--op", "gemm", "--m", 4096, "--n", 4096, "--k", 4096, "--format", "json")
    assert (json.loads(succeed("predict", "--profile", out, *gemm))["time_us"]
            == json.loads(succeed("predict", "--profile", "b200-sxm", *gemm))["time_us"])


@pytest.mark.parametrize(("change", "words", "text"), [
    ({"op": "all-too-all"}, (), "exchanges.csv: line 3, column op: unknown operation 'all-too-all'"),
    ({"op": "gemm"}, (), "moesim profile"),
    ({"measured_us": ""}, (), "exchanges.csv: line 3, column measured_ms: no measured time"),
    ({"measured_ms": "3"}, (), "exchanges.csv: line 3, column measured_us: measured_ms has a time too"),
    ({"measured_us": "0.5"}, (), "exchanges.csv: line 3, column measured_us: 0.0005 ms"),
    ({"bytes": ""}, (), "exchanges.csv: line 3: all-to-all: bytes is missing"),
    ({"bytes": "64 parsecs"}, (), "exchanges.csv: line 3: column bytes"),
    ({"model": "deepseek-v3"}, (), "exchanges.csv: line 3, column model: a row of all-to-all takes no model"),
    ({"op": "moe-layer"}, (), "exchanges.csv: line 3, column bytes: a row of moe-layer takes no bytes"),
    ({"gpus": "8", "bytes": "64MiB", "measured_us": "900"}, (), "exchanges.csv: line 3: the same options as line 2"),
    ({}, ("--fit", "level,experts"), "--fit experts: no row says anything about it"),
    ({}, ("--fit", "level,exchange,nic,host,fixed-ms"), "5 rows do not determine the 6 parameters"),
])
def test_what_is_wrong_with_an_exchange_is_named(tmp_path, exchanges, change, words, text):
    rows = [dict(row) for row in exchanges]
    rows[1].update(change)
    file = written(tmp_path / "exchanges.csv", united(*rows))
    expect_error(moesim("calibrate", file, "--profile", "b200-sxm", *words), 2, text)


def test_a_calibration_is_no_profile_of_hardware(tmp_path, exchanges):
    out = tmp_path / "mine.json"
    file = written(tmp_path / "exchanges.csv", exchanges)
    succeed("calibrate", file, "--profile", "b200-sxm", "--out", out)
    expect_error(moesim("simulate", "--profile", out), 2, "mine.json", "calibrate")
    rows = written(tmp_path / "rows.csv", [{"gpus": 8, "measured_ms": 100}] * 2)
    for words, base in (((file, "--profile", out), "b200-sxm"),
                        ((rows, "--command", "simulate", "--profile", out), "b200-sxm"),
                        ((file, "--profile", "a100-sxm-80gb-deepspeed"), "a100-sxm-80gb")):
        expect_error(moesim("calibrate", *words), 2, "line 2: ", f"software on {base} already", f"--profile {base}")
    expect_error(moesim("train", "--profile", out, "--software", "megatron-bridge"), 2, "--software megatron-bridge")
    assert "train, recommend and predict take it as a profile" in moesim("simulate", "--profile", out).stderr


def test_rows_that_contradict_each_other_are_said(tmp_path, steps, exchanges):
    slow = [{**row, "measured_us": 5 * float(row["measured_us"])} for row in exchanges]
    result = moesim("calibrate", written(tmp_path / "steps.csv", steps[:3]),
                    written(tmp_path / "exchanges.csv", slow), *COMMON)
    assert result.returncode == 0 and "contradict" in result.stderr


def test_exchanges_alone_leave_the_computation_of_a_step_as_it_was(tmp_path):
    rows = [{"op": "all-to-all", "gpus": 8, "bytes": size, "measured_us": str(
        2.4 * predicted_exchange("b200-sxm", "all-to-all", 8, size)["time_us"])} for size in ("16MiB", "64MiB", "256MiB")]
    out = tmp_path / "mine.json"
    text = succeed("calibrate", written(tmp_path / "exchanges.csv", rows), "--profile", "b200-sxm", "--out", out)
    assert re.search(r"level .*not fitted", text) and re.search(r"exchange +1\.[3-9]", text)
    words = ("train", "--model", "qwen3-30b-a3b", "--gpus", 8, "--expert-parallel", 8, "--format", "json")
    mine = json.loads(succeed(*words, "--profile", out))
    usual = json.loads(succeed(*words, "--profile", "b200-sxm"))
    level = mine["attention_ms"] / usual["attention_ms"]
    assert level == pytest.approx(1.2, abs=0.1)  # what published steps take on average
    # An exchange like them is as certain as they are, though none of its factors is.
    band = predicted_exchange(out, "all-to-all", 8, "64MiB")
    assert band["time_us_p95"] / band["time_us_p05"] < 1.6  # before 2.9
    assert mine["dispatch_ms"] / usual["dispatch_ms"] > 1.3 * level


def test_a_column_of_the_other_command_is_said_to_be_one(tmp_path, steps):
    rows = [{**row, "mode": "train"} for row in steps]
    result = moesim("calibrate", written(tmp_path / "steps.csv", rows), *COMMON, "--out", tmp_path / "m.json")
    expect_error(result, 2, "column mode", "simulate has it", "--command simulate")


@pytest.mark.parametrize("software", [(), ("--software", "megatron-bridge")])
@pytest.mark.parametrize("factor", [0.5, 1.3, 1.8, 3, 5])
def test_a_level_far_from_what_is_known_is_found(tmp_path, factor, software):
    """Three steps that all take so many times their prediction: not scatter."""
    rows = [{**layout, "measured_ms": f"{factor * sum(predicted(layout)):.3f}"} for layout in LAYOUTS[1::3]]
    out = tmp_path / "mine.json"
    succeed("calibrate", written(tmp_path / "steps.csv", rows), *COMMON, "--out", out, *software)
    assert json.loads(out.read_text())["fitted"]["level"] == pytest.approx(factor, rel=0.08)


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
    row = json.loads(succeed("train", *words, "--format", "json"))
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


def test_another_cluster_than_that_of_the_rows_is_less_certain(tmp_path, steps):
    out = tmp_path / "mine.json"
    succeed("calibrate", written(tmp_path / "steps.csv", steps), *COMMON, "--out", out)
    assert json.loads(out.read_text())["clusters"] == ["hgx-b200"]
    words = ("train", "--model", "deepseek-v3-4layers", "--profile", out, "--gpus", 64, "--expert-parallel", 32)

    def width(cluster):
        row = json.loads(succeed(*words, "--cluster", cluster, "--format", "json"))
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
    assert ("nearer to your machine, not narrower, with: --launch-us from a trace of the framework; narrower with three of "
            "your own measured steps: moesim calibrate --software simumax\n") in waiting
    assert "or three of your own measured steps: moesim calibrate\n" in succeed(*words)
    crossing = succeed(*words[:-2], "--gpus", 64, "--expert-parallel", 64, "--software", "megatron-bridge")
    assert "because: exchanges, between nodes by one law" in crossing
    assert "nearer to your machine, not narrower, with: nccl-tests of your nodes" in crossing
    out = tmp_path / "mine.json"
    succeed("calibrate", written(tmp_path / "steps.csv", steps[:3]), *COMMON, "--out", out)
    own = succeed("train", *COMMON, "--model", LAYOUTS[0]["model"], "--expert-parallel", 8, "--profile", out)
    assert "3 steps of yours tell little of how far single ones scatter" in own


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


HOSTS = {"half": (7.5, 10), "same": (15, 20), "twice": (30, 40)}
HOST_JOB = ("--model", "qwen3-30b-a3b", "--profile", "h100-sxm", "--gpus", 16, "--sequence-length", 4096)


def host_step(stages, expert, batch, recompute, micro):
    return {"pipeline_parallel": stages, "expert_parallel": expert, "global_batch": batch, "recompute": recompute,
            "micro_batch": micro}


# Small micro-batches wait for the host, one of four does not.
HOST_ROWS = [host_step(1, 8, 64, "full", 1), host_step(2, 8, 64, "none", 1), host_step(2, 4, 64, "moe_act", 1),
             host_step(4, 4, 64, "none", 1), host_step(1, 16, 64, "full", 1), host_step(1, 8, 128, "full", 4)]
HELD_OUT = [host_step(2, 8, 64, "full", 2), host_step(2, 8, 128, "full", 2), host_step(1, 8, 64, "full", 2),
            host_step(2, 4, 64, "full", 2)]


def host_train(step, *words):
    flags = [word for key, value in step.items() for word in (f"--{key.replace('_', '-')}", value)]
    return json.loads(succeed("train", *HOST_JOB, *flags, *words, "--format", "json"))


def host_calibrated(tmp_path, launch_us, read_us):
    words = ("--launch-us", launch_us, "--host-read-us", read_us)
    rows = [{**step, "measured_ms": host_train(step, *words)["step_ms"]} for step in HOST_ROWS]
    out = tmp_path / "mine.json"
    table = succeed("calibrate", written(tmp_path / "steps.csv", rows), *HOST_JOB, "--out", out)
    return out, table, words


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_of_another_speed_is_found_by_pricing_rows_with_it(tmp_path, host):
    out, table, words = host_calibrated(tmp_path, *HOSTS[host])
    assert "factor on the host's times" in table
    document = json.loads(out.read_text())
    assert document["version"] == 3 and "host" not in document["fitted"]
    factor = document["fitted"]["host_times"]
    assert {"half": 0.4 < factor < 0.75, "same": 0.93 < factor < 1.07, "twice": 1.75 < factor < 2.25}[host]
    for step in HELD_OUT:  # at a micro-batch that no row has
        truth, answer = host_train(step, *words), host_train(step, "--software", out)
        assert answer["step_ms"] == pytest.approx(truth["step_ms"], rel=0.04)
        assert answer["step_ms_low"] < truth["step_ms"] < answer["step_ms_high"]
        assert host_train(step, "--profile", out)["step_ms"] == answer["step_ms"]
        assert answer["host_gain_ms"] > 0 and answer["launch_us"] == 15  # as typed


def test_a_factor_on_the_wait_of_an_older_document_is_one(tmp_path):
    out, _, _ = host_calibrated(tmp_path, *HOSTS["twice"])
    document = json.loads(out.read_text())
    document["version"] = 2
    document["fitted"] = {key: 1 for key in document["fitted"] if key != "host_times"}
    document["fitted"].update(host=2, fixed_ms=0)
    older = tmp_path / "older.json"
    older.write_text(json.dumps(document))
    usual, answer = host_train(HOST_ROWS[1]), host_train(HOST_ROWS[1], "--software", older)
    assert usual["host_ms"] > 100
    assert answer["step_ms"] == pytest.approx(usual["step_ms"] + usual["host_ms"])
    assert "host_gain_ms" not in answer
    document["fitted"]["host_times"] = 2  # one or the other
    older.write_text(json.dumps(document))
    expect_error(moesim("train", *HOST_JOB, "--software", older), 2, "older.json")


def test_searches_lists_and_baselines_price_the_host_of_a_document(tmp_path):
    out, _, _ = host_calibrated(tmp_path, *HOSTS["twice"])
    search = json.loads(succeed("recommend", *HOST_JOB, "--global-batch", 64, "--tensor-parallel", 1,
                                "--context-parallel", 1, "--pipeline-parallel", 2, "--virtual-pipeline", 1,
                                "--expert-parallel", 8, "--expert-tensor-parallel", 1, "--zero", 1, "--micro-batch",
                                "1,2", "--recompute", "full", "--software", out, "--format", "json"))
    assert len(search) == 2
    for row in search:
        same = json.loads(succeed(*shlex.split(row["command"])[1:], "--format", "json"))
        assert same["host_gain_ms"] > same["step_ms"] / 2
        for column in ("step_ms", "step_ms_low", "step_ms_high", "host_gain_ms"):
            assert row[column] == pytest.approx(same[column])
    listed = succeed("train", *HOST_JOB, *"--pipeline-parallel 2 --expert-parallel 8 --global-batch 64 --recompute "
                     "full --micro-batch 1,2 --format csv --software".split(), out)
    for row, micro in zip(csv.DictReader(io.StringIO(listed)), (1, 2)):
        step = HOST_ROWS[1] | {"recompute": "full", "micro_batch": micro}
        assert float(row["step_ms"]) == pytest.approx(host_train(step, "--software", out)["step_ms"])
    # Both wait for all of the host: what it takes cancels in their ratio.
    base = tmp_path / "base.csv"
    flags = "--pipeline-parallel 2 --expert-parallel 8 --recompute full --micro-batch 1".split()
    succeed("train", *HOST_JOB, *flags, "--global-batch", 64, "--software", out, "--format", "csv", "--out", base)

    def width(path):
        row = host_train(HOST_ROWS[1] | {"recompute": "full", "global_batch": 128}, "--software", out, "--baseline",
                         path)
        return row["speed_over_baseline_high"] / row["speed_over_baseline_low"]
    (row,) = csv.DictReader(base.open(encoding="utf-8"))
    gains = written(tmp_path / "gains.csv", [row | {"host_gain_ms": 0}])
    assert width(base) < 0.99 * width(gains)


def test_exchanges_between_nodes_leave_those_inside_of_a_step_as_they_were(tmp_path):
    out, _ = calibrated_exchanges(tmp_path, 16, 1.5)
    fitted = json.loads(out.read_text())["fitted"]
    assert fitted["exchange"] == 1 and fitted["nic"] > 1.05

    def exchanges(gpus, *words):
        row = json.loads(succeed("train", "--model", "qwen3-30b-a3b", "--profile", "b200-sxm", "--gpus", gpus,
                                 "--expert-parallel", gpus, "--recompute", "full", "--format", "json", *words))
        return row["dispatch_ms"] / row["attention_ms"]
    assert exchanges(8, "--software", out) == pytest.approx(exchanges(8))
    assert exchanges(16, "--software", out) == pytest.approx(fitted["nic"] * exchanges(16))
    rows = tmp_path / "exchanges.csv"
    expect_error(moesim("calibrate", rows, "--profile", "b200-sxm", "--fit", "exchange,nic"), 2, "--fit exchange: no row says anything about it")
