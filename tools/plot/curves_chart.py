"""The cost curves of a profile: what share of the hardware's peak each operation reaches."""
import json

import matplotlib
from matplotlib import pyplot
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

import look
from chart_data import BadInput

COLUMNS = 3


def _draw_series(axes, index, line):
    how = {**look.style_by_index(index), "markersize": 4}
    axes.fill_between(line["x"], line["low"], line["high"], color=how["color"], alpha=0.15,
                      linewidth=0)
    for edge in (line["low"], line["high"]):  # legends keep off lines, not off shades
        axes.plot(line["x"], edge, linestyle="none")
    measured = [(x, y) for x, y, far in zip(line["x"], line["y"], line["extrapolated"]) if not far]
    if not measured:  # no solid line that the legend could name
        axes.plot(line["x"], line["y"], markevery=-(-len(line["x"]) // 8), label=line["label"],
                  **{**how, "linestyle": ":", "linewidth": 1, "markerfacecolor": "white"})
        return
    axes.plot(line["x"], line["y"], color=how["color"], linewidth=1, linestyle=":")
    axes.plot(*zip(*measured), linewidth=1.6, markevery=-(-len(measured) // 8), label=line["label"],
              **how)


def _draw_panel(axes, panel):
    for index, line in enumerate(panel["series"]):
        _draw_series(axes, index, line)
    axes.set_xscale("log", base=2)
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
    columns = 2 if len(panels) in (2, 4) else min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    with matplotlib.rc_context(look.RC):
        height = 4.1 * rows + 1.1
        width = 4.5 * max(2, columns)
        figure, grid = pyplot.subplots(rows, columns, figsize=(width, height), squeeze=False)
        figure.subplots_adjust(left=0.81 / width, right=1 - 0.2 / width, wspace=0.24, hspace=0.36,
                               top=1 - 1.05 / height, bottom=1.05 / height)
        for axes, panel in zip(grid.flat, panels):
            _draw_panel(axes, panel)
        for axes in list(grid.flat)[len(panels):]:
            axes.set_axis_off()
        figure.text(0.2 / width, 1 - 0.2 / height, curves["title"], fontsize=13, fontweight="bold",
                    va="top")
        figure.text(0.2 / width, 1 - 0.5 / height, curves["subtitle"], fontsize=9.5, color="#333333",
                    va="top")
        figure.legend(loc="lower center", ncol=3, bbox_to_anchor=(0.5, 0), handles=[
            Line2D([], [], color=look.GREY, linewidth=1.6, label="inside what was measured"),
            Line2D([], [], color=look.GREY, linewidth=1, linestyle=":", label="extrapolated"),
            Patch(color="#999999", alpha=0.35, linewidth=0, label="p05 to p95")])
    return figure
