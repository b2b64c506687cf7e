"""Each router dialect against the rule of its library, written here again as dense masks over tokens
and experts (the way the libraries compute), on logits given as .npy and routes read back as .npy:
the path by which anyone can compare with a library's own gate."""
import math

import numpy
import pytest

from command_line import succeed

TOKENS, RANKS = 203, 2


def softmax(logits):
    exponents = numpy.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponents / exponents.sum(axis=-1, keepdims=True)


def choices_of(logits, top_k):
    """[token, k]: the best first; of equal logits the lower expert."""
    return numpy.argsort(-logits, axis=1, kind="stable")[:, :top_k]


def one_hot(choice, experts):
    return choice[:, None] == numpy.arange(experts)


def keep_by_position(choices, experts, capacity):
    """Choice after choice, tokens by index; later choices find what the earlier ones asked for."""
    before = numpy.zeros(experts, dtype=int)
    kept = numpy.zeros((len(choices), experts), dtype=bool)
    for choice in choices.T:
        mask = one_hot(choice, experts)
        location = numpy.cumsum(mask, axis=0) - 1 + before
        kept |= mask & (location < capacity)
        before += mask.sum(axis=0)
    return kept


def keep_best(scores, choices, experts, capacity):
    """Each expert keeps its best `capacity` routes of all choices."""
    chosen = numpy.zeros((len(choices), experts), dtype=bool)
    numpy.put_along_axis(chosen, choices, True, axis=1)
    kept = numpy.zeros_like(chosen)
    for expert in range(experts):
        column = numpy.where(chosen[:, expert], scores[:, expert], -1)
        best = numpy.argsort(-column, kind="stable")[:capacity]
        kept[best, expert] = True
    return kept & chosen


def library(dialect, logits, top_k, factor):
    """(kept [token, expert], weights [token, expert]) of one rank."""
    tokens, experts = logits.shape
    g = softmax(logits.astype(numpy.float64))
    choices = choices_of(logits, top_k)
    chosen = numpy.zeros_like(g, dtype=bool)
    numpy.put_along_axis(chosen, choices, True, axis=1)
    shares = g * chosen / (g * chosen).sum(axis=1, keepdims=True)
    if dialect == "deepspeed":
        capacity = math.ceil(numpy.float32(tokens / experts) * numpy.float32(factor * top_k))
        capacity = max(capacity, 4)
        kept = keep_by_position(choices, experts, capacity) if top_k == 2 else \
            keep_best(g, choices, experts, capacity)
        weights = g * kept
        total = weights.sum(axis=1, keepdims=True)
        return kept, numpy.divide(weights, total, out=numpy.zeros_like(g), where=total > 0)
    if dialect == "megatron":
        capacity = math.ceil(tokens * top_k / experts * factor)
        scores = g if top_k == 1 else shares
        kept = keep_best(scores, choices, experts, min(capacity, tokens))
        return kept, scores * kept
    if dialect == "tutel":
        capacity = top_k * int(factor * ((tokens + experts - 1) // experts))
        kept = keep_by_position(choices, experts, capacity)
        return kept, (g if top_k == 1 else shares) * kept
    if dialect == "megablocks":
        capacity = int(factor * (top_k * tokens / experts))
        kept = numpy.zeros_like(chosen)
        taken = numpy.zeros(experts, dtype=int)
        for token in range(tokens):
            for expert in choices[token]:
                kept[token, expert] = taken[expert] < capacity
                taken[expert] += 1
        return kept, g * kept
    assert dialect == "switch"
    capacity = max(min(tokens, int(tokens * factor / experts)), 4)
    kept = keep_by_position(choices, experts, capacity)
    return kept, (g if top_k == 1 else shares) * kept


def route(folder, dialect, logits, top_k, factor):
    """The same by moesim: [rank, token, expert]."""
    numpy.save(folder / "logits.npy", logits)
    succeed("route", "--logits", str(folder / "logits.npy"), "--out", str(folder / "routes.npy"),
            "--router", f"top{top_k}", "--router-dialect", dialect, "--second-expert", "best",
            "--capacity-factor", str(factor))
    routes = numpy.load(folder / "routes.npy")
    kept = numpy.zeros(logits.shape, dtype=bool)
    weights = numpy.zeros(logits.shape)
    on = routes[routes["slot"] >= 0]
    kept[on["rank"], on["token"], on["expert"]] = True
    weights[on["rank"], on["token"], on["expert"]] = on["weight"]
    # No two tokens of a rank share a slot of an expert.
    assert len(numpy.unique(on[["rank", "expert", "slot"]])) == len(on)
    return kept, weights


@pytest.mark.parametrize("factor", [0.4, 1.0, 1.1, 2.2])
@pytest.mark.parametrize("dialect, top_k", [
    ("deepspeed", 2), ("deepspeed", 4), ("megatron", 1), ("megatron", 2), ("megatron", 6),
    ("tutel", 1), ("tutel", 2), ("tutel", 3), ("switch", 1), ("switch", 2),
    ("megablocks", 1), ("megablocks", 2), ("megablocks", 3)])
def test_kept_routes_and_weights_are_the_library_s(tmp_path, dialect, top_k, factor):
    random = numpy.random.default_rng(7)
    # Skewed, so that several choices overflow. Scores of one expert never tie: what the libraries
    # then do is not defined.
    logits = (random.normal(size=(RANKS, TOKENS, 8)) + 0.7 * random.normal(size=8)).astype(
        numpy.float32)
    kept, weights = route(tmp_path, dialect, logits, top_k, factor)
    dropped = 0
    for rank in range(RANKS):
        expected, expected_weights = library(dialect, logits[rank], top_k, factor)
        assert (kept[rank] == expected).all()
        assert weights[rank] == pytest.approx(expected_weights, abs=2e-6)
        dropped += TOKENS * top_k - expected.sum()
    assert dropped > 0 or factor > 2


@pytest.mark.parametrize("dialect", ["tutel", "switch"])
def test_tied_experts_go_to_the_lower_index(tmp_path, dialect):
    logits = numpy.zeros((1, 32, 4), dtype=numpy.float32)
    logits[0, 16:, 3] = 1  # half the tokens prefer expert 3, and have 0 second
    kept, _ = route(tmp_path, dialect, logits, 2, 1)
    expected, _ = library(dialect, logits[0], 2, 1)
    assert (kept[0] == expected).all()
    # Tutel: 2 * 8 = 16 slots: expert 0 is full with the first choices of tokens 0 to 15.
    assert kept[0, :, 0].sum() == (16 if dialect == "tutel" else 8)
    assert not kept[0, 16:, 0].any()


def test_deepspeed_keeps_random_tokens_of_one_choice(tmp_path):
    random = numpy.random.default_rng(5)
    logits = (random.normal(size=(1, TOKENS, 8)) + random.normal(size=8)).astype(numpy.float32)
    kept, weights = route(tmp_path, "deepspeed", logits, 1, 1)
    capacity = math.ceil(TOKENS / 8)
    asked = one_hot(choices_of(logits[0], 1)[:, 0], 8)
    assert (kept[0] <= asked).all()
    assert (kept[0].sum(axis=0) == numpy.minimum(asked.sum(axis=0), capacity)).all()
    assert weights[0] == pytest.approx(softmax(logits[0].astype(numpy.float64)) * kept[0], abs=2e-6)
    # Not the first ones: of an overflowing expert some early token lost to a later one.
    full = int(asked.sum(axis=0).argmax())
    assert (numpy.flatnonzero(kept[0, :, full]) !=
            numpy.flatnonzero(asked[:, full])[:capacity]).any()


def test_the_paper_s_dialect_is_the_default(tmp_path):
    logits = numpy.random.default_rng(1).normal(size=(1, 64, 4)).astype(numpy.float32)
    typed = route(tmp_path, "paper", logits, 2, 1.5)
    numpy.save(tmp_path / "logits.npy", logits)
    succeed("route", "--logits", str(tmp_path / "logits.npy"), "--out",
            str(tmp_path / "plain.npy"), "--router", "top2", "--capacity-factor", "1.5")
    plain = numpy.load(tmp_path / "plain.npy")
    assert typed[0].sum() == (plain["slot"] >= 0).sum()
    assert (numpy.load(tmp_path / "routes.npy") == plain).all()
