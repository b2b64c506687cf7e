"""moesim recommend --megatron, --from, --config: where a search starts, and how far the layout there is from the best."""

import csv
import io
import json
import re
import shlex
import shutil
import subprocess

import pytest
from command_line import BINARY, as_json, as_rows, expect_error, moesim, needs_binary, succeed

pytestmark = needs_binary

SCRIPT = r"""#!/bin/bash
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \
    --num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 \
    --group-query-attention --num-query-groups 4 --kv-channels 128 --qk-layernorm --swiglu --seq-length 4096 \
    --vocab-size 151936 --make-vocab-size-divisible-by 128 --untie-embeddings-and-output-weights \
    --num-experts 128 --moe-router-topk 8 --moe-ffn-hidden-size 768 \
    --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep --disable-bias-linear --normalization RMSNorm \
    --pipeline-model-parallel-size 2 --expert-model-parallel-size 8 --micro-batch-size 1 --global-batch-size 64 \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --bf16
"""
# Makes searches small.
FEW = ("--tensor-parallel", 1, "--expert-tensor-parallel", 1, "--virtual-pipeline", "1,2", "--recompute", "none/moe_act/full",
       "--context-parallel", 1)
JOB = ("--model", "qwen3-30b-a3b", "--gpus", 16, "--global-batch", 64)
# Routing of few experts is drawn quickly.
MIXTRAL = ("--model", "mixtral-8x7b", "--gpus", 32, "--global-batch", 64)
LAYOUT = ("--pipeline-parallel", 2, "--expert-parallel", 8, "--micro-batch", 1, "--recompute", "moe_act")


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


@pytest.fixture
def short_script(script):
    """With few layers, whose routing is drawn quickly."""
    script.write_text(SCRIPT.replace("--num-layers 48", "--num-layers 8"), encoding="utf-8")
    return script


def steps(tmp_path, *words, job=JOB):
    """A CSV of train with two rows, the second of two sequences per micro-batch."""
    path = tmp_path / "steps.csv"
    succeed("train", *job, *LAYOUT, "--micro-batch", "1,2", *words, "--out", path)
    return path


def parts_apart(table):
    """{part: per cent of the time of 1 that yours takes more}."""
    (line,) = re.findall(r"  where, of the time of 1: (.*?)(?: \(mean of pipeline ranks\))?\n", table)
    parts = re.findall(r"(?:^|, )([a-z][a-zA-Z0-9 ]*(?:, [a-z]+)?) ([+-]\d+\.\d) %", line)
    return {part: float(more) for part, more in parts}


def test_the_parts_of_yours_beside_the_first_are_of_all_pipeline_ranks(tmp_path):
    """The rank that computes longest has the output head in one layout and not in the other."""
    path = tmp_path / "mine.csv"
    mine = ("--model", "qwen3-30b-a3b", "--gpus", 16, "--global-batch", 64, "--expert-parallel", 8, "--micro-batch", 1)
    succeed("train", *mine, "--pipeline-parallel", 2, "--recompute", "full", "--out", path)
    fixed = ("--pipeline-parallel", 1, "--tensor-parallel", 1, "--context-parallel", 1, "--recompute", "full",
             "--expert-parallel", 8, "--micro-batch", 1, "--expert-tensor-parallel", 1, "--memory-share", 1)
    table = succeed("recommend", "--from", f"{path}:1", *fixed)
    assert " (mean of pipeline ranks)\n" in table
    parts = parts_apart(table)
    # Two ranks of one job do half of what one does for twice as many micro-batches: the same work for a token.
    assert not {"embedding, head", "attention", "experts"} & set(parts)
    assert parts["bubble and p2p"] > 1


def test_a_search_from_a_script_is_that_of_its_options_typed(script):
    typed = as_rows("recommend", *JOB, "--dispatcher", "deepep", *FEW)
    found = as_rows("recommend", "--megatron", script, *FEW)
    *best, yours = found
    assert [row["step_ms"] for row in best] == [row["step_ms"] for row in typed]
    assert [row["yours"] for row in found] == ["false"] * len(best) + ["true"] and yours["rank"] == ""
    step = as_json("train", "--megatron", script)
    assert float(yours["step_ms"]) == step["step_ms"] and float(yours["memory_gib"]) == step["memory_gib"]
    assert yours["command"] == f"moesim train --megatron {script}"
    table = succeed("recommend", "--megatron", script, *FEW)
    slower = 100 * (1 - float(yours["tokens_per_s_per_gpu"]) / float(best[0]["tokens_per_s_per_gpu"]))
    assert f"\nyours (run.sh) is {slower:.1f} % slower than 1; slower at all with a chance of 95 % or more\n" in table
    parts = parts_apart(table)
    assert parts["recompute"] > 1
    assert f"  yours  moesim train --megatron {script}" in table
    assert any(line.startswith("yours ") and " full " in line for line in table.splitlines())


def test_rows_have_the_bands_and_the_cost_of_the_table(script):
    found = as_rows("recommend", "--megatron", script, *FEW, "--software", "megatron-bridge")
    table = succeed("recommend", "--megatron", script, *FEW, "--software", "megatron-bridge")
    first = found[0]
    speeds = [float(first[f"tokens_per_s_per_gpu_{end}"]) for end in ("low", "high")]
    likely = float(first["tokens_per_s_per_gpu"]) * float(first["step_ms"]) / float(first["step_ms_likely"])
    assert f" {float(first['tokens_per_s_per_gpu']):.0f}    {likely:.0f} " in table
    assert f" {speeds[0]:.0f} to {speeds[1]:.0f} " in table

    def hours(speed):
        return f"{1e12 / speed / 3600:,.0f}"
    assert (f"\n1 costs {hours(float(first['tokens_per_s_per_gpu']))} GPU hours per 1e12 tokens, likely {hours(likely)}; "
            f"90 % band {hours(speeds[1])} to {hours(speeds[0])}\n") in table
    assert all(row["software"] == "megatron-bridge" and float(row["step_ms_low"]) < float(row["step_ms_high"]) for row in found)


def test_typed_options_go_before_those_of_the_script(script):
    # With the script's gather in bf16 nothing fits on 8 GPUs.
    table = succeed("recommend", "--megatron", script, *FEW, "--gpus", 8, "--precision", "fp8-current",
                    "--gather-precision", "low")
    assert "on 8 x NVIDIA H100" in table and "64 sequences" in table.splitlines()[0] and "fp8-current" in table.splitlines()[0]
    # The layout of the script needs more than 8 GPUs.
    assert "\nyours (run.sh) cannot be simulated: " in table and "\n  yours  " not in table
    table = succeed("recommend", "--megatron", script, *FEW, "--gpus", 32, "--precision", "fp8-current")
    assert f"  yours  moesim train --megatron {script} --gpus 32 --precision fp8-current" in table
    several = as_rows("recommend", "--megatron", script, *FEW, "--precision", "bf16,fp8-current")
    assert several[-1]["yours"] == "true" and several[-1]["precision"] == "bf16"


def test_a_row_of_train_is_compared_whatever_its_layout(tmp_path):
    path = steps(tmp_path, "--zero", 0, "--pipeline-layout", "Et*20|t*28L")
    for line, step in enumerate(as_rows("train", *JOB, *LAYOUT, "--micro-batch", "1,2", "--zero", 0, "--pipeline-layout",
                                        "Et*20|t*28L"), 1):
        found = as_rows("recommend", "--from", f"{path}:{line}", *FEW)
        assert found[-1]["yours"] == "true"
        for column in ("step_ms", "memory_gib", "pipeline_layout", "zero", "micro_batch"):
            assert found[-1][column] == step[column]
    command = found[0]["command"].split()
    for flag in ("--cluster", "--launch-us", "--sequence-length", "--gradients", "--ranks-per-domain"):
        assert flag not in command  # as without them


def test_what_is_not_searched_usually_is_a_candidate_if_yours_has_it(tmp_path):
    path = steps(tmp_path, "--zero", 0, "--recompute", "layernorm")
    free = ("--tensor-parallel", 1, "--expert-tensor-parallel", 1, "--pipeline-parallel", 2)
    every = tmp_path / "all.csv"
    *_, yours = as_rows("recommend", "--from", f"{path}:1", *free, "--all", every)
    with open(every, newline="", encoding="utf-8") as file:
        same = [row for row in csv.DictReader(file) if row["step_ms"] == yours["step_ms"]]
    assert any((row["zero"], row["recompute"]) == ("0", "layernorm") for row in same)


def test_the_best_is_said_to_be_the_best(tmp_path):
    path = tmp_path / "best.csv"
    succeed("recommend", *JOB, *FEW, "--best", 3, "--out", path)
    for place in (1, 2):
        table = succeed("recommend", "--from", f"{path}:{place}", *FEW)
        assert ("\nyours (best.csv:1) is 1\n" if place == 1 else "\nyours (best.csv:2) is 2 and is ") in table


def test_as_much_may_be_lost_as_yours_loses(tmp_path):
    path = steps(tmp_path, "--router", "topk", "--capacity-factor", 1)
    result = moesim("recommend", "--from", f"{path}:1", *FEW, "--best", 1, "--format", "csv")
    assert result.returncode == 0, result.stderr
    best = next(csv.DictReader(io.StringIO(result.stdout)))
    assert "of the tokens' weight, so --max-loss " in result.stderr
    assert best["capacity_factor"] == "1" and best["router"] == "top8" and float(best["counted_loss"]) > 0
    assert "--min-capacity" not in best["command"] and "--capacity-convention" not in best["command"]
    expect_error(moesim("recommend", "--from", f"{path}:9", *FEW), 2, "--from", "has no row 9")


def test_yours_may_be_impossible_on_the_gpus_typed(tmp_path):
    path = steps(tmp_path)
    table = succeed("recommend", "--from", f"{path}:2", *FEW, "--gpus", 8, "--expert-parallel", "4,8")
    assert "\nyours (steps.csv:2) " in table
    assert "\n  yours  moesim train" in table
    table = succeed("recommend", "--from", f"{path}:2", *FEW, "--gpus", 12)
    assert "\nyours (steps.csv:2) cannot be simulated: " in table
    assert "\n  yours  " not in table  # nothing to reproduce
    table = succeed("recommend", "--from", f"{path}:2", *FEW, "--model", "mixtral-8x7b", "--gpus", "16,32")
    assert "\nyours (steps.csv:2) cannot be simulated: " in table


def test_on_several_numbers_of_gpus_yours_is_compared_on_its_own(script):
    table = succeed("recommend", "--megatron", script, *FEW, "--gpus", "8,16")
    assert "64 sequences of 4096 tokens per step" in table
    assert " % slower than the best on 16 GPUs; slower at all with a chance of 95 % or more" in table
    table = succeed("recommend", "--megatron", script, *FEW, "--gpus", "8,32")
    assert "\nyours (run.sh) is on 16 GPUs, where no layout was found or none was asked for\n" in table


def test_a_typed_row_goes_before_the_script_of_a_config(tmp_path, script):
    path = steps(tmp_path)
    config = tmp_path / "search.json"
    config.write_text(json.dumps({"megatron": str(script)}), encoding="utf-8")
    table = succeed("recommend", "--config", config, "--from", f"{path}:2", *FEW)
    assert "\nyours (steps.csv:2) is " in table


def command_of(row):
    return row["command"].split()[1:]


def test_the_command_of_yours_makes_its_step(tmp_path):
    path = steps(tmp_path, job=MIXTRAL)
    for more in (("--max-loss", "2%"), ("--router", "bias-balanced+groups:4:2", "--max-loss", "9%"),
                 ("--router", "bias-balanced+groups:4:2", "--capacity-factor", 1, "--max-loss", "9%")):
        *_, yours = as_rows("recommend", "--from", f"{path}:1", *FEW, "--micro-batch", "1,2", "--expert-parallel", "4,8",
                            "--pipeline-parallel", 2, *more, "--best", 1)
        assert yours["yours"] == "true"
        if "--router" in more:
            assert yours["router"].endswith("+groups:4:2")
        assert as_json(*command_of(yours))["step_ms"] == pytest.approx(float(yours["step_ms"]), rel=1e-6)


def test_yours_is_said_where_nothing_loses_little_enough(tmp_path):
    path = steps(tmp_path)
    table = succeed("recommend", "--from", f"{path}:1", *FEW, "--router", "topk", "--capacity-factor", 1,
                    "--max-loss", "0", "--best", 1)
    assert "nothing loses at most 0 %" in table and "\nyours (steps.csv:1) makes " in table


def test_another_machine_places_ranks_anew(tmp_path):
    path = steps(tmp_path)
    typed = as_json("train", *JOB, *LAYOUT, "--profile", "gb200")
    assert as_json("train", "--from", f"{path}:1", "--profile", "gb200")["step_ms"] == typed["step_ms"]
    *_, yours = as_rows("recommend", "--from", f"{path}:1", *FEW, "--profile", "gb200", "--best", 1)
    assert float(yours["step_ms"]) == pytest.approx(typed["step_ms"], rel=1e-6)


def test_a_number_without_a_layout_is_no_step(tmp_path):
    path = tmp_path / "scaling.csv"
    succeed("recommend", "--model", "qwen3-30b-a3b", "--gpus", "1,8", "--global-batch", 64, *FEW, "--out", path,
            "--chart", tmp_path / "scaling.png")
    assert not (tmp_path / "scaling.png").exists()
    expect_error(moesim("train", "--from", f"{path}:1"), 2, "row 1 of ", "has no layout: ")


def test_what_was_measured_is_not_moved(tmp_path):
    said = "host costs doubled"
    assert said in succeed("recommend", *JOB, *FEW)
    assert said not in succeed("recommend", *JOB, *FEW, "--launch-us", 6, "--host-read-us", 10)
    # Of two times the one that was given stays.
    reads = ("recommend", *JOB, *FEW, "--launch-us", 6)
    assert said not in succeed(*reads) and "host reads doubled" in succeed(*reads)
    assert "host launches doubled" in succeed("recommend", *JOB, *FEW, "--host-read-us", 10)
    said = succeed("recommend", "--model", "qwen3-30b-a3b", "--gpus", 64, "--launch-us", 15)
    assert "(to know better: --host-read-us of a trace, moesim import" in said
    assert "NICs" not in succeed("recommend", *JOB, *FEW, "--cluster", "ideal-switch")


def test_a_config_is_the_flags_typed(tmp_path):
    path = tmp_path / "search.json"
    path.write_text(json.dumps({"model": "qwen3-30b-a3b", "gpus": 16, "global_batch": 64, "virtual-pipeline": [1, 2],
                                "recompute": "none/moe_act/full", "tensor_parallel": 1, "context_parallel": 1,
                                "expert-tensor-parallel": 1}))
    assert as_rows("recommend", "--config", path) == as_rows("recommend", *JOB, *FEW)
    assert as_rows("recommend", "--config", path, "--gpus", 8) == as_rows("recommend", *JOB, *FEW, "--gpus", 8)
    path.write_text(json.dumps({"mode": "prefill", "model": "mixtral-8x7b", "gpus": 8, "expert-parallel": 8,
                                "micro-batch": 1, "sequence-length": 512, "replicas": 1}))
    assert "1 scenarios simulated" in succeed("recommend", "--config", path)
    path.write_text(json.dumps({"gpu": 8}))
    expect_error(moesim("recommend", "--config", path), 2, "search.json", "gpu", "no option of 'moesim recommend'")


def test_one_starting_point_is_enough(tmp_path, script):
    path = steps(tmp_path)
    expect_error(moesim("recommend", "--megatron", script, "--from", f"{path}:1"), 2, "--megatron with --from", "give one")
    for flag, value in (("--megatron", script), ("--from", f"{path}:1")):
        expect_error(moesim("recommend", "--mode", "prefill", flag, value), 2, f"{flag} with --mode prefill")


def test_yours_is_in_the_chart(tmp_path, script):
    chart = tmp_path / "front.svg"
    result = moesim("recommend", "--megatron", script, *FEW, "--chart", chart)
    if "matplotlib" in result.stderr:
        pytest.skip("charts need Python with matplotlib")
    assert result.returncode == 0, result.stderr
    assert "the layout that the search started from" in chart.read_text(encoding="utf-8")


def test_how_a_row_was_drawn_is_not_how_all_candidates_are(tmp_path):
    """Its tokens are enough for counts; those of candidates with tensor ranks are not."""
    path = tmp_path / "steps.csv"
    succeed("train", "--model", "llama2-7b-moe8", "--gpus", 8, "--capacity-factor", 1, "--sequence-length", 1024, "--out", path)
    with open(path, newline="", encoding="utf-8") as file:
        assert [row["fidelity"] for row in csv.DictReader(file)] == ["counts"]
    result = moesim("recommend", "--from", f"{path}:1", "--best", 1, "--format", "csv")
    assert result.returncode == 0 and "--fidelity" not in result.stderr
    first, yours = csv.DictReader(io.StringIO(result.stdout))
    assert "--fidelity" not in first["command"] and yours["yours"] == "true"


FIXED = ("--tensor-parallel", 1, "--context-parallel", 1, "--expert-tensor-parallel", 1, "--pipeline-parallel", 2, "--virtual-pipeline", 1,
         "--expert-parallel", 8, "--micro-batch", 1, "--recompute", "moe_act", "--zero", 1)


@pytest.mark.parametrize("words, drops", [
    (("--router", "topk", "--max-loss", "5%"), ("none", "own-weight")),
    (("--capacity-factor", "dropless,1.1", "--max-loss", "5%"), ("none", "own-weight")),
    (("--capacity-factor", "1.1", "--max-loss", "5%"), ("none", "own-weight")),
    (("--capacity-factor", "1.1,1.25", "--max-loss", "5%", "--padding", "capacity"), ("capacity", "own-weight")),
    (("--capacity-factor", "1.1,1.25", "--max-loss", "5%", "--router-dialect", "paper"), ("capacity", "token-max")),
])
def test_capacities_of_a_script_pad_and_drop_as_megatron_does(short_script, words, drops):
    found = [row for row in as_rows("recommend", "--megatron", short_script, *FIXED, *words) if row["capacity_factor"]]
    assert found and {(row["padding"], row["priority"]) for row in found} == {drops}
    row = found[0]
    step = as_json(*shlex.split(row["command"])[1:])
    assert (step["step_ms"], step["residual_loss"]) == (float(row["step_ms"]), float(row["residual_loss"]))
    if drops == ("none", "own-weight"):
        typed = ("--router", row["router"], "--capacity-factor", row["capacity_factor"], "--pipeline-layout", row["pipeline_layout"])
        again = as_json("train", "--megatron", short_script, *FIXED, *typed)
        assert (again["step_ms"], again["residual_loss"]) == (step["step_ms"], step["residual_loss"])


def test_capacities_of_a_script_with_sigmoid_scores_choose_by_these(short_script):
    short_script.write_text(short_script.read_text(encoding="utf-8").replace("--moe-router-topk 8", "--moe-router-topk 8 --moe-router-score-function sigmoid"))
    words = ("recommend", "--megatron", short_script, *FIXED, "--max-loss", "9%", "--sequence-length", 256)
    row, *_ = as_rows(*words, "--capacity-factor", "1,1.25")
    assert row["score_function"] == "sigmoid" and "--score-function sigmoid" in row["command"]
    step = as_json(*command_of(row))
    assert (step["step_ms"], step["residual_loss"]) == (float(row["step_ms"]), float(row["residual_loss"]))
    # Of what drops nothing the scores do not matter: the order of the logits is theirs.
    lossless, *_ = as_rows(*words, "--capacity-factor", "dropless,1")
    assert lossless["capacity_factor"] == "" and "--score-function" not in lossless["command"]


def test_what_a_script_says_of_capacities_is_not_said_of_what_drops_nothing(short_script):
    words = ("recommend", "--megatron", short_script, *FIXED, "--capacity-factor", "dropless,1.25", "--max-loss", "5%")
    result = moesim(*words)
    assert "capacity is padded" not in result.stderr and "has no effect" not in result.stderr
    assert re.search("^CF: library convention, balanced load at CF 1, not padded ", result.stdout, re.M)
    lossless = [row["command"] for row in as_rows(*words) if row["router"] == "dropless" and row["yours"] == "false"]
    assert not any("--padding" in command or "--priority" in command for command in lossless)
    # Without capacities nothing is drawn for their sake.
    assert "forced balance" in succeed("recommend", "--megatron", short_script, *FIXED)
    assert "forced balance" in succeed("recommend", "--megatron", short_script, *FIXED, "--capacity-factor", "dropless")


def test_a_padded_capacity_is_noted_where_a_software_is_named():
    words = ("recommend", *MIXTRAL, *FIXED, "--capacity-factor", "1.25", "--max-loss", "5%")
    note = "note: capacity is padded, as papers have it; Megatron-LM without --moe-pad-expert-input-to-capacity"
    assert note in moesim(*words, "--software", "megatron-bridge").stderr and note not in moesim(*words).stderr
    assert note not in moesim(*words, "--router-dialect", "megatron").stderr


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("words", [
    ("--gpus", 16, "--max-loss", "1%", "--dispatcher", "deepep,all-to-all"),
    ("--gpus", 8, "--profile", "h100-sxm,h200-sxm", "--precision", "bf16,fp8-current")])
def test_a_search_reads_each_document_once(tmp_path, words):
    trace = tmp_path / "trace"
    search = ("recommend", "--model", "qwen3-30b-a3b", "--global-batch", 64, "--tensor-parallel", 1, "--micro-batch", 1, *words)
    result = subprocess.run(["strace", "-f", "-e", "trace=open,openat", "-o", trace, BINARY, *map(str, search)], capture_output=True,
                            text=True, timeout=300, check=False)
    if "ptrace" in result.stderr:
        pytest.skip("processes may not be traced here")
    assert result.returncode == 0, result.stderr
    opened = re.findall(r"/((?:models|clusters|hardware|dispatchers)/[\w.-]+\.json)", trace.read_text(encoding="utf-8"))
    assert "models/qwen3-30b-a3b.json" in opened
    assert sorted(opened) == sorted(set(opened))
