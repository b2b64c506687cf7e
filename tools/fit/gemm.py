"""Matrix products by data type, from published sweeps (gemm_*.csv.gz).

A model of a library of tile kernels, of how the library chooses among them, of the memory system
and of the clock under load (sim/profile/kernels/gemm_curve.hpp says the physics), fitted in log time, then
small corrections on coarse grids."""
import numpy as np
import pandas as pd
from scipy import sparse
from scipy.linalg import block_diag

from tools.fit import common, interpolation, trees

TABLES = {"a100-sxm-80gb": "a100", "h100-sxm": "h100", "h200-sxm": "h200", "b200-sxm": "b200",
          "b300-sxm": "b300", "gb200": "gb200", "gb300": "gb300"}
# A sweep is named by its table ("b200": bf16) and, of other types, the type ("b200 fp8").
DTYPES = {"a100": ("bf16",), "h100": ("bf16", "fp8", "fp8_block"),
          "h200": ("bf16", "fp8", "fp8_block"),
          **{table: ("bf16", "fp8", "fp8_block", "nvfp4") for table in common.BLACKWELL}}
# Bytes of an element of A and B, its share of a scale included (one float per 128, one byte per 16).
ELEMENT_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.03125, "nvfp4": 0.5625}
SOURCE = "GEMM sweep (PyTorch linear, cuBLAS) of ai-dynamo/aiconfigurator (Apache-2.0)"
SOURCES = {
    "bf16": SOURCE,
    "fp8": "GEMM sweep (vLLM linear, CUTLASS FP8) of ai-dynamo/aiconfigurator (Apache-2.0)",
    "fp8_block": "GEMM sweep (vLLM linear, DeepGEMM 128 x 128) of ai-dynamo/aiconfigurator "
                 "(Apache-2.0)",
    "nvfp4": "GEMM sweep (vLLM linear, FlashInfer NVFP4) of ai-dynamo/aiconfigurator (Apache-2.0)"}
# Calls of fp8_block were not captured in a CUDA graph: short ones take what the host needs to issue
# them. Kept are shapes whose kernel takes at least twice that (us), at the highest rates that any
# row reaches (TFLOP/s, TB/s).
BESIDE = {"fp8_block": "fp8"}  # whose tile model such a sweep takes
HOST_US = {"h100": 60.0, "h200": 60.0, "b200": 200.0, "b300": 200.0, "gb200": 320.0, "gb300": 320.0}
HIGHEST = {**{table: (1500.0, 3.0 if table == "h100" else 4.4) for table in ("h100", "h200")},
           **{table: (3300.0, 7.7) for table in common.BLACKWELL}}
BARS, LARGE_BARS, LARGE_US, LARGE_WEIGHT = (0.03, 0.12), (0.025, 0.10), 100.0, 3.0
GOAL = (0.03, 0.10)

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
# Where the measured call quantises A first.
INPUT = "input_us_per_element"
# Elements of k that a tile consumes per step (Ampere's kernels: 32, Hopper's: 64), and where the
# search starts: rough figures of each machine, the same for every fold.
START = {
    "a100": {"step": 32, "peak": 270, "dram": 1.6e6, "clock": 400, "l2": 3e7, "tile_us": 1.5,
             "small": {8: 0.03, 16: 0.12, 32: 0.3}, "medium": (0.5, 0.8, 0.9)},
    "h100": {"step": 64, "peak": 800, "dram": 2.7e6, "clock": 700, "l2": 3e7, "tile_us": 0.8,
             "small": {8: 0.03, 16: 0.12, 32: 0.3}, "medium": (0.5, 0.8, 0.9)},
    "h200": {"step": 64, "peak": 800, "dram": 3.8e6, "clock": 700, "l2": 3e7, "tile_us": 0.8,
             "small": {8: 0.03, 16: 0.12, 32: 0.3}, "medium": (0.5, 0.8, 0.9)},
    **{table: {"step": 64, "peak": 1900, "dram": 6.5e6, "clock": 1600, "l2": 6e7, "tile_us": 0.8,
               "small": {8: 0.03, 16: 0.12, 32: 0.3}, "medium": (0.5, 0.8, 0.9)}
       for table in ("b200", "b300", "gb200", "gb300")},
}
# Of other types: FLOP/s against bf16, and k per step (128 bytes of an element's operands).
FASTER = {"fp8": (1.6, 2), "fp8_block": (1.5, 2), "nvfp4": (2.6, 4)}
FIT_POINTS, FIT_STEPS = 6000, 45
MOST_POWER = 12.0  # of compute and memory side by side: beyond it is the longer of the two
CHUNK = 250  # points at once: what the candidates need stays in cache
# The sweeps of Blackwell and of low precision: points and steps of a search; where one starts, when
# another machine ran the same kernels, from that machine's shipped curve.
SHORT_POINTS, SHORT_STEPS, CARRIED_STEPS = 2500, 30, 12
DONORS = {"h200": "h100-sxm", "b300": "b200-sxm", "gb200": "b200-sxm", "gb300": "b200-sxm"}
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
# Pairs of SMs share a tile of 256 x 256 on Blackwell.
MORE_TERMS = (((128, 256), IDLE, WAVES), ((256, 256), IDLE, WAVES), ((256, 128), IDLE, WAVES),
              ((256, 256), WAVES, K))
SMOOTHNESS, SHRINKAGE, TERM_SHRINKAGE = 10.0, 0.01, 3.0
MORE_SMOOTHNESS = 3.0
# What a term counts for: as far as a product waits for its tiles. Beside memory their waves are
# hidden, and a term that was fitted to long products would be wrong by up to 40 % there.
COMPUTE_SHARE = "compute_share"
# Last, boosted trees on what is left, which may ask for waves of these tiles.
TREE_TILES = ((128, 64), (128, 128), (128, 256), (256, 256))
# Blackwell's cuBLAS chooses among more kernels than the other libraries have, down to tiles of
# 64 x 32: trees for its sweeps ask for these too, and fork by how far points lie apart (fit_medians).
MANY_KERNELS = common.BLACKWELL
MORE_TREE_TILES = ((64, 32), (256, 128))
# Their long products weigh less: GB200's scatter so much that trees spent their leaves on it. Those
# of few rows wait for memory and hardly scatter; forks by distance would pass over them.
LONG_TREE_WEIGHT, FEW_ROWS, FEW_ROWS_TREE_WEIGHT = 2.0, 128, 6.0


def of_first_kind(sweep):
    """The bf16 sweeps of Ampere and Hopper: searched longer, corrected on coarser grids."""
    return sweep in TERMS


def rough(sweep):
    """Where the search starts, as START has it."""
    table, dtype = common.parts(sweep)
    if dtype == "bf16":
        return START[table]
    faster, deeper = FASTER[dtype]
    known = START[table]
    return {**known, "peak": faster * known["peak"], "clock": faster * known["clock"],
            "step": deeper * known["step"]}


def grids(sweep):
    return GRIDS.get(sweep, HOPPER_GRID)


def terms_of(sweep):
    return TERMS.get(sweep, MORE_TERMS)


def element_bytes(sweep):
    return ELEMENT_BYTES[common.parts(sweep)[1]]


def beyond_host(rows, table):
    """Shapes of which a kernel surely takes twice as long as the host needs to issue it."""
    flops, rate = HIGHEST[table]
    compute = 2 * rows.m * rows.n * rows.k / (1e6 * flops)
    memory = rows.n * rows.k / (1e6 * rate)
    return np.maximum(compute, memory) > 2 * HOST_US[table]


def load(data, sweep):
    table, dtype = common.parts(sweep)
    separate = dtype == "fp8_block" and table in ("h100", "h200")
    rows = pd.read_csv(data / f"gemm_{table}{'_block' if separate else ''}.csv.gz")
    rows = rows[rows.gemm_dtype == ("bfloat16" if dtype == "bf16" else dtype)]
    if dtype == "fp8_block":
        rows = rows[~rows.kernel_source.str.startswith("Cutlass") & beyond_host(rows, table)]
    rows = rows.sort_values(["m", "n", "k"])
    rows["time_us"] = 1e3 * rows.latency_ms
    return rows[["m", "n", "k", "time_us"]].reset_index(drop=True).astype(float)


def importance(rows):
    """Long products decide a step."""
    return np.where(rows.time_us > LARGE_US, LARGE_WEIGHT, 1.0)


def tree_importance(rows, sweep):
    """As `importance`, of what the trees fit."""
    if sweep not in MANY_KERNELS:
        return importance(rows)
    long = rows.time_us > LARGE_US
    return np.select([long & (rows.m <= FEW_ROWS), long],
                     [FEW_ROWS_TREE_WEIGHT, LONG_TREE_WEIGHT], 1.0)


class Physics:
    """The tile model at given shapes: everything about them that the parameters do not change."""

    def __init__(self, rows, sms, step, element=2.0, number=np.float64):
        self.m, self.n, self.k = (rows[name].to_numpy(float) for name in "mnk")
        self.element, self.number = element, number
        tiles = np.ceil(self.m[:, None] / TILES[:, 0]) * np.ceil(self.n[:, None] / TILES[:, 1])
        waves = tiles[:, :, None] * SPLITS / sms
        whole = np.ceil(waves)
        steps = np.ceil(np.ceil(self.k / step)[:, None] / SPLITS)[:, None, :]
        self.whole, self.steps = whole.astype(number), steps.astype(number)
        self.partial = (np.maximum(waves, 1) - whole).astype(number)
        self.reduced = ((self.m * self.n)[:, None] * SPLITS)[:, None, :].astype(number)
        self.input = (self.m * self.k)[:, None, None].astype(number)
        self.split = (SPLITS > 1).astype(number)

    def memory_us(self, shared):
        weights, tokens = self.element * self.n * self.k, self.element * self.m * self.k
        result = 2 * self.m * self.n
        total = weights + tokens + result
        kept = lambda held: 1 / (1 + (held / shared["l2_bytes"]) ** shared["l2_sharpness"])
        hot = (weights * kept(shared["weight_copies"] * weights + tokens + result)
               + (tokens + result) * kept(total))
        return (hot / shared["l2_bytes_per_us"] + (total - hot) / shared["dram_bytes_per_us"]
                + shared["ramp_us"] * total / (total + shared["l2_bytes"]))

    def compute_us(self, kernel, prefix):
        """(microseconds of the tiles of every candidate, of one tile's steps, of a tile, waves run,
        the overlap of each kernel)."""
        step, tile, overlap = (kernel[prefix + name][:, None].astype(self.number)
                               for name in ("step_us", "tile_us", "overlap"))
        run = self.whole + overlap * self.partial
        inner = self.steps * step
        return run * (inner + tile), inner, tile, run, overlap

    def fixed_us(self, shared, prefix):
        """What a candidate takes beside compute and memory: quantising A, reducing splits."""
        return (self.input * shared.get(INPUT, 0.0), shared[prefix + "reduce_us"] * self.split,
                shared[prefix + "reduce_us_per_element"] * self.split * self.reduced)

    def log_us(self, kernel, shared, prefix, memory):
        """[points, tiles, splits] log microseconds of every candidate: what it takes (no prefix)
        or what the choice believes it takes ("choice_")."""
        power = shared["overlap_power"]
        compute = self.compute_us(kernel, prefix)[0]
        if self.number is np.float64:
            kernels = (compute**power + memory**power) ** (1 / power)
        else:
            kernels = self.joined(compute, memory, power)[0]
        return np.log(kernels + shared["launch_us"] + sum(self.fixed_us(shared, prefix)))

    def joined(self, compute, memory, power):
        """((compute^power + memory^power)^(1 / power), compute's share of the sum, the logarithm's
        slope by the power), without overflow in single precision."""
        lead = np.log(compute) - np.log(memory)
        rest = np.exp(-power * np.abs(lead))
        over = np.log(1 + rest) / power
        share = np.where(lead > 0, 1, rest) / (1 + rest)
        kernels = np.maximum(compute, memory) * np.exp(over)
        return kernels, share, share * lead / power - (np.maximum(lead, 0) + over) / power

    def slopes(self, kernel, shared, prefix, memory):
        """(log_us, its derivatives by the logs of what it is made of, of the overlap by its logit, of
        the power by itself)."""
        compute, inner, tile, run, overlap = self.compute_us(kernel, prefix)
        kernels, share, by_power = self.joined(compute, memory, shared["overlap_power"])
        quantised, fixed, growing = self.fixed_us(shared, prefix)
        total = kernels + shared["launch_us"] + quantised + fixed + growing
        part = kernels / total
        by_compute = part * share
        by_tile = by_compute / (inner + tile)
        return np.log(total), {
            "step_us": by_tile * inner, "tile_us": by_tile * tile,
            "overlap": by_compute * self.partial * overlap * (1 - overlap) / run,
            "memory": part - by_compute, "overlap_power": part * by_power,
            "launch_us": shared["launch_us"] / total, INPUT: quantised / total,
            "reduce_us": fixed / total, "reduce_us_per_element": growing / total}

    def candidates(self, kernel, shared):
        memory = self.memory_us(shared)[:, None, None].astype(self.number)
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
        """(prediction, [points, parameters] derivatives): of what the candidates take directly, of
        the few figures behind memory and throttling by a small step."""
        kernel, shared = read(parameters)
        memory = self.memory_us(shared)
        wide = memory[:, None, None].astype(self.number)
        taken, own = self.slopes(kernel, shared, "", wide)
        believed, belief = self.slopes(kernel, shared, "choice_", wide)
        raw, weights = self.chosen(taken, believed, shared)
        value = self.throttled(raw, shared)
        chain = (self.throttled(raw + step, shared) - value) / step
        # What a change of a candidate's believed time does to the weighted mean.
        swayed = -shared["choice_power"] * weights * (taken - raw[:, None, None])
        kinds, count = len(KERNEL), len(TILES) * len(KERNEL)
        result = np.empty((len(raw), len(parameters)))
        for kind, name in enumerate(KERNEL[:3]):
            through_choice = (swayed * belief[name]).sum(axis=2)
            direct = (weights * own[name]).sum(axis=2)
            result[:, kind:count:kinds] = (direct + through_choice) * chain[:, None]
            result[:, kind + 3:count:kinds] = through_choice * chain[:, None]
        result[:, count:] = self.shared_gradient(parameters, step, {
            "memory": memory, "value": value, "raw": raw, "chain": chain,
            "of": lambda name: ((weights * own[name]).sum(axis=(1, 2)),
                                (swayed * belief[name]).sum(axis=(1, 2))),
            "choice_power": -shared["choice_power"] * (
                weights * believed * (taken - raw[:, None, None])).sum(axis=(1, 2))})
        return value, result

    def shared_gradient(self, parameters, step, known):
        """[points, SHARED] derivatives; `known` holds what `gradient` has of the candidates."""
        count, columns = len(TILES) * len(KERNEL), []
        through_memory = sum(known["of"]("memory"))
        for index, name in enumerate(shared_names(parameters)):
            moved = parameters.copy()
            moved[count + index] += step
            shared = read(moved)[1]
            plain = name.replace("choice_", "")
            if name in ("throttle", "throttle_us", "throttle_tflops"):
                columns.append((self.throttled(known["raw"], shared) - known["value"]) / step)
                continue
            if name == "overlap_power":
                change = sum(known["of"](name)) * (shared[name] - 1)
            elif name == "choice_power":
                change = known["choice_power"]
            elif name in ("launch_us", INPUT):
                change = sum(known["of"](name))
            elif plain in ("reduce_us", "reduce_us_per_element"):
                change = known["of"](plain)[1 if name.startswith("choice_") else 0]
            else:
                moved_memory = np.log(self.memory_us(shared) / known["memory"])
                change = through_memory * moved_memory / step
            columns.append(change * known["chain"])
        return np.stack(columns, axis=1)


def shared_names(parameters):
    """SHARED, and INPUT of a sweep whose calls quantise."""
    more = len(parameters) - len(TILES) * len(KERNEL) > len(SHARED)
    return (*SHARED, INPUT) if more else SHARED


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
    shared = dict(zip(shared_names(parameters), np.exp(parameters[count:])))
    shared["overlap_power"] += 1
    return kernel, shared


def written(curve):
    """The parameters of a curve object: `read` the other way."""
    logit = lambda share: np.log(share) - np.log1p(-share)
    kernel = {name: np.array(curve["kernels"][name]) for name in KERNEL}
    for name in ("overlap", "choice_overlap"):
        kernel[name] = np.clip(kernel[name], 1e-6, 1 - 1e-6)
    step, tile, overlap = np.log(kernel["step_us"]), np.log(kernel["tile_us"]), logit(kernel["overlap"])
    table = np.stack([step, tile, overlap, np.log(kernel["choice_step_us"]) - step,
                      np.log(kernel["choice_tile_us"]) - tile,
                      logit(kernel["choice_overlap"]) - overlap], axis=1)
    physics = {**curve["physics"], "overlap_power": curve["physics"]["overlap_power"] - 1}
    names = (*SHARED, INPUT) if INPUT in physics else SHARED
    return np.append(table.ravel(), np.log([physics[name] for name in names]))


def carried(sweep):
    """The parameters of the machine that ran the same kernels, or None: a start that has not seen
    the sweep."""
    table, dtype = common.parts(sweep)
    known = None if of_first_kind(sweep) else common.shipped_curve(DONORS.get(table, ""), "gemm", dtype)
    return None if known is None else written(known)


def start(sweep, sms):
    """(where the search starts, how strongly each parameter is held there)."""
    known, kernels = rough(sweep), []
    for rows, columns in TILES:
        area, short = rows * columns, min(rows, columns)
        medium = known["medium"][0 if area <= 4096 else 1 if area <= 8192 else 2]
        efficiency = known["small"].get(int(short), 1.0 if area > 16384 else medium)
        step_us = 2 * area * known["step"] / (known["peak"] * 1e6 / sms) / efficiency
        kernels.append([np.log(step_us), np.log(known["tile_us"]), 0, 0, 0, 0])
    shared = [2.1, known["dram"], 2.2 * known["dram"], known["l2"], 6, 2, 2, 1e-6, 20, 0.5, 0.06,
              300, known["clock"], 2, 1e-6, 6]
    if common.parts(sweep)[1] != "bf16":  # reads 2 bytes of each element, writes one
        shared.append(3 / known["dram"])
    held = [PRIOR_RUN] * 3 + [PRIOR_CHOICE] * 3
    return (np.append(np.ravel(kernels), np.log(shared)),
            np.append(np.tile(held, len(TILES)), np.full(len(shared), PRIOR_SHARED)))


def fit_physics(rows, sweep, sms):
    """Least absolute deviations in log time by damped, reweighted Gauss-Newton steps."""
    points, steps = (FIT_POINTS, FIT_STEPS) if of_first_kind(sweep) else (SHORT_POINTS, SHORT_STEPS)
    rows, known = common.sample(rows, points), rough(sweep)
    # Single precision is five times as fast, and enough to find where to go next.
    number = np.float64 if of_first_kind(sweep) else np.float32
    models = [Physics(rows.iloc[at:at + CHUNK], sms, known["step"], element_bytes(sweep), number)
              for at in range(0, len(rows), CHUNK)]
    target, weight = np.log(rows.time_us.to_numpy()), importance(rows)
    origin, held = start(sweep, sms)
    cost = lambda errors, at: (weight * np.abs(errors)).sum() + (held * (at - origin) ** 2).sum()
    parameters, damping = carried(sweep), 1.0
    power = len(TILES) * len(KERNEL) + SHARED.index("overlap_power")
    if parameters is None:
        parameters = origin
    else:
        steps = CARRIED_STEPS
    for _ in range(steps):
        value, slope = map(np.concatenate, zip(*(each.gradient(parameters) for each in models)))
        errors = target - value
        best, trust = cost(errors, parameters), common.trust(errors, weight)
        normal = (slope * trust[:, None]).T @ slope
        right = slope.T @ (trust * errors) + 2 * held * (origin - parameters)
        for _ in range(8):
            system = normal + np.diag(damping * np.diag(normal) + 2 * held)
            trial = parameters + np.clip(np.linalg.solve(system, right), -0.5, 0.5)
            trial[power] = min(trial[power], np.log(MOST_POWER - 1))
            with np.errstate(all="ignore"):
                tried = np.concatenate([each.predict(*read(trial)) for each in models])
                found = cost(target - tried, trial)
            if np.isfinite(found) and found < best:
                break
            damping *= 3
        else:
            break
        parameters, damping = trial, max(damping / 3, 1e-4)
        if best - found < 1e-4 * best:
            break
    return np.round(parameters, 6)


def wave_variables(rows, tile, sms):
    """What a correction may depend on: of one tile shape, log2 of whole waves over the work in
    them and of the waves; log2 k."""
    m, n, k = (rows[name].to_numpy(float) for name in "mnk")
    waves = np.ceil(m / tile[0]) * np.ceil(n / tile[1]) / sms
    idle = np.log2(np.ceil(waves) * sms * tile[0] * tile[1] / (m * n))
    return {IDLE: idle, WAVES: np.log2(waves), K: np.log2(k)}


def empty_corrections(sweep):
    """The correction terms as the document carries them, without values."""
    terms = []
    for tile, x, y in terms_of(sweep):
        few = x == WAVES
        knots = {IDLE: IDLE_KNOTS, WAVES: FEW_WAVE_KNOTS if few else WAVE_KNOTS, K: K_KNOTS}
        terms.append({"rows": tile[0], "columns": tile[1], "weight": COMPUTE_SHARE, "x": x, "y": y,
                      "x_knots": knots[x], "y_knots": knots[y]})
    return {**{f"{name}_knots": list(axis) for name, axis in zip("mnk", grids(sweep))},
            "terms": terms}


def design(rows, corrections, sms, compute_share):
    """[points, knots] weights of the grid, then of each term. `compute_share` [points]: of the time,
    what its memory does not explain."""
    logs = [np.log2(rows[name].to_numpy(float)) for name in "mnk"]
    blocks = [interpolation.product(logs, [corrections[f"{name}_knots"] for name in "mnk"])]
    for term in corrections["terms"]:
        known = wave_variables(rows, (term["rows"], term["columns"]), sms)
        block = interpolation.product((known[term["x"]], known[term["y"]]),
                                      (term["x_knots"], term["y_knots"]))
        weighed = term.get("weight") == COMPUTE_SHARE
        blocks.append(block.multiply(compute_share[:, None]).tocsr() if weighed else block)
    return sparse.hstack(blocks).tocsr()


def tree_inputs(sweep):
    """What the trees may ask of a product, as the document names it."""
    tiles = TREE_TILES + (MORE_TREE_TILES if sweep in MANY_KERNELS else ())
    sizes = [{"x": f"log2_{each}"} for each in ("m", "n", "k", "mn", "nk", "mk", "mnk", "us")]
    waves = [{"x": x, "rows": rows, "columns": columns} for rows, columns in tiles
             for x in ("log2_waves", "log2_part_wave")]
    padding = ([{"x": "log2_row_padding", "rows": rows} for rows in (64, 128, 256)]
               + [{"x": "log2_column_padding", "columns": 256}])
    return sizes + waves + padding


def tree_columns(rows, log_us, inputs, sms):
    """[points, inputs]; `log_us` is the logarithm of the model's time before the trees."""
    size = {name: rows[name].to_numpy(float) for name in "mnk"}
    found = []
    for each in inputs:
        name = each["x"].removeprefix("log2_")
        if name == "us":
            found.append(log_us / np.log(2))
            continue
        if name in ("waves", "part_wave"):
            tiles = np.ceil(size["m"] / each["rows"]) * np.ceil(size["n"] / each["columns"])
            waves = tiles / sms
            value = waves if name == "waves" else np.ceil(waves) / waves
        elif name == "row_padding":
            value = np.ceil(size["m"] / each["rows"]) * each["rows"] / size["m"]
        elif name == "column_padding":
            value = np.ceil(size["n"] / each["columns"]) * each["columns"] / size["n"]
        else:
            value = np.prod([size[letter] for letter in name], axis=0)
        found.append(np.log2(value))
    return np.stack(found, 1)


def fit_trees(rows, log_us, sweep, sms, size):
    """Trees on what is left of the times."""
    columns = tree_columns(rows, log_us, tree_inputs(sweep), sms)
    left = np.log(rows.time_us.to_numpy()) - log_us
    fit_to = trees.fit_medians if sweep in MANY_KERNELS else trees.fit
    return fit_to(columns, left, size, tree_importance(rows, sweep))


def penalty(sweep):
    """The quadratic form that keeps neighbouring knots close and all of them small."""
    sizes = [len(axis) for axis in grids(sweep)]
    whole = int(np.prod(sizes))
    form = SHRINKAGE * np.eye(whole)
    for axis, size in enumerate(sizes):
        rise = np.diff(np.eye(size), axis=0)
        pieces = [np.eye(each) for each in sizes]
        pieces[axis] = rise.T @ rise
        smoothness = SMOOTHNESS if of_first_kind(sweep) else MORE_SMOOTHNESS
        form += smoothness * np.kron(np.kron(pieces[0], pieces[1]), pieces[2])
    others = sum(len(term["x_knots"]) * len(term["y_knots"])
                 for term in empty_corrections(sweep)["terms"])
    return block_diag(form, TERM_SHRINKAGE * np.eye(others))


def fit_corrections(weights_of, rows, errors, sweep):
    """Knot values from log errors: penalised least absolute deviations, by reweighting.
    `weights_of` is the rows' `design`."""
    form, weight = penalty(sweep), importance(rows)
    values = np.zeros(weights_of.shape[1])
    for _ in range(7 if of_first_kind(sweep) else 5):
        trust = common.trust(errors - weights_of @ values, weight)
        normal = (weights_of.T @ weights_of.multiply(trust[:, None]).tocsr()).toarray()
        values = np.linalg.solve(normal + form, weights_of.T @ (trust * errors))
    return np.round(values, 5)


def log_physics(rows, kernel, shared, sms, step, element=2.0, chunk=CHUNK):
    """(log microseconds of the tile model, the share of them that memory does not explain)."""
    log_us, compute_share = [], []
    for at in range(0, len(rows), chunk):
        model = Physics(rows.iloc[at:at + chunk], sms, step, element)
        log_us.append(model.predict(kernel, shared))
        compute_share.append(np.clip(1 - model.memory_us(shared) / np.exp(log_us[-1]), 0, 1))
    return np.concatenate(log_us), np.concatenate(compute_share)


def of_model(parameters, rows, sweep, sms):
    """(log microseconds of the tile model, [points, knots] weights of the corrections)."""
    log_us, compute_share = log_physics(rows, *read(parameters), sms, rough(sweep)["step"],
                                        element_bytes(sweep))
    return log_us, design(rows, empty_corrections(sweep), sms, compute_share)


def values_of(curve):
    """The correction values of a curve object, as `design` orders them."""
    corrections = curve["corrections"]
    return np.concatenate([corrections["values"]]
                          + [term["values"] for term in corrections["terms"]])


def fit_beside(rows, base, sweep, sms):
    """A sweep that says nothing of short products: the tile model of `base` (the curve of another
    data type of as many bytes), and how its corrections differ, smoothly and as little as needed."""
    parameters, known = np.round(written(base), 6), values_of(base)
    log_us, weights_of = of_model(parameters, rows, sweep, sms)
    errors = np.log(rows.time_us.to_numpy()) - log_us - weights_of @ known
    return parameters, np.round(known + fit_corrections(weights_of, rows, errors, sweep), 5)


def fit_smooth(rows, sweep, sms):
    """(physics parameters, correction values)."""
    table, dtype = common.parts(sweep)
    if dtype in BESIDE:
        profile = next(name for name, of in TABLES.items() if of == table)
        return fit_beside(rows, common.shipped_curve(profile, "gemm", BESIDE[dtype]), sweep, sms)
    parameters = fit_physics(rows, sweep, sms)
    log_us, weights_of = of_model(parameters, rows, sweep, sms)
    errors = np.log(rows.time_us.to_numpy()) - log_us
    return parameters, fit_corrections(weights_of, rows, errors, sweep)


def log_smooth(parameters, values, rows, sweep, sms):
    log_us, weights_of = of_model(parameters, rows, sweep, sms)
    return log_us + weights_of @ values


def fit(rows, sweep, sms, size=None):
    """(physics parameters, correction values, trees); their size is that of all rows of a sweep."""
    smooth = fit_smooth(rows, sweep, sms)
    return *smooth, fit_trees(rows, log_smooth(*smooth, rows, sweep, sms), sweep, sms,
                              size or trees.size(len(rows)))


def predict(model, rows, sweep, sms):
    *smooth, found = model
    log_us = log_smooth(*smooth, rows, sweep, sms)
    columns = tree_columns(rows, log_us, tree_inputs(sweep), sms)
    return np.exp(log_us + trees.evaluate(found, columns))


def evaluate(curve, rows):
    """Microseconds of a curve object as the document carries it (and as C++ evaluates it)."""
    kernel = {name: np.array(curve["kernels"][name]) for name in KERNEL}
    physics, corrections, values = curve["physics"], curve["corrections"], values_of(curve)

    def smooth(rows):
        log_us, compute_share = log_physics(rows, kernel, physics, physics["sms"], physics["step"],
                                            physics.get("element_bytes", 2.0))
        return log_us + design(rows, corrections, physics["sms"], compute_share) @ values

    known = corrections.get("trees")
    if known is None:
        return np.exp(smooth(rows))
    # Beyond what was measured the trees say what they say at its border.
    inside = pd.DataFrame({name: rows[name].clip(*curve["valid"][name]) for name in "mnk"})
    columns = tree_columns(inside, smooth(inside), known["inputs"], physics["sms"])
    return np.exp(smooth(rows) + trees.evaluate((known["split"], known["figure"]), columns))


def held_out(rows, sweep, sms):
    size = trees.size(len(rows))
    return common.held_out(rows, ["m", "n", "k"], lambda known: fit(known, sweep, sms, size),
                           lambda model, unseen: predict(model, unseen, sweep, sms))


def describe(model, sweep, sms):
    """The model part of the curve object."""
    kernel, shared = read(model[0])
    corrections = empty_corrections(sweep)
    grid, others = np.split(model[1], [np.prod([len(axis) for axis in grids(sweep)])])
    corrections["values"] = grid.tolist()
    corrections["terms"] = interpolation.with_values(corrections["terms"], others)
    if model[2] is not None:
        corrections["trees"] = trees.described(tree_inputs(sweep), model[2])
    return {
        "model": "tile-kernels",
        "physics": {"sms": sms, "step": rough(sweep)["step"],
                    **({} if common.parts(sweep)[1] == "bf16" else
                       {"element_bytes": element_bytes(sweep)}),
                    **{name: common.figure(value) for name, value in shared.items()},
                    "splits": SPLITS.tolist()},
        "kernels": {"rows": TILES[:, 0].tolist(), "columns": TILES[:, 1].tolist(),
                    **{name: [common.figure(each) for each in column] for name, column in kernel.items()}},
        "corrections": corrections}


def checks(rows, predicted, sweep):
    """Held-out errors on the sets of points that bars are set on, and on those that users ask."""
    found, large = [], rows.time_us > LARGE_US
    first, dtype = of_first_kind(sweep), common.parts(sweep)[1]
    kind = "" if dtype == "bf16" else f"{dtype}, "
    for what, inside, bars in (
            ("all shapes", rows.time_us > 0, BARS if first else GOAL),
            ("above 100 us", large, LARGE_BARS if first else GOAL),
            ("above 100 us, m up to 128", large & (rows.m <= 128), (None, None)),
            ("above 100 us, m 129 to 1025", large & (rows.m > 128) & (rows.m <= 1025),
             (None, None)),
            ("above 100 us, m 1026 to 8191", large & (rows.m > 1025) & (rows.m < 8192),
             (None, None)),
            ("above 100 us, m from 8192", large & (rows.m >= 8192), (None, None))):
        if inside.any():
            found.append(common.check(kind + what, rows.time_us[inside], predicted[inside], *bars))
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


def beyond(rows, sweep, sms, largest=8192):
    """How the law of extrapolation in m fares: fitted without m > `largest`, tested on them."""
    known = rows.m <= largest
    model = fit(rows[known], sweep, sms)
    far = rows[~known]
    return common.check(f"m > {largest} from m <= {largest}, not used by the fit", far.time_us,
                        predict(model, far, sweep, sms))


NOTE = ("C[m, n] = A[m, k] B[k, n], leading dimensions multiples of 8. The sweep alternates between "
        "weight matrices but keeps the activations in cache. Beyond the largest m, n, k measured: "
        "tile counts carry and corrections stay, so efficiency stays what it was in whole waves.")
NOTES = {
    "bf16": NOTE,
    "fp8": "A arrives in bf16: the measured call casts it with one known scale per tensor "
           "(input_us_per_element), then multiplies in FP8, C in bf16. ",
    "fp8_block": "A arrives in bf16: the measured call casts it with a scale per 128 values found on "
                 "the way (input_us_per_element), B has one per 128 x 128 block. The sweep issued "
                 "these calls without a CUDA graph, one weight matrix, so that short ones take what "
                 "the host needs, about {host:g} us: only shapes of which the kernel takes twice "
                 "that at the highest rates seen count. The tile model is that of fp8; these rows "
                 "correct it, below valid.time_us it is all there is. ",
    "nvfp4": "A arrives in bf16: the measured call casts it to NVFP4, a scale per 16 values, a known "
             "one per tensor (input_us_per_element). The sweep has one weight matrix, which stays in "
             "cache if it fits. "}


def note(sweep):
    table, dtype = common.parts(sweep)
    return NOTE if dtype == "bf16" else NOTES[dtype].format(host=HOST_US[table]) + NOTE.replace(
        " The sweep alternates between weight matrices but keeps the activations in cache.", "")


def curve(data, profile, dtype, devices):
    table, sms = TABLES[profile], devices[profile]["sms"]["value"]
    sweep = common.sweep_of(table, dtype)
    rows = load(data, sweep)
    predicted = held_out(rows, sweep, sms)
    tests = checks(rows, predicted, sweep) + (scatter(rows) if of_first_kind(sweep) else [])
    if of_first_kind(sweep) and rows.m.max() > 8192:
        tests.append(beyond(rows, sweep, sms))
    return {
        "op": "gemm", "params": {"dtype": dtype},
        **describe(fit(rows, sweep, sms), sweep, sms),
        "valid": {**{name: [int(rows[name].min()), int(rows[name].max())] for name in "mnk"},
                  **({"time_us": [2 * HOST_US[table], float(rows.time_us.max())]}
                     if dtype in BESIDE else {})},
        "residual": {**common.residual(rows.time_us, predicted, method=common.METHOD), "checks": tests},
        "origin": "published",
        "source": f"{SOURCES[dtype]}: {table.upper()}",
        "note": note(sweep),
    }


def curves(data, profile, devices, dtypes=None):
    """The curves of these data types; all that the tables hold if None."""
    held = DTYPES[TABLES[profile]]
    return [curve(data, profile, dtype, devices)
            for dtype in held if dtypes is None or dtype in dtypes]
