"""The command line's contract: help, columns, keys, grid order, resumption, clean stdout."""

import csv
import functools
import io
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import (BINARY, SMALL, moesim, needs_binary, open_terminal, read_terminal,
                          succeed)

pytestmark = needs_binary
COMMANDS = ("simulate", "sweep", "plot", "explain", "route", "predict", "layout", "train", "validate", "import",
            "doctor", "options")
COLUMNS = """status reason model profile cluster router priority weights fill_order ir_compute
dispatch mode routing gpus expert_parallel experts top_k capacity_factor capacity_convention
capacity_scope capacity sequence_length micro_batch tokens_per_gpu checkpointing zero network
replicas seed step_ms step_ms_p05 step_ms_p95 tokens_per_s_per_gpu failed partial lost_mass
fill_failed failed_attempted unrouted residual_loss padded duplicate_ir attention_ms dense_ffn_ms
router_ms dispatch_combine_ms expert_ms rectify_ms exposed_exchange_ms gradient_ms optimizer_ms
other_ms exchange_ms memory_gib fits_memory provenance""".split()
PARTS = COLUMNS[COLUMNS.index("attention_ms"):COLUMNS.index("exchange_ms")]


@functools.cache
def document():
    """What the program says of its options and columns."""
    return json.loads(succeed("options", "--format", "json"))


def option_names():
    return [option["name"] for option in document()["options"]]


def column_names():
    return [column["name"] for column in document()["columns"]]


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_options_defaults_and_an_example_that_works(command, tmp_path):
    text = succeed(command, "--help")
    assert text == succeed("help", command) == succeed(command, "-h")
    example = text.split("Example:\n", 1)[1].strip().split()
    assert example[:2] == ["moesim", command]
    if command == "plot":
        pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    if command == "import":
        (tmp_path / "counts.csv").write_text("layer,expert,count\n0,1,60\n0,7,60\n")
    if command in ("simulate", "sweep", "explain", "route"):
        for option in option_names():
            assert f"  --{option} " in text
        assert "[a100-sxm-80gb]" in text and "[token-max]" in text
        example += ["--replicas", "1", "--gpus", "8"]  # the same command, quicker
    if command != "validate":  # its studies have tests of their own
        succeed(*example[1:], cwd=tmp_path)


def test_overview_and_version():
    text = succeed("--help")
    assert text == succeed("help")
    for command in COMMANDS:
        assert f"  {command} " in text
    assert succeed("--version").startswith("moesim ")


def test_options_and_columns_are_a_document():
    assert column_names()[:len(COLUMNS)] == COLUMNS  # the contract: later columns follow
    assert len(set(column_names())) == len(column_names())
    columns = {column["name"]: column for column in document()["columns"]}
    assert [name for name, column in columns.items() if column["role"] == "part"] == PARTS
    for name, column in columns.items():
        assert set(column) == {"name", "type", "role", "unit"}
        assert column["type"] in ("text", "number", "boolean")
        if name.endswith("_ms"):
            assert column["unit"] == "ms"
    assert columns["failed"] == {"name": "failed", "type": "number", "role": "loss",
                                 "unit": "share"}
    for option in document()["options"]:
        assert option["help"] and option["default"]
        assert columns[option["column"]]["role"] == "option"
        is_number = option["type"] in ("whole", "decimal")
        assert (columns[option["column"]]["type"] == "number") is is_number
        assert set(option["affects"]) <= {"routing", "step"}
        if option["type"] == "choice":
            assert len(option["values"]) > 1 and all(value["meaning"] for value in option["values"])
    assert sum(column["role"] == "option" for column in columns.values()) == len(option_names())
    zero = next(option for option in document()["options"] if option["name"] == "zero")
    assert (zero["type"], zero["minimum"], zero["maximum"]) == ("whole", 0, 3)
    assert zero["affects"] == ["step"]


@pytest.mark.parametrize("router", ["top2+ir+fr", "top1", "dense"])
@pytest.mark.parametrize("mode", ["train", "prefill"])
def test_simulate_json(router, mode):
    result = json.loads(succeed("simulate", *SMALL, "--router", router, "--mode", mode,
                                "--format", "json"))
    assert list(result) == [*column_names(), "detail"]
    assert result["status"] == "ok" and result["reason"] is None
    assert result["router"] == router.replace("+ir+fr", "+fr+ir")
    assert sum(result[part] or 0 for part in PARTS) == pytest.approx(result["step_ms"], rel=1e-7)
    assert result["step_ms_p05"] <= result["step_ms"] <= result["step_ms_p95"]
    assert result["tokens_per_s_per_gpu"] == pytest.approx(512 / result["step_ms"] * 1000, rel=1e-7)
    assert result["fits_memory"] is True
    assert len(result["detail"]["replica_step_ms"]) == 3
    if router == "dense":
        assert result["failed"] is None and result["capacity_factor"] is None
    else:
        assert result["capacity_factor"] == result["top_k"]
    if "ir" in router:
        assert result["unrouted"] == 0 and result["fill_failed"] is not None


def test_formats_agree_and_repeat():
    options = ["simulate", *SMALL, "--router", "top2+fr+ir", "--capacity-factor", "1.250"]
    as_json = json.loads(succeed(*options, "--format", "json"))
    (row,) = rows_of(succeed(*options, "--format", "csv"))
    assert row["capacity_factor"] == "1.25"
    for name in column_names():
        value = as_json[name]
        if value is None:
            assert row[name] == ""
        elif isinstance(value, bool):
            assert row[name] == str(value).lower()
        elif isinstance(value, (int, float)):
            assert float(row[name]) == value
        else:
            assert row[name] == value
    assert succeed(*options) == succeed(*options, "--jobs", "1")


def test_a_row_reproduces_itself():
    options = ["--router", "top1+fr+ir", "--capacity-factor", "0.75", "--experts", "16",
               "--priority", "own-score", "--dispatch", "einsum", "--global-batch", "16", "--zero",
               "3", "--checkpointing", "full", "--routing", "zipf:0.8", "--seed", "5",
               "--min-capacity", "2", "--ir-duplicates", "exclude", "--overlap", "gradient",
               "--slow-gpu", "1:1.5+3:2", "--slow-link", "0:4", "--jitter", "0.02",
               "--overlap-slowdown", "1.1:1.25"]
    first = succeed("simulate", *SMALL, *options, "--format", "csv")
    (row,) = rows_of(first)
    again = []
    for option in document()["options"]:
        value = row[option["column"]]
        if value:
            again += [f"--{option['name']}", value]
    assert succeed("simulate", *again, "--format", "csv") == first


def test_an_option_given_twice_has_its_last_value():
    result = moesim("simulate", *SMALL, "--seed", "1", "--seed", "2", "--format", "json")
    assert json.loads(result.stdout)["seed"] == 2
    assert "note: --seed is given twice" in result.stderr


def test_topk_without_a_number_has_the_models():
    (row,) = rows_of(succeed("simulate", *SMALL, "--router", "topk+ir", "--format", "csv"))
    assert (row["router"], row["top_k"]) == ("top2+ir", "2")  # llama2-7b-moe8 is top-2


def test_the_summary_says_how_tokens_travel_and_where_experts_are():
    text = succeed("simulate", *SMALL, "--router", "dropless", "--dedup", "node",
                   "--expert-placement", "round-robin")
    assert "a token is sent once to each node" in text and "experts placed round-robin" in text
    plain = succeed("simulate", *SMALL, "--router", "dropless")
    assert "sent once" not in plain and "placed" not in plain


def test_output_goes_where_it_is_sent(tmp_path):
    out = tmp_path / "one.json"
    trace = tmp_path / "trace.json"
    assert succeed("simulate", *SMALL, "--out", out, "--timeline", trace) == ""
    assert json.loads(out.read_text())["status"] == "ok"  # the format by the name
    bars = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert {bar["pid"] for bar in bars} == set(range(8))
    end = max(bar["ts"] + bar["dur"] for bar in bars) / 1000
    assert end == pytest.approx(json.loads(out.read_text())["step_ms"], rel=0.05)


GRID = ["sweep", *SMALL, "--mode", "prefill", "--capacity-factor", "0.5:1.5:0.5", "--router",
        "top1,top2+ir,top9", "--gpus", "8,12"]


def test_sweep_is_a_grid_in_order_for_any_jobs(tmp_path):
    for jobs in ("1", "3"):
        out = tmp_path / f"{jobs}.csv"
        assert succeed(*GRID, "--jobs", jobs, "--out", out) == ""
    text = (tmp_path / "1.csv").read_text()
    assert text == (tmp_path / "3.csv").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.csv", "3.csv"]
    rows = rows_of(text)
    assert text.splitlines()[0].split(",") == column_names()
    assert [(row["gpus"], row["router"], row["capacity_factor"]) for row in rows] == [
        (gpus, router, factor) for gpus in ("8", "12") for router in ("top1", "top2+ir", "top9")
        for factor in ("0.5", "1", "1.5")]
    for row in rows:
        possible = row["gpus"] == "8" and row["router"] != "top9"
        assert (row["status"] == "ok") is possible
        assert bool(row["reason"]) is not possible
        assert bool(row["step_ms"]) is possible
    assert all(float(row["unrouted"]) == 0 for row in rows
               if row["status"] == "ok" and row["router"].endswith("ir"))


def test_a_typed_option_without_effect_is_said_and_stdout_stays_clean():
    def notes(*words):
        result = moesim(*words, *SMALL)
        assert result.returncode == 0, result.stderr
        return [line for line in result.stderr.splitlines() if line.startswith("note: ")], \
            result.stdout

    idle = ("--fill-order", "priority")
    said, out = notes("simulate", "--router", "top1", *idle, "--format", "json")
    assert said == ["note: --fill-order has no effect: no router of this run fills in (+fr)"]
    assert json.loads(out)["router"] == "top1"
    assert notes("simulate", "--router", "top1+fr", *idle)[0] == []
    assert notes("simulate", "--router", "top1")[0] == []  # a default was not typed

    said, out = notes("route", "--router", "random", "--routing", "zipf:1", "--zero", "2",
                      "--format", "csv")
    assert said == ["note: --zero has no effect: routing alone times no step",
                    "note: --routing has no effect: no router of this run chooses by score"]
    assert len(rows_of(out)) == 1

    grid = ("sweep", "--mode", "prefill", "--format", "csv", "--ir-compute", "separate,overlap")
    said, out = notes(*grid, "--router", "dropless,top1")
    assert said == ["note: --ir-compute has no effect: no router of this run rectifies inside a GPU "
                    "or NVLink domain (+ir)"]
    assert len(rows_of(out)) == 2
    said, out = notes(*grid, "--router", "dropless,top1+ir")
    assert said == [] and len(rows_of(out)) == 3


def test_a_trace_that_repeats_is_said():
    trace = Path(__file__).resolve().parents[3] / "traces" / "synthetic-drift"
    options = ("route", "--routing", f"trace:{trace}", "--gpus", "8", "--tokens-per-gpu", "512",
               "--model", "llama2-7b-moe8")
    steps, layers = 4, 4  # axes 0 and 2 of its counts.npy
    again = moesim(*options, "--replicas", steps + 1)
    assert f"{steps + 1} replicas go through its {steps} steps again, 16 MoE layers of " \
        f"llama2-7b-moe8 take its {layers} layers in turn\n" in again.stderr
    assert "replicas go through" not in moesim(*options, "--replicas", steps).stderr


def test_a_sweep_has_one_row_for_what_has_no_capacity(tmp_path):
    out = tmp_path / "sweep.csv"
    # 130 tokens are no whole number for each of 8 experts: base is refused, at any factor.
    result = moesim("sweep", *SMALL, "--router", "dropless,top2,group-limited:4:2,dense,base",
                    "--sequence-length", "130", "--capacity-factor", "1,2", "--out", out)
    assert result.returncode == 0, result.stderr
    assert "3 of 10 combinations left out" in result.stderr
    assert [(row["router"], row["capacity_factor"], row["status"])
            for row in rows_of(out.read_text())] == [
        ("dropless", "", "ok"), ("top2", "1", "ok"), ("top2", "2", "ok"),
        ("group-limited:4:2", "1", "ok"), ("group-limited:4:2", "2", "ok"), ("dense", "", "ok"),
        ("base", "", "refused")]


def test_sweep_rows_are_those_of_simulate():
    rows = rows_of(succeed("sweep", *SMALL, "--router", "top1,top2+fr", "--capacity-factor", "1,2",
                           "--format", "csv"))
    for row in rows:
        (one,) = rows_of(succeed("simulate", *SMALL, "--router", row["router"], "--capacity-factor",
                                 row["capacity_factor"], "--format", "csv"))
        assert one == row


def test_sweep_in_other_formats():
    options = ["sweep", *SMALL, "--router", "top1,top2"]
    assert [row["router"] for row in json.loads(succeed(*options, "--format", "json"))] == \
        ["top1", "top2"]
    table = succeed(*options)
    assert "tokens/s/GPU" in table and table.count("\n") == 4 and "convention" in table.splitlines()[-1]


LONG = ["sweep", "--seed", "1:12:1", "--gpus", "8", "--replicas", "4", "--mode", "prefill"]


def start_and_wait_for_rows(out, count):
    """A sweep in the background that has saved `count` rows."""
    journal = out.with_name(out.name + ".partial")
    process = subprocess.Popen([BINARY, *LONG, "--jobs", "1", "--out", str(out)],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if journal.exists() and len(journal.read_text().splitlines()) > count:
            return process, journal
        time.sleep(0.01)
    process.kill()
    raise AssertionError(f"no {count} rows in two minutes: {process.communicate()}")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep") / "whole.csv"
    succeed(*LONG, "--out", out)
    return out.read_text()


@pytest.mark.slow
def test_a_killed_sweep_resumes(tmp_path, undisturbed):
    out = tmp_path / "rows.csv"
    process, journal = start_and_wait_for_rows(out, 2)
    process.kill()
    process.communicate()
    assert not out.exists()  # nothing half-written
    saved = len(journal.read_text().splitlines()) - 1
    assert 2 <= saved < 12
    result = moesim(*LONG, "--jobs", "2", "--out", out, "--resume")
    assert result.returncode == 0 and out.read_text() == undisturbed
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.slow
def test_ctrl_c_saves_what_there_is(tmp_path, undisturbed):
    out = tmp_path / "rows.csv"
    process, _ = start_and_wait_for_rows(out, 2)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and not stdout
    assert "--resume" in stderr
    partial = out.read_text().splitlines()
    assert 3 <= len(partial) < 13
    assert partial == undisturbed.splitlines()[:len(partial)]  # one job: in grid order
    assert moesim(*LONG, "--out", out, "--resume").returncode == 0
    assert out.read_text() == undisturbed


@pytest.mark.slow
def test_resume_without_an_interrupted_sweep_starts_anew(tmp_path, undisturbed):
    out = tmp_path / "rows.csv"
    result = moesim(*LONG, "--out", out, "--resume")
    assert result.returncode == 0 and "starting" in result.stderr
    assert out.read_text() == undisturbed


@pytest.mark.slow
def test_progress_is_plain_lines_off_a_terminal(tmp_path):
    result = moesim(*LONG, "--out", tmp_path / "rows.csv")
    assert "\r" not in result.stderr and "\033" not in result.stderr


@pytest.mark.slow
def test_progress_off_a_terminal_is_a_line_a_minute(tmp_path):
    process = subprocess.Popen([BINARY, "sweep", "--micro-batch", "1", "--replicas", "16", "--seed", "1:400:1",
                                "--jobs", "1", "--out", str(tmp_path / "rows.csv")],
                               stderr=subprocess.PIPE, text=True)
    try:
        stderr = process.communicate(timeout=13)[1]
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        stderr = process.communicate(timeout=60)[1]
    assert " left\n" not in stderr, stderr


@pytest.mark.slow
def test_progress_on_a_terminal_is_one_line_redrawn(tmp_path):
    master, slave = open_terminal()
    process = subprocess.Popen([BINARY, *LONG, "--out", str(tmp_path / "rows.csv")],
                               stdout=subprocess.PIPE, stderr=slave)
    os.close(slave)
    assert process.communicate(timeout=120)[0] == b""
    text = read_terminal(master)
    os.close(master)
    assert "\r" in text and "of 12 scenarios" in text and " elapsed" in text
    assert text.replace("\r\n", "\n").count("\n") == 1  # the final message alone


def test_efficiency_and_memory_have_columns_that_agree():
    row = json.loads(succeed("simulate", *SMALL, "--format", "json"))
    steps = row["detail"]["replica_step_ms"]
    assert sorted(steps)[1] == row["step_ms"]  # of three
    in_long_run = row["tokens_per_s_per_gpu"] * row["step_ms"] / (sum(steps) / 3)
    assert row["tokens_per_day"] == pytest.approx(in_long_run * 8 * 86400, rel=1e-8)
    assert row["gpu_hours_per_1e12_tokens"] == pytest.approx(1e12 / in_long_run / 3600, rel=1e-8)
    assert row["mfu"] == pytest.approx(row["tflops_per_gpu"] / 312, rel=1e-3)  # of an A100
    parts = [row[name] for name in ("parameters_gib", "gradients_gib", "optimizer_gib", "activations_gib",
                                    "buffers_gib")]
    assert all(part > 0 for part in parts) and sum(parts) == pytest.approx(row["memory_gib"], rel=1e-8)
    forward = json.loads(succeed("simulate", *SMALL, "--mode", "prefill", "--format", "json"))
    # A forward pass has a third of the FLOPs: TFLOP/s over tokens/s says how many a token takes.
    assert 3 * forward["tflops_per_gpu"] / forward["tokens_per_s_per_gpu"] == pytest.approx(
        row["tflops_per_gpu"] / row["tokens_per_s_per_gpu"], rel=1e-7)
    assert forward["gradients_gib"] == forward["optimizer_gib"] == 0


def test_a_burst_in_some_steps_costs_what_they_take():
    """Of 8 steps 3 have a burst: the median does not, GPU hours and losses do."""
    words = ("--gpus", 16, "--tokens-per-gpu", 2048, "--router", "dropless", "--fidelity", "counts", "--replicas", 8)
    calm = json.loads(succeed("simulate", *words, "--routing", "balanced", "--format", "json"))
    row = json.loads(succeed("simulate", *words, "--routing", "burst:8:0.4", "--format", "json"))
    steps = row["detail"]["replica_step_ms"]
    slow = [step for step in steps if step > 1.1 * calm["step_ms"]]
    assert 0 < len(slow) < len(steps) / 2
    assert row["step_ms"] == pytest.approx(calm["step_ms"], rel=0.02)
    assert row["tokens_per_s_per_gpu"] == pytest.approx(2048 / row["step_ms"] * 1e3)
    hours = sum(steps) / len(steps) / 1e3 / 2048 / 3600 * 1e12
    assert row["gpu_hours_per_1e12_tokens"] == pytest.approx(hours) and hours > 1.05 * calm["gpu_hours_per_1e12_tokens"]
    assert row["tokens_per_day"] == pytest.approx(16 * 24 * 1e12 / hours)
    mean = sum(steps) / len(steps)
    text = succeed("simulate", *words, "--routing", "burst:8:0.4")
    assert f"by the mean step, {mean:.1f} ms" in text or f"by the mean step, {mean / 1e3:.3f} s" in text
    assert "by the mean step" not in succeed("simulate", *words[:-2], "--replicas", 1)


OF_16 = ("--gpus", 16, "--micro-batch", 1, "--replicas", 1, "--format", "json")


def flops_per_token(*words):
    row = json.loads(succeed("simulate", *OF_16, *words))
    return row["tflops_per_gpu"] * 1e12 / row["tokens_per_s_per_gpu"]


def test_model_flops_of_expert_choice_are_of_the_slots_per_token():
    chosen = {factor: flops_per_token("--router", "expert-choice", "--top-k", 2, "--capacity-factor", factor)
              for factor in (1, 2)}
    assert chosen[2] == pytest.approx(flops_per_token("--router", "top2"))
    assert chosen[1] == pytest.approx(flops_per_token("--router", "top1"))
    library = flops_per_token("--router", "expert-choice", "--top-k", 2, "--capacity-factor", 1,
                              "--capacity-convention", "library")
    assert library == pytest.approx(chosen[2])


def test_an_mfu_above_one_is_explained(tmp_path):
    words = ("--gpus", 8, "--replicas", 1, "--router", "top2", "--capacity-factor")
    why = "model FLOPs count dropped routes as if they were kept"
    low = moesim("simulate", *words, 0.5, "--format", "json")
    assert json.loads(low.stdout)["mfu"] > 1 and low.stderr.count(why) == 1
    usual = moesim("simulate", *words, 2, "--format", "json")
    assert json.loads(usual.stdout)["mfu"] < 1 and why not in usual.stderr
    grid = moesim("sweep", *words, "0.5,2", "--out", tmp_path / "rows.csv")
    assert f"1 of 2 scenarios have an mfu above 1, which is no error: {why}" in grid.stderr


def test_model_flops_are_those_of_train():
    words = ("--model", "qwen3-30b-a3b", "--gpus", "8", "--profile", "h100-sxm", "--sequence-length", "4096",
             "--micro-batch", "1", "--format", "json")
    step = json.loads(succeed("train", *words))
    row = json.loads(succeed("simulate", *words, "--replicas", "1"))
    assert row["tflops_per_gpu"] / row["tokens_per_s_per_gpu"] == pytest.approx(
        step["tflops_per_gpu"] / step["tokens_per_s_per_gpu"], rel=1e-7)


def test_long_steps_are_in_seconds():
    text = succeed("simulate", *SMALL, "--global-batch", "32000", "--replicas", "1")
    step = next(line for line in text.splitlines() if line.startswith("step "))
    assert re.match(r"step +[\d.]+ s ", step) and re.search(r"where the time goes +s +share", text)
    table = succeed("sweep", *SMALL, "--global-batch", "8,32000", "--replicas", "1")
    assert "step s" in table.splitlines()[0]


STEPS = ("--model", "qwen3-30b-a3b", "--gpus", "64", "--expert-parallel", "8")


@pytest.mark.parametrize("words", [("sweep", *SMALL), ("options",), ("train", *STEPS), ("layout", *STEPS),
                                   ("predict", "--op", "all-to-all", "--gpus", "8", "--bytes", "1MiB")])
def test_a_reader_that_has_seen_enough_ends_a_command_quietly(words):
    reader, writer = os.pipe()
    os.close(reader)  # before the command starts: a short result would fit in the pipe
    try:
        result = moesim(*words, stdout=writer)
    finally:
        os.close(writer)
    assert result.returncode == -signal.SIGPIPE and "error" not in result.stderr


def test_a_help_text_may_be_read_in_part():
    process = subprocess.Popen([BINARY, "train", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    stderr = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 0 and stderr == ""


def test_route_prints_what_applies():
    result = json.loads(succeed("route", *SMALL, "--router", "top1+fr+ir", "--tokens-per-gpu",
                                "1000", "--format", "json"))
    assert result["tokens_per_gpu"] == 1000 and result["capacity"] == 125
    assert result["unrouted"] == 0 and 0 < result["failed"] < 1
    assert result["failed_attempted"] >= 0.5  # by construction at CF = k
    kept = [name for name in column_names() if name in result]
    assert list(result) == [*kept, "detail"]
    assert {"min_capacity", "ir_duplicates", "router_dialect", "padding", "fidelity",
            "expert_placement"} <= set(kept)
    for name in ("step_ms", "mode", "dispatch", "memory_gib"):
        assert name not in result
    assert len(result["detail"]["layer_failed"]) == 16


def test_route_and_simulate_lose_the_same_tokens():
    options = [*SMALL, "--router", "top2+fr+ir", "--capacity-factor", "1.5", "--format", "json"]
    route, simulate = (json.loads(succeed(command, *options)) for command in ("route", "simulate"))
    for name in COLUMNS[COLUMNS.index("failed"):COLUMNS.index("attention_ms")]:
        assert route[name] == simulate[name]


@pytest.mark.parametrize(("router", "capacity"), [
    # 512 tokens over 16 experts on 8 GPUs, k = 2. Pools of 204, 154 and 154 tokens, the first among
    # the GPU's own 2 experts: 204 + ceil(2 * 154 / 16) + ceil(2 * 154 / 16) slots of one of those.
    ("scomoe:0.4:0.3", 204 + 20 + 20),
    ("gating-dropout:0.9", 64), ("expert-choice", 64), ("base", 32), ("base:greedy", None),
    ("dropless", None)])
def test_route_and_simulate_name_the_same_capacity(router, capacity):
    options = [*SMALL, "--experts", "16", "--router", router, "--format", "json"]
    for command in ("route", "simulate"):
        assert json.loads(succeed(command, *options))["capacity"] == capacity


def test_route_of_a_logits_file(tmp_path):
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    logits = numpy.random.default_rng(3).normal(size=(2, 64, 4)).astype(numpy.float32)
    numpy.save(tmp_path / "logits.npy", logits)
    out = tmp_path / "routes.npy"
    assert succeed("route", "--router", "top1+ir", "--capacity-factor", "1", "--logits",
                   tmp_path / "logits.npy", "--out", out) == ""
    routes = numpy.load(out)
    assert routes.dtype.names == ("rank", "token", "choice", "expert", "slot", "weight", "kind")
    primary = routes[routes["kind"] == "primary"]
    assert len(primary) == 2 * 64
    assert (primary["expert"] == logits.reshape(-1, 4).argmax(axis=1)).all()
    kept = primary[primary["slot"] >= 0]
    for rank in range(2):
        for expert in range(4):
            mine = kept[(kept["rank"] == rank) & (kept["expert"] == expert)]
            assert len(mine) <= 16 and sorted(mine["slot"]) == list(range(len(mine)))
    rectified = routes[routes["kind"] == "ir"]
    assert len(rectified) == len(primary) - len(kept)
    assert (rectified["slot"] == -2).all() and (rectified["expert"] // 2 == rectified["rank"]).all()
    assert list(routes[["rank", "token", "choice"]]) == sorted(routes[["rank", "token", "choice"]],
                                                                key=tuple)
    result = moesim("route", "--logits", tmp_path / "logits.npy", "--out", out, "--experts", "8")
    assert result.returncode == 2 and "--experts" in result.stderr


def test_predict_one_operation():
    result = json.loads(succeed("predict", "--profile", "h100-sxm", "--op", "all-to-all", "--gpus",
                                "8", "--bytes", "64MiB", "--format", "json"))
    assert list(result) == ["op", "params", "time_us", "time_us_p05", "time_us_p95", "provenance",
                            "rank_finish_us"]
    assert result["params"] == {"gpus": 8, "bytes": 64 << 20}
    assert result["rank_finish_us"] == [result["time_us"]] * 8
    assert result["time_us_p05"] <= result["time_us"] <= result["time_us_p95"]
    result = json.loads(succeed("predict", "--op", "memory", "--bytes", "1GB", "--format", "json"))
    assert result["params"] == {"bytes": 10**9} and "rank_finish_us" not in result


def test_predict_queries(tmp_path):
    queries = tmp_path / "queries.csv"
    queries.write_text('note,op,gpus,bytes,kv_heads,batch,sequence,heads,head-dim\n'
                       '"a, b",all-to-all,8,1MiB,,,,,\n'
                       'c,attention,,,32,4,2048,32,128\n')
    text = succeed("predict", "--in", queries)
    rows = rows_of(text)
    assert text.splitlines()[0] == queries.read_text().splitlines()[0] + \
        ",time_us,time_us_p05,time_us_p95,provenance,rank_finish_us"
    assert [row["note"] for row in rows] == ["a, b", "c"]
    single = json.loads(succeed("predict", "--op", "all-to-all", "--gpus", "8", "--bytes", "1MiB",
                                "--format", "json"))
    assert float(rows[0]["time_us"]) == single["time_us"]
    assert [float(time) for time in rows[0]["rank_finish_us"].split(";")] == \
        single["rank_finish_us"]
    assert rows[1]["rank_finish_us"] == ""
    assert [entry["op"] for entry in json.loads(succeed("predict", "--in", queries, "--format",
                                                        "json"))] == ["all-to-all", "attention"]


def test_doctor_reports_and_fails_nothing():
    report = json.loads(succeed("doctor", "--format", "json"))
    findings = {finding["name"]: finding for finding in report["findings"]}
    for name in ("profiles", "models", "clusters", "CPU"):
        assert findings[name]["found"] is True, findings[name]
    for finding in findings.values():
        assert finding["found"] or finding["without_it"]
    # Without a GPU the reason; with one, what it is and measures.
    if "GPU" in findings:
        assert "driver" in findings["GPU"]["detail"] or "CUDA" in findings["GPU"]["detail"]
    else:
        assert "compute capability" in findings["GPU 0"]["detail"]
    assert "CPU" in succeed("doctor")


@pytest.mark.parametrize("has_plotly", [False, True])
def test_a_page_without_plotly_is_no_error_of_usage(tmp_path, has_plotly):
    """doctor finds the package by its name and does not load it."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    package = tmp_path / "packages" / "plotly"
    package.mkdir(parents=True)
    package.joinpath("__init__.py").touch()
    package.joinpath("offline.py").write_text("get_plotlyjs = str\n" if has_plotly else "raise ImportError\n")
    env = {"MOESIM_PYTHON": sys.executable, "PYTHONPATH": str(package.parent)}
    findings = json.loads(moesim("doctor", "--format", "json", env=env).stdout)["findings"]
    (found,) = (finding for finding in findings if finding["name"] == "Python with plotly")
    assert found["found"] is True and found["detail"] == sys.executable
    rows = tmp_path / "rows.csv"
    succeed(*GRID, "--out", rows)
    result = moesim("plot", rows, "--out", tmp_path / "page.html", env=env)
    assert result.returncode == (0 if has_plotly else 3), result.stderr
    assert ("pip install plotly" in result.stderr) == (not has_plotly)


def test_plot_without_matplotlib_says_what_to_install(tmp_path):
    out = tmp_path / "x.png"
    result = moesim("plot", "a100-sxm-80gb", "--out", out, env={"MOESIM_PYTHON": "/bin/false"})
    assert result.returncode == 3 and not result.stdout and not out.exists()
    assert "python3-matplotlib" in result.stderr


@pytest.mark.slow
def test_charts(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    rows = tmp_path / "s.csv"
    succeed("sweep", *SMALL, "--router", "top1,top1+ir,dense", "--capacity-factor", "0.5:1.5:0.5",
            "--out", rows)
    measured = tmp_path / "m.csv"
    measured.write_text("router,capacity_factor,tokens_per_s_per_gpu,mode,source,excluded\n"
                        "top1,1,5000,train,a test,\ntop1,0.5,5000,train,a test,true\n")
    png, pdf, again = tmp_path / "a.png", tmp_path / "a.pdf", tmp_path / "b.png"
    for out in (png, pdf, again):
        assert succeed("plot", rows, "--measured", measured, "--out", out) == ""
    content = png.read_bytes()
    assert content.startswith(b"\x89PNG") and content == again.read_bytes()
    width, height = struct.unpack(">II", content[16:24])
    assert width > 1000 and height > 800
    assert pdf.read_bytes().startswith(b"%PDF")
    succeed("plot", "h100-sxm", "--out", tmp_path / "h.png")
    assert not list(tmp_path.glob("*.tmp"))


def test_routing_alone_shows_how_uneven_the_load_is():
    result = json.loads(succeed("route", "--router", "top2+ir", "--gpus", "8", "--tokens-per-gpu",
                                "512", "--routing", "zipf:0.8", "--replicas", "1", "--format",
                                "json"))
    detail = result["detail"]
    assert [line["layer"] for line in detail["layers"]] == list(range(16))
    peaks = []
    for line in detail["layers"]:
        share = line["expert_demand_share"]
        assert sum(share) == pytest.approx(1, abs=1e-7)
        peaks.append(max(share) * len(share))  # with one replica: that replica's
        assert line["expert_demand_busiest_over_mean"] == pytest.approx(peaks[-1], rel=1e-6)
        # Gini from its definition: the mean difference of all pairs over twice the mean.
        pairs = sum(abs(one - other) for one in share for other in share)
        assert line["expert_demand_gini"] == pytest.approx(pairs / (2 * len(share)), abs=1e-6)
    assert result["failed"] == pytest.approx(
        sum(line["failed"] for line in detail["layers"]) / 16, rel=1e-6)
    spread = detail["imbalance"]["expert_demand_busiest_over_mean"]
    assert spread["max"] == pytest.approx(max(peaks), rel=1e-6)
    assert detail["most_uneven_layer"] == peaks.index(max(peaks))
    assert detail["replicas"][0]["residual_loss"] == pytest.approx(result["residual_loss"])
    # Every pair of GPUs gets at most its C rows of one expert: 512 tokens, CF 2, 8 experts.
    assert detail["pair_bytes"]["kept_max"] <= 128 * detail["pair_bytes"]["row_bytes"]
    assert detail["pair_bytes"]["padded"] == 128 * detail["pair_bytes"]["row_bytes"]
