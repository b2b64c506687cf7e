"""How the charts look: colours that colour-blind readers can distinguish, markers that are readable in grey."""
import itertools
import math
import re

import matplotlib
import numpy as np
from matplotlib.cbook import STEP_LOOKUP_MAP
from matplotlib.collections import LineCollection
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import ConnectionPatch, Patch
from matplotlib.path import Path
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator
from matplotlib.transforms import Bbox

# Okabe and Ito's palette (2008), without its yellow, which vanishes on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
# Five more for charts of up to twelve lines: for protanopes and deuteranopes too they differ from each other and
# from those above about as much as those do (16 against 18 in CIELAB, by Machado et al. 2009).
MORE_COLOURS = ("#7A0000", "#4B0092", "#86B049", "#A0522D", "#882255")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#555555"
LIGHT_GREY = "#BBBBBB"

# A rectification has a colour and marker, a k has dashes and a filling, so that lines of one
# rectification, or of one k, are recognised, also where they coincide and in grey.
RECTIFICATIONS = {"": 0, "+ir": 1, "+fr+ir": 2, "+fr": 3, "+ir@node": 4, "+fr+ir@node": 5}
DASHES = ("-", (0, (5, 2.5)), (0, (8, 2, 1.5, 2)), (0, (3, 1.5)))
FLAT_DASHES = ((0, (6, 2, 1, 2)), (0, (1, 1.2)), (0, (8, 1.5)))
# Other routers have a colour (its place in COLOURS and MORE_COLOURS) and a marker of their own, the same in every chart.
OTHER_ROUTERS = {"dropless": (8, "P"), "expert-choice": (10, "v"), "base": (11, "X"), "sinkhorn": (9, "d"),
                 "bias-balanced": (7, "h"), "hash": (4, "<"), "random": (5, ">"), "soft": (6, "p"),
                 "group-limited": (5, "H"), "scomoe": (11, "1"), "gating-dropout": (10, "8"), "thor": (4, "*")}
DENSE = {"color": "#000000", "marker": "", "linestyle": "-."}

RC = {
    "font.size": 10, "axes.titlesize": 11, "axes.labelsize": 10, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": "#DDDDDD", "grid.linewidth": 0.6,
    "legend.frameon": False, "legend.fontsize": 9, "axes.axisbelow": True,
    "figure.facecolor": "white",
    # Text stays text: TrueType fonts inside a PDF, which journals ask for, and letters in an SVG.
    "pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none",
}
if "text.parse_math" in matplotlib.rcParams:  # of 3.6 and later
    RC["text.parse_math"] = False  # a "$" of a title or a name is no formula
# Settings that must also hold when the figure is written.
RC_OF_TEXT = {name: value for name, value in RC.items() if name.partition(".")[2] in ("fonttype", "parse_math")}


def style_by_index(index):
    """Colour, marker and dashes of the index-th line. Colours repeat after 12 lines, colour and marker together after 49;
    marker and dashes together, which are what is left in grey, after 28."""
    first = COLOURS + MORE_COLOURS
    return {"color": first[index] if index < len(first) else COLOURS[index % len(COLOURS)], "markersize": 5.5,
            "linestyle": DASHES[index // len(MARKERS) % len(DASHES)],
            "marker": MARKERS[(index + index // len(COLOURS)) % len(MARKERS)]}


def pairs_of(colours):
    """Every colour with each of the dashes of flat lines; neighbours differ in both."""
    return [(colour, FLAT_DASHES[(place + turn) % len(FLAT_DASHES)])
            for turn in range(len(FLAT_DASHES)) for place, colour in enumerate(colours)]


def flat_styles(styles, flat):
    """The styles, in which lines that are the same everywhere (`flat`, one bool each) are told apart by dashes instead of
    markers, and by colours that no other line has as long as there are any. They keep their own colours if they can."""
    result, number = list(styles), 0
    taken = {style["color"] for style, is_flat in zip(styles, flat) if not is_flat or style is DENSE}
    own = [style["color"] for style, is_flat in zip(styles, flat) if is_flat and style is not DENSE]
    all_colours = COLOURS + MORE_COLOURS
    keep = len(set(own)) == len(own) and not taken & set(own)
    free = own if keep else [colour for colour in all_colours if colour not in taken]
    pairs = [*pairs_of(free), *pairs_of([colour for colour in all_colours if colour in taken])]
    for at, (style, is_flat) in enumerate(zip(styles, flat)):
        if is_flat and style is not DENSE:
            colour, dashes = pairs[number % len(pairs)]
            result[at] = {"color": colour, "marker": "", "linestyle": dashes}
            number += 1
    return result


def _family(router):
    """"bias-balanced" of "bias-balanced:0.001+groups:8:4"."""
    return re.split(r"[+:]", router, maxsplit=1)[0]


def _suffix(router):
    """What follows the name of a top-k router: "+fr+ir"."""
    return router[len(router.split("+")[0]):]


def _is_top_k(router):
    return _suffix(router) in RECTIFICATIONS and (_suffix(router) != "" or _family(router) not in OTHER_ROUTERS)


def _other_style(router, taken):
    """The style of a router that is not like top-k: its own colour, or the first that is free, and its marker; where no
    colour is free, other dashes."""
    colours = COLOURS + MORE_COLOURS
    place, marker = OTHER_ROUTERS.get(_family(router), (len(taken) % len(colours), MARKERS[len(taken) % len(MARKERS)]))
    free = [place, *range(len(COLOURS), len(colours)), *range(len(COLOURS) - 1, -1, -1)]
    colour = next((colours[at] for at in free if colours[at] not in taken), colours[place])
    return {"color": colour, "marker": marker, "linestyle": DASHES[taken.count(colour) % len(DASHES)], "markersize": 6.5}


def _own_colours_first(routers, taken):
    """The routers, first those whose own colour is not taken. The order does not depend on that of the rows."""
    first, rest, taken = [], [], set(taken)
    for router in sorted(routers):
        place, _ = OTHER_ROUTERS.get(_family(router), (None, ""))
        colour = None if place is None else (COLOURS + MORE_COLOURS)[place]
        is_free = colour is not None and colour not in taken
        (first if is_free else rest).append(router)
        taken.add(colour)
    return first + rest


def router_styles(routers):
    """One style for each of the routers, whose names differ. A router has the same colour and marker in every chart; for
    top-k they stand for the rectification, and dashes and filling for the k."""
    order = [base for base in dict.fromkeys(router.split("+")[0] for router in routers if _is_top_k(router)) if base != "dense"]
    if len(order) > len(DASHES):
        return [style_by_index(index) for index in range(len(routers))]
    styles = {}
    for router in filter(_is_top_k, routers):
        if router == "dense":
            styles[router] = DENSE
            continue
        at = order.index(router.split("+")[0])
        style = {**style_by_index(RECTIFICATIONS[_suffix(router)]), "linestyle": DASHES[at], "markersize": 7}
        if at % 2 == 1:  # smaller, so that a filled marker underneath shows
            style.update(markerfacecolor="white", markersize=4.5)
        styles[router] = style
    for router in _own_colours_first(set(routers) - set(styles), [style["color"] for style in styles.values()]):
        styles[router] = _other_style(router, [style["color"] for style in styles.values()])
    return [styles[router] for router in routers]


def line_styles(routers, others):
    """Styles of lines, each of a router (or None) and of other options: the styles of the routers where these tell the
    lines apart, with few other options; else a style for each line by its place."""
    lines = list(zip(routers, others))
    names = list(dict.fromkeys(routers))
    kinds = list(dict.fromkeys(others))
    if None in routers or len(set(lines)) < len(lines) or len(kinds) > 1 and (len(names) == 1 or len(kinds) > 2):
        return [style_by_index(index) for index in range(len(lines))]
    own = dict(zip(names, router_styles(names)))
    if len(kinds) == 1:
        return [own[router] for router in routers]
    if len({(style["color"], style["marker"]) for style in own.values()}) < len(names):
        return [style_by_index(index) for index in range(len(lines))]
    return [{**own[router], "linestyle": DASHES[kinds.index(other)], "markersize": (7, 4.5)[kinds.index(other)],
             "markerfacecolor": (own[router]["color"], "white")[kinds.index(other)]} for router, other in lines]


PALE = 0.4  # of lines and marks that do not fit in memory


def plot_line(axes, xs, ys, fits, how, **more):
    """A line whose points that do not fit (`fits`, one bool each) are hollow and pale, as are the pieces to and from them."""
    if all(fits):
        axes.plot(xs, ys, **how, **more)
        return
    pale = {**how, "markerfacecolor": "white", "alpha": PALE}
    axes.plot(xs, ys, **pale, **more)
    if any(fits):
        axes.plot(xs, [y if fit else float("nan") for y, fit in zip(ys, fits)], **how, **more)


def draw_band(axes, xs, lows, highs, shown, colour, shade, is_line=True):
    """The band of a line at its points that are `shown`: a shade from one to the next; a bar at a point that has no such
    neighbour, or everywhere if no line joins the points. Returns which of the two were drawn, for band_entry()."""
    wide = [(at, is_line and any(shown[max(0, at - 1):at] + shown[at + 1:at + 2]))
            for at, (show, low, high) in enumerate(zip(shown, lows, highs)) if show and low < high]
    bars = [at for at, join in wide if not join]
    if bars:
        axes.vlines([xs[at] for at in bars], [lows[at] for at in bars], [highs[at] for at in bars], colors=colour, linewidth=1)
    if len(wide) > len(bars):
        axes.fill_between(xs, lows, highs, where=shown, color=colour, alpha=shade, linewidth=0)
    return {"shade" if join else "bar" for _, join in wide}


def band_entry(kinds):
    """What stands for the bands of draw_band() in a legend."""
    shade = Patch(color="#999999", alpha=0.35, linewidth=0)
    bar = Line2D([], [], linestyle="none", marker="|", color=GREY, markersize=12)
    return (shade, bar) if kinds == {"shade", "bar"} else bar if kinds == {"bar"} else shade


FAR = 16  # points of height between a mark and its text, from which on a line leads there


def _lead(axes, point, corner):
    """A thin line from a mark to a corner of its text, in pixels."""
    axes.add_artist(ConnectionPatch(point, axes.transAxes.inverted().transform(corner), "data", "axes fraction", axesA=axes,
                                    axesB=axes, color=GREY, linewidth=0.6, shrinkA=5, shrinkB=0))


def label_points(axes, points, texts, font, colour="black", others=()):
    """Writes each text beside its point, inside the axes, where it covers no other text, line, marker or legend and is
    nearer to its point than to any other of these and of `others`. Where there is no such place it may cover a line; a
    text without any place is left out. A line leads to a text that is not close to its point. The figure must have its final
    size. Returns the texts written."""
    renderer = axes.figure.canvas.get_renderer()
    inside, written = axes.get_window_extent(renderer), []
    taken = [text.get_window_extent(renderer) for text in axes.texts]
    if axes.get_legend():
        taken.append(axes.get_legend().get_window_extent(renderer))
    drawn, marks = _drawn(axes)
    places = axes.transData.transform(np.asarray([*points, *others], dtype=float).reshape(-1, 2))
    near = [(x, y) for y in (6, -6, 16, -16) for x in (5, -5)] + [(12, 0), (-12, 0), (12, 26), (-12, 26), (12, -26), (-12, -26)]
    near += [(x, y) for y in (2, -2) for x in (5, -5)]
    over_lines_too = sorted(near, key=lambda place: place[1] == 0)  # a line to the side of a point strikes its text through
    for point, text in zip(points, texts):
        if not text or any(text == other and _near(axes, point, at) for other, at in written):
            continue
        for x, y, over_lines in [(x, y, over) for over in (False, True) for x, y in (over_lines_too if over else near)]:
            label = axes.annotate(text, point, xytext=(x, y), textcoords="offset points", fontsize=font, color=colour,
                                  ha="left" if x > 0 else "right", va="bottom" if y > 0 else "top" if y < 0 else "center", annotation_clip=False)
            box = label.get_window_extent(renderer)
            if (box.x0 >= inside.x0 and box.x1 <= inside.x1
                    and _is_nearest(box, axes.transData.transform(point), places)
                    and not any(box.overlaps(other) for other in (*taken, *marks))
                    and (over_lines or not any(path.intersects_bbox(box, filled=False) for path in drawn))):
                taken.append(box)
                written.append((text, point))
                if over_lines and y == 0:
                    label.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.6})
                if abs(y) >= FAR:
                    _lead(axes, point, (box.x0 if x > 0 else box.x1, box.y0 if y > 0 else box.y1))
                break
            label.remove()
    return [text for text, _ in written]


def _is_nearest(box, own, places):
    """Whether no other place is nearer to the box than its own. Places so close to its own that they look like one count as it."""
    def away(place):
        return math.hypot(max(box.x0 - place[0], 0, place[0] - box.x1), max(box.y0 - place[1], 0, place[1] - box.y1))

    return all(away(own) <= away(place) or math.hypot(*(place - own)) < 3 for place in places)


def _drawn(axes):
    """(paths of the lines and bars, boxes of their markers), in pixels."""
    paths, boxes = [], []
    for line in axes.lines:
        corners = line.get_transform().transform(np.column_stack(line.get_data()).astype(float))
        corners = corners[np.isfinite(corners).all(axis=1)]
        if line.get_linestyle() not in ("None", " ", "") and len(corners) > 1:
            paths.append(Path(np.column_stack(STEP_LOOKUP_MAP[line.get_drawstyle()](*corners.T))))
        if line.get_marker() not in ("None", " ", "", None):
            half = 0.4 * line.get_markersize() * axes.figure.dpi / 72  # corners of the box are empty
            boxes += [Bbox.from_extents(x - half, y - half, x + half, y + half) for x, y in corners]
    for bars in axes.collections:
        if isinstance(bars, LineCollection):
            paths += [path.transformed(bars.get_transform()) for path in bars.get_paths()]
    return paths, boxes


def _near(axes, one, other, pixels=3):
    (x, y), (u, v) = axes.transData.transform([one, other])
    return abs(x - u) < pixels and abs(y - v) < pixels


def loss_axis(axes, losses):
    """Token loss in %: where it spans decades, linear up to 1 % and logarithmic beyond; returns what its name says of
    that."""
    if max(losses) > 10 and sum(loss < 2 for loss in losses) > 1:
        axes.set_xscale("symlog", linthresh=1, linscale=0.6)
        axes.set_xlim(-0.15, 1.3 * max(losses))
        axes.set_xticks([tick for tick in (0, 0.5, 1, 2, 5, 10, 20, 50, 100) if tick <= 1.3 * max(losses)])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        return " (linear up to 1 %, logarithmic beyond)"
    axes.margins(x=0.12)
    if max(losses) <= NOTHING:
        axes.set_xlim(-0.12, 1)
    axes.set_xlim(left=min(0, axes.get_xlim()[0]))
    return ""


NOTHING = 1e-9  # %: of routes or tokens, less is the rounding of sums


def per_cent_from_zero(axes, ends=()):
    """An axis of y from 0, with room above the highest line, and the highest of the `ends` of bands; up to 1 % where all
    are 0."""
    top = max((float(y) for line in axes.lines for y in line.get_ydata() if math.isfinite(y)), default=0)
    top = max([top, *ends])
    axes.set_ylim(0, 1.05 * top if top > NOTHING else 1)


def wrapped(figure, text, inches, points, weight="normal"):
    """Lines of at most so many inches, as measured: letters differ in width. Only a word that is wider than a
    line is divided."""
    renderer, font = figure.canvas.get_renderer(), FontProperties(size=points, weight=weight)
    room = 0.98 * inches * figure.dpi  # the same letters are a little wider in some formats

    def fits(line):
        return renderer.get_text_width_height_descent(line, font, False)[0] <= room
    lines = [""]
    for word in text.split():
        if fits(f"{lines[-1]} {word}".strip()):
            lines[-1] = f"{lines[-1]} {word}".strip()
            continue
        while not fits(word) and len(word) > 1:
            most = max((count for count in range(1, len(word)) if fits(word[:count])), default=1)
            lines.append(word[:most])
            word = word[most:]
        lines.append(word)
    return "\n".join(filter(None, lines))


class Minor(str):
    """A part of a subtitle that is left out where two lines cannot hold all parts."""


class Subtitle(str):
    """Parts with commas between them, then sentences."""

    def __new__(cls, parts, sentences=()):
        parts, sentences = list(filter(None, parts)), list(filter(None, sentences))
        text = super().__new__(cls, ". ".join(filter(None, [", ".join(parts), *sentences])))
        text.parts, text.sentences = parts, sentences
        return text

    def shorter(self):
        """The subtitle without the last of its minor parts; None where it has none."""
        minor = [at for at, part in enumerate(self.parts) if isinstance(part, Minor)]
        return Subtitle(self.parts[:minor[-1]] + self.parts[minor[-1] + 1:], self.sentences) if minor else None


MOST_SUBTITLE_LINES = 2


def wrapped_subtitle(figure, text, inches, points):
    """The text in lines. Minor parts of a Subtitle are left out, from the last on, until it has no more than two."""
    lines = wrapped(figure, text, inches, points)
    while isinstance(text, Subtitle) and lines.count("\n") >= MOST_SUBTITLE_LINES and text.shorter() is not None:
        text = text.shorter()
        lines = wrapped(figure, text, inches, points)
    return lines


def overhang(figure, axes):
    """How far labels reach beyond the panels of a grid (rows of columns), in inches: to the left, below the last row,
    to the right, above, below the other rows, to the left of the other columns."""
    renderer = figure.canvas.get_renderer()
    left = below = right = above = between = inside = 0.0
    rows, columns = axes.shape
    for index, one in enumerate(axes.flat):
        if not one.get_visible():
            continue
        panel, whole = one.get_window_extent(), one.get_tightbbox(renderer)
        right, above = max(right, whole.x1 - panel.x1), max(above, whole.y1 - panel.y1)
        if index // columns == rows - 1:
            below = max(below, panel.y0 - whole.y0)
        else:
            between = max(between, panel.y0 - whole.y0)
        if index % columns == 0:
            left = max(left, panel.x0 - whole.x0)
        else:
            inside = max(inside, panel.x0 - whole.x0)
    return [side / figure.dpi for side in (left, below, right, above, between, inside)]


def thousands(axis):
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def logarithmic(axes):
    """A logarithmic axis of y with labels in the coarsest steps that give at least three."""
    axes.set_yscale("log", base=2)
    low, high = axes.get_ylim()
    for digits in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 5, 7),
                   (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9)):
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [digit * 10.0 ** power for power in powers for digit in digits if low <= digit * 10.0 ** power <= high]
        if len(ticks) >= 3:
            break
    else:  # so short that it is nearly linear
        ticks = [tick for tick in MaxNLocator(5, steps=(1, 2, 5, 10)).tick_values(low, high) if low <= tick <= high]
    axes.set_yticks(ticks)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(low, high)


MOST_SIZES = 6  # labels of sizes for which a panel has room side by side


def binary_sizes(axis):
    """4 KiB, 1 MiB, ... on a logarithmic axis of bytes, whose limits are final; the same in all releases of matplotlib."""
    low, high = (math.log2(end) for end in axis.get_view_interval())
    first, last = math.ceil(low), math.floor(high)
    step = next(step for step in itertools.count(1) if (last - first) // step < MOST_SIZES)
    axis.set_ticks([2.0 ** power for power in range(first, last + 1) if power % step == 0])
    axis.set_minor_locator(NullLocator())

    def text(value, _):
        for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if value >= unit:
                return f"{value / unit:g} {name}"
        return f"{value:g} B"
    axis.set_major_formatter(FuncFormatter(text))
