"""The published sweeps (attention_*.csv.gz): which there are, the kernels that ran, and the rows that
count."""
import pandas as pd

TABLES = {"a100-sxm-80gb": "a100", "h100-sxm": "h100", "h200-sxm": "h200", "b200-sxm": "b200",
          "b300-sxm": "b300", "gb200": "gb200", "gb300": "gb300"}
# Data types of the cached keys and values, as curves and as tables name them.
DTYPES = {"bf16": "bfloat16", "fp8": "fp8"}
SOURCE = "vLLM attention sweep of ai-dynamo/aiconfigurator (Apache-2.0)"
KERNELS = {"vllm_flash_attn_fa3": "FlashAttention-3", "vllm_flash_attn_fa4": "FlashAttention-4",
           "vllm_flashinfer_trtllmprefill": "FlashInfer (TensorRT-LLM)", "vllm_triton_attn": "Triton"}
SHAPE = ["batch", "sequence", "heads", "kv_heads", "head_dim"]


def load(data, table, dtype="bf16"):
    """One row per shape (medians of repeats): keys and values cached in `dtype`, no window."""
    rows = pd.read_csv(data / f"attention_{table}.csv.gz")
    rows = rows[rows.kv_cache_dtype == DTYPES[dtype]]
    if "window_size" in rows:
        rows = rows[rows.window_size == 0]
    rows = rows.rename(columns={"batch_size": "batch", "isl": "sequence", "num_heads": "heads",
                                "num_key_value_heads": "kv_heads"})
    rows["time_us"] = 1e3 * rows.latency_ms
    rows = rows.groupby(SHAPE).agg(time_us=("time_us", "median"),
                                   kernel=("kernel_source", "first")).reset_index()
    return rows


def kernel_of(rows, table):
    return "FlashAttention-2" if table == "a100" else KERNELS[rows.kernel.mode()[0]]
