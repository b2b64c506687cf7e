"""Options that no label names: what follows from others, and batches that differ."""

import json
import os
from pathlib import Path

import pytest
from plot_rows import HEADER, options, row, sweep  # noqa: F401 (options: a fixture)
from plotter import draw, names_in_legend, SIZE, subtitle

import breakdown_chart
import compare_chart
import loss_chart
import pareto_chart
import rows
import scaling_chart
import sweep_chart


def test_what_follows_from_other_options_is_no_line(tmp_path):
    # A global batch follows from the GPUs on the axis, a cluster from its profile.
    path = sweep(tmp_path / "s.csv", [row(gpus=gpus, profile=profile) for gpus in (8, 16) for profile in "ab"])
    assert [line.label for line in rows.lines(rows.read([path]), "gpus", None)] == ["profile a", "profile b"]


def test_a_fidelity_that_follows_from_the_gpus_is_one_line_and_said(tmp_path):
    # --fidelity auto draws tokens of few GPUs and counts of many.
    path = sweep(tmp_path / "s.csv", [row(gpus=gpus, step=100 + gpus) for gpus in (16, 32, 64, 128)],
                 fidelity=["tokens", "tokens", "counts", "counts"])
    figure = scaling_chart.scaling(rows.read([path]), None, SIZE, "")
    share = figure.axes[1].get_lines()
    assert [list(line.get_xdata()) for line in share] == [[16, 32, 64, 128]] and share[0].get_ydata()[2] < 100
    said = "routing fidelity differs: tokens (GPUs 16, 32), counts (GPUs 64, 128)"
    assert said in subtitle(figure)
    assert said in " ".join(draw(rows.read([path]), y="step_ms").texts[1].get_text().split())
    for chart in (breakdown_chart.breakdown, pareto_chart.pareto):
        assert said in " ".join(chart(rows.read([path]), None, SIZE, "").texts[1].get_text().split())


def test_both_fidelities_of_one_scenario_are_two_lines(tmp_path):
    path = sweep(tmp_path / "s.csv", [row(gpus=gpus, step=step) for gpus in (16, 32) for step in (100, 120)],
                 fidelity=["tokens", "counts"] * 2)
    figure = scaling_chart.scaling(rows.read([path]), None, SIZE, "")
    names = names_in_legend(figure)
    assert names[0].startswith("fidelity tokens") and names[1] == "fidelity counts"
    assert "fidelity" not in figure.texts[1].get_text()


@pytest.fixture
def layouts(tmp_path):
    """Tensor parallelism over 64 GPUs: the more of it, the smaller the global batch."""
    lines = [row(gpus=64, factor=factor, step=step).split(",") for step in (103, 101, 100) for factor in (1, 2)]
    for cells, batch in zip(lines, (256, 256, 128, 128, 64, 64)):
        cells[HEADER.split(",").index("global_batch")] = str(batch)
    return sweep(tmp_path / "l.csv", [",".join(cells) for cells in lines], tensor_parallel=[1, 1, 2, 2, 4, 4])


def test_charts_of_different_batches_say_so(layouts):
    said = "global batch differs: 256 (tensor parallel 1), 128 (tensor parallel 2), 64 (tensor parallel 4)"
    for x in ("tensor_parallel", "capacity_factor"):
        for y, is_told in (("step_ms", True), ("attention_ms", True), ("tokens_per_s_per_gpu", False)):
            figure = draw(rows.read([layouts], "" if x == "capacity_factor" else "capacity_factor=1"), x=x, y=y)
            assert said in subtitle(figure)
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
    path = sweep(tmp_path / "l.csv", lines, failed=0, pipeline_parallel=[2] * 4 + [4] * 4,
                 virtual_pipeline=[1] * 4 + [8] * 4, pipeline_layout=["a"] * 4 + ["b"] * 4)
    said = "also differ: virtual pipeline"
    read = lambda: rows.read([path], "gpus=64,capacity_factor=1")  # noqa: E731
    for figure in (draw(rows.read([path], "capacity_factor=1")), draw(read(), x="pipeline_parallel"),
                   scaling_chart.scaling(rows.read([path], "capacity_factor=1"), None, SIZE, ""),
                   breakdown_chart.breakdown(read(), None, SIZE, ""), pareto_chart.pareto(read(), None, SIZE, ""),
                   sweep_chart.draw(path, None, "", where="gpus=64"), loss_chart.draw(path, "", where="gpus=64")):
        texts = " ".join(" ".join(text.get_text() for text in figure.texts).split())
        assert said in texts and "pipeline layout" not in texts
    assert "also differ: pipeline parallel" in draw(rows.read([path]), group=["virtual_pipeline"], x="gpus", facet="capacity_factor").texts[1].get_text()
    assert "differ" not in draw(rows.read([path], "pipeline_parallel=2,capacity_factor=1")).texts[1].get_text()


def test_bars_and_points_of_different_batches_name_them(layouts):
    def bars(where, group=None):
        figure = breakdown_chart.breakdown(rows.read([layouts], where), group, SIZE, "")
        return [text.get_text() for text in figure.axes[0].get_yticklabels()], subtitle(figure)
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
        figure = compare_chart.compare(table(), "capacity_factor", y, None, SIZE, "")
        assert " ".join(figure.texts[0].get_text().split()) == title
