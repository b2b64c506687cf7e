"""The parameters of the tile model: their names, and how the search has them (logarithms and logits,
in one row of numbers) beside how documents have them."""
import numpy as np

# Tile shapes [rows of m, columns of n] of the modelled kernels, and ways to split k.
TILES = np.array([
    (8, 64), (16, 32), (16, 64), (16, 128), (32, 64), (64, 32), (128, 32), (64, 64), (32, 128),
    (64, 128), (128, 64), (128, 128), (64, 256), (256, 64), (128, 192), (192, 128), (128, 256),
    (256, 128)], float)
SPLITS = np.array([1, 2, 3, 4, 6, 8, 16, 32], float)
# Per kernel, in logarithms but for the shares (logits): what runs, then what the choice believes.
KERNEL = ("step_us", "tile_us", "overlap", "choice_step_us", "choice_tile_us", "choice_overlap")
OF_KERNELS = len(TILES) * len(KERNEL)  # parameters; those of SHARED follow
SHARED = ("launch_us", "dram_bytes_per_us", "l2_bytes_per_us", "l2_bytes", "l2_sharpness",
          "overlap_power", "reduce_us", "reduce_us_per_element", "choice_power", "ramp_us",
          "throttle", "throttle_us", "throttle_tflops", "choice_reduce_us",
          "choice_reduce_us_per_element", "weight_copies")
# Where the measured call quantises A first.
INPUT = "input_us_per_element"


def shared_names(parameters):
    """SHARED, and INPUT of a sweep whose calls quantise."""
    more = len(parameters) - OF_KERNELS > len(SHARED)
    return (*SHARED, INPUT) if more else SHARED


def read(parameters):
    """(figures per kernel, shared figures) of fitted logs and logits."""
    table = parameters[:OF_KERNELS].reshape(len(TILES), len(KERNEL))
    share = lambda logit: 1 / (1 + np.exp(-logit))
    step, tile, overlap, more_step, more_tile, more_overlap = table.T
    kernel = {"step_us": np.exp(step), "tile_us": np.exp(tile), "overlap": share(overlap),
              "choice_step_us": np.exp(step + more_step),
              "choice_tile_us": np.exp(tile + more_tile),
              "choice_overlap": share(overlap + more_overlap)}
    shared = dict(zip(shared_names(parameters), np.exp(parameters[OF_KERNELS:])))
    shared["overlap_power"] += 1
    return kernel, shared


def written(curve):
    """The parameters of a curve object: the reverse of `read`."""
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
