"""What is said before or beside a result, so that nobody takes it for another."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from command_line import SMALL, as_rows, moesim, needs_binary, succeed

ROOT = Path(__file__).resolve().parents[3]

pytestmark = needs_binary


def test_a_sweep_says_what_cannot_fit_before_it_simulates():
    words = ("sweep", "--model", "mixtral-8x22b", "--gpus", 8, "--expert-parallel", 8, "--profile", "h100-sxm",
             "--sequence-length", 512, "--micro-batch", 1, "--replicas", 2)
    result = moesim(*words, "--router", "top2,dropless", "--capacity-factor", "1,2")
    assert result.returncode == 0, result.stderr
    first = result.stderr.splitlines()[0]
    assert first.startswith("warning: 3 of 3 scenarios cannot fit: at least ") and "80 GiB on h100-sxm" in first
    assert "--zero 3 (" in first
    # The figure is a lower bound of what simulation finds, and the hint is what simulate says.
    least = float(first.split("at least ")[1].split()[0])
    found = [float(line.split()[-4]) for line in result.stdout.splitlines() if "does not fit" in line]
    assert len(found) == 3 and all(least <= need for need in found)
    assert "cannot fit" not in moesim("sweep", *SMALL, "--router", "top1").stderr


def test_what_would_help_is_comparable_with_what_does_not_fit():
    words = ("sweep", "--model", "mixtral-8x22b", "--gpus", 8, "--expert-parallel", 8, "--profile", "h100-sxm", "--sequence-length", 4096,
             "--micro-batch", 1, "--replicas", 1, "--router")
    result = moesim(*words, "dropless", "--format", "csv")
    said = re.match(r"warning: 1 of 1 scenarios cannot fit: at least ([\d.]+) GiB .*; the smallest of them, with an even load of the experts, "
                    r"takes ([\d.]+) GiB; .*these help: (.*)", result.stderr.splitlines()[0])
    least, even = float(said.group(1)), float(said.group(2))
    (row,) = csv.DictReader(io.StringIO(result.stdout))
    assert least < even <= float(row["memory_gib"])
    helps = [float(need) for need in re.findall(r"\((\d+) GiB\)", said.group(3))]
    # Each is less than the step takes; beside the floor, which has no rows of experts, some are more.
    assert max(helps) < even and max(helps) > least
    # Blocks of a capacity are as large whatever the load is.
    assert "even load" not in moesim(*words, "top2").stderr


def test_a_sweep_names_the_convention_of_its_capacity_factors():
    line = "capacity_factor: paper convention, a balanced load needs k"
    assert line in succeed("sweep", *SMALL, "--router", "top1,top2")
    assert "library convention, a balanced load needs 1" in succeed(
        "sweep", *SMALL, "--router", "top2", "--capacity-convention", "library")
    assert "convention, a balanced" not in succeed("sweep", *SMALL, "--router", "dropless")


@pytest.mark.parametrize("command", ["route", "simulate", "sweep"])
def test_a_capacity_factor_that_was_probably_meant_per_route_is_noted(command):
    words = (command, *SMALL, "--experts", 16, "--replicas", 1)
    def said(*more):
        result = moesim(*words, *more)
        assert result.returncode == 0, result.stderr
        return [line for line in result.stderr.splitlines() if "per routed token" in line]
    (line,) = said("--router", "top4", "--capacity-factor", "1.9")
    assert line.startswith("note: --capacity-factor 1.9: in the paper's convention, the default, a balanced load of "
                           "top4 needs 4;") and line.endswith("add --capacity-convention library")
    # C = ceil(1.25 x 512 / 16) = 40 slots of each of 16 experts for 2 x 512 routes: 640 of 1024 fit.
    (line,) = said("--router", "topk", "--top-k", 2, "--capacity-factor", "1.25")
    assert "at least 37.5 % of the routes fail, as with 0.625 per routed token" in line
    # What a balanced load needs, the default, one expert a token, no drops, a convention.
    for more in (["top4", "--capacity-factor", 4], ["top4"], ["top1", "--capacity-factor", "0.5"],
                 ["expert-choice", "--top-k", 4, "--capacity-factor", 1],
                 ["top4", "--capacity-factor", 1, "--capacity-convention", "paper"],
                 ["top4", "--capacity-factor", 1, "--router-dialect", "megatron"]):
        assert not said("--router", *more), more
    if command != "simulate":  # a list is below on purpose, unless it is far below
        assert not said("--router", "top2", "--capacity-factor", "0.5:2:0.5")
        assert len(said("--router", "top4", "--capacity-factor", "1:4:1")) == 1


def test_an_expectation_is_not_called_measured():
    assert "\nif measured " in succeed("simulate", *SMALL)
    assert "if measured, p05 to p95" in succeed("sweep", *SMALL)


def test_a_cluster_of_other_domains_than_the_gpu_usually_has_is_noted():
    words = ("train", "--model", "qwen3-30b-a3b", "--gpus", 64)
    noted = moesim(*words, "--profile", "gb200", "--cluster", "hgx-h100")
    assert noted.returncode == 0
    assert "note: --cluster hgx-h100 has NVLink domains of 8 GPUs; those of gb200 usually have 72" in noted.stderr
    assert "--cluster" not in moesim(*words, "--profile", "gb200").stderr
    assert "--cluster" not in moesim(*words, "--cluster", "hgx-h100").stderr


@pytest.mark.parametrize("words, key", [
    (("train", "--model", "qwen3-30b-a3b", "--gpus", 64), "profile"),
    (("simulate", *SMALL), "profile"),
])
def test_a_cluster_alone_has_its_own_gpus(words, key):
    on = lambda *more: as_rows(*words, *more)[0]
    alone = moesim(*words, "--cluster", "hgx-b200")
    assert "note: --profile b200-sxm, the GPUs of hgx-b200; the default is " in alone.stderr
    assert on("--cluster", "hgx-b200") == on("--cluster", "hgx-b200", "--profile", "b200-sxm")
    assert on("--cluster", "hgx-b200")[key] != on("--cluster", "hgx-b200", "--profile", "h100-sxm")[key]
    assert "the GPUs of" not in moesim(*words, "--cluster", "hgx-b200", "--profile", "h100-sxm").stderr
    assert "the GPUs of" not in moesim(*words, "--cluster", "ideal-node8", "--gpus", 8).stderr  # of no GPU


def test_a_dispatcher_on_a_cluster_alone_is_of_its_gpus(tmp_path):
    words = ("predict", "--op", "dispatch", "--dispatcher", "deepep", "--gpus", 16, "--tokens", 4096, "--hidden", 7168,
             "--experts", 256, "--k", 8, "--cluster", "hgx-b200", "--format", "json")
    alone = json.loads(succeed(*words))
    assert alone["params"]["profile"] == "b200-sxm"
    assert alone == json.loads(succeed(*words, "--profile", "b200-sxm")) | {"params": alone["params"]}
    assert alone["time_us"] != json.loads(succeed(*words, "--profile", "h100-sxm"))["time_us"]


def test_clusters_of_several_gpus_say_whose_kernels_they_have():
    both = moesim("sweep", *SMALL, "--cluster", "hgx-b200,hgx-h100", "--format", "csv")
    assert "kernels are those of a100-sxm-80gb, the default, on all" in both.stderr
    assert {row["profile"] for row in csv.DictReader(io.StringIO(both.stdout))} == {"a100-sxm-80gb"}
    for clusters in ("hgx-b300,hgx-b300-400g", "hgx-b300,generic-8x100g"):
        one = moesim("sweep", *SMALL, "--cluster", clusters, "--format", "csv")
        assert {row["profile"] for row in csv.DictReader(io.StringIO(one.stdout))} == {"b300-sxm"}
    assert "--profile" not in moesim("route", *SMALL, "--cluster", "hgx-b200").stderr


def test_bubbles_of_layout_and_train_say_by_which_times():
    words = ("--model", "qwen3-30b-a3b", "--gpus", 64, "--pipeline-parallel", 2)
    assert "moesim train prices them, its bubble is another" in succeed("layout", *words)
    assert "by the priced times of stages" in succeed("train", *words)


def test_expert_groups_that_stay_as_gpus_grow_are_said():
    words = ("sweep", "--sequence-length", 256, "--micro-batch", 1, "--replicas", 1, "--mode", "prefill", "--gpus", "8,16,32")
    note = "note: --expert-parallel 8 on 8, 16, 32 GPUs alike, the default: 32 GPUs are 4 groups of 8"
    assert note + "\n" in moesim(*words).stderr  # its 8 experts allow no larger ones
    more = moesim(*words, "--model", "olmoe-1b-7b")
    assert note + "; for larger groups: --expert-parallel 16,32\n" in more.stderr
    for quiet in ((*words, "--expert-parallel", 8), (*words[:-1], 16), (*words, "--router", "dense")):
        assert "groups of" not in moesim(*quiet).stderr


def test_what_a_models_own_router_passes_over_is_no_token_loss():
    """Of groups and biases that a model was trained with; another router's loss is one."""
    words = ("route", "--model", "deepseek-v3", "--gpus", 8, "--replicas", 1, "--tokens-per-gpu", 256)
    own = next(line for line in succeed(*words).splitlines() if line.startswith("residual_loss"))
    assert "no token loss: of the weight of a token's 8 best experts, which the router's groups, bias or sampling pass over" in own
    other = next(line for line in succeed(*words, "--router", "topk", "--top-k", 8, "--capacity-factor", 1).splitlines()
                 if line.startswith("residual_loss"))
    assert "  token loss: share of a token's top-k probability" in other


H800 = "NVIDIA H800 with kernels of"


def test_gpus_that_another_one_prices_are_named():
    words = ("train", "--model", "qwen3-30b-a3b", "--gpus", 64)
    assert f"64 x {H800} NVIDIA H100 80GB HBM3 (hgx-h800)" in succeed(*words, "--cluster", "hgx-h800")
    assert "64 x NVIDIA H100 80GB HBM3 (hgx-h100)" in succeed(*words)


STEP = (*SMALL, "--profile", "h100-sxm")


@pytest.mark.parametrize("command", [("simulate",), ("explain", "--measured", "500ms")])
def test_steps_of_simulate_name_such_gpus_too(command):
    assert f" on 8 x {H800} h100-sxm (hgx-h800), " in succeed(*command, *STEP, "--cluster", "hgx-h800")
    assert " on 8 x h100-sxm (hgx-h100), " in succeed(*command, *STEP)


@pytest.mark.parametrize("cluster, chart", [("hgx-h800", ("--x", "capacity_factor")), ("hgx-h800", ("--chart", "loss")),
                                            ("mine.json", ())])
def test_charts_of_such_gpus_name_them(cluster, chart, tmp_path):
    pytest.importorskip("matplotlib", reason="charts need matplotlib")
    (tmp_path / "mine.json").write_text((ROOT / "profiles" / "clusters" / "hgx-h800.json").read_text())
    succeed("sweep", *STEP, "--cluster", cluster, "--router", "top2", "--capacity-factor", "1,2", "--out", "s.csv", cwd=tmp_path)
    succeed("plot", "s.csv", *chart, "--out", "s.svg", cwd=tmp_path)
    assert f" on 8 x {H800} h100-sxm" in (tmp_path / "s.svg").read_text()


def test_the_chart_of_recommend_names_them(tmp_path):
    pytest.importorskip("matplotlib", reason="charts need matplotlib")
    succeed("recommend", "--model", "qwen3-30b-a3b", "--gpus", 16, "--cluster", "hgx-h800", "--chart", "r.svg", cwd=tmp_path)
    assert f"qwen3-30b-a3b on 16 GPUs ({H800} h100-sxm, hgx-h800)" in (tmp_path / "r.svg").read_text()
