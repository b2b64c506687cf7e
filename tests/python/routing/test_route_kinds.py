"""Routes of `moesim route --logits` under the routers that are not plain top-k, against their rules
in NumPy and, for base, against SciPy's assignment solver."""

import numpy as np
import pytest

from command_line import moesim, needs_binary, succeed

pytestmark = needs_binary

SHAPE = (2, 48, 8)  # ranks, tokens, experts


@pytest.fixture(name="logits")
def fixture_logits():
    return np.random.default_rng(3).standard_normal(SHAPE).astype(np.float32)


@pytest.fixture(name="run")
def fixture_run(tmp_path, logits):
    def run(router, *options):
        source, target = tmp_path / "logits.npy", tmp_path / "routes.npy"
        np.save(source, logits)
        succeed("route", "--router", router, "--logits", str(source), "--out", str(target), *options)
        return np.load(target)
    return run


def softmax(logits):
    g = np.exp(logits.astype(float) - logits.max(-1, keepdims=True))
    return g / g.sum(-1, keepdims=True)


def kept_pairs(routes):
    kept = routes[routes["slot"] >= 0]
    return set(zip(kept["rank"].tolist(), kept["token"].tolist(), kept["expert"].tolist()))


def best(scores, allowed, k):
    """The k best allowed experts of each token, [..., k]."""
    return np.argsort(-np.where(allowed, scores, -np.inf), axis=-1, kind="stable")[..., :k]


def pairs_of(chosen):
    return {(rank, token, int(expert)) for rank, token in np.ndindex(chosen.shape[:2])
            for expert in chosen[rank, token]}


def test_dropless_keeps_the_best_of_every_token(run, logits):
    routes = run("dropless", "--top-k", "3")
    assert len(routes) == np.prod(SHAPE[:2]) * 3
    assert kept_pairs(routes) == pairs_of(best(logits, np.ones(SHAPE, bool), 3))


def test_expert_choice_takes_the_best_tokens_of_every_expert(run, logits):
    routes = run("expert-choice", "--capacity-factor", "1.5", "--top-k", "2")
    g = softmax(logits)
    slots = 9  # ceil(1.5 * 48 / 8)
    taken = np.argsort(-g, axis=1, kind="stable")[:, :slots]
    assert kept_pairs(routes) == {(rank, int(taken[rank, at, expert]), expert)
                                  for rank, at, expert in np.ndindex(taken.shape)}
    np.testing.assert_allclose(
        routes["weight"], g[routes["rank"], routes["token"], routes["expert"]], atol=1e-6)


def test_base_reaches_the_largest_sum(run, logits):
    optimize = pytest.importorskip("scipy.optimize", reason="SciPy solves the assignment")
    routes = run("base")
    for rank, rows in enumerate(logits.astype(float)):
        mine = routes[routes["rank"] == rank]
        assert (np.bincount(mine["expert"], minlength=8) == 6).all()
        columns = np.repeat(rows, 6, axis=1)  # each expert has 48 / 8 places
        solution = optimize.linear_sum_assignment(columns, maximize=True)
        assert rows[mine["token"], mine["expert"]].sum() == pytest.approx(
            columns[solution].sum(), abs=1e-9)
    logit = logits[routes["rank"], routes["token"], routes["expert"]]
    np.testing.assert_allclose(routes["weight"], 1 / (1 + np.exp(-logit)), atol=1e-6)


def test_base_is_greedy_where_nothing_is_trained(run, logits):
    routes = run("base", "--mode", "prefill")
    assert (routes["expert"] == logits.argmax(-1).reshape(-1)).all()


def test_group_limited_keeps_the_groups_of_the_best_pairs(run, logits):
    routes = run("group-limited:4:2", "--top-k", "3", "--group-score", "top2")
    g = softmax(logits)
    pairs = g.reshape(*SHAPE[:2], 4, 2).sum(-1)  # groups of two: their two best are all
    groups = np.argsort(-pairs, axis=-1, kind="stable")[..., :2]
    allowed = np.zeros(SHAPE, bool)
    for rank, token in np.ndindex(SHAPE[:2]):
        for group in groups[rank, token]:
            allowed[rank, token, 2 * group:2 * group + 2] = True
    assert kept_pairs(routes) == pairs_of(best(logits, allowed, 3))


def test_bias_balanced_follows_the_update(run, logits):
    """One step on at least 512 tokens: the 96 here, tile by tile from the first, over again."""
    routes = run("bias-balanced:0.05:1", "--top-k", "2")
    score = 1 / (1 + np.exp(-logits.astype(float)))
    tokens = score.reshape(-1, 8)
    trained = tokens[np.arange(512) % len(tokens)]
    load = np.bincount(best(trained, np.ones(trained.shape, bool), 2).reshape(-1), minlength=8)
    bias = 0.05 * np.sign(512 * 2 / 8 - load)
    chosen = best(score + bias, np.ones(SHAPE, bool), 2)
    assert kept_pairs(routes) == pairs_of(chosen)
    weights = np.take_along_axis(score, chosen, -1)
    np.testing.assert_allclose(routes["weight"],
                               (weights / weights.sum(-1, keepdims=True)).reshape(-1), atol=1e-6)


def test_bias_balanced_groups_train_and_choose_by_biased_pairs(run, logits):
    """The update above, under which every choice is limited to two of four groups of two."""
    routes = run("bias-balanced:0.05:1+groups:4:2", "--top-k", "3")
    score = 1 / (1 + np.exp(-logits.astype(float)))

    def choose(key):
        pairs = key.reshape(*key.shape[:-1], 4, 2).sum(-1)
        order = np.argsort(-pairs, axis=-1, kind="stable")
        place = np.argsort(order, axis=-1, kind="stable")
        return best(key, np.repeat(place < 2, 2, axis=-1), 3)

    trained = score.reshape(-1, 8)[np.arange(512) % 96]
    load = np.bincount(choose(trained).reshape(-1), minlength=8)
    chosen = choose(score + 0.05 * np.sign(512 * 3 / 8 - load))
    assert kept_pairs(routes) == pairs_of(chosen)
    weights = np.take_along_axis(score, chosen, -1)
    np.testing.assert_allclose(routes["weight"],
                               (weights / weights.sum(-1, keepdims=True)).reshape(-1), atol=1e-6)


def test_a_skipped_exchange_keeps_tokens_on_their_gpu(run):
    seeds = [run("gating-dropout:0.5", "--top-k", "2", "--seed", str(seed)) for seed in range(12)]
    away = [bool((routes["expert"] // 4 != routes["rank"]).any()) for routes in seeds]
    assert any(away) and not all(away)  # one coin a run: 2 ** -11 to be all equal
    for routes, left in zip(seeds, away):
        if not left:
            assert routes["slot"].max() < 24  # C = CF 2 times 48 tokens over four experts
            assert (routes["slot"] >= 0).mean() > 0.8


def test_scomoe_slices_tokens_by_position(run, logits):
    routes = run("scomoe:0.25:0.25", "--top-k", "1", "--capacity-factor", "8")
    own = np.arange(8) // 4 == np.arange(2)[:, None, None]
    allowed = np.broadcast_to(own, SHAPE).copy()
    allowed[:, 12:] = True  # both GPUs share one domain: the node's pool may go anywhere too
    assert kept_pairs(routes) == pairs_of(best(logits, allowed, 1))


@pytest.mark.parametrize("router", ["random", "hash:0.5", "random:balanced"])
def test_drawn_routers_look_at_no_logit(run, router):
    routes = run(router, "--capacity-factor", "8")
    assert (routes["slot"] >= 0).all() and (routes["weight"] == 1).all()
    counts = np.bincount(routes["expert"], minlength=8)
    assert counts.sum() == 96
    if router == "random:balanced":
        assert (counts == 12).all()


def test_soft_has_no_routes(tmp_path, logits):
    source = tmp_path / "logits.npy"
    np.save(source, logits)
    result = moesim("route", "--router", "soft", "--logits", source, "--out", tmp_path / "out.npy")
    assert result.returncode == 2
    assert "mix of all tokens" in result.stderr
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize("router, hint", [
    ("expertchoice", "expert-choice"), ("group-limited:3:1", "do not divide into 3 groups"),
    ("gating-dropout", "gating-dropout:P"), ("dropless+ir", "+ir"), ("scomoe:0.9:0.2", "exceed 1")])
def test_a_wrong_router_says_what_to_do(router, hint):
    result = moesim("route", "--router", router)
    assert result.returncode == 2
    assert hint in result.stderr
