"""Measured times beside the predicted, a pair of bars each: the layers of `moesim validate layer`, and the parts of a step
of which `moesim explain` has a trace."""
import json
import math
from dataclasses import dataclass

import matplotlib
from matplotlib import pyplot

import look
import step_parts
from chart_data import BadInput

MOST_PAIRS = 40
NOTHING = 1e-4  # of a step
LABEL_LETTERS = 46
# Inches: title and heading, a pair of bars, the axis and the legend.
WIDTH, ABOVE, PAIR, BELOW = 10.5, 0.75, 0.34, 0.95


@dataclass(frozen=True)
class Pair:
    """`said`: what stands behind its bars; `low` to `high`: what the prediction allows, 0: not known."""
    label: str
    predicted: float
    measured: float
    said: str
    low: float = 0
    high: float = 0


def _document(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def _pairs_figure(pairs, unit, texts, title, heading):
    """`texts`: what the two bars and the range are."""
    with matplotlib.rc_context(look.RC):
        labels = [_lines(pair.label) for pair in pairs]
        lines = max(1, max(label.count("\n") + 1 for label in labels) / 2)
        height = ABOVE + BELOW + PAIR * lines * len(pairs)
        figure, axes = pyplot.subplots(figsize=(WIDTH, height))
        places = range(len(pairs))[::-1]
        bars = [axes.barh([place + 0.19 for place in places], [pair.predicted for pair in pairs], height=0.36,
                          color=look.COLOURS[0]),
                axes.barh([place - 0.19 for place in places], [pair.measured for pair in pairs], height=0.36,
                          color=look.COLOURS[1], hatch="////", edgecolor="white", linewidth=0.4)]
        ranges = [axes.plot([pair.low, pair.high], [place + 0.19] * 2, color="black", marker="|", linewidth=1.2)[0]
                  for place, pair in zip(places, pairs) if 0 < pair.low < pair.high]
        for place, pair in zip(places, pairs):
            axes.annotate(pair.said, (max(pair.predicted, pair.measured, pair.high), place), xytext=(6, 0),
                          textcoords="offset points", va="center", fontsize=9)
        axes.set_yticks(list(places), labels)
        axes.set_ylim(-0.6, len(pairs) - 0.4)
        axes.margins(x=0.12)
        axes.set_xlim(left=0)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(unit)
        axes.set_title(heading, loc="left", fontsize=9.5)
        handles = [*bars, *ranges[:1]]
        figure.legend(handles, texts[:len(handles)], loc="lower left", bbox_to_anchor=(0.01, 0.0), ncols=3)
        figure.suptitle(title, x=0.02, ha="left", fontweight="bold", y=1 - 0.12 / height, va="top")
        figure.tight_layout(rect=(0, 0.35 / height, 1, 1 - 0.08 / height))
    return figure


def _lines(label):
    """In lines of about LABEL_LETTERS letters."""
    lines = [""]
    for word in label.split():
        if lines[-1] and len(lines[-1]) + len(word) >= LABEL_LETTERS:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def draw_checks(path, title):
    """What a validation without bands held against measurements."""
    rows = [row for row in _document(path)["rows"] if row.get("role") == "check" and row.get("measured") is not None]
    if not rows:
        raise BadInput(f"{path}: no bands and no measured times: moesim validate prints what it found as a table")
    if len({row["unit"] for row in rows}) > 1 or len(rows) > MOST_PAIRS:
        raise BadInput(f"{path}: this validation has no bands, and {len(rows)} measurements are too many for bars (at most "
                       f"{MOST_PAIRS}): moesim validate prints them as a table; those of speeds, layer, steps, exchanges "
                       "and training have a chart")
    pairs = [Pair(row["subject"], row["predicted"], row["measured"],
                  "" if row.get("error") is None else f"{100 * row['error']:+.1f} %") for row in rows]
    unit = {"ms": "time, ms", "us": "time, us"}.get(rows[0]["unit"], rows[0]["unit"])
    return _pairs_figure(pairs, unit, ["predicted", "measured"], title or "Measured beside predicted",
                         f"{rows[0]['study']}; behind the bars: error of the prediction")


def _words(parts):
    return ", ".join("no kernel runs" if part == "idle" else step_parts.part_of(part).words for part in parts)


def _difference(ms):
    """With three digits that say something, down to the microsecond."""
    if abs(ms) < 5e-4:
        return "0 ms"
    digits = min(3, max(0, 2 - math.floor(math.log10(abs(ms)))))
    return f"{ms:+,.{digits}f} ms"


def draw_explained(path, title):
    """A measured step beside the simulated, part by part."""
    found = _document(path)
    pairs = []
    for row in found["parts_exposed"]:
        simulated, measured = row["simulated_ms"], row["measured_ms"]
        if max(simulated, measured) < NOTHING * found["measured_ms"]:
            continue
        pairs.append(Pair(_words(row["parts"]), simulated, measured, _difference(row["difference_ms"]),
                          simulated * row.get("ratio_low", 0), simulated * row.get("ratio_high", 0)))
    if not pairs:
        raise BadInput(f"{path}: no part of the step takes {100 * NOTHING:g} % of it or more")
    return _pairs_figure(pairs, "exposed time, ms", ["simulated", "measured", "p05 to p95 of the part's curve"],
                         title or "A measured step beside the simulated, part by part",
                         f"the step: {found['simulated_ms']:,.1f} ms simulated, {found['measured_ms']:,.1f} ms measured, "
                         f"{found['multiplier']:.2f} times that. Behind the bars: the difference")
