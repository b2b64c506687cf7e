"""Files that charts are drawn of and written to."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from command_line import BINARY, SMALL, moesim, needs_binary
from plot_options import small_options  # noqa: F401 (a fixture)
from plot_sweeps import HEADER, row
import plotter  # noqa: F401 (puts the modules below on the path)

import chart_file
import plot
import sweep_chart


def lines_of(axes):
    return [(list(line.get_xdata()), [round(float(value), 6) for value in line.get_ydata()])
            for line in axes.get_lines()]


def test_predicted_speeds_are_not_taken_for_measured(two_routers, tmp_path, capsys):
    predicted = tmp_path / "predicted.csv"
    predicted.write_text("router,capacity_factor,tokens_per_s_per_gpu,provenance\ntop1,1,9,x\n")
    out = tmp_path / "x.png"
    assert plot.main(["sweep", str(two_routers), "--measured", str(predicted), "--out",
                      str(out)]) == plot.EXIT_USAGE
    assert "predicted, not measured" in capsys.readouterr().err
    assert not out.exists()


BAD_FILES = [
    ("", "line 1: column status is missing"),
    ("status,router\nok,top1\n", "column capacity_factor is missing"),
    (HEADER + row("top1", 1, 1, "", "", status="refused"), "no row with status ok"),
    (HEADER + row("dense", "", 100, "", ""), "capacity factor"),
    (HEADER + row("top1", 1, 100, 0, 0).replace(",0,0", ",x,0"), "line 2, column failed: 'x'"),
    (HEADER + row("top1", 1, 100, 0, 0).replace(",10000.0,", ",,"), "line 2, column tokens_per_s_per_gpu: a number is missing"),
    # Cut short behind the last column that a chart needs, and with one cell too many.
    (HEADER.strip() + ",note\n" + row("top1", 1, 100, 0, 0), "line 2: 13 fields, but the header has 14"),
    (HEADER + row("top1", 1, 100, 0, 0) + "\n" + row("top1", 2, 100, 0, "0,0"), "line 4: 14 fields, but the header has 13"),
    (HEADER + row("top1", 1, 100, 0, 0) + row("top1", 2, 100, 0, 0, model="caf\u00e9"), "line 3: byte 0xe9 is no UTF-8"),
]


@pytest.mark.parametrize(("text", "message"), BAD_FILES)
def test_a_file_that_cannot_be_drawn_says_why(text, message, tmp_path, capsys):
    path = tmp_path / "s.csv"
    path.write_text(text, encoding="latin-1")
    out = tmp_path / "x.png"
    assert plot.main(["sweep", str(path), "--out", str(out)]) == plot.EXIT_USAGE
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_a_file_of_a_spreadsheet_is_drawn(two_routers):
    path = Path(two_routers)
    plain = lines_of(sweep_chart.draw(two_routers, None, "").axes[0])
    path.write_text(path.read_text().replace(",m,", ",caf\u00e9,").replace("\n", "\r\n"), encoding="utf-8-sig")
    figure = sweep_chart.draw(two_routers, None, "")
    assert lines_of(figure.axes[0]) == plain and figure.texts[0].get_text().startswith("caf\u00e9 on 32 x a100")


@pytest.mark.parametrize(("suffix", "is_told"), [("png", True), ("svg", False)])
def test_letters_that_the_font_lacks_are_told(two_routers, tmp_path, capsys, suffix, is_told):
    out, title = tmp_path / f"x.{suffix}", "\u6a21\u578b: \u6a21 of caf\u00e9"
    assert plot.main(["sweep", two_routers, "--title", title, "--out", str(out)]) == 0
    said = capsys.readouterr().err
    assert said == (f"warning: {out}: boxes stand for letters that the font of charts lacks: \u6a21 \u578b; "
                    "an .svg holds them as text\n" if is_told else "")
    assert suffix != "svg" or title in out.read_text(encoding="utf-8")


def test_a_chart_is_written_whole_or_not_at_all(two_routers, tmp_path, capsys):
    assert plot.main(["sweep", two_routers, "--out", str(tmp_path / "no" / "x.png")]) == 1
    assert "cannot write" in capsys.readouterr().err
    (tmp_path / "d.png").mkdir()
    assert plot.main(["sweep", two_routers, "--out", str(tmp_path / "d.png")]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.png", "s.csv"]


def test_of_a_link_the_chart_that_it_leads_to_is_written(two_routers, tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "a.png").symlink_to("far/chart.png")
    assert plot.main(["sweep", str(two_routers), "--out", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").is_symlink()
    assert [entry.name for entry in (tmp_path / "far").iterdir()] == ["chart.png"]
    assert (tmp_path / "far" / "chart.png").read_bytes().startswith(b"\x89PNG")
    # The name that was asked for says of which kind it is.
    (tmp_path / "b.svg").symlink_to("far/4a7d1ed4")
    assert plot.main(["sweep", str(two_routers), "--out", str(tmp_path / "b.svg")]) == 0
    assert "<svg" in (tmp_path / "far" / "4a7d1ed4").read_text(encoding="utf-8")


@needs_binary
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_plotter_too_and_leaves_nothing(tmp_path, number):
    """Of a batch system or a parent, which sends it to the command alone."""
    rows = tmp_path / "rows.csv"
    assert moesim("sweep", *SMALL, "--out", rows).returncode == 0
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] && exit 0\necho $$ > plotter.pid\nexec sleep 60\n')
    python.chmod(0o755)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen([BINARY, "plot", str(rows), "--out", "chart.png"], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "MOESIM_PYTHON": str(python), "TMPDIR": str(temporary)},
                               preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))  # nohup's is ignored
    plotter = tmp_path / "plotter.pid"
    while not (plotter.exists() and plotter.read_text().endswith("\n")):
        assert process.poll() is None
        time.sleep(0.01)
    assert list(temporary.iterdir())
    process.send_signal(number)
    assert "interrupted: no result is kept" in process.communicate(timeout=30)[1] and process.returncode == 130
    assert not list(temporary.iterdir())
    status = Path(f"/proc/{plotter.read_text().strip()}/status")
    deadline = time.monotonic() + 30
    while status.exists() and "State:\tZ" not in status.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_chart_that_is_replaced_keeps_its_permissions(tmp_path):
    chart = tmp_path / "chart.svg"
    chart.write_text("before")
    chart.chmod(0o640)
    chart_file.save("<svg/>", str(chart))
    assert chart.read_text() == "<svg/>" and chart.stat().st_mode & 0o777 == 0o640
