"""The whole model of a sweep, tile model, corrections and trees: fitted, evaluated, and as a document
carries it."""
import numpy as np
import pandas as pd

from tools.fit import common, interpolation, trees
from tools.fit.expert_ffn.boosting import tree_columns, tree_inputs
from tools.fit.expert_ffn.corrections import design, empty_corrections, fit_corrections
from tools.fit.expert_ffn.search import fit_physics
from tools.fit.expert_ffn.sweeps import is_tuned, of_first_kind
from tools.fit.expert_ffn.tiles import KERNEL, STEP, figures, log_physics, read, tiles_of


def fit_smooth(rows, sweep, sms):
    """(physics parameters, correction values), of the engine's default tiles: what tuned ones gain is
    left to the trees."""
    rows = rows[~rows.tuned]
    parameters = fit_physics(rows, sweep, sms)
    errors = np.log(rows.time_us.to_numpy()) - log_physics(rows, *figures(parameters, sweep), sms,
                                                           tiles_of(sweep))
    return parameters, fit_corrections(rows, errors, 7 if of_first_kind(sweep) else 4)


def log_smooth(parameters, values, rows, sweep, sms):
    return (log_physics(rows, *figures(parameters, sweep), sms, tiles_of(sweep))
            + design(rows, empty_corrections()) @ values)


def fit(rows, sweep, sms, size=None):
    """(physics parameters, correction values, (what its trees ask, trees)); their size is that of all
    rows of a sweep."""
    smooth = fit_smooth(rows, sweep, sms)
    log_us, inputs = log_smooth(*smooth, rows, sweep, sms), tree_inputs(rows)
    columns = tree_columns(rows, log_us, inputs, tiles_of(sweep), sms)
    left = np.log(rows.time_us.to_numpy()) - log_us
    return *smooth, (inputs, trees.fit(columns, left, size or trees.size(len(rows))))


def predict(model, rows, sweep, sms):
    *smooth, found = model
    log_us = log_smooth(*smooth, rows, sweep, sms)
    inputs, grown = found
    columns = tree_columns(rows, log_us, inputs, tiles_of(sweep), sms)
    return np.exp(log_us + trees.evaluate(grown, columns))


def tiles_in(curve):
    return np.array([curve["kernels"]["rows"], curve["kernels"]["columns"]]).T


def evaluate(curve, rows):
    """Microseconds of a curve object as the document carries it (and as C++ evaluates it)."""
    kernel = {name: np.array(curve["kernels"][name]) for name in KERNEL}
    values = np.concatenate([term["values"] for term in curve["corrections"]])
    sms = curve["physics"]["sms"]
    log_us = (log_physics(rows, kernel, curve["physics"], sms, tiles_in(curve))
              + design(rows, curve["corrections"]) @ values)
    known = curve.get("trees")
    if known is None:
        return np.exp(log_us)
    tuned = curve.get("tuned_sizes", {"experts": [], "ffn": []})
    rows = rows.assign(tuned=is_tuned(rows, list(zip(tuned["experts"], tuned["ffn"]))))
    columns = tree_columns(rows, log_us, known["inputs"], tiles_in(curve), sms)
    return np.exp(log_us + trees.evaluate((known["split"], known["figure"]), columns))


def query(curve, rows_per_expert, hidden, ffn):
    """The row that `evaluate` takes for given loads of local experts."""
    counts = np.asarray(rows_per_expert)
    blocks = {f"blocks_{int(block)}": [np.ceil(counts / block).sum()]
              for block in np.unique(tiles_in(curve)[:, 0])}
    return pd.DataFrame({"rows": [counts.sum()], "active": [(counts > 0).sum()], **blocks,
                         "ffn": [ffn], "hidden": [hidden], "experts": [len(counts)],
                         "routed": [counts.sum()]})


def describe(model, sweep, sms):
    """The model part of the curve object."""
    kernel, shared = read(model[0]) if common.parts(sweep)[1] == "bf16" else figures(model[0], sweep)
    tiles = tiles_of(sweep)
    return {
        "model": "grouped-tiles",
        "physics": {"sms": sms, "step": STEP,
                    **{name: common.figure(value) for name, value in shared.items()}},
        "kernels": {"rows": tiles[:, 0].tolist(), "columns": tiles[:, 1].tolist(),
                    **{name: [common.figure(each) for each in column]
                       for name, column in kernel.items()}},
        "corrections": interpolation.with_values(empty_corrections(), model[1]),
        **({} if model[2] is None else {"trees": trees.described(*model[2])})}
