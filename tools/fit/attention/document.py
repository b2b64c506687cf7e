"""The curve objects of profile documents: fits with their held-out errors, sources and notes."""
import numpy as np

from tools.fit import common
from tools.fit.attention.corrections import TERMS
from tools.fit.attention.fitted import describe, fit, held_out
from tools.fit.attention.head_sizes import donor_models, other_head_size
from tools.fit.attention.sweeps import DTYPES, SOURCE, TABLES, kernel_of, load
from tools.fit.attention.tiles import FIT_POINTS, Machine

# Errors (median, 90th percentile) that are asked of a table, and of others.
BARS = {"a100": (0.02, 0.07)}
GOAL = (0.03, 0.10)
NOTES = {
    "bf16": "forward; the measured call also writes keys and values to the cache. Backward = "
            "2.5 x forward by FLOPs (assumed). Longer sequences and more heads by tile count.",
    "fp8": "forward, queries in bf16, keys and values in an FP8 cache; the measured call also casts "
           "and writes them. Backward = 2.5 x forward by FLOPs (assumed). Longer sequences and more "
           "heads by tile count."}


def curve(rows, table, head_dim, device, dtype="bf16"):
    """(curve object, measured, held-out predictions) of one head size."""
    rows = rows[rows.head_dim == head_dim].reset_index(drop=True)
    machine = Machine(table, device, head_dim, TERMS)
    points = FIT_POINTS if table in common.BLACKWELL or dtype != "bf16" else None
    predicted = held_out(rows, machine, points)
    heads = rows.batch * rows.heads
    result = {
        "op": "attention", "params": {"dtype": dtype, "causal": True, "head_dim": int(head_dim)},
        **describe(fit(rows, machine, points), machine),
        "valid": {"sequence": [1, int(rows.sequence.max())], "batch_heads": [1, int(heads.max())],
                  "kv_heads": [1, int(rows.kv_heads.max())]},
        "residual": common.residual(rows.time_us, predicted, method=common.METHOD),
        "origin": "published",
        "source": f"{SOURCE}: {table.upper()}, {kernel_of(rows, table)}",
        "note": NOTES[dtype],
    }
    return result, rows.time_us.to_numpy(), predicted


def measured_curves(data, profile, devices, dtype):
    table = TABLES[profile]
    rows = load(data, table, dtype)
    found, measured, predicted = [], [], []
    for head_dim in sorted(rows.head_dim.unique()):
        result, real, unseen = curve(rows, table, head_dim, devices[profile], dtype)
        found.append(result)
        measured.append(real)
        predicted.append(unseen)
    what = "all head sizes" if dtype == "bf16" else f"{dtype} cache, all head sizes"
    checks = [common.check(what, np.concatenate(measured), np.concatenate(predicted),
                           *BARS.get(table, GOAL))]
    found[0]["residual"]["checks"] = checks
    return found


def curves(data, profile, devices, dtypes=None):
    """The curves of these data types; all that the tables hold if None."""
    held = ("bf16",) if profile == "a100-sxm-80gb" else tuple(DTYPES)
    chosen = [each for each in held if dtypes is None or each in dtypes]
    found = [each for dtype in chosen for each in measured_curves(data, profile, devices, dtype)]
    if profile == "a100-sxm-80gb" and chosen:
        donors = donor_models(data, devices, (64, 128, 192, 256))
        own = next(each for each in found if each["params"]["head_dim"] == 128)
        found += [other_head_size(own, donors, size) for size in (64, 192, 256)]
    return found
