"""The command line beside simulate and sweep: route, predict, doctor, plot."""

import json
import os
import signal
import struct
import subprocess
import sys

import pytest
from command_line import BINARY, SMALL, as_json, moesim, needs_binary, succeed
from options_document import COLUMNS, GRID, column_names, rows_of

pytestmark = needs_binary
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
    result = as_json("route", *SMALL, "--router", "top1+fr+ir", "--tokens-per-gpu", "1000")
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
    result = as_json("predict", "--profile", "h100-sxm", "--op", "all-to-all", "--gpus", "8", "--bytes", "64MiB")
    assert list(result) == ["op", "params", "time_us", "time_us_p05", "time_us_p95", "provenance", "busbw_gb_per_s"]
    # As nccl-tests has it: each of 8 GPUs sends 7 / 8 of its buffer.
    assert result["busbw_gb_per_s"] == pytest.approx((64 << 20) * 7 / 8 / result["time_us"] / 1e3)
    assert result["params"] == {"gpus": 8, "bytes": 64 << 20}
    assert result["time_us_p05"] <= result["time_us"] <= result["time_us_p95"]
    result = as_json("predict", "--op", "memory", "--bytes", "1GB")
    assert result["params"] == {"bytes": 10**9} and "rank_finish_us" not in result and "busbw_gb_per_s" not in result


def test_predict_queries(tmp_path):
    queries = tmp_path / "queries.csv"
    queries.write_text('note,op,gpus,bytes,kv_heads,batch,sequence,heads,head-dim\n'
                       '"a, b",all-to-all,8,1MiB,,,,,\n'
                       'c,attention,,,32,4,2048,32,128\n')
    text = succeed("predict", "--in", queries)
    rows = rows_of(text)
    assert text.splitlines()[0] == queries.read_text().splitlines()[0] + \
        ",time_us,time_us_p05,time_us_p95,provenance,rank_finish_us,busbw_gb_per_s"
    assert [row["note"] for row in rows] == ["a, b", "c"]
    single = as_json("predict", "--op", "all-to-all", "--gpus", "8", "--bytes", "1MiB")
    assert float(rows[0]["time_us"]) == single["time_us"]
    assert rows[0]["rank_finish_us"] == rows[1]["rank_finish_us"] == ""  # all ranks end at time_us
    assert [entry["op"] for entry in as_json("predict", "--in", queries)] == ["all-to-all", "attention"]


def test_doctor_reports_and_fails_nothing():
    report = as_json("doctor")
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
    result = as_json("route", "--router", "top2+ir", "--gpus", "8", "--tokens-per-gpu",
                     "512", "--routing", "zipf:0.8", "--replicas", "1")
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
