"""The whole model of a sweep, tile model, corrections and trees: fitted, evaluated, and as a document
carries it."""
import numpy as np
import pandas as pd

from tools.fit import common, interpolation, trees
from tools.fit.gemm import boosting, sweeps
from tools.fit.gemm.corrections import design, empty_corrections, fit_corrections, grids, values_of
from tools.fit.gemm.parameters import KERNEL, SPLITS, TILES, read, written
from tools.fit.gemm.search import fit_physics, rough
from tools.fit.gemm.tiles import log_physics

BESIDE = {"fp8_block": "fp8"}  # whose tile model a sweep of long products alone takes


def of_model(parameters, rows, sweep, sms):
    """(log microseconds of the tile model, [points, knots] weights of the corrections)."""
    log_us, compute_share = log_physics(rows, *read(parameters), sms, rough(sweep)["step"],
                                        sweeps.element_bytes(sweep))
    return log_us, design(rows, empty_corrections(sweep), sms, compute_share)


def fit_beside(rows, base, sweep, sms):
    """A sweep that says nothing of short products: the tile model of `base` (the curve of another
    data type of as many bytes), and how its corrections differ, smoothly and as little as needed."""
    parameters, known = np.round(written(base), 6), values_of(base)
    log_us, weights_of = of_model(parameters, rows, sweep, sms)
    errors = np.log(rows.time_us.to_numpy()) - log_us - weights_of @ known
    return parameters, np.round(known + fit_corrections(weights_of, rows, errors, sweep), 5)


def fit_smooth(rows, sweep, sms):
    """(physics parameters, correction values)."""
    table, dtype = common.parts(sweep)
    if dtype in BESIDE:
        profile = next(name for name, of in sweeps.TABLES.items() if of == table)
        return fit_beside(rows, common.shipped_curve(profile, "gemm", BESIDE[dtype]), sweep, sms)
    parameters = fit_physics(rows, sweep, sms)
    log_us, weights_of = of_model(parameters, rows, sweep, sms)
    errors = np.log(rows.time_us.to_numpy()) - log_us
    return parameters, fit_corrections(weights_of, rows, errors, sweep)


def log_smooth(parameters, values, rows, sweep, sms):
    log_us, weights_of = of_model(parameters, rows, sweep, sms)
    return log_us + weights_of @ values


def fit(rows, sweep, sms, size=None):
    """(physics parameters, correction values, trees); their size is that of all rows of a sweep."""
    smooth = fit_smooth(rows, sweep, sms)
    log_us = log_smooth(*smooth, rows, sweep, sms)
    return *smooth, boosting.fit_trees(rows, log_us, sweep, sms, size or trees.size(len(rows)))


def predict(model, rows, sweep, sms):
    *smooth, found = model
    log_us = log_smooth(*smooth, rows, sweep, sms)
    columns = boosting.tree_columns(rows, log_us, boosting.tree_inputs(sweep), sms)
    return np.exp(log_us + trees.evaluate(found, columns))


def evaluate(curve, rows):
    """Microseconds of a curve object as the document carries it (and as C++ evaluates it)."""
    kernel = {name: np.array(curve["kernels"][name]) for name in KERNEL}
    physics, corrections, values = curve["physics"], curve["corrections"], values_of(curve)

    def smooth(rows):
        log_us, compute_share = log_physics(rows, kernel, physics, physics["sms"], physics["step"],
                                            physics.get("element_bytes", 2.0))
        return log_us + design(rows, corrections, physics["sms"], compute_share) @ values

    known = corrections.get("trees")
    if known is None:
        return np.exp(smooth(rows))
    # Beyond what was measured the trees say what they say at its border.
    inside = pd.DataFrame({name: rows[name].clip(*curve["valid"][name]) for name in "mnk"})
    columns = boosting.tree_columns(inside, smooth(inside), known["inputs"], physics["sms"])
    return np.exp(smooth(rows) + trees.evaluate((known["split"], known["figure"]), columns))


def describe(model, sweep, sms):
    """The model part of the curve object."""
    kernel, shared = read(model[0])
    corrections = empty_corrections(sweep)
    grid, others = np.split(model[1], [np.prod([len(axis) for axis in grids(sweep)])])
    corrections["values"] = grid.tolist()
    corrections["terms"] = interpolation.with_values(corrections["terms"], others)
    if model[2] is not None:
        corrections["trees"] = trees.described(boosting.tree_inputs(sweep), model[2])
    return {
        "model": "tile-kernels",
        "physics": {"sms": sms, "step": rough(sweep)["step"],
                    **({} if common.parts(sweep)[1] == "bf16" else
                       {"element_bytes": sweeps.element_bytes(sweep)}),
                    **{name: common.figure(value) for name, value in shared.items()},
                    "splits": SPLITS.tolist()},
        "kernels": {"rows": TILES[:, 0].tolist(), "columns": TILES[:, 1].tolist(),
                    **{name: [common.figure(each) for each in column]
                       for name, column in kernel.items()}},
        "corrections": corrections}
