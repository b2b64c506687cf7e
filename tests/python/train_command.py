"""Runs moesim train for the tests of training steps."""

import json

from command_line import succeed

QWEN = ("train", "--model", "qwen3-30b-a3b", "--expert-parallel", 8)
LONG = (*QWEN, "--gpus", 64, "--software", "megatron-bridge", "--global-batch", 512)
ROUTED = (*QWEN, "--gpus", 64, "--pipeline-parallel", 2)


def as_json(*words):
    return json.loads(succeed(*words, "--format", "json"))
