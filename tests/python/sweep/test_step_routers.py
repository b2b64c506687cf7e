"""Every router's step through the command line: priced, under its name, its assumptions named."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

from command_line import as_json, expect_error, moesim, needs_binary, succeed

pytestmark = needs_binary

PROFILES = Path(__file__).resolve().parents[3] / "profiles"

SMALL = ["--gpus", "8", "--tokens-per-gpu", "2048", "--mode", "prefill", "--replicas", "1"]
ROUTERS = [
    "top2+fr+ir",
    "dropless",
    "expert-choice",
    "base:greedy",
    "random:balanced",
    "hash:1",
    "soft",
    "scomoe:0.2:0.3",
    "gating-dropout:0.5",
    "group-limited:4:2",
    "bias-balanced:0.001:100",
]


@pytest.mark.parametrize("router", ROUTERS)
def test_a_router_is_simulated_under_its_name(router):
    result = json.loads(succeed("simulate", "--router", router, "--format", "json", *SMALL))
    assert result["status"] == "ok"
    # Nothing is dropped out of inference.
    assert result["router"] == ("gating-dropout:0" if router == "gating-dropout:0.5" else router)
    parts = [value for key, value in result.items() if key.endswith("_ms") and key not in
             ("step_ms", "step_ms_p05", "step_ms_p95", "exchange_ms")]
    assert len(parts) == 10
    # Nine significant digits each.
    assert sum(parts) == pytest.approx(result["step_ms"], rel=1e-7)


def test_exchanges_without_duplicates_are_shorter_and_refused_where_nothing_repeats():
    words = ["--gpus", "16", "--expert-parallel", "16", "--experts", "32", "--top-k", "4",
             "--tokens-per-gpu", "2048", "--mode", "prefill", "--replicas", "1", "--format", "csv"]
    text = succeed("sweep", "--router", "dropless,group-limited:4:1", "--dedup", "none,gpu,node",
                   *words)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["dedup"] for row in rows] == ["none", "gpu", "node"] * 2
    for first in (0, 3):
        none, gpu, node = (float(row["exchange_ms"]) for row in rows[first:first + 3])
        assert none > gpu > node  # several experts of a token on a GPU, more of them on a node
    assert "forwarded inside a node" in rows[2]["provenance"]
    assert "forwarded" not in rows[1]["provenance"]
    refused = list(csv.DictReader(io.StringIO(succeed(
        "sweep", "--router", "top4,scomoe:0.5:0.2,dropless", "--dedup", "node", "--fidelity",
        "counts,auto", *words))))
    assert [row["status"] for row in refused] == ["refused"] * 4 + ["ok"] * 2
    assert float(refused[4]["step_ms"]) == pytest.approx(float(refused[5]["step_ms"]), rel=0.02)
    assert all("a block of its own" in row["reason"] for row in refused[:4])
    assert ["--padding none" in row["reason"] for row in refused[:4]] == [
        row["router"] == "top4" for row in refused[:4]]  # scomoe pads whatever is asked for
    assert refused[4]["fidelity"] == "counts"
    crooked = moesim("simulate", "--router", "dropless", "--dedup", "node", "--gpus", "12",
                     "--expert-parallel", "12", "--experts", "12", "--tokens-per-gpu", "2048")
    assert crooked.returncode == 2 and "--dedup gpu" in crooked.stderr


def test_route_says_how_many_bytes_deduplication_saves():
    words = ["--gpus", "16", "--expert-parallel", "16", "--experts", "32", "--top-k", "4",
             "--tokens-per-gpu", "1024", "--replicas", "1", "--format", "json", "--routing",
             "gaussian:0"]
    def pair_bytes(router, *more):
        result = json.loads(succeed("route", "--router", router, *words, *more))
        return result["detail"]["pair_bytes"]
    free = pair_bytes("dropless")
    # k = 4 of 32, two experts a GPU, 16 a node: C(30, 4) / C(32, 4) = 27,405 / 35,960 of the tokens
    # miss a GPU and C(16, 4) / 35,960 = 1,820 / 35,960 a node; rows of 4,096 in bf16.
    assert free["kept_mean"] == pytest.approx(1024 * 4 / 16 * 8192, rel=0.01)
    assert free["distinct_mean"] == pytest.approx(1024 * (1 - 27405 / 35960) * 8192, rel=0.01)
    other = free["to_other_node"]
    assert other["kept_mean"] == pytest.approx(1024 * 2 * 8192, rel=0.02)
    assert other["distinct_mean"] == pytest.approx(1024 * (1 - 1820 / 35960) * 8192, rel=0.01)
    # One group of two is kept, which is a node: half of the tokens go to the other one, whole.
    limited = pair_bytes("group-limited:2:1")["to_other_node"]
    assert limited["kept_mean"] == pytest.approx(4 * limited["distinct_mean"], rel=1e-8)
    assert limited["distinct_mean"] == pytest.approx(512 * 8192, rel=0.05)
    for router in ("dropless", "group-limited:2:1"):
        tokens, counts = (pair_bytes(router, "--fidelity", level) for level in ("tokens", "counts"))
        assert counts["distinct_mean"] == pytest.approx(tokens["distinct_mean"], rel=0.01)
        assert counts["to_other_node"]["distinct_mean"] == pytest.approx(
            tokens["to_other_node"]["distinct_mean"], rel=0.01)
    assert "distinct_mean" not in pair_bytes("top4", "--fidelity", "counts")  # which of a token's routes are kept?


def test_megatron_exchanges_probabilities_beside_tokens():
    paper, megatron = (json.loads(succeed("simulate", "--router", "dropless", "--top-k", "2",
                                          "--router-dialect", dialect, "--format", "json", *SMALL))
                       for dialect in ("paper", "megatron"))
    assert (paper["router_dialect"], megatron["router_dialect"]) == ("paper", "megatron")
    # One small all-to-all more in each of 16 layers: 512 rows of 4 bytes a pair of GPUs, latency
    # for the most part.
    more = (megatron["exchange_ms"] - paper["exchange_ms"]) / 16
    assert 0.005 < more < 0.1
    assert megatron["failed"] == paper["failed"] == 0


def test_experts_lie_where_they_are_placed(tmp_path):
    words = ["--router", "dropless", "--top-k", "2", "--experts", "16", "--gpus", "8",
             "--tokens-per-gpu", "2048", "--replicas", "2", "--routing", "hot-rank:6"]
    table = tmp_path / "placement.csv"
    table.write_text("expert,rank\n" + "".join(f"{expert},{expert % 8}\n" for expert in range(16)))
    counts = tmp_path / "counts.csv"
    counts.write_text("layer,expert,count\n" +
                      "".join(f"0,{expert},{100 if expert < 2 else 10}\n" for expert in range(16)))
    text = succeed("sweep", *words, "--mode", "prefill", "--format", "csv", "--expert-placement",
                   f"contiguous,round-robin,{table}")
    contiguous, dealt, listed = csv.DictReader(io.StringIO(text))
    assert dealt["expert_placement"] == "round-robin"
    # The two hot experts of one GPU are placed on two: the others wait less at exchanges.
    for part in ("exchange_ms", "exposed_exchange_ms", "step_ms"):
        assert float(dealt[part]) < 0.95 * float(contiguous[part]), part
        assert listed[part] == dealt[part]

    def route(*more):
        return as_json("route", *words[:-1], f"counts:{counts}", *more)["detail"]
    plain, balanced = route(), route("--expert-placement", f"balanced:{counts}")
    for detail in (plain, balanced):
        # By the number of the expert, wherever it is: 0 and 1 have 100 each of the 340 counted.
        share = detail["layers"][0]["expert_demand_share"]
        assert sorted(range(16), key=share.__getitem__)[-2:] in ([0, 1], [1, 0])
        # Two hot ones on one GPU of eight have 200 / 340 of the routes, 4.71 times the mean; one of
        # them with a cool one 110 / 340, 2.59 times.
        busiest = detail["imbalance"]["gpu_rows_busiest_over_mean"]["mean"]
        assert busiest == pytest.approx(4.71 if detail is plain else 2.59, rel=0.03)
    refused = moesim("simulate", "--router", "group-limited:4:2", "--expert-placement",
                     "round-robin", *SMALL)
    assert refused.returncode == 2 and "neighbouring experts" in refused.stderr
    assert "round-robin" in moesim("simulate", "--expert-placement", "scattered").stderr


def test_base_in_training_shuffles_and_says_what_it_assumes():
    train = ["train" if value == "prefill" else value for value in SMALL]
    base = json.loads(succeed("simulate", "--router", "base", "--format", "json", *train))
    top1 = json.loads(succeed("simulate", "--router", "top1", "--format", "json", *train))
    # Four all-to-alls of S h bytes a pass in place of two: both routers send C = S / E rows.
    assert base["exchange_ms"] == pytest.approx(2 * top1["exchange_ms"], rel=0.02)
    assert "fairseq's auction" in base["provenance"]
    assert "assumed:" not in top1["provenance"]


def test_einsum_makes_refused_rows_of_routers_without_blocks():
    text = succeed("sweep", "--router", "top2,dropless,soft", "--dispatch", "einsum", "--format",
                   "csv", *SMALL)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["status"] for row in rows] == ["ok", "refused", "refused"]
    assert all("use --dispatch index" in row["reason"] for row in rows[1:])


def test_gating_dropout_skips_exchanges_in_training_alone():
    train = [value for value in SMALL if value not in ("--mode", "prefill")]
    for router, same in (("gating-dropout:0.5", False), ("gating-dropout:0", True)):
        for words in (train, SMALL):
            mine, top2 = (json.loads(succeed("simulate", "--router", name, "--top-k", 2, "--format",
                                             "json", *words)) for name in (router, "top2"))
            expected = same or words is SMALL
            assert (mine["exchange_ms"] == top2["exchange_ms"]) == expected
            assert (mine["failed"] == top2["failed"]) == expected


def test_capacity_and_padded_blocks_do_not_hang_on_the_coin_of_a_layer():
    # C = ceil(2 x 2,048 / 8); one expert per GPU, so C rows of 4,096 in bf16 a pair.
    for seed in range(1, 6):
        result = as_json("route", "--router", "gating-dropout:0.5", "--top-k", 2, "--gpus",
                         8, "--tokens-per-gpu", 2048, "--replicas", 1, "--seed", seed)
        assert result["capacity"] == 512
        assert result["detail"]["pair_bytes"]["padded"] == 512 * 8192


def test_overlap_of_a_profile_is_a_default_that_refuses_nothing(tmp_path):
    profile = json.loads((PROFILES / "hardware" / "a100-sxm-80gb.json").read_text())
    lost = {"range": [1, 1.3], "pairs": 3}
    profile["overlap"] = {"compute": {"slowdown": 1.2, **lost}, "exchange": {"slowdown": 1.1, **lost},
                          "origin": "measured", "source": "a test"}
    (tmp_path / "mine.json").write_text(json.dumps(profile))
    words = ["--profile", tmp_path / "mine.json", "--format", "json", *SMALL]

    def slowdown(*more):
        return json.loads(succeed("simulate", *more, *words))["overlap_slowdown"]

    assert slowdown("--router", "top2") == "1.2:1.1"
    assert slowdown("--router", "dropless") == "1:1"
    assert slowdown("--router", "top2", "--network", "flows") == "1:1"


def test_unknown_routing_widens_the_band_and_says_its_share():
    words = ("--profile", "a100-sxm-80gb-deepspeed", "--model", "llama2-7b-moe8", "--gpus", 8, "--expert-parallel", 8,
             "--sequence-length", 1024, "--mode", "prefill", "--router", "dropless")
    text = succeed("simulate", *words, "--routing", "unknown")
    share = re.search(r"wide most of all because: routing and shapes.* \((\d+) % of the variance\)", text)
    assert share and int(share[1]) > 40 and "--routing trace:FILE" in text
    rows = csv.DictReader(io.StringIO(succeed("sweep", *words, "--format", "csv", "--routing",
                                              "gaussian:0.1,unknown,unknown:0.5")))
    width = {row["routing"]: float(row["step_ms_same_p95"]) / float(row["step_ms_same_p05"]) for row in rows}
    assert width["gaussian:0.1"] < width["unknown:0"] < width["unknown:0.5"]


def test_a_training_step_is_not_drawn_from_unknown_routing():
    expect_error(moesim("train", "--model", "mixtral-8x7b", "--gpus", 64, "--expert-parallel", 8, "--routing", "unknown"),
                 2, "--routing unknown", "gaussian:0.24", "gaussian:0.37", "gaussian:0.58")
