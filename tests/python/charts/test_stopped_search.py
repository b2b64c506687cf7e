"""Charts of rows that moesim recommend wrote when its search was stopped say so."""

import json

import pytest
from plot_options import document
import plotter  # noqa: F401 (puts the modules below on the path)

import front_chart
import page
import pareto_chart
import report_page
import rows
import stopped

USUAL = {"status": "ok", "model": "m", "profile": "h100-sxm", "cluster": "hgx-h100", "router": "top8", "gpus": 8, "capacity_factor": 1,
         "step_ms": 100, "tokens_per_s_per_gpu": 1000, "residual_loss": 0, "on_front": "true"}


@pytest.fixture(autouse=True)
def options(tmp_path_factory, monkeypatch):
    described = document(options=("model", "profile", "cluster", "router", "gpus", "capacity_factor"))
    path = tmp_path_factory.mktemp("options") / "options.json"
    path.write_text(json.dumps(described))
    monkeypatch.setenv("MOESIM_OPTIONS", str(path))


def found(*lines):
    """Rows as a CSV has them: texts."""
    return [{name: str(value) for name, value in {**USUAL, **line}.items()} for line in lines]


def table(folder, lines):
    path = folder / "s.csv"
    path.write_text("\n".join(",".join(cells) for cells in (lines[0], *(line.values() for line in lines))) + "\n")
    return rows.read([str(path)])


def ranked(*gains, loss=0.0):
    """The best of a search, by how much others may be faster than each: 0 where it is proven."""
    return found(*({"rank": place + 1, "proven": "true" if gain == 0 else "false", "unproven_gain": gain, "residual_loss": loss * place,
                    "tokens_per_s_per_gpu": 1000 - place} for place, gain in enumerate(gains)))


@pytest.mark.parametrize(("lines", "told"), [
    (ranked(0, 0), []),
    (ranked(0.0041, 0.02), ["search stopped: not proven, others may be up to 0.4 % faster than 1"]),
    (ranked(0, 0.02), ["search stopped: not proven, others may be up to 2.0 % faster than 2"]),
    (ranked("", ""), ["search stopped: not proven, others may be faster than 1, by how much is not known"]),
    (found({"rank": 1, "proven": "true", "unproven_gain": 0}, {"rank": "", "proven": "false", "unproven_gain": ""}),
     ["search stopped: points of the front beside the best are not proven"]),
    (found({"gpus": 8, "scaling_pays": "true", "rank": 1, "proven": "false", "unproven_gain": 0.01},
           {"gpus": 16, "scaling_pays": "false", "rank": 1, "proven": "false", "unproven_gain": 0.03}),
     ["search stopped: not proven, others may be up to 3.0 % faster than the best on 16 GPUs"]),
    (found({"profile": "h200-sxm", "cheapest": "false", "rank": 1, "proven": "false", "unproven_gain": 0.01},
           {"profile": "b200-sxm", "cheapest": "true", "rank": 1, "proven": "false", "unproven_gain": 0.03}),
     ["search stopped: not proven, others may be up to 3.0 % faster than the best on b200-sxm"]),
    (found({}), [])])  # no search
def test_what_is_not_proven_is_said_with_its_figure(lines, told):
    assert stopped.notes(lines) == told


@pytest.mark.parametrize("loss", [0, 0.01])  # bars, and the front
@pytest.mark.parametrize("gain", [0, 0.004])
def test_the_chart_of_a_stopped_search_says_so(loss, gain):
    figure = front_chart.draw(ranked(gain, gain, loss=loss), 0, "")
    title = figure.axes[0].get_title(loc="left")
    assert title.startswith("m on 8 GPUs (")
    assert title.endswith("\nsearch stopped: not proven, others may be up to 0.4 % faster than 1") == (gain > 0)
    assert ("stopped" in title) == (gain > 0)


@pytest.mark.parametrize("gain", [0, 0.004])
def test_other_charts_of_its_rows_say_so_too(tmp_path, gain):
    read = table(tmp_path, ranked(gain, gain, loss=0.01))
    told = "search stopped: not proven, others may be up to 0.4 % faster than 1"
    figure = pareto_chart.pareto(read, None, page.Size(), "")
    assert any(told in " ".join(text.get_text().split()) for text in figure.texts) == (gain > 0)
    assert (told in report_page._notes(read)) == (gain > 0)


def through_pandas(lines):
    """As pandas writes what it has read, where a rank is blank."""
    def cell(name, value):
        if name == "rank":
            return f"{value}.0" if value else ""
        return value.capitalize() if value in ("true", "false") else value
    return [{name: cell(name, value) for name, value in line.items()} for line in lines]


@pytest.mark.parametrize("loss", [0, 0.01])  # bars, and the front
def test_rows_that_pandas_wrote_are_drawn_as_they_were(loss):
    lines = [*ranked(0, *[0.004] * 10, loss=loss), *found({"rank": "", "proven": "false", "unproven_gain": "", "residual_loss": loss * 12})]
    assert through_pandas(lines)[1]["rank"] == "2.0" and through_pandas(lines)[1]["proven"] == "False"
    whole, read = (texts_of(front_chart.draw(each, 0, "")) for each in (lines, through_pandas(lines)))
    assert read == whole
    assert any("faster than 2" in text for text in read)


def texts_of(figure):
    axes = figure.axes[0]
    legend = axes.get_legend()
    return [axes.get_title(loc="left"), *(text.get_text() for text in axes.texts), *(label.get_text() for label in axes.get_yticklabels()),
            *(text.get_text() for text in (legend.get_texts() if legend else []))]
