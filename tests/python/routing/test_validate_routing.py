"""`moesim validate routing`: on small made-up tables whose answers are known, and on the public ones
where they are there."""

import csv
import io
import json
from pathlib import Path

import pytest

from command_line import moesim, needs_binary
from public_tables import folder_of

ROOT = Path(__file__).resolve().parents[3]
COLUMNS = ("num_tokens", "num_experts", "top_k", "capacity_factor", "avg_drop_rate")

pytestmark = needs_binary


def validate(folder, *rows):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *rows])
    (folder / "routing_bench_drop_rate.csv").write_text(text.getvalue())
    result = moesim("validate", "routing", "--data", folder, "--format", "json")
    document = json.loads(result.stdout)
    return document["rows"], {item["text"]: item["met"] for item in document["verdicts"]}, result


def test_two_tokens_on_two_experts_lose_a_quarter(tmp_path):
    # One slot each: both tokens choose the same expert with probability 1/2, and then one of two is lost.
    rows, verdicts, result = validate(tmp_path, (2, 2, 1, 1, 0.5))
    assert rows[0]["predicted"] == pytest.approx(25, abs=4 * 25 / 199**0.5)
    assert "0.000 to 50.000" in rows[0]["note"]
    inside, error = verdicts
    assert verdicts[inside] and "1 of 1" in inside
    assert not verdicts[error] and "-2" in error  # 25 - 50 percentage points
    assert result.returncode == 5


def test_a_row_outside_its_interval_is_named(tmp_path):
    # 64 tokens on 2 experts at twice the balanced capacity: nothing can be lost.
    rows, verdicts, result = validate(tmp_path, (64, 2, 1, 2, 0.01), (64, 2, 1, 2, 0))
    assert "OUTSIDE" in rows[0]["note"] and "OUTSIDE" not in rows[1]["note"]
    assert any("1 of 2" in text and met is False for text, met in verdicts.items())
    assert result.returncode == 5


def test_no_table_is_a_usage_error(tmp_path):
    result = moesim("validate", "routing", "--data", tmp_path)
    assert result.returncode == 2 and "expert_counts.csv" in result.stderr
    result = moesim("validate", "routing")
    assert result.returncode == 2 and "--data FOLDER is missing" in result.stderr


@pytest.mark.slow
def test_the_public_tables_meet_every_bar():
    data = folder_of("routing_bench_drop_rate.csv", "expert_counts.csv")
    result = moesim("validate", "routing", "--data", data, "--format", "json", timeout=900)
    assert result.returncode == 0, result.stdout
    verdicts = json.loads(result.stdout)["verdicts"]
    judged = [item for item in verdicts if item["met"] is not None]
    assert len(judged) == 5 and all(item["met"] for item in judged)
    assert "42 of 42" in verdicts[0]["text"]
    own, others = ([item["text"] for item in verdicts if "layers of OLMoE" in item["text"] and source in item["text"]]
                   for source in ("unknown:0", "unknown:1"))
    assert len(own) == 2 and len(others) == 2
    assert all("): 0, 0, 0 of" in text for text in others)  # a training without a balance loss is no guide
    assert not any("): 0, 0, 0 of" in text for text in own)
