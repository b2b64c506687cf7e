"""--megatron FILE: capacity, drop policy, scores and groups of the router."""

import csv

import pytest
from command_line import as_json, expect_error, moesim, needs_binary, succeed
from megatron_files import SCRIPT, with_argument, write

pytestmark = needs_binary


def with_capacity(arguments=""):
    return (SCRIPT.replace("--num-experts 128", f"--moe-expert-capacity-factor 1.0 {arguments} --num-experts 128")
            .replace("--num-layers 48", "--num-layers 4"))


@pytest.mark.parametrize("arguments, typed, priority", [
    ("", (), "own-weight"),  # a softmax over the 8 that a token chooses
    ("--moe-token-drop-policy probs", (), "own-weight"),
    ("--moe-router-score-function sigmoid", (), "own-weight"),  # over the sum of the 8
    ("--moe-router-pre-softmax", (), "own-score"),
    ("--moe-router-score-function softmax --moe-router-pre-softmax", (), "own-score"),
    ("--moe-router-score-function sigmoid --moe-router-pre-softmax", (), "own-weight"),  # of a softmax alone
    ("--moe-router-score-function sigmoid --moe-router-pre-softmax", ("--top-k", 1), "own-score"),
    ("--moe-token-drop-policy position", (), "token-order"),
    ("", ("--router", "top1"), "own-score"),  # a softmax over one is 1 for all
    ("", ("--top-k", 1), "own-score"),
    ("", ("--router", "top2"), "own-weight"),
    ("", ("--priority", "random"), "random"),
])
def test_a_capacity_drops_by_megatrons_rule(tmp_path, arguments, typed, priority):
    script = with_capacity(arguments)
    read = as_json("train", "--megatron", write(tmp_path, script), *typed)
    assert read["priority"] == priority
    assert "moe-router-pre-softmax" not in moesim("layout", "--megatron", write(tmp_path, script)).stderr


@pytest.mark.parametrize("arguments", [
    "", "--moe-pad-expert-input-to-capacity", "--moe-token-drop-policy position", "--moe-router-pre-softmax",
    "--moe-router-score-function sigmoid"])
def test_a_typed_capacity_is_as_if_it_stood_in_the_script(tmp_path, arguments):
    script = with_capacity(arguments)
    read = as_json("train", "--megatron", write(tmp_path, script))
    without = write(tmp_path, script.replace("--moe-expert-capacity-factor 1.0", ""), "without.sh")
    typed = as_json("train", "--megatron", without, "--capacity-factor", "1.0")
    assert typed["padding"] == ("capacity" if "pad" in arguments else "none") and typed["residual_loss"] > 0
    assert {key: value for key, value in typed.items() if key != "model"} == \
        {key: value for key, value in read.items() if key != "model"}
    grid = succeed("train", "--megatron", without, "--capacity-factor", "1,1.25", "--format", "csv").splitlines()
    assert next(csv.DictReader(grid))["padding"] == typed["padding"]


def test_a_typed_dialect_says_how_a_capacity_drops(tmp_path):
    script = write(tmp_path, with_capacity("--moe-token-drop-policy position"))
    read = as_json("train", "--megatron", script, "--router-dialect", "paper")
    assert (read["padding"], read["priority"]) == ("capacity", "token-max")


@pytest.mark.parametrize("arguments, columns", [
    ("", {}),
    ("--moe-router-score-function sigmoid", {"score_function": "sigmoid"}),
    # The router with a bias has sigmoids.
    ("--moe-router-score-function sigmoid --moe-router-enable-expert-bias", {}),
    ("--moe-router-score-function sigmoid --moe-router-enable-expert-bias --moe-router-num-groups 8 "
     "--moe-router-group-topk 4", {"group_score": "topk"}),
    ("--moe-router-num-groups 8 --moe-router-group-topk 4", {"group_score": "topk-logits"}),
    ("--moe-router-num-groups 8 --moe-router-group-topk 4 --moe-router-pre-softmax", {"group_score": "topk"}),
])
def test_scores_are_those_of_the_script(tmp_path, arguments, columns):
    read = as_json("train", "--megatron", write(tmp_path, with_capacity(arguments)))
    assert {name: read[name] for name in ("score_function", "group_score") if name in read} == columns


def test_no_routing_is_drawn_for_scores_alone(tmp_path):
    scores = SCRIPT.replace("--num-experts 128", "--moe-router-num-groups 8 --moe-router-group-topk 4 --num-experts 128")
    assert "router" not in as_json("train", "--megatron", write(tmp_path, scores))


@pytest.mark.parametrize("arguments, typed, priority", [
    ("", ("--top-k", "2,4"), ["own-weight", "own-weight"]),
    ("", ("--top-k", "1,2"), ["own-score", "own-weight"]),
    ("", ("--top-k", "1:2:1"), ["own-score", "own-weight"]),
    ("", ("--router", "top2,top1"), ["own-weight", "own-score"]),
    ("", ("--router", "topk,top1", "--model", "qwen3-30b-a3b"), ["own-weight", "own-score"]),
    ("", ("--top-k", "1,2", "--priority", "own-score"), ["own-score", "own-score"]),
    ("", ("--router", "top1,top1+ir"), ["own-score", "own-score"]),
    ("", ("--router", "dropless,top1"), ["", "own-score"]),
    ("--moe-router-pre-softmax", ("--top-k", "1,2"), ["own-score", "own-score"]),
    ("--moe-token-drop-policy position", ("--top-k", "1,2"), ["token-order", "token-order"]),
])
def test_each_of_several_steps_drops_by_its_own_rule(tmp_path, arguments, typed, priority):
    script = write(tmp_path, with_capacity(arguments))
    rows = succeed("train", "--megatron", script, *typed, "--format", "csv").splitlines()
    assert [cells["priority"] for cells in csv.DictReader(rows)] == priority


def test_a_drop_policy_is_one_of_megatrons(tmp_path):
    script = write(tmp_path, with_capacity("--moe-token-drop-policy nonsense"))
    expect_error(moesim("train", "--megatron", script), 2, "--moe-token-drop-policy: 'nonsense': known are position, probs")


def test_what_the_file_says_is_not_noted_as_typed(tmp_path):
    script = write(tmp_path, with_capacity())
    assert "has no effect" not in moesim("train", "--megatron", script, "--router", "dropless").stderr
    typed = moesim("train", "--megatron", script, "--router", "dropless", "--priority", "random")
    assert "--priority has no effect" in typed.stderr


def test_dropping_by_weight_loses_less_than_by_the_best_score(tmp_path):
    script = write(tmp_path, with_capacity())
    read, best = (as_json("train", "--megatron", script, "--seed", 2, *words) for words in ((), ("--priority", "token-max")))
    dialect = as_json("train", "--megatron", script, "--seed", 2, "--router-dialect", "megatron")
    assert read["residual_loss"] == dialect["residual_loss"] < 0.9 * best["residual_loss"]


def test_groups_that_do_not_divide_the_experts_are_refused_when_read(tmp_path):
    script = SCRIPT.replace("--num-experts 128", "--num-experts 128 --moe-router-num-groups 7 --moe-router-group-topk 3")
    assert script != SCRIPT
    path = write(tmp_path, script)
    expect_error(moesim("train", "--megatron", path), 2, f"{path}:", "--moe-router-num-groups",
                 "128 experts (--num-experts) do not divide into 7 groups")
    for groups, kept in ((8, 9), (64, 1)):
        path = write(tmp_path, SCRIPT.replace(
            "--num-experts 128", f"--num-experts 128 --moe-router-num-groups {groups} --moe-router-group-topk {kept}"))
        expect_error(moesim("train", "--megatron", path), 2, f"{path}:", "--moe-router-group-topk",
                     f"{kept} of {groups} groups (--moe-router-num-groups) of 128 experts")


def test_limited_devices_are_groups_of_a_rank(tmp_path):
    limited = with_argument(tmp_path, "--moe-router-topk-limited-devices 3")
    drawn = ("--routing", "gaussian:0.5", "--capacity-factor", 1)
    read = as_json("train", "--megatron", limited, *drawn)
    groups = SCRIPT.replace("--warp-drive 9", "--moe-router-num-groups 8 --moe-router-group-topk 3")
    assert read == as_json("train", "--megatron", write(tmp_path, groups), *drawn, "--group-score", "max")
    assert read["router"] == "group-limited:8:3"
