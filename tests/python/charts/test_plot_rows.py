"""Charts of any columns of sweeps: axes, facets, lines."""

import re
from pathlib import Path

import pytest
from command_line import expect_error, moesim, needs_binary
from plot_rows import HEADER, options, row, sweep  # noqa: F401 (options: a fixture)
from plotter import draw, drawn, names_in_legend, SIZE, subtitle

import axes_chart
import breakdown_chart
import page
import pareto_chart
import plot
import report_page
import rows
import scaling_chart
from chart_data import BadInput


def test_twelve_lines_are_distinguished_without_colour(twelve):
    figure = draw(rows.read([twelve]))
    lines = drawn(figure.axes[0])
    assert len(lines) == 12
    assert len({(line.get_marker(), line.get_linestyle()) for line in lines}) == 12
    assert [list(line.get_xdata()) for line in lines] == [[8, 16, 64]] * 12
    assert figure.axes[0].get_xscale() == "log"  # what doubles is spread evenly


@pytest.mark.parametrize(("width", "font"), [("", ""), ("3.3in", "7"), ("84mm", "8"), ("16in", "14")])
def test_everything_lies_inside_the_page_of_the_asked_width(twelve, width, font):
    size = page.size_of(width, font)
    figure = draw(rows.read([twelve]), size=size)
    figure.canvas.draw()
    box = figure.bbox
    assert figure.get_size_inches()[0] == pytest.approx(size.width)
    legend = figure.legends[0].get_window_extent()
    assert legend.x0 >= 0 and legend.x1 <= box.x1 and legend.y0 >= 0
    whole = figure.axes[0].get_tightbbox(figure.canvas.get_renderer())
    assert whole.x0 >= -1 and whole.x1 <= box.x1 + 1 and not whole.overlaps(legend)
    for text in figure.texts:
        extent = text.get_window_extent()
        assert extent.x1 <= box.x1 and extent.y1 <= box.y1 + 1 and not extent.overlaps(legend)
        assert extent.y0 >= whole.y1 - 1
    assert figure.axes[0].get_window_extent().height > 0.8 * figure.dpi


def test_lengths_and_sizes_of_text():
    assert page.size_of("84mm", "8").width == pytest.approx(84 / 25.4) and page.size_of("", "8").font == 8
    assert page.size_of("3.5", "").width == 3.5
    for width, font in (("wide", ""), ("0.2in", ""), ("99in", ""), ("3 in 2", ""), ("", "big"), ("", "0")):
        with pytest.raises(BadInput, match="--width|--font-size"):
            page.size_of(width, font)


def test_figures_and_facets_have_panels(tmp_path):
    path = sweep(tmp_path / "s.csv", [row(router, gpus, factor, step=100 * factor)
                                      for router in ("top1", "top2") for gpus in (8, 16) for factor in (1, 2)])
    figure = draw(rows.read([path]), y="tokens_per_s_per_gpu,mfu", facet="capacity_factor")
    assert len(figure.axes) == 4
    assert [line.get_ydata()[0] for line in drawn(figure.axes[0])] == [1e4, 1e4]
    assert [line.get_ydata()[0] for line in drawn(figure.axes[1])] == [5e3, 5e3]
    assert drawn(figure.axes[2])[0].get_ydata()[0] == 40  # a share, in per cent
    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == ["capacity factor 1", "capacity factor 2"]


def test_facets_share_limits_that_hold_all_of_them(tmp_path):
    """The first panel is lowest; all have the limits of all."""
    path = sweep(tmp_path / "s.csv", [row(router, gpus, step=300 - 100 * number) for number, router in
                                      enumerate(("top1", "top2", "base")) for gpus in (8, 16)])
    for axes in draw(rows.read([path]), facet="router").axes:
        low, high = axes.get_ylim()
        assert all(low <= y <= high for line in drawn(axes) for y in line.get_ydata())


def test_facets_are_by_number_then_as_the_rows_have_them(tmp_path):
    path = sweep(tmp_path / "s.csv", [row(router, gpus) for router in ("top8", "top16", "base") for gpus in (64, 8, 128)])
    titles = [[axes.get_title(loc="left") for axes in draw(rows.read([path]), x=x, facet=facet).axes]
              for x, facet in (("gpus", "router"), ("router", "gpus"))]
    assert titles == [["router top8", "router top16", "router base"], ["GPUs 8", "GPUs 64", "GPUs 128"]]


@pytest.mark.parametrize("x, facet", [("gpus", "router"), ("router", "gpus"), ("gpus", "capacity_factor")])
@pytest.mark.parametrize("size", [SIZE, page.Size(84 / 25.4, 8)])
def test_labels_of_facets_do_not_overlap(tmp_path, x, facet, size):
    long_names = ("top1", "top2+a-router-of-a-long-name", "top2+another", "top2+one-more-router")
    path = sweep(tmp_path / "s.csv", [row(router, gpus, factor) for router in long_names for factor in (1, 2)
                                      for gpus in range(1000, 9000, 1000)])
    table = rows.read([path])
    table.choose("gpus<=4000" if facet == "gpus" else "")
    figure = draw(table, x=x, facet=facet, size=size)
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    above = min(text.get_window_extent(renderer).y0 for text in figure.texts)
    panels = [axes for axes in figure.axes if axes.get_visible()]
    boxes = []
    for axes in panels:
        low, high = axes.get_xlim()
        shown = [label.get_window_extent(renderer) for label, tick in zip(axes.get_xticklabels(), axes.get_xticks())
                 if label.get_text() and low <= tick <= high and label.get_rotation() in (0, 90)]
        assert not any(one.overlaps(other) for one, other in zip(shown, shown[1:]))
        boxes.append(axes.get_tightbbox(renderer))
        assert axes.yaxis.label.get_window_extent(renderer).y1 <= above
    assert not any(one.overlaps(other) for at, one in enumerate(boxes) for other in boxes[at + 1:])
    assert all(0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
    assert all(text.get_window_extent(renderer).x1 <= figure.bbox.x1 for text in figure.texts)


@pytest.mark.parametrize("facet", [None, "router"])
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_labels_and_subtitles_of_a_narrow_page_are_whole(tmp_path, monkeypatch, facet, kind):
    monkeypatch.setattr(axes_chart.rows, "factor_axis", lambda shared: "capacity factor (k: balanced load)")
    path = sweep(tmp_path / "s.csv", [row(router, factor=factor, step=100 * factor)
                                      for router in ("top1", "top2", "top2+ir", "top2+fr+ir") for factor in (1, 2, 3)])
    table = rows.read([path], where="router=top1|top2|top2+ir|top2+fr+ir,capacity_factor<=3,gpus=8|16|32|64|128|256")
    figure = draw(table, x="capacity_factor", facet=facet, size=page.Size(84 / 25.4, 8))
    figure.savefig(tmp_path / f"narrow.{kind}")
    renderer = figure.canvas.get_renderer()
    for text in figure.texts:
        assert 0 <= text.get_window_extent(renderer).x0 and text.get_window_extent(renderer).x1 <= figure.bbox.x1
    labels = [(axes.xaxis.label, axes) for axes in figure.axes if axes.get_visible() and axes.get_xlabel()]
    assert labels and all(" ".join(label.get_text().split()) == "capacity factor (k: balanced load)"
                          for label, _ in labels)
    for label, axes in labels:
        assert label.get_window_extent(renderer).width <= axes.get_window_extent().width + 1
    boxes = [axes.get_tightbbox(renderer) for axes in figure.axes if axes.get_visible()]
    assert not any(one.overlaps(other) for at, one in enumerate(boxes) for other in boxes[at + 1:])
    assert all(0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)


def test_rows_that_share_a_place_are_refused_by_name(tmp_path):
    path = sweep(tmp_path / "s.csv", [row(router, gpus) for router in ("top1", "top2") for gpus in (8, 16)])
    with pytest.raises(BadInput, match="differ in router: add it to --group or --facet, or choose with --where "
                                       "router="):
        draw(rows.read([path]), group=["capacity_factor"])


def test_a_usual_name_is_answered_with_the_column(tmp_path, capsys):
    path = sweep(tmp_path / "s.csv", [row("top1", factor=factor) for factor in (1, 2)])
    for name, column in (("speed", "tokens_per_s_per_gpu"), ("loss", "residual_loss"), ("time", "step_ms")):
        assert plot.main(["axes", path, "--x", "capacity_factor", "--y", name, "--out", str(tmp_path / "x.svg")]) == 2
        assert f"no column '{name}' in {path}; near to it are {column}" in capsys.readouterr().err


def test_conditions_choose_rows(tmp_path):
    path = sweep(tmp_path / "s.csv", [row(router, gpus, fits=gpus > 8) for router in ("top1", "top2", "dense")
                                      for gpus in (8, 16, 32)])
    def chosen(where, **how):
        return [(one["router"], int(one["gpus"])) for one in rows.read([path], where, **how).rows]
    assert chosen("router=top1|dense,gpus>=16") == [("top1", 16), ("top1", 32), ("dense", 16), ("dense", 32)]
    assert chosen("router!=top1,gpus<16") == [("top2", 8), ("dense", 8)]
    assert chosen("gpus=8.0,router=top2") == [("top2", 8)]
    assert chosen("router=top2", fits_only=True) == [("top2", 16), ("top2", 32)]
    for where, message in (("gpus", "not of the form"), ("nodes=1", "no column 'nodes'"),
                           ("router=top9", "leaves no row; there are dense, top1, top2"),
                           ("gpus>many", "'many' is not a number")):
        with pytest.raises(BadInput, match=re.escape(message)):
            chosen(where)


def test_what_does_not_fit_is_pale_in_every_kind(tmp_path):
    path = sweep(tmp_path / "s.csv", [row(router, gpus, fits=gpus > 8) for router in ("top1", "top2")
                                      for gpus in (8, 16)])
    table = lambda: rows.read([path])  # noqa: E731
    for figure in (draw(table()), scaling_chart.scaling(table(), None, SIZE, ""),
                   pareto_chart.pareto(table(), ["router"], SIZE, ""),
                   breakdown_chart.breakdown(table(), ["router", "gpus"], SIZE, "")):
        texts = " ".join(text.get_text() for text in figure.texts)
        assert "2 of 4 do not fit" in texts


@pytest.mark.parametrize(("chart", "column"), [("breakdown", "step_ms"), ("scaling", "tokens_per_s_per_gpu"),
                                               ("pareto", "tokens_per_s_per_gpu")])
def test_a_missing_figure_is_named_by_line(tmp_path, capsys, chart, column):
    cells = row(gpus=16).split(",")
    cells[HEADER.split(",").index(column)] = ""
    path = sweep(tmp_path / "s.csv", [row(), ",".join(cells)])
    assert plot.main([chart, path, "--out", str(tmp_path / "x.png")]) == plot.EXIT_USAGE
    assert f"line 3, column {column}: a number is missing" in capsys.readouterr().err


DROPPED = "FLOPs of dropped routes are counted, though no GPU computes them"


@pytest.mark.parametrize(("mfu", "failed", "said", "axis"), [
    (0.95, 0, "no GPU is measured above 100 %", "MFU, %"),
    (0.95, 0.2, f"{DROPPED}: so MFU can be above 100 % (--y mfu_kept leaves them out)", "MFU, % (dropped routes counted)"),
    (0.5, 0.2, f"{DROPPED} (--y mfu_kept leaves them out)", "MFU, % (dropped routes counted)"), (0.5, 0, "", "MFU, %")])
def test_an_mfu_with_dropped_routes_and_one_above_the_peak_are_explained(tmp_path, mfu, failed, said, axis):
    lines = [row(gpus=gpus).replace(",0.4,true", f",{mfu},true") for gpus in (8, 16)]
    table = rows.read([sweep(tmp_path / "s.csv", lines, failed=failed, mfu_kept=0.5 * mfu)])
    figure = draw(table, y="mfu")
    assert any(set(line.get_ydata()) == {100} for line in figure.axes[0].get_lines()) == (mfu > 0.9)
    under = subtitle(figure)
    assert said in under and ("above 100 %" in under) == (mfu > 0.9) and (DROPPED in under) == (failed > 0)
    assert figure.axes[0].get_ylabel() == axis
    kept = draw(table, y="mfu_kept")
    assert kept.axes[0].get_ylabel() == "MFU over kept routes, %" and "above 100 %" not in subtitle(kept)
    assert DROPPED not in subtitle(kept) and "leaves them out" not in subtitle(draw(table, y="mfu,mfu_kept"))


def test_what_a_run_is_assumed_to_be_and_places_in_a_list_are_no_figures(tmp_path):
    more = {"train_tokens": "1.5e13", "gpu_hour_price": "2.5", "rank": "1", "twins": "3", "counted_loss": "0.05", "run_cost": "9e6",
            "memory_limit_gib": "72"}
    path = sweep(tmp_path / "s.csv", [row(gpus=gpus) for gpus in (8, 16)], **more)
    data = report_page.data_of(rows.read([path]), "gpus", "step_ms", None)
    assert {"counted_loss", "run_cost", "residual_loss"} == {name for name in data["figures"] if name in (*more, "residual_loss")}
    assert data["scale"]["counted_loss"] == 100
    assert data["names"]["counted_loss"] == "token loss, %"
    assert data["names"]["residual_loss"] == "weight of a token's k best experts without their output, %"


def test_figures_of_training_have_the_units_that_the_program_says(tmp_path):
    table = rows.read([sweep(tmp_path / "s.csv", [row()])])
    names = ("bubble_share", "overflow_chance", "offloaded_gib", "rerun_step_ms", "imbalance", "market_share")
    assert [rows.axis_name(table, name) for name in names] == [
        "bubble, %", "overflow chance, %", "offloaded, GiB", "rerun step, ms", "imbalance", "market share"]
    assert [rows.scale_of(table, name) for name in names] == [100, 100, 1, 1, 1, 1]


def test_quantiles_have_the_name_and_unit_of_their_figure(tmp_path):
    table = rows.read([sweep(tmp_path / "s.csv", [row()])])
    assert [rows.axis_name(table, f"step_ms{end}") for end in ("", "_p05", "_p50", "_same_p05", "_same_p95")] == [
        "step time, ms", "step time, ms: p05", "step time, ms: p50",
        "step time, ms: p05, software and machine the same", "step time, ms: p95, software and machine the same"]


def test_days_and_cost_of_a_run_say_its_tokens_and_the_price(tmp_path, monkeypatch):
    path = sweep(tmp_path / "s.csv", [row(gpus=gpus) for gpus in (8, 16)], train_tokens=1.5e13, gpu_hour_price=2.5,
                 run_days=30, run_cost=[9000008, 9000016])
    for y, said, unsaid in (("run_cost", ["a run of 15T tokens", "2.5 per GPU hour"], []),
                            ("run_days", ["a run of 15T tokens"], ["per GPU hour"]), ("step_ms", [], ["15T", "per GPU hour"])):
        figure = draw(rows.read([path]), y=y)
        text = subtitle(figure)
        assert all(words in text for words in said) and not any(words in text for words in unsaid), y
    monkeypatch.setattr(report_page, "plotly_source", lambda: "")
    assert "a run of 15T tokens, 2.5 per GPU hour" in report_page.text(rows.read([path]), "gpus", "step_ms", None, "")


def test_lines_to_which_no_grouped_option_applies_say_so(tmp_path):
    path = sweep(tmp_path / "s.csv", [row("top1", gpus, factor, step=100 * factor) for gpus in (8, 16) for factor in (1, 2)]
                 + [row("dropless", gpus, "", step=150) for gpus in (8, 16)])
    figure = draw(rows.read([path]), facet="router")
    names = names_in_legend(figure)
    assert names[:3] == ["capacity factor 1", "capacity factor 2", "no capacity factor"]


def test_lines_below_others_say_so(tmp_path):
    # Steps of top1 and top2 differ by 0.1 %, those of base by 10 %, and all lose the same.
    path = sweep(tmp_path / "s.csv", [row(router, gpus, step=step + gpus) for router, step in
                                      (("top1", 100), ("top2", 100.1), ("base", 110)) for gpus in (8, 16)])

    def legend(figure):
        return [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()][:3]
    assert legend(draw(rows.read([path]), y="step_ms")) == ["top1 (step time: as top2)", "top2", "base"]
    assert legend(draw(rows.read([path]), y="step_ms,residual_loss")) == [
        "top1 (step time: as top2; token loss: as base)", "top2 (token loss: as base)", "base"]
    assert legend(draw(rows.read([path]), x="capacity_factor", y="residual_loss", facet="gpus")) == [
        "top1 (token loss: as base)", "top2 (token loss: as base)", "base"]
    assert legend(scaling_chart.scaling(rows.read([path]), None, SIZE, "")) == ["top1 (speed: as top2)", "top2", "base"]


def test_lines_that_are_seen_in_a_panel_or_on_a_short_axis_are_not_said_to_be_below_others(tmp_path):
    def legend(lines, **how):
        table = rows.read([sweep(tmp_path / "s.csv", [row(router, gpus, step=step) for router, gpus, step in lines])])
        return [text.get_text() for text in draw(table, y="step_ms", **how).legends[0].get_texts()][:2]
    lines = [("top1", 8, 100), ("top2", 8, 100), ("top1", 16, 100), ("top2", 16, 120)]
    assert legend(lines, x="capacity_factor", facet="gpus") == legend(lines) == ["top1", "top2"]
    lines = [(router, gpus, step) for router, step in (("top1", 100), ("top2", 100.1)) for gpus in (8, 16)]
    assert legend(lines) == ["top1 (step time: as top2)", "top2"]
    (tmp_path / "s.csv").write_text((tmp_path / "s.csv").read_text().replace("step_ms_p05,step_ms_p95", "a,b"))
    figure = draw(rows.read([str(tmp_path / "s.csv")]), y="step_ms")  # without bands the axis has 0.1 ms
    assert names_in_legend(figure) == ["top1", "top2"]


def test_names_on_the_axis_are_points_not_lines(tmp_path):
    path = sweep(tmp_path / "s.csv", [row(router) for router in ("top1", "top2", "a-router-of-a-long-name")])
    figure = draw(rows.read([path]), x="router")
    assert all(line.get_linestyle() == "None" for line in figure.axes[0].get_lines() if line.get_marker() == "o")
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == [
        "top1", "top2", "a-router-of-a-long-name"]


@pytest.mark.parametrize("kind", ["axes", "sweep"])
def test_text_stays_text_in_files(tmp_path, kind):
    path = sweep(tmp_path / "s.csv", [row("top1", factor=factor) for factor in (1, 2)])
    Path(path).write_text("\n".join(line + (",failed" if number == 0 else ",0.1") for number, line in
                                    enumerate(Path(path).read_text().splitlines())) + "\n")
    words = [kind, path, *(("--x", "capacity_factor") if kind == "axes" else ())]
    assert plot.main([*words, "--out", str(tmp_path / "x.svg")]) == 0
    assert "capacity factor</text>" in (tmp_path / "x.svg").read_text()
    assert plot.main([*words, "--out", str(tmp_path / "x.pdf")]) == 0
    content = (tmp_path / "x.pdf").read_bytes()
    assert b"/Type3" not in content and (b"/FontFile2" in content or b"/CIDFontType2" in content)


@needs_binary
def test_the_command_draws_them(tmp_path, monkeypatch):
    monkeypatch.delenv("MOESIM_OPTIONS")
    small = ("--micro-batch", "1", "--sequence-length", "512", "--replicas", "3", "--mode", "prefill")
    for name, profile in (("a", "a100-sxm-80gb"), ("h", "h100-sxm")):
        result = moesim("sweep", *small, "--gpus", "8,16", "--router", "top1,top2", "--profile", profile, "--out",
                        tmp_path / f"{name}.csv")
        assert result.returncode == 0, result.stderr
    for number, words in enumerate([
            ("a.csv", "--x", "gpus", "--y", "mfu,step_ms", "--width", "3.3in", "--font-size", "8"),
            ("a.csv", "h.csv", "--x", "gpus", "--group", "profile", "--where", "router=top1"),
            ("a.csv", "--chart", "breakdown"), ("a.csv", "--chart", "scaling"),
            ("a.csv", "--chart", "pareto", "--fits-only"), ("a.csv", "h.csv", "--chart", "compare", "--x", "gpus")]):
        out = tmp_path / f"{number}.png"
        result = moesim("plot", *words, "--out", out, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert out.read_bytes()[:4] == b"\x89PNG"
    for words, message in ((("--y", "mfu"), "give --x too"), (("--x", "nodes"), "no column 'nodes'"),
                           (("--chart", "pareto", "--x", "gpus"), "axes of --chart"),
                           (("--chart", "scalin"), "did you mean 'scaling'?"),
                           (("--width", "3in"), "goes with --x and --y"),
                           (("--x", "gpus", "--width", "wide"), "--width: 'wide'")):
        expect_error(moesim("plot", "a.csv", *words, "--out", "x.png", cwd=tmp_path), 2, message)
    expect_error(moesim("plot", "a100-sxm-80gb", "--x", "gpus", cwd=tmp_path), 2, "only of a sweep")
    expect_error(moesim("plot", "a100-sxm-80gb", "--out", "x.html", cwd=tmp_path), 2, "only a sweep")
    assert not (tmp_path / "x.png").exists()
