"""Bars of the parts of a step."""


import pytest
from command_line import as_json, needs_binary
from plot_rows import options, row, sweep  # noqa: F401 (options: a fixture)
from plotter import SIZE, subtitle

import breakdown_chart
import page
import rows


def test_bars_add_up_to_the_step(tmp_path):
    path = sweep(tmp_path / "s.csv", [row("top1", step=100), row("top2", step=30000)])
    figure = breakdown_chart.breakdown(rows.read([path]), None, SIZE, "")
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
        figure = breakdown_chart.breakdown(rows.read([path]), told, page.Size(width, 8.0), "")
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
    for replicas, said in ((16, True), (1, False)):
        path = sweep(tmp_path / "s.csv", [row(gpus=gpus) for gpus in (8, 16)], replicas=replicas)
        figure = breakdown_chart.breakdown(rows.read([path]), None, SIZE, "")
        assert any("replica with the median step" in text.get_text().replace("\n", " ") for text in figure.texts) == said


@pytest.mark.parametrize(("differing", "slowdown", "said"), [
    ("factor", "1:1", "median step: attention, which no option here changes, differs by 10 ms by chance, and others may"),
    ("gpus", "1:1", "small differences are chance"), ("factor", "1.1:1", "small differences are chance")])
def test_bars_say_how_much_a_part_differs_by_chance(tmp_path, differing, slowdown, said):
    path = sweep(tmp_path / "s.csv", [row(**{differing: value}, step=step) for value, step in ((1, 100), (2, 120))],
                 replicas=16, overlap_slowdown=slowdown)
    figure = breakdown_chart.breakdown(rows.read([path]), None, SIZE, "")
    assert said in subtitle(figure)


# Options of routing of the machine, the model, its tokens and how they are drawn: other options are of routers.
OF_THE_JOB = {"model", "cluster", "gpus", "expert_parallel", "experts", "expert_placement", "dedup", "mode", "sequence_length",
              "micro_batch", "tokens_per_gpu", "fidelity", "seed"}


@needs_binary
def test_options_that_leave_attention_as_it_is_are_those_of_routers():
    described = as_json("options")["options"]
    of_routing = {option["column"] for option in described if option["column"] and option["affects"] != ["step"]}
    assert OF_THE_JOB < of_routing
    assert set(breakdown_chart.OF_EXPERTS) == of_routing - OF_THE_JOB
