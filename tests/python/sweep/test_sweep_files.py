"""What a sweep does with files that are there: finished results, journals of other sweeps."""

import csv
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from command_line import BINARY, expect_error, moesim, needs_binary

SMALL = ("--gpus", "8", "--micro-batch", "1", "--replicas", "2", "--mode", "prefill",
         "--sequence-length", "512")

pytestmark = needs_binary
PROFILES = Path(__file__).resolve().parents[3] / "profiles"


def sweep(out, router, *more):
    return moesim("sweep", *SMALL, "--router", router, "--out", out, *more)


@pytest.fixture
def finished(tmp_path):
    out = tmp_path / "rows.csv"
    assert sweep(out, "top1,top2").returncode == 0
    return out


def test_resume_of_a_finished_sweep_leaves_it(finished):
    before = finished.read_bytes()
    stamp = finished.stat().st_mtime_ns
    result = sweep(finished, "top1,top2", "--resume")
    assert result.returncode == 0 and "already complete, 2 scenarios" in result.stderr
    assert finished.read_bytes() == before and finished.stat().st_mtime_ns == stamp


def test_resume_with_more_scenarios_computes_only_these(finished, tmp_path):
    whole = tmp_path / "whole.csv"
    assert sweep(whole, "top2+ir,top1,top2").returncode == 0
    # A figure that no simulation gives shows that rows are taken over.
    lines = finished.read_text().splitlines()
    at = lines[0].split(",").index("step_ms")
    step = lines[1].split(",")[at]
    assert lines[1].count(step) >= 1
    finished.write_text("\n".join([lines[0], lines[1].replace(f",{step},", ",123.25,", 1), *lines[2:]]) + "\n")
    result = sweep(finished, "top2+ir,top1,top2", "--resume")
    assert result.returncode == 0 and "2 of these 3 scenarios are taken from it" in result.stderr
    assert finished.read_text().replace(",123.25,", f",{step},") == whole.read_text()
    assert ",123.25," in finished.read_text()


def test_resume_refuses_a_file_of_another_sweep(finished):
    before = finished.read_bytes()
    expect_error(sweep(finished, "dropless", "--resume"), 2, "none of its 2 scenarios")
    assert finished.read_bytes() == before


def test_results_of_another_sweep_are_kept(finished):
    """A sweep that takes hours must not be lost to a name that is taken."""
    before, old = finished.read_bytes(), finished.with_name("rows.csv.old")
    result = sweep(finished, "dropless")
    assert result.returncode == 0
    assert f"note: {finished} had 2 rows that are not in this result: kept as {old}\n" in result.stderr
    assert old.read_bytes() == before and finished.read_text().count("\n") == 2
    # An older one is kept as well.
    dropless = finished.read_bytes()
    assert f"kept as {old}2\n" in sweep(finished, "top1").stderr
    assert old.read_bytes() == before and finished.with_name("rows.csv.old2").read_bytes() == dropless


def test_a_shard_keeps_results_of_another_sweep(finished):
    before = finished.read_bytes()
    assert "kept as" in sweep(finished, "dropless,base", "--shard", "1/2").stderr
    assert finished.with_name("rows.csv.old").read_bytes() == before
    assert "kept as" not in sweep(finished, "dropless,base", "--shard", "1/2").stderr


def test_an_interrupted_sweep_keeps_a_finished_one(finished):
    """Ctrl-C in a sweep that was begun anew must not lose the rows that were there."""
    before = finished.read_bytes()
    journal = finished.with_name("rows.csv.partial")
    process = subprocess.Popen([BINARY, "sweep", *SMALL, "--router", "top1,dropless,top2", "--capacity-factor",
                                "0.5:2:0.01", "--jobs", "1", "--out", finished], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline and not (
            journal.exists() and journal.read_text().count("\n") > 1):
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130 and "kept as" in stderr, stderr
    assert finished.with_name("rows.csv.old").read_bytes() == before


def test_a_merged_sweep_keeps_another(finished):
    before = finished.read_bytes()
    part = finished.with_name("part.csv")
    assert sweep(part, "dropless", "--shard", "1/1").returncode == 0
    assert "kept as" in moesim("merge", part, "--out", finished).stderr
    assert finished.with_name("rows.csv.old").read_bytes() == before
    assert "kept as" not in moesim("merge", part, "--out", finished).stderr


def test_results_that_a_sweep_has_too_are_replaced(finished):
    result = sweep(finished, "top1,top2,dropless")
    assert result.returncode == 0 and "kept as" not in result.stderr
    assert list(finished.parent.iterdir()) == [finished]


@pytest.mark.parametrize(("name", "text"), [("rows.csv", "a,b\n1,2\n"), ("rows.json", "[1]\n")])
def test_a_file_that_is_no_sweep_is_kept(tmp_path, name, text):
    out = tmp_path / name
    out.write_text(text)
    assert f"kept as {out}.old" in sweep(out, "top1").stderr
    assert (tmp_path / f"{name}.old").read_text() == text
    before = out.read_bytes()
    assert "kept as" not in sweep(out, "top1").stderr and out.read_bytes() == before


def test_resume_refuses_a_file_that_is_no_result(tmp_path):
    out = tmp_path / "rows.csv"
    out.write_text("a,b\n1,2\n")
    expect_error(sweep(out, "top1", "--resume"), 2, "rows.csv", "no result of a sweep")
    text = tmp_path / "rows.json"
    text.write_text("[]")
    expect_error(sweep(text, "top1", "--resume"), 2, "rows.json", "CSV only")
    assert out.read_text() == "a,b\n1,2\n"


def test_refused_scenarios_alone_do_not_replace_a_result(finished):
    before = finished.read_bytes()
    result = moesim("sweep", "--gpus", "12", "--expert-parallel", "8", "--out", finished)
    assert result.returncode == 1 and "left as it was" in result.stderr
    assert finished.read_bytes() == before


def test_an_interrupted_sweep_of_refused_rows_does_not_replace_a_result(finished):
    """Refused rows are done at once; the one that follows takes long enough to be interrupted."""
    before = finished.read_bytes()
    process = subprocess.Popen(
        [BINARY, "sweep", "--expert-parallel", "8", "--gpus", "12,32", "--replicas", "4000", "--jobs", "1",
         "--out", finished], stderr=subprocess.PIPE, text=True)
    journal = finished.with_name("rows.csv.partial")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (journal.exists() and journal.read_text().count("\n") >= 2):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "left as it was" in stderr and finished.read_bytes() == before


def test_rows_that_do_not_fit_are_counted(tmp_path):
    result = moesim("sweep", "--model", "mixtral-8x7b", "--gpus", "8", "--micro-batch", "1,8", "--replicas", "1",
                    "--sequence-length", "512", "--out", tmp_path / "rows.csv")
    assert result.returncode == 0
    assert ("warning: 2 of 2 scenarios do not fit in the memory of a GPU (that of the profile "
            "a100-sxm-80gb; column") in result.stderr


def test_a_band_has_two_sides_with_however_few_replicas(tmp_path):
    for replicas in (1, 2, 3):
        out = tmp_path / f"{replicas}.csv"
        assert sweep(out, "top2", "--replicas", str(replicas)).returncode == 0
        (row,) = csv.DictReader(out.read_text().splitlines())
        low, middle, high = (float(row[f"step_ms_{share}"]) for share in ("p05", "p50", "p95"))
        assert low < middle < high
        step = float(row["step_ms"])
        assert float(row["step_ms_same_p05"]) < 0.99 * step < 1.01 * step < float(row["step_ms_same_p95"])
        assert "never calibrated" in row["widest_term"] and row["narrower_with"]


@pytest.mark.parametrize("name", ["mix.png", "mix.svg", "mix.pdf", "mix.html"])
def test_a_chart_is_no_place_for_a_table(tmp_path, name):
    out = tmp_path / name
    out.write_bytes(b"a picture")
    expect_error(sweep(out, "top1"), 2, name, "moesim plot")
    assert out.read_bytes() == b"a picture"


def journal_of(tmp_path, router="top1,top2,top2+ir"):
    """The journal of a sweep that is killed after a row, and its --out."""
    out = tmp_path / "rows.csv"
    journal = tmp_path / "rows.csv.partial"
    process = subprocess.Popen([BINARY, "sweep", *SMALL, "--replicas", "16", "--sequence-length", "4096", "--jobs", "1",
                                "--router", router, "--out", out], stderr=subprocess.DEVNULL)
    while process.poll() is None:
        if journal.exists() and journal.read_text().count("\n") >= 2:
            process.send_signal(signal.SIGKILL)
            process.wait()
    if not journal.exists():
        pytest.skip("the sweep was done before it could be killed")
    return out, journal


def long_sweep(out, *more, env=None):
    return moesim("sweep", *SMALL, "--replicas", "16", "--sequence-length", "4096", "--router", "top1,top2,top2+ir",
                  "--out", out, *more, env=env)


def test_finished_scenarios_are_not_thrown_away_unasked(tmp_path):
    out, journal = journal_of(tmp_path)
    before = journal.read_bytes()
    expect_error(long_sweep(out), 2, "rows.csv.partial", "--resume", "delete")
    assert journal.read_bytes() == before
    assert long_sweep(out, "--resume").returncode == 0
    assert not journal.exists()


def test_a_second_sweep_does_not_touch_the_journal_of_the_first(tmp_path):
    out, journal = journal_of(tmp_path)
    before = journal.read_bytes()
    with journal.open("r+b") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        expect_error(long_sweep(out, "--resume"), 2, "another run is writing it")
    assert journal.read_bytes() == before


def test_a_link_and_its_file_have_one_journal(tmp_path):
    """Two sweeps would write one file, each with a lock of its own."""
    link = tmp_path / "elsewhere" / "link.csv"
    link.parent.mkdir()
    link.symlink_to("../rows.csv")
    out, journal = journal_of(tmp_path)
    with journal.open("r+b") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        expect_error(long_sweep(link, "--resume"), 2, "another run is writing it")
    assert long_sweep(link, "--resume").returncode == 0
    assert link.is_symlink() and not journal.exists()
    assert out.read_text().count("\n") == 4 and list(link.parent.iterdir()) == [link]


@pytest.mark.parametrize(("saved", "reason"), [
    (lambda text: b"\xef\xbb\xbf" + text, "begins with a byte order mark (BOM)"),
    (lambda text: text.replace(b"\n", b"\r\n"), "has lines that end with CR LF"),
    (lambda text: text.decode().encode("utf-16"), "begins with a byte order mark (BOM)"),
])
def test_a_journal_that_an_editor_saved_is_refused_for_that(tmp_path, saved, reason):
    out, journal = journal_of(tmp_path)
    before = journal.read_bytes()
    journal.write_bytes(saved(before))
    expect_error(long_sweep(out, "--resume"), 2, "rows.csv.partial", reason, "without a BOM and with LF")
    journal.write_bytes(before)
    assert long_sweep(out, "--resume").returncode == 0


def test_a_sweep_that_ended_before_its_first_row_leaves_nothing_in_the_way(tmp_path):
    out = tmp_path / "rows.csv"
    journal = out.with_name("rows.csv.partial")
    process = subprocess.Popen(
        [BINARY, "sweep", "--expert-parallel", "8", "--gpus", "32", "--replicas", "4000", "--jobs", "1", "--out", out],
        stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (journal.exists() and journal.read_text().endswith("\n")):
        time.sleep(0.02)
    head = journal.read_text()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and "nothing written" in stderr and not journal.exists()
    # Nor what a kill leaves: the heading alone.
    journal.write_text(head)
    other = ("sweep", "--model", "llama2-7b-moe8", "--gpus", 8, "--replicas", 1, "--mode", "prefill", "--out", out)
    assert moesim(*other, "--resume").returncode == 0 and out.exists() and not journal.exists()
    journal.write_text("notes of mine\n")
    expect_error(moesim(*other[:-1], tmp_path / "rows.csv", "--resume", "--capacity-factor", 2), 2, "holds rows")


@pytest.mark.parametrize("change", [
    lambda line: line.replace("ok", "no", 1),
    lambda line: json.dumps([*json.loads(line)[:3], json.loads(line)[3][:-1]]),
    lambda line: "[0,[]]",
    lambda line: "[0,[1]]",
    lambda line: "[0,1,\"0\",[[]]]",
    lambda line: line[:-20],
    lambda line: line.replace("[0,", "[1,", 1),
])
def test_an_altered_row_is_computed_again(tmp_path, change):
    out, journal = journal_of(tmp_path)
    head, line, *rest = journal.read_text().splitlines()
    journal.write_text("\n".join([head, change(line), *rest]) + "\n")
    assert long_sweep(out, "--resume").returncode == 0
    whole = tmp_path / "whole.csv"
    assert long_sweep(whole).returncode == 0
    assert out.read_text() == whole.read_text()


def test_bands_of_other_measurements_are_of_another_sweep(tmp_path):
    out, journal = journal_of(tmp_path)
    shutil.copytree(PROFILES, tmp_path / "profiles")
    residuals = tmp_path / "profiles" / "residuals" / "steps.json"
    document = json.loads(residuals.read_text())
    document["source"] = "others"
    residuals.write_text(json.dumps(document))
    result = long_sweep(out, "--resume", env={"MOESIM_PROFILES": str(tmp_path / "profiles")})
    expect_error(result, 2, "rows of a run with other options, documents or program version")
    assert journal.exists()


def test_messages_for_a_closed_stderr_are_in_no_file(tmp_path):
    """The first file that is opened would get the number of what is closed."""
    out, journal = tmp_path / "rows.csv", tmp_path / "rows.csv.partial"
    words = [BINARY, "sweep", *SMALL, "--seed", "1:4000:1", "--jobs", "1", "--out", str(out)]
    process = subprocess.Popen(["sh", "-c", 'exec "$@" 2>&-', "-", *words])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (journal.exists() and journal.read_text().count("\n") > 3):
        time.sleep(0.02)
    opened = {number: os.readlink(f"/proc/{process.pid}/fd/{number}") for number in (2, 3, 4, 5)
              if os.path.lexists(f"/proc/{process.pid}/fd/{number}")}
    process.kill()
    process.wait()
    assert opened[2] == "/dev/null" and str(journal) in opened.values()


def test_routers_of_another_k_are_named():
    grid = ("sweep", "--model", "qwen3-30b-a3b", "--profile", "h100-sxm", "--gpus", 8, "--mode", "prefill",
            "--sequence-length", 256, "--micro-batch", 1, "--replicas", 1, "--capacity-factor", 8)
    result = moesim(*grid, "--router", "top8,dropless,base")
    assert result.returncode == 0
    assert "warning: not of the same k as the other routers (k = 8): base" in result.stderr and "(k = 1); token loss" in result.stderr
    # As many of one k as of another: none is usual.
    assert "as the other routers: base:greedy (k = 1); token loss" in moesim(*grid, "--router", "top2,base").stderr
    # Names that say their k, and one k alone, are no surprise.
    for routers in ("top1,top2", "top8,dropless"):
        assert "not of the same k" not in moesim(*grid, "--router", routers).stderr


def test_a_full_disk_keeps_the_rows_so_far(tmp_path):
    """As much may be written as the heading and some of the rows take."""
    grid = ("top1,top2,dropless,top1+ir,top2+ir,top2+fr", "--capacity-factor", "0.5:2:0.25", "--jobs", "1")
    whole, out = tmp_path / "whole.csv", tmp_path / "rows.csv"
    assert sweep(whole, *grid).returncode == 0
    limit = whole.stat().st_size // 2
    words = [BINARY, "sweep", *SMALL, "--router", *grid, "--out", str(out)]
    shell = f"ulimit -f {max(limit // 1024, 1)}; trap '' XFSZ; exec \"$@\""
    result = subprocess.run(["bash", "-c", shell, "-", *words], capture_output=True, text=True, check=False)
    assert result.returncode == 1, result.stderr
    assert "cannot save a finished row" in result.stderr and "--resume goes on" in result.stderr
    kept = (tmp_path / "rows.csv.partial").stat().st_size
    assert 0 < kept <= limit
    again = sweep(out, *grid, "--resume")
    assert again.returncode == 0, again.stderr
    assert out.read_bytes() == whole.read_bytes()
