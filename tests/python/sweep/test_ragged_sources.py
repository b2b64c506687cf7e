"""GPUs with different numbers of tokens through the command line: route, simulate and sweep."""

import json

import pytest

from command_line import as_rows, needs_binary, succeed

pytestmark = needs_binary

SIZES = ["--gpus", "8", "--sequence-length", "512", "--micro-batch", "1"]
ROUTERS = ["top2", "top2+fr+ir", "top2+ir@node", "dropless", "expert-choice", "base", "base:greedy",
           "random", "random:balanced", "hash:1", "soft", "scomoe:0.2:0.3", "gating-dropout:0.5",
           "group-limited:4:2", "bias-balanced:0.001:10", "dense"]
SCENARIOS = ["balanced", "ragged-source:2", "empty-rank"]
# Tokens of 8 ranks on average: 512, 512 - 36.57 r rounded (3,072 together), 7 x 512 / 8.
MEAN_TOKENS = {"balanced": 512, "ragged-source:2": 384, "empty-rank": 448}


def table(*words):
    return as_rows(*words)


@pytest.fixture(scope="module")
def swept():
    rows = [row for scores in SCENARIOS
            for row in table("sweep", "--router", ",".join(ROUTERS), "--routing", scores,
                             "--replicas", 2, *SIZES)]
    assert len(rows) == len(ROUTERS) * len(SCENARIOS)
    return {(row["router"], scores): row
            for scores, start in zip(SCENARIOS, range(0, len(rows), len(ROUTERS)))
            for row in rows[start:start + len(ROUTERS)]}


def test_every_router_is_priced_but_base_which_says_why(swept):
    for (router, scores), row in swept.items():
        if router == "base" and scores != "balanced":
            assert row["status"] == "refused" and "base:greedy" in row["reason"]
            continue
        assert row["status"] == "ok", row["reason"]
        parts = [float(value) for name, value in row.items() if name.endswith("_ms") and name not in
                 ("step_ms", "exchange_ms") and value]
        step = float(row["step_ms"])
        assert sum(parts) == pytest.approx(step, rel=1e-7)
        # A dense model has no expert groups, and all its GPUs hold as many tokens.
        tokens = 512 if router == "dense" else MEAN_TOKENS[scores]
        assert float(row["tokens_per_s_per_gpu"]) == pytest.approx(tokens / step * 1e3, rel=1e-6)
        named = "fewer tokens hold fewer sequences" in row["provenance"]
        assert named == (scores != "balanced" and router != "dense")


def test_all_wait_for_the_fullest_gpu(swept):
    for router in ROUTERS:
        plain, empty = swept[router, "balanced"], swept[router, "empty-rank"]
        if empty["status"] != "ok":
            continue
        # Its own layers take as long, whatever the others hold; blocks padded to its own, too.
        for part in ("attention_ms", "dense_ffn_ms"):
            assert float(empty[part]) == pytest.approx(float(plain[part]), rel=0.1)
        if router in ("top2", "expert-choice", "random", "hash:1", "soft"):
            assert float(empty["expert_ms"]) == pytest.approx(float(plain["expert_ms"]), rel=0.1)
            assert float(empty["step_ms"]) >= float(plain["step_ms"])
        if router == "dropless":
            assert float(empty["expert_ms"]) < float(plain["expert_ms"])


@pytest.mark.parametrize("scores", SCENARIOS[1:])
@pytest.mark.parametrize("words", [[], ["--capacity-scope", "group"], ["--padding", "none"]])
def test_route_and_simulate_agree(scores, words):
    more = ["--router", "top2", "--capacity-factor", "1", "--routing", scores, "--replicas", "2",
            "--format", "json", *words, *SIZES]
    routed = json.loads(succeed("route", *more))
    step = json.loads(succeed("simulate", *more))
    for name in ("failed", "partial", "lost_mass", "unrouted", "residual_loss", "padded"):
        assert routed[name] == pytest.approx(step[name], rel=1e-8), name
    assert routed["capacity"] == 64
    detail = step["detail"]
    assert detail["tokens_per_gpu_mean"] == MEAN_TOKENS[scores]
    if words:
        return
    # Every pair exchanges the 64 rows of the fullest GPU; of all 8 x 64 that a GPU sends the kept
    # routes, of 2 a token, hold one.
    assert routed["detail"]["pair_bytes"]["padded"] == 64 * 8192
    kept = (1 - step["failed"]) * 2 * MEAN_TOKENS[scores]
    assert detail["empty_rows_sent"] == pytest.approx(1 - kept / (8 * 64), rel=1e-6)


def test_the_same_bytes_for_any_number_of_threads():
    words = ["sweep", "--router", "top2+fr+ir,dropless,scomoe:0.2:0.3", "--routing",
             "ragged-source:4", "--capacity-factor", "1,2", "--format", "csv", *SIZES]
    assert len({succeed(*words, "--jobs", jobs) for jobs in (1, 2, 5)}) == 1


def test_ragged_in_name_only_is_balanced_to_the_bit():
    def figures(scores):
        row = table("simulate", "--router", "top2", "--routing", scores, "--replicas", 3, *SIZES)[0]
        return {name: value for name, value in row.items() if name != "routing"}

    assert figures("ragged-source:1") == figures("balanced")
    assert figures("ragged-source:2") != figures("balanced")


def test_the_table_says_what_the_gpus_hold():
    text = succeed("simulate", "--router", "top2", "--routing", "empty-rank", "--replicas", 1, *SIZES)
    assert "on the fullest GPU, 448 tokens on average" in text
    assert "of the rows that travel are padding to the largest block" in text
    text = succeed("simulate", "--router", "dropless", "--routing", "empty-rank", "--replicas", 1,
                   *SIZES)
    assert "where an even load is 896" in text
