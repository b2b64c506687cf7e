"""Makes the modules of the plotter importable; a test module that imports this one first is skipped without Matplotlib."""

import sys
from pathlib import Path

import pytest

PLOT = Path(__file__).resolve().parents[2] / "tools" / "plot"
sys.path.insert(0, str(PLOT))
matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
matplotlib.use("Agg")

import axes_chart  # noqa: E402
import page  # noqa: E402

SIZE = page.Size()


def draw(table, x="gpus", y="tokens_per_s_per_gpu", group=None, facet=None, size=SIZE):
    """The chart of `plot --x --y`."""
    return axes_chart.draw(table, x, y.split(","), group, facet, size, "")


def drawn(axes):
    """The lines of a panel that have more than one point."""
    return [line for line in axes.get_lines() if len(line.get_xdata()) > 1]


def subtitle(figure):
    return " ".join(figure.texts[1].get_text().split())


def handles_of(legend):
    """The marks of a legend, whose name matplotlib 3.7 changed."""
    return legend.legend_handles if hasattr(legend, "legend_handles") else legend.legendHandles


def heights_of(span):
    """y of the corners of an axhspan(): a polygon, since matplotlib 3.9 a rectangle."""
    return span.get_patch_transform().transform(span.get_path().vertices)[:, 1]


def names_in_legend(figure):
    return [" ".join(text.get_text().split()) for text in figure.legends[0].get_texts()]
