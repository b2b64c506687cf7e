"""The claims that the quality experiment tests, by the plan in experiment.py, and their verdicts."""
import csv
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from scipy import stats

from experiment import arms

MARGIN = 0.01  # nats per byte: below it a difference hardly matters


@dataclass(frozen=True)
class Term:
    """One held-out loss: a trained arm under a router."""
    arm: str
    router: str
    capacity_factor: str
    experts_per_gpu: int = 1


@dataclass(frozen=True)
class Claim:
    """The sum of plus less the sum of minus is expected to be `expected`."""
    number: int
    title: str
    what: str
    plus: tuple
    minus: tuple
    expected: str = "negative"  # negative, positive, small, or not above: at most the margin


def _against(number, title, what, one, other, expected="negative"):
    return Claim(number, title, what, (one,), (other,), expected)


def _at_inference(number, title, suffix, points, kind=""):
    """x+suffix against x on the model trained as x, or on one of this kind."""
    return [_against(number, title, f"{base}{suffix} less {base} at {factor}",
                     Term(base + kind, base + suffix, factor), Term(base + kind, base, factor))
            for base, factor in points]


def _experts_per_gpu(number, title, kind=""):
    return [_against(number, title, f"{base}+ir at {base[3:]}, {local} experts per GPU less 1",
                     Term(base + kind, f"{base}+ir", base[3:], local),
                     Term(base + kind, f"{base}+ir", base[3:]), "small")
            for base in ("top1", "top2") for local in (2, 4)]


def _half_capacity(number, title, kind=""):
    return [_against(number, title, f"{base}+ir at {half} less {base} at {base[3:]}",
                     Term(base + kind, f"{base}+ir", half), Term(base + kind, base, base[3:]),
                     "not above")
            for base, half in (("top1", "0.5"), ("top2", "1"))]


LOW = [("top1", "0.5"), ("top1", "0.75"), ("top2", "1")]
HIGH = [("top1", "1.25"), ("top1", "1.5"), ("top2", "2.5"), ("top2", "3")]


def _both():
    return [_against(3, "Both together are best",
                     f"{base}+fr+ir less {base}{suffix} in training at {base[3:]}",
                     Term(f"{base}+fr+ir", f"{base}+fr+ir", base[3:]),
                     Term(base + suffix, base + suffix, base[3:]))
            for base in ("top1", "top2") for suffix in ("", "+ir", "+fr")]


def _balance():
    bare, rectified, off = "top1", "top1+fr+ir", ", no balance loss"
    return [Claim(4, "Rectified routers need the balance loss less",
                  "cost of leaving it out, top1 less top1+fr+ir at 1",
                  (Term(bare + off, bare, "1"), Term(rectified, rectified, "1")),
                  (Term(bare, bare, "1"), Term(rectified + off, rectified, "1")), "positive")]


def _straight_through():
    return [_against(6, "The straight-through normaliser helps",
                     f"{router} at {factor}, trained with it less without",
                     Term(router, router, factor),
                     Term(f"{router}, normaliser differentiated", router, factor))
            for router, factor in (("top1+fr", "1"), ("top2", "2"))]


def _many_experts():
    many = ", 32 experts"
    return [_against(7, "More experts do not help", f"{base} at {base[3:]}{many} less 8",
                     Term(base + many, base, base[3:], 4), Term(base, base, base[3:]), "small")
            for base in ("top1", "top2")] + [
        _against(8, "FR and IR help with 32 experts too",
                 f"{base}+fr+ir less {base} at {base[3:]}{many}",
                 Term(base + many, f"{base}+fr+ir", base[3:], 4),
                 Term(base + many, base, base[3:], 4))
        for base in ("top1", "top2")]


def _upcycled():
    """The extension's: 1, 2, 5, 9 and 3 on models whose experts start as copies of one FFN."""
    kind = ", upcycled"
    return [*_at_inference(10, "IR helps at low capacity, upcycled", "+ir", LOW, kind),
            *_at_inference(11, "FR helps at high capacity, upcycled", "+fr", HIGH, kind),
            *_experts_per_gpu(12, "Experts per GPU hardly matter, upcycled", kind),
            *_half_capacity(13, "With IR half the capacity does, upcycled", kind),
            *[_against(14, "Both together are best, upcycled",
                       f"{base}+fr+ir less {base}{suffix} at {base[3:]}",
                       Term(base + kind, f"{base}+fr+ir", base[3:]),
                       Term(base + kind, base + suffix, base[3:]))
              for base in ("top1", "top2") for suffix in ("", "+ir", "+fr")]]


def claims():
    """The plan's, in its order."""
    return [*_at_inference(1, "IR helps at low capacity", "+ir", LOW),
            *_at_inference(2, "FR helps at high capacity", "+fr", HIGH), *_both(), *_balance(),
            *_experts_per_gpu(5, "Experts per GPU hardly matter"), *_straight_through(),
            *_many_experts(), *_half_capacity(9, "With IR half the capacity does"), *_upcycled()]


class Results:
    """loss[term][seed], lost[term][seed] of the seeds that are complete."""

    def __init__(self, path):
        self.loss, self.lost = defaultdict(dict), defaultdict(dict)
        present = defaultdict(set)
        with open(path, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                term = Term(row["arm"], row["router"], row["capacity_factor"],
                            int(row["experts_per_gpu"] or 0))
                seed = int(row["seed"])
                present[seed].add(row["arm"])
                self.loss[term][seed] = float(row["nats_per_byte"])
                self.lost[term][seed] = float(row["residual_loss"] or "nan")
        wanted = {arm.name for arm in arms()}
        self.seeds = sorted(seed for seed, found in present.items() if found >= wanted)
        if len(self.seeds) < 2:
            raise SystemExit(f"{path}: {len(self.seeds)} complete seeds: an interval needs 2")

    def differences(self, claim):
        def total(terms, seed):
            return sum(self.loss[term][seed] for term in terms)
        return np.array([total(claim.plus, seed) - total(claim.minus, seed) for seed in self.seeds])

    def excess(self, term, reference):
        """Loss above that of the same model where nothing is dropped, by seed."""
        return np.array([self.loss[term][seed] - self.loss[reference][seed] for seed in self.seeds])


def interval(values):
    """(mean, half width of the 95 % t interval)."""
    count = len(values)
    return values.mean(), stats.t.ppf(0.975, count - 1) * values.std(ddof=1) / count ** 0.5


def verdict(mean, half, expected):
    low, high = mean - half, mean + half
    if expected == "positive":
        low, high, expected = -high, -low, "negative"
    bound = {"negative": 0, "not above": MARGIN, "small": MARGIN}[expected]
    if high < bound and (expected != "small" or low > -MARGIN):
        return "holds"
    if low > bound or (expected == "small" and high < -MARGIN):
        return "does not hold"
    return "cannot tell"


EXPECTED = {"negative": "< 0", "positive": "> 0", "small": f"within {MARGIN}",
            "not above": f"< {MARGIN}"}


def reference(base, kind=""):
    """The model trained as top-k under its own router with C = S: nothing is dropped."""
    return Term(base + kind, base, "8")
