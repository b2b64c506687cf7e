"""Boosted trees on what the corrected tile model leaves over: what they ask of a load."""
import numpy as np

# Which tiles the trees may ask for waves and padding of, by number.
TREE_KERNELS = (1, 3, 4)


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
