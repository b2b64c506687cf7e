"""What every fit shares: names of sweeps, seeded samples and folds by group, figures as documents carry
them, and the summary of held-out errors."""
import json
from pathlib import Path

import numpy as np

SEED = 20240612
TIME_REGIONS_US = ((None, 10.0), (10.0, 100.0), (100.0, 1000.0), (1000.0, None))
MIB = 2**20
SHIPPED = Path(__file__).resolve().parents[2] / "profiles" / "hardware"
# Tables of Blackwell's machines.
BLACKWELL = ("b200", "b300", "gb200", "gb300")
# The error in log time below which least absolute deviations are least squares.
FLOOR = 0.01
FOLDS = 5
METHOD = f"seeded {FOLDS}-fold, all rows of a shape held out together"


def parts(sweep):
    """(table, data type) of a sweep's name: "b200" (bf16), "b200 fp8"."""
    table, _, dtype = sweep.partition(" ")
    return table, dtype or "bf16"


def sweep_of(table, dtype):
    """The name of a sweep: the reverse of `parts`."""
    return table if dtype == "bf16" else f"{table} {dtype}"


def shipped_curve(profile, op, dtype):
    """The curve of a shipped profile, or None."""
    path = SHIPPED / f"{profile}.json"
    found = json.loads(path.read_text())["curves"] if path.exists() else []
    return next((curve for curve in found
                 if curve["op"] == op and curve["params"]["dtype"] == dtype), None)


def sample(rows, most):
    """At most so many of the rows."""
    if len(rows) <= most:
        return rows
    return rows.iloc[np.random.default_rng(SEED).choice(len(rows), most, False)]


def folds_by_group(groups, count, seed=SEED):
    """The fold, 0..count-1, of every row: rows of one group share a fold, so that no repeat of a
    held-out shape is seen by the fit."""
    names, index = np.unique(np.asarray(groups), return_inverse=True, axis=0)
    order = np.random.default_rng(seed).permutation(len(names))
    return (order % count)[index.reshape(-1)]


def held_out(rows, shape, fit, predict, folds=FOLDS):
    """Predictions of all rows, `predict(model, rows)`, by models `fit(rows)` that have seen neither
    them nor others that agree in the columns `shape`."""
    fold = folds_by_group(rows.groupby(shape).ngroup().to_numpy(), folds)
    predicted = np.empty(len(rows))
    for each in range(folds):
        unseen = fold == each
        predicted[unseen] = predict(fit(rows[~unseen]), rows[unseen])
    return predicted


def trust(errors, weight=1.0):
    """The weights with which a step of least squares lowers the weighted absolute errors."""
    return weight / np.maximum(np.abs(errors), FLOOR)


def rounded(value, digits=4):
    """A figure as documents carry it: `digits` significant digits."""
    return float(f"{float(value):.{digits}g}")


def figure(value):
    """A parameter of a model as documents carry it."""
    return rounded(value, 12)


def label(low, high, unit):
    """\"<10us\", \"10us-100us\", \">1000us\"."""
    if low is None:
        return f"<{unit(high)}"
    return f">{unit(low)}" if high is None else f"{unit(low)}-{unit(high)}"


def microseconds(value):
    return f"{value:g}us"


def byte_text(value):
    for suffix, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:g}B"


def summary(relative):
    """The figures of one region from signed errors measured / predicted - 1."""
    relative = np.asarray(relative, dtype=float)
    absolute = np.abs(relative)
    return {
        "n": int(relative.size),
        "median_abs": rounded(np.median(absolute)),
        "p90_abs": rounded(np.quantile(absolute, 0.9)),
        "q05": rounded(np.quantile(relative, 0.05)),
        "q95": rounded(np.quantile(relative, 0.95)),
    }


def check(what, measured, predicted, bar_median=None, bar_p90=None):
    """One figure that a quality bar is set on: held-out errors of a named set of points."""
    figures = summary(np.asarray(measured, float) / np.asarray(predicted, float) - 1)
    return {"what": what, "n": figures["n"], "median_abs": figures["median_abs"],
            "p90_abs": figures["p90_abs"], "bar_median_abs": bar_median, "bar_p90_abs": bar_p90}


def residual(measured, predicted, where=None, by="time_us", regions=TIME_REGIONS_US, method="",
             fewest=20):
    """The `residual` object of a curve from held-out predictions. `where` (default: the predicted
    time, which is what a query knows) is divided into `regions`; regions with fewer than `fewest`
    points are merged into the next one."""
    measured, predicted = np.asarray(measured, float), np.asarray(predicted, float)
    relative = measured / predicted - 1
    where = predicted if where is None else np.asarray(where, float)
    unit = microseconds if by == "time_us" else byte_text
    merged, start = [], None
    for number, (low, high) in enumerate(regions):
        start = low if start is None else start
        inside = (where >= (start or 0)) & (where < (high or np.inf))
        if inside.sum() >= fewest:
            merged.append((start, high))
            start = None
        elif high is None and merged:
            merged[-1] = (merged[-1][0], None)
        elif high is None:
            merged.append((None, None))
    if merged[0][0] is not None:
        merged[0] = (None, merged[0][1])
    entries = []
    for low, high in merged:
        inside = (where >= (low or 0)) & (where < (high or np.inf))
        name = "all" if low is None and high is None else label(low, high, unit)
        entries.append({"region": name, "from": low or 0.0, "below": high, **summary(relative[inside])})
    total = summary(relative)
    return {"by": by, "n": total["n"], "median_abs": total["median_abs"],
            "p90_abs": total["p90_abs"], "method": method, "regions": entries}
