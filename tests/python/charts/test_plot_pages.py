"""What lies on the page of a chart: legends, titles and axes that hold what they should."""

import json

import pytest
from plot_options import small_options  # noqa: F401 (a fixture)
from plot_sweeps import row, sweep_file
import plotter  # noqa: F401 (puts the modules below on the path)

import loss_chart
import page
import pareto_chart
import plot
import routing_chart
import rows
import sweep_chart


def many_settings(folder, models, fits="true"):
    """Two routers on models with names as long as given, in both modes."""
    return sweep_file(folder, [row(router, factor, 100 * factor, 0.5 / factor, 0.4 / factor, mode=mode, model=model)
                               for router in ("top1", "top2") for model in models for mode in ("prefill", "train")
                               for factor in (1, 2)], fits_memory=fits)


@pytest.mark.parametrize("count", [1, 4, 7])  # 4, 16 and 28 lines
def test_the_legend_of_losses_lies_on_the_page(tmp_path, count):
    path = many_settings(tmp_path, [f"a-model-of-a-long-name-{number}" for number in range(count)])
    figure = loss_chart.draw(path, "")
    figure.canvas.draw()
    legend = figure.legends[0].get_window_extent()
    assert len(figure.legends[0].get_texts()) == 4 * count and len(figure.legends) == 1
    assert figure.bbox.x0 <= legend.x0 and legend.x1 <= figure.bbox.x1 and legend.y0 >= 0 and legend.y1 <= figure.bbox.y1
    renderer = figure.canvas.get_renderer()
    for axes in figure.axes:
        whole = axes.get_tightbbox(renderer)
        assert not legend.overlaps(whole) and whole.x1 <= figure.bbox.x1
        assert not any(text.get_window_extent().overlaps(whole) for text in figure.texts)


@pytest.mark.parametrize("fits", ["true", "false"])
def test_the_legend_of_losses_says_what_pale_marks_are(tmp_path, fits):
    figure = loss_chart.draw(many_settings(tmp_path, ["m"], fits), "")
    told = [" ".join(text.get_text().split()) for text in figure.legends[0].get_texts()]
    assert (page.UNFIT in told) == (fits == "false")


def long_path(name):
    return "some/" + "folder-of-a-long-name/" * 8 + name


@pytest.mark.parametrize("draw", [lambda path, title: sweep_chart.draw(path, None, title), loss_chart.draw])
@pytest.mark.parametrize("title", ["", "a title of the user's own, in more words than a line has room for " * 4], ids=["own", "given"])
def test_titles_lie_on_the_page(tmp_path, draw, title):
    path = sweep_file(tmp_path, [row("top1", factor, 100, 0.1, 0.1, profile=long_path("x" * 40 + ".json"),
                                     model=long_path("y" * 60 + ".json")) for factor in (1, 2)])
    figure = draw(path, title)
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.texts]
    assert all(box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1 for box in boxes)
    assert not boxes[0].overlaps(boxes[1])
    highest = max(axes.get_tightbbox(figure.canvas.get_renderer()).y1 for axes in figure.axes)
    assert boxes[1].y0 >= highest


@pytest.mark.parametrize(("typed", "named"), [
    ("mixtral-8x7b", "mixtral-8x7b"), ("a/b/model.json", "model"), ("/a/mine-1.5b.json", "mine-1.5b"),
    ("checkpoints/qwen/config.json", "qwen"), ("config.json", "config"), ("checkpoints/qwen", "qwen")])
def test_titles_name_documents_without_their_folders(tmp_path, typed, named):
    path = sweep_file(tmp_path, [row("top1", factor, 100, 0.1, 0.1, model=typed) for factor in (1, 2)])
    for figure in (sweep_chart.draw(path, None, ""), pareto_chart.pareto(rows.read([path]), None, page.Size(), "")):
        assert figure.texts[0].get_text().startswith(f"{named} on 32 x a100: speed and token loss")


@pytest.mark.parametrize("kind", ["sweep", "loss", "pareto", "axes"])
def test_a_dollar_sign_is_no_formula(tmp_path, kind):
    name, out = "m$x^2$ and $\\frac{$", tmp_path / "chart.svg"
    path = sweep_file(tmp_path, [row(router, factor, 100 * factor, 0.1, 0.1, model=name)
                                 for router in ("top1", "a$b$") for factor in (1, 2)])
    assert plot.main([kind, path, "--x", "capacity_factor", "--out", str(out)]) == 0
    drawn = out.read_text()
    assert name in drawn and "a$b$" in drawn
    assert plot.main([kind, path, "--x", "capacity_factor", "--title", "costs $5 or $\\frac{$", "--out", str(out)]) == 0
    assert "costs $5 or $\\frac{$" in out.read_text()


@pytest.mark.parametrize(("shares", "note"), [
    ({"random": (0.01, 0), "soft": (0, 0)}, "failed, from above:\nrandom,\nsoft"),
    ({"soft": (0.01, 0), "random": (0.01, 0.005)}, "failed, from above:\nrandom,\nsoft"),  # apart at their second point
    ({"random": (0.01, 0), "soft": (0.01, 0)}, "random\nfailed")])  # one line
def test_a_note_of_two_lines_that_fail_says_which_is_above(tmp_path, shares, note):
    path = sweep_file(tmp_path, [row(router, factor, 100, failed, 0.1) for router, those in
                                 {"top2": (0.5, 0.1), **shares}.items() for factor, failed in zip((1, 2), those)])
    assert [text.get_text() for text in sweep_chart.draw(path, None, "").axes[1].texts] == ["top2\nfailed", note]


def test_notes_of_what_fails_lie_beside_each_other(tmp_path):
    """That of random and soft, three lines high, begins at the lower end of the panel; the next is 12 % above."""
    shares = {"top2": 0.5, "expert-choice": 0.49, "hash": 0.118, "random": 0.008, "soft": 0}
    path = sweep_file(tmp_path, [row(router, factor, 100, share / factor, 0) for router, share in shares.items()
                                 for factor in (1, 2)])
    axes = sweep_chart.draw(path, None, "").axes[1]
    axes.figure.canvas.draw()
    panel, boxes = axes.get_window_extent(), [note.get_window_extent() for note in axes.texts]
    assert [note.get_text().count("\n") for note in axes.texts] == [2, 1, 2]
    assert boxes[0].y1 <= panel.y1 and boxes[2].y0 >= panel.y0
    assert boxes[1].y1 <= boxes[0].y0 + 1 and boxes[2].y1 <= boxes[1].y0 + 1  # a pixel, of rounding


def test_notes_of_speeds_that_coincide_lie_on_the_page(tmp_path):
    routers = ("top2+a-router-of-a-long-name", "top2+another-of-a-name-as-long")
    figure = sweep_chart.draw(sweep_file(tmp_path, [row(router, factor, 100, 0.1, 0.1) for router in routers
                                                    for factor in (1, 2)]), None, "")
    figure.canvas.draw()
    legend = figure.axes[0].get_legend()
    assert "(speed: as" in legend.get_texts()[0].get_text() and legend.get_window_extent().x1 <= figure.bbox.x1


def test_axes_of_no_loss_reach_to_one_per_cent(tmp_path):
    """Without a least top they end where rounding does, at 1e-17 %."""
    path = sweep_file(tmp_path, [row("top1", factor, 100 * factor, 0, 0) for factor in (2, 3)])
    assert sweep_chart.draw(path, None, "").axes[1].get_ylim() == (0, 1)
    assert [axes.get_ylim() for axes in loss_chart.draw(path, "").axes] == [(0, 1)] * 3
    low, high = pareto_chart.pareto(rows.read([path]), None, page.Size(), "").axes[0].get_xlim()
    assert -0.2 < low < 0 and high == 1


def test_a_loss_that_is_small_has_an_axis_of_its_own_size(tmp_path):
    path = sweep_file(tmp_path, [row("top1", factor, 100 * factor, 1e-6, 1e-6) for factor in (2, 3)])
    assert sweep_chart.draw(path, None, "").axes[1].get_ylim() == pytest.approx((0, 1.05e-4))


def test_lines_of_one_height_lie_below_the_upper_end(tmp_path):
    """Losses of 55 and 49 % in every layer: a margin of their range would be 0.3 %."""
    peaks = {name: 2 for name in ("expert_demand_busiest_over_mean", "gpu_rows_busiest_over_mean")}
    layers = [{"failed": 0.55, "residual_loss": 0.49, "padded": 0.55, **peaks, "expert_demand_share": [0.6, 0.4]}] * 2
    path = tmp_path / "route.json"
    path.write_text(json.dumps({
        "router": "top2", "experts": 2, "gpus": 4, "expert_parallel": 2, "routing": "zipf:1", "tokens_per_gpu": 1000,
        "replicas": 1, "detail": {"most_uneven_layer": 1, "layers": layers, "replicas": layers[:1]}}))
    losses = next(axes for axes in routing_chart.draw(str(path), "").axes if axes.get_ylabel() == "%")
    assert losses.get_ylim() == pytest.approx((0, 1.05 * 55))
    losses = sweep_chart.draw(sweep_file(tmp_path, [row("top1", factor, 100, 0.55, 0.5) for factor in (1, 2)]), None, "").axes[1]
    assert losses.get_ylim() == pytest.approx((0, 1.05 * 55))
