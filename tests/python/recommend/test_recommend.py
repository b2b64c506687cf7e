"""moesim recommend: the fastest layouts of a training job, and the commands that reproduce them."""

import csv
import io
import json
import re
import shlex
import signal
import subprocess
import time

import pytest
from command_line import BINARY, expect_error, moesim, needs_binary, succeed

pytestmark = needs_binary
# A search of a few hundred candidates.
SMALL = ("recommend", "--model", "qwen3-30b-a3b", "--gpus", 16, "--global-batch", 64, "--micro-batch", "1,2",
         "--tensor-parallel", "1,2", "--expert-tensor-parallel", "1", "--virtual-pipeline", "1,2",
         "--recompute", "none/moe_act/full")


def rows_of(*words):
    return list(csv.DictReader(io.StringIO(succeed(*words, "--format", "csv"))))


def reproduced(command):
    words = shlex.split(command)
    assert words[:2] == ["moesim", "train"]
    return json.loads(succeed(*words[1:], "--format", "json"))


def layout_of(row):
    return tuple(row[key] for key in ("tensor_parallel", "context_parallel", "pipeline_parallel", "expert_parallel",
                                      "expert_tensor_parallel", "micro_batch", "dispatcher",
                                      "ep_overlap", "capacity_factor", "router"))


def test_each_command_prints_the_same_figures():
    rows = rows_of(*SMALL)
    assert [row["rank"] for row in rows] == ["1", "2", "3", "4", "5"]
    for row in rows:
        step = reproduced(row["command"])
        assert step["step_ms"] == float(row["step_ms"])
        assert step["tokens_per_s_per_gpu"] == float(row["tokens_per_s_per_gpu"])
        assert step["memory_gib"] == float(row["memory_gib"]) <= 0.9 * 80
        assert step["pipeline_layout"] == row["pipeline_layout"]
        for key in ("tensor_parallel", "expert_parallel", "virtual_pipeline", "zero"):
            assert step[key] == int(row[key])
        assert step["recompute"] == row["recompute"]


def test_the_best_five_are_the_best_of_all_candidates(tmp_path):
    every = tmp_path / "all.csv"
    rows = rows_of(*SMALL, "--all", every)
    with open(every, newline="", encoding="utf-8") as file:
        candidates = list(csv.DictReader(file))
    assert len(candidates) > 300
    best = []
    for row in sorted((row for row in candidates if row["fits_memory"] == "true"),
                      key=lambda row: float(row["step_ms"])):
        if layout_of(row) not in [layout_of(other) for other in best]:
            best.append(row)
    assert [row["step_ms"] for row in rows] == [row["step_ms"] for row in best[:5]]
    assert [layout_of(row) for row in rows] == [layout_of(row) for row in best[:5]]
    assert all(float(row["memory_gib"]) <= 72 for row in rows)


def test_rows_have_the_memory_that_a_step_may_take(tmp_path):
    """Less than all of the GPU's, which `train` goes by."""
    every = tmp_path / "all.csv"
    assert {row["memory_limit_gib"] for row in rows_of(*SMALL, "--memory-share", "0.8", "--all", every)} == {"64"}
    with open(every, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["fits_memory"] for row in rows} == {"true", "false"}
    assert all((row["fits_memory"] == "true") == (float(row["memory_gib"]) <= float(row["memory_limit_gib"])) for row in rows)
    between = next(at for at, row in enumerate(rows, 1) if 64 < float(row["memory_gib"]) < 80)
    step = json.loads(succeed("train", "--from", f"{every}:{between}", "--format", "json"))
    assert step["fits_memory"] is True and "memory_limit_gib" not in step


@pytest.mark.parametrize("searched,words,note", [
    (("--context-parallel", "1,2"), ("--context-method", "all-to-all"), "--context-method"),
    (("--tensor-parallel", "1,2"), ("--tensor-overlap", "on"), "--tensor-overlap"),
    (("--recompute", "moe/none"), ("--offload", "moe_act"), "--offload"),
    (("--expert-parallel", "1,8"), ("--host-read-us", 30), "--host-read-us"),
    (("--expert-parallel", "1,8"), ("--dispatch-precision", "low", "--precision", "fp8-current"), "--dispatch-precision"),
])
def test_an_option_without_effect_is_named_where_no_candidate_has_one(searched, words, note):
    base = ("recommend", "--model", "qwen3-30b-a3b", "--gpus", 16, "--global-batch", 64, "--micro-batch", 1,
            "--best", 1, *words)
    flag, values = searched
    several = moesim(*base, flag, values)
    assert several.returncode == 0 and "no effect" not in several.stderr
    one = moesim(*base, flag, values.replace("/", ",").split(",")[0])
    assert one.returncode == 0 and f"note: {note} has no effect" in one.stderr


def test_threads_do_not_change_the_result():
    assert succeed(*SMALL, "--jobs", 1) == succeed(*SMALL, "--jobs", 2)


def test_the_table_says_order_and_commands():
    table = succeed(*SMALL, "--software", "megatron-bridge")
    assert "none of the others can be better" in table
    assert "order: " in table and "within the noise of 1" in table
    commands = [line for line in table.splitlines() if "moesim train" in line]
    assert len(commands) == 5 and all("--software megatron-bridge" in line for line in commands)


def test_the_table_says_what_no_measured_step_has():
    words = ("recommend", "--model", "qwen3-30b-a3b", "--gpus", 64, "--profile", "gb200", "--software",
             "megatron-bridge", "--best", 2, "--pipeline-parallel", 1, "--recompute", "none", "--zero", 1)
    long = (*words, "--context-parallel", 2, "--sequence-length", 32768)
    assert "not measured: context parallelism, sequences of 32768 tokens (at most 8192 measured): no published step" \
        in succeed(*long)
    rows = json.loads(succeed(*long, "--format", "json"))
    assert rows[0]["not_measured"][0] == "context parallelism"
    assert "not measured:" not in succeed(*words, "--context-parallel", 1)


def moved(table):
    """{assumption: (the fastest then, its speed, that of 1, its change in %)} of those that have one."""
    _, part = table.split("the fastest of these if one assumption moves:\n")
    found = {}
    for line in part.splitlines()[1:]:
        cells = re.split(r"  +", line.strip())
        if len(cells) < 5:
            break
        found[cells[0]] = (int(cells[1]), int(cells[2]), int(cells[3]), float(cells[4]))
    return found


def test_what_is_fastest_under_other_assumptions_is_what_train_says():
    """Each that is said to be fastest, by the commands with the option that moves."""
    words = (*SMALL, "--expert-parallel", "1,4,8", "--micro-batch", "1,2,4")
    table = succeed(*words)
    said = moved(table)
    assert set(said) == {"host costs halved", "host costs doubled", "NICs at 70 % of their rate",
                         "NICs at 100 % of their rate", "experts as uneven as gaussian:0.58"}
    commands = [line.split("  ")[-1] for line in table.splitlines() if "  moesim train" in line]
    for move, options in (("host costs halved", ("--launch-us", 7.5, "--host-read-us", 10)),
                          ("host costs doubled", ("--launch-us", 30, "--host-read-us", 40)),
                          ("experts as uneven as gaussian:0.58", ("--routing", "gaussian:0.58"))):
        steps = [json.loads(succeed(*shlex.split(command)[1:], *options, "--format", "json")) for command in commands]
        times = [step["step_ms"] if step["memory_gib"] <= 72 else float("inf") for step in steps]
        place, speed, speed_of_first, change = said[move]
        assert times[place - 1] <= 1.001 * min(times), move
        speeds = [round(step["tokens_per_s_per_gpu"]) for step in steps]
        assert (speed, speed_of_first) == (speeds[place - 1], speeds[0]), move
        today = reproduced(commands[0])["tokens_per_s_per_gpu"]
        assert change == pytest.approx(100 * (steps[0]["tokens_per_s_per_gpu"] / today - 1), abs=0.06), move
    assert "if one assumption moves" not in succeed(*words, "--best", 1)


def test_no_step_may_lose_too_much_where_experts_are_uneven():
    table = succeed("recommend", "--model", "mixtral-8x7b", "--gpus", 32, "--global-batch", 128, "--micro-batch", 1,
                    "--tensor-parallel", 1, "--pipeline-parallel", "2,4", "--virtual-pipeline", 1, "--expert-tensor-parallel", 1,
                    "--recompute", "moe_act/full", "--zero", 1, "--router", "top2", "--capacity-factor", 1, "--max-loss", "5%")
    line = re.search(r"\n  experts as uneven as gaussian:0.58  (.*)\n", table)[1]
    assert re.fullmatch(r" *none +\d+ +[+-][\d.]+  1 loses [\d.]+ %, more than 5 %", line), line


def test_no_rank_has_more_rows_than_there_are():
    """A load of all tokens on one rank is the number of ranks: fewer ranks than that are no candidate."""
    words = ("recommend", "--model", "qwen3-30b-a3b", "--gpus", 32, "--tensor-parallel", 1, "--context-parallel", 1,
             "--pipeline-parallel", 2, "--expert-tensor-parallel", 1, "--micro-batch", 1, "--recompute", "none/full")
    rows = [row for row in rows_of(*words, "--expert-load", 3) if row["rank"]]
    assert rows and all(int(row["expert_parallel"]) >= 3 for row in rows)
    for row in rows:
        assert reproduced(row["command"])["step_ms"] == float(row["step_ms"])
    # More than the ranks that are usual.
    assert rows_of(*words, "--expert-load", 9, "--expert-parallel", 16)[0]["expert_parallel"] == "16"
    expect_error(moesim(*words, "--expert-load", 3, "--expert-parallel", "1,2"), 2,
                 "--expert-load 3: at most ", "expert-parallel ranks")
    for routing in (("--routing", "zipf:1"), ("--capacity-factor", 1), ("--max-loss", "1%")):
        refused = moesim(*words, "--expert-load", 1.2, *routing)
        expect_error(refused, 2, "--expert-load with ", "give one of them")
        assert "layouts asked for" not in refused.stderr  # no layout has to do with it


def test_fewer_layouts_where_values_are_given():
    rows = rows_of(*SMALL, "--expert-parallel", 8, "--pipeline-parallel", 2, "--zero", 2, "--best", 3)
    assert len(rows) == 3
    assert {(row["expert_parallel"], row["pipeline_parallel"], row["zero"]) for row in rows} == {("8", "2", "2")}


def test_what_does_not_fit_is_said_with_what_would():
    result = moesim("recommend", "--model", "deepseek-v3", "--gpus", 64, "--virtual-pipeline", 1)
    expect_error(result, 1, "none of the", "fits in 72.0 GiB", "would fit: ", "--gpus 256")
    few = ("recommend", "--model", "deepseek-v3", "--virtual-pipeline", 1, "--tensor-parallel", 1)
    expect_error(moesim(*few, "--gpus", 128), 1, "fits in 72.0 GiB", "would fit: ")
    # One GPU allows a single layout; the hint looks at those that more GPUs allow.
    one = moesim("recommend", "--model", "qwen3-30b-a3b", "--gpus", 1)
    expect_error(one, 1, "none of the", "would fit: --gpus 8")
    assert moesim("recommend", "--model", "qwen3-30b-a3b", "--gpus", 8).returncode == 0
    assert rows_of(*few, "--gpus", 256)


def test_capacity_costs_loss_and_the_commands_print_it():
    rows = rows_of(*SMALL[:-2], "--recompute", "none", "--tensor-parallel", 1, "--max-loss", "10%",
                   "--capacity-factor", "dropless,0.75,1")
    best = [row for row in rows if row["rank"]]
    assert len(best) == 5 and all(float(row["residual_loss"]) <= 0.1 for row in best)
    front = sorted((row for row in rows if row["on_front"] == "true"),
                   key=lambda row: -float(row["tokens_per_s_per_gpu"]))
    losses = [float(row["residual_loss"]) for row in front]
    assert losses == sorted(losses, reverse=True) and losses[-1] == 0 and losses[0] > 0.1
    for row in (best[0], front[0]):
        step = reproduced(row["command"])
        assert step["step_ms"] == float(row["step_ms"])
        assert step["residual_loss"] == float(row["residual_loss"]) == float(row["counted_loss"])
        assert step["memory_gib"] == float(row["memory_gib"])


def test_of_one_layout_what_is_no_faster_and_loses_more_is_a_twin():
    words = ("recommend", "--model", "qwen3-30b-a3b", "--gpus", 16, "--global-batch", 64, "--micro-batch", 1,
             "--recompute", "moe_act", "--tensor-parallel", 1, "--pipeline-parallel", 1, "--expert-parallel", 8,
             "--expert-tensor-parallel", 1, "--zero", 1, "--capacity-factor", 1, "--max-loss", "100%")
    rows = rows_of(*words, "--router", "topk,topk+fr")
    assert [row["router"] for row in rows] == ["top8+fr"] and rows[0]["twins"] == "1"
    assert "--router topk+fr" in rows[0]["command"]
    (plain,) = rows_of(*words, "--router", "topk")
    assert plain["step_ms"] == rows[0]["step_ms"]
    assert float(rows[0]["residual_loss"]) < float(plain["residual_loss"])
    assert "1 more like it, within 0.0 % of its speed, that differs in router or CF" in succeed(
        *words, "--router", "topk,topk+fr")


def test_the_five_differ_and_their_twins_are_counted(tmp_path):
    every = tmp_path / "all.csv"
    words = (*SMALL, "--virtual-pipeline", "1,2,4,8")
    rows = rows_of(*words, "--all", every)
    assert len({layout_of(row) for row in rows}) == 5
    with open(every, newline="", encoding="utf-8") as file:
        fitting = [row for row in csv.DictReader(file) if row["fits_memory"] == "true"]
    assert any(row["twins"] != "0" for row in rows)
    for row in rows:
        near = [other for other in fitting if layout_of(other) == layout_of(row)
                and float(other["step_ms"]) <= 1.01 * float(row["step_ms"])]
        assert int(row["twins"]) == len(near) - 1
    table = succeed(*words)
    assert "near twins, not listed:" in table and "more like it, within" in table and "differ in VP" in table
    twins = re.findall(r"\n  \d: (\d+) more like it, within [\d.]+ % of its speed, that (differs?) in ", table)
    assert {"1"} < {count for count, _ in twins}
    assert all((count == "1") == (verb == "differs") for count, verb in twins)
    apart = rows_of(*words, "--distinct", "chunks", "--best", 12)
    assert len({layout_of(row) for row in apart}) < 12
    assert len({(*layout_of(row), row["virtual_pipeline"]) for row in apart}) == 12


def test_rectified_routers_are_searched_where_tokens_may_be_lost():
    words = ("recommend", "--model", "mixtral-8x7b", "--gpus", 32, "--global-batch", 128, "--micro-batch", 1,
             "--tensor-parallel", 1, "--pipeline-parallel", 2, "--virtual-pipeline", 1, "--expert-parallel", 8,
             "--expert-tensor-parallel", 1, "--recompute", "moe_act", "--zero", 1)
    table = succeed(*words, "--max-loss", "5%")
    searched = next(line for line in table.splitlines() if "searched: " in line)
    for name in ("dropless", "top2 at CF 0.5/0.75/1/1.05/1.1/1.25/1.5", "top2+fr at", "top2+ir at", "top2+fr+ir at"):
        assert name in searched
    assert "CF: library convention, balanced load at CF 1" in table
    assert "+fr" not in succeed(*words)
    assert "+fr" not in succeed(*words, "--router", "top2", "--max-loss", "5%").split("to reproduce")[0]
    paper = succeed(*words, "--max-loss", "5%", "--router", "top2", "--capacity-factor", "2,3",
                    "--capacity-convention", "paper")
    assert "CF: paper convention, balanced load at CF 2" in paper


def test_a_dialect_is_searched_as_it_is_simulated(tmp_path):
    every = tmp_path / "all.csv"
    words = ("recommend", "--model", "mixtral-8x7b", "--gpus", 32, "--global-batch", 128, "--micro-batch", 1,
             "--tensor-parallel", 1, "--pipeline-parallel", "1,2", "--virtual-pipeline", 1, "--expert-tensor-parallel",
             1, "--recompute", "moe_act/full", "--max-loss", "20%", "--router", "top2", "--capacity-factor", "1,1.25")
    for dialect in ("deepspeed", "tutel", "megatron"):
        rows = rows_of(*words, "--router-dialect", dialect, "--all", every)
        best = [row for row in rows if row["rank"]]
        with open(every, newline="", encoding="utf-8") as file:
            candidates = [row for row in csv.DictReader(file)
                          if row["fits_memory"] == "true" and float(row["residual_loss"]) <= 0.2]
        assert float(best[0]["step_ms"]) == min(float(row["step_ms"]) for row in candidates)
        assert f"--router-dialect {dialect}" in best[0]["command"]
        step = reproduced(best[0]["command"])
        assert step["step_ms"] == float(best[0]["step_ms"])
        assert step["residual_loss"] == float(best[0]["residual_loss"])
        assert f"rounded as {dialect} does" in succeed(*words, "--router-dialect", dialect)


def test_candidates_that_a_trace_does_not_fit_are_left_out():
    """8 ranks of 128 tokens: no smaller stage, no larger micro-batch."""
    words = ("recommend", "--model", "mixtral-8x7b", "--gpus", 32, "--routing", "trace:tiny-moe-top2",
             "--tensor-parallel", 1, "--pipeline-parallel", "1,2,8", "--expert-tensor-parallel", 1, "--micro-batch", "1,2",
             "--expert-parallel", "4,8", "--zero", 1, "--recompute", "moe_act", "--sequence-length", 128)
    table = succeed(*words)
    reason = table.split(" candidates left out, such as: ")[1].split("\n")[0]
    assert "choose " in reason and "--tokens-per-gpu" not in reason
    rows = rows_of(*words)
    assert {row["expert_parallel"] for row in rows} == {"4", "8"}
    for row in rows:
        assert row["micro_batch"] == "1" and row["pipeline_parallel"] in ("1", "2")
    expect_error(moesim(*words, "--pipeline-parallel", 1, "--micro-batch", 2), 2, "tokens per rank of 128")
    expect_error(moesim(*words, "--expert-parallel", 4, "--pipeline-parallel", 8, "--micro-batch", 1), 2,
                 "it has 8 ranks, each pipeline stage of the job 4 GPUs: choose --gpus 64 or a multiple, "
                 "or --pipeline-parallel 4 or less")


PLACED = ("recommend", "--model", "qwen3-30b-a3b", "--gpus", 32, "--routing", "zipf:1", "--tensor-parallel", 1,
          "--context-parallel", 1, "--pipeline-parallel", 2, "--virtual-pipeline", 12, "--expert-tensor-parallel", 1,
          "--micro-batch", 1, "--recompute", "none", "--zero", 1)


@pytest.mark.parametrize("router", ["dropless", "topk"])
def test_experts_are_placed_on_the_ranks_of_each_candidate(router):
    rows = rows_of(*PLACED, "--expert-placement", "round-robin", "--expert-parallel", "4,16", "--router", router,
                   *(() if router == "dropless" else ("--capacity-factor", "1", "--max-loss", "60%")))
    assert {row["expert_parallel"] for row in rows if row["rank"]} == {"4", "16"}
    for row in rows:
        step = reproduced(row["command"])
        assert step["expert_placement"] == "round-robin"
        for key in ("step_ms", "memory_gib", "residual_loss"):
            assert step[key] == float(row[key])


def test_candidates_that_a_placement_file_is_not_of_are_left_out(tmp_path):
    """128 experts on 4 ranks."""
    path = tmp_path / "place.csv"
    path.write_text("expert,rank\n" + "".join(f"{expert},{expert % 4}\n" for expert in range(128)), encoding="utf-8")
    words = (*PLACED, "--expert-placement", path)
    rows = rows_of(*words, "--expert-parallel", "2,4,8")
    assert rows and {row["expert_parallel"] for row in rows} == {"4"}
    assert reproduced(rows[0]["command"])["step_ms"] == float(rows[0]["step_ms"])
    expect_error(moesim(*words, "--expert-parallel", 8), 2, "rank 0 has 32 experts: every rank of --expert-parallel 8 has 16")


def test_unknown_routing_is_refused_with_what_to_give():
    expect_error(moesim(*SMALL, "--routing", "unknown"), 2, "--routing unknown", "drawn once", "gaussian:")


def test_forced_balance_is_not_compared_with_routing_that_is_drawn():
    """Imbalance costs a dropless step what no capacity factor has to pay."""
    words = ("recommend", "--model", "mixtral-8x7b", "--gpus", 32, "--global-batch", 128, "--micro-batch", 1,
             "--tensor-parallel", 1, "--pipeline-parallel", 4, "--virtual-pipeline", 4, "--expert-parallel", 8,
             "--expert-tensor-parallel", 1, "--recompute", "moe_act", "--zero", 1)
    lossless = [row for row in rows_of(*words, "--max-loss", "5%") if not row["capacity_factor"]]
    assert lossless and float(lossless[0]["residual_loss"]) == 0
    assert all("--routing-draws per-layer" in row["command"] for row in lossless)
    assert reproduced(lossless[0]["command"])["step_ms"] == float(lossless[0]["step_ms"])
    balanced = rows_of(*words)[0]
    assert "--routing-draws" not in balanced["command"]
    assert float(lossless[0]["step_ms"]) > 1.05 * float(balanced["step_ms"])
    assert "routing: forced balance" in succeed(*words) and "router" not in succeed(*words).split("gives up")[0]
    table = succeed(*words, "--router", "top2,top2+ir", "--capacity-factor", "1,1.25", "--max-loss", "5%")
    header = next(line for line in table.splitlines() if line.startswith("#"))
    assert "router" in header.split() and "top2+ir" in table and "routing: forced" not in table
    assert "searched: top2 at CF 1/1.25, top2+ir at CF 1/1.25 (" in table and "loss at most 5 %" in table
    # Half a per cent or half of all: a bare share of a tenth or more could be either.
    for typed, readings in ((1, ("1%", "100%")), ("0.5", ("0.5%", "50%")), ("0.1", ("0.1%", "10%"))):
        expect_error(moesim(*words, "--max-loss", typed), 2, f"--max-loss {typed}", *readings)
    nothing = succeed(*words, "--router", "top2", "--capacity-factor", 1)
    assert "the least loses 4." in nothing and "--capacity-factor 1" in nothing.split("to reproduce:")[1]
    several = moesim(*words, "--router", "top2,dropless", "--max-loss", "5%")
    assert several.returncode == 0 and "no effect" not in several.stderr


def test_a_router_without_capacity_is_searched_once():
    words = ("recommend", "--model", "qwen3-30b-a3b", "--gpus", 16, "--global-batch", 64, "--micro-batch", 1,
             "--recompute", "moe_act", "--tensor-parallel", 1, "--expert-tensor-parallel", 1, "--virtual-pipeline", 1,
             "--zero", 1, "--router", "dropless", "--max-loss", "1%")
    once = succeed(*words, "--capacity-factor", 1, "--format", "csv")
    assert succeed(*words, "--capacity-factor", "1,1.25,1.5", "--format", "csv") == once
    assert all("--capacity-factor" not in row["command"] for row in csv.DictReader(io.StringIO(once)))


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
        alone = rows_of(*SCALING, "--gpus", row["gpus"], "--software", "megatron-bridge", "--best", 1)[0]
        for column in ("status", "step_ms", "memory_gib", "command", "pipeline_layout", "gpu_hours_per_1e12_tokens",
                       "drawn_tokens_per_s_per_gpu", "drawn_memory_gib", "drawn_fits_memory"):
            assert row[column] == alone[column]
        speed = float(row["tokens_per_s_per_gpu"])
        assert float(row["tokens_per_s"]) == pytest.approx(int(row["gpus"]) * speed)
        assert float(row["efficiency"]) == pytest.approx(speed / float(fewest["tokens_per_s_per_gpu"]))
        assert float(row["step_ms_low"]) < float(row["step_ms"]) < float(row["step_ms_high"])
    assert fewest["added_gpu_gain"] == "" and fewest["scaling_pays"] == "true"
    step = json.loads(succeed("train", "--from", f"{path}:2", "--format", "json"))
    assert step["step_ms"] == float(fewest["step_ms"])
    from_json = json.loads(succeed(*SCALING, "--gpus", "7,8,16,24", "--software", "megatron-bridge", "--format", "json"))
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
    assert [row["drawn_fits_memory"] for row in rows_of(*words)] == ["false", "true"]
    asked = succeed(*words, "--routing-draws", "per-layer")
    assert "with routing drawn" not in asked and "drawn_memory_gib" not in rows_of(*words, "--routing-draws", "per-layer")[0]


def test_a_list_of_one_number_of_gpus_is_that_number():
    assert rows_of(*SMALL, "--gpus", "16,16") == rows_of(*SMALL) == rows_of(*SMALL, "--gpus", "16:16:4")


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


@pytest.mark.parametrize(("words", "why"), [
    (("--padding", "busiest"), "with --padding busiest both keep every route"),
    ((), "without a capacity both keep every route"),
])
def test_two_names_of_one_router_are_searched_once(words, why):
    words = ("recommend", "--model", "qwen3-30b-a3b", "--gpus", 16, "--global-batch", 64, "--micro-batch", 1,
             "--recompute", "moe_act", "--tensor-parallel", 1, "--expert-tensor-parallel", 1, "--virtual-pipeline", 1,
             "--zero", 1, *words, "--format", "csv")
    both = moesim(*words, "--router", "topk,dropless,top8")
    assert both.stdout == succeed(*words, "--router", "topk")
    assert f"note: --router dropless makes the same steps as topk, which is searched: {why}\n" in both.stderr
    assert f"note: --router top8 makes the same steps as topk, which is searched: {why}\n" in both.stderr


def test_what_a_dispatcher_cannot_do_is_no_candidate():
    rows = rows_of("recommend", "--model", "qwen3-30b-a3b", "--profile", "gb200", "--gpus", 256, "--dispatcher",
                   "hybridep", "--micro-batch", 1, "--recompute", "none", "--tensor-parallel", 1)
    assert all(int(row["expert_parallel"]) <= 64 for row in rows)


def test_uneven_layers_are_divided(tmp_path):
    """61 layers: the command names the layers of each chunk."""
    rows = rows_of("recommend", "--model", "deepseek-v3", "--gpus", 512, "--pipeline-parallel", "8,16",
                   "--tensor-parallel", 1, "--micro-batch", 1, "--mtp", 1)
    assert rows
    for row in rows[:2]:
        assert "--pipeline-layout" in row["command"] and "m" in row["pipeline_layout"]
        assert reproduced(row["command"])["step_ms"] == float(row["step_ms"])


@pytest.mark.parametrize(("words", "text"), [
    (("--expert-parallel", "7"), "none of the"),
    (("--tensor-parallel", "1,x"), "--tensor-parallel"),
    (("--zero", "4"), "--zero"),
    (("--baseline", "x.csv"), "unknown option --baseline"),
    (("--memory-share", "2"), "--memory-share: '2' is no share"),
    (("--mtp", "2"), "depths of multi-token prediction"),
    (("--recompute", "none/attention"), "--recompute"),
    (("--pipeline-layout", "Et*48L"), "--pipeline-layout"),
    (("--best", "0"), "--best"),
])
def test_what_cannot_be_is_named(words, text):
    expect_error(moesim(*SMALL, *words), 2, text)


def test_the_chart_of_the_front_is_drawn(tmp_path):
    chart, table = tmp_path / "front.svg", tmp_path / "front.csv"
    words = (*SMALL[:-2], "--recompute", "none", "--tensor-parallel", 1, "--pipeline-parallel", 1,
             "--router", "topk", "--capacity-factor", "dropless,0.5,1", "--max-loss", "10%")
    result = moesim(*words, "--chart", chart, "--out", table)
    if "matplotlib" in result.stderr:
        pytest.skip("charts need Python with matplotlib")
    assert result.returncode == 0, result.stderr
    assert f"chart: {chart}" in result.stderr
    with open(table, newline="", encoding="utf-8") as file:
        assert any(row["on_front"] == "true" and row["capacity_factor"] == "0.5" for row in csv.DictReader(file))
    assert chart.read_text(encoding="utf-8").startswith("<?xml")
    expect_error(moesim(*words, "--chart", tmp_path / "front.txt"), 2, "--chart", ".png, .pdf or .svg")


def test_an_interrupted_search_says_how_far_it_was():
    words = ("recommend", "--model", "qwen3-235b-a22b", "--gpus", "512", "--max-loss", "1%", "--jobs", "1")
    process = subprocess.Popen([BINARY, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and out == ""
    # Where it is comes with the first draw, which a busy machine may not have done by then.
    assert re.search(r"^moesim: interrupted( at [\d,]+ candidates.*)?: no result is kept$", errors, re.M), errors


PREFILL = ("recommend", "--mode", "prefill", "--model", "mixtral-8x7b", "--gpus", 16, "--expert-parallel", "4,8",
           "--micro-batch", 1, "--sequence-length", 1024, "--replicas", 2)


def test_prefill_commands_print_the_same_figures_and_the_best_are_those_of_a_sweep():
    rows = rows_of(*PREFILL, "--router", "top2,top2+fr", "--capacity-factor", "0.75,1", "--max-loss", "10%")
    best = [row for row in rows if row["rank"]]
    assert best and all(float(row["residual_loss"]) <= 0.1 for row in best)
    for row in (best[0], rows[-1]):
        words = shlex.split(row["command"])
        assert words[:2] == ["moesim", "simulate"]
        (same,) = csv.DictReader(io.StringIO(succeed(*words[1:], "--format", "csv")))
        for key in ("step_ms", "tokens_per_s_per_gpu", "residual_loss", "memory_gib"):
            assert same[key] == row[key]
    every = csv.DictReader(io.StringIO(succeed(
        "sweep", *PREFILL[1:], "--profile", "h100-sxm", "--router", "top2,top2+fr", "--capacity-factor", "0.75,1",
        "--capacity-convention", "library", "--format", "csv")))
    speeds = sorted((float(row["tokens_per_s_per_gpu"]) for row in every
                     if float(row["memory_gib"]) <= 72 and float(row["residual_loss"]) <= 0.1), reverse=True)
    assert [float(row["tokens_per_s_per_gpu"]) for row in best] == speeds[:5]


def test_prefill_names_the_convention_of_its_capacity_factors():
    words = (*PREFILL, "--router", "top2", "--capacity-factor", 2, "--max-loss", "100%")
    assert succeed(*words).count("\nCF: library convention, a balanced load needs CF 1 (") == 1
    assert "\nCF: paper convention, a balanced load needs CF k (" in succeed(*words, "--capacity-convention", "paper")


def test_prefill_says_what_it_searched_on():
    table = succeed(*PREFILL, "--router", "dropless")
    assert table.startswith("mixtral-8x7b on 16 x h100-sxm (hgx-h100): forward passes of sequences of 1024 tokens, bf16\n")


def test_prefill_gives_the_commands_of_the_front_where_all_lose_too_much():
    table = succeed(*PREFILL, "--router", "top2+fr", "--capacity-factor", 1)
    enough = re.search(r"nothing loses at most 0 %.*: --max-loss ([\d.]+%) would list some", table).group(1)
    commands = table.split("to reproduce:\n")[1].splitlines()
    assert commands and all(re.match(r"  [a-z]  moesim simulate ", line) for line in commands)
    listed = succeed(*PREFILL, "--router", "top2+fr", "--capacity-factor", 1, "--max-loss", enough)
    assert "\n  1  moesim simulate " in listed


@pytest.mark.parametrize("model", ["mixtral-8x7b", "llama2-7b-moe8"])  # the model's own router: without and with a capacity
@pytest.mark.parametrize("router", [(), ("--router", "topk"), ("--router", "top1,top1+fr")])
def test_prefill_without_a_capacity_keeps_every_route(model, router):
    words = (*PREFILL, "--model", model, *router, "--capacity-factor", "dropless")
    rows = rows_of(*words)
    assert rows and all(float(row["counted_loss"]) == 0 and row["router"] == "dropless" for row in rows)
    assert len({row["command"] for row in rows}) == len(rows) == 2  # --expert-parallel 4,8: top1+fr is top1 then
    k = ("--top-k", 1) if "top1,top1+fr" in router else ()
    (same,) = csv.DictReader(io.StringIO(succeed(
        "sweep", *PREFILL[1:], "--model", model, "--profile", "h100-sxm", "--router", "dropless", *k,
        "--expert-parallel", rows[0]["expert_parallel"], "--capacity-convention", "library", "--format", "csv")))
    assert same["step_ms"] == rows[0]["step_ms"]


def test_prefill_tells_routers_of_different_k_apart():
    table = succeed(*PREFILL, "--router", "top1,top2", "--capacity-factor", "dropless", "--expert-parallel", 8)
    (names,) = re.findall(r"^#  .*$", table, re.M)
    assert "  top k  " in names and "\nk: " in table and "losses are of a token's k best experts: those of different k do not compare" in table
    place = re.split(r"  +", names).index("top k")
    rows = [re.split(r"  +", line) for line in table.splitlines() if re.match(r"\d  +\d", line)]
    assert sorted(row[place] for row in rows) == ["1", "2"]
    assert "top k" not in succeed(*PREFILL, "--router", "top2", "--capacity-factor", "dropless,1", "--max-loss", "100%")


def test_prefill_takes_lists_of_every_option():
    words = [word for word in PREFILL if word not in ("--expert-parallel", "4,8")] + ["--dispatcher", "deepep,all-to-all"]
    rows = [row for row in rows_of(*words, "--best", 20) if row["rank"]]
    assert {(row["expert_parallel"], row["dispatcher"]) for row in rows} == {
        (size, dispatcher) for size in "248" for dispatcher in ("", "deepep")}  # EP 1 does not fit
    table = succeed(*words, "--expert-parallel", "4,8", "--router", "dropless,top2", "--max-loss", "5%",
                    "--capacity-factor", "dropless,1")
    assert "#  EP  batch  router      CF  dispatcher  tokens/s/GPU" in table
    assert "one that cannot be: --dispatcher deepep: router top2 sends every expert a block" in table
    assert "dispatcher" not in succeed(*PREFILL, "--dispatcher", "deepep").split("to reproduce:")[0]


def test_prefill_tables_have_words_in_headings_and_numbers_at_the_right():
    words = ("recommend", "--mode", "prefill", "--model", "mixtral-8x7b", "--gpus", 16, "--expert-parallel", 8,
             "--micro-batch", 1, "--sequence-length", "512,1024", "--seed", "1,12", "--padding", "capacity,none",
             "--router", "top2", "--capacity-factor", 1, "--replicas", 1, "--max-loss", "100%")
    table = succeed(*words).split("\n\n")[1].splitlines()
    header, rows = table[0], [line for line in table[1:] if line[:1].isdigit()]
    assert "  padding   seed  sequence length  " in header and len(rows) == 5
    for heading, values in (("seed", {"1", "12"}), ("sequence length", {"512", "1024"})):
        end = header.index(heading) + len(heading)
        assert {row[:end].split()[-1] for row in rows} <= values and all(row[end - 1].isdigit() for row in rows), heading


def test_prefill_takes_no_flags_of_training():
    expect_error(moesim(*PREFILL, "--recompute", "full"), 2, "--recompute with --mode prefill")
    expect_error(moesim(*SMALL, "--replicas", 3), 2, "--replicas: of --mode prefill")
    several = (word if word != 16 else "8,16" for word in PREFILL)
    expect_error(moesim(*several), 2, "--gpus 8,16 with --mode prefill", "moesim sweep --mode prefill --gpus 8,16")
    expect_error(moesim(*PREFILL, "--memory-share", "0.05"), 1, "none of the", "fits in 5 %")


def test_a_row_gives_its_step_to_train(tmp_path):
    """Whatever was typed: the row has all options of train."""
    path = tmp_path / "best.csv"
    succeed("recommend", "--model", "qwen3-30b-a3b", "--gpus", 16, "--global-batch", 128, "--precision", "fp8-current",
            "--sequence-length", 8192, "--max-loss", "5%", "--router", "topk,topk+fr", "--capacity-factor", 1, "--best", 2,
            "--pipeline-parallel", 2, "--tensor-parallel", 1, "--expert-tensor-parallel", 1, "--out", path)
    rows = list(csv.DictReader(path.open()))
    assert len(rows) >= 2
    for line, row in enumerate(rows, 1):
        step = json.loads(succeed("train", "--from", f"{path}:{line}", "--format", "json"))
        assert step["step_ms"] == float(row["step_ms"]) and step["memory_gib"] == float(row["memory_gib"])
    succeed("plot", path, "--chart", "pareto", "--out", tmp_path / "best.svg")


def test_what_one_search_refuses_is_left_out_of_another():
    words = ("--model", "qwen3-30b-a3b", "--gpus", 16, "--tensor-parallel", 1, "--expert-tensor-parallel", 1)
    # Copies that divide among 4 ranks, not among 8.
    rows = rows_of("recommend", *words, "--redundant-experts", 4, "--router", "dropless", "--expert-parallel", "4,8")
    assert {row["expert_parallel"] for row in rows} == {"4"}
    none = moesim("recommend", *words, "--redundant-experts", 4, "--router", "dropless", "--expert-parallel", 8)
    expect_error(none, 2, "132 experts and copies do not divide among 8 ranks (EP): 8")
    # A capacity beside copies is not simulated: the dropless layouts are.
    rows = rows_of("recommend", *words, "--redundant-experts", 8, "--router", "dropless,topk", "--capacity-factor", 1,
                   "--routing-draws", "per-layer", "--expert-parallel", 8, "--max-loss", "5%")
    assert {row["router"] for row in rows} == {"dropless"}


def test_a_list_may_name_a_value_twice():
    once, twice = (rows_of(*SMALL, "--dispatcher", text, "--best", 3) for text in ("deepep", "deepep,deepep"))
    assert [layout_of(row) for row in twice] == [layout_of(row) for row in once]


def test_columns_have_a_legend_with_units():
    legend, = [line for line in succeed(*SMALL, "--best", 2).splitlines() if line.startswith("likely: ")]
    assert "likely: tokens/s/GPU that a measurement is expected to say" in legend
    assert "; drawn: " in legend and "; gives up: % of the speed of 1, GiB per GPU more than 1" in legend
    alone, = [line for line in succeed(*SMALL, "--best", 1).splitlines() if line.startswith("likely: ")]
    assert "gives up" not in alone


def test_a_fault_under_another_assumption_is_said_in_words():
    # 1 fits within 2 GiB of the limit; its busiest rank under uneven experts does not.
    table = succeed("recommend", "--model", "qwen3-30b-a3b", "--gpus", 32, "--tensor-parallel", 1, "--expert-tensor-parallel", 1,
                    "--context-parallel", 1)
    assert "  1 no longer fits: " in table, table


def test_the_front_and_what_drawn_routing_makes_of_the_best_are_told():
    text = succeed(*SMALL, "--best", 2)
    best = rows_of(*SMALL, "--best", 2)[0]
    drawn = reproduced(best["command"] + " --routing-draws per-layer")
    assert (f"1 has {drawn['tokens_per_s_per_gpu']:.0f} tokens/s/GPU and takes {drawn['memory_gib']:.1f} GiB" in text)
    lines = text.splitlines()
    header = next(line for line in lines if line.startswith("#")).replace("90 % band", "low to high").replace("80 % band", "low to high")
    for place, row in enumerate(rows_of(*SMALL, "--best", 2), 1):
        cells = dict(zip(header.split(), next(line for line in lines if line.startswith(f"{place} ")).split()))
        step, drawn = (reproduced(row["command"] + more) for more in ("", " --routing-draws per-layer"))
        assert cells["drawn"] == f"{drawn['tokens_per_s_per_gpu']:.0f}"
        likely = step["tokens_per_s_per_gpu"] * step["step_ms"] / step["step_ms_likely"]
        assert cells["likely"] == f"{likely:.0f}"
    text = succeed(*SMALL, "--router", "topk", "--capacity-factor", "0.75,1", "--max-loss", "50%", "--best", 1)
    assert " drawn " not in next(line for line in text.splitlines() if line.startswith("#"))
    table, commands = text.split("speed for loss")[1].split("to reproduce:")
    front = [line.split() for line in table.splitlines() if line[:2] in ("a ", "b ")]
    assert [line[0] for line in front] == ["a", "b"]
    for name, loss, speed, *_ in front:
        command = next(line.split(maxsplit=1)[1] for line in commands.splitlines() if line.startswith(f"  {name}  "))
        step = reproduced(command)
        assert f"{step['tokens_per_s_per_gpu']:.0f}" == speed and abs(100 * step["residual_loss"] - float(loss)) < 0.3


DEEPSEEK = ("recommend", "--model", "deepseek-v3", "--gpus", 256, "--tensor-parallel", 2, "--pipeline-parallel", 16,
            "--expert-parallel", 16, "--virtual-pipeline", 1, "--recompute", "full", "--micro-batch", 1, "--zero", 1,
            "--expert-tensor-parallel", 1)


def test_the_models_own_router_without_capacity_loses_nothing():
    """DeepSeek's does not take the 8 experts of most weight: nobody trained it to."""
    (best,) = rows_of(*DEEPSEEK, "--routing-draws", "per-layer")
    assert best["router"].startswith("bias-balanced") and best["on_front"] == "true" and best["counted_loss"] == "0"
    assert float(best["residual_loss"]) > 0.005
    again = reproduced(best["command"])
    assert float(best["residual_loss"]) == again["residual_loss"] and again["counted_loss"] == 0
    # Another model's: it was not trained with groups.
    words = ("recommend", "--model", "qwen3-30b-a3b", "--gpus", 16, "--global-batch", 64, "--pipeline-parallel", 1,
             "--tensor-parallel", 1, "--expert-parallel", 8, "--max-loss", "0.5%", "--router", "group-limited:8:4",
             "--capacity-factor", "dropless", "--micro-batch", 1, "--zero", 1)
    assert "nothing loses at most" in succeed(*words)


def test_notes_say_what_holds_for_all_routers_of_a_search_and_say_it_once():
    words = ("recommend", "--model", "qwen3-30b-a3b", "--gpus", 16, "--global-batch", 64, "--micro-batch", 1,
             "--recompute", "moe_act", "--tensor-parallel", 1, "--pipeline-parallel", 1, "--expert-parallel", 8,
             "--expert-tensor-parallel", 1, "--zero", 1)
    paper = ("--capacity-convention", "paper", "--capacity-scope", "source", "--priority", "token-max")
    result = moesim(*words, "--router", "top8", "--capacity-factor", 1, *paper)
    assert result.returncode == 0 and "note" not in result.stderr
    result = moesim(*words, "--router", "top8,dropless", "--capacity-factor", 1, *paper, "--max-loss", "100%")
    assert result.returncode == 0 and "note" not in result.stderr
    result = moesim(*words, "--router", "top8", "--capacity-factor", 1, "--software", "megatron-bridge")
    assert result.stderr.startswith("note: capacity is padded") and "--router-dialect megatron" in result.stderr
    for more in (("--router-dialect", "megatron"), ("--padding", "capacity")):
        assert "note" not in moesim(*words, "--router", "top8", "--capacity-factor", 1, "--software", "megatron-bridge",
                                    *more).stderr
    assert "note" not in moesim(*words, "--software", "megatron-bridge").stderr
    result = moesim(*words, "--router", "dropless", *paper)
    assert result.stderr.count("no effect: no router of this run has a capacity") == 2
    result = moesim(*DEEPSEEK, "--capacity-factor", "1,1.25")
    assert result.stderr.count("topk in its place") == 1


def test_placements_on_racks_are_searched():
    """144 GPUs are two racks of 72, or 48 of each of three; the default takes 64 + 64 + 16."""
    words = ("recommend", "--model", "qwen3-235b-a22b", "--gpus", 144, "--profile", "gb200", "--global-batch", 4608,
             "--dispatcher", "hybridep", "--precision", "mxfp8", "--tensor-parallel", 1)
    by_placement = {each: float(rows_of(*words, "--ranks-per-domain", each, "--best", 1)[0]["tokens_per_s_per_gpu"])
                    for each in (64, 72, 48)}
    best = rows_of(*words, "--best", 1)[0]
    assert float(best["tokens_per_s_per_gpu"]) == max(by_placement.values()) > 1.05 * by_placement[64]
    assert f"--ranks-per-domain {best['ranks_per_domain']}" in best["command"]
    assert reproduced(best["command"])["step_ms"] == float(best["step_ms"])
    assert rows_of(*words, "--ranks-per-domain", "64,72", "--best", 1)[0]["ranks_per_domain"] == "72"
    assert "per domain" in succeed(*words) and "per domain" not in succeed(*SMALL)
    expect_error(moesim(*words, "--ranks-per-domain", "64,99"), 2, "--ranks-per-domain", "72")


def calibrated(tmp_path, *more):
    """A document of moesim calibrate: steps at several times their prediction."""
    steps = [["gpus", "expert_parallel", "pipeline_parallel", "global_batch", "measured_ms"]]
    for gpus, expert, pipeline in ((8, 8, 1), (16, 8, 1), (16, 8, 2), (32, 8, 1)):
        words = ("train", "--model", "qwen3-30b-a3b", "--gpus", gpus, "--expert-parallel", expert, "--pipeline-parallel",
                 pipeline, "--global-batch", 64, "--recompute", "full")
        step = json.loads(succeed(*words, "--format", "json"))
        steps.append([gpus, expert, pipeline, 64, step["step_ms"] + 2 * (step["dispatch_ms"] + step["combine_ms"])])
    path = tmp_path / "steps.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(steps)
    own = tmp_path / "mine.json"
    succeed("calibrate", path, "--model", "qwen3-30b-a3b", "--recompute", "full", *more, "--out", own)
    return own


def test_the_order_is_that_of_ones_own_software(tmp_path):
    own = calibrated(tmp_path)
    published = rows_of(*SMALL, "--best", 1)[0]
    every = tmp_path / "all.csv"
    rows = rows_of(*SMALL, "--software", own, "--all", every)
    with open(every, newline="", encoding="utf-8") as file:
        fitting = [float(row["step_ms"]) for row in csv.DictReader(file) if row["fits_memory"] == "true"]
    assert float(rows[0]["step_ms"]) == min(fitting) > 1.05 * float(published["step_ms"])
    for row in rows[:2]:
        step = reproduced(row["command"])
        assert step["step_ms"] == float(row["step_ms"]) and step["software"] == str(own)
        assert step["tokens_per_s_per_gpu"] == float(row["tokens_per_s_per_gpu"])
    table = succeed(*SMALL, "--software", own)
    band = next(line for line in table.splitlines() if line.startswith("1 ")).split()
    low, speed, high = float(band[band.index("to") - 1]), float(band[band.index("to") - 2]), float(band[band.index("to") + 1])
    assert low < speed < high
    assert "order: " in table
    expect_error(moesim(*SMALL, "--software", own, "--profile", "gb200"), 2, "calibrated on")
    by_profile = rows_of(*SMALL, "--profile", own, "--best", 1)[0]
    assert by_profile["step_ms"] == rows[0]["step_ms"] and f"--profile {own}" in by_profile["command"]
    expect_error(moesim(*SMALL, "--profile", own, "--software", "megatron-bridge"), 2, "--software megatron-bridge")
    # The search that train names is by the same software.
    hint = moesim("train", "--model", "qwen3-30b-a3b", "--gpus", 8, "--software", own).stderr
    assert "moesim recommend" in hint and f"--software {own}" in hint


def test_an_order_that_drawn_routing_changes_is_said():
    """What does not fit then is marked, and the cost is that of the fastest that does."""
    words = ("recommend", "--model", "qwen3-235b-a22b", "--gpus", 144, "--profile", "gb200", "--global-batch", 4608,
             "--dispatcher", "hybridep", "--precision", "mxfp8", "--software", "megatron-bridge", "--memory-share", 0.8937)
    best = [row for row in rows_of(*words) if row["rank"]]
    too_large = [row["rank"] for row in best if row["drawn_fits_memory"] == "false"]
    fitting = [row for row in best if row["drawn_fits_memory"] == "true"]
    fastest = max(fitting, key=lambda row: float(row["drawn_tokens_per_s_per_gpu"]))["rank"]
    assert "1" in too_large and fastest != "1" and all(row["fits_memory"] == "true" for row in best)
    text = succeed(*words)
    line = next(line for line in text.splitlines() if line.startswith("with routing drawn"))
    assert line.endswith(f"; {', '.join(too_large)} would not fit in 154.8 GiB; the fastest that fits is {fastest}")
    assert f"\n{fastest} costs " in text and text.count("* ") == len(too_large) + 1  # and the legend


def test_one_that_fits_with_drawn_routing_is_not_said_to_be_too_large():
    words = ("recommend", "--model", "qwen3-30b-a3b", "--gpus", 64, "--software", "megatron-bridge", "--best", 2)
    first, second = (row for row in rows_of(*words) if row["rank"])
    assert first["drawn_fits_memory"] == second["drawn_fits_memory"] == "true"
    faster = float(second["drawn_tokens_per_s_per_gpu"])
    assert faster > float(first["drawn_tokens_per_s_per_gpu"])
    line = next(line for line in succeed(*words).splitlines() if line.startswith("with routing drawn"))
    assert line.endswith(f"; then 2 is faster, {faster:.0f}") and "fits" not in line


def test_capacity_factors_may_be_a_range():
    words = (*SMALL, "--pipeline-parallel", 1, "--expert-parallel", 8, "--router", "topk", "--max-loss", "50%", "--format", "csv")
    assert succeed(*words, "--capacity-factor", "dropless,1:1.2:0.1") == succeed(*words, "--capacity-factor", "dropless,1,1.1,1.2")
    expect_error(moesim(*words, "--capacity-factor", "1:1.2"), 2, "--capacity-factor: '1:1.2'")


def test_precisions_are_searched():
    words = ("recommend", "--model", "qwen3-30b-a3b", "--gpus", 16, "--global-batch", 64, "--micro-batch", "1,2",
             "--tensor-parallel", 1, "--expert-tensor-parallel", 1, "--virtual-pipeline", 1, "--best", 3)
    single = {name: rows_of(*words, "--precision", name) for name in ("bf16", "fp8-block", "fp8-current")}
    rows = rows_of(*words, "--precision", "bf16,fp8-block,fp8-current")
    times = sorted(float(row["step_ms"]) for each in single.values() for row in each)
    assert [float(row["step_ms"]) for row in rows] == times[:3]
    for row in rows:
        assert reproduced(row["command"])["step_ms"] == float(row["step_ms"])
        assert row["precision"] == "bf16" or f"--precision {row['precision']}" in row["command"]
    drawn = (*words, "--routing-draws", "per-layer", "--best", 1)
    assert rows_of(*drawn, "--precision", "bf16,fp8-block")[0]["step_ms"] in [
        rows_of(*drawn, "--precision", name)[0]["step_ms"] for name in ("bf16", "fp8-block")]
    table = succeed(*words, "--precision", "bf16,fp8-block")
    assert "precision" in next(line for line in table.splitlines() if line.startswith("#"))
    assert "bf16 or fp8-block" in table.splitlines()[0]
    expect_error(moesim(*words, "--precision", "bf16,mxfp8"), 2, "--precision mxfp8")
    expect_error(moesim(*words, "--precision", "fp8-block,bf16", "--head-precision", "low"), 2, "--head-precision low")


def test_padding_is_taken():
    words = ("recommend", "--model", "qwen3-30b-a3b", "--gpus", 32, "--global-batch", 64, "--micro-batch", 1,
             "--recompute", "moe_act", "--tensor-parallel", 1, "--pipeline-parallel", 1, "--expert-parallel", 8,
             "--expert-tensor-parallel", 1, "--zero", 1, "--router", "top8", "--max-loss", "100%")
    steps = {}
    for padding in ("capacity", "none", "busiest"):
        (best,) = (row for row in rows_of(*words, "--capacity-factor", 1, "--padding", padding) if row["rank"])
        assert f"--padding {padding}" in best["command"]
        assert reproduced(best["command"])["step_ms"] == float(best["step_ms"])
        steps[padding] = float(best["step_ms"])
        assert (float(best["residual_loss"]) == 0) == (padding == "busiest")
    assert steps["busiest"] > steps["capacity"]  # longer blocks, and the host reads how long
    # Blocks as long as the longest are the same at every factor.
    once = succeed(*words, "--padding", "busiest", "--format", "csv")
    assert succeed(*words, "--padding", "busiest", "--capacity-factor", "dropless,1,1.25", "--format", "csv") == once


def test_a_batch_that_nothing_divides_is_refused_with_the_nearest():
    """One node of 64 lost."""
    words = ("recommend", "--model", "qwen3-235b-a22b", "--gpus", 504, "--virtual-pipeline", 1, "--recompute", "full")
    expect_error(moesim(*words, "--global-batch", 4096), 2, "is no multiple of", "--global-batch 4032; ", "--gpus 512")
    assert moesim(*words, "--global-batch", 4032, "--best", 1).returncode == 0


def test_the_cost_of_a_run():
    words = ("recommend", "--model", "mixtral-8x7b", "--gpus", 16, "--train-tokens", "2T", "--gpu-hour-price", 3)
    text = succeed(*words)
    hours = float(re.search(r"\d costs ([\d,]+) GPU hours for 2 trillion tokens", text)[1].replace(",", ""))
    days = float(re.search(r"  days: ([\d.]+), likely", text)[1])
    money = float(re.search(r"  cost: ([\d,]+), likely", text)[1].replace(",", ""))
    assert days == pytest.approx(hours / 16 / 24, abs=0.06) and money == pytest.approx(3 * hours, abs=2)
    (command,) = re.findall(r"  1  (moesim train .*)", text)
    assert "--train-tokens 2T --gpu-hour-price 3" in command
    scaling = succeed(*words[:4], "8,16", *words[5:])
    names, *rows = [line for line in scaling.splitlines() if re.match(r"(GPUs| *8| *16)  ", line)][:3]
    assert re.search(r"GPU hours +days +cost", names) and len(rows) == 2


def test_the_noise_of_an_order_counts_what_one_step_alone_has():
    """The bracket below the order is of the place whose ratio to the first is known least."""
    words = ("recommend", "--model", "qwen3-30b-a3b", "--gpus", 16, "--software", "megatron-bridge", "--recompute", "moe_act",
             "--global-batch", 32, "--sequence-length", 16384, "--pipeline-parallel", 1, "--zero", 1, "--expert-tensor-parallel", 1)
    apart = succeed(*words, "--context-parallel", "1,2")
    order = apart[apart.index("order: "):].split("\n\n")[0]
    assert "wider by what 1 or" in order, order
    alike = succeed(*words, "--context-parallel", 2)
    assert "wider by what" not in alike
