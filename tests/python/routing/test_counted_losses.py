"""The token loss of counts, beside that of the logits that they count."""

import json

import numpy as np
import pytest
from command_line import as_json, moesim, needs_binary

pytestmark = needs_binary

LIBRARY = ("--capacity-convention", "library")


def save(folder, kind, axes, array, top_k, tokens):
    """A trace whose last axis is experts."""
    folder.mkdir()
    np.save(folder / "array.npy", array)
    (folder / "trace.json").write_text(json.dumps({
        "format": "moesim trace 1", "name": "t", "model": "m", "source": "test", "licence": "none", "origin": "synthetic", "kind": kind,
        "axes": axes, "tokens": tokens, "experts": array.shape[-1], "top_k": top_k, "array": "array.npy"}))
    return f"trace:{folder}"


def counted(logits, top_k):
    """Choices of each expert, [..., expert], of logits [..., token, expert]."""
    threshold = np.sort(logits, axis=-1)[..., -top_k, None]
    return (logits >= threshold).sum(axis=-2)


def drawn(tmp_path, experts, top_k, spread, sharpness=1.0):
    """Traces of normal logits with a popularity of this spread, and of their counts: 4 ranks of 2,048 tokens, 2 layers."""
    random = np.random.default_rng(3)
    popularity = random.normal(0, spread, (2, 1, experts))
    logits = random.normal(0, 1, (4, 2, 2048, experts)) + popularity
    sharp = save(tmp_path / f"logits{sharpness}", "logits", ["rank", "layer", "token", "expert"], (sharpness * logits).astype(np.float32),
                 top_k, 2048)
    if sharpness != 1:
        return sharp
    return sharp, save(tmp_path / "counts", "counts", ["rank", "layer", "expert"], counted(logits, top_k), top_k, 2048)


def routed(trace, *words):
    return as_json("route", "--routing", trace, "--router", "topk", "--gpus", 4, *LIBRARY, "--replicas", 1, *words)


@pytest.mark.parametrize(("experts", "top_k", "spread", "factor"), [(32, 4, 0.8, 1.25), (128, 8, 0.5, 1), (8, 2, 0.3, 1)])
def test_counts_of_normal_logits_lose_what_these_lose(tmp_path, experts, top_k, spread, factor):
    words = ("--top-k", top_k, "--capacity-factor", factor)
    logits, counts = drawn(tmp_path, experts, top_k, spread)
    right, estimated = routed(logits, *words), routed(counts, *words)
    assert estimated["failed"] == pytest.approx(right["failed"], abs=1e-9)
    for share in ("residual_loss", "lost_mass", "partial"):
        assert estimated[share] == pytest.approx(right[share], rel=0.02)


def test_weights_that_counts_do_not_tell_change_the_loss(tmp_path):
    """Logits times a factor have the same choices and counts: the page says by how much their loss differs."""
    words = ("--top-k", 8, "--capacity-factor", 1)
    loss = {sharpness: routed(drawn(tmp_path, 128, 8, 0.5, sharpness), *words)["residual_loss"] for sharpness in (0.3, 1.001, 3)}
    assert 1.1 < loss[0.3] / loss[1.001] < 1.25
    assert 0.5 < loss[3] / loss[1.001] < 0.65


@pytest.mark.parametrize("router", ("topk", "topk+ir", "topk+fr+ir"))
def test_the_band_of_counts_holds_losses_of_logits_that_spread_otherwise(tmp_path, router):
    """Three steps of logits times 0.4, 1 and 2.5: the scatter of steps alone would not hold them all."""
    random = np.random.default_rng(3)
    logits = random.normal(0, 1, (3, 4, 2, 512, 16)) + random.normal(0, 0.6, (2, 1, 16))
    axes = ["step", "rank", "layer", "expert"]
    words = ("--router", router, "--top-k", 2, "--gpus", 4, *LIBRARY, "--capacity-factor", "1.25", "--replicas", 3)
    counts = as_json("route", "--routing", save(tmp_path / "counts", "counts", axes, counted(logits, 2), 2, 512), *words)
    axes.insert(3, "token")
    losses = {}
    for sharpness in (0.4, 1, 2.5):
        sharp = save(tmp_path / f"logits{sharpness}", "logits", axes, (sharpness * logits).astype(np.float32), 2, 512)
        losses[sharpness] = as_json("route", "--routing", sharp, *words)
        assert counts["residual_loss_p05"] < losses[sharpness]["residual_loss"] < counts["residual_loss_p95"]
    narrow = losses[1]["residual_loss_p95"] - losses[1]["residual_loss_p05"]  # weights are known
    assert max(abs(loss["residual_loss"] - counts["residual_loss"]) for loss in losses.values()) > narrow / 2


def test_the_same_band_is_in_every_command(tmp_path):
    table = tmp_path / "counts.csv"
    table.write_text("layer,expert,count\n" + "".join(f"0,{expert},{40 - 3 * expert}\n" for expert in range(8)))
    routing = ("--router", "top2", "--routing", f"counts:{table}", "--capacity-factor", 1, *LIBRARY)
    results = {"route": as_json("route", "--gpus", 8, "--tokens-per-gpu", 2048, *routing),
               "simulate": as_json("simulate", "--gpus", 8, "--tokens-per-gpu", 2048, "--mode", "prefill", *routing),
               "train": as_json("train", "--model", "mixtral-8x7b", "--gpus", 16, "--expert-parallel", 8, "--profile", "h200-sxm", *routing)}
    for command, result in results.items():
        loss = result["residual_loss"]
        # Of many tokens and no drawn popularity: nothing but the weights is open, by 0.2 of the loss and more.
        assert 0.55 * loss < result["residual_loss_p05"] < 0.78 * loss, command
        assert 1.22 * loss < result["residual_loss_p95"] < 1.45 * loss, command


def test_one_route_per_token_is_lost_as_often_as_routes_fail(tmp_path):
    random = np.random.default_rng(5)
    logits = random.normal(0, 1, (8, 2, 128, 8)) + random.normal(0, 1, (2, 1, 8))
    axes = ["rank", "layer", "expert"]
    counts = save(tmp_path / "counts", "counts", axes, counted(logits, 1), 1, 128)
    table = tmp_path / "counts.csv"
    table.write_text("layer,expert,count\n" + "".join(
        f"{layer},{expert},{count}\n" for layer in range(2) for expert, count in enumerate(counted(logits, 1).sum(axis=0)[layer])))
    for routing in (counts, f"counts:{table}"):
        words = ("route", "--routing", routing, "--router", "topk", "--top-k", 1, "--gpus", 8, "--tokens-per-gpu", 128, *LIBRARY,
                 "--replicas", 1)
        for factor in (1, 1.5, 2):
            result = as_json(*words, "--capacity-factor", factor)
            assert result["failed"] > 0
            for share in ("partial", "unrouted", "residual_loss"):
                assert result[share] == pytest.approx(result["failed"], abs=1e-12)
            assert "loss_basis" not in result
        # The expert of a group, or behind a bias, need not be the best: what its weight lacks is drawn.
        assert as_json(*words, "--router", "group-limited:2:1", "--capacity-factor", 1)["loss_basis"] == "drawn weights"
        # Rectified tokens keep a part of their weight, which no count tells.
        assert as_json(*words, "--router", "topk+ir", "--capacity-factor", 1)["loss_basis"] == "drawn weights"


def test_what_no_draw_loses_is_lost_all_the_same(tmp_path):
    """One route of 1,024 beyond a capacity of 129, which most draws of the same popularity do not reach."""
    counts = np.full((2, 1, 8), 128)
    counts[0, 0, :2] = 130, 126
    trace = save(tmp_path / "counts", "counts", ["rank", "layer", "expert"], counts, 2, 512)
    words = ("route", "--routing", trace, "--router", "topk", "--top-k", 2, "--gpus", 2, *LIBRARY, "--replicas", 50)
    result = as_json(*words, "--capacity-factor", 1.007)
    assert result["failed"] == pytest.approx(1 / 2048, rel=1e-9)
    # A token loses one of its two routes at most, so that both are known.
    assert result["partial"] == pytest.approx(2 * result["failed"], rel=1e-6)
    assert result["residual_loss"] == pytest.approx(result["failed"], rel=0.1)


def test_a_table_of_counts_says_that_its_loss_is_estimated(tmp_path):
    table = tmp_path / "counts.csv"
    table.write_text("layer,expert,count\n" + "".join(f"0,{expert},{40 - expert}\n" for expert in range(16)))
    words = ("route", "--routing", f"counts:{table}", "--router", "topk", "--top-k", 2, "--experts", 16, "--gpus", 4, "--tokens-per-gpu", 256, *LIBRARY,
             "--replicas", 1)
    assert as_json(*words, "--capacity-factor", 1)["loss_basis"] == "drawn weights"
    assert "counts tell neither which routes are of one token nor their weights: token loss is estimated from drawn weights\n" \
        in moesim(*words, "--capacity-factor", 1).stderr
    assert "loss_basis" not in as_json(*words, "--router", "dropless")
    train = ("train", "--model", "mixtral-8x7b", "--gpus", 16, "--profile", "h200-sxm", "--capacity-factor", 1, "--router", "top2")
    table.write_text("layer,expert,count\n" + "".join(f"0,{expert},{40 - expert}\n" for expert in range(8)))
    assert as_json(*train, "--routing", f"counts:{table}")["loss_basis"] == "drawn weights"
    assert "loss_basis" not in as_json(*train, "--routing", "gaussian:0.1")
