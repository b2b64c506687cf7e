"""How the charts look: colours that colour-blind readers tell apart, markers that survive grey."""
from matplotlib.ticker import FuncFormatter

# Okabe and Ito's palette (2008), without its yellow, which vanishes on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#555555"

# One colour and marker per rectification, so that the same one is recognised under top-1 and top-2.
RC = {
    "font.size": 10, "axes.titlesize": 11, "axes.labelsize": 10, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": "#DDDDDD", "grid.linewidth": 0.6,
    "legend.frameon": False, "legend.fontsize": 9, "axes.axisbelow": True,
    "figure.facecolor": "white",
}


def style(index):
    """Colour and marker of the index-th line; pairs repeat only after 49 lines."""
    return {"color": COLOURS[index % len(COLOURS)],
            "marker": MARKERS[(index + index // len(COLOURS)) % len(MARKERS)]}


def thousands(axis):
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def binary_sizes(axis):
    """4 KiB, 1 MiB, ... on an axis of bytes."""
    def text(value, _):
        for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if value >= unit:
                return f"{value / unit:g} {name}"
        return f"{value:g} B"
    axis.set_major_formatter(FuncFormatter(text))
