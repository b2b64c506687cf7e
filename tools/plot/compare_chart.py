"""The rows of one sweep over those of another that have the same options: the ratio of a figure, with its band."""
import dataclasses
import math
from dataclasses import dataclass

import matplotlib

import axes_chart
import hidden
import look
import option_columns
import page
import rows
import speed_bands
import untold
from chart_data import BadInput, fits

# Rows that differ in one of these have different errors, which do not cancel.
MACHINE = ("profile", "cluster", "software")
OF_ONE_MACHINE = ("p05 to p95 of the ratio on the same software and machine, with independent errors; without the scatter "
                  "between configurations of one software, which sweep --baseline counts")
OF_TWO_MACHINES = ("of the ratio as measured, as if different machines or software shared no error; sweep or train --baseline counts "
                   "what they share")
WIDE = 5  # bands as many times as wide as the lines lie apart leave nothing of these to be seen
RATIO = "_ratio"  # of a row that is drawn: its Ratio


@dataclass(frozen=True)
class Ratio:
    """A figure of the second file over that of the first, of two rows with the same options. `band`: what its ends are;
    `fits`: whether both steps fit in the memory of a GPU."""
    low: float
    value: float
    high: float
    band: str
    fits: bool


def _width(low, high):
    """Between two quantiles, in logarithms; none where a figure has no band."""
    return math.log(high / low) if low else 0


def _ratio_band(above, below):
    """(low, value, high) of a ratio of two figures with bands, whose errors are taken as independent: half widths add as
    squares of logarithms."""
    value = above[1] / below[1]
    low = math.hypot(_width(above[0], above[1]), _width(below[1], below[2]))
    high = math.hypot(_width(above[1], above[2]), _width(below[0], below[1]))
    return value * math.exp(-low), value, value * math.exp(high)


def _ratio(below, above, y):
    """The Ratio of two rows: beside the same software and machine the error that these have in common cancels, between two
    machines it does not. None where a row has no number."""
    first, second = (rows.band_of(row, y) for row in (below, above))
    if not first[1] or second[1] is None:
        return None
    both_fit = fits(below) and fits(above)
    if y in (rows.TOKEN_LOSS, rows.COUNTED_LOSS):  # steps of one seed share their draws: nothing says how sure the ratio is
        value = second[1] / first[1]
        return Ratio(value, value, value, "", both_fit)
    if all(below.get(name, "") == above.get(name, "") for name in MACHINE):
        return Ratio(*_ratio_band(second, first), OF_ONE_MACHINE, both_fit)
    low, _, high = _ratio_band(*(rows.measured_band_of(row, y) for row in (above, below)))
    return Ratio(low, second[1] / first[1], high, f"{speed_bands.ends_text([below, above])} {OF_TWO_MACHINES}", both_fit)


def _require_two_files(table, x, y):
    if len(table.files) != 2:
        raise BadInput("--chart compare: give two sweeps: moesim plot before.csv after.csv --chart compare")
    axes_chart.require_values(table, x)
    table.require(y, "y")
    for path in table.files:
        if not any(row["_path"] == path for row in table.rows):
            raise BadInput(f"{path}: no row is left to compare: all were refused (columns status and reason), or --where "
                           "and --fits-only leave none")


def _pairs(table):
    """(the options in which the files differ as wholes, [(row of the first, row of the second)]). BadInput without pairs."""
    first, second = table.files
    values = {}
    for row in table.rows:
        for name in table.options():
            values.setdefault((row["_path"], name), set()).add(row[name])
    apart = [name for name in table.options() if name != rows.FILE
             and len(values[first, name]) == len(values[second, name]) == 1
             and values[first, name] != values[second, name]]
    key = [name for name in table.options() if name not in (*apart, rows.FILE)]
    # A cluster, or a batch, that follows from what differs is no other scenario.
    follows = table.columns.derived - set(option_columns.CHOSEN) if apart else frozenset()
    key = [name for name in key if name not in follows or len(values[first, name] | values[second, name]) > 1]
    known = {tuple(row[name] for name in key): row for row in table.rows if row["_path"] == second}
    pairs = [(row, known[tuple(row[name] for name in key)]) for row in table.rows
             if row["_path"] == first and tuple(row[name] for name in key) in known]
    if not pairs:
        raise BadInput(f"{second}: no row has the options of a row of {first}, so there is nothing to compare")
    return apart, pairs


def _with_ratios(table, pairs, y):
    """The table with the rows of the first file that have a RATIO. BadInput where none has."""
    ratios = [(row, _ratio(row, other, y)) for row, other in pairs]
    found = [{**row, RATIO: ratio} for row, ratio in ratios if ratio]
    if not found:
        raise BadInput(f"--y {y}: no pair of rows has a number there")
    return dataclasses.replace(table, rows=found)


def _ratios(table):
    return [row[RATIO] for row in table.rows]


def _hides_lines(table, lines):
    """Whether the bands of several lines would press these into one: bands are then told, not drawn."""
    values = [ratio.value for ratio in _ratios(table)] + [1]
    width = max(ratio.high for ratio in _ratios(table)) - min(ratio.low for ratio in _ratios(table))
    return len(lines) > 1 and width > WIDE * (max(values) - min(values)) > 0


def _draw_ratios(panel, table, x, line, how, shade):
    """The ratios of a line; returns how their band is drawn, as look.band_entry() takes it. `shade`: of the band; 0: none
    is drawn."""
    place, names = axes_chart.positions(table, x)
    for row in line.rows:
        if row[x] == "":  # x does not apply: the same everywhere
            panel.axhline(row[RATIO].value, color=how["color"], linestyle=how["linestyle"])
    shown = [row for row in line.rows if row[x] != ""]
    if not shown:
        return set()
    xs, ratios = [place(row[x]) for row in shown], [row[RATIO] for row in shown]
    kinds = set()
    if shade:
        kinds = look.draw_band(panel, xs, [ratio.low for ratio in ratios], [ratio.high for ratio in ratios], [True] * len(xs),
                               how["color"], shade, names is None)
    look.plot_line(panel, xs, [ratio.value for ratio in ratios], [ratio.fits for ratio in ratios], how)
    return kinds


def _band_entries(table, kinds, hides):
    """[(look, name)] of the legend: what bands are, or how wide they would be where they are not drawn."""
    ratios = _ratios(table)
    words = "; ".join(dict.fromkeys(ratio.band for ratio in ratios if ratio.low < ratio.high))
    if kinds:
        return [(look.band_entry(kinds), words)]
    if not hides:
        return []
    low, high = min(ratio.low for ratio in ratios), max(ratio.high for ratio in ratios)
    return [(matplotlib.lines.Line2D([], [], linestyle="none"),
             f"bands not drawn, far wider than the lines lie apart: {low:.2f} to {high:.2f}, {words}")]


def _legend(panel, table, x, lines, styles, bands):
    """(the looks, the names) of all that the panel shows. `bands`: _band_entries()."""
    below = hidden.notes([hidden.Panel("ratio", panel, {line.label: {row[x]: row[RATIO].value for row in line.rows}
                                                        for line in lines})])
    handles, labels = page.legend_entries(styles, [line.label + below.get(line.label, "") for line in lines])
    entries = [*zip(handles, labels), *bands]
    if not all(ratio.fits for ratio in _ratios(table)):
        entries.append((page.unfit_entry(), "pale, hollow: one of the two does not fit in GPU memory"))
    return map(list, zip(*entries))


def _what(table, y, apart, pairs):
    """"fusion fused over fusion standard": what a title says that is compared."""
    # A cluster that follows from its profile says nothing more, other than the batch of a step.
    follows = table.columns.derived - set(option_columns.CHOSEN) - ({untold.BATCH} if rows.is_time(y) else set())
    if rows.DISPATCHER in apart:
        follows = follows | {rows.COPIES}
    told = [name for name in apart if name not in follows] or apart
    names = rows.file_names(table.files)
    first, second = (rows.label_of(row, told) or names[row["_path"]] for row in pairs[0])
    return f"{second} over {first}"


def compare(table, x, y, group, size, title):
    """The ratio of a figure of the second file to that of the first, scenario by scenario."""
    _require_two_files(table, x, y)
    apart, pairs = _pairs(table)
    notes = rows.run_notes(table, [x, y])
    table = _with_ratios(table, pairs, y)
    lines = rows.lines(table, x, group)
    axes_chart.require_few_lines(lines)
    notes += untold.notes(table, [x, *rows.names_of(table, x, group), *apart], rows.is_time(y))
    styles = axes_chart.unjoined_names(table, x, axes_chart.styles_of({line.label: line.rows for line in lines}, size))
    figure_name = rows.axis_name(table, y).split(",")[0]
    with matplotlib.rc_context(page.settings(size)):
        figure, axes = page.grid(size, 1, 1)
        panel = axes[0][0]
        hides, kinds = _hides_lines(table, lines), set()
        shade = 0 if hides else min(0.14, 0.9 / len(lines))
        for line, how in zip(lines, styles):
            kinds |= _draw_ratios(panel, table, x, line, how, shade)
        panel.axhline(1, color="black", linewidth=0.8, zorder=1)
        axes_chart.style_x(panel, table, x)
        panel.set_xlabel(rows.axis_name(table, x))
        panel.set_ylabel(f"{figure_name}, ratio")
        first = [f"{len(table.rows)} scenarios that both files have"]
        return page.end_page(figure, axes, size, title or f"{figure_name}: {_what(table, y, apart, pairs)}",
                             page.subtitle(table, notes, apart=apart, first=first),
                             *_legend(panel, table, x, lines, styles, _band_entries(table, kinds, hides)))
