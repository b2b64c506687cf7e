"""A search that Ctrl-C or --time-limit ends before its best are proven."""

import csv
import re
import signal
import subprocess
import time

import pytest
from command_line import BINARY, Terminal, as_rows, expect_error, moesim, needs_binary, succeed
from recommend_command import SMALL

pytestmark = needs_binary

# Some seconds of draws, rectified, so that bounds are far from exact.
LONG = ("recommend", "--model", "qwen3-30b-a3b", "--gpus", "64", "--global-batch", "512", "--router", "topk,topk+ir",
        "--capacity-factor", "1,1.25,1.5", "--padding", "none", "--max-loss", "2%", "--jobs", "1", "--recompute", "none/moe_act",
        "--tensor-parallel", "1", "--expert-tensor-parallel", "1")


def interrupted_where(text, *words):
    """The exit code, and what was told, of a search that is interrupted once its progress line has the text."""
    terminal = Terminal()
    process = subprocess.Popen([BINARY, *map(str, words)], stdout=subprocess.PIPE, stderr=terminal.end, text=True)
    while text not in terminal.so_far():
        assert process.poll() is None, terminal.so_far()
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    return process.returncode, out, terminal.text()


@pytest.mark.slow
def test_an_interrupted_search_prints_the_best_so_far_and_what_is_left(tmp_path):
    code, table, told = interrupted_where("best so far", *LONG)
    assert code == 130 and "moesim: interrupted: the best so far are not proven" in told
    assert re.search(r"best so far \d+ tokens/s/GPU, ([\d,]+ may be faster|\d+ proven)", told)
    assert " were simulated, then the search was stopped: NOT PROVEN (see below)\n" in table
    number, place, most = re.search(
        r"^not proven: ([\d,]+) candidates? could still be faster than (\d), the best of them by at most ([\d.]+) %$", table, re.M).groups()
    assert int(number.replace(",", "")) > 0 and "\nleft out, as the search was stopped: near twins, " in table
    assert "the fastest of these if one assumption moves" not in table and "\n  1  moesim train " in table
    # By the whole search: no more is gained than was said.
    whole = as_rows(*LONG)
    assert all(row["proven"] == "true" and float(row["unproven_gain"]) == 0 for row in whole if row["rank"])
    speed = speeds_of(table)[int(place) - 1]
    best = float(whole[int(place) - 1]["tokens_per_s_per_gpu"])
    assert speed <= best * 1.0001 and best <= speed * (1 + (float(most) + 0.06) / 100)


def speeds_of(table):
    """Of the best, in order."""
    names, *rows = table.split("\n\n")[1].splitlines()
    place = re.split(r"  +", names).index("tokens/s/GPU")
    return [float(re.split(r"  +", row)[place]) for row in rows if re.match(r"\d+  ", row)]


@pytest.mark.slow
def test_rows_of_an_interrupted_search_say_that_they_are_not_proven(tmp_path):
    path = tmp_path / "best.csv"
    code, out, told = interrupted_where("best so far", *LONG, "--out", path)
    assert code == 130 and out == "" and f": {path}" in told
    every = list(csv.DictReader(path.open()))
    rows = [row for row in every if row["rank"]]
    assert rows and rows[-1]["proven"] == "false"
    assert all(row["proven"] == "false" for row in every if not row["rank"])  # of the front
    for row in rows:
        assert (float(row["unproven_gain"]) > 0) == (row["proven"] == "false")


def test_a_time_that_is_over_before_the_first_step_leaves_nothing(tmp_path):
    path = tmp_path / "best.csv"
    result = moesim("recommend", "--model", "qwen3-235b-a22b", "--gpus", "512", "--max-loss", "1%", "--jobs", "1", "--time-limit", "0.2s",
                    "--out", path)
    assert result.returncode == 124 and not path.exists()
    assert re.search(r"^moesim: stopped after 0.2 s \(--time-limit\) at [\d,]+ candidates.*: no result is kept$", result.stderr, re.M)


def test_a_search_that_ends_in_time_is_the_same():
    assert succeed(*SMALL, "--time-limit", "2h") == succeed(*SMALL)


def test_several_numbers_of_gpus_share_the_time():
    result = moesim("recommend", "--model", "qwen3-235b-a22b", "--gpus", "256,512", "--max-loss", "1%", "--jobs", "1", "--time-limit", "1s")
    assert result.returncode == 124 and "stopped after 1 s (--time-limit)" in result.stderr


@pytest.mark.parametrize("text", ["0", "5m", "-1", "1e3", "8000h", "min"])
def test_a_time_that_is_none_is_refused(text):
    expect_error(moesim(*SMALL, "--time-limit", text), 2, "--time-limit", "90s, 5min or 2h")


def test_all_candidates_have_no_limit(tmp_path):
    expect_error(moesim(*SMALL, "--time-limit", "5min", "--all", tmp_path / "a.csv"), 2, "--time-limit with --all")


@pytest.mark.slow
def test_an_interrupt_keeps_the_candidates_of_all_that_were_simulated(tmp_path):
    path, whole = tmp_path / "all.csv", tmp_path / "whole.csv"
    before = "a,b\n1,2\n"
    path.write_text(before)
    words = (*LONG, "--pipeline-parallel", "1,2", "--expert-parallel", "8,16", "--virtual-pipeline", 1, "--micro-batch", 1, "--zero", 1,
             "--cuda-graphs", "none")
    code, out, told = interrupted_where(" simulated", *words, "--all", path)
    assert code == 130 and out == ""
    done, count = re.search(rf"moesim: interrupted: (\d+) of (\d+) candidates: {path}", told).groups()
    # What was there is not of this run.
    assert f"kept as {path}.old" in told and (tmp_path / "all.csv.old").read_text() == before
    succeed(*words, "--all", whole)
    head, *rows = path.read_text().splitlines()
    every = whole.read_text().splitlines()
    assert 0 < int(done) == len(rows) < int(count) == len(every) - 1
    assert head == every[0] and set(rows) <= set(every)
