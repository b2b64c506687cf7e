"""The routers beside the default one in NumPy, vectorised throughout: peers to measure against.
All take the logits of a group, [ranks, tokens, experts] float32, and return the kept routes as
(token of the group, expert) pairs, sorted, or None for the routers that draw."""

import numpy as np

from routing_peer import places_in_group


def softmax(logits):
    g = np.exp(logits - logits.max(axis=-1, keepdims=True))
    g /= g.sum(axis=-1, keepdims=True)
    return g


def best(values, count):
    """[choice, token]: the experts of the largest values, the lower expert of equal ones first."""
    rows = np.arange(len(values))
    left = values.copy()
    chosen = np.empty((count, len(values)), np.int64)
    for choice in range(count):
        chosen[choice] = left.argmax(axis=1)
        left[rows, chosen[choice]] = -np.inf
    return chosen


def pairs(token, expert):
    order = np.lexsort((expert, token))
    return np.stack([token[order], expert[order]], axis=1)


class Router:
    def __init__(self, ranks, tokens, experts, top_k, capacity):
        self.ranks, self.tokens, self.experts = ranks, tokens, experts
        self.top_k, self.capacity = top_k, capacity
        self.total = ranks * tokens
        self.rank = np.repeat(np.arange(ranks), tokens)
        self.all = np.arange(self.total)

    def flat(self, logits):
        return logits.reshape(self.total, self.experts)

    def every_choice(self, chosen):
        return pairs(np.tile(self.all, len(chosen)), chosen.reshape(-1))


class TopK(Router):
    """Token-max priority per source rank, Fill-in by nominee score, Intra-GPU Rectification."""
    fill_in = rectify = False

    def keep(self, order, chosen, used):
        """One choice's kept tokens; `order`: best first within each rank."""
        queue = (self.rank * self.experts + chosen)[order]
        place, wanted = places_in_group(queue, len(used))
        room = self.capacity - used
        kept = np.empty(self.total, bool)
        kept[order] = place < room[queue]
        used += np.minimum(wanted, room)
        return kept

    def route(self, logits):
        flat = self.flat(logits)
        g = softmax(flat)
        chosen = best(flat, self.top_k + self.fill_in)
        mine = np.take_along_axis(g, chosen.T, axis=1).T
        order = np.lexsort((-mine[0], self.rank))
        used = np.zeros(self.ranks * self.experts, np.int64)
        kept = np.empty(chosen.shape, bool)
        for choice in range(self.top_k):
            kept[choice] = self.keep(order, chosen[choice], used)
        if self.fill_in:
            nominees = np.lexsort((-mine[self.top_k], self.rank))
            kept[self.top_k] = self.keep(nominees, chosen[self.top_k], used)
        weight = mine * kept
        token, expert = np.tile(self.all, len(chosen))[kept.reshape(-1)], chosen[kept]
        if self.rectify:
            short = self.top_k - kept.sum(axis=0)
            needy = np.flatnonzero(short > 0)
            local = self.experts // self.ranks
            at = self.rank[needy][:, None] * local + np.arange(local)
            own = np.take_along_axis(g[needy], at, axis=1)
            pick = own.argmax(axis=1)
            extra = short[needy] * own[np.arange(len(needy)), pick]
            mass = weight.sum(axis=0)
            mass[needy] += extra
            weight = np.divide(weight, mass, out=weight, where=mass > 0)
            extra /= mass[needy]
            token = np.concatenate([token, needy])
            expert = np.concatenate([expert, self.rank[needy] * local + pick])
        else:
            mass = weight.sum(axis=0)
            weight = np.divide(weight, mass, out=weight, where=mass > 0)
        return pairs(token, expert)


class TopKRectified(TopK):
    fill_in = rectify = True


class Dropless(Router):
    def route(self, logits):
        flat = self.flat(logits)
        g = softmax(flat)
        chosen = best(flat, self.top_k)
        weight = np.take_along_axis(g, chosen.T, axis=1).T
        weight /= weight.sum(axis=0)
        np.bincount((self.rank * self.experts + chosen).reshape(-1),
                    minlength=self.ranks * self.experts)
        return self.every_choice(chosen)


class ExpertChoice(Router):
    def route(self, logits):
        g = softmax(logits)  # [rank, token, expert]
        # A stable sort of a rank's column: equal scores by the lower token.
        taken = np.argsort(-g, axis=1, kind="stable")[:, :self.capacity]  # [rank, slot, expert]
        token = taken + (np.arange(self.ranks) * self.tokens)[:, None, None]
        expert = np.broadcast_to(np.arange(self.experts), taken.shape)
        np.take_along_axis(g, taken, axis=1)
        return pairs(token.reshape(-1), expert.reshape(-1))


class GroupLimited(Router):
    groups, kept_groups = 8, 4

    def scores(self, flat):
        return softmax(flat)

    def group_score(self, grouped):
        """DeepSeek-V2's: the best expert of a group."""
        return grouped.max(axis=2)

    def route(self, logits):
        flat = self.flat(logits)
        g = self.scores(flat)
        grouped = g.reshape(self.total, self.groups, -1)
        score = self.group_score(grouped)
        out = np.argsort(-score, axis=1, kind="stable")[:, self.kept_groups:]
        allowed = flat.copy().reshape(grouped.shape)
        np.put_along_axis(allowed, out[:, :, None], -np.inf, axis=1)
        chosen = best(allowed.reshape(flat.shape), self.top_k)
        weight = np.take_along_axis(g, chosen.T, axis=1).T
        weight /= weight.sum(axis=0)
        np.bincount((self.rank * self.experts + chosen).reshape(-1),
                    minlength=self.ranks * self.experts)
        return self.every_choice(chosen)


class SigmoidGroups(GroupLimited):
    """DeepSeek-V3's rule before its bias has moved."""

    def scores(self, flat):
        return 1 / (1 + np.exp(-flat))

    def group_score(self, grouped):
        """DeepSeek-V3's: the sum of the two best experts of a group."""
        return -np.partition(-grouped, 1, axis=2)[:, :, :2].sum(axis=2)


class Random(Router):
    def route(self, logits):
        expert = np.random.default_rng(1).integers(self.experts, size=self.total)
        g = softmax(self.flat(logits))
        g[self.all, expert]
        self.last_kept = TopK.keep(self, self.all, expert, np.zeros(
            self.ranks * self.experts, np.int64))


class Base(Router):
    """The balanced assignment as SciPy solves it: every expert S / E times as a column."""

    def route(self, logits):
        from scipy.optimize import linear_sum_assignment
        experts = []
        for rank in logits:
            columns = np.repeat(rank, self.tokens // self.experts, axis=1)
            experts.append(linear_sum_assignment(columns, maximize=True)[1] //
                           (self.tokens // self.experts))
        return pairs(self.all, np.concatenate(experts))
