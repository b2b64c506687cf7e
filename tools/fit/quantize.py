"""Casting activations to FP8 with a scale per row, from published sweeps (quantize_*.csv.gz): time over
rows and their length. The tables hold the time of a cast that finds its scales less that of one with
a known scale, which the sweeps of matrix products contain."""
import numpy as np
import pandas as pd

from tools.fit import common, interpolation

TABLES = {"h100-sxm": "h100", "h200-sxm": "h200", "b200-sxm": "b200", "b300-sxm": "b300",
          "gb200": "gb200", "gb300": "gb300"}
SOURCE = ("FP8 quantisation sweep (vLLM, dynamic per-token less static) of ai-dynamo/aiconfigurator "
          "(Apache-2.0)")
M_KNOTS = np.array([0, 7, 8, 9, 10, 11, 12, 13, 14, 15.0])
K_KNOTS = np.array([5, 6, 7, 8, 9, 10, 11, 11.6, 12, 12.6, 13, 13.6, 14, 15.6, 16])
SMOOTHNESS, SHRINKAGE, ROBUST_SCALE = 0.3, 0.01, 0.04
# A difference of two times of microseconds: rows below this are noise about nought.
LEAST_US = 0.05


def load(data, table):
    rows = pd.read_csv(data / f"quantize_{table}.csv.gz")
    rows = rows.assign(time_us=1e3 * rows.latency_ms)
    return rows[rows.time_us > LEAST_US][["m", "k", "time_us"]].reset_index(drop=True)


def design(rows):
    return interpolation.dense_product((np.log2(rows.m), np.log2(rows.k)), (M_KNOTS, K_KNOTS))


def fit(rows):
    """Grid values of log microseconds: penalised least squares towards least absolutes."""
    weights_of, target = design(rows), np.log(rows.time_us.to_numpy())
    across = np.kron(interpolation.bends(M_KNOTS), np.eye(len(K_KNOTS)))
    along = np.kron(np.eye(len(M_KNOTS)), interpolation.bends(K_KNOTS))
    form = (SMOOTHNESS**2 * (across.T @ across + along.T @ along)
            + SHRINKAGE**2 * np.eye(weights_of.shape[1]))
    trust = np.ones(len(rows))
    for _ in range(6):
        values = np.linalg.solve(weights_of.T @ (weights_of * trust[:, None]) + form,
                                 weights_of.T @ (trust * target))
        trust = 1 / np.sqrt(1 + ((target - weights_of @ values) / ROBUST_SCALE) ** 2)
    return np.round(values, 5)


def held_out(rows):
    return common.held_out(rows, ["m", "k"], fit,
                           lambda values, unseen: np.exp(design(unseen) @ values))


def evaluate(curve, m, k):
    """Microseconds of a curve object; beyond the last knots by the elements."""
    grid = curve["surface"]
    x_knots, y_knots = grid["x_knots"], grid["y_knots"]
    at = lambda size, knots: interpolation.dense_product([[np.log2(size)]], [knots])[0]
    values = np.array(grid["values"]).reshape(len(x_knots), len(y_knots))
    beyond = max(m / 2 ** x_knots[-1], 1.0) * max(k / 2 ** y_knots[-1], 1.0)
    return float(np.exp(at(m, x_knots) @ values @ at(k, y_knots)) * beyond)


def curve(data, profile):
    table = TABLES[profile]
    rows = load(data, table)
    predicted = held_out(rows)
    large = (rows.time_us > 10).to_numpy()
    return {
        "op": "quantize", "params": {"dtype": "fp8", "scale": "row"}, "model": "size-surface",
        "surface": {"x": "log2_m", "y": "log2_k", "x_knots": M_KNOTS.tolist(),
                    "y_knots": K_KNOTS.tolist(), "values": fit(rows).tolist()},
        "valid": {name: [int(rows[name].min()), int(rows[name].max())] for name in "mk"},
        "residual": {**common.residual(rows.time_us, predicted, method=common.METHOD),
                     "checks": [common.check("fp8, all sizes", rows.time_us, predicted),
                                common.check("fp8, above 10 us", rows.time_us[large],
                                             predicted[large])]},
        "origin": "published", "source": f"{SOURCE}: {table.upper()}",
        "note": "bf16 to FP8 with a scale per row of A[m, k], beyond what a cast with a known scale "
                "takes, which the curves of fp8 products contain: a difference of two measured times, "
                "below a microsecond mostly noise. Log time over log m and log k; beyond the largest "
                "sizes by the elements.",
    }


def curves(data, profile, devices, dtypes=None):
    wanted = profile in TABLES and (dtypes is None or "fp8" in dtypes)
    return [curve(data, profile)] if wanted else []
