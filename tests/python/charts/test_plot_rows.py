"""Charts of any columns of sweeps, of their own kinds, and the interactive page."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import expect_error, moesim, needs_binary
from plot_options import document

PLOT = Path(__file__).resolve().parents[3] / "tools" / "plot"
sys.path.insert(0, str(PLOT))
matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
matplotlib.use("Agg")

import axes_chart  # noqa: E402
import kinds_chart  # noqa: E402
import loss_chart  # noqa: E402
import page  # noqa: E402
import pareto_chart  # noqa: E402
import plot  # noqa: E402
import report_page  # noqa: E402
import rows  # noqa: E402
import speed_bands  # noqa: E402
import sweep_chart  # noqa: E402
from chart_data import BadInput  # noqa: E402

SIZE = page.Size()
PARTS = ("attention_ms", "expert_ms", "other_ms")
HEADER = ("status,profile,cluster,router,gpus,capacity_factor,global_batch,step_ms,step_ms_p05,step_ms_p95,"
          "tokens_per_s_per_gpu,residual_loss,mfu,fits_memory,provenance," + ",".join(PARTS))


@pytest.fixture(autouse=True)
def options(tmp_path_factory, monkeypatch):
    described = document(options=("profile", "cluster", "router", "gpus", "capacity_factor", "global_batch",
                                  "tensor_parallel", "fidelity"))
    for option in described["options"]:
        if option["column"] in ("cluster", "global_batch"):
            option["default"] = "what others say"
        elif option["column"] == "fidelity":
            option["default"] = "auto"
    described["columns"] += [{"name": name, "role": "part", "unit": "ms"} for name in PARTS]
    described["columns"] += [{"name": "mfu", "role": "figure", "unit": "share"}]
    path = tmp_path_factory.mktemp("options") / "options.json"
    path.write_text(json.dumps(described))
    monkeypatch.setenv("MOESIM_OPTIONS", str(path))


def row(router="top2", gpus=8, factor=1, step=100.0, loss=0.1, fits=True, profile="p", status="ok"):
    cells = [status, profile, f"c-{profile}", router, gpus, factor, 4 * gpus, step, 0.9 * step, 1.25 * step,
             1e6 / step, loss, 0.4, "true" if fits else "false", "measured", 0.5 * step, 0.4 * step, 0.1 * step]
    return ",".join(map(str, cells))


def sweep(path, lines):
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return str(path)


@pytest.fixture
def twelve(tmp_path):
    """12 routers over 3 numbers of GPUs."""
    return sweep(tmp_path / "twelve.csv",
                 [row(f"top{k}", gpus, step=100 + 10 * k + gpus) for k in range(1, 13) for gpus in (8, 16, 64)])


def drawn(axes):
    return [line for line in axes.get_lines() if len(line.get_xdata()) > 1]


def draw(table, x="gpus", y="tokens_per_s_per_gpu", group=None, facet=None, size=SIZE):
    return axes_chart.draw(table, x, y.split(","), group, facet, size, "")


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


def test_what_follows_from_other_options_is_no_line(tmp_path):
    # A global batch follows from the GPUs on the axis, a cluster from its profile.
    path = sweep(tmp_path / "s.csv", [row(gpus=gpus, profile=profile) for gpus in (8, 16) for profile in "ab"])
    assert [line.label for line in rows.lines(rows.read([path]), "gpus", None)] == ["profile a", "profile b"]


def with_columns(path, lines, **columns):
    """A sweep whose rows have more columns, with a value for each row."""
    path.write_text("\n".join([",".join([HEADER, *columns]),
                               *(",".join(map(str, cells)) for cells in zip(lines, *columns.values()))]) + "\n")
    return str(path)


def test_a_fidelity_that_follows_from_the_gpus_is_one_line_and_said(tmp_path):
    # --fidelity auto draws tokens of few GPUs and counts of many.
    path = with_columns(tmp_path / "s.csv", [row(gpus=gpus, step=100 + gpus) for gpus in (16, 32, 64, 128)],
                        fidelity=["tokens", "tokens", "counts", "counts"])
    figure = kinds_chart.scaling(rows.read([path]), None, SIZE, "")
    share = figure.axes[1].get_lines()
    assert [list(line.get_xdata()) for line in share] == [[16, 32, 64, 128]] and share[0].get_ydata()[2] < 100
    said = "routing fidelity differs: tokens (GPUs 16, 32), counts (GPUs 64, 128)"
    assert said in " ".join(figure.texts[1].get_text().split())
    assert said in " ".join(draw(rows.read([path]), y="step_ms").texts[1].get_text().split())
    for chart in (kinds_chart.breakdown, pareto_chart.pareto):
        assert said in " ".join(chart(rows.read([path]), None, SIZE, "").texts[1].get_text().split())


def test_both_fidelities_of_one_scenario_are_two_lines(tmp_path):
    path = with_columns(tmp_path / "s.csv", [row(gpus=gpus, step=step) for gpus in (16, 32) for step in (100, 120)],
                        fidelity=["tokens", "counts"] * 2)
    figure = kinds_chart.scaling(rows.read([path]), None, SIZE, "")
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names[0].startswith("fidelity tokens") and names[1] == "fidelity counts"
    assert "fidelity" not in figure.texts[1].get_text()


@pytest.fixture
def layouts(tmp_path):
    """Tensor parallelism over 64 GPUs: the more of it, the smaller the global batch."""
    lines = [row(gpus=64, factor=factor, step=step).split(",") for step in (103, 101, 100) for factor in (1, 2)]
    for cells, batch in zip(lines, (256, 256, 128, 128, 64, 64)):
        cells[HEADER.split(",").index("global_batch")] = str(batch)
    return with_columns(tmp_path / "l.csv", [",".join(cells) for cells in lines], tensor_parallel=[1, 1, 2, 2, 4, 4])


def test_charts_of_different_batches_say_so(layouts):
    said = "global batch differs: 256 (tensor parallel 1), 128 (tensor parallel 2), 64 (tensor parallel 4)"
    for x in ("tensor_parallel", "capacity_factor"):
        for y, is_told in (("step_ms", True), ("attention_ms", True), ("tokens_per_s_per_gpu", False)):
            figure = draw(rows.read([layouts], "" if x == "capacity_factor" else "capacity_factor=1"), x=x, y=y)
            assert said in " ".join(figure.texts[1].get_text().split())
            assert ("(global batch differs)" in figure.axes[0].get_ylabel()) == is_told
    # Where every GPU has the same share of it, that share.
    path = Path(layouts).with_name("w.csv")
    figure = draw(rows.read([sweep(path, [row(gpus=gpus) for gpus in (8, 16)])]), y="step_ms")
    assert "global batch: 4 per GPU" in figure.texts[1].get_text().replace("\n", " ")
    assert figure.axes[0].get_ylabel() == "step time, ms"
    assert "global batch" not in draw(rows.read([str(path)])).texts[1].get_text()


def test_options_that_follow_from_those_of_the_labels_are_said_to_differ(tmp_path):
    """Chunks follow from the pipeline stages here: no label names them, as one option tells the lines apart. A layout that
    follows says no more than both."""
    described = json.loads(Path(os.environ["MOESIM_OPTIONS"]).read_text())
    described["training_options"] = [{"column": name, "default": default} for name, default in
                                     (("pipeline_parallel", "1"), ("virtual_pipeline", "auto"), ("pipeline_layout", "even parts"))]
    Path(os.environ["MOESIM_OPTIONS"]).write_text(json.dumps(described))
    lines = [row(gpus=gpus, step=step + gpus / factor, factor=factor) for step in (100, 120) for gpus in (64, 128) for factor in (1, 2)]
    path = with_columns(tmp_path / "l.csv", lines, failed=[0] * 8, pipeline_parallel=[2] * 4 + [4] * 4,
                        virtual_pipeline=[1] * 4 + [8] * 4, pipeline_layout=["a"] * 4 + ["b"] * 4)
    said = "also differ: virtual pipeline"
    read = lambda: rows.read([path], "gpus=64,capacity_factor=1")  # noqa: E731
    for figure in (draw(rows.read([path], "capacity_factor=1")), draw(read(), x="pipeline_parallel"),
                   kinds_chart.scaling(rows.read([path], "capacity_factor=1"), None, SIZE, ""),
                   kinds_chart.breakdown(read(), None, SIZE, ""), pareto_chart.pareto(read(), None, SIZE, ""),
                   sweep_chart.draw(path, None, "", where="gpus=64"), loss_chart.draw(path, "", where="gpus=64")):
        texts = " ".join(" ".join(text.get_text() for text in figure.texts).split())
        assert said in texts and "pipeline layout" not in texts
    assert "also differ: pipeline parallel" in draw(rows.read([path]), group=["virtual_pipeline"], x="gpus", facet="capacity_factor").texts[1].get_text()
    assert "differ" not in draw(rows.read([path], "pipeline_parallel=2,capacity_factor=1")).texts[1].get_text()


def test_bars_and_points_of_different_batches_name_them(layouts):
    def bars(where, group=None):
        figure = kinds_chart.breakdown(rows.read([layouts], where), group, SIZE, "")
        return [text.get_text() for text in figure.axes[0].get_yticklabels()], " ".join(figure.texts[1].get_text().split())
    names = [f"global batch {batch}, tensor parallel {size}" for batch, size in ((256, 1), (128, 2), (64, 4))]
    labels, under = bars("capacity_factor=1")
    assert labels == names and "global batch" not in under
    labels, under = bars("capacity_factor=1", ["tensor_parallel"])
    assert labels[0] == "tensor parallel 1" and "global batch differs: 256 (tensor parallel 1)" in under
    legend = pareto_chart.pareto(rows.read([layouts]), None, SIZE, "").legends[0]
    assert [text.get_text() for text in legend.get_texts()][:3] == names


def test_a_comparison_of_steps_names_their_batches(layouts):
    first, second = (Path(layouts).with_name(f"{size}.csv") for size in "12")
    head, *lines = Path(layouts).read_text().splitlines()
    first.write_text("\n".join([head, *lines[:2]]) + "\n")
    second.write_text("\n".join([head, *lines[2:4]]) + "\n")
    table = lambda: rows.read([str(first), str(second)])  # noqa: E731
    for y, title in (("step_ms", "step time: global batch 128, tensor parallel 2 over global batch 256, tensor parallel 1"),
                     ("tokens_per_s_per_gpu", "speed: tensor parallel 2 over tensor parallel 1")):
        figure = kinds_chart.compare(table(), "capacity_factor", y, None, SIZE, "")
        assert " ".join(figure.texts[0].get_text().split()) == title


def test_rows_that_share_a_place_are_refused_by_name(tmp_path):
    path = sweep(tmp_path / "s.csv", [row(router, gpus) for router in ("top1", "top2") for gpus in (8, 16)])
    with pytest.raises(BadInput, match="differ in router: add it to --group or --facet, or choose with --where "
                                       "router="):
        draw(rows.read([path]), group=["capacity_factor"])


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
    assert len({(handle.get_color(), handle.get_marker()) for handle in legend.legendHandles[:4]}) == 4


def test_more_groups_of_points_than_markers_are_refused(tmp_path):
    lines = [row("top2", gpus, step=100 / gpus, profile=profile) for profile in "pqrs" for gpus in range(1, 9)]
    table = rows.read([sweep(tmp_path / "s.csv", lines)])
    with pytest.raises(BadInput, match="32 groups of points, by profile, gpus, and more than 28 .* such as --group profile$"):
        pareto_chart.pareto(table, None, SIZE, "")
    with pytest.raises(BadInput, match="32 groups .* fewer columns with --group$"):
        pareto_chart.pareto(table, ["gpus", "profile"], SIZE, "")
    assert pareto_chart.pareto(table, ["profile"], SIZE, "").legends[0].get_texts()[0].get_text() == "profile p"
    # Of layouts that moesim recommend found, which differ in everything, the fronts are named.
    found = tmp_path / "found.csv"
    found.write_text("\n".join([HEADER + ",scaling_pays", *(f"{line},true" for line in lines)]))
    assert pareto_chart.pareto(rows.read([str(found)]), None, SIZE, "").legends[0].get_texts()[0].get_text() == "profile p, top2"


def test_a_front_of_one_point_is_no_line_of_the_legend(tmp_path):
    def legend(losses):
        path = sweep(tmp_path / "s.csv", [row("top1", factor=factor, step=100 * factor, loss=loss)
                                          for factor, loss in zip((1, 2), losses)])
        figure = pareto_chart.pareto(rows.read([path]), None, SIZE, "")
        return [text.get_text() for text in figure.legends[0].get_texts()]
    assert "Pareto front" in legend((0.2, 0.1))
    assert "Pareto front" not in legend((0.1, 0.2))


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
    for figure in (draw(table()), kinds_chart.scaling(table(), None, SIZE, ""),
                   pareto_chart.pareto(table(), ["router"], SIZE, ""),
                   kinds_chart.breakdown(table(), ["router", "gpus"], SIZE, "")):
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


def test_bars_add_up_to_the_step(tmp_path):
    path = sweep(tmp_path / "s.csv", [row("top1", step=100), row("top2", step=30000)])
    figure = kinds_chart.breakdown(rows.read([path]), None, SIZE, "")
    (axes,) = figure.axes
    ends = {}
    for bar in axes.patches:
        ends[bar.get_y()] = max(ends.get(bar.get_y(), 0), bar.get_x() + bar.get_width())
    assert sorted(ends.values()) == pytest.approx([0.1, 30])  # seconds, as the longest has many
    assert "s" in axes.get_xlabel() and [text.get_text() for text in axes.get_yticklabels()] == ["top1", "top2"]


def test_long_labels_leave_bars_most_of_the_width(tmp_path):
    path = sweep(tmp_path / "s.csv", [row(router, gpus, profile="a-profile-of-a-long-name", fits=gpus < 16)
                                      for router in ("top1", "top2+fr+ir") for gpus in (8, 16)])
    told = ["router", "profile", "cluster", "gpus", "capacity_factor", "global_batch"]
    for width in (9.0, 5.0):
        figure = kinds_chart.breakdown(rows.read([path]), told, page.Size(width, 8.0), "")
        figure.canvas.draw()
        (axes,) = figure.axes
        assert axes.get_position().width > 0.5
        labels = axes.get_yticklabels()
        assert " ".join(labels[1].get_text().split()) == (
            "top1, profile a-profile-of-a-long-name, cluster c-a-profile-of-a-long-name, GPUs 16, capacity factor 1, "
            "global batch 64 (does not fit)")
        boxes = [text.get_window_extent() for text in labels]
        assert all(upper.y0 >= lower.y1 for upper, lower in zip(boxes, boxes[1:]))
        assert all(figure.bbox.x0 <= box.x0 for box in boxes)


def test_bars_say_of_which_replica_they_are(tmp_path):
    path = tmp_path / "s.csv"
    for replicas, said in ((16, True), (1, False)):
        path.write_text("\n".join([HEADER + ",replicas", *(f"{row(gpus=gpus)},{replicas}" for gpus in (8, 16))]) + "\n")
        figure = kinds_chart.breakdown(rows.read([str(path)]), None, SIZE, "")
        assert any("replica with the median step" in text.get_text().replace("\n", " ") for text in figure.texts) == said


@pytest.mark.parametrize(("differing", "slowdown", "said"), [
    ("factor", "1:1", "median step: attention, which no option here changes, differs by 10 ms by chance, and others may"),
    ("gpus", "1:1", "small differences are chance"), ("factor", "1.1:1", "small differences are chance")])
def test_bars_say_how_much_a_part_differs_by_chance(tmp_path, differing, slowdown, said):
    path = tmp_path / "s.csv"
    path.write_text("\n".join([HEADER + ",replicas,overlap_slowdown",
                               *(f"{row(**{differing: value}, step=step)},16,{slowdown}" for value, step in ((1, 100), (2, 120)))]))
    figure = kinds_chart.breakdown(rows.read([str(path)]), None, SIZE, "")
    assert said in " ".join(figure.texts[1].get_text().split())


@pytest.mark.parametrize(("mfu", "failed", "said"), [
    (0.95, 0, "no GPU is measured above 100 %"), (0.95, 0.2, "MFU is above 100 % only as dropped FLOPs count"), (0.5, 0, "")])
def test_an_mfu_above_the_peak_is_explained(tmp_path, mfu, failed, said):
    path = tmp_path / "s.csv"
    lines = [row(gpus=gpus).replace(",0.4,true", f",{mfu},true") for gpus in (8, 16)]
    path.write_text("\n".join([HEADER + ",failed", *(f"{line},{failed}" for line in lines)]))
    figure = draw(rows.read([str(path)]), x="gpus", y="mfu")
    assert any(set(line.get_ydata()) == {100} for line in figure.axes[0].get_lines()) == bool(said)
    under = " ".join(figure.texts[1].get_text().split())
    assert said in under and ("above 100 %" in under) == bool(said)


def test_scaling_is_relative_to_the_fewest_gpus(tmp_path):
    path = sweep(tmp_path / "s.csv", [row(gpus=8, step=100), row(gpus=32, step=125)])
    total, share = kinds_chart.scaling(rows.read([path]), None, SIZE, "").axes
    assert [list(line.get_ydata()) for line in drawn(total)] == [[80000, 256000], [80000, 320000]]
    assert list(drawn(share)[0].get_ydata()) == [100, 80]
    assert any(text.get_text().replace("\n", " ").startswith(speed_bands.ALONE) for text in total.figure.legends[0].get_texts())
    assert share.get_ylabel().replace("\n", " ") == "speed of one GPU, % of that with 8 GPUs"
    # Bands of each row alone lack the scatter between configurations: none of their ratio.
    assert total.collections and not share.collections
    assert "a band of the speed of one GPU takes sweep --baseline gpus=8" in " ".join(total.figure.texts[1].get_text().split())


@pytest.mark.parametrize(("baseline", "has_band"), [(8, True), (32, False)])
def test_the_speed_of_one_gpu_has_the_band_of_a_baseline(tmp_path, baseline, has_band):
    compared = {8: (1, 1, 1), 32: (0.8, 0.6, 1.1)} if baseline == 8 else {8: (1.25, 0.9, 1.6), 32: (1, 1, 1)}
    path = tmp_path / "s.csv"
    path.write_text("\n".join([HEADER + ",speed_over_baseline,speed_over_baseline_p05,speed_over_baseline_p95",
                               *(",".join([row(gpus=gpus, step=step), *map(str, compared[gpus])]) for gpus, step in ((8, 100), (32, 125)))]))
    figure = kinds_chart.scaling(rows.read([str(path)]), None, SIZE, "")
    share, under = figure.axes[1], " ".join(figure.texts[1].get_text().split())
    ends = {(float(x), round(float(y), 3)) for band in share.collections for path in band.get_paths() for x, y in path.vertices}
    assert ends == ({(8, 100), (32, 60), (32, 110)} if has_band else set())
    assert ("sweep --baseline gpus=8" in under) != has_band
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert f"p05 to p95 of the speed over that of top2, GPUs {baseline}, the baseline: compare with it alone" in map(
        lambda text: " ".join(text.split()), legend)


def test_scaling_is_relative_to_the_fewest_gpus_on_which_the_step_fits(tmp_path):
    path = sweep(tmp_path / "s.csv", [row(gpus=1, step=500, fits=False), row(gpus=8, step=50, fits=False), row(gpus=16, step=100),
                                      row(gpus=32, step=125), row("top1", 1, step=200), row("top1", 16, step=250)])
    table = lambda where: rows.read([path], where)  # noqa: E731
    def texts(figure):
        total, share = figure.axes
        legend = [text.get_text() for text in figure.legends[0].get_texts()]
        return share.get_ylabel().replace("\n", " "), next(text for text in legend if text.startswith("linear"))
    figure = kinds_chart.scaling(table("router=top2"), None, SIZE, "")
    total, share = figure.axes
    assert list(drawn(share)[0].get_ydata()) == [20, 200, 100, 80]  # those that do not fit too: pale
    linear = [line for line in drawn(total) if line.get_linestyle() == ":"]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in linear] == [([16, 32], [160000, 320000])]
    assert texts(figure) == ("speed of one GPU, % of that with 16 GPUs", "linear scaling from the fewest GPUs on which it fits")
    assert "takes sweep --baseline gpus=16" in " ".join(figure.texts[1].get_text().split())
    assert texts(kinds_chart.scaling(table("router=top1"), None, SIZE, "")) == (
        "speed of one GPU, % of that with 1 GPU", "linear scaling from the fewest GPUs")
    # Lines that start on other numbers: the fewest on which all fit.
    figure = kinds_chart.scaling(table(""), None, SIZE, "")
    assert texts(figure) == ("speed of one GPU, % of that with 16 GPUs, the fewest on which all lines fit", "linear scaling from 16 GPUs")
    assert [list(line.get_ydata()) for line in drawn(figure.axes[1])[:3:2]] == [[20, 200, 100, 80], [125, 100]]
    # Where there are none, each its own.
    assert texts(kinds_chart.scaling(table("step_ms!=250"), None, SIZE, ""))[0] == (
        "speed of one GPU, % of that with the fewest GPUs on which it fits")
    # Where it fits nowhere, the fewest.
    figure = kinds_chart.scaling(table("router=top2,gpus<16"), None, SIZE, "")
    assert list(drawn(figure.axes[1])[0].get_ydata()) == [100, 1000] and texts(figure)[0].endswith("with 1 GPU")


@pytest.mark.parametrize("count", [1, 3, 12])
def test_bands_of_many_lines_of_a_scaling_leave_them_in_sight(tmp_path, count):
    path = sweep(tmp_path / "s.csv", [row(f"top{k}", gpus, step=100 + k) for k in range(1, count + 1) for gpus in (8, 16)])
    total = kinds_chart.scaling(rows.read([path]), None, SIZE, "").axes[0]
    through = math.prod(1 - band.get_alpha() for band in total.collections)
    assert len(total.collections) == count and through > 0.6


def test_charts_of_an_interrupted_sweep_say_so(tmp_path):
    path = sweep(tmp_path / "s.csv", [row(gpus=8, step=100), row(gpus=32, step=125)])
    def told():
        return " ".join(text.get_text() for text in kinds_chart.scaling(rows.read([path]), None, SIZE, "").texts).replace("\n", " ")
    assert "partial" not in told()
    (tmp_path / "s.csv.partial").write_text("moesim sweep journal")
    assert "s.csv is partial: its sweep was interrupted, --resume continues it" in told()
    (tmp_path / "s.csv.partial").unlink()
    lines = Path(path).read_text().splitlines()
    Path(path).write_text("\n".join([lines[0] + ",grid_row", *(f"{line},{at}/96:00f3" for at, line in enumerate(lines[1:]))]) + "\n")
    assert "s.csv is partial: 2 of 96 scenarios" in told()
    path = sweep(tmp_path / "s.csv", [row(gpus=8)])
    with pytest.raises(BadInput, match="several numbers of GPUs"):
        kinds_chart.scaling(rows.read([path]), None, SIZE, "")


@pytest.mark.parametrize("gpus, logarithmic", [((16, 64), True), ((16, 32, 64), True), ((8, 16, 24, 32), True),
                                               ((8, 4096), True), (range(8, 136, 8), True), ((16, 24, 32), False)])
def test_both_axes_of_a_scaling_are_logarithmic_or_both_linear(tmp_path, gpus, logarithmic):
    path = sweep(tmp_path / "s.csv", [row(gpus=number) for number in gpus])
    figure = kinds_chart.scaling(rows.read([path]), None, SIZE, "")
    total, share = figure.axes
    scales = ("log", "log", "log") if logarithmic else ("linear",) * 3
    assert (total.get_xscale(), total.get_yscale(), share.get_xscale()) == scales
    low, high = total.get_ylim()
    assert len([tick for tick in total.get_yticks() if low <= tick <= high]) >= 3
    figure.canvas.draw()
    labels = [label.get_window_extent() for label in total.get_xticklabels() if label.get_text()]
    assert len(labels) >= min(3, len(gpus))
    assert not any(one.overlaps(other) for one, other in zip(labels, labels[1:]))


def test_layouts_of_recommend_are_one_line_that_says_how_far_scaling_pays(tmp_path):
    lines = [row(gpus=8, step=100, router="top1"), row(gpus=16, step=110), row(gpus=32, step=200)]
    header = HEADER + ",scaling_pays"
    path = tmp_path / "s.csv"
    path.write_text("\n".join([header, *(f"{line},{pays}" for line, pays in zip(lines, ("true", "true", "false")))]))
    figure = kinds_chart.scaling(rows.read([str(path)]), None, SIZE, "")
    names = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert "the fastest layout on each number of GPUs" in names and "scaling pays up to 16 GPUs" in names
    assert list(drawn(figure.axes[1])[0].get_ydata()) == pytest.approx([100, 100 / 1.1, 50])


@pytest.mark.parametrize("pays, said", [("True", ["scaling pays up to 16 GPUs, the most searched"]), ("false", [])])
def test_scaling_that_pays_may_be_written_by_pandas_or_be_left_out(tmp_path, pays, said):
    path = tmp_path / "s.csv"
    path.write_text("\n".join([HEADER + ",scaling_pays", f"{row(gpus=8, step=100)},{pays}", f"{row(gpus=16, step=110)},{pays}"]))
    figure = kinds_chart.scaling(rows.read([str(path)]), None, SIZE, "")
    names = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert [name for name in names if "pays" in name] == said


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


def test_what_a_run_is_assumed_to_be_and_places_in_a_list_are_no_figures(tmp_path):
    more = {"train_tokens": "1.5e13", "gpu_hour_price": "2.5", "rank": "1", "twins": "3", "counted_loss": "0.05", "run_cost": "9e6",
            "memory_limit_gib": "72"}
    path = tmp_path / "s.csv"
    path.write_text("\n".join([",".join([HEADER, *more]), *(",".join([row(gpus=gpus), *more.values()]) for gpus in (8, 16))]))
    data = report_page.data_of(rows.read([str(path)]), "gpus", "step_ms", None)
    assert {"counted_loss", "run_cost", "residual_loss"} == {name for name in data["figures"] if name in (*more, "residual_loss")}
    assert data["scale"]["counted_loss"] == 100
    assert data["names"]["counted_loss"] == "token loss, %"
    assert data["names"]["residual_loss"] == "weight of a token's k best experts without their output, %"


def test_quantiles_have_the_name_and_unit_of_their_figure(tmp_path):
    table = rows.read([sweep(tmp_path / "s.csv", [row()])])
    assert [rows.axis_name(table, f"step_ms{end}") for end in ("", "_p05", "_p50", "_same_p05", "_same_p95")] == [
        "step time, ms", "step time, ms: p05", "step time, ms: p50",
        "step time, ms: p05, software and machine the same", "step time, ms: p95, software and machine the same"]


def test_days_and_cost_of_a_run_say_its_tokens_and_the_price(tmp_path, monkeypatch):
    path = tmp_path / "s.csv"
    path.write_text("\n".join([HEADER + ",train_tokens,gpu_hour_price,run_days,run_cost",
                               *(f"{row(gpus=gpus)},1.5e13,2.5,30,{9e6 + gpus}" for gpus in (8, 16))]))
    for y, said, unsaid in (("run_cost", ["a run of 15T tokens", "2.5 per GPU hour"], []),
                            ("run_days", ["a run of 15T tokens"], ["per GPU hour"]), ("step_ms", [], ["15T", "per GPU hour"])):
        figure = draw(rows.read([str(path)]), y=y)
        text = " ".join(figure.texts[1].get_text().split())
        assert all(words in text for words in said) and not any(words in text for words in unsaid), y
    monkeypatch.setattr(report_page, "plotly_source", lambda: "")
    assert "a run of 15T tokens, 2.5 per GPU hour" in report_page.text(rows.read([str(path)]), "gpus", "step_ms", None, "")


def test_lines_to_which_no_grouped_option_applies_say_so(tmp_path):
    path = sweep(tmp_path / "s.csv", [row("top1", gpus, factor, step=100 * factor) for gpus in (8, 16) for factor in (1, 2)]
                 + [row("dropless", gpus, "", step=150) for gpus in (8, 16)])
    figure = draw(rows.read([path]), facet="router")
    names = [text.get_text() for text in figure.legends[0].get_texts()]
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
    assert legend(kinds_chart.scaling(rows.read([path]), None, SIZE, "")) == ["top1 (speed: as top2)", "top2", "base"]


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
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["top1", "top2"]


def test_lines_that_scale_alike_or_have_one_ratio_say_so(tmp_path):
    def legend(figure):
        return [text.get_text() for text in figure.legends[0].get_texts()][:2]
    path = sweep(tmp_path / "s.csv", [row(router, gpus, step=step) for router, step in (("top1", 100), ("top2", 120))
                                      for gpus in (8, 16)])
    assert legend(kinds_chart.scaling(rows.read([path]), None, SIZE, "")) == ["top1 (speed of one GPU: as top2)", "top2"]
    first, second = (sweep(tmp_path / f"{name}.csv", [row(router, factor=factor, step=step * factor, profile=name)
                                                      for router in ("top1", "top2") for factor in (1, 2)])
                     for name, step in (("a", 100), ("b", 50)))
    figure = kinds_chart.compare(rows.read([first, second]), "capacity_factor", "step_ms", None, SIZE, "")
    assert legend(figure) == ["top1 (ratio: as top2)", "top2"]


def test_one_gpu_is_singular():
    assert sweep_chart.subtitle({"expert_parallel": "1"}, 0) == "expert parallel over 1 GPU"
    assert sweep_chart.subtitle({"expert_parallel": "8"}, 0) == "expert parallel over 8 GPUs"


def test_one_sweep_over_another(tmp_path):
    first = sweep(tmp_path / "a.csv", [row("top1", factor=factor, step=100, profile="a") for factor in (1, 2)])
    second = sweep(tmp_path / "b.csv", [row("top1", factor=factor, step=50 * factor, profile="b")
                                        for factor in (2, 1, 3)])
    figure = kinds_chart.compare(rows.read([first, second]), "capacity_factor", "tokens_per_s_per_gpu", None, SIZE, "")
    line = next(line for line in drawn(figure.axes[0]) if line.get_marker() == "o")
    assert list(line.get_xdata()) == [1, 2] and list(line.get_ydata()) == pytest.approx([2, 1])
    # Half widths of independent errors: ln 1.25 and ln 1/0.9 of either file, which has one band alone.
    low = min(figure.axes[0].collections[0].get_paths()[0].vertices[:, 1])
    assert low == pytest.approx(math.exp(-math.hypot(math.log(1.25), math.log(1 / 0.9))), rel=1e-6)
    assert "2 scenarios that both files have" in figure.texts[1].get_text()
    assert "profile b over profile a" in "".join(text.get_text() for text in figure.texts)
    with pytest.raises(BadInput, match="two sweeps"):
        kinds_chart.compare(rows.read([first]), "capacity_factor", "step_ms", None, SIZE, "")
    refused = sweep(tmp_path / "r.csv", [row("top1", status="refused")])
    with pytest.raises(BadInput, match="r.csv: no row is left to compare: all were refused"):
        kinds_chart.compare(rows.read([first, refused]), "capacity_factor", "step_ms", None, SIZE, "")


MEASURED = ",step_ms_p50,step_ms_same_p05,step_ms_same_p95"


def measured_sweep(path, step, profile, likely):
    """Steps that likely take `likely` times as long if measured, and 99 to 101 % beside others of one machine."""
    lines = [",".join([row("top1", factor=factor, step=step, profile=profile), f"{likely * step},{0.99 * step},{1.01 * step}"])
             for factor in (1, 2)]
    path.write_text("\n".join([HEADER + MEASURED, *lines]) + "\n")
    return str(path)


@pytest.mark.parametrize(("y", "ratio", "power"), [("tokens_per_s_per_gpu", 2, 1), ("step_ms", 0.5, -1)])
def test_the_errors_of_two_machines_do_not_cancel(tmp_path, y, ratio, power):
    first = measured_sweep(tmp_path / "a.csv", 100, "a", 1)
    def drawn_band(second):
        figure = kinds_chart.compare(rows.read([first, second]), "capacity_factor", y, None, SIZE, "")
        ends = figure.axes[0].collections[0].get_paths()[0].vertices[:, 1]
        return min(ends), max(ends), " ".join(figure.legends[0].get_texts()[-1].get_text().split())
    # Measured steps of 90 to 125 ms over 45 to 62.5, likely 100 over 55.
    low, high = math.hypot(math.log(1 / 0.9), math.log(1.25 / 1.1)), math.hypot(math.log(1.25), math.log(1.1 / 0.9))
    ends = sorted((100 / 55 * math.exp(end)) ** power for end in (-low, high))
    *band, words = drawn_band(measured_sweep(tmp_path / "b.csv", 50, "b", 1.1))
    assert band == pytest.approx(ends) and words == "p05 to p95 of the ratio as measured: different machines or software share no error"
    # On one machine these errors cancel, and what is left out is named.
    *band, words = drawn_band(measured_sweep(tmp_path / "c.csv", 50, "a", 1))
    wide = math.hypot(math.log(1.01), math.log(1 / 0.99))
    assert band == pytest.approx([ratio * math.exp(-wide), ratio * math.exp(wide)])
    assert words.startswith("p05 to p95 of the ratio on the same software and machine") and "without the scatter between" in words


@needs_binary
def test_a_comparison_of_two_machines_has_the_band_that_a_baseline_has(tmp_path, monkeypatch):
    monkeypatch.delenv("MOESIM_OPTIONS")
    def swept(name, *words):
        path = tmp_path / name
        done = moesim("sweep", "--router", "top1", "--capacity-factor", 1, "--mode", "prefill", *words, "--out", path)
        assert done.returncode == 0, done.stderr
        return str(path)
    profiles = ("a100-sxm-80gb", "h100-sxm")
    files = [swept(f"{name}.csv", "--profile", name) for name in profiles]
    both = rows.read([swept("both.csv", "--profile", ",".join(profiles), "--baseline", "profile=a100-sxm-80gb")]).rows[1]
    figure = kinds_chart.compare(rows.read(files), "capacity_factor", "tokens_per_s_per_gpu", None, SIZE, "")
    (_, low), (_, high) = figure.axes[0].collections[0].get_segments()[0]
    assert [low, high] == pytest.approx([float(both[f"speed_over_baseline_{end}"]) for end in ("p05", "p95")], rel=0.03)


def test_bands_of_training_steps_on_two_machines_are_those_of_measured_ones(tmp_path):
    def steps(name, step):
        path = tmp_path / f"{name}.csv"
        cells = f"top1,8,1,{name},{step},{1e6 / step},{0.9 * step},{step},{1.2 * step},0.8"
        path.write_text("status,router,gpus,capacity_factor,profile,step_ms,tokens_per_s_per_gpu,step_ms_low,step_ms_likely,"
                        f"step_ms_high,band_level\nok,{cells}\n")
        return str(path)
    figure = kinds_chart.compare(rows.read([steps("a", 100), steps("b", 50)]), "capacity_factor", "step_ms", None, SIZE, "")
    (_, low), (_, high) = figure.axes[0].collections[0].get_segments()[0]
    wide = math.hypot(math.log(1.2), math.log(1 / 0.9))
    assert [low, high] == pytest.approx([0.5 * math.exp(-wide), 0.5 * math.exp(wide)])
    assert " ".join(figure.legends[0].get_texts()[-1].get_text().split()).startswith("80 % band of the ratio as measured")


def test_files_without_capacity_factors_are_compared_over_what_differs(tmp_path):
    first = sweep(tmp_path / "a.csv", [row(gpus=gpus, factor="", profile="a") for gpus in (8, 16)])
    second = sweep(tmp_path / "b.csv", [row(gpus=gpus, factor="", profile="b") for gpus in (8, 16)])
    table = rows.read([first, second])
    assert rows.default_axis(table) == "gpus"
    figure = kinds_chart.compare(table, "gpus", "step_ms", None, SIZE, "")
    assert list(drawn(figure.axes[0])[0].get_xdata()) == [8, 16]
    assert list(figure.axes[0].get_xticks()) == [8, 16]
    assert "profile a" not in figure.texts[1].get_text()
    for chart in (lambda table: kinds_chart.compare(table, "capacity_factor", "step_ms", None, SIZE, ""),
                  lambda table: draw(table, x="capacity_factor")):
        with pytest.raises(BadInput, match="--x capacity_factor: no row has a value there; rows differ in.* gpus"):
            chart(rows.read([first, second]))
    assert rows.default_axis(rows.read([sweep(tmp_path / "c.csv", [row(factor=1)])])) == "capacity_factor"


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


def page_of(path, tmp_path):
    pytest.importorskip("plotly", reason="the Python package plotly is not installed")
    out = tmp_path / "report.html"
    assert plot.main(["report", path, "--out", str(out)]) == 0
    return out


def test_a_page_is_self_contained(twelve, tmp_path):
    text = page_of(twelve, tmp_path).read_text()
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", text)
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])
    assert len(data["rows"]) == 36 and data["x"] == "gpus" and data["group"] == ["router"]
    assert "measured" in text


def page_text(path, tmp_path, monkeypatch):
    """The page and its data, without the library."""
    monkeypatch.setattr(report_page, "plotly_source", lambda: "")
    out = tmp_path / "report.html"
    assert plot.main(["report", str(path), "--out", str(out)]) == 0
    return out.read_text(), data_of_page(out)


def data_of_page(path):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.S)[1])


def test_a_page_of_training_steps_has_their_figures_their_band_and_what_they_are_based_on(tmp_path, monkeypatch):
    header = ("status,reason,model,profile,cluster,gpus,recompute,step_ms,tokens_per_s_per_gpu,bubble_share,experts_ms,"
              "memory_gib,memory_gib_by_rank,fits_memory,band_level,step_ms_low,step_ms_likely,step_ms_high,band_basis,"
              "widest_term")
    path = tmp_path / "train.csv"
    path.write_text("\n".join([header, *(f"ok,,m,h100,hgx,{gpus},none,{step},1000,0.25,40,60,60;50,true,0.8,{step / 2},"
                                         f"{step * 1.1},{step * 2},nothing,the software is not named"
                                         for gpus, step in ((8, 100), (16, 110)))]) + "\n")
    described = json.loads(Path(os.environ["MOESIM_OPTIONS"]).read_text())
    described["training_options"] = [{"column": "recompute", "default": "none"}]
    (tmp_path / "options.json").write_text(json.dumps(described))
    monkeypatch.setenv("MOESIM_OPTIONS", str(tmp_path / "options.json"))
    text, data = page_text(path, tmp_path, monkeypatch)
    assert {"step_ms", "bubble_share", "experts_ms", "memory_gib", "step_ms_likely"} <= set(data["figures"])
    assert not {"gpus", "memory_gib_by_rank", "band_level", "recompute"} & set(data["figures"])
    assert data["band"] is None and data["ends"] == {"step_ms": ["step_ms_low", "step_ms_high"]}
    assert (data["names"]["bubble_share"], data["scale"]["bubble_share"]) == ("bubble, %", 100)
    assert data["names"]["step_ms_low"] == "step time, ms: low end if measured"
    assert "p05" not in text and "with 80 % chance" in text
    assert ("<li>curves of h100; links of hgx; band: steps with other software; wide most of all because: the software is "
            "not named <span class=n>(2 of 2 rows)</span></li>") in text


def test_a_page_marks_routers_of_another_k(tmp_path, monkeypatch):
    path = tmp_path / "s.csv"
    path.write_text("\n".join([HEADER + ",top_k", *(f"{row(router, gpus)},{k}" for gpus in (8, 16)
                                                    for router, k in (("base", 1), ("top2", 2), ("topk", 2)))]) + "\n")
    text, data = page_text(path, tmp_path, monkeypatch)
    assert {line[data["columns"].index("router")] for line in data["rows"]} == {"base (k = 1)", "top2", "topk"}
    assert "does not compare with that of the others" in text and "Error bars: p05 to p95." in text


@pytest.mark.slow
def test_a_page_draws_its_lines_in_a_browser(twelve, tmp_path):
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium is installed")
    out = page_of(twelve, tmp_path)
    dom = subprocess.run([chromium, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000",
                          f"--user-data-dir={tmp_path / 'user'}", "--dump-dom", out.as_uri()], capture_output=True,
                         text=True, timeout=120, check=False).stdout
    assert 'data-lines="12"' in dom
    assert len(re.findall(r'class="legendtext"', dom)) == 12
    assert len(re.findall(r"<tr", dom)) >= 37


# Runs the script of a page without a browser, and prints what it hands to Plotly.
DRAW = """
const nodes = {};
const element = () => ({appendChild() {}, addEventListener() {}, replaceChildren() {}, dataset: {}, selectedOptions: []});
const document = {body: element(), createElement: element, getElementById: id => nodes[id] ??= element()};
const Plotly = {react: (_, traces, layout) => console.log(JSON.stringify({traces, layout}))};
const data = JSON.parse(DATA);
Object.assign(document.getElementById('data'), {textContent: DATA});
for (const id of ['x', 'y']) document.getElementById(id).value = data[id];
document.getElementById('group').selectedOptions = data.group.map(value => ({value}));
"""


@pytest.mark.parametrize("x", ["gpus", "profile"])
def test_names_on_a_page_are_no_markup(tmp_path, monkeypatch, x):
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    names = ["<b>a</b> & <br>b", "c"]
    path = sweep(tmp_path / "s.csv", [row(gpus=gpus, profile=name, router=router) for name in names for gpus in (8, 16)
                                      for router in ("top1", "<i>")])
    monkeypatch.setattr(report_page, "plotly_source", lambda: "")
    assert plot.main(["report", path, "--x", x, "--group", "router" if x == "profile" else "profile,router",
                      *(["--where", "gpus=8"] if x == "profile" else []), "--out", str(tmp_path / "x.html")]) == 0
    data = json.dumps(data_of_page(tmp_path / "x.html"))
    drawn = subprocess.run(["node", "-e", f"const DATA = {json.dumps(data)};\n{DRAW}\n{report_page.SCRIPT}"],
                           capture_output=True, text=True, timeout=60, check=True).stdout
    traces = json.loads(drawn)["traces"]
    escaped = "&lt;b&gt;a&lt;/b&gt; &amp; &lt;br&gt;b"
    if x == "profile":
        assert [trace["name"] for trace in traces] == ["top1", "&lt;i&gt;"] and traces[0]["x"] == [escaped, "c"]
    else:
        assert traces[1]["name"] == f"profile {escaped}, &lt;i&gt;" and traces[0]["x"] == [8, 16]
        assert f"<br>profile {escaped}" in "<br>" + traces[0]["text"][0]


def test_a_page_without_plotly_says_what_to_install(twelve, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert plot.main(["report", twelve, "--out", str(tmp_path / "x.html")]) == plot.EXIT_MISSING == 3
    assert "pip install plotly" in capsys.readouterr().err and not (tmp_path / "x.html").exists()


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


def test_lines_are_compared_by_the_band_without_software_and_machine():
    cells = {"step_ms": "100", "step_ms_p05": "60", "step_ms_p95": "300", "step_ms_same_p05": "90",
             "step_ms_same_p95": "125", "_path": "s.csv", "_line": 2}
    assert rows.band_of(cells, "step_ms") == (90, 100, 125)
    assert rows.band_of({**cells, "tokens_per_s_per_gpu": "10"}, "tokens_per_s_per_gpu") == pytest.approx((8, 10, 100 / 9))
    # Files of older versions have one band alone.
    older = {**cells, "step_ms_same_p05": "", "step_ms_same_p95": ""}
    assert rows.band_of(older, "step_ms") == (60, 100, 300)


def test_a_ratio_to_a_baseline_has_its_own_band():
    cells = {"speed_over_baseline": "1.2", "speed_over_baseline_p05": "0.9", "speed_over_baseline_p95": "1.5",
             "step_ms": "100", "step_ms_p05": "60", "step_ms_p95": "300", "_path": "s.csv", "_line": 2}
    assert rows.band_of(cells, "speed_over_baseline") == (0.9, 1.2, 1.5)
    blank = {**cells, **{f"speed_over_baseline{end}": "" for end in ("", "_p05", "_p95")}}
    assert rows.band_of(blank, "speed_over_baseline") == (None, None, None)
