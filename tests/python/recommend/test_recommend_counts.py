"""moesim recommend: each candidate is there once, and simulated once."""

import csv
import re

from command_line import as_rows, needs_binary, succeed

pytestmark = needs_binary


def counts_of(text):
    """Candidates, and how many were simulated, as the table says."""
    return tuple(int(re.search(rf"([\d,]+) {what}", text)[1].replace(",", "")) for what in ("candidates;", "were simulated"))


def test_layers_that_do_not_divide_are_divided_the_same_way_once(tmp_path):
    """27 layers on two ranks: 14|13 is one layer more in the first and one fewer in the last; 15|12 three fewer."""
    every = tmp_path / "all.csv"
    text = succeed("recommend", "--model", "deepseek-v2-lite", "--gpus", 8, "--tensor-parallel", 1, "--pipeline-parallel", 2,
                   "--expert-parallel", 4, "--expert-tensor-parallel", 1, "--virtual-pipeline", 1, "--micro-batch", 2,
                   "--recompute", "full", "--zero", 2, "--all", every)
    assert counts_of(text) == (2, 2)
    assert "differ in\n" not in text
    with open(every, newline="", encoding="utf-8") as file:
        assert [row["pipeline_layout"] for row in csv.DictReader(file)] == ["Et*14|t*13L", "Et*15|t*12L"]


def test_a_recomputation_typed_in_two_orders_is_searched_once():
    words = ("recommend", "--gpus", 8, "--model", "olmoe-1b-7b", "--zero", 1, "--micro-batch", 1, "--tensor-parallel", 1,
             "--expert-tensor-parallel", 1, "--recompute")
    once, twice = (succeed(*words, text) for text in ("moe_act,layernorm", "moe_act,layernorm/layernorm,moe_act"))
    assert counts_of(once) == counts_of(twice)
    rows = [as_rows(*words, text) for text in
            ("moe_act,layernorm", "moe_act,layernorm/layernorm,moe_act")]
    assert [row["twins"] for row in rows[0]] == [row["twins"] for row in rows[1]]


def test_a_twin_that_was_simulated_is_not_simulated_again():
    words = ("recommend", "--gpus", 16, "--tensor-parallel", 1, "--pipeline-parallel", 2, "--expert-parallel", 8,
             "--expert-tensor-parallel", 1, "--virtual-pipeline", 8, "--micro-batch", 2, "--recompute", "none", "--zero", "1,2")
    assert counts_of(succeed(*words)) == (2, 2)
