"""Collectives inside a node, from published nccl-tests runs (nccl_intranode.csv.gz)."""
import numpy as np
import pandas as pd

from tools.fit import common, gpu_count_law, devices, piecewise

REDUCTIONS = ("all-reduce", "reduce-scatter")
SYSTEMS = {"a100-sxm-80gb": "a100_sxm", "h100-sxm": "h100_sxm", "h200-sxm": "h200_sxm",
           "b200-sxm": "b200_sxm", "gb200": "gb200", "l40s": "l40s",
           "rtx-pro-6000": "rtx_pro_6000_server"}
# The version that answers when a query names none: the one measured most often, or the only one.
# GB200's folder "2.23" was measured more often than 2.29.2, but its runs record 2.29.2 themselves.
DEFAULT_NCCL = {"a100_sxm": "2.27.3", "h100_sxm": "2.27.3", "h200_sxm": "2.26.2",
                "b200_sxm": "2.27.3", "gb200": "2.29.2", "l40s": "2.27.3",
                "rtx_pro_6000_server": "2.29.2"}
# Up to how many GPUs the law of tools/fit/gpu_count_law.py answers where the table ends before.
LAW_UP_TO = {"h200_sxm": 8, "b200_sxm": 8, "gb200": 72}
# Rings on H200: the ratio of its sister H100. Tried where H200 is known, 4 GPUs from 2, that ratio
# is off by 0.5 to 1.6 % in the median from 1 MiB on, less than the law is anywhere.
BY_RATIO = {"h200_sxm": REDUCTIONS + ("all-gather",)}
# For H200's 8 GPUs: the H100 runs of the same, or else the nearest, NCCL version.
DONOR_NCCL = {"2.23": "2.23", "2.26.2": "2.27.3", "2.29.2": "2.29.2"}
OPS = {"all-to-all": "alltoall", "all-reduce": "all_reduce", "all-gather": "all_gather",
       "reduce-scatter": "reduce_scatter"}
KNOT_TOLERANCE = 0.02
SIZE_REGIONS = ((None, 64 * 1024 + 1), (64 * 1024 + 1, common.MIB + 1),
                (common.MIB + 1, 16 * common.MIB + 1), (16 * common.MIB + 1, None))
SOURCE = "nccl-tests tables of ai-dynamo/aiconfigurator (Apache-2.0)"
# Median absolute error above 1 MiB and up to 1 MiB that all-to-all must not exceed.
BARS = {"a100_sxm": (0.04, 0.07), "h100_sxm": (0.025, 0.07)}
CHECKED = ("a100_sxm", "h100_sxm", "h200_sxm")
METHOD = ("every row of a (system, NCCL version, GPU count, size) left out in turn, the ends "
          "included")


def load(data):
    """The rows of all systems, with the NCCL version as the folder names it."""
    table = pd.read_csv(data / "nccl_intranode.csv.gz")
    table = table[table.system.isin(SYSTEMS.values())].copy()
    table["nccl"] = table.source_dir.str.split("/").str[-1]
    return table


def rows_of(table, system, op, nccl):
    """Reductions do arithmetic, so only 16-bit rows count there; moves depend on bytes alone."""
    rows = table[(table.system == system) & (table.op_name == OPS[op]) & (table.nccl == nccl)]
    return rows[rows.nccl_dtype == "half"] if op in REDUCTIONS else rows


def medians(rows):
    """Median time per size: (sizes, times)."""
    middle = rows.groupby("size_bytes").time_us.median()
    return middle.index.to_numpy(float), middle.to_numpy(float)


def held_out(rows):
    """(size, measured, predicted) of every row of one GPU count, its size unseen by the fit."""
    sizes, times = medians(rows)
    results = []
    for position, size in enumerate(sizes):
        seen = np.arange(len(sizes)) != position
        predicted = piecewise.evaluate(*piecewise.fit(sizes[seen], times[seen], KNOT_TOLERANCE), size)
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


def medians_at(table, system, op, nccl, gpus):
    rows = rows_of(table, system, op, nccl)
    return medians(rows[rows.num_gpus == gpus])


def transferred(table, op, own, own_nccl, donor, donor_nccl):
    """The stated law for 8 GPUs where only 2 and 4 were measured: the time of 4 GPUs times the
    donor machine's ratio of 8 GPUs to 4, size by size. (Of the ratios at 2 GPUs, at 4 and their
    mean, the one at 4 misses least where it can be checked.) Returns (sizes, times)."""
    sizes, eight = medians_at(table, donor, op, donor_nccl, 8)
    four = piecewise.fit(*medians_at(table, donor, op, donor_nccl, 4), 0.0)
    mine = piecewise.fit(*medians_at(table, own, op, own_nccl, 4), 0.0)
    return sizes, piecewise.evaluate(*mine, sizes) * eight / piecewise.evaluate(*four, sizes)


def law_residual(table, op):
    """The law's error where it can be checked: H100 with 8 GPUs from A100's 4 -> 8, and A100's
    from H100's, signed and by size."""
    size_all, measured, predicted = [], [], []
    for own, donor in (("h100_sxm", "a100_sxm"), ("a100_sxm", "h100_sxm")):
        sizes, times = transferred(table, op, own, "2.27.3", donor, "2.27.3")
        known_sizes, known = medians_at(table, own, op, "2.27.3", 8)
        size_all.append(sizes)
        measured.append(known[np.isin(known_sizes, sizes)])
        predicted.append(times)
    return common.residual(
        np.concatenate(measured), np.concatenate(predicted), np.concatenate(size_all), by="bytes",
        regions=((None, common.MIB + 1), (common.MIB + 1, None)), fewest=10,
        method="the law checked on H100 from A100 and on A100 from H100 (NCCL 2.27.3)")


def derived_branch(table, op, system, nccl):
    donor_nccl = DONOR_NCCL[nccl]
    sizes, times = transferred(table, op, system, nccl, "h100_sxm", donor_nccl)
    return branch(
        8, *piecewise.fit(sizes, times, KNOT_TOLERANCE), origin="derived",
        residual=law_residual(table, op),
        note=f"not measured: this machine's 4-GPU time times H100's ratio of 8 GPUs to 4 at the same "
             f"size, NCCL {donor_nccl}")


def links(system):
    """What tools/fit/gpu_count_law.py is told of how a machine's GPUs are joined."""
    profile = next(name for name, each in SYSTEMS.items() if each == system)
    topology = devices.TOPOLOGIES[profile]
    if topology["kind"] == "pcie":
        return {"kind": "pcie", "group": topology["gpus_per_group"],
                "group_bytes_per_us": topology["group_bytes_per_second"] / 1e6}
    return {"kind": "nvlink-switch", "port_bytes_per_us": devices.FIGURES[profile][-1] / 1e6,
            "switch_reduces": topology.get("switch_reduces", False)}


def law_check(table, op):
    """The count law's error where it can be checked: 8 GPUs from 2 and 4 behind NVLink switches,
    every NCCL version of A100 and H100, signed and by size."""
    size_all, measured, predicted = [], [], []
    for system in ("a100_sxm", "h100_sxm"):
        rows = table[(table.system == system) & (table.op_name == OPS[op])]
        for nccl in sorted(rows.nccl.unique()):
            fewer = [(gpus, piecewise.fit(*medians_at(table, system, op, nccl, gpus),
                                          KNOT_TOLERANCE)) for gpus in (2, 4)]
            knots = gpu_count_law.predict(op, links(system), fewer, 8)
            eight = rows_of(table, system, op, nccl)
            eight = eight[eight.num_gpus == 8]
            size_all.append(eight.size_bytes)
            measured.append(eight.time_us)
            predicted.append(piecewise.evaluate(*knots, eight.size_bytes))
    return common.residual(
        np.concatenate(measured), np.concatenate(predicted), np.concatenate(size_all), by="bytes",
        regions=((None, 64 * 1024 + 1), (64 * 1024 + 1, common.MIB),
                 (common.MIB, 16 * common.MIB + 1), (16 * common.MIB + 1, None)), fewest=10,
        method="8 GPUs from 2 and 4, every row of A100 and H100, all NCCL versions")


def law(table, op, system):
    return {"up_to": LAW_UP_TO[system], "residual": law_check(table, op),
            "note": "more GPUs than were measured: from the curves above and the topology by the law "
                    "of channels, ports and rings (sim/profile/gpu_count_law.hpp)"}


def curve(table, system, op, nccl):
    """The curve object of one operation under one NCCL version."""
    rows = rows_of(table, system, op, nccl)
    branches, unseen, at_measured = [], [], []
    for gpus, part in rows.groupby("num_gpus"):
        knots = piecewise.fit(*medians(part), KNOT_TOLERANCE)
        unseen += held_out(part)
        at_measured += seen(part, knots)
        branches.append(branch(gpus, *knots))
    extra, most = {}, max(each["gpus"] for each in branches)
    if op in BY_RATIO.get(system, ()):
        branches.append(derived_branch(table, op, system, nccl))
    elif LAW_UP_TO.get(system, 0) > most:
        extra["law"] = law(table, op, system)
    noise = rows.time_us / rows.groupby(["num_gpus", "size_bytes"]).time_us.transform("median") - 1
    return {
        "op": op,
        "params": {"nccl": nccl, "dtype": "half" if op in REDUCTIONS else "any"},
        "default": nccl == DEFAULT_NCCL[system],
        "model": "piecewise-alpha-beta",
        "branches": branches,
        **extra,
        "measured_bytes": sorted(float(each) for each in rows.size_bytes.unique()),
        "valid": {"gpus": [2, max([LAW_UP_TO.get(system, 0), *(each["gpus"] for each in branches)])],
                  "bytes": [float(rows.size_bytes.min()),
                                             float(rows.size_bytes.max())]},
        "residual": errors(unseen, METHOD),
        "residual_at_measured": errors(at_measured, "every row against the fit that saw it"),
        "noise": {"p90_abs": common.rounded(noise.abs().quantile(0.9)),
                  "of": "repeats and data types about the median of their size"},
        "origin": "published",
        "source": f"{SOURCE}, {rows.source_dir.iloc[0]}",
        "note": "GPU counts between those measured: linear in the count at equal bytes sent "
                "(bytes (n-1)/n). Below the smallest size the latency floor, beyond the largest "
                "the last piece's bandwidth.",
    }


def curves(data, profile):
    """All collective curves of a profile, by operation and NCCL version."""
    table, system = load(data), SYSTEMS[profile]
    found = []
    for op in OPS:
        versions = table[(table.system == system) & (table.op_name == OPS[op])].nccl.unique()
        found += [curve(table, system, op, nccl) for nccl in sorted(versions)]
    for each in found:
        if each["op"] == "all-to-all" and each["default"] and system in CHECKED:
            each["residual"]["checks"] = bar_checks(table, system)
    return found
