"""notebooks/gallery.md shows what its commands print; charts do not hide or list what is not there."""

import importlib.util
import math
import sys
from pathlib import Path

import pytest
from command_line import BINARY, moesim, needs_binary

ROOT = Path(__file__).resolve().parents[3]


def gallery():
    spec = importlib.util.spec_from_file_location("gallery", ROOT / "tools" / "gallery.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@needs_binary
@pytest.mark.slow
def test_the_page_shows_what_its_commands_print_and_draw(tmp_path):
    pytest.importorskip("matplotlib", reason="charts need matplotlib")
    text = gallery().page(BINARY, tmp_path)
    assert text == (ROOT / "notebooks" / "gallery.md").read_text(encoding="utf-8"), "run tools/gallery.py"
    for chart in (ROOT / "notebooks" / "gallery").glob("*.png"):
        assert (tmp_path / chart.name).stat().st_size > 10_000


@needs_binary
def test_a_line_that_is_hidden_by_another_says_so_and_long_subtitles_are_wrapped(tmp_path):
    pytest.importorskip("matplotlib", reason="charts need matplotlib")
    sweep = tmp_path / "sweep.csv"
    grid = ("--router", "top2,top2+fr", "--capacity-factor", "0.5,1", "--replicas", 2, "--mode", "prefill",
            "--cluster", "dgx-a100", "--expert-placement", "contiguous", "--routing", "gaussian:0.125")
    result = moesim("sweep", *grid, "--out", sweep)
    assert result.returncode == 0, result.stderr
    chart = tmp_path / "chart.svg"
    assert moesim("plot", sweep, "--out", chart).returncode == 0
    assert "(speed: as top2+fr)" in chart.read_text(encoding="utf-8")
    sys.path.insert(0, str(ROOT / "tools" / "plot"))
    try:
        import sweep_chart
        figure = sweep_chart.draw(str(sweep), None, "")
        figure.canvas.draw()
        edge = figure.bbox.x1
        assert all(text.get_window_extent().x1 <= edge for text in figure.texts)
    finally:
        sys.path.pop(0)


FRONT = ((38.9, 9954, "top2", "0.5"), (21.5, 7494, "top2", "0.75"), (12.2, 6102, "top2+fr+ir", "0.75"),
         (3.56, 6034, "top2+fr", "1"), (1.91, 5866, "top2+fr+ir", "1"), (1.7, 5510, "top2+fr+ir", "1"), (0, 5270, "dropless", ""))


@pytest.mark.parametrize("best", [4, 6])  # of FRONT: in the middle, and where the axis begins
def test_labels_of_the_front_lie_on_no_line_and_no_axis(best, monkeypatch):
    pytest.importorskip("matplotlib", reason="charts need matplotlib")
    sizes = {"tensor_parallel": "1", "context_parallel": "1", "pipeline_parallel": "2", "virtual_pipeline": "8",
             "expert_parallel": "8", "expert_tensor_parallel": "1", "model": "m", "gpus": "64", "profile": "p", "cluster": "c"}
    rows = [{**sizes, "residual_loss": str(loss / 100), "tokens_per_s_per_gpu": str(speed), "router": router,
             "capacity_factor": factor, "on_front": "true", "rank": "1" if at == best else ""}
            for at, (loss, speed, router, factor) in enumerate(FRONT)]
    loss, speed = FRONT[best][:2]
    rows += [{**rows[best], "residual_loss": str(loss / 100), "tokens_per_s_per_gpu": str(speed - 20 * rank), "on_front": "false",
              "rank": str(rank)} for rank in range(2, 6)]
    sys.path.insert(0, str(ROOT / "tools" / "plot"))
    try:
        import front_chart
        import look
        monkeypatch.setattr(front_chart, "BEYOND", len(FRONT))  # all of the front
        figure = front_chart.draw(rows, 0.13, "")
        axes, = figure.axes
        boxes = [text.get_window_extent() for text in axes.texts]
        assert len(boxes) >= 6 and "1, 2, 3, 4, 5" in [text.get_text() for text in axes.texts]
        frame = axes.get_window_extent()
        (line, *_), _ = look._drawn(axes)
        for at, box in enumerate(boxes):
            assert box.x0 >= frame.x0 and box.x1 <= frame.x1
            assert not line.intersects_bbox(box, filled=False), axes.texts[at].get_text()
            assert not any(box.overlaps(other) for other in boxes[:at])
    finally:
        sys.path.pop(0)


def test_each_letter_of_the_front_stands_at_its_own_point(tmp_path):
    """Of points a label's width apart each has its letter, also where there is no room for its router."""
    pytest.importorskip("matplotlib", reason="charts need matplotlib")
    points = [(10, 9000), (6, 8000), (3.0, 6400), (2.6, 6250), (2.2, 6100), (1.8, 6050), (1.4, 5800), (0.5, 5000), (0.49, 4990)]
    rows = [{"model": "m", "gpus": "64", "profile": "p", "cluster": "c", "residual_loss": str(loss / 100),
             "tokens_per_s_per_gpu": str(speed), "router": f"a-router-of-a-long-name+{at}", "capacity_factor": "1",
             "on_front": "true", "rank": ""} for at, (loss, speed) in enumerate(points)]
    sys.path.insert(0, str(ROOT / "tools" / "plot"))
    try:
        import front_chart
        figure = front_chart.draw(rows, 0.13, "")
        figure.savefig(tmp_path / "x.png")  # lays the page out again
        axes, = figure.axes
        places = {chr(ord("a") + at): axes.transData.transform(point) for at, point in enumerate(points)}
        found = {}
        for text in axes.texts:
            box = text.get_window_extent()
            away = {name: math.hypot(max(box.x0 - x, 0, x - box.x1), max(box.y0 - y, 0, y - box.y1))
                    for name, (x, y) in places.items()}
            own = [name for line in text.get_text().splitlines() for name in line.split(":")[0].split(", ")]
            assert min(away, key=away.get) in own and max(away[name] for name in own) < 40, text.get_text()
            found.update(dict.fromkeys(own))
        assert sorted(found) == sorted(places)
        assert axes.get_window_extent().x0 < 0.15 * figure.bbox.x1  # no room for marks that are not there
        assert "the best, by rank" not in [text.get_text() for text in axes.get_legend().get_texts()]
    finally:
        sys.path.pop(0)


def found(loss, speed, rank="", on_front="true", **more):
    """A row of moesim recommend."""
    return {"model": "m", "gpus": "64", "profile": "p", "cluster": "c", "router": "top2", "capacity_factor": "1",
            "tensor_parallel": "1", "pipeline_parallel": "2", "expert_parallel": "8", "virtual_pipeline": "4", "micro_batch": "1",
            "residual_loss": str(loss / 100), "tokens_per_s_per_gpu": str(speed), "step_ms": "100", "step_ms_likely": "125",
            "step_ms_low": "80", "step_ms_high": "200", "band_level": "0.8",
            "memory_gib": "60.4", "rank": rank, "on_front": on_front, **more}


@pytest.fixture
def front_chart(monkeypatch):
    pytest.importorskip("matplotlib", reason="charts need matplotlib")
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "plot"))
    import front_chart as module
    return module


def test_candidates_that_lose_the_same_are_bars_with_their_layouts(front_chart):
    rows = [found(0, 5000, "1"), found(0, 4900, "2", "false", virtual_pipeline="8")]
    axes, = front_chart.draw(rows, 0.13, "").axes
    assert [bar.get_width() for bar in axes.containers[0]] == [5000, 4900]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["1: TP 1, PP 2, VP 4, EP 8", "2: TP 1, PP 2, VP 8, EP 8"]
    ends = [list(line.get_xdata()) for line in axes.get_lines()]
    assert [2500, 6250] in ends and [4000] in ends  # 100 ms over 200 and 80, and over the 125 that are likely measured
    assert "5,000, 60 GiB" in [text.get_text() for text in axes.texts]
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert "within 13 % of the best: noise, at even odds" in legend
    axes.figure.canvas.draw()
    assert axes.get_legend().get_window_extent().y0 >= 0


def test_a_label_of_the_front_stands_at_its_own_point_among_the_best(front_chart):
    """The best that are on no front are as good as neighbours to be taken for."""
    rows = [found(1.91, 5938, "1"), found(1.91, 5889, "2", "false"), found(1.9, 5828, "3"), found(0.96, 5805, "4"),
            found(0.96, 5755, "5", "false"), found(12.2, 6177), found(3.56, 6108), found(0.76, 5683), found(0.43, 5648), found(0, 5333)]
    axes, = front_chart.draw(rows, 0, "").axes
    places = [axes.transData.transform((100 * float(row["residual_loss"]), float(row["tokens_per_s_per_gpu"]))) for row in rows]
    named = [text for text in axes.texts if ":" in text.get_text()]
    assert len(named) >= 6
    for text in named:
        box, own = text.get_window_extent(), axes.transData.transform(text.xy)

        def away(place, box=box):
            return math.hypot(max(box.x0 - place[0], 0, place[0] - box.x1), max(box.y0 - place[1], 0, place[1] - box.y1))
        assert away(own) < min(map(away, places)) + 1, text.get_text()


@pytest.mark.parametrize(("noise", "capacity_noise", "shades"), [
    (0.1, 0.04, {", for all others": 0.1, ", for its layout with another router or CF": 0.04}),
    (0.1, 0, {"": 0.1}), (0, 0.04, {"": 0.04}), (0, 0, {})])
def test_noise_of_another_capacity_and_of_another_layout_have_a_shade_each(front_chart, noise, capacity_noise, shades):
    from plotter import heights_of
    axes, = front_chart.draw([found(2, 5000, "1"), found(0, 4000)], noise, "", capacity_noise).axes
    handles, names = axes.get_legend_handles_labels()
    spans = {name: heights_of(patch) for patch, name in zip(handles, names) if "noise" in name}
    assert {name: (round(min(ends)), round(max(ends))) for name, ends in spans.items()} == {
        f"within {100 * share:.0f} % of the best: noise, at even odds{which}": (round(5000 / (1 + share)), 5000) for which, share in shades.items()}
    assert len({patch.get_facecolor() for patch, name in zip(handles, names) if "noise" in name}) == len(shades)
    assert "front: of the steps simulated none is faster and loses less (a: the fastest)" in names
    # Below the panel, where it hides no point.
    axes.figure.canvas.draw()
    assert axes.get_legend().get_window_extent().y1 < axes.xaxis.label.get_window_extent().y0
    assert axes.get_legend().get_window_extent().y0 >= 0


def test_points_that_lose_far_more_than_the_best_are_named_not_drawn(front_chart):
    rows = [found(2, 5000, "1"), found(3, 5500), found(8, 6000), found(20, 7000), found(40, 9000), found(0, 4000)]
    axes, = front_chart.draw(rows, 0.13, "").axes
    front = next(line for line in axes.get_lines() if len(line.get_xdata()) > 2)
    assert list(front.get_xdata()) == [0, 2, 3, 8]
    assert "beyond the right end: b, a of the front, which lose 20 to 40 %" in axes.get_xlabel()
    assert not any(text.get_text().startswith(("a", "b")) for text in axes.texts)


def test_a_nonlinear_axis_of_losses_says_so(front_chart):
    axes, = front_chart.draw([found(loss, 5000 + 100 * loss) for loss in (0, 1, 20)], 0, "").axes
    assert "linear up to 1 %, logarithmic beyond" in axes.get_xlabel()
    axes, = front_chart.draw([found(loss, 5000 + 100 * loss) for loss in (0, 1, 2)], 0, "").axes
    assert "logarithmic" not in axes.get_xlabel()


def test_what_recommend_found_is_drawn_as_candidates_by_plot_too(front_chart, tmp_path, capsys):
    import csv

    import plot
    rows = [{"status": "ok", **row} for row in (found(0, 5000, "1"), found(0, 4900, "2", "false", virtual_pipeline="8"))]
    path = tmp_path / "found.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    assert plot.main(["sweep", str(path), "--out", str(tmp_path / "x.svg")]) == 0
    assert "1: TP 1, PP 2, VP 4, EP 8" in (tmp_path / "x.svg").read_text()
    assert plot.main(["loss", str(path), "--out", str(tmp_path / "y.svg")]) == plot.EXIT_USAGE
    assert "what moesim recommend found" in capsys.readouterr().err


def test_a_label_of_several_points_names_the_router_of_each():
    sys.path.insert(0, str(ROOT / "tools" / "plot"))
    try:
        import front_chart
        rows = [{"router": router, "capacity_factor": "1"} for router in ("top8", "top8+fr", "top8+fr+ir", "top8+ir")]
        names = {id(row): "fghi"[at] for at, row in enumerate(rows)}
        assert front_chart.front_labels([rows[:3]], names, True) == ["f: top8, CF 1\ng: top8+fr, CF 1\nh: top8+fr+ir, CF 1"]
        assert front_chart.front_labels([[rows[1], rows[0], rows[0]]], names, False) == ["f, f, g: CF 1"]
        assert front_chart.front_labels([rows], names, True) == ["f, g, h, i: CF 1"]
    finally:
        sys.path.pop(0)


def test_the_gallery_has_three_users_with_a_chart_each():
    users = gallery().USERS
    assert len(users) == 3
    for _, _, commands in users:
        (chart,) = [chart for _, chart in commands if chart]
        assert (ROOT / "notebooks" / "gallery" / chart).is_file()
