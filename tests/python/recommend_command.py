"""Runs moesim recommend for the tests of searches."""

import shlex

from command_line import as_json

# A search of a few hundred candidates.
SMALL = ("recommend", "--model", "qwen3-30b-a3b", "--gpus", 16, "--global-batch", 64, "--micro-batch", "1,2",
         "--tensor-parallel", "1,2", "--expert-tensor-parallel", "1", "--virtual-pipeline", "1,2",
         "--recompute", "none/moe_act/full")


def reproduced(command):
    words = shlex.split(command)
    assert words[:2] == ["moesim", "train"]
    return as_json(*words[1:])


def layout_of(row):
    return tuple(row[key] for key in ("tensor_parallel", "context_parallel", "pipeline_parallel", "expert_parallel",
                                      "expert_tensor_parallel", "micro_batch", "dispatcher",
                                      "ep_overlap", "capacity_factor", "router"))
