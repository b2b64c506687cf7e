"""Smooth corrections of the tile model: a grid over log2 (m, n, k), and over two variables of the waves
of one tile shape each."""
import numpy as np
from scipy import sparse
from scipy.linalg import block_diag

from tools.fit import common, interpolation
from tools.fit.gemm import sweeps

HOPPER_GRID = ([0, 5, 7, 8, 10, 12, 15], [5, 7, 9, 11, 13, 16], [5, 7, 9, 11, 13, 16])
GRIDS = {"a100": ([0, 1, 3, 5, 7, 9, 11, 15], [5, 7, 9, 11, 13, 16], [5, 6, 7, 9, 11, 13, 16]),
         "h100": HOPPER_GRID, "h200": HOPPER_GRID}
IDLE, WAVES, K = "log2_idle", "log2_waves", "log2_k"
IDLE_KNOTS = [0, 0.15, 0.4, 0.8, 1.6]
WAVE_KNOTS = [-6, -3, -1.5, -0.5, 0, 0.5, 1, 1.6, 2.3, 3.3, 5]
FEW_WAVE_KNOTS = [-6, -4, -2.5, -1.5, -0.7, 0, 0.7, 1.5, 2.5, 4]
K_KNOTS = [5, 6.5, 8, 9, 10, 11, 12.5, 14, 16]
HOPPER_TERMS = (((128, 256), IDLE, WAVES), ((256, 192), IDLE, WAVES), ((192, 192), IDLE, WAVES),
                ((128, 256), WAVES, K))
TERMS = {"a100": (((64, 64), WAVES, K), ((128, 64), WAVES, K)),
         "h100": HOPPER_TERMS, "h200": HOPPER_TERMS}
# Pairs of SMs share a tile of 256 x 256 on Blackwell.
MORE_TERMS = (((128, 256), IDLE, WAVES), ((256, 256), IDLE, WAVES), ((256, 128), IDLE, WAVES),
              ((256, 256), WAVES, K))
SMOOTHNESS, SHRINKAGE, TERM_SHRINKAGE = 10.0, 0.01, 3.0
MORE_SMOOTHNESS = 3.0
# What a term counts for: as far as a product waits for its tiles. Beside memory their waves are
# hidden, and a term that was fitted to long products would be wrong by up to 40 % there.
COMPUTE_SHARE = "compute_share"


def grids(sweep):
    return GRIDS.get(sweep, HOPPER_GRID)


def terms_of(sweep):
    return TERMS.get(sweep, MORE_TERMS)


def wave_variables(rows, tile, sms):
    """What a correction may depend on: of one tile shape, log2 of whole waves over the work in
    them and of the waves; log2 k."""
    m, n, k = (rows[name].to_numpy(float) for name in "mnk")
    waves = np.ceil(m / tile[0]) * np.ceil(n / tile[1]) / sms
    idle = np.log2(np.ceil(waves) * sms * tile[0] * tile[1] / (m * n))
    return {IDLE: idle, WAVES: np.log2(waves), K: np.log2(k)}


def empty_corrections(sweep):
    """The correction terms as the document carries them, without values."""
    terms = []
    for tile, x, y in terms_of(sweep):
        few = x == WAVES
        knots = {IDLE: IDLE_KNOTS, WAVES: FEW_WAVE_KNOTS if few else WAVE_KNOTS, K: K_KNOTS}
        terms.append({"rows": tile[0], "columns": tile[1], "weight": COMPUTE_SHARE, "x": x, "y": y,
                      "x_knots": knots[x], "y_knots": knots[y]})
    return {**{f"{name}_knots": list(axis) for name, axis in zip("mnk", grids(sweep))},
            "terms": terms}


def design(rows, corrections, sms, compute_share):
    """[points, knots] weights of the grid, then of each term. `compute_share` [points]: of the time,
    what its memory does not explain."""
    logs = [np.log2(rows[name].to_numpy(float)) for name in "mnk"]
    blocks = [interpolation.product(logs, [corrections[f"{name}_knots"] for name in "mnk"])]
    for term in corrections["terms"]:
        known = wave_variables(rows, (term["rows"], term["columns"]), sms)
        block = interpolation.product((known[term["x"]], known[term["y"]]),
                                      (term["x_knots"], term["y_knots"]))
        weighed = term.get("weight") == COMPUTE_SHARE
        blocks.append(block.multiply(compute_share[:, None]).tocsr() if weighed else block)
    return sparse.hstack(blocks).tocsr()


def penalty(sweep):
    """The quadratic form that keeps neighbouring knots close and all of them small."""
    sizes = [len(axis) for axis in grids(sweep)]
    whole = int(np.prod(sizes))
    form = SHRINKAGE * np.eye(whole)
    for axis, size in enumerate(sizes):
        rise = np.diff(np.eye(size), axis=0)
        pieces = [np.eye(each) for each in sizes]
        pieces[axis] = rise.T @ rise
        smoothness = SMOOTHNESS if sweeps.of_first_kind(sweep) else MORE_SMOOTHNESS
        form += smoothness * np.kron(np.kron(pieces[0], pieces[1]), pieces[2])
    others = sum(len(term["x_knots"]) * len(term["y_knots"])
                 for term in empty_corrections(sweep)["terms"])
    return block_diag(form, TERM_SHRINKAGE * np.eye(others))


def fit_corrections(weights_of, rows, errors, sweep):
    """Knot values from log errors: penalised least absolute deviations, by reweighting.
    `weights_of` is the rows' `design`."""
    form, weight = penalty(sweep), sweeps.importance(rows)
    values = np.zeros(weights_of.shape[1])
    for _ in range(7 if sweeps.of_first_kind(sweep) else 5):
        trust = common.trust(errors - weights_of @ values, weight)
        normal = (weights_of.T @ weights_of.multiply(trust[:, None]).tocsr()).toarray()
        values = np.linalg.solve(normal + form, weights_of.T @ (trust * errors))
    return np.round(values, 5)


def values_of(curve):
    """The correction values of a curve object, as `design` orders them."""
    corrections = curve["corrections"]
    return np.concatenate([corrections["values"]]
                          + [term["values"] for term in corrections["terms"]])
