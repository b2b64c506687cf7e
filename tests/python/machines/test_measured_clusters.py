"""Exchanges measured on a cluster, in `predict` and `simulate`."""

import json
from pathlib import Path

import pytest

from command_line import as_json, needs_binary, succeed

ROOT = Path(__file__).resolve().parents[3]
MIB = 2**20

pytestmark = needs_binary


@pytest.fixture
def cluster(tmp_path):
    """hgx-h100 with an all-to-all of 16 GPUs that takes ten times the law's time."""
    document = json.loads((ROOT / "profiles" / "clusters" / "hgx-h100.json").read_text())
    document["name"] = "slow"
    document["exchanges"] = [{
        "op": "all-to-all", "nodes": 2, "gpus": 16, "origin": "measured: two_nodes.log",
        "bytes": [MIB, 16 * MIB, 256 * MIB], "time_us": [600, 3000, 40000]}]
    path = tmp_path / "slow.json"
    path.write_text(json.dumps(document))
    return path


def first(answer):
    answer = json.loads(answer)
    return answer[0] if isinstance(answer, list) else answer


def simulate(cluster):
    return first(succeed(
        "simulate", "--gpus", 16, "--expert-parallel", 16, "--experts", 16, "--model", "llama2-7b-moe8",
        "--profile", "h100-sxm", "--cluster", cluster, "--mode", "prefill", "--sequence-length", 512,
        "--micro-batch", 1, "--replicas", 1, "--router", "top2", "--format", "json"))


def test_predict_takes_the_measured_time_and_says_so(cluster):
    answer = first(succeed(
        "predict", "--op", "all-to-all", "--gpus", 16, "--bytes", "16MiB", "--profile", "h100-sxm",
        "--cluster", cluster, "--format", "json"))
    assert answer["time_us"] == 3000
    assert "measured" in answer["provenance"] and "two_nodes.log" in answer["provenance"]


def test_simulate_takes_the_measured_time_and_says_so(cluster):
    law, measured = simulate("hgx-h100"), simulate(cluster)
    assert "all-to-all measured: two_nodes.log" in measured["provenance"]
    assert "two_nodes" not in law["provenance"]
    assert measured["step_ms"] > 1.5 * law["step_ms"]


def test_train_takes_the_measured_time_and_says_so(cluster):
    words = ("train", "--model", "qwen3-30b-a3b", "--gpus", 16, "--expert-parallel", 16, "--global-batch", 64)
    law, measured = (succeed(*words, "--cluster", each) for each in ("hgx-h100", cluster))
    assert "exchanges: dispatch and combine (all-to-all) measured: two_nodes.log\n" in measured
    assert "exchanges:" not in law
    parts = [as_json(*words, "--cluster", each)["dispatch_ms"]
             for each in ("hgx-h100", cluster)]
    assert parts[1] > 3 * parts[0]


def predicted(cluster, gpus, size="64MiB"):
    return as_json("predict", "--op", "all-to-all", "--gpus", gpus, "--bytes", size, "--cluster", cluster)


def test_only_a_measured_row_is_a_measured_point(cluster):
    assert "measured, measured point" in predicted(cluster, 16, "16MiB")["provenance"]
    assert "measured, interpolated" in predicted(cluster, 16, "20MiB")["provenance"]
    # On other numbers of nodes nobody measured, nor of the shipped cluster any between nodes.
    assert predicted(cluster, 128, "16MiB")["provenance"].startswith("derived, extrapolated")
    assert predicted("hgx-h100", 16)["provenance"].startswith("assumed, interpolated")
    assert predicted("hgx-h100", 8)["provenance"].startswith("published, measured point")


def test_a_slow_node_is_slow_among_fewer_gpus_too(tmp_path):
    document = json.loads((ROOT / "profiles" / "clusters" / "hgx-h100.json").read_text())
    document["name"] = "slow"
    sizes = [MIB * 2**power for power in range(10)]
    document["exchanges"] = [{
        "op": "all-to-all", "nodes": 1, "gpus": 8, "origin": "measured: one_node.log", "bytes": sizes,
        "time_us": [1.5 * predicted("hgx-h100", 8, size)["time_us"] for size in sizes]}]
    slow = tmp_path / "slow.json"
    slow.write_text(json.dumps(document))
    times = [predicted(slow, gpus)["time_us"] for gpus in range(2, 9)]
    assert times == sorted(times) and times[-1] < 1.1 * times[-2]
    for gpus in (2, 4, 6, 7):
        answer, usual = predicted(slow, gpus), predicted("hgx-h100", gpus)
        assert 1.4 < answer["time_us"] / usual["time_us"] < 1.6
        assert answer["time_us_p95"] / answer["time_us_p05"] > usual["time_us_p95"] / usual["time_us_p05"]
        assert answer["provenance"].startswith("derived, interpolated")
        assert "scaled as measured among 8 GPUs of cluster slow" in answer["provenance"]
    # The part inside the nodes of an exchange between them takes as long.
    assert predicted(slow, 16)["time_us"] > predicted("hgx-h100", 16)["time_us"] + 30
    assert "curve inside a domain (measured: one_node.log)" in predicted(slow, 16)["provenance"]


def with_curve(tmp_path, base, entry, factor):
    """`base` with a curve of as many GPUs that takes `factor(bytes)` times as long as the profile says."""
    document = json.loads((ROOT / "profiles" / "clusters" / f"{base}.json").read_text())
    sizes = [MIB * 2**power for power in range(10)]
    times = [factor(size) * predicted(base, entry["gpus"], size)["time_us"] for size in sizes]
    document.update(name="mine", exchanges=[{"op": "all-to-all", "origin": "measured: mine.log", "bytes": sizes,
                                             "time_us": times, **entry}])
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document))
    return path


def test_provenance_calls_nothing_scaled_that_is_not(tmp_path):
    # 8 GPUs of one NVLink domain on 8 trays: the curve of 8 on two trays of the domain answers.
    mine = with_curve(tmp_path, "gb200-nvl72", {"nodes": 2, "gpus": 8}, lambda size: 1.5)
    spread = as_json("predict", "--op", "all-to-all", "--gpus", 8, "--placement",
                     ",".join(str(4 * node) for node in range(8)), "--bytes", "64MiB", "--cluster", mine)
    assert spread["time_us"] == predicted(mine, 8)["time_us"]
    assert spread["provenance"].startswith("measured, measured point") and "mine.log" in spread["provenance"]
    assert "scaled" not in spread["provenance"]
    # One size takes longer, the next less: nothing that other numbers of GPUs could share.
    mine = with_curve(tmp_path, "hgx-h100", {"nodes": 1, "gpus": 8},
                      lambda size: 1.3 if (size // MIB).bit_length() % 2 else 0.8)
    answer, usual = predicted(mine, 4), predicted("hgx-h100", 4)
    for key in ("time_us", "time_us_p05", "time_us_p95"):
        assert answer[key] == usual[key]
    assert answer["provenance"].startswith("published, ") and "scaled" not in answer["provenance"]
    step = first(succeed("simulate", "--gpus", 4, "--expert-parallel", 4, "--experts", 16, "--model", "llama2-7b-moe8",
                         "--profile", "h100-sxm", "--cluster", mine, "--mode", "prefill", "--replicas", 1, "--router",
                         "top2", "--format", "json"))
    assert "scaled" not in step["provenance"]
