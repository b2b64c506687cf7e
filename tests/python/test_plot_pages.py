"""What lies on the page of a chart: legends, titles and axes that hold what they should."""

import json
import sys
from pathlib import Path

import pytest
from plot_options import small_options  # noqa: F401 (a fixture)
from plot_sweeps import HEADER, row, sweep_file

PLOT = Path(__file__).resolve().parents[2] / "tools" / "plot"
sys.path.insert(0, str(PLOT))
matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
matplotlib.use("Agg")

import kinds_chart  # noqa: E402
import loss_chart  # noqa: E402
import page  # noqa: E402
import routing_chart  # noqa: E402
import rows  # noqa: E402
import sweep_chart  # noqa: E402


def many_settings(folder, models, fits="true"):
    """Two routers on models with names as long as given, in both modes."""
    path = folder / "many.csv"
    path.write_text(HEADER.strip() + ",fits_memory\n" + "".join(
        f"{row(router, factor, 100 * factor, 0.5 / factor, 0.4 / factor, mode=mode, model=model).strip()},{fits}\n"
        for router in ("top1", "top2") for model in models for mode in ("prefill", "train") for factor in (1, 2)))
    return str(path)


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
    for figure in (sweep_chart.draw(path, None, ""), kinds_chart.pareto(rows.read([path]), None, page.Size(), "")):
        assert figure.texts[0].get_text().startswith(f"{named} on 32 x a100: speed and token loss")


def test_axes_of_no_loss_reach_to_one_per_cent(tmp_path):
    """Without a least top they end where rounding does, at 1e-17 %."""
    path = sweep_file(tmp_path, [row("top1", factor, 100 * factor, 0, 0) for factor in (2, 3)])
    assert sweep_chart.draw(path, None, "").axes[1].get_ylim() == (0, 1)
    assert [axes.get_ylim() for axes in loss_chart.draw(path, "").axes] == [(0, 1)] * 3
    low, high = kinds_chart.pareto(rows.read([path]), None, page.Size(), "").axes[0].get_xlim()
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
