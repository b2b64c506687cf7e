"""moesim calibrate --command simulate: a software profile from a few measured steps of scenarios."""

import csv
import io
import json
import random

import pytest
from command_line import as_json, expect_error, moesim, needs_binary, succeed, written

pytestmark = needs_binary
COMMON = ("--profile", "a100-sxm-80gb", "--model", "llama2-7b-moe8", "--tokens-per-gpu", 2048, "--sequence-length", 2048,
          "--replicas", 2)
LEVEL, EXCHANGE = 1.7, 1.4


def simulated(*words):
    return as_json("simulate", *words)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A CSV of sweep, of software that takes 1.7 times as long, a further 1.4 in exchanges, and noise."""
    table = succeed("sweep", *COMMON, "--gpus", "8,16", "--router", "top1,top2,dropless", "--capacity-factor", "1,2",
                    "--format", "csv")
    noise = random.Random(5)
    found = []
    for row in csv.DictReader(io.StringIO(table)):
        exchange = float(row["exposed_exchange_ms"]) + float(row["gradient_ms"])
        ms = LEVEL * (float(row["step_ms"]) + (EXCHANGE - 1) * exchange)
        found.append({**row, "measured_ms": f"{ms * noise.gauss(1, 0.01):.4f}"})
    assert len(found) == 10
    return found


def test_rows_of_a_sweep_give_the_factors_back(tmp_path, rows):
    out = tmp_path / "mine.json"
    result = moesim("calibrate", written(tmp_path / "steps.csv", rows), "--command", "simulate", "--out", out)
    assert result.returncode == 0, result.stderr
    assert "each row left out" in result.stdout and "moesim simulate ... --profile" in result.stderr
    document = json.loads(out.read_text())
    assert (document["format"], document["version"], document["profile"]) == ("moesim-software", 2, "a100-sxm-80gb")
    assert document["multipliers"]["gemm"] == pytest.approx(LEVEL, rel=0.05)
    assert document["multipliers"]["exchange"] == pytest.approx(LEVEL * EXCHANGE, rel=0.1)
    assert document["fit"]["rows"] == len(rows) and document["fit"]["models"] == ["llama2-7b-moe8"]
    assert sum(document["fit"]["shares"].values()) == pytest.approx(1)


def test_three_rows_predict_another_scenario(tmp_path, rows):
    out = tmp_path / "mine.json"
    succeed("calibrate", written(tmp_path / "steps.csv", [rows[0], rows[3], rows[5]]), "--command", "simulate",
            "--out", out)
    words = ("--gpus", 32, "--router", "top2", "--capacity-factor", 1.5)
    plain = simulated(*COMMON, *words)
    exchange = plain["exposed_exchange_ms"] + plain["gradient_ms"]
    truth = LEVEL * (plain["step_ms"] + (EXCHANGE - 1) * exchange)
    fitted = simulated(*COMMON[2:], *words, "--profile", out)
    assert fitted["step_ms"] == pytest.approx(truth, rel=0.08)
    assert fitted["step_ms_p05"] < truth < fitted["step_ms_p95"]
    assert fitted["step_ms_p95"] / fitted["step_ms_p05"] < plain["step_ms_p95"] / plain["step_ms_p05"] / 2
    assert "3 measured steps of one's own" in succeed("simulate", *COMMON[2:], *words, "--profile", out)
    # Of a model that was not measured less is known.
    other = ("--profile", out, "--gpus", 8, "--tokens-per-gpu", 2048, "--sequence-length", 2048, "--replicas", 2)
    new, old = (simulated(*other, "--model", model) for model in ("mixtral-8x7b", "llama2-7b-moe8"))
    assert new["step_ms_p95"] / new["step_ms_p05"] > old["step_ms_p95"] / old["step_ms_p05"]
    # sweep takes it too, and charts of the ratio know that the software cancels.
    table = succeed("sweep", *other, "--router", "top1,top2", "--capacity-factor", "1", "--baseline", "router=top1",
                    "--format", "csv")
    assert {row["profile"] for row in csv.DictReader(io.StringIO(table))} == {str(out)}


def test_repeats_of_one_configuration_say_nothing_of_others(tmp_path, rows):
    def width(times):
        out = tmp_path / f"{times}.json"
        noise = random.Random(6)
        repeats = [{**rows[0], "measured_ms": float(rows[0]["measured_ms"]) * noise.gauss(1, 0.004)} for _ in range(times)]
        result = moesim("calibrate", written(tmp_path / "steps.csv", repeats), "--command", "simulate", "--out", out)
        assert result.returncode == 0, result.stderr
        assert f"{times} rows of 1 configuration decide " in result.stdout
        assert f"warning: {times} rows of 1 configuration" in result.stderr
        document = json.loads(out.read_text())
        assert document["fit"]["rows"] == 1 and "leave_one_out" not in document["fit"]
        words = ("simulate", *COMMON[2:], "--gpus", 32, "--router", "top2", "--capacity-factor", 1.5, "--profile", out)
        assert "1 measured step of one's own decides the level" in succeed(*words)
        row = simulated(*words[1:])
        return row["step_ms_p95"] / row["step_ms_p05"]

    assert width(20) == pytest.approx(width(2), rel=0.01)


def test_another_cluster_than_that_of_the_rows_is_less_certain(tmp_path, rows):
    out, old = tmp_path / "mine.json", tmp_path / "old.json"
    succeed("calibrate", written(tmp_path / "steps.csv", rows), "--command", "simulate", "--out", out)
    document = json.loads(out.read_text())
    assert document["fit"]["clusters"] == ["dgx-a100"]
    del document["fit"]["clusters"]
    old.write_text(json.dumps(document))
    words = ("--gpus", 64, "--router", "top2", "--capacity-factor", 1.5)

    def width(profile, cluster):
        row = simulated(*COMMON[2:], *words, "--profile", profile, "--cluster", cluster)
        return row["step_ms_p95"] / row["step_ms_p05"]

    assert width(out, "dgx-a100") == pytest.approx(width(old, "dgx-a100"))
    assert width(out, "generic-8x100g") > 1.05 * width(old, "generic-8x100g")
    said = succeed("simulate", *COMMON[2:], *words, "--profile", out, "--cluster", "generic-8x100g")
    assert "none on this cluster" in said


@pytest.mark.parametrize(("change", "words", "text"), [
    ({"op": "all-to-all"}, (), "steps.csv: line 3, column op: 'all-to-all': rows of simulate are steps"),
    ({"gpus": "12"}, (), "steps.csv: line 3: "),
    ({"router": "top9"}, (), "steps.csv: line 3: "),
    ({"measured_ms": "0.01"}, (), "steps.csv: line 3, column measured_ms: 0.01 ms"),
    ({"profile": "h100-sxm", "cluster": ""}, (), "steps.csv: line 3: a step of NVIDIA H100"),
    ({"profile": "a100-sxm-80gb-deepspeed"}, (), "it is software on a100-sxm-80gb already"),
    ({"pipeline_parallel": "2"}, (), "steps.csv: line 1, column pipeline_parallel: no option of simulate"),
    ({}, ("--fit", "level,host"), "--fit host: with --command simulate, level and exchange"),
    ({}, ("--software", "aws"), "--software: of train"),
    ({}, ("--command", "sweeep"), "--command: unknown value 'sweeep'"),
])
def test_what_is_wrong_is_named(tmp_path, rows, change, words, text):
    table = [{"op": "", **row} for row in rows[:3]]
    for name in change.keys() - table[0].keys():
        for row in table:
            row[name] = ""
    table[1].update(change)
    words = words if "--command" in words else ("--command", "simulate", *words)
    expect_error(moesim("calibrate", written(tmp_path / "steps.csv", table), *words), 2, text)


def test_train_and_recommend_point_to_the_hardware(tmp_path, rows):
    out = tmp_path / "mine.json"
    succeed("calibrate", written(tmp_path / "steps.csv", rows[:3]), "--command", "simulate", "--out", out)
    for command in ("train", "recommend"):
        expect_error(moesim(command, "--profile", out, "--gpus", 8), 2, "the step of simulate", "--profile a100-sxm-80gb")
    document = json.loads(out.read_text())
    document["fit"]["variances"]["covariance"] = 1
    out.write_text(json.dumps(document))
    expect_error(moesim("simulate", "--profile", out), 2, "mine.json", "covariance")
