"""Speed against capacity factor, and what the router loses, in one figure."""
import matplotlib
from matplotlib import pyplot
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

import look
from chart_data import BadInput, read_measured, read_sweep


def _title(shared):
    model = shared.get("model", "several models")
    where = f"{shared['gpus']} x " if "gpus" in shared else ""
    return f"{model} on {where}{shared.get('profile', 'several profiles')}: speed and token loss " \
           "by capacity factor"


def _subtitle(shared):
    mode = {"train": "training step", "prefill": "forward pass only (prefill)"}
    parts = []
    if "mode" in shared:
        parts.append(mode.get(shared["mode"], shared["mode"]))
    if "dispatch" in shared:
        parts.append(f"{shared['dispatch']} dispatch")
    if "experts" in shared:
        parts.append(f"{shared['experts']} experts")
    if "expert_parallel" in shared:
        parts.append(f"expert parallel over {shared['expert_parallel']} GPUs")
    if "tokens_per_gpu" in shared:
        parts.append(f"{int(float(shared['tokens_per_gpu'])):,} tokens per GPU")
    if "routing" in shared:
        parts.append(f"routing {shared['routing']}")
    return ", ".join(parts)


def _curve(axes, points, values, **how):
    shown = [(point.capacity_factor, value) for point, value in zip(points, values)
             if point.capacity_factor is not None and value is not None]
    if shown:
        axes.plot(*zip(*shown), **how)


def _draw_speed(axes, series):
    for index, entry in enumerate(series):
        how = look.style(index)
        points = [point for point in entry.points if point.capacity_factor is not None]
        for point in entry.points:
            if point.capacity_factor is None:  # no experts, no capacity: the same everywhere
                axes.axhline(point.speed, color=how["color"], linewidth=1.3, linestyle="-.")
        factors = [point.capacity_factor for point in points]
        axes.fill_between(factors, [point.speed_low for point in points],
                          [point.speed_high for point in points], color=how["color"], alpha=0.13,
                          linewidth=0)
        _curve(axes, points, [point.speed for point in points], linewidth=1.6, markersize=4.5,
               **how)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("speed, tokens/s per GPU")
    look.thousands(axes.yaxis)


def _draw_loss(axes, series):
    """Solid: what is lost in the end. Dashed: what failed before rectification, which is the same
    for all routers of one k: drawn once, in grey."""
    drawn = {}
    for index, entry in enumerate(series):
        failed = tuple((point.capacity_factor, point.failed) for point in entry.points)
        base = entry.label.replace(entry.router, entry.router.split("+")[0], 1)
        drawn.setdefault(failed, (base, entry.points))
        _curve(axes, entry.points,
               [None if point.token_loss is None else 100 * point.token_loss
                for point in entry.points], linewidth=1.6, markersize=4.5, **look.style(index))
    ends = []
    for base, points in drawn.values():
        shown = [point for point in points
                 if point.capacity_factor is not None and point.failed is not None]
        if not shown:
            continue
        _curve(axes, shown, [100 * point.failed for point in shown], color=look.GREY,
               linestyle="--", linewidth=1.2)
        ends.append((shown[0].capacity_factor, 100 * shown[0].failed, base))
    for factor, value, base in ends:
        axes.annotate(f"{base} failed", (factor, value), xytext=(5, 4), textcoords="offset points",
                      fontsize=8, color=look.GREY)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("token loss, %")
    axes.set_xlabel("capacity factor (slots per expert / tokens per expert)")


def _draw_measured(axes, series, points):
    """Measured points on the line of their router; hollow where a study leaves them out."""
    styles = {}
    for index, entry in enumerate(series):
        styles.setdefault(entry.router, look.style(index))
    shown = [point for point in points
             if point.router in styles and point.capacity_factor is not None]
    for point in shown:
        how = styles[point.router]
        face = "white" if point.excluded else how["color"]
        axes.plot([point.capacity_factor], [point.speed], linestyle="none", marker=how["marker"],
                  markersize=9, markerfacecolor=face, markeredgewidth=1.5,
                  markeredgecolor=how["color"] if point.excluded else "black", zorder=5)
    return shown


def _legend(figure, axes, series, measured):
    handles = []
    for index, entry in enumerate(series):
        dense = all(point.capacity_factor is None for point in entry.points)
        how = {**look.style(index), **({"linestyle": "-.", "marker": ""} if dense else {})}
        handles.append(Line2D([], [], linewidth=1.6, markersize=5, label=entry.label, **how))
    handles.append(Patch(color="#999999", alpha=0.35, linewidth=0, label="p05 to p95 of replicas"))
    handles.append(Line2D([], [], color=look.GREY, linestyle="--", linewidth=1.2,
                          label="failed routes, before\nrectification"))
    def marker(face, label):
        return Line2D([], [], linestyle="none", marker="o", markersize=9, markeredgewidth=1.5,
                      markerfacecolor=face, markeredgecolor="black", label=label)
    if any(not point.excluded for point in measured):
        sources = sorted({point.source for point in measured if point.source})
        source = f"\n({sources[0]})" if len(sources) == 1 else ""
        handles.append(marker("#999999", f"measured{source}"))
    if any(point.excluded for point in measured):
        handles.append(marker("white", "measured, left out\nof the study"))
    legend = axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.0),
                         borderaxespad=0, title="router", alignment="left")
    figure.add_artist(legend)


def draw(path, measured_path, title):
    """The figure of a sweep's CSV; raises BadInput for one that cannot be drawn."""
    series, shared, refused = read_sweep(path)
    if not any(point.capacity_factor is not None for entry in series for point in entry.points):
        raise BadInput(f"{path}: no row has a capacity factor to draw speeds against")
    measured = read_measured(measured_path, shared.get("mode")) if measured_path else []
    with matplotlib.rc_context(look.RC):
        figure, (speed, loss) = pyplot.subplots(
            2, 1, sharex=True, figsize=(10, 7.4), height_ratios=(1.5, 1), layout="constrained")
        _draw_speed(speed, series)
        _draw_loss(loss, series)
        shown = _draw_measured(speed, series, measured)
        _legend(figure, speed, series, shown)
        figure.suptitle(title or _title(shared), x=0.01, ha="left", fontsize=13, fontweight="bold")
        note = f"; {refused} refused scenarios left out" if refused else ""
        speed.set_title(_subtitle(shared) + note, loc="left", fontsize=9.5, color="#333333")
    return figure
