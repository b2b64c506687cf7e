"""The inputs of each benchmark, drawn once, and a plain reference for what peers make of them."""

import math

import torch

from peers.shapes import Choices, Products, Rows


class Place:
    """Where the inputs are, and how many copies of them pass twice the L2 together, as for this
    project's kernels."""

    def __init__(self, device, seed=1):
        self.device = device
        self.draws = torch.Generator(device=device)
        self.draws.manual_seed(seed)

    def copies(self, bytes_of_one):
        if self.device == "cpu":
            return 2
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        wanted = math.ceil(2 * l2 / bytes_of_one) + 1
        fitting = int(0.4 * torch.cuda.mem_get_info()[0] / bytes_of_one)
        return max(min(wanted, fitting, 256), 1)

    def normal(self, *size):
        return torch.randn(*size, generator=self.draws, device=self.device)

    def uniform(self, least, most, *size):
        return torch.rand(*size, generator=self.draws, device=self.device) * (most - least) + least

    def bf16(self, scale, *size):
        """Between -`scale` and `scale`. Filled piece by piece: no float copy of the whole."""
        out = torch.empty(size, dtype=torch.bfloat16, device=self.device)
        for piece in out.view(-1).split(1 << 26):
            piece.copy_(self.uniform(-scale, scale, piece.numel()))
        return out

    def order(self, count):
        return torch.randperm(count, generator=self.draws, device=self.device)


class Routes:
    """k experts a token, every expert as many rows: rows by expert, then by token."""

    def __init__(self, place, shape):
        tokens, experts, k = shape.tokens, shape.experts, shape.k
        device = place.device
        turn = place.order(tokens)[:, None]
        self.expert = (turn + torch.arange(k, device=device) * (experts // k)) % experts  # [S, k]
        self.route_of_row = torch.argsort(self.expert.reshape(-1), stable=True)
        self.token_of_row = self.route_of_row // k
        self.row = torch.empty_like(self.route_of_row)
        self.row[self.route_of_row] = torch.arange(tokens * k, device=device)
        self.row = self.row.view(tokens, k)
        # Exact in bf16, so that peers in either type multiply by the same.
        weight = torch.softmax(place.normal(tokens, k), dim=-1)
        self.weight = weight.bfloat16().float()
        self.count = tokens * k


def wrong_rows(got, expected, slack, what):
    """"" if all are within `slack` (of expected's shape) of `expected`; NaN never is."""
    if got.shape != expected.shape:
        return f"{what}: shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
    right = (got.float() - expected.float()).abs() <= slack
    if bool(right.all()):
        return ""
    at = (~right).nonzero()[0].tolist()
    return f"{what} {at} is {got[tuple(at)].item():g}, expected {expected[tuple(at)].item():g}"


def wrong_choices(logits, k, weights, experts, off=1e-5):
    """Of softmax and top-k: `experts` of the greatest shares, `weights` their shares, each within
    a factor of 1 + `off`, which is what the peer's logits are rounded to."""
    tokens, all_experts = logits.shape
    if tuple(experts.shape) != (tokens, k) or tuple(weights.shape) != (tokens, k):
        return f"shapes {tuple(weights.shape)} and {tuple(experts.shape)}, expected {(tokens, k)}"
    experts = experts.long()
    if not bool(((experts >= 0) & (experts < all_experts)).all()):
        return "an expert that does not exist"
    named = experts.sort(dim=-1).values
    if k > 1 and bool((named[:, 1:] == named[:, :-1]).any()):
        return "an expert twice for a token"
    shares = torch.softmax(logits.double(), dim=-1)
    chosen = shares.gather(1, experts)
    best = shares.sort(dim=-1, descending=True).values[:, :k]
    if not bool((chosen.sort(dim=-1, descending=True).values >= best * (1 - 2 * off)).all()):
        return "an expert that is not among the best"
    return wrong_rows(weights.double(), chosen, chosen * off, "share")


class Choose:
    """Softmax over all experts and the k best: shares and experts [S, k], in any order."""

    def __init__(self, place, shape: Choices):
        self.shape, self.copies = shape, 1
        self.logits = place.normal(shape.tokens, shape.experts)

    def check(self, result, copy):
        weights, experts = result
        return wrong_choices(self.logits, self.shape.k, weights, experts)


class Gate:
    """The same from x and the gate's weights in bf16."""

    def __init__(self, place, shape: Rows):
        self.shape = shape
        self.copies = place.copies(2 * shape.tokens * shape.hidden)
        self.x = place.bf16(1, self.copies, shape.tokens, shape.hidden)
        self.w = place.bf16(0.05, shape.experts, shape.hidden)

    def check(self, result, copy):
        weights, experts = result
        logits = self.x[copy].float() @ self.w.float().t()
        # Logits below 8 in bf16: within 2^-6 of what they are.
        return wrong_choices(logits, self.shape.k, weights, experts, off=0.02)


class Dispatch(Gate):
    """And the rows: shares and experts [S, k], the row of each route, in the order of experts,
    and what stands in the rows [S k, h]."""

    def check(self, result, copy):
        shares, experts, row, rows = result
        wrong = super().check((shares, experts), copy) or wrong_order(row, experts)
        if wrong:
            return wrong
        token_of_row = torch.empty_like(row, dtype=torch.int64).reshape(-1)
        routes = torch.arange(row.numel(), device=row.device)
        token_of_row[row.reshape(-1).long()] = routes // self.shape.k
        return wrong_rows(rows, self.x[copy][token_of_row], 0, "element")


class Assign:
    """Slots [k, S] of S / E for each expert, -1 for a route that has none: choice after choice,
    tokens by their largest share or by index."""

    def __init__(self, place, shape: Choices, by_share):
        self.shape, self.copies, self.by_share = shape, 1, by_share
        shares = torch.softmax(place.normal(shape.tokens, shape.experts), dim=-1)
        self.share, self.expert = torch.topk(shares, shape.k, dim=-1)
        self.capacity = shape.tokens // shape.experts
        self.slot = plain_slots(self.share, self.expert, shape.experts, self.capacity, by_share)

    def check(self, result, copy):
        return wrong_rows(result, self.slot.to(result.device), 0, "slot")


def plain_slots(share, expert, experts, capacity, by_share):
    largest, chosen = share[:, 0].tolist(), expert.tolist()
    tokens = range(len(chosen))
    queue = sorted(tokens, key=lambda token: -largest[token]) if by_share else tokens
    used, slots = [0] * experts, []
    for choice in range(len(chosen[0])):
        each = [-1] * len(chosen)
        for token in queue:
            at = chosen[token][choice]
            if used[at] < capacity:
                each[token] = used[at]
                used[at] += 1
        slots.append(each)
    return torch.tensor(slots)


class Route:
    """From logits to slots [k, S] of S / E for each expert by the largest share, and weights
    [k, S] over what is kept."""

    def __init__(self, place, shape: Choices):
        self.shape, self.copies = shape, 1
        self.logits = place.normal(shape.tokens, shape.experts)
        self.capacity = shape.tokens // shape.experts
        shares = torch.softmax(self.logits, dim=-1)
        share, expert = torch.topk(shares, shape.k, dim=-1)
        self.slot = plain_slots(share, expert, shape.experts, self.capacity, True)
        kept = share.double().t() * (self.slot >= 0).to(share.device)
        self.weight = kept / kept.sum(dim=0).clamp_min(1e-30)

    def check(self, result, copy):
        slot, weight = result
        return (wrong_rows(slot, self.slot.to(slot.device), 0, "slot")
                or wrong_rows(weight, self.weight, 1e-5, "weight"))


class RouteAll:
    """From logits to a row for each route, none dropped, rows by expert in any order within it:
    shares, experts and rows [S, k]."""

    def __init__(self, place, shape: Choices):
        self.shape, self.copies = shape, 1
        self.logits = place.normal(shape.tokens, shape.experts)

    def check(self, result, copy):
        weights, experts, row = result
        wrong = wrong_choices(self.logits, self.shape.k, weights, experts)
        return wrong or wrong_order(row, experts)


def wrong_order(row, experts):
    """"" if `row` [S, k] numbers all routes, those of an expert before those of the next."""
    count = experts.numel()
    if row.numel() != count:
        return f"{row.numel()} rows, expected {count}"
    row, experts = row.reshape(-1).long(), experts.reshape(-1).long()
    if not torch.equal(row.sort().values, torch.arange(count, device=row.device)):
        return "the rows are not numbered one by one"
    by_row = torch.empty_like(experts)
    by_row[row] = experts
    return "" if bool((by_row[1:] >= by_row[:-1]).all()) else "the rows are not in order of experts"


class RouterBackward:
    """The gradient of the logits [S, E] from that of the k weights of each token, some of whose
    routes were dropped, the normaliser a constant (sim/routing/tokens/gradient.hpp)."""

    def __init__(self, place, shape: Choices):
        self.shape, self.copies = shape, 1
        self.logits = place.normal(shape.tokens, shape.experts)
        self.expert = torch.topk(self.logits, shape.k, dim=-1).indices
        self.upstream = place.uniform(-1, 1, shape.tokens, shape.k)
        self.kept = (place.uniform(0, 1, shape.tokens, shape.k) < 0.75).float()
        shares = torch.softmax(self.logits.double(), dim=-1)
        mass = shares.gather(1, self.expert) * self.kept
        weight = mass / mass.sum(dim=-1, keepdim=True).clamp_min(1e-30)
        mean = (weight * self.upstream).sum(dim=-1, keepdim=True)
        self.gradient = -shares * mean
        self.gradient.scatter_add_(1, self.expert, weight * self.upstream)

    def check(self, result, copy):
        return wrong_rows(result, self.gradient, 4e-6, "gradient")


class Permute:
    """Token rows [S, h] to rows of experts [S k, h]."""

    def __init__(self, place, shape: Rows):
        self.shape, self.routes = shape, Routes(place, shape)
        self.copies = place.copies(2 * shape.hidden * (shape.tokens + self.routes.count))
        self.x = place.bf16(1, self.copies, shape.tokens, shape.hidden)

    def check(self, result, copy):
        expected = self.x[copy][self.routes.token_of_row]
        return wrong_rows(result, expected, 0, "element")


class Combine:
    """Rows [S k, h] back to tokens [S, h], weighted or not."""

    def __init__(self, place, shape: Rows, weighted):
        self.shape, self.weighted, self.routes = shape, weighted, Routes(place, shape)
        self.copies = place.copies(2 * shape.hidden * (shape.tokens + self.routes.count))
        self.rows = place.bf16(1, self.copies, self.routes.count, shape.hidden)

    def check(self, result, copy):
        expected = torch.zeros(self.shape.tokens, self.shape.hidden, device=self.rows.device)
        size = torch.zeros_like(expected)
        for choice in range(self.shape.k):
            part = self.rows[copy][self.routes.row[:, choice]].float()
            if self.weighted:
                part *= self.routes.weight[:, choice:choice + 1]
            expected += part
            size += part.abs()
        # Some sum in bf16: an error of 2^-8 of what was summed with each of k roundings or so.
        return wrong_rows(result, expected, size * ((self.shape.k + 1) * 2.0 ** -8), "element")


class CombineBackward:
    """From the tokens' gradients [S, h] and the rows [S k, h] to those of the rows, and to those
    of the weights [S, k]."""

    def __init__(self, place, shape: Rows):
        self.shape, self.routes = shape, Routes(place, shape)
        count = self.routes.count
        self.copies = place.copies(2 * shape.hidden * (shape.tokens + 2 * count))
        self.gradient = place.bf16(1, self.copies, shape.tokens, shape.hidden)
        self.rows = place.bf16(1, self.copies, count, shape.hidden)

    def check(self, result, copy):
        of_rows, of_weights = result
        routes = self.routes
        token = self.gradient[copy][routes.token_of_row].float()
        by_row = routes.weight.reshape(-1)[routes.route_of_row]
        expected = token * by_row[:, None]
        wrong = wrong_rows(of_rows, expected, expected.abs() * 2.0 ** -7, "row gradient")
        if wrong:
            return wrong
        products = token.mul_(self.rows[copy].float())
        by_route = lambda values: values[routes.row]
        return wrong_rows(of_weights, by_route(products.sum(dim=-1)),
                          by_route(products.abs().sum(dim=-1)) * 2.0 ** -8, "weight gradient")


class Grouped:
    """A product for each expert: rows [E r, inner] by its weights [E, inner, outer]."""

    def __init__(self, place, shape: Products):
        self.shape, self.copies = shape, 1
        self.x = place.bf16(1, shape.experts * shape.rows, shape.inner)
        self.w = place.bf16(0.05, shape.experts, shape.inner, shape.outer)
        self.ends = torch.arange(1, shape.experts + 1, device=place.device,
                                 dtype=torch.int32) * shape.rows

    def check(self, result, copy):
        rows = self.shape.rows
        for expert in range(self.shape.experts):
            x = self.x[expert * rows:(expert + 1) * rows][:16].float()
            w = self.w[expert].float()
            got = result[expert * rows:(expert + 1) * rows][:16]
            wrong = wrong_rows(got, x @ w, (x.abs() @ w.abs()) * 2.0 ** -8, f"expert {expert}")
            if wrong:
                return wrong
        return ""


def make(benchmark, shapes, place):
    shape = shapes.of[benchmark]
    if benchmark.startswith("assign"):
        return Assign(place, shape, by_share=benchmark == "assign-token-max")
    if benchmark.startswith("choose"):
        return Choose(place, shape)
    if benchmark.startswith("permute-backward"):
        return Combine(place, shape, weighted=False)
    if benchmark.startswith("combine-backward"):
        return CombineBackward(place, shape)
    if benchmark.startswith("permute"):
        return Permute(place, shape)
    if benchmark.startswith("combine"):
        return Combine(place, shape, weighted=True)
    kinds = {"gate-bf16": Gate, "dispatch-top2": Dispatch, "route-top2": Route,
             "route-top8-e256": RouteAll, "backward-top2": RouterBackward, "grouped-mm": Grouped}
    return kinds[benchmark](place, shape)
