"""Runs of nccl-tests inside a node, as published (nccl_intranode.csv.gz): which rows count, their medians,
and what the law of GPU counts makes of them."""
import pandas as pd

from tools.fit import devices, gpu_count_law, piecewise

REDUCTIONS = ("all-reduce", "reduce-scatter")
SYSTEMS = {"a100-sxm-80gb": "a100_sxm", "h100-sxm": "h100_sxm", "h200-sxm": "h200_sxm",
           "b200-sxm": "b200_sxm", "gb200": "gb200", "l40s": "l40s",
           "rtx-pro-6000": "rtx_pro_6000_server"}
# The version that answers when a query names none: the one measured most often, or the only one.
# GB200's folder "2.23" was measured more often than 2.29.2, but its runs record 2.29.2 themselves.
DEFAULT_NCCL = {"a100_sxm": "2.27.3", "h100_sxm": "2.27.3", "h200_sxm": "2.26.2",
                "b200_sxm": "2.27.3", "gb200": "2.29.2", "l40s": "2.27.3",
                "rtx_pro_6000_server": "2.29.2"}
OPS = {"all-to-all": "alltoall", "all-reduce": "all_reduce", "all-gather": "all_gather",
       "reduce-scatter": "reduce_scatter"}
KNOT_TOLERANCE = 0.02


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


def medians_at(table, system, op, nccl, gpus):
    rows = rows_of(table, system, op, nccl)
    return medians(rows[rows.num_gpus == gpus])


def links(system):
    """What tools/fit/gpu_count_law.py is told of how a machine's GPUs are joined."""
    profile = next(name for name, each in SYSTEMS.items() if each == system)
    topology = devices.TOPOLOGIES[profile]
    if topology["kind"] == "pcie":
        return {"kind": "pcie", "group": topology["gpus_per_group"],
                "group_bytes_per_us": topology["group_bytes_per_second"] / 1e6}
    return {"kind": "nvlink-switch", "port_bytes_per_us": devices.FIGURES[profile][-1] / 1e6,
            "switch_reduces": topology.get("switch_reduces", False)}


def law_curves(table, op, system, nccl):
    """The measured curves that the law starts from: [(GPU count, knots)]."""
    return [(count, piecewise.fit(*medians_at(table, system, op, nccl, count), KNOT_TOLERANCE))
            for count in (2, 4)]


def law_knots(table, op, system, nccl, gpus):
    """Up to the largest size that 2 and 4 GPUs were measured at."""
    fewer = law_curves(table, op, system, nccl)
    sizes, times = gpu_count_law.predict(op, links(system), fewer, gpus)
    inside = sizes <= fewer[-1][1][0][-1]
    return sizes[inside], times[inside]


def rack_base(table):
    """GB200's curves among the GPU counts that GB300 was measured among, without tails."""
    nccl = DEFAULT_NCCL["gb200"]
    four = piecewise.fit(*medians_at(table, "gb200", "all-to-all", nccl, 4), KNOT_TOLERANCE)
    return {4: four, **{gpus: law_knots(table, "all-to-all", "gb200", nccl, gpus)
                        for gpus in (8, 64)}}
