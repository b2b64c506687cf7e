"""How far one run of an exchange lies from another: between specimens of a machine, between NCCL
versions and from repeat to repeat. Error bars of published curves are based on it, since whoever asks
has another specimen and often another version. Twin of sim/study/validation/exchanges/exchange_coverage.cpp.
"""
import itertools

import numpy as np
import pandas as pd
from scipy import stats

from tools.fit import collective_rows, common, devices, exchange_siblings, exchange_tail, piecewise

MIB = common.MIB
REGIONS = ((None, 64 * 1024 + 1), (64 * 1024 + 1, MIB + 1), (MIB + 1, 16 * MIB + 1), (16 * MIB + 1, None))
LEVEL = 0.9
COLUMNS = ["bytes", "measured", "predicted", "excess", "source", "target", "gpus"]


def line_rate(system):
    """Bytes per microsecond and direction of an NVLink machine, 0 for PCIe."""
    profile = next(name for name, each in collective_rows.SYSTEMS.items() if each == system)
    if devices.TOPOLOGIES[profile]["kind"] == "pcie":
        return 0.0
    return devices.FIGURES[profile][-1] / 1e6


def runs(table, op, lines):
    """(system, NCCL version, GPU count) and rows of every run on machines of these line rates."""
    rows = table[(table.op_name == collective_rows.OPS[op])]
    if op in collective_rows.REDUCTIONS:
        rows = rows[rows.nccl_dtype == "half"]
    return [(key, part) for key, part in rows.groupby(["system", "nccl", "num_gpus"])
            if line_rate(key[0]) in lines]


def excess(knots, sizes):
    """log of how far a curve lies above the chord in log-log from half a size to twice it: a change of
    protocol or of the number of channels, whose place differs by version."""
    sizes = np.asarray(sizes, float)
    ends = piecewise.evaluate(*knots, sizes / 2) * piecewise.evaluate(*knots, sizes * 2)
    return np.log(piecewise.evaluate(*knots, sizes) / np.sqrt(ends))


def compared(knots, rows, source, target, gpus):
    """One line per row of `rows`, predicted by `knots`."""
    rows = rows[rows.size_bytes >= knots[0][0]]
    sizes = rows.size_bytes.to_numpy(float)
    return pd.DataFrame({"bytes": sizes, "measured": rows.time_us.to_numpy(),
                         "predicted": piecewise.evaluate(*knots, sizes),
                         "excess": excess(knots, sizes), "source": source, "target": target,
                         "gpus": gpus}, columns=COLUMNS)


def pairs(table, op, lines, between_systems=False, same_version=False):
    """Every run predicted by every other of the same machine and GPU count, or `between_systems` by
    those of the other machines of the same line rate; `same_version`: under the same NCCL, as the runs
    themselves record it."""
    found = []
    for line in lines:
        every = [(key, part, piecewise.fit(*collective_rows.medians(part), collective_rows.KNOT_TOLERANCE))
                 for key, part in runs(table, op, (line,))]
        for (one, _, knots), (other, rows, _) in itertools.permutations(every, 2):
            alike = exchange_siblings.recorded(*one[:2]) == exchange_siblings.recorded(*other[:2])
            if (one[2] == other[2] and (one[0] == other[0]) != between_systems and
                    (alike or not same_version)):
                found.append(compared(knots, rows, "/".join(one[:2]), "/".join(other[:2]), one[2]))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=COLUMNS)


def weighted_quantile(values, weights, share):
    """The value that `share` of the weight lies below, half of a value's own counted; linear between."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order]) - weights[order] / 2
    return float(np.interp(share, below / np.sum(weights), values[order]))


def reach_of(distances, groups):
    """How far a bar reaches, in logs, up and down, from distances |log(measured / predicted)| of points of
    groups (runs, machines) that the predictions had not seen. Each group has the same weight, since its
    points err together; so few groups say how wide errors are with as many degrees of freedom: the
    quantile is widened by Student's t over the normal one. The one rule for all bars of exchanges."""
    groups = np.asarray(groups)
    names, sizes = np.unique(groups, return_counts=True)
    weights = 1 / np.array([dict(zip(names, sizes))[each] for each in groups], float)
    side = (1 + LEVEL) / 2
    few = stats.t.ppf(side, len(names)) / stats.norm.ppf(side)
    return few * weighted_quantile(np.asarray(distances, float), weights, LEVEL)


def quantiles(found, group="target", wider=1.0, switches=True):
    """(q05, q95) of measured / predicted - 1, beyond what the place of a switch explains; `group`: the
    column of what was left out; `wider`: in the logs."""
    error = np.log(found.measured.to_numpy(float) / found.predicted.to_numpy(float))
    switch = found.excess.to_numpy(float) if switches else np.zeros(len(found))
    low = np.minimum(error + np.maximum(switch, 0), 0)
    high = np.maximum(error - np.maximum(-switch, 0), 0)
    reach = wider * reach_of(np.maximum(-low, high), found[group])
    return float(np.expm1(-reach)), float(np.expm1(reach))


def residual(found, method, group="target", wider=1.0, switches=True):
    """The residual object, by size, of compared rows."""
    result = common.residual(found.measured, found.predicted, found.bytes, by="bytes", regions=REGIONS,
                             method=method)
    for each in result["regions"]:
        inside = found[(found.bytes >= each["from"]) & (found.bytes < (each["below"] or np.inf))]
        each["q05"], each["q95"] = map(common.rounded, quantiles(inside, group, wider, switches))
    return result


def lines_of(system):
    """The line rates whose runs say how far runs of a system scatter: its own where two runs exist."""
    line = line_rate(system)
    return (line,) if line in (450e3, 900e3) else (450e3, 900e3)


def scatter(table, op, system, between_systems=False, wider=1.0):
    """{"any_version", "same_version"}: residual objects."""
    lines = lines_of(system)
    whose = "of the other machine" if between_systems else "of every other run of its machine"
    method = f"every run against the curve {whose} among as many GPUs"
    if line_rate(system) not in lines:
        method += ", machines of 450 and of 900 GB/s: this one was measured once"
    same = residual(pairs(table, op, lines, between_systems, same_version=True),
                    method + ", the same NCCL", wider=wider, switches=False)
    # To name one's version never widens a bar.
    every = residual(pairs(table, op, lines, between_systems), method, wider=wider)
    return {"any_version": at_least(every, same), "same_version": same}


def sibling_errors(table, op, line):
    """Runs predicted from those of a sibling or of another NCCL version as
    tools/fit/exchange_siblings.py does."""
    curves, rows = {}, {}
    for (system, nccl, gpus), part in runs(table, op, (line,)):
        era = system, exchange_siblings.recorded(system, nccl)
        curves.setdefault(era, {}).setdefault(nccl, {})[gpus] = collective_rows.medians(part)
        rows.setdefault((era, gpus), []).append(part)
    found = []
    for (own, gpus), parts in rows.items():
        for donor in curves:
            donors = list(curves[donor].values())
            if gpus == 2 or donor == own or not any(gpus in run for run in donors):
                continue
            knots = exchange_siblings.predict(list(curves[own].values()), donors, gpus)
            for part in parts:
                found.append(compared(knots, part, "/".join(donor), "/".join(own), gpus))
    return pd.concat(found, ignore_index=True)


def hidden_errors(table, op, octaves, lines=(300e3, 450e3, 900e3)):
    """log(measured / predicted) with the last `octaves` sizes of every run hidden: the tail's and
    those of the last straight piece."""
    ours, straight = [], []
    for _, part in runs(table, op, lines):
        sizes, times = collective_rows.medians(part)
        times = piecewise.non_decreasing(times)
        keep = len(sizes) - octaves
        ours += [error for _, error in exchange_tail.hidden(sizes, times, octaves,
                                                            collective_rows.KNOT_TOLERANCE)]
        knots = piecewise.fit(sizes[:keep], times[:keep], collective_rows.KNOT_TOLERANCE)
        straight += list(np.log(times[keep:] / piecewise.evaluate(*knots, sizes[keep:])))
    return np.array(ours), np.array(straight)


def tail_residual(table, op, top):
    """The errors of the tail by distance: one octave beyond `top` bytes, two, more."""
    found = []
    for hide in (1, 2):
        for (system, _, _), part in runs(table, op, (300e3, 450e3, 900e3)):
            sizes, times = collective_rows.medians(part)
            found += [(system, *each) for each in exchange_tail.hidden(
                sizes, piecewise.non_decreasing(times), hide, collective_rows.KNOT_TOLERANCE)]
    systems, octaves, errors = map(np.array, zip(*found))
    entries, start = [], 0.0
    for octave, below, wider in ((1, 2 * top, 1.0), (2, 4 * top, 1.0), (2, None, 1.5)):
        there = octaves == octave
        entries.append(tail_region(start, below, errors[there], systems[there], wider))
        start = below
    return tail_object(entries, errors, "the last one and two octaves of every NVLink machine hidden; "
                                        "half as wide again beyond two octaves (assumed)")


def tail_region(start, below, errors, groups, wider=1.0):
    figures = common.summary(np.expm1(errors))
    reach = wider * reach_of(np.abs(errors), groups)
    figures["q05"], figures["q95"] = common.rounded(np.expm1(-reach)), common.rounded(np.expm1(reach))
    name = "all" if below is None and not start else common.label(start or None, below, common.byte_text)
    return {"region": name, "from": start, "below": below, **figures}


def tail_object(entries, errors, method):
    total = common.summary(np.expm1(errors))
    return {"by": "bytes", "n": total["n"], "median_abs": total["median_abs"],
            "p90_abs": total["p90_abs"], "method": method, "regions": entries}


def joined(*residuals):
    """(q05, q95) of independent errors: quadrature of the logs."""
    low = np.sqrt(sum(np.log1p(each["q05"])**2 for each in residuals if each["q05"] < 0))
    high = np.sqrt(sum(np.log1p(each["q95"])**2 for each in residuals if each["q95"] > 0))
    return common.rounded(np.expm1(-low)), common.rounded(np.expm1(high))


def region_at(residual_object, size):
    return next(each for each in residual_object["regions"]
                if each["below"] is None or size < each["below"])


def with_tail(body, tail, top, extra=None, widen=1.0, widen_beyond=1.0):
    """A residual that holds `body` up to `top` bytes and its last region joined with `tail` beyond; all
    joined with `extra`, a residual by size, where that is given. What is not the tail's is `widen` times
    as wide, `widen_beyond` times beyond `top`."""
    entries = []
    for start, below, source in sections(body, tail, top, extra):
        parts = [region_at(each, start) for each in (body, extra) if each is not None]
        if source is tail:
            wide = [{key: np.expm1(widen_beyond * np.log1p(each[key])) for key in ("q05", "q95")}
                    for each in parts]
            parts.insert(0, region_at(tail, start))
            low, high = joined(parts[0], *wide)
        else:
            low, high = (np.expm1(widen * np.log1p(each)) for each in joined(*parts))
        entries.append({**parts[0], "from": start, "below": below,
                        "region": common.label(start or None, below, common.byte_text),
                        "q05": common.rounded(low), "q95": common.rounded(high)})
    return {key: body[key] for key in ("by", "n", "median_abs", "p90_abs", "method")} | {
        "regions": entries}


def at_least(residual_object, other):
    """The same errors with quantiles no narrower than those of another residual."""
    regions = []
    for each in residual_object["regions"]:
        beside = region_at(other, each["from"])
        regions.append({**each, "q05": min(each["q05"], beside["q05"]),
                        "q95": max(each["q95"], beside["q95"])})
    return {**residual_object, "regions": regions}


def widened(residual_object, factor):
    """The same errors with quantiles `factor` times as far in the logs."""
    regions = [{**each, **{key: common.rounded(np.expm1(factor * np.log1p(each[key])))
                           for key in ("q05", "q95")}} for each in residual_object["regions"]]
    return {**residual_object, "regions": regions}


def sections(body, tail, top, extra):
    """(start, below, residual that holds there), divided wherever one of them is."""
    edges = {0.0, float(top)}
    for each, low, high in ((body, 0, top), (extra, 0, top), (tail, top, np.inf)):
        if each is not None:
            edges |= {region["below"] for region in each["regions"]
                      if region["below"] is not None and low < region["below"] < high}
    ordered = sorted(edges)
    for start, below in itertools.zip_longest(ordered, ordered[1:]):
        yield start, below, tail if start >= top else body
