"""How noisy the published matrix-product sweeps are themselves: what no model can predict."""
import numpy as np
import pandas as pd

from tools.fit import common, gemm, memory

LARGE_US, SMALLEST_K = 100.0, 1024


def roughness(data, sweep):
    """How far the log of time per FLOP lies from the line through its neighbours in k at the same
    (m, n), scaled to the error of one point, for products above 100 us. From k of 1,024 on the
    efficiency is flat and prologues no longer bend it: what is left is noise, or a change of
    kernel."""
    rows = gemm.sweeps.load(data, sweep)
    rows = rows[(rows.k >= SMALLEST_K) & (rows.time_us > LARGE_US)]
    found = {}
    for (m, n), part in rows.groupby(["m", "n"]):
        part = part.sort_values("k")
        k, cost = part.k.to_numpy(float), np.log(part.time_us / part.k).to_numpy()
        share = np.log(k[1:-1] / k[:-2]) / np.log(k[2:] / k[:-2])
        line = (1 - share) * cost[:-2] + share * cost[2:]
        scale = np.sqrt(1 + (1 - share) ** 2 + share**2)
        found.update(zip(zip([m] * len(share), [n] * len(share), k[1:-1]),
                         (cost[1:-1] - line) / scale))
    return pd.Series(found)


def falls(data, sweep, size="k"):
    """(the share of pairs in which the larger product takes less than 1 / 1.1 of the smaller one's
    time, the number of pairs). A pair are neighbours in one size, the others equal. More such pairs
    than the same kernels show on another machine are noise: profiles/HARDWARE.md quotes them."""
    others = [each for each in "mnk" if each != size]
    rows = gemm.sweeps.load(data, sweep).sort_values([*others, size])
    following = rows.groupby(others).time_us.shift(-1)
    paired = following.notna()
    return float((following < rows.time_us / 1.1)[paired].mean()), int(paired.sum())


def agreement(data):
    """The rank correlation of H100's and H200's roughness at the same shapes: both run the same
    kernels, so structure would show in both, noise in neither."""
    both = pd.concat([roughness(data, "h100"), roughness(data, "h200")], axis=1).dropna()
    return common.rounded(both.rank().corr().iloc[0, 1], 2), len(both)


def of_products(data, profile, dtype="bf16"):
    """The `noise` object of a GEMM curve."""
    table = gemm.sweeps.TABLES[profile]
    rough = roughness(data, common.sweep_of(table, dtype))
    result = {"above_100_us": {
        "n": len(rough), "median_abs": common.rounded(rough.abs().median()),
        "p90_abs": common.rounded(rough.abs().quantile(0.9)),
        "of": "a point about its neighbours in k, k from 1,024: the error that is left to a model "
              "without error of its own"}}
    if not gemm.sweeps.of_first_kind(table) or dtype != "bf16":
        return result
    result["repeats"] = memory.product_noise(data, profile)
    if profile != "a100-sxm-80gb":
        correlation, shared = agreement(data)
        result["above_100_us"]["rank_correlation_h100_h200"] = correlation
        result["above_100_us"]["shared"] = shared
    return result
