"""moesim validate training: predicted steps beside those of a table."""

import csv
import json

import pytest
from command_line import as_json, moesim, needs_binary
from public_tables import folder_of
from train_command import QWEN

pytestmark = needs_binary
ROW = {"config_id": "a1", "source": "Made-up 1", "model": "Qwen3-30B-A3B", "system": "DGX-H100", "gpus": "64",
       "tp": "1", "pp": "2", "vp": "1", "cp": "1", "ep": "8", "etp": "1", "mbs": "1", "gbs": "256",
       "seq": "4096", "precision": "BF16", "dispatcher_overlap_options": "alltoall",
       "capacity_factor_or_dropless": "dropless", "recompute": "none", "metric": "step_time",
       "value": "", "derived_step_s": ""}


def validate_rows(tmp_path, *rows):
    with open(tmp_path / "moe_training_steps.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ROW)
        writer.writeheader()
        writer.writerows(rows)
    return moesim("validate", "training", "--data", tmp_path, "--format", "json")


def test_validation_compares_what_train_predicts(tmp_path):
    predicted = as_json(*QWEN, "--gpus", 64, "--pipeline-parallel", 2, "--global-batch", 256)["step_ms"]
    slower = {**ROW, "derived_step_s": f"{2 * predicted / 1e3}", "value": "1"}
    fp4 = {**ROW, "config_id": "a2", "precision": "NVFP4", "derived_step_s": "1", "value": "1"}
    document = json.loads(validate_rows(tmp_path, slower, fp4).stdout)
    (row,) = document["rows"]
    assert row["predicted"] == pytest.approx(predicted)
    assert row["error"] == pytest.approx(-0.5)
    texts = [verdict["text"] for verdict in document["verdicts"]]
    assert any("1 configurations left out" in text and "nvfp4" in text for text in texts)


def test_validation_casts_as_train_does(tmp_path):
    """On Hopper products with one scale per tensor read a transposed copy, which is cast too."""
    predicted = as_json(*QWEN, "--gpus", 64, "--pipeline-parallel", 2, "--global-batch", 256,
                        "--precision", "fp8-current")["step_ms"]
    row = {**ROW, "precision": "FP8-CS", "derived_step_s": f"{predicted / 1e3}", "value": "1"}
    (row,) = json.loads(validate_rows(tmp_path, row).stdout)["rows"]
    assert row["predicted"] == pytest.approx(predicted)


def test_factors_come_from_other_models(tmp_path):
    """A system that takes twice the predicted time for two models: each is right by the other's factor."""
    rows = []
    for number, (name, model) in enumerate((("Qwen3-30B-A3B", "qwen3-30b-a3b"),
                                            ("GPT OSS 120B", "gpt-oss-120b"))):
        predicted = as_json("train", "--model", model, "--expert-parallel", 8, "--gpus", 64,
                            "--pipeline-parallel", 2, "--global-batch", 256,
                            "--sequence-length", 4096)["step_ms"]
        rows.append({**ROW, "config_id": f"b{number}", "model": name, "value": "1",
                     "derived_step_s": f"{2 * predicted / 1e3}"})
    document = json.loads(validate_rows(tmp_path, *rows).stdout)
    assert [row["left_out_error"] for row in document["rows"]] == pytest.approx([0, 0], abs=1e-6)


def test_a_bad_cell_of_the_table_is_named(tmp_path):
    result = validate_rows(tmp_path, {**ROW, "ep": "eight", "derived_step_s": "1", "value": "1"})
    assert result.returncode == 1 and "no row can be predicted" in result.stderr
    assert "line 2, column ep: 'eight'" in result.stderr


def test_the_public_table_is_compared():
    document = json.loads(moesim("validate", "training", "--data", folder_of("moe_training_steps.csv"),
                                 "--format", "json").stdout)
    assert len(document["rows"]) >= 22
    assert all(row["predicted"] > 0 for row in document["rows"])


TABLE = {"config_id": "a1", "source": "Own pages 1.0", "model": "GPT OSS 120B", "system": "DGX-H200", "gpus": "64",
         "tp": "1", "pp": "1", "vp": "1", "cp": "1", "ep": "8", "etp": "1", "mbs": "1", "gbs": "512", "seq": "4096",
         "precision": "BF16", "dispatcher_overlap_options": "", "capacity_factor_or_dropless": "dropless",
         "recompute": "none", "routing": "forced balance", "metric": "step_time", "value": "9", "unit": "s/step",
         "derived_step_s": "9", "std": "", "notes": ""}


def test_a_table_of_other_models_and_machines_is_compared_row_by_row(tmp_path):
    """Any shipped model and machine, however its name is written; a row that cannot be is left out by itself."""
    changes = [{}, {"model": "Qwen3_235B_a22B (own)"}, {"model": "Kimi-K2"}, {"system": "p5en.48xlarge (8x H200)"},
               {"precision": "fp8-block"}, {"capacity_factor_or_dropless": "1.25"}]
    refused = [({"model": "Nemotron"}, "no document of its model"), ({"system": "MI300X"}, "no profile of its GPU"),
               ({"precision": "TF32"}, "steps in TF32 are not modelled"), ({"ep": "48"}, "--expert-parallel 48"),
               ({"recompute": "selective"}, "unknown value 'selective'"), ({"mbs": "x"}, "column mbs: 'x'"),
               ({"dispatcher_overlap_options": "pp_layout=rubbish"}, "--pipeline-layout 'rubbish'"),
               ({"capacity_factor_or_dropless": "some"}, "capacity 'some'")]
    with (tmp_path / "moe_training_steps.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, TABLE)
        table.writeheader()
        for place, change in enumerate(changes + [change for change, _ in refused]):
            table.writerow({**TABLE, **change, "config_id": f"a{place}"})
    document = json.loads(moesim("validate", "training", "--data", tmp_path, "--format", "json").stdout)
    assert [row["subject"].split(":")[0] for row in document["rows"]] == [f"a{n}" for n in range(len(changes))]
    predicted = [row["predicted"] for row in document["rows"]]
    assert predicted[5] != predicted[0] == predicted[3] and predicted[4] < predicted[0] < predicted[1]
    left_out = "\n".join(verdict["text"] for verdict in document["verdicts"])
    for _, reason in refused:
        assert reason in left_out, reason
