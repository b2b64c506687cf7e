"""`moesim route --fit-scores` and `--routing scores:FILE`: fitted to public counts, what they
generate loses as many tokens as the counts themselves."""

import csv
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from command_line import as_json, moesim, needs_binary, succeed
from public_tables import folder_of

ROOT = Path(__file__).resolve().parents[3]

pytestmark = needs_binary


def save_trace(folder, counts, axes, top_k):
    folder.mkdir()
    np.save(folder / "counts.npy", counts)
    document = {"format": "moesim trace 1", "name": "t", "model": "m", "source": "test",
                "licence": "none", "origin": "synthetic", "kind": "counts", "axes": axes,
                "tokens": int(counts.sum(-1).flat[0]) // top_k, "experts": counts.shape[-1],
                "top_k": top_k, "array": "counts.npy"}
    (folder / "trace.json").write_text(json.dumps(document))
    return folder


def lost(counts, factor, tokens, top_k):
    """Routes beyond the capacity, counted directly; library convention."""
    capacity = math.ceil(factor * top_k * tokens / counts.shape[-1])
    return np.maximum(counts - capacity, 0).sum() / counts.sum()


def generated(model, top_k, layers, factor, *options):
    """The same of routes that a model generates, its own layers only."""
    result = json.loads(succeed(
        "route", "--routing", f"scores:{model}", "--router", "topk", "--top-k", top_k,
        "--capacity-convention", "library", "--capacity-factor", factor, "--format", "json",
        *options))
    return np.mean(result["detail"]["layer_failed"][:layers])


def test_counts_come_back_from_a_fit(tmp_path):
    shares = np.exp(-0.3 * np.arange(8.0))
    shares /= shares.sum()
    random = np.random.default_rng(1)
    counts = random.multinomial(4096, shares, size=(6, 4, 2))  # step, rank, layer
    trace = save_trace(tmp_path / "trace", counts, ["step", "rank", "layer", "expert"], 1)
    out = tmp_path / "scores.json"
    result = moesim("route", "--fit-scores", trace, "--out", out)
    assert result.returncode == 0 and result.stdout == ""
    assert "between experts" in result.stderr and f"scores:{out}" in result.stderr
    model = json.loads(out.read_text())
    # 24 cells of 4,096 routes: a share p is off by sqrt(p / 98304), 0.0017 at most.
    assert np.allclose(model["popularity"], [shares, shares], atol=0.007)
    assert model["variance"]["rank"]["value"] < 0.001
    for experts in (8, 32):  # the model's own number, and another
        row = as_json("route", "--routing", f"scores:{out}", "--experts", experts,
                      "--router", "top1", "--gpus", "8", "--replicas", "2",
                      "--tokens-per-gpu", "4096")
        assert row["routing"] == f"scores:{out}"
        # At CF = 1 what exceeds 1 / E is lost: 0.247 of these shares, whatever E; counting noise
        # of 128 tokens an expert adds some at 32.
        exceeding = np.maximum(shares - 1 / 8, 0).sum()
        assert row["failed"] == pytest.approx(exceeding, abs=0.02)


def test_a_fit_prints_the_digits_that_it_knows(tmp_path):
    result = moesim("route", "--fit-scores", ROOT / "traces" / "tiny-moe-top2", "--out", tmp_path / "scores.json")
    assert result.returncode == 0
    said = re.findall(r"([\d.]+) \+- ([\d.]+)", result.stderr)
    assert len(said) > 3
    for value, error in said:
        assert len(error.replace(".", "").lstrip("0")) == 2, error  # two digits of the error
        assert len(value.partition(".")[2]) == len(error.partition(".")[2])
    drift = json.loads((tmp_path / "scores.json").read_text())["variance"]["drift"]
    deviation = drift["value"] ** 0.5
    assert f"drift over steps {deviation:.2f} +- {drift['error'] / (2 * deviation):.2f};" in result.stderr


def pair_lift(choices):
    """Pairs (0, 1) and (2, 3) of two choices over those of all other pairs, for each of them."""
    pairs = np.sort(choices.reshape(-1, 2), axis=1)
    together = ((pairs[:, 0] // 2) == (pairs[:, 1] // 2)).mean()
    return (together / 2) / ((1 - together) / 4)


def test_experts_chosen_together_come_back_from_a_fit(tmp_path):
    # A quarter of the tokens choose 0 with 1 or 2 with 3, the others any two of four: every expert
    # has half of the tokens, a favoured pair (1/8 + 1/8) / (1/8) = twice the tokens of another.
    random = np.random.default_rng(2)
    whole = np.array([[0, 1], [2, 3]])
    every = np.array([[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]])
    size = (2, 2, 20, 512)  # step, rank, layer, token
    favoured = random.random(size) < 0.25
    choices = np.where(favoured[..., None], whole[random.integers(0, 2, size)],
                       every[random.integers(0, 6, size)]).astype(np.uint16)
    assert pair_lift(choices) == pytest.approx(2, rel=0.05)
    folder = tmp_path / "trace"
    folder.mkdir()
    np.save(folder / "choices.npy", choices)
    (folder / "trace.json").write_text(json.dumps({
        "format": "moesim trace 1", "name": "t", "model": "m", "source": "test", "licence": "none",
        "origin": "synthetic", "kind": "choices", "tokens": 512, "experts": 4, "top_k": 2,
        "axes": ["step", "rank", "layer", "token", "choice"], "array": "choices.npy"}))
    model = tmp_path / "scores.json"
    result = moesim("route", "--fit-scores", folder, "--out", model)
    assert result.returncode == 0 and "types of tokens" in result.stderr
    document = json.loads(model.read_text())
    kind = document["variance"]["kind"]
    assert kind["value"] > 3 * kind["error"] > 0
    # Loads of what is generated: 1/2 of all tokens each, 4,096 tokens, 4.5 standard deviations.
    result = as_json("route", "--routing", f"scores:{model}", "--experts", "4",
                     "--router", "top2", "--gpus", "4", "--replicas", "1",
                     "--capacity-factor", "0.5", "--tokens-per-gpu", "16384")
    assert result["failed"] == pytest.approx(0.75, abs=0.01)  # 2,048 slots for 8,192 routes each


@pytest.mark.parametrize("words, part", [
    (["--fit-scores", "absent", "--out", "x.json"], "absent"),
    (["--fit-scores", "absent"], "--out"),
    (["--fit-scores", "absent", "--out", "x.json", "--experts", "8"], "--experts"),
    (["--routing", "scores:absent.json"], "absent.json"),
])
def test_mistakes_are_named(tmp_path, words, part):
    result = moesim("route", *words, cwd=tmp_path)
    assert result.returncode == 2 and part in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words, part", [
    (["route", "--routing", "ragged-source", "--router", "base"], "--router base:greedy"),
    (["route", "--routing", "burst:4:2"], "no share from 0 to 1"),
    (["simulate", "--routing", "empty-rank", "--router", "base"], "--router base:greedy"),
    # By the name that was typed, not by that of its rule in a forward pass.
    (["route", "--router", "base", "--mode", "prefill", "--router-dialect", "deepspeed"], "deepspeed has no base: "),
    (["simulate", "--router", "gating-dropout:0.4", "--mode", "prefill", "--dedup", "node"], "router gating-dropout:0.4 "),
])
def test_scenarios_that_cannot_be_say_why(words, part):
    result = moesim(*words)
    assert result.returncode == 2 and part in result.stderr


@pytest.mark.parametrize("command", ["route", "simulate", "sweep"])
def test_a_rule_of_training_alone_is_told_of_a_forward_pass(command):
    words = (command, "--model", "mixtral-8x7b", "--gpus", 8, "--expert-parallel", 8, "--replicas", 1,
             "--capacity-convention", "library", "--router", "gating-dropout:0.4")
    told = "note: router gating-dropout:0.4: a forward pass routes as gating-dropout:0, whatever training does"
    assert told in moesim(*words, "--mode", "prefill").stderr
    assert told not in moesim(*words, "--mode", "training").stderr


def test_a_model_of_olmoe_loses_what_its_counts_lose(tmp_path):
    table = np.zeros((16, 64), dtype=np.int64)
    with open(folder_of("expert_counts.csv") / "expert_counts.csv", newline="") as file:
        for row in csv.DictReader(file):
            if (row["model"], row["kind"], row["domain"]) == ("OLMoE-1B-7B-0924", "topk", "c4"):
                table[int(row["layer"]), int(row["expert"])] = int(row["count"])
    counts = table[table.sum(1) > 0]
    assert counts.shape == (3, 64)
    tokens = counts[0].sum() // 8
    trace = save_trace(tmp_path / "trace", counts, ["layer", "expert"], 8)
    model = tmp_path / "scores.json"
    succeed("route", "--fit-scores", trace, "--out", model)
    for factor in (0.75, 1, 1.25, 2):
        found = generated(model, 8, 3, factor, "--model", "olmoe-1b-7b", "--gpus", "8", "--replicas",
                          "1", "--tokens-per-gpu", "16384", "--priority", "position")
        # Sampling 16,384 tokens moves it by less than 0.1 points.
        assert found == pytest.approx(lost(counts, factor, tokens, 8), abs=0.002)


def test_layers_of_a_trace_that_differ_are_generated_different(tmp_path):
    # traces/README.md: layer 0 is mildly uneven, layer 1 collapses. With one variance for both they
    # lost 39 and 40 %; a run of 8 replicas is off by 1 and 7 points.
    trace = ROOT / "traces" / "tiny-moe-top2"
    model = tmp_path / "scores.json"
    succeed("route", "--fit-scores", trace, "--out", model)
    assert json.loads(model.read_text())["layer_scale"][0] < 0.1
    def failed(source, seed):
        result = as_json("route", "--routing", source, "--experts", "8", "--gpus", "8", "--expert-parallel", "8",
                         "--sequence-length", "128", "--micro-batch", "1", "--replicas", "8", "--router", "top2",
                         "--capacity-factor", "2", "--seed", seed)
        return np.array(result["detail"]["layer_failed"][:2])
    recorded = failed(f"trace:{trace}", 1)
    found = np.mean([failed(f"scores:{model}", seed) for seed in range(1, 5)], axis=0)
    assert recorded == pytest.approx([0.165, 0.618], abs=0.001)
    assert found[0] == pytest.approx(recorded[0], abs=0.03)
    assert found[1] > found[0] + 0.15


# Training without a balance loss: one expert gets up to half of a layer's routes, and popularity
# drifts. traces/README.md states the mean errors over generated runs, 1.5 points at most for a half
# that describes itself and 4.7 for one that predicts the other; runs differ by up to 0.8 and 1.6
# points at these capacity factors, of which a mean of four shows three standard errors.
def test_models_of_halves_of_a_training_run(tmp_path):
    archive = np.load(folder_of("smartmoe_routing_trace.npz") / "smartmoe_routing_trace.npz")
    # [iteration, rank, layer, micro-batch, expert]; micro-batches follow each other as steps.
    counts = archive["counts"].astype(np.int64).transpose(0, 3, 1, 2, 4).reshape(84, 16, 24, 32)
    late = counts[40:]
    for name, half, error, spread in (("late", late, 0.015, 0.008),
                                      ("early", counts[:40], 0.047, 0.016)):
        trace = save_trace(tmp_path / name, half, ["step", "rank", "layer", "expert"], 2)
        model = tmp_path / f"{name}.json"
        succeed("route", "--fit-scores", trace, "--out", model)
        for factor in (1, 2):
            found = [generated(model, 2, 24, factor, "--model", "mixtral-8x7b", "--experts", "32",
                               "--gpus", "16", "--expert-parallel", "16", "--replicas", "1",
                               "--tokens-per-gpu", "2048", "--priority", "position", "--seed",
                               seed) for seed in range(1, 5)]
            assert np.mean(found) == pytest.approx(lost(late, factor, 2048, 2),
                                                   abs=error + 3 * spread / 2)
