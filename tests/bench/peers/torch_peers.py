"""PyTorch's ways to do what this project's kernels do: call after call, and compiled."""

import torch
from torch.nn.functional import embedding_bag, one_hot


def choose(case, tools):
    k = case.shape.k
    return lambda copy: torch.topk(torch.softmax(case.logits, dim=-1), k, dim=-1)


def choose_compiled(case, tools):
    k = case.shape.k
    function = tools.compiled(lambda x: torch.topk(torch.softmax(x, dim=-1), k, dim=-1))
    return lambda copy: function(case.logits)


def gate(case, tools):
    """Logits rounded to bf16, as nn.Linear makes them."""
    k, w = case.shape.k, case.w
    return lambda copy: torch.topk(torch.softmax((case.x[copy] @ w.t()).float(), dim=-1), k, dim=-1)


def gate_float_logits(case, tools):
    k, w = case.shape.k, case.w
    if tools.device == "cpu":  # which has no such product
        product = lambda x: x.float() @ w.t().float()
    else:
        product = lambda x: torch.mm(x, w.t(), out_dtype=torch.float32)
    return lambda copy: torch.topk(torch.softmax(product(case.x[copy]), dim=-1), k, dim=-1)


def gate_compiled(mode=None):
    def build(case, tools):
        k = case.shape.k
        function = tools.compiled(
            lambda x, w: torch.topk(torch.softmax((x @ w.t()).float(), dim=-1), k, dim=-1), mode)
        return lambda copy: function(case.x[copy], case.w)

    return build


def slots_by_one_hot(share, expert, experts, capacity, by_share):
    """One-hots and their running sum, as GShard's and Tutel's code has it."""
    tokens, k = expert.shape
    chosen = expert
    if by_share:
        first = torch.argsort(share[:, 0], descending=True, stable=True)
        chosen = expert[first]
    mask = one_hot(chosen.t().reshape(-1), experts)
    place = (torch.cumsum(mask, dim=0) * mask).sum(dim=1) - 1
    place = torch.where(place < capacity, place, -1).view(k, tokens)
    if not by_share:
        return place
    slot = torch.empty_like(place)
    slot[:, first] = place
    return slot


def slots_by_sort(share, expert, experts, capacity, by_share):
    """A stable sort of the queue by expert; one pass of radix sort for up to 256 experts."""
    tokens, k = expert.shape
    small = expert.to(torch.uint8) if experts <= 256 else expert.to(torch.int16)
    if by_share:
        first = torch.argsort(share[:, 0], descending=True, stable=True)
        small = small[first]
    sorted_, order = torch.sort(small.t().reshape(-1), stable=True)
    begin = torch.searchsorted(sorted_, torch.arange(experts, device=expert.device,
                                                     dtype=small.dtype))
    place = torch.arange(tokens * k, device=expert.device) - begin[sorted_.long()]
    place = torch.where(place < capacity, place, -1)
    if by_share:
        order = order // tokens * tokens + first[order % tokens]
    return torch.empty_like(place).scatter_(0, order, place).view(k, tokens)


def assign(rule, compiled=False):
    def build(case, tools):
        experts, capacity, by_share = case.shape.experts, case.capacity, case.by_share
        function = lambda share, expert: rule(share, expert, experts, capacity, by_share)
        if compiled:
            function = tools.compiled(function)
        return lambda copy: function(case.share, case.expert)

    return build


def route(rule, compiled=False):
    def build(case, tools):
        k, experts, capacity = case.shape.k, case.shape.experts, case.capacity

        def function(logits):
            share, expert = torch.topk(torch.softmax(logits, dim=-1), k, dim=-1)
            slot = rule(share, expert, experts, capacity, True)
            kept = torch.where(slot >= 0, share.t(), 0.0)
            return slot, kept / kept.sum(dim=0).clamp_min(1e-30)

        if compiled:
            function = tools.compiled(function)
        return lambda copy: function(case.logits)

    return build


def rows_by_sort(expert, experts):
    """The row of each route [S, k], in the order of experts."""
    small = expert.to(torch.uint8) if experts <= 256 else expert.to(torch.int16)
    order = torch.argsort(small.reshape(-1), stable=True)
    row = torch.empty(order.numel(), dtype=torch.int64, device=expert.device)
    row.scatter_(0, order, torch.arange(order.numel(), device=expert.device))
    return row.view(expert.shape)


def route_all(compiled=False):
    def build(case, tools):
        k, experts = case.shape.k, case.shape.experts

        def function(logits):
            share, expert = torch.topk(torch.softmax(logits, dim=-1), k, dim=-1)
            return share, expert, rows_by_sort(expert, experts)

        if compiled:
            function = tools.compiled(function)
        return lambda copy: function(case.logits)

    return build


def dispatch(case, tools):
    """Without a limit of rows, which ours keeps to."""
    k, experts = case.shape.k, case.shape.experts

    def work(copy):
        x = case.x[copy]
        share, expert = torch.topk(torch.softmax((x @ case.w.t()).float(), dim=-1), k, dim=-1)
        small = expert.to(torch.uint8) if experts <= 256 else expert.to(torch.int16)
        route = torch.argsort(small.reshape(-1), stable=True)
        return share, expert, route, torch.index_select(x, 0, route // k)

    def read(result):
        share, expert, route, rows = result
        row = torch.empty_like(route)
        row[route] = torch.arange(route.numel(), device=route.device)
        return share, expert, row, rows

    return work, read


def router_backward(compiled=False):
    def build(case, tools):
        def function(logits, expert, kept, upstream):
            shares = torch.softmax(logits, dim=-1)
            mass = shares.gather(1, expert) * kept
            part = mass / mass.sum(dim=-1, keepdim=True).clamp_min(1e-30) * upstream
            gradient = -shares * part.sum(dim=-1, keepdim=True)
            return gradient.scatter_add_(1, expert, part)

        if compiled:
            function = tools.compiled(function)
        return lambda copy: function(case.logits, case.expert, case.kept, case.upstream)

    return build


def permute_select(case, tools):
    token = case.routes.token_of_row
    return lambda copy: torch.index_select(case.x[copy], 0, token)


def permute_compiled(case, tools):
    token = case.routes.token_of_row
    function = tools.compiled(lambda x, token: x[token])
    return lambda copy: function(case.x[copy], token)


def one_hot_mask(case):
    """[S, E, C], of GShard's dispatch (Lepikhin et al. 2020, algorithm 1)."""
    shape, routes = case.shape, case.routes
    device = routes.row.device
    mask = torch.zeros(shape.tokens, routes.count, dtype=torch.bfloat16, device=device)
    mask[routes.token_of_row, torch.arange(routes.count, device=device)] = 1
    return mask.view(shape.tokens, shape.experts, -1)


def permute_einsum(case, tools):
    mask = one_hot_mask(case)
    read = lambda result: result.reshape(case.routes.count, -1)
    return lambda copy: torch.einsum("sec,sh->ech", mask, case.x[copy]), read


def combine_index_add(case, tools):
    shape, routes = case.shape, case.routes
    weight = routes.weight.reshape(-1)[routes.route_of_row][:, None].bfloat16()

    def work(copy):
        rows = case.rows[copy]
        out = torch.zeros(shape.tokens, shape.hidden, device=rows.device, dtype=rows.dtype)
        return out.index_add_(0, routes.token_of_row, rows * weight if case.weighted else rows)

    return work


def combine_embedding_bag(case, tools):
    row = case.routes.row
    weight = case.routes.weight.bfloat16() if case.weighted else None
    return lambda copy: embedding_bag(row, case.rows[copy], per_sample_weights=weight, mode="sum")


def combine_compiled(case, tools):
    row, weight = case.routes.row, case.routes.weight[:, :, None]
    if case.weighted:
        function = tools.compiled(
            lambda rows, row, weight: (rows[row].float() * weight).sum(dim=1).bfloat16())
    else:
        function = tools.compiled(
            lambda rows, row, weight: rows[row].float().sum(dim=1).bfloat16())
    return lambda copy: function(case.rows[copy], row, weight)


def combine_einsum(case, tools):
    shape, routes = case.shape, case.routes
    mask = one_hot_mask(case)
    mask *= routes.weight.reshape(-1)[routes.route_of_row].bfloat16().view(1, shape.experts, -1)
    rows = case.rows.view(case.copies, shape.experts, -1, shape.hidden)
    return lambda copy: torch.einsum("sec,ech->sh", mask, rows[copy])


def combine_backward(compiled=False):
    def build(case, tools):
        routes = case.routes
        weight = routes.weight.reshape(-1)[routes.route_of_row][:, None].bfloat16()

        def function(gradient, rows, token, weight, row):
            of_token = gradient[token]
            product = (of_token.float() * rows.float()).sum(dim=1)
            return of_token * weight, product[row]

        if compiled:
            function = tools.compiled(function)
        return lambda copy: function(case.gradient[copy], case.rows[copy], routes.token_of_row,
                                     weight, routes.row)

    return build


def grouped_mm(case, tools):
    return lambda copy: torch._grouped_mm(case.x, case.w, offs=case.ends)


def product_each(case, tools):
    rows = case.shape.rows
    x = case.x.view(case.shape.experts, rows, -1)

    def work(copy):
        return torch.bmm(x, case.w).view(case.x.shape[0], -1)

    return work
