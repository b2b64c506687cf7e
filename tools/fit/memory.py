"""Memory-bound kernels, from published operator timings (vidur_mlp_ops_a100_h100.csv.gz): time
against bytes read and written, by family of kernel."""
import numpy as np
import pandas as pd

from tools.fit import common, gemm, piecewise

SOURCE = "operator profiles of microsoft/vidur (MIT), medians of repeated kernel times"
METHOD = "seeded 10-fold, all rows of a byte count held out together"
BLACKWELL = ("b200-sxm", "b300-sxm", "gb200", "gb300")
GPUS = {"a100-sxm-80gb": "a100", "h100-sxm": "h100",
        **{profile: "h100" for profile in ("h200-sxm", *BLACKWELL)}}  # derived from H100
LLAMA = ("meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-70b-hf", "Qwen/Qwen-72B")
KNOT_TOLERANCE = 0.04


def element_bytes(table, kernel):
    """Bytes that each kernel must move, bf16: add reads two arrays and writes one; the gated
    activation reads 2 f and writes f per token (f divided by the tensor-parallel degree); RMSNorm
    reads and writes one row."""
    tokens, hidden = table.num_tokens, table.n_embd
    wide = table.n_expanded_embd / table.num_tensor_parallel_workers
    return {"streaming": 6 * tokens * hidden, "activation": 6 * tokens * wide,
            "normalization": 4 * tokens * hidden}[kernel]


COLUMNS = {"streaming": "add", "activation": "mlp_act", "normalization": "input_layernorm"}


def load(data, gpu, kernel):
    """(bytes, time_us, relative standard deviation) of the gated-FFN models' rows. phi-2 is left
    out: its LayerNorm, GELU and add are other kernels than a Llama-like model's."""
    table = pd.read_csv(data / "vidur_mlp_ops_a100_h100.csv.gz")
    table = table[(table.gpu == gpu) & table.model.isin(LLAMA)]
    column = COLUMNS[kernel]
    rows = pd.DataFrame({"bytes": element_bytes(table, kernel),
                         "time_us": 1e3 * table[f"{column}.median"],
                         "spread": table[f"{column}.std"] / table[f"{column}.median"]}).dropna()
    return rows[rows.time_us > 0]


def binned(rows, per_octave=2):
    """One row per half octave of bytes: the median size and the time that its median bandwidth
    gives there, a smooth target for the knots."""
    bins = np.floor(np.log2(rows.bytes) * per_octave)
    sizes, times = [], []
    for _, part in rows.groupby(bins):
        size = float(np.median(part.bytes))
        nearest = part.iloc[(part.bytes / size - 1).abs().argsort()[:15]]
        sizes.append(size)
        times.append(float(np.median(nearest.time_us * (size / nearest.bytes) ** 0.5)))
    return np.array(sizes), np.array(times)


def fit_rows(rows):
    return piecewise.fit(*binned(rows), KNOT_TOLERANCE)


def held_out(rows, folds=10):
    """(measured, predicted) with every byte count unseen by its fit."""
    predict = lambda knots, unseen: piecewise.evaluate(*knots, unseen.bytes)
    predicted = common.held_out(rows, "bytes", fit_rows, predict, folds)
    return rows.time_us.to_numpy(), predicted


def scaled_by_bandwidth(knot_bytes, knot_time_us, cache_bytes, ratio):
    """The stated law between two machines with the same cache: what flows beyond the cache takes
    `ratio` of the time, what fits in it and the launch floor the same."""
    grid = np.unique(np.append(knot_bytes, cache_bytes))
    times = piecewise.evaluate(knot_bytes, knot_time_us, grid)
    steps = np.diff(times) * np.where(grid[1:] > cache_bytes, ratio, 1.0)
    return grid, times[0] + np.concatenate([[0], np.cumsum(steps)])


def carried_ratio(data, profile, devices):
    """(time of memory traffic over H100's, what that is the ratio of). Blackwell's kernels reach a
    smaller share of the peak: there that of weights, of products too short to compute, decides."""
    if profile in BLACKWELL:
        _, ratios = gemm.sweeps.product_ratios(data, "h100", gemm.sweeps.TABLES[profile])
        return float(np.median(ratios)), "the times of memory-bound products"
    return bandwidth_ratio(devices, "h100-sxm", profile), "memory bandwidths"


def bandwidth_ratio(devices, donor, own):
    """Time that memory traffic takes on `own`, as a share of what it takes on `donor`."""
    return (devices[donor]["hbm_bytes_per_second"]["value"]
            / devices[own]["hbm_bytes_per_second"]["value"])


def law_residual(data, kernel, devices, rows, unseen, cache):
    """Errors to expect of a curve carried over by bandwidth: inside the cache those of the donor's
    own held-out points, beyond it those of the law where it can be checked, H100 from A100."""
    ratio = bandwidth_ratio(devices, "a100-sxm-80gb", "h100-sxm")
    ampere, hopper = fit_rows(load(data, "a100", kernel)), fit_rows(rows)
    beyond = (piecewise.evaluate(*ampere, rows.bytes) - piecewise.evaluate(*ampere, cache)) * ratio
    carried = piecewise.evaluate(*hopper, cache) + beyond
    predicted = np.where(rows.bytes > cache, carried, unseen)
    return common.residual(rows.time_us, predicted, method="inside the cache as on H100 ("
                           + METHOD + "); beyond it the law checked on H100 from A100")


def curve(data, profile, kernel, devices):
    """The curve object of one family of kernels. `devices` holds each profile's figures."""
    rows = load(data, GPUS[profile], kernel)
    knots = fit_rows(rows)
    measured, predicted = held_out(rows)
    column = COLUMNS[kernel]
    result = {
        "op": "memory",
        "params": {"kernel": kernel},
        "model": "piecewise-alpha-beta",
        "valid": {"bytes": [float(rows.bytes.min()), float(rows.bytes.max())]},
        "residual": common.residual(measured, predicted, method=METHOD),
        "noise": {"median_relative_std": common.rounded(rows.spread[rows.time_us > 20].median()),
                  "of": "standard deviation over median of the repeats of a point above 20 us"},
        "origin": "published",
        "source": f"{SOURCE}: {column} of Llama-2 and Qwen-72B on {GPUS[profile].upper()}",
        "note": "times are rounded to 0.5-1 us in the source. Beyond the largest size constant "
                "bandwidth, below the smallest the floor.",
    }
    if profile not in ("a100-sxm-80gb", "h100-sxm"):
        ratio, of = carried_ratio(data, profile, devices)
        cache = devices["h100-sxm"]["l2_bytes"]["value"]
        knots = scaled_by_bandwidth(*knots, cache, ratio)
        result["origin"] = "derived"
        result["residual"] = law_residual(data, kernel, devices, rows, predicted, cache)
        result["note"] += (f" Not measured on this machine: H100's curve with the time of the bytes "
                           f"beyond the L2 multiplied by the ratio of {of}, {ratio:.3f}.")
    result["bytes"] = [common.rounded(each, 6) for each in knots[0]]
    result["time_us"] = [common.rounded(each, 6) for each in knots[1]]
    result["achieved_bytes_per_second"] = common.rounded(
        1e6 * (knots[0][-1] - knots[0][-2]) / (knots[1][-1] - knots[1][-2]))
    return result


PRODUCTS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")


def product_noise(data, profile):
    """The spread of repeated matrix products above 100 us: the noise of compute."""
    table = pd.read_csv(data / "vidur_mlp_ops_a100_h100.csv.gz")
    table = table[table.gpu == GPUS[profile]]
    spread = [table.loc[table[f"{name}.median"] > 0.1, f"{name}.std"]
              / table.loc[table[f"{name}.median"] > 0.1, f"{name}.median"] for name in PRODUCTS]
    return {"median_relative_std": common.rounded(pd.concat(spread).median()),
            "p90_relative_std": common.rounded(pd.concat(spread).quantile(0.9)),
            "of": f"repeats of dense matrix products above 100 us on {GPUS[profile].upper()}",
            "source": SOURCE}


def row_moves(profile, streaming, device):
    """Permute and combine: gathers of whole rows at an assumed share of the streaming bandwidth."""
    peak = device["hbm_bytes_per_second"]["value"]
    share = GATHER_SHARE_OF_PEAK * peak / streaming["achieved_bytes_per_second"]
    return [{
        "op": op, "params": {}, "model": "share-of-memory-curve",
        "efficiency": common.rounded(min(share, 1.0)),
        "valid": {"bytes": streaming["valid"]["bytes"]},
        "residual": GATHER_RESIDUAL,
        "origin": "assumed",
        "source": "the best open permute and unpermute kernels reach 50-61 % of the peak bandwidth",
        "note": f"2 S h + 2 rows h bytes at {GATHER_SHARE_OF_PEAK:.3f} of the peak, the middle of "
                f"that range, as a share of the streaming curve of {profile}; the error bar is the "
                "range itself.",
    } for op in ("permute", "combine")]


GATHER_SHARE_OF_PEAK = 0.555
_LOW, _HIGH = GATHER_SHARE_OF_PEAK / 0.61 - 1, GATHER_SHARE_OF_PEAK / 0.50 - 1
GATHER_RESIDUAL = {
    "by": "time_us", "n": 0, "median_abs": 0.05, "p90_abs": 0.1,
    "method": "assumed: the range of the source",
    "regions": [{"region": "all", "from": 0.0, "below": None, "n": 0, "median_abs": 0.05,
                 "p90_abs": 0.1, "q05": common.rounded(_LOW), "q95": common.rounded(_HIGH)}],
}


def curves(data, profile, devices):
    found = [curve(data, profile, kernel, devices) for kernel in COLUMNS]
    return found + row_moves(profile, found[0], devices[profile])
