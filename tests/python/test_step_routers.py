"""Every router's step through the command line: priced, under its name, its assumptions named."""

import csv
import io
import json

import pytest

from command_line import needs_binary, succeed

pytestmark = needs_binary

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
    assert result["router"] == router
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
