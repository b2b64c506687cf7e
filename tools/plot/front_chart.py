#!/usr/bin/env python3
"""Speed against token loss of what `moesim recommend` found: its best, numbered, and the front of all candidates;
where all lose the same, the best as bars.

    front_chart.py FOUND.csv --out CHART.png [--noise SHARE] [--capacity-noise SHARE] [--title TEXT] [--options FILE]

FOUND.csv is what `moesim recommend --out FOUND.csv` writes. SHARE: how far below the best a speed is within the
noise; --capacity-noise is for the best's layout with another router or capacity, --noise for all others. The suffix of CHART chooses the format (png, pdf, svg).
"""
import argparse
import os
import sys

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import candidates_chart  # noqa: E402
import option_columns  # noqa: E402
import recommended  # noqa: E402
import stopped  # noqa: E402
from chart_data import BadInput, loss_column, read_csv  # noqa: E402
from chart_file import save  # noqa: E402
from look import COLOURS, RC, label_points, loss_axis, thousands  # noqa: E402

MARKER = 12       # pixels, of a diamond
MOST_LINES = 3    # of a label
COLUMNS = {"tokens_per_s_per_gpu", "residual_loss", "on_front", "rank"}  # which only recommend writes together
BEYOND = 2        # points of the front that lose more than all of the best, which are drawn
SAME_LOSS = 0.005  # %
WIDER, NARROWER = "#EEEEEE", "#D8D8D8"  # shades of noise


def letter(place):
    """As the table of `moesim recommend` names the points of the front: a, b, ..., z, aa."""
    name, left = "", place + 1
    while left > 0:
        left, digit = divmod(left - 1, 26)
        name = chr(ord("a") + digit) + name
    return name


def _by_letter(name):
    return len(name), name


def router_text(row, with_router):
    """The router and its capacity factor, short; layouts are in the table."""
    factor = f"CF {row['capacity_factor']}" if row["capacity_factor"] else "dropless"
    if not with_router or not row["router"]:
        return factor
    if row["capacity_factor"]:
        return f"{row['router']}, {factor}"
    return row["router"] if row["router"] == "dropless" else f"{row['router']}, no capacity"


def front_labels(groups, names, with_router):
    """The labels of groups of points that are too close to each other for a label each: a line with the letters of each
    router and capacity factor; where there are more than MOST_LINES, what all have in common."""
    texts = []
    for group in groups:
        letters = {}
        for row in sorted(group, key=lambda row: _by_letter(names[id(row)])):
            letters.setdefault(router_text(row, with_router), []).append(names[id(row)])
        if len(letters) <= MOST_LINES:
            texts.append("\n".join(f"{', '.join(those)}: {what}" for what, those in letters.items()))
        else:
            factors = {router_text(row, False) for row in group}
            common = factors.pop() if len(factors) == 1 else "several"
            texts.append(f"{', '.join(sum(letters.values(), []))}: {common}")
    return texts


def _close(rows, pixels, width, height):
    """Groups of rows, in which each is less than so many pixels from another."""
    groups = []
    for row in rows:
        x, y = pixels(row)
        for group in groups:
            if any(abs(x - pixels(other)[0]) < width and abs(y - pixels(other)[1]) < height for other in group):
                group.append(row)
                break
        else:
            groups.append([row])
    return groups


def loss(row):
    return 100 * float(row[loss_column(row)])


def _shown(rows):
    """(rows that are drawn, rows of the front that are not, as they lose so much that the others would lie on each other)."""
    asked = max((loss(row) for row in rows if row["rank"] or recommended.is_true(row, "yours")), default=None)
    if asked is None:
        return rows, []
    beyond = sorted((row for row in rows if loss(row) > asked), key=loss)[BEYOND:]
    return [row for row in rows if row not in beyond], beyond


def _beyond_text(beyond, names):
    letters = ", ".join(names[id(row)] for row in sorted(beyond, key=loss))
    losses = sorted({f"{loss(row):.2g}" for row in beyond}, key=float)
    return (f"beyond the right end: {letters} of the front, which lose{'s' * (len(beyond) == 1)} "
            + (f"{losses[0]} %" if len(losses) == 1 else f"{losses[0]} to {losses[-1]} %"))


def noise_spans(noise, capacity_noise):
    """[(share below the best, what the legend says, colour)] of the shades, the widest first."""
    def words(share, which):
        return f"within {100 * share:.0f} % of the best: noise, at even odds{which}"
    if not (noise > 0 and capacity_noise > 0):
        share = max(noise, capacity_noise)
        return [(share, words(share, ""), WIDER)] if share > 0 else []
    spans = [(noise, ", for all others"), (capacity_noise, ", for its layout with another router or CF")]
    return [(share, words(share, which), colour) for (share, which), colour in zip(sorted(spans, reverse=True), (WIDER, NARROWER))]


def draw(rows, noise, title, capacity_noise=0):
    """The figure. `noise`: speeds that far below the best are within the noise; `capacity_noise`: those that differ from it
    in router and capacity alone; 0: not known."""
    matplotlib.rcParams.update(RC)
    first = rows[0]
    gpu = option_columns.gpu_title(first["profile"], first["cluster"])
    title = title or f"{first['model']} on {first['gpus']} GPUs ({gpu}, {first['cluster']})"
    spans = noise_spans(noise, capacity_noise)
    if max(map(loss, rows)) - min(map(loss, rows)) < SAME_LOSS:
        widest, label, _ = noise_spans(max(noise, capacity_noise), 0)[0] if spans else (0, "", "")
        title = f"{title}: token loss {loss(first):.2g} %"
        return candidates_chart.draw(rows, label, widest, "\n".join([title, *stopped.notes(rows)]))
    return _draw_front(rows, spans, "\n".join([title, *stopped.notes(rows)]))


def _legend(axes, below):
    """A legend `below` inches under the panel, where it hides nothing."""
    handles, names = axes.get_legend_handles_labels()
    place = axes.transAxes + ScaledTranslation(0, -below, axes.figure.dpi_scale_trans)
    axes.legend(handles, names, loc="upper left", bbox_to_anchor=(0, 0), bbox_transform=place, borderaxespad=0)


def _speed(row):
    return float(row["tokens_per_s_per_gpu"])


def _plot(axes, rows, **how):
    axes.plot([loss(row) for row in rows], [_speed(row) for row in rows], **how)


def _draw_points(axes, best, front, yours, spans):
    """The noise below the best, the front, the best, and the layout that the search started from."""
    for share, label, colour in spans if best else []:
        axes.axhspan(_speed(best[0]) / (1 + share), _speed(best[0]), color=colour, zorder=0, linewidth=0, label=label)
    if len(front) > 1:
        axes.step([loss(row) for row in front], [_speed(row) for row in front], where="post", color=COLOURS[0], marker="o",
                  markersize=6, label="front: of the steps simulated none is faster and loses less (a: the fastest)")
    if best:
        _plot(axes, best, linestyle="", marker="D", markersize=7, markerfacecolor="white", color=COLOURS[1],
              label="the best, by rank", clip_on=False, zorder=4)
    if yours:
        _plot(axes, yours, linestyle="", marker="X", markersize=9, color=COLOURS[2],
              label="the layout that the search started from", clip_on=False, zorder=5)


def _number_best(axes, best, pixels):
    """The ranks beside the markers of the best; those of markers that lie on each other stand in one line."""
    for same in _close(best, pixels, MARKER, MARKER):
        text = ", ".join(recommended.rank_text(row) for row in same)
        how = {"textcoords": "offset points", "fontsize": 8.5, "color": COLOURS[1]}
        label = axes.annotate(text, (loss(same[0]), _speed(same[0])), xytext=(-8, 3), ha="right", **how)
        if label.get_window_extent().x0 < axes.get_window_extent().x0:  # it lies on the axis
            label.remove()
            axes.annotate(text, (loss(same[-1]), _speed(same[-1])), xytext=(8, -3), ha="left", va="top", **how)


def _label_front(axes, front, names, pixels, with_router, others):
    """A label for each point that can be told from the others; where it has no room, its letters alone. `others`: points
    to which no label may be nearer."""
    groups = _close(front, pixels, MARKER, MARKER)
    points = [(loss(group[-1]), _speed(group[-1])) for group in groups]
    texts = front_labels(groups, names, with_router)
    written = label_points(axes, points, texts, 8.5, others=others)
    letters = [", ".join(sorted((names[id(row)] for row in group), key=_by_letter)) for group in groups]
    label_points(axes, points, ["" if text in written else short for text, short in zip(texts, letters)], 8.5, others=others)


def _draw_front(rows, spans, title):
    figure = Figure(figsize=(8, 5.2 + 0.2 * len(spans)), layout="constrained")
    FigureCanvasAgg(figure)  # measures labels
    axes = figure.subplots()
    best = sorted((row for row in rows if row["rank"]), key=recommended.rank)
    front = sorted((row for row in rows if recommended.is_true(row, "on_front")), key=loss)
    names = {id(row): letter(place) for place, row in enumerate(reversed(front))}
    rows, beyond = _shown(rows)
    front = [row for row in front if row not in beyond]
    yours = [row for row in rows if recommended.is_true(row, "yours")]
    _draw_points(axes, best, front, yours, spans)
    axes.margins(y=0.16)
    scale = loss_axis(axes, [loss(row) for row in rows])
    axes.set_xlabel(f"token loss, % of the routing weight{scale}" + (f"\n{_beyond_text(beyond, names)}" if beyond else ""))
    axes.set_ylabel("tokens/s per GPU, predicted")
    thousands(axes.yaxis)
    axes.set_title(title, loc="left")
    _legend(axes, 0.75 if beyond else 0.55)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # labels stay where they found room

    def pixels(row):
        return axes.transData.transform((loss(row), _speed(row)))

    _number_best(axes, best, pixels)
    routers = {row["router"] for row in rows if row not in yours}
    others = [(loss(row), _speed(row)) for row in [*best, *yours] if row not in front]
    _label_front(axes, front, names, pixels, len(routers) > 1, others)
    return figure


def read(path):
    """The rows of a CSV of moesim recommend; nothing for any other."""
    rows = [row for _, row in read_csv(path)[1]]
    return rows if rows and COLUMNS <= rows[0].keys() else []


def main(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0], allow_abbrev=False)
    parser.add_argument("input")
    parser.add_argument("--out", required=True)
    parser.add_argument("--noise", type=float, default=0)
    parser.add_argument("--capacity-noise", type=float, default=0)
    parser.add_argument("--title", default="")
    parser.add_argument("--options", help="output of 'moesim options --format json'")
    options = parser.parse_args(words)
    if options.options:
        os.environ[option_columns.VARIABLE] = options.options
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "moesim"
    try:
        rows = read(options.input)
        if not rows:
            raise BadInput(f"{options.input}: not a CSV of moesim recommend")
        save(draw(rows, options.noise, options.title, options.capacity_noise), options.out)
    except BadInput as error:
        print(f"moesim: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"moesim: error: {options.out}: cannot write: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
