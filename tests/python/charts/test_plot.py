"""What the charts show: the data behind them, read back from the figure."""

import json
import math
import sys
from pathlib import Path

import pytest
from plot_options import small_options  # noqa: F401 (a fixture)
from plot_sweeps import HEADER, row, sweep_file

PLOT = Path(__file__).resolve().parents[3] / "tools" / "plot"
sys.path.insert(0, str(PLOT))
matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
matplotlib.use("Agg")
from matplotlib.collections import LineCollection, PolyCollection  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.patches import Rectangle  # noqa: E402

import axes_chart  # noqa: E402
import chart_data  # noqa: E402
import look  # noqa: E402
import loss_chart  # noqa: E402
import option_columns  # noqa: E402
import page  # noqa: E402
import pareto_chart  # noqa: E402
import plot  # noqa: E402
import routing_chart  # noqa: E402
import rows  # noqa: E402
import sweep_chart  # noqa: E402
import sweep_series  # noqa: E402

@pytest.fixture
def two_routers(tmp_path):
    return sweep_file(tmp_path, [row("top1", 2, 200, 0.01, 0.01), row("top1", 1, 100, 0.05, 0.05),
                                 row("top1+ir", 1, 110, 0.05, 0.02),
                                 row("top1+ir", 2, 205, 0.01, 0.005),
                                 row("top9", 1, 1, "", "", status="refused")])


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


def test_columns_are_named_as_the_field_does():
    assert [option_columns.words(name) for name in ("zero", "expert_parallel")] == ["ZeRO", "expert parallel"]


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
    path = tmp_path / "s.csv"

    def drawn(*points):
        path.write_text(HEADER.strip() + ",fits_memory\n" + "".join(
            f"{row(router, factor, 100, 0.1, 0.1).strip()},{fits}\n" for router, factor, fits in points))
        figures = (sweep_chart.draw(str(path), None, ""),
                   axes_chart.draw(rows.read([str(path)]), "capacity_factor", [chart_data.SPEED], None, None, page.Size(), ""))
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
    path = tmp_path / "s.csv"
    path.write_text(HEADER.strip() + ",step_ms_low,step_ms_likely,step_ms_high\n" + "".join(
        f"{row('top1', factor, factor * step, 0.1, 0.1).strip()},{factor * step},{1.5 * factor * step},{2 * factor * step}\n"
        for factor in (1, 2)))
    figure = sweep_chart.draw(str(path), None, "")
    figure.canvas.draw()
    speed, loss = figure.axes
    for axes in (speed, loss):
        assert axes.yaxis.label.get_window_extent().x0 >= 0.5 * sweep_chart.MARGIN * figure.bbox.width
    assert speed.bbox.width > 0.5 * figure.bbox.width and speed.bbox.x0 == loss.bbox.x0


def test_legends_of_long_labels_stay_on_the_page(tmp_path):
    path = many_lines(tmp_path, [f"top2+a-router-with-a-name-of-{count}-lines-and-its-options" for count in range(8)], (1, 2))
    figure = sweep_chart.draw(path, None, "")
    figure.canvas.draw()
    first, second = (axes.get_legend().get_window_extent() for axes in figure.axes)
    assert second.y0 >= 0 and second.y1 < first.y0 < second.y1 + 0.05 * figure.bbox.height


def test_routes_that_failed_at_one_factor_have_a_mark(tmp_path):
    def failed(factors):
        path = sweep_file(tmp_path, [row("top1", factor, 100, 0.2 / factor, 0.1 / factor) for factor in factors])
        loss = sweep_chart.draw(path, None, "").axes[1]
        line = next(line for line in loss.get_lines() if line.get_color() == look.GREY)
        shown = next(handle for text, handle in zip(loss.get_legend().get_texts(), loss.get_legend().legendHandles)
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


def with_memory(folder, rows):
    """A sweep of (router, factor, step, whether it fits)."""
    path = folder / "memory.csv"
    path.write_text(HEADER.strip() + ",fits_memory\n" + "".join(
        f"{row(router, factor, step, 0.1, 0.1).strip()},{'true' if fits else 'false'}\n"
        for router, factor, step, fits in rows))
    return str(path)


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
    for draw in (lambda: loss_chart.draw(path, ""),):
        assert "2 of 3 do not fit" in " ".join(text.get_text() for text in draw().texts)


def test_fits_only_leaves_out_what_does_not_fit(tmp_path, capsys):
    path = with_memory(tmp_path, [("top1", 1, 100, True), ("top1", 2, 90, False)])
    figure = sweep_chart.draw(path, None, "", fits_only=True)
    assert lines_of(figure.axes[0]) == [([1], [1e4])]
    assert "1 that do not fit in memory left out" in figure.texts[1].get_text()
    path = with_memory(tmp_path, [("top1", 1, 100, False)])
    assert plot.main(["sweep", path, "--fits-only", "--out", str(tmp_path / "x.png")]) == plot.EXIT_USAGE
    assert "no scenario fits" in capsys.readouterr().err


def test_without_error_bars_there_is_no_band(tmp_path):
    path = tmp_path / "s.csv"
    path.write_text(HEADER + "ok,top1,train,8,p,m,1,100,,,5000,0.1,0.1\nok,top1,train,8,p,m,2,200,,,2500,0,0\n")
    figure = sweep_chart.draw(str(path), None, "")
    assert lines_of(figure.axes[0]) == [([1, 2], [5000, 2500])]
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert legend == ["top1"]


def compared(folder, lines=(("dropless", "", 100, 1, 1, 1), ("top2", 1, 80, 1.25, 0.98, 1.6), ("top2", 2, 90, 1.11, 0.9, 1.4))):
    """Two padded routers and dropless, which the sweep compared with dropless: (router, capacity factor, step, ratio, its ends)."""
    head = HEADER.strip() + ",step_ms_p50,step_ms_same_p05,step_ms_same_p95,speed_over_baseline,speed_over_baseline_p05,speed_over_baseline_p95\n"
    def line(router, factor, step, *ratio):
        return f"{row(router, factor, step, 0.1, 0.1).strip()},{step / 0.6},{0.95 * step},{1.05 * step},{','.join(map(str, ratio))}\n"
    path = folder / "compared.csv"
    path.write_text(head + "".join(line(*each) for each in lines))
    return path


def bands_of(axes):
    """(low, high) of the shades at their first point."""
    return [tuple(round(float(end)) for end in (path.vertices[:, 1].min(), path.vertices[:, 1].max()))
            for shade in axes.collections for path in shade.get_paths()]


def test_bands_are_those_of_the_comparison_with_the_baseline(tmp_path):
    path = compared(tmp_path)
    speed = sweep_chart.draw(str(path), None, "").axes[0]
    # 12,500 at 1.25 (0.98 to 1.6) times dropless: the band reaches dropless's line, at 10,000, as "within the noise" says.
    (band,) = bands_of(speed)
    assert band[0] <= 9800 and band[1] == 16000
    assert not speed.patches  # the baseline has none
    legend = " ".join(text.get_text() for text in speed.get_legend().get_texts()).replace("\n", " ")
    assert "the speed over that of dropless, the baseline" in legend
    table = rows.read([str(path)])
    assert rows.band_of(table.rows[1], "tokens_per_s_per_gpu") == pytest.approx((9800, 12500, 16000))
    assert rows.band_of(table.rows[1], "step_ms") == pytest.approx((80 * 1.25 / 1.6, 80, 80 * 1.25 / 0.98))
    assert "the baseline" in table.band_words()


@pytest.mark.parametrize(("baselines", "words"), [
    ({("top1", 1)}, "that of top1, capacity factor 1, the baseline: compare with it alone"),
    ({("top1", 1), ("top2", 1)}, "that of its baseline, capacity factor 1"),
    ({("top1", 1), ("top1", 2)}, "that of top1, the baseline: compare with it alone"),
])
def test_the_legend_names_what_tells_the_baseline_from_other_rows_of_its_router(tmp_path, baselines, words):
    path = str(compared(tmp_path, [(router, factor, 100, 1, *((1, 1) if (router, factor) in baselines else (0.9, 1.1)))
                                   for router in ("top1", "top2") for factor in (1, 2)]))
    assert rows.read([path]).band_words() == f"p05 to p95 of the speed over {words}"
    legend = sweep_chart.draw(path, None, "").axes[0].get_legend()
    assert words in " ".join(text.get_text() for text in legend.get_texts()).replace("\n", " ")


def test_without_a_baseline_every_line_has_the_band_of_itself(tmp_path):
    path = compared(tmp_path)
    path.write_text("\n".join(",".join(line.split(",")[:-3]) for line in path.read_text().splitlines()) + "\n")
    speed = sweep_chart.draw(str(path), None, "").axes[0]
    assert len(speed.patches) == 1 and len(bands_of(speed)) == 1  # dropless, which is the same everywhere, too
    legend = " ".join(text.get_text() for text in speed.get_legend().get_texts()).replace("\n", " ")
    assert "of each alone" in legend and "sweep --baseline" in legend


def test_the_level_that_a_measurement_is_likely_to_find_is_said(tmp_path):
    path = str(compared(tmp_path))
    figure = sweep_chart.draw(path, None, "")
    assert figure.axes[0].get_ylabel() == "speed, tokens/s per GPU\n(measured: likely 0.6 times that)"
    assert "Measured speeds: likely 0.6 times these (90 %: 0.8 to 1.11)" in figure.texts[1].get_text()
    table = rows.read([path])
    assert table.level(["tokens_per_s_per_gpu"]) in page.subtitle(table, figures=["tokens_per_s_per_gpu"])
    # Slow steps are low speeds: 1 / 0.6.
    assert table.level(["step_ms"]) == "Measured steps: likely 1.67 times these (90 %: 0.9 to 1.25)"
    assert table.level(["memory_gib"]) == ""


def test_predicted_speeds_are_not_taken_for_measured(two_routers, tmp_path, capsys):
    predicted = tmp_path / "predicted.csv"
    predicted.write_text("router,capacity_factor,tokens_per_s_per_gpu,provenance\ntop1,1,9,x\n")
    out = tmp_path / "x.png"
    assert plot.main(["sweep", str(two_routers), "--measured", str(predicted), "--out",
                      str(out)]) == plot.EXIT_USAGE
    assert "predicted, not measured" in capsys.readouterr().err
    assert not out.exists()


def test_styles_survive_grey_and_tell_routers_apart():
    routers = ["top1", "top1+ir", "top1+fr+ir", "top2", "top2+ir", "top2+fr+ir", "dense"]
    styles = look.router_styles(routers)
    without_colour = {(style["marker"], str(style["linestyle"]), style.get("markerfacecolor"))
                      for style in styles}
    assert len(without_colour) == len(routers)
    assert styles[1]["color"] == styles[4]["color"]  # one rectification, one colour
    many = [look.style_by_index(index) for index in range(49)]
    assert len({(style["color"], style["marker"]) for style in many}) == 49


def test_colours_of_twelve_lines_differ_and_those_of_flat_lines_too():
    routers = ["top8", "top8+fr", "top8+ir", "top8+fr+ir", "dropless", "expert-choice", "base", "soft", "sinkhorn",
               "bias-balanced:0.001:1000", "hash", "thor"]
    flat = [router in ("dropless", "base", "bias-balanced:0.001:1000") for router in routers]
    styles = look.flat_styles(look.router_styles(routers), flat)
    assert len({style["color"] for style in styles}) == 12
    assert len({(style["marker"], str(style["linestyle"])) for style in styles}) == 12  # in grey
    # As before: few lines, and one flat line beside others.
    assert [look.style_by_index(index)["color"] for index in range(7)] == list(look.COLOURS)
    few = look.flat_styles(look.router_styles(["top1", "dropless"]), [False, True])
    assert few[0]["color"] != few[1]["color"] and few[1]["linestyle"] == look.FLAT_DASHES[0]


def test_no_two_of_many_routers_look_alike_without_markers():
    """More routers than colours: those without one of their own left have dashes; who has one keeps it."""
    routers = ["top1", "top2", "top2+fr", "top2+ir", "top2+fr+ir", "top1+fr", "top1+ir", "expert-choice", "random", "hash:1", "base:greedy",
               "gating-dropout:0", "bias-balanced:0.001:1000", "sinkhorn:greedy", "soft", "dropless"]
    styles = dict(zip(routers, look.router_styles(routers)))
    assert len({(style["color"], str(style["linestyle"])) for style in styles.values()}) == len(routers)
    for router in ("soft", "sinkhorn:greedy"):
        assert styles[router]["color"] == look.router_styles([router])[0]["color"] and styles[router]["linestyle"] == "-"


def test_a_router_looks_the_same_whatever_else_is_drawn():
    def look_of(router, routers):
        style = look.router_styles(routers)[routers.index(router)]
        return style["color"], style["marker"]
    for router in ("dropless", "top2+fr+ir", "expert-choice"):
        alone = look_of(router, [router])
        assert alone == look_of(router, ["top1", "dropless", "base", "top2+ir", "top2+fr+ir", "expert-choice"])
        assert alone == look_of(router, ["expert-choice", "top2+fr+ir", "top2", "dropless"])


def test_one_router_has_one_colour_in_all_kinds_of_charts(tmp_path):
    path = tmp_path / "s.csv"
    path.write_text(HEADER + row("dropless", "", 100, 0, 0) + "".join(
        row(router, factor, (90 + len(router)) * factor, 0.1, 0.1 / factor) for router in ("top2", "top2+fr+ir") for factor in (1, 2)))
    expected = dict(zip(("dropless", "top2", "top2+fr+ir"), look.router_styles(["dropless", "top2", "top2+fr+ir"])))
    speed = sweep_chart.draw(str(path), None, "").axes[0]
    pareto = pareto_chart.pareto(rows.read([str(path)]), None, page.size_of("", ""), "")
    for legend in (speed.get_legend(), pareto.legends[0]):
        shown = {text.get_text(): handle.get_color() for text, handle in zip(legend.get_texts(), legend.legendHandles)
                 if text.get_text() in expected}
        assert shown == {router: style["color"] for router, style in expected.items()}


@pytest.mark.parametrize(("varying", "flat"), [(9, 4), (3, 10), (6, 7), (10, 7), (11, 4), (0, 12)])
def test_flat_lines_have_a_style_each(varying, flat):
    is_flat = [False] * varying + [True] * flat
    styles = look.flat_styles([look.style_by_index(index) for index in range(varying + flat)], is_flat)
    assert len({(style["color"], style["marker"], str(style["linestyle"])) for style in styles}) == varying + flat


def rows_with_k(router, k, losses):
    return "".join(f"ok,{router},train,16,p,m,{factor},{10 * factor},,,{1000 / factor},{loss},{loss},{k}\n"
                   for factor, loss in losses)


def test_routers_of_another_k_say_so(tmp_path):
    path = tmp_path / "s.csv"
    path.write_text(HEADER.strip() + ",top_k\n" + rows_with_k("top8", 8, ((4, 0.5), (8, 0.1))) +
                    rows_with_k("top8+ir", 8, ((4, 0.4), (8, 0.05))) + rows_with_k("sinkhorn", 8, ((4, 0.45), (8, 0.07))) +
                    rows_with_k("base", 1, ((4, 0.01),)) + rows_with_k("top1", 1, ((4, 0.01),)) +
                    rows_with_k("soft", 1, ((4, 0),)))
    series = sweep_series.read_sweep(str(path))[0]
    # top1 says it by its name; soft mixes all tokens.
    assert [entry.label for entry in series] == ["top8", "top8+ir", "sinkhorn", "base (k = 1)", "top1", "soft"]
    table = rows.read([str(path)])
    figure = pareto_chart.pareto(table, None, page.size_of("", ""), "")
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "base (k = 1)" in labels and "top8" in labels
    # One k alone, or one router of several: nothing to say.
    assert chart_data.differing_k([{"router": "base", "top_k": "1"}]) == {}
    assert chart_data.differing_k([{"router": "topk", "top_k": "1"}, {"router": "topk", "top_k": "2"}]) == {}


def test_notes_of_failures_name_their_routers_and_the_dispatch_is_said_in_words(tmp_path):
    path = tmp_path / "s.csv"
    path.write_text(HEADER + "".join(
        f"ok,{router},train,16,p,m,{factor},{10 * factor},,,{1000 / factor},{loss},{loss}\n"
        for at, router in enumerate(("top8", "top8+ir", "sinkhorn", "expert-choice"))  # top8+ir: drawn anew
        for factor, loss in ((4, 0.5 + 0.01 * at), (8, 0.1))))
    figure = sweep_chart.draw(str(path), None, "")
    notes = [text.get_text() for text in figure.axes[1].texts]
    assert notes == ["failed, from above:\nexpert-choice,\nsinkhorn,\ntop8"]
    assert sweep_chart.subtitle({"dispatch": "index"}, 0) == ""  # the default
    assert "(einsum)" in sweep_chart.subtitle({"dispatch": "einsum"}, 0)


def test_a_long_subtitle_of_the_loss_chart_is_wrapped(tmp_path, monkeypatch):
    path = sweep_file(tmp_path, [row("top1", factor, 100 * factor, 0.1, 0.1) for factor in (1, 2)])
    monkeypatch.setattr(loss_chart, "subtitle", lambda *_: "all that the rows share, " * 12)
    figure = loss_chart.draw(path, "")
    figure.canvas.draw()
    assert all(text.get_window_extent().x1 <= figure.bbox.x1 for text in figure.texts)
    assert min(text.get_window_extent().y0 for text in figure.texts) > figure.axes[0].get_window_extent().y1


def test_labels_of_many_options_stay_inside_the_figure(tmp_path):
    path = tmp_path / "s.csv"
    head, *lines = (HEADER + row("top2", 1, 100, 0.5, 0.4) + row("top2", 2, 90, 0.1, 0.1)).split("\n")
    conditions = [("fast", "none"), ("fast", "3:1.5"), ("flows", "none"), ("flows", "3:1.5")]
    text = [head + ",network,slow_gpu"]
    for network, slow in conditions:
        text += [f"{line},{network},{slow}" for line in lines if line]
    path.write_text("\n".join(text) + "\n")
    figure = sweep_chart.draw(str(path), "", "")
    figure.canvas.draw()
    legend = figure.axes[0].get_legend()
    assert len(legend.get_texts()) >= 4
    assert legend.get_window_extent().x1 <= figure.bbox.x1
    # What fails does not depend on the network: one line, named by its k alone.
    notes = [text.get_text() for text in figure.axes[1].texts]
    assert notes == ["top2\nfailed"]


def options_that_fail(folder, shares):
    """A sweep of one router over networks and slow GPUs; `shares` of routes that fail of each."""
    path = folder / "s.csv"
    path.write_text(HEADER.strip() + ",network,slow_gpu\n" + "".join(
        f"{row('top8', factor, 100, share / factor, share / 2).strip()},{network},{slow}\n"
        for (network, slow), share in shares.items() for factor in (1, 2)))
    return str(path)


def test_notes_of_failures_name_what_tells_them_apart(tmp_path, monkeypatch):
    def notes(shares):
        return [text.get_text() for text in sweep_chart.draw(options_that_fail(tmp_path, shares), None, "").axes[1].texts]
    by_slow = {(network, slow): 0.5 if slow == "none" else 0.48 for network in ("fast", "flows") for slow in ("none", "3:1.5")}
    assert notes(by_slow) == ["failed, from above:\nslow gpu none,\nslow gpu 3:1.5"]
    assert notes({key: 0.5 if key == ("fast", "none") else 0.48 for key in by_slow}) == [
        "failed, from above:\ntop8, network\nfast, slow gpu\nnone\nand 1 more"]  # the other line is of three pairs
    # However long, the first has its name.
    monkeypatch.setattr(sweep_chart, "MOST_NOTE_LINES", 0)
    assert notes(by_slow) == ["failed, from above:\nslow gpu none\nand 1 more"]


def test_lines_below_those_of_another_option_say_so(tmp_path):
    """Draws of one routing on several machines differ by 0.2 %: one line of what fails."""
    path = options_that_fail(tmp_path, {("fast", "none"): 0.5, ("flows", "none"): 0.499, ("fast", "3:1.5"): 0.3})
    speed, loss = sweep_chart.draw(path, None, "").axes
    legend = [text.get_text().replace("\n", " ") for text in speed.get_legend().get_texts()][:3]
    assert legend == [f"top8, network {network}, slow gpu {slow}{below}" for network, slow, below in (
        ("fast", "none", " (speed: as network fast, slow gpu 3:1.5)"),
        ("flows", "none", " (speed: as network fast, slow gpu 3:1.5)"), ("fast", "3:1.5", ""))]
    assert [note.get_text() for note in loss.texts] == ["slow gpu none\nfailed", "slow gpu 3:1.5\nfailed"]
    figure = loss_chart.draw(path, "")
    legend = [" ".join(text.get_text().split()) for text in figure.legends[0].get_texts()]
    assert legend == ["network fast, slow gpu none (failed routes, token loss: as network flows, slow gpu none)",
                      "network flows, slow gpu none", "network fast, slow gpu 3:1.5"]


def many_lines(folder, routers, factors):
    """A sweep of routers under names of routing as long as the ones that ship."""
    path = folder / "many.csv"
    text = [HEADER.strip() + ",routing"]
    for router in routers:
        for number in range(3):
            for at, factor in enumerate(factors):
                failed = max(0.0, 0.5 - 0.2 * at - 0.01 * number)
                text.append(row(router, factor, 100 + number, failed, failed / 2).strip() +
                            f",ragged-source:{number}")
    path.write_text("\n".join(text) + "\n")
    return str(path)


@pytest.mark.parametrize("factors", [(1, 1.5, 2), (2,)])
def test_notes_of_what_fails_lie_inside_the_panel(tmp_path, factors):
    # The first note begins at the upper end, the second near the lower one: at 0.5 and 0.01.
    path = tmp_path / "two.csv"
    rows = [row("expert-choice", factor, 100, 0.5, 0.4) for factor in factors]
    rows += [row("random", factor, 100, 0.01 / factor, 0.01) for factor in factors]
    path.write_text(HEADER + "".join(rows))
    for name in (str(path), many_lines(tmp_path, ["top2", "random"], factors)):
        figure = sweep_chart.draw(name, None, "")
        figure.canvas.draw()
        panel = figure.axes[1].get_window_extent()
        notes = figure.axes[1].texts
        assert notes
        for note in notes:
            box = note.get_window_extent()
            assert panel.x0 <= box.x0 and box.x1 <= panel.x1, note.get_text()
            assert panel.y0 <= box.y0 and box.y1 <= panel.y1, note.get_text()


def test_the_legends_of_thirty_lines_do_not_overlap(tmp_path):
    path = many_lines(tmp_path, [f"scomoe:0.{digit}:0.25" for digit in range(10)], (1, 2))
    figure = sweep_chart.draw(path, None, "")
    figure.canvas.draw()
    first, second = (axes.get_legend().get_window_extent() for axes in figure.axes)
    assert not first.overlaps(second)
    assert second.y0 >= 0


def test_labels_of_losses_stay_inside_the_figure(tmp_path):
    path = many_lines(tmp_path, ["random", "top2"], (1, 2))
    # "random, routing empty-rank" is a label of 26 letters.
    Path(path).write_text(Path(path).read_text().replace("ragged-source:0", "empty-rank"))
    figure = loss_chart.draw(path, "")
    figure.canvas.draw()
    assert figure.legends[0].get_window_extent().x1 <= figure.bbox.x1


BAD_FILES = [
    ("", "line 1: column status is missing"),
    ("status,router\nok,top1\n", "column capacity_factor is missing"),
    (HEADER + row("top1", 1, 1, "", "", status="refused"), "no row with status ok"),
    (HEADER + row("dense", "", 100, "", ""), "capacity factor"),
    (HEADER + row("top1", 1, 100, 0, 0).replace(",0,0", ",x,0"), "line 2, column failed: 'x'"),
    (HEADER + row("top1", 1, 100, 0, 0).replace(",10000.0,", ",,"), "line 2, column tokens_per_s_per_gpu: a number is missing"),
    # Cut short behind the last column that a chart needs, and with one cell too many.
    (HEADER.strip() + ",note\n" + row("top1", 1, 100, 0, 0), "line 2: 13 fields, but the header has 14"),
    (HEADER + row("top1", 1, 100, 0, 0) + "\n" + row("top1", 2, 100, 0, "0,0"), "line 4: 14 fields, but the header has 13"),
    (HEADER + row("top1", 1, 100, 0, 0) + row("top1", 2, 100, 0, 0, model="caf\u00e9"), "line 3: byte 0xe9 is no UTF-8"),
]


@pytest.mark.parametrize(("text", "message"), BAD_FILES)
def test_a_file_that_cannot_be_drawn_says_why(text, message, tmp_path, capsys):
    path = tmp_path / "s.csv"
    path.write_text(text, encoding="latin-1")
    out = tmp_path / "x.png"
    assert plot.main(["sweep", str(path), "--out", str(out)]) == plot.EXIT_USAGE
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_a_file_of_a_spreadsheet_is_drawn(two_routers):
    path = Path(two_routers)
    plain = lines_of(sweep_chart.draw(two_routers, None, "").axes[0])
    path.write_text(path.read_text().replace(",m,", ",caf\u00e9,").replace("\n", "\r\n"), encoding="utf-8-sig")
    figure = sweep_chart.draw(two_routers, None, "")
    assert lines_of(figure.axes[0]) == plain and figure.texts[0].get_text().startswith("caf\u00e9 on 32 x a100")


@pytest.mark.parametrize(("suffix", "is_told"), [("png", True), ("svg", False)])
def test_letters_that_the_font_lacks_are_told(two_routers, tmp_path, capsys, suffix, is_told):
    out, title = tmp_path / f"x.{suffix}", "\u6a21\u578b: \u6a21 of caf\u00e9"
    assert plot.main(["sweep", two_routers, "--title", title, "--out", str(out)]) == 0
    said = capsys.readouterr().err
    assert said == (f"warning: {out}: boxes stand for letters that the font of charts lacks: \u6a21 \u578b; "
                    "an .svg holds them as text\n" if is_told else "")
    assert suffix != "svg" or title in out.read_text(encoding="utf-8")


def test_a_chart_is_written_whole_or_not_at_all(two_routers, tmp_path, capsys):
    assert plot.main(["sweep", two_routers, "--out", str(tmp_path / "no" / "x.png")]) == 1
    assert "cannot write" in capsys.readouterr().err
    (tmp_path / "d.png").mkdir()
    assert plot.main(["sweep", two_routers, "--out", str(tmp_path / "d.png")]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.png", "s.csv"]


def test_of_a_link_the_chart_that_it_leads_to_is_written(two_routers, tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "a.png").symlink_to("far/chart.png")
    assert plot.main(["sweep", str(two_routers), "--out", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").is_symlink()
    assert [entry.name for entry in (tmp_path / "far").iterdir()] == ["chart.png"]
    assert (tmp_path / "far" / "chart.png").read_bytes().startswith(b"\x89PNG")
    # The name that was asked for says of which kind it is.
    (tmp_path / "b.svg").symlink_to("far/4a7d1ed4")
    assert plot.main(["sweep", str(two_routers), "--out", str(tmp_path / "b.svg")]) == 0
    assert "<svg" in (tmp_path / "far" / "4a7d1ed4").read_text(encoding="utf-8")


def test_losses_are_drawn_per_router_and_skew(tmp_path):
    path = tmp_path / "skews.csv"
    lines = []
    for routing, factor, failed, loss, padded in (
            ("gaussian:0.1", 1, 0.3, 0.2, 0.1), ("gaussian:0.1", 2, 0.1, 0.05, 0.4),
            ("zipf:1", 1, 0.5, 0.45, 0.3), ("zipf:1", 2, 0.4, 0.3, 0.5)):
        cells = row("top2", factor, 100, failed, loss).strip()
        lines.append(f"{cells},{padded},{routing}\n")
    path.write_text(HEADER.strip() + ",padded,routing\n" + "".join(lines))
    figure = loss_chart.draw(str(path), "")
    drawn = [[list(line.get_ydata()) for line in axes.get_lines()] for axes in figure.axes]
    assert drawn == [[[30, 10], [50, 40]], [[20, 5], [45, 30]], [[10, 40], [30, 50]]]
    # One router: it is in the title, and the lines are told apart by what varies.
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "routing gaussian:0.1", "routing zipf:1"]
    assert figure.texts[0].get_text() == "top2: loss and padding by capacity factor"


def routing_result(replicas):
    spread = {"mean": 2, "p05": 1.5, "median": 2, "p95": 2.5, "max": 3}
    return {
        "router": "top2+ir", "experts": 2, "gpus": 4, "expert_parallel": 2, "routing": "zipf:1",
        "tokens_per_gpu": 1000, "replicas": replicas, "capacity_factor": 2,
        "capacity_convention": "paper", "detail": {
            "most_uneven_layer": 1,
            "layers": [{"failed": 0.1, "residual_loss": 0.05, "padded": 0.1,
                        "expert_demand_busiest_over_mean": 1.2, "gpu_rows_busiest_over_mean": 1.1,
                        "expert_demand_share": [0.6, 0.4]},
                       {"failed": 0.2, "residual_loss": 0.07, "padded": 0.2,
                        "expert_demand_busiest_over_mean": 1.8, "gpu_rows_busiest_over_mean": 1.3,
                        "expert_demand_share": [0.1, 0.9]}],
            "replicas": [{"failed": 0.15, "residual_loss": 0.06, "padded": 0.15,
                          "expert_demand_busiest_over_mean": spread,
                          "gpu_rows_busiest_over_mean": spread,
                          "expert_demand_share": [0.25, 0.75]}] * replicas}}


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_routing_is_drawn_by_layer_and_over_time(tmp_path, replicas):
    path = tmp_path / "route.json"
    path.write_text(json.dumps(routing_result(replicas)))
    figure = routing_chart.draw(str(path), "")
    heats = [axes.get_images()[0].get_array() for axes in figure.axes if axes.get_images()]
    # A share of 0.6 of two experts is 1.2 times the mean expert's.
    assert heats[0].tolist() == [[1.2, 0.2], [0.8, 1.8]]
    assert len(heats) == (2 if replicas > 1 else 1)
    if replicas > 1:  # of one replica there is no time to show
        assert heats[1].tolist() == [[0.5] * 3, [1.5] * 3]


def test_the_legends_of_a_routing_lie_on_no_line(tmp_path):
    path = tmp_path / "route.json"
    path.write_text(json.dumps(routing_result(3)))
    figure = routing_chart.draw(str(path), "")
    figure.canvas.draw()
    panels = [axes for axes in figure.axes if axes.get_legend()]
    assert len(panels) == 4
    for axes in panels:
        legend = axes.get_legend().get_window_extent()
        assert legend.y0 >= axes.bbox.y1  # above, and left of its neighbour
        assert legend.x1 <= min(axes.bbox.x1 + 0.2 * figure.dpi, figure.bbox.x1)
        others = [other for other in figure.axes if other is not axes]
        assert not any(legend.overlaps(other.get_tightbbox()) for other in others)
        assert not any(legend.overlaps(text.get_window_extent()) for text in figure.texts)


@pytest.mark.parametrize(("routing", "name"), [
    ("zipf:1", "replica"), ("trace:t.json", "replica: the trace's steps in turn"),
    ("trace-repeat:t.json", "replica: the trace's steps in turn")])
def test_replicas_are_not_called_steps(tmp_path, routing, name):
    """Replica r of a trace is step r modulo their number."""
    path = tmp_path / "route.json"
    path.write_text(json.dumps({**routing_result(3), "routing": routing}))
    names = [axes.get_xlabel() for axes in routing_chart.draw(str(path), "").axes if axes.get_xlabel()]
    assert names == ["MoE layer"] * 3 + [name] * 3


def test_a_routing_without_shares_is_refused(tmp_path):
    result = routing_result(1)
    result["detail"]["layers"][0]["expert_demand_share"] = [1]
    path = tmp_path / "route.json"
    path.write_text(json.dumps(result))
    with pytest.raises(chart_data.BadInput, match="shares of experts"):
        routing_chart.draw(str(path), "")


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


def test_more_lines_than_can_be_told_apart_are_refused(tmp_path):
    path = sweep_file(tmp_path, [row(f"top{k}", 1, 100, 0, 0) for k in range(1, 32)])
    with pytest.raises(chart_data.BadInput, match="31 lines.*30.*--where 'router=top1'"):
        sweep_series.read_sweep(path)


def trained(folder, convention):
    """Two rows as moesim train writes them: one band for all."""
    path = folder / f"{convention}.csv"
    header = HEADER.strip() + ",capacity_convention,band_level,step_ms_low,step_ms_likely,step_ms_high\n"
    rows = [f"ok,top2,train,32,h100,m,{factor},{step},,,{1e6 / step},0.1,0.1,{convention},0.8,{step / 1.5},{step / 0.8},{step / 0.5}\n"
            for factor, step in ((1, 100), (2, 200))]
    path.write_text(header + "".join(rows))
    return str(path)


@pytest.mark.parametrize("convention,balanced", [("paper", "k"), ("library", "1")])
def test_the_axis_says_what_a_capacity_factor_is_a_multiple_of(tmp_path, convention, balanced):
    path = trained(tmp_path, convention)
    figure = sweep_chart.draw(path, None, None)
    assert figure.axes[1].get_xlabel() == f"capacity factor ({balanced}: balanced load)"
    assert loss_chart.draw(path, None).axes[0].get_xlabel() == figure.axes[1].get_xlabel()
    # The band of train is of all rows together: said, not drawn.
    assert ("Measured speeds: likely 0.8 times these (80 %: 0.5 to 1.5)"
            in figure.texts[1].get_text().replace("\n", " "))
