"""What a trace says, and what it does not: its k, and the weights that a token loss is of."""

import csv
import io
import json
import re

import numpy as np
import pytest
from command_line import as_json, as_rows, moesim, needs_binary, succeed

pytestmark = needs_binary

TOP1 = "trace:tiny-moe-top1"  # 8 ranks of 128 tokens, 8 experts, k = 1; the default model has k = 2
SIZES = ("--gpus", 8, "--expert-parallel", 8, "--sequence-length", 128, "--micro-batch", 1)


def save_trace(folder, kind, axes, array):
    """Of one layer of 8 ranks, k = 2, 64 tokens, 8 experts."""
    folder.mkdir()
    np.save(folder / "array.npy", array)
    (folder / "trace.json").write_text(json.dumps({
        "format": "moesim trace 1", "name": "t", "model": "m", "source": "test", "licence": "none", "origin": "synthetic",
        "kind": kind, "axes": axes, "tokens": 64, "experts": 8, "top_k": 2, "array": "array.npy"}))
    return f"trace:{folder}"


@pytest.fixture(name="counts")
def fixture_counts(tmp_path):
    counts = np.tile([40, 30, 20, 10, 10, 8, 6, 4], (8, 1))
    return save_trace(tmp_path / "counts", "counts", ["rank", "expert"], counts)


@pytest.fixture(name="choices")
def fixture_choices(tmp_path):
    first = np.tile(np.arange(64) % 4, (8, 1))
    return save_trace(tmp_path / "choices", "choices", ["rank", "token", "choice"], np.stack([first, first + 4], -1))


@pytest.mark.parametrize("words", [(), ("--router", "topk"), ("--router", "dropless"), ("--router", "top1")])
def test_without_a_model_k_is_that_of_the_trace(words):
    assert as_json("route", "--routing", TOP1, *words)["top_k"] == 1
    assert as_json("simulate", "--routing", TOP1, *words, *SIZES, "--replicas", 1)["top_k"] == 1


def test_the_k_that_was_taken_is_said():
    assert "note: from trace:tiny-moe-top1: --experts 8 --gpus 8 --tokens-per-gpu 128 --top-k 1\n" in \
        moesim("route", "--routing", TOP1).stderr
    assert "--top-k" not in moesim("route", "--routing", TOP1, "--router", "top1").stderr
    assert "--top-k" not in moesim("route", "--routing", TOP1, "--top-k", 1).stderr


def test_a_typed_k_or_model_goes_before():
    assert as_json("route", "--routing", TOP1, "--top-k", 2)["top_k"] == 2
    assert as_json("route", "--routing", TOP1, "--model", "mixtral-8x7b")["top_k"] == 2
    assert as_json("route", "--routing", "gaussian:0.1", "--gpus", 8, "--tokens-per-gpu", 128)["top_k"] == 2


OTHER = "note: trace:tiny-moe-top1: recorded with k = 1, but "


def test_a_router_with_another_k_is_noted():
    assert OTHER + "top2 has k = 2: to route as recorded, --router topk --top-k 1\n" in \
        moesim("route", "--routing", TOP1, "--router", "top2").stderr
    rows = moesim("route", "--routing", TOP1, "--router", "top2,dropless,top4+fr", "--format", "csv")
    assert [row["top_k"] for row in csv.DictReader(io.StringIO(rows.stdout))] == ["2", "1", "4"]
    assert OTHER + "top2 has k = 2, top4+fr has k = 4: to route as recorded" in rows.stderr
    for command in ("simulate", "train"):
        said = moesim(command, "--routing", TOP1, "--model", "mixtral-8x7b", *SIZES, "--router", "dropless").stderr
        assert OTHER + "dropless has k = 2: to route as recorded, --top-k 1\n" in said
    assert "recorded with" not in moesim("route", "--routing", TOP1).stderr
    # Which experts a token goes to does not follow from the trace.
    assert "recorded with" not in moesim("route", "--routing", TOP1, "--router", "hash").stderr


CAPACITY = ("--capacity-factor", 1, "--capacity-convention", "library")


def test_a_token_loss_from_counts_is_said_to_be_estimated(counts):
    route = ("route", "--routing", counts, *CAPACITY)
    result = moesim(*route)
    assert f"note: {counts}: counts tell neither which routes are of one token nor their weights: token loss is estimated " \
        "from drawn weights, failed is exact\n" in result.stderr
    assert "mean over tokens; from drawn weights\n" in result.stdout
    assert as_json(*route)["detail"]["loss_basis"] == as_json(*route)["loss_basis"] == "drawn weights"
    assert as_rows(*route)[0]["loss_basis"] == "drawn weights"
    train = ("train", "--model", "mixtral-8x7b", "--routing", counts, *CAPACITY, "--gpus", 8, "--expert-parallel", 8,
             "--sequence-length", 64, "--micro-batch", 1)
    assert " % from drawn weights; " in succeed(*train)
    assert as_json(*train)["loss_basis"] == "drawn weights"
    simulate = ("simulate", "--routing", counts, *CAPACITY, "--sequence-length", 64, "--micro-batch", 1, "--replicas", 1)
    assert as_json(*simulate)["provenance"].endswith("; token loss from drawn weights")
    assert ", failed is exact" not in moesim("route", "--routing", counts.replace("trace", "trace-repeat", 1), *CAPACITY,
                                             "--tokens-per-gpu", 64).stderr


def test_a_table_of_routers_marks_which_losses_are_estimated(counts):
    """A router that drops nothing has nothing to estimate, and what failed is counted."""
    several = ("route", "--routing", counts, *CAPACITY[2:], "--router", "topk,dropless", "--capacity-factor", "1,1.5")
    rows = as_rows(*several)
    assert [row["loss_basis"] for row in rows] == ["drawn weights", "drawn weights", ""]
    heading, *lines, legend = succeed(*several).splitlines()
    assert legend == "~ estimated from drawn weights"
    columns = re.split(r"  +", heading)
    for row, line in zip(rows, lines):
        cells = dict(zip(columns, re.split(r"  +", line)))
        if row["loss_basis"]:
            assert cells["failed %"] == f"{100 * float(row['failed']):.2f}"
            assert cells["token loss %"] == f"~{100 * float(row['residual_loss']):.2f}"
        else:
            assert "~" not in line
    drawn = ("route", "--routing", "gaussian:0.1", "--gpus", 8, "--tokens-per-gpu", 64, "--replicas", 1, *CAPACITY)
    assert "loss_basis" not in as_rows(*drawn)[0] and "~" not in succeed(*drawn, "--router", "topk,dropless")


def test_choices_without_probabilities_have_equal_weights(choices):
    route = ("route", "--routing", choices, *CAPACITY, "--priority", "position")
    assert f"note: {choices}: no probabilities were recorded: token loss is from equal weights\n" in moesim(*route).stderr
    assert as_json(*route)["detail"]["loss_basis"] == as_rows(*route)[0]["loss_basis"] == "equal weights"


def test_where_weights_are_recorded_or_nothing_drops_nothing_is_said(counts):
    for words in (("--routing", TOP1, *CAPACITY), ("--routing", counts, "--router", "dropless"),
                  ("--routing", "gaussian:0.1", "--gpus", 8, "--tokens-per-gpu", 64, *CAPACITY)):
        result = moesim("route", *words, "--replicas", 1, "--format", "json")
        assert "loss_basis" not in json.loads(result.stdout)["detail"] and "token loss" not in result.stderr
