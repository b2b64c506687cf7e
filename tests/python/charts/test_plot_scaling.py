"""Charts of scaling: the speed of all GPUs by their number, and what is left of that of one."""

import math
from pathlib import Path

import pytest
from plot_rows import options, row, sweep  # noqa: F401 (options: a fixture)
from plotter import drawn, names_in_legend, SIZE, subtitle

import compare_chart
import rows
import scaling_chart
import speed_bands
import sweep_chart
from chart_data import BadInput


def test_scaling_is_relative_to_the_fewest_gpus(tmp_path):
    path = sweep(tmp_path / "s.csv", [row(gpus=8, step=100), row(gpus=32, step=125)])
    total, share = scaling_chart.scaling(rows.read([path]), None, SIZE, "").axes
    assert [list(line.get_ydata()) for line in drawn(total)] == [[80000, 256000], [80000, 320000]]
    assert list(drawn(share)[0].get_ydata()) == [100, 80]
    assert any(text.get_text().replace("\n", " ").startswith(speed_bands.ALONE) for text in total.figure.legends[0].get_texts())
    assert share.get_ylabel().replace("\n", " ") == "speed of one GPU, % of that with 8 GPUs"
    # Bands of each row alone lack the scatter between configurations: none of their ratio.
    assert total.collections and not share.collections
    assert "a band of the speed of one GPU takes sweep --baseline gpus=8" in " ".join(total.figure.texts[1].get_text().split())


@pytest.mark.parametrize(("baseline", "has_band"), [(8, True), (32, False)])
def test_the_speed_of_one_gpu_has_the_band_of_a_baseline(tmp_path, baseline, has_band):
    ratios = {8: ((1, 0.8), (1, 0.6), (1, 1.1)), 32: ((1.25, 1), (0.9, 1), (1.6, 1))}[baseline]
    path = sweep(tmp_path / "s.csv", [row(gpus=8, step=100), row(gpus=32, step=125)],
                 **dict(zip((speed_bands.RATIO, speed_bands.LOW, speed_bands.HIGH), ratios)))
    figure = scaling_chart.scaling(rows.read([path]), None, SIZE, "")
    share, under = figure.axes[1], subtitle(figure)
    ends = {(float(x), round(float(y), 3)) for band in share.collections for path in band.get_paths() for x, y in path.vertices}
    assert ends == ({(8, 100), (32, 60), (32, 110)} if has_band else set())
    assert ("sweep --baseline gpus=8" in under) != has_band
    words = f"p05 to p95 of the speed over that of top2, GPUs {baseline}, the baseline: compare with it alone"
    assert words in names_in_legend(figure)


def test_scaling_is_relative_to_the_fewest_gpus_on_which_the_step_fits(tmp_path):
    path = sweep(tmp_path / "s.csv", [row(gpus=1, step=500, fits=False), row(gpus=8, step=50, fits=False), row(gpus=16, step=100),
                                      row(gpus=32, step=125), row("top1", 1, step=200), row("top1", 16, step=250)])
    table = lambda where: rows.read([path], where)  # noqa: E731
    def texts(figure):
        total, share = figure.axes
        legend = names_in_legend(figure)
        return share.get_ylabel().replace("\n", " "), next(text for text in legend if text.startswith("linear"))
    figure = scaling_chart.scaling(table("router=top2"), None, SIZE, "")
    total, share = figure.axes
    assert list(drawn(share)[0].get_ydata()) == [20, 200, 100, 80]  # those that do not fit too: pale
    linear = [line for line in drawn(total) if line.get_linestyle() == ":"]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in linear] == [([16, 32], [160000, 320000])]
    assert texts(figure) == ("speed of one GPU, % of that with 16 GPUs", "linear scaling from the fewest GPUs on which it fits")
    assert "takes sweep --baseline gpus=16" in subtitle(figure)
    assert texts(scaling_chart.scaling(table("router=top1"), None, SIZE, "")) == (
        "speed of one GPU, % of that with 1 GPU", "linear scaling from the fewest GPUs")
    # Lines that start on other numbers: the fewest on which all fit.
    figure = scaling_chart.scaling(table(""), None, SIZE, "")
    assert texts(figure) == ("speed of one GPU, % of that with 16 GPUs, the fewest on which all lines fit", "linear scaling from 16 GPUs")
    assert [list(line.get_ydata()) for line in drawn(figure.axes[1])[:3:2]] == [[20, 200, 100, 80], [125, 100]]
    # Where there are none, each its own.
    assert texts(scaling_chart.scaling(table("step_ms!=250"), None, SIZE, ""))[0] == (
        "speed of one GPU, % of that with the fewest GPUs on which it fits")
    # Where it fits nowhere, the fewest.
    figure = scaling_chart.scaling(table("router=top2,gpus<16"), None, SIZE, "")
    assert list(drawn(figure.axes[1])[0].get_ydata()) == [100, 1000] and texts(figure)[0].endswith("with 1 GPU")


@pytest.mark.parametrize("count", [1, 3, 12])
def test_bands_of_many_lines_of_a_scaling_leave_them_in_sight(tmp_path, count):
    path = sweep(tmp_path / "s.csv", [row(f"top{k}", gpus, step=100 + k) for k in range(1, count + 1) for gpus in (8, 16)])
    total = scaling_chart.scaling(rows.read([path]), None, SIZE, "").axes[0]
    through = math.prod(1 - band.get_alpha() for band in total.collections)
    assert len(total.collections) == count and through > 0.6


def test_charts_of_an_interrupted_sweep_say_so(tmp_path):
    path = sweep(tmp_path / "s.csv", [row(gpus=8, step=100), row(gpus=32, step=125)])
    def told():
        return " ".join(text.get_text() for text in scaling_chart.scaling(rows.read([path]), None, SIZE, "").texts).replace("\n", " ")
    assert "partial" not in told()
    (tmp_path / "s.csv.partial").write_text("moesim sweep journal")
    assert "s.csv is partial: its sweep was interrupted, --resume continues it" in told()
    (tmp_path / "s.csv.partial").unlink()
    lines = Path(path).read_text().splitlines()
    Path(path).write_text("\n".join([lines[0] + ",grid_row", *(f"{line},{at}/96:00f3" for at, line in enumerate(lines[1:]))]) + "\n")
    assert "s.csv is partial: 2 of 96 scenarios" in told()
    path = sweep(tmp_path / "s.csv", [row(gpus=8)])
    with pytest.raises(BadInput, match="several numbers of GPUs"):
        scaling_chart.scaling(rows.read([path]), None, SIZE, "")


@pytest.mark.parametrize("gpus, logarithmic", [((16, 64), True), ((16, 32, 64), True), ((8, 16, 24, 32), True),
                                               ((8, 4096), True), (range(8, 136, 8), True), ((16, 24, 32), False)])
def test_both_axes_of_a_scaling_are_logarithmic_or_both_linear(tmp_path, gpus, logarithmic):
    path = sweep(tmp_path / "s.csv", [row(gpus=number) for number in gpus])
    figure = scaling_chart.scaling(rows.read([path]), None, SIZE, "")
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
    path = sweep(tmp_path / "s.csv", lines, scaling_pays=["true", "true", "false"])
    figure = scaling_chart.scaling(rows.read([path]), None, SIZE, "")
    names = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert "the fastest layout on each number of GPUs" in names and "scaling pays up to 16 GPUs" in names
    assert list(drawn(figure.axes[1])[0].get_ydata()) == pytest.approx([100, 100 / 1.1, 50])


@pytest.mark.parametrize("pays, said", [("True", ["scaling pays up to 16 GPUs, the most searched"]), ("false", [])])
def test_scaling_that_pays_may_be_written_by_pandas_or_be_left_out(tmp_path, pays, said):
    path = sweep(tmp_path / "s.csv", [row(gpus=8, step=100), row(gpus=16, step=110)], scaling_pays=pays)
    figure = scaling_chart.scaling(rows.read([path]), None, SIZE, "")
    names = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert [name for name in names if "pays" in name] == said


def test_lines_that_scale_alike_or_have_one_ratio_say_so(tmp_path):
    def legend(figure):
        return names_in_legend(figure)[:2]
    path = sweep(tmp_path / "s.csv", [row(router, gpus, step=step) for router, step in (("top1", 100), ("top2", 120))
                                      for gpus in (8, 16)])
    assert legend(scaling_chart.scaling(rows.read([path]), None, SIZE, "")) == ["top1 (speed of one GPU in %: as top2)", "top2"]
    first, second = (sweep(tmp_path / f"{name}.csv", [row(router, factor=factor, step=step * factor, profile=name)
                                                      for router in ("top1", "top2") for factor in (1, 2)])
                     for name, step in (("a", 100), ("b", 50)))
    figure = compare_chart.compare(rows.read([first, second]), "capacity_factor", "step_ms", None, SIZE, "")
    assert legend(figure) == ["top1 (ratio: as top2)", "top2"]


def test_one_gpu_is_singular():
    assert sweep_chart.subtitle({"expert_parallel": "1"}, 0) == "expert parallel over 1 GPU"
    assert sweep_chart.subtitle({"expert_parallel": "8"}, 0) == "expert parallel over 8 GPUs"
