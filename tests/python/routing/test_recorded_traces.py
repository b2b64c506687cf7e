"""What a trace says of the router: its k."""

import csv
import io
import json

import pytest
from command_line import moesim, needs_binary, succeed

pytestmark = needs_binary

TOP1 = "trace:tiny-moe-top1"  # 8 ranks of 128 tokens, 8 experts, k = 1; the default model has k = 2
SIZES = ("--gpus", 8, "--expert-parallel", 8, "--sequence-length", 128, "--micro-batch", 1)


def as_json(*words):
    return json.loads(succeed(*words, "--format", "json"))


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

