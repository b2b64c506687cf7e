"""Subtitles of two lines: what follows from the model, or a label says, is left out where there is no room."""

import json

import pytest
from plot_options import document
import plotter  # noqa: F401 (puts the modules below on the path)
from matplotlib import pyplot

import axes_chart
import breakdown_chart
import scaling_chart
import look
import loss_chart
import page
import pareto_chart
import rows
import speed_bands
import sweep_chart


OPTIONS = ("model", "profile", "router", "gpus", "expert_parallel", "experts", "mode", "dispatch", "sequence_length", "tokens_per_gpu",
           "routing", "capacity_factor", "global_batch", "fidelity")
RESULTS = ("status", "step_ms", "step_ms_p05", "step_ms_p50", "step_ms_p95", "tokens_per_s_per_gpu", "failed", "residual_loss",
           "padded", "fits_memory", "replicas", "attention_ms", "other_ms")
WHERE = "gpus=1|8|64|512,experts=128"


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Of many things to say: two fidelities, what does not fit, replicas, a level, an option that follows."""
    described = document(options=OPTIONS, results=RESULTS)
    for option in described["options"]:
        follows = option["column"] in ("gpus", "expert_parallel", "global_batch", "fidelity")
        option["default"] = "what others say" if follows else "x"
    described["columns"] += [{"name": name, "role": "part", "unit": "ms"} for name in ("attention_ms", "other_ms")]
    (tmp_path / "options.json").write_text(json.dumps(described))
    monkeypatch.setenv("MOESIM_OPTIONS", str(tmp_path / "options.json"))
    lines = [",".join((*OPTIONS, *RESULTS))]
    for gpus in (1, 8, 64, 512):
        for factor in (1, 1.5):
            step = 100 * factor + gpus / 10
            cells = ("qwen3-30b-a3b", "h100-sxm", "top8", gpus, min(gpus, 8), 128, "train", "index", 4096, 4096, "gaussian:0.1", factor, gpus,
                     "tokens" if gpus < 64 else "counts", "ok", step, 0.9 * step, 1.04 * step, 1.17 * step, 1e6 / step, 0.1, 0.05, 0.1,
                     "true" if gpus > 8 else "false", 16, 0.6 * step, 0.4 * step)
            lines.append(",".join(map(str, cells)))
    path = tmp_path / "s.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_subtitles_have_two_lines_and_what_a_reader_needs(sweep):
    table = lambda: rows.read([sweep], WHERE)  # noqa: E731
    size = page.Size()
    bars = breakdown_chart.breakdown(table(), None, size, "")
    for figure in (bars, scaling_chart.scaling(table(), None, size, ""), pareto_chart.pareto(table(), None, size, ""),
                   axes_chart.draw(table(), "gpus", ["step_ms"], None, None, size, ""), sweep_chart.draw(sweep, None, "", where=WHERE),
                   loss_chart.draw(sweep, "", where=WHERE)):
        under = figure.texts[1].get_text()
        assert under.count("\n") < 2
        said = under.replace("\n", " ")
        assert "training step" in said and "gaussian:0.1" in said and "also differ: expert parallel" in said
    said = bars.texts[1].get_text().replace("\n", " ")
    assert f"where {WHERE}" in said and "small differences are chance" in said and "global batch: 1 per GPU" in said
    assert "fidelity" not in said and "128 experts," not in said
    assert said.endswith("Measured steps: likely 1.04 times these (90 %: 0.9 to 1.17)")
    assert any("(does not fit)" in text.get_text() for text in bars.axes[0].get_yticklabels())


def test_what_has_room_stays():
    figure = pyplot.figure()
    parts = ["needed", look.Minor("first"), look.Minor("last"), "also needed"]
    text = look.Subtitle(parts, ["", "A sentence"])
    assert text == "needed, first, last, also needed. A sentence"
    assert look.wrapped_subtitle(figure, text, 9, 10) == text
    assert text.shorter() == "needed, first, also needed. A sentence"
    lines = look.wrapped_subtitle(figure, text, 1.5, 10)
    assert " ".join(lines.split()) in ("needed, first, also needed. A sentence", "needed, also needed. A sentence")
    assert look.Subtitle(["needed"]).shorter() is None


@pytest.mark.parametrize("value, text", [(0.567, "0.57"), (0.996, "1"), (1.04, "1.04"), (1.5, "1.5"), (2, "2"), (3.987, "3.99"), (12.3, "12")])
def test_times_have_two_digits_behind_the_first(value, text):
    rows_of = [{"step_ms": "1", "step_ms_p50": str(value), "step_ms_p05": "", "step_ms_p95": ""}]
    assert speed_bands.level_text(rows_of, of_steps=True) == f"Measured steps: likely {text} times these"
