"""Bars of what a search found, or of a table with and without capacities: each has a name of its own."""

import json

import pytest
from command_line import expect_error, moesim, needs_binary
from plot_options import document
import plotter  # noqa: F401 (puts the modules below on the path)

import axes_chart
import breakdown_chart
import candidates_chart
import page
import plot
import rows
import scaling_chart


PARTS = ("attention_ms", "expert_ms")
DERIVED = {"expert_parallel": "as many as divide both", "tokens_per_gpu": "sequence length times micro-batch"}


@pytest.fixture(autouse=True)
def options(tmp_path_factory, monkeypatch):
    described = document(options=("model", "profile", "router", "gpus", "expert_parallel", "capacity_factor", "micro_batch", "tokens_per_gpu"))
    for option in described["options"]:
        option["default"] = DERIVED.get(option.get("column"), "")
    described["columns"] += [{"name": name, "role": "part", "unit": "ms"} for name in PARTS]
    path = tmp_path_factory.mktemp("options") / "options.json"
    path.write_text(json.dumps(described))
    monkeypatch.setenv("MOESIM_OPTIONS", str(path))


def table(folder, *lines):
    """Of rows that have the same columns, beside what every one has."""
    usual = {"status": "ok", "router": "top8", "gpus": 8, "capacity_factor": 1, "step_ms": 100, "tokens_per_s_per_gpu": 1000,
             "residual_loss": 0, "attention_ms": 60, "expert_ms": 40}
    full = [{**usual, **line} for line in lines]
    path = folder / "s.csv"
    path.write_text("\n".join(",".join(map(str, cells)) for cells in (full[0], *(line.values() for line in full))) + "\n")
    return rows.read([str(path)])


def breakdown(found):
    return breakdown_chart.breakdown(found, None, page.Size(), "")


def bars(found):
    return [label.get_text().replace("\n", " ") for label in breakdown(found).axes[0].get_yticklabels()]


WITH, WITHOUT, DROPLESS = {"capacity_factor": 1}, {"capacity_factor": ""}, {"router": "dropless", "capacity_factor": ""}


@pytest.mark.parametrize(("lines", "names"), [
    ((WITH, WITHOUT), ["capacity factor 1", "no capacity"]),
    ((WITH, WITHOUT, DROPLESS), ["top8, capacity factor 1", "top8, no capacity", "dropless"]),
    ((WITH, DROPLESS), ["top8", "dropless"])])  # which never has one
def test_a_router_with_and_without_a_capacity_is_two(tmp_path, lines, names):
    """As moesim recommend and train --router topk write them."""
    assert bars(table(tmp_path, *lines)) == names


def test_lines_with_and_without_a_capacity_are_two(tmp_path):
    found = table(tmp_path, *({**line, "gpus": gpus} for line in (WITH, WITHOUT) for gpus in (8, 16)))
    figure = axes_chart.draw(found, "gpus", ["tokens_per_s_per_gpu"], None, "", page.Size(), "")
    assert [text.get_text().split(" (")[0] for text in figure.legends[0].get_texts()] == ["capacity factor 1", "no capacity"]


@pytest.mark.parametrize("ranks", [("1", "2", ""), ("1.0", "2.0", "")])  # pandas writes the latter
def test_bars_of_a_search_have_their_rank(tmp_path, ranks):
    found = [{**line, "rank": rank, "on_front": "true"} for rank, line in zip(ranks, (WITH, WITHOUT, {"capacity_factor": 2}))]
    assert bars(table(tmp_path, *found)) == ["1: capacity factor 1", "2: no capacity", "capacity factor 2"]


@pytest.mark.parametrize(("others", "told"), [((4, 8, 8), ", expert parallel 4"), ((4, 4, 4), "")])
def test_a_baseline_is_told_from_rows_that_differ_in_what_has_a_default_in_words(tmp_path, others, told):
    ratios = [(1, 1, 1), *[(0.9, 0.8, 1.1)] * 3]
    found = table(tmp_path, *({"capacity_factor": factor, "expert_parallel": parallel, "speed_over_baseline": ratio,
                               "speed_over_baseline_p05": low, "speed_over_baseline_p95": high}
                              for factor, parallel, (ratio, low, high) in zip((1, 2, 1, 2), (4, *others), ratios)))
    assert found.band_words() == (
        f"p05 to p95 of the speed over that of top8, capacity factor 1{told}, the baseline: compare with it alone")


def test_tokens_that_follow_from_the_micro_batch_are_not_told(tmp_path):
    found = table(tmp_path, *({"micro_batch": batch, "tokens_per_gpu": 4096 * batch} for batch in (1, 2)))
    assert "also differ" not in breakdown(found).texts[1].get_text() and bars(found) == ["micro batch 1", "micro batch 2"]
    assert bars(table(tmp_path, {"tokens_per_gpu": 4096}, {"tokens_per_gpu": 8192})) == ["tokens per GPU 4096", "tokens per GPU 8192"]


@pytest.mark.parametrize("where", ["", "gpus<32"])
def test_a_search_that_pays_to_its_end_says_so(tmp_path, where):
    """Of rows that --where leaves it is not known whether more were searched."""
    table(tmp_path, *({"gpus": gpus, "scaling_pays": "true"} for gpus in (8, 16, 32)))
    figure = scaling_chart.scaling(rows.read([str(tmp_path / "s.csv")], where), None, page.Size(), "")
    names = [text.get_text() for text in figure.legends[0].get_texts() if "pays" in text.get_text()]
    assert names == ["scaling pays up to 16 GPUs" if where else "scaling pays up to 32 GPUs, the most searched"]


def test_a_search_on_several_numbers_of_gpus_is_drawn_as_a_scaling(tmp_path, capsys):
    found = table(tmp_path, *({"gpus": gpus, "scaling_pays": "true"} for gpus in (8, 16)))
    path = str(tmp_path / "s.csv")
    assert plot.main(["sweep", path, "--out", str(tmp_path / "x.svg")]) == 0
    assert plot.main(["scaling", path, "--out", str(tmp_path / "y.svg")]) == 0
    assert (tmp_path / "x.svg").read_text(encoding="utf-8") == (tmp_path / "y.svg").read_text(encoding="utf-8")
    assert scaling_chart.scaling(found, None, page.Size(), "").axes[1].get_ylabel().startswith("speed of one GPU")
    assert plot.main(["speed", path, "--out", str(tmp_path / "x.png")]) == plot.EXIT_USAGE  # typed: --chart speed
    assert "found on several numbers of GPUs, which has no column failed: draw it with --chart scaling" in capsys.readouterr().err


def test_a_title_of_several_profiles_does_not_say_several_gpus(tmp_path):
    found = table(tmp_path, *({"model": "m", "profile": profile, "gpus": gpus} for profile in ("a100", "h100") for gpus in (8, 16)))
    assert scaling_chart.scaling(found, None, page.Size(), "").texts[0].get_text() == "m on several profiles: scaling over GPUs"
    found.choose("gpus=16")
    assert breakdown(found).texts[0].get_text() == "m on 16 GPUs, several profiles: where the time of a step goes"


@needs_binary
def test_what_draws_several_sweeps_is_named(tmp_path):
    table(tmp_path, {})
    expect_error(moesim("plot", tmp_path / "s.csv", tmp_path / "s.csv"), 2, "several sweeps are drawn with --x and --y, or --chart breakdown, scaling, pareto, compare")


def test_layouts_that_differ_in_graphs_alone_say_so(tmp_path):
    sizes = {"tensor_parallel": "1", "pipeline_parallel": "2", "expert_parallel": "8", "yours": "False"}
    found = [{**sizes, "rank": str(rank), "cuda_graphs": graphs} for rank, graphs in ((1, "parts"), (2, "none"))]
    labels = [candidates_chart.label(row, found).replace("\n", " ") for row in found]
    assert labels == ["1: TP 1, PP 2, EP 8, graphs parts", "2: TP 1, PP 2, EP 8, graphs none"]
