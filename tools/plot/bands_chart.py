"""Do bands cover? Share of left-out points inside against the level asked for, and how wide the bands are."""
import json
import math

import matplotlib
from matplotlib import pyplot

import look
from chart_data import BadInput

TITLE = "How often left-out measurements lie inside the band"
KEYS = ("left_out", "level", "points", "inside", "log_width")
# With more lines than this, those of fewer groups than decide anything at 90 % are grey, without a name.
NAMED_LINES = 10
ENOUGH_GROUPS = 9
# Inches: title and headings, the panels, a line of the legend.
ABOVE, PANEL, LEGEND_LINE = 0.7, 3.65, 0.21


def _document(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def title_of(path):
    """What the bands are of: the studies that the validation names."""
    studies = dict.fromkeys(verdict["study"] for verdict in _document(path).get("verdicts", []) if verdict.get("study"))
    return f"{', '.join(studies)}: how often left-out measurements lie inside the band" if studies else TITLE


def read_bands(path):
    """{what was left out: its levels, ascending}; BadInput for a document without bands."""
    rows = _document(path).get("bands", [])
    kinds = {}
    for row in rows:
        absent = [key for key in KEYS if key not in row]
        if absent:
            raise BadInput(f"{path}: bands: a row has no {absent[0]}")
        kinds.setdefault(row["left_out"], []).append(row)
    if not kinds:
        raise BadInput(f"{path}: no bands: draw what 'moesim validate' wrote of speeds, steps, exchanges or training (--format json)")
    return {kind: sorted(levels, key=lambda row: row["level"]) for kind, levels in kinds.items()}


def is_minor(kind, levels, kinds):
    """Whether a line is drawn without a name."""
    return len(kinds) > NAMED_LINES and levels[0].get("groups", ENOUGH_GROUPS) < ENOUGH_GROUPS


def line_style(index, kind):
    style = {**look.style_by_index(index), "linewidth": 1.5, "markersize": 5}
    if kind.startswith("ratio"):
        style.update(linestyle=(0, (4, 2.5)), markerfacecolor="white")
    return style


def line_label(kind, levels, points):
    groups = levels[0].get("groups")
    counted = "" if groups is None else f", {groups} group{'' if groups == 1 else 's'}"
    return f"{kind} ({points} points{counted})"


def draw(path, title):
    """The figure of a validation's bands."""
    kinds = read_bands(path)
    with matplotlib.rc_context(look.RC):
        minor = [kind for kind, levels in kinds.items() if is_minor(kind, levels, kinds)]
        entries = len(kinds) - len(minor) + bool(minor)
        below = 0.75 + LEGEND_LINE * -(-entries // 2)  # inches: the name of the axis and the legend, of two columns
        height = ABOVE + PANEL + below
        figure, (observed, width) = pyplot.subplots(1, 2, figsize=(11.5, height))
        figure.subplots_adjust(left=0.07, right=0.985, top=1 - ABOVE / height, bottom=below / height, wspace=0.18)
        observed.plot([0, 100], [0, 100], color=look.GREY, linewidth=1, linestyle=":")
        index = 0
        for kind, levels in kinds.items():
            points = max(row["points"] for row in levels)
            if kind in minor:
                label = f"{len(minor)} tables of fewer than {ENOUGH_GROUPS} groups" if kind == minor[0] else None
                style = {"color": look.LIGHT_GREY, "linewidth": 1, "zorder": 1}
            else:
                label, style = line_label(kind, levels, points), line_style(index, kind)
                index += 1
            # Levels that only some of the points allow are of other points: no part of the line.
            levels = [row for row in levels if row["points"] == points]
            nominal = [100 * row["level"] for row in levels]
            observed.plot(nominal, [100 * row["inside"] for row in levels],
                          label=label, **style)
            width.plot(nominal, [math.exp(row["log_width"]) for row in levels], **style)
        observed.set(xlim=(0, 100), ylim=(0, 103), xlabel="level of the band, %",
                     ylabel="left-out points inside, %")
        observed.set_title("above the dotted line: wider than needed; below: too narrow", loc="left",
                           fontsize=9.5)
        width.set(xlim=(0, 100), xlabel="level of the band, %",
                  ylabel="upper end over lower end, mean")
        look.logarithmic(width)
        width.yaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
        width.set_title("how wide", loc="left", fontsize=9.5)
        figure.legend(loc="lower left", bbox_to_anchor=(0.06, 0.01), ncols=2, handlelength=3.2,
                      columnspacing=2)
        figure.suptitle(look.wrapped(figure, title or title_of(path), 0.91 * figure.get_figwidth(), 12), x=0.07, ha="left")
    return figure
