"""Collectives inside a node, from published nccl-tests runs (nccl_intranode.csv.gz)."""
import numpy as np
import pandas as pd

from tools.fit import common, exchange_scatter, exchange_siblings, exchange_tail, piecewise
from tools.fit.collective_rows import (DEFAULT_NCCL, KNOT_TOLERANCE, OPS, REDUCTIONS, SYSTEMS,
                                       law_curves, law_knots, links, load, medians, medians_at, rack_base,
                                       rows_of)

# Larger GPU counts than a table has, from the law of tools/fit/gpu_count_law.py.
LAW_COUNTS = {"b200_sxm": (8,), "gb200": (8, 16, 32, 64, 72)}
# Larger GPU counts, from the measured ones of a machine with the same NVLink generation and switch.
SIBLING_COUNTS = {"h200_sxm": ("h100_sxm", (8,))}
# Profiles without any run of their own: their sibling's, under its default NCCL version.
SIBLING_PROFILES = {"b300-sxm": "b200-sxm", "gb300": "gb200"}
# A branch's own residual, and that where the asker's NCCL version is known to be the curve's.
RESIDUALS = (("residual", "any_version"), ("residual_same_version", "same_version"))
# How much wider the scatter between two machines is taken to be where one of them was never seen.
UNSEEN_MACHINE = 1.2
SIZE_REGIONS = ((None, 64 * 1024 + 1), (64 * 1024 + 1, common.MIB + 1),
                (common.MIB + 1, 16 * common.MIB + 1), (16 * common.MIB + 1, None))
SOURCE = "nccl-tests tables of ai-dynamo/aiconfigurator (Apache-2.0)"
# Median absolute error above 1 MiB and up to 1 MiB that all-to-all must not exceed.
BARS = {"a100_sxm": (0.04, 0.07), "h100_sxm": (0.025, 0.07)}
CHECKED = ("a100_sxm", "h100_sxm", "h200_sxm")
METHOD = ("every row of a (system, NCCL version, GPU count, size) left out in turn, the ends "
          "included")


def held_out(rows):
    """(size, measured, predicted) of every row of one GPU count, its size unseen by the fit."""
    sizes, times = medians(rows)
    results = []
    for position, size in enumerate(sizes):
        others = np.arange(len(sizes)) != position
        predicted = piecewise.evaluate(*piecewise.fit(sizes[others], times[others], KNOT_TOLERANCE), size)
        for measured in rows[rows.size_bytes == size].time_us:
            results.append((size, measured, float(predicted)))
    return results


def seen(rows, knots):
    """(size, measured, fitted) of every row of one GPU count: the bar at measured sizes."""
    fitted = piecewise.evaluate(*knots, rows.size_bytes)
    return list(zip(rows.size_bytes, rows.time_us, fitted))


def errors(found, method):
    """The residual object, by size, of (size, measured, predicted) triples."""
    sizes, measured, predicted = map(np.array, zip(*found))
    return common.residual(measured, predicted, sizes, by="bytes", regions=SIZE_REGIONS,
                           method=method)


def bar_checks(table, system):
    """All-to-all's bars are set on a system, all NCCL versions and GPU counts together."""
    rows = table[(table.system == system) & (table.op_name == "alltoall")]
    unseen = [each for _, part in rows.groupby(["nccl", "num_gpus"]) for each in held_out(part)]
    sizes, measured, predicted = map(np.array, zip(*unseen))
    above, bars = sizes > common.MIB, BARS.get(system, (None, None))
    return [common.check("all NCCL versions, above 1 MiB", measured[above], predicted[above], bars[0]),
            common.check("all NCCL versions, up to 1 MiB", measured[~above], predicted[~above],
                         bars[1])]


def branch(gpus, knot_bytes, knot_time_us, origin="published", **more):
    return {"gpus": int(gpus), "origin": origin, "bytes": [float(each) for each in knot_bytes],
            "time_us": [common.rounded(each, 6) for each in knot_time_us], **more}


def law_errors(table, op):
    """The count law where it can be checked: 8 GPUs from 2 and 4 behind NVLink switches, every row
    of A100 and H100 that records its NCCL (the H100 runs that do not take twice as long among 8 GPUs
    as among 4 up to 64 KiB, which no law of counts knows)."""
    found = []
    for system in ("a100_sxm", "h100_sxm"):
        rows = table[(table.system == system) & (table.op_name == OPS[op]) & (table.nccl != "2.23")]
        for nccl in sorted(rows.nccl.unique()):
            eight = rows_of(table, system, op, nccl)
            found.append(exchange_scatter.compared(law_knots(table, op, system, nccl, 8),
                                                   eight[eight.num_gpus == 8], system, nccl, 8))
    return pd.concat(found, ignore_index=True)


class Tails:
    """What the published runs of 4 GiB and more say of sizes beyond the tables."""

    def __init__(self, table):
        rows, base = exchange_tail.rack_rows(), rack_base(table)
        self.table = table
        self.factor = exchange_tail.choose_factor(rows, base)
        self.rack, self.rack_runs = exchange_tail.rack_held_out(rows, base)

    def extend(self, op, system, gpus, knots):
        line = exchange_scatter.line_rate(system)
        return exchange_tail.extend(op, line, gpus, knots, self.factor)

    def law(self, op, system, gpus, knots, fewer):
        """Knots by the count law with their tail; `fewer`: the measured curves without theirs."""
        if op == "all-to-all":
            return self.extend(op, system, gpus, knots)
        return exchange_tail.ring_rise(op, links(system), knots, fewer, gpus)

    @staticmethod
    def is_of_a_rack(op, system):
        """Published runs of 4 GiB and more, among up to 64 GPUs, say how far the tail is off."""
        return op == "all-to-all" and exchange_scatter.line_rate(system) == exchange_tail.FAST_LINE

    def residual(self, op, system, top):
        if self.is_of_a_rack(op, system):
            region = exchange_scatter.tail_region(0.0, None, self.rack, self.rack_runs)
            return exchange_scatter.tail_object(
                [region], self.rack, "the rows of GB300 in one rack, 4 to 16 GiB, each run and each GPU "
                                     "count left out of the choice of the factor")
        return exchange_scatter.tail_residual(self.table, op, top)


def law_branches(table, tails, op, system, nccl, own):
    """Branches by the count law; `own`: tail and scatter of the curve, and its largest size."""
    checked = exchange_scatter.residual(
        law_errors(table, op), "8 GPUs from 2 and 4, every row of A100 and H100 that records its NCCL",
        group="source")  # the machine
    fewer = law_curves(table, op, system, nccl)
    found = []
    for gpus in LAW_COUNTS.get(system, ()):
        knots = piecewise.fit(*law_knots(table, op, system, nccl, gpus), KNOT_TOLERANCE / 4)
        widen = 1 + 0.5 * np.log2(gpus / 8)  # the law is checked over one doubling
        beyond = 1.0 if tails.is_of_a_rack(op, system) else widen
        found.append(branch(
            gpus, *tails.law(op, system, gpus, knots, fewer), origin="derived",
            **{key: exchange_scatter.with_tail(checked, own["tail"], own["top"],
                                               own["scatter"][version], widen, beyond)
               for key, version in RESIDUALS},
            note="not measured: from 2 and 4 GPUs and the topology by the law of channels, ports and "
                 "rings (sim/profile/gpu_count_law.hpp)"))
    return found


def runs_like(table, op, system, nccl):
    """All runs of a system with the NCCL that `nccl` records: [{GPU count: (sizes, times)}]."""
    rows = table[(table.system == system) & (table.op_name == OPS[op])]
    wanted = exchange_siblings.recorded(system, nccl)
    return [{gpus: medians_at(table, system, op, each, gpus)
             for gpus in sorted(rows[rows.nccl == each].num_gpus.unique())}
            for each in sorted(rows.nccl.unique())
            if exchange_siblings.recorded(system, each) == wanted]


def sibling_branches(table, tails, op, system, nccl, own):
    """Branches by the runs of a sibling, under the NCCL that both record."""
    if system not in SIBLING_COUNTS:
        return []
    donor, counts = SIBLING_COUNTS[system]
    wanted = exchange_siblings.recorded(system, nccl)
    donor_nccl = next(each for each in sorted(table[table.system == donor].nccl.unique(), reverse=True)
                      if exchange_siblings.recorded(donor, each) == wanted)
    profile = next(name for name, each in SYSTEMS.items() if each == donor)
    errors_found = exchange_scatter.sibling_errors(table, op, exchange_scatter.line_rate(system))
    alike = errors_found.source.str.split("/").str[1] == errors_found.target.str.split("/").str[1]
    method = "4 and 8 GPUs of each machine of this NVLink generation from its sibling"
    bodies = {"residual": exchange_scatter.residual(
                  errors_found, method + " and from other NCCL versions, every row"),
              "residual_same_version": exchange_scatter.residual(
                  errors_found[alike], method + " under the same NCCL, every row", switches=False)}
    # The runs are matched by version: of an unknown one the bar is at least that of a measured machine.
    for body in (own["scatter"]["any_version"], bodies["residual_same_version"]):
        bodies["residual"] = exchange_scatter.at_least(bodies["residual"], body)
    found = []
    for gpus in counts:
        sizes, times = exchange_siblings.predict(runs_like(table, op, system, nccl),
                                                 runs_like(table, op, donor, donor_nccl), gpus)
        knots = piecewise.fit(sizes, times, KNOT_TOLERANCE)
        found.append(branch(
            gpus, *tails.extend(op, system, gpus, knots), origin="derived",
            **{key: exchange_scatter.with_tail(body, own["tail"], own["top"])
               for key, body in bodies.items()},
            sibling={"profile": profile, "nccl": donor_nccl, "gpus": gpus},
            note="not measured: the sibling's times, scaled by half the ratio of the two machines at 2 "
                 "and 4 GPUs, by size"))
    return found


def curve(table, tails, system, op, nccl):
    """The curve object of one operation under one NCCL version."""
    rows = rows_of(table, system, op, nccl)
    branches, unseen, at_measured = [], [], []
    for gpus, part in rows.groupby("num_gpus"):
        knots = piecewise.fit(*medians(part), KNOT_TOLERANCE)
        unseen += held_out(part)
        at_measured += seen(part, knots)
        branches.append(branch(gpus, *tails.extend(op, system, gpus, knots)))
    top = float(rows.size_bytes.max())
    own = {"tail": tails.residual(op, system, top), "top": top,
           "scatter": exchange_scatter.scatter(table, op, system)}
    branches += law_branches(table, tails, op, system, nccl, own)
    branches += sibling_branches(table, tails, op, system, nccl, own)
    noise = rows.time_us / rows.groupby(["num_gpus", "size_bytes"]).time_us.transform("median") - 1
    return {
        "op": op,
        "params": {"nccl": nccl, "dtype": "half" if op in REDUCTIONS else "any"},
        "default": nccl == DEFAULT_NCCL[system],
        "model": "piecewise-alpha-beta",
        "branches": branches,
        "measured_bytes": sorted(float(each) for each in rows.size_bytes.unique()),
        "valid": {"gpus": [2, max(each["gpus"] for each in branches)],
                  "bytes": [float(rows.size_bytes.min()), top]},
        "residual": errors(unseen, METHOD),
        "residual_at_measured": errors(at_measured, "every row against the fit that saw it"),
        "scatter": own["scatter"],
        "tail": {"residual": own["tail"],
                 "note": "knots beyond the largest measured size: bandwidth goes on rising "
                         "(profiles/EXCHANGES.md)"},
        "noise": {"p90_abs": common.rounded(noise.abs().quantile(0.9)),
                  "of": "repeats and data types about the median of their size"},
        "origin": "published",
        "source": f"{SOURCE}, {rows.source_dir.iloc[0]}",
        "note": "GPU counts between those measured: linear in the count at equal bytes sent "
                "(bytes (n-1)/n). Below the smallest size the latency floor.",
    }


def as_sibling(original, table, op, profile):
    """The curve of a machine that was never measured: its sibling's, with wider bars."""
    system = SYSTEMS[profile]
    wide = exchange_scatter.scatter(table, op, system, between_systems=True,
                                    wider=UNSEEN_MACHINE)
    for each in wide.values():
        each["method"] += "; a fifth wider, since this machine was not among them"
    branches = [{**each, "origin": "derived",
                 **{key: exchange_scatter.widened(each[key], UNSEEN_MACHINE)
                    for key, _ in RESIDUALS if key in each}} for each in original["branches"]]
    # The folder's name is not what these runs record, and there are no others to tell apart.
    params = {**original["params"],
              "nccl": exchange_siblings.recorded(system, original["params"]["nccl"])}
    return {**original, "params": params, "branches": branches, "scatter": wide, "origin": "derived", "sibling": profile,
            "note": f"not measured: {profile}'s curve. {original['note']}"}


def curves(data, profile):
    """All collective curves of a profile, by operation and NCCL version."""
    table = load(data)
    tails = Tails(table)
    if profile in SIBLING_PROFILES:
        sibling = SIBLING_PROFILES[profile]
        system = SYSTEMS[sibling]
        return [as_sibling(curve(table, tails, system, op, DEFAULT_NCCL[system]), table, op, sibling)
                for op in OPS]
    system, found = SYSTEMS[profile], []
    for op in OPS:
        versions = table[(table.system == system) & (table.op_name == OPS[op])].nccl.unique()
        found += [curve(table, tails, system, op, nccl) for nccl in sorted(versions)]
    for each in found:
        if each["op"] == "all-to-all" and each["default"] and system in CHECKED:
            each["residual"]["checks"] = bar_checks(table, system)
    return found
