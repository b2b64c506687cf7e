"""Causal prefill attention in bf16, from published sweeps (attention_{a100,h100,h200}.csv.gz).

A model of FlashAttention's tiles (sim/profile/attention_curve.hpp says the physics) fitted in log
time, then a few small smooth corrections on coarse grids."""
import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from tools.fit import common

TABLES = {"a100-sxm-80gb": "a100", "h100-sxm": "h100", "h200-sxm": "h200"}
BARS = {"a100": (0.02, 0.07), "h100": (0.03, 0.10), "h200": (0.03, 0.10)}
SOURCE = "vLLM attention sweep of ai-dynamo/aiconfigurator (Apache-2.0)"
KERNELS = {"a100": "FlashAttention-2", "h100": "FlashAttention-3", "h200": "FlashAttention-3"}
TILE_ROWS = 128
FOLDS = 5
METHOD = f"seeded {FOLDS}-fold, all rows of a shape held out together"
SHAPE = ["batch", "sequence", "heads", "kv_heads", "head_dim"]

KV_KNOTS = np.log2([1, 2, 4, 8, 16, 32, 64])
SEQUENCE_KNOTS = np.log2([1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384])
FEW_SEQUENCES = np.log2([1, 16, 128, 512, 1024, 4096, 16384])
HEAD_KNOTS = np.arange(0, 15, 1.0)
GROUP_KNOTS = np.array([0, 1, 2, 3, 4, 6.0])
TERMS = (("log2_sequence", SEQUENCE_KNOTS, "log2_batch_heads", HEAD_KNOTS),
         ("log2_sequence", SEQUENCE_KNOTS, "log2_kv_heads", KV_KNOTS),
         ("log2_sequence", FEW_SEQUENCES, "log2_group", GROUP_KNOTS))
SMOOTHNESS, SHRINKAGE, ROBUST_SCALE = 0.3, 0.1, 0.04

PARAMETERS = ("launch_us", "tile_us", "block_us", "bytes_per_us", "floor_power", "overlap_power")
START = np.log([10, 1.0, 1.0, 1.5e6, 1.5, 2])
LOWEST = np.log([3, 0.05, 0.01, 2e5, 1, 1])
HIGHEST = np.log([30, 50, 10, 1e7, 6, 6])


def load(data, table):
    """One row per shape (medians of repeats): bf16 keys and values, no window."""
    rows = pd.read_csv(data / f"attention_{table}.csv.gz")
    rows = rows[rows.kv_cache_dtype == "bfloat16"]
    if "window_size" in rows:
        rows = rows[rows.window_size == 0]
    rows = rows.rename(columns={"batch_size": "batch", "isl": "sequence", "num_heads": "heads",
                                "num_key_value_heads": "kv_heads"})
    rows["time_us"] = 1e3 * rows.latency_ms
    return rows.groupby(SHAPE).time_us.median().reset_index()


def hats(x, knots):
    """[points, knots] weights of linear interpolation, constant beyond the knots."""
    x = np.clip(np.asarray(x, float), knots[0], knots[-1])
    low = np.clip(np.searchsorted(knots, x, side="right") - 1, 0, len(knots) - 2)
    share = (x - knots[low]) / (knots[low + 1] - knots[low])
    weights = np.zeros((len(x), len(knots)))
    weights[np.arange(len(x)), low] = 1 - share
    weights[np.arange(len(x)), low + 1] = share
    return weights


def physics(logs, rows, sms):
    """Microseconds of the tile model; `logs` are the logarithms of PARAMETERS, then of the cache
    write per token at KV_KNOTS."""
    launch, tile, block, rate, floor_power, overlap = np.exp(logs[:len(PARAMETERS)])
    sequence = rows.sequence.to_numpy(float)
    heads, tokens = (rows.batch * rows.heads).to_numpy(float), (rows.batch * rows.sequence).to_numpy()
    query_tiles = np.ceil(sequence / TILE_ROWS)
    average = heads * (tile * query_tiles * (query_tiles + 1) / 2 + block * query_tiles) / sms
    longest = tile * query_tiles + block
    compute = (average**4 + longest**4) ** 0.25
    row_bytes = 2 * rows.head_dim.to_numpy() * (2 * rows.heads + 2 * rows.kv_heads).to_numpy()
    memory = tokens * row_bytes / rate
    cache = tokens * np.exp(hats(np.log2(rows.kv_heads), KV_KNOTS) @ logs[len(PARAMETERS):])
    core = (compute**overlap + memory**overlap) ** (1 / overlap) + cache
    return (launch**floor_power + core**floor_power) ** (1 / floor_power)


def fit_physics(rows, sms):
    target = np.log(rows.time_us.to_numpy())
    bounds = (np.append(LOWEST, np.full(len(KV_KNOTS), -14)),
              np.append(HIGHEST, np.full(len(KV_KNOTS), 0)))
    start = np.append(START, np.full(len(KV_KNOTS), np.log(1e-3)))
    found = least_squares(lambda logs: np.log(physics(logs, rows, sms)) - target, start,
                          loss="soft_l1", f_scale=0.03, bounds=bounds)
    return found.x


def variables(rows):
    columns = {"log2_sequence": rows.sequence, "log2_batch_heads": rows.batch * rows.heads,
               "log2_kv_heads": rows.kv_heads, "log2_group": rows.heads // rows.kv_heads,
               "log2_batch": rows.batch}
    return {name: np.log2(column.to_numpy(float)) for name, column in columns.items()}


def design(rows):
    """[points, all grid knots] weights of the correction terms."""
    known, blocks = variables(rows), []
    for x, x_knots, y, y_knots in TERMS:
        across, along = hats(known[x], x_knots), hats(known[y], y_knots)
        blocks.append((across[:, :, None] * along[:, None, :]).reshape(len(rows), -1))
    return np.hstack(blocks)


def bends(knots):
    """[knots - 2, knots] second differences: how much a piecewise linear function bends."""
    matrix = np.zeros((len(knots) - 2, len(knots)))
    for row in range(len(knots) - 2):
        left, right = np.diff(knots[row:row + 3])
        matrix[row, row:row + 3] = 1 / left, -1 / left - 1 / right, 1 / right
    return matrix


def penalty():
    """The quadratic form that keeps the corrections smooth and small."""
    size = sum(len(x_knots) * len(y_knots) for _, x_knots, _, y_knots in TERMS)
    form, start = np.zeros((size, size)), 0
    for _, x_knots, _, y_knots in TERMS:
        across = np.kron(bends(x_knots), np.eye(len(y_knots)))
        along = np.kron(np.eye(len(x_knots)), bends(y_knots))
        width = len(x_knots) * len(y_knots)
        form[start:start + width, start:start + width] = (
            SMOOTHNESS**2 * (across.T @ across + along.T @ along) + SHRINKAGE**2 * np.eye(width))
        start += width
    return form


def fit_corrections(rows, errors):
    """Grid values from log errors: penalised least squares, reweighted towards least absolutes."""
    weights_of, form, trust = design(rows), penalty(), np.ones(len(rows))
    for _ in range(6):
        values = np.linalg.solve(weights_of.T @ (weights_of * trust[:, None]) + form,
                                 weights_of.T @ (trust * errors))
        trust = 1 / np.sqrt(1 + ((errors - weights_of @ values) / ROBUST_SCALE) ** 2)
    return values


def fit(rows, sms):
    """(physics logs, correction values), rounded as the document carries them."""
    logs = np.round(fit_physics(rows, sms), 9)
    errors = np.log(rows.time_us.to_numpy() / physics(logs, rows, sms))
    return logs, np.round(fit_corrections(rows, errors), 5)


def predict(model, rows, sms):
    logs, values = model
    return physics(logs, rows, sms) * np.exp(design(rows) @ values)


def held_out(rows, sms):
    fold = common.folds_by_group(rows[SHAPE].to_numpy(), FOLDS)
    predicted = np.empty(len(rows))
    for each in range(FOLDS):
        predicted[fold == each] = predict(fit(rows[fold != each], sms), rows[fold == each], sms)
    return predicted


def describe(model, sms):
    """The model part of the curve object."""
    logs, values = model
    entries = dict(zip(PARAMETERS, (float(f"{np.exp(each):.12g}") for each in logs)))
    corrections, start = [], 0
    for x, x_knots, y, y_knots in TERMS:
        width = len(x_knots) * len(y_knots)
        corrections.append({
            "x": x, "y": y, "x_knots": x_knots.tolist(), "y_knots": y_knots.tolist(),
            "values": [float(each) for each in values[start:start + width]]})
        start += width
    return {"model": "flash-tiles",
            "physics": {"sms": sms, "tile_rows": TILE_ROWS, **entries,
                        "cache_log2_kv_heads": KV_KNOTS.tolist(),
                        "cache_log_us_per_token": logs[len(PARAMETERS):].tolist()},
            "corrections": corrections}


def curve(rows, table, head_dim, sms):
    """(curve object, measured, held-out predictions) of one head size."""
    rows = rows[rows.head_dim == head_dim].reset_index(drop=True)
    predicted = held_out(rows, sms)
    heads = rows.batch * rows.heads
    result = {
        "op": "attention", "params": {"dtype": "bf16", "causal": True, "head_dim": int(head_dim)},
        **describe(fit(rows, sms), sms),
        "valid": {"sequence": [1, int(rows.sequence.max())], "batch_heads": [1, int(heads.max())],
                  "kv_heads": [1, int(rows.kv_heads.max())]},
        "residual": common.residual(rows.time_us, predicted, method=METHOD),
        "origin": "published",
        "source": f"{SOURCE}: {table.upper()}, {KERNELS[table]}",
        "note": "forward; the measured call also writes keys and values to the cache. Backward = "
                "2.5 x forward by FLOPs (assumed). Longer sequences and more heads by tile count.",
    }
    return result, rows.time_us.to_numpy(), predicted


def curves(data, profile, devices):
    table, sms = TABLES[profile], devices[profile]["sms"]["value"]
    rows = load(data, table)
    found, measured, predicted = [], [], []
    for head_dim in sorted(rows.head_dim.unique()):
        result, real, unseen = curve(rows, table, head_dim, sms)
        found.append(result)
        measured.append(real)
        predicted.append(unseen)
    checks = [common.check("all head sizes", np.concatenate(measured), np.concatenate(predicted),
                           *BARS[table])]
    found[0]["residual"]["checks"] = checks
    return found
