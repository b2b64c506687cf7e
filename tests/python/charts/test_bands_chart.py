"""moesim plot of the bands that `validate training` judged."""

import json
from pathlib import Path

import pytest
from command_line import expect_error, moesim, needs_binary, succeed

pytestmark = needs_binary


def document(rows):
    return json.dumps({"rows": [], "verdicts": [], "bands": rows})


def row(kind, level, inside, points=20):
    return {"left_out": kind, "level": level, "points": points, "inside": inside, "log_width": level}


def test_bands_are_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    file = tmp_path / "training.json"
    file.write_text(document([row("a model left out", level / 10, level / 10) for level in range(1, 10)]))
    out = tmp_path / "bands.svg"
    succeed("plot", file, "--out", out, "--title", "a title of its own")
    first = out.read_bytes()
    succeed("plot", file, "--out", out, "--title", "a title of its own")
    assert out.read_bytes() == first and len(first) > 10000


def test_many_tables_of_few_groups_share_one_name(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    rows = [{**row(f"table {number}", level / 10, level / 10), "groups": 12 if number < 3 else 5}
            for number in range(14) for level in range(1, 10)]
    file = tmp_path / "exchanges.json"
    file.write_text(document(rows))
    out = tmp_path / "bands.svg"
    succeed("plot", file, "--out", out)
    drawn = out.read_text()
    for number in range(3):
        assert f"table {number} (20 points, 12 groups)" in drawn
    assert "table 3" not in drawn and "11 tables of fewer than 9 groups" in drawn
    # Few tables are all named.
    file.write_text(document(rows[:9 * 5]))
    succeed("plot", file, "--out", out)
    assert "table 4 (20 points, 5 groups)" in out.read_text()


@pytest.mark.parametrize("widest", [0.02, 0.3, 3])  # upper end over lower end: 1.02, 1.35, 20
def test_the_axis_of_widths_has_labels(tmp_path, monkeypatch, widest):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed").use("Agg")
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3] / "tools" / "plot"))
    import bands_chart
    file = tmp_path / "speeds.json"
    file.write_text(document([{**row("a speed left out", level / 10, level / 10), "log_width": level / 9 * widest}
                              for level in range(1, 10)]))
    width = bands_chart.draw(str(file), "").axes[1]
    width.figure.canvas.draw()
    low, high = width.get_ylim()
    labels = [label.get_text() for label in width.get_yticklabels() if low <= label.get_position()[1] <= high]
    assert len(labels) >= 3 and len(set(labels)) == len(labels) and all(float(text) > 0 for text in labels)


@pytest.mark.parametrize("count", [1, 7])
def test_the_legend_lies_right_below_the_panels(tmp_path, monkeypatch, count):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed").use("Agg")
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3] / "tools" / "plot"))
    import bands_chart
    file = tmp_path / "speeds.json"
    file.write_text(document([row(f"speed {number} left out", level / 10, level / 10) for number in range(count) for level in range(1, 10)]))
    figure = bands_chart.draw(str(file), "")
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    legend = figure.legends[0].get_window_extent(renderer)
    lowest = min(axes.get_tightbbox(renderer).y0 for axes in figure.axes)
    assert 0 <= legend.y0 and 0 <= lowest - legend.y1 < 0.35 * figure.dpi
    assert figure._suptitle.get_text() == "How often left-out measurements lie inside the band"


def test_the_title_names_the_studies(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed").use("Agg")
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3] / "tools" / "plot"))
    import bands_chart
    file = tmp_path / "speeds.json"
    verdicts = [{"study": study, "text": "", "met": None} for study in ("zeng2024-speeds", "zeng2024-speeds", "training")]
    file.write_text(json.dumps({"rows": [], "verdicts": verdicts, "bands": [row("a speed left out", level / 10, level / 10) for level in range(1, 10)]}))
    assert bands_chart.draw(str(file), "")._suptitle.get_text() == (
        "zeng2024-speeds, training: how often left-out measurements lie inside the band")
    assert bands_chart.draw(str(file), "mine")._suptitle.get_text() == "mine"


@pytest.mark.parametrize(("text", "part"), [
    (document([]), "no bands and no measured times: moesim validate prints what it found as a table"),
    (document([{"left_out": "a model", "level": 0.9}]), "a row has no points"),
])
def test_a_document_without_them_is_named(tmp_path, text, part):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    file = tmp_path / "training.json"
    file.write_text(text)
    expect_error(moesim("plot", file, "--out", tmp_path / "bands.png"), 2, "training.json", part)
