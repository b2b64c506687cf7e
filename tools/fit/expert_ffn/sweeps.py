"""The published sweeps (moe_compute_*.csv.gz): which there are, the kernels that ran, and the rows that
count."""
import numpy as np
import pandas as pd

from tools.fit import common
from tools.fit.expert_ffn.loads import LOAD, with_blocks
from tools.fit.expert_ffn.tiles import tiles_of

TABLES = {"a100-sxm-80gb": "a100", "h100-sxm": "h100", "b200-sxm": "b200", "b300-sxm": "b300",
          "gb200": "gb200", "gb300": "gb300"}
SOURCE = "vLLM fused MoE sweep (Triton) of ai-dynamo/aiconfigurator (Apache-2.0)"
# The kernel that most rows of a sweep ("h100": bf16; "h100 fp8") ran; rows of other kernels do not count:
# (data type in the table, part of the kernel's name, how the source calls it)
SWEEPS = {
    "a100": ("bfloat16", "", "Triton"), "h100": ("bfloat16", "", "Triton"),
    "h100 fp8": ("fp8", "cutlass", "FlashInfer CUTLASS"),
    "h100 fp8_block": ("fp8_block", "cutlass", "FlashInfer CUTLASS, one tensor-parallel rank"),
    **{name: value for table in common.BLACKWELL for name, value in {
        table: ("bfloat16", "trtllmbf16experts", "FlashInfer TensorRT-LLM"),
        f"{table} fp8": ("fp8", "monolithic", "FlashInfer TensorRT-LLM, routing included"),
        f"{table} fp8_block": ("fp8_block", "monolithic",
                               "FlashInfer TensorRT-LLM, routing included"),
        f"{table} nvfp4": ("nvfp4", "monolithic", "FlashInfer TensorRT-LLM, routing included"),
        f"{table} mxfp4": ("w4a8_mxfp4_mxfp8", "mxfp4", "FlashInfer TensorRT-LLM, MXFP4 weights, "
                                                         "MXFP8 activations")}.items()}}
SHAPE = [*LOAD, "hidden_size", "inter_size", "moe_tp_size"]
# What the curve is about: Triton loads whole vectors (other sizes run up to twice as long); the
# experts are gated (Nemotron-H's, hidden 2,688 and 22 choices, are not); with more groups of
# experts most of the time goes to rows of other ranks.
ALIGNMENT, MOST_GROUPS = 16, 8
# (local experts, FFN size) for which the engine ships tuned tiles of that GPU in bf16; others get its
# default, which takes up to 1.5 times as long. From vLLM 0.11.0 (Apache-2.0), fused_moe/configs,
# NVIDIA_A100-SXM4-80GB. H100's sweep, of a later release with better defaults, shows no difference.
TUNED = {"a100": [(1, 1792), (1, 3584), (1, 7168), (1, 14336), (8, 1792), (8, 2048), (8, 3584),
                  (8, 4096), (8, 7168), (16, 1344), (16, 1792), (16, 2688), (16, 3584), (16, 7168),
                  (16, 14336), (64, 640), (64, 1280), (128, 192)]}


def of_first_kind(sweep):
    """The bf16 sweeps of Ampere and Hopper, searched longer."""
    return sweep in ("a100", "h100")


def load(data, sweep):
    dtype, kernel, _ = SWEEPS[sweep]
    rows = pd.read_csv(data / f"moe_compute_{common.parts(sweep)[0]}.csv.gz")
    rows = rows[(rows.moe_dtype == dtype) & rows.kernel_source.str.contains(kernel)]
    rows = rows.sort_values(SHAPE).reset_index(drop=True)
    rows["time_us"] = 1e3 * rows.latency_ms
    inside = ((rows.inter_size // rows.moe_tp_size % ALIGNMENT == 0)
              & (rows.moe_ep_size <= MOST_GROUPS) & (rows.hidden_size != 2688) & (rows.topk != 22))
    rows = with_blocks(rows[inside].reset_index(drop=True), np.unique(tiles_of(sweep)[:, 0]))
    rows["tuned"] = is_tuned(rows, TUNED.get(sweep, []))
    return rows[rows.rows > 0].reset_index(drop=True)


def is_tuned(rows, sizes):
    """[rows] whether tiles are tuned for the row's experts and FFN size."""
    return [size in sizes for size in zip(rows.experts, rows.ffn)]


def tuned_sizes(sweep):
    """The key of the curve object, if tuned sizes of the sweep's engine are known."""
    sizes = TUNED.get(sweep)
    if sizes is None:
        return {}
    return {"tuned_sizes": {"experts": [each[0] for each in sizes],
                            "ffn": [each[1] for each in sizes]}}


def source_of(sweep):
    table, kernel = common.parts(sweep)[0], SWEEPS[sweep][2]
    engine = SOURCE if of_first_kind(sweep) else SOURCE.replace("Triton", kernel)
    return f"{engine}: {table.upper()}"


def sweeps_of(profile, dtypes=None):
    """The sweeps of a machine, of these data types (None: all)."""
    return [sweep for sweep in SWEEPS if common.parts(sweep)[0] == TABLES.get(profile)
            and (dtypes is None or common.parts(sweep)[1] in dtypes)]
