"""Runs moesim train for the tests of training steps."""

QWEN = ("train", "--model", "qwen3-30b-a3b", "--expert-parallel", 8)
LONG = (*QWEN, "--gpus", 64, "--software", "megatron-bridge", "--global-batch", 512)
ROUTED = (*QWEN, "--gpus", 64, "--pipeline-parallel", 2)
