"""What charts say of steps that barely fit in memory, or that the host limits, as the table of moesim train does."""

import pytest
from plot_rows import HEADER, options, row  # noqa: F401 (options: a fixture)
from plotter import SIZE

from matplotlib import pyplot

import axes_chart
import breakdown_chart
import pareto_chart
import rows
import sweep_chart

FITS = {"": True, "TIGHT": True, "host limits": True, '"TIGHT, host limits"': True, '"does not fit, host limits"': False}


@pytest.fixture(name="steps")
def fixture_steps(tmp_path):
    lines = [HEADER + ",failed,warnings"]
    for place, (warnings, fits) in enumerate(FITS.items()):
        lines.append(row(factor=1 + place, step=100 + place, fits=fits) + f",0.1,{warnings}")
    path = tmp_path / "steps.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def texts_of(figure):
    found = " ".join(text.get_text().replace("\n", " ") for text in figure.texts)
    pyplot.close(figure)
    return found


def test_charts_count_steps_that_are_tight_or_wait_for_the_host(steps):
    table = lambda: rows.read([steps])  # noqa: E731
    for figure in (axes_chart.draw(table(), "capacity_factor", ["step_ms"], None, None, SIZE, ""),
                   pareto_chart.pareto(table(), None, SIZE, ""), sweep_chart.draw(steps, "", "")):
        text = texts_of(figure)
        assert "2 of 5 TIGHT in GPU memory" in text and "host limits 3 of 5 steps" in text
        assert "1 of 5 do not fit in GPU memory" in text
    fitting = texts_of(sweep_chart.draw(steps, "", "", fits_only=True))
    assert "2 of 4 TIGHT in GPU memory" in fitting and "host limits 2 of 4 steps" in fitting


def test_bars_have_the_words_of_their_rows(steps):
    figure = breakdown_chart.breakdown(rows.read([steps]), None, SIZE, "")
    labels = [label.get_text().replace("\n", " ") for label in figure.axes[0].get_yticklabels()]
    ends = [label.partition(" (")[2].rstrip(")") for label in labels]
    assert ends == [words.strip('"') for words in FITS]
    pyplot.close(figure)


def test_rows_of_other_commands_have_no_warnings(tmp_path):
    path = tmp_path / "sweep.csv"
    path.write_text("\n".join([HEADER, row(factor=1), row(factor=2)]) + "\n")
    text = texts_of(axes_chart.draw(rows.read([str(path)]), "capacity_factor", ["step_ms"], None, None, SIZE, ""))
    assert "TIGHT" not in text and "host" not in text
