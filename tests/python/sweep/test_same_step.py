"""A step beside itself, and the row of a file that it is compared with: one answer of sweep and train."""

import json
import math
import shutil
from pathlib import Path

import pytest
from command_line import as_json, as_rows, expect_error, moesim, needs_binary, succeed

pytestmark = needs_binary
PROFILE = Path(__file__).resolve().parents[3] / "profiles" / "hardware" / "h100-sxm.json"
TRAIN = ("train", "--model", "mixtral-8x7b", "--gpus", 16, "--expert-parallel", 8, "--profile", "h100-sxm")
RATIO = ("speed_over_baseline_low", "speed_over_baseline", "speed_over_baseline_high")


def test_a_copy_of_a_profile_is_the_same_machine_for_sweep_and_train(tmp_path):
    shutil.copy(PROFILE, tmp_path / "copy.json")
    words = ("sweep", "--model", "mixtral-8x7b", "--gpus", 16, "--micro-batch", 1, "--replicas", 3, "--mode", "prefill")
    own, copied = as_rows(*words, "--profile", "h100-sxm,./copy.json", "--baseline", "profile=h100-sxm", cwd=tmp_path)
    assert own["speed_over_baseline_p05"] == "1" and copied["speed_over_baseline"] == "1"
    succeed(*TRAIN, "--out", tmp_path / "base.csv", cwd=tmp_path)
    step = as_json(*TRAIN[:-1], "./copy.json", "--baseline", "base.csv", cwd=tmp_path)
    assert step["baseline_level"] == 0.9 and step["speed_over_baseline"] == pytest.approx(1, rel=1e-8)
    ends = [float(copied[f"speed_over_baseline_{end}"]) for end in ("p05", "p95")]
    # The noise of two runs, 2 % each.
    assert ends == pytest.approx([step[RATIO[0]], step[RATIO[2]]], rel=1e-6)
    assert ends == pytest.approx([math.exp(-1.645 * 0.02 * 2**0.5), math.exp(1.645 * 0.02 * 2**0.5)], rel=1e-4)
    # One that says something else is no copy: kernels are off each by itself.
    altered = json.loads(PROFILE.read_text(encoding="utf-8"))
    del altered["devices"][0]["pcie_bytes_per_second"]
    (tmp_path / "copy.json").write_text(json.dumps(altered), encoding="utf-8")
    _, other = as_rows(*words, "--profile", "h100-sxm,./copy.json", "--baseline", "profile=h100-sxm", cwd=tmp_path)
    assert float(other["speed_over_baseline_p95"]) > ends[1]


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_a_baseline_is_a_row_of_a_file(tmp_path, suffix):
    several = tmp_path / f"several.{suffix}"
    succeed(*TRAIN, "--global-batch", "128,256", "--format", suffix, "--out", several)
    succeed(*TRAIN, "--global-batch", 256, "--format", suffix, "--out", tmp_path / f"one.{suffix}")
    of_row, of_file, of_only = (as_json(*TRAIN, "--global-batch", 512, "--baseline", path) for path in (
        f"{several}:2", tmp_path / f"one.{suffix}", f"{tmp_path / 'one'}.{suffix}:1"))
    assert [of_row[name] for name in RATIO] == [of_file[name] for name in RATIO] == [of_only[name] for name in RATIO]
    assert of_row["baseline"] == f"{several}:2" and of_row["speed_over_baseline"] > 1
    expect_error(moesim(*TRAIN, "--baseline", several), 2, f"2 rows, and one is compared with: --baseline {several}:1 takes the first")
    for number in (0, 3):
        expect_error(moesim(*TRAIN, "--baseline", f"{several}:{number}"), 2, f"there is no row {number}: rows are 1 to 2")
    expect_error(moesim(*TRAIN, "--baseline", tmp_path / "none.csv:1"), 2, "none.csv", "No such file")


def test_a_colon_in_the_name_of_a_file_is_no_row(tmp_path):
    succeed(*TRAIN, "--format", "csv", "--out", tmp_path / "tp:1")
    assert as_json(*TRAIN, "--baseline", tmp_path / "tp:1")["speed_over_baseline"] == pytest.approx(1, rel=1e-8)
