"""Steps with a layout: what cannot be, what a trace says, and where notes stand."""

import re
import subprocess

import pytest
from command_line import BINARY, as_json, as_rows, expect_error, moesim, needs_binary

pytestmark = needs_binary
MIXTRAL = ("--model", "mixtral-8x7b", "--profile", "h100-sxm", "--gpus", 32, "--expert-parallel", 8, "--micro-batch", 1,
           "--router", "top2")
TRACE = ("--model", "llama2-7b-moe8", "--routing", "trace:tiny-moe-top2")
PRICED = "priced as 'moesim train' prices a step"


def test_a_mode_that_layouts_do_not_have_is_a_row():
    result = moesim("sweep", *MIXTRAL, "--tensor-parallel", 2, "--mode", "prefill,train", "--format", "csv")
    assert result.returncode == 0 and "1 of 2 steps were refused" in result.stderr
    refused, priced = as_rows("sweep", *MIXTRAL, "--tensor-parallel", 2, "--mode", "prefill,train")
    assert refused["status"] == "refused" and refused["mode"] == "prefill"
    assert refused["reason"].startswith("--mode prefill with --tensor-parallel: ")
    assert priced == as_rows("simulate", *MIXTRAL, "--tensor-parallel", 2)[0]


def test_contradicting_values_of_two_options_are_rows():
    rows = as_rows("sweep", *MIXTRAL, "--checkpointing", "none,full", "--recompute", "none/full")
    assert [row["status"] for row in rows] == ["ok", "refused", "refused", "ok"]
    assert [row["checkpointing"] for row in rows] == ["none", "none", "full", "full"]
    assert all("leave --checkpointing out" in row["reason"] for row in rows[1:3])
    assert float(rows[3]["memory_gib"]) < float(rows[0]["memory_gib"])


@pytest.mark.parametrize("words", [("--tensor-parallel", 5), ("--tensor-parallel", 2, "--mode", "prefill"),
                                   ("--tensor-parallel", 2, "--jitter", 0.1)])
@pytest.mark.parametrize("command", ["simulate", "sweep"])
def test_a_refused_command_has_no_note_of_its_prices(command, words):
    result = moesim(command, *MIXTRAL, *words)
    assert PRICED not in result.stderr and result.stderr.startswith("moesim: error: ")
    expect_error(result, 2, "")


@pytest.mark.parametrize("command", ["simulate", "sweep"])
def test_the_note_of_prices_is_below_the_result(command):
    assert moesim(command, *MIXTRAL, "--tensor-parallel", 2).stderr.splitlines()[-1].startswith(
        f"note: --tensor-parallel: {PRICED}")


def test_a_refused_row_has_no_batch_that_is_noted():
    said = moesim("sweep", *MIXTRAL, "--tensor-parallel", "2,4", "--mode", "prefill,train").stderr
    assert "note: rows have global batches of 8 to 16 sequences" in said


@pytest.mark.parametrize(("words", "gpus", "sequence"), [
    (("--tensor-parallel", 1), 8, 128), (("--tensor-parallel", 2), 8, 256),
    (("--pipeline-parallel", 2, "--context-parallel", 2), 16, 256), (("--tensor-parallel", 1, "--gpus", 16), 16, 128)])
def test_a_trace_says_how_many_gpus_and_tokens_there_are(words, gpus, sequence):
    """It has 8 ranks with 128 tokens each, those of a pipeline stage."""
    row = as_json("simulate", *TRACE, *words)
    assert (row["gpus"], row["sequence_length"], row["micro_batch"], row["tokens_per_gpu"]) == (gpus, sequence, 1, 128)
    plain = as_json("simulate", *TRACE)
    assert plain["gpus"] == 8 and plain["tokens_per_gpu"] == 128
    # The same recorded routes are dropped.
    assert row["failed"] == pytest.approx(plain["failed"], rel=1e-6)


def test_what_a_trace_says_is_noted_and_what_is_typed_holds():
    said = moesim("simulate", *TRACE, "--tensor-parallel", 1).stderr
    assert "note: from trace:tiny-moe-top2: --gpus 8 --sequence-length 128 --micro-batch 1\n" in said
    typed = moesim("simulate", *TRACE, "--tensor-parallel", 1, "--micro-batch", 8)
    expect_error(typed, 2, "it holds the routing of 128 tokens per rank and layer, the job has 16384")
    again = as_json("simulate", "--model", "llama2-7b-moe8", "--routing", "trace-repeat:tiny-moe-top2", "--tensor-parallel", 1,
                    "--micro-batch", 1)
    assert again["gpus"] == 8 and again["sequence_length"] == 2048  # any number of tokens: the model's


@pytest.mark.parametrize("layout", [("--tensor-parallel", 1), ("--tensor-parallel", 2), ("--pipeline-parallel", 2, "--context-parallel", 2)])
def test_the_tokens_of_a_trace_may_be_typed(layout):
    typed = as_json("simulate", *TRACE, *layout, "--tokens-per-gpu", 128)
    assert typed == as_json("simulate", *TRACE, *layout)
    assert typed["tokens_per_gpu"] == 128
    rows = as_rows("sweep", *TRACE, *layout, "--tokens-per-gpu", "128,2048")
    assert [row["status"] for row in rows] == ["ok", "refused"]
    assert "128 tokens per rank" in rows[1]["reason"]


def test_tokens_that_are_no_whole_sequences_are_refused():
    for sharing, said in ((1, "a GPU has"), (2, "2 GPUs share")):
        expect_error(moesim("simulate", *MIXTRAL[:6], "--tensor-parallel", sharing, "--tokens-per-gpu", 1000), 2,
                     f"--tokens-per-gpu 1000: {said} whole sequences of 4096 tokens: give --micro-batch")


def test_what_would_fit_ends_what_simulate_says():
    both = subprocess.run([BINARY, "simulate", "--replicas", "1"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=300, check=True).stdout
    last = both.splitlines()[-1]
    assert last.startswith("warning: ") and "would fit: --checkpointing full (45 GiB)" in last
    assert "do not fit" not in moesim("simulate", "--replicas", 1, "--checkpointing", "full").stderr


def test_two_options_are_proposed_where_none_alone_is_enough():
    words = ("simulate", "--model", "mixtral-8x7b", "--gpus", 16, "--router", "top2", "--replicas", 1)
    said = moesim(*words).stderr.splitlines()[-1]
    pairs = re.findall(r"(--checkpointing full --zero 2) \((\d+) GiB\)", said)
    assert "would fit: " in said and len(pairs) == 1 and said.count("--checkpointing full --zero") == 1
    for option in ("--checkpointing full", "--zero 2"):
        assert as_json(*words, *option.split())["fits_memory"] is False
    both = as_json(*words, *pairs[0][0].split())
    assert both["fits_memory"] is True and both["memory_gib"] == pytest.approx(int(pairs[0][1]), abs=0.51)
