"""The curve objects of profile documents: fits with their held-out errors, sources and notes."""
import numpy as np

from tools.fit import common, trees
from tools.fit.gemm import sweeps
from tools.fit.gemm.fitted import BESIDE, describe, fit, predict

# Errors (median, 90th percentile) that are asked of the sweeps of the first kind, of their long
# products, and of others.
BARS, LARGE_BARS, GOAL = (0.03, 0.12), (0.025, 0.10), (0.03, 0.10)
NOTE = ("C[m, n] = A[m, k] B[k, n], leading dimensions multiples of 8. The sweep alternates between "
        "weight matrices but keeps the activations in cache. Beyond the largest m, n, k measured: "
        "tile counts carry and corrections stay, so efficiency stays what it was in whole waves.")
NOTES = {
    "bf16": NOTE,
    "fp8": "A arrives in bf16: the measured call casts it with one known scale per tensor "
           "(input_us_per_element), then multiplies in FP8, C in bf16. ",
    "fp8_block": "A arrives in bf16: the measured call casts it with a scale per 128 values found on "
                 "the way (input_us_per_element), B has one per 128 x 128 block. The sweep issued "
                 "these calls without a CUDA graph, one weight matrix, so that short ones take what "
                 "the host needs, about {host:g} us: only shapes of which the kernel takes twice "
                 "that at the highest rates seen count. The tile model is that of fp8; these rows "
                 "correct it, below valid.time_us it is all there is. ",
    "nvfp4": "A arrives in bf16: the measured call casts it to NVFP4, a scale per 16 values, a known "
             "one per tensor (input_us_per_element). The sweep has one weight matrix, which stays in "
             "cache if it fits. "}


def held_out(rows, sweep, sms):
    size = trees.size(len(rows))
    return common.held_out(rows, ["m", "n", "k"], lambda known: fit(known, sweep, sms, size),
                           lambda model, unseen: predict(model, unseen, sweep, sms))


def checks(rows, predicted, sweep):
    """Held-out errors on the sets of points that bars are set on, and on those that users ask."""
    found, large = [], rows.time_us > sweeps.LARGE_US
    first, dtype = sweeps.of_first_kind(sweep), common.parts(sweep)[1]
    kind = "" if dtype == "bf16" else f"{dtype}, "
    for what, inside, bars in (
            ("all shapes", rows.time_us > 0, BARS if first else GOAL),
            ("above 100 us", large, LARGE_BARS if first else GOAL),
            ("above 100 us, m up to 128", large & (rows.m <= 128), (None, None)),
            ("above 100 us, m 129 to 1025", large & (rows.m > 128) & (rows.m <= 1025),
             (None, None)),
            ("above 100 us, m 1026 to 8191", large & (rows.m > 1025) & (rows.m < 8192),
             (None, None)),
            ("above 100 us, m from 8192", large & (rows.m >= 8192), (None, None))):
        if inside.any():
            found.append(common.check(kind + what, rows.time_us[inside], predicted[inside], *bars))
    return found


def scatter(rows, least_m=2048, least_n=8192):
    """What no model can explain: times of m and m + 1 rows, whose work differs by at most one row
    of tiles, about their usual ratio, per measurement (a difference holds two)."""
    after = rows.assign(m=rows.m - 1)
    pairs = rows.merge(after, on=["m", "n", "k"], suffixes=("", "_after"))
    pairs = pairs[(pairs.m >= least_m) & (pairs.n >= least_n) & (pairs.time_us > sweeps.LARGE_US)]
    if pairs.empty:
        return []
    ratio = np.log(pairs.time_us_after / pairs.time_us)
    usual = ratio.groupby(pairs.m).transform("median")
    return [common.check(f"the table's own scatter: m + 1 over m rows, m from {least_m}, n from "
                         f"{least_n}", np.exp((ratio - usual) / np.sqrt(2)), np.ones(len(pairs)))]


def beyond(rows, sweep, sms, largest=8192):
    """How the law of extrapolation in m fares: fitted without m > `largest`, tested on them."""
    known = rows.m <= largest
    model = fit(rows[known], sweep, sms)
    far = rows[~known]
    return common.check(f"m > {largest} from m <= {largest}, not used by the fit", far.time_us,
                        predict(model, far, sweep, sms))


def note(sweep):
    table, dtype = common.parts(sweep)
    return NOTE if dtype == "bf16" else NOTES[dtype].format(host=sweeps.HOST_US[table]) + NOTE.replace(
        " The sweep alternates between weight matrices but keeps the activations in cache.", "")


def curve(data, profile, dtype, devices):
    table, sms = sweeps.TABLES[profile], devices[profile]["sms"]["value"]
    sweep = common.sweep_of(table, dtype)
    rows = sweeps.load(data, sweep)
    predicted = held_out(rows, sweep, sms)
    tests = checks(rows, predicted, sweep) + (scatter(rows) if sweeps.of_first_kind(sweep) else [])
    if sweeps.of_first_kind(sweep) and rows.m.max() > 8192:
        tests.append(beyond(rows, sweep, sms))
    return {
        "op": "gemm", "params": {"dtype": dtype},
        **describe(fit(rows, sweep, sms), sweep, sms),
        "valid": {**{name: [int(rows[name].min()), int(rows[name].max())] for name in "mnk"},
                  **({"time_us": [2 * sweeps.HOST_US[table], float(rows.time_us.max())]}
                     if dtype in BESIDE else {})},
        "residual": {**common.residual(rows.time_us, predicted, method=common.METHOD),
                     "checks": tests},
        "origin": "published",
        "source": f"{sweeps.SOURCES[dtype]}: {table.upper()}",
        "note": note(sweep),
    }


def curves(data, profile, devices, dtypes=None):
    """The curves of these data types; all that the tables hold if None."""
    held = sweeps.DTYPES[sweeps.TABLES[profile]]
    return [curve(data, profile, dtype, devices)
            for dtype in held if dtypes is None or dtype in dtypes]
