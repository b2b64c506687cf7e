"""moesim plot of what was measured beside what was predicted: layers of `validate layer`, and a step with its traces."""

import json

import pytest
from command_line import expect_error, moesim, needs_binary, succeed
import plotter  # noqa: F401 (puts the modules below on the path)

import measured_chart


def bars_of(figure):
    """(predicted, measured): lengths of the bars, top down."""
    return [[bar.get_width() for bar in container] for container in figure.axes[0].containers]


def labels_of(figure):
    return [text.get_text() for text in figure.axes[0].get_yticklabels()]


def check(subject, measured, predicted, **more):
    error = predicted / measured - 1 if measured else None
    return {"study": "s", "subject": subject, "role": "check", "unit": "ms", "measured": measured, "predicted": predicted,
            "error": error, **more}


def validation(tmp_path, rows):
    file = tmp_path / "v.json"
    file.write_text(json.dumps({"rows": rows, "verdicts": [], "bands": []}))
    return str(file)


def test_measured_layers_lie_beside_their_predictions(tmp_path):
    rows = [check("forward: experts", None, 3000, role="part", unit="us"), check("forward", 4, 5), check("backward", 8, 6),
            check("shared a GPU", None, 0, role="excluded")]
    figure = measured_chart.draw_checks(validation(tmp_path, rows), "")
    assert bars_of(figure) == [[5, 6], [4, 8]]
    assert labels_of(figure) == ["forward", "backward"]
    assert [text.get_text() for text in figure.axes[0].texts] == ["+25.0 %", "-25.0 %"]


def test_a_measured_step_lies_beside_the_simulated_part_by_part(tmp_path):
    part = {"simulated_ms": 10.0, "measured_ms": 15.0, "difference_ms": 5.0, "ratio_low": 0.9, "ratio_high": 1.2}
    file = tmp_path / "e.json"
    file.write_text(json.dumps({"simulated_ms": 20, "measured_ms": 1245, "multiplier": 62.25, "terms": [], "parts_exposed": [
        {"parts": ["dense_ffn"], **part}, {"parts": ["router", "dispatch_combine"], **part, "difference_ms": 1234.5},
        {"parts": ["other"], **part, "simulated_ms": 0.001, "measured_ms": 0.002},
        {"parts": ["idle"], "simulated_ms": 0, "measured_ms": 0.5, "difference_ms": 0.5}]}))
    figure = measured_chart.draw_explained(str(file), "")
    assert labels_of(figure) == ["dense FFN", "router, permute, unpermute", "no kernel runs"]  # not what is next to nothing
    assert bars_of(figure) == [[10, 10, 0], [15, 15, 0.5]]
    assert [text.get_text() for text in figure.axes[0].texts] == ["+5.00 ms", "+1,234 ms", "+0.500 ms"]
    ends = [list(line.get_xdata()) for line in figure.axes[0].lines]
    assert ends == [[pytest.approx(9), pytest.approx(12)]] * 2


@needs_binary
def test_plot_takes_the_json_of_validate_layer_and_of_explain(tmp_path):
    result = moesim("validate", "layer", "--out", tmp_path / "layer.json")
    assert result.returncode in (0, 5), result.stderr  # 5: a bar is not met
    succeed("plot", tmp_path / "layer.json", "--out", tmp_path / "layer.svg")
    assert "deepep, bf16, forward" in (tmp_path / "layer.svg").read_text()
    job = ("--gpus", 2, "--expert-parallel", 2, "--replicas", 1, "--sequence-length", 512, "--micro-batch", 1, "--router", "top2")
    succeed("simulate", *job, "--timeline", tmp_path / "rank{rank}.json")
    succeed("explain", tmp_path / "rank0.json", tmp_path / "rank1.json", *job, "--out", tmp_path / "e.json")
    succeed("plot", tmp_path / "e.json", "--out", tmp_path / "e.svg")
    assert "expert FFN" in (tmp_path / "e.svg").read_text()


@needs_binary
def test_more_measurements_than_can_be_read_are_refused(tmp_path):
    file = validation(tmp_path, [check(str(number), 1, 1) for number in range(41)])
    expect_error(moesim("plot", file, "--out", tmp_path / "x.png"), 2, "41 measurements are too many", "as a table")
