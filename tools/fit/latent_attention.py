"""Causal prefill attention with latent keys and values (DeepSeek-V2, arXiv:2405.04434), from published
sweeps (mla_attention_*.csv.gz): the latents of a sequence projected up to keys and values of every
head, attention over them (head size 128 and 64 rotated), the cache written. The tile model of
tools/fit/attention with as many key heads as heads: the projection is work per token and head, as its
memory traffic is."""
import numpy as np
import pandas as pd

from tools.fit import common
from tools.fit.attention.corrections import FOOTPRINT_KNOTS
from tools.fit.attention.document import GOAL
from tools.fit.attention.fitted import describe, fit, held_out
from tools.fit.attention.sweeps import DTYPES, SHAPE
from tools.fit.attention.tiles import Machine

TABLES = {"h100-sxm": "h100", "h200-sxm": "h200", "b200-sxm": "b200", "b300-sxm": "b300",
          "gb200": "gb200", "gb300": "gb300"}
SOURCE = "latent attention sweep (vLLM, prefill) of ai-dynamo/aiconfigurator (Apache-2.0)"
HEAD_DIM = 192  # of queries and keys: 128 and 64 rotated
HEADS = np.array([0, 1, 2, 3, 4, 5, 6, 7.0])
SEQUENCES = np.log2([1, 32, 128, 256, 512, 1024, 1536, 2048, 4096, 8192, 16384, 32768])
TERMS = (("log2_sequence", SEQUENCES, "log2_tile_heads", np.arange(0, 17, 2.0)),
         ("log2_footprint", FOOTPRINT_KNOTS, "log2_kv_heads", HEADS))


def load(data, table, dtype):
    """One row per shape; `heads` are those of one rank."""
    rows = pd.read_csv(data / f"mla_attention_{table}.csv.gz")
    rows = rows[(rows.kv_cache_dtype == DTYPES[dtype]) & (rows.step == 0)]
    rows = rows.rename(columns={"batch_size": "batch", "isl": "sequence", "num_heads": "heads"})
    rows["time_us"], rows["kv_heads"] = 1e3 * rows.latency_ms, rows.heads
    rows["head_dim"] = HEAD_DIM
    return rows.groupby(SHAPE).time_us.median().reset_index()


def curve(data, profile, dtype, device):
    table = TABLES[profile]
    rows, machine = load(data, table, dtype), Machine(table, device, HEAD_DIM, TERMS)
    predicted = held_out(rows, machine)
    what = "all shapes" if dtype == "bf16" else f"{dtype} cache, all shapes"
    heads = rows.batch * rows.heads
    return {
        "op": "latent-attention",
        "params": {"dtype": dtype, "causal": True, "head_dim": HEAD_DIM, "latent": 512},
        **describe(fit(rows, machine), machine),
        "valid": {"sequence": [1, int(rows.sequence.max())], "batch_heads": [1, int(heads.max())],
                  "kv_heads": [1, int(rows.kv_heads.max())]},
        "residual": {**common.residual(rows.time_us, predicted, method=common.METHOD),
                     "checks": [common.check(what, rows.time_us, predicted, *GOAL)]},
        "origin": "published", "source": f"{SOURCE}: {table.upper()}",
        "note": "forward; heads of one rank. The measured call projects the latents (512 wide) up to "
                "keys and values, attends (192 for queries and keys, 128 for values) and writes the "
                f"cache in {dtype}. Backward = 2.5 x forward by FLOPs (assumed).",
    }


def curves(data, profile, devices, dtypes=None):
    """The curves of these data types of the cache; all that the tables hold if None."""
    return [] if profile not in TABLES else [
        curve(data, profile, dtype, devices[profile]) for dtype in DTYPES
        if dtypes is None or dtype in dtypes]
