"""The published sweeps (gemm_*.csv.gz): which there are, their sources, the rows that count and how
much each weighs."""
import numpy as np
import pandas as pd

from tools.fit import common

TABLES = {"a100-sxm-80gb": "a100", "h100-sxm": "h100", "h200-sxm": "h200", "b200-sxm": "b200",
          "b300-sxm": "b300", "gb200": "gb200", "gb300": "gb300"}
# Data types of each table; a sweep is named by both (common.parts).
DTYPES = {"a100": ("bf16",), "h100": ("bf16", "fp8", "fp8_block"),
          "h200": ("bf16", "fp8", "fp8_block"),
          **{table: ("bf16", "fp8", "fp8_block", "nvfp4") for table in common.BLACKWELL}}
# The bf16 sweeps of Ampere and Hopper: searched longer, corrected on coarser grids.
FIRST_KIND = ("a100", "h100", "h200")
# Bytes of an element of A and B, its share of a scale included (one float per 128, one byte per 16).
ELEMENT_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.03125, "nvfp4": 0.5625}
SOURCE = "GEMM sweep (PyTorch linear, cuBLAS) of ai-dynamo/aiconfigurator (Apache-2.0)"
SOURCES = {
    "bf16": SOURCE,
    "fp8": "GEMM sweep (vLLM linear, CUTLASS FP8) of ai-dynamo/aiconfigurator (Apache-2.0)",
    "fp8_block": "GEMM sweep (vLLM linear, DeepGEMM 128 x 128) of ai-dynamo/aiconfigurator "
                 "(Apache-2.0)",
    "nvfp4": "GEMM sweep (vLLM linear, FlashInfer NVFP4) of ai-dynamo/aiconfigurator (Apache-2.0)"}
# Calls of fp8_block were not captured in a CUDA graph: short ones take what the host needs to issue
# them. Kept are shapes whose kernel takes at least twice that (us), at the highest rates that any
# row reaches (TFLOP/s, TB/s).
HOST_US = {"h100": 60.0, "h200": 60.0, "b200": 200.0, "b300": 200.0, "gb200": 320.0, "gb300": 320.0}
HIGHEST = {**{table: (1500.0, 3.0 if table == "h100" else 4.4) for table in ("h100", "h200")},
           **{table: (3300.0, 7.7) for table in common.BLACKWELL}}
LARGE_US, LARGE_WEIGHT = 100.0, 3.0


def of_first_kind(sweep):
    return sweep in FIRST_KIND


def element_bytes(sweep):
    return ELEMENT_BYTES[common.parts(sweep)[1]]


def beyond_host(rows, table):
    """Shapes of which a kernel surely takes twice as long as the host needs to issue it."""
    flops, rate = HIGHEST[table]
    compute = 2 * rows.m * rows.n * rows.k / (1e6 * flops)
    memory = rows.n * rows.k / (1e6 * rate)
    return np.maximum(compute, memory) > 2 * HOST_US[table]


def load(data, sweep):
    table, dtype = common.parts(sweep)
    separate = dtype == "fp8_block" and table in ("h100", "h200")
    rows = pd.read_csv(data / f"gemm_{table}{'_block' if separate else ''}.csv.gz")
    rows = rows[rows.gemm_dtype == ("bfloat16" if dtype == "bf16" else dtype)]
    if dtype == "fp8_block":
        rows = rows[~rows.kernel_source.str.startswith("Cutlass") & beyond_host(rows, table)]
    rows = rows.sort_values(["m", "n", "k"])
    rows["time_us"] = 1e3 * rows.latency_ms
    return rows[["m", "n", "k", "time_us"]].reset_index(drop=True).astype(float)


def importance(rows):
    """Long products decide a step."""
    return np.where(rows.time_us > LARGE_US, LARGE_WEIGHT, 1.0)


def product_ratios(data, source, target, dtype="bf16"):
    """(compute-bound, memory-bound): each product's time on `target` over that on `source`."""
    on_source, on_target = (load(data, common.sweep_of(table, dtype))
                            for table in (source, target))
    both = on_source.merge(on_target, on=["m", "n", "k"])
    ratio, least = both.time_us_y / both.time_us_x, both[["time_us_x", "time_us_y"]].min(axis=1)
    compute = (both.m >= 1024) & (both.n >= 1024) & (both.k >= 1024) & (least > 300)
    memory = (both.m <= 16) & (least > 100)
    return ratio[compute].to_numpy(), ratio[memory].to_numpy()
