"""Charts of what moesim sweep writes of steps with a layout: those of moesim train."""

import pytest
from command_line import needs_binary, succeed
import plotter  # noqa: F401 (puts the modules below on the path)
from plotter import subtitle

import page
import rows
import sweep_chart

pytestmark = needs_binary
OPTIONS = ("--model", "mixtral-8x7b", "--profile", "h100-sxm", "--gpus", 32, "--expert-parallel", 8, "--micro-batch", 1,
           "--router", "top2", "--capacity-factor", "1,2", "--pipeline-parallel", 2)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    path = tmp_path_factory.mktemp("layouts") / "s.csv"
    succeed("sweep", *OPTIONS, "--out", path)
    return str(path)


def test_speeds_have_no_band_of_their_own_and_the_mode_is_said_once(sweep):
    figure = sweep_chart.draw(sweep, None, "")
    assert subtitle(figure).count("training step") == 1
    assert "Measured speeds: likely" in subtitle(figure) and "(80 %" in subtitle(figure)
    assert not figure.axes[0].collections  # no band: most of the error is one factor of all rows


def test_the_columns_left_out_are_those_of_the_same_step_at_another_level(sweep):
    table = rows.read([sweep])
    assert page.heading(table, "x")
    for row in table.rows:
        assert "step_ms_likely" in row and not {"step_ms_p05", "step_ms_p50", "step_ms_p95", "mode"} & set(row)
