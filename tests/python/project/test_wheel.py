"""The Python wheel in an environment of its own: the command, its documents, the module."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from command_line import BINARY, needs_binary

ROOT = Path(__file__).resolve().parents[3]
BUILD = Path(BINARY).resolve().parents[1]
MODULES = ("pip", "setuptools", "wheel", "venv", "ensurepip", "numpy", "pandas")
missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
pytestmark = [needs_binary, pytest.mark.skipif(bool(missing), reason="Python lacks " + ", ".join(missing))]
# No checkout, no other moesim: what is tested is the wheel's.
CLEAN = {name: value for name, value in os.environ.items()
         if name not in ("MOESIM_BIN", "MOESIM_PROFILES", "MOESIM_PYTHON", "PYTHONPATH", "LD_LIBRARY_PATH")}


def call(*words, code=0, cwd=None, **environment):
    result = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300,
                            env={**CLEAN, **environment}, cwd=cwd, check=False)
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout if code == 0 else result.stderr


@pytest.fixture(name="wheel", scope="module")
def built_wheel(tmp_path_factory):
    if not (BUILD / "cmake_install.cmake").is_file():
        pytest.skip(f"{BUILD} is no build folder of CMake")
    out = tmp_path_factory.mktemp("wheel")
    # The interpreter of this test: the one that was looked at above.
    made = call(ROOT / "tools" / "wheel", "--build", BUILD, "--out", out, MOESIM_PYTHON=sys.executable)
    return Path(made.strip())


@pytest.fixture(name="folder", scope="module")
def environment_with_the_wheel(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("environment")
    call(sys.executable, "-m", "venv", "--system-site-packages", folder)
    call(folder / "bin" / "pip", "install", "--quiet", "--no-index", wheel)
    return folder


@pytest.fixture(name="python")
def runs_python(folder, tmp_path):
    def run(text, code=0, **environment):
        return call(folder / "bin" / "python", "-W", "error", "-c", "import moesim\n" + text, code=code,
                    cwd=tmp_path, **environment)
    return run


def test_the_wheel_is_of_its_platform_and_of_any_python_3(wheel):
    version = re.match(r"moesim (\S+)", call(BINARY, "--version"))[1]
    assert re.fullmatch(rf"moesim-{re.escape(version)}-py3-none-linux_\w+\.whl", wheel.name)
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in ("moesim/py.typed", "moesim/program/bin/moesim",
                   "moesim/program/share/moesim/profiles/hardware/a100-sxm-80gb.json"):
        assert wanted in names
    # The library, its headers and glibc stay out.
    assert not [name for name in names if name.endswith((".a", ".hpp")) or "libc.so" in name]


def test_the_command_uses_the_documents_and_libraries_of_the_wheel(folder, tmp_path):
    command = folder / "bin" / "moesim"
    assert call(command, "--version", cwd=tmp_path) == call(BINARY, "--version")
    program = next(folder.glob("lib/python3*/site-packages/moesim/program"))
    found = dict(re.findall(r"(\S+) => (\S+)", call("ldd", program / "bin" / "moesim")))
    packed = program / "lib" / "moesim"
    assert (packed / "libstdc++.so.6").is_file()
    for library in packed.iterdir():
        assert Path(found[library.name]).resolve() == library.resolve()
    hardware = program / "share" / "moesim" / "profiles" / "hardware"
    shutil.copy(hardware / "a100-sxm-80gb.json", hardware / "a-copy.json")
    text = call(command, "simulate", "--profile", "a-copy", "--gpus", "8", "--replicas", "1", "--mode",
                "prefill", cwd=tmp_path)
    assert "8 x a-copy" in text
    (hardware / "a-copy.json").unlink()


def test_simulate_is_the_result_of_the_command(python):
    printed = python("""
step = moesim.simulate(router="top2+fr+ir", capacity_factor=1.0, capacity_convention="paper", gpus=8,
                       replicas=2, mode="prefill")
assert isinstance(step, dict) and step["status"] == "ok" and step["router"] == "top2+fr+ir", step
assert step["rectify_ms"] > 0 and step["detail"], step
print(repr(step["step_ms"]))""")
    told = json.loads(call(BINARY, "simulate", "--router", "top2+fr+ir", "--capacity-factor", "1",
                           "--capacity-convention", "paper", "--gpus", "8", "--replicas", "2", "--mode", "prefill",
                           "--format", "json"))
    assert float(printed) == told["step_ms"]


def test_sweep_is_a_table_with_types(python):
    python("""
import numpy, pandas
grid = moesim.sweep(router=["top1", "top2"], capacity_factor=numpy.array([1, 1.25]), gpus=8,
                    replicas=1, mode="prefill")
assert isinstance(grid, pandas.DataFrame) and len(grid) == 4, grid
assert list(grid["router"].unique()) == ["top1", "top2"]
assert sorted(set(grid["capacity_factor"])) == [1.0, 1.25], grid["capacity_factor"]
assert grid["step_ms"].dtype.kind == "f" and grid["fits_memory"].dtype == bool
assert grid["top_k"].dtype.kind == "i" and grid["fill_failed"].isna().all()
assert (grid["reason"].isna()).all()""")


def test_train_has_a_row_for_each_layout(python):
    printed = python("""
import warnings
warnings.simplefilter("ignore", moesim.MoesimWarning)
steps = moesim.train(model="qwen3-30b-a3b", gpus=16, pipeline_parallel=[1, 2],
                     recompute=["none", "layernorm,moe_act"])
assert steps["pipeline_parallel"].tolist() == [1, 1, 2, 2], steps
assert steps["recompute"].tolist() == ["none", "layernorm,moe_act"] * 2
assert steps["memory_gib"].is_monotonic_increasing is False
one = moesim.train(model="qwen3-30b-a3b", gpus=16)
assert len(one) == 1 and one["step_ms"][0] == steps["step_ms"][0]
print(repr(float(one["step_ms"][0])))""")
    row = call(BINARY, "train", "--model", "qwen3-30b-a3b", "--gpus", 16, "--format", "json")
    assert float(printed) == json.loads(row)["step_ms"]


def test_predict_has_a_row_for_each_query(python):
    python("""
import warnings
import pandas
warnings.simplefilter("ignore", moesim.MoesimWarning)
exchange = dict(op="all-to-all", profile="h100-sxm")
times = moesim.predict(gpus=[8, 16], bytes=["1MiB", "64MiB"], **exchange)
assert times["gpus"].tolist() == [8, 8, 16, 16] and times["bytes"].tolist() == ["1MiB", "64MiB"] * 2, times
one = moesim.predict(gpus=16, bytes="64MiB", **exchange)
assert len(one) == 1 and one["time_us"][0] == times["time_us"][3] > 0
assert one["time_us_p05"][0] < one["time_us"][0] < one["time_us_p95"][0]
rows = [dict(op="gemm", m=4096, n=4096, k=4096), dict(op="all-to-all", gpus=16, bytes=64 * 2**20)]
for queries in (rows, pandas.DataFrame(rows)):
    both = moesim.predict(queries, profile=["h200-sxm", "h100-sxm"])
    assert both["profile"].tolist() == ["h200-sxm", "h100-sxm"] * 2 and both["op"][0] == "gemm", both
    assert both["time_us"][3] == one["time_us"][0] and both["busbw_gb_per_s"].notna().tolist() == [False, False, True, True]
narrow, wide = moesim.predict(op="expert-ffn", rows_per_expert=[512, 0, 80], hidden=4096, ffn=[1024, 2048])["time_us"]
assert 0 < narrow < wide
refused = moesim.predict(gpus=[1, 8], bytes="1MiB", **exchange)
assert refused["status"].tolist() == ["refused", "ok"] and "one rank" in refused["reason"][0]""")


def test_recommend_has_the_best_first_with_their_commands(python):
    python("""
import warnings
warnings.simplefilter("ignore", moesim.MoesimWarning)
best = moesim.recommend(model="qwen3-30b-a3b", gpus=8, profile="h200-sxm", best=3)
assert len(best) == 3 and best["step_ms"].is_monotonic_increasing, best
words = best["command"][0].split()
assert words[:2] == ["moesim", "train"], words
options = {words[at][2:].replace("-", "_"): words[at + 1] for at in range(2, len(words), 2)}
assert moesim.train(**options)["step_ms"][0] == best["step_ms"][0]""")


def test_recommend_of_several_profiles_has_the_best_on_each(python):
    python("""
import warnings
warnings.simplefilter("ignore", moesim.MoesimWarning)
best = moesim.recommend(model="qwen3-30b-a3b", gpus=8, profile=["h200-sxm", "b200-sxm"], gpu_hour_price=[3, 5.5])
assert best["profile"].tolist() == ["h200-sxm", "b200-sxm"] and best["gpu_hour_price"].tolist() == [3, 5.5], best
assert abs(best["break_even_price"][1] - 3 * best["speed_ratio"][1]) < 1e-6, best
assert best["cheapest"].sum() == 1""")


def test_refused_rows_are_kept_and_warned_of(python):
    python("""
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    grid = moesim.sweep(expert_parallel=[8, 3], gpus=8, replicas=1, mode="prefill")
assert list(grid["status"]) == ["ok", "refused"], grid["status"]
assert grid["step_ms"].isna().tolist() == [False, True]
assert "cannot be spread" in grid["reason"][1]
(one,) = caught
assert one.category is moesim.MoesimWarning and "1 of 2 scenarios were refused" in str(one.message), one
assert one.filename == "<string>", one.filename""")


def test_route_takes_an_array(python):
    # Four tokens all want expert 0 of 2; with top-1, C = ceil(1 * 4 / 2) = 2 of them are kept.
    python("""
import numpy
logits = numpy.zeros((1, 4, 2), dtype=numpy.float32)
logits[:, :, 0] = 1.5
loss = moesim.route(logits, router="top1", capacity_factor=[1, 2])
assert loss["failed"].tolist() == [0.5, 0.0], loss["failed"]
# 0.1 * 3 is 0.30000000000000004 of a float: C = ceil(0.3 * 4 / 2) = 1 of 4 is kept.
steps = moesim.route(logits, router="top1", capacity_factor=numpy.arange(1, 4) * 0.1)
assert steps["capacity_factor"].tolist() == [0.1, 0.2, 0.3] and set(steps["failed"]) == {0.75}, steps
routes = moesim.routes(logits, router="top1", capacity_factor=1)
assert isinstance(routes, numpy.ndarray) and routes.dtype.names, routes
assert all(name in moesim.routes.__doc__ for name in routes.dtype.names)
assert len(routes) == 4 and (routes["expert"] == 0).all(), routes
assert len(moesim.route(router="top2", gpus=8, replicas=1)) == 1
try:
    moesim.route(numpy.zeros((4, 2), dtype=int))
    raise SystemExit("integers were taken")
except moesim.MoesimError as error:
    assert "int64" in str(error) and error.code == 2""")


def test_errors_carry_the_text_and_code_of_the_command(python, tmp_path):
    python("""
def failing(call, code, *parts):
    try:
        call()
    except moesim.MoesimError as error:
        assert error.code == code and all(part in str(error) for part in parts), (error.code, error)
        assert not str(error).startswith("moesim: error")
        return
    raise SystemExit("no error")
failing(lambda: moesim.simulate(capacity_facto=1), 2, "--capacity-facto", "did you mean")
failing(lambda: moesim.simulate(model="nonsense"), 2, "unknown model 'nonsense'")
failing(lambda: moesim.predict(op="gemm", m=[8, 16], n=8, kk=8), 2, "column kk", "known are")
failing(lambda: moesim.sweep(out="x.csv"), 2, "out", "moesim.run")
assert "all-to-all" in moesim.run("predict", "--profile", "h100-sxm", "--op", "all-to-all", "--gpus", 8,
                                  "--bytes", "64MiB")
assert moesim.version().startswith("moesim ")""")
    told = python("moesim.version()", code=1, MOESIM_BIN=str(tmp_path / "none"))
    assert "MOESIM_BIN" in told and "none" in told


def test_the_tool_says_what_is_wrong(tmp_path):
    tool = ROOT / "tools" / "wheel"
    assert "usage: tools/wheel" in call(tool, "--help")
    assert "--nonsense" in call(tool, "--nonsense", code=2)
    assert "--build" in call(tool, "--build", code=2)
    assert "holds no built moesim" in call(tool, "--build", tmp_path, code=1)
