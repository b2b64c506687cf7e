"""Triton kernels of SGLang and TransformerEngine, called as their own layers call them."""

import torch

MOE = "sglang.kernels.ops.moe."
PERMUTATION = "transformer_engine.pytorch.triton.permutation"


def choose_fused_gate(case, tools):
    fused_gate = tools.wheels.module(MOE + "moe_fused_gate").moe_fused_gate
    return lambda copy: fused_gate(case.logits, None, case.shape.k, scoring_func="softmax",
                                   renormalize=False)


def choose_gate_topk(case, tools):
    gate_topk = tools.wheels.module(MOE + "gate_topk").gate_topk
    return lambda copy: gate_topk(torch.softmax(case.logits, dim=-1), case.shape.k)


def gate_router(case, tools):
    router = tools.wheels.module(MOE + "router").fused_moe_router_shim
    return lambda copy: router(0, case.x[copy], case.w, case.shape.k, renormalize=False)


def gate_fused_gate(case, tools):
    fused_gate = tools.wheels.module(MOE + "moe_fused_gate").moe_fused_gate
    return lambda copy: fused_gate(case.x[copy] @ case.w.t(), None, case.shape.k,
                                   scoring_func="softmax", renormalize=False)


def dispatch(case, tools):
    fused_gate = tools.wheels.module(MOE + "moe_fused_gate").moe_fused_gate
    kernels = tools.wheels.module(MOE + "ep_moe_kernels")

    def work(copy):
        x = case.x[copy]
        share, expert = fused_gate(x @ case.w.t(), None, case.shape.k, scoring_func="softmax",
                                   renormalize=False)
        row = kernels.cutlass_w4_run_moe_ep_preproess(expert)
        return share, expert, row, kernels._moe_permute_rows(x, expert, row)

    return work


def permute_rows(case, tools):
    permute = tools.wheels.module(MOE + "ep_moe_kernels")._moe_permute_rows
    routes = case.routes
    expert, row = routes.expert.int(), routes.row.int()
    return lambda copy: permute(case.x[copy], expert, row)


def permute_scatter(case, tools):
    """Which also gives each route its row, by an atomic addition: rows in any order."""
    scatter = tools.wheels.module(MOE + "ep_moe_kernels").ep_scatter
    shape, routes = case.shape, case.routes
    device, each = routes.row.device, routes.count // shape.experts
    expert = routes.expert.int()
    counts = torch.full((shape.experts,), each, dtype=torch.int32, device=device)

    def work(copy):
        x = case.x[copy]
        out = torch.empty(routes.count, shape.hidden, dtype=x.dtype, device=device)
        begin = torch.empty(shape.experts, dtype=torch.int32, device=device)
        expert_of_row = torch.empty(routes.count, dtype=torch.int32, device=device)
        row = torch.empty(shape.tokens, shape.k, dtype=torch.int32, device=device)
        scatter(x, None, expert, counts, counts, begin, out, None, expert_of_row, row,
                expert_alignment=min(128, each & -each))
        return out, row

    def read(result):
        out, row = result
        row = row.long()
        whole = torch.equal(row.reshape(-1).sort().values,
                            torch.arange(routes.count, device=device))
        if not whole or not torch.equal(row // each, routes.expert):
            return torch.full_like(out, float("nan"))
        return out[row.reshape(-1)[routes.route_of_row]]

    return work, read


def map_of(case, tools):
    """TransformerEngine's map of the routes: rows by expert, then token."""
    permutation = tools.wheels.module(PERMUTATION)
    shape, routes = case.shape, case.routes
    mask = torch.zeros(shape.tokens, shape.experts, dtype=torch.int32, device=routes.row.device)
    mask.scatter_(1, routes.expert, 1)
    return permutation, permutation.make_row_id_map(mask, shape.tokens, shape.experts)


def permute_mask_map(padded=False):
    def build(case, tools):
        permutation, row_map = map_of(case, tools)
        shape, count = case.shape, case.routes.count
        # All experts have as many rows as they are padded to: padding costs the clearing alone.
        pads = torch.zeros(shape.experts, dtype=torch.int64,
                           device=row_map.device) if padded else None
        return lambda copy: permutation.permute_with_mask_map(
            case.x[copy], row_map, None, None, pads, shape.tokens, shape.experts, count,
            shape.hidden, None)[0]

    return build


def dense_weights(case):
    shape, routes = case.shape, case.routes
    dense = torch.zeros(shape.tokens, shape.experts, device=routes.row.device)
    return dense.scatter_(1, routes.expert, routes.weight)


def combine_mask_map(padded=False):
    def build(case, tools):
        permutation, row_map = map_of(case, tools)
        shape = case.shape
        weights = dense_weights(case) if getattr(case, "weighted", True) else None
        pads = torch.zeros(shape.experts, dtype=torch.int64,
                           device=row_map.device) if padded else None
        return lambda copy: permutation.unpermute_with_mask_map(
            case.rows[copy], row_map, weights, None, pads, shape.tokens, shape.experts,
            shape.hidden)[0]

    return build


def combine_backward_mask_map(case, tools):
    permutation, row_map = map_of(case, tools)
    shape, routes = case.shape, case.routes
    weights = dense_weights(case)
    work = lambda copy: permutation.unpermute_with_mask_map_bwd_with_merging_probs(
        case.gradient[copy], row_map, case.rows[copy], weights, None, shape.tokens, shape.experts,
        routes.count, shape.hidden)
    return work, lambda result: (result[0], result[1].gather(1, routes.expert))


def combine_unpermute(case, tools):
    unpermute = tools.wheels.module(MOE + "ep_moe_kernels").moe_unpermute
    routes = case.routes
    expert, row = routes.expert.int(), routes.row.int()
    weight = routes.weight if case.weighted else torch.ones_like(routes.weight)
    return lambda copy: unpermute(case.rows[copy], row, expert, weight)


def combine_gather(case, tools):
    gather = tools.wheels.module(MOE + "ep_moe_kernels").ep_gather
    shape, routes = case.shape, case.routes
    expert, row = routes.expert.int(), routes.row.int()
    weight = routes.weight if case.weighted else torch.ones_like(routes.weight)

    def work(copy):
        rows = case.rows[copy]
        out = torch.empty(shape.tokens, shape.hidden, dtype=rows.dtype, device=rows.device)
        gather(rows, expert, weight, row, out)
        return out

    return work


def route_preprocess(case, tools):
    """SGLang's gate, then its sort and kernel that give each route its row."""
    fused_gate = tools.wheels.module(MOE + "moe_fused_gate").moe_fused_gate
    number = tools.wheels.module(MOE + "ep_moe_kernels").cutlass_w4_run_moe_ep_preproess

    def work(copy):
        weights, experts = fused_gate(case.logits, None, case.shape.k, scoring_func="softmax",
                                      renormalize=False)
        return weights, experts, number(experts)

    return work


def route_mask_map(case, tools):
    """SGLang's gate, then TransformerEngine's map."""
    fused_gate = tools.wheels.module(MOE + "moe_fused_gate").moe_fused_gate
    permutation = tools.wheels.module(PERMUTATION)
    tokens, experts, k = case.shape.tokens, case.shape.experts, case.shape.k

    def work(copy):
        weights, expert = fused_gate(case.logits, None, k, scoring_func="softmax",
                                     renormalize=False)
        mask = torch.zeros(tokens, experts, dtype=torch.int32, device=expert.device)
        mask.scatter_(1, expert.long(), 1)
        return weights, expert, permutation.make_row_id_map(mask, tokens, experts)

    def read(result):
        weights, expert, row_map = result
        row = torch.empty_like(expert)
        # The map lists a token's experts in an order of its own.
        row_of = torch.full((tokens, experts), -1, dtype=torch.int32, device=expert.device)
        row_of.scatter_(1, row_map[:, experts:experts + k].long(), row_map[:, :k])
        row.copy_(row_of.gather(1, expert.long()))
        return weights, expert, row

    return work, read
