"""The band of token loss, where the rows have one (residual_loss_p05 and _p95)."""

import pytest
from plot_options import small_options  # noqa: F401 (a fixture)
from plot_sweeps import row, sweep_file
from plotter import draw, heights_of, names_in_legend
from matplotlib.collections import PolyCollection

import compare_chart
import loss_chart
import page
import pareto_chart
import report_page
import rows
import sweep_chart

WORDS = "p05 to p95 of one step's token loss"
LOW, HIGH = (0.18, 0.08), (0.25, 0.14)


def banded(folder, name="s.csv", **columns):
    """top1 at capacity factors 1 and 2 with losses of 20 and 10 %, and their bands."""
    folder.mkdir(exist_ok=True)
    path = sweep_file(folder, [row("top1", factor, 100 * factor, 0.3, 0.2 / factor) for factor in (1, 2)],
                      **{"residual_loss_p05": LOW, "residual_loss_p95": HIGH, **columns})
    return path


def ends_of(axes):
    """{x: (low, high)} of the only shade of a panel."""
    band, = (shade for shade in axes.collections if isinstance(shade, PolyCollection))
    ends = {}
    for x, y in band.get_paths()[0].vertices:
        low, high = ends.get(x, (y, y))
        ends[x] = min(low, y), max(high, y)
    return ends


def is_band(ends, scale=100):
    return ends == {factor: pytest.approx((scale * low, scale * high)) for factor, low, high in zip((1, 2), LOW, HIGH)}


def test_the_chart_of_speed_and_loss_shades_it(tmp_path):
    figure = sweep_chart.draw(banded(tmp_path), None, "")
    loss = figure.axes[1]
    assert is_band(ends_of(loss))
    assert WORDS in [" ".join(text.get_text().split()) for text in loss.get_legend().get_texts()]
    # The highest line is at 30 %: routes that failed.
    assert loss.get_ylim()[1] == pytest.approx(31.5)


def test_the_chart_of_losses_shades_it(tmp_path):
    figure = loss_chart.draw(banded(tmp_path), "")
    failed, loss, _ = figure.axes
    assert is_band(ends_of(loss)) and not failed.collections
    assert WORDS in names_in_legend(figure)
    assert loss.get_ylim()[1] == pytest.approx(1.05 * 25)  # the band has room, not the line alone


def test_a_loss_without_capacity_has_a_flat_band(tmp_path):
    path = sweep_file(tmp_path, [row("top1", 1, 100, 0, 0.2), row("hash", "", 100, 0, 0.1)],
                      residual_loss_p05=("", 0.05), residual_loss_p95=("", 0.15))
    loss = loss_chart.draw(path, "").axes[1]
    flat, = loss.patches
    assert (min(heights_of(flat)), max(heights_of(flat))) == pytest.approx((5, 15))


def test_any_axes_have_the_band_of_loss_and_of_speed_each_in_its_words(tmp_path):
    table = rows.read([banded(tmp_path)])
    figure = draw(table, x="capacity_factor", y="residual_loss,tokens_per_s_per_gpu")
    assert is_band(ends_of(figure.axes[0]), 1)  # small_options have no units: shares
    legend = names_in_legend(figure)
    assert legend.count(WORDS) == 1 and len([name for name in legend if name.startswith("p05 to p95 of each")]) == 1
    assert WORDS not in names_in_legend(draw(table, x="capacity_factor"))


def test_a_point_of_speed_over_loss_has_both_bars(tmp_path):
    figure = pareto_chart.pareto(rows.read([banded(tmp_path)]), None, page.Size(), "")
    across = [sorted(line.get_xdata()) for line in figure.axes[0].get_lines()
              if len(set(line.get_ydata())) == 1 and len(line.get_xdata()) == 2 and line.get_drawstyle() == "default"]
    assert across == [pytest.approx([18, 25]), pytest.approx([8, 14])]
    assert WORDS in names_in_legend(figure)


def test_a_page_has_error_bars_of_loss(tmp_path):
    table = rows.read([banded(tmp_path)])
    data = report_page.data_of(table, "", "residual_loss", None)
    assert data["own_bands"] == {"residual_loss": ["residual_loss_p05", "residual_loss_p95"]}
    assert "Error bars of token loss: p05 to p95 of one step." in report_page._notes(table)


def test_the_ratio_of_two_losses_has_no_band(tmp_path):
    table = rows.read([banded(tmp_path / "a"), banded(tmp_path / "b", expert_parallel=8)])
    assert {(ratio.low, ratio.value, ratio.high) for ratio in (
        compare_chart._ratio(row, row, "residual_loss") for row in table.rows)} == {(1, 1, 1)}


def test_rows_of_train_have_it_where_they_count_their_loss(tmp_path):
    """The model's own router without a capacity counts none, and its band is blank."""
    path = banded(tmp_path, counted_loss=(0.2, 0.1))
    figure = sweep_chart.draw(path, None, "")
    assert is_band(ends_of(figure.axes[1])) and is_band(ends_of(loss_chart.draw(path, "").axes[1]))
    table = rows.read([path])
    assert is_band(ends_of(draw(table, x="capacity_factor", y="counted_loss").axes[0]), 1)
    assert report_page.data_of(table, "", "counted_loss", None)["own_bands"]["counted_loss"] == [
        "residual_loss_p05", "residual_loss_p95"]
    own = banded(tmp_path / "own", counted_loss=(0, 0), residual_loss_p05=("", ""), residual_loss_p95=("", ""))
    assert not sweep_chart.draw(own, None, "").axes[1].collections


@pytest.mark.parametrize("columns", [{"residual_loss_p05": "", "residual_loss_p95": ""}, {}])
def test_rows_without_a_band_are_drawn_as_before(tmp_path, columns):
    """One replica has none, files of older versions have no such columns."""
    path = sweep_file(tmp_path, [row("top1", factor, 100 * factor, 0.3, 0.2 / factor) for factor in (1, 2)], **columns)
    loss = sweep_chart.draw(path, None, "").axes[1]
    assert not loss.collections
    assert WORDS not in [" ".join(text.get_text().split()) for text in loss.get_legend().get_texts()]
    assert not loss_chart.draw(path, "").axes[1].collections
