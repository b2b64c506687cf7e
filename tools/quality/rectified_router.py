"""The token-level router of moesim in PyTorch: top-k, token-max priority, capacity per source GPU,
Fill-in (FR) and Intra-GPU Rectification (IR) of Zeng et al. 2024. Decisions are those of
`moesim route --logits` to the bit, because both take the same operations to the softmax
(sim/routing/tokens/softmax.hpp); tests/python/routing/test_quality.py checks that they agree."""
import math
from dataclasses import dataclass
from fractions import Fraction

import torch

# exp(x) = 2^n p(r), x <= 0: the constants of sim/routing/tokens/softmax.hpp.
_LOG2_E = 1.44269504
_MAGIC = 12583039.0
_C1, _C2, _C3, _C4, _C5 = 0.693147004, 0.240222409, 0.0555073433, 0.00967156608, 0.00132646586


@dataclass(frozen=True)
class Rules:
    """One router. `capacity_factor` is text, so that C = ceil(CF S / E) is exact."""
    top_k: int
    fill_in: bool = False
    rectified: bool = False
    capacity_factor: str = "1"
    experts_per_gpu: int = 1

    @classmethod
    def parse(cls, name, capacity_factor, experts_per_gpu=1):
        base, *suffixes = name.split("+")
        if base not in ("top1", "top2") or set(suffixes) - {"fr", "ir"}:
            raise ValueError(f"router '{name}': this experiment knows top1 and top2, with +fr, +ir")
        return cls(int(base[3:]), "fr" in suffixes, "ir" in suffixes, capacity_factor,
                   experts_per_gpu)

    @property
    def choices(self):
        return self.top_k + self.fill_in

    def capacity(self, tokens, experts):
        return math.ceil(Fraction(self.capacity_factor) * tokens / experts)


@dataclass(frozen=True)
class Routing:
    """Decisions for P source GPUs of S tokens; k' choices, the last one FR's nomination if on."""
    rules: Rules
    probability: torch.Tensor  # [P, S, E], softmax of the logits
    chosen: torch.Tensor       # [P, S, k'], expert
    kept: torch.Tensor         # [P, S, k'], bool
    near: torch.Tensor         # [P, S], IR's expert: the best on the token's own GPU
    missing: torch.Tensor      # [P, S], s = k - kept routes where IR acts, else 0

    def slots(self):
        """[P, S, k'], -1 where not kept: per source and expert in (choice, token) order."""
        gpus, tokens, choices = self.chosen.shape
        chosen = self.chosen.transpose(1, 2).reshape(gpus, -1)
        kept = self.kept.transpose(1, 2).reshape(gpus, -1)
        place = _places(chosen, self.probability.shape[-1], kept)
        place = torch.where(kept, place, -1)
        return place.reshape(gpus, choices, tokens).transpose(1, 2)

    def residual_loss(self):
        """Mean over tokens of max(0, 1 - processed mass / top-k mass)."""
        g = self.probability.double()
        chosen = g.gather(2, self.chosen)
        top = chosen[..., :self.rules.top_k].sum(2)
        processed = (chosen * self.kept).sum(2)
        if self.rules.rectified:
            again = ((self.chosen == self.near[..., None]) & self.kept).any(2)
            near = g.gather(2, self.near[..., None])[..., 0]
            processed = processed + near * ((self.missing > 0) & ~again)
        return (1 - processed / top).clamp(min=0).mean().item()

    def failed(self):
        """Share of the k primary routes that were not kept."""
        return 1 - self.kept[..., :self.rules.top_k].double().mean().item()


def softmax(logits):
    """Softmax over the last axis, bit for bit that of sim/routing/tokens/softmax.hpp. float32."""
    experts = logits.shape[-1]
    x = logits - logits.max(-1, keepdim=True).values
    t = (x * _LOG2_E).clamp(min=-127.0)
    shifted = t + _MAGIC
    r = t - (shifted - _MAGIC)
    square = r * r
    high = (r * _C5) + _C4
    middle = (r * _C3) + _C2
    low = (r * _C1) + 1.0
    p = ((high * square) + middle) * square + low
    scale = (shifted.view(torch.int32) << 23).view(torch.float32)
    value = p * scale
    width = 1 << max(experts - 1, 0).bit_length()
    total = torch.nn.functional.pad(value, (0, width - experts))
    while width > 1:
        width //= 2
        total = total[..., :width] + total[..., width:]
    return value / total


def _places(expert, experts, counted=None):
    """[P, N]: how many entries before this one, along N, have the same expert (and count)."""
    one_hot = torch.nn.functional.one_hot(expert, experts)
    if counted is not None:
        one_hot = one_hot * counted[..., None]
    return one_hot.cumsum(1).gather(2, expert[..., None])[..., 0] - 1


def _queue_places(key, expert, experts):
    """Place of each token in the queue of its expert: larger key first, then lower index."""
    order = key.argsort(dim=1, descending=True, stable=True)
    place = _places(expert.gather(1, order), experts)
    return torch.empty_like(place).scatter_(1, order, place)


def route(logits, rules, first_gpu=0):
    """Routes logits [P, S, E], as float32. Source p is GPU (first_gpu + p) mod (E / experts_per_gpu) of
    an expert-parallel group, and holds the experts from that times experts_per_gpu on."""
    gpus, tokens, experts = logits.shape
    if experts % rules.experts_per_gpu or rules.choices > experts:
        raise ValueError(f"{experts} experts cannot be {rules.experts_per_gpu} a GPU with "
                         f"{rules.choices} choices")
    logits = logits.detach().float()
    probability = softmax(logits)
    ranked = logits.argsort(dim=2, descending=True, stable=True)[..., :rules.choices]
    room = torch.full((gpus, experts), rules.capacity(tokens, experts))
    best = probability.max(2).values
    kept = []
    for choice in range(rules.choices):
        expert = ranked[..., choice]
        # FR: an expert takes the nominees that score it best.
        nominated = choice == rules.top_k
        key = probability.gather(2, expert[..., None])[..., 0] if nominated else best
        keep = _queue_places(key, expert, experts) < room.gather(1, expert)
        room = room.scatter_add(1, expert, -keep.long())
        kept.append(keep)
    kept = torch.stack(kept, 2)
    near, missing = _rectify(logits, kept, rules, first_gpu)
    return Routing(rules, probability, ranked, kept, near, missing)


def _rectify(logits, kept, rules, first_gpu):
    gpus, tokens, experts = logits.shape
    local = rules.experts_per_gpu
    owner = (first_gpu + torch.arange(gpus)) % (experts // local)
    own = logits.reshape(gpus, tokens, experts // local, local)[torch.arange(gpus), :, owner]
    # The first of equal maxima, which argmax does not promise.
    best = own.argsort(dim=2, descending=True, stable=True)[..., 0]
    near = best + (owner * local)[:, None]
    missing = (rules.top_k - kept.sum(2)).clamp(min=0)
    return near, missing if rules.rectified else torch.zeros_like(missing)
