"""Charts of one sweep over another, and the bands of their ratios."""

import math
import re

import pytest
from command_line import moesim, needs_binary
from plot_rows import options, row, sweep  # noqa: F401 (options: a fixture)
from plotter import draw, drawn, SIZE

import compare_chart
import rows
from chart_data import BadInput


def test_one_sweep_over_another(tmp_path):
    first = sweep(tmp_path / "a.csv", [row("top1", factor=factor, step=100, profile="a") for factor in (1, 2)])
    second = sweep(tmp_path / "b.csv", [row("top1", factor=factor, step=50 * factor, profile="b")
                                        for factor in (2, 1, 3)])
    figure = compare_chart.compare(rows.read([first, second]), "capacity_factor", "tokens_per_s_per_gpu", None, SIZE, "")
    line = next(line for line in drawn(figure.axes[0]) if line.get_marker() == "o")
    assert list(line.get_xdata()) == [1, 2] and list(line.get_ydata()) == pytest.approx([2, 1])
    # Half widths of independent errors: ln 1.25 and ln 1/0.9 of either file, which has one band alone.
    low = min(figure.axes[0].collections[0].get_paths()[0].vertices[:, 1])
    assert low == pytest.approx(math.exp(-math.hypot(math.log(1.25), math.log(1 / 0.9))), rel=1e-6)
    assert "2 scenarios that both files have" in figure.texts[1].get_text()
    assert "profile b over profile a" in "".join(text.get_text() for text in figure.texts)
    with pytest.raises(BadInput, match="two sweeps"):
        compare_chart.compare(rows.read([first]), "capacity_factor", "step_ms", None, SIZE, "")
    refused = sweep(tmp_path / "r.csv", [row("top1", status="refused")])
    with pytest.raises(BadInput, match="r.csv: no row is left to compare: all were refused"):
        compare_chart.compare(rows.read([first, refused]), "capacity_factor", "step_ms", None, SIZE, "")


def measured_sweep(path, step, profile, likely):
    """Steps that likely take `likely` times as long if measured, and 99 to 101 % beside others of one machine."""
    lines = [row("top1", factor=factor, step=step, profile=profile) for factor in (1, 2)]
    return sweep(path, lines, step_ms_p50=likely * step, step_ms_same_p05=0.99 * step, step_ms_same_p95=1.01 * step)


@pytest.mark.parametrize(("y", "ratio", "power"), [("tokens_per_s_per_gpu", 2, 1), ("step_ms", 0.5, -1)])
def test_the_errors_of_files_of_two_machines_do_not_cancel(tmp_path, y, ratio, power):
    first = measured_sweep(tmp_path / "a.csv", 100, "a", 1)
    def drawn_band(second):
        figure = compare_chart.compare(rows.read([first, second]), "capacity_factor", y, None, SIZE, "")
        ends = figure.axes[0].collections[0].get_paths()[0].vertices[:, 1]
        return min(ends), max(ends), " ".join(figure.legends[0].get_texts()[-1].get_text().split())
    # Measured steps of 90 to 125 ms over 45 to 62.5, likely 100 over 55.
    low, high = math.hypot(math.log(1 / 0.9), math.log(1.25 / 1.1)), math.hypot(math.log(1.25), math.log(1.1 / 0.9))
    ends = sorted((100 / 55 * math.exp(end)) ** power for end in (-low, high))
    *band, words = drawn_band(measured_sweep(tmp_path / "b.csv", 50, "b", 1.1))
    assert band == pytest.approx(ends) and words == f"p05 to p95 {compare_chart.OF_TWO_MACHINES}"
    # On one machine these errors cancel, and what is left out is named.
    *band, words = drawn_band(measured_sweep(tmp_path / "c.csv", 50, "a", 1))
    wide = math.hypot(math.log(1.01), math.log(1 / 0.99))
    assert band == pytest.approx([ratio * math.exp(-wide), ratio * math.exp(wide)])
    assert words.startswith("p05 to p95 of the ratio on the same software and machine") and "without the scatter between" in words


@needs_binary
def test_a_baseline_counts_what_two_machines_share_and_a_comparison_of_files_does_not(tmp_path, monkeypatch):
    monkeypatch.delenv("MOESIM_OPTIONS")
    def swept(name, *words):
        path = tmp_path / name
        done = moesim("sweep", "--router", "top1", "--capacity-factor", 1, "--mode", "prefill", *words, "--out", path)
        assert done.returncode == 0, done.stderr
        return str(path)
    profiles = ("a100-sxm-80gb", "h100-sxm")
    files = [swept(f"{name}.csv", "--profile", name) for name in profiles]
    both = rows.read([swept("both.csv", "--profile", ",".join(profiles), "--baseline", "profile=a100-sxm-80gb")]).rows[1]
    figure = compare_chart.compare(rows.read(files), "capacity_factor", "tokens_per_s_per_gpu", None, SIZE, "")
    (_, low), (_, high) = figure.axes[0].collections[0].get_segments()[0]
    known = [float(both[f"speed_over_baseline_{end}"]) for end in ("p05", "p95")]
    assert 0.9 * known[0] > low and high > 1.1 * known[1]
    assert math.sqrt(known[0] * known[1]) == pytest.approx(math.sqrt(low * high), rel=0.1)
    assert "baseline counts what they share" in " ".join(figure.legends[0].get_texts()[-1].get_text().split())


def test_bands_of_training_steps_on_two_machines_are_those_of_measured_ones(tmp_path):
    def steps(name, step):
        path = tmp_path / f"{name}.csv"
        cells = f"top1,8,1,{name},{step},{1e6 / step},{0.9 * step},{step},{1.2 * step},0.8"
        path.write_text("status,router,gpus,capacity_factor,profile,step_ms,tokens_per_s_per_gpu,step_ms_low,step_ms_likely,"
                        f"step_ms_high,band_level\nok,{cells}\n")
        return str(path)
    figure = compare_chart.compare(rows.read([steps("a", 100), steps("b", 50)]), "capacity_factor", "step_ms", None, SIZE, "")
    (_, low), (_, high) = figure.axes[0].collections[0].get_segments()[0]
    wide = math.hypot(math.log(1.2), math.log(1 / 0.9))
    assert [low, high] == pytest.approx([0.5 * math.exp(-wide), 0.5 * math.exp(wide)])
    assert " ".join(figure.legends[0].get_texts()[-1].get_text().split()).startswith("80 % band of the ratio as measured")


def test_lines_that_their_bands_would_press_into_one_are_drawn_without(tmp_path):
    """Two lines a per cent apart, bands of two machines from a half to twice them: the axis is that of the lines."""
    def steps(name, step, routers):
        path = tmp_path / f"{name}.csv"
        lines = [f"ok,{router},8,{factor},{name},{time},{1e6 / time},{0.7 * time},{time},{1.4 * time},0.8"
                 for place, router in enumerate(routers) for factor in (1, 2) for time in [step * (1 + 0.01 * place)]]
        path.write_text("status,router,gpus,capacity_factor,profile,step_ms,tokens_per_s_per_gpu,step_ms_low,step_ms_likely,"
                        "step_ms_high,band_level\n" + "\n".join(lines) + "\n")
        return str(path)
    def compared(routers):
        files = [steps("a", 100, routers), steps("b", 99, routers[::-1])]
        figure = compare_chart.compare(rows.read(files), "capacity_factor", "step_ms", None, SIZE, "")
        return figure.axes[0], [" ".join(text.get_text().split()) for text in figure.legends[0].get_texts()]
    panel, entries = compared(["top1", "top2"])
    low, high = panel.get_ylim()
    assert high - low < 0.05 and not panel.collections
    wide = math.exp(math.hypot(math.log(1.4), math.log(1 / 0.7)))
    told = re.search(r"bands not drawn, far wider than the lines lie apart: ([\d.]+) to ([\d.]+), 80 % band of the ratio", entries[-1])
    assert [float(told[1]), float(told[2])] == pytest.approx([0.99 / 1.01 / wide, 0.99 * 1.01 * wide], abs=0.006)
    # One line has its band, however wide.
    panel, entries = compared(["top1"])
    assert panel.collections and not any("not drawn" in entry for entry in entries)


def test_files_without_capacity_factors_are_compared_over_what_differs(tmp_path):
    first = sweep(tmp_path / "a.csv", [row(gpus=gpus, factor="", profile="a") for gpus in (8, 16)])
    second = sweep(tmp_path / "b.csv", [row(gpus=gpus, factor="", profile="b") for gpus in (8, 16)])
    table = rows.read([first, second])
    assert rows.default_axis(table) == "gpus"
    figure = compare_chart.compare(table, "gpus", "step_ms", None, SIZE, "")
    assert list(drawn(figure.axes[0])[0].get_xdata()) == [8, 16]
    assert list(figure.axes[0].get_xticks()) == [8, 16]
    assert "profile a" not in figure.texts[1].get_text()
    for chart in (lambda table: compare_chart.compare(table, "capacity_factor", "step_ms", None, SIZE, ""),
                  lambda table: draw(table, x="capacity_factor")):
        with pytest.raises(BadInput, match="--x capacity_factor: no row has a value there; rows differ in.* gpus"):
            chart(rows.read([first, second]))
    assert rows.default_axis(rows.read([sweep(tmp_path / "c.csv", [row(factor=1)])])) == "capacity_factor"


def test_lines_are_compared_by_the_band_without_software_and_machine():
    cells = {"step_ms": "100", "step_ms_p05": "60", "step_ms_p95": "300", "step_ms_same_p05": "90",
             "step_ms_same_p95": "125", "_path": "s.csv", "_line": 2}
    assert rows.band_of(cells, "step_ms") == (90, 100, 125)
    assert rows.band_of({**cells, "tokens_per_s_per_gpu": "10"}, "tokens_per_s_per_gpu") == pytest.approx((8, 10, 100 / 9))
    # Files of older versions have one band alone.
    older = {**cells, "step_ms_same_p05": "", "step_ms_same_p95": ""}
    assert rows.band_of(older, "step_ms") == (60, 100, 300)


def test_a_ratio_to_a_baseline_has_its_own_band():
    cells = {"speed_over_baseline": "1.2", "speed_over_baseline_p05": "0.9", "speed_over_baseline_p95": "1.5",
             "step_ms": "100", "step_ms_p05": "60", "step_ms_p95": "300", "_path": "s.csv", "_line": 2}
    assert rows.band_of(cells, "speed_over_baseline") == (0.9, 1.2, 1.5)
    blank = {**cells, **{f"speed_over_baseline{end}": "" for end in ("", "_p05", "_p95")}}
    assert rows.band_of(blank, "speed_over_baseline") == (None, None, None)
