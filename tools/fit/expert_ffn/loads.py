"""The loads of the sweeps: rows of each expert by the sweeps' own rules (balanced round-robin, or a
power law sampled per call), as expected numbers of blocks."""
import functools

import numpy as np
import pandas as pd

from tools.fit import common

LOAD = ["num_tokens", "topk", "num_experts", "moe_ep_size", "distribution"]
DRAWS = 8


def balanced_counts(tokens, choices, experts):
    """Rows per expert under the sweep's round-robin: choice i of token t takes expert t + i s."""
    stride = -(-experts // choices)
    token = np.arange(tokens) if tokens >= stride else np.arange(tokens) * stride / tokens
    picks = (token[:, None] + np.arange(choices) * stride).astype(int) % experts
    return np.bincount(picks.ravel(), minlength=experts)


def power_law_counts(tokens, choices, experts, groups, exponent, random):
    """Rows per expert of one draw of the sweep's power law; the busiest group of experts comes
    first, as the sweep times that one."""
    low, high = (1, 0.8 * tokens) if tokens * choices > experts else (0.01, 2)
    power = 1 - exponent
    sample = ((high**power - low**power) * random.random(experts) + low**power) ** (1 / power)
    total = tokens * choices
    counts = np.round(sample / sample.sum() * total).astype(int)
    order = np.argsort(-counts)
    missing = total - counts.sum()
    if missing > 0:
        counts += np.bincount(order[np.arange(missing) % experts], minlength=experts)
    for _ in range(max(-missing, 0)):
        counts[np.argmax(counts)] -= 1
    by_group = counts.reshape(groups, -1)
    busiest = by_group.sum(1).argmax()
    by_group[[0, busiest]] = by_group[[busiest, 0]]
    counts = by_group.ravel()
    # A token takes an expert once; what it would take again goes to another expert.
    excess = np.maximum(counts - tokens, 0).sum()
    counts = np.minimum(counts, tokens)
    counts[np.argmin(counts)] += excess
    return counts


@functools.lru_cache(maxsize=None)
def local_counts(tokens, choices, experts, groups, distribution):
    """[draws, experts] rows of the experts of the first group."""
    if distribution == "balanced":
        draws = [balanced_counts(tokens, choices, experts)]
    else:
        exponent = float(distribution.rsplit("_", 1)[1])
        random = np.random.default_rng([common.SEED, tokens, choices, experts, groups])
        draws = [power_law_counts(tokens, choices, experts, groups, exponent, random)
                 for _ in range(DRAWS)]
    return np.array(draws)[:, :experts // groups]


def expected_blocks(load, blocks):
    """Expected figures of the first group: its rows, its experts with rows, blocks per size."""
    local = local_counts(*load)
    return [local.sum(1).mean(), (local > 0).sum(1).mean(),
            *(np.ceil(local / block).sum(1).mean() for block in blocks)]


def with_blocks(rows, blocks):
    """The sweep's rows with what the model asks of their loads."""
    loads = rows[LOAD].drop_duplicates()
    figures = [expected_blocks(tuple(each), blocks) for each in loads.itertuples(index=False)]
    names = ["rows", "active", *(f"blocks_{int(block)}" for block in blocks)]
    loads = pd.concat([loads.reset_index(drop=True), pd.DataFrame(figures, columns=names)], axis=1)
    rows = rows.merge(loads, on=LOAD, how="left")
    rows["ffn"] = rows.inter_size // rows.moe_tp_size
    rows["hidden"] = rows.hidden_size
    rows["experts"] = rows.num_experts // rows.moe_ep_size
    # Rows of other ranks' experts still pass through the activation and the sum.
    rows["routed"] = rows.num_tokens * rows.topk
    return rows
