"""Routers that choose by groups or a bias and have a capacity: the choice first, then what the capacity drops,
against both rules in NumPy."""

import numpy as np
import pytest

from command_line import as_json, needs_binary, succeed

pytestmark = needs_binary

RANKS, TOKENS, EXPERTS, K = 2, 48, 16, 4
BIAS = np.linspace(-0.2, 0.2, EXPERTS)


@pytest.fixture(name="files")
def fixture_files(tmp_path):
    logits = np.random.default_rng(5).standard_normal((RANKS, TOKENS, EXPERTS)).astype(np.float32)
    np.save(tmp_path / "logits.npy", logits)
    np.save(tmp_path / "bias.npy", BIAS.astype(np.float32))
    return logits, tmp_path


def in_groups(key, worth, groups=4, kept=2):
    """`key`, -inf but in the `kept` groups that are worth most; of equal ones the first."""
    order = np.argsort(-worth, axis=-1, kind="stable")
    place = np.argsort(order, axis=-1, kind="stable")
    return np.where(np.repeat(place < kept, EXPERTS // groups, axis=-1), key, -np.inf)


def best_of_groups(key, count, groups=4):
    return np.sort(key.reshape(*key.shape[:-1], groups, -1), axis=-1)[..., -count:].sum(-1)


def softmax(logits):
    g = np.exp(logits.astype(float) - logits.max(-1, keepdims=True))
    return g / g.sum(-1, keepdims=True)


def chosen_by(router, logits):
    """The scores, and each token's experts, best first."""
    if router.startswith("group-limited"):
        score = softmax(logits)
        key = in_groups(logits.astype(float), best_of_groups(score, 1))
    else:
        score = 1 / (1 + np.exp(-logits.astype(float)))
        key = score + BIAS
        if "groups" in router:
            key = in_groups(key, best_of_groups(key, 2))
    return score, np.argsort(-key, axis=-1, kind="stable")[..., :K]


def kept_by(priority, score, chosen, slots):
    """(rank, token, expert) of the routes kept: an expert has `slots` of each rank, and takes routes in order."""
    kept = set()
    for rank in range(RANKS):
        routes = [(token, choice) for token in range(TOKENS) for choice in range(K)]
        of = lambda token, choice: score[rank, token, chosen[rank, token, choice]]  # noqa: E731
        order = {
            "token-max": lambda route: (route[1], -score[rank, route[0]].max(), route[0]),
            "position": lambda route: (route[1], route[0]),
            "token-order": lambda route: route,
            "own-score": lambda route: (-of(*route), route[0]),
            "own-weight": lambda route: (-of(*route) / sum(of(route[0], each) for each in range(K)), route[0]),
        }[priority]
        left = np.full(EXPERTS, slots)
        for token, choice in sorted(routes, key=order):
            expert = chosen[rank, token, choice]
            if left[expert] > 0:
                left[expert] -= 1
                kept.add((rank, token, int(expert)))
    return kept


@pytest.mark.parametrize("priority", ["token-max", "own-score", "own-weight", "position", "token-order"])
@pytest.mark.parametrize("router", ["bias-balanced+groups:4:2", "bias-balanced", "group-limited:4:2"])
def test_a_capacity_drops_what_was_chosen(files, router, priority):
    logits, folder = files
    bias = ("--expert-bias", folder / "bias.npy") if router.startswith("bias") else ()
    words = ("route", "--logits", folder / "logits.npy", "--router", router, "--top-k", K, *bias, "--priority", priority,
             "--capacity-factor", 1, "--capacity-convention", "library")
    slots = 12  # ceil(4 * 48 / 16)
    score, chosen = chosen_by(router, logits)
    kept = kept_by(priority, score, chosen, slots)
    row = as_json(*words)
    for weights in ("kept", "before-drop"):
        succeed(*words, "--weights", weights, "--out", folder / "routes.npy")
        routes = np.load(folder / "routes.npy")
        routes = routes[routes["slot"] >= 0]
        assert set(zip(routes["rank"].tolist(), routes["token"].tolist(), routes["expert"].tolist())) == kept
        whole = {}  # the sum that the weights of a token are over
        for rank, token in np.ndindex(RANKS, TOKENS):
            whole[rank, token] = sum(score[rank, token, expert] for expert in chosen[rank, token]
                                     if weights == "before-drop" or (rank, token, expert) in kept)
        expected = [score[rank, token, expert] / whole[rank, token] for rank, token, expert
                    in zip(routes["rank"], routes["token"], routes["expert"])]
        np.testing.assert_allclose(routes["weight"], expected, atol=1e-6)
    mass = np.zeros((RANKS, TOKENS))
    count = np.zeros((RANKS, TOKENS))
    for rank, token, expert in kept:
        mass[rank, token] += score[rank, token, expert]
        count[rank, token] += 1
    of_chosen = np.take_along_axis(score, chosen, -1).sum(-1)
    best = np.sort(score, axis=-1)[..., -K:].sum(-1)
    assert 0.02 < row["failed"] == pytest.approx(1 - len(kept) / (RANKS * TOKENS * K), abs=1e-9)
    assert row["partial"] == pytest.approx((count < K).mean(), abs=1e-9)
    assert row["unrouted"] == pytest.approx((count == 0).mean(), abs=1e-9)
    assert row["lost_mass"] == pytest.approx(1 - mass.sum() / of_chosen.sum(), abs=1e-6)
    assert row["residual_loss"] == pytest.approx(np.maximum(0, 1 - mass / best).mean(), abs=1e-6)
    assert row["padded"] == pytest.approx(1 - len(kept) / (RANKS * EXPERTS * slots), abs=1e-9)


@pytest.mark.parametrize("router", ["bias-balanced:0.001:300+groups:4:2", "group-limited:4:2"])
@pytest.mark.parametrize("fidelity", ["tokens", "counts"])
def test_more_capacity_loses_less_down_to_the_loss_of_none(router, fidelity):
    words = ("route", "--router", router, "--experts", 32, "--top-k", 4, "--gpus", 8, "--tokens-per-gpu", 1024, "--routing",
             "gaussian:0.2", "--replicas", 2, "--capacity-convention", "library", "--fidelity", fidelity)
    rows = [as_json(*words, "--capacity-factor", factor) for factor in (0.5, 0.8, 1, 1.1, 1.25, 8)]
    for name in ("failed", "partial", "lost_mass", "unrouted", "residual_loss"):
        figures = [round(row[name], 9) for row in rows]
        assert figures == sorted(figures, reverse=True), name
    none = as_json(*words[:-4], "--fidelity", fidelity)
    assert rows[0]["failed"] == pytest.approx(0.5, abs=0.02) and rows[-1]["failed"] == none["failed"] == 0
    assert rows[-1]["residual_loss"] == pytest.approx(none["residual_loss"], rel=1e-6)


@pytest.mark.parametrize("router, options", [
    ("bias-balanced+groups:8:4", ("--priority", "own-weight")),
    ("bias-balanced", ("--priority", "token-order")),
    ("bias-balanced+groups:8:4", ("--expert-bias", "zeros")),
    ("group-limited:8:4", ("--priority", "own-score")),
    ("topk", ("--score-function", "sigmoid", "--priority", "own-weight")),
])
@pytest.mark.parametrize("factor", ["0.8", "1", "1.25"])
def test_counts_of_a_capacity_lose_what_tokens_lose(router, options, factor):
    words = ("route", "--router", router, "--experts", 64, "--top-k", 8, "--gpus", 16, "--expert-parallel", 16,
             "--tokens-per-gpu", 1024, "--routing", "gaussian:0.2", "--replicas", 6, "--capacity-factor", factor,
             "--capacity-convention", "library", *options)
    tokens, counts = (as_json(*words, "--fidelity", fidelity) for fidelity in ("tokens", "counts"))
    # The bars of tests/support/count_distance.cpp, 0.2 points, and the noise of six draws.
    for name in ("failed", "lost_mass", "residual_loss", "padded", "unrouted"):
        assert counts[name] == pytest.approx(tokens[name], abs=0.004), name
    assert counts["partial"] == pytest.approx(tokens["partial"], abs=0.012)


def test_counts_leave_group_scopes_to_tokens():
    words = ("route", "--router", "bias-balanced", "--experts", 64, "--top-k", 8, "--gpus", 8, "--tokens-per-gpu", 512,
             "--capacity-factor", 8, "--capacity-scope", "group")
    assert as_json(*words)["fidelity"] == "tokens"
