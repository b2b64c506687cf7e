"""Any figures of a sweep over any of its columns: a line per combination of the other options, a panel
per figure and per value of --facet."""
import math
import textwrap

import matplotlib
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

import hidden
import look
import option_columns
import page
import rows
import untold
from chart_data import BadInput, fits

MOST_LINES, MOST_PANELS = 28, 16
# Figures that count the FLOPs of the model for each token, whatever its router drops.
OF_MODEL_FLOPS = ("mfu", "tflops_per_gpu")  # of all k routes of a token
MFUS = ("mfu", "mfu_kept")


def positions(table, x):
    """(a function from a cell to its place, the names of the places or None where x is a number)."""
    values = [value for value in rows.ordered(table, x) if value != ""]
    if all(rows.is_number(value) for value in values):
        return float, None
    places = {value: place for place, value in enumerate(values)}
    return places.__getitem__, values


def _is_doubling(values):
    """Whether a logarithmic axis shows them evenly: 8, 16, 32, 128."""
    numbers = sorted({float(value) for value in values})
    return (len(numbers) > 2 and numbers[0] > 0 and numbers[-1] / numbers[0] >= 8
            and all(b / a >= 1.5 for a, b in zip(numbers, numbers[1:])))


def _panel_width(axes):
    """The width of a panel in inches before its page is laid out: that of its column without the labels beside it."""
    return 0.75 * axes.get_figure().get_size_inches()[0] / axes.get_subplotspec().get_gridspec().ncols


def _label_width(text):
    """The width of a label below a panel in inches, with the air beside it."""
    return (0.62 * len(text) + 0.8) * matplotlib.rcParams["xtick.labelsize"] / 72


def _number(value, _=None):
    return f"{value:,g}" if abs(value) < 1e6 else f"{value:,.0f}"


def _apart(axes, numbers, place):
    """The first and the last of the numbers, and those between them whose labels overlap no other."""
    inch = _panel_width(axes) / ((place(numbers[-1]) - place(numbers[0])) or 1)

    def is_free(one, other):
        wide = (_label_width(_number(one)) + _label_width(_number(other))) / 2
        return inch * (place(other) - place(one)) >= wide

    chosen = numbers[:1]
    for number in numbers[1:-1]:
        if is_free(chosen[-1], number) and is_free(number, numbers[-1]):
            chosen.append(number)
    return chosen + numbers[max(1, len(numbers) - 1):]


def _turn_of_names(axes, names):
    """How far the names below an axis are turned, in degrees: as little as gives them room beside each other."""
    width = _panel_width(axes)
    room = width / len(names)
    if max(map(_label_width, names)) < room:
        return 0
    # How far labels that end below their place reach to the left of the panel, where the next one may be.
    beyond = max(0.87 * _label_width(name) - (place + 0.5) * room for place, name in enumerate(names))
    is_alone = axes.get_subplotspec().get_gridspec().ncols == 1
    is_apart = 0.5 * room > 1.2 * matplotlib.rcParams["xtick.labelsize"] / 72
    return 30 if is_apart and (is_alone or beyond < 0.25 * width) else 90


def _are_few_steps(values):
    numbers = sorted({float(value) for value in values})
    steps = [above - below for below, above in zip(numbers, numbers[1:])]
    return (all(value.is_integer() for value in numbers) and bool(steps)
            and numbers[-1] - numbers[0] <= 10 * min(steps))


def style_x(axes, table, x, doublings=None):
    """Labels of an axis of numbers, powers or names. `doublings`: whether it is logarithmic; None: as its values lie."""
    _, names = positions(table, x)
    scale = rows.scale_of(table, x)
    values = {row[x] for row in table.rows if row[x] != ""}
    if names is not None:
        turn = _turn_of_names(axes, names)
        axes.set_xticks(range(len(names)), names, rotation=turn, ha="right" if turn == 30 else "center")
        axes.set_xlim(-0.5, len(names) - 0.5)
        return
    numbers = sorted({scale * float(value) for value in values})
    if _is_doubling(values) if doublings is None else doublings:
        axes.set_xscale("log", base=2)
        axes.set_xticks(_apart(axes, numbers, math.log))
        axes.xaxis.set_minor_locator(NullLocator())
    elif _are_few_steps(values):  # no ticks between whole numbers
        axes.set_xticks(_apart(axes, numbers, float))
    else:
        widest = max(_label_width(_number(number)) for number in numbers)
        axes.xaxis.set_major_locator(MaxNLocator(max(2, min(9, int(_panel_width(axes) / widest))), steps=(1, 2, 2.5, 5, 10)))
    axes.xaxis.set_major_formatter(FuncFormatter(_number))


def require_values(table, x):
    table.require(x, "x")
    if all(row[x] == "" for row in table.rows):
        raise BadInput(f"--x {x}: no row has a value there; rows differ in "
                       f"{', '.join(table.differing()[:5]) or 'no option'}")


def require_few_lines(lines):
    if len(lines) > MOST_LINES:
        raise BadInput(f"{len(lines)} lines, and more than {MOST_LINES} cannot be distinguished: choose rows with --where")


def style_y(axes):
    low, high = axes.get_ylim()
    if low > 0 and low < 0.5 * high:
        axes.set_ylim(bottom=0)
    if max(abs(low), abs(high)) >= 1000:
        axes.yaxis.set_major_formatter(FuncFormatter(
            lambda value, _: f"{value:,.0f}" if abs(value) < 1e7 else f"{value:.3g}"))


def draw_line(axes, table, line, x, y, how, shade):
    """A line of one figure; returns how its band is drawn, as look.band_entry() takes it."""
    place, _ = positions(table, x)
    scale_x = rows.scale_of(table, x) if positions(table, x)[1] is None else 1
    scale = rows.scale_of(table, y)
    shown = [row for row in line.rows if row[x] != "" and rows.figure_of(row, y) is not None]
    flat = [row for row in line.rows if row[x] == "" and rows.figure_of(row, y) is not None]
    kinds = set()
    for row in flat:  # x does not apply: the same everywhere
        low, value, high = (scale * end for end in rows.band_of(row, y))
        axes.axhline(value, color=how["color"], linestyle=how["linestyle"], alpha=None if fits(row) else look.PALE)
        if fits(row) and low < high:
            axes.axhspan(low, high, color=how["color"], alpha=shade, linewidth=0)
            kinds.add("shade")
    if not shown:
        return kinds
    xs = [scale_x * place(row[x]) for row in shown]
    bands = [[scale * end for end in rows.band_of(row, y)] for row in shown]
    fit = [fits(row) for row in shown]
    lows, figures, highs = zip(*bands)
    kinds |= look.draw_band(axes, xs, lows, highs, fit, how["color"], shade, how["linestyle"] != "none")
    look.plot_line(axes, xs, figures, fit, how)
    return kinds


def _mfu_notes(table, ys):
    """What a subtitle says of FLOPs of dropped routes, and of an MFU above 100 % in a line or its band: these, or an error."""
    counts_dropped = any(y in OF_MODEL_FLOPS for y in ys) and rows.drops_routes(table.rows)
    above = {y: [row for row in table.rows if fits(row) and (rows.band_of(row, y)[2] or 0) > 1] for y in ys if y in MFUS}
    notes = ["FLOPs of dropped routes are counted, though no GPU computes them"] if counts_dropped else []
    if above.get("mfu") and all(rows.drops_routes([row]) for row in above["mfu"]):
        notes[0] += ": so MFU can be above 100 %"
        del above["mfu"]
    if counts_dropped and "mfu" in ys and "mfu_kept" in table.known() and "mfu_kept" not in ys:
        notes[0] += " (--y mfu_kept leaves them out)"
    if any(above.values()):
        notes.append("no GPU is measured above 100 %: ends of bands beyond are the prediction's error")
    return notes


def panel_of(axes, table, lines, x, y):
    """What hidden.notes() takes of lines that draw_line() drew."""
    scale = rows.scale_of(table, y)
    return hidden.Panel(rows.short_name(table, y), axes,
                        {line.label: {row[x]: scale * rows.figure_of(row, y) for row in line.rows
                                      if rows.figure_of(row, y) is not None} for line in lines})


def styles_of(lines, size):
    """One style for each line, {label: rows} of it: a router's is the same in all charts."""
    told = list(zip(*(_router_and_rest(label, members) for label, members in lines.items())))
    styles = [dict(style) for style in look.line_styles(*told)]
    for style in styles:
        style["markersize"] = 0.1 * size.font * style.get("markersize", 5.5)
    return styles


def _router_and_rest(label, members):
    """(the router that a line's label names, or None; the rest of the label)."""
    routers = {(row.get("_router", ""), row.get("router", "")) for row in members}
    words = label.split(", ")
    (named, router), *more = routers
    if more or not router or named not in words:
        return None, label
    words.remove(named)
    return router, ", ".join(words)


def _rows_by_label(lines):
    """{label: rows}: lines of one label, in several panels, share a style."""
    found = {}
    for line in lines:
        found.setdefault(line.label, []).extend(line.rows)
    return found


def _require_columns(table, x, ys, group, facet):
    require_values(table, x)
    for y in ys:
        table.require(y, "y")
        if all(rows.figure_of(row, y) is None for row in table.rows):
            raise BadInput(f"--y {y}: no row has a number there")
    for name in [*(group or []), *([facet] if facet else [])]:
        table.require(name, "facet" if name == facet else "group")


def _require_few(table, x, facet, labels, panels):
    if len(labels) > MOST_LINES:
        raise BadInput(f"{len(labels)} lines, and more than {MOST_LINES} cannot be distinguished: choose "
                       f"rows with --where, or give --facet one of {', '.join(table.differing((x,))[:5])}")
    if len(panels) > MOST_PANELS:
        raise BadInput(f"--facet {facet}: {len(panels)} panels, and at most {MOST_PANELS} can be "
                       "read: choose rows with --where")


def unjoined_names(table, x, styles):
    """The styles, without a line where x is names, which have no order that it could follow."""
    return styles if positions(table, x)[1] is None else [{**style, "linestyle": "none"} for style in styles]


def _columns(size, ys, panels):
    """How many panels stand in a row: the facets of each figure, or, wrapped, those of the only one."""
    facets = len(panels) // len(ys)
    return facets if len(ys) > 1 else min(facets, 4 if size.width > 6 else 2)


def _name_axes(axes, table, x, y, is_left, is_lowest, told):
    """Names the axes of a panel where no neighbour has their names."""
    if is_left:
        differs = rows.is_time(y) and untold.batch_note(table, told) and not untold.batch_per_gpu(table)
        axes.set_ylabel(rows.axis_name(table, y) + ("\n(global batch differs)" if differs else ""))
    if is_lowest:
        axes.set_xlabel(rows.axis_name(table, x))
        axes.xaxis.set_tick_params(labelbottom=True)


def _title_panel(axes, facet, value, size):
    letters = int(_panel_width(axes) * 72 / (0.6 * size.font))
    axes.set_title(textwrap.fill(f"{option_columns.words(facet)} {value or 'none'}", letters), loc="left")


def _legend(table, styles, drawn, kinds):
    """(the looks, the names) of all that the panels show. `kinds`: {what bands are: how they are drawn}."""
    below = hidden.notes([panel_of(*those) for those in drawn])
    handles, names = page.legend_entries(styles.values(), [label + below.get(label, "") for label in styles])
    if list(styles) == ["all rows"]:
        handles, names = [], []
    for words, drawn_as in kinds.items():
        handles.append(look.band_entry(drawn_as))
        names.append(words)
    if not all(map(fits, table.rows)):
        handles.append(page.unfit_entry())
        names.append(page.UNFIT)
    return handles, names


def _notes(table, x, ys, told, more):
    """What the subtitle says beside what all rows share."""
    notes = rows.run_notes(table, [x, *ys]) + untold.notes(table, told, any(map(rows.is_time, ys))) + list(more)
    notes += page.unfit_notes(table) + page.warned_notes(table)
    return notes + _mfu_notes(table, ys)


def draw(table, x, ys, group, facet, size, title, more=()):
    """The figure; BadInput for what cannot be drawn. `more`: what its subtitle says beside the notes of the rows."""
    _require_columns(table, x, ys, group, facet)
    lines = rows.lines(table, x, group, facet)
    labels = list(dict.fromkeys(line.label for line in lines))
    panels = [(y, value) for y in ys for value in (rows.ordered(table, facet) if facet else [None])]
    _require_few(table, x, facet, labels, panels)
    told = [x, *([facet] if facet else []), *rows.names_of(table, x, group, facet)]
    styles = dict(zip(labels, unjoined_names(table, x, styles_of(_rows_by_label(lines), size))))
    shade = min(0.14, 0.9 / len(labels))
    with matplotlib.rc_context(page.settings(size)):
        columns = _columns(size, ys, panels)
        figure, axes = page.grid(size, -(-len(panels) // columns), columns, sharex=True,
                                 sharey="row" if len(ys) > 1 else bool(facet))
        kinds, drawn = {}, []
        for index, (one, (y, value)) in enumerate(zip(axes.flat, panels)):
            own = [line for line in lines if not facet or line.key[0] == value]
            drawn.append((one, table, own, x, y))
            for line in own:
                drawn_as = draw_line(one, table, line, x, y, styles[line.label], shade)
                if drawn_as:
                    kinds.setdefault(table.band_words(y), set()).update(drawn_as)
            style_x(one, table, x)
            if facet and (index < columns or len(ys) == 1):
                _title_panel(one, facet, value, size)
            _name_axes(one, table, x, y, index % columns == 0, index + columns >= len(panels), told)
        for one in axes.flat[len(panels):]:
            one.set_visible(False)
        for one, *_ in drawn:  # after all lines, as panels share their limits
            style_y(one)
        for one, _, _, _, y in drawn:
            if y in MFUS and one.get_ylim()[1] > 100:
                one.axhline(100, color="black", linewidth=0.8, zorder=1)
        what = " and ".join(rows.short_name(table, y) for y in ys)
        return page.end_page(figure, axes, size,
                             title or page.heading(table, f"{what} by {rows.axis_name(table, x).split(',')[0]}"),
                             page.subtitle(table, _notes(table, x, ys, told, more), figures=ys),
                             *_legend(table, styles, drawn, kinds))
