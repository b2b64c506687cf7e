"""The order that moesim recommend prints: how sure it is that the first is faster than the others."""

import csv
import math
import re
import shlex

import pytest
from command_line import as_json, as_rows, moesim, needs_binary, succeed

pytestmark = needs_binary
JOB = ("recommend", "--model", "qwen3-30b-a3b", "--gpus", 16, "--global-batch", 64, "--software", "megatron-bridge",
       "--context-parallel", 1, "--expert-tensor-parallel", 1, "--zero", 1)
APART = (*JOB, "--tensor-parallel", "1,4", "--pipeline-parallel", "1,2,4", "--virtual-pipeline", 1, "--expert-parallel",
         "4,8", "--micro-batch", "1,2", "--recompute", "none/full", "--best", 16)


def chances_of(table):
    """{place: the chance that it is slower than the first, in %, or none} of the printed order."""
    order = re.search(r"^order: (.*)$", table, re.MULTILINE).group(1)
    found = {}
    for part in order.split("; "):
        match = re.fullmatch(r"([\d, and]+) (?:is|are) (?:within the noise of 1|slower than 1 with a chance of "
                             r"(\d+) % or more)", part)
        assert match, part
        for place in re.findall(r"\d+", match.group(1)):
            found[int(place)] = int(match.group(2)) if match.group(2) else None
    return found


def commands_of(table):
    return {int(place): shlex.split(command) for place, command in re.findall(r"^  (\d+)  moesim (train .*)$", table,
                                                                                re.MULTILINE)}


def levels_beside_the_first(table, tmp_path):
    """{place: the level at which `train --baseline` says more than noise, or none} of the printed commands."""
    first = tmp_path / "first.csv"
    commands = commands_of(table)
    succeed(*commands.pop(1), "--out", first)
    steps = {place: as_json(*words, "--baseline", first)
             for place, words in commands.items()}
    assert all(step["speed_over_baseline"] <= 1.0005 for step in steps.values())
    return {place: step["beyond_noise_level"] for place, step in steps.items()}


def expect_chances_of_levels(table, tmp_path):
    """A band leaves as much on either side: what lies wholly below 1 at 80 % is slower with a chance of 90 %."""
    chances = chances_of(table)
    levels = levels_beside_the_first(table, tmp_path)
    assert chances == {place: None if level is None else round(50 * (1 + level)) for place, level in levels.items()}
    return chances


def test_the_order_says_the_chance_of_one_side(tmp_path):
    chances = expect_chances_of_levels(succeed(*APART), tmp_path)
    assert {75, 90, 95} <= set(chances.values())


def test_another_capacity_alone_is_ordered_by_pairs_of_capacity(tmp_path):
    """As train --baseline compares them; a layout that differs in more is ordered by pairs that do."""
    words = ("recommend", "--model", "mixtral-8x7b", "--gpus", 64, "--router", "topk", "--max-loss", "20%",
             "--tensor-parallel", 1, "--context-parallel", 1, "--virtual-pipeline", 1, "--expert-parallel", 8,
             "--expert-tensor-parallel", 1, "--micro-batch", 1, "--recompute", "full", "--zero", 1)
    pairs = "48 published pairs that differ in router and capacity alone)"
    table = succeed(*words, "--pipeline-parallel", 2, "--capacity-factor", "1,1.25,1.5")
    assert expect_chances_of_levels(table, tmp_path) == {2: 95, 3: 95}
    assert pairs in table and "groups of pairs" not in table
    within = re.search(r"differ as 1 and \d do are within (\d+) %\n.*, 90 % within (\d+) %; 48 published", table)
    assert int(within.group(1)) < 5 and int(within.group(2)) < 15
    mixed = succeed(*words, "--pipeline-parallel", "2,4", "--capacity-factor", "1,1.25", "--distinct", "chunks")
    chances = expect_chances_of_levels(mixed, tmp_path)
    assert None in chances.values() and 95 in chances.values()
    assert pairs in mixed and "groups of pairs" in mixed


def shades_of(words, tmp_path):
    """{share: of which} of the noise that the chart of a search shows; the table of the search."""
    chart = tmp_path / "front.svg"
    result = moesim(*words, "--chart", chart)
    if result.returncode == 3:
        pytest.skip("charts need Python with matplotlib")
    assert result.returncode == 0, result.stderr
    found = re.findall(r"within (\d+) % of the best: noise, at even odds([^<]*)", chart.read_text(encoding="utf-8"))
    return {which: int(share) for share, which in found}, result.stdout


def test_the_chart_shades_the_noise_of_another_capacity_apart_from_that_of_another_layout(tmp_path):
    """The percentages are those of the text below the table."""
    words = ("recommend", "--model", "mixtral-8x7b", "--gpus", 64, "--router", "topk", "--max-loss", "20%",
             "--tensor-parallel", 1, "--context-parallel", 1, "--virtual-pipeline", 1, "--expert-parallel", 8,
             "--expert-tensor-parallel", 1, "--micro-batch", 1, "--recompute", "full", "--zero", 1, "--distinct", "chunks")
    alone, table = shades_of((*words, "--pipeline-parallel", 2, "--capacity-factor", "1,1.25,1.5"), tmp_path)
    (near,) = map(int, re.findall(r"do are within (\d+) %", table))
    assert alone == {"": near}
    mixed, table = shades_of((*words, "--pipeline-parallel", "2,4", "--capacity-factor", "1,1.25"), tmp_path)
    near = {known.strip(): int(share) for share, known in re.findall(r"do are within (\d+) %\n.*?; ([^;)]*)", table)}
    of_pairs = next(share for known, share in near.items() if "differ in router and capacity alone" in known)
    of_others = next(share for known, share in near.items() if known.endswith("groups of pairs"))
    assert of_pairs < of_others
    assert mixed == {", for its layout with another router or CF": of_pairs, ", for all others": of_others}


def test_passes_are_ordered_as_beside_a_baseline_of_a_sweep():
    """By ratios, in which errors that both share cancel, not by whether two bands overlap."""
    words = ("--mode", "prefill", "--model", "olmoe-1b-7b", "--gpus", 16, "--profile", "h100-sxm", "--expert-parallel", 8,
             "--capacity-convention", "library", "--sequence-length", 512, "--replicas", 4, "--micro-batch", "4,8",
             "--router", "topk", "--capacity-factor", "1,1.25")
    table = succeed("recommend", *words, "--max-loss", "20%")
    found = as_rows("recommend", *words, "--max-loss", "20%")
    best = {int(row["rank"]): row for row in found if row["rank"]}
    assert (best[1]["capacity_factor"], best[1]["micro_batch"]) == ("1", "8")
    swept = as_rows("sweep", *words, "--baseline", "capacity-factor=1,micro-batch=8")
    beside = {(row["capacity_factor"], row["micro_batch"]): row for row in swept}
    columns = ("speed_over_baseline", "speed_over_baseline_p05", "speed_over_baseline_p95", "within_noise")
    for row in found:
        same = beside[row["capacity_factor"], row["micro_batch"]]
        assert [row[name] for name in columns] == [same[name] for name in columns]
    chances = chances_of(table)
    assert chances == {place: None if row["within_noise"] == "true" else 95 for place, row in best.items() if place > 1}
    assert set(chances.values()) == {None, 95}
    likely = float(best[1]["tokens_per_s_per_gpu"]) * float(best[1]["step_ms"]) / float(best[1]["step_ms_p50"])
    first, second = (re.search(rf"^{place}  .*$", table, re.MULTILINE).group(0).split() for place in (1, 2))
    assert int(first[6]) == pytest.approx(likely, abs=1)
    lost = 100 * (float(best[2]["counted_loss"]) - float(best[1]["counted_loss"]))
    assert (f"{lost:.2f} % of tokens' weight" in " ".join(second)) == (lost > 0)


@pytest.fixture
def own_software(tmp_path):
    """A document of twelve measured steps: 1.3 times the predictions, each 1 % off."""
    path, out = tmp_path / "steps.csv", tmp_path / "own.json"
    job = [word for at, word in enumerate(JOB[1:]) if "--software" not in JOB[at:at + 2]]
    predicted = as_rows("train", *job, "--pipeline-parallel", "1,2", "--expert-parallel", "4,8", "--micro-batch", "1,2,4", "--recompute",
                        "full")
    rows = [{**row, "measured_ms": 1.3 * float(row["step_ms"]) * (1.01 if at % 2 else 0.99)}
            for at, row in enumerate(predicted)]
    assert len(rows) == 12
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    succeed("calibrate", path, "--out", out)
    return out


def log_width(row, low, high):
    return math.log(float(row[high]) / float(row[low]))


def test_ones_own_software_is_ordered_by_its_own_steps(tmp_path, own_software):
    """Not by published pairs of software that is not known, which are farther apart than its bands."""
    words = [own_software if word == "megatron-bridge" else word for word in APART]
    table = succeed(*words)
    chances = expect_chances_of_levels(table, tmp_path)
    assert set(chances.values()) == {90, 95}
    assert "; 12 of your own steps" in table and "groups of pairs" not in table and "no measured step" not in table
    # Layouts that none of the rows has, tensor parallelism of 4 here, widen it.
    assert "wider by what 1 or" in table and "none of your calibrated steps)" in table


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_ratio_of_ones_own_software_is_not_wider_than_its_bands(tmp_path, own_software, form):
    words = [word for word in JOB[1:] if word != "megatron-bridge"]
    words[words.index("--software") + 1:words.index("--software") + 1] = [own_software]
    words = ("train", *words, "--recompute", "full")
    one = (*words, "--pipeline-parallel", 2, "--expert-parallel", 8, "--micro-batch", 2)
    base = tmp_path / f"one.{form}"
    succeed(*one, "--out", base, "--format", form)
    bands = []
    for other in (("--expert-parallel", 8, "--micro-batch", 4), ("--expert-parallel", 4, "--micro-batch", 1)):
        step = as_json(*words, *other, "--baseline", base)
        first = as_json(*one)
        own = math.hypot(*(log_width(row, "step_ms_low", "step_ms_high") for row in (first, step)))
        bands.append(log_width(step, "speed_over_baseline_low", "speed_over_baseline_high"))
        assert bands[-1] <= own * 1.0001
        assert "; by 12 of your own steps\n" in succeed(*words, *other, "--baseline", base)
    # Two that differ little are told apart best.
    step = as_json(*one, "--baseline", base)
    assert log_width(step, "speed_over_baseline_low", "speed_over_baseline_high") <= min(bands)
    listed = succeed(*words, "--pipeline-parallel", "2,1", "--expert-parallel", 8, "--micro-batch", "2,4")
    assert "the first and any other is off by at most\n" in listed and "  by 12 of your own steps\n" in listed
    assert "published pairs" not in listed
