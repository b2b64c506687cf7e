"""How the charts look: colours that colour-blind readers can distinguish, markers that are readable in grey."""
import math

import numpy as np
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import FuncFormatter, NullLocator

# Okabe and Ito's palette (2008), without its yellow, which vanishes on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
# Five more for charts of up to twelve lines: for protanopes and deuteranopes too they differ from each other and
# from those above about as much as those do (16 against 18 in CIELAB, by Machado et al. 2009).
MORE_COLOURS = ("#7A0000", "#4B0092", "#86B049", "#A0522D", "#882255")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#555555"
LIGHT_GREY = "#BBBBBB"

# Routers by name: the rectification has its colour and marker, k its dashes and filling, so that
# lines of one rectification, or of one k, are recognised, also where they coincide and in grey.
RECTIFICATIONS = {"": 0, "+ir": 1, "+fr+ir": 2, "+fr": 3, "+ir@node": 4, "+fr+ir@node": 5}
DASHES = ("-", (0, (5, 2.5)), (0, (8, 2, 1.5, 2)), (0, (3, 1.5)))
FLAT_DASHES = ((0, (6, 2, 1, 2)), (0, (1, 1.2)), (0, (8, 1.5)))
DENSE = {"color": "#000000", "marker": "", "linestyle": "-."}

RC = {
    "font.size": 10, "axes.titlesize": 11, "axes.labelsize": 10, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": "#DDDDDD", "grid.linewidth": 0.6,
    "legend.frameon": False, "legend.fontsize": 9, "axes.axisbelow": True,
    "figure.facecolor": "white",
    # Text stays text: TrueType fonts inside a PDF, which journals ask for, and letters in an SVG.
    "pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none",
}


def style_by_index(index):
    """Colour, marker and dashes of the index-th line: colours repeat after twelve lines, marker and dashes alone, what
    is left in grey, after 28, colour and marker after 49."""
    first = COLOURS + MORE_COLOURS
    return {"color": first[index] if index < len(first) else COLOURS[index % len(COLOURS)], "markersize": 5.5,
            "linestyle": DASHES[index // len(MARKERS) % len(DASHES)],
            "marker": MARKERS[(index + index // len(COLOURS)) % len(MARKERS)]}


def pairs_of(colours):
    """Every colour with every dashes of flat lines, neighbours different in both."""
    return [(colour, FLAT_DASHES[(place + turn) % len(FLAT_DASHES)])
            for turn in range(len(FLAT_DASHES)) for place, colour in enumerate(colours)]


def flat_styles(styles, flat):
    """The styles with those of lines that are the same everywhere (`flat`, one bool each) told
    apart by colour and dashes instead of markers: colours that no other line has while there are such."""
    result = []
    number = 0
    taken = {style["color"] for style, is_flat in zip(styles, flat) if not is_flat or style is DENSE}
    all_colours = COLOURS + MORE_COLOURS
    free = [colour for colour in all_colours if colour not in taken]
    pairs = [*pairs_of(free), *pairs_of([colour for colour in all_colours if colour in taken])]
    for style, is_flat in zip(styles, flat):
        if not is_flat or style is DENSE:
            result.append(style)
            continue
        colour, dashes = pairs[number % len(pairs)]
        result.append({"color": colour, "marker": "", "linestyle": dashes})
        number += 1
    return result


def router_styles(routers):
    """One style per router of a list of different names."""
    bases = [router.split("+")[0] for router in routers]
    order = [base for base in dict.fromkeys(bases) if base != "dense"]
    suffixes = [router[len(base):] for router, base in zip(routers, bases)]
    if len(order) > len(DASHES) or any(suffix not in RECTIFICATIONS for suffix in suffixes):
        return [style_by_index(index) for index in range(len(routers))]
    styles = []
    for base, suffix in zip(bases, suffixes):
        if base == "dense":
            styles.append(DENSE)
            continue
        style = style_by_index(RECTIFICATIONS[suffix])
        style["linestyle"] = DASHES[order.index(base)]
        style["markersize"] = 7
        if order.index(base) % 2 == 1:  # smaller, so that a filled marker underneath shows
            style.update(markerfacecolor="white", markersize=4.5)
        styles.append(style)
    return styles


PALE = 0.4  # of lines and marks that do not fit in memory


def plot_line(axes, xs, ys, fits, how, **more):
    """A line whose points without `fits` are hollow and pale, and so are the ways to and from them."""
    if all(fits):
        axes.plot(xs, ys, **how, **more)
        return
    pale = {**how, "markerfacecolor": "white", "alpha": PALE}
    axes.plot(xs, ys, **pale, **more)
    if any(fits):
        axes.plot(xs, [y if fit else float("nan") for y, fit in zip(ys, fits)], **how, **more)


def label_points(axes, points, texts, font):
    """Writes each text beside its point, where it covers no other text, line, marker or legend, is nearer to no other
    point and leaves the axes nowhere; where there is no such place, over a line; a text without any place is left
    out. The figure has its final size. Returns the texts written."""
    renderer = axes.figure.canvas.get_renderer()
    inside, written = axes.get_window_extent(renderer), []
    taken = [text.get_window_extent(renderer) for text in axes.texts]
    if axes.get_legend():
        taken.append(axes.get_legend().get_window_extent(renderer))
    drawn, marks = _drawn(axes)
    places = axes.transData.transform(np.asarray(points, dtype=float).reshape(-1, 2))
    near = [(x, y) for y in (6, -6, 16, -16) for x in (5, -5)] + [(12, 0), (-12, 0), (12, 26), (-12, 26), (12, -26), (-12, -26)]
    for point, text in zip(points, texts):
        if not text or any(text == other and _near(axes, point, at) for other, at in written):
            continue
        for x, y, over_lines in [(x, y, over) for over in (False, True) for x, y in near]:
            label = axes.annotate(text, point, xytext=(x, y), textcoords="offset points", fontsize=font,
                                  ha="left" if x > 0 else "right", va="bottom" if y > 0 else "top" if y < 0 else "center", annotation_clip=False)
            box = label.get_window_extent(renderer)
            if (box.x0 >= inside.x0 and box.x1 <= inside.x1
                    and _is_nearest(box, axes.transData.transform(point), places)
                    and not any(box.overlaps(other) for other in (*taken, *marks))
                    and (over_lines or not any(path.intersects_bbox(box, filled=False) for path in drawn))):
                taken.append(box)
                written.append((text, point))
                break
            label.remove()
    return [text for text, _ in written]


def _is_nearest(box, own, places):
    """Whether no place is nearer to the box than its own; places that look like one with it count as it."""
    def away(place):
        return math.hypot(max(box.x0 - place[0], 0, place[0] - box.x1), max(box.y0 - place[1], 0, place[1] - box.y1))

    return all(away(own) <= away(place) or math.hypot(*(place - own)) < 3 for place in places)


def _drawn(axes):
    """(paths of the lines, boxes of their markers), in pixels."""
    from matplotlib.cbook import STEP_LOOKUP_MAP
    from matplotlib.path import Path
    from matplotlib.transforms import Bbox
    paths, boxes = [], []
    for line in axes.lines:
        corners = line.get_transform().transform(np.column_stack(line.get_data()).astype(float))
        corners = corners[np.isfinite(corners).all(axis=1)]
        if line.get_linestyle() not in ("None", " ", "") and len(corners) > 1:
            paths.append(Path(np.column_stack(STEP_LOOKUP_MAP[line.get_drawstyle()](*corners.T))))
        if line.get_marker() not in ("None", " ", "", None):
            half = 0.4 * line.get_markersize() * axes.figure.dpi / 72  # corners of the box are empty
            boxes += [Bbox.from_extents(x - half, y - half, x + half, y + half) for x, y in corners]
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
    axes.set_xlim(left=min(0, axes.get_xlim()[0]))
    return ""


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


def thousands(axis):
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def logarithmic(axes):
    """A logarithmic axis of y in doublings, with at least three labels: as coarse steps as give them."""
    axes.set_yscale("log", base=2)
    low, high = axes.get_ylim()
    for digits in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 5, 7),
                   (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9)):
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [digit * 10.0 ** power for power in powers for digit in digits if low <= digit * 10.0 ** power <= high]
        if len(ticks) >= 3:
            break
    axes.set_yticks(ticks)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(low, high)


def binary_sizes(axis):
    """4 KiB, 1 MiB, ... on an axis of bytes."""
    def text(value, _):
        for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if value >= unit:
                return f"{value / unit:g} {name}"
        return f"{value:g} B"
    axis.set_major_formatter(FuncFormatter(text))
