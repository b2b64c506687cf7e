"""moesim recommend --mode prefill."""

import csv
import re
import shlex
import signal
import subprocess
import time

import pytest
from command_line import BINARY, as_rows, expect_error, moesim, needs_binary, succeed
from recommend_command import SMALL

pytestmark = needs_binary
PREFILL = ("recommend", "--mode", "prefill", "--model", "mixtral-8x7b", "--gpus", 16, "--expert-parallel", "4,8",
           "--micro-batch", 1, "--sequence-length", 1024, "--replicas", 2)


def test_prefill_commands_print_the_same_figures_and_the_best_are_those_of_a_sweep():
    rows = as_rows(*PREFILL, "--router", "top2,top2+fr", "--capacity-factor", "0.75,1", "--max-loss", "10%")
    best = [row for row in rows if row["rank"]]
    assert best and all(float(row["residual_loss"]) <= 0.1 for row in best)
    for row in (best[0], rows[-1]):
        words = shlex.split(row["command"])
        assert words[:2] == ["moesim", "simulate"]
        (same,) = as_rows(*words[1:])
        for key in ("step_ms", "tokens_per_s_per_gpu", "residual_loss", "memory_gib"):
            assert same[key] == row[key]
    every = as_rows("sweep", *PREFILL[1:], "--profile", "h100-sxm", "--router", "top2,top2+fr", "--capacity-factor", "0.75,1",
                    "--capacity-convention", "library")
    speeds = sorted((float(row["tokens_per_s_per_gpu"]) for row in every
                     if float(row["memory_gib"]) <= 72 and float(row["residual_loss"]) <= 0.1), reverse=True)
    assert [float(row["tokens_per_s_per_gpu"]) for row in best] == speeds[:5]


def test_prefill_names_the_convention_of_its_capacity_factors():
    words = (*PREFILL, "--router", "top2", "--capacity-factor", 2, "--max-loss", "100%")
    assert succeed(*words).count("\nCF: library convention, a balanced load needs CF 1 (") == 1
    assert "\nCF: paper convention, a balanced load needs CF k (" in succeed(*words, "--capacity-convention", "paper")


def test_a_search_says_what_it_wrote(tmp_path):
    for name, words in (("a.csv", PREFILL), ("b.csv", (*SMALL, "--best", 1))):
        result = moesim(*words, "--out", tmp_path / name)
        assert result.stdout == ""
        written = [line for line in result.stderr.splitlines() if line.endswith(f": {tmp_path / name}")]
        assert len(written) == 1 and re.match(r"\d+ layouts?(, and \d+ on the front)?: ", written[0])
    assert written[0].startswith("1 layout")


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
    rows = as_rows(*words)
    assert rows and all(float(row["counted_loss"]) == 0 and row["router"] == "dropless" for row in rows)
    assert len({row["command"] for row in rows}) == len(rows) == 2  # --expert-parallel 4,8: top1+fr is top1 then
    k = ("--top-k", 1) if "top1,top1+fr" in router else ()
    (same,) = as_rows("sweep", *PREFILL[1:], "--model", model, "--profile", "h100-sxm", "--router", "dropless", *k,
                      "--expert-parallel", rows[0]["expert_parallel"], "--capacity-convention", "library")
    assert same["step_ms"] == rows[0]["step_ms"]


def test_prefill_tells_routers_of_different_k_apart():
    table = succeed(*PREFILL, "--router", "top1,top2", "--capacity-factor", "dropless", "--expert-parallel", 8)
    (names,) = re.findall(r"^#  .*$", table, re.M)
    assert "  top k  " in names and "\nk: " in table and "losses are of a token's k best experts: those of different k do not compare" in table
    place = re.split(r"  +", names).index("top k")
    rows = [re.split(r"  +", line) for line in table.splitlines() if re.match(r"\d  +\d", line)]
    assert sorted(row[place] for row in rows) == ["1", "2"]
    assert "top k" not in succeed(*PREFILL, "--router", "top2", "--capacity-factor", "dropless,1", "--max-loss", "100%")


def test_prefill_says_which_router_a_forward_pass_takes():
    result = moesim("recommend", "--mode", "prefill", "--model", "olmoe-1b-7b", "--gpus", 8, "--expert-parallel", 8,
                    "--micro-batch", 1, "--router", "gating-dropout:0.2,topk", "--max-loss", "50%", "--capacity-factor", "1,2")
    assert result.returncode == 0 and "  gating-dropout:0  " in result.stdout
    assert result.stderr.count("note: router gating-dropout:0.2: a forward pass routes as gating-dropout:0") == 1
    assert "note: router topk" not in result.stderr


def test_prefill_takes_lists_of_every_option():
    words = [word for word in PREFILL if word not in ("--expert-parallel", "4,8")] + ["--dispatcher", "deepep,all-to-all"]
    rows = [row for row in as_rows(*words, "--best", 20) if row["rank"]]
    assert {(row["expert_parallel"], row["dispatcher"]) for row in rows} == {
        (size, dispatcher) for size in "248" for dispatcher in ("", "deepep")}  # EP 1 does not fit
    table = succeed(*words, "--expert-parallel", "4,8", "--router", "dropless,top2", "--max-loss", "5%",
                    "--capacity-factor", "dropless,1")
    assert "#  EP  batch  router      CF  dispatcher  tokens/s/GPU" in table
    assert "one that cannot be: --dispatcher deepep: router top2 sends every expert a block" in table
    header, = re.findall(r"^#  .*$", succeed(*PREFILL, "--dispatcher", "deepep"), re.M)
    assert "dispatcher" not in header


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


def test_prefill_says_which_kernels_it_assumes_and_which_it_did_not_search():
    table = succeed(*PREFILL)
    assert "\nkernels: --fusion eager (a kernel for each operation, the gate in fp32 (DeepSpeed)); --expert-products separate (in a call each)\n" in table
    assert "\nexchange of experts: --dispatcher all-to-all (NCCL's, of a row per expert or as --dedup says)\n" in table
    missing = "--fusion fused; --expert-products batched, fused; --dispatcher deepep, hybridep, low-latency, trtllm"
    assert f"\nnot searched: {missing}\n" in table
    lists = shlex.split(re.search(r"^  search them: (.*) \(other options", table, re.M).group(1))
    assert len(lists) == 6
    every = succeed(*PREFILL, *lists)
    assert "not searched" not in every and "\nkernels: --fusion fused" in every
    beside_nccl = succeed(*PREFILL, "--dispatcher", "all-to-all,deepep", "--fusion", "fused", "--expert-products", "batched,separate")
    assert re.search(r"^exchange of experts: --dispatcher (all-to-all or deepep|deepep or all-to-all)$", beside_nccl, re.M)
    assert "\nnot searched: --fusion eager; --expert-products fused; --dispatcher hybridep, low-latency, trtllm\n" in beside_nccl


def test_prefill_takes_the_options_of_simulate():
    rows = as_rows(*PREFILL, "--fusion", "eager,fused", "--expert-products", "batched", "--slow-gpu", "0:1.5")
    assert {(row["fusion"], row["expert_products"]) for row in rows} == {("eager", "batched"), ("fused", "batched")}
    (same,) = as_rows(*shlex.split(rows[0]["command"])[1:])
    assert same["step_ms"] == rows[0]["step_ms"] and same["slow_gpu"] == "0:1.5"
    dense = succeed("recommend", "--mode", "prefill", "--model", "llama2-7b", "--gpus", 8, "--replicas", 1, "--micro-batch", 1)
    assert "\nkernels: --fusion eager" in dense and "exchange of experts" not in dense and "\nnot searched: --fusion fused\n" in dense
    assert "note: --zero has no effect: --mode prefill is a forward pass alone" in moesim(*PREFILL, "--zero", 2).stderr


def test_an_interrupted_prefill_search_has_what_it_simulated():
    words = (*PREFILL, "--router", "dropless", "--seed", "1:400:1", "--jobs", "1", "--micro-batch", "1,2")
    process = subprocess.Popen([BINARY, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    if out:
        left = int(re.search(r"^stopped: NOT ALL ARE KNOWN: (\d+) scenarios were not simulated, and may be faster$", out, re.M).group(1))
        done = int(re.search(r"^(\d+) scenarios simulated, ", out, re.M).group(1))
        assert left > 0 and left + done == 1600 and "moesim: interrupted: the best so far, others may be faster" in errors
    else:  # a busy machine
        assert "moesim: interrupted before the first of 1600 scenarios was simulated: no result is kept" in errors


def test_a_prefill_search_that_ends_in_time_is_the_same_and_proven():
    assert succeed(*PREFILL, "--time-limit", "2h") == succeed(*PREFILL)
    assert all(row["proven"] == "true" and float(row["unproven_gain"]) == 0 for row in as_rows(*PREFILL, "--time-limit", "2h") if row["rank"])


def test_a_prefill_search_whose_time_is_over_has_what_it_simulated(tmp_path):
    """The first is simulated in a fraction of the time, all of them take many times as long."""
    path = tmp_path / "best.csv"
    words = (*PREFILL, "--router", "dropless", "--seed", "1:1000:1", "--jobs", "1", "--expert-parallel", 8)
    result = moesim(*words, "--time-limit", "3s", "--out", path)
    assert result.returncode == 124
    assert "moesim: stopped after 3 s (--time-limit): the best so far, others may be faster" in result.stderr
    rows = list(csv.DictReader(path.open()))
    assert rows and all(row["proven"] == "false" and row["unproven_gain"] == "" for row in rows)


@pytest.mark.parametrize(("limit", "said"), [("0.0001s", "less than 0.1 s"), ("0.00001min", "less than 0.1 s"), ("0.2s", "0.2 s")])
def test_a_prefill_search_counts_scenarios_that_repeat_none_and_says_short_times(limit, said):
    """Two factors without a drop are one scenario, without a capacity."""
    words = (*PREFILL, "--router", "dropless", "--capacity-factor", "1,1.25", "--seed", "1:40:1", "--jobs", "1", "--expert-parallel", 8,
             "--replicas", 64)
    over = moesim(*words, "--time-limit", limit)
    assert over.returncode == 124 and over.stdout == ""
    assert f"moesim: stopped after {said} (--time-limit) before the first of 40 scenarios was simulated: no result is kept" in over.stderr


def test_prefill_lists_passes_that_are_equal_in_every_figure_once():
    """Where each GPU has one expert, one call for all experts is a call for each."""
    words = (*PREFILL, "--expert-products", "batched,separate", "--router", "dropless")
    alone = [as_rows(*PREFILL, "--expert-products", products, "--router", "dropless", "--expert-parallel", 8) for products in ("batched", "separate")]
    assert alone[0][0]["step_ms"] == alone[1][0]["step_ms"]
    rows = as_rows(*words)
    assert [(row["expert_parallel"], row["expert_products"], row["twins"]) for row in sorted(rows, key=lambda row: row["command"])] == [
        ("4", "batched", "0"), ("4", "separate", "0"), ("8", "batched", "1")]
    place = next(row["rank"] for row in rows if row["twins"] == "1")
    assert f"\nequal in every figure, not listed:\n  {place}: --expert-products separate\n" in succeed(*words)
    assert "equal in every figure" not in succeed(*words, "--expert-parallel", 4)


def test_prefill_names_equal_passes_of_the_front_too():
    words = (*PREFILL, "--expert-products", "batched,separate", "--router", "top2", "--capacity-factor", "0.5,2", "--expert-parallel", 8,
             "--max-loss", "0.1%")
    rows = as_rows(*words)
    alone = [row for row in rows if not row["rank"]]
    assert alone and all(row["twins"] == "1" for row in rows)
    table = succeed(*words)
    lines = table.split("equal in every figure, not listed:\n")[1].splitlines()[:len(rows)]
    assert all(re.fullmatch(r"  (\d+|[a-z]): --expert-products separate", line) for line in lines)
    assert sum(line[2].isalpha() for line in lines) == len(alone)


def test_prefill_takes_no_flags_of_training():
    expect_error(moesim(*SMALL, "--fusion", "fused"), 2, "--fusion: of --mode prefill: training steps do not have it")
    expect_error(moesim(*PREFILL, "--recompute", "full"), 2, "--recompute with --mode prefill")
    expect_error(moesim(*SMALL, "--replicas", 3), 2, "--replicas: of --mode prefill")
    several = (word if word != 16 else "8,16" for word in PREFILL)
    expect_error(moesim(*several), 2, "--gpus 8,16 with --mode prefill", "moesim sweep --mode prefill --gpus 8,16")
    expect_error(moesim(*PREFILL, "--memory-share", "0.05"), 1, "none of the", "fits in 5 %")
