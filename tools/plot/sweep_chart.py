"""Speed against capacity factor, and what the router loses, in one figure."""
import textwrap
from pathlib import PurePath

import matplotlib
from matplotlib import pyplot
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

import hidden
import look
import option_columns
import rows
import speed_bands
import untold
from chart_data import (BadInput, factor_axis, good_rows, measured_notes, memory_notes, partial_notes,
                        read_measured, training_words, warning_notes)
from sweep_series import read_sweep

MODES = {"train": "training step", "prefill": "forward pass only (prefill)"}
DISPATCHES = {"einsum": "rows moved to experts by products with masks (einsum)"}


def gpus_in_words(count):
    return f"{count} GPU" if count == "1" else f"{count} GPUs"


def document_name(text):
    """A shipped name as it is; of a path its file's name, or its folder's where the file is a checkpoint's config.json."""
    path = PurePath(text)
    return path.parent.name if path.name == "config.json" and path.parent.name else path.name.removesuffix(".json")


def setting(shared):
    """The model and the GPUs that all rows share."""
    model, profile = (document_name(shared[name]) if name in shared else f"several {name}s" for name in ("model", "profile"))
    where = ""
    if "gpus" in shared:
        where = f"{shared['gpus']} x " if "profile" in shared else f"{gpus_in_words(shared['gpus'])}, "
    return f"{model} on {where}{option_columns.gpu_title(profile, shared.get('cluster', ''), shared.get('profile'))}"


def _title(shared):
    return f"{setting(shared)}: speed and token loss by capacity factor"


WIDTH = 10.5  # of the page, in inches
MARGIN = 0.015  # of the texts on the left and right, as a share of the width
LEFT = 0.1  # of the panels, at least, as a share of the width: labels of many digits take more
TITLE_POINTS = 13
SUBTITLE_POINTS = 9.5
MOST_NOTE_LINES = 5  # of text, that name the dotted lines which start close to each other
NOTE_LETTERS = 18  # in a line of it
MOST_WITH_NOTES = 8  # lines whose legend says which of them lie on each other


def subtitle(shared, refused, notes=(), first=(), sentences=()):
    """What all rows share, and `notes` on those that are drawn otherwise or left out. What mostly follows from the model is
    minor. `first` are parts before these, `sentences` stand behind them."""
    parts = list(first)
    if "mode" in shared:
        parts.append(MODES.get(shared["mode"], shared["mode"]))
    parts += training_words(shared)
    if shared.get("dispatch", "index") != "index":
        parts.append(DISPATCHES.get(shared["dispatch"], f"dispatch {shared['dispatch']}"))
    if "experts" in shared:
        parts.append(look.Minor(f"{shared['experts']} experts"))
    if "expert_parallel" in shared:
        parts.append(f"expert parallel over {gpus_in_words(shared['expert_parallel'])}")
    if "tokens_per_gpu" in shared:
        parts.append(look.Minor(f"{int(float(shared['tokens_per_gpu'])):,} tokens per GPU"))
    if "routing" in shared:
        parts.append(f"routing {shared['routing']}")
    if refused:
        parts.append(f"{refused} refused scenario{'s' * (refused > 1)} left out")
    return look.Subtitle([*parts, *notes], sentences)


def untold_notes(path, series, fits_only, where):
    """What a subtitle says of options in which rows differ and that no label names."""
    told = dict.fromkeys(name for entry in series for name in entry.options)
    return untold.notes(rows.read([path], where, fits_only), ["router", "capacity_factor", *told])


def text_above(figure, text):
    """The text in lines as wide as the page, to stand above the panels."""
    return look.wrapped_subtitle(figure, text, (1 - 2 * MARGIN) * figure.get_size_inches()[0], SUBTITLE_POINTS)


def title_above(figure, title):
    """(the title in lines as wide as the page, how many inches the lines after the first take)."""
    title = look.wrapped(figure, title, (1 - 2 * MARGIN) * figure.get_size_inches()[0], TITLE_POINTS, "bold")
    return title, 1.2 * TITLE_POINTS / 72 * title.count("\n")


def speed_axis(rows):
    """The name of the axis, with how many times the predicted speed a measurement is likely to find."""
    likely = speed_bands.likely_text(rows)
    return "speed, tokens/s per GPU" + (f"\n(measured: likely {likely} times that)" if likely else "")


def with_factor(points):
    return [point for point in points if point.capacity_factor is not None]


def _draw_speed(axes, series, styles):
    """Returns how the bands are drawn, as look.band_entry() takes it."""
    kinds = set()
    shade = min(0.10, 0.8 / len(series))  # many bands one over another must not hide the lines
    for entry, how in zip(series, styles):
        points = with_factor(entry.points)
        for point in entry.points:
            if point.capacity_factor is None:  # no experts, no capacity: the same everywhere
                axes.axhline(point.speed, color=how["color"], linewidth=1.3,
                             linestyle=how["linestyle"], alpha=None if point.fits else look.PALE)
                if point.fits and point.speed_low < point.speed_high:
                    axes.axhspan(point.speed_low, point.speed_high, color=how["color"], alpha=shade, linewidth=0)
                    kinds.add("shade")
        factors = [point.capacity_factor for point in points]
        kinds |= look.draw_band(axes, factors, [point.speed_low for point in points], [point.speed_high for point in points],
                                [point.fits for point in points], how["color"], shade)
        if points:
            look.plot_line(axes, factors, [point.speed for point in points],
                           [point.fits for point in points], how, linewidth=1.6)
    look.thousands(axes.yaxis)
    return kinds


def draw_loss_bands(axes, series, styles):
    """The bands of token loss. Returns (how they are drawn, as look.band_entry() takes it; their upper ends in per cent)."""
    kinds, ends, shade = set(), [], min(0.14, 0.8 / len(series))
    for entry, how in zip(series, styles):
        known = [point for point in entry.points if point.token_loss is not None]
        banded = [point for point in known if point.fits and point.loss_low < point.loss_high]
        ends += [100 * point.loss_high for point in banded]
        for point in banded:
            if point.capacity_factor is None:
                axes.axhspan(100 * point.loss_low, 100 * point.loss_high, color=how["color"], alpha=shade, linewidth=0)
                kinds.add("shade")
        points = with_factor(known)
        kinds |= look.draw_band(axes, [point.capacity_factor for point in points], [100 * point.loss_low for point in points],
                                [100 * point.loss_high for point in points], [point.fits for point in points], how["color"], shade)
    return kinds, ends


def _draw_loss(axes, series, styles, factor_name):
    """Returns how the bands are drawn, as look.band_entry() takes it."""
    kinds, ends = draw_loss_bands(axes, series, styles)
    for entry, how in zip(series, styles):
        points = [point for point in with_factor(entry.points) if point.token_loss is not None]
        if points:
            look.plot_line(axes, [point.capacity_factor for point in points],
                           [100 * point.token_loss for point in points],
                           [point.fits for point in points], how, linewidth=1.6)
        for point in entry.points:
            if point.capacity_factor is None and point.token_loss is not None:
                axes.axhline(100 * point.token_loss, color=how["color"], linewidth=1.3,
                             linestyle=how["linestyle"], alpha=None if point.fits else look.PALE)
    for label, points in _apart(_failed_lines(series)):
        shares = [100 * point.failed for point in points]
        axes.plot([point.capacity_factor for point in points], shares, **_failed_style(points))
        if not label:
            continue
        axes.annotate(label, (points[0].capacity_factor, shares[0]), fontsize=8.5,
                      color=look.GREY, xytext=(-7, 0), textcoords="offset points", ha="right",
                      va="center", path_effects=[withStroke(linewidth=3, foreground="white")],
                      zorder=6)
    factors = [point.capacity_factor for entry in series for point in with_factor(entry.points)]
    room = 0.045 * (max(factors) - min(factors)) or 0.25
    axes.set_xlim(min(factors) - 2 * room, max(factors) + room)
    look.per_cent_from_zero(axes, ends)
    _make_room(axes, min(factors), max(factors) + room)
    axes.set_ylabel("token loss, %")
    axes.set_xlabel(factor_name)
    return kinds


def _make_room(axes, first, right):
    """Moves the left end until the notes beside the first point lie inside the panel, and the notes
    themselves, from the highest down, off its lower and upper ends and each other."""
    axes.figure.canvas.draw()
    panel = axes.get_window_extent()
    boxes = [note.get_window_extent() for note in axes.texts]
    if not boxes:
        return
    pad = 4.0  # pixels
    # The note's right end stays where it is, 7 points off the first point.
    need = max(box.width for box in boxes) + pad + 7 * axes.figure.dpi / 72
    share = min(0.5, need / panel.width)  # of the panel, left of the first point
    axes.set_xlim(min(axes.get_xlim()[0], first - share / (1 - share) * (right - first)), right)
    lows, ceiling = [], panel.y1 - pad
    for box in boxes:
        lows.append(min(box.y0, ceiling - box.height))
        ceiling = lows[-1]
    floor = panel.y0 + pad
    for note, box, low in reversed(list(zip(axes.texts, boxes, lows))):
        low = max(low, floor)
        floor = low + box.height
        note.set_position((-7, (low - box.y0) * 72 / axes.figure.dpi))


def _failed_style(points):
    """A dotted line; a cross over the marks of the routers where it has one point, of which no line shows."""
    alone = {"marker": "x", "markersize": 8, "markeredgewidth": 1.8, "zorder": 5} if len(points) == 1 else {}
    return {"color": look.GREY, "linestyle": ":", "linewidth": 1.6, **alone}


def _failed_entry(series):
    """(handle, label) of the legend: as the lines are drawn that have the most points."""
    most = max((points for _, points in _failed_lines(series)), key=len, default=[])
    style = _failed_style(most)
    if "marker" in style:
        style["linestyle"] = "none"
    return Line2D([], [], **style), "routes that failed, before\nrectification"


def _failed_lines(series):
    """Routes that failed before rectification are the same for all routers of one k, and draws of them nearly: one line
    for those that coincide."""
    lines, top = [], max((point.failed or 0 for entry in series for point in entry.points), default=0)
    for entry in series:
        points = {point.capacity_factor: point for point in with_factor(entry.points) if point.failed is not None}
        same = [entries for other, entries in lines if other.keys() == points.keys() and all(
            abs(other[factor].failed - point.failed) <= hidden.SAME * top for factor, point in points.items())]
        if same:
            same[0].append(entry)
        elif points:
            lines.append((points, [entry]))
    labels = _labels_of_failed([entries for _, entries in lines])
    return [(label, list(points.values())) for label, (points, _) in zip(labels, lines)]


def _labels_of_failed(lines):
    """The labels of lines, each of several entries: the k, which is enough where only the router changes what fails; else
    the fewest options that tell the lines apart. No line has two values of one of these."""
    bases = [entries[0].router.split("+")[0] for entries in lines]
    names = dict.fromkeys(name for entries in lines for entry in entries for name in entry.options)
    told = [name for name in names
            if all(len({entry.options.get(name) for entry in entries}) == 1 for entries in lines)]

    def are_apart(names):
        return len({(base, *(first.options.get(name) for name in names))
                    for (first, *_), base in zip(lines, bases)}) == len(lines)
    for name in reversed(told) if are_apart(told) else ():
        rest = [other for other in told if other != name]
        told = rest if are_apart(rest) else told
    labels = []
    for (first, *_), base in zip(lines, bases):
        router, *_ = first.label.replace(first.router, base, 1).split(", ")
        values = [f"{option_columns.words(name)} {first.options[name]}" for name in told if name in first.options]
        if bases.count(base) == 1:
            labels.append(base)
        elif values and are_apart(told):
            labels.append(wrapped(", ".join(([router] if len(set(bases)) > 1 else []) + values), NOTE_LETTERS))
        else:
            labels.append(wrapped(first.label.replace(first.router, base, 1), NOTE_LETTERS))
    return labels


def _apart(lines):
    """The lines, of which those that start close to each other share one label. It names them from the highest down."""
    top = max((point.failed for _, points in lines for point in points), default=0)
    result = []
    # Lines that start at one height are sorted by their next points.
    for label, points in sorted(lines, key=lambda line: [-point.failed for point in line[1]]):
        near = [entry for entry in result
                if entry[0] and abs(entry[1][0].failed - points[0].failed) < 0.12 * top]
        if near:
            near[0][0].append(label)
        result.append(([] if near else [label], points))
    def joined(labels):
        labels = list(dict.fromkeys(labels))  # draws of one router may differ by a route
        if len(labels) < 2:
            return f"{labels[0]}\nfailed" if labels else ""
        # One below the other, from the highest down, as long as that is a note beside the lines.
        named = [label for at, label in enumerate(labels)
                 if at == 0 or sum(other.count("\n") + 1 for other in labels[:at + 1]) <= MOST_NOTE_LINES]
        more = len(labels) - len(named)
        return "failed, from above:\n" + ",\n".join(named) + (f"\nand {more} more" if more else "")

    return [(joined(labels), points) for labels, points in result]


def wrapped(label, width):
    return "\n".join(textwrap.wrap(label, width))


def _measured_marks(how, excluded):
    """How one measured point is drawn, from the outside in: in the colour of its router, with a
    white centre where the line's markers are hollow; a cross in a hollow mark if it is left out."""
    mark = {"linestyle": "none", "marker": how["marker"], "markersize": 10, "zorder": 5,
            "markeredgewidth": 1.5}
    if excluded:
        return [{**mark, "markerfacecolor": "white", "markeredgecolor": how["color"]},
                {**mark, "marker": "x", "markersize": 5, "markeredgecolor": how["color"]}]
    marks = [{**mark, "markerfacecolor": how["color"], "markeredgecolor": "black"}]
    if how.get("markerfacecolor") == "white":
        marks.append({**mark, "markersize": 4, "markerfacecolor": "white",
                      "markeredgecolor": "white"})
    return marks


def _draw_measured(axes, series, styles, points):
    """Measured points of the routers that have a line; returns them."""
    by_router = {}
    for entry, how in zip(series, styles):
        by_router.setdefault(entry.router, how)
    shown = [point for point in points
             if point.router in by_router and point.capacity_factor is not None]
    for point in shown:
        for mark in _measured_marks(by_router[point.router], point.excluded):
            axes.plot([point.capacity_factor], [point.speed], **mark)
    return shown


def _measured_entries(points):
    """(handle, label) of the legend."""
    def handle(excluded):
        marks = _measured_marks({"color": "#999999", "marker": "o"}, excluded)
        return tuple(Line2D([], [], **mark) for mark in marks)

    entries = []
    if any(not point.excluded for point in points):
        sources = {point.source for point in points if point.source}
        source = f",\n{sources.pop()}" if len(sources) == 1 else ""
        entries.append((handle(False), f"measured{source}"))
    if any(point.excluded for point in points):
        entries.append((handle(True), "measured, left out of the\nstudy"))
    return entries


def _covered(series):
    """{index of a line: the label of a later one that hides it, as its speeds are the same within 0.3 %}. The label is
    without the router where both have the same."""
    speeds = [{point.capacity_factor: point.speed for point in with_factor(entry.points)} for entry in series]
    found = {}
    for at, one in enumerate(speeds):
        for later in range(at + 1, len(series)):
            other = speeds[later]
            if one and one.keys() == other.keys() and all(abs(one[key] - other[key]) <= 0.003 * one[key] for key in one):
                same = series[later].router == series[at].router
                found[at] = series[later].label.removeprefix(f"{series[at].router}, " if same else "")
    return found


def _legends(speed, loss, series, styles, measured, kinds, band, loss_kinds):
    # The legend of many lines has no room for more.
    above = _covered(series) if len(series) <= MOST_WITH_NOTES else {}
    entries = [(Line2D([], [], linewidth=1.6, **how),
                wrapped(entry.label, 26) + (f"\n{wrapped(f'(speed: as {above[at]})', 26)}" if at in above else ""))
               for at, (entry, how) in enumerate(zip(series, styles))]
    if kinds:
        entries.append((look.band_entry(kinds), wrapped(band, 26)))
    if any(not point.fits for entry in series for point in entry.points):
        entries.append((Line2D([], [], color=look.GREY, alpha=look.PALE, linewidth=1.6, marker="o",
                               markerfacecolor="white"), "pale, hollow: does not fit\nin GPU memory"))
    entries += _measured_entries(measured)
    place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0}
    legend = speed.legend(*zip(*entries), title="router" if _only_routers(series) else "router, options",
                         handlelength=3.4, **place)
    speed.figure.canvas.draw()
    # Many routers reach down beside the lower panel: its legend then follows theirs.
    panel = loss.get_window_extent()
    reached = (legend.get_window_extent().y0 - panel.y0) / panel.height - 0.03
    place["bbox_to_anchor"] = (1.01, min(1.0, reached))
    entries = [(Line2D([], [], color=look.GREY, linewidth=1.6),
                "lines as above: share of the\nchosen experts' weight that\nno expert processes, after\nrectification"),
               _failed_entry(series)]
    if loss_kinds:
        entries.append((look.band_entry(loss_kinds), wrapped(rows.LOSS_BAND, 26)))
    loss.legend(*zip(*entries), handlelength=3.4, **place)


def _set_height(figure, height, top):
    """Sets the height of the page in inches, of which `top` are above the panels."""
    figure.set_size_inches(WIDTH, height)
    figure.subplots_adjust(top=1 - top / height, bottom=0.53 / height)


def _only_routers(series):
    """Whether the lines differ in nothing but the router."""
    return len({entry.router for entry in series}) == len(series)


def styled_sweep(path, fits_only, where, drawn):
    """What read_sweep() has, and how each of its lines looks; raises BadInput where no row has a capacity factor.
    `drawn`: what the chart has over it, "speeds"."""
    series, shared, refused = read_sweep(path, fits_only, where)
    if not any(with_factor(entry.points) for entry in series):
        raise BadInput(f"{path}: no row has a capacity factor to draw {drawn} against: "
                       "sweep a router with capacity too, top2 say")
    styles = look.router_styles([entry.router for entry in series]) if _only_routers(series) else \
        [look.style_by_index(index) for index in range(len(series))]
    return series, shared, refused, look.flat_styles(styles, [not with_factor(entry.points) for entry in series])


def draw(path, measured_path, title, fits_only=False, where=""):
    """The figure of a sweep's CSV; raises BadInput for one that cannot be drawn."""
    series, shared, refused, styles = styled_sweep(path, fits_only, where, "speeds")
    measured = read_measured(measured_path, shared.get("mode")) if measured_path else []
    notes, results = memory_notes(path, series, fits_only) + partial_notes([path]), good_rows(path)
    notes += warning_notes([point.warnings for entry in series for point in entry.points], ("host limits",))
    notes += untold_notes(path, series, fits_only, where)
    notes += measured_notes(measured_path, shared.get("mode"), series) if measured_path else []
    with matplotlib.rc_context(look.RC):
        figure, grid = pyplot.subplots(2, 1, sharex=True, squeeze=False, figsize=(WIDTH, 7.6),
                                       gridspec_kw={"height_ratios": (1.5, 1)})
        speed, loss = grid.flat
        below = text_above(figure, subtitle(shared, refused, notes, sentences=[speed_bands.level_text(results)]))
        title, lower = title_above(figure, title or _title(shared))
        top = 0.72 + lower + 0.17 * below.count("\n")
        height = 6.88 + top + 0.45 * max(0, len(series) - 14)  # the legend takes a line or two for each
        figure.subplots_adjust(left=LEFT, right=0.755, hspace=0.08)
        _set_height(figure, height, top)
        kinds = _draw_speed(speed, series, styles)
        speed.set_ylabel(speed_axis(results))
        left = look.overhang(figure, grid)[0] / WIDTH + MARGIN
        figure.subplots_adjust(left=max(LEFT, left))
        loss_kinds = _draw_loss(loss, series, styles, factor_axis(shared))
        shown = _draw_measured(speed, series, styles, measured)
        words = kinds, speed_bands.legend_text(results, option_columns.load()), loss_kinds
        _legends(speed, loss, series, styles, shown, *words)
        below_page = MARGIN * WIDTH - loss.get_legend().get_window_extent().y0 / figure.dpi
        if below_page > 0:  # labels of three and more lines
            height += below_page
            _set_height(figure, height, top)
            _legends(speed, loss, series, styles, shown, *words)
        figure.text(MARGIN, 1 - 0.11 / height, title, fontsize=TITLE_POINTS, fontweight="bold", va="top")
        figure.text(MARGIN, 1 - (0.38 + lower) / height, below, fontsize=SUBTITLE_POINTS, color="#333333", va="top")
    return figure
