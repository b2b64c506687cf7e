"""Boosted trees on what the corrected tile model leaves over: what they ask of a product."""
import numpy as np

from tools.fit import common, trees
from tools.fit.gemm import sweeps

# Tiles whose waves the trees may ask for.
TREE_TILES = ((128, 64), (128, 128), (128, 256), (256, 256))
# Blackwell's cuBLAS chooses among more kernels than the other libraries have, down to tiles of
# 64 x 32: trees for its sweeps ask for these too, and fork by how far points lie apart (fit_medians).
MANY_KERNELS = common.BLACKWELL
MORE_TREE_TILES = ((64, 32), (256, 128))
# Their long products weigh less: GB200's scatter so much that trees spent their leaves on it. Those
# of few rows wait for memory and hardly scatter; forks by distance would pass over them.
LONG_TREE_WEIGHT, FEW_ROWS, FEW_ROWS_TREE_WEIGHT = 2.0, 128, 6.0


def tree_importance(rows, sweep):
    """As `sweeps.importance`, of what the trees fit."""
    if sweep not in MANY_KERNELS:
        return sweeps.importance(rows)
    long = rows.time_us > sweeps.LARGE_US
    return np.select([long & (rows.m <= FEW_ROWS), long],
                     [FEW_ROWS_TREE_WEIGHT, LONG_TREE_WEIGHT], 1.0)


def tree_inputs(sweep):
    """What the trees may ask of a product, as the document names it."""
    tiles = TREE_TILES + (MORE_TREE_TILES if sweep in MANY_KERNELS else ())
    sizes = [{"x": f"log2_{each}"} for each in ("m", "n", "k", "mn", "nk", "mk", "mnk", "us")]
    waves = [{"x": x, "rows": rows, "columns": columns} for rows, columns in tiles
             for x in ("log2_waves", "log2_part_wave")]
    padding = ([{"x": "log2_row_padding", "rows": rows} for rows in (64, 128, 256)]
               + [{"x": "log2_column_padding", "columns": 256}])
    return sizes + waves + padding


def tree_columns(rows, log_us, inputs, sms):
    """[points, inputs]; `log_us` is the logarithm of the model's time before the trees."""
    size = {name: rows[name].to_numpy(float) for name in "mnk"}
    found = []
    for each in inputs:
        name = each["x"].removeprefix("log2_")
        if name == "us":
            found.append(log_us / np.log(2))
            continue
        if name in ("waves", "part_wave"):
            tiles = np.ceil(size["m"] / each["rows"]) * np.ceil(size["n"] / each["columns"])
            waves = tiles / sms
            value = waves if name == "waves" else np.ceil(waves) / waves
        elif name == "row_padding":
            value = np.ceil(size["m"] / each["rows"]) * each["rows"] / size["m"]
        elif name == "column_padding":
            value = np.ceil(size["n"] / each["columns"]) * each["columns"] / size["n"]
        else:
            value = np.prod([size[letter] for letter in name], axis=0)
        found.append(np.log2(value))
    return np.stack(found, 1)


def fit_trees(rows, log_us, sweep, sms, size):
    """Trees on what is left of the times."""
    columns = tree_columns(rows, log_us, tree_inputs(sweep), sms)
    left = np.log(rows.time_us.to_numpy()) - log_us
    fit_to = trees.fit_medians if sweep in MANY_KERNELS else trees.fit
    return fit_to(columns, left, size, tree_importance(rows, sweep))
