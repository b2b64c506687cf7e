"""Expert FFNs (SwiGLU) in the fused kernels of serving engines, by data type, from published sweeps
(moe_compute_*.csv.gz).

Two grouped products over blocks of rows of one expert each, an activation between them, a sum
after (sim/profile/kernels/expert_ffn_curve.hpp says the physics), fitted in log time, then small
corrections. Loads: the sweeps' own rule (balanced round-robin, or a power law sampled per call),
reproduced here as expected numbers of blocks."""
import functools

import numpy as np
import pandas as pd
from scipy.linalg import block_diag
from scipy.optimize import least_squares

from tools.fit import common, interpolation, trees

TABLES = {"a100-sxm-80gb": "a100", "h100-sxm": "h100", "b200-sxm": "b200", "b300-sxm": "b300",
          "gb200": "gb200", "gb300": "gb300"}
SOURCE = "vLLM fused MoE sweep (Triton) of ai-dynamo/aiconfigurator (Apache-2.0)"
# Of one sweep ("h100": bf16; "h100 fp8") the kernel that most of its rows ran: others are other
# kernels. (data type in the table, part of the kernel's name, how the source calls it)
SWEEPS = {
    "a100": ("bfloat16", "", "Triton"), "h100": ("bfloat16", "", "Triton"),
    "h100 fp8": ("fp8", "cutlass", "FlashInfer CUTLASS"),
    "h100 fp8_block": ("fp8_block", "cutlass", "FlashInfer CUTLASS, one tensor-parallel rank"),
    **{name: value for table in common.BLACKWELL for name, value in {
        table: ("bfloat16", "trtllmbf16experts", "FlashInfer TensorRT-LLM"),
        f"{table} fp8": ("fp8", "monolithic", "FlashInfer TensorRT-LLM, routing included"),
        f"{table} fp8_block": ("fp8_block", "monolithic",
                               "FlashInfer TensorRT-LLM, routing included"),
        f"{table} nvfp4": ("nvfp4", "monolithic", "FlashInfer TensorRT-LLM, routing included"),
        f"{table} mxfp4": ("w4a8_mxfp4_mxfp8", "mxfp4", "FlashInfer TensorRT-LLM, MXFP4 weights, "
                                                         "MXFP8 activations")}.items()}}
# Bytes of a weight and of an element that enters a product, scales included.
BYTES = {"bf16": (2.0, 2.0), "fp8": (1.0, 1.0), "fp8_block": (1.0, 1.03125),
         "nvfp4": (0.5625, 0.5625), "mxfp4": (0.53125, 1.03125)}
GOAL = (0.04, 0.15)
LOAD = ["num_tokens", "topk", "num_experts", "moe_ep_size", "distribution"]
SHAPE = [*LOAD, "hidden_size", "inter_size", "moe_tp_size"]
SIZE = ["hidden", "ffn"]
METHOD_OF_NEW_SIZES = (f"seeded {common.FOLDS}-fold, all rows of a hidden and FFN size held out "
                       "together")
DRAWS, FIT_POINTS = 8, 3000
# What the curve is about: Triton loads whole vectors (other sizes run up to twice as long); the
# experts are gated (Nemotron-H's, hidden 2,688 and 22 choices, are not); with more groups of
# experts most of the time goes to rows of other ranks.
ALIGNMENT, MOST_GROUPS = 16, 8

# Tile shapes [rows of one expert, columns] of the modelled kernels.
TILES = np.array([(16, 64), (16, 128), (32, 128), (64, 128), (128, 128), (128, 256)], float)
# Blackwell's kernels put the columns of a weight on the rows of a tile: the tokens of an expert come
# in blocks of 8 and more.
BLACKWELL_TILES = np.array([(8, 128), (16, 128), (32, 128), (64, 128), (128, 128), (256, 128)], float)
STEP = 64
KERNEL = ("step_us", "tile_us", "overlap")
SHARED = ("launch_us", "dram_bytes_per_us", "overlap_power", "choice_power", "row_bytes_per_us",
          "expert_us")
START = {"a100": (100, 1.5e6), "h100": (550, 2.6e6),  # TFLOP/s, DRAM bytes/us
         **{table: (1300, 6.5e6) for table in common.BLACKWELL}}
FASTER = {"bf16": 1.0, "fp8": 1.6, "fp8_block": 1.5, "nvfp4": 2.6, "mxfp4": 1.6}
SHORT_POINTS, SHORT_STEPS = 1500, 25  # of the sweeps of Blackwell and of low precision
# Corrections: bilinear grids in log2, and how strongly their knots are held together and at zero.
ROWS_KNOTS = [-3, 0, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14]
TERMS = (("log2_rows_per_expert", ROWS_KNOTS, "log2_ffn", [4, 6, 7, 8, 9, 10, 11, 12, 14]),
         ("log2_rows_per_expert", ROWS_KNOTS, "log2_experts", [0, 1, 2, 3, 4, 5, 6, 7, 9]),
         ("log2_hidden", [11, 11.6, 12, 12.6, 13], "log2_ffn", [4, 6, 8, 10, 12, 14]))
SMOOTHNESS, SHRINKAGE = 3.0, 1.0
# (local experts, FFN size) for which the engine ships tuned tiles of that GPU in bf16; others get its
# default, which takes up to 1.5 times as long. From vLLM 0.11.0 (Apache-2.0), fused_moe/configs,
# NVIDIA_A100-SXM4-80GB. H100's sweep, of a later release with better defaults, shows no difference.
TUNED = {"a100": [(1, 1792), (1, 3584), (1, 7168), (1, 14336), (8, 1792), (8, 2048), (8, 3584),
                  (8, 4096), (8, 7168), (16, 1344), (16, 1792), (16, 2688), (16, 3584), (16, 7168),
                  (16, 14336), (64, 640), (64, 1280), (128, 192)]}
# Last, boosted trees on what is left, which may ask for waves and padding of these tiles.
TREE_KERNELS = (1, 3, 4)


def of_first_kind(sweep):
    """The bf16 sweeps of Ampere and Hopper, searched longer."""
    return sweep in ("a100", "h100")


def tiles_of(sweep):
    return BLACKWELL_TILES if common.parts(sweep)[0] in common.BLACKWELL else TILES


def load(data, sweep):
    dtype, kernel, _ = SWEEPS[sweep]
    rows = pd.read_csv(data / f"moe_compute_{common.parts(sweep)[0]}.csv.gz")
    rows = rows[(rows.moe_dtype == dtype) & rows.kernel_source.str.contains(kernel)]
    rows = rows.sort_values(SHAPE).reset_index(drop=True)
    rows["time_us"] = 1e3 * rows.latency_ms
    inside = ((rows.inter_size // rows.moe_tp_size % ALIGNMENT == 0)
              & (rows.moe_ep_size <= MOST_GROUPS) & (rows.hidden_size != 2688) & (rows.topk != 22))
    rows = with_blocks(rows[inside].reset_index(drop=True), np.unique(tiles_of(sweep)[:, 0]))
    rows["tuned"] = is_tuned(rows, TUNED.get(sweep, []))
    return rows[rows.rows > 0].reset_index(drop=True)


def is_tuned(rows, sizes):
    """[rows] whether tiles are tuned for the row's experts and FFN size."""
    return [size in sizes for size in zip(rows.experts, rows.ffn)]


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


def read(parameters):
    count = len(TILES) * len(KERNEL)
    step, tile, overlap = parameters[:count].reshape(len(TILES), -1).T
    kernel = {"step_us": np.exp(step), "tile_us": np.exp(tile),
              "overlap": 1 / (1 + np.exp(-overlap))}
    shared = dict(zip(SHARED, np.exp(parameters[count:])))
    shared["overlap_power"] += 1
    return kernel, shared


def log_physics(rows, kernel, shared, sms, tiles=TILES):
    """Log microseconds of the model without corrections; `shared` may hold `weight_bytes` and
    `input_bytes` (bf16: 2)."""
    column = {name: rows[name].to_numpy(float)[:, None]
              for name in ("hidden", "ffn", "rows", "active", "routed")}
    blocks = rows[[f"blocks_{int(block)}" for block in tiles[:, 0]]].to_numpy(float)
    weight, entering = shared.get("weight_bytes", 2.0), shared.get("input_bytes", 2.0)
    power, times = shared["overlap_power"], 0.0
    for deep, wide in (("hidden", 2 * column["ffn"]), ("ffn", column["hidden"])):
        waves = blocks * np.ceil(wide / tiles[:, 1]) / sms
        whole = np.ceil(waves)
        run = whole + kernel["overlap"] * (np.maximum(waves, 1) - whole)
        compute = run * (np.ceil(column[deep] / STEP) * kernel["step_us"] + kernel["tile_us"])
        moved = (weight * column["active"] * wide * column[deep]
                 + column["rows"] * (2 * wide + entering * column[deep]))
        memory = moved / shared["dram_bytes_per_us"]
        times = times + (compute**power + memory**power) ** (1 / power)
    between = 2 * column["routed"] * (3 * column["ffn"] + 2 * column["hidden"])
    total = np.log(times + shared["launch_us"] + between / shared["row_bytes_per_us"]
                   + column["active"] * shared["expert_us"])
    weights = np.exp(-shared["choice_power"] * (total - total.min(1, keepdims=True)))
    return (weights * total).sum(1) / weights.sum(1)


def figures(parameters, sweep):
    """(kernel, shared) of `read`, with the bytes of the sweep's data type."""
    kernel, shared = read(parameters)
    weight, entering = BYTES[common.parts(sweep)[1]]
    return kernel, {**shared, "weight_bytes": weight, "input_bytes": entering}


def start(sweep, sms):
    table, dtype = common.parts(sweep)
    peak, dram = START[table]
    tiles = tiles_of(sweep)
    steps = np.log(2 * tiles.prod(1) * STEP / (FASTER[dtype] * peak * 1e6 / sms)
                   / np.minimum(1, tiles[:, 0] / 64 + 0.25))
    kernels = np.stack([steps, np.zeros(len(tiles)), np.zeros(len(tiles))], 1)
    return np.append(kernels.ravel(), np.log([12, dram, 2, 15, 2 * dram, 0.05]))


def fit_physics(rows, sweep, sms):
    points, steps = (FIT_POINTS, 40) if of_first_kind(sweep) else (SHORT_POINTS, SHORT_STEPS)
    rows = common.sample(rows, points)
    target, origin, tiles = np.log(rows.time_us.to_numpy()), start(sweep, sms), tiles_of(sweep)
    # The last residuals hold the parameters near their start where the data say nothing.
    errors = lambda at: np.append(log_physics(rows, *figures(at, sweep), sms, tiles) - target,
                                  0.02 * (at - origin))
    found = least_squares(errors, origin, loss="soft_l1", f_scale=0.05, max_nfev=steps,
                          bounds=(origin - 4, origin + 4))
    return np.round(found.x, 6)


def variables(rows):
    figure = {name: rows[name].to_numpy(float) for name in ("rows", "experts", "ffn", "hidden")}
    return {"log2_rows_per_expert": np.log2(figure["rows"] / figure["experts"]),
            **{f"log2_{name}": np.log2(figure[name]) for name in ("ffn", "experts", "hidden")}}


def design(rows, corrections):
    known = variables(rows)
    return np.hstack([interpolation.product((known[term["x"]], known[term["y"]]),
                                            (term["x_knots"], term["y_knots"])).toarray()
                      for term in corrections])


def empty_corrections():
    return [{"x": x, "y": y, "x_knots": x_knots, "y_knots": y_knots}
            for x, x_knots, y, y_knots in TERMS]


def penalty():
    forms = []
    for _, x_knots, _, y_knots in TERMS:
        across, along = (np.diff(np.eye(len(knots)), axis=0) for knots in (x_knots, y_knots))
        forms.append(SMOOTHNESS * (np.kron(across.T @ across, np.eye(len(y_knots)))
                                   + np.kron(np.eye(len(x_knots)), along.T @ along))
                     + SHRINKAGE * np.eye(len(x_knots) * len(y_knots)))
    return block_diag(*forms)


def fit_corrections(rows, errors, rounds=7):
    weights_of, form = design(rows, empty_corrections()), penalty()
    values = np.zeros(weights_of.shape[1])
    for _ in range(rounds):
        trust = common.trust(errors - weights_of @ values)
        values = np.linalg.solve(weights_of.T @ (weights_of * trust[:, None]) + form,
                                 weights_of.T @ (trust * errors))
    return np.round(values, 5)


def tree_inputs(rows):
    """What the trees may ask of a load, as the document names it. Where all loads follow a power law,
    nothing that says how rows are spread: balanced ones would be far outside of what the trees saw."""
    sizes = [{"x": f"log2_{each}"}
             for each in ("rows_per_expert", "rows", "ffn", "hidden", "experts", "work", "us")]
    if rows.tuned.any():
        sizes.append({"x": "tuned"})
    if not (rows.distribution == "balanced").any():
        return sizes
    tiles = ("up_waves", "up_part_wave", "down_waves", "down_part_wave", "block_padding")
    return ([*sizes, {"x": "log2_active"}, {"x": "log2_weights"}]
            + [{"x": f"log2_{each}", "kernel": kernel} for kernel in TREE_KERNELS
               for each in tiles])


def tree_columns(rows, log_us, inputs, tiles, sms):
    """[points, inputs]; `log_us` is the logarithm of the model's time before the trees."""
    size = {name: rows[name].to_numpy(float)
            for name in ("rows", "ffn", "hidden", "experts", "active")}
    size["rows_per_expert"] = size["rows"] / size["experts"]
    size["work"] = size["rows"] * size["ffn"] * size["hidden"]
    size["weights"] = size["active"] * size["ffn"] * size["hidden"]
    found = []
    for each in inputs:
        name = each["x"].removeprefix("log2_")
        if name in ("us", "tuned"):
            found.append(log_us / np.log(2) if name == "us" else rows.tuned.to_numpy(float))
            continue
        if name in size:
            value = size[name]
        else:
            height, columns = tiles[each["kernel"]]
            blocks = rows[f"blocks_{int(height)}"].to_numpy(float)
            wide = 2 * size["ffn"] if name.startswith("up") else size["hidden"]
            waves = blocks * np.ceil(wide / columns) / sms
            value = (blocks * height / size["rows"] if name == "block_padding"
                     else waves if name.endswith("waves") else np.ceil(waves) / waves)
        found.append(np.log2(value))
    return np.stack(found, 1)


def fit_smooth(rows, sweep, sms):
    """(physics parameters, correction values), of the engine's default tiles: what tuned ones gain is
    left to the trees."""
    rows = rows[~rows.tuned]
    parameters = fit_physics(rows, sweep, sms)
    errors = np.log(rows.time_us.to_numpy()) - log_physics(rows, *figures(parameters, sweep), sms,
                                                           tiles_of(sweep))
    return parameters, fit_corrections(rows, errors, 7 if of_first_kind(sweep) else 4)


def log_smooth(parameters, values, rows, sweep, sms):
    return (log_physics(rows, *figures(parameters, sweep), sms, tiles_of(sweep))
            + design(rows, empty_corrections()) @ values)


def fit(rows, sweep, sms, size=None):
    """(physics parameters, correction values, (what its trees ask, trees)); their size is that of all
    rows of a sweep."""
    smooth = fit_smooth(rows, sweep, sms)
    log_us, inputs = log_smooth(*smooth, rows, sweep, sms), tree_inputs(rows)
    columns = tree_columns(rows, log_us, inputs, tiles_of(sweep), sms)
    left = np.log(rows.time_us.to_numpy()) - log_us
    return *smooth, (inputs, trees.fit(columns, left, size or trees.size(len(rows))))


def predict(model, rows, sweep, sms):
    *smooth, found = model
    log_us = log_smooth(*smooth, rows, sweep, sms)
    inputs, grown = found
    columns = tree_columns(rows, log_us, inputs, tiles_of(sweep), sms)
    return np.exp(log_us + trees.evaluate(grown, columns))


def held_out(rows, sweep, sms, groups=SHAPE):
    """Predictions of rows that the fit has not seen, nor others that agree in `groups`."""
    size = trees.size(len(rows))
    return common.held_out(rows, groups, lambda known: fit(known, sweep, sms, size),
                           lambda model, unseen: predict(model, unseen, sweep, sms))


def tiles_in(curve):
    return np.array([curve["kernels"]["rows"], curve["kernels"]["columns"]]).T


def evaluate(curve, rows):
    """Microseconds of a curve object as the document carries it (and as C++ evaluates it)."""
    kernel = {name: np.array(curve["kernels"][name]) for name in KERNEL}
    values = np.concatenate([term["values"] for term in curve["corrections"]])
    sms = curve["physics"]["sms"]
    log_us = (log_physics(rows, kernel, curve["physics"], sms, tiles_in(curve))
              + design(rows, curve["corrections"]) @ values)
    known = curve.get("trees")
    if known is None:
        return np.exp(log_us)
    tuned = curve.get("tuned_sizes", {"experts": [], "ffn": []})
    rows = rows.assign(tuned=is_tuned(rows, list(zip(tuned["experts"], tuned["ffn"]))))
    columns = tree_columns(rows, log_us, known["inputs"], tiles_in(curve), sms)
    return np.exp(log_us + trees.evaluate((known["split"], known["figure"]), columns))


def query(curve, rows_per_expert, hidden, ffn):
    """The row that `evaluate` takes for given loads of local experts."""
    counts = np.asarray(rows_per_expert)
    blocks = {f"blocks_{int(block)}": [np.ceil(counts / block).sum()]
              for block in np.unique(tiles_in(curve)[:, 0])}
    return pd.DataFrame({"rows": [counts.sum()], "active": [(counts > 0).sum()], **blocks,
                         "ffn": [ffn], "hidden": [hidden], "experts": [len(counts)],
                         "routed": [counts.sum()]})


def describe(model, sweep, sms):
    """The model part of the curve object."""
    kernel, shared = read(model[0]) if common.parts(sweep)[1] == "bf16" else figures(model[0], sweep)
    tiles = tiles_of(sweep)
    return {
        "model": "grouped-tiles",
        "physics": {"sms": sms, "step": STEP,
                    **{name: common.figure(value) for name, value in shared.items()}},
        "kernels": {"rows": tiles[:, 0].tolist(), "columns": tiles[:, 1].tolist(),
                    **{name: [common.figure(each) for each in column]
                       for name, column in kernel.items()}},
        "corrections": interpolation.with_values(empty_corrections(), model[1]),
        **({} if model[2] is None else {"trees": trees.described(*model[2])})}


def valid(rows):
    per_expert = rows.rows / rows.experts
    return {"rows_per_expert": [float(per_expert.min()), float(per_expert.max())],
            **{name: [int(rows[name].min()), int(rows[name].max())]
               for name in ("hidden", "ffn", "experts")}}


def checks(rows, predicted, sweep):
    dtype = common.parts(sweep)[1]
    kind = "" if dtype == "bf16" else f"{dtype}, "
    bars = (None, None) if of_first_kind(sweep) else GOAL
    found = [common.check(kind + "all loads", rows.time_us, predicted, *bars)]
    balanced = (rows.distribution == "balanced").to_numpy()
    per_expert = (rows.rows / rows.experts).to_numpy()
    for what, inside in (("balanced", balanced), ("power law", ~balanced),
                         ("up to 16 rows per expert", per_expert <= 16),
                         ("16 to 256 rows per expert", (per_expert > 16) & (per_expert <= 256)),
                         ("above 256 rows per expert", per_expert > 256)):
        if inside.any():
            found.append(common.check(kind + what, rows.time_us[inside], predicted[inside]))
    return found


def of_new_sizes(rows, sweep, sms):
    """The errors at sizes that were not measured, and which were. Engines tune their tiles size by
    size, so that they are larger there."""
    predicted = held_out(rows, sweep, sms, SIZE)
    sizes = rows[SIZE].drop_duplicates().sort_values(SIZE).astype(int)
    return {**{name: sizes[name].tolist() for name in SIZE},
            "residual": common.residual(rows.time_us, predicted, method=METHOD_OF_NEW_SIZES)}


def measured_curve(data, sweep, sms):
    rows = load(data, sweep)
    predicted = held_out(rows, sweep, sms)
    result = {
        **measured_fit(rows, sweep, sms),
        "residual": {**common.residual(rows.time_us, predicted, method=common.METHOD),
                     "checks": checks(rows, predicted, sweep)},
        "new_sizes": of_new_sizes(rows, sweep, sms),
        "origin": "published", "source": source_of(sweep),
        "note": "ffn a multiple of 16. Rows are those of local experts; the sweeps' loads enter as "
                "expected blocks of rows under their own sampling rule."}
    if not (rows.distribution == "balanced").any():
        result["balanced_origin"] = "derived"
        result["note"] += (" The table has power-law loads only: balanced ones are derived, the "
                           "same tiles at balanced counts.")
        result["residual"]["checks"].append(balanced_from_power_law(data))
    return result


def balanced_from_power_law(data, table="h100", sms=132):
    """How the law of balanced loads fares where both are known: fitted to power-law loads alone,
    tested on balanced ones."""
    rows = load(data, table)
    known = rows.distribution != "balanced"
    predicted = predict(fit(rows[known].reset_index(drop=True), table, sms), rows[~known],
                        table, sms)
    return common.check(f"balanced loads from power-law ones by the same law, {table.upper()}",
                        rows[~known].time_us, predicted)


def source_of(sweep):
    table, kernel = common.parts(sweep)[0], SWEEPS[sweep][2]
    engine = SOURCE if of_first_kind(sweep) else SOURCE.replace("Triton", kernel)
    return f"{engine}: {table.upper()}"


def measured_fit(rows, sweep, sms):
    return {"op": "expert-ffn", "params": {"dtype": common.parts(sweep)[1], "activation": "swiglu"},
            **describe(fit(rows, sweep, sms), sweep, sms), **tuned_sizes(sweep), "valid": valid(rows)}


def tuned_sizes(sweep):
    """The key of the curve object, if tuned sizes of the sweep's engine are known."""
    sizes = TUNED.get(sweep)
    if sizes is None:
        return {}
    return {"tuned_sizes": {"experts": [each[0] for each in sizes],
                            "ffn": [each[1] for each in sizes]}}


def sweeps_of(profile, dtypes=None):
    """The sweeps of a machine, of these data types (None: all)."""
    return [sweep for sweep in SWEEPS if common.parts(sweep)[0] == TABLES.get(profile)
            and (dtypes is None or common.parts(sweep)[1] in dtypes)]


def curves(data, profile, devices, dtypes=None):
    """The curves of these data types; all that the tables hold if None."""
    return [measured_curve(data, sweep, devices[profile]["sms"]["value"])
            for sweep in sweeps_of(profile, dtypes)]
