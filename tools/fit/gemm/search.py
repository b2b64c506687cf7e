"""The search for the parameters of the tile model: where it starts and its steps."""
import numpy as np

from tools.fit import common
from tools.fit.gemm import sweeps
from tools.fit.gemm.parameters import OF_KERNELS, SHARED, TILES, read, written
from tools.fit.gemm.tiles import CHUNK, Physics

# Elements of k that a tile consumes per step (Ampere's kernels: 32, Hopper's: 64), and where the
# search starts: rough figures of each machine, the same for every fold.
START = {
    "a100": {"step": 32, "peak": 270, "dram": 1.6e6, "clock": 400, "l2": 3e7, "tile_us": 1.5},
    "h100": {"step": 64, "peak": 800, "dram": 2.7e6, "clock": 700, "l2": 3e7, "tile_us": 0.8},
    "h200": {"step": 64, "peak": 800, "dram": 3.8e6, "clock": 700, "l2": 3e7, "tile_us": 0.8},
    **{table: {"step": 64, "peak": 1900, "dram": 6.5e6, "clock": 1600, "l2": 6e7, "tile_us": 0.8}
       for table in common.BLACKWELL},
}
# The share of the peak that tiles reach: by their shorter side, else by their elements.
SHORT_SIDE = {8: 0.03, 16: 0.12, 32: 0.3}
# Other data types: FLOP/s and k per step, both over those of bf16 (a step takes 128 bytes of a row of A).
FASTER = {"fp8": (1.6, 2), "fp8_block": (1.5, 2), "nvfp4": (2.6, 4)}
FIT_POINTS, FIT_STEPS = 6000, 45
MOST_POWER = 12.0  # with which times of compute and memory are joined: above it the longer one decides
# The sweeps of Blackwell and of low precision: points and steps of a search; where one starts, when
# another machine ran the same kernels, from that machine's shipped curve.
SHORT_POINTS, SHORT_STEPS, CARRIED_STEPS = 2500, 30, 12
DONORS = {"h200": "h100-sxm", "b300": "b200-sxm", "gb200": "b200-sxm", "gb300": "b200-sxm"}
PRIOR_RUN, PRIOR_CHOICE, PRIOR_SHARED = 0.05, 0.3, 0.05


def rough(sweep):
    """Where the search starts, as START has it."""
    table, dtype = common.parts(sweep)
    if dtype == "bf16":
        return START[table]
    faster, deeper = FASTER[dtype]
    known = START[table]
    return {**known, "peak": faster * known["peak"], "clock": faster * known["clock"],
            "step": deeper * known["step"]}


def carried(sweep):
    """The parameters of the machine that ran the same kernels, or None: a start that has not seen
    the sweep."""
    table, dtype = common.parts(sweep)
    known = (None if sweeps.of_first_kind(sweep)
             else common.shipped_curve(DONORS.get(table, ""), "gemm", dtype))
    return None if known is None else written(known)


def start(sweep, sms):
    """(where the search starts, how strongly each parameter is held there)."""
    known, kernels = rough(sweep), []
    for rows, columns in TILES:
        area, short = rows * columns, min(rows, columns)
        long_sides = 0.5 if area <= 4096 else 0.8 if area <= 8192 else 0.9 if area <= 16384 else 1.0
        efficiency = SHORT_SIDE.get(int(short), long_sides)
        step_us = 2 * area * known["step"] / (known["peak"] * 1e6 / sms) / efficiency
        kernels.append([np.log(step_us), np.log(known["tile_us"]), 0, 0, 0, 0])
    shared = [2.1, known["dram"], 2.2 * known["dram"], known["l2"], 6, 2, 2, 1e-6, 20, 0.5, 0.06,
              300, known["clock"], 2, 1e-6, 6]
    if common.parts(sweep)[1] != "bf16":  # reads 2 bytes of each element, writes one
        shared.append(3 / known["dram"])
    held = [PRIOR_RUN] * 3 + [PRIOR_CHOICE] * 3
    return (np.append(np.ravel(kernels), np.log(shared)),
            np.append(np.tile(held, len(TILES)), np.full(len(shared), PRIOR_SHARED)))


def fit_physics(rows, sweep, sms):
    """Least absolute deviations in log time by damped, reweighted Gauss-Newton steps."""
    first = sweeps.of_first_kind(sweep)
    points, steps = (FIT_POINTS, FIT_STEPS) if first else (SHORT_POINTS, SHORT_STEPS)
    rows = common.sample(rows, points)
    # Single precision is five times as fast, and enough to find where to go next.
    number = np.float64 if first else np.float32
    models = [Physics(rows.iloc[at:at + CHUNK], sms, rough(sweep)["step"],
                      sweeps.element_bytes(sweep), number) for at in range(0, len(rows), CHUNK)]
    target, weight = np.log(rows.time_us.to_numpy()), sweeps.importance(rows)
    origin, held = start(sweep, sms)
    cost = lambda errors, at: (weight * np.abs(errors)).sum() + (held * (at - origin) ** 2).sum()
    parameters, damping = carried(sweep), 1.0
    power = OF_KERNELS + SHARED.index("overlap_power")
    if parameters is None:
        parameters = origin
    else:
        steps = CARRIED_STEPS
    for _ in range(steps):
        value, slope = map(np.concatenate, zip(*(each.gradient(parameters) for each in models)))
        errors = target - value
        best, trust = cost(errors, parameters), common.trust(errors, weight)
        normal = (slope * trust[:, None]).T @ slope
        right = slope.T @ (trust * errors) + 2 * held * (origin - parameters)
        for _ in range(8):
            system = normal + np.diag(damping * np.diag(normal) + 2 * held)
            trial = parameters + np.clip(np.linalg.solve(system, right), -0.5, 0.5)
            trial[power] = min(trial[power], np.log(MOST_POWER - 1))
            with np.errstate(all="ignore"):
                tried = np.concatenate([each.predict(*read(trial)) for each in models])
                found = cost(target - tried, trial)
            if np.isfinite(found) and found < best:
                break
            damping *= 3
        else:
            break
        parameters, damping = trial, max(damping / 3, 1e-4)
        if best - found < 1e-4 * best:
            break
    return np.round(parameters, 6)
