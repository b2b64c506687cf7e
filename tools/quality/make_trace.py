#!/usr/bin/env python3
"""Makes a routing trace of the logits that a run of the experiment recorded in training.

    make_trace.py OUT ARM SEED FOLDER      for example: out/quality top2 1 traces/tiny-moe-top2

FOLDER gets trace.json and logits.npy (traces/README.md) and losses.csv: what the experiment's own
router loses on these logits, for `moesim route --routing trace:FOLDER` to be held against.
"""
import csv
import json
import os
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from experiment import (CAPACITY_FACTORS, GPUS, SUFFIXES, TOKENS_PER_GPU, TRACED_STEPS,  # noqa: E402
                        arms, write_atomically)


def losses(logits, base, local):
    """(router, capacity factor, failed, residual loss), means over steps, layers and GPUs."""
    import torch
    from rectified_router import Rules, route
    for suffix in SUFFIXES:
        for factor in CAPACITY_FACTORS:
            rules = Rules.parse(base + suffix, factor, local)
            routings = [route(torch.from_numpy(layer), rules) for step in logits for layer in step]
            yield (base + suffix, factor,
                   f"{np.mean([routing.failed() for routing in routings]):.9f}",
                   f"{np.mean([routing.residual_loss() for routing in routings]):.9f}")


def document(arm, seed, logits, name):
    steps = TRACED_STEPS[:len(logits)]
    base = arm.router.split("+", maxsplit=1)[0]
    return {
        "format": "moesim trace 1",
        "name": name,
        "model": f"byte-level language model of tools/quality: {logits.shape[1]} MoE layers of "
                 f"{arm.experts} experts, trained as {arm.router} at capacity factor "
                 f"{arm.capacity_factor} on 8 simulated GPUs, seed {seed}",
        "source": "router logits of its training steps, recorded by tools/quality/experiment.py; text: King "
                  "James Bible, Debian package bible-kjv-text 4.38",
        "licence": "Apache-2.0; the text is in the public domain",
        "origin": "measured",
        "note": "losses.csv: what the experiment's own router loses on these logits, means over all "
                "steps, layers and GPUs",
        "kind": "logits",
        "axes": ["step", "rank", "layer", "token", "expert"],
        "tokens": TOKENS_PER_GPU,
        "experts": arm.experts,
        "top_k": int(base[3:]),
        "array": "logits.npy",
        "steps": list(steps),
        "layers": list(range(logits.shape[1])),
    }


def main(words):
    if len(words) != 4:
        print(__doc__, file=sys.stderr)
        return 2
    out, name, seed, folder = Path(words[0]), words[1], int(words[2]), Path(words[3])
    arm = next(arm for arm in arms() if arm.name == name)
    logits = np.load(out / "logits" / f"{name} {seed}.npy")  # [step, layer, GPU, token, expert]
    rows = list(losses(logits, arm.router.split("+", maxsplit=1)[0],
                       arm.experts // GPUS))

    def save_losses(path):
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("router", "capacity_factor", "failed", "residual_loss"))
            writer.writerows(rows)

    def save_logits(path):
        with open(path, "wb") as file:
            np.save(file, np.ascontiguousarray(logits.transpose(0, 2, 1, 3, 4)))

    write_atomically(folder / "losses.csv", save_losses)
    write_atomically(folder / "logits.npy", save_logits)
    text = json.dumps(document(arm, seed, logits, folder.name), indent=2) + "\n"
    write_atomically(folder / "trace.json", lambda path: path.write_text(text, encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
