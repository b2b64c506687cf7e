"""What an H200 gave (tests/data/h200): the pages show these figures, and predictions hold them."""

import importlib.util
import json
from pathlib import Path

import pytest
from command_line import moesim, needs_binary

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "tests" / "data" / "h200"
PAGE = (ROOT / "kernels" / "README.md").read_text()


def load(name):
    return json.loads((DATA / name).read_text())


def kernel_table():
    spec = importlib.util.spec_from_file_location("kernel_table",
                                                  ROOT / "tests" / "bench" / "kernel_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_measured_kernels():
    assert kernel_table().table(load("gpu_kernels.json")) in PAGE


def test_every_kernel_was_right_and_names_its_machine():
    document = load("gpu_kernels.json")
    assert [row["trouble"] for row in document["rows"]] == [""] * len(document["rows"])
    assert document["device"] == "NVIDIA H200" and document["driver"] and document["date"]
    peers = load("peers.json")
    assert peers["device"] == document["device"]
    assert peers["version"] == document["peers"]


def test_a_bar_is_told_apart_from_a_faster_peer():
    module = kernel_table()
    row = {"bar": "at least 85 % of copy", "of_copy": 0.9, "of_floor": 1, "time_us": 5,
           "verdict": "UNMET"}
    assert module.bar_of(row) == "at least 85 % of copy: met"
    assert "not met" in module.bar_of({**row, "of_copy": 0.84})
    assert "not met" in module.bar_of({**row, "bar": "at most 4 us"})
    assert module.bar_of({**row, "bar": "at most 1.3 x byte floor"}).endswith(": met")


@needs_binary
def test_the_measured_profile_predicts_the_layers_of_its_machine():
    result = moesim("validate", "layer", "--measured", str(DATA / "measured-layer.json"),
                    "--profile", "h200-sxm-measured", "--format", "json")
    assert result.returncode == 0, result.stderr
    verdicts = json.loads(result.stdout)["verdicts"]
    assert [verdict["met"] for verdict in verdicts] == [True, True]
    assert all("of 28 layers" in verdict["text"] for verdict in verdicts)
    for verdict in verdicts:  # the figures of the pages
        assert verdict["text"].split(": ")[1].split(" (")[0] in PAGE


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck", "initcheck"])
def test_sanitizers_found_nothing(tool):
    text = (DATA / "sanitizer.txt").read_text()
    part = text.split(f"== {tool}\n")[1].split("\n== ")[0]
    assert "SKIPPED" not in part
    assert "0 errors" in part and "All tests passed" in part
