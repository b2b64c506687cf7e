"""Every option of which `recommend` searches lists of values."""

import re
from pathlib import Path

import pytest
from command_line import as_json, moesim, needs_binary, succeed
from recommend_command import reproduced

pytestmark = needs_binary
README = Path(__file__).resolve().parents[3] / "sim" / "study" / "search" / "README.md"

# Two values of each option that a small search finds steps of, the separator of its lists, and the
# heading of its column in tables of a search that has several.
TYPED = {
    "micro-batch": ("1", "2", ",", "batch"),
    "tensor-parallel": ("1", "2", ",", "TP"),
    "context-parallel": ("1", "2", ",", "CP"),
    "pipeline-parallel": ("1", "2", ",", "PP"),
    "virtual-pipeline": ("1", "2", ",", "VP"),
    "expert-parallel": ("4", "8", ",", "EP"),
    "expert-tensor-parallel": ("1", "2", ",", "ETP"),
    "ep-overlap": ("off", "on", ",", "EP overlap"),
    "zero": ("1", "2", ",", "ZeRO"),
    "precision": ("bf16", "fp8-block", ",", "precision"),
    "recompute": ("none", "full", "/", "recompute"),
    "router": ("top8", "top8+ir", ",", "router"),
    "capacity-factor": ("1", "1.25", ",", "CF"),
    "dispatcher": ("all-to-all", "deepep", ",", "dispatcher"),
    "ranks-per-domain": ("4", "8", ",", "per domain"),
    "cuda-graphs": ("none", "parts", ",", "graphs"),
}
# What the search of one needs beside it.
WITH = {
    "ep-overlap": ("--pipeline-parallel", 2, "--virtual-pipeline", 2, "--recompute", "none"),
    "virtual-pipeline": ("--pipeline-parallel", 2, "--distinct", "chunks"),
    "router": ("--capacity-factor", 1, "--max-loss", "50%"),
    "capacity-factor": ("--router", "top8", "--max-loss", "50%"),
}


def searched_options():
    """Those of which the help says so."""
    text = succeed("recommend", "--help")
    return {option: "/" if by == "/" else ","
            for option, by in re.findall(r"^  --([a-z-]+) .*values to search, separated by (/|commas)", text, re.MULTILINE)}


def test_all_searched_options_are_tested_here():
    assert searched_options() == {option: typed[2] for option, typed in TYPED.items()}


def test_the_page_of_the_search_names_the_options():
    """Those that have one value unless more are typed; the others are named in words."""
    page = README.read_text(encoding="utf-8")
    fixed = ("router", "capacity-factor", "dispatcher", "precision", "cuda-graphs", "ep-overlap")
    usual = set(re.findall(r"^  --([a-z-]+) (?:(?!^  --).)*?values to search(?:(?!^  --).)*?what\s+is\s+usual",
                           succeed("recommend", "--help"), re.MULTILINE | re.DOTALL))
    assert usual | set(fixed) == set(TYPED)
    assert [option for option in fixed if f"`--{option}`" not in page] == []


def search_of(option):
    """A search of few candidates without the option."""
    words = ["recommend", "--model", "qwen3-30b-a3b", "--profile", "h200-sxm", "--gpus", 16, "--global-batch", 64, "--best", 20]
    single = {"micro-batch": 1, "tensor-parallel": 1, "context-parallel": 1, "pipeline-parallel": 1, "virtual-pipeline": 1,
              "expert-parallel": 8, "expert-tensor-parallel": 1, "zero": 1, "recompute": "full"}
    more = WITH.get(option, ())
    for name, value in single.items():
        if name != option and f"--{name}" not in more:
            words += [f"--{name}", value]
    return [*words, *more]


@pytest.mark.parametrize("option", TYPED)
def test_values_of_an_option_are_searched(option):
    first, second, separator, heading = TYPED[option]
    column = option.replace("-", "_")
    rows = as_json(*search_of(option), f"--{option}", f"{first}{separator}{second}")
    found = {}
    for row in rows:
        found.setdefault(str(row[column]), row)
    # Twins of one of the best are not listed: then each value alone has another step.
    alone = {value: as_json(*search_of(option), f"--{option}", value)[0] for value in (first, second)}
    assert {str(row[column]) for row in alone.values()} == {first, second}
    assert set(found) <= {first, second} and rows[0]["step_ms"] == min(row["step_ms"] for row in alone.values())
    for value, row in found.items():
        assert row["step_ms"] == alone[value]["step_ms"]
        step = reproduced(row["command"])
        assert (str(step[column]), step["step_ms"]) == (value, row["step_ms"])
    table = succeed(*search_of(option), f"--{option}", f"{first}{separator}{second}")
    assert heading in re.split(r"  +", next(line for line in table.splitlines() if line.startswith("#")))


@pytest.mark.parametrize("option, value, more", [
    ("zero", "7", ()),
    ("ranks-per-domain", "100", ("--gpus", 144, "--global-batch", 144, "--profile", "gb200")),
    ("precision", "mxfp8", ("--profile", "h100-sxm")),
    ("cuda-graphs", "attention", ()),
])
def test_a_later_value_is_refused_as_the_first_is(option, value, more):
    first = TYPED[option][0]
    words = ("recommend", "--model", "qwen3-30b-a3b", *more)
    errors = [moesim(*words, f"--{option}", text) for text in (value, f"{first},{value}")]
    assert [each.returncode for each in errors] == [2, 2]
    assert errors[0].stderr == errors[1].stderr and f"--{option}" in errors[0].stderr


def test_options_that_have_an_effect_with_some_searched_value_are_not_called_idle():
    """With one expert-parallel rank slices of experts are exchanged where several ranks share an expert."""
    words = (*search_of("expert-parallel"), "--expert-parallel", 1, "--dispatcher", "deepep")
    idle = "--dispatcher has no effect"
    assert idle in moesim(*words).stderr
    at = words.index("--expert-tensor-parallel")
    assert idle not in moesim(*words[:at], "--expert-tensor-parallel", "1,2", *words[at + 2:]).stderr
