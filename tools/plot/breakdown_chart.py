"""Bars of the parts of each row's step, which sum to it."""
import matplotlib
from matplotlib.patches import Patch

import look
import page
import recommended
import rows
import step_parts
import untold
from chart_data import BadInput, fits, warnings

MOST_BARS = 40
LABEL_SHARE = 0.4  # of the width, at most: the parts of a bar must be told apart in what is left


def _rank(table, row):
    """"1: " of the best that moesim recommend found, as its table numbers them."""
    return f"{recommended.rank(row)}: " if {"rank", "on_front"} <= set(table.known()) and row["rank"] else ""


def _bar_labels(figure, table, told, size):
    """What stands beside the bar of each row, in lines."""
    labels = [_rank(table, row) + (rows.label_of(row, told) or "the scenario") for row in table.rows]
    warned = [", ".join((["does not fit"] if not fits(row) else []) + warnings(row)) for row in table.rows]
    return [look.wrapped(figure, f"{label} ({words})" if words else label, LABEL_SHARE * size.width, 0.9 * size.font)
            for label, words in zip(labels, warned)]


# Parts and options that change nothing in them: a difference is that of the replicas with the median step.
UNTOUCHED = {"attention_ms": "attention", "dense_ffn_ms": "dense FFN"}
OF_EXPERTS = ("router", "top_k", "group_score", "score_function", "second_expert", "expert_bias", "router_dtype", "router_dialect",
              "capacity_factor", "capacity_convention", "capacity_scope", "capacity_alignment", "min_capacity", "padding", "priority",
              "weights", "weight_scale", "fill_order", "ir_duplicates", "routing")


def _by_chance(table, parts):
    """"attention differs by up to 17 ms": the largest difference between replicas in a part that the options of experts,
    in which the rows differ, leave as it is; "" where there is none to tell."""
    if set(table.differing()) - set(OF_EXPERTS) or any(row.get("overlap_slowdown", "") not in ("", "1:1") for row in table.rows):
        return ""
    with_experts = [row for row in table.rows if row.get("router") != "dense"]
    spreads = []
    for name in filter(UNTOUCHED.get, parts):
        values = [rows.figure_of(row, name) or 0 for row in with_experts]
        spreads.append((max(values, default=0) - min(values, default=0), UNTOUCHED[name]))
    most, words = max(spreads, default=(0, ""))
    if most <= 1e-3 * max(rows.present(row, "step_ms") for row in table.rows):
        return ""
    return f"{words}, which no option here changes, differs by {most:.2g} ms by chance, and others may"


def _of_one_rank(table):
    """Whose parts those of moesim train are: others hold no output head, and wait."""
    has_others = any(row.get("pipeline_parallel", "") not in ("", "1") for row in table.rows)
    return ["parts of one pipeline rank of each step: the one that computes longest"] if has_others else []


def _shown_parts(table):
    """{column: its looks} of the parts that can be seen in some bar. BadInput where the file has no parts, or too many
    rows."""
    parts = table.parts()
    if not parts:
        raise BadInput(f"{table.files[0]}: the file has no columns of the parts of a step: give the CSV of "
                       "moesim sweep")
    if len(table.rows) > MOST_BARS:
        raise BadInput(f"{len(table.rows)} bars, and more than {MOST_BARS} cannot be read: choose rows with "
                       "--where")
    shown = [name for name in parts
             if any((rows.figure_of(row, name) or 0) > 0.001 * rows.present(row, "step_ms") for row in table.rows)]
    return {name: step_parts.part_of(name, place) for place, name in enumerate(shown)}


def _draw_bars(axes, table, parts, scale, places):
    """The parts of each row, in its place; `scale`: from ms."""
    left = [0.0] * len(table.rows)
    for name, part in parts.items():
        widths = [scale * (rows.figure_of(row, name) or 0) for row in table.rows]
        for place, width, start, row in zip(places, widths, left, table.rows):
            axes.barh(place, width, left=start, color=part.colour, height=0.72, hatch=part.hatch, edgecolor="white",
                      linewidth=0.4, alpha=None if fits(row) else look.PALE)
        left = [start + width for start, width in zip(left, widths)]


def _draw_bands(axes, table, scale, places, size):
    """The error bar of each step; returns [(look, name)] of the legend."""
    is_banded = False
    for place, row in zip(places, table.rows):
        low, _, high = (scale * end for end in rows.band_of(row, "step_ms"))
        if low < high:
            is_banded = True
            axes.plot([low, high], [place, place], color="black", linewidth=1.2, marker="|",
                      markersize=0.5 * size.font, linestyle="-")
    return [(matplotlib.lines.Line2D([], [], color="black", marker="|"), table.band_words())] if is_banded else []


def _notes(table, told):
    """What the subtitle says beside what all rows share."""
    parts = table.parts()
    notes = untold.notes(table, told, of_times=True) + list(map(look.Minor, page.unfit_notes(table)))
    if not set(parts) <= set(table.columns.parts):  # of moesim train
        return notes + _of_one_rank(table)
    if any(row.get("replicas") != "1" for row in table.rows):
        notes.append("parts of the replica with the median step: "
                     + (_by_chance(table, parts) or "small differences are chance"))
    return notes


def breakdown(table, group, size, title):
    """A bar of the parts of each row's step, which sum to it."""
    parts = _shown_parts(table)
    told = untold.names(table) if group is None else group
    unit, scale = ("s", 1e-3) if max(rows.present(row, "step_ms") for row in table.rows) >= 1e4 else ("ms", 1.0)
    with matplotlib.rc_context(page.settings(size)):
        figure, axes = page.grid(size, 1, 1)
        labels = _bar_labels(figure, table, told, size)
        lines = 1 + max(label.count("\n") for label in labels)
        figure.set_size_inches(size.width, 0.9 + max(2.1, 1.15 * lines + 0.4) * size.font / 72 * len(labels))
        one = axes[0][0]
        places = range(len(labels))[::-1]
        _draw_bars(one, table, parts, scale, places)
        bands = _draw_bands(one, table, scale, places, size)
        one.set_yticks(list(places), labels)
        one.set_ylim(-0.6, len(labels) - 0.4)
        one.set_xlim(left=0)
        one.grid(axis="y", visible=False)
        one.set_xlabel(f"step time, {unit}")
        entries = [(Patch(facecolor=part.colour, edgecolor="white", hatch=part.hatch), part.words) for part in parts.values()]
        return page.end_page(figure, axes, size, title or page.heading(table, "where the time of a step goes"),
                             page.subtitle(table, _notes(table, told), figures=["step_ms"]), *map(list, zip(*entries, *bands)))
