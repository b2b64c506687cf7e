"""How a router's load is distributed: experts by layer, busiest over mean, losses, and each over time."""
import json

import matplotlib
import numpy
from matplotlib import pyplot

import look
from chart_data import BadInput

PEAKS = (("expert_demand_busiest_over_mean", "most demanded expert, before drops"),
         ("gpu_rows_busiest_over_mean", "busiest GPU, rows computed"))
LOSSES = (("failed", "failed routes"), ("residual_loss", "token loss"), ("padded", "padded slots"))


def _matrix(path, lines):
    shares = [line["expert_demand_share"] for line in lines]
    if not shares or len({len(row) for row in shares}) != 1:
        raise BadInput(f"{path}: detail: no shares of experts, or not the same number in all lines")
    return numpy.array(shares).T * len(shares[0])  # [expert, line], 1: as much as the mean


def _whole(axis):
    axis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True, nbins=9))


def _heat(axes, figure, values, xlabel, title):
    # The scale ends where one cell in two hundred lies beyond: a single hot expert among hundreds
    # must not turn all others white.
    top = max(2.0, float(numpy.quantile(values, 0.995)))
    image = axes.imshow(values, aspect="auto", origin="lower", cmap="cividis", vmin=0, vmax=top,
                        interpolation="nearest")
    axes.grid(False)
    axes.set_title(title, loc="left")
    axes.set_xlabel(xlabel)
    axes.set_ylabel("expert")
    _whole(axes.xaxis)
    _whole(axes.yaxis)
    _one_place(axes, range(values.shape[1]))
    beyond = "max" if values.max() > top else "neither"
    bar = figure.colorbar(image, ax=axes, pad=0.015, extend=beyond)
    bar.set_label("demand over the mean expert's")
    bar.outline.set_visible(False)


def _one_place(axes, positions):
    """Limits and the only tick of an axis that has one position."""
    if len(positions) == 1:
        axes.set_xlim(positions[0] - 0.5, positions[0] + 0.5)
        axes.set_xticks(list(positions))


def _legend_above(axes, columns):
    """Above the panel: inside it some routing's line would pass behind."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, borderaxespad=0.2,
                columnspacing=1.0, handlelength=2.0, handletextpad=0.5)


def _draw_peaks(axes, lines, positions, xlabel):
    for index, (key, label) in enumerate(PEAKS):
        how = {**look.style_by_index(index), "markersize": 4}
        values = [line[key] for line in lines]
        if isinstance(values[0], dict):
            axes.fill_between(positions, [value["p05"] for value in values],
                              [value["p95"] for value in values], color=how["color"], alpha=0.15,
                              linewidth=0)
            values = [value["median"] for value in values]
        axes.plot(positions, values, label=label, linewidth=1.6, **how)
    axes.axhline(1, color=look.GREY, linewidth=1, linestyle=":")
    banded = isinstance(lines[0][PEAKS[0][0]], dict)
    axes.set_ylabel("busiest over mean" +
                    (":\nmedian and p05 to p95 of the layers" if banded else ""))
    axes.set_xlabel(xlabel)
    _whole(axes.xaxis)
    axes.set_ylim(bottom=0.9)
    _one_place(axes, positions)
    _legend_above(axes, 1)


def _passes_over(result):
    """Whether what the groups or the bias of a model's own router, or sampling, pass over is no token loss of it."""
    counted = result.get("counted_loss")  # of older files none
    return counted is not None and counted < result["residual_loss"]


def _draw_losses(axes, lines, positions, xlabel, result):
    """`result`: of the routed scenario; with padding "none" slots that stay empty are not sent."""
    for index, (key, label) in enumerate(LOSSES):
        if key == "padded" and result.get("padding") == "none":
            label = "empty slots"
        if key == "residual_loss" and _passes_over(result):
            label = "token loss, and weight passed over"
        if any(line.get(key) is None for line in lines):
            continue
        how = {**look.style_by_index(index + 2), "markersize": 4}
        if key == "padded":  # equals the failed routes at CF = k: both have to show
            how.update(linestyle=(0, (5, 4)), markerfacecolor="white")
        axes.plot(positions, [100 * line[key] for line in lines], label=label, linewidth=1.6, **how)
    axes.set_ylabel("%")
    look.per_cent_from_zero(axes)
    axes.set_xlabel(xlabel)
    _whole(axes.xaxis)
    _one_place(axes, positions)
    _legend_above(axes, 3)


def _titles(result):
    title = f"{result['router']} over {result['experts']} experts: demand for each expert, and losses"
    factor = result.get("capacity_factor")
    replicas = result.get("replicas")  # none of given logits, which have no source of routing either
    parts = [f"routing {result['routing']}" if result.get("routing") else "given logits", f"{result['gpus']} GPUs in groups of "
             f"{result['expert_parallel']}", f"{result['tokens_per_gpu']:,} tokens per GPU",
             *([f"{replicas} replica{'s' if replicas != 1 else ''}"] if replicas else [])]
    if factor is not None:
        parts.insert(0, f"capacity factor {factor:g} ({result['capacity_convention']} convention)")
    return title, ", ".join(parts)


def draw(path, title):
    with open(path, encoding="utf-8") as file:
        result = json.load(file)
    detail = result["detail"]
    layers = detail["layers"]
    replicas = detail["replicas"]
    over_time = len(replicas) > 1
    with matplotlib.rc_context(look.RC):
        height = 8.9 if over_time else 5.2
        figure, grid = pyplot.subplots(2 if over_time else 1, 3, figsize=(14.5, height),
                                       squeeze=False, width_ratios=(1.25, 1, 1))
        figure.subplots_adjust(left=0.045, right=0.985, wspace=0.27, hspace=0.42,
                               top=1 - 1.3 / height, bottom=0.6 / height)
        own_title, subtitle = _titles(result)
        figure.text(0.015, 1 - 0.2 / height, title or own_title, fontsize=13, fontweight="bold",
                    va="top")
        figure.text(0.015, 1 - 0.52 / height, subtitle, fontsize=9.5, color="#333333", va="top")
        positions = range(len(layers))
        mean = " (mean over replicas)" if over_time else ""
        _heat(grid[0][0], figure, _matrix(path, layers), "MoE layer", f"Layer by layer{mean}")
        _draw_peaks(grid[0][1], layers, positions, "MoE layer")
        _draw_losses(grid[0][2], layers, positions, "MoE layer", result)
        if over_time:
            positions = range(len(replicas))
            # After the last step comes the first again; the file does not say how many there are.
            of_trace = result["routing"].startswith(("trace:", "trace-repeat:"))
            name = "replica: the trace's steps in turn" if of_trace else "replica"
            _heat(grid[1][0], figure, _matrix(path, replicas), name,
                  f"Over time: layer {detail['most_uneven_layer']}, the most uneven")
            _draw_peaks(grid[1][1], replicas, positions, name)
            _draw_losses(grid[1][2], replicas, positions, name, result)
    return figure
