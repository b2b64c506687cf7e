"""moesim recommend: what is said where no layout is possible or fits, and whether the hints hold."""

import csv
import io
import json
import re
import shlex
from pathlib import Path

import pytest
from command_line import as_rows, expect_error, moesim, needs_binary, succeed

pytestmark = needs_binary

PROFILES = Path(__file__).resolve().parents[3] / "profiles"


def hint_of(result):
    """The options of the first hint of a search in which nothing fits."""
    expect_error(result, 1, "fits in", "would fit: ")
    return shlex.split(re.search(r"would fit: (?:--optimizer-moments bf16, or )?(--gpus[^,;\n]*)", result.stderr)[1])


@pytest.mark.parametrize("words", [
    # 16 replicas of 2 sequences take 32 sequences.
    ("--model", "mixtral-8x7b", "--gpus", 8, "--global-batch", 16, "--micro-batch", 2, "--tensor-parallel", 1,
     "--pipeline-parallel", 1),
    ("--model", "mixtral-8x22b", "--gpus", 6, "--expert-tensor-parallel", 1, "--micro-batch", 1, "--global-batch", 1,
     "--memory-share", "0.2"),
    ("--model", "qwen3-30b-a3b", "--gpus", 2, "--profile", "a100-sxm-80gb", "--global-batch", 32),
    # Sizes that were typed stay, also where they are all that one GPU allows.
    ("--gpus", 1, "--tensor-parallel", 1, "--pipeline-parallel", 1, "--expert-parallel", 1, "--expert-tensor-parallel", 1),
])
def test_the_number_of_gpus_that_is_said_to_do_does(words):
    hint = hint_of(moesim("recommend", *words, "--best", 1))
    assert succeed("recommend", *words, *hint, "--best", 1)
    fewer = (*hint[:1], str(int(hint[1]) // 2))
    assert moesim("recommend", *words, *fewer, "--best", 1).returncode != 0


def test_a_batch_that_was_not_typed_is_not_in_the_hint():
    assert len(hint_of(moesim("recommend", "--gpus", 1, "--tensor-parallel", 1))) == 2
    typed = moesim("recommend", "--model", "mixtral-8x7b", "--gpus", 8, "--global-batch", 16, "--micro-batch", 2,
                   "--tensor-parallel", 1, "--pipeline-parallel", 1)
    assert hint_of(typed) == ["--gpus", "16", "--global-batch", "32"]


def test_where_no_change_is_enough_what_was_tried_is_said():
    # All experts and weights on each GPU: more of them help no more than the optimizer's states.
    words = ("recommend", "--model", "deepseek-v3", "--gpus", 1, "--tensor-parallel", 1, "--pipeline-parallel", 1,
             "--expert-parallel", 1, "--expert-tensor-parallel", 1)
    expect_error(moesim(*words), 1, "the least takes ", "; tried, and none is enough by itself: --optimizer-moments bf16, "
                 "--gpus up to 1024")


def test_slices_of_experts_between_domains_are_searched_where_they_are_asked_for(tmp_path):
    """4 x 4 ranks of an expert group on nodes of 8."""
    every = tmp_path / "all.csv"
    words = ("recommend", "--gpus", 16, "--expert-parallel", 4, "--expert-tensor-parallel", 4, "--micro-batch", "1,2",
             "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(succeed(*words, "--all", every))))
    with open(every, newline="", encoding="utf-8") as file:
        fitting = [float(row["step_ms"]) for row in csv.DictReader(file) if row["fits_memory"] == "true"]
    assert float(rows[0]["step_ms"]) == min(fitting)
    for row in rows:
        assert (row["expert_parallel"], row["expert_tensor_parallel"]) == ("4", "4")
        step = succeed(*shlex.split(row["command"])[1:], "--format", "csv")
        assert next(csv.DictReader(io.StringIO(step)))["step_ms"] == row["step_ms"]
    # One of the two alone: the usual ones of the other that stay inside a node.
    sizes = as_rows("recommend", "--gpus", 16, "--expert-tensor-parallel", 4, "--best", 20)
    assert {row["expert_parallel"] for row in sizes} == {"1", "2"}


@pytest.mark.parametrize("words", [
    ("--gpus", 16), ("--gpus", 16, "--tensor-parallel", 1, "--pipeline-parallel", 1),
    ("--gpus", 32, "--model", "qwen3-30b-a3b", "--global-batch", 512)])
def test_graphs_that_no_layout_can_have_are_refused_as_train_refuses_them(words):
    (reason,) = re.findall(r"moesim: error: (--cuda-graphs layers: .*)", moesim("train", "--cuda-graphs", "layers").stderr)
    expect_error(moesim("recommend", "--cuda-graphs", "layers", *words), 2, f"layouts asked for is possible: {reason}")


@pytest.mark.parametrize("words,reason", [
    # Layouts are possible, with none of the options asked for.
    (("--ep-overlap", "on", "--recompute", "full", "--dispatcher", "deepep"), "--ep-overlap allows no recomputation"),
    (("--ep-overlap", "on", "--recompute", "moe", "--pipeline-parallel", 1, "--expert-parallel", 8),
     "--ep-overlap allows no recomputation"),
    (("--pipeline-parallel", 1, "--virtual-pipeline", 2), "interleaved needs --virtual-pipeline and --pipeline-parallel above 1"),
    # Chunks without a pipeline are not why there is none with one.
    (("--virtual-pipeline", 2, "--global-batch", 17), "--global-batch 17 is no multiple of"),
])
def test_the_rule_that_is_broken_is_named(words, reason):
    expect_error(moesim("recommend", "--gpus", 16, *words), 2, f"layouts asked for is possible: {reason}")


def test_an_encoder_is_refused_as_train_refuses_it():
    words = ("--model", "switch-base-8", "--gpus", 16)
    refused = moesim("recommend", *words)
    expect_error(refused, 2, "--model switch-base-8 has an encoder")
    assert refused.stderr == moesim("train", *words).stderr


def test_layouts_of_too_few_tokens_for_counts_are_left_out():
    words = ("recommend", "--model", "llama2-7b-moe8", "--gpus", 8, "--capacity-factor", 1, "--sequence-length", 1024,
             "--fidelity", "counts", "--max-loss", "10%")
    table = succeed(*words)
    assert re.search(r"\n\d+ candidates left out, such as: --fidelity counts: \d+ tokens per GPU are too few", table)
    assert "  1  moesim train" in table
    expect_error(moesim(*words, "--tensor-parallel", 8, "--micro-batch", 1), 2, "--fidelity counts: 128 tokens per GPU are too few")


@pytest.mark.parametrize("flag,wrong,example", [("--memory-share", "90", "90%"), ("--memory-share", "0", "0.9"),
                                               ("--max-loss", "7", "0.5%"), ("--max-loss", "x", "0.005")])
def test_the_example_of_a_share_is_one_that_is_taken(flag, wrong, example):
    words = ("recommend", "--gpus", 8, "--model", "olmoe-1b-7b", "--tensor-parallel", 1, "--micro-batch", 1,
             "--recompute", "none", "--capacity-factor", "dropless", "--best", 1)
    expect_error(moesim(*words, flag, wrong), 2, f"{flag}: '{wrong}' is no share from ", example)
    assert succeed(*words, flag, example)


def test_all_candidates_are_csv(tmp_path):
    path = tmp_path / "all.json"
    expect_error(moesim("recommend", "--gpus", 8, "--all", path), 2, f"--all: {path}: the rows are CSV: the name must end in .csv")
    assert not path.exists()


@pytest.mark.parametrize("words,flag", [
    (("--capacity-factor", 1), "--capacity-factor"), (("--capacity-factor", "dropless,1"), "--capacity-factor"),
    (("--router", "topk,dropless"), "--router"), (("--routing-draws", "per-layer"), "--routing-draws")])
def test_the_typed_option_of_routing_is_named_where_a_model_has_none(words, flag):
    expect_error(moesim("recommend", "--model", "llama2-7b", "--gpus", 8, *words), 2, f"{flag}: model llama2-7b has no MoE layers")


def test_candidates_without_measured_links_are_left_out_and_said(tmp_path):
    """A profile without a curve for all-to-all: experts on one GPU each have a price, groups of them have none."""
    profile = tmp_path / "no_all_to_all.json"
    whole = json.loads((PROFILES / "hardware" / "h100-sxm.json").read_text(encoding="utf-8"))
    whole["curves"] = [curve for curve in whole["curves"] if curve["op"] != "all-to-all"]
    profile.write_text(json.dumps(whole), encoding="utf-8")
    words = ("--model", "olmoe-1b-7b", "--gpus", 16, "--profile", profile, "--tensor-parallel", 1, "--micro-batch", 1)
    every = tmp_path / "all.csv"
    both = moesim("recommend", *words, "--expert-parallel", "1,8", "--all", every)
    assert both.returncode == 0, both.stderr
    reason = r"candidates left out, such as: profile h100-sxm has no curve for all-to-all;"
    (left_out,) = re.findall(rf"^([\d,]+) {reason}", both.stdout, re.M)
    assert re.search(rf"^note: --all: {left_out} {reason}", both.stderr, re.M), both.stderr
    (of_both,) = re.findall(r"^([\d,]+) candidates;", both.stdout, re.M)
    alone = succeed("recommend", *words, "--expert-parallel", 1)
    assert "left out" not in alone
    (of_one,) = re.findall(r"^([\d,]+) candidates;", alone, re.M)
    assert int(left_out) == int(of_both) - int(of_one)
    with open(every, newline="", encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == int(of_one)
    expect_error(moesim("recommend", *words, "--expert-parallel", 8), 1, "profile h100-sxm has no curve for all-to-all")


def test_candidates_whose_gradients_nobody_measured_are_left_out_when_they_are_simulated(tmp_path):
    """A profile without a curve for reduce-scatter: bounds need none, steps of several replicas do. In a pipeline of all GPUs there is one replica."""
    profile = tmp_path / "no_reduce_scatter.json"
    whole = json.loads((PROFILES / "hardware" / "h100-sxm.json").read_text(encoding="utf-8"))
    whole["curves"] = [curve for curve in whole["curves"] if curve["op"] != "reduce-scatter"]
    profile.write_text(json.dumps(whole), encoding="utf-8")
    words = ("--model", "qwen3-30b-a3b", "--gpus", 8, "--global-batch", 64, "--profile", profile, "--tensor-parallel", 1,
             "--context-parallel", 1, "--optimizer-moments", "bf16")
    reason = "profile h100-sxm has no curve for reduce-scatter"
    both = succeed("recommend", *words, "--pipeline-parallel", "2,8")
    assert re.search(rf"^[\d,]+ candidates left out, such as: {reason};", both, re.M), both
    alone = succeed("recommend", *words, "--pipeline-parallel", 8)
    assert "left out" not in alone
    commands = [text.split("to reproduce:\n")[1].splitlines()[0] for text in (both, alone)]
    assert commands[0] == commands[1]
    expect_error(moesim("recommend", *words, "--pipeline-parallel", 2), 1, reason)


def test_a_broken_document_of_one_of_several_machines_ends_the_command(tmp_path):
    broken = tmp_path / "broken.json"
    broken.write_text('{"format": "moesim profile 1",', encoding="utf-8")
    words = ("--model", "qwen3-30b-a3b", "--gpus", 16, "--profile", f"h100-sxm,{broken}")
    expect_error(moesim("recommend", *words), 2, f"{broken}: line 1, column ")
    expect_error(moesim("recommend", *words, "--precision", "bf16,fp8-current"), 2, f"{broken}: line 1, column ")


def test_a_profile_that_prices_nothing_is_the_reason_not_the_memory():
    """Some candidates are too large as well; none would be priced with more memory."""
    expect_error(moesim("recommend", "--model", "olmoe-1b-7b", "--profile", "l40s", "--gpus", 16), 1, "profile l40s has no curve for gemm")
