"""Speed over token loss: points of groups, and the front."""


import pytest
from plot_rows import options, row, sweep  # noqa: F401 (options: a fixture)
from plotter import handles_of, names_in_legend, SIZE

import pareto_chart
import rows
from chart_data import BadInput


def test_points_of_routers_that_differ_in_dashes_alone_are_told_apart(tmp_path):
    path = sweep(tmp_path / "s.csv", [row(router) for router in ("dropless", "top1", "top2")])
    figure = pareto_chart.pareto(rows.read([path]), None, SIZE, "")
    points = [line for line in figure.axes[0].get_lines() if line.get_marker() not in ("", "None")]
    assert len({(line.get_marker(), line.get_color(), line.get_markerfacecolor()) for line in points}) == 3


def test_points_tell_apart_what_differs_beside_the_router(tmp_path):
    def told(counts):
        path = sweep(tmp_path / "s.csv", [row(router, gpus, factor=factor, step=100 * factor / gpus, loss=0.1 / factor)
                                          for router in ("top1", "top2") for gpus in counts for factor in (1, 2)])
        figure = pareto_chart.pareto(rows.read([path]), None, SIZE, "")
        legend = [text.get_text() for one in figure.legends for text in one.get_texts()]
        return legend[:legend.index("Pareto front")], [text.get_text() for text in figure.axes[0].texts if text.get_text()]
    legend, names = told((8, 16))
    assert len(legend) == 4 and "top1, GPUs 8" in legend or "GPUs 8, top1" in legend
    assert names[:2] == ["top1, GPUs 16, CF 2", "top1, GPUs 16, CF 1"]  # the front, then the others
    legend, _ = told((8, 16, 32, 64, 128))
    assert len(legend) == len(set(legend)) == 10


def test_points_of_one_router_are_told_apart_by_what_differs(tmp_path):
    path = sweep(tmp_path / "s.csv", [row("top2", gpus, factor, step=100 * factor / gpus, loss=0.1 / factor, profile=profile)
                                      for profile in "pq" for gpus in (8, 16) for factor in (1, 2)])
    figure = pareto_chart.pareto(rows.read([path]), None, SIZE, "")
    legend = figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()][:4] == [
        f"profile {profile}, GPUs {gpus}" for profile in "pq" for gpus in (8, 16)]
    assert len({(handle.get_color(), handle.get_marker()) for handle in handles_of(legend)[:4]}) == 4


def test_more_groups_of_points_than_markers_are_refused(tmp_path):
    lines = [row("top2", gpus, step=100 / gpus, profile=profile) for profile in "pqrs" for gpus in range(1, 9)]
    table = rows.read([sweep(tmp_path / "s.csv", lines)])
    with pytest.raises(BadInput, match="32 groups of points, by profile, gpus, and more than 28 .* such as --group profile$"):
        pareto_chart.pareto(table, None, SIZE, "")
    with pytest.raises(BadInput, match="32 groups .* fewer columns with --group$"):
        pareto_chart.pareto(table, ["gpus", "profile"], SIZE, "")
    assert pareto_chart.pareto(table, ["profile"], SIZE, "").legends[0].get_texts()[0].get_text() == "profile p"
    # Of layouts that moesim recommend found, which differ in everything, the fronts are named.
    found = sweep(tmp_path / "found.csv", lines, scaling_pays="true")
    assert pareto_chart.pareto(rows.read([found]), None, SIZE, "").legends[0].get_texts()[0].get_text() == "profile p, top2"


def test_a_front_of_one_point_is_no_line_of_the_legend(tmp_path):
    def legend(losses):
        path = sweep(tmp_path / "s.csv", [row("top1", factor=factor, step=100 * factor, loss=loss)
                                          for factor, loss in zip((1, 2), losses)])
        figure = pareto_chart.pareto(rows.read([path]), None, SIZE, "")
        return names_in_legend(figure)
    assert "Pareto front" in legend((0.2, 0.1))
    assert "Pareto front" not in legend((0.1, 0.2))


def test_the_front_is_of_those_that_fit():
    points = [(1, 10, "a"), (2, 9, "b"), (2, 20, "c"), (3, 20, "d"), (0, 5, "e")]
    assert [name for *_, name in pareto_chart.front_of(points)] == ["e", "a", "c"]


def test_the_front_is_drawn_without_what_does_not_fit(tmp_path):
    path = sweep(tmp_path / "s.csv", [row("top1", factor=1, step=100, loss=0.2), row("top1", factor=2, step=200, loss=0),
                                      row("top2", step=10, loss=0.01, fits=False)])
    figure = pareto_chart.pareto(rows.read([path]), None, SIZE, "")
    front = [line for line in figure.axes[0].get_lines() if line.get_drawstyle() == "steps-post"]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in front] == [([0, 20], [5e3, 1e4])]


def test_names_of_the_front_cover_no_other(tmp_path):
    # Twenty points within 0.2 % of loss, and one far off: the axis is logarithmic above 1 %.
    path = sweep(tmp_path / "s.csv", [row("top1", factor=1 + index, step=100 + index, loss=0.002 - 1e-4 * index)
                                      for index in range(20)] + [row("top1", factor=0.5, step=50, loss=0.5)])
    figure = pareto_chart.pareto(rows.read([path]), None, SIZE, "")
    axes = figure.axes[0]
    assert axes.get_xscale() == "symlog"
    boxes = [text.get_window_extent() for text in axes.texts]
    assert 2 < len(boxes) < 21  # not all have a place
    assert not any(one.overlaps(other) for index, one in enumerate(boxes) for other in boxes[:index])
    assert axes.texts[-1].get_text() == "CF 0.5"
    near = sweep(tmp_path / "n.csv", [row("top1", factor=1, loss=0.02), row("top1", factor=2, step=200, loss=0)])
    assert pareto_chart.pareto(rows.read([near]), None, SIZE, "").axes[0].get_xscale() == "linear"
