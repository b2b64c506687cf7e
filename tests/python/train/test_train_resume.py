"""`moesim train` with lists: an interrupted run continues where it was, to the same bytes."""

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from command_line import BINARY, expect_error, moesim, needs_binary, succeed

pytestmark = needs_binary

PROFILES = Path(__file__).resolve().parents[3] / "profiles"

# A refused layout, drawn routing, values without effect and columns that only some rows have. A drawn row takes a
# quarter of a second: long enough to interrupt the rows behind it.
GRID = ("train", "--model", "dbrx", "--profile", "h100-sxm", "--gpus", "16", "--global-batch", "64",
        "--expert-parallel", "8", "--router", "topk,dropless", "--capacity-factor", "1,1.25",
        "--pipeline-parallel", "1,3,2", "--jobs", "1")
STEPS = 2 * 2 * 3


@pytest.fixture(name="whole", scope="module")
def whole_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("train") / "steps.csv"
    succeed(*GRID, "--out", out)
    assert list(out.parent.iterdir()) == [out]
    return out.read_bytes()


def saved(journal):
    return journal.read_text().count("\n") - 1 if journal.exists() else 0


def end_after_rows(out, number, words=GRID, rows=2):
    """A run that gets a signal when it has saved some rows: its exit code and stderr."""
    journal = out.with_name(out.name + ".partial")
    process = subprocess.Popen([BINARY, *words, "--out", out], stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(number, signal.SIG_DFL)
                               if number != signal.SIGKILL else None)
    deadline = time.monotonic() + 120
    while process.poll() is None and saved(journal) < rows and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=120)
    assert rows <= saved(journal) < STEPS, stderr
    return process.returncode, stderr, journal


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_continues(tmp_path, whole, number):
    out = tmp_path / "steps.csv"
    code, stderr, journal = end_after_rows(out, number)
    assert code == 130 and "the same command with --resume continues" in stderr
    assert 2 <= out.read_text().count("\n") < whole.count(b"\n")  # what there was, as a result
    before = saved(journal)
    result = moesim(*GRID, "--out", out, "--resume", "--jobs", "2")
    assert result.returncode == 0 and before > 0
    assert out.read_bytes() == whole and list(tmp_path.iterdir()) == [out]


def test_a_killed_run_continues(tmp_path, whole):
    out = tmp_path / "steps.csv"
    code, _, journal = end_after_rows(out, signal.SIGKILL)
    assert code == -signal.SIGKILL and not out.exists()
    # The rows are not lost by leaving --resume out, nor mixed with those of other steps.
    there = journal.read_bytes()
    expect_error(moesim(*GRID, "--out", out), 2, "steps.csv.partial", "finished rows of an interrupted run", "--resume")
    expect_error(moesim(*GRID, "--zero", "3", "--out", out, "--resume"), 2, "steps.csv.partial", "other options")
    assert journal.read_bytes() == there
    journal.write_bytes(there[:-20])  # as a power failure may leave it
    assert moesim(*GRID, "--out", out, "--resume").returncode == 0
    assert out.read_bytes() == whole and not journal.exists()


def test_saved_rows_are_taken_not_predicted_again(tmp_path, whole):
    """A figure that no prediction gives, saved as a row has it, appears."""
    out = tmp_path / "steps.csv"
    journal = end_after_rows(out, signal.SIGKILL)[2]
    lines = journal.read_text().splitlines(keepends=True)
    at = next(at for at, text in enumerate(lines) if at > 0 and text.split(",", 3)[3].startswith("[true"))
    index, count, _, cells = lines[at].rstrip("]\n").split(",", 3)
    step = re.search(r"\d+\.\d{4,}", cells)[0]
    cells = cells.replace(step, "123.25") + "]"
    lines[at] = f'{index},{count},"{checksum(index[1:] + " ", cells):016x}",{cells}]\n'
    journal.write_text("".join(lines))
    result = moesim(*GRID, "--out", out, "--resume")
    assert result.returncode == 0 and out.read_bytes() != whole and b"123.25" in out.read_bytes()


def checksum(*pieces):
    """FNV-1a of 64 bits, a zero behind each piece, as sim/base/digest.hpp has it."""
    value = 0xcbf29ce484222325
    for byte in b"".join(piece.encode() + b"\0" for piece in pieces):
        value = ((value ^ byte) * 0x100000001b3) % 2**64
    return value


def test_a_changed_file_is_noticed(tmp_path):
    model = tmp_path / "mine.json"
    text = (PROFILES / "models" / "dbrx.json").read_text()
    model.write_text(text)
    out = tmp_path / "steps.csv"
    words = (*GRID, "--model", model)
    end_after_rows(out, signal.SIGKILL, words)
    model.write_text(text + "\n")
    expect_error(moesim(*words, "--out", out, "--resume"), 2, "steps.csv.partial", "other options, documents")
    model.write_text(text)
    assert moesim(*words, "--out", out, "--resume").returncode == 0


@pytest.mark.parametrize(("words", "parts"), [
    (("--resume",), ("--resume: give the --out FILE",)),
    (("--resume", "--out", "/dev/null"), ("--resume: give the --out FILE",)),
    (("--resume", "--router", "topk", "--capacity-factor", "1", "--pipeline-parallel", "1"),
     ("--resume: continues a run of several steps",)),
])
def test_nothing_to_resume(words, parts):
    expect_error(moesim(*GRID, *words), 2, *parts)


def test_a_finished_run_is_complete_or_left_alone(tmp_path, whole):
    out = tmp_path / "steps.csv"
    result = moesim(*GRID, "--out", out, "--resume")
    assert result.returncode == 0 and "starting from the first step" in result.stderr
    assert out.read_bytes() == whole
    result = moesim(*GRID, "--out", out, "--resume")
    assert result.returncode == 0 and "already complete" in result.stderr and "steps.csv" in result.stderr
    expect_error(moesim(*GRID, "--global-batch", "128", "--out", out, "--resume"), 2,
                 "not what these options give today", "leave --resume out to replace it")
    assert out.read_bytes() == whole and list(tmp_path.iterdir()) == [out]


def test_a_table_that_lacks_rows_says_so(tmp_path, whole):
    out = tmp_path / "steps.csv"
    lines = whole.splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:2] + lines[3:]))
    expect_error(moesim(*GRID, "--out", out, "--resume"), 2, f"{out} lacks 1 of the lines that these options give")
    # Another figure is no missing row.
    out.write_bytes(whole.replace(b"ok,", b"ok ,", 1))
    expect_error(moesim(*GRID, "--out", out, "--resume"), 2, "not what these options give today")


def test_rows_of_other_steps_are_kept(tmp_path, whole):
    out, old = tmp_path / "steps.csv", tmp_path / "steps.csv.old"
    out.write_bytes(whole)
    assert "kept as" not in moesim(*GRID, "--out", out).stderr and out.read_bytes() == whole
    fewer = (*GRID, "--capacity-factor", "1", "--pipeline-parallel", "1,2")
    result = moesim(*fewer, "--out", out)
    assert result.returncode == 0 and f"rows that are not in this result: kept as {old}\n" in result.stderr
    assert old.read_bytes() == whole and out.read_bytes() != whole
    # More steps, these among them: nothing is lost.
    assert "kept as" not in moesim(*GRID, "--out", out).stderr and out.read_bytes() == whole


def test_one_step_keeps_a_table_and_replaces_a_step(tmp_path, whole):
    out, old = tmp_path / "steps.csv", tmp_path / "steps.csv.old"
    out.write_bytes(whole)
    one = ("train", "--model", "qwen3-30b-a3b", "--profile", "h100-sxm", "--gpus", "16", "--out", out)
    assert f"kept as {old}" in moesim(*one).stderr and old.read_bytes() == whole
    assert "kept as" not in moesim(*one, "--zero", "1").stderr


TWO = ("train", "--model", "mixtral-8x7b", "--gpus", "64", "--expert-parallel", "8", "--global-batch", "256",
       "--tensor-parallel", "2", "--micro-batch", "1,2")


@pytest.mark.parametrize("more", [("--router", "dropless", "--routing", "zipf:0.5,zipf:0.8"),
                                  ("--software", "megatron-bridge,simumax")])
def test_rows_that_differ_in_columns_of_their_own_are_kept(tmp_path, more):
    """Options that have a column only where they are used: routing, software."""
    out, old = tmp_path / "steps.csv", tmp_path / "steps.csv.old"
    succeed(*TWO, *more, "--out", out)
    before = out.read_bytes()
    assert f"kept as {old}" in moesim(*TWO, "--out", out).stderr and old.read_bytes() == before
    assert "kept as" not in moesim(*TWO, "--out", out).stderr


def test_a_column_of_ones_own_is_kept(tmp_path):
    out, old = tmp_path / "steps.csv", tmp_path / "steps.csv.old"
    succeed(*TWO, "--out", out)
    lines = out.read_text().splitlines()
    out.write_text("\n".join([lines[0] + ",measured_ms", *(f"{line},{at}" for at, line in enumerate(lines[1:], 812))]) + "\n")
    assert "a column 'measured_ms' that is not in this result: kept as" in moesim(*TWO, "--out", out).stderr
    assert "measured_ms" in old.read_text()


@pytest.mark.parametrize(("name", "first", "second"), [
    ("a.json", (), ()), ("a.csv", ("--format", "json"), ()), ("a.csv", (), ("--format", "table"))])
def test_one_step_keeps_several_in_any_form(tmp_path, name, first, second):
    out = tmp_path / name
    succeed(*TWO, *first, "--out", out)
    before = out.read_bytes()
    result = moesim(*TWO, "--micro-batch", "1", *second, "--out", out)
    assert result.returncode == 0 and "kept as" in result.stderr
    assert (tmp_path / f"{name}.old").read_bytes() == before
