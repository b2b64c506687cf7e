"""Published accuracy over predicted speeds: the shipped study, and what its chart shows."""

import json
from pathlib import Path

import pytest
from command_line import moesim, needs_binary
from plot_options import OPTIONS, document, small_options  # noqa: F401 (a fixture)
from plot_sweeps import row, sweep_file
import plotter  # noqa: F401 (puts the modules below on the path)

import accuracy_chart
import chart_data
import sweep_series

ROOT = Path(__file__).resolve().parents[3]
STUDY = ROOT / "profiles" / "studies" / "zeng2024-accuracy.json"


@pytest.fixture
def files(tmp_path):
    """A sweep of three scenarios and a study of two benchmarks."""
    study = tmp_path / "study.json"
    rows = [("low", "top1", "1.0", [40, 60]), ("low", "top1", "0.50", [30, 50]),
            ("again", "top1", "1", [40, 60]), ("low", "top2", "2", [41, 61]),
            ("left out", "top1", "1", [90, 90]), ("low", "dense", None, [20, 30])]
    study.write_text(json.dumps({
        "format": "moesim accuracy 1", "name": "study", "title": "T", "source": "S",
        "benchmarks": ["A", "B"], "tables": {}, "charted": ["low", "again"],
        "rows": [{"table": table, "router": router, "scores": scores,
                  **({"capacity_factor": factor} if factor else {})}
                 for table, router, factor, scores in rows]}))
    return sweep_file(tmp_path, [row("top1", 1, 100, 0, 0), row("top1", 0.5, 50, 0, 0), row("dense", "", 80, 0, 0)]), str(study)


def test_rows_meet_the_speed_of_their_scenario(files):
    sweep, study = files
    series, _, _ = sweep_series.read_sweep(sweep)
    lines, absent = accuracy_chart.join(series, accuracy_chart.read_study(study))
    # top2 is not in the sweep; the measurement that two tables print is one point.
    assert absent == 1
    assert {router: [(point.capacity_factor, point.speed, point.mean) for point in points]
            for router, points in lines.items()} == {
        "dense": [(None, 12500, 25)], "top1": [(0.5, 20000, 40), (1, 10000, 50)]}


def test_the_figure_has_a_panel_for_the_mean_and_for_each_benchmark(files):
    figure = accuracy_chart.draw(*files, "")
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "mean of 2 benchmarks; numbers: capacity factor", "A", "B"]
    shown = [[tuple(line.get_ydata()) for line in axes.get_lines()] for axes in figure.axes]
    assert shown == [[(25,), (40, 50)], [(20,), (30, 40)], [(30,), (50, 60)]]
    assert [text.get_text() for text in figure.axes[0].texts] == ["0.5", "1"]
    assert "1 point of the study not in the sweep" in " ".join(
        text.get_text() for text in figure.texts)


def test_numbers_cover_no_marker_and_no_other(tmp_path):
    """Points of the shipped study on speeds that hardly differ, as padded ones of one capacity do."""
    routers = [f"top{k}{suffix}" for k in (1, 2) for suffix in ("", "+fr", "+ir", "+fr+ir")]
    sweep = sweep_file(tmp_path, [row(router, factor, 100 * factor + place, 0, 0) for place, router in enumerate(routers)
                                  for factor in (0.5, 1, 1.5, 2)])
    mean = accuracy_chart.draw(sweep, STUDY, "").axes[0]
    mean.figure.canvas.draw()
    boxes = [text.get_window_extent() for text in mean.texts]
    points = [mean.transData.transform(point) for line in mean.lines for point in zip(*line.get_data())]
    assert len(points) == 16 and len(boxes) >= 14
    assert not any(one.overlaps(other) for at, one in enumerate(boxes) for other in boxes[:at])
    assert not any(box.contains(*point) for box in boxes for point in points)


def test_a_router_with_two_speeds_is_refused(files, tmp_path):
    sweep = sweep_file(tmp_path, [row("top1", 1, 100, 0, 0), row("top1", 1, 300, 0, 0, mode="train")])
    with pytest.raises(chart_data.BadInput, match="several speeds"):
        accuracy_chart.draw(sweep, files[1], "")


def test_shipped_study_meets_its_schema():
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    schema = json.loads((ROOT / "profiles" / "schema" / "accuracy.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    study = json.loads(STUDY.read_text())
    assert not list(jsonschema.Draft7Validator(schema).iter_errors(study))
    assert study["name"] == STUDY.stem
    assert {one["table"] for one in study["rows"]} == set(study["tables"])
    assert set(study["charted"]) <= set(study["tables"])
    assert {len(one["scores"]) for one in study["rows"]} == {len(study["benchmarks"])}


def test_shipped_figures_are_the_quoted_ones():
    """The two gains that the paper states as its result, in mean accuracy: 40.40 for top-1 with IR
    at half the capacity against 38.74, and 40.01 for top-2 against 39.82."""
    study = json.loads(STUDY.read_text())
    mean = {(one["router"], one["capacity_factor"]): sum(one["scores"]) / 4
            for one in study["rows"] if one["table"] == "low-capacity"}
    assert mean["top1+ir", "0.5"] == pytest.approx(40.40, abs=0.011)
    assert mean["top1", "1"] == pytest.approx(38.74, abs=0.011)
    assert mean["top2+ir", "1"] == pytest.approx(40.01, abs=0.011)
    assert mean["top2", "2"] == pytest.approx(39.82, abs=0.011)


@needs_binary
def test_the_command_draws_it(files, tmp_path):
    sweep, study = files
    out = tmp_path / "x.png"
    result = moesim("plot", sweep, "--accuracy", study, "--out", out)
    assert result.returncode == 0, result.stderr
    assert out.read_bytes()[:4] == b"\x89PNG"
    for words, message in ((("--accuracy", "nosuch"), "zeng2024-accuracy"),
                           (("--accuracy", "zeng2024-speeds"), "key 'table' is missing"),
                           (("--accuracy", study, "--chart", "loss"), "leave one of them out")):
        refused = moesim("plot", sweep, *words, "--out", tmp_path / "y.png")
        assert refused.returncode == 2 and message in refused.stderr, refused.stderr


def test_the_text_above_has_two_lines(files, tmp_path, small_options):  # noqa: F811
    """What the model says already gives way."""
    more = {"dispatch": "einsum", "experts": "8", "expert_parallel": "8", "tokens_per_gpu": "16384", "routing": "gaussian:0.1"}
    small_options.write_text(json.dumps(document(options=(*OPTIONS, *(name for name in more if name not in OPTIONS)))))
    long = {"profile": "a-gpu-and-its-software", "model": "a-model-of-eight-experts-and-a-long-name"}
    lines = [row(router, factor, 100, 0, 0, **long) for router, factor in (("top1", 1), ("top1", 0.5), ("dense", ""))]
    path = sweep_file(tmp_path, lines, **more)
    above = accuracy_chart.draw(path, files[1], "").texts[-1].get_text()
    assert above.count("\n") < 2
    said = above.replace("\n", " ")
    assert said.startswith("Speed: a-model-of-eight-experts-and-a-long-name on 32 x a-gpu-and-its-software") and "(einsum)" in said and "1 point of the study not in the sweep" in said
    assert "Bars of speed: p05 to p95" in said and "tokens per GPU" not in said
