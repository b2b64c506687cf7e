"""The default router (softmax, top-k, capacity, token-max priority, slots and weights) in NumPy,
and in PyTorch where it is installed: peers to measure against. `NumpyRouter` is how one writes it,
vectorised throughout; `TunedNumpyRouter` is the same with every trick NumPy has to offer."""

import numpy as np


def places_in_group(group, groups):
    """For each element its place among those of its group, and the sizes of the groups."""
    order = np.argsort(group.astype(np.uint16), kind="stable")  # radix sort on 16 bits
    sizes = np.bincount(group, minlength=groups)
    place = np.empty(len(group), np.int64)
    place[order] = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return place, sizes


class NumpyRouter:
    """route(logits [T, E] float32) -> experts, slots [k, T], weights [k, T] (slot -1: failed)."""

    def __init__(self, tokens, experts, top_k, capacity):
        self.tokens, self.experts, self.top_k, self.capacity = tokens, experts, top_k, capacity

    def route(self, logits):
        g = np.exp(logits - logits.max(axis=1, keepdims=True))
        g /= g.sum(axis=1, keepdims=True)
        rows = np.arange(self.tokens)
        left = logits.copy()
        chosen = np.empty((self.top_k, self.tokens), np.int64)
        for choice in range(self.top_k):
            chosen[choice] = left.argmax(axis=1)
            left[rows, chosen[choice]] = -np.inf
        g = np.take_along_axis(g, chosen.T, axis=1).T
        # Token-max: surest tokens first; choices one after another.
        order = np.argsort(-g[0], kind="stable")
        used = np.zeros(self.experts, np.int64)
        kept = np.empty((self.top_k, self.tokens), bool)
        for choice in range(self.top_k):
            queue = chosen[choice][order]
            place, wanted = places_in_group(queue, self.experts)
            room = self.capacity - used
            kept[choice][order] = place < room[queue]
            used += np.minimum(wanted, room)
        # Slots in (choice, token) order.
        slot = np.full(self.top_k * self.tokens, -1)
        at = np.flatnonzero(kept)
        slot[at] = places_in_group(chosen.reshape(-1)[at], self.experts)[0]
        weight = g * kept
        mass = weight.sum(axis=0)
        weight = np.divide(weight, mass, out=weight, where=mass > 0)
        return chosen, slot.reshape(self.top_k, self.tokens), weight


class TunedNumpyRouter:
    """The same with buffers reused, a copy less, no softmax of what is not chosen, and sorts only
    where an expert overflows."""

    def __init__(self, tokens, experts, top_k, capacity):
        self.tokens, self.experts, self.top_k, self.capacity = tokens, experts, top_k, capacity
        self.work = np.empty((tokens, experts), np.float32)
        self.rows = np.arange(tokens) * experts
        self.count = np.arange(tokens)

    def route(self, logits):
        tokens, experts, top_k = self.tokens, self.experts, self.top_k
        work, rows = self.work, self.rows
        # Choices first: the best logit is also what the softmax subtracts.
        np.copyto(work, logits)
        flat = work.reshape(-1)
        chosen = np.empty((top_k, tokens), np.uint16)
        value = np.empty((top_k, tokens), np.float32)
        for choice in range(top_k):
            best = work.argmax(axis=1)
            at = rows + best
            chosen[choice] = best
            value[choice] = flat[at]
            flat[at] = -np.inf
        np.subtract(logits, value[0][:, None], out=work)
        np.exp(work, out=work)
        total = work.sum(axis=1)
        g = np.exp(value - value[0])
        g /= total
        # Token-max: surest tokens first; choices one after another.
        order = np.argsort(-g[0], kind="stable")
        used = np.zeros(experts, np.int64)
        kept = np.empty((top_k, tokens), bool)
        for choice in range(top_k):
            wanted = np.bincount(chosen[choice], minlength=experts)
            room = self.capacity - used
            used += np.minimum(wanted, room)
            if (wanted <= room).all():
                kept[choice] = True
                continue
            queue = chosen[choice][order]
            grouped = np.argsort(queue, kind="stable")
            start = np.cumsum(wanted) - wanted
            place = self.count - np.repeat(start, wanted)
            keep = np.empty(tokens, bool)
            keep[grouped] = place < np.repeat(room, wanted)
            kept[choice][order] = keep
        # Slots in (choice, token) order: one grouping over all choices.
        keep_all = np.flatnonzero(kept.reshape(-1))
        expert = chosen.reshape(-1)[keep_all]
        grouped = np.argsort(expert, kind="stable")
        counts = np.bincount(expert, minlength=experts)
        slot = np.full(top_k * tokens, -1, np.int32)
        start = np.cumsum(counts) - counts
        slot[keep_all[grouped]] = np.arange(len(expert)) - np.repeat(start, counts)
        g *= kept
        mass = g.sum(axis=0)
        mass[mass == 0] = 1
        g /= mass
        return chosen, slot.reshape(top_k, tokens), g


def torch_router():
    """The same in PyTorch on one CPU thread, or None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)

    class TorchRouter:
        def __init__(self, tokens, experts, top_k, capacity):
            self.tokens, self.experts, self.top_k, self.capacity = tokens, experts, top_k, capacity

        def route(self, logits):
            logits = torch.from_numpy(logits)
            tokens, experts, top_k = self.tokens, self.experts, self.top_k
            g, chosen = torch.softmax(logits, dim=1).topk(top_k, dim=1)
            g, chosen = g.T.contiguous(), chosen.T.contiguous()
            order = torch.argsort(g[0], descending=True, stable=True)
            used = torch.zeros(experts, dtype=torch.int64)
            kept = torch.empty((top_k, tokens), dtype=torch.bool)
            for choice in range(top_k):
                wanted = torch.bincount(chosen[choice], minlength=experts)
                room = self.capacity - used
                used += torch.minimum(wanted, room)
                grouped = torch.argsort(chosen[choice][order], stable=True)
                place = torch.arange(tokens) - torch.repeat_interleave(
                    torch.cumsum(wanted, 0) - wanted, wanted)
                keep = torch.empty(tokens, dtype=torch.bool)
                keep[grouped] = place < torch.repeat_interleave(room, wanted)
                kept[choice][order] = keep
            keep_all = torch.nonzero(kept.reshape(-1)).reshape(-1)
            expert = chosen.reshape(-1)[keep_all]
            grouped = torch.argsort(expert, stable=True)
            counts = torch.bincount(expert, minlength=experts)
            slot = torch.full((top_k * tokens,), -1, dtype=torch.int32)
            slot[keep_all[grouped]] = (torch.arange(len(expert)) - torch.repeat_interleave(
                torch.cumsum(counts, 0) - counts, counts)).int()
            g = g * kept
            g = g / g.sum(0).clamp_min(1e-30)
            return chosen.numpy(), slot.reshape(top_k, tokens).numpy(), g.numpy()

    return TorchRouter
