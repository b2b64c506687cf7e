"""Piecewise alpha-beta curves: time against bytes as straight pieces, each a regime (a protocol, a
number of channels, cache or memory) with its own latency and bandwidth. Evaluated the same way by
sim/profile/size_curve.cpp."""
import numpy as np


def non_decreasing(values, weights=None):
    """The nearest non-decreasing sequence in least squares (pool adjacent violators): more bytes
    never take less time; where a table says so, it is noise."""
    blocks = []
    weights = np.ones(len(values)) if weights is None else weights
    for value, weight in zip(values, weights):
        blocks.append([float(value), float(weight), 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            high, total, count = blocks.pop()
            low, weight_low, count_low = blocks.pop()
            whole = total + weight_low
            blocks.append([(high * total + low * weight_low) / whole, whole, count + count_low])
    return np.array([value for value, _, count in blocks for _ in range(count)])


def choose_knots(sizes, times, penalty):
    """Indices of the knots that minimise the squared log error at the sizes between them plus
    `penalty` per knot (dynamic programming; both ends are knots)."""
    count = len(sizes)
    best = np.full(count, np.inf)
    best[0] = 0
    before = np.zeros(count, int)
    for end in range(1, count):
        for start in range(end):
            inside = slice(start + 1, end)
            line = np.interp(sizes[inside], [sizes[start], sizes[end]], [times[start], times[end]])
            cost = best[start] + np.sum(np.log(times[inside] / line) ** 2) + penalty
            if cost < best[end] - 1e-15:
                best[end], before[end] = cost, start
    chosen = [count - 1]
    while chosen[-1] != 0:
        chosen.append(before[chosen[-1]])
    return chosen[::-1]


def fit(sizes, times, tolerance):
    """Knots (bytes, time_us) of a piecewise alpha-beta curve through one time per size; a knot is
    spent where it saves more than a squared relative error of `tolerance`."""
    sizes = np.asarray(sizes, float)
    times = non_decreasing(np.asarray(times, float))
    chosen = choose_knots(sizes, times, tolerance**2)
    return sizes[chosen], np.array([float(f"{times[each]:.6g}") for each in chosen])


def evaluate(knot_bytes, knot_time_us, size):
    """Time in microseconds: the latency floor below the first knot, straight lines between knots,
    the bandwidth of the last piece beyond the last."""
    size = np.asarray(size, float)
    last = (knot_time_us[-1] - knot_time_us[-2]) / (knot_bytes[-1] - knot_bytes[-2])
    beyond = knot_time_us[-1] + (size - knot_bytes[-1]) * last
    return np.where(size > knot_bytes[-1], beyond, np.interp(size, knot_bytes, knot_time_us))
