"""The tile model (sim/profile/kernels/expert_ffn_curve.hpp says the physics) and its parameters."""
import numpy as np

from tools.fit import common

# Tile shapes [rows of one expert, columns] of the modelled kernels.
TILES = np.array([(16, 64), (16, 128), (32, 128), (64, 128), (128, 128), (128, 256)], float)
# Blackwell's kernels put the columns of a weight on the rows of a tile: the tokens of an expert come
# in blocks of 8 and more.
BLACKWELL_TILES = np.array([(8, 128), (16, 128), (32, 128), (64, 128), (128, 128), (256, 128)], float)
STEP = 64
KERNEL = ("step_us", "tile_us", "overlap")
SHARED = ("launch_us", "dram_bytes_per_us", "overlap_power", "choice_power", "row_bytes_per_us",
          "expert_us")
# Bytes of a weight and of an element that enters a product, scales included.
BYTES = {"bf16": (2.0, 2.0), "fp8": (1.0, 1.0), "fp8_block": (1.0, 1.03125),
         "nvfp4": (0.5625, 0.5625), "mxfp4": (0.53125, 1.03125)}


def tiles_of(sweep):
    return BLACKWELL_TILES if common.parts(sweep)[0] in common.BLACKWELL else TILES


def read(parameters):
    count = len(TILES) * len(KERNEL)
    step, tile, overlap = parameters[:count].reshape(len(TILES), -1).T
    kernel = {"step_us": np.exp(step), "tile_us": np.exp(tile),
              "overlap": 1 / (1 + np.exp(-overlap))}
    shared = dict(zip(SHARED, np.exp(parameters[count:])))
    shared["overlap_power"] += 1
    return kernel, shared


def figures(parameters, sweep):
    """(kernel, shared) of `read`, with the bytes of the sweep's data type."""
    kernel, shared = read(parameters)
    weight, entering = BYTES[common.parts(sweep)[1]]
    return kernel, {**shared, "weight_bytes": weight, "input_bytes": entering}


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
