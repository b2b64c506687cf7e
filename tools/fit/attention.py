"""Causal prefill attention, keys and values cached in bf16 or fp8, from published sweeps
(attention_*.csv.gz).

A model of FlashAttention's tiles (sim/profile/kernels/attention_curve.hpp says the physics) fitted in log
time, then a few small smooth corrections on coarse grids."""
import numpy as np
import pandas as pd
from scipy import sparse
from scipy.optimize import least_squares

from tools.fit import common, interpolation

TABLES = {"a100-sxm-80gb": "a100", "h100-sxm": "h100", "h200-sxm": "h200", "b200-sxm": "b200",
          "b300-sxm": "b300", "gb200": "gb200", "gb300": "gb300"}
BARS = {"a100": (0.02, 0.07)}
GOAL = (0.03, 0.10)
# Data types of the cached keys and values, as curves and as tables name them.
DTYPES = {"bf16": "bfloat16", "fp8": "fp8"}
SOURCE = "vLLM attention sweep of ai-dynamo/aiconfigurator (Apache-2.0)"
KERNELS = {"vllm_flash_attn_fa3": "FlashAttention-3", "vllm_flash_attn_fa4": "FlashAttention-4",
           "vllm_flashinfer_trtllmprefill": "FlashInfer (TensorRT-LLM)", "vllm_triton_attn": "Triton"}
# Query rows of a tile by head size (FlashAttention-3's hopper/tile_size.h; FlashAttention-2 has 128
# at head size 128); keys are counted in tiles of 128 throughout.
TILE_ROWS = {64: 192}
# Blackwell's kernels work on two tiles of 128 rows at once; fits with 128 are worse.
BLACKWELL_ROWS = 256
TILE_KEYS = 128
# FlashAttention-3 packs the query heads of a group into one tile; FlashAttention-2 does so only for
# a single query token, where it also pays a copy if neither batch nor groups are 1.
PACKS = {"h100": "always", "h200": "always"}  # of others: single-token
# Of Blackwell's and of fp8's sweeps the tile model takes these many points and steps; the grids take
# all points.
FIT_POINTS, FIT_STEPS = 1200, 25
SHAPE = ["batch", "sequence", "heads", "kv_heads", "head_dim"]

KV_KNOTS = np.log2([1, 2, 4, 8, 16, 32, 64])
SEQUENCE_KNOTS = np.log2([1, 16, 32, 64, 128, 256, 512, 1024, 1536, 2048, 4096, 8192, 16384])
FEW_SEQUENCES = np.log2([1, 16, 128, 512, 1024, 4096, 16384])
HEAD_KNOTS = np.arange(0, 15, 1.0)
GROUP_KNOTS = np.array([0, 1, 2, 3, 4, 6.0])
FOOTPRINT_KNOTS = np.array([-6, -4, -2, -1, -0.5, 0, 0.5, 1, 2, 4, 6])
TERMS = (("log2_sequence", SEQUENCE_KNOTS, "log2_tile_heads", HEAD_KNOTS),
         ("log2_sequence", FEW_SEQUENCES, "log2_group", GROUP_KNOTS),
         ("log2_footprint", FOOTPRINT_KNOTS, "log2_kv_heads", KV_KNOTS))
SMOOTHNESS, SHRINKAGE, ROBUST_SCALE = 0.3, 0.1, 0.04

PARAMETERS = ("launch_us", "tile_us", "block_us", "bytes_per_us", "floor_power", "overlap_power",
              "single_token_copy_us")
START = np.log([10, 1.0, 0.5, 1.5e6, 1.5, 2, 5])
LOWEST = np.log([3, 0.05, 0.01, 2e5, 1, 1, 0.01])
HIGHEST = np.log([30, 50, 10, 2e7, 8, 8, 20])


class Machine:
    """What the tile model must know of a GPU and of the kernels that ran on it."""

    def __init__(self, table, device, head_dim):
        self.sms = device["sms"]["value"]
        self.l2_bytes = device["l2_bytes"]["value"]
        self.packs = PACKS.get(table, "single-token")
        self.tile_rows = (BLACKWELL_ROWS if table in common.BLACKWELL else 128 if table == "a100"
                          else TILE_ROWS.get(head_dim, 128))
        self.terms = TERMS


def load(data, table, dtype="bf16"):
    """One row per shape (medians of repeats): keys and values cached in `dtype`, no window."""
    rows = pd.read_csv(data / f"attention_{table}.csv.gz")
    rows = rows[rows.kv_cache_dtype == DTYPES[dtype]]
    if "window_size" in rows:
        rows = rows[rows.window_size == 0]
    rows = rows.rename(columns={"batch_size": "batch", "isl": "sequence", "num_heads": "heads",
                                "num_key_value_heads": "kv_heads"})
    rows["time_us"] = 1e3 * rows.latency_ms
    rows = rows.groupby(SHAPE).agg(time_us=("time_us", "median"),
                                   kernel=("kernel_source", "first")).reset_index()
    return rows


def tiling(rows, machine):
    """(groups of query rows, query tiles of one group, key tiles of a whole sequence)."""
    sequence, group = rows.sequence.to_numpy(float), (rows.heads // rows.kv_heads).to_numpy()
    packed = (sequence == 1) | (machine.packs == "always")
    query_rows = np.where(packed, sequence * group, sequence)
    groups = rows.batch.to_numpy() * np.where(packed, rows.kv_heads, rows.heads)
    return groups, np.ceil(query_rows / machine.tile_rows), np.ceil(sequence / TILE_KEYS)


def physics(logs, rows, machine):
    """Microseconds of the tile model; `logs` are the logarithms of PARAMETERS, then of the cache
    write per token at KV_KNOTS."""
    launch, tile, block, rate, floor_power, overlap, copy = np.exp(logs[:len(PARAMETERS)])
    groups, query_tiles, key_tiles = tiling(rows, machine)
    tokens = (rows.batch * rows.sequence).to_numpy(float)
    average = groups * query_tiles * (tile * (key_tiles + 1) / 2 + block) / machine.sms
    longest = tile * key_tiles + block
    compute = (average**4 + longest**4) ** 0.25
    row_bytes = 2 * rows.head_dim.to_numpy() * (2 * rows.heads + 2 * rows.kv_heads).to_numpy()
    memory = tokens * row_bytes / rate
    by_heads = interpolation.product([np.log2(rows.kv_heads)], [KV_KNOTS]).toarray()
    cache = tokens * np.exp(by_heads @ logs[len(PARAMETERS):])
    core = (compute**overlap + memory**overlap) ** (1 / overlap) + cache
    copied = ((rows.sequence == 1) & (rows.heads > rows.kv_heads) & (rows.kv_heads > 1)
              & (rows.batch > 1)).to_numpy()
    extra = np.where(copied & (machine.packs == "single-token"), copy, 0.0)
    return (launch**floor_power + core**floor_power) ** (1 / floor_power) + extra


def fit_physics(rows, machine, points=None):
    if points is not None:
        rows = common.sample(rows, points)
    target = np.log(rows.time_us.to_numpy())
    bounds = (np.append(LOWEST, np.full(len(KV_KNOTS), -14)),
              np.append(HIGHEST, np.full(len(KV_KNOTS), 0)))
    start = np.append(START, np.full(len(KV_KNOTS), np.log(1e-3)))
    found = least_squares(lambda logs: np.log(physics(logs, rows, machine)) - target, start,
                          loss="soft_l1", f_scale=0.03, bounds=bounds,
                          max_nfev=None if points is None else FIT_STEPS)
    return found.x


def variables(rows, machine):
    groups, query_tiles, _ = tiling(rows, machine)
    unpacked_tiles = np.ceil(rows.sequence.to_numpy(float) / machine.tile_rows)
    footprint = (2.0 * rows.head_dim * rows.batch * rows.sequence
                 * (2 * rows.heads + 4 * rows.kv_heads)).to_numpy(float)
    return {"log2_sequence": np.log2(rows.sequence.to_numpy(float)),
            "log2_tile_heads": np.log2(groups * query_tiles / unpacked_tiles),
            "log2_group": np.log2((rows.heads // rows.kv_heads).to_numpy(float)),
            "log2_kv_heads": np.log2(rows.kv_heads.to_numpy(float)),
            "log2_footprint": np.log2(footprint / machine.l2_bytes)}


def design(rows, machine):
    """[points, all grid knots] weights of the correction terms."""
    known = variables(rows, machine)
    return np.hstack([interpolation.product((known[x], known[y]), (x_knots, y_knots)).toarray()
                      for x, x_knots, y, y_knots in machine.terms])


def penalty(terms):
    """The quadratic form that keeps the corrections smooth and small."""
    size = sum(len(x_knots) * len(y_knots) for _, x_knots, _, y_knots in terms)
    form, start = np.zeros((size, size)), 0
    for _, x_knots, _, y_knots in terms:
        across = np.kron(interpolation.bends(x_knots), np.eye(len(y_knots)))
        along = np.kron(np.eye(len(x_knots)), interpolation.bends(y_knots))
        width = len(x_knots) * len(y_knots)
        form[start:start + width, start:start + width] = (
            SMOOTHNESS**2 * (across.T @ across + along.T @ along) + SHRINKAGE**2 * np.eye(width))
        start += width
    return form


def fit_corrections(rows, machine, errors):
    """Grid values from log errors: penalised least squares, reweighted towards least absolutes."""
    weights_of, form = sparse.csr_matrix(design(rows, machine)), penalty(machine.terms)
    trust = np.ones(len(rows))
    for _ in range(6):
        weighted = weights_of.multiply(trust[:, None]).tocsr()
        values = np.linalg.solve((weights_of.T @ weighted).toarray() + form,
                                 weights_of.T @ (trust * errors))
        trust = 1 / np.sqrt(1 + ((errors - weights_of @ values) / ROBUST_SCALE) ** 2)
    return values


def fit(rows, machine, points=None):
    """(physics logs, correction values), rounded as the document carries them; the tile model of at
    most `points` of the rows."""
    logs = fit_physics(rows, machine, points)
    logs = np.append(np.log([float(f"{each:.6g}") for each in np.exp(logs[:len(PARAMETERS)])]),
                     np.round(logs[len(PARAMETERS):], 5))
    errors = np.log(rows.time_us.to_numpy() / physics(logs, rows, machine))
    return logs, np.round(fit_corrections(rows, machine, errors), 5)


def predict(model, rows, machine):
    logs, values = model
    return physics(logs, rows, machine) * np.exp(design(rows, machine) @ values)


def held_out(rows, machine, points=None):
    return common.held_out(rows, SHAPE, lambda known: fit(known, machine, points),
                           lambda model, unseen: predict(model, unseen, machine))


def describe(model, machine):
    """The model part of the curve object."""
    logs, values = model
    entries = dict(zip(PARAMETERS, (float(f"{np.exp(each):.6g}") for each in logs)))
    if machine.packs == "always":
        entries["single_token_copy_us"] = 0.0
    terms = [{"x": x, "y": y, "x_knots": x_knots.tolist(), "y_knots": y_knots.tolist()}
             for x, x_knots, y, y_knots in machine.terms]
    return {"model": "flash-tiles",
            "physics": {"sms": machine.sms, "l2_bytes": machine.l2_bytes,
                        "tile_rows": machine.tile_rows, "tile_keys": TILE_KEYS,
                        "packs_groups": machine.packs, **entries,
                        "cache_log2_kv_heads": KV_KNOTS.tolist(),
                        "cache_log_us_per_token": logs[len(PARAMETERS):].tolist()},
            "corrections": interpolation.with_values(terms, values)}


NOTES = {
    "bf16": "forward; the measured call also writes keys and values to the cache. Backward = "
            "2.5 x forward by FLOPs (assumed). Longer sequences and more heads by tile count.",
    "fp8": "forward, queries in bf16, keys and values in an FP8 cache; the measured call also casts "
           "and writes them. Backward = 2.5 x forward by FLOPs (assumed). Longer sequences and more "
           "heads by tile count."}


def kernel_of(rows, table):
    return "FlashAttention-2" if table == "a100" else KERNELS[rows.kernel.mode()[0]]


def curve(rows, table, head_dim, device, dtype="bf16"):
    """(curve object, measured, held-out predictions) of one head size."""
    rows = rows[rows.head_dim == head_dim].reset_index(drop=True)
    machine = Machine(table, device, head_dim)
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


def scaled(model, ratio):
    """A model with the time per tile row and per tile multiplied by `ratio`."""
    logs = model[0].copy()
    for name in ("tile_us", "block_us"):
        logs[PARAMETERS.index(name)] += np.log(ratio)
    return logs, model[1]


def donor_ratio(donors, head_dim):
    """Time per query row of a tile, head size `head_dim` over 128, on the donor machine."""
    def per_row(size):
        machine, (logs, _), _ = donors[size]
        return np.exp(logs[PARAMETERS.index("tile_us")]) / machine.tile_rows
    return per_row(head_dim) / per_row(128)


def law_residual(donors, head_dim):
    """The law's error on the donor machine, where the head size is known."""
    machine, model, _ = donors[128]
    _, _, rows = donors[head_dim]
    carried = scaled(model, donor_ratio(donors, head_dim))
    return common.residual(
        rows.time_us, predict(carried, rows, machine),
        method="the law on H100 itself, where the head size is known; that FlashAttention-2 keeps "
               "FlashAttention-3's ratio of head sizes is assumed")


def other_head_size(own, donors, head_dim):
    """The stated law for a head size that a machine lacks: its curve of head size 128 with the tile
    time scaled as on the donor machine, bytes counted for the new size."""
    physics, ratio = own["physics"], donor_ratio(donors, head_dim)
    return {
        **own, "params": {**own["params"], "head_dim": head_dim},
        "physics": {**physics, "tile_us": common.rounded(physics["tile_us"] * ratio, 6),
                    "block_us": common.rounded(physics["block_us"] * ratio, 6)},
        "residual": law_residual(donors, head_dim), "origin": "derived",
        "note": f"not measured on this machine: head size 128 with the tile time multiplied by "
                f"{ratio:.3f}, H100's ratio of head size {head_dim} to 128, and the bytes of the "
                "size. " + own["note"]}


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


def donor_models(data, devices, sizes):
    """{head size: (machine, model, rows)} of H100, fitted without cross-validation."""
    rows, found = load(data, "h100"), {}
    for head_dim in sizes:
        machine = Machine("h100", devices["h100-sxm"], head_dim)
        part = rows[rows.head_dim == head_dim].reset_index(drop=True)
        found[head_dim] = (machine, fit(part, machine), part)
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
