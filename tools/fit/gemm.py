"""bf16 matrix products, from published sweeps (gemm_{a100,h100,h200}.csv.gz).

A model of a library of tile kernels, of how the library chooses among them, of the memory system
and of the clock under load (sim/profile/gemm_curve.hpp says the physics), fitted in log time, then
small corrections on coarse grids."""
import numpy as np
import pandas as pd
from scipy import sparse
from scipy.linalg import block_diag

from tools.fit import common

TABLES = {"a100-sxm-80gb": "a100", "h100-sxm": "h100", "h200-sxm": "h200"}
SOURCE = "GEMM sweep (PyTorch linear, cuBLAS) of ai-dynamo/aiconfigurator (Apache-2.0)"
BARS, LARGE_BARS, LARGE_US, LARGE_WEIGHT = (0.03, 0.12), (0.025, 0.10), 100.0, 3.0
FOLDS = 5
METHOD = f"seeded {FOLDS}-fold, all rows of a shape held out together"

# Tile shapes [rows of m, columns of n] of the modelled kernels, and ways to split k.
TILES = np.array([
    (8, 64), (16, 32), (16, 64), (16, 128), (32, 64), (64, 32), (128, 32), (64, 64), (32, 128),
    (64, 128), (128, 64), (128, 128), (64, 256), (256, 64), (128, 192), (192, 128), (128, 256),
    (256, 128)], float)
SPLITS = np.array([1, 2, 3, 4, 6, 8, 16, 32], float)
# Per kernel, in logarithms but for the shares (logits): what runs, then what the choice believes.
KERNEL = ("step_us", "tile_us", "overlap", "choice_step_us", "choice_tile_us", "choice_overlap")
SHARED = ("launch_us", "dram_bytes_per_us", "l2_bytes_per_us", "l2_bytes", "l2_sharpness",
          "overlap_power", "reduce_us", "reduce_us_per_element", "choice_power", "ramp_us",
          "throttle", "throttle_us", "throttle_tflops", "choice_reduce_us",
          "choice_reduce_us_per_element", "weight_copies")
# Elements of k that a tile consumes per step (Ampere's kernels: 32, Hopper's: 64), and where the
# search starts: rough figures of each machine, the same for every fold.
START = {
    "a100": {"step": 32, "peak": 270, "dram": 1.6e6, "clock": 400, "l2": 3e7, "tile_us": 1.5,
             "small": {8: 0.03, 16: 0.12, 32: 0.3}, "medium": (0.5, 0.8, 0.9)},
    "h100": {"step": 64, "peak": 800, "dram": 2.7e6, "clock": 700, "l2": 3e7, "tile_us": 0.8,
             "small": {8: 0.03, 16: 0.12, 32: 0.3}, "medium": (0.5, 0.8, 0.9)},
    "h200": {"step": 64, "peak": 800, "dram": 3.8e6, "clock": 700, "l2": 3e7, "tile_us": 0.8,
             "small": {8: 0.03, 16: 0.12, 32: 0.3}, "medium": (0.5, 0.8, 0.9)},
}
FIT_POINTS, FIT_STEPS, FLOOR = 6000, 45, 0.01
PRIOR_RUN, PRIOR_CHOICE, PRIOR_SHARED = 0.05, 0.3, 0.05

# Corrections: a grid over log2 (m, n, k), and over two variables of the waves of one tile shape.
HOPPER_GRID = ([0, 5, 7, 8, 10, 12, 15], [5, 7, 9, 11, 13, 16], [5, 7, 9, 11, 13, 16])
GRIDS = {"a100": ([0, 1, 3, 5, 7, 9, 11, 15], [5, 7, 9, 11, 13, 16], [5, 6, 7, 9, 11, 13, 16]),
         "h100": HOPPER_GRID, "h200": HOPPER_GRID}
IDLE, WAVES, K = "log2_idle", "log2_waves", "log2_k"
IDLE_KNOTS = [0, 0.15, 0.4, 0.8, 1.6]
WAVE_KNOTS = [-6, -3, -1.5, -0.5, 0, 0.5, 1, 1.6, 2.3, 3.3, 5]
FEW_WAVE_KNOTS = [-6, -4, -2.5, -1.5, -0.7, 0, 0.7, 1.5, 2.5, 4]
K_KNOTS = [5, 6.5, 8, 9, 10, 11, 12.5, 14, 16]
HOPPER_TERMS = (((128, 256), IDLE, WAVES), ((256, 192), IDLE, WAVES), ((192, 192), IDLE, WAVES),
                ((128, 256), WAVES, K))
TERMS = {"a100": (((64, 64), WAVES, K), ((128, 64), WAVES, K)),
         "h100": HOPPER_TERMS, "h200": HOPPER_TERMS}
SMOOTHNESS, SHRINKAGE, TERM_SHRINKAGE = 10.0, 0.01, 3.0


def load(data, table):
    rows = pd.read_csv(data / f"gemm_{table}.csv.gz")
    rows = rows[rows.gemm_dtype == "bfloat16"].sort_values(["m", "n", "k"])
    rows["time_us"] = 1e3 * rows.latency_ms
    return rows[["m", "n", "k", "time_us"]].reset_index(drop=True).astype(float)


def importance(rows):
    """Long products decide a step."""
    return np.where(rows.time_us > LARGE_US, LARGE_WEIGHT, 1.0)


class Physics:
    """The tile model at given shapes: everything about them that the parameters do not change."""

    def __init__(self, rows, sms, step):
        self.m, self.n, self.k = (rows[name].to_numpy(float) for name in "mnk")
        tiles = np.ceil(self.m[:, None] / TILES[:, 0]) * np.ceil(self.n[:, None] / TILES[:, 1])
        waves = tiles[:, :, None] * SPLITS / sms
        self.whole = np.ceil(waves)
        self.partial = np.maximum(waves, 1) - self.whole
        self.steps = np.ceil(np.ceil(self.k / step)[:, None] / SPLITS)[:, None, :]
        self.reduced = ((self.m * self.n)[:, None] * SPLITS)[:, None, :]
        self.split = (SPLITS > 1).astype(float)

    def memory_us(self, shared):
        weights, tokens = 2 * self.n * self.k, 2 * self.m * self.k
        result = 2 * self.m * self.n
        total = weights + tokens + result
        kept = lambda held: 1 / (1 + (held / shared["l2_bytes"]) ** shared["l2_sharpness"])
        hot = (weights * kept(shared["weight_copies"] * weights + tokens + result)
               + (tokens + result) * kept(total))
        return (hot / shared["l2_bytes_per_us"] + (total - hot) / shared["dram_bytes_per_us"]
                + shared["ramp_us"] * total / (total + shared["l2_bytes"]))

    def log_us(self, kernel, shared, prefix, memory):
        """[points, tiles, splits] log microseconds of every candidate: what it takes (no prefix)
        or what the choice believes it takes ("choice_")."""
        step, tile, overlap = (kernel[prefix + name][:, None]
                               for name in ("step_us", "tile_us", "overlap"))
        power = shared["overlap_power"]
        compute = (self.whole + overlap * self.partial) * (self.steps * step + tile)
        reduce = self.split * (shared[prefix + "reduce_us"]
                               + self.reduced * shared[prefix + "reduce_us_per_element"])
        return np.log((compute**power + memory) ** (1 / power) + shared["launch_us"] + reduce)

    def candidates(self, kernel, shared):
        memory = (self.memory_us(shared) ** shared["overlap_power"])[:, None, None]
        return (self.log_us(kernel, shared, "", memory),
                self.log_us(kernel, shared, "choice_", memory))

    def chosen(self, taken, believed, shared):
        """Log time of the library's choice, and the weights of the candidates."""
        lowest = believed.min(axis=(1, 2), keepdims=True)
        weights = np.exp(-shared["choice_power"] * (believed - lowest))
        weights /= weights.sum(axis=(1, 2), keepdims=True)
        return (weights * taken).sum(axis=(1, 2)), weights

    def throttled(self, log_us, shared):
        time = np.exp(log_us)
        load = 2 * self.m * self.n * self.k / time / (1e6 * shared["throttle_tflops"])
        return log_us + shared["throttle"] * load**2 * time / (time + shared["throttle_us"])

    def predict(self, kernel, shared):
        """Log microseconds at each shape."""
        taken, believed = self.candidates(kernel, shared)
        return self.throttled(self.chosen(taken, believed, shared)[0], shared)

    def gradient(self, parameters, step=1e-4):
        """(prediction, [points, parameters] derivatives). A kernel's parameters move only its own
        candidates, so that one evaluation per kind of parameter serves all kernels."""
        kernel, shared = read(parameters)
        taken, believed = self.candidates(kernel, shared)
        raw, weights = self.chosen(taken, believed, shared)
        value = self.throttled(raw, shared)
        chain = (self.throttled(raw + step, shared) - value) / step
        kinds, count = len(KERNEL), len(TILES) * len(KERNEL)
        result = np.empty((len(raw), len(parameters)))
        for kind in range(kinds):
            moved = parameters.copy()
            moved[kind:count:kinds] += step
            taken2, believed2 = self.candidates(*read(moved))
            change = weights * (taken2 - taken - shared["choice_power"]
                                * (taken - raw[:, None, None]) * (believed2 - believed))
            result[:, kind:count:kinds] = change.sum(axis=2) / step * chain[:, None]
        for index, name in enumerate(SHARED):
            moved = parameters.copy()
            moved[count + index] += step
            late = name in ("throttle", "throttle_us", "throttle_tflops")
            after = self.throttled(raw, read(moved)[1]) if late else self.predict(*read(moved))
            result[:, count + index] = (after - value) / step
        return value, result


def read(parameters):
    """(figures per kernel, shared figures) of fitted logs and logits."""
    count = len(TILES) * len(KERNEL)
    table = parameters[:count].reshape(len(TILES), len(KERNEL))
    share = lambda logit: 1 / (1 + np.exp(-logit))
    step, tile, overlap, more_step, more_tile, more_overlap = table.T
    kernel = {"step_us": np.exp(step), "tile_us": np.exp(tile), "overlap": share(overlap),
              "choice_step_us": np.exp(step + more_step),
              "choice_tile_us": np.exp(tile + more_tile),
              "choice_overlap": share(overlap + more_overlap)}
    shared = dict(zip(SHARED, np.exp(parameters[count:])))
    shared["overlap_power"] += 1
    return kernel, shared


def start(table, sms):
    """(where the search starts, how strongly each parameter is held there)."""
    rough = START[table]
    kernels = []
    for rows, columns in TILES:
        area, short = rows * columns, min(rows, columns)
        medium = rough["medium"][0 if area <= 4096 else 1 if area <= 8192 else 2]
        efficiency = rough["small"].get(int(short), 1.0 if area > 16384 else medium)
        step_us = 2 * area * rough["step"] / (rough["peak"] * 1e6 / sms) / efficiency
        kernels.append([np.log(step_us), np.log(rough["tile_us"]), 0, 0, 0, 0])
    shared = [2.1, rough["dram"], 2.2 * rough["dram"], rough["l2"], 6, 2, 2, 1e-6, 20, 0.5, 0.06,
              300, rough["clock"], 2, 1e-6, 6]
    held = [PRIOR_RUN] * 3 + [PRIOR_CHOICE] * 3
    return (np.append(np.ravel(kernels), np.log(shared)),
            np.append(np.tile(held, len(TILES)), np.full(len(SHARED), PRIOR_SHARED)))


def fit_physics(rows, table, sms):
    """Least absolute deviations in log time by damped, reweighted Gauss-Newton steps."""
    if len(rows) > FIT_POINTS:
        rows = rows.iloc[np.random.default_rng(common.SEED).choice(len(rows), FIT_POINTS, False)]
    model = Physics(rows, sms, START[table]["step"])
    target, weight = np.log(rows.time_us.to_numpy()), importance(rows)
    origin, held = start(table, sms)
    cost = lambda errors, at: (weight * np.abs(errors)).sum() + (held * (at - origin) ** 2).sum()
    parameters, damping = origin, 1.0
    for _ in range(FIT_STEPS):
        value, slope = model.gradient(parameters)
        errors = target - value
        best, trust = cost(errors, parameters), weight / np.maximum(np.abs(errors), FLOOR)
        normal = (slope * trust[:, None]).T @ slope
        right = slope.T @ (trust * errors) + 2 * held * (origin - parameters)
        for _ in range(8):
            system = normal + np.diag(damping * np.diag(normal) + 2 * held)
            trial = parameters + np.clip(np.linalg.solve(system, right), -0.5, 0.5)
            with np.errstate(all="ignore"):
                found = cost(target - model.predict(*read(trial)), trial)
            if np.isfinite(found) and found < best:
                break
            damping *= 3
        else:
            break
        parameters, damping = trial, max(damping / 3, 1e-4)
        if best - found < 1e-4 * best:
            break
    return np.round(parameters, 6)


def hats(x, knots):
    """([points, 2] indices, [points, 2] weights) of linear interpolation, constant beyond."""
    knots = np.asarray(knots, float)
    x = np.clip(x, knots[0], knots[-1])
    low = np.clip(np.searchsorted(knots, x, side="right") - 1, 0, len(knots) - 2)
    share = (x - knots[low]) / (knots[low + 1] - knots[low])
    return np.stack([low, low + 1], 1), np.stack([1 - share, share], 1)


def product(columns, axes):
    """[points, all knots] weights of multilinear interpolation, the last axis fastest."""
    index, weight = np.zeros((len(columns[0]), 1), int), np.ones((len(columns[0]), 1))
    for x, knots in zip(columns, axes):
        at, share = hats(x, knots)
        index = (index[:, :, None] * len(knots) + at[:, None, :]).reshape(len(x), -1)
        weight = (weight[:, :, None] * share[:, None, :]).reshape(len(x), -1)
    point = np.repeat(np.arange(len(index)), index.shape[1])
    shape = (len(index), int(np.prod([len(axis) for axis in axes])))
    return sparse.csr_matrix((weight.ravel(), (point, index.ravel())), shape)


def wave_variables(rows, tile, sms):
    """What a correction may depend on: of one tile shape, log2 of whole waves over the work in
    them and of the waves; log2 k."""
    m, n, k = (rows[name].to_numpy(float) for name in "mnk")
    waves = np.ceil(m / tile[0]) * np.ceil(n / tile[1]) / sms
    idle = np.log2(np.ceil(waves) * sms * tile[0] * tile[1] / (m * n))
    return {IDLE: idle, WAVES: np.log2(waves), K: np.log2(k)}


def empty_corrections(table):
    """The correction terms as the document carries them, without values."""
    terms = []
    for tile, x, y in TERMS[table]:
        few = x == WAVES
        knots = {IDLE: IDLE_KNOTS, WAVES: FEW_WAVE_KNOTS if few else WAVE_KNOTS, K: K_KNOTS}
        terms.append({"rows": tile[0], "columns": tile[1], "x": x, "y": y, "x_knots": knots[x],
                      "y_knots": knots[y]})
    return {**{f"{name}_knots": list(axis) for name, axis in zip("mnk", GRIDS[table])},
            "terms": terms}


def design(rows, corrections, sms):
    """[points, knots] weights of the grid, then of each term."""
    logs = [np.log2(rows[name].to_numpy(float)) for name in "mnk"]
    blocks = [product(logs, [corrections[f"{name}_knots"] for name in "mnk"])]
    for term in corrections["terms"]:
        known = wave_variables(rows, (term["rows"], term["columns"]), sms)
        blocks.append(product((known[term["x"]], known[term["y"]]),
                              (term["x_knots"], term["y_knots"])))
    return sparse.hstack(blocks).tocsr()


def penalty(table):
    """The quadratic form that keeps neighbouring knots close and all of them small."""
    sizes = [len(axis) for axis in GRIDS[table]]
    whole = int(np.prod(sizes))
    form = SHRINKAGE * np.eye(whole)
    for axis, size in enumerate(sizes):
        rise = np.diff(np.eye(size), axis=0)
        pieces = [np.eye(each) for each in sizes]
        pieces[axis] = rise.T @ rise
        form += SMOOTHNESS * np.kron(np.kron(pieces[0], pieces[1]), pieces[2])
    others = sum(len(term["x_knots"]) * len(term["y_knots"])
                 for term in empty_corrections(table)["terms"])
    return block_diag(form, TERM_SHRINKAGE * np.eye(others))


def fit_corrections(rows, errors, table, sms):
    """Knot values from log errors: penalised least absolute deviations, by reweighting."""
    weights_of = design(rows, empty_corrections(table), sms)
    form, weight = penalty(table), importance(rows)
    values = np.zeros(weights_of.shape[1])
    for _ in range(7):
        trust = weight / np.maximum(np.abs(errors - weights_of @ values), FLOOR)
        normal = (weights_of.T @ weights_of.multiply(trust[:, None]).tocsr()).toarray()
        values = np.linalg.solve(normal + form, weights_of.T @ (trust * errors))
    return np.round(values, 5)


def log_physics(rows, kernel, shared, sms, step, chunk=2000):
    return np.concatenate([Physics(rows.iloc[at:at + chunk], sms, step).predict(kernel, shared)
                           for at in range(0, len(rows), chunk)])


def fit(rows, table, sms):
    """(physics parameters, correction values)."""
    parameters = fit_physics(rows, table, sms)
    physics = log_physics(rows, *read(parameters), sms, START[table]["step"])
    errors = np.log(rows.time_us.to_numpy()) - physics
    return parameters, fit_corrections(rows, errors, table, sms)


def predict(model, rows, table, sms):
    parameters, values = model
    return np.exp(log_physics(rows, *read(parameters), sms, START[table]["step"])
                  + design(rows, empty_corrections(table), sms) @ values)


def evaluate(curve, rows):
    """Microseconds of a curve object as the document carries it (and as C++ evaluates it)."""
    kernel = {name: np.array(curve["kernels"][name]) for name in KERNEL}
    physics, corrections = curve["physics"], curve["corrections"]
    values = np.concatenate([corrections["values"]]
                            + [term["values"] for term in corrections["terms"]])
    return np.exp(log_physics(rows, kernel, physics, physics["sms"], physics["step"])
                  + design(rows, corrections, physics["sms"]) @ values)


def held_out(rows, table, sms):
    fold = common.folds_by_group(rows[["m", "n", "k"]].to_numpy(), FOLDS)
    predicted = np.empty(len(rows))
    for each in range(FOLDS):
        model = fit(rows[fold != each], table, sms)
        predicted[fold == each] = predict(model, rows[fold == each], table, sms)
    return predicted


def figure(value):
    return float(f"{value:.12g}")


def describe(model, table, sms):
    """The model part of the curve object."""
    kernel, shared = read(model[0])
    corrections, values = empty_corrections(table), [float(each) for each in model[1]]
    at = int(np.prod([len(axis) for axis in GRIDS[table]]))
    corrections["values"] = values[:at]
    for term in corrections["terms"]:
        width = len(term["x_knots"]) * len(term["y_knots"])
        term["values"] = values[at:at + width]
        at += width
    return {
        "model": "tile-kernels",
        "physics": {"sms": sms, "step": START[table]["step"],
                    **{name: figure(value) for name, value in shared.items()},
                    "splits": SPLITS.tolist()},
        "kernels": {"rows": TILES[:, 0].tolist(), "columns": TILES[:, 1].tolist(),
                    **{name: [figure(each) for each in column] for name, column in kernel.items()}},
        "corrections": corrections}


def checks(rows, predicted):
    """Held-out errors on the sets of points that bars are set on, and on those that users ask."""
    found, large = [], rows.time_us > LARGE_US
    for what, inside, bars in (
            ("all shapes", rows.time_us > 0, BARS), ("above 100 us", large, LARGE_BARS),
            ("above 100 us, m up to 128", large & (rows.m <= 128), (None, None)),
            ("above 100 us, m 129 to 1025", large & (rows.m > 128) & (rows.m <= 1025),
             (None, None)),
            ("above 100 us, m 1026 to 8191", large & (rows.m > 1025) & (rows.m < 8192),
             (None, None)),
            ("above 100 us, m from 8192", large & (rows.m >= 8192), (None, None))):
        found.append(common.check(what, rows.time_us[inside], predicted[inside], *bars))
    return found


def scatter(rows, least_m=2048, least_n=8192):
    """What no model can explain: times of m and m + 1 rows, whose work differs by at most one row
    of tiles, about their usual ratio, per measurement (a difference holds two)."""
    after = rows.assign(m=rows.m - 1)
    pairs = rows.merge(after, on=["m", "n", "k"], suffixes=("", "_after"))
    pairs = pairs[(pairs.m >= least_m) & (pairs.n >= least_n) & (pairs.time_us > LARGE_US)]
    if pairs.empty:
        return []
    ratio = np.log(pairs.time_us_after / pairs.time_us)
    usual = ratio.groupby(pairs.m).transform("median")
    return [common.check(f"the table's own scatter: m + 1 over m rows, m from {least_m}, n from "
                         f"{least_n}", np.exp((ratio - usual) / np.sqrt(2)), np.ones(len(pairs)))]


def beyond(rows, table, sms, largest=8192):
    """How the law of extrapolation in m fares: fitted without m > `largest`, tested on them."""
    known = rows.m <= largest
    model = fit(rows[known], table, sms)
    far = rows[~known]
    return common.check(f"m > {largest} from m <= {largest}, not used by the fit", far.time_us,
                        predict(model, far, table, sms))


def curves(data, profile, devices):
    table, sms = TABLES[profile], devices[profile]["sms"]["value"]
    rows = load(data, table)
    predicted = held_out(rows, table, sms)
    tests = checks(rows, predicted) + scatter(rows)
    if rows.m.max() > 8192:
        tests.append(beyond(rows, table, sms))
    return [{
        "op": "gemm", "params": {"dtype": "bf16"},
        **describe(fit(rows, table, sms), table, sms),
        "valid": {name: [int(rows[name].min()), int(rows[name].max())] for name in "mnk"},
        "residual": {**common.residual(rows.time_us, predicted, method=METHOD), "checks": tests},
        "origin": "published",
        "source": f"{SOURCE}: {table.upper()}",
        "note": "C[m, n] = A[m, k] B[k, n], leading dimensions multiples of 8. The sweep alternates "
                "between weight matrices but keeps the activations in cache. Beyond the largest m, "
                "n, k measured: tile counts carry and corrections stay, so efficiency stays what it "
                "was in whole waves.",
    }]
