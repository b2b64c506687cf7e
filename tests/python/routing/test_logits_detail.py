"""The JSON of one router on given logits: its row, and the detail that drawn and recorded routing has."""

import json

import numpy as np
import pytest
from command_line import as_json, needs_binary, succeed

pytestmark = needs_binary


def flat(value):
    """The numbers of a document, in its order."""
    if isinstance(value, dict):
        value = list(value.values())
    return sum(map(flat, value), []) if isinstance(value, list) else [value]


@pytest.mark.parametrize("words", [
    ("top2",), ("top2+fr+ir",), ("dropless", "--top-k", 2), ("expert-choice", "--top-k", 2), ("sinkhorn", "--top-k", 2),
    ("group-limited:4:2", "--top-k", 2), ("bias-balanced:0.01:8", "--top-k", 2), ("base",), ("gating-dropout:0.5",),
    ("top2+ir", "--expert-placement", "round-robin"), ("expert-choice", "--expert-placement", "round-robin")])
def test_logits_have_the_detail_of_a_trace_of_them(tmp_path, words):
    """The same tokens, once as logits and once as recorded routing, of which route takes the first replica."""
    logits = (np.random.default_rng(5).normal(size=(4, 64, 8)) + np.linspace(0, 1, 8)).astype(np.float32)
    np.save(tmp_path / "array.npy", logits)
    (tmp_path / "trace.json").write_text(json.dumps({
        "format": "moesim trace 1", "name": "t", "model": "m", "source": "test", "licence": "none", "origin": "synthetic",
        "kind": "logits", "axes": ["rank", "token", "expert"], "tokens": 64, "experts": 8, "top_k": 2, "array": "array.npy"}))
    router = ("--router", *words, "--capacity-factor", "1.5")
    given = as_json("route", "--logits", tmp_path / "array.npy", *router)
    recorded = as_json("route", "--routing", f"trace:{tmp_path}", *router, "--gpus", 4, "--expert-parallel", 4,
                       "--experts", 8, "--tokens-per-gpu", 64, "--replicas", 1)
    assert given["status"] == "ok" and "pair_bytes" not in given["detail"]
    layer = recorded["detail"]["layers"][0]
    if words[0].startswith("bias-balanced"):  # trained on tokens behind these, and on these: other biases
        assert sum(given["detail"]["layers"][0]["expert_demand_share"]) == pytest.approx(1)
        return
    assert flat(given["detail"]["layers"][0]) == pytest.approx(flat(layer), rel=1e-6)
    assert sum(layer["expert_demand_share"]) == pytest.approx(1)
    assert given["detail"]["imbalance"].keys() == recorded["detail"]["imbalance"].keys()


def test_a_model_says_the_bytes_of_pairs(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(1).normal(size=(4, 64, 8)).astype(np.float32))
    given = as_json("route", "--logits", tmp_path / "x.npy", "--router", "top2", "--model", "mixtral-8x7b")
    # A quarter of the 128 routes of each GPU, of 4,096 values of two bytes.
    assert given["detail"]["pair_bytes"]["row_bytes"] == 8192
    assert given["detail"]["pair_bytes"]["kept_mean"] == pytest.approx(32 * 8192, rel=0.1)


def test_several_routers_are_rows_without_detail(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(1).normal(size=(4, 64, 8)).astype(np.float32))
    found = as_json("route", "--logits", tmp_path / "x.npy", "--router", "top1,top2")
    assert [row["router"] for row in found] == ["top1", "top2"] and "detail" not in found[0]


def test_one_router_that_is_left_of_equal_ones_has_the_detail(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(1).normal(size=(4, 64, 8)).astype(np.float32))
    words = ("route", "--logits", tmp_path / "x.npy", "--router", "dropless", "--top-k", 2, "--capacity-factor")
    assert as_json(*words, "1,2") == as_json(*words, 1)


def test_a_chart_of_it_shows_the_experts(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    np.save(tmp_path / "x.npy", np.random.default_rng(1).normal(size=(2, 64, 8)).astype(np.float32))
    succeed("route", "--logits", tmp_path / "x.npy", "--router", "top2", "--out", tmp_path / "x.json")
    succeed("plot", tmp_path / "x.json", "--out", tmp_path / "x.svg")
    assert "given logits, 2 GPUs in groups of 2, 64 tokens per GPU" in (tmp_path / "x.svg").read_text()
