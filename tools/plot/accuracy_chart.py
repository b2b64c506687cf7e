"""Published accuracy against predicted speed: one panel for the mean, one for each benchmark."""
import json
from dataclasses import dataclass

import matplotlib
from matplotlib import pyplot
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

import look
import option_columns
import speed_bands
from chart_data import BadInput, good_rows, memory_notes, partial_notes
from sweep_chart import MARGIN, SUBTITLE_POINTS, setting, subtitle, text_above
from sweep_series import read_sweep


@dataclass(frozen=True)
class Quality:
    """One row of the study beside the scenario of the sweep that it names."""
    router: str
    capacity_factor: float | None
    speed: float
    speed_low: float
    speed_high: float
    scores: tuple  # per cent, one for each benchmark
    fits: bool = True  # in the memory of a GPU

    @property
    def mean(self):
        return sum(self.scores) / len(self.scores)


def read_study(path):
    with open(path, encoding="utf-8") as file:
        study = json.load(file)
    width = len(study["benchmarks"])
    for number, row in enumerate(study["rows"]):
        if len(row["scores"]) != width:
            raise BadInput(f"{path}: /rows/{number}/scores: {len(row['scores'])} figures for "
                           f"{width} benchmarks")
    return study


def join(series, study):
    """{router: points by capacity factor} of the charted rows that the sweep has a speed for, and
    how many it has none for. The same measurement printed in two tables is one point."""
    speeds = {(entry.router, point.capacity_factor): point
              for entry in series for point in entry.points}
    found, absent = {}, set()
    for row in study["rows"]:
        if row["table"] not in study["charted"] or not row.get("trained", True):
            continue
        factor = float(row["capacity_factor"]) if "capacity_factor" in row else None
        point = speeds.get((row["router"], factor))
        if point is None:
            absent.add((row["router"], factor))
            continue
        found.setdefault(row["router"], set()).add(
            Quality(row["router"], factor, point.speed, point.speed_low, point.speed_high,
                    tuple(row["scores"]), point.fits))
    lines = {router: sorted(points, key=lambda point: point.capacity_factor or 0)
             for router, points in found.items()}
    return {router: lines[router] for router in sorted(lines, key=_place)}, len(absent)


def _place(router):
    """Routers by k, plain before rectified."""
    base = router.split("+")[0]
    return base, len(router), router


def _draw_panel(axes, lines, styles, value, size=1.0):
    for router, points in lines.items():
        how = {**styles[router], "markersize": size * styles[router]["markersize"]}
        look.plot_line(axes, [point.speed for point in points], [value(point) for point in points],
                       [point.fits for point in points], how, linewidth=1.3)
        barred = [point for point in points if point.fits]
        axes.errorbar([point.speed for point in barred], [value(point) for point in barred],
                      xerr=[[point.speed - point.speed_low for point in barred],
                            [point.speed_high - point.speed for point in barred]],
                      fmt="none", elinewidth=0.9, ecolor=how["color"])
    axes.xaxis.set_major_locator(MaxNLocator(5 if size == 1.0 else 3))
    look.thousands(axes.xaxis)


def _label_factors(axes, lines, styles):
    """The capacity factor beside each point that has room for it."""
    everywhere = [(router, point) for router, points in lines.items() for point in points]
    places = [(point.speed, point.mean) for _, point in everywhere]
    axes.margins(y=0.09)  # room above the highest
    axes.figure.canvas.draw()  # the limits become final
    for router in lines:
        texts = [f"{point.capacity_factor:g}" if own == router and point.capacity_factor is not None else ""
                 for own, point in everywhere]
        look.label_points(axes, places, texts, 8.5, styles[router]["color"])


def draw(path, study_path, title, fits_only=False):
    """The figure of a sweep's CSV and an accuracy study; BadInput for what cannot be drawn."""
    study = read_study(study_path)
    series, shared, refused = read_sweep(path, fits_only)
    if len({entry.router for entry in series}) != len(series):
        raise BadInput(f"{path}: its scenarios differ in more than router and capacity factor, so "
                       "a router has several speeds: sweep those two alone")
    lines, absent = join(series, study)
    if not lines:
        raise BadInput(f"{path}: no row has router and capacity factor of {study_path}")
    styles = dict(zip(lines, look.router_styles(list(lines))))
    if "dense" in styles:  # a point here, not a line
        styles["dense"] = {**styles["dense"], "marker": "*", "markersize": 11}
    notes = memory_notes(path, series, fits_only) + partial_notes([path])
    if absent:
        notes.append(f"{absent} point{'s' * (absent > 1)} of the study not in the sweep")
    results = good_rows(path)
    with matplotlib.rc_context(look.RC):
        figure = pyplot.figure(figsize=(13.5, 7.4))
        where = text_above(figure, subtitle(shared, refused, notes, [f"Speed: {setting(shared)}"], [
            speed_bands.level_text(results), f"Bars of speed: {speed_bands.legend_text(results, option_columns.load())}"]))
        rows = -(-len(study["benchmarks"]) // 2)
        grid = figure.add_gridspec(rows, 4, left=0.05, right=0.985, top=0.845 - 0.022 * where.count("\n"), bottom=0.155,
                                   width_ratios=(1.25, 1.25, 1, 1), wspace=0.28, hspace=0.33)
        mean = figure.add_subplot(grid[:, :2])
        _draw_panel(mean, lines, styles, lambda point: point.mean)
        _label_factors(mean, lines, styles)
        mean.set_title(f"mean of {len(study['benchmarks'])} benchmarks; numbers: capacity factor",
                       loc="left", fontsize=10)
        mean.set_xlabel("predicted speed, tokens/s per GPU")
        mean.set_ylabel("accuracy, %")
        for index, name in enumerate(study["benchmarks"]):
            axes = figure.add_subplot(grid[index // 2, 2 + index % 2])
            _draw_panel(axes, lines, styles, lambda point, at=index: point.scores[at], 0.75)
            axes.set_title(name, loc="left", fontsize=10)
        _legend(figure, lines, styles, study)
        _headline(figure, title or study["title"], study.get("caption", ""), where)
    return figure


def _legend(figure, lines, styles, study):
    handles = [Line2D([], [], linewidth=1.3, **styles[router]) for router in lines]
    figure.legend(handles, list(lines), loc="lower left", bbox_to_anchor=(0.035, 0.035),
                  ncol=len(lines), handlelength=3.4, columnspacing=1.6)
    figure.text(0.05, 0.012, f"Accuracy: {study['source']}.",
                fontsize=8.5, color="#333333")


def _headline(figure, title, caption, where):
    figure.text(MARGIN, 0.98, title, fontsize=13, fontweight="bold", va="top")
    figure.text(MARGIN, 0.94, f"Up is better, right is faster. {caption}", fontsize=SUBTITLE_POINTS, va="top")
    figure.text(MARGIN, 0.91, where, fontsize=SUBTITLE_POINTS, color="#333333", va="top")
