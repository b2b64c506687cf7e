"""The search for the parameters of the tile model: where it starts and its steps."""
import numpy as np
from scipy.optimize import least_squares

from tools.fit import common
from tools.fit.expert_ffn.sweeps import of_first_kind
from tools.fit.expert_ffn.tiles import STEP, figures, log_physics, tiles_of

START = {"a100": (100, 1.5e6), "h100": (550, 2.6e6),  # TFLOP/s, DRAM bytes/us
         **{table: (1300, 6.5e6) for table in common.BLACKWELL}}
FASTER = {"bf16": 1.0, "fp8": 1.6, "fp8_block": 1.5, "nvfp4": 2.6, "mxfp4": 1.6}
FIT_POINTS, FIT_STEPS = 3000, 40
SHORT_POINTS, SHORT_STEPS = 1500, 25  # of the sweeps of Blackwell and of low precision


def start(sweep, sms):
    table, dtype = common.parts(sweep)
    peak, dram = START[table]
    tiles = tiles_of(sweep)
    steps = np.log(2 * tiles.prod(1) * STEP / (FASTER[dtype] * peak * 1e6 / sms)
                   / np.minimum(1, tiles[:, 0] / 64 + 0.25))
    kernels = np.stack([steps, np.zeros(len(tiles)), np.zeros(len(tiles))], 1)
    return np.append(kernels.ravel(), np.log([12, dram, 2, 15, 2 * dram, 0.05]))


def fit_physics(rows, sweep, sms):
    points, steps = ((FIT_POINTS, FIT_STEPS) if of_first_kind(sweep)
                     else (SHORT_POINTS, SHORT_STEPS))
    rows = common.sample(rows, points)
    target, origin, tiles = np.log(rows.time_us.to_numpy()), start(sweep, sms), tiles_of(sweep)
    # The last residuals hold the parameters near their start where the data say nothing.
    errors = lambda at: np.append(log_physics(rows, *figures(at, sweep), sms, tiles) - target,
                                  0.02 * (at - origin))
    found = least_squares(errors, origin, loss="soft_l1", f_scale=0.05, max_nfev=steps,
                          bounds=(origin - 4, origin + 4))
    return np.round(found.x, 6)
