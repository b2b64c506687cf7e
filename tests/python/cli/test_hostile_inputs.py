"""Inputs that once ended the command by a signal, took all memory, waited for ever or harmed other
files: each in its smallest form."""

import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from command_line import BINARY, Terminal, expect_error, moesim, needs_binary

pytestmark = needs_binary
PROFILES = Path(__file__).resolve().parents[3] / "profiles"
SMALL = ("--gpus", "4", "--tokens-per-gpu", "64", "--sequence-length", "64", "--replicas", "1",
         "--model", "switch-base-8")
SWEEP = ("sweep", *SMALL, "--router", "top1,top2", "--capacity-factor", "1,1.5", "--jobs", "1")
GEMM = ("--op", "gemm", "--m", "16", "--n", "16", "--k", "16")


def changed(tmp_path, kind, name, change, file="own.json"):
    """A copy of a shipped document after `change`, a function of its content."""
    document = json.loads((PROFILES / kind / f"{name}.json").read_text())
    change(document)
    path = tmp_path / file
    path.write_text(json.dumps(document))
    return path


ACROSS = ("--profile", "h100-sxm", "--gpus", "16")


@pytest.mark.parametrize(("kind", "name", "path", "figure"), [
    ("clusters", "hgx-h100", "/domain/latency_us/value", 1e15), ("clusters", "hgx-h100", "/domain/gb_per_s/value", 1e300),
    ("clusters", "hgx-h100", "/nic/gbit_per_s/value", 1e-300), ("clusters", "hgx-h100", "/nic/efficiency/low", 1e-300),
    ("dispatchers", "deepep", "/nic/gpu/efficiency/low", 1e-300), ("dispatchers", "deepep", "/notify_us/across", 1e300),
    ("dispatchers", "deepep", "/machines/0/across/dispatch/sm_gb_per_s", 1e-300)])
def test_figures_beyond_any_machine(tmp_path, kind, name, path, figure):
    """They overflowed far from the document: "a latency below 0", a band of nan, an exchange of 0 bytes."""
    def replace(document):
        *within, last = [int(key) if key.isdigit() else key for key in path.split("/")[1:]]
        for key in within:
            document = document[key]
        document[last] = figure

    file = changed(tmp_path, kind, name, replace)
    words = (["--op", "all-to-all", "--bytes", "1MiB", "--cluster", file, "--schedule", "burst"] if kind == "clusters" else
             ["--op", "dispatch", "--cluster", "hgx-h100", "--dispatcher", file, "--tokens", "4096", "--hidden", "7168", "--k",
              "8", "--experts", "256"])
    expect_error(moesim("predict", *ACROSS, *words), 2, f"own.json: {path}: found number ", "expected type number, minimum ")


def test_variances_beyond_any_error_model(tmp_path):
    folder = tmp_path / "profiles"
    shutil.copytree(PROFILES, folder)
    document = json.loads((folder / "residuals" / "training.json").read_text())
    document["components"]["model"] = 1e300
    (folder / "residuals" / "training.json").write_text(json.dumps(document))
    expect_error(moesim("train", "--model", "mixtral-8x7b", "--gpus", "64", "--profile", "h100-sxm",
                        env={"MOESIM_PROFILES": str(folder)}), 2, "training.json: /components/model: found number 1e+300")


def test_software_profiles_that_name_each_other(tmp_path):
    for own, other in (("a.json", "a.json"), ("a.json", "b.json"), ("b.json", "a.json")):
        path = changed(tmp_path, "hardware", "a100-sxm-80gb-deepspeed",
                       lambda document, other=other: document.update(profile=str(tmp_path / other)), own)
        if other != own and not (tmp_path / other).exists():
            continue
        expect_error(moesim("predict", "--profile", path, *GEMM), 2, own, "/profile",
                     "expected a profile of hardware")


KINETO = ("--top-k", "1", "--row-values", "8", "--layers", "1")


@pytest.mark.parametrize("command", [["simulate", "--model"], ["simulate", "--profile"],
                                     ["simulate", "--cluster"], ["route", "--routing", "scores:"],
                                     ["route", "--routing", "trace:"], ["layout", "--model"]])
def test_deep_nesting(tmp_path, command):
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000 + "]" * 100_000)
    words = [*command[:-1], command[-1] + str(path)] if command[-1].endswith(":") else [*command, path]
    expect_error(moesim(*words), 2, "deep.json", "line 1, column 129", "inside each other")


def test_deep_nesting_in_a_profiler_trace(tmp_path):
    path = tmp_path / "rank0.json"
    path.write_text('{"traceEvents": [' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "]}")
    expect_error(moesim("import", path, "--out", tmp_path / "o", *KINETO), 2, "rank0.json: line 1",
                 "inside each other")


def test_long_texts(tmp_path):
    path = changed(tmp_path, "hardware", "l40s", lambda document: document.update(name="a" * 30_000))
    expect_error(moesim("predict", "--profile", path, *GEMM), 2, "own.json: /name", "at most 2048")
    path = changed(tmp_path, "models", "switch-base-8",
                   lambda document: document["moe"].update(router="top1" + "+fr" * 10_000))
    expect_error(moesim("simulate", *SMALL, "--model", path), 2, "own.json: /moe/router", "at most 2048")


@pytest.mark.parametrize(("number", "parts"), [
    ("1e400", ["line 7", "1e400 is beyond the largest number"]),
    ("NaN", ["line 7", "expected a number"]), ("-Infinity", ["line 7", "expected a number"])])
def test_numbers_that_no_double_holds(tmp_path, number, parts):
    document = json.loads((PROFILES / "models" / "switch-base-8.json").read_text())
    keys = list(document)
    key = keys[5]  # on line 7
    text = json.dumps({**document, key: 12345}, indent=1).replace("12345", number)
    path = tmp_path / "own.json"
    path.write_text(text)
    expect_error(moesim("simulate", *SMALL, "--model", path), 2, "own.json", *parts)


NCCL_TESTS = """# nThread 1 nGpus 8 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
# Using devices
{ranks}
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
{row}
"""


@pytest.mark.parametrize("bad", ["nan", "inf", "1e400", "-nan"])
def test_nccl_tests_with_figures_that_are_no_numbers(tmp_path, bad):
    ranks = "\n".join(f"#  Rank  {rank} Group  0 Pid  {rank} on  host device  {rank} [0x07] NVIDIA H200"
                      for rank in range(8))
    path = tmp_path / "alltoall_perf.txt"
    row = f"  1048576 32768 float none -1 {bad} 20.0 17.5 0 52.4 20.0 17.5 0"
    path.write_text("# Collective test starting: alltoall_perf\n" + NCCL_TESTS.format(ranks=ranks, row=row))
    expect_error(moesim("import", path, "--cluster", "hgx-h200", "--out", tmp_path / "o.json"), 2,
                 "alltoall_perf.txt: line 13", f"'{bad}'")


def test_a_model_whose_layers_have_no_experts_is_named(tmp_path):
    path = changed(tmp_path, "models", "switch-base-8",
                   lambda document: document["moe"].update(first_layer=document["layers"]))
    expect_error(moesim("simulate", *SMALL, "--model", path), 2, "own", "first_layer")


def test_control_characters_of_documents_do_not_reach_the_terminal(tmp_path):
    def name_it(document):
        document["name"] = "a\x1b]0;title\x07b"
    path = changed(tmp_path, "models", "switch-base-8", name_it)
    result = moesim("simulate", *SMALL, "--model", path)
    expect_error(result, 2, "/name", "\\x1b]0;title\\x07")
    assert "\x1b" not in result.stderr
    queries = tmp_path / "queries.csv"
    queries.write_text("op,m,n,k\n\x1b[2J,1,1,1\n")
    result = moesim("predict", "--in", queries)
    assert result.returncode == 2 and "\x1b" not in result.stderr and "\\x1b[2J" in result.stderr


def test_a_query_with_control_characters_on_a_terminal(tmp_path):
    queries = tmp_path / "queries.csv"
    queries.write_text("op,m,n,k,note\ngemm,16,16,16,\x1b[2J\n")
    terminal = Terminal()
    result = moesim("predict", "--in", queries, "--format", "csv", stdout=terminal.end)
    shown = terminal.text()
    assert "\x1b" not in shown
    assert result.returncode == 2 or "\\x1b[2J" in shown


NOT_UTF8 = os.fsdecode(b"m\xff.json")


def test_a_file_whose_name_is_not_utf8(tmp_path):
    (tmp_path / NOT_UTF8).write_bytes((PROFILES / "models" / "switch-base-8.json").read_bytes())
    run = {"capture_output": True, "cwd": tmp_path, "check": False}
    result = subprocess.run([BINARY, "simulate", *SMALL, "--model", "./" + NOT_UTF8, "--format", "json"], **run)
    assert result.returncode == 0, result.stderr
    json.loads(result.stdout)
    words = [BINARY, *SWEEP, "--model", "./" + NOT_UTF8, "--out", "u.csv"]
    result = subprocess.run(words, **run)
    assert result.returncode == 0, result.stderr
    whole = (tmp_path / "u.csv").read_bytes()
    assert whole.count(b"m\xff.json") == 4
    # Its journal gives the bytes back, too.
    longer = [*words, "--replicas", "64", "--tokens-per-gpu", "2048"]
    for _ in range(20):
        (tmp_path / "u.csv").unlink(missing_ok=True)
        process = subprocess.Popen(longer, cwd=tmp_path, stderr=subprocess.DEVNULL)
        journal = tmp_path / "u.csv.partial"
        while process.poll() is None:
            if journal.exists() and journal.read_bytes().count(b"\n") >= 2:
                process.send_signal(signal.SIGKILL)
        if journal.exists():
            break
    else:
        pytest.skip("the sweep was done before it could be killed")
    assert b'["hex","' in journal.read_bytes()
    result = subprocess.run([*longer, "--resume"], **run)
    assert result.returncode == 0, result.stderr
    resumed = (tmp_path / "u.csv").read_bytes()
    result = subprocess.run(longer, **run)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "u.csv").read_bytes() == resumed and resumed.count(b"m\xff.json") == 4


def zip_of(packed, claimed, name=b"counts.npy"):
    """A zip archive with one member of `packed` bytes that claims to unpack to `claimed`."""
    local = struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 20, 0, 8, 0, 0, 0, len(packed), claimed, len(name), 0) + name
    entry = struct.pack("<4sHHHHHHIIIHHHHHII", b"PK\1\2", 20, 20, 0, 8, 0, 0, 0, len(packed), claimed,
                        len(name), 0, 0, 0, 0, 0, 0) + name
    return local + packed + entry + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 1, 1, len(entry),
                                                len(local + packed), 0)


def in_memory(mebibytes, *words):
    """Runs the command with that much memory to allocate."""
    limit = mebibytes << 20
    return subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True, check=False, timeout=120,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))


IMPORT = ("--axes", "expert", "--array", "counts", "--top-k", "1")


def test_an_archive_cannot_claim_more_than_it_packs(tmp_path):
    path = tmp_path / "c.npz"
    path.write_bytes(zip_of(zlib.compress(b"x" * 50)[2:-4], 0xFFFFFFFE))
    expect_error(in_memory(500, "import", path, "--out", tmp_path / "o", *IMPORT), 2, "c.npz", "4294967294")


@pytest.mark.slow
def test_a_packed_text_that_does_not_end(tmp_path):
    path = tmp_path / "rank0.json.gz"
    packer = zlib.compressobj(9, wbits=31)
    part = b"\0" * (1 << 24)
    with path.open("wb") as out:
        for _ in range(130):  # 2.1 GB
            out.write(packer.compress(part))
        out.write(packer.flush())
    expect_error(moesim("import", path, "--out", tmp_path / "o", *KINETO), 2, "rank0.json.gz",
                 "unpacks to more than 2048 MiB")


@pytest.mark.parametrize("words", [["simulate", "--model", "/dev/zero/../zero"], ["simulate", "--profile", "/dev/./zero"],
                                   ["predict", "--in", "/dev/zero"], ["route", "--logits", "/dev/zero", "--out", "x.npy"]])
def test_a_device_without_an_end(tmp_path, words):
    words = ["/dev/./zero" if word == "/dev/zero/../zero" else word for word in words]
    result = in_memory(1000, *words)
    expect_error(result, 2, "zero: cannot read: a device of more than 1 MiB")


def test_a_pipe_that_a_trace_names(tmp_path):
    shipped = PROFILES.parent / "traces" / "synthetic-drift"
    document = json.loads((shipped / "trace.json").read_text())
    document["array"] = "pipe"
    (tmp_path / "trace.json").write_text(json.dumps(document))
    os.mkfifo(tmp_path / "pipe")
    expect_error(moesim("route", "--routing", f"trace:{tmp_path}", timeout=20), 2, "pipe", "not a file")


def test_a_link_planted_under_the_name_of_a_temporary_file(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for pid in range(os.getpid() + 1, os.getpid() + 400):
        for name in (f"l.csv.{pid}.tmp", f"l.csv.partial.{pid}.tmp"):
            (tmp_path / name).symlink_to(victim)
    assert moesim(*SWEEP, "--out", tmp_path / "l.csv").returncode == 0
    assert victim.read_text() == "precious"


def test_a_link_in_place_of_the_journal(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "l.csv.partial").symlink_to(victim)
    result = moesim(*SWEEP, "--out", tmp_path / "l.csv")
    assert result.returncode != 0 and victim.read_text() == "precious"


def test_a_replaced_output_keeps_its_permissions(tmp_path):
    out = tmp_path / "keep.csv"
    out.write_text("x")
    out.chmod(0o600)
    assert moesim("predict", *GEMM, "--format", "csv", "--out", out).returncode == 0
    assert out.stat().st_mode & 0o777 == 0o600 and out.read_text() != "x"


def test_a_kill_leaves_no_temporary_file(tmp_path):
    out = tmp_path / "r.csv"
    for attempt in range(12):
        out.unlink(missing_ok=True)  # a file that is replaced has two names between two system calls
        process = subprocess.Popen([BINARY, "predict", *GEMM, "--format", "csv", "--out", out],
                                   stderr=subprocess.DEVNULL)
        time.sleep(0.002 * attempt)
        process.kill()
        process.wait()
    assert {path.name for path in tmp_path.iterdir()} <= {"r.csv"}


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_finished_rows(tmp_path, number):
    out = tmp_path / "rows.csv"
    # Scenarios that share their routing end together: of several seeds, most are left at the signal.
    process = subprocess.Popen([BINARY, "sweep", "--gpus", "8", "--tokens-per-gpu", "4096", "--replicas", "16",
                                "--router", "top1,top2", "--capacity-factor", "0.5:2:0.1", "--seed", "1:40:1",
                                "--jobs", "1", "--out", out], stderr=subprocess.PIPE, text=True,
                               # A test run under nohup ignores SIGHUP, and so would the program.
                               preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))
    journal = tmp_path / "rows.csv.partial"
    while process.poll() is None and not (journal.exists() and journal.read_text().count("\n") >= 3):
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "saved in" in errors and len(out.read_text().splitlines()) >= 3


def test_a_dash_is_no_file(tmp_path):
    for flag in ("--out", "--timeline"):
        expect_error(moesim("simulate", *SMALL, flag, "-", cwd=tmp_path), 2, f"{flag}: '-'", "stdout", "./-")
    expect_error(moesim(*SWEEP, "--out=-", cwd=tmp_path), 2, "--out: '-'")
    assert not list(tmp_path.iterdir())


def test_a_module_in_the_folder_is_not_the_library(tmp_path):
    """The interpreter that draws is looked for without the caller's folder."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    (tmp_path / "matplotlib.py").write_text("raise SystemExit('not the library')\n")
    assert moesim(*SWEEP, "--out", tmp_path / "s.csv").returncode == 0
    environment = {"MOESIM_PYTHON": sys.executable}
    result = moesim("plot", "s.csv", "--out", "s.png", cwd=tmp_path, env=environment)
    assert result.returncode == 0, result.stderr
    # An interpreter that has no other is none that can draw.
    bare = tmp_path / "python"
    bare.write_text(f"#!/bin/sh\nexec {sys.executable} -S -E -s \"$@\"\n")
    bare.chmod(0o755)
    probe = subprocess.run([bare, "-c", "import sys; sys.path = [p for p in sys.path if p]; import matplotlib"],
                           cwd=tmp_path, capture_output=True, check=False)
    if probe.returncode == 0:
        pytest.skip("matplotlib lies in the interpreter's own library")
    result = moesim("plot", "s.csv", "--out", "s.png", cwd=tmp_path, env={"MOESIM_PYTHON": str(bare)})
    expect_error(result, 3, "matplotlib")


def test_zero_3_takes_no_more_than_zero_2_where_experts_have_one_replica():
    def memory(zero):
        result = moesim("simulate", "--model", "mixtral-8x7b", "--gpus", "4", "--expert-parallel", "4",
                        "--experts", "32", "--sequence-length", "128", "--micro-batch", "1", "--replicas", "1",
                        "--zero", zero, "--format", "json")
        return json.loads(result.stdout)["memory_gib"]
    assert memory(3) <= memory(2) <= memory(1) <= memory(0)


def test_extrapolation_ends_where_no_law_carries():
    attention = ["predict", "--profile", "h100-sxm", "--op", "attention", "--batch", "1", "--heads", "32",
                 "--kv-heads", "8", "--head-dim", "128", "--sequence"]
    assert "extrapolated" in moesim(*attention, 262_144).stdout
    expect_error(moesim(*attention, 262_145), 1, "16 times beyond the longest sequence measured, 16384")
    permute = ["predict", "--profile", "h100-sxm", "--op", "permute", "--hidden", "7168", "--k", "8", "--tokens"]
    assert "extrapolated" in moesim(*permute, 500_000).stdout
    expect_error(moesim(*permute, 5_000_000), 2, "permute of", "GiB of memory")


def test_attention_of_a_large_batch_is_priced_in_equal_pieces():
    """Twice the batch takes twice the time once one launch is full."""
    def time_us(batch):
        result = moesim("predict", "--profile", "h100-sxm", "--op", "attention", "--batch", batch, "--heads", "32",
                        "--kv-heads", "8", "--head-dim", "128", "--sequence", "1024", "--format", "json")
        return json.loads(result.stdout)["time_us"]
    full = 16 * 24576 // 32
    assert time_us(4 * full) == pytest.approx(4 * time_us(full), rel=1e-6)
