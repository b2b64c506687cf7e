"""Pareto fronts of speed and token loss: one for each model, machine, mode and workload."""

import math
from pathlib import Path

import pytest
from plot_options import small_options  # noqa: F401 (a fixture)
from plot_sweeps import row, sweep_file
from plotter import handles_of, matplotlib, names_in_legend, subtitle

import look
import page
import pareto_chart
import rows
from chart_data import BadInput


COLUMN = {"mode": ("prefill", "train"), "profile": ("a100", "h100"), "model": ("m", "n")}


def draw(path, group=None):
    return pareto_chart.pareto(rows.read([path]), group, page.Size(), "")


def two_tasks(folder, column):
    """top1 at capacity factors 1 and 2, and in the second task 10 times as fast."""
    return sweep_file(folder, [row(router, factor, step * factor, 0.1, loss / factor, **{column: value})
                               for value, step in zip(COLUMN[column], (1000, 100))
                               for router, loss in (("top1", 0.02), ("top2", 0.01)) for factor in (1, 2)])


def fronts(figure):
    return [line for line in figure.axes[0].get_lines() if line.get_drawstyle() == "steps-post"]


@pytest.mark.parametrize("column", COLUMN)
def test_every_task_has_a_front_of_its_own(tmp_path, column):
    figure = draw(two_tasks(tmp_path, column))
    # Of each: top2 at 2 and at 1, which is as fast as top1 at 1 and loses less.
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in fronts(figure)] == [
        ([0.5, 1], [500, 1000]), ([0.5, 1], [5000, 10000])]
    legend = names_in_legend(figure)
    first, second = (f"{column} {value}" for value in COLUMN[column])
    assert {f"Pareto front: {first}", f"Pareto front: {second}"} <= set(legend) and "Pareto front" not in legend
    # A colour for each task: of its points, front and names; the front in grey by its dashes.
    lines = fronts(figure)
    assert len({line.get_color() for line in lines}) == 2 and len({line.get_linestyle() for line in lines}) == 2
    of_task = [{handle.get_color() for text, handle in zip(legend, handles_of(figure.legends[0])) if task in text}
               for task in (first, second)]
    assert of_task == [{line.get_color()} for line in lines]
    names = [(text.get_text(), text.get_color()) for text in figure.axes[0].texts]
    assert {("top2, CF 1", line.get_color()) for line in lines} <= set(names)


def test_a_group_leaves_tasks_apart(tmp_path):
    figure = draw(two_tasks(tmp_path, "profile"), ["router"])
    assert len(fronts(figure)) == 2
    assert names_in_legend(figure)[:2] == ["profile a100, top1", "profile a100, top2"]


def test_one_task_has_a_black_front(tmp_path):
    path = sweep_file(tmp_path, [row("top1", factor, 100 * factor, 0.1, 0.1 / factor) for factor in (1, 2)])
    front, = fronts(draw(path))
    assert front.get_color() == "black" and front.get_linestyle() == "-"


def test_rows_of_train_lie_at_the_loss_that_counts(tmp_path):
    """Of the model's own router without a capacity none, whatever its groups pass over."""
    head, *lines = Path(sweep_file(tmp_path, [row("own", "", 120, 0, 0.05), row("top8", 1, 100, 0.1, 0.06)])
                        ).read_text(encoding="utf-8").splitlines()
    path = tmp_path / "train.csv"
    path.write_text(f"{head},counted_loss\n{lines[0]},0\n{lines[1]},0.06\n", encoding="utf-8")
    (front,) = fronts(draw(str(path)))
    assert list(front.get_xdata()) == pytest.approx([0, 6])


def test_more_fronts_than_colours_are_refused(tmp_path):
    path = sweep_file(tmp_path, [row("top1", 1, 100, 0.1, 0.1, profile=f"p{number}") for number in range(13)])
    with pytest.raises(BadInput, match="13 Pareto fronts, one for each profile, and more than 12 cannot .* --where 'profile=p0'"):
        draw(path)


@pytest.mark.parametrize(("points", "named"), [
    # Draws of one router on ever more GPUs: a route more or less is no other loss.
    ([(38.987, 5685, "32"), (38.986, 5266, "64"), (4.69, 4415, "32, CF 2")], ["32, CF 2", "32"]),
    ([(0.0, 7072, "CF 1.75"), (0.00016, 7316, "fr+ir"), (0.0008, 7743, "top1"), (0.0002, 7743, "ir")], ["top1"]),
    # Less than a hundredth of the loss is none, a hundredth of a per cent is.
    ([(25.158, 10641, "top1"), (25.14, 10144, "fr"), (24.9, 9000, "less")], ["less", "top1"]),
    ([(0.02, 100, "a"), (0.005, 90, "b"), (0.0, 80, "c")], ["b", "a"])])
def test_a_front_is_not_decided_by_draws(points, named):
    assert [name for *_, name in pareto_chart.front_of(points)] == named


def test_a_point_on_a_front_hides_others_in_its_place(tmp_path):
    """Its label would stand at another one's marker."""
    path = sweep_file(tmp_path, [row("top1", 1, 100, 0.1, 0.01), row("top1+ir", 1, 100, 0.1, 0.01), row("top1", 2, 200, 0.1, 0)])
    axes = draw(path).axes[0]
    heights = {line.get_color(): line.get_zorder() for line in axes.get_lines() if line.get_marker() in "os" and line.get_ydata()[0] == 10000}
    top1, top1_ir = look.COLOURS[:2]
    assert heights[top1] > heights[top1_ir]


@pytest.mark.parametrize("order", [1, -1])
def test_of_equal_points_the_first_of_the_file_is_on_the_front(order):
    points = [(0.0008, 7743, "top1"), (0.0002, 7743, "top1+ir"), (5, 7743, "worse")][::order]
    (_, _, name), = pareto_chart.front_of(points)
    assert name == ("top1" if order == 1 else "top1+ir")


def with_k(folder, routers):
    """A file of (router, k, capacity factor, step, loss)."""
    lines = [f"{row(router, factor, step, 0.1, loss).strip()},{k}" for router, k, factor, step, loss in routers]
    head, _ = Path(sweep_file(folder, [row("top1", 1, 1, 0, 0)])).read_text(encoding="utf-8").split("\n", 1)
    path = folder / "k.csv"
    path.write_text("\n".join([f"{head},top_k", *lines]) + "\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(("other", "k", "said"), [("top2", 2, True), ("top1+ir", 1, False), ("soft", 2, False)])
def test_losses_of_several_k_do_not_compare(tmp_path, other, k, said):
    figure = draw(with_k(tmp_path, [("top1", 1, 1, 100, 0.1), (other, k, 1, 120, 0.2)]))
    under = subtitle(figure)
    assert ("token loss is a share of each router's own k experts: losses of different k do not compare" in under) == said


def test_every_k_has_a_front_of_its_own(tmp_path):
    """With the dashes that its routers have in other charts."""
    figure = draw(with_k(tmp_path, [("top1", 1, 1, 100, 0.1), ("top1", 1, 2, 200, 0), ("top2", 2, 1, 110, 0.3), ("top2", 2, 2, 210, 0.05),
                                    ("top2+ir", 2, 1, 150, 0.2)]))
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in fronts(figure)] == [
        ([0, 10], [5000, 10000]), ([5, 20, 30], pytest.approx([1e6 / 210, 1e6 / 150, 1e6 / 110]))]
    assert [(line.get_color(), line.get_linestyle()) for line in fronts(figure)] == [("black", "-"), ("black", "--")]
    legend = names_in_legend(figure)
    assert [text for text in legend if "front" in text] == ["Pareto front: k = 1", "Pareto front: k = 2"]
    assert legend[:3] == ["top1", "top2", "top2+ir"]  # which say their k


def test_fronts_of_several_tasks_and_k_differ_in_colour_and_dashes(tmp_path):
    path = Path(with_k(tmp_path, [(f"top{k}", k, factor, 100 * k * factor, 0.1 / factor) for k in (1, 2) for factor in (1, 2)]))
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([head, *lines, *(line.replace("a100", "h100") for line in lines)]) + "\n", encoding="utf-8")
    figure = draw(str(path))
    looks = [(line.get_color(), line.get_linestyle()) for line in fronts(figure)]
    assert len(set(looks)) == 4 and [looks[0][at] == looks[1][at] for at in (0, 1)] == [True, False]
    legend = names_in_legend(figure)
    assert [text for text in legend if "front" in text] == [f"Pareto front: profile {p}, k = {k}" for p in ("a100", "h100") for k in (1, 2)]


@pytest.mark.parametrize("router", ["soft", "dense"])
def test_what_loses_nothing_by_definition_is_on_no_front(tmp_path, router):
    figure = draw(with_k(tmp_path, [("top2", 2, 1, 200, 0.1), ("top2", 2, 2, 300, 0.05), (router, 1 if router == "soft" else "", "", 100, 0)]))
    line, = fronts(figure)
    assert list(line.get_xdata()) == pytest.approx([5, 10])
    assert f"on no front: {router}, whose loss is 0 by definition" in subtitle(figure)
    assert router in [text.get_text() for text in figure.axes[0].texts]  # as a point it is there


@pytest.mark.parametrize(("count", "named"), [(12, True), (13, False)])
def test_few_points_all_have_a_name(tmp_path, count, named):
    # top1 is faster and loses less than all the others.
    path = sweep_file(tmp_path, [row("top1", 1, 50, 0.1, 0), *(row("top2", at, 100 + 20 * at, 0.1, 0.05 * at) for at in range(1, count))])
    texts = {text.get_text() for text in draw(path).axes[0].texts}
    assert "top1, CF 1" in texts and ({"top2, CF 1", "top2, CF 7"} <= texts) == named and (len(texts) == 1) != named


def test_a_label_stands_at_its_own_point_among_those_of_other_fronts(tmp_path):
    """Points on no front, and those of another, are as good as neighbours to be taken for."""
    path = sweep_file(tmp_path, [row(router, factor, 1e6 / speed, 0.1, loss / 100, profile=profile) for profile, router, factor, loss, speed in (
        ("a100", "top2", 1, 39.00, 10826), ("a100", "top2", 2, 4.69, 6995), ("a100", "dropless", "", 0, 6056),
        ("h100", "top2", 1, 38.98, 5266), ("h100", "top2", 2, 4.70, 4158), ("h100", "dropless", "", 0, 3801),
        ("a100", "top1", 1, 38.99, 5075), ("a100", "top1", 2, 4.72, 4038), ("a100", "hash", "", 0, 3701))])
    axes = draw(path).axes[0]
    drawn = {(x, y) for line in axes.get_lines() if line.get_marker() not in ("None", "|", "") for x, y in zip(*line.get_data())}
    places = [axes.transData.transform(point) for point in drawn]
    assert len(places) == 9 and len(axes.texts) >= 6
    for text in axes.texts:
        box, own = text.get_window_extent(), axes.transData.transform(text.xy)

        def away(place, box=box):
            return math.hypot(max(box.x0 - place[0], 0, place[0] - box.x1), max(box.y0 - place[1], 0, place[1] - box.y1))
        assert away(own) < min(map(away, places)) + 1, text.get_text()


def test_a_label_over_lines_is_not_struck_through_by_that_of_its_point():
    figure = matplotlib.figure.Figure(figsize=(4, 4), dpi=100)
    matplotlib.backends.backend_agg.FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, 400), ylim=(0, 400))  # in pixels
    axes.plot([0, 400], [200, 200])
    for x in range(0, 400, 5):
        axes.plot([x, x], [0, 400])
    # Neighbours above and below, so near that there is room right beside the line alone; and nearer: the line is interrupted.
    for x, away in ((52, 22), (252, 15)):
        assert look.label_points(axes, [(x, 200)], ["top1"], 8, others=[(x, 200 + away), (x, 200 - away)]) == ["top1"]
        label = axes.texts[-1]
        box = label.get_window_extent()
        assert (box.y0 > 200 or box.y1 < 200) == (away == 22) == (label.get_bbox_patch() is None)


def test_a_label_between_near_neighbours_stands_close_to_its_point(tmp_path):
    """The lossless end of a front, with one point above to its right and one below."""
    path = sweep_file(tmp_path, [row(f"top1{suffix}", factor, 1e6 / speed, 0.1, loss / 100) for suffix, factor, loss, speed in (
        ("", 1.5, 0.0008, 7743), ("+ir", 1.5, 0.0002, 7743), ("+fr", 1.5, 0.0002, 7316), ("+fr", 2, 0, 6200), ("+fr+ir", 1.25, 0.151, 7991),
        ("+ir", 1.25, 0.175, 8408), ("", 1.25, 0.434, 8527), ("+ir", 1, 2.73, 9180), ("", 1, 6.15, 9504), ("", 0.75, 25.2, 10642),
        ("", 0.5, 50, 12188), ("+fr", 1.25, 0.375, 8083), ("", 2, 0, 5400))])
    assert "top1, CF 1.5" in [text.get_text() for text in draw(path).axes[0].texts]


@pytest.mark.parametrize(("clear", "leads"), [(True, False), (False, True)])
def test_a_line_leads_to_a_label_that_is_not_close(clear, leads):
    figure = matplotlib.figure.Figure(figsize=(4, 4), dpi=100)
    matplotlib.backends.backend_agg.FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, 400), ylim=(0, 400))  # in pixels
    if not clear:  # a line through the places right above and below the point
        axes.plot([100, 300, 300, 100], [212, 212, 188, 188])
    assert look.label_points(axes, [(200, 200)], ["top1"], 8) == ["top1"]
    lines = [artist for artist in axes.get_children() if isinstance(artist, matplotlib.patches.ConnectionPatch)]
    assert len(lines) == leads
    for line in lines:
        box = axes.texts[0].get_window_extent()
        start, *_, end = line.get_path().vertices
        assert math.dist(start, (200, 200)) < 12 and box.x0 - 1 <= end[0] <= box.x1 + 1 and box.y0 - 1 <= end[1] <= box.y1 + 1
