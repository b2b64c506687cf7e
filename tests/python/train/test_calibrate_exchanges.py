"""moesim calibrate with measured exchanges and layers."""

import json
import re

import pytest
from command_line import as_json, expect_error, moesim, needs_binary, succeed, written
from measured_steps import COMMON, predicted_exchange

pytestmark = needs_binary


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
        assert "rank_finish_us" not in after  # all ranks end at time_us, scaled or not
    # The profile of hardware alone answers what it answered.
    row = as_json("train", "--profile", out, "--model", "deepseek-v3-4layers")
    same = as_json("train", "--profile", "b200-sxm", "--software", out, "--model", "deepseek-v3-4layers")
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


# Steps that wait little for a host as assumed, and alike: TP 2 at micro-batch 1.
ALIKE_JOB = ("--model", "qwen3-235b-a22b", "--gpus", 256, "--profile", "h100-sxm", "--micro-batch", 1)
ALIKE_8 = {"pipeline_parallel": 8, "virtual_pipeline": 4, "pipeline_layout": "Ettt|(ttt|)*29tt|ttL",
           "expert_parallel": 32, "global_batch": 1024, "dispatcher": "deepep"}
ALIKE_ROWS = [{"tensor_parallel": 2, **ALIKE_8, "recompute": "moe_act,layernorm"},
              {"tensor_parallel": 2, **ALIKE_8, "recompute": "moe_act,layernorm", "global_batch": 2048},
              {"tensor_parallel": 2, **ALIKE_8, "recompute": "full"},
              {"tensor_parallel": 2, "pipeline_parallel": 16, "virtual_pipeline": 1, "expert_parallel": 16,
               "pipeline_layout": "Et*6|(t*6|)*13t*5|t*5L", "global_batch": 1024, "dispatcher": "all-to-all",
               "recompute": "moe_act,layernorm"}]


def alike_train(step, *words):
    flags = [word for key, value in step.items() for word in (f"--{key.replace('_', '-')}", value)]
    return as_json("train", *ALIKE_JOB, *flags, *words)


@pytest.mark.parametrize("noise", [(0, 0, 0, 0), (-0.8, 1.5, -0.9, -2.8)])
def test_software_that_is_slow_alike_is_not_taken_for_a_slow_host(tmp_path, noise):
    """Steps 1.25 times slower of software whose published steps tell its level to 6 %."""
    rows = [{**step, "measured_ms": 1.25 * (1 + percent / 100) * alike_train(step)["step_ms"]}
            for step, percent in zip(ALIKE_ROWS, noise)]
    out = tmp_path / "mine.json"
    result = moesim("calibrate", written(tmp_path / "steps.csv", rows), *ALIKE_JOB, "--out", out,
                    "--software", "megatron-bridge")
    assert result.returncode == 0, result.stderr
    fitted = json.loads(out.read_text())["fitted"]
    assert fitted["host_times"] == 1 and fitted["level"] * fitted["exchange"] > 1.2
    # Of what is measured, not of what is fitted.
    assert re.search(r"warning: rows take 1\.2[3-6] times their prediction, published steps mostly 0\.97 to 1\.09", result.stderr)
    assert re.search(r"exchange 1\.\d\d, host 1\.00 \(taken\) or level 1\.0\d, exchange 1\.\d\d, host 1\.[5-9]\d fit alike: "
                     r"a step that waits more for the host", result.stdout)
    assert re.search(r"at worst \(line [2-5]; others unlike all rows may be as far off\)", result.stdout)
    asked = {"tensor_parallel": 4, **ALIKE_8, "recompute": "none"}
    truth, answer = 1.25 * alike_train(asked)["step_ms"], alike_train(asked, "--software", out)
    assert answer["step_ms"] == pytest.approx(truth, rel=0.06)  # before: 33 to 42 % off
    assert answer["step_ms_low"] < truth < answer["step_ms_high"]
    # What would tell does.
    more = [*rows, {**asked, "measured_ms": truth}]
    table = succeed("calibrate", written(tmp_path / "more.csv", more), *ALIKE_JOB, "--software", "megatron-bridge")
    assert "waits more for the host" not in table
