"""Routers as libraries run them, asked for by options: scores, biases, padding, losses."""
import json

import numpy
import pytest

from command_line import as_json, as_rows, moesim, succeed

SMALL = ("--model", "switch-base-8", "--gpus", "8", "--expert-parallel", "8", "--experts", "16", "--replicas", "2",
         "--tokens-per-gpu", "2048")


def route(*words):
    return json.loads(succeed("route", *SMALL, "--format", "json", *words))


def routes_of(folder, logits, *words):
    numpy.save(folder / "logits.npy", numpy.asarray(logits, dtype=numpy.float32))
    succeed("route", "--logits", folder / "logits.npy", "--out", folder / "routes.npy", *words)
    return numpy.load(folder / "routes.npy")


def test_a_sampled_second_expert_drops_less_under_skew():
    words = ("--router", "top2", "--router-dialect", "deepspeed", "--capacity-factor", "1", "--routing", "gaussian:0.5")
    sampled, best = route(*words), route(*words, "--second-expert", "best")
    assert (sampled["second_expert"], best["second_expert"]) == ("sampled", "best")
    assert sampled["failed"] < 0.85 * best["failed"]
    # Tokens whose second expert is not their second best lose mass though nothing of it is dropped.
    ample = route(*words, "--capacity-factor", "16")
    assert ample["failed"] == 0 and ample["residual_loss"] > 0.05


def test_padding_to_the_busiest_drops_nothing():
    words = ("--router", "top1", "--routing", "zipf:0.8")
    busiest = route(*words, "--padding", "busiest", "--capacity-alignment", "16")
    assert busiest["failed"] == 0 and busiest["padding"] == "busiest"
    assert busiest["capacity"] % 16 == 0
    assert 0.3 < busiest["padded"] < 0.95
    assert "capacity_factor" not in busiest or busiest["capacity_factor"] is None
    counted = route(*words, "--padding", "busiest", "--capacity-alignment", "16", "--fidelity", "counts")
    assert counted["padded"] == pytest.approx(busiest["padded"], abs=0.03)
    assert counted["capacity"] == pytest.approx(busiest["capacity"], rel=0.1)


def test_the_capacity_of_padding_to_the_busiest_is_the_largest_of_all_replicas():
    words = ("--router", "top1", "--routing", "zipf:0.8", "--padding", "busiest", "--replicas")
    largest = [route(*words, replicas)["capacity"] for replicas in range(1, 7)]
    assert largest == sorted(largest) and largest[-1] > largest[0]


def test_bias_balanced_scores_by_sigmoid(tmp_path):
    """It is the rule of the router, and so no other one to be asked for: a row read back is the same run."""
    words = ("--router", "bias-balanced", "--top-k", "2")
    row = route(*words)
    assert row["score_function"] == "sigmoid"
    assert route("--router", "dropless", "--top-k", "2")["score_function"] == "softmax"
    succeed("route", *SMALL, *words, "--out", tmp_path / "rows.csv", "--format", "csv")
    again = as_json("route", "--from", f"{tmp_path / 'rows.csv'}:1")
    assert again["score_function"] == "sigmoid" and again["residual_loss"] == row["residual_loss"]
    asked = route(*words, "--score-function", "sigmoid")
    assert asked["residual_loss"] == row["residual_loss"]


@pytest.mark.parametrize("words, said", [
    (("--router", "top2+ir", "--padding", "busiest"), "has nothing to rectify"),
    (("--router", "expert-choice", "--padding", "busiest"), "blocks of a size of its own"),
    (("--router", "topk", "--top-k", "3", "--second-expert", "sampled"), "it is of top2"),
    (("--router", "base", "--score-function", "sigmoid"), "has a rule of its own"),
    (("--router", "bias-balanced+groups:4:2", "--top-k", "2", "--group-score", "topk-logits"), "use topk"),
    (("--router", "top1", "--expert-bias", "/nonexistent.npy"), "/nonexistent.npy"),
    (("--router", "top1+ir", "--score-function", "sigmoid", "--fidelity", "counts"), "that are rectified is not worked out"),
])
def test_what_cannot_be_is_refused_with_a_reason(words, said):
    result = moesim("route", *SMALL, *words)
    assert result.returncode == 2 and said in result.stderr


def test_a_bias_of_the_wrong_size_names_its_file(tmp_path):
    numpy.save(tmp_path / "bias.npy", numpy.zeros((3, 16), dtype=numpy.float32))
    result = moesim("route", *SMALL, "--router", "top1", "--expert-bias", tmp_path / "bias.npy")
    assert result.returncode == 2 and "bias.npy has 3 layers" in result.stderr
    numpy.save(tmp_path / "bias.npy", numpy.zeros(8, dtype=numpy.float32))
    result = moesim("route", *SMALL, "--router", "top1", "--expert-bias", tmp_path / "bias.npy")
    assert result.returncode == 2 and "bias.npy has 8 experts, the router 16" in result.stderr


def test_a_bias_moves_the_load(tmp_path):
    numpy.save(tmp_path / "bias.npy", numpy.where(numpy.arange(16) == 5, 0.5, 0).astype(numpy.float32))
    biased = route("--router", "dropless", "--top-k", "1", "--score-function", "sigmoid", "--expert-bias",
                   tmp_path / "bias.npy")
    shares = biased["detail"]["expert_shares"] if "expert_shares" in biased["detail"] else None
    plain = route("--router", "dropless", "--top-k", "1")
    busiest = [result["detail"]["imbalance"]["expert_demand_busiest_over_mean"]["mean"] for result in (plain, biased)]
    assert busiest[1] > 2 * busiest[0]
    assert shares is None or numpy.argmax(shares[0]) == 5
    assert biased["residual_loss"] > 0.01 and plain["residual_loss"] == 0


def test_scaled_weights_are_written(tmp_path):
    logits = numpy.random.default_rng(2).normal(size=(1, 40, 8))
    plain = routes_of(tmp_path, logits, "--router", "dropless", "--top-k", "2")
    scaled = routes_of(tmp_path, logits, "--router", "dropless", "--top-k", "2", "--weight-scale", "2.5")
    assert scaled["weight"] == pytest.approx(2.5 * plain["weight"], rel=1e-6)


def test_groups_default_to_the_rule_of_their_model(tmp_path):
    logits = [[[2, -3, 1.8, 1.7]]]
    words = ("--router", "group-limited:2:1", "--top-k", "1")
    assert routes_of(tmp_path, logits, *words)["expert"].tolist() == [0]
    assert routes_of(tmp_path, logits, *words, "--group-score", "top2")["expert"].tolist() == [2]
    two = ("--router", "group-limited:2:1", "--top-k", "2")
    wide = [[[3, -3, 1, 0.5]]]
    assert sorted(routes_of(tmp_path, wide, *two)["expert"]) == [0, 1]
    assert sorted(routes_of(tmp_path, wide, *two, "--router-dialect", "megatron")["expert"]) == [2, 3]


def softmax(logits):
    exponents = numpy.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponents / exponents.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_losses_of_given_logits(tmp_path, scores):
    ranks, tokens, experts, k = 2, 96, 8, 2
    logits = numpy.random.default_rng(3).normal(size=(ranks, tokens, experts)).astype(numpy.float32)
    numpy.save(tmp_path / "logits.npy", logits)
    result = moesim("route", "--logits", tmp_path / "logits.npy", "--out", tmp_path / "routes.npy", "--router", "dropless",
                    "--top-k", k, "--losses", "--score-function", scores)
    g = softmax(logits.astype(float))
    if scores == "sigmoid":
        g = 1 / (1 + numpy.exp(-logits.astype(float)))
        g /= g.sum(axis=-1, keepdims=True)
    order = numpy.argsort(-logits, axis=-1)[..., :k]
    chosen = numpy.zeros(logits.shape)
    numpy.put_along_axis(chosen, order, 1, axis=-1)
    first = numpy.zeros(logits.shape)
    numpy.put_along_axis(first, order[..., :1], 1, axis=-1)
    whole = experts * (first.mean(axis=(0, 1)) * g.mean(axis=(0, 1))).sum()
    every = experts / k * (chosen.mean(axis=(0, 1)) * g.mean(axis=(0, 1))).sum()
    of_ranks = experts / k * (chosen.mean(axis=1) * g.mean(axis=1)).sum(axis=-1).mean()
    z = (numpy.log(numpy.exp(logits.astype(float)).sum(axis=-1)) ** 2).mean()
    words = result.stderr.split()
    figures = [float(word.rstrip(",;")) for word in words if word.rstrip(",;").replace(".", "", 1).isdigit()]
    for expected in (whole, every, of_ranks, z):
        assert any(abs(figure - expected) < 1e-5 * expected for figure in figures), (expected, figures)


def test_simulate_prints_the_losses_of_its_routing():
    words = (*SMALL, "--router", "top2", "--mode", "prefill", "--losses", "--format", "json")
    losses = json.loads(succeed("simulate", *words))["detail"]["auxiliary_losses"]
    assert losses == as_json("route", *SMALL, "--router", "top2", "--losses")["detail"]["auxiliary_losses"]
    assert 1 < losses["balance_all_choices"] < losses["balance_sequence"] < 1.3
    text = succeed("simulate", *words[:-2])
    assert "balance loss" in text and "z-loss" in text
    assert moesim("simulate", *words[:-2], "--format", "csv").returncode == 2


def test_the_cost_of_long_routing_is_said_before_it_starts():
    # Refused before any work: more memory than machines have.
    result = moesim("route", "--model", "switch-base-8", "--gpus", "1048576", "--experts", "16384", "--expert-parallel",
                    "16384", "--router", "top1")
    assert result.returncode == 2 and "GiB, and this machine has" in result.stderr


def test_routers_whose_second_expert_has_another_rule_are_told_apart():
    """DeepSpeed's top-2 samples it; with fill-in, a token chooses three, and takes the best."""
    words = ("route", "--gpus", 8, "--experts", 8, "--tokens-per-gpu", 256, "--capacity-factor", 1, "--router", "top2,top2+fr,top2+ir",
             "--router-dialect", "deepspeed")
    said = ("note: --router-dialect deepspeed: the second expert is sampled by top2, top2+ir, and the best by top2+fr: their losses "
            "differ by that too; --second-expert best compares them by one rule")
    assert said in moesim(*words).stderr
    one_rule = as_rows(*words, "--second-expert", "best")
    assert "second expert" not in moesim(*words, "--second-expert", "best").stderr
    assert len({row["failed"] for row in one_rule}) == 1  # before rectification: the same tokens
    assert "second expert" not in moesim(*words[:-4], "--router", "top2,top2+ir", *words[-2:]).stderr


def test_weights_of_one_expert_tell_no_tokens_apart():
    """A token's only weight is 1 of 1: that order is the order of tokens."""
    words = ("--gpus", 8, "--tokens-per-gpu", 256, "--capacity-factor", 1, "--priority")
    note = ("note: --priority own-weight: a token of top1 has one expert, whose weight over their sum is 1: full experts keep tokens "
            "in order, as by position; own-score takes those that score it best\n")
    weight, position, score = (as_rows("route", "--router", "top1", *words, priority)[0]["lost_mass"]
                               for priority in ("own-weight", "position", "own-score"))
    assert weight == position != score
    step = ("--mode", "prefill", "--replicas", 2, "--sequence-length", 256)
    for command in (("route",), ("simulate", *step), ("sweep", *step)):
        assert moesim(*command, "--router", "top1,top2" if command[0] != "simulate" else "top1", *words, "own-weight").stderr.count(note) == 1
        assert "note: --priority" not in moesim(*command, "--router", "top2", *words, "own-weight").stderr
        assert "note: --priority" not in moesim(*command, "--router", "top1", *words, "own-score").stderr
    train = ("train", "--model", "mixtral-8x7b", "--gpus", 8, "--expert-parallel", 8, "--capacity-factor", 1, "--priority", "own-weight", "--router")
    assert moesim(*train, "top1").stderr.count(note) == 1 and "note: --priority" not in moesim(*train, "top2").stderr
    assert moesim(*train, "top1,top2").stderr.count(note) == 1
    small = ("--max-loss", "100%", "--micro-batch", 1, "--tensor-parallel", 1, "--pipeline-parallel", 1, "--zero", 1)
    assert moesim("recommend", *train[1:], "top1", *small).stderr.count(note) == 1
