"""What `recommend` says of switches that it does not search unless it is asked to."""

import csv
import json
import re
import shlex

import pytest
from command_line import as_json, moesim, needs_binary, succeed

pytestmark = needs_binary
# Each has a few hundred candidates at most.
SMALL = ("recommend", "--model", "qwen3-30b-a3b", "--gpus", 16, "--global-batch", 64, "--micro-batch", "1,2",
         "--tensor-parallel", "1,2", "--expert-tensor-parallel", 1, "--recompute", "none/moe_act/full")
CHUNKS = ("recommend", "--model", "qwen3-30b-a3b", "--gpus", 64, "--micro-batch", "1,2", "--tensor-parallel", 1,
          "--pipeline-parallel", "1,2", "--expert-parallel", "8,16", "--recompute", "none/moe_act")
PIPELINE = ("recommend", "--model", "deepseek-v3", "--gpus", 256, "--profile", "h200-sxm", "--global-batch", 1024,
            "--precision", "fp8-block", "--dispatcher", "deepep", "--tensor-parallel", 1, "--micro-batch", 1,
            "--expert-parallel", 32, "--pipeline-parallel", 8, "--virtual-pipeline", 1, "--recompute", "none/moe_act/full")


def step_of(command):
    return as_json(*shlex.split(command)[1:])


def gains_of(table, name="1"):
    """What is said to gain, by the option as it is typed."""
    said = re.findall(rf"^not searched, speed of {name} with each alone: (.*)\n  search them: (.*)$", table, re.M)
    if not said:
        return {}, ""
    (gains, search), = said
    return {option: float(gain) for option, gain in re.findall(r"(--\S+ \S+) \+(\d+) %", gains)}, search


def command_of(table):
    return re.search(r"^  1  (moesim train .*)$", table, re.M)[1]


def gain_of(command, first, option, value):
    """Of the fastest that fits, in %, by `train`; None: there is none."""
    commands = [f"{command} {option} {value}"]
    if option == "--ep-overlap" and "--pipeline-parallel" in command and "--virtual-pipeline" not in command:
        commands = [f"{commands[0]} --virtual-pipeline {chunks}" for chunks in (2, 4, 8)]
    elif option == "--pipeline-schedule":
        # Layers that do not divide are divided by a search.
        search = re.sub(r"^moesim train| --(virtual-pipeline|pipeline-layout) \S+", "", commands[0])
        usual = {"--tensor-parallel": 1, "--context-parallel": 1, "--expert-tensor-parallel": 1, "--zero": 1,
                 "--recompute": "none", "--micro-batch": 1, "--virtual-pipeline": 1}
        rest = [word for size, value in usual.items() if f"{size} " not in search for word in (size, value)]
        ran = moesim("recommend", *shlex.split(search), *rest, "--best", 1)
        commands = [command_of(ran.stdout)] if ran.returncode == 0 else []
    speeds = []
    for each in commands:
        ran = moesim(*shlex.split(each)[1:], "--format", "json")
        if ran.returncode == 0 and (step := json.loads(ran.stdout))["memory_gib"] <= 0.9 * (141 if "h200" in each else 80):
            speeds.append(step["tokens_per_s_per_gpu"])
    return 100 * (max(speeds) / first - 1) if speeds else None


@pytest.mark.parametrize("words", [SMALL, CHUNKS, PIPELINE])
def test_gains_of_switches_are_those_of_train(words):
    table = succeed(*words)
    gains, search = gains_of(table)
    command = command_of(table)
    first = step_of(command)["tokens_per_s_per_gpu"]
    tried = {"--ep-overlap": ["on"], "--dispatcher": ["deepep", "hybridep"], "--dispatch-precision": ["low"],
             "--cuda-graphs": ["router", "parts", "layers"], "--optimizer-moments": ["bf16"],
             "--pipeline-schedule": ["zb-h1", "zb-h2", "dualpipe", "dualpipe-v"]}
    for option in set(tried) - set(words) - (set() if " --pipeline-parallel " in command else {"--pipeline-schedule"}) \
            - ({"--ep-overlap"} if "--virtual-pipeline" in words else set()):  # asked for one chunk
        found = {value: gain for value in tried[option] if (gain := gain_of(command, first, option, value)) is not None}
        said = {value: gains[f"{option} {value}"] for value in tried[option] if f"{option} {value}" in gains}
        if max(found.values(), default=0) < 2:
            assert not said, option
            continue
        (value, gain), = said.items()
        assert gain == pytest.approx(max(found.values()), abs=0.51) and found[value] == max(found.values()), option
        assert re.search(rf"{option} (\S+,)?{value}( |;|$)", search)
    assert gains


def test_the_search_of_the_switches_finds_at_least_what_they_gain():
    table = succeed(*CHUNKS)
    gains, search = gains_of(table)
    assert "--ep-overlap on" in gains and "--ep-overlap off,on" in search
    wider = succeed(*CHUNKS, *shlex.split(search))
    speeds = [step_of(command_of(each))["tokens_per_s_per_gpu"] for each in (table, wider)]
    assert 100 * (speeds[1] / speeds[0] - 1) >= max(gains.values()) - 0.51
    # Each was asked for.
    assert not set(gains) & set(gains_of(wider)[0])


def test_switches_that_cannot_be_are_left_out():
    table = succeed(*SMALL, "--recompute", "full")
    gains, _ = gains_of(table)
    assert "--dispatcher hybridep" in gains and "--ep-overlap on" not in gains
    asked = succeed(*SMALL, "--ep-overlap", "off", "--dispatcher", "all-to-all")
    assert not {"--ep-overlap on", "--dispatcher hybridep"} & set(gains_of(asked)[0])
    dense = succeed("recommend", "--model", "llama3-70b-12layers", "--gpus", 16, "--global-batch", 64, "--best", 1)
    assert not any(option.split()[0] in ("--ep-overlap", "--dispatcher") for option in gains_of(dense)[0])


def test_of_several_numbers_of_gpus_the_last_that_pays_is_looked_at():
    table = succeed(*SMALL, "--gpus", "16,32")
    most = int(re.search(r"scaling pays up to (\d+) GPUs", table)[1])
    gains, _ = gains_of(table, f"the best on {most} GPUs")
    assert gains and gains == gains_of(succeed(*SMALL, "--gpus", most))[0]


def test_a_search_of_capacity_factors_says_what_a_router_without_one_gains():
    words = (*SMALL[:-2], "--recompute", "none", "--dispatcher", "all-to-all")
    table = succeed(*words, "--capacity-factor", "1.5,2")
    gains, search = gains_of(table)
    command = command_of(table)
    other = re.sub(r" --capacity-factor \S+", " --routing-draws per-layer", command)
    assert other != command
    gain = 100 * (step_of(other)["tokens_per_s_per_gpu"] / step_of(command)["tokens_per_s_per_gpu"] - 1)
    assert gain > 2 and gains["--capacity-factor dropless"] == pytest.approx(gain, abs=0.51)
    assert search.startswith("--capacity-factor 1.5,2,dropless")
    searched = succeed(*words, "--capacity-factor", "1.5,2,dropless")
    assert "--capacity-factor dropless" not in gains_of(searched)[0]
    assert "--capacity-factor dropless" not in gains_of(succeed(*words))[0]


def test_the_front_goes_by_the_losses_that_are_told(tmp_path):
    """A layout whose router loses next to nothing, as others draw it, may lose nothing by its own draws: a few routes
    more or less put a slower step on no front."""
    words = ("recommend", "--model", "qwen3-30b-a3b", "--gpus", 16, "--global-batch", 64, "--micro-batch", "1,2",
             "--tensor-parallel", 1, "--expert-tensor-parallel", 1, "--context-parallel", 1, "--expert-parallel", "4,8",
             "--pipeline-parallel", "1,2,4", "--virtual-pipeline", "1,12", "--recompute", "none/full", "--capacity-factor", "1,2",
             "--zero", "1,2")
    table = succeed(*words)
    losses = re.findall(r"^[a-z]  *(<?0?\.?\d\S*) ", table, re.M)
    assert losses[-1] == "<0.001" and "0.000" not in losses, table
    succeed(*words, "--out", tmp_path / "f.csv")
    with open(tmp_path / "f.csv", newline="") as file:
        found = [(row["on_front"] == "true", float(row["tokens_per_s_per_gpu"]), float(row["residual_loss"]))
                 for row in csv.DictReader(file)]
    front = [row for row in found if row[0]]
    assert len(front) == len(losses)
    for _, speed, loss in front:
        assert not any(other > speed and less <= loss for _, other, less in found)
    least = min(loss for _, _, loss in front)
    assert 0 < least < 1e-4 and any(loss == 0 for _, _, loss in found)


def test_what_makes_the_band_of_the_first_wide_is_said_as_train_does():
    words = (*SMALL[:-2], "--recompute", "none", "--dispatcher", "all-to-all")
    for software in ((), ("--software", "aws")):
        table = succeed(*words, *software)
        name, remedy = re.search(r"^  its band is wide most of all because: (.*); narrower with: (.*)$", table, re.M).groups()
        text = succeed(*shlex.split(command_of(table))[1:], *software)
        assert f"wide most of all because: {name}\nnarrower with: {remedy}\n" in text
        assert ("the software is not named" in name) == (software == ())
