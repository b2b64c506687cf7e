"""The cost curves of a profile: what share of the hardware's peak each operation reaches."""
import json

import matplotlib
from matplotlib import pyplot
from matplotlib.lines import Line2D

import look
from chart_data import BadInput

COLUMNS = 3


def _draw_series(axes, index, line):
    how = look.style(index)
    axes.fill_between(line["x"], line["low"], line["high"], color=how["color"], alpha=0.15,
                      linewidth=0)
    measured = [(x, y) for x, y, far in zip(line["x"], line["y"], line["extrapolated"]) if not far]
    axes.plot(line["x"], line["y"], color=how["color"], linewidth=1, linestyle=":")
    if measured:
        axes.plot(*zip(*measured), linewidth=1.6, markersize=4, markevery=6, label=line["label"],
                  **how)


def _draw_panel(axes, panel):
    for index, line in enumerate(panel["series"]):
        _draw_series(axes, index, line)
    axes.set_xscale("log", base=2 if panel["bytes"] else 10)
    axes.set_ylim(bottom=0)
    axes.set_title(panel["title"], loc="left", fontsize=10)
    axes.set_xlabel(panel["xlabel"])
    axes.set_ylabel(panel["ylabel"])
    look.thousands(axes.yaxis)
    if panel["bytes"]:
        look.binary_sizes(axes.xaxis)
    else:
        look.thousands(axes.xaxis)
    axes.legend(loc="best", fontsize=8)


def draw(path):
    with open(path, encoding="utf-8") as file:
        curves = json.load(file)
    panels = [panel for panel in curves["panels"] if panel["series"]]
    if not panels:
        raise BadInput("the profile answers none of the charted operations")
    rows = -(-len(panels) // COLUMNS)
    with matplotlib.rc_context(look.RC):
        figure, grid = pyplot.subplots(rows, COLUMNS, figsize=(13.5, 4.1 * rows + 0.6),
                                       layout="constrained", squeeze=False)
        for axes, panel in zip(grid.flat, panels):
            _draw_panel(axes, panel)
        for axes in list(grid.flat)[len(panels):]:
            axes.set_axis_off()
        figure.suptitle(f"{curves['title']}\n", x=0.01, ha="left", fontsize=13, fontweight="bold")
        figure.text(0.01, 0.965, curves["subtitle"], fontsize=9.5, color="#333333", va="top")
        figure.legend(handles=[
            Line2D([], [], color=look.GREY, linewidth=1.6, label="inside what was measured"),
            Line2D([], [], color=look.GREY, linewidth=1, linestyle=":", label="extrapolated"),
            matplotlib.patches.Patch(color="#999999", alpha=0.35, linewidth=0,
                                     label="p05 to p95")],
            loc="outside lower center", ncols=3)
    return figure
