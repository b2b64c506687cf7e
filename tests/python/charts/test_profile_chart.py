"""The chart of a profile's cost curves: what its panels name."""

import json
from pathlib import Path

import pytest
from command_line import needs_binary, succeed
from plotter import handles_of

import curves_chart


def panel_file(folder, far):
    """A panel of two lines, of which each point is extrapolated where `far` says so."""
    sizes = [1024 * 2**step for step in range(len(far))]
    lines = [{"label": label, "x": sizes, "y": [speed] * len(far), "low": [0.9 * speed] * len(far),
              "high": [1.1 * speed] * len(far), "extrapolated": far}
             for label, speed in (("all-reduce", 500), ("all-gather", 400))]
    path = folder / "curves.json"
    path.write_text(json.dumps({"title": "T", "subtitle": "S", "panels": [
        {"title": "Collectives on 72 GPUs", "xlabel": "buffer", "ylabel": "GB/s", "bytes": True, "series": lines}]}))
    return str(path)


@pytest.mark.parametrize("far", [[False] * 3, [False, True, True], [True] * 3])
def test_every_line_has_its_name(tmp_path, far):
    legend = curves_chart.draw(panel_file(tmp_path, far)).axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["all-reduce", "all-gather"]
    handles = handles_of(legend)
    assert len({(handle.get_color(), handle.get_marker()) for handle in handles}) == 2
    # Without a measured point the line is dotted, as the legend of the page says.
    assert {handle.get_linestyle() for handle in handles} == {":" if all(far) else "-"}


def test_legends_lie_on_no_band_and_panels_fill_the_page(tmp_path):
    """Bandwidths of an L40S: they rise, have a peak and stay; the highest band is just below the right end's legend."""
    sizes = [4096 * 2**step for step in range(18)]
    speeds = [0.5, 0.7, 1, 1.5, 2.3, 2.9, 3.3, 3.6, 4.8, 5.8, *[5.2] * 8]
    curves = json.loads(Path(panel_file(tmp_path, [False] * 18)).read_text())
    panel = curves["panels"][0]
    panel["series"] = [{**panel["series"][0], "label": label, "x": sizes, "y": [share * speed for speed in speeds],
                        "low": [0.92 * share * speed for speed in speeds], "high": [1.08 * share * speed for speed in speeds]}
                       for label, share in (("all-reduce", 1), ("all-gather", 0.9), ("reduce-scatter", 0.95))]
    for count, columns in ((1, 1), (2, 2), (3, 3), (4, 2), (5, 3), (6, 3)):
        path = tmp_path / f"{count}.json"
        path.write_text(json.dumps({**curves, "panels": [panel] * count}))
        figure = curves_chart.draw(str(path))
        figure.canvas.draw()
        shown = [axes for axes in figure.axes if axes.get_legend()]
        assert len(shown) == count and len({axes.get_position().x0 for axes in shown}) == columns
        assert max(axes.get_position().x1 for axes in shown) > 0.95
        for axes in shown:
            legend = axes.get_legend().get_window_extent()
            assert not any(legend.contains(*axes.transData.transform((x, y))) for line in panel["series"]
                           for end in ("low", "high") for x, y in zip(line["x"], line[end]))


@needs_binary
@pytest.mark.slow
@pytest.mark.parametrize(("profile", "place"), [("gb200", "an NVLink domain"), ("l40s", "a node")])
def test_the_panel_of_all_to_alls_names_the_domain(tmp_path, profile, place):
    """8 GPUs are two nodes of GB200, in one NVLink domain; L40S has none."""
    out = tmp_path / "x.svg"
    succeed("plot", profile, "--out", out)
    assert f"All-to-all inside {place}<" in out.read_text()


@pytest.mark.parametrize("count, labels", [(3, 3), (8, 4), (16, 5), (25, 6)])
def test_sizes_have_few_labels_that_do_not_overlap(tmp_path, count, labels):
    figure = curves_chart.draw(panel_file(tmp_path, [False] * count))
    figure.canvas.draw()
    low, high = figure.axes[0].get_xlim()
    shown = [text for text in figure.axes[0].get_xticklabels(which="both") if low <= text.get_position()[0] <= high and text.get_text()]
    assert len(shown) == labels
    ends = [text.get_window_extent() for text in shown]
    assert all(left.x1 < right.x0 for left, right in zip(ends, ends[1:]))
