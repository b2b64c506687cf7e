"""Speed against token loss of every scenario of a sweep, with Pareto fronts: one for each task, the model, machine and
workload, and each k of its routers, of which speeds and losses do not compare with those of another."""
import itertools

import matplotlib

import axes_chart
import look
import option_columns
import page
import rows
import untold
from chart_data import BadInput, fits, loss_column

# Options that say what is computed and where, not how.
TASK = ("mode", "model", "profile", "routing", "sequence_length")
# Routers whose loss says nothing: soft mixes all tokens, and a dense layer routes none.
WITHOUT_LOSS = ("soft", "dense")


# What a point of a front must lose less than the one before: a share of its loss, and so many per cent of the routing weight,
# as moesim recommend has them (loses_clearly_less() of sim/study/sweep/counted_loss.cpp). Losses that differ by less, by a few
# routes of a draw, are equal.
LEAST_GAIN, LEAST_POINTS = 0.99, 1e-2


def _loses_less(loss, other):
    return loss < LEAST_GAIN * other and other - loss >= LEAST_POINTS


def front_of(points):
    """The points (loss, speed, row), by loss, from the fastest on each that loses less than all that are as fast; of
    equal ones the first."""
    front = []
    fastest_first = sorted(points, key=lambda one: -one[1])
    for _, group in itertools.groupby(fastest_first, key=lambda one: one[1]):
        equal = list(group)
        least = min(loss for loss, *_ in equal)
        point = next(one for one in equal if not _loses_less(least, one[0]))
        if not front or _loses_less(point[0], front[-1][0]):
            front.append(point)
    return front[::-1]


def _is_placed(row):
    """Whether the row has a place on the axis of token loss."""
    return rows.figure_of(row, loss_column(row)) is not None or row.get("router") == "dense"


def _by_label(table, names):
    """{label: rows} of the points that one marker stands for."""
    groups = {}
    for row in filter(_is_placed, table.rows):
        groups.setdefault(rows.label_of(row, names) or rows.without(names), []).append(row)
    return groups


def _point_groups(table, told):
    """The options that points of one marker have in common: all that tell the rows apart but the capacity factor. Layouts
    that moesim recommend found differ in too many for that, and the front names them."""
    names = [name for name in told if name != "capacity_factor"]
    return ["router"] if not names or table.is_search() else names


def _check_groups(table, names, is_given):
    """Refuses more groups than markers, naming fewer options that the markers are enough for."""
    count = len(_by_label(table, names))
    if count <= axes_chart.MOST_LINES:
        return
    fewer = next((names[:size] for size in range(len(names) - 1, 0, -1)
                  if 1 < len(_by_label(table, names[:size])) <= axes_chart.MOST_LINES), [])
    such = f", such as --group {','.join(fewer)}" if fewer and not is_given else ""
    raise BadInput(f"{count} groups of points, by {', '.join(names)}, and more than {axes_chart.MOST_LINES} cannot be "
                   f"distinguished: choose rows with --where, or fewer columns with --group{such}")


def _by_task(table, task, found):
    """{what its rows share of `task`: those of `found`, (loss, speed, row)}, in the order of the table."""
    tasks = {rows.label_of(row, task): [] for row in table.rows}
    for point in found:
        tasks[rows.label_of(point[2], task)].append(point)
    return tasks


def _k_of(row):
    return row.get("top_k") or ""


def _has_several_k(members):
    return len({_k_of(row) for row in members} - {""}) > 1


def _by_front(table, task, found):
    """{(what its rows share of `task`, their k): points}, as _by_task(), without those of WITHOUT_LOSS. The k is "" where
    no task has several."""
    members = _by_task(table, task, [("", "", row) for row in table.rows if row.get("router") not in WITHOUT_LOSS])
    is_by_k = any(_has_several_k(row for *_, row in those) for those in members.values())
    fronts = {(label, _k_of(row) if is_by_k else ""): [] for label, those in members.items() for *_, row in those}
    for point in found:
        if point[2].get("router") not in WITHOUT_LOSS:
            fronts[rows.label_of(point[2], task), _k_of(point[2]) if is_by_k else ""].append(point)
    return fronts


def _looks_of_fronts(fronts, colours):
    """{front: how its line is drawn}: in the colour of its task, with dashes that tell fronts of one colour apart. Where
    there is one task all are black, with the dashes that routers of this k have in other charts."""
    counts = list(dict.fromkeys(k for _, k in fronts))
    if len(counts) > len(look.DASHES) and len(colours) == 1:
        return {front: {"color": look.style_by_index(at)["color"], "linestyle": "-"} for at, front in enumerate(fronts)}
    places = {front: counts.index(front[1]) if len(counts) > 1 else at for at, front in enumerate(fronts)}
    return {front: {"color": colours[front[0]], "linestyle": look.DASHES[places[front] % len(look.DASHES)]} for front in fronts}


def _front_words(front):
    """"profile a100, k = 2"."""
    task, k = front
    return ", ".join(filter(None, [task, f"k = {k}" if k else ""]))


def _check_tasks(table, task):
    """Refuses more fronts than colours, naming a value of the option that has the most."""
    count, most = len(_by_task(table, task, [])), len(look.COLOURS + look.MORE_COLOURS)
    if count > most:
        name = max(task, key=lambda name: len({row[name] for row in table.rows}))
        raise BadInput(f"{count} Pareto fronts, one for each {', '.join(map(option_columns.words, task))}, and more than "
                       f"{most} cannot be distinguished: choose rows with --where, such as "
                       f"--where '{name}={table.rows[0][name]}'")


def _styles(table, groups, task, rest, size):
    """(the style of the points of each group, {task: the colour of its front}). Where there are several tasks, each has a colour."""
    tasks = {label: look.style_by_index(index)["color"] for index, label in enumerate(_by_task(table, task, []))}
    markers = {label: None for label in (rows.label_of(row, rest) for row in table.rows)}
    markers = {label: index for index, label in enumerate(markers)}
    if task and len(markers) <= 2 * len(look.MARKERS):
        styles = []
        for members in groups.values():
            colour, index = tasks[rows.label_of(members[0], task)], markers[rows.label_of(members[0], rest)]
            styles.append({"color": colour, "marker": look.MARKERS[index % len(look.MARKERS)],
                           "markerfacecolor": colour if index < len(look.MARKERS) else "white"})
    else:
        styles = axes_chart.styles_of(groups, size)
        tasks = dict.fromkeys(tasks, "black")
        if len({(how["color"], how["marker"], how.get("markerfacecolor")) for how in styles}) < len(styles):
            # Lines of these differ in dashes alone; points have none.
            styles = [look.style_by_index(index) for index in range(len(groups))]
    return [{**how, "linestyle": "none", "marker": how["marker"] or "*",
             "markersize": how.get("markersize") or 0.7 * size.font} for how in styles], tasks


def _points(table):
    """(loss, speed, row) of all rows that have a place."""
    return [(100 * (rows.figure_of(row, loss_column(row)) or 0), rows.present(row, "tokens_per_s_per_gpu"), row)
            for row in filter(_is_placed, table.rows)]


def _draw_points(axes, points, groups, styles, on_fronts):
    """The points with their bars, `on_fronts` above the others; returns the figures of which one has a bar."""
    places, barred = {id(row): (loss, speed) for loss, speed, row in points}, set()
    above = {id(row) for *_, row in on_fronts}
    for members, how in zip(groups.values(), styles):
        for row in members:
            loss, speed = places[id(row)]
            look.plot_line(axes, [loss], [speed], [fits(row)], how, zorder=2.5 if id(row) in above else 2)
            if not fits(row):
                continue
            bar = {"color": how["color"], "linewidth": 0.8, "alpha": 0.6}
            low, _, high = rows.band_of(row, "tokens_per_s_per_gpu")
            if low < high:
                barred.add("tokens_per_s_per_gpu")
                axes.plot([loss, loss], [low, high], **bar)
            low, _, high = rows.band_of(row, loss_column(row))
            if low is not None and low < high:
                barred.add(rows.TOKEN_LOSS)
                axes.plot([100 * low, 100 * high], [speed, speed], **bar)
    return barred


def _draw_fronts(axes, fronts, looks, words):
    """A line for each front; returns handles and labels of those that have more than one point."""
    handles, labels = [], []
    for name, front in fronts.items():
        line, = axes.plot([point[0] for point in front], [point[1] for point in front], linewidth=1, drawstyle="steps-post",
                          zorder=1.5, **looks[name])
        if len(front) > 1:
            handles.append(line)
            labels.append(f"{words}: {_front_words(name)}" if len(fronts) > 1 else words)
    return handles, labels


def _label_points(axes, points, colours, named, varying, font, drawn):
    """"top2+fr, CF 1" beside each point, (loss, speed, row) by task, in its colour; without the options `named`, which its
    marker tells, where there is no room. `drawn`: (loss, speed) of all points, to none of which a label may be nearer."""
    for task, those in points.items():
        places = [(loss, speed) for loss, speed, _ in those]
        short, long = ([rows.label_of(row, told).replace("capacity factor", "CF") for _, _, row in those]
                       for told in (varying, [*named, *varying]))
        colour = colours[task] if len(points) > 1 else "black"
        written = look.label_points(axes, places, long, font, colour, drawn)
        if named:
            brief = ["" if text in written else brief for text, brief in zip(long, short)]
            look.label_points(axes, places, brief, font, colour, drawn)


MOST_NAMED = 12  # points that all have a name; of more, those of the fronts alone


def _k_note(tasks):
    """Where points of one task have several k: what their losses are shares of. `tasks`: as _by_task()."""
    differ = any(_has_several_k(row for *_, row in points if row.get("router") not in WITHOUT_LOSS) for points in tasks.values())
    return ["token loss is a share of each router's own k experts: losses of different k do not compare"] if differ else []


def _without_loss_note(table):
    """Which routers would end every front without a loss to compare."""
    routers = [name for name in WITHOUT_LOSS if any(row.get("router") == name for row in table.rows)]
    return [f"on no front: {' and '.join(routers)}, whose loss is 0 by definition"] if routers else []


def pareto(table, group, size, title):
    """Every scenario by token loss and speed; the fronts of those that fit are joined and named."""
    for name in ("residual_loss", "tokens_per_s_per_gpu"):
        table.require(name, "y")
    told = untold.names(table)
    names = _point_groups(table, told) if group is None else group
    task = [name for name in TASK if name in table.differing()]
    names = [name for name in task if name not in names] + names
    rest = [name for name in names if name not in task]
    _check_tasks(table, task)
    _check_groups(table, names, group is not None)
    varying = [name for name in told if name not in names]
    notes = untold.notes(table, [*names, *varying])
    groups = _by_label(table, names)
    styles, colours = _styles(table, groups, task, rest, size)
    with matplotlib.rc_context(page.settings(size)):
        figure, axes = page.grid(size, 1, 1)
        one = axes[0][0]
        points = _points(table)
        drawn, fitting = [(loss, speed) for loss, speed, _ in points], [point for point in points if fits(point[2])]
        tasks = _by_task(table, task, fitting)
        fronts = {front: front_of(those) for front, those in _by_front(table, task, fitting).items()}
        barred = _draw_points(one, points, groups, styles, [point for front in fronts.values() for point in front])
        looks = _looks_of_fronts(fronts, colours)
        unfit_notes = page.unfit_notes(table)
        lines = _draw_fronts(one, fronts, looks, "Pareto front of what fits" if unfit_notes else "Pareto front")
        look.thousands(one.yaxis)
        one.set_xlabel("token loss, %" + look.loss_axis(one, [loss for loss, _ in drawn]))
        one.set_ylabel("speed, tokens/s per GPU")
        handles, labels = (both + more for both, more in zip(page.legend_entries(styles, groups), lines))
        for name, marker in (("tokens_per_s_per_gpu", "|"), (rows.TOKEN_LOSS, "_")):
            if name in barred:
                handles.append(matplotlib.lines.Line2D([], [], linestyle="none", marker=marker, color=look.GREY,
                                                       markersize=1.2 * size.font))
                labels.append(table.band_words(name))
        if unfit_notes:
            handles.append(page.unfit_entry())
            labels.append(page.UNFIT)
        notes += _k_note(tasks) + _without_loss_note(table) + unfit_notes + page.warned_notes(table)
        page.end_page(figure, axes, size, title or page.heading(table, "speed and token loss"),
                      page.subtitle(table, notes, figures=["tokens_per_s_per_gpu"]), handles, labels)
        named = sorted((name for name in rest if name in table.differing()), key=lambda name: name != "router")
        on_fronts = {label: [point for front, those in fronts.items() for point in those if front[0] == label] for label in tasks}
        _label_points(one, on_fronts, colours, named, varying, 0.75 * size.font, drawn)
        if len(fitting) <= MOST_NAMED:
            others = {label: [point for point in those if all(point is not its for its in on_fronts[label])]
                      for label, those in tasks.items()}
            _label_points(one, others, colours, named, varying, 0.75 * size.font, drawn)
        return figure
