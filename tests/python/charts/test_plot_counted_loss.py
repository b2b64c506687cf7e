"""Token loss is the counted loss where a router passes something over."""

import json

import pytest
from plot_options import small_options  # noqa: F401 (a fixture)
from plot_sweeps import row, sweep_file
from test_routing_chart import routing_result
from plotter import draw
from matplotlib.collections import PolyCollection

import report_page
import routing_chart
import rows
import sweep_chart


def counted(folder, losses):
    """top1 at capacity factors 1 and 2 with residual losses of 20 and 10 %, a band and counted losses."""
    return sweep_file(folder, [row("top1", factor, 100 * factor, 0.3, 0.2 / factor) for factor in (1, 2)],
                      residual_loss_p05=(0.18, 0.08), residual_loss_p95=(0.25, 0.14), counted_loss=losses)


def test_an_equal_loss_keeps_the_name_of_the_residual_loss(tmp_path):
    table = rows.read([counted(tmp_path, (0.2, 0.1))])
    assert rows.token_loss(table) == "residual_loss" and rows.axis_name(table, "residual_loss") == "token loss, %"


def test_the_band_of_both_is_not_drawn_around_one(tmp_path):
    path = counted(tmp_path, (0.15, 0.05))
    table = rows.read([path])
    assert rows.token_loss(table) == "counted_loss"
    assert rows.axis_name(table, "residual_loss") == rows.RESIDUAL_BESIDE_COUNTED
    assert [rows.band_of(one, "counted_loss") for one in table.rows] == [(0.15, 0.15, 0.15), (0.05, 0.05, 0.05)]
    assert rows.band_of(table.rows[0], "residual_loss") == (0.18, 0.2, 0.25)
    axes = sweep_chart.draw(path, None, "").axes[1]
    assert not [shade for shade in axes.collections if isinstance(shade, PolyCollection)]
    assert [15, 5] in [list(map(round, line.get_ydata())) for line in axes.get_lines()]
    assert not [shade for shade in draw(table, x="capacity_factor", y="counted_loss").axes[0].collections
                if isinstance(shade, PolyCollection)]
    assert "row[at[y]] !== row[at.residual_loss]" in report_page.SCRIPT


@pytest.mark.parametrize(("losses", "name"), [({}, "token loss"), ({"residual_loss": 0.06, "counted_loss": 0.06}, "token loss"),
                                              ({"residual_loss": 0.06, "counted_loss": 0.05}, "token loss, and weight passed over")])
def test_a_chart_of_a_routing_names_what_its_lines_have(tmp_path, losses, name):
    path = tmp_path / "route.json"
    path.write_text(json.dumps({**routing_result(1), **losses}), encoding="utf-8")
    panel, = [axes for axes in routing_chart.draw(str(path), "").axes if axes.get_ylabel() == "%"]
    assert name in [text.get_text() for text in panel.get_legend().get_texts()]
