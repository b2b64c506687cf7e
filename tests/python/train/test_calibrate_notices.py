"""What moesim calibrate notices of rows: odd ones, two clusters, options that do nothing."""

import re

import pytest
from command_line import moesim, needs_binary, written
from measured_steps import COMMON, LAYOUTS, predicted

pytestmark = needs_binary


@pytest.fixture(scope="module")
def usual():
    return [sum(predicted(layout)) for layout in LAYOUTS]


def said(tmp_path, rows, *words):
    result = moesim("calibrate", written(tmp_path / "steps.csv", rows), *words)
    assert result.returncode == 0, result.stderr
    return result.stderr


def test_a_row_that_is_half_as_long_again_is_named_alone(tmp_path, usual):
    rows = [{**layout, "measured_ms": ms} for layout, ms in zip(LAYOUTS, usual)]
    assert "warning" not in said(tmp_path, rows, *COMMON)
    rows[4]["measured_ms"] *= 1.45
    warnings = re.findall("warning: .*", said(tmp_path, rows, *COMMON))
    assert len(warnings) == 1 and "steps.csv: line 6: measured is 1.4 times what the other rows predict" in warnings[0]


def test_two_clusters_whose_rows_disagree_are_said(tmp_path, usual):
    """One level would be fitted to both."""
    def warned(factor):
        rows = [{**layout, "cluster": cluster, "measured_ms": ms * times} for layout, ms in zip(LAYOUTS[::3], usual[::3])
                for cluster, times in (("hgx-b200", 1), ("generic-8x100g", factor))]
        return [line for line in said(tmp_path, rows, *COMMON).splitlines() if "calibrate them apart" in line]

    assert not warned(1.05)
    (line,) = warned(1.4)
    # 1.4 times what is predicted of the faster cluster.
    assert re.search(r"rows on hgx-b200 take 1\.00 times their prediction, on generic-8x100g 1\.[1-3]\d: ", line)


def test_an_option_that_the_other_file_takes_has_an_effect(tmp_path, steps, exchanges):
    files = [written(tmp_path / "steps.csv", steps[:3]), written(tmp_path / "exchanges.csv", exchanges)]
    assert "gpus" in exchanges[0] and "gpus" not in steps[0]
    result = moesim("calibrate", *files, "--profile", "b200-sxm", "--sequence-length", 4096, "--gpus", 8)
    assert result.returncode == 0 and "has no effect" not in result.stderr
    alone = moesim("calibrate", files[1], "--profile", "b200-sxm", "--gpus", 64)
    assert "note: --gpus 64 has no effect: each row of " in alone.stderr


def test_recomputation_is_among_what_makes_all_rows_slow(tmp_path, usual):
    rows = [{**layout, "measured_ms": 6 * ms} for layout, ms in zip(LAYOUTS, usual)]
    assert "with the recomputation of its row?" in said(tmp_path, rows, *COMMON)
