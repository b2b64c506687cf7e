"""moesim recommend: the fastest layouts of a training job, and the commands that reproduce them."""

import csv
import re
import shlex
import signal
import subprocess
import time

import pytest
from command_line import BINARY, as_json, as_rows, expect_error, moesim, needs_binary, succeed
from recommend_command import SMALL, layout_of, reproduced

pytestmark = needs_binary


def test_each_command_prints_the_same_figures():
    rows = as_rows(*SMALL)
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
    rows = as_rows(*SMALL, "--all", every)
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
    assert {row["memory_limit_gib"] for row in as_rows(*SMALL, "--memory-share", "0.8", "--all", every)} == {"64"}
    with open(every, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["fits_memory"] for row in rows} == {"true", "false"}
    assert all((row["fits_memory"] == "true") == (float(row["memory_gib"]) <= float(row["memory_limit_gib"])) for row in rows)
    between = next(at for at, row in enumerate(rows, 1) if 64 < float(row["memory_gib"]) < 80)
    step = as_json("train", "--from", f"{every}:{between}")
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
    rows = as_json(*long)
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
        steps = [as_json(*shlex.split(command)[1:], *options) for command in commands]
        times = [step["step_ms"] if step["memory_gib"] <= 72 else float("inf") for step in steps]
        place, speed, speed_of_first, change = said[move]
        assert times[place - 1] <= 1.001 * min(times), move
        speeds = [round(step["tokens_per_s_per_gpu"]) for step in steps]
        assert (speed, speed_of_first) == (speeds[place - 1], speeds[0]), move
        today = reproduced(commands[0])["tokens_per_s_per_gpu"]
        assert change == pytest.approx(100 * (steps[0]["tokens_per_s_per_gpu"] / today - 1), abs=0.06), move
    assert "if one assumption moves" not in succeed(*words, "--best", 1)


def test_fewer_layouts_where_values_are_given():
    rows = as_rows(*SMALL, "--expert-parallel", 8, "--pipeline-parallel", 2, "--zero", 2, "--best", 3)
    assert len(rows) == 3
    assert {(row["expert_parallel"], row["pipeline_parallel"], row["zero"]) for row in rows} == {("8", "2", "2")}


def test_zero_under_a_pipeline_is_noted():
    words = (*SMALL, "--expert-parallel", 8, "--best", 1)
    assert "--zero 1 searches layouts without" in moesim(*words, "--pipeline-parallel", 2, "--zero", 2).stderr
    for other in (("--pipeline-parallel", 2, "--zero", 1), ("--pipeline-parallel", 1, "--zero", 2)):
        assert "under a pipeline" not in (told := moesim(*words, *other)).stderr and "--zero 1 searches" not in told.stderr, other


def test_what_does_not_fit_is_said_with_what_would():
    result = moesim("recommend", "--model", "deepseek-v3", "--gpus", 64, "--virtual-pipeline", 1)
    expect_error(result, 1, "none of the", "fits in 72.0 GiB", "would fit: ", "--gpus 256")
    few = ("recommend", "--model", "deepseek-v3", "--virtual-pipeline", 1, "--tensor-parallel", 1)
    expect_error(moesim(*few, "--gpus", 128), 1, "fits in 72.0 GiB", "would fit: ")
    # One GPU allows a single layout; the hint looks at those that more GPUs allow.
    one = moesim("recommend", "--model", "qwen3-30b-a3b", "--gpus", 1)
    expect_error(one, 1, "none of the", "would fit: --gpus 8")
    assert moesim("recommend", "--model", "qwen3-30b-a3b", "--gpus", 8).returncode == 0
    assert as_rows(*few, "--gpus", 256)


def test_what_a_dispatcher_cannot_do_is_no_candidate():
    rows = as_rows("recommend", "--model", "qwen3-30b-a3b", "--profile", "gb200", "--gpus", 256, "--dispatcher",
                   "hybridep", "--micro-batch", 1, "--recompute", "none", "--tensor-parallel", 1)
    assert all(int(row["expert_parallel"]) <= 64 for row in rows)


def test_uneven_layers_are_divided(tmp_path):
    """61 layers: the command names the layers of each chunk."""
    rows = as_rows("recommend", "--model", "deepseek-v3", "--gpus", 512, "--pipeline-parallel", "8,16",
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
    assert f"chart: {chart}" in result.stderr and f": {table}\n" in result.stderr
    with open(table, newline="", encoding="utf-8") as file:
        assert any(row["on_front"] == "true" and row["capacity_factor"] == "0.5" for row in csv.DictReader(file))
    assert chart.read_text(encoding="utf-8").startswith("<?xml")
    expect_error(moesim(*words, "--chart", tmp_path / "front.txt"), 2, "--chart", ".png, .pdf or .svg")


def test_an_interrupted_search_says_how_far_it_was():
    # Without a router that drops nothing, which would be simulated before the others are bounded.
    words = ("recommend", "--model", "qwen3-235b-a22b", "--gpus", "512", "--max-loss", "1%", "--jobs", "1",
             "--router", "topk,topk+ir", "--capacity-factor", "0.5:1.5:0.02")
    process = subprocess.Popen([BINARY, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and out == ""
    # Where it is comes with the first draw, which a busy machine may not have done by then.
    assert re.search(r"^moesim: interrupted( at [\d,]+ candidates.*)?: no result is kept$", errors, re.M), errors


def test_a_row_gives_its_step_to_train(tmp_path):
    """Whatever was typed: the row has all options of train."""
    path = tmp_path / "best.csv"
    succeed("recommend", "--model", "qwen3-30b-a3b", "--gpus", 16, "--global-batch", 128, "--precision", "fp8-current",
            "--sequence-length", 8192, "--max-loss", "5%", "--router", "topk,topk+fr", "--capacity-factor", 1, "--best", 2,
            "--pipeline-parallel", 2, "--tensor-parallel", 1, "--expert-tensor-parallel", 1, "--out", path)
    rows = list(csv.DictReader(path.open()))
    assert len(rows) >= 2
    for line, row in enumerate(rows, 1):
        step = as_json("train", "--from", f"{path}:{line}")
        assert step["step_ms"] == float(row["step_ms"]) and step["memory_gib"] == float(row["memory_gib"])
    succeed("plot", path, "--chart", "pareto", "--out", tmp_path / "best.svg")


def test_what_one_search_refuses_is_left_out_of_another():
    words = ("--model", "qwen3-30b-a3b", "--gpus", 16, "--tensor-parallel", 1, "--expert-tensor-parallel", 1)
    # Copies that divide among 4 ranks, not among 8.
    rows = as_rows("recommend", *words, "--redundant-experts", 4, "--router", "dropless", "--expert-parallel", "4,8")
    assert {row["expert_parallel"] for row in rows} == {"4"}
    none = moesim("recommend", *words, "--redundant-experts", 4, "--router", "dropless", "--expert-parallel", 8)
    expect_error(none, 2, "132 experts and copies do not divide among 8 ranks (EP): 8")
    # A capacity beside copies is not simulated: the dropless layouts are.
    rows = as_rows("recommend", *words, "--redundant-experts", 8, "--router", "dropless,topk", "--capacity-factor", 1,
                   "--routing-draws", "per-layer", "--expert-parallel", 8, "--max-loss", "5%")
    assert {row["router"] for row in rows} == {"dropless"}


def test_a_list_may_name_a_value_twice():
    once, twice = (as_rows(*SMALL, "--dispatcher", text, "--best", 3) for text in ("deepep", "deepep,deepep"))
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


def test_the_fastest_that_lacks_memory_under_another_assumption_is_named():
    # 1 has a capacity and loses too much; 2 is dropless, and its busiest rank then lacks memory.
    table = succeed("recommend", "--model", "qwen3-30b-a3b", "--gpus", 32, "--global-batch", 256, "--router", "topk,dropless",
                    "--capacity-factor", "dropless,1", "--max-loss", "10%", "--tensor-parallel", 1, "--context-parallel", 1,
                    "--pipeline-parallel", 1, "--expert-parallel", "8,16", "--expert-tensor-parallel", 1, "--micro-batch", 2,
                    "--recompute", "none/moe_act", "--zero", 1, "--memory-share", 0.95)
    line = re.search(r"\n  experts as uneven as gaussian:0.58  (.*)\n", table)[1]
    found = re.search(r"  1 loses [\d.]+ %, more than 10 %; (\d) no longer fits: ([\d.]+) of 76.00 GiB$", line)
    assert found and int(found[1]) > 1 and float(found[2]) > 76, table


def test_placements_on_racks_are_searched():
    """144 GPUs are two racks of 72, or 48 of each of three; the default takes 64 + 64 + 16."""
    words = ("recommend", "--model", "qwen3-235b-a22b", "--gpus", 144, "--profile", "gb200", "--global-batch", 4608,
             "--dispatcher", "hybridep", "--precision", "mxfp8", "--tensor-parallel", 1, "--micro-batch", 2, "--zero", "1,2")
    by_placement = {each: float(as_rows(*words, "--ranks-per-domain", each, "--best", 1)[0]["tokens_per_s_per_gpu"])
                    for each in (64, 72, 48)}
    best = as_rows(*words, "--best", 1)[0]
    assert float(best["tokens_per_s_per_gpu"]) == max(by_placement.values()) > 1.05 * by_placement[64]
    assert f"--ranks-per-domain {best['ranks_per_domain']}" in best["command"]
    assert reproduced(best["command"])["step_ms"] == float(best["step_ms"])
    assert as_rows(*words, "--ranks-per-domain", "64,72", "--best", 1)[0]["ranks_per_domain"] == "72"
    assert "per domain" in succeed(*words) and "per domain" not in succeed(*SMALL)
    expect_error(moesim(*words, "--ranks-per-domain", "64,99"), 2, "--ranks-per-domain", "72")


def calibrated(tmp_path, *more):
    """A document of moesim calibrate: steps at several times their prediction."""
    steps = [["gpus", "expert_parallel", "pipeline_parallel", "global_batch", "measured_ms"]]
    for gpus, expert, pipeline in ((8, 8, 1), (16, 8, 1), (16, 8, 2), (32, 8, 1)):
        words = ("train", "--model", "qwen3-30b-a3b", "--gpus", gpus, "--expert-parallel", expert, "--pipeline-parallel",
                 pipeline, "--global-batch", 64, "--recompute", "full")
        step = as_json(*words)
        steps.append([gpus, expert, pipeline, 64, step["step_ms"] + 2 * (step["dispatch_ms"] + step["combine_ms"])])
    path = tmp_path / "steps.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(steps)
    own = tmp_path / "mine.json"
    succeed("calibrate", path, "--model", "qwen3-30b-a3b", "--recompute", "full", *more, "--out", own)
    return own


def test_the_order_is_that_of_ones_own_software(tmp_path):
    own = calibrated(tmp_path)
    published = as_rows(*SMALL, "--best", 1)[0]
    every = tmp_path / "all.csv"
    rows = as_rows(*SMALL, "--software", own, "--all", every)
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
    by_profile = as_rows(*SMALL, "--profile", own, "--best", 1)[0]
    assert by_profile["step_ms"] == rows[0]["step_ms"] and f"--profile {own}" in by_profile["command"]
    expect_error(moesim(*SMALL, "--profile", own, "--software", "megatron-bridge"), 2, "--software megatron-bridge")
    # The search that train names is by the same software.
    hint = moesim("train", "--model", "qwen3-30b-a3b", "--gpus", 8, "--software", own).stderr
    assert "moesim recommend" in hint and f"--software {own}" in hint


def test_precisions_are_searched():
    words = ("recommend", "--model", "qwen3-30b-a3b", "--gpus", 16, "--global-batch", 64, "--micro-batch", "1,2",
             "--tensor-parallel", 1, "--expert-tensor-parallel", 1, "--virtual-pipeline", 1, "--best", 3)
    single = {name: as_rows(*words, "--precision", name) for name in ("bf16", "fp8-block", "fp8-current")}
    rows = as_rows(*words, "--precision", "bf16,fp8-block,fp8-current")
    times = sorted(float(row["step_ms"]) for each in single.values() for row in each)
    assert [float(row["step_ms"]) for row in rows] == times[:3]
    for row in rows:
        assert reproduced(row["command"])["step_ms"] == float(row["step_ms"])
        assert row["precision"] == "bf16" or f"--precision {row['precision']}" in row["command"]
    drawn = (*words, "--routing-draws", "per-layer", "--best", 1)
    assert as_rows(*drawn, "--precision", "bf16,fp8-block")[0]["step_ms"] in [
        as_rows(*drawn, "--precision", name)[0]["step_ms"] for name in ("bf16", "fp8-block")]
    table = succeed(*words, "--precision", "bf16,fp8-block")
    assert "precision" in next(line for line in table.splitlines() if line.startswith("#"))
    assert "bf16 or fp8-block" in table.splitlines()[0]
    expect_error(moesim(*words, "--precision", "bf16,mxfp8"), 2, "--precision mxfp8")
    expect_error(moesim(*words, "--precision", "fp8-block,bf16", "--head-precision", "low"), 2, "--head-precision low")


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
