"""The sizes of the cases: those of bench_gpu_kernels, and small ones for a check without a GPU."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rows:
    """`experts` divides `tokens` times `k`, so that every expert can have as many rows."""
    tokens: int
    experts: int
    k: int
    hidden: int


@dataclass(frozen=True)
class Choices:
    tokens: int
    experts: int
    k: int


@dataclass(frozen=True)
class Products:
    experts: int
    rows: int  # of each expert
    inner: int
    outer: int


class Shapes:
    """By the id of the benchmark in kernels/measure/benchmarks/kernel_benchmarks.cpp; `grouped-mm`
    has none there."""

    def __init__(self, tokens, experts, hidden, wide, route_tokens, products):
        self.products = products
        self.of = {
            "gate-bf16": Rows(tokens, experts, 2, hidden),
            "dispatch-top2": Rows(tokens, experts, 2, hidden),
            "choose-top2-e64": Choices(tokens, experts, 2),
            "choose-top8-e256": Choices(tokens, 4 * experts, 8),
            "assign-token-max": Choices(tokens, experts, 2),
            "assign-position": Choices(tokens, experts, 2),
            "route-top2": Choices(tokens, experts, 2),
            "route-top8-e256": Choices(route_tokens, 4 * experts, 8),
            "backward-top2": Choices(tokens, experts, 2),
            "grouped-mm": products,
        }
        for op in ("permute", "combine", "permute-backward", "combine-backward"):
            for k in (1, 2, 8):
                self.of[f"{op}-top{k}"] = Rows(tokens, experts, k, hidden)
        for op in ("permute", "combine"):
            self.of[f"{op}-top8-h7168"] = wide


FULL = Shapes(16384, 64, 4096, Rows(4096, 64, 8, 7168), 8192, Products(8, 2048, 4096, 14336))
SMALL = Shapes(64, 8, 256, Rows(32, 16, 8, 384), 32, Products(3, 16, 32, 48))
