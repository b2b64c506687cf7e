"""Layouts and exchanges that tests of moesim calibrate take as measured, and what is predicted for them."""

from command_line import as_json

COMMON = ("--profile", "b200-sxm", "--gpus", 8, "--sequence-length", 4096)
LAYOUTS = [{"model": model, "pipeline_parallel": stages, "expert_parallel": 8 // stages,
            "global_batch": batch}
           for model in ("deepseek-v2-4layers", "deepseek-v3-4layers")
           for stages in (1, 2) for batch in (16, 64)]
EXCHANGES = [("all-to-all", 8, "64MiB"), ("all-to-all", 8, "256MiB"), ("all-to-all", 16, "64MiB"),
             ("all-to-all", 16, "256MiB"), ("all-gather", 16, "256MiB")]


def predicted(layout):
    """Compute, exchange and host of a step, as classes of parts."""
    words = [word for key, value in layout.items() for word in (f"--{key.replace('_', '-')}", value)]
    row = as_json("train", *COMMON, *words)
    exchange = sum(row[f"{part}_ms"] for part in ("tensor_exchange", "context_exchange", "dispatch",
                                                  "combine", "gradients", "parameters"))
    return row["step_ms"] - exchange - row["host_ms"], exchange, row["host_ms"]


def predicted_exchange(profile, op, gpus, size):
    return as_json("predict", "--profile", profile, "--op", op, "--gpus", gpus, "--bytes", size)
