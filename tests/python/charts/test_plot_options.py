"""Every option in which the rows of a sweep differ makes lines of its own; none is merged."""

import csv
import io
import json
import shutil
import subprocess
import sys

import pytest
from command_line import BINARY, SMALL, as_json, moesim, needs_binary, succeed
from plot_options import OPTIONS, document, small_options  # noqa: F401 (a fixture)
from plotter import PLOT

import chart_data
import option_columns
import plot
import rows
import sweep_series


COLUMNS = (*OPTIONS, "status", "step_ms", "step_ms_p05", "step_ms_p95", "tokens_per_s_per_gpu",
           "failed", "residual_loss")
ROW = {"model": "m", "profile": "p", "router": "top2", "weights": "kept", "mode": "train",
       "routing": "zipf:1", "gpus": "8", "top_k": "2", "capacity_factor": "1", "capacity_convention": "paper",
       "fidelity": "tokens", "network": "fast", "slow_gpu": "none", "dedup": "none", "status": "ok", "step_ms": "10",
       "step_ms_p05": "9", "step_ms_p95": "11", "tokens_per_s_per_gpu": "100", "failed": "0.1",
       "residual_loss": "0.1"}


def sweep(folder, *changes, columns=COLUMNS):
    """A CSV with a row for each of `changes` to ROW."""
    path = folder / "s.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows({**ROW, **change} for change in changes)
    return str(path)


def labels(path):
    return [entry.label for entry in sweep_series.read_sweep(path)[0]]


@pytest.mark.parametrize("column", [name for name in OPTIONS
                                    if name not in ("router", "capacity_factor")])
def test_rows_that_differ_in_an_option_are_two_lines(column, tmp_path):
    path = sweep(tmp_path, {}, {column: "7"})
    shown = {"gpus": "GPUs"}.get(column, column.replace("_", " "))
    assert labels(path) == [f"top2, {shown} {ROW[column]}", f"top2, {shown} 7"]
    assert column not in sweep_series.read_sweep(path)[1]


@pytest.mark.parametrize("column", ["top_k", "fidelity"])
def test_the_options_that_were_merged_once(column, tmp_path):
    """top-k and fidelity were in no list of the plotter: two speeds at one capacity factor."""
    path = sweep(tmp_path, {"tokens_per_s_per_gpu": "100"},
                 {"tokens_per_s_per_gpu": "50", column: "7"},
                 {"capacity_factor": "2"}, {"capacity_factor": "2", column: "7"})
    series, _, _ = sweep_series.read_sweep(path)
    assert [[(point.capacity_factor, point.speed) for point in entry.points] for entry in series] == [
        [(1, 100), (2, 100)], [(1, 50), (2, 100)]]


def test_what_a_router_sets_itself_is_no_label(tmp_path):
    path = sweep(tmp_path, {"router": "top1", "top_k": "1"}, {})
    assert labels(path) == ["top1", "top2"]
    # What is not the router's doing is said, also where it differs between routers alone.
    path = sweep(tmp_path, {"router": "top1", "gpus": "16"}, {})
    assert labels(path) == ["top1, GPUs 16", "top2, GPUs 8"]


def test_a_blank_tells_lines_apart_where_nothing_else_does(tmp_path):
    path = sweep(tmp_path, {"dedup": ""}, {"dedup": "node"})
    assert labels(path) == ["top2", "top2, dedup node"]
    # Where another option does already, the blank one is left out: it says nothing more.
    path = sweep(tmp_path, {"mode": "prefill", "dedup": ""}, {})
    assert labels(path) == ["top2, mode prefill", "top2, mode train"]


@pytest.fixture
def with_dispatcher(tmp_path, monkeypatch):
    """The columns of a sweep that has a dispatcher, which is all-to-all where nothing is typed."""
    described = document((*OPTIONS, "experts", "dispatcher"))
    described["options"][len(OPTIONS) + 1]["default"] = "all-to-all"
    path = tmp_path / "with-dispatcher.json"
    path.write_text(json.dumps(described))
    monkeypatch.setenv("MOESIM_OPTIONS", str(path))
    return (*COLUMNS, "experts", "dispatcher")


def test_the_default_dispatcher_has_its_name_and_its_copies_are_no_choice(tmp_path, with_dispatcher):
    default = {"experts": "8", "dispatcher": ""}
    deepep = {"experts": "8", "dispatcher": "deepep", "dedup": "node"}
    path = sweep(tmp_path, default, deepep, {"gpus": "16", **default}, {"gpus": "16", **deepep}, columns=with_dispatcher)
    assert labels(path) == [f"top2, GPUs {gpus}, dispatcher {name}" for gpus in (8, 16) for name in ("all-to-all", "deepep")]
    table = rows.read([path], "dispatcher=all-to-all")
    assert [row["gpus"] for row in table.rows] == ["8", "16"]
    assert rows.read([path]).differing(("dispatcher",)) == ["gpus"]  # nor with the dispatcher on the axis
    with pytest.raises(chart_data.BadInput, match="there are all-to-all, deepep$"):
        rows.read([path], "dispatcher=hybridep")
    # Where a dispatcher has rows of both, copies were chosen.
    path = sweep(tmp_path, default, {**default, "dedup": "node"}, deepep, columns=with_dispatcher)
    assert labels(path) == ["top2, dedup none, dispatcher all-to-all", "top2, dedup node, dispatcher all-to-all",
                            "top2, dedup node, dispatcher deepep"]
    # Without experts nothing is carried.
    path = sweep(tmp_path, deepep, {"router": "dense", "experts": "", "dispatcher": "", "dedup": ""}, columns=with_dispatcher)
    assert [row["dispatcher"] for row in rows.read([path]).rows] == ["deepep", ""]


def test_the_same_row_twice_is_one_point(tmp_path):
    series, _, _ = sweep_series.read_sweep(sweep(tmp_path, {}, {}))
    assert [len(entry.points) for entry in series] == [1]
    # 1 and 1.0 are one capacity factor.
    with pytest.raises(chart_data.BadInput, match="same scenario with different results"):
        sweep_series.read_sweep(sweep(tmp_path, {}, {"capacity_factor": "1.0", "step_ms": "12"}))


def test_results_of_two_versions_are_refused(tmp_path):
    path = sweep(tmp_path, {}, {"step_ms": "12"})
    with pytest.raises(chart_data.BadInput, match="lines 2 and 3.*different results.*step_ms"):
        sweep_series.read_sweep(path)


def test_an_option_of_a_newer_version_is_named(tmp_path):
    path = sweep(tmp_path, {"zigzag": "on"}, {"zigzag": "off"}, columns=(*COLUMNS, "zigzag"))
    with pytest.raises(chart_data.BadInput, match="lines 2 and 3 differ in zigzag.*not know"):
        sweep_series.read_sweep(path)


def fake_moesim(path, columns):
    """A program that answers `options --format json` alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n[ \"$*\" = 'options --format json' ] && "
                    f"echo '{json.dumps(document(columns, ()))}'\n")
    path.chmod(0o755)


@pytest.fixture
def installed(tmp_path):
    """Runs a copy of the plotter in PREFIX/share/moesim/plot: the exit code, its stderr, the chart."""
    folder = tmp_path / "prefix" / "share" / "moesim" / "plot"
    folder.parent.mkdir(parents=True)
    shutil.copytree(PLOT, folder, ignore=shutil.ignore_patterns("__pycache__"))

    def run(path, **environment):
        out = tmp_path / "chart.svg"
        out.unlink(missing_ok=True)
        result = subprocess.run([sys.executable, folder / "plot.py", "sweep", path, "--out", out],
                                capture_output=True, text=True, timeout=120, check=False,
                                env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **environment})
        return result.returncode, result.stderr, out.read_text() if out.exists() else None

    run.prefix = tmp_path / "prefix"
    return run


def test_options_are_asked_of_a_program_or_the_plotter_says_what_is_missing(tmp_path, installed):
    # Two lines by gpus; a program that knows no gpus names them as unknown.
    path = sweep(tmp_path, {}, {"gpus": "16"})
    code, said, chart = installed(path)
    assert (code, chart) == (plot.EXIT_FAILURE, None)
    for part in ("scenario options", "moesim plot", "MOESIM_BIN", "MOESIM_OPTIONS"):
        assert part in said
    fake_moesim(tmp_path / "on-path" / "moesim", OPTIONS)
    code, said, chart = installed(path, PATH=f"{tmp_path}/on-path:/usr/bin:/bin")
    assert code == 0 and "top2, GPUs 16" in chart, said
    few = [name for name in OPTIONS if name != "gpus"]
    fake_moesim(installed.prefix / "bin" / "moesim", few)  # comes before the PATH
    code, said, chart = installed(path, PATH=f"{tmp_path}/on-path:/usr/bin:/bin")
    assert code == plot.EXIT_USAGE and "lines 2 and 3 differ in gpus" in said and chart is None
    code, said, chart = installed(path, MOESIM_BIN=f"{tmp_path}/on-path/moesim")  # comes first
    assert code == 0 and "top2, GPUs 16" in chart, said
    fake_moesim(tmp_path / "broken", OPTIONS)
    (tmp_path / "broken").write_text("#!/bin/sh\necho no such command >&2; exit 2\n")
    code, said, chart = installed(path, MOESIM_BIN=f"{tmp_path}/broken")
    assert code == plot.EXIT_FAILURE and "no such command" in said and chart is None


@pytest.mark.parametrize("text", ["", "[]", '{"options": []}', '{"options": [3], "columns": []}'])
def test_another_document_is_refused_by_name(text, small_options):  # noqa: F811
    small_options.write_text(text)
    with pytest.raises(option_columns.NoOptions, match="options.json: this is not the document"):
        option_columns.load()


@needs_binary
def test_the_program_describes_every_column_of_a_sweep(monkeypatch):
    monkeypatch.delenv("MOESIM_OPTIONS")
    monkeypatch.setenv("MOESIM_BIN", BINARY)
    columns = option_columns.load()
    header = next(csv.reader(io.StringIO(succeed("sweep", *SMALL, "--format", "csv"))))
    assert set(header) == (set(columns.options) - columns.training) | columns.results
    assert {"tensor_parallel", "recompute"} <= columns.training
    assert not columns.training & {"router", "gpus", "zero"}
    assert {"fidelity", "top_k", "router", "capacity_factor", "seed"} <= set(columns.options)
    assert {"step_ms", "residual_loss", "capacity", "status"} <= columns.results
    assert {"cluster", "global_batch", "fidelity"} <= columns.derived  # fidelity: what auto chose
    assert not {"routing", "seed", "tensor_parallel"} & columns.derived
    assert columns.by_router == {"top_k", "capacity_convention", "min_capacity", "padding",
                                 "priority", "weights", "group_score", "score_function", "second_expert"}


@needs_binary
def test_plot_hands_its_options_to_the_plotter(tmp_path, monkeypatch):
    monkeypatch.delenv("MOESIM_OPTIONS")
    monkeypatch.setenv("MOESIM_BIN", "/nonexistent/moesim")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    path = tmp_path / "sweep.csv"
    succeed("sweep", *SMALL, "--router", "expert-choice", "--top-k", "1,2", "--capacity-factor", "1,2",
            "--out", path)
    result = moesim("plot", path, "--out", tmp_path / "x.svg")
    assert result.returncode == 0, result.stderr
    drawn = (tmp_path / "x.svg").read_text()
    assert "expert-choice, top k 1" in drawn and "expert-choice, top k 2" in drawn


def test_kernels_of_a_clusters_own_gpu_are_not_called_foreign(tmp_path, monkeypatch):
    options = document() | {"cluster_gpus": {"hgx-h800": "NVIDIA H800"},
                            "profile_gpus": {"h100-sxm": "NVIDIA H100", "h800-sxm": "NVIDIA H800"}}
    path = tmp_path / "options.json"
    path.write_text(json.dumps(options))
    monkeypatch.setenv("MOESIM_OPTIONS", str(path))
    own, software = tmp_path / "own.json", tmp_path / "software.json"
    own.write_text(json.dumps({"devices": [{"name": "NVIDIA H800"}]}))
    software.write_text(json.dumps({"profile": str(own)}))
    title = option_columns.gpu_title
    assert title("h100-sxm", "hgx-h800") == "NVIDIA H800 with kernels of h100-sxm"
    assert title("h800-sxm", "hgx-h800") == "h800-sxm"
    assert title("own", "hgx-h800", str(own)) == title("own", "hgx-h800", str(software)) == "own"
    own.write_text(json.dumps({"devices": [{"name": "NVIDIA H100"}]}))
    assert title("own", "hgx-h800", str(own)) == "NVIDIA H800 with kernels of own"
    assert title("own", "hgx-h100", str(own)) == "own"


@needs_binary
def test_the_program_tells_the_gpus_of_its_profiles():
    gpus = as_json("options")["profile_gpus"]
    assert gpus["h100-sxm"] == "NVIDIA H100 80GB HBM3"
    assert gpus["a100-sxm-80gb-deepspeed"] == gpus["a100-sxm-80gb"]
