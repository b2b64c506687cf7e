"""The layouts that `moesim recommend` found as bars of their speed: what to look at where all lose the same tokens."""
import textwrap

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import ScaledTranslation

import look
import recommended
import speed_bands

# (column, how a label names it) of what tells layouts apart; those of ALWAYS stand in every label.
SIZES = (("tensor_parallel", "TP"), ("context_parallel", "CP"), ("pipeline_parallel", "PP"), ("virtual_pipeline", "VP"),
         ("expert_parallel", "EP"), ("expert_tensor_parallel", "ETP"), ("micro_batch", "batch"))
OTHERS = (("recompute", "recompute"), ("zero", "ZeRO"), ("precision", ""), ("cuda_graphs", "graphs"), ("dispatcher", ""),
          ("ep_overlap", "overlap"), ("pipeline_schedule", ""), ("ranks_per_domain", "ranks per rack"), ("router", ""),
          ("capacity_factor", "CF"))
ALWAYS = ("tensor_parallel", "pipeline_parallel", "expert_parallel")
YOURS = look.COLOURS[2]
LETTERS = 46  # of a line of a label
ROW = 0.5     # inches of a bar


def _is_yours(row):
    return recommended.is_true(row, "yours")


def _differs(rows, column):
    return len({row.get(column, "") for row in rows}) > 1


def _part(row, column, name):
    value = row.get(column, "").replace(",", "+")
    return f"{name} {value}".strip() if value else ""


def label(row, rows):
    """"1: TP 1, PP 2, EP 8, batch 2": its rank, and what tells it from the other rows."""
    parts = [_part(row, column, name) for column, name in (*SIZES, *OTHERS) if column in ALWAYS or _differs(rows, column)]
    rank = recommended.rank_text(row) or ("yours" if _is_yours(row) else "")
    text = ", ".join(filter(None, parts))
    return "\n".join(textwrap.wrap(f"{rank}: {text}" if rank else text, LETTERS))


def _draw_band(axes, place, row, columns):
    """The speed that a measurement is likely to find, and its ends; returns whether the row has them."""
    if not all(row.get(column) for column in ("step_ms", *columns)):
        return False
    likely, high, low = (float(row["tokens_per_s_per_gpu"]) * float(row["step_ms"]) / float(row[column]) for column in columns)
    axes.plot([low, high], [place, place], color=look.GREY, linewidth=1.2, marker="|", markersize=7, zorder=4)
    axes.plot([likely], [place], color=look.GREY, marker="o", markersize=6, markerfacecolor="white", linestyle="", zorder=5)
    return True


def _legend(axes, rows, noise_span, level):
    """`level`: that of the bands in per cent, 0 where there are none."""
    handles = [Patch(color=look.COLOURS[0])]
    names = ["predicted speed"]
    if any(_is_yours(row) for row in rows):
        handles.append(Patch(color=YOURS))
        names.append("the layout that the search started from")
    if level:
        handles.append(Line2D([], [], color=look.GREY, marker="o", markerfacecolor="white"))
        names.append(f"likely measured, and its {level:.0f} % band: one error of all bars together")
    if noise_span:
        handles.append(noise_span)
        names.append(noise_span.get_label())
    below = axes.transAxes + ScaledTranslation(0, -0.55, axes.figure.dpi_scale_trans)  # inches, below the axis's name
    axes.legend(handles, names, loc="upper left", bbox_to_anchor=(0, 0), bbox_transform=below, borderaxespad=0)


def draw(rows, noise_label, noise, title):
    """The figure. `noise`: speeds that far below the best are within the noise, as `noise_label` says; 0: not known."""
    rows = sorted(rows, key=lambda row: (recommended.rank(row) or 1e9, -float(row["tokens_per_s_per_gpu"])))
    labels = [label(row, rows) for row in rows]
    figure = Figure(figsize=(9, 1.8 + ROW * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    speeds = [float(row["tokens_per_s_per_gpu"]) for row in rows]
    span = None
    if noise > 0 and len(rows) > 1:
        span = axes.axvspan(speeds[0] / (1 + noise), speeds[0], color="#CCCCCC", alpha=0.5, zorder=3, linewidth=0, label=noise_label)
    places = list(range(len(rows)))[::-1]
    colours = [YOURS if _is_yours(row) else look.COLOURS[0] for row in rows]
    axes.barh(places, speeds, color=colours, height=0.6, alpha=0.85, zorder=2)
    columns = speed_bands.level_columns(rows)
    banded = columns and any([_draw_band(axes, place, row, columns) for place, row in zip(places, rows)])
    for place, row, speed in zip(places, rows, speeds):
        text = f"{speed:,.0f}" + (f", {float(row['memory_gib']):.0f} GiB" if row.get("memory_gib") else "")
        axes.annotate(text, (1.01, place), xycoords=axes.get_yaxis_transform(), fontsize=9, va="center", annotation_clip=False)
    axes.set_yticks(places, labels, fontsize=9)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlim(left=0)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("tokens/s per GPU")
    look.thousands(axes.xaxis)
    axes.set_title(title, loc="left")
    _legend(axes, rows, span, speed_bands.level_of(rows, columns) if banded else 0)
    return figure
