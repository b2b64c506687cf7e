"""Which peers there are: kernels made for this, then quick ones, then those that take long to
compile or run, so that a limit of time costs what is needed least. One that is dropless keeps to no
limit of rows, which ours does: it has less to do."""

from dataclasses import dataclass

from peers import torch_peers as pytorch
from peers import triton_peers as triton

PERMUTE = ("permute-top1", "permute-top2", "permute-top8-h7168", "permute-top8")
COMBINE = ("combine-top1", "combine-top2", "combine-top8-h7168", "combine-top8")
SUMS = ("permute-backward-top1", "permute-backward-top2", "permute-backward-top8")
GRADIENTS = ("combine-backward-top1", "combine-backward-top2", "combine-backward-top8")
CHOOSE = ("choose-top2-e64", "choose-top8-e256")
ASSIGN = ("assign-token-max", "assign-position")


@dataclass(frozen=True)
class Peer:
    benchmark: str  # its id in kernels/measure/benchmarks/kernel_benchmarks.cpp
    name: str
    # Of a case and Tools: the work, which takes a copy and returns a result; or that and what
    # brings such a result into the form that the case checks.
    build: object
    # Triton's interpreter, which runs kernels on the CPU, has no sums in bf16, and whole numbers
    # of Python's own in loops.
    interpreted: bool = True


def of(benchmarks, name, build, interpreted=True):
    return [Peer(benchmark, name, build, interpreted) for benchmark in benchmarks]


EAGER = [
    *of(CHOOSE, "PyTorch: softmax, topk", pytorch.choose),
    *of(["gate-bf16"], "PyTorch: mm, softmax, topk", pytorch.gate),
    *of(["gate-bf16"], "PyTorch: mm to fp32, softmax, topk", pytorch.gate_float_logits),
    *of(ASSIGN, "PyTorch: stable sort, searchsorted, scatter",
        pytorch.assign(pytorch.slots_by_sort)),
    *of(ASSIGN, "PyTorch: one_hot, cumsum", pytorch.assign(pytorch.slots_by_one_hot)),
    *of(["route-top2"], "PyTorch: softmax, topk, stable sort",
        pytorch.route(pytorch.slots_by_sort)),
    *of(["route-top8-e256"], "PyTorch: softmax, topk, argsort, dropless", pytorch.route_all()),
    *of(["dispatch-top2"], "PyTorch: mm, softmax, topk, argsort, select, dropless",
        pytorch.dispatch),
    *of(["backward-top2"], "PyTorch: softmax, gather, scatter_add_", pytorch.router_backward()),
    *of(PERMUTE, "PyTorch: index_select", pytorch.permute_select),
    *of(COMBINE, "PyTorch: embedding_bag", pytorch.combine_embedding_bag),
    *of(COMBINE, "PyTorch: mul, index_add_", pytorch.combine_index_add),
    *of(SUMS, "PyTorch: embedding_bag", pytorch.combine_embedding_bag),
    *of(SUMS, "PyTorch: index_add_", pytorch.combine_index_add),
    *of(GRADIENTS, "PyTorch: index, mul, sum", pytorch.combine_backward()),
]
WHEELS = [
    *of(CHOOSE, "SGLang: moe_fused_gate", triton.choose_fused_gate),
    *of(["gate-bf16"], "SGLang: fused_moe_router", triton.gate_router),
    *of(["gate-bf16"], "PyTorch mm, SGLang: moe_fused_gate", triton.gate_fused_gate),
    *of(["route-top8-e256"], "SGLang: moe_fused_gate, sort, src2dst, dropless",
        triton.route_preprocess),
    *of(["route-top8-e256"], "SGLang: moe_fused_gate, TE: row_id_map, dropless",
        triton.route_mask_map),
    *of(["dispatch-top2"], "PyTorch mm, SGLang: gate, sort, permute, dropless", triton.dispatch),
    *of(PERMUTE, "SGLang: moe_permute", triton.permute_rows),
    *of(COMBINE, "SGLang: moe_unpermute", triton.combine_unpermute, interpreted=False),
    *of(COMBINE, "SGLang: ep_gather", triton.combine_gather, interpreted=False),
    *of(PERMUTE, "TE: permute_with_mask_map", triton.permute_mask_map()),
    *of(COMBINE, "TE: unpermute_with_mask_map", triton.combine_mask_map()),
    *of(SUMS, "TE: unpermute_with_mask_map", triton.combine_mask_map()),
    *of(GRADIENTS, "TE: unpermute backward", triton.combine_backward_mask_map),
]
COMPILED = [
    *of(["gate-bf16"], "torch.compile: mm, softmax, topk", pytorch.gate_compiled()),
    *of(CHOOSE, "torch.compile: softmax, topk", pytorch.choose_compiled),
    *of(COMBINE[:3], "torch.compile: gather, mul, sum", pytorch.combine_compiled),
    *of(SUMS[1:2], "torch.compile: gather, sum", pytorch.combine_compiled),
    *of(PERMUTE[1:3], "torch.compile: index", pytorch.permute_compiled),
    *of(["backward-top2"], "torch.compile: softmax, gather, scatter",
        pytorch.router_backward(compiled=True)),
    *of(GRADIENTS[1:2], "torch.compile: index, mul, sum", pytorch.combine_backward(compiled=True)),
    *of(["assign-token-max"], "torch.compile: one_hot, cumsum",
        pytorch.assign(pytorch.slots_by_one_hot, compiled=True)),
    *of(["route-top8-e256"], "torch.compile: softmax, topk, argsort, dropless",
        pytorch.route_all(compiled=True)),
]
SLOW = [
    *of(CHOOSE[1:], "PyTorch softmax, SGLang: gate_topk", triton.choose_gate_topk),
    *of(PERMUTE[1:3], "SGLang: ep_scatter, rows by atomics", triton.permute_scatter,
        interpreted=False),
    *of(PERMUTE[2:3], "TE: permute_with_mask_map, padded", triton.permute_mask_map(padded=True)),
    *of(COMBINE[2:3], "TE: unpermute_with_mask_map, padded", triton.combine_mask_map(padded=True)),
    *of(["grouped-mm"], "PyTorch: _grouped_mm", pytorch.grouped_mm),
    *of(["grouped-mm"], "PyTorch: bmm", pytorch.product_each),
    *of(PERMUTE[:2], "one-hot einsum", pytorch.permute_einsum),
    *of(COMBINE[:2], "one-hot einsum", pytorch.combine_einsum),
    *of(["gate-bf16"], "torch.compile max-autotune: mm, softmax, topk",
        pytorch.gate_compiled("max-autotune-no-cudagraphs")),
]
PEERS = WHEELS + EAGER + COMPILED + SLOW
