"""Head sizes that a machine's sweep lacks, by a stated law: as H100's times go from head size 128 to
them."""
import numpy as np

from tools.fit import common
from tools.fit.attention.corrections import TERMS
from tools.fit.attention.fitted import fit, predict
from tools.fit.attention.sweeps import load
from tools.fit.attention.tiles import PARAMETERS, Machine


def donor_models(data, devices, sizes):
    """{head size: (machine, model, rows)} of H100, fitted without cross-validation."""
    rows, found = load(data, "h100"), {}
    for head_dim in sizes:
        machine = Machine("h100", devices["h100-sxm"], head_dim, TERMS)
        part = rows[rows.head_dim == head_dim].reset_index(drop=True)
        found[head_dim] = (machine, fit(part, machine), part)
    return found


def scaled(model, ratio):
    """A model with the time per tile row and per tile multiplied by `ratio`."""
    logs = model[0].copy()
    for name in ("tile_us", "block_us"):
        logs[PARAMETERS.index(name)] += np.log(ratio)
    return logs, model[1]


def donor_ratio(donors, head_dim):
    """Time per query row of a tile, head size `head_dim` over 128, on the donor machine."""
    def per_row(size):
        machine, (logs, _), _ = donors[size]
        return np.exp(logs[PARAMETERS.index("tile_us")]) / machine.tile_rows
    return per_row(head_dim) / per_row(128)


def law_residual(donors, head_dim):
    """The law's error on the donor machine, where the head size is known."""
    machine, model, _ = donors[128]
    _, _, rows = donors[head_dim]
    carried = scaled(model, donor_ratio(donors, head_dim))
    return common.residual(
        rows.time_us, predict(carried, rows, machine),
        method="the law on H100 itself, where the head size is known; that FlashAttention-2 keeps "
               "FlashAttention-3's ratio of head sizes is assumed")


def other_head_size(own, donors, head_dim):
    """The stated law for a head size that a machine lacks: its curve of head size 128 with the tile
    time scaled as on the donor machine, bytes counted for the new size."""
    physics, ratio = own["physics"], donor_ratio(donors, head_dim)
    return {
        **own, "params": {**own["params"], "head_dim": head_dim},
        "physics": {**physics, "tile_us": common.rounded(physics["tile_us"] * ratio, 6),
                    "block_us": common.rounded(physics["block_us"] * ratio, 6)},
        "residual": law_residual(donors, head_dim), "origin": "derived",
        "note": f"not measured on this machine: head size 128 with the tile time multiplied by "
                f"{ratio:.3f}, H100's ratio of head size {head_dim} to 128, and the bytes of the "
                "size. " + own["note"]}
