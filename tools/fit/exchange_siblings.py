"""Siblings before laws: a machine with the NVLink generation and switch of a measured one takes that
machine's curve as prior, scaled by half the ratio of the two at the GPU counts that both have, size by
size and smoothed. Half: a ratio at 2 or 4 GPUs carries over to 8 in part only, and the noise of both
machines is in it (python3 -m tools.fit.exchange_errors prints the errors).
"""
import itertools

import numpy as np

from tools.fit import piecewise

SHRINK = 0.5
SMOOTHING = 2.0  # sizes, the standard deviation of a Gaussian
# Runs whose NCCL is the same, whatever their folder is named: the version that they record.
RECORDED = {("b200_sxm", "2.27.3"): "2.29.2", ("gb200", "2.23"): "2.29.2",
            ("h100_sxm", "2.27.3"): "2.29.2", ("h200_sxm", "2.26.2"): "2.29.2"}


def recorded(system, nccl):
    return RECORDED.get((system, nccl), nccl)


def smoothed(values):
    reach = 4
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / SMOOTHING)**2)
    return np.convolve(np.pad(values, reach, mode="edge"), weights / weights.sum(), "valid")


def log_time(curve, sizes):
    """log of the time of a curve (sizes, times), straight in log-log."""
    return np.interp(np.log(sizes), np.log(curve[0]), np.log(curve[1]))


def pooled(curves, sizes):
    """Geometric mean of curves (sizes, times) at `sizes`, in logs."""
    return np.mean([log_time(each, sizes) for each in curves], axis=0)


def predict(own, donors, gpus):
    """(sizes, times) among `gpus`. `own`, `donors`: runs, each {GPU count: (sizes, times)}; a donor
    run has `gpus`, an own one only fewer."""
    having = [run for run in donors if gpus in run]
    sizes = max((run[gpus][0] for run in having), key=len)
    prior = pooled([run[gpus] for run in having], sizes)
    common_counts = sorted(count for count in own[0] if count < gpus and all(
        count in run for run in itertools.chain(own, having)))
    ratios = [pooled([run[count] for run in own], sizes) -
              pooled([run[count] for run in having], sizes) for count in common_counts]
    ratio = smoothed(np.mean(ratios, axis=0)) if ratios else np.zeros(len(sizes))
    return sizes, piecewise.non_decreasing(np.exp(prior + SHRINK * ratio))
