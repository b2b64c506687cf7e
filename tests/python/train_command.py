"""Runs moesim train for the tests of training steps."""

import json
from pathlib import Path

MODELS = Path(__file__).resolve().parents[2] / "profiles" / "models"
QWEN = ("train", "--model", "qwen3-30b-a3b", "--expert-parallel", 8)
LONG = (*QWEN, "--gpus", 64, "--software", "megatron-bridge", "--global-batch", 512)
ROUTED = (*QWEN, "--gpus", 64, "--pipeline-parallel", 2)


def short_model(folder, name, moe_layers):
    """A file: a shipped model with its dense layers and so many of those behind them, whose routing is drawn quickly."""
    document = json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8"))
    document["layers"] = min(document["layers"], document["moe"]["first_layer"] + moe_layers)
    document.pop("published", None)  # parameters of all layers
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path
