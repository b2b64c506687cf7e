"""Charts of speeds: the data behind them, read back from the figure."""

import math
from pathlib import Path

import pytest
from plot_options import small_options  # noqa: F401 (a fixture)
from plot_sweeps import row, sweep_file
from plotter import draw, handles_of
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

import chart_data
import look
import loss_chart
import page
import plot
import rows
import sweep_chart
import sweep_series


def test_rows_become_series_sorted_by_capacity_factor(two_routers):
    series, shared, refused = sweep_series.read_sweep(two_routers)
    assert [(entry.router, [point.capacity_factor for point in entry.points])
            for entry in series] == [("top1", [1, 2]), ("top1+ir", [1, 2])]
    assert refused == 1
    assert shared == {"mode": "prefill", "gpus": "32", "profile": "a100", "model": "m"}
    point = series[0].points[0]
    assert point.speed == pytest.approx(10000)
    assert point.speed_low == pytest.approx(8000)  # a slow step is a low speed
    assert point.speed_high == pytest.approx(10000 / 0.9)


def test_lines_differ_by_every_option_that_varies(tmp_path):
    path = sweep_file(tmp_path, [row("top1", 1, 100, 0, 0), row("top1", 1, 300, 0, 0, mode="train")])
    series, shared, _ = sweep_series.read_sweep(path)
    assert [entry.label for entry in series] == ["top1, mode prefill", "top1, mode train"]
    assert "mode" not in shared


def lines_of(axes):
    return [(list(line.get_xdata()), [round(float(value), 6) for value in line.get_ydata()])
            for line in axes.get_lines()]


def test_an_option_that_a_router_fixes_itself_is_no_label(tmp_path):
    path = tmp_path / "s.csv"
    columns = ("status,router,weights,capacity_factor,step_ms,step_ms_p05,step_ms_p95,"
               "tokens_per_s_per_gpu,failed,residual_loss\n")
    rows = ["ok,top2,kept,1,10,10,10,100,0,0\n", "ok,expert-choice,raw,1,10,10,10,100,0,0\n"]
    path.write_text(columns + "".join(rows))
    assert [line.label for line in sweep_series.read_sweep(path)[0]] == ["top2", "expert-choice"]
    path.write_text(columns + "".join(rows) + "ok,top2,raw,1,10,10,10,100,0,0\n")
    assert [line.label for line in sweep_series.read_sweep(path)[0]] == [
        "top2, weights kept", "expert-choice, weights raw", "top2, weights raw"]


def test_no_legend_of_bands_where_none_is_drawn(tmp_path):
    path = tmp_path / "s.csv"
    rows = "status,router,capacity_factor,step_ms,step_ms_p05,step_ms_p95,tokens_per_s_per_gpu,failed,residual_loss,fits_memory\n"
    for factor in (1, 2):
        rows += f"ok,top2,{factor},10,9,11,100,0,0,false\n"
    path.write_text(rows)

    def named():
        speed = sweep_chart.draw(str(path), None, "").axes[0]
        assert bool(speed.collections) == any("p05" in text.get_text() for text in speed.get_legend().get_texts())
        return bool(speed.collections)

    assert not named()
    path.write_text(rows.replace(",false\n", ",yes\n"))
    assert named()


def test_a_band_of_one_point_is_a_bar(tmp_path):
    """And so in the legend, beside the shade of a line where there is one."""
    def drawn(*points):
        path = sweep_file(tmp_path, [row(router, factor, 100, 0.1, 0.1) for router, factor, _ in points],
                          fits_memory=[fits for *_, fits in points])
        figures = (sweep_chart.draw(path, None, ""), draw(rows.read([path]), x="capacity_factor", y=chart_data.SPEED))
        told = []
        for figure in figures:
            bars = [segment[:, 1].tolist() for shade in figure.axes[0].collections if isinstance(shade, LineCollection)
                    for segment in shade.get_segments()]
            shades = any(isinstance(shade, PolyCollection) for shade in figure.axes[0].collections)
            legend = figure.axes[0].get_legend() or figure.legends[0]
            assert bool(legend.findobj(Rectangle)) == shades
            assert any(line.get_marker() == "|" for line in legend.findobj(Line2D)) == bool(bars)
            assert all(ends == pytest.approx([8000, 1e4 / 0.9]) for ends in bars)
            told.append((len(bars), shades))
        assert told[0] == told[1]
        return told[0]

    assert drawn(("top1", 1, "true")) == (1, False)
    assert drawn(("top1", 1, "true"), ("top1", 2, "true")) == (0, True)
    assert drawn(("top1", 1, "true"), ("top1", 2, "true"), ("top2", 1, "true")) == (1, True)
    # A point between two that do not fit in memory.
    assert drawn(("top1", 1, "false"), ("top1", 2, "true"), ("top1", 3, "false")) == (1, False)


def test_the_figure_shows_speed_loss_and_failures(two_routers):
    figure = sweep_chart.draw(two_routers, None, "")
    speed, loss = figure.axes
    assert [xs for xs, _ in lines_of(speed)] == [[1, 2], [1, 2]]
    assert lines_of(speed)[0][1] == [10000, 5000]
    assert ([1, 2], [5, 1]) in lines_of(loss) and ([1, 2], [2, 0.5]) in lines_of(loss)
    # Failures before rectification are the same for both routers: one dotted line.
    assert sum(line.get_linestyle() == ":" for line in loss.get_lines()) == 1
    assert len(speed.collections) == 2  # a band for each line
    assert "tokens/s" in speed.get_ylabel() and "%" in loss.get_ylabel()
    texts = " ".join(text.get_text() for text in figure.texts)
    for part in ("m on 32 x a100", "forward pass only", "1 refused"):
        assert part in texts


def test_legends_do_not_collide_with_the_panels(two_routers):
    figure = sweep_chart.draw(two_routers, None, "")
    figure.canvas.draw()
    page = figure.bbox
    for axes in figure.axes:
        box = axes.get_legend().get_window_extent()
        assert box.x0 > axes.get_window_extent().x1  # beside, not over
        assert box.x1 <= page.x1 and box.y0 >= page.y0
    first, second = (axes.get_legend().get_window_extent() for axes in figure.axes)
    assert not first.overlaps(second)


@pytest.mark.parametrize("step", [1000, 1, 0.01])  # speeds of 4, 7 and 9 digits
def test_the_name_of_the_speed_lies_on_the_page(tmp_path, step):
    steps = (step, 2 * step)
    path = sweep_file(tmp_path, [row("top1", factor, each, 0.1, 0.1) for factor, each in zip((1, 2), steps)],
                      step_ms_low=steps, step_ms_likely=[1.5 * each for each in steps], step_ms_high=[2 * each for each in steps])
    figure = sweep_chart.draw(path, None, "")
    figure.canvas.draw()
    speed, loss = figure.axes
    for axes in (speed, loss):
        assert axes.yaxis.label.get_window_extent().x0 >= 0.5 * sweep_chart.MARGIN * figure.bbox.width
    assert speed.bbox.width > 0.5 * figure.bbox.width and speed.bbox.x0 == loss.bbox.x0


def test_routes_that_failed_at_one_factor_have_a_mark(tmp_path):
    def failed(factors):
        path = sweep_file(tmp_path, [row("top1", factor, 100, 0.2 / factor, 0.1 / factor) for factor in factors])
        loss = sweep_chart.draw(path, None, "").axes[1]
        line = next(line for line in loss.get_lines() if line.get_color() == look.GREY)
        shown = next(handle for text, handle in zip(loss.get_legend().get_texts(), handles_of(loss.get_legend()))
                     if "failed" in text.get_text())
        return (line.get_marker(), line.get_ydata()[0]), (shown.get_marker(), shown.get_linestyle())
    assert failed((1,)) == (("x", 20), ("x", "None"))
    assert failed((1, 2)) == (("None", 20), ("None", ":"))


def test_measured_points_of_the_same_mode_only(two_routers, tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("router,capacity_factor,tokens_per_s_per_gpu,mode,source,excluded\n"
                    "top1,1,9000,prefill,x,\ntop1,1,3000,train,x,\ntop1+ir,2,4000,prefill,x,yes\n"
                    "top2,1,4000,prefill,x,\ndense,,,prefill,x,\n")
    points = chart_data.read_measured(str(path), "prefill")
    assert [(point.router, point.speed, point.excluded) for point in points] == [
        ("top1", 9000, False), ("top1+ir", 4000, True), ("top2", 4000, False)]
    figure = sweep_chart.draw(two_routers, str(path), "")
    marks = [mark for mark in lines_of(figure.axes[0]) if len(mark[0]) == 1]
    assert ([1], [9000]) in marks and ([2], [4000]) in marks
    assert ([1], [4000]) not in marks  # top2 has no line here


def with_memory(folder, scenarios):
    """A sweep of (router, factor, step, whether it fits)."""
    return sweep_file(folder, [row(router, factor, step, 0.1, 0.1) for router, factor, step, _ in scenarios],
                      fits_memory=["true" if fits else "false" for *_, fits in scenarios])


def test_what_does_not_fit_in_memory_is_pale_hollow_and_counted(tmp_path):
    path = with_memory(tmp_path, [("top1", 1, 100, True), ("top1", 2, 90, False),
                                  ("dense", "", 80, False)])
    figure = sweep_chart.draw(path, None, "")
    lines = [line for line in figure.axes[0].get_lines() if len(line.get_xdata()) == 2]
    pale = [line for line in lines if line.get_alpha() == look.PALE]
    strong = [line for line in lines if line.get_alpha() is None]
    assert any(line.get_markerfacecolor() == "white" and list(line.get_xdata()) == [1, 2]
               for line in pale)
    assert len(pale) == 2  # the line, and the dense model's
    (line,) = strong
    assert line.get_ydata()[0] == 1e4 and math.isnan(line.get_ydata()[1])
    assert "2 of 3 do not fit" in figure.texts[1].get_text()
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert any("does not fit" in text for text in legend)
    assert "2 of 3 do not fit" in " ".join(text.get_text() for text in loss_chart.draw(path, "").texts)


def test_fits_only_leaves_out_what_does_not_fit(tmp_path, capsys):
    path = with_memory(tmp_path, [("top1", 1, 100, True), ("top1", 2, 90, False)])
    figure = sweep_chart.draw(path, None, "", fits_only=True)
    assert lines_of(figure.axes[0]) == [([1], [1e4])]
    assert "1 that do not fit in memory left out" in figure.texts[1].get_text()
    path = with_memory(tmp_path, [("top1", 1, 100, False)])
    assert plot.main(["sweep", path, "--fits-only", "--out", str(tmp_path / "x.png")]) == plot.EXIT_USAGE
    assert "no scenario fits" in capsys.readouterr().err


def test_without_error_bars_there_is_no_band(tmp_path):
    path = sweep_file(tmp_path, ["ok,top1,train,8,p,m,1,100,,,5000,0.1,0.1", "ok,top1,train,8,p,m,2,200,,,2500,0,0"])
    figure = sweep_chart.draw(path, None, "")
    assert lines_of(figure.axes[0]) == [([1, 2], [5000, 2500])]
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert legend == ["top1"]


def compared(folder, lines=(("dropless", "", 100, 1, 1, 1), ("top2", 1, 80, 1.25, 0.98, 1.6), ("top2", 2, 90, 1.11, 0.9, 1.4))):
    """Two padded routers and dropless, which the sweep compared with dropless: (router, capacity factor, step, ratio, its ends)."""
    _, _, steps, ratios, lows, highs = zip(*lines)
    return sweep_file(folder, [row(router, factor, step, 0.1, 0.1) for router, factor, step, *_ in lines],
                      step_ms_p50=[step / 0.6 for step in steps], step_ms_same_p05=[0.95 * step for step in steps],
                      step_ms_same_p95=[1.05 * step for step in steps], speed_over_baseline=ratios,
                      speed_over_baseline_p05=lows, speed_over_baseline_p95=highs)


def bands_of(axes):
    """(low, high) of the shades at their first point."""
    return [tuple(round(float(end)) for end in (path.vertices[:, 1].min(), path.vertices[:, 1].max()))
            for shade in axes.collections for path in shade.get_paths()]


def test_bands_are_those_of_the_comparison_with_the_baseline(tmp_path):
    path = compared(tmp_path)
    speed = sweep_chart.draw(path, None, "").axes[0]
    # 12,500 at 1.25 (0.98 to 1.6) times dropless: the band reaches dropless's line, at 10,000, as "within the noise" says.
    (band,) = bands_of(speed)
    assert band[0] <= 9800 and band[1] == 16000
    assert not speed.patches  # the baseline has none
    legend = " ".join(text.get_text() for text in speed.get_legend().get_texts()).replace("\n", " ")
    assert "the speed over that of dropless, the baseline" in legend
    table = rows.read([path])
    assert rows.band_of(table.rows[1], "tokens_per_s_per_gpu") == pytest.approx((9800, 12500, 16000))
    assert rows.band_of(table.rows[1], "step_ms") == pytest.approx((80 * 1.25 / 1.6, 80, 80 * 1.25 / 0.98))
    assert "the baseline" in table.band_words()


@pytest.mark.parametrize(("baselines", "words"), [
    ({("top1", 1)}, "that of top1, capacity factor 1, the baseline: compare with it alone"),
    ({("top1", 1), ("top2", 1)}, "that of its baseline, capacity factor 1"),
    ({("top1", 1), ("top1", 2)}, "that of top1, the baseline: compare with it alone"),
])
def test_the_legend_names_what_tells_the_baseline_from_other_rows_of_its_router(tmp_path, baselines, words):
    path = compared(tmp_path, [(router, factor, 100, 1, *((1, 1) if (router, factor) in baselines else (0.9, 1.1)))
                               for router in ("top1", "top2") for factor in (1, 2)])
    assert rows.read([path]).band_words() == f"p05 to p95 of the speed over {words}"
    legend = sweep_chart.draw(path, None, "").axes[0].get_legend()
    assert words in " ".join(text.get_text() for text in legend.get_texts()).replace("\n", " ")


def test_without_a_baseline_every_line_has_the_band_of_itself(tmp_path):
    path = Path(compared(tmp_path))
    path.write_text("\n".join(",".join(line.split(",")[:-3]) for line in path.read_text().splitlines()) + "\n")
    speed = sweep_chart.draw(str(path), None, "").axes[0]
    assert len(speed.patches) == 1 and len(bands_of(speed)) == 1  # dropless, which is the same everywhere, too
    legend = " ".join(text.get_text() for text in speed.get_legend().get_texts()).replace("\n", " ")
    assert "of each alone" in legend and "sweep --baseline" in legend


def test_the_level_that_a_measurement_is_likely_to_find_is_said(tmp_path):
    path = compared(tmp_path)
    figure = sweep_chart.draw(path, None, "")
    assert figure.axes[0].get_ylabel() == "speed, tokens/s per GPU\n(measured: likely 0.6 times that)"
    assert "Measured speeds: likely 0.6 times these (90 %: 0.8 to 1.11)" in figure.texts[1].get_text()
    table = rows.read([path])
    assert table.level(["tokens_per_s_per_gpu"]) in page.subtitle(table, figures=["tokens_per_s_per_gpu"])
    # Slow steps are low speeds: 1 / 0.6.
    assert table.level(["step_ms"]) == "Measured steps: likely 1.67 times these (90 %: 0.9 to 1.25)"
    assert table.level(["memory_gib"]) == ""


def test_lines_without_capacity_are_flat_and_told_apart(tmp_path):
    path = sweep_file(tmp_path, [row("top1", 1, 100, 0.1, 0.1), row("top1", 2, 200, 0, 0),
                                 row("dropless", "", 150, 0, 0.0),
                                 row("base", "", 120, 0, 0.04)])
    figure = sweep_chart.draw(path, None, "")
    speed, loss = figure.axes
    flat = [line for line in speed.get_lines() if len(set(line.get_ydata())) == 1]
    assert [line.get_ydata()[0] for line in flat] == pytest.approx([1e6 / 150, 1e6 / 120])
    assert len({(line.get_color(), line.get_linestyle()) for line in flat}) == 2
    assert 4 in [line.get_ydata()[0] for line in loss.get_lines()]  # what base gives up, in percent
    drawn = loss_chart.draw(path, "").axes[1]
    assert 4 in [line.get_ydata()[0] for line in drawn.get_lines()]
