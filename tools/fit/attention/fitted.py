"""The whole model of a sweep, tile model and corrections: fitted, held out, and as a document carries
it."""
import numpy as np

from tools.fit import common, interpolation
from tools.fit.attention.corrections import design, fit_corrections
from tools.fit.attention.sweeps import SHAPE
from tools.fit.attention.tiles import KV_KNOTS, PARAMETERS, TILE_KEYS, fit_physics, physics


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
