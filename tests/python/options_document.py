"""What the program says of its options and columns."""

import csv
import functools
import io

from command_line import SMALL, as_json

COLUMNS = """status reason model profile cluster router priority weights fill_order ir_compute
dispatch mode routing gpus expert_parallel experts top_k capacity_factor capacity_convention
capacity_scope capacity sequence_length micro_batch tokens_per_gpu checkpointing zero network
replicas seed step_ms step_ms_p05 step_ms_p95 tokens_per_s_per_gpu failed partial lost_mass
fill_failed failed_attempted unrouted residual_loss padded duplicate_ir attention_ms dense_ffn_ms
router_ms dispatch_combine_ms expert_ms rectify_ms exposed_exchange_ms gradient_ms optimizer_ms
other_ms exchange_ms memory_gib fits_memory provenance""".split()


@functools.cache
def document():
    """What the program says of its options and columns."""
    return as_json("options")


def column_names():
    return [column["name"] for column in document()["columns"]]


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


GRID = ["sweep", *SMALL, "--mode", "prefill", "--capacity-factor", "0.5:1.5:0.5", "--router",
        "top1,top2+ir,top9", "--gpus", "8,12"]
