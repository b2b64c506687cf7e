"""Every router's step through the command line: priced, under its name, its assumptions named."""

import csv
import io
import json
from pathlib import Path

import pytest

from command_line import needs_binary, succeed

pytestmark = needs_binary

PROFILES = Path(__file__).resolve().parents[2] / "profiles"

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
        result = json.loads(succeed("route", "--router", "gating-dropout:0.5", "--top-k", 2, "--gpus",
                                    8, "--tokens-per-gpu", 2048, "--replicas", 1, "--seed", seed,
                                    "--format", "json"))
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
