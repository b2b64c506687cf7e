"""moesim recommend with capacities, routers and drawn routing."""

import csv
import io
import re

import pytest
from command_line import as_rows, expect_error, moesim, needs_binary, succeed
from recommend_command import SMALL, layout_of, reproduced

pytestmark = needs_binary


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
    rows = [row for row in as_rows(*words, "--expert-load", 3) if row["rank"]]
    assert rows and all(int(row["expert_parallel"]) >= 3 for row in rows)
    for row in rows:
        assert reproduced(row["command"])["step_ms"] == float(row["step_ms"])
    # More than the ranks that are usual.
    assert as_rows(*words, "--expert-load", 9, "--expert-parallel", 16)[0]["expert_parallel"] == "16"
    expect_error(moesim(*words, "--expert-load", 3, "--expert-parallel", "1,2"), 2,
                 "--expert-load 3: at most ", "expert-parallel ranks")
    for routing in (("--routing", "zipf:1"), ("--capacity-factor", 1), ("--max-loss", "1%")):
        refused = moesim(*words, "--expert-load", 1.2, *routing)
        expect_error(refused, 2, "--expert-load with ", "give one of them")
        assert "layouts asked for" not in refused.stderr  # no layout has to do with it


def test_capacity_costs_loss_and_the_commands_print_it():
    rows = as_rows("recommend", "--model", "mixtral-8x7b", "--gpus", 32, "--global-batch", 64, "--micro-batch", "1,2",
                   "--expert-tensor-parallel", 1, "--virtual-pipeline", "1,2", "--recompute", "none/moe_act/full",
                   "--tensor-parallel", 1, "--max-loss", "10%",
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
             "--expert-tensor-parallel", 1, "--zero", 1, "--capacity-factor", 1, "--max-loss", "100%", "--memory-share", 0.95,
             "--launch-us", 1)  # or the launches of FR would be waited for
    rows = as_rows(*words, "--router", "topk,topk+fr")
    assert [row["router"] for row in rows] == ["top8+fr"] and rows[0]["twins"] == "1"
    assert "--router topk+fr" in rows[0]["command"]
    (plain,) = as_rows(*words, "--router", "topk")
    assert plain["step_ms"] == rows[0]["step_ms"]
    assert float(rows[0]["residual_loss"]) < float(plain["residual_loss"])
    assert "1 more like it, within 0.0 % of its speed, that differs in router or CF" in succeed(
        *words, "--router", "topk,topk+fr")


def test_the_five_differ_and_their_twins_are_counted(tmp_path):
    every = tmp_path / "all.csv"
    words = (*SMALL, "--virtual-pipeline", "1,2,4,8", "--zero", "1,2")
    rows = as_rows(*words, "--all", every)
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
    apart = as_rows(*words, "--distinct", "chunks", "--best", 12)
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
        rows = as_rows(*words, "--router-dialect", dialect, "--all", every)
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
    rows = as_rows(*words)
    assert {row["expert_parallel"] for row in rows} == {"4", "8"}
    for row in rows:
        assert row["micro_batch"] == "1" and row["pipeline_parallel"] in ("1", "2")
    expect_error(moesim(*words, "--pipeline-parallel", 1, "--micro-batch", 2), 2, "tokens per rank of 128")
    expect_error(moesim(*words, "--expert-parallel", 4, "--pipeline-parallel", 8, "--micro-batch", 1), 2,
                 "it has 8 ranks, each pipeline stage of the job 4 GPUs: choose --gpus 64 or a multiple, "
                 "or --pipeline-parallel 4 or less")


PLACED = ("recommend", "--model", "olmoe-1b-7b", "--gpus", 32, "--routing", "zipf:1", "--tensor-parallel", 1,
          "--context-parallel", 1, "--pipeline-parallel", 2, "--virtual-pipeline", 4, "--expert-tensor-parallel", 1,
          "--micro-batch", 1, "--recompute", "none", "--zero", 1)


@pytest.mark.parametrize("router", ["dropless", "topk"])
def test_experts_are_placed_on_the_ranks_of_each_candidate(router):
    rows = as_rows(*PLACED, "--expert-placement", "round-robin", "--expert-parallel", "4,16", "--router", router,
                   *(() if router == "dropless" else ("--capacity-factor", "1", "--max-loss", "60%")))
    assert {row["expert_parallel"] for row in rows if row["rank"]} == {"4", "16"}
    for row in rows:
        step = reproduced(row["command"])
        assert step["expert_placement"] == "round-robin"
        for key in ("step_ms", "memory_gib", "residual_loss"):
            assert step[key] == float(row[key])


def test_candidates_that_a_placement_file_is_not_of_are_left_out(tmp_path):
    """64 experts on 4 ranks."""
    path = tmp_path / "place.csv"
    path.write_text("expert,rank\n" + "".join(f"{expert},{expert % 4}\n" for expert in range(64)), encoding="utf-8")
    words = (*PLACED, "--expert-placement", path)
    rows = as_rows(*words, "--expert-parallel", "2,4,8")
    assert rows and {row["expert_parallel"] for row in rows} == {"4"}
    assert reproduced(rows[0]["command"])["step_ms"] == float(rows[0]["step_ms"])
    expect_error(moesim(*words, "--expert-parallel", 8), 2, "rank 0 has 16 experts: every rank of --expert-parallel 8 has 8")


def test_unknown_routing_is_refused_with_what_to_give():
    expect_error(moesim(*SMALL, "--routing", "unknown"), 2, "--routing unknown", "drawn once", "gaussian:")


def test_forced_balance_is_not_compared_with_routing_that_is_drawn():
    """Imbalance costs a dropless step what no capacity factor has to pay."""
    words = ("recommend", "--model", "mixtral-8x7b", "--gpus", 32, "--global-batch", 128, "--micro-batch", 1,
             "--tensor-parallel", 1, "--pipeline-parallel", 4, "--virtual-pipeline", 4, "--expert-parallel", 8,
             "--expert-tensor-parallel", 1, "--recompute", "moe_act", "--zero", 1)
    lossless = [row for row in as_rows(*words, "--max-loss", "5%") if not row["capacity_factor"]]
    assert lossless and float(lossless[0]["residual_loss"]) == 0
    assert all("--routing-draws per-layer" in row["command"] for row in lossless)
    assert reproduced(lossless[0]["command"])["step_ms"] == float(lossless[0]["step_ms"])
    balanced = as_rows(*words)[0]
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


def test_the_front_and_what_drawn_routing_makes_of_the_best_are_told():
    text = succeed(*SMALL, "--best", 2)
    best = as_rows(*SMALL, "--best", 2)[0]
    drawn = reproduced(best["command"] + " --routing-draws per-layer")
    assert (f"1 has {drawn['tokens_per_s_per_gpu']:.0f} tokens/s/GPU and takes {drawn['memory_gib']:.1f} GiB" in text)
    lines = text.splitlines()
    header = next(line for line in lines if line.startswith("#")).replace("90 % band", "low to high").replace("80 % band", "low to high")
    for place, row in enumerate(as_rows(*SMALL, "--best", 2), 1):
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


DEEPSEEK = ("recommend", "--model", "deepseek-v3-4layers", "--gpus", 128, "--tensor-parallel", 2, "--pipeline-parallel", 2,
            "--expert-parallel", 32, "--virtual-pipeline", 1, "--recompute", "full", "--micro-batch", 1, "--zero", 1,
            "--expert-tensor-parallel", 1)


def test_the_models_own_router_without_capacity_loses_nothing():
    """DeepSeek's does not take the 8 experts of most weight: nobody trained it to."""
    (best,) = as_rows(*DEEPSEEK, "--routing-draws", "per-layer")
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
    words = ("recommend", "--model", "mixtral-8x7b", "--gpus", 32, "--global-batch", 64, "--micro-batch", 1,
             "--recompute", "moe_act", "--tensor-parallel", 1, "--pipeline-parallel", 2, "--expert-parallel", 8,
             "--expert-tensor-parallel", 1, "--virtual-pipeline", 1, "--zero", 1, "--gradients", "bf16")
    paper = ("--capacity-convention", "paper", "--capacity-scope", "source", "--priority", "token-max")
    result = moesim(*words, "--router", "top2", "--capacity-factor", 1, *paper)
    assert result.returncode == 0 and "note" not in result.stderr
    result = moesim(*words, "--router", "top2,dropless", "--capacity-factor", 1, *paper, "--max-loss", "100%")
    assert result.returncode == 0 and "note" not in result.stderr
    result = moesim(*words, "--router", "top2", "--capacity-factor", 1, "--software", "megatron-bridge")
    assert result.stderr.startswith("note: capacity is padded") and "--router-dialect megatron" in result.stderr
    for more in (("--router-dialect", "megatron"), ("--padding", "capacity")):
        assert "note" not in moesim(*words, "--router", "top2", "--capacity-factor", 1, "--software", "megatron-bridge",
                                    *more).stderr
    assert "note" not in moesim(*words, "--software", "megatron-bridge").stderr
    result = moesim(*words, "--router", "dropless", *paper)
    assert result.stderr.count("no effect: no router of this run has a capacity") == 2
    result = moesim(*DEEPSEEK, "--capacity-factor", "1,1.25")
    assert result.returncode == 0 and not result.stderr
    for routers, said in (("dropless,topk", True), ("dropless,bias-balanced+groups:8:4", False)):
        result = moesim(*DEEPSEEK, "--router", routers)
        assert ("none of these is the model's own, bias-balanced+groups:8:4" in result.stderr) == said


def test_an_order_that_drawn_routing_changes_is_said():
    """What does not fit then is marked, and the cost is that of the fastest that does."""
    words = ("recommend", "--model", "qwen3-235b-a22b", "--gpus", 144, "--profile", "gb200", "--global-batch", 4608,
             "--dispatcher", "hybridep", "--precision", "mxfp8", "--software", "megatron-bridge", "--memory-share", 0.883,
             "--zero", "1,2")
    best = [row for row in as_rows(*words) if row["rank"]]
    too_large = [row["rank"] for row in best if row["drawn_fits_memory"] == "false"]
    fitting = [row for row in best if row["drawn_fits_memory"] == "true"]
    fastest = max(fitting, key=lambda row: float(row["drawn_tokens_per_s_per_gpu"]))["rank"]
    assert "1" in too_large and fastest != "1" and all(row["fits_memory"] == "true" for row in best)
    text = succeed(*words)
    line = next(line for line in text.splitlines() if line.startswith("with routing drawn"))
    assert line.endswith(f"; {', '.join(too_large)} would not fit in 163.4 GiB; the fastest that fits is {fastest}")
    assert f"\n{fastest} costs " in text and text.count("* ") == len(too_large) + 1  # and the legend


def test_one_that_fits_with_drawn_routing_is_not_said_to_be_too_large():
    words = ("recommend", "--model", "qwen3-30b-a3b", "--gpus", 64, "--software", "megatron-bridge", "--best", 2,
             "--memory-share", 0.905)
    first, second = (row for row in as_rows(*words) if row["rank"])
    assert first["drawn_fits_memory"] == second["drawn_fits_memory"] == "true"
    faster = float(second["drawn_tokens_per_s_per_gpu"])
    assert faster > float(first["drawn_tokens_per_s_per_gpu"])
    line = next(line for line in succeed(*words).splitlines() if line.startswith("with routing drawn"))
    assert line.endswith(f"; then 2 is faster, {faster:.0f}") and "fits" not in line


def test_capacity_factors_may_be_a_range():
    words = (*SMALL, "--pipeline-parallel", 1, "--expert-parallel", 8, "--router", "topk", "--max-loss", "50%", "--format", "csv")
    assert succeed(*words, "--capacity-factor", "dropless,1:1.2:0.1") == succeed(*words, "--capacity-factor", "dropless,1,1.1,1.2")
    expect_error(moesim(*words, "--capacity-factor", "1:1.2"), 2, "--capacity-factor: '1:1.2'")


def test_padding_is_taken():
    words = ("recommend", "--model", "mixtral-8x7b", "--gpus", 32, "--global-batch", 64, "--micro-batch", 1,
             "--recompute", "moe_act", "--tensor-parallel", 1, "--pipeline-parallel", 2, "--expert-parallel", 8,
             "--expert-tensor-parallel", 1, "--virtual-pipeline", 1, "--zero", 1, "--router", "top2", "--max-loss", "100%")
    steps = {}
    for padding in ("capacity", "none", "busiest"):
        (best,) = (row for row in as_rows(*words, "--capacity-factor", 1, "--padding", padding) if row["rank"])
        assert f"--padding {padding}" in best["command"]
        assert reproduced(best["command"])["step_ms"] == float(best["step_ms"])
        steps[padding] = float(best["step_ms"])
        assert (float(best["residual_loss"]) == 0) == (padding == "busiest")
    assert steps["busiest"] > steps["capacity"]  # longer blocks, and the host reads how long
    # Blocks as long as the longest are the same at every factor.
    once = succeed(*words, "--padding", "busiest", "--format", "csv")
    assert succeed(*words, "--padding", "busiest", "--capacity-factor", "dropless,1,1.25", "--format", "csv") == once
