"""A byte-level transformer whose feed-forward layers are Mixture-of-Experts layers."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from rectified_router import route


@dataclass(frozen=True)
class Shape:
    vocabulary: int
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    ffn: int = 192
    sequence: int = 128
    experts: int = 8  # 0: dense
    window: int = 5   # bytes that a token's input sees at once: itself and those before it


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.heads = shape.heads
        self.project = nn.Linear(shape.hidden, 3 * shape.hidden, bias=False)
        self.out = nn.Linear(shape.hidden, shape.hidden, bias=False)
        mask = torch.full((shape.sequence, shape.sequence), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        batch, length, hidden = x.shape
        parts = self.project(x).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts
        scores = query @ key.transpose(-1, -2) * (hidden // self.heads) ** -0.5
        mixed = (scores + self.mask[:length, :length]).softmax(-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, length, hidden))


class Experts(nn.Module):
    """E feed-forward networks; rows come sorted by expert."""

    def __init__(self, experts, hidden, ffn):
        super().__init__()
        self.up = nn.Parameter(torch.randn(experts, hidden, ffn) * hidden ** -0.5)
        self.down = nn.Parameter(torch.randn(experts, ffn, hidden) * ffn ** -0.5 * 0.5)

    def forward(self, rows, counts):
        out = [functional.silu(part @ up) @ down
               for part, up, down in zip(rows.split(counts), self.up, self.down)]
        return torch.cat(out)


class MoeLayer(nn.Module):
    """o = sum of w_j E_j(x) over the kept routes and the IR row; w_j = m_j / G, where G is a
    constant to the gradient under the straight-through normaliser."""

    def __init__(self, shape):
        super().__init__()
        self.gate = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.experts = Experts(shape.experts, shape.hidden, shape.ffn)

    def forward(self, x, control):
        """x [P S, h], tokens of one source GPU after another."""
        logits = self.gate(x)
        gpus = x.shape[0] // control.tokens_per_gpu
        routing = route(logits.reshape(gpus, control.tokens_per_gpu, -1), control.rules,
                        control.first_gpu)
        control.record(logits, routing)
        g = logits.softmax(-1)
        chosen, kept, near, missing = (part.flatten(0, 1) for part in (
            routing.chosen, routing.kept, routing.near, routing.missing))
        mass = torch.cat([g.gather(1, chosen) * kept, (g.gather(1, near[:, None])
                                                       * missing[:, None])], 1)
        total = mass.sum(1, keepdim=True)
        weight = mass / (total.detach() if control.straight_through else total).clamp(min=1e-30)
        used = torch.cat([kept, missing[:, None] > 0], 1)
        token, column = used.nonzero(as_tuple=True)
        expert = torch.cat([chosen, near[:, None]], 1)[token, column]
        order = expert.argsort(stable=True)
        token, column = token[order], column[order]
        counts = torch.bincount(expert, minlength=g.shape[1]).tolist()
        rows = self.experts(x[token], counts) * weight[token, column][:, None]
        return torch.zeros_like(x).index_add(0, token, rows)


class DenseLayer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.experts = Experts(1, shape.hidden, shape.ffn)

    def forward(self, x, _):
        return self.experts(x, [x.shape[0]])


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.norm_attention = nn.LayerNorm(shape.hidden)
        self.attention = Attention(shape)
        self.norm_ffn = nn.LayerNorm(shape.hidden)
        self.ffn = MoeLayer(shape) if shape.experts else DenseLayer(shape)

    def forward(self, x, control):
        x = x + self.attention(self.norm_attention(x))
        flat = self.norm_ffn(x).flatten(0, 1)
        return x + self.ffn(flat, control).reshape(x.shape)


class Control:
    """How one forward pass routes, and what it collects: logits and routing of each MoE layer."""

    def __init__(self, rules, tokens_per_gpu, straight_through=True, first_gpu=0):
        self.rules = rules
        self.tokens_per_gpu = tokens_per_gpu
        self.straight_through = straight_through
        self.first_gpu = first_gpu
        self.logits, self.routings = [], []

    def record(self, logits, routing):
        self.logits.append(logits)
        self.routings.append(routing)

    def balance_loss(self):
        """Mean over layers and GPUs of E sum_e f_e P_e (GShard): f_e the share of first choices
        before drops, P_e the mean probability."""
        terms = []
        for logits, routing in zip(self.logits, self.routings):
            gpus, tokens, experts = routing.probability.shape
            mean = logits.reshape(gpus, tokens, experts).softmax(-1).mean(1)
            share = functional.one_hot(routing.chosen[..., 0], experts).float().mean(1)
            terms.append(experts * (share * mean).sum(1).mean())
        return torch.stack(terms).mean()


class TinyMoe(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.embed = nn.ModuleList(nn.Embedding(shape.vocabulary, shape.hidden)
                                   for _ in range(shape.window))
        self.position = nn.Parameter(torch.randn(shape.sequence, shape.hidden) * 0.02)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden)
        self.out = nn.Linear(shape.hidden, shape.vocabulary, bias=False)

    @torch.no_grad()
    def upcycle(self, dense):
        """Takes all weights of a dense model; every expert becomes a copy of its FFN."""
        mine = self.state_dict()
        for name, values in dense.state_dict().items():
            mine[name].copy_(values)  # experts [E, ...] from [1, ...]

    def forward(self, text, control):
        """Mean cross-entropy in nats of text[:, 1:] given what stands before."""
        seen = text[:, :-1]
        x = self.position[:seen.shape[1]]
        for back, embed in enumerate(self.embed):
            x = x + functional.pad(embed(seen[:, :seen.shape[1] - back]), (0, 0, back, 0))
        for block in self.blocks:
            x = block(x, control)
        scores = self.out(self.norm(x))
        return functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
