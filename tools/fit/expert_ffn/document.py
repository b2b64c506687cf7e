"""The curve objects of profile documents: fits with their held-out errors, sources and notes."""
from tools.fit import common, trees
from tools.fit.expert_ffn.fitted import describe, fit, predict
from tools.fit.expert_ffn.sweeps import (SHAPE, load, of_first_kind, source_of, sweeps_of,
                                         tuned_sizes)

# Errors (median, 90th percentile) that are asked of all sweeps but those of the first kind.
GOAL = (0.04, 0.15)
SIZE = ["hidden", "ffn"]
# What a call of a sweep holds, where its collector shows it.
TRITON_CALL = (" A call is vLLM's fused_experts: it aligns routes to blocks, gathers rows inside the first product, "
               "activates, weighs in the second and adds up each token's experts; the gate is not in it.")
CONTENTS = {"a100": TRITON_CALL, "h100": TRITON_CALL}
METHOD_OF_NEW_SIZES = (f"seeded {common.FOLDS}-fold, all rows of a hidden and FFN size held out "
                       "together")


def held_out(rows, sweep, sms, groups=SHAPE):
    """Predictions of rows that the fit has not seen, nor others that agree in `groups`."""
    size = trees.size(len(rows))
    return common.held_out(rows, groups, lambda known: fit(known, sweep, sms, size),
                           lambda model, unseen: predict(model, unseen, sweep, sms))


def valid(rows):
    per_expert = rows.rows / rows.experts
    return {"rows_per_expert": [float(per_expert.min()), float(per_expert.max())],
            **{name: [int(rows[name].min()), int(rows[name].max())]
               for name in ("hidden", "ffn", "experts")}}


def checks(rows, predicted, sweep):
    dtype = common.parts(sweep)[1]
    kind = "" if dtype == "bf16" else f"{dtype}, "
    bars = (None, None) if of_first_kind(sweep) else GOAL
    found = [common.check(kind + "all loads", rows.time_us, predicted, *bars)]
    balanced = (rows.distribution == "balanced").to_numpy()
    per_expert = (rows.rows / rows.experts).to_numpy()
    for what, inside in (("balanced", balanced), ("power law", ~balanced),
                         ("up to 16 rows per expert", per_expert <= 16),
                         ("16 to 256 rows per expert", (per_expert > 16) & (per_expert <= 256)),
                         ("above 256 rows per expert", per_expert > 256)):
        if inside.any():
            found.append(common.check(kind + what, rows.time_us[inside], predicted[inside]))
    return found


def of_new_sizes(rows, sweep, sms):
    """The errors at sizes that were not measured, and which were. Engines tune their tiles size by
    size, so that they are larger there."""
    predicted = held_out(rows, sweep, sms, SIZE)
    sizes = rows[SIZE].drop_duplicates().sort_values(SIZE).astype(int)
    return {**{name: sizes[name].tolist() for name in SIZE},
            "residual": common.residual(rows.time_us, predicted, method=METHOD_OF_NEW_SIZES)}


def balanced_from_power_law(data, table="h100", sms=132):
    """How the law of balanced loads fares where both are known: fitted to power-law loads alone,
    tested on balanced ones."""
    rows = load(data, table)
    known = rows.distribution != "balanced"
    predicted = predict(fit(rows[known].reset_index(drop=True), table, sms), rows[~known],
                        table, sms)
    return common.check(f"balanced loads from power-law ones by the same law, {table.upper()}",
                        rows[~known].time_us, predicted)


def measured_fit(rows, sweep, sms):
    return {"op": "expert-ffn", "params": {"dtype": common.parts(sweep)[1], "activation": "swiglu"},
            **describe(fit(rows, sweep, sms), sweep, sms), **tuned_sizes(sweep), "valid": valid(rows)}


def measured_curve(data, sweep, sms):
    rows = load(data, sweep)
    predicted = held_out(rows, sweep, sms)
    result = {
        **measured_fit(rows, sweep, sms),
        "residual": {**common.residual(rows.time_us, predicted, method=common.METHOD),
                     "checks": checks(rows, predicted, sweep)},
        "new_sizes": of_new_sizes(rows, sweep, sms),
        "origin": "published", "source": source_of(sweep),
        "note": "ffn a multiple of 16. Rows are those of local experts; the sweeps' loads enter as "
                "expected blocks of rows under their own sampling rule." + CONTENTS.get(sweep, "")}
    if not (rows.distribution == "balanced").any():
        result["balanced_origin"] = "derived"
        result["note"] += (" The table has power-law loads only: balanced ones are derived, the "
                           "same tiles at balanced counts.")
        result["residual"]["checks"].append(balanced_from_power_law(data))
    return result


def curves(data, profile, devices, dtypes=None):
    """The curves of these data types; all that the tables hold if None."""
    return [measured_curve(data, sweep, devices[profile]["sms"]["value"])
            for sweep in sweeps_of(profile, dtypes)]
