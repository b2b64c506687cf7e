"""Exchanges beyond the last measured size, where bandwidth goes on rising.

All machines: each further byte costs what it did over the last measured octave, less 2 % per
octave, four octaves long. Hiding the largest sizes of every machine behind NVLink switches chose the
2 % (python3 -m tools.fit.exchange_errors prints the errors).
All-to-all over NVLink of 900 GB/s rises by more: from 64 MiB per peer on, and beyond what was measured,
bytes pass faster by one factor, fitted to the published runs of 4 to 16 GiB among 4, 8 and 64 GPUs of
GB300. Why is not known; the 64 MiB were set while looking at these runs.
Rings among more GPUs than were measured follow the law of GPU counts out there too, from the measured
counts' curves with their tails: at one size, a ring among 64 GPUs has chunks an eighth as long as one
among 8, so its own last octave says what a chunk of another length cost.
"""
import numpy as np
import pandas as pd

from tools.fit import common, gpu_count_law, piecewise

RISE_PER_OCTAVE, RISING_OCTAVES = 0.98, 4
LARGEST = 16 * 2.0**30
FAST_LINE = 900e3  # bytes per microsecond and direction
FAST_FROM_PER_PEER = 64 * common.MIB
FACTORS = np.arange(1.0, 1.501, 0.005)
# Two runs on GB300 NVL72, inside one rack: run, GPUs, GiB, busbw in GB/s. Quoted from the nccl-tests
# output (alltoall_perf, out of place) in an OCI GB300 acceptance document.
RACK = ((0, 4, 8, 624.98), (0, 4, 16, 627.69), (0, 8, 8, 679.65), (0, 8, 16, 685.06),
        (0, 64, 8, 649.03), (0, 64, 16, 666.92),
        (1, 4, 4, 611.52), (1, 4, 8, 615.30), (1, 8, 8, 657.81), (1, 8, 16, 662.27),
        (1, 64, 8, 566.30), (1, 64, 16, 622.92))


def last_slope(knots):
    """Microseconds per byte over the last octave."""
    size, time = knots[0][-1], knots[1][-1]
    before = size / 2
    return float((time - piecewise.evaluate(*knots, before)) / (size - before))


def slow_rise(knots, largest=LARGEST):
    """The knots with an octave each up to `largest` behind them."""
    slope = last_slope(knots)
    sizes, times = list(knots[0]), list(knots[1])
    for octave in range(1, 64):
        if sizes[-1] >= largest * (1 - 1e-9):
            break
        size = min(2 * sizes[-1], largest)
        step = slope * RISE_PER_OCTAVE**min(octave, RISING_OCTAVES)
        times.append(times[-1] + (size - sizes[-1]) * step)
        sizes.append(size)
    return np.array(sizes), np.array(times)


def ring_rise(op, links, knots, fewer, gpus):
    """Knots of a ring by the count law, with an octave each up to LARGEST behind them; `fewer`:
    [(GPU count, knots)] of the measured counts, without tails; `links` as gpu_count_law takes them."""
    largest = knots[0][-1]
    longer = [(count, slow_rise(each)) for count, each in fewer]
    sizes, times = gpu_count_law.predict(op, links, longer, gpus)
    beyond = (sizes > largest * (1 + 1e-9)) & (sizes < LARGEST * (1 + 1e-9))
    return (np.append(knots[0], sizes[beyond]),
            np.append(knots[1], np.maximum(times[beyond], knots[1][-1])))


def fast_rise(knots, gpus, factor):
    """The same for all-to-all over 900 GB/s."""
    largest, slope = knots[0][-1], last_slope(knots)
    start = max(largest, FAST_FROM_PER_PEER * gpus)
    sizes = largest * 2.0**np.arange(1, 16)
    sizes = np.unique(np.append(sizes[sizes < LARGEST], [start, LARGEST]))
    sizes = sizes[(sizes > largest) & (sizes <= LARGEST)]
    further = np.minimum(sizes, start) - largest + np.maximum(sizes - start, 0) / factor
    return np.append(knots[0], sizes), np.append(knots[1], knots[1][-1] + further * slope)


def extend(op, line, gpus, knots, factor):
    """The knots with the tail of `op` behind them; `line` in bytes per microsecond."""
    if op == "all-to-all" and line == FAST_LINE:
        return fast_rise(knots, gpus, factor)
    return slow_rise(knots)


def rack_rows():
    """GPUs, bytes, microseconds and run of the published GB300 rows inside a rack."""
    rows = pd.DataFrame(RACK, columns=["run", "gpus", "gib", "busbw"])
    rows["bytes"] = rows.gib * 2.0**30
    rows["time_us"] = rows.bytes * (rows.gpus - 1) / rows.gpus / (rows.busbw * 1e3)
    return rows


def rack_errors(rows, base, factor):
    """log(measured / predicted) of such rows; `base`: measured or derived knots by GPU count."""
    predicted = [piecewise.evaluate(*fast_rise(base[gpus], gpus, factor), size)
                 for gpus, size in zip(rows.gpus, rows.bytes)]
    return np.log(rows.time_us.to_numpy() / np.array(predicted, float))


def choose_factor(rows, base):
    """Least squares of the relative error."""
    return float(min(FACTORS, key=lambda each: np.sum(rack_errors(rows, base, each)**2)))


def rack_held_out(rows, base):
    """The errors of each row with its run, then with its GPU count left out of the choice; and its run."""
    found, runs = [], []
    for key in ("run", "gpus"):
        for each in sorted(rows[key].unique()):
            factor = choose_factor(rows[rows[key] != each], base)
            found.append(rack_errors(rows[rows[key] == each], base, factor))
            runs.append(rows[rows[key] == each].run)
    return np.concatenate(found), np.concatenate(runs)


def hidden(sizes, times, octaves, tolerance):
    """(octaves beyond, log(measured / predicted)) with the last `octaves` sizes hidden."""
    keep = len(sizes) - octaves
    knots = slow_rise(piecewise.fit(sizes[:keep], times[:keep], tolerance), sizes[-1])
    predicted = piecewise.evaluate(*knots, sizes[keep:])
    return list(zip(range(1, octaves + 1), np.log(times[keep:] / predicted)))
