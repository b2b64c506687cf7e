"""Smooth corrections of the tile model: grids over two variables each."""
import numpy as np
from scipy import sparse

from tools.fit import interpolation
from tools.fit.attention.tiles import KV_KNOTS, tiling

SEQUENCE_KNOTS = np.log2([1, 16, 32, 64, 128, 256, 512, 1024, 1536, 2048, 4096, 8192, 16384])
FEW_SEQUENCES = np.log2([1, 16, 128, 512, 1024, 4096, 16384])
HEAD_KNOTS = np.arange(0, 15, 1.0)
GROUP_KNOTS = np.array([0, 1, 2, 3, 4, 6.0])
FOOTPRINT_KNOTS = np.array([-6, -4, -2, -1, -0.5, 0, 0.5, 1, 2, 4, 6])
TERMS = (("log2_sequence", SEQUENCE_KNOTS, "log2_tile_heads", HEAD_KNOTS),
         ("log2_sequence", FEW_SEQUENCES, "log2_group", GROUP_KNOTS),
         ("log2_footprint", FOOTPRINT_KNOTS, "log2_kv_heads", KV_KNOTS))
SMOOTHNESS, SHRINKAGE, ROBUST_SCALE = 0.3, 0.1, 0.04


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
    return np.hstack([interpolation.dense_product((known[x], known[y]), (x_knots, y_knots))
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
