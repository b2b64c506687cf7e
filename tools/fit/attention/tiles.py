"""The tile model (sim/profile/kernels/attention_curve.hpp says the physics) and the search for its
parameters."""
import numpy as np
from scipy.optimize import least_squares

from tools.fit import common, interpolation

# Query rows of a tile by head size (FlashAttention-3's hopper/tile_size.h; FlashAttention-2 has 128
# at head size 128); keys are counted in tiles of 128 throughout.
TILE_ROWS = {64: 192}
# Blackwell's kernels work on two tiles of 128 rows at once; fits with 128 are worse.
BLACKWELL_ROWS = 256
TILE_KEYS = 128
# FlashAttention-3 packs the query heads of a group into one tile; FlashAttention-2 does so only for
# a single query token, where it also pays a copy if neither batch nor groups are 1.
PACKS = {"h100": "always", "h200": "always"}  # others: "single-token"
PARAMETERS = ("launch_us", "tile_us", "block_us", "bytes_per_us", "floor_power", "overlap_power",
              "single_token_copy_us")
START = np.log([10, 1.0, 0.5, 1.5e6, 1.5, 2, 5])
LOWEST = np.log([3, 0.05, 0.01, 2e5, 1, 1, 0.01])
HIGHEST = np.log([30, 50, 10, 2e7, 8, 8, 20])
KV_KNOTS = np.log2([1, 2, 4, 8, 16, 32, 64])  # of the cache write per token
# How many points of the sweeps of Blackwell and of fp8 the tile model is fitted to, and in how many
# steps; the grids are fitted to all points.
FIT_POINTS, FIT_STEPS = 1200, 25


class Machine:
    """What the tile model must know of a GPU and of the kernels that ran on it, and which corrections
    (`terms`) it has."""

    def __init__(self, table, device, head_dim, terms):
        self.sms = device["sms"]["value"]
        self.l2_bytes = device["l2_bytes"]["value"]
        self.packs = PACKS.get(table, "single-token")
        self.tile_rows = (BLACKWELL_ROWS if table in common.BLACKWELL else 128 if table == "a100"
                          else TILE_ROWS.get(head_dim, 128))
        self.terms = terms


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
    by_heads = interpolation.dense_product([np.log2(rows.kv_heads)], [KV_KNOTS])
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
