"""--cuda-graphs of `recommend` as a list of values to search."""

import json
import re
import shlex

import pytest
from command_line import as_json, expect_error, moesim, needs_binary, succeed

pytestmark = needs_binary
SMALL = ("recommend", "--model", "qwen3-30b-a3b", "--gpus", 16, "--global-batch", 64, "--micro-batch", 1,
         "--tensor-parallel", 1, "--context-parallel", 1, "--pipeline-parallel", 2, "--virtual-pipeline", 1,
         "--expert-parallel", "4,8", "--expert-tensor-parallel", 1, "--recompute", "none/moe_act", "--zero", 1)


def rows_of(*words):
    result = moesim(*words, "--format", "json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_values_of_graphs_are_searched():
    rows = rows_of(*SMALL, "--cuda-graphs", "none,router,parts", "--best", 6)
    # EP 4 and 8 with each of them are layouts of their own.
    assert sorted((row["expert_parallel"], row["cuda_graphs"]) for row in rows if row["rank"]) == [
        (experts, graphs) for experts in (4, 8) for graphs in ("none", "parts", "router")]
    for graphs in ("none", "router", "parts"):
        alone = rows_of(*SMALL, "--cuda-graphs", graphs, "--best", 2)
        for row in alone:
            found = [each for each in rows if each["cuda_graphs"] == graphs and each["expert_parallel"] == row["expert_parallel"]]
            assert found[0]["step_ms"] == row["step_ms"]
    # One sequence a micro-batch waits for the host: launching less is faster, and the command has it.
    first = rows[0]
    assert first["cuda_graphs"] == "parts"
    step = as_json(*shlex.split(first["command"])[1:])
    assert (step["step_ms"], step["cuda_graphs"]) == (first["step_ms"], "parts")
    unsearched = rows_of(*SMALL, "--best", 1)[0]
    assert unsearched["cuda_graphs"] == "none" and first["step_ms"] < 0.95 * unsearched["step_ms"]


def test_the_table_has_a_column_of_graphs():
    table = succeed(*SMALL, "--cuda-graphs", "none,parts")
    heading = next(line for line in table.splitlines() if line.startswith("#"))
    assert re.search(r" graphs +tokens/s/GPU", heading)
    assert "graphs" not in next(line for line in succeed(*SMALL, "--cuda-graphs", "parts").splitlines() if line.startswith("#"))
    # The switch that a search without them names is what is searched.
    hint = succeed(*SMALL)
    assert re.search(r"search them: .*--cuda-graphs none,(router|parts)", hint)


def test_graphs_that_change_nothing_are_listed_once():
    # Two sequences of 4096 tokens on 64 GPUs: computing, not the host, decides the step.
    large = ("recommend", "--model", "qwen3-30b-a3b", "--gpus", 64, "--tensor-parallel", 1, "--context-parallel", 1, "--pipeline-parallel", 2,
             "--virtual-pipeline", "6,12", "--micro-batch", 2, "--expert-parallel", "4,8", "--expert-tensor-parallel", 1,
             "--recompute", "none/moe_act", "--zero", 1, "--best", 3)
    alone = rows_of(*large, "--cuda-graphs", "none")
    rows = rows_of(*large, "--cuda-graphs", "none,router,parts")
    # The places are of layouts, and the slower steps of graphs that are as fast take none.
    assert [(row["rank"], row["expert_parallel"], row["cuda_graphs"], row["step_ms"]) for row in rows] == [
        (row["rank"], row["expert_parallel"], "none", row["step_ms"]) for row in alone]
    assert [row["expert_parallel"] for row in rows] == [8, 4]
    for graphs in ("router", "parts"):
        assert rows_of(*large, "--cuda-graphs", graphs)[0]["step_ms"] == rows[0]["step_ms"]
    table = succeed(*large, "--cuda-graphs", "none,router,parts")
    assert re.search(r"as fast with other --cuda-graphs, not listed .*:\n  1: router, parts\n  2: router, parts\n", table)
    assert rows_of(*large, "--cuda-graphs", "parts,none")[0]["cuda_graphs"] == "parts"  # named first
    # Those behind the last of the list are named too.
    assert re.search(r"not listed .*:\n  1: none\n", succeed(*large[:-1], 1, "--cuda-graphs", "parts,none"))


def test_graphs_that_no_step_can_have_are_left_out():
    rows = rows_of(*SMALL, "--cuda-graphs", "none,layers", "--best", 4)
    assert {row["cuda_graphs"] for row in rows} == {"none"}  # dropless: the host reads how many rows came
    expect_error(moesim(*SMALL, "--cuda-graphs", "none,attention"), 2, "--cuda-graphs")


@pytest.mark.parametrize("typed, graphs", [((), "router"), (("--cuda-graphs", "none,parts"), "parts")])
def test_a_search_from_a_step_takes_its_graphs(tmp_path, typed, graphs):
    path = tmp_path / "step.csv"
    succeed("train", "--model", "qwen3-30b-a3b", "--gpus", 16, "--global-batch", 64, "--expert-parallel", 8,
            "--cuda-graphs", "router", "--format", "csv", "--out", path)
    row = rows_of("recommend", "--from", f"{path}:1", *SMALL[7:], *typed, "--best", 1)[0]
    assert row["cuda_graphs"] == graphs
