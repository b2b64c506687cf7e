"""--expert-bias trained:SCENARIO: biases that one popularity trained, under another."""

import numpy as np
import pytest
from command_line import as_json, as_rows, needs_binary, refused

pytestmark = needs_binary
SIZES = ("--experts", 16, "--top-k", 2, "--gpus", 4, "--tokens-per-gpu", 512, "--replicas", 2)
WORDS = ("route", "--router", "bias-balanced", *SIZES)


def busiest(*words):
    return as_json(*WORDS, *words)["detail"]["imbalance"]["expert_demand_busiest_over_mean"]["mean"]


def test_trained_on_what_is_routed_is_the_default():
    given, usual = (as_json(*WORDS, "--routing", "gaussian:1", *more) for more in (("--expert-bias", "trained:gaussian:1"), ()))
    assert given["detail"] == usual["detail"]
    assert given["expert_bias"] == "trained:gaussian:1" and usual["expert_bias"] == "none"


def test_a_popularity_that_biases_do_not_know_is_not_evened():
    itself, zeros = busiest("--routing", "gaussian:1"), busiest("--routing", "gaussian:1", "--expert-bias", "zeros")
    balanced = busiest("--routing", "gaussian:1", "--expert-bias", "trained:balanced")
    # Half of the way in the offsets is half of the way, or about so.
    half = busiest("--routing", "gaussian:1", "--expert-bias", "trained:gaussian:0.5")
    assert itself < 1.3 < 1.5 < half < 0.95 * zeros
    assert balanced == pytest.approx(zeros, rel=0.05)


def test_loads_of_one_day_under_biases_of_another(tmp_path):
    """Trained on loads that rise with the expert's number, equal loads fall with it."""
    path = tmp_path / "rising.csv"
    path.write_text("layer,expert,count\n" + "".join(f"0,{expert},{100 + 30 * expert}\n" for expert in range(16)))
    trained = ("--expert-bias", f"trained:counts:{path}")
    tokens, counts = (np.mean([layer["expert_demand_share"] for layer in as_json(
        *WORDS, "--routing", "balanced", *trained, "--fidelity", fidelity)["detail"]["layers"]], axis=0)
        for fidelity in ("tokens", "counts"))
    assert (np.diff(tokens) < 0).all() and tokens[0] > 5 * tokens[-1]
    # The least share is 0.015 of 131,072 routes: a standard error of 2 %, with the biases' own of 1 % or two.
    assert counts == pytest.approx(tokens, rel=0.1)


def test_a_sweep_of_biases_is_a_row_for_each():
    rows = as_rows(*WORDS, "--routing", "gaussian:1", "--expert-bias", "none,zeros,trained:balanced,trained:zipf:1")
    assert [row["expert_bias"] for row in rows] == ["none", "zeros", "trained:balanced", "trained:zipf:1"]
    assert len({row["residual_loss"] for row in rows}) == 4


def test_train_takes_it():
    words = ("train", "--model", "deepseek-v2-lite", "--gpus", 8, "--expert-parallel", 8, "--router", "bias-balanced",
             "--routing", "gaussian:1")
    own, other, zeros = (as_json(*words, *more)["imbalance"] for more in (
        (), ("--expert-bias", "trained:balanced"), ("--expert-bias", "zeros")))
    assert own < other and other == pytest.approx(zeros, rel=0.1)


def test_what_cannot_be(tmp_path):
    refused("route", "--router", "top2", *SIZES[:2], "--gpus", 4, "--expert-bias", "trained:balanced",
            parts=["--expert-bias trained:balanced: router top2 trains no biases"])
    refused(*WORDS, "--expert-bias", "trained:nonsense", parts=["'nonsense' is no source of scores"])
    refused(*WORDS, "--expert-bias", "trained:", parts=["--expert-bias trained:"])
    for typed, meant in (("Trained:zipf:1", "trained:zipf:1"), ("trainde:balanced", "trained:balanced"),
                         ("trained", "trained:SCENARIO"), ("zero", "zeros")):
        refused(*WORDS, "--expert-bias", typed, parts=[f"--expert-bias '{typed}': no such file", f"did you mean '{meant}'?"])
    path = tmp_path / "eight.csv"
    path.write_text("layer,expert,count\n" + "".join(f"0,{expert},5\n" for expert in range(8)))
    refused(*WORDS, "--expert-bias", f"trained:counts:{path}", parts=["eight.csv", "8 experts"])
    np.save(tmp_path / "x.npy", np.zeros((4, 64, 16), np.float32))
    refused("route", "--logits", tmp_path / "x.npy", "--router", "bias-balanced", "--top-k", 2,
            "--expert-bias", "trained:balanced", parts=["--expert-bias trained:balanced: goes with generated or recorded routing"])
