"""What routers lose and pad by capacity factor: one line per router, skew or other option."""
import matplotlib
from matplotlib import pyplot
from matplotlib.lines import Line2D

import hidden
import look
from chart_data import factor_axis, memory_notes, partial_notes
from page import UNFIT, legend_in_columns, unfit_entry
from rows import LOSS_BAND
from sweep_chart import (MARGIN, SUBTITLE_POINTS, TITLE_POINTS, document_name, draw_loss_bands, setting, styled_sweep, subtitle,
                         text_above, title_above, untold_notes, with_factor, wrapped)
from sweep_series import is_of_routing

WIDTH, PANELS_HIGH, BELOW_PANELS = 14.5, 3.2, 0.56  # of the page, its panels and the names of their axes, in inches
# (a figure, the title of its panel, how notes of the legend call it)
PANELS = (("failed", "routes that failed,\nbefore rectification", "failed routes"),
          ("token_loss", "token loss: weight of chosen experts\nthat no expert processes, after rectification", "token loss"),
          ("padded", "slots that stay empty", "empty slots"))


def _lay_out(figure, entries, top):
    """Panels below `top` inches of text and the legend beside them, or below where it is longer than they are high.
    Returns the height of the page in inches."""
    height = PANELS_HIGH + BELOW_PANELS + top
    figure.set_size_inches(WIDTH, height)
    figure.subplots_adjust(left=0.05, right=0.83, top=1 - top / height, bottom=BELOW_PANELS / height, wspace=0.2)
    handles, labels = zip(*entries)
    legend = figure.legend(handles, [wrapped(label, 24) for label in labels], loc="upper left",
                           bbox_to_anchor=(0.838, 1 - (top - 0.1) / height), handlelength=3.4)
    figure.canvas.draw()
    if legend.get_window_extent().y0 >= MARGIN * WIDTH * figure.dpi:
        return height
    legend.remove()
    legend = legend_in_columns(figure, handles, [wrapped(label, 160) for label in labels], (1 - 2 * MARGIN) * WIDTH)
    more = legend.get_window_extent().height / figure.dpi + 0.25
    height += more
    figure.set_size_inches(WIDTH, height)
    figure.subplots_adjust(right=0.985, top=1 - top / height, bottom=(BELOW_PANELS + more) / height)
    legend.set_bbox_to_anchor((0.5, MARGIN * WIDTH / height), transform=figure.transFigure)
    return height


def _draw_line(axes, name, entry, how):
    """Draws one figure of the points of a line, in per cent."""
    known = [point for point in entry.points if getattr(point, name) is not None]
    for point in known:
        if point.capacity_factor is None:  # without capacity: the same everywhere
            axes.axhline(100 * getattr(point, name), color=how["color"], linewidth=1.3, linestyle=how["linestyle"],
                         alpha=None if point.fits else look.PALE)
    points = with_factor(known)
    if points:
        look.plot_line(axes, [point.capacity_factor for point in points], [100 * getattr(point, name) for point in points],
                       [point.fits for point in points], how, linewidth=1.6)


def _where(path, shared):
    """What the subtitle starts with. Routing alone has no GPUs that matter, and a model only where one was given."""
    if not is_of_routing(path):
        return [setting(shared)]
    return [document_name(shared["model"])] if shared.get("model") else []


def draw(path, title, fits_only=False, where=""):
    """The figure of a sweep's CSV; raises BadInput for one that cannot be drawn."""
    series, shared, refused, styles = styled_sweep(path, fits_only, where, "losses")
    notes = memory_notes(path, series, fits_only) + partial_notes([path]) + untold_notes(path, series, fits_only, where)
    with matplotlib.rc_context(look.RC):
        figure, grid = pyplot.subplots(1, 3, sharex=True, figsize=(WIDTH, 4.9))
        below = text_above(figure, subtitle(shared, refused, notes, _where(path, shared)))
        # What all lines share is said above them.
        same = series[0].router if len({entry.router for entry in series}) == 1 else None
        title, lower = title_above(figure, title or f"{f'{same}: l' if same else 'L'}oss and padding by capacity factor")
        top = 1.15 + lower + 0.17 * below.count("\n")
        labels = [entry.label.removeprefix(f"{same}, ") if same else entry.label for entry in series]
        panels, kinds = [], set()
        for axes, (name, meaning, short) in zip(grid, PANELS):
            for entry, how in zip(series, styles):
                _draw_line(axes, name, entry, how)
            axes.set_title(meaning, loc="left", fontsize=10)
            axes.set_xlabel(factor_axis(shared))
            ends = []
            if name == "token_loss":
                kinds, ends = draw_loss_bands(axes, series, styles)
            look.per_cent_from_zero(axes, ends)
            panels.append(hidden.Panel(short, axes, {
                label: {point.capacity_factor: 100 * getattr(point, name) for point in entry.points
                        if getattr(point, name) is not None} for label, entry in zip(labels, series)}))
        grid[0].set_ylabel("%")
        below_others = hidden.notes(panels)
        entries = [(Line2D([], [], linewidth=1.6, **how), label + below_others.get(label, ""))
                   for label, how in zip(labels, styles)]
        entries += [(look.band_entry(kinds), LOSS_BAND)] if kinds else []
        entries += [(unfit_entry(), UNFIT)] if any(not point.fits for entry in series for point in entry.points) else []
        height = _lay_out(figure, entries, top)
        figure.text(MARGIN, 1 - 0.12 / height, title, fontsize=TITLE_POINTS, fontweight="bold", va="top")
        figure.text(MARGIN, 1 - (0.44 + lower) / height, below, fontsize=SUBTITLE_POINTS, color="#333333", va="top")
    return figure
