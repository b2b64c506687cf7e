"""The page around the panels of a chart: size, title, what all rows share, the legend below."""
import re
import textwrap
from dataclasses import dataclass

from matplotlib import pyplot
from matplotlib.lines import Line2D

import look
import stopped
from chart_data import BadInput, fits, partial_notes, training_words, warning_notes, warnings
from sweep_chart import MODES, document_name, gpus_in_words, setting

INCHES = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72}
WIDEST, NARROWEST = 40.0, 1.5
LOWEST = 0.55  # panels of several rows and columns, as a share of their width


@dataclass(frozen=True)
class Size:
    """Width in inches and the size of ordinary text in points."""
    width: float = 9.0
    font: float = 10.0


def size_of(width, font):
    """The Size that --width ("3.3in", "84mm"; a bare number is inches) and --font-size ask for."""
    inches, points = Size.width, Size.font
    if width:
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(in|cm|mm|pt)?", width)
        if not match:
            raise BadInput(f"--width: '{width}' is not a length such as 3.3in, 8.4cm, 84mm or 240pt")
        inches = float(match[1]) * INCHES[match[2] or "in"]
        if not NARROWEST <= inches <= WIDEST:
            raise BadInput(f"--width: {width} is {inches:.1f} in: give one from {NARROWEST} to {WIDEST:g} in")
    if font:
        try:
            points = float(font)
        except ValueError:
            raise BadInput(f"--font-size: '{font}' is not a number of points, such as 8") from None
        if not 3 <= points <= 40:
            raise BadInput(f"--font-size: {font}: give 3 to 40 points")
    return Size(inches, points)


def settings(size):
    """The rc settings of a page of that size."""
    return {**look.RC, "font.size": size.font, "axes.titlesize": size.font,
            "axes.labelsize": size.font, "xtick.labelsize": 0.9 * size.font,
            "ytick.labelsize": 0.9 * size.font, "legend.fontsize": 0.9 * size.font,
            "lines.linewidth": 0.16 * size.font, "lines.markersize": 0.55 * size.font}


def grid(size, rows, columns, aspect=0.62, **how):
    """A figure of panels; end_page() gives it its height and margins. All sides share an axis."""
    wide = size.width / columns
    height = max(1.25, aspect * wide) if columns > 1 else max(1.3, min(aspect * wide, 5.2))
    return pyplot.subplots(rows, columns, figsize=(size.width, rows * height), squeeze=False, **how)


def subtitle(table, extra=(), apart=(), figures=(), first=()):
    """What all rows share but for the options `apart`, what is left out or marked (`extra`), and the level of the figures.
    What mostly follows from the model is minor. `first` are parts before these."""
    shared = {name: value for name, value in table.shared().items() if name not in apart}
    parts = list(first)
    parts += [MODES.get(shared["mode"], shared["mode"])] if "mode" in shared else training_words(shared)
    if "router" in shared:
        parts.append(f"router {shared['router']}")
    for name, words in (("experts", "experts"), ("expert_parallel", "expert parallel over {}"),
                        ("sequence_length", "{} tokens per sequence"), ("routing", "routing {}")):
        if name in shared:
            value = gpus_in_words(shared[name]) if name == "expert_parallel" else shared[name]
            text = words.format(value) if "{" in words else f"{shared[name]} {words}"
            parts.append(look.Minor(text) if name in ("experts", "sequence_length") else text)
    if table.where:
        parts.append(f"where {table.where}")
    if table.refused:
        parts.append(f"{table.refused} refused scenario{'s' * (table.refused > 1)} left out")
    if table.unfit_left_out:
        parts.append(f"{table.unfit_left_out} that do not fit in memory left out")
    return look.Subtitle([*parts, *extra, *stopped.notes(table.rows), *partial_notes(table.files)], [table.level(figures)])


def heading(table, what):
    """The title: the setting, and `what` is drawn. Routing alone, of moesim route, has no GPUs that matter, and a model only
    where one was given."""
    shared = table.shared()
    if any("step_ms" in row for row in table.rows):
        return f"{setting(shared)}: {what}"
    if not any(row.get("model") for row in table.rows):
        return what[:1].upper() + what[1:]
    return f"{document_name(shared['model']) if 'model' in shared else 'several models'}: {what}"


def legend_entries(styles, labels):
    return [Line2D([], [], **style) for style in styles], list(labels)


UNFIT = "pale, hollow: does not fit in GPU memory"


def unfit_entry():
    return Line2D([], [], color=look.GREY, alpha=look.PALE, marker="o", markerfacecolor="white")


def unfit_notes(table):
    """What a subtitle says of rows that do not fit."""
    unfit = sum(not fits(row) for row in table.rows)
    return [f"{unfit} of {len(table.rows)} do not fit in GPU memory"] if unfit else []


def warned_notes(table):
    """What a subtitle says of rows that barely fit, or that the host limits."""
    return warning_notes(list(map(warnings, table.rows)))


def _wrap_x_labels(figure, axes, inner, gap):
    """Wraps the names below the panels to their width, which they must not change; `inner` inches are for all columns."""
    shown = [(one, one.get_xlabel()) for one in axes.flat if one.get_visible() and one.get_xlabel()]
    for one, _ in shown:
        one.set_xlabel("")
    figure.canvas.draw()
    left, _, right, _, _, inside = look.overhang(figure, axes)
    columns = axes.shape[1]
    panel = (inner - left - right - (columns - 1) * (inside + right + 2 * gap)) / columns
    for one, text in shown:
        one.set_xlabel(look.wrapped(figure, text, panel, one.xaxis.label.get_fontsize()))


def _highest_label(figure, axes):
    """The height of the tallest label beside the panels, in inches: a panel is no shorter."""
    renderer = figure.canvas.get_renderer()
    labels = [one.yaxis.label for one in axes.flat if one.get_visible() and one.get_ylabel()]
    return max((label.get_window_extent(renderer).height / figure.dpi for label in labels), default=0.0)


def end_page(figure, axes, size, title, under, handles, labels):
    """Title and subtitle above, the legend below, margins as the labels need them."""
    gap = 0.6 * size.font / 72
    big, small = 1.15 * size.font, 0.88 * size.font
    width, height = figure.get_size_inches()
    title = look.wrapped(figure, title, width - 2 * gap, big, "bold")
    under = look.wrapped_subtitle(figure, under, width - 2 * gap, small)
    above = (gap + (title.count("\n") + 1) * 1.3 * big / 72
             + (under.count("\n") + 1) * 1.35 * small / 72 + gap)
    legend, legend_height = None, 0.0
    if handles:
        labels = [textwrap.fill(label, max(16, int(width * 72 / (0.6 * size.font)) - 8)) for label in labels]
        legend = legend_in_columns(figure, handles, labels, width - 2 * gap)
        legend_height = legend.get_window_extent().height / figure.dpi + gap
    _wrap_x_labels(figure, axes, width - 2 * gap, gap)
    figure.canvas.draw()
    left, below, right, over, between, inside = look.overhang(figure, axes)
    rows, columns = axes.shape
    total = height + above + legend_height + gap
    figure.set_size_inches(width, total)
    inner = width - left - right - 2 * gap
    # Between panels: the labels of one, and some air.
    across = (inside + right + 2 * gap) if columns > 1 else 0
    down = (between + over + gap) if rows > 1 else 0
    panel_wide = (inner - (columns - 1) * across) / columns
    high = total - above - over - legend_height - below - gap
    least = 1.03 * _highest_label(figure, axes)
    if rows > 1 and columns > 1:  # labels between them take no height of theirs
        least = max(least, LOWEST * panel_wide)
    more = rows * least - (high - (rows - 1) * down)
    if more > 0:
        high, total = high + more, total + more
        figure.set_size_inches(width, total)
    panel_high = (high - (rows - 1) * down) / rows
    figure.subplots_adjust(left=(left + gap) / width, right=1 - (right + gap) / width,
                           top=1 - (above + over) / total, bottom=(legend_height + below + gap) / total,
                           wspace=across / panel_wide if panel_wide > 0 else 0.2,
                           hspace=down / panel_high if panel_high > 0 else 0.2)
    figure.text(gap / width, 1 - gap / total, title, fontsize=big, fontweight="bold", va="top")
    figure.text(gap / width, 1 - (gap + (title.count("\n") + 1) * 1.3 * big / 72) / total, under,
                fontsize=small, color="#333333", va="top")
    if legend:
        legend.set_bbox_to_anchor((0.5, gap / 2 / total), transform=figure.transFigure)
    return figure


def legend_in_columns(figure, handles, labels, room):
    """A legend at the lower end, in as many columns as fit into `room` inches."""
    for columns in range(min(len(handles), 6), 0, -1):
        legend = figure.legend(handles, labels, loc="lower center", ncol=columns, handlelength=3.2,
                               columnspacing=1.4, borderaxespad=0)
        figure.canvas.draw()
        if columns == 1 or legend.get_window_extent().width / figure.dpi <= room:
            return legend
        legend.remove()
    return None
