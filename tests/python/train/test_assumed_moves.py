"""Bands of `train` know how much of a step hangs on the host and on NICs, beyond what measured steps show."""

import pytest

from cluster_imports import LOGS, imported
from command_line import as_json, needs_binary, succeed

pytestmark = needs_binary
STEP = ("train", "--model", "qwen3-30b-a3b", "--gpus", 64, "--micro-batch", 2, "--global-batch", 512, "--profile", "b200-sxm",
        "--cluster", "hgx-b200", "--software", "megatron-bridge")


def ends(*words):
    row = as_json(*words)
    return row["step_ms_low"] / row["step_ms"], row["step_ms_high"] / row["step_ms"]


def test_a_step_that_waits_for_the_host_has_a_wider_band():
    few, many = (ends(*STEP, "--expert-parallel", 8, "--tensor-parallel", size) for size in (1, 8))
    assert many[0] < 0.8 * few[0] and many[1] > 1.1 * few[1]
    # Measured steps hang on the host, too: of a host 1.5 times as slow or as fast all is inside.
    host = {factor: as_json(*STEP, "--expert-parallel", 8, "--tensor-parallel", 8, "--launch-us", 15 * factor,
                            "--host-read-us", 20 * factor)["step_ms"] for factor in (1 / 1.5, 1, 1.5)}
    assert many[0] < host[1 / 1.5] / host[1] and host[1.5] / host[1] < many[1]
    # A value of the user's own is not assumed.
    known = ends(*STEP, "--expert-parallel", 8, "--tensor-parallel", 8, "--launch-us", 15.5)
    assert many[0] < known[0] and known[1] < many[1]
    text = succeed(*STEP, "--expert-parallel", 8, "--tensor-parallel", 8)
    assert "because: host launches, assumed to a factor of two" in text
    assert "narrower with: --launch-us from a trace of the framework; or " in text


def test_a_step_of_exchanges_between_nodes_has_a_wider_band_until_they_are_measured(tmp_path):
    words = ("train", "--model", "qwen3-30b-a3b", "--gpus", 64, "--global-batch", 512, "--profile", "h100-sxm", "--launch-us", 14,
             "--software", "megatron-bridge")
    inside, across = (ends(*words, "--cluster", "hgx-h100", "--expert-parallel", size) for size in (8, 64))
    assert across[0] < inside[0] and across[1] > inside[1]
    imported(tmp_path, LOGS / "alltoall_2nodes.log")
    logged = ends(*words, "--cluster", tmp_path / "my_cluster.json", "--expert-parallel", 64)
    assert logged == pytest.approx(inside, rel=0.02)


def test_the_bands_of_recommend_are_those_of_train():
    row = as_json(*STEP, "--expert-parallel", 8, "--tensor-parallel", 8)
    known = as_json(*STEP, "--expert-parallel", 8, "--tensor-parallel", 8, "--launch-us", 14)
    found = [as_json("recommend", *STEP[1:], "--expert-parallel", 8, "--tensor-parallel", 8, "--pipeline-parallel", 1, *more)[0]
             for more in ((), ("--launch-us", 14))]
    assert found[0]["step_ms_high"] == pytest.approx(row["step_ms_high"], rel=1e-6)
    assert found[1]["step_ms_high"] == pytest.approx(known["step_ms_high"], rel=1e-6)
