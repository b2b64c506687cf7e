"""The contract of moesim sweep: grid order, resumption, progress."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from command_line import BINARY, SMALL, Terminal, as_json, moesim, needs_binary, succeed
from options_document import GRID, column_names, rows_of

pytestmark = needs_binary


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
    assert [row["router"] for row in as_json(*options)] == \
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
    terminal = Terminal()
    result = subprocess.run([BINARY, *LONG, "--out", str(tmp_path / "rows.csv")], stdout=subprocess.PIPE, stderr=terminal.end,
                            timeout=120, check=True)
    assert result.stdout == b""
    text = terminal.text()
    assert "\r" in text and "of 12 scenarios" in text and " elapsed" in text
    assert text.replace("\r\n", "\n").count("\n") == 1  # the final message alone
