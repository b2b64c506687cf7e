"""Figures that a chart cannot draw: measured points without a place, times and speeds that are none."""

from pathlib import Path

import pytest
from plot_options import small_options  # noqa: F401 (a fixture)
from plot_sweeps import row, sweep_file
import plotter  # noqa: F401 (puts the modules below on the path)

import plot
import sweep_chart


MEASURED = "router,capacity_factor,tokens_per_s_per_gpu,mode,source\n"


def measured(folder, lines):
    path = folder / "m.csv"
    path.write_text(MEASURED + "\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize(("lines", "note"), [
    (["top1,1,9000,prefill,x"], None),
    (["top1,1,9000,prefill,x", "top4,1,9000,prefill,x", "top4,2,9000,prefill,x"], "top4 (not in the sweep)"),
    ([f"top{k},1,9000,," for k in range(3, 9)], "top3, top4, top5, top6 and 2 more (not in the sweep)"),
    (["top1,,9000,,", "top4,1,9000,,", "top1,1,3000,train,x"],
     "top4 (not in the sweep); 1 without a capacity factor; 1 of another mode")])
def test_measured_points_without_a_place_are_named(tmp_path, lines, note):
    sweep = sweep_file(tmp_path, [row("top1", factor, 100 * factor, 0.1, 0.1) for factor in (1, 2)])
    under = " ".join(sweep_chart.draw(sweep, measured(tmp_path, lines), "").texts[1].get_text().split())
    assert under.partition("measured points left out: ")[2] == (note or "")


BAD = [("step_ms", "0", "is no time or speed"), ("step_ms", "-1", "is no time or speed"), ("step_ms", "nan", "is not a number"),
       ("tokens_per_s_per_gpu", "inf", "is not a number"), ("tokens_per_s_per_gpu", "1e308", "is beyond what charts show"),
       ("step_ms_p95", "0", "is no time or speed")]


@pytest.mark.parametrize("kind", [("sweep",), ("breakdown",), ("pareto",), ("axes", "--x", "capacity_factor")])
@pytest.mark.parametrize(("column", "text", "reason"), BAD)
def test_a_time_or_speed_that_is_none_is_named(tmp_path, capsys, kind, column, text, reason):
    path = Path(sweep_file(tmp_path, [row("top1", factor, 100 * factor, 0.1, 0.1) for factor in (1, 2)]))
    header, first, second = path.read_text().splitlines()
    names = header.split(",")
    cells = second.split(",")
    cells[names.index(column)] = text
    path.write_text("\n".join([header + ",step_ms_p50,other_ms", first + ",150,1", ",".join(cells) + ",150,1"]) + "\n")
    chart, *words = kind
    out = tmp_path / "x.svg"
    assert plot.main([chart, str(path), *words, "--out", str(out)]) == plot.EXIT_USAGE
    assert f"{path}: line 3, column {column}: '{text}' {reason}" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("text", ["0", "nan"])
def test_a_measured_speed_that_is_none_is_named(tmp_path, capsys, text):
    sweep = sweep_file(tmp_path, [row("top1", factor, 100 * factor, 0.1, 0.1) for factor in (1, 2)])
    path = measured(tmp_path, [f"top1,1,{text},,"])
    assert plot.main(["sweep", sweep, "--measured", path, "--out", str(tmp_path / "x.svg")]) == plot.EXIT_USAGE
    assert f"{path}: line 2, column tokens_per_s_per_gpu: '{text}' is" in capsys.readouterr().err
