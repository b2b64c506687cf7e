"""Expert FFNs of a machine without a sweep of its own, from the curve of a sibling: a machine with the
same SMs, on which engines run the same kernels. Its clock and its memory are others, as products
say that were measured on both. The law is tried where the truth is known: on the machines of
Blackwell, each from every other."""
import numpy as np

from tools.fit import common
from tools.fit.expert_ffn import document, fitted, sweeps
from tools.fit.gemm import sweeps as products

MODEL_OF = {"h200-sxm": "h100-sxm"}  # profile, the one it is derived from
TRIED = ("b200-sxm", "b300-sxm", "gb200", "gb300")
# Two sweeps differ in clock from day to day as much as two siblings do: of the ratio of
# compute-bound products half is taken. In the trials all of it is 4.8 / 19.5 % off in bf16, half of
# it 3.8 / 13.6, none of it 3.6 / 11.2; in fp8 2.8 / 9.4, 3.0 / 9.3 and 4.0 / 10.6.
COMPUTE_SHARE = 0.5
TRIAL_POINTS = 3000  # of a machine
METHOD = ("the same law among the machines of Blackwell, each from every other, times how single "
          "products of the pair depart from its two ratios")
METHOD_OF_NEW_SIZES = "errors of the sibling's curve at sizes left out, times those of the law"


def ratios(data, source, target, dtype):
    """(how many times as long tiles take, memory takes). Memory is the same for every data type."""
    compute, _ = products.product_ratios(data, source, target, dtype)
    _, memory = products.product_ratios(data, source, target)
    return float(np.median(compute)) ** COMPUTE_SHARE, float(np.median(memory))


def scaled(curve, compute, memory, sms):
    """A curve for another machine: its tiles take `compute` times as long (its SMs counted), its
    memory `memory` times; the corrections stay."""
    result = {**curve, "kernels": dict(curve["kernels"]), "physics": dict(curve["physics"])}
    per_tile = compute * sms / curve["physics"]["sms"]
    for name in ("step_us", "tile_us"):
        result["kernels"][name] = [common.figure(per_tile * each) for each in curve["kernels"][name]]
    for name in ("dram_bytes_per_us", "row_bytes_per_us"):
        result["physics"][name] = common.figure(curve["physics"][name] / memory)
    result["physics"]["sms"] = sms
    return result


def of_sibling(data, source, target, dtype, devices):
    """The curve of profile `target` from that of profile `source`."""
    compute, memory = ratios(data, products.TABLES[source], products.TABLES[target], dtype)
    known = common.shipped_curve(source, "expert-ffn", dtype)
    return scaled(known, compute, memory, devices[target]["sms"]["value"])


def trials(data, dtype, devices):
    """(measured, predicted) microseconds of the machines on which the law is tried."""
    measured, predicted = [], []
    for target in TRIED:
        sweep = sweeps.sweeps_of(target, [dtype])[0]
        rows = common.sample(sweeps.load(data, sweep), TRIAL_POINTS)
        for source in TRIED:
            if source != target:
                curve = of_sibling(data, source, target, dtype, devices)
                measured.append(rows.time_us.to_numpy())
                predicted.append(fitted.evaluate(curve, rows))
    return np.concatenate(measured), np.concatenate(predicted)


def departures(data, source, target, dtype):
    """How many times as long single products of a pair take as its two ratios say."""
    compute, memory = ratios(data, source, target, dtype)
    bound_by_compute, _ = products.product_ratios(data, source, target, dtype)
    _, bound_by_memory = products.product_ratios(data, source, target)
    return np.concatenate([bound_by_compute / compute, bound_by_memory / memory])


def derived_curve(data, profile, dtype, devices):
    origin = MODEL_OF[profile]
    tables = products.TABLES[origin], products.TABLES[profile]
    known = common.shipped_curve(origin, "expert-ffn", dtype)
    result = of_sibling(data, origin, profile, dtype, devices)
    for key in ("residual", "new_sizes", "origin", "source", "note"):
        result.pop(key, None)
    random = np.random.default_rng(common.SEED)
    measured, predicted = trials(data, dtype, devices)
    alone = common.check(f"{dtype}, the same law among machines of Blackwell", measured, predicted)
    measured = measured * random.choice(departures(data, *tables, dtype), len(measured))
    expected = common.check(f"{dtype}, expected: the law's errors times the departures of products",
                            measured, predicted)
    sweep = sweeps.sweeps_of(origin, [dtype])[0]
    rows = sweeps.load(data, sweep)
    of_new = document.held_out(rows, sweep, known["physics"]["sms"], document.SIZE)
    compute, memory = ratios(data, *tables, dtype)
    result["residual"] = {**common.residual(measured, predicted, method=METHOD), "checks": [expected, alone]}
    result["new_sizes"] = {
        **{name: known["new_sizes"][name] for name in document.SIZE},
        "residual": common.residual(rows.time_us * random.choice(measured / predicted, len(rows)),
                                    of_new, method=METHOD_OF_NEW_SIZES)}
    result.update(origin="derived", source=f"{known['source']}; {products.SOURCE}: "
                                           f"{' and '.join(each.upper() for each in tables)}")
    result["note"] = (
        f"Derived from {origin}, where engines run the same kernels: tiles take {compute:.4g} times as "
        f"long, memory {memory:.4g} times, as products measured on both say. In no trial of this law "
        "does memory differ by more than 5 %.")
    return result


def curves(data, profile, devices, dtypes=None):
    """The curves of these data types; all that the sibling has if None. Those of the sibling and of
    the machines of the trials are the shipped ones: fit them first."""
    return [derived_curve(data, profile, common.parts(sweep)[1], devices)
            for sweep in sweeps.sweeps_of(MODEL_OF[profile], dtypes)]
