"""Rows of train and recommend name documents as they were typed, so that they reproduce themselves."""

import csv
import json
from pathlib import Path

import pytest
from command_line import as_rows, expect_error, moesim, needs_binary, succeed

pytestmark = needs_binary

ROOT = Path(__file__).resolve().parents[3]
STEP = ("--gpus", 16, "--global-batch", 32)


def read(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))


def rows_in(path):
    return list(csv.DictReader(path.open(encoding="utf-8")))


@pytest.fixture
def own(tmp_path):
    """Copies of shipped documents, each altered in a figure and under its old name, and two models of one name."""
    profile = read(ROOT / "profiles/hardware/h200-sxm.json")
    profile["devices"][0]["hbm_bytes"]["value"] *= 2
    cluster = read(ROOT / "profiles/clusters/hgx-h200.json")
    cluster["nic"]["gbit_per_s"]["value"] /= 4
    dispatcher = read(ROOT / "profiles/dispatchers/deepep.json")
    model = read(ROOT / "tests/data/hugging_face/qwen3-30b-a3b.json")
    for name, document in (("gpu", profile), ("nodes", cluster), ("rows", dispatcher), ("one", model),
                           ("two", {**model, "num_hidden_layers": 24})):
        (tmp_path / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    return tmp_path


def test_a_row_of_own_documents_reproduces_itself(own):
    path = own / "steps.csv"
    succeed("train", *STEP, "--profile", "gpu.json", "--cluster", "nodes.json", "--dispatcher", "rows.json", "--model",
            "one.json,./two.json", "--expert-parallel", 16, "--out", path, cwd=own)
    rows = rows_in(path)
    assert [row["model"] for row in rows] == ["one.json", "./two.json"]
    assert {(row["profile"], row["cluster"], row["dispatcher"]) for row in rows} == {
        ("gpu.json", "nodes.json", "rows.json")}
    assert float(rows[0]["step_ms"]) > 1.5 * float(rows[1]["step_ms"])
    for place, row in enumerate(rows, 1):
        again, = as_rows("train", "--from", f"{path}:{place}", cwd=own)
        assert {**row, **again} == row
    shipped, = as_rows("train", "--from", f"{path}:1", "--cluster", "hgx-h200", cwd=own)
    assert float(shipped["step_ms"]) < float(rows[0]["step_ms"])  # its NICs are four times as fast


def test_rows_of_recommend_name_the_files_too(own):
    few = ("--tensor-parallel", 1, "--pipeline-parallel", "1,2", "--virtual-pipeline", 1, "--context-parallel", 1)
    path = own / "all.csv"
    succeed("recommend", *STEP, "--profile", "gpu.json", "--cluster", "nodes.json", "--model", "two.json", "--dispatcher",
            "all-to-all,rows.json", "--all", path, *few, cwd=own)
    rows = rows_in(path)
    assert {(row["model"], row["profile"], row["cluster"]) for row in rows} == {("two.json", "gpu.json", "nodes.json")}
    assert {row["dispatcher"] for row in rows} == {"all-to-all", "rows.json"}
    for row in rows:
        assert ("--dispatcher rows.json" in row["command"]) == (row["dispatcher"] == "rows.json")


def test_a_usual_cluster_has_its_name(own):
    row, = as_rows("train", *STEP, "--model", "two.json", "--profile", "gpu.json", cwd=own)
    assert row["cluster"] == "hgx-h200"


def test_a_baseline_of_the_same_machine_may_be_typed_otherwise(own):
    plain = own / "plain.csv"
    succeed("train", *STEP, "--model", "qwen3-30b-a3b", "--profile", "h200-sxm", "--format", "csv", "--out", plain)
    shipped = ROOT / "profiles/models/qwen3-30b-a3b.json"
    (own / "same.json").write_text(json.dumps(read(ROOT / "profiles/hardware/h200-sxm.json")), encoding="utf-8")
    for model, is_one in (("qwen3-30b-a3b", True), (shipped, True), ("two.json", False)):
        text = succeed("train", *STEP, "--model", model, "--profile", "same.json", "--baseline", plain, cwd=own)
        assert ("of two models" not in text) == is_one, model
    altered = moesim("train", *STEP, "--model", "qwen3-30b-a3b", "--profile", "gpu.json", "--baseline", plain, cwd=own)
    expect_error(altered, 2, "predicted by h200-sxm, this one by gpu.json", "two profiles of one kind of GPU")
    other = moesim("train", *STEP, "--model", "two.json", "--profile", "h100-sxm", "--baseline", plain, cwd=own)
    assert other.returncode == 2 and "a step of qwen3-30b-a3b on another machine, this one is of two.json" in other.stderr
    beside = succeed("train", *STEP, "--model", shipped, "--profile", "h100-sxm", "--baseline", plain, cwd=own)
    assert "h100-sxm on hgx-h100 is " in beside and "times as fast as h200-sxm on hgx-h200" in beside


def test_an_altered_cluster_is_another_one_of_a_baseline_whatever_its_name(own):
    plain = own / "plain.csv"
    words = ("train", *STEP, "--model", "qwen3-30b-a3b", "--profile", "h200-sxm")
    succeed(*words, "--cluster", "nodes.json", "--format", "csv", "--out", plain, cwd=own)
    assert "h200-sxm on hgx-h200 is " in succeed(*words, "--baseline", plain, cwd=own)
    (own / "copy.json").write_text(json.dumps(read(own / "nodes.json"), indent=3), encoding="utf-8")
    assert "it is the same step" in succeed(*words, "--cluster", "copy.json", "--baseline", plain, cwd=own)
    other = succeed(*words, "--cluster", "hgx-h100", "--baseline", plain, cwd=own)
    assert "h200-sxm on hgx-h100 is " in other and "times as fast as h200-sxm on nodes.json" in other


def test_refusals_name_what_was_typed(own):
    profile = read(own / "gpu.json")
    del profile["devices"][0]["pcie_bytes_per_second"]
    (own / "gpu.json").write_text(json.dumps(profile), encoding="utf-8")
    expect_error(moesim("train", *STEP, "--model", "qwen3-30b-a3b", "--profile", "gpu.json", "--offload", "moe_act", cwd=own),
                 2, "the profile gpu.json does not say how fast")
