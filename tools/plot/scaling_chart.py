"""Scaling over GPUs: the speed of all of them, and the share that is left of the speed of one."""
import math

import matplotlib

import axes_chart
import hidden
import look
import page
import rows
import speed_bands
import untold
from chart_data import BadInput, fits
from sweep_chart import gpus_in_words

LOGARITHMIC = 4  # the most GPUs of a scaling over the fewest; both axes are linear below: a straight line is linear scaling


def _scaling_lines(table, group):
    lines = rows.lines(table, "gpus", group)
    if table.is_search() and not group:
        lines[0].label = "the fastest layout on each number of GPUs"
    if all(len(line.rows) < 2 for line in lines):
        raise BadInput(f"{table.files[0]}: a scaling takes several numbers of GPUs: sweep --gpus 8,16,32")
    axes_chart.require_few_lines(lines)
    return lines


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


def _fewest_gpus(lines, references):
    """What the numbers of GPUs of _references() are called."""
    if any(row is not _own_reference(line) for line, row in zip(lines, references)):
        return gpus_in_words(_counts(references)[0])
    skips = any(row is not line.rows[0] for line, row in zip(lines, references))
    return "the fewest GPUs" + (" on which it fits" if skips else "")


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
    words = gpus_in_words(counts[0]) if len(counts) == 1 else _fewest_gpus(lines, references)
    # Where some lines have fewer that they fit on, why it is these.
    is_of_all = any(row is not _own_reference(line) for line, row in zip(lines, references))
    share.set_ylabel(f"speed of one GPU, % of that with {words}" + (",\nthe fewest on which all lines fit" if is_of_all else ""))


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
    """Marks up to how many GPUs scaling pays in what moesim recommend found. Returns [(look, name)] of the legend."""
    pays = [rows.present(row, "gpus") for row in lines[0].rows
            if table.is_search() and row["scaling_pays"].lower() == "true"]  # pandas writes True
    if not pays or len(lines) > 1:
        return []
    most = max(pays)
    end = [one.axvline(most, color=look.GREY, linestyle="--", linewidth=1, zorder=1) for one in panels][-1]
    is_last = most == rows.present(lines[0].rows[-1], "gpus") and not table.where
    return [(end, f"scaling pays up to {gpus_in_words(f'{most:.0f}')}" + (", the most searched" if is_last else ""))]


def _share_hint(table, references, banded):
    """Where the speed of one GPU has no band: what gives one."""
    if banded or table.is_search() or not any("step_ms_p05" in row for row in table.rows):
        return []
    counts = _counts(references)
    return [f"a band of the speed of one GPU takes sweep --baseline gpus={counts[0] if len(counts) == 1 else 'N'}"]


def _labels(total, share, table, lines, shares):
    """The labels of the lines, which name the line above one that is hidden. `shares`: of _draw_scaling()."""
    totals = axes_chart.panel_of(total, table, lines, "gpus", "tokens_per_s").lines
    below = {**hidden.notes([hidden.Panel("speed of one GPU in %", share, shares)]),
             **hidden.notes([hidden.Panel("speed", total, totals)])}
    return [line.label + below.get(line.label, "") for line in lines]


def _other_entries(panels, table, lines, references, kinds):
    """[(look, name)] of all that the panels show beside the lines. `kinds`: of _draw_scaling()."""
    entries = [(matplotlib.lines.Line2D([], [], color=look.GREY, linestyle=":", linewidth=1),
                f"linear scaling from {_fewest_gpus(lines, references)}")]
    if kinds:
        entries.append((look.band_entry(kinds), table.band_words()))
    entries += _draw_end_of_scaling(panels, table, lines)
    if not all(map(fits, table.rows)):
        entries.append((page.unfit_entry(), page.UNFIT))
    return entries


def scaling(table, group, size, title):
    """Speed of all GPUs by their number, and the share that is left of the speed each has on the fewest
    on which the step of every line fits."""
    for name in ("gpus", "tokens_per_s_per_gpu"):
        table.require(name, "x")
    if table.is_search() and group is None:
        group = [rows.FILE] if len(table.files) > 1 else []
    lines = _scaling_lines(table, group)
    styles = axes_chart.styles_of({line.label: line.rows for line in lines}, size)
    told = ["gpus", *rows.names_of(table, "gpus", group)]
    notes = untold.note(table, "fidelity", told) if table.is_search() else untold.notes(table, told)
    with matplotlib.rc_context(page.settings(size)):
        narrow = size.width < 6
        figure, axes = page.grid(size, 2 if narrow else 1, 1 if narrow else 2, aspect=0.8)
        total, share = axes.flat
        references = _references(lines)
        kinds, banded, shares, top = _draw_scaling(total, share, table, lines, references, styles)
        _style_scaling(total, share, table, lines, references, top)
        labels = _labels(total, share, table, lines, shares)
        entries = [*zip(*page.legend_entries(styles, labels)), *_other_entries((total, share), table, lines, references, kinds)]
        notes += page.unfit_notes(table) + page.warned_notes(table) + _share_hint(table, references, banded)
        return page.end_page(figure, axes, size, title or page.heading(table, "scaling over GPUs"),
                             page.subtitle(table, notes, figures=["tokens_per_s"]), *map(list, zip(*entries)))
