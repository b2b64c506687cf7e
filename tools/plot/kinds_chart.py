"""Charts of a sweep with axes of their own: parts of the step as bars, scaling over GPUs, one sweep over another."""
import math

import matplotlib
from matplotlib.patches import Patch

import axes_chart
import hidden
import look
import option_columns
import page
import rows
import speed_bands
import step_parts
import untold
from chart_data import BadInput, fits
from sweep_chart import gpus_in_words

MOST_BARS = 40
LABEL_SHARE = 0.4  # of the width, at most: the parts of a bar must be told apart in what is left
LOGARITHMIC = 4  # the most GPUs of a scaling over the fewest; both axes are linear below: a straight line is linear scaling


def _rank(table, row):
    """"1: " of the best that moesim recommend found, as its table numbers them."""
    return f"{row['rank']}: " if {"rank", "on_front"} <= set(table.known()) and row["rank"] else ""


def _bar_labels(figure, table, told, size):
    """What stands beside the bar of each row, in lines."""
    labels = [_rank(table, row) + (rows.label_of(row, told) or "the scenario") for row in table.rows]
    return [look.wrapped(figure, label if fits(row) else f"{label} (does not fit)", LABEL_SHARE * size.width, 0.9 * size.font)
            for label, row in zip(labels, table.rows)]


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


def breakdown(table, group, size, title):
    """A bar of the parts of each row's step, which sum to it."""
    parts = table.parts()
    if not parts:
        raise BadInput(f"{table.files[0]}: the file has no columns of the parts of a step: give the CSV of "
                       "moesim sweep")
    if len(table.rows) > MOST_BARS:
        raise BadInput(f"{len(table.rows)} bars, and more than {MOST_BARS} cannot be read: choose rows with "
                       "--where")
    told = untold.names(table) if group is None else group
    totals = [rows.present(row, "step_ms") for row in table.rows]
    unit, scale = ("s", 1e-3) if max(totals) >= 1e4 else ("ms", 1.0)
    shown = [name for name in parts
             if any((rows.figure_of(row, name) or 0) > 0.001 * total for row, total in zip(table.rows, totals))]
    with matplotlib.rc_context(page.settings(size)):
        figure, axes = page.grid(size, 1, 1)
        labels = _bar_labels(figure, table, told, size)
        lines = 1 + max(label.count("\n") for label in labels)
        figure.set_size_inches(size.width, 0.9 + max(2.1, 1.15 * lines + 0.4) * size.font / 72 * len(labels))
        one = axes[0][0]
        places = range(len(labels))[::-1]
        left = [0.0] * len(labels)
        looks = [step_parts.part_of(name, place) for place, name in enumerate(shown)]
        for name, part in zip(shown, looks):
            widths = [scale * (rows.figure_of(row, name) or 0) for row in table.rows]
            for place, width, start, row in zip(places, widths, left, table.rows):
                one.barh(place, width, left=start, color=part.colour, height=0.72,
                         hatch=part.hatch, edgecolor="white", linewidth=0.4,
                         alpha=None if fits(row) else look.PALE)
            left = [start + width for start, width in zip(left, widths)]
        for place, row in zip(places, table.rows):
            low, value, high = (scale * end for end in rows.band_of(row, "step_ms"))
            if low < high:
                one.plot([low, high], [place, place], color="black", linewidth=1.2, marker="|",
                         markersize=0.5 * size.font, linestyle="-")
        one.set_yticks(list(places), labels)
        one.set_ylim(-0.6, len(labels) - 0.4)
        one.set_xlim(left=0)
        one.grid(axis="y", visible=False)
        one.set_xlabel(f"step time, {unit}")
        handles = [Patch(facecolor=part.colour, edgecolor="white", hatch=part.hatch) for part in looks]
        names = [part.words for part in looks]
        if any(low < high for low, _, high in (rows.band_of(row, "step_ms") for row in table.rows)):
            handles.append(matplotlib.lines.Line2D([], [], color="black", marker="|"))
            names.append(table.band_words())
        unfit = sum(not fits(row) for row in table.rows)
        notes = untold.notes(table, told, of_times=True)
        notes += [look.Minor(unit_count(unfit, len(labels)))] if unfit else []
        if not set(parts) <= set(table.columns.parts):  # of moesim train
            notes += _of_one_rank(table)
        elif any(row.get("replicas") != "1" for row in table.rows):
            notes.append("parts of the replica with the median step: "
                         + (_by_chance(table, parts) or "small differences are chance"))
        return page.end_page(figure, axes, size, title or page.heading(table, "where the time of a step goes"),
                             page.subtitle(table, notes, figures=["step_ms"]), handles, names)


def unit_count(unfit, total):
    return f"{unfit} of {total} do not fit in GPU memory"


def _width(low, high):
    """Between two quantiles, in logarithms; none where a figure has no band."""
    return math.log(high / low) if low else 0


def _ratio_band(above, below):
    """(low, value, high) of a ratio of two figures with bands, whose errors are taken as independent: half widths add as
    squares of logarithms."""
    value = above[1] / below[1]
    low = math.hypot(_width(above[0], above[1]), _width(below[1], below[2]))
    high = math.hypot(_width(above[1], above[2]), _width(below[0], below[1]))
    return value * math.exp(-low), value, value * math.exp(high)


# Rows that differ in one of these have different errors, which do not cancel.
MACHINE = ("profile", "cluster", "software")
OF_ONE_MACHINE = ("p05 to p95 of the ratio on the same software and machine, with independent errors; without the scatter "
                  "between configurations of one software, which sweep --baseline counts")
OF_TWO_MACHINES = "of the ratio as measured: different machines or software share no error"


def _compared(below, above, y):
    """(low, value, high) of the ratio of a figure of two rows, and what this band is: beside the same software and machine
    their level cancels, of two machines it does not."""
    bands = [rows.band_of(row, y) for row in (above, below)]
    if not bands[1][1] or bands[0][1] is None:
        return None, ""
    if all(below.get(name, "") == above.get(name, "") for name in MACHINE):
        return _ratio_band(*bands), OF_ONE_MACHINE
    low, _, high = _ratio_band(*(rows.measured_band_of(row, y) for row in (above, below)))
    return ((low, bands[0][1] / bands[1][1], high),
            f"{speed_bands.ends_text([below, above])} {OF_TWO_MACHINES}")


def _own_reference(line):
    """The row of the fewest GPUs on which the step fits in memory. Of a line without such, that of the fewest."""
    return next(filter(fits, line.rows), line.rows[0])


def _references(lines):
    """The rows by whose speed those of each line are judged: of the fewest GPUs on which all lines fit, as lines that start
    on other numbers do not compare. Where there are none, of the fewest for each."""
    by_gpus = [{rows.present(row, "gpus"): row for row in list(filter(fits, line.rows)) or line.rows} for line in lines]
    common = set.intersection(*map(set, by_gpus))
    return [those[min(common)] for those in by_gpus] if common else [_own_reference(line) for line in lines]


def _share_band(line, reference):
    """[(low, high)] of each row's speed over the reference's, in per cent, if that is the baseline with which the sweep
    compared them; else None. Bands of each row alone lack the scatter between two configurations of one software."""
    if not speed_bands.is_baseline(reference):
        return None
    ends, first = [], rows.present(reference, "tokens_per_s_per_gpu")
    for row in line.rows:
        ratio, low, high = (rows.figure_of(row, name) for name in (speed_bands.RATIO, speed_bands.LOW, speed_bands.HIGH))
        if None in (ratio, low, high) or not math.isclose(ratio, rows.present(row, "tokens_per_s_per_gpu") / first, rel_tol=1e-3):
            return None
        ends.append((100 * low, 100 * high))
    return ends


def _draw_share_band(axes, line, reference, xs, how, shade):
    """The band of _share_band(); returns its highest end, None where there is none."""
    ends = _share_band(line, reference)
    if ends is None:
        return None
    shown = list(map(fits, line.rows))
    axes.fill_between(xs, *zip(*ends), color=how["color"], alpha=shade, linewidth=0, where=shown)
    return max((high for (_, high), show in zip(ends, shown) if show), default=0)


def _counts(references):
    """The numbers of GPUs of _references(), each once."""
    return list(dict.fromkeys(f"{rows.present(row, 'gpus'):.0f}" for row in references))


def _share_hint(table, references, banded):
    """Where the speed of one GPU has no band: what gives one."""
    if banded or is_search(table) or not any("step_ms_p05" in row for row in table.rows):
        return []
    counts = _counts(references)
    return [f"a band of the speed of one GPU takes sweep --baseline gpus={counts[0] if len(counts) == 1 else 'N'}"]


def _style_scaling(total, share, table, lines, references, top):
    """Axes of the speed of all GPUs and of that of one; `top`: the highest per cent of the latter."""
    numbers = [rows.present(row, "gpus") for row in table.rows]
    doublings = max(numbers) >= LOGARITHMIC * min(numbers)
    for one in (total, share):
        axes_chart.style_x(one, table, "gpus", doublings)
        one.set_xlabel("GPUs")
    if doublings:
        look.logarithmic(total)
    else:
        total.set_ylim(bottom=0)
    look.thousands(total.yaxis)
    total.set_ylabel("speed of all GPUs, tokens/s")
    share.set_ylim(0, 1.08 * top)
    counts = _counts(references)
    words = gpus_in_words(counts[0]) if len(counts) == 1 else fewest_gpus(lines, references)
    # Where some lines have fewer that they fit on, why it is these.
    is_of_all = any(row is not _own_reference(line) for line, row in zip(lines, references))
    share.set_ylabel(f"speed of one GPU, % of that with {words}" + (",\nthe fewest on which all lines fit" if is_of_all else ""))


def fewest_gpus(lines, references):
    """What the numbers of GPUs of _references() are called."""
    if any(row is not _own_reference(line) for line, row in zip(lines, references)):
        return gpus_in_words(_counts(references)[0])
    skips = any(row is not line.rows[0] for line, row in zip(lines, references))
    return "the fewest GPUs" + (" on which it fits" if skips else "")


def is_search(table):
    """Whether moesim recommend found the rows: their layouts follow from the GPUs."""
    return "scaling_pays" in table.known()


def _scaling_lines(table, group):
    lines = rows.lines(table, "gpus", group)
    if is_search(table) and not group:
        lines[0].label = "the fastest layout on each number of GPUs"
    if all(len(line.rows) < 2 for line in lines):
        raise BadInput(f"{table.files[0]}: a scaling takes several numbers of GPUs: sweep --gpus 8,16,32")
    if len(lines) > axes_chart.MOST_LINES:
        raise BadInput(f"{len(lines)} lines, and more than {axes_chart.MOST_LINES} cannot be distinguished: "
                       "choose rows with --where")
    return lines


def _draw_scaling(total, share, table, lines, references, styles):
    """Returns how bands are drawn, whether the speed of one GPU has one, {label: {GPUs: that speed in per cent}}, and the
    highest of these per cent."""
    top, banded, kinds, shares = 0, False, set(), {}
    shade = min(0.14, 0.4 / len(lines))  # many bands one over another must not hide the lines
    for line, reference, how in zip(lines, references, styles):
        kinds |= axes_chart.draw_line(total, table, line, "gpus", "tokens_per_s", how, shade)
        first, fewest = (rows.present(reference, name) for name in ("tokens_per_s_per_gpu", "gpus"))
        xs = [rows.present(row, "gpus") for row in line.rows]
        ys = [100 * rows.present(row, "tokens_per_s_per_gpu") / first for row in line.rows]
        look.plot_line(share, xs, ys, [fits(row) for row in line.rows], how)
        shares[line.label] = dict(zip(xs, ys))
        end = _draw_share_band(share, line, reference, xs, how, shade)
        # Above the line, which it would be hidden by where scaling is perfect.
        linear = [gpus for gpus in xs if gpus >= fewest]
        total.plot(linear, [first * gpus for gpus in linear], color=look.GREY, linestyle=":", linewidth=1, zorder=5)
        top, banded = max(top, end or 0, *ys), banded or end is not None
    return kinds, banded, shares, top


def _draw_end_of_scaling(panels, table, lines):
    """Of what moesim recommend found: up to how many GPUs scaling pays. Returns [(look, name)] of the legend."""
    pays = [rows.present(row, "gpus") for row in lines[0].rows
            if is_search(table) and row["scaling_pays"].lower() == "true"]  # pandas writes True
    if not pays or len(lines) > 1:
        return []
    most = max(pays)
    end = [one.axvline(most, color=look.GREY, linestyle="--", linewidth=1, zorder=1) for one in panels][-1]
    is_last = most == rows.present(lines[0].rows[-1], "gpus") and not table.where
    return [(end, f"scaling pays up to {gpus_in_words(f'{most:.0f}')}" + (", the most searched" if is_last else ""))]


def scaling(table, group, size, title):
    """Speed of all GPUs by their number, and the share that is left of the speed each has on the fewest
    on which the step of every line fits."""
    for name in ("gpus", "tokens_per_s_per_gpu"):
        table.require(name, "x")
    if is_search(table) and group is None:
        group = [rows.FILE] if len(table.files) > 1 else []
    lines = _scaling_lines(table, group)
    styles = axes_chart.styles_of({line.label: line.rows for line in lines}, size)
    told = ["gpus", *rows.names_of(table, "gpus", group)]
    notes = untold.note(table, "fidelity", told) if is_search(table) else untold.notes(table, told)
    with matplotlib.rc_context(page.settings(size)):
        narrow = size.width < 6
        figure, axes = page.grid(size, 2 if narrow else 1, 1 if narrow else 2, aspect=0.8)
        total, share = axes.flat
        references = _references(lines)
        kinds, banded, shares, top = _draw_scaling(total, share, table, lines, references, styles)
        _style_scaling(total, share, table, lines, references, top)
        totals = axes_chart.panel_of(total, table, lines, "gpus", "tokens_per_s").lines
        below = {**hidden.notes([hidden.Panel("speed of one GPU", share, shares)]),
                 **hidden.notes([hidden.Panel("speed", total, totals)])}
        entries = list(zip(*page.legend_entries(styles, [line.label + below.get(line.label, "") for line in lines])))
        entries.append((matplotlib.lines.Line2D([], [], color=look.GREY, linestyle=":", linewidth=1),
                        f"linear scaling from {fewest_gpus(lines, references)}"))
        if kinds:
            entries.append((look.band_entry(kinds), table.band_words()))
        entries += _draw_end_of_scaling((total, share), table, lines)
        unfit = sum(not fits(row) for row in table.rows)
        if unfit:
            entries.append((page.unfit_entry(), page.UNFIT))
            notes = [*notes, unit_count(unfit, len(table.rows))]
        return page.end_page(figure, axes, size, title or page.heading(table, "scaling over GPUs"),
                             page.subtitle(table, notes + _share_hint(table, references, banded), figures=["tokens_per_s"]),
                             *map(list, zip(*entries)))


def _pairs(table, first, second):
    """(the options in which the files differ as wholes, [(row of the first, row of the second)])."""
    values = {}
    for row in table.rows:
        for name in table.options():
            values.setdefault((row["_path"], name), set()).add(row[name])
    apart = [name for name in table.options() if name != rows.FILE
             and len(values[first, name]) == len(values[second, name]) == 1
             and values[first, name] != values[second, name]]
    key = [name for name in table.options() if name not in (*apart, rows.FILE)]
    # A cluster, or a batch, that follows from what differs is no other scenario.
    follows = table.columns.derived - set(option_columns.CHOSEN) if apart else frozenset()
    key = [name for name in key if name not in follows or len(values[first, name] | values[second, name]) > 1]
    known = {tuple(row[name] for name in key): row for row in table.rows if row["_path"] == second}
    pairs = [(row, known[tuple(row[name] for name in key)]) for row in table.rows
             if row["_path"] == first and tuple(row[name] for name in key) in known]
    return apart, pairs


WIDE = 5  # bands as many times as wide as the lines lie apart leave nothing of these to be seen


def _hides_lines(lines, ratios):
    """Whether the bands of several lines would press these into one: bands are then told, not drawn."""
    found = [ratios[id(row)] for line in lines for row in line.rows]
    values = [value for _, value, _, _ in found] + [1]
    lows, highs = [low for low, *_ in found], [high for _, _, high, _ in found]
    return len(lines) > 1 and max(highs) - min(lows) > WIDE * (max(values) - min(values)) > 0


def _told_bands(ratios, words):
    """The entry of bands that are not drawn."""
    low, high = min(low for low, *_ in ratios.values()), max(high for _, _, high, _ in ratios.values())
    return f"bands not drawn, far wider than the lines lie apart: {low:.2f} to {high:.2f}, {words}"


def compare(table, x, y, group, size, title):
    """The ratio of a figure of the second file to that of the first, scenario by scenario."""
    if len(table.files) != 2:
        raise BadInput("--chart compare: give two sweeps: moesim plot before.csv after.csv --chart compare")
    axes_chart.require_values(table, x)
    table.require(y, "y")
    first, second = table.files
    for path in table.files:
        if not any(row["_path"] == path for row in table.rows):
            raise BadInput(f"{path}: no row is left to compare: all were refused (columns status and reason), or --where "
                           "and --fits-only leave none")
    apart, pairs = _pairs(table, first, second)
    notes = rows.run_notes(table, [x, y])
    if not pairs:
        raise BadInput(f"{second}: no row has the options of a row of {first}, so there is nothing to compare")
    ratios, words = {}, []
    for one, other in pairs:
        band, what = _compared(one, other, y)
        if band:
            ratios[id(one)] = (*band, fits(one) and fits(other))
            words += [what] if band[0] < band[2] else []
    table.rows = [one for one, _ in pairs if id(one) in ratios]
    if not table.rows:
        raise BadInput(f"--y {y}: no pair of rows has a number there")
    lines = rows.lines(table, x, group)
    notes += untold.notes(table, [x, *rows.names_of(table, x, group), *apart], rows.is_time(y))
    if len(lines) > axes_chart.MOST_LINES:
        raise BadInput(f"{len(lines)} lines, and more than {axes_chart.MOST_LINES} cannot be distinguished: "
                       "choose rows with --where")
    styles = axes_chart.styles_of({line.label: line.rows for line in lines}, size)
    names = rows.file_names(table.files)
    with matplotlib.rc_context(page.settings(size)):
        figure, axes = page.grid(size, 1, 1)
        panel = axes[0][0]
        place, places = axes_chart.positions(table, x)
        kinds, hides = set(), _hides_lines(lines, ratios)
        for line, how in zip(lines, styles):
            if places is not None:
                how["linestyle"] = "none"
            shown = [row for row in line.rows if row[x] != ""]
            for row in line.rows:
                if row[x] == "":
                    panel.axhline(ratios[id(row)][1], color=how["color"], linestyle=how["linestyle"])
            xs = [place(row[x]) for row in shown]
            if not xs:
                continue
            lows, _, highs, _ = zip(*(ratios[id(row)] for row in shown))
            if not hides:
                kinds |= look.draw_band(panel, xs, lows, highs, [True] * len(xs), how["color"], min(0.14, 0.9 / len(lines)),
                                        places is None)
            look.plot_line(panel, xs, [ratios[id(row)][1] for row in shown],
                           [ratios[id(row)][3] for row in shown], how)
        panel.axhline(1, color="black", linewidth=0.8, zorder=1)
        axes_chart.style_x(panel, table, x)
        panel.set_xlabel(rows.axis_name(table, x))
        panel.set_ylabel(f"{rows.axis_name(table, y).split(',')[0]}, ratio")
        below = hidden.notes([hidden.Panel("ratio", panel, {line.label: {row[x]: ratios[id(row)][1] for row in line.rows}
                                                             for line in lines})])
        handles, labels = page.legend_entries(styles, [line.label + below.get(line.label, "") for line in lines])
        if kinds:
            handles.append(look.band_entry(kinds))
            labels.append("; ".join(dict.fromkeys(words)))
        elif hides:
            handles.append(matplotlib.lines.Line2D([], [], linestyle="none"))
            labels.append(_told_bands(ratios, "; ".join(dict.fromkeys(words))))
        if not all(ratio[3] for ratio in ratios.values()):
            handles.append(page.unfit_entry())
            labels.append("pale, hollow: one of the two does not fit in GPU memory")
        # A cluster that follows from its profile says nothing more, other than the batch of a step.
        follows = table.columns.derived - set(option_columns.CHOSEN) - ({untold.BATCH} if rows.is_time(y) else set())
        told = [name for name in apart if name not in follows] or apart
        def setting(path):
            row = next(row for row in (*(pair[0] for pair in pairs), *(pair[1] for pair in pairs))
                       if row["_path"] == path)
            return rows.label_of(row, told) or names[path]
        what = f"{setting(second)} over {setting(first)}"
        return page.end_page(figure, axes, size,
                             title or f"{rows.axis_name(table, y).split(',')[0]}: {what}",
                             page.subtitle(table, notes, apart=apart, first=[f"{len(table.rows)} scenarios that both files have"]),
                             handles, labels)
