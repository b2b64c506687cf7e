"""What `moesim recommend` found on several machines: the speed of each, and up to which price of a GPU hour it is the
cheaper one per token."""
import csv

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import ScaledTranslation

import look
import stopped
from chart_data import SPEED, BadInput, number, read_csv

RATIO, BREAK_EVEN, PRICE, COMPARED = "speed_ratio", "break_even_price", "gpu_hour_price", "compared_with"
ROW = 0.6  # inches of a machine


def read(path):
    """The rows of machines that have a layout, of a CSV of searches on several machines; nothing for any other file."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            header = next(csv.reader(file), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        return []
    if not {RATIO, COMPARED, "cheapest"} <= set(header):
        return []
    rows = []
    for line, row in read_csv(path)[1]:
        if row["status"] != "ok":
            continue
        if not (number(path, line, row, SPEED) or 0) > 0:
            raise BadInput(f"{path}: line {line}, column {SPEED}: '{row[SPEED]}' is no speed, which is above 0")
        rows.append(row)
    if not rows:
        raise BadInput(f"{path}: no machine has a layout (columns status and reason)")
    return rows


def _first(rows):
    """The machine that others are compared with."""
    return ", ".join(dict.fromkeys(row[COMPARED] for row in rows if row[COMPARED])) or rows[0]["profile"]


def _labels(rows):
    """"h200-sxm", with the cluster and the GPUs where rows differ in them alone."""
    profiles = [row["profile"] for row in rows]
    by_cluster = len({(row["profile"], row["cluster"]) for row in rows}) > len(set(profiles))
    by_gpus = len({row["gpus"] for row in rows}) > 1
    return [(f"{row['gpus']} x " if by_gpus else "") + row["profile"] + (f"\non {row['cluster']}" if by_cluster else "")
            for row in rows]


def _draw_ranges(axes, place, row, column, factor):
    """The bands of a figure around its value, `factor` times as large; returns whether it has them."""
    ends = [row.get(f"{column}_{end}") for end in ("low", "high", "p25", "p75")]
    if not all(ends):
        return False
    low, high, first, last = (factor * float(end) for end in ends)
    axes.plot([low, high], [place, place], color=look.GREY, linewidth=1.2, marker="|", markersize=7, zorder=4)
    axes.plot([first, last], [place, place], color=look.GREY, linewidth=5, solid_capstyle="butt", zorder=4)
    return True


def _draw_speeds(axes, rows, places):
    """Returns whether any row has a band."""
    banded = False
    for place, row in zip(places, rows):
        speed = float(row[SPEED])
        axes.barh([place], [speed], color=look.COLOURS[0], height=0.6, alpha=0.85, zorder=2)
        if row[RATIO]:
            banded |= _draw_ranges(axes, place, row, RATIO, speed / float(row[RATIO]))
    axes.set_xlim(left=0)
    axes.set_xlabel("tokens/s per GPU")
    look.thousands(axes.xaxis)
    return banded


def _draw_prices(axes, rows, places):
    for place, row in zip(places, rows):
        if row[BREAK_EVEN]:
            _draw_ranges(axes, place, row, BREAK_EVEN, 1)
            axes.plot([float(row[BREAK_EVEN])], [place], color=look.GREY, marker="o", markersize=6, markerfacecolor="white",
                      linestyle="", zorder=5)
        axes.plot([float(row[PRICE])], [place], color=look.COLOURS[2], marker="D", markersize=7, linestyle="", zorder=6)
    axes.set_xlim(left=0)
    axes.set_xlabel("price of a GPU hour")


def _legend(axes, entries):
    below = axes.transAxes + ScaledTranslation(0, -0.55, axes.figure.dpi_scale_trans)  # inches, below the axis's name
    axes.legend(*zip(*entries), loc="upper left", bbox_to_anchor=(0, 0), bbox_transform=below, borderaxespad=0)


def _speed_entries(rows, banded):
    entries = [(Patch(color=look.COLOURS[0]), "predicted speed of the best layout")]
    if not banded:
        return entries
    level = max(float(row["speed_ratio_level"]) for row in rows if row["speed_ratio_level"])
    return [*entries, (Line2D([], [], color=look.GREY, linewidth=1.2, marker="|", markersize=7),
                       f"{100 * level:.0f} % band of the ratio to {_first(rows)}"),
            (Line2D([], [], color=look.GREY, linewidth=5), "50 % band")]


def _price_entries(rows):
    return [(Line2D([], [], color=look.COLOURS[2], marker="D", linestyle=""), "price given"),
            (Line2D([], [], color=look.GREY, marker="o", markerfacecolor="white"),
             f"price at which a token costs\nwhat it does on {_first(rows)}: the\nmachine is cheaper below it")]


def draw(rows, title):
    """The figure; with a panel of prices where the rows have them."""
    with matplotlib.rc_context(look.RC):
        return _draw(rows, title)


def _draw(rows, title):
    has_prices = all(row.get(PRICE) for row in rows)
    figure = Figure(figsize=(11 if has_prices else 8, 2.4 + ROW * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2 if has_prices else 1, sharey=True, squeeze=False)[0]
    places = list(range(len(rows)))[::-1]
    banded = _draw_speeds(panels[0], rows, places)
    if has_prices:
        _draw_prices(panels[1], rows, places)
    panels[0].set_yticks(places, _labels(rows), fontsize=9)
    panels[0].set_ylim(-0.6, len(rows) - 0.4)
    for panel in panels:
        panel.grid(axis="y", visible=False)
    gpus = sorted({int(row["gpus"]) for row in rows})
    name = f"{rows[0]['model']} on {' and '.join(str(count) for count in gpus)} GPUs, the best layout on each machine"
    panels[0].set_title(title or "\n".join([name, *stopped.notes(rows)]), loc="left")
    _legend(panels[0], _speed_entries(rows, banded))
    if has_prices:
        _legend(panels[1], _price_entries(rows))
    return figure
