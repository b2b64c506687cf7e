"""What computing may hide of the exchanges of ZeRO 2 and 3: nobody measured it, and bands reach that far."""

import csv
import re

import pytest
from command_line import as_json, as_rows, needs_binary, succeed

pytestmark = needs_binary
QWEN = ("--model", "qwen3-30b-a3b", "--gpus", 64, "--expert-parallel", 8)


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("software", [(), ("--software", "megatron-bridge")])
def test_the_band_reaches_the_step_with_exchanges_hidden(zero, software):
    once = as_json("train", *QWEN, *software, "--zero", 1)
    step = as_json("train", *QWEN, *software, "--zero", zero)
    assert "step_ms_hidden" not in once
    # Hidden, it takes about as long as where gradients and weights are exchanged once.
    assert step["step_ms_hidden"] < 0.9 * step["step_ms"]
    # At least the usual factor below it.
    assert step["step_ms_low"] / step["step_ms_hidden"] <= once["step_ms_low"] / once["step_ms"]
    assert step["step_ms_low"] < step["step_ms_hidden"] < step["step_ms_likely"]


def test_the_text_says_what_the_step_would_take():
    step = as_json("train", *QWEN, "--zero", 3)
    said = re.search(r"if all computing hid exchanges of weights and gradients: step ([\d.]+) s;", succeed("train", *QWEN, "--zero", 3))
    assert float(said.group(1)) == pytest.approx(step["step_ms_hidden"] / 1e3, abs=0.005)
    assert "if all computing" not in succeed("train", *QWEN, "--zero", 1)


def test_rows_of_zero_1_stay_as_they_are_beside_others():
    rows = as_rows("train", *QWEN, "--zero", "1,3")
    alone = as_rows("train", *QWEN, "--zero", 1)[0]
    assert "step_ms_hidden" not in alone
    assert {column: value for column, value in rows[0].items() if column in alone} == alone
    assert rows[0]["step_ms_hidden"] == "" and float(rows[1]["step_ms_hidden"]) < float(rows[1]["step_ms"])


def test_a_ratio_moves_to_the_side_where_more_may_be_hidden(tmp_path):
    for zero in (1, 3):
        succeed("train", *QWEN, "--zero", zero, "--format", "csv", "--out", tmp_path / f"{zero}.csv")
    step = as_json("train", *QWEN, "--zero", 3)
    gain = step["step_ms"] / step["step_ms_hidden"]
    shared = as_json("train", *QWEN, "--zero", 3, "--baseline", tmp_path / "1.csv")
    ends = [shared[f"speed_over_baseline{end}"] / shared["speed_over_baseline"] for end in ("_low", "_high")]
    assert ends[1] * ends[0] == pytest.approx(gain, rel=1e-6)  # but for that it is as far off on either side
    turned = as_json("train", *QWEN, "--zero", 1, "--baseline", tmp_path / "3.csv")
    assert turned["speed_over_baseline_low"] == pytest.approx(1 / shared["speed_over_baseline_high"], rel=1e-6)
    same = as_json("train", *QWEN, "--zero", 3, "--baseline", tmp_path / "3.csv")
    assert same["speed_over_baseline_high"] < 1.1


def test_a_table_says_that_ratios_are_wider():
    note = "wider by what computing may hide of exchanges of weights and gradients (ZeRO 2, 3)"
    assert note in succeed("train", *QWEN, "--zero", "1,3")
    assert note not in succeed("train", *QWEN, "--zero", "0,1")


def test_recommend_does_not_order_what_may_be_hidden(tmp_path):
    """ZeRO 3 alone is slower by far as priced, and may be as fast."""
    step = as_json("train", *QWEN, "--zero", 3, "--micro-batch", 1)
    assert step["step_ms"] > 1.3 * step["step_ms_hidden"]
    succeed("train", *QWEN, "--zero", 3, "--micro-batch", 1, "--format", "csv", "--out", tmp_path / "yours.csv")
    text = succeed("recommend", "--from", f"{tmp_path / 'yours.csv'}:1", "--software", "megatron-bridge", "--zero", 1,
                   "--tensor-parallel", 1, "--context-parallel", 1, "--pipeline-parallel", 1, "--expert-parallel", 8,
                   "--micro-batch", 1, "--recompute", "none", "--best", 1)
    assert re.search(r"is [\d.]+ % slower than 1; that is within the noise", text)


def test_a_row_that_does_not_tell_is_taken_alike(tmp_path):
    """Rows that were written before step_ms_hidden was."""
    for zero in (1, 3):
        succeed("train", *QWEN, "--zero", zero, "--format", "csv", "--out", tmp_path / f"{zero}.csv")
    rows = list(csv.reader((tmp_path / "3.csv").open()))
    at = rows[0].index("step_ms_hidden")
    with (tmp_path / "old.csv").open("w") as file:
        csv.writer(file).writerows([row[:at] + row[at + 1:] for row in rows])
    assert "step_ms_hidden" not in (tmp_path / "old.csv").read_text()
    batch = ("--micro-batch", 2)  # another step, of ZeRO 3 too
    by_old, by_new = (as_json("train", *QWEN, *batch, "--zero", 3, "--baseline", tmp_path / name) for name in ("old.csv", "3.csv"))
    once = as_json("train", *QWEN, *batch, "--zero", 1, "--baseline", tmp_path / "1.csv")
    ratio = by_old["speed_over_baseline"]
    assert by_new["speed_over_baseline"] == ratio
    # As far off on either side as beside a step of which nothing is hidden, but for their distance.
    assert by_old["speed_over_baseline_high"] / ratio == pytest.approx(ratio / by_old["speed_over_baseline_low"], rel=1e-6)
    assert once["speed_over_baseline_high"] / once["speed_over_baseline"] == pytest.approx(by_old["speed_over_baseline_high"] / ratio, rel=0.2)
    said = "the baseline's row, of a former version, has no step_ms_hidden"
    assert said in succeed("train", *QWEN, *batch, "--zero", 3, "--baseline", tmp_path / "old.csv")
    assert said not in succeed("train", *QWEN, *batch, "--zero", 3, "--baseline", tmp_path / "3.csv")
    assert said not in succeed("train", *QWEN, *batch, "--zero", 3, "--baseline", tmp_path / "1.csv")
