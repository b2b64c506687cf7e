"""Smooth corrections of the tile model: grids over two sizes each."""
import numpy as np
from scipy.linalg import block_diag

from tools.fit import common, interpolation

# Bilinear grids in log2, and how strongly their knots are held together and at zero.
ROWS_KNOTS = [-3, 0, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14]
TERMS = (("log2_rows_per_expert", ROWS_KNOTS, "log2_ffn", [4, 6, 7, 8, 9, 10, 11, 12, 14]),
         ("log2_rows_per_expert", ROWS_KNOTS, "log2_experts", [0, 1, 2, 3, 4, 5, 6, 7, 9]),
         ("log2_hidden", [11, 11.6, 12, 12.6, 13], "log2_ffn", [4, 6, 8, 10, 12, 14]))
SMOOTHNESS, SHRINKAGE = 3.0, 1.0


def variables(rows):
    figure = {name: rows[name].to_numpy(float) for name in ("rows", "experts", "ffn", "hidden")}
    return {"log2_rows_per_expert": np.log2(figure["rows"] / figure["experts"]),
            **{f"log2_{name}": np.log2(figure[name]) for name in ("ffn", "experts", "hidden")}}


def design(rows, corrections):
    known = variables(rows)
    return np.hstack([interpolation.dense_product((known[term["x"]], known[term["y"]]),
                                                  (term["x_knots"], term["y_knots"]))
                      for term in corrections])


def empty_corrections():
    return [{"x": x, "y": y, "x_knots": x_knots, "y_knots": y_knots}
            for x, x_knots, y, y_knots in TERMS]


def penalty():
    forms = []
    for _, x_knots, _, y_knots in TERMS:
        across, along = (np.diff(np.eye(len(knots)), axis=0) for knots in (x_knots, y_knots))
        forms.append(SMOOTHNESS * (np.kron(across.T @ across, np.eye(len(y_knots)))
                                   + np.kron(np.eye(len(x_knots)), along.T @ along))
                     + SHRINKAGE * np.eye(len(x_knots) * len(y_knots)))
    return block_diag(*forms)


def fit_corrections(rows, errors, rounds=7):
    weights_of, form = design(rows, empty_corrections()), penalty()
    values = np.zeros(weights_of.shape[1])
    for _ in range(rounds):
        trust = common.trust(errors - weights_of @ values)
        values = np.linalg.solve(weights_of.T @ (weights_of * trust[:, None]) + form,
                                 weights_of.T @ (trust * errors))
    return np.round(values, 5)
