"""Routes of `moesim route --logits` against the rules of the router written out in double
precision: an implementation that shares nothing with the one in sim/routing."""

import csv
import io
import itertools
import json
import os
import re
import threading
from fractions import Fraction

import numpy as np
import pytest

from command_line import as_json, expect_error, moesim, needs_binary, succeed

pytestmark = needs_binary


class Rules:
    """logits [P, S, E]; chosen, kept and slot [P, S, k'], by full sorts."""

    def __init__(self, logits, router, factor, priority, scope):
        self.logits = logits
        ranks, tokens, experts = logits.shape
        self.top_k = int(router[3])
        self.choices = self.top_k + ("+fr" in router)
        self.rectified = "+ir" in router
        self.priority = priority
        self.g = np.exp(logits.astype(float) - logits.max(-1, keepdims=True))
        self.g /= self.g.sum(-1, keepdims=True)
        self.chosen = np.argsort(-logits, axis=-1, kind="stable")[..., :self.choices]
        self.slot = np.full(self.chosen.shape, -1)
        capacity = -(-Fraction(factor) * tokens // experts)
        groups = [[rank] for rank in range(ranks)] if scope == "source" else [list(range(ranks))]
        for group, expert in itertools.product(groups, range(experts)):
            self.assign(group, expert, int(capacity) * len(group))

    def key(self, rank, token, expert):
        if self.priority == "token-max":
            return self.g[rank, token].max()
        return 0 if self.priority == "position" else self.g[rank, token, expert]

    def assign(self, group, expert, room):
        def candidates(choices):
            return [(rank, token, choice) for choice in choices for rank in group
                    for token in np.flatnonzero(self.chosen[rank, :, choice] == expert)]

        kept = []

        def take(choices, key):
            found = sorted(candidates(choices), key=lambda one: (-key(*one), one[0], one[1]))
            kept.extend(found[:room - len(kept)])

        stages = ([range(self.top_k)] if self.priority == "own-score"
                  else [[choice] for choice in range(self.top_k)])
        for stage in stages:
            take(stage, lambda rank, token, _: self.key(rank, token, expert))
        if self.choices > self.top_k:
            take([self.top_k], lambda rank, token, _: self.g[rank, token, expert])
        kept.sort(key=lambda one: (one[2], one[0], one[1]))
        for place, one in enumerate(kept):
            self.slot[one] = place

    def routes(self):
        """(rank, token, choice, expert, slot, weight, kind) in that order."""
        ranks, tokens, experts = self.logits.shape
        for rank, token in itertools.product(range(ranks), range(tokens)):
            chosen, slot = self.chosen[rank, token], self.slot[rank, token]
            mass = self.g[rank, token, chosen] * (slot >= 0)
            missing = self.top_k - np.count_nonzero(slot >= 0)
            first = rank * experts // ranks
            near = first + int(np.argmax(self.logits[rank, token, first:first + experts // ranks]))
            near_mass = max(missing, 0) * self.g[rank, token, near] if self.rectified else 0
            whole = mass.sum() + near_mass
            for choice in range(self.choices):
                kind = "primary" if choice < self.top_k else "fill"
                weight = mass[choice] / whole if whole else 0
                yield rank, token, choice, chosen[choice], slot[choice], weight, kind
            if self.rectified and missing > 0:
                yield rank, token, self.choices, near, -2, near_mass / whole, "ir"


@pytest.mark.parametrize("router", ["top1", "top2", "top2+fr", "top1+ir", "top2+ir+fr"])
def test_routes_follow_the_rules(tmp_path, router):
    random = np.random.default_rng(7)
    source, target = tmp_path / "logits.npy", tmp_path / "routes.npy"
    for shape, factor, priority, scope in itertools.product(
            [(2, 40, 8), (4, 33, 16)], ["0.7", "2"], ["token-max", "position", "own-score"],
            ["source", "group"]):
        logits = random.standard_normal(shape).astype(np.float32)
        np.save(source, logits)
        succeed("route", "--router", router, "--capacity-factor", factor, "--priority", priority,
                "--capacity-scope", scope, "--logits", str(source), "--out", str(target))
        routes = np.load(target)
        assert routes.dtype.names == ("rank", "token", "choice", "expert", "slot", "weight", "kind")
        expected = list(Rules(logits, router, factor, priority, scope).routes())
        assert len(routes) == len(expected)
        for name, column in zip(routes.dtype.names, zip(*expected)):
            if name == "weight":
                np.testing.assert_allclose(routes[name], column, atol=1e-6)
            else:
                assert (routes[name] == np.array(column)).all(), name


def test_logits_come_through_a_pipe(tmp_path):
    """A pipe can be read once only: so the file is, too."""
    content = io.BytesIO()
    logits = np.random.default_rng(3).standard_normal((2, 16, 4)).astype(np.float32)
    np.save(content, logits)
    pipe, target = tmp_path / "pipe", tmp_path / "routes.npy"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(content.getvalue(),), daemon=True)
    writer.start()
    succeed("route", "--router", "top1", "--logits", str(pipe), "--out", str(target), timeout=60)
    writer.join()
    assert len(np.load(target)) == 2 * 16


def test_balance_losses_and_z_loss(tmp_path):
    logits = np.random.default_rng(3).normal(size=(2, 100, 8)).astype(np.float32) + np.float32(0.5)
    np.save(tmp_path / "logits.npy", logits)
    result = moesim("route", "--logits", tmp_path / "logits.npy", "--out", tmp_path / "routes.npy",
                    "--router", "top2", "--losses")
    assert result.returncode == 0, result.stderr
    flat = logits.reshape(-1, 8).astype(float)
    g = np.exp(flat) / np.exp(flat).sum(1, keepdims=True)
    chosen = np.argsort(-flat, axis=1, kind="stable")[:, :2]
    first, both = (np.bincount(part.ravel(), minlength=8) / part.size for part in (chosen[:, :1], chosen))
    of_ranks = [8 * (np.bincount(chosen[rank].ravel(), minlength=8) / 200 * g[rank].mean(0)).sum()
                for rank in (slice(100), slice(100, 200))]
    expected = [8 * (first * g.mean(0)).sum(), 8 * (both * g.mean(0)).sum(), np.mean(of_ranks),
                (np.log(np.exp(flat).sum(1)) ** 2).mean()]
    line = next(line for line in result.stderr.splitlines() if line.startswith("balance loss"))
    printed = [float(word.strip(";")) for word in re.findall(r"[0-9.e+-]+", line) if "." in word]
    assert printed == pytest.approx(expected, rel=2e-5)


def test_losses_in_a_row_are_those_of_all_replicas():
    words = ("route", "--gpus", 2, "--experts", 8, "--tokens-per-gpu", 512, "--router", "top2", "--losses", "--format",
             "csv")
    one, four = (list(csv.DictReader(io.StringIO(succeed(*words, "--replicas", replicas))))[0]
                 for replicas in (1, 4))
    assert one["z_loss"] != four["z_loss"]
    for name in ("balance_loss", "balance_loss_all_choices", "z_loss"):
        assert float(one[name]) == pytest.approx(float(four[name]), rel=0.02)


def test_losses_of_generated_routing():
    words = ("route", "--gpus", "8", "--tokens-per-gpu", "512", "--sequence-length", "512", "--losses", "--replicas", "1")
    detail = as_json(*words, "--router", "top2")["detail"]["auxiliary_losses"]
    assert len(detail["layers"]) == 16
    assert 1 < detail["balance_all_choices"] < detail["balance"] < 1.2
    assert detail["z"] == pytest.approx(np.mean([layer["z"] for layer in detail["layers"]]))
    assert "z-loss" in succeed(*words, "--router", "top2")
    result = moesim(*words, "--router", "random")
    assert result.returncode == 2 and "does not give each token k experts" in result.stderr


def detail_of_losses(*words):
    return as_json("route", *words, "--losses", "--replicas", 1)["detail"]["auxiliary_losses"]


def trace_of(logits, tmp_path, top_k=1):
    """logits: [rank, layer, token, expert]."""
    np.save(tmp_path / "logits.npy", logits.astype(np.float32))
    succeed("import", tmp_path / "logits.npy", "--axes", "rank,layer,token,expert", "--top-k", top_k,
            "--out", tmp_path / "trace")
    return "trace:" + str(tmp_path / "trace")


@pytest.mark.parametrize("router", ["random", "hash", "soft"])
def test_a_trace_without_effect_refuses_nothing(tmp_path, router):
    """The trace holds choices, which routers that read no scores do not need."""
    np.save(tmp_path / "choices.npy", np.tile(np.arange(2, dtype=np.int32), (1, 1, 64, 1)))
    succeed("import", tmp_path / "choices.npy", "--axes", "rank,layer,token,choice", "--experts", 8, "--top-k", 2,
            "--out", tmp_path / "trace")
    words = ("route", "--router", router, "--gpus", 2, "--expert-parallel", 2, "--experts", 8, "--tokens-per-gpu", 64,
             "--replicas", 1, "--format", "json")
    result = moesim(*words, "--routing", "trace:" + str(tmp_path / "trace"))
    assert result.returncode == 0 and "--routing has no effect" in result.stderr
    of_trace, alone = json.loads(result.stdout), json.loads(succeed(*words))
    # The trace has one layer, the model more: the first is the same.
    assert of_trace["detail"]["layer_failed"] == alone["detail"]["layer_failed"][:1]


def test_losses_are_the_mean_over_all_groups(tmp_path):
    """Each GPU a group: one nearly balanced, one with all tokens on expert 0."""
    logits = np.zeros((2, 1, 64, 8), np.float32)
    logits[0] = np.random.default_rng(0).normal(size=(1, 64, 8)) * .01
    logits[1, ..., 0] = 6
    losses = detail_of_losses("--routing", trace_of(logits, tmp_path), "--gpus", 2, "--expert-parallel", 1, "--router",
                              "top1")
    exact = logits[:, 0].astype(float)
    g = np.exp(exact) / np.exp(exact).sum(-1, keepdims=True)
    first = [np.bincount(group.argmax(-1), minlength=8) / 64 for group in exact]
    assert losses["balance"] == pytest.approx(np.mean([8 * f @ p.mean(0) for f, p in zip(first, g)]), rel=1e-6)
    assert losses["z"] == pytest.approx((np.log(np.exp(exact).sum(-1)) ** 2).mean(), rel=1e-6)


@pytest.mark.parametrize("words", [("top2", "--expert-bias"), ("top2", "--router-dtype", "bf16"),
                                   ("top2", "--second-expert", "sampled"), ("group-limited:2:1", "--top-k", 2),
                                   ("bias-balanced", "--top-k", 2, "--expert-bias"), ("sinkhorn", "--top-k", 2),
                                   ("gating-dropout:0.5", "--top-k", 2)])
def test_losses_of_a_trace_are_those_of_its_logits(tmp_path, words):
    """Whatever the router chooses by."""
    logits = np.random.default_rng(2).normal(size=(4, 1, 64, 8)).astype(np.float32)
    np.save(tmp_path / "group.npy", logits[:, 0])
    if words[-1] == "--expert-bias":
        np.save(tmp_path / "bias.npy", np.arange(8, dtype=np.float32) / 10)
        words = (*words, tmp_path / "bias.npy")
    drawn = detail_of_losses("--routing", trace_of(logits, tmp_path, 2), "--gpus", 4, "--expert-parallel", 4, "--router",
                             *words)
    given = json.loads(succeed("route", "--logits", tmp_path / "group.npy", "--losses", "--format", "json", "--router",
                               *words))
    for name, column in (("balance", "balance_loss"), ("balance_all_choices", "balance_loss_all_choices"),
                         ("z", "z_loss")):
        assert drawn[name] == pytest.approx(given[column], rel=1e-6)


def test_dropout_that_lowers_k_has_the_losses_of_the_choices_left(tmp_path):
    """One expert on each GPU: skipped, a token has one choice instead of two."""
    np.save(tmp_path / "x.npy", np.random.default_rng(1).normal(size=(4, 8, 4)).astype(np.float32))
    words = ("route", "--logits", tmp_path / "x.npy", "--router", "gating-dropout:0.999", "--top-k", 2)
    row = as_json(*words)
    # Each expert has the tokens of its own GPU, a quarter: 4 x 1/4 x (the sum of mean g) = 1.
    assert row["balance_loss"] == pytest.approx(1)
    assert row["balance_loss_all_choices"] == pytest.approx(1)


def test_rectification_inside_a_node_takes_the_nodes_of_the_cluster(tmp_path):
    logits = np.zeros((16, 4, 16), np.float32)
    logits[:, :, 0] = 5
    np.save(tmp_path / "x.npy", logits)
    succeed("route", "--logits", tmp_path / "x.npy", "--router", "top1+ir@node", "--cluster", "dgx-a100",
            "--capacity-factor", 1, "--out", tmp_path / "out.npy")
    routes = np.load(tmp_path / "out.npy")
    rectified = routes[routes["kind"] == "ir"]
    assert len(rectified) > 0
    assert (rectified["expert"] // 8 == rectified["rank"] // 8).all()


@pytest.mark.parametrize("format", ["json", "csv", "table"])
def test_an_array_has_no_text_format(format, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((4, 8, 4), np.float32))
    out = tmp_path / "out.npy"
    expect_error(moesim("route", "--logits", tmp_path / "x.npy", "--router", "top2", "--format", format, "--out", out), 2,
                 f"--format {format}: --out {out} takes the routes", "leave --format out")
    assert not out.exists()


@pytest.mark.parametrize("words", [("--router-dtype", "bf16"), ("--score-function", "sigmoid"), ()])
def test_rectification_goes_by_logit_where_scores_vanish(tmp_path, words):
    np.save(tmp_path / "x.npy", np.tile(np.array([0, -1, -np.inf, -100], np.float32), (2, 2, 1)))
    succeed("route", "--logits", tmp_path / "x.npy", "--router", "top1+ir", "--capacity-factor", 0.1,
            "--out", tmp_path / "out.npy", *words)
    routes = np.load(tmp_path / "out.npy")
    here = routes[(routes["kind"] == "ir") & (routes["rank"] == 1)]
    assert len(here) > 0 and (here["expert"] == 3).all()


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_a_token_without_a_finite_logit_has_them_all_equal(tmp_path, scores):
    np.save(tmp_path / "x.npy", np.full((4, 3), -np.inf, np.float32))
    row = as_json("route", "--logits", tmp_path / "x.npy", "--router", "top1", "--score-function", scores)
    assert row["z_loss"] == pytest.approx(np.log(3) ** 2)
    assert row["balance_loss"] == pytest.approx(1)  # all take expert 0, each probability is 1/3


def test_a_router_without_capacity_is_one_row_of_a_grid(tmp_path):
    path = tmp_path / "logits.npy"
    np.save(path, np.random.default_rng(1).normal(size=(2, 16, 8)).astype(np.float32))
    grid = ("--router", "top2,dropless", "--top-k", 2, "--capacity-factor", "1,1.25")
    for words in (("route", "--logits", path), ("route", "--gpus", 8, "--tokens-per-gpu", 64, "--replicas", 1)):
        words = (*words, *(grid if "--logits" in words else grid[:2] + grid[4:]))
        result = moesim(*words, "--format", "csv")
        rows = list(csv.DictReader(io.StringIO(result.stdout)))
        assert [(row["router"], row["capacity_factor"]) for row in rows] == [("top2", "1"), ("top2", "1.25"), ("dropless", "")]
        assert "1 of 4 combinations left out: they differ from another only in what their router has no use for" in result.stderr


@pytest.mark.parametrize(("make", "words"), [
    (lambda logits: np.exp(logits) / np.exp(logits).sum(-1, keepdims=True), "each token's values add up to 1"),
    (lambda logits: np.abs(np.round(8 * logits)), "all values are whole numbers"),
    (lambda logits: np.ascontiguousarray(logits.T), "are the axes swapped?"),
])
def test_values_that_are_hardly_logits_are_doubted(tmp_path, make, words):
    """As `import` does: taken for logits, they would give another loss in silence."""
    logits = np.random.default_rng(1).normal(size=(512, 8)).astype(np.float32)
    for name, values in (("logits", logits), ("other", make(logits).astype(np.float32))):
        np.save(tmp_path / f"{name}.npy", values)
    command = ("route", "--router", "top2", "--capacity-factor", "1", "--logits")
    assert "warning" not in moesim(*command, tmp_path / "logits.npy").stderr
    result = moesim(*command, tmp_path / "other.npy")
    assert result.returncode == 0 and words in result.stderr


def test_a_k_that_nobody_named_is_noted(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(1).normal(size=(2, 64, 16)).astype(np.float32))
    command = ("route", "--logits", tmp_path / "x.npy", "--router")
    noted = "k = 2 is that of llama2-7b-moe8, the default --model: give --top-k"
    result = moesim(*command, "dropless,group-limited:4:2")
    assert noted in result.stderr
    head, *rows = result.stdout.splitlines()
    assert "top_k" in head.split() and all(row.split()[head.split().index("top_k")] == "2" for row in rows)
    for words in (("dropless", "--top-k", 4), ("top2",), ("dropless", "--model", "mixtral-8x7b")):
        assert "--logits do not say" not in moesim(*command, *words).stderr, words
    assert "top_k" not in succeed(*command, "top1,top2")


def test_swapped_axes_of_each_rank_are_doubted(tmp_path):
    """[ranks, experts, tokens], where ranks times experts are many."""
    logits = np.random.default_rng(1).normal(size=(4, 512, 16)).astype(np.float32)
    command = ("route", "--router", "top2", "--logits", tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", logits)
    assert "warning" not in moesim(*command).stderr
    np.save(tmp_path / "x.npy", np.ascontiguousarray(logits.swapaxes(-1, -2)))
    said = moesim(*command).stderr
    assert "512 experts for 16 tokens: are the axes swapped?" in said and "array.swapaxes(-1, -2)" in said


@pytest.mark.parametrize(("name", "parts"), [
    ("x.npz", ("numpy.load(FILE)['NAME']", "--array NAME")), ("x.txt", ("numpy.loadtxt(FILE)",)),
    ("x.safetensors", ("safetensors.numpy.load_file(FILE)['NAME']",))])
def test_other_files_are_converted_by_numpy(tmp_path, name, parts):
    path = tmp_path / name
    if name == "x.npz":
        np.savez(path, logits=np.zeros((4, 2), np.float32))
    else:
        path.write_text("0.5 0.25\n")
    expect_error(moesim("route", "--logits", path, "--router", "top1"), 2, "no .npy file", *parts)


def test_arrays_that_are_no_logits_or_no_trace_say_what_to_do(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((4, 64, 2), np.int64))  # 4 ranks of 2 experts, read as logits
    expect_error(moesim("route", "--logits", path, "--router", "top1"), 2, "dtype '<i8'", "moesim import",
                 "--axes rank,token,choice")
    for source in (f"trace:{path}", path):
        expect_error(moesim("route", "--routing", source), 2, f"moesim import {path} --top-k K --out FOLDER")
    np.save(path, np.zeros((4, 2), np.float32))
    expect_error(moesim("route", "--logits", path, "--router", "top1", "--out", tmp_path / "x.parquet"), 2,
                 ".parquet files are not written", ".csv or .json")


def test_trained_biases_are_noted_where_a_popularity_is_asked_for():
    """They even the load, whatever the popularity: frozen ones do not."""
    words = ("route", "--router", "bias-balanced", "--experts", 16, "--top-k", 2, "--gpus", 4, "--tokens-per-gpu", 512,
             "--replicas", 1, "--format", "json")
    noted = "its biases are trained on this popularity"

    def busiest(*more):
        result = moesim(*words, *more)
        assert result.returncode == 0, result.stderr
        load = json.loads(result.stdout)["detail"]["imbalance"]["expert_demand_busiest_over_mean"]["mean"]
        return load, noted in result.stderr and "--expert-bias zeros" in result.stderr

    trained, said = busiest("--routing", "gaussian:1")
    assert said
    frozen, said = busiest("--routing", "gaussian:1", "--expert-bias", "zeros")
    assert not said and frozen > 2 > 1.3 > trained
    assert not busiest()[1] and not busiest("--routing", "balanced")[1]
    for command in ("train", "recommend"):
        asked = (command, "--model", "deepseek-v3", "--gpus", 64, "--expert-parallel", 64, "--profile", "h200-sxm",
                 "--pipeline-parallel", 1, "--tensor-parallel", 1)
        said = moesim(*asked, "--routing", "gaussian:0.5").stderr
        assert said.count(noted) == 1, said


def test_what_given_logits_leave_open_is_all_that_has_an_effect(tmp_path):
    path = tmp_path / "logits.npy"
    np.save(path, np.random.default_rng(1).standard_normal((64, 8)).astype(np.float32))

    def said(*words):
        result = moesim("route", "--logits", path, *words, "--format", "csv")
        assert result.returncode == 0, result.stderr
        return result
    seed, model = "note: --seed has no effect", "note: --model has no effect"
    plain, other = said("--router", "top2"), said("--router", "top2", "--model", "mixtral-8x7b")
    assert model in other.stderr and plain.stdout == other.stdout
    assert model not in said("--router", "topk", "--model", "mixtral-8x7b").stderr
    assert model not in said("--model", "mixtral-8x7b").stderr
    assert seed in said("--router", "top2", "--seed", 4).stderr
    for words in (("--router", "random"), ("--router", "top2", "--priority", "random"),
                  ("--router", "top2", "--second-expert", "sampled")):
        assert seed not in said(*words, "--seed", 4).stderr
