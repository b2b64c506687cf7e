"""The shipped hardware profiles: their schema, the two implementations of their curves, and the fit
that made them."""

import csv
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from public_tables import folder_of

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "golden" / "profile"
sys.path.insert(0, str(ROOT))


def shipped(name):
    return json.loads((ROOT / "profiles" / "hardware" / f"{name}.json").read_text())


def has_kernels(name):
    return any(curve["op"] == "gemm" for curve in shipped(name)["curves"])


# All shipped profiles of hardware: a new one needs no line here.
SHIPPED = sorted(path.stem for path in (ROOT / "profiles" / "hardware").glob("*.json")
                 if shipped(path.stem)["format"] == "moesim-profile")
NAMES = tuple(name for name in SHIPPED if has_kernels(name))
# The others were measured: no public table makes them again.
FITTED = tuple(name for name in NAMES if shipped(name)["tool"]["name"] == "tools/fit")
EXCHANGES_ALONE = tuple(name for name in SHIPPED if not has_kernels(name))


@pytest.mark.parametrize("name", NAMES + EXCHANGES_ALONE)
def test_profile_meets_its_schema(name):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    schema = json.loads((ROOT / "profiles" / "schema" / "profile.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    problems = list(jsonschema.Draft7Validator(schema).iter_errors(shipped(name)))
    assert not problems, [f"{list(each.absolute_path)}: {each.message}" for each in problems[:3]]
    assert shipped(name)["name"] == name


@pytest.mark.parametrize("name", NAMES + EXCHANGES_ALONE)
def test_command_agrees_with_python(name, tmp_path):
    binary = os.environ.get("MOESIM_BIN")
    if not binary or not Path(binary).exists():
        pytest.skip("MOESIM_BIN does not name the built command; tools/test sets it")
    pytest.importorskip("scipy", reason="scipy is not installed; the fits need it")
    from tools.fit import evaluate

    queries = evaluate.golden(shipped(name), count=300, seed=11)
    columns = ["op", *sorted({key for query in queries for key in query["params"]})]
    table = tmp_path / "queries.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows({"op": query["op"], **query["params"]} for query in queries)
    answer = subprocess.run(
        [binary, "predict", "--profile", name, "--in", str(table), "--format", "csv"],
        capture_output=True, text=True, timeout=60, env={**os.environ,
                                                         "MOESIM_PROFILES": str(ROOT / "profiles")})
    assert answer.returncode == 0, answer.stderr
    rows = list(csv.DictReader(answer.stdout.splitlines()))
    assert len(rows) == len(queries)
    for row, query in zip(rows, queries):
        assert float(row["time_us"]) == pytest.approx(query["time_us"], rel=1e-9), query
        assert float(row["time_us_p05"]) <= float(row["time_us"]) <= float(row["time_us_p95"])


@pytest.mark.parametrize("name", [path.stem for path in sorted(GOLDEN.glob("*.json"))])
def test_golden_answers_are_of_the_shipped_profiles(name):
    pytest.importorskip("scipy", reason="scipy is not installed; the fits need it")
    from tools.fit import evaluate

    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    document = shipped(name)
    for query in golden["queries"][::10]:
        again = evaluate.predict_us(document, query["op"], query["params"])
        assert again == pytest.approx(query["time_us"], rel=1e-12), query


def refitted(name, suite):
    pytest.importorskip("scipy", reason="scipy is not installed; the fits need it")
    data = folder_of({"collectives": "nccl_intranode.csv.gz",
                      "memory": "vidur_mlp_ops_a100_h100.csv.gz"}[suite])
    from tools.fit import devices, profile

    return profile.suite_curves(suite, data, name, devices.all_devices())


@pytest.mark.slow
@pytest.mark.parametrize("name, suite", [
    *((name, suite) for name in FITTED for suite in ("collectives", "memory")),
    *((name, "collectives") for name in EXCHANGES_ALONE)])
def test_fit_reproduces_the_shipped_curves(name, suite):
    from tools.fit import profile

    again = json.loads(json.dumps(refitted(name, suite)))
    there = [curve for curve in shipped(name)["curves"] if profile.suite_of(curve) == suite]
    assert again == there


@pytest.mark.slow
def test_fit_reproduces_the_shipped_attention():
    numpy = pytest.importorskip("numpy", reason="numpy is not installed; the fits need it")
    pytest.importorskip("scipy", reason="scipy is not installed; the fits need it")
    data = folder_of("attention_a100.csv.gz")
    from tools.fit import attention, devices, evaluate

    rows = attention.sweeps.load(data, "a100")
    machine = attention.tiles.Machine("a100", devices.device("a100-sxm-80gb"), 128,
                                      attention.corrections.TERMS)
    again = attention.fitted.predict(attention.fitted.fit(rows, machine), rows, machine)
    sample = rows.iloc[::50]
    there = [evaluate.attention_us(shipped("a100-sxm-80gb"), *map(int, shape))
             for shape in sample[attention.sweeps.SHAPE].to_numpy()]
    # A minimiser of another scipy may stop elsewhere in a flat valley: the predictions must agree.
    assert numpy.abs(again[::50] / there - 1).max() < 0.01


def test_the_table_of_errors_is_of_the_shipped_curves():
    from tools.fit import report

    shown = (ROOT / "profiles" / "curves.csv").read_text()
    table = report.table(report.documents(ROOT / "profiles" / "hardware"))
    assert shown == table, "run: python3 -m tools.fit.report --write profiles/curves.csv"


def test_accuracy_shows_the_errors_by_data_type():
    from tools.fit import report

    page = (ROOT / "profiles" / "ACCURACY.md").read_text()
    shown = page.split(report.KERNELS_BEGIN)[1].split(report.KERNELS_END)[0].strip()
    table = report.kernels_table(report.documents(ROOT / "profiles" / "hardware"))
    assert shown == table, "run: python3 -m tools.fit.report --kernels profiles/ACCURACY.md"


def test_hopper_holds_in_fp8_by_block_what_a_published_step_does():
    """Calls come in pairs, both matrices of an expert's FFN; the cast between them has a block for each row."""
    name = "deepseek_train_kernels.csv.gz"
    with gzip.open(folder_of(name) / name, "rt") as file:
        kernels = sorted(csv.DictReader(file), key=lambda kernel: int(kernel["start_us"]))
    flops = time_us = calls = rows = 0
    for kernel in kernels:
        blocks = int(kernel["grid"].split("x")[0])
        if kernel["category"] == "cast" and blocks > 4096 and calls % 2 == 1:
            rows = blocks
        if kernel["category"] == "grouped_gemm_m":
            calls += 1
            time_us += int(kernel["dur_us"])
            if calls % 2 == 0:
                flops += 2 * rows * 7168 * (2 * 2048 + 2048)
    assert calls == 16
    for profile in ("h100-sxm", "h200-sxm", "h200-sxm-measured"):
        held = shipped(profile)["devices"][0]["sustained_fp8_block_flops"]["value"]
        assert held == pytest.approx(flops / time_us * 1e6, rel=1e-3)
