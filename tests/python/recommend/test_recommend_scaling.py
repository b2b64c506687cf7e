"""moesim recommend on several numbers of GPUs."""

import csv
import re

import pytest
from command_line import as_json, as_rows, expect_error, moesim, needs_binary, succeed
from recommend_command import SMALL, reproduced

pytestmark = needs_binary
SCALING = (*SMALL[:3], "--global-batch", 64, *SMALL[7:])  # 64 sequences on any number of GPUs


def test_each_number_of_gpus_has_the_layout_that_a_search_of_its_own_finds(tmp_path):
    path, chart = tmp_path / "scaling.csv", tmp_path / "scaling.svg"
    drawn = moesim(*SCALING, "--gpus", "8:24:8,7", "--software", "megatron-bridge", "--out", path, "--chart", chart)
    if "matplotlib" not in drawn.stderr:
        assert drawn.returncode == 0, drawn.stderr
        assert "scaling pays up to" in chart.read_text(encoding="utf-8")
    rows = list(csv.DictReader(path.open(encoding="utf-8")))
    assert [row["gpus"] for row in rows] == ["7", "8", "16", "24"]
    assert rows[0]["status"] == "refused" and rows[0]["reason"]
    fewest = rows[1]
    for row in rows[1:]:
        alone = as_rows(*SCALING, "--gpus", row["gpus"], "--software", "megatron-bridge", "--best", 1)[0]
        for column in ("status", "step_ms", "memory_gib", "command", "pipeline_layout", "gpu_hours_per_1e12_tokens",
                       "drawn_tokens_per_s_per_gpu", "drawn_memory_gib", "drawn_fits_memory"):
            assert row[column] == alone[column]
        speed = float(row["tokens_per_s_per_gpu"])
        assert float(row["tokens_per_s"]) == pytest.approx(int(row["gpus"]) * speed)
        assert float(row["efficiency"]) == pytest.approx(speed / float(fewest["tokens_per_s_per_gpu"]))
        assert float(row["step_ms_low"]) < float(row["step_ms"]) < float(row["step_ms_high"])
    assert fewest["added_gpu_gain"] == "" and fewest["scaling_pays"] == "true"
    step = as_json("train", "--from", f"{path}:2")
    assert step["step_ms"] == float(fewest["step_ms"])
    from_json = as_json(*SCALING, "--gpus", "7,8,16,24", "--software", "megatron-bridge")
    assert [row["status"] for row in from_json] == ["refused", "ok", "ok", "ok"]


def test_a_table_of_several_numbers_of_gpus_says_how_far_scaling_pays():
    # A batch of 64 sequences leaves 128 GPUs little to do.
    table = succeed(*SCALING, "--gpus", "7,8,16,128")
    assert "64 sequences of 4096 tokens per step" in table and "candidates on 4 numbers of GPUs" in table
    lines = table.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("GPUs"))
    assert [line.split()[0] for line in lines[first + 1:first + 4]] == ["8", "16", "128"]
    assert "scaling pays up to 16 GPUs: an added GPU brings" in table and "from 16 to 128 GPUs" in table
    assert "(rule: at least 50 %, " in table and "no layout on 7 GPUs: none of the" in table
    commands = [line.split() for line in table.split("to reproduce:\n")[1].splitlines()]
    assert [command[0] for command in commands] == ["8", "16", "128"]
    growing = succeed(*SMALL[:3], *SMALL[7:], "--gpus", "8,16")
    assert "16 sequences of 4096 tokens per GPU and step" in growing
    assert "the global batch grows with the GPUs (--global-batch N keeps it)" in growing
    assert "scaling pays up to 16 GPUs, the most searched" in growing


def test_several_numbers_of_gpus_say_what_drawn_routing_makes_of_their_best():
    words = ("recommend", "--model", "mixtral-8x7b", "--gpus", "16,32")
    text = succeed(*words)
    drawn = [reproduced(line.split(maxsplit=1)[1] + " --routing-draws per-layer")
             for line in text.split("to reproduce:\n")[1].splitlines()]
    assert drawn[0]["memory_gib"] > 72 >= drawn[1]["memory_gib"]
    assert (f"tokens/s/GPU: {drawn[0]['tokens_per_s_per_gpu']:.0f} on 16 GPUs ({drawn[0]['memory_gib']:.1f} GiB, would not fit), "
            f"{drawn[1]['tokens_per_s_per_gpu']:.0f} on 32 GPUs ({drawn[1]['memory_gib']:.1f} GiB)\n"
            "  search with routing drawn before you decide: --routing-draws per-layer\n") in text
    assert [row["drawn_fits_memory"] for row in as_rows(*words)] == ["false", "true"]
    asked = succeed(*words, "--routing-draws", "per-layer")
    assert "with routing drawn" not in asked and "drawn_memory_gib" not in as_rows(*words, "--routing-draws", "per-layer")[0]


def test_a_list_of_one_number_of_gpus_is_that_number():
    assert as_rows(*SMALL, "--gpus", "16,16") == as_rows(*SMALL) == as_rows(*SMALL, "--gpus", "16:16:4")


@pytest.mark.parametrize(("words", "code", "text"), [
    (("--gpus", "8,x"), 2, "--gpus: 'x' is not a whole number"),
    (("--gpus", "8:16"), 2, "--gpus: '8:16' is not a range"),
    (("--gpus", "1:100:1"), 2, "--gpus: 100 numbers, each with a search of its own: at most 64"),
    (("--gpus", "8,16", "--best", "3"), 2, "--best with several values of --gpus"),
    (("--gpus", "8,16", "--all", "x.csv"), 2, "--all with several values of --gpus"),
    (("--gpus", "8,16", "--zero", "7"), 2, "--zero"),
    (("--gpus", "1,2"), 1, "none of the 2 numbers of GPUs has a layout; 2: none of the"),
])
def test_what_several_numbers_of_gpus_cannot_be_is_named(words, code, text):
    expect_error(moesim(*SCALING, *words), code, text)


def test_a_column_has_what_is_searched_on_any_number():
    """One rack of 72 GPUs has one placement; on 144 GPUs several are searched, and the command may name one."""
    words = ("recommend", "--model", "qwen3-30b-a3b", "--profile", "gb200", "--tensor-parallel", 1, "--context-parallel", 1,
             "--pipeline-parallel", 1, "--expert-parallel", 8, "--micro-batch", 1, "--recompute", "none", "--zero", 1)
    table = succeed(*words, "--gpus", "72,144")
    heading, first, second = [line.split() for line in table.splitlines() if re.match(r" *(GPUs|72|144)  ", line)][:3]
    assert heading[:12] == ["GPUs", "TP", "CP", "PP", "VP", "EP", "ETP", "batch", "recompute", "ZeRO", "per", "domain"]
    assert first[10] == "72" and second[10] in ("48", "64", "72")
    assert "per domain" not in succeed(*words, "--gpus", "36,72")
