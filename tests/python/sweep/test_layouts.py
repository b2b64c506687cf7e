"""simulate and sweep with options of layout, precision or software: priced as train, in their own columns."""

import csv
import json
import statistics

import pytest
from command_line import as_json, as_rows, expect_error, moesim, needs_binary, succeed
from options_document import COLUMNS, column_names

pytestmark = needs_binary
MIXTRAL = ("--model", "mixtral-8x7b", "--profile", "h100-sxm", "--gpus", 32, "--expert-parallel", 8, "--micro-batch", 1)
LAYOUT = (*MIXTRAL, "--router", "top2", "--tensor-parallel", 2, "--pipeline-parallel", 2)
PARTS = (*COLUMNS[COLUMNS.index("attention_ms"):COLUMNS.index("exchange_ms")], "bubble_ms", "host_ms")
# What a scenario has where a training job has other defaults: one batch that fills the two stages once, on 8 data-parallel ranks.
AS_TRAIN = (*LAYOUT, "--routing", "gaussian:0.1", "--capacity-factor", 2, "--capacity-convention", "paper", "--global-batch", 16)


def test_a_step_is_that_of_train_in_the_columns_of_simulate():
    row = as_json("simulate", *LAYOUT)
    assert list(row)[:len(COLUMNS)] == [*COLUMNS[:COLUMNS.index("other_ms") + 1], "bubble_ms",
                                        *COLUMNS[COLUMNS.index("other_ms") + 1:-1]]  # one more column, so one fewer in the slice
    assert set(column_names()) <= set(row)
    train = as_json("train", *AS_TRAIN)
    assert set(train) <= set(row)
    assert {name: row[name] for name in train} == train
    assert row["status"] == "ok" and row["mode"] == "train" and row["experts"] == 8
    assert row["tokens_per_gpu"] == 4096 // 2  # of a rank, which has half of a sequence
    assert row["residual_loss"] > 0.01 and row["replicas"] == 1


@pytest.mark.parametrize("more", [(), ("--pipeline-parallel", 4), ("--recompute", "full"), ("--precision", "fp8-block"),
                                  ("--rank-capacity", 1.5, "--router", "dropless"), ("--context-parallel", 2)],
                         ids=lambda words: " ".join(map(str, words)))
def test_parts_sum_to_the_step_and_to_its_memory(more):
    row = as_json("simulate", *MIXTRAL, "--tensor-parallel", 2, *more)
    assert sum(row[part] or 0 for part in PARTS) == pytest.approx(row["step_ms"], rel=1e-6)
    memory = ("parameters_gib", "gradients_gib", "optimizer_gib", "activations_gib", "buffers_gib")
    assert sum(row[part] for part in memory) == pytest.approx(row["memory_gib"], rel=1e-6)
    assert row["step_ms_p05"] < row["step_ms"] < row["step_ms_p95"]
    assert row["step_ms_p05"] < row["step_ms_p50"] < row["step_ms_p95"]


def test_90_percent_are_no_narrower_than_the_widest_known_band():
    row = as_json("simulate", *LAYOUT)
    assert row["band_level"] == 0.8
    assert row["step_ms_p05"] < row["step_ms_low"] and row["step_ms_high"] < row["step_ms_p95"]
    named = as_json("simulate", *LAYOUT, "--software", "megatron-bridge")
    assert named["band_level"] == 0.9
    assert (named["step_ms_p05"], named["step_ms_p95"]) == pytest.approx((named["step_ms_low"], named["step_ms_high"]))


def test_a_sweep_of_layouts_has_a_row_for_each_in_grid_order(tmp_path):
    words = ("sweep", *MIXTRAL, "--tensor-parallel", "1,2", "--router", "top2,top2+fr+ir", "--capacity-factor", "1,2")
    succeed(*words, "--jobs", 1, "--out", tmp_path / "one.csv")
    succeed(*words, "--jobs", 2, "--out", tmp_path / "two.csv")
    text = (tmp_path / "one.csv").read_text()
    assert text == (tmp_path / "two.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    options = [(row["router"], row["capacity_factor"], row["tensor_parallel"]) for row in rows]
    assert options == [(router, factor, ranks) for router in ("top2", "top2+fr+ir") for factor in "12" for ranks in "12"]
    for number in (1, 4, 7):
        again = as_rows("simulate", "--from", f"{tmp_path / 'one.csv'}:{number}")
        assert again == [rows[number - 1]]


def test_a_layout_that_cannot_be_is_a_row_with_its_reason():
    rows = as_rows("sweep", *MIXTRAL, "--tensor-parallel", "2,3")
    assert [row["status"] for row in rows] == ["ok", "refused"]
    assert "--tensor-parallel 3" in rows[1]["reason"]


def test_replicas_have_the_next_seeds_and_their_losses_a_mean():
    row = as_json("simulate", *LAYOUT, "--replicas", 3, "--seed", 5)
    single = [as_json("simulate", *LAYOUT, "--seed", seed) for seed in (5, 6, 7)]
    assert row["step_ms"] == statistics.median(step["step_ms"] for step in single)
    assert row["residual_loss"] == pytest.approx(statistics.mean(step["residual_loss"] for step in single), rel=1e-8)
    assert row["replicas"] == 3 and row["seed"] == 5
    # That of a mean of three; of one step it varies with the seed.
    assert 0.3 < row["residual_loss_error"] / statistics.mean(step["residual_loss_error"] for step in single) < 0.9
    assert len({step["residual_loss"] for step in single}) == 3


def test_options_of_a_scenario_that_layouts_know_by_another_name():
    full = as_json("simulate", *LAYOUT, "--checkpointing", "full")
    assert full["recompute"] == full["checkpointing"] == "full"
    assert full == as_json("simulate", *LAYOUT, "--recompute", "full")
    words = [word for word in map(str, LAYOUT) if word not in ("--micro-batch", "1")]
    shared = as_json("simulate", *words, "--tokens-per-gpu", 4096)  # of two GPUs, which share two sequences of 4,096
    assert shared["micro_batch"] == 2 and shared["tokens_per_gpu"] == 4096
    assert as_json("simulate", *words)["micro_batch"] == 8  # the default of simulate


def test_a_file_of_options_may_ask_for_a_layout(tmp_path):
    (tmp_path / "job.json").write_text(json.dumps({"tensor_parallel": [1, 2], "router": "top2"}))
    rows = as_rows("sweep", *MIXTRAL, "--config", tmp_path / "job.json")
    assert [row["tensor_parallel"] for row in rows] == ["1", "2"]
    (tmp_path / "gather.yaml").write_text("dispatcher: allgather\n")
    assert as_rows("simulate", *MIXTRAL, "--config", tmp_path / "gather.yaml")[0]["dispatcher"] == "allgather"


def test_replicas_of_recorded_steps_are_the_same_steps(tmp_path):
    trace = ("--model", "llama2-7b-moe8", "--gpus", 8, "--tensor-parallel", 1, "--micro-batch", 1, "--router", "top2",
             "--routing", "trace-repeat:tiny-moe-top2")
    one, four = (as_json("simulate", *trace, "--replicas", replicas) for replicas in (1, 4))
    assert one["residual_loss_error"] == four["residual_loss_error"] > 0


def test_rectified_rows_are_grouped_with_the_others():
    row = as_json("simulate", *MIXTRAL, "--tensor-parallel", 2, "--router", "top2+fr+ir", "--ir-compute", "grouped")
    assert row["ir_compute"] == "grouped"
    assert row == as_json("simulate", *MIXTRAL, "--tensor-parallel", 2, "--router", "top2+fr+ir")


def test_a_row_of_train_is_priced_as_train_prices_it(tmp_path):
    succeed("train", *MIXTRAL, "--tensor-parallel", "1,2", "--out", tmp_path / "t.csv")
    row = as_rows("simulate", "--from", f"{tmp_path / 't.csv'}:2")[0]
    again = as_rows("train", "--from", f"{tmp_path / 't.csv'}:2")[0]
    assert row["step_ms"] == again["step_ms"] and row["tensor_parallel"] == "2"
    succeed("sweep", *MIXTRAL, "--router", "top2", "--fusion", "fused", "--replicas", 1, "--out", tmp_path / "s.csv")
    expect_error(moesim("simulate", "--from", f"{tmp_path / 's.csv'}:1", "--tensor-parallel", 2), 2, "with the kernels of Megatron-Core")


def test_rows_with_other_batches_are_noted():
    words = ("sweep", *MIXTRAL, "--router", "top2", "--tensor-parallel", "1,2")
    assert "note: rows have global batches of 16 to 32 sequences: --global-batch N" in moesim(*words).stderr
    assert "global batches" not in moesim(*words, "--global-batch", 32).stderr


def test_a_dense_model_draws_no_routing():
    row = as_json("simulate", "--model", "llama2-7b", "--gpus", 8, "--tensor-parallel", 2, "--replicas", 4)
    assert row["router"] == "dense" and row["routing"] is None and row["residual_loss"] is None
    assert row["replicas"] == 1


def test_what_the_step_is_priced_by_is_said():
    result = moesim("simulate", *LAYOUT)
    assert "note: --pipeline-parallel: priced as 'moesim train' prices a step" in result.stderr
    assert "TP 2" in result.stdout
    without = moesim("simulate", *MIXTRAL, "--router", "top2")
    assert "moesim train" not in without.stderr


def test_a_capacity_meant_per_routed_token_is_noted():
    """In the words of a step without a layout."""
    olmoe = ("--model", "olmoe-1b-7b", "--gpus", 16, "--profile", "h100-sxm", "--router", "topk", "--micro-batch", 1)

    def notes(*words):
        result = moesim(*words)
        assert result.returncode == 0
        return [line for line in result.stderr.splitlines() if "a balanced load of" in line]
    (note,) = notes("simulate", *olmoe, "--capacity-factor", 1, "--tensor-parallel", 1)
    assert "a balanced load of top8 needs 8; at least 87.5 % of the routes fail" in note
    assert [note] == notes("simulate", *olmoe, "--capacity-factor", 1, "--replicas", 1)
    assert [note] == notes("sweep", *olmoe, "--capacity-factor", "1,2", "--tensor-parallel", "1,2")
    for more in ((), ("--capacity-factor", 8), ("--capacity-factor", 1, "--capacity-convention", "library"),
                 ("--capacity-factor", 1, "--router", "dropless")):
        assert notes("simulate", *olmoe, *more, "--tensor-parallel", 1) == []
    assert notes("sweep", *olmoe, "--capacity-factor", "4,8", "--tensor-parallel", 1) == []


REFUSED = [
    (["--mode", "prefill"], "--mode prefill with --pipeline-parallel"),
    (["--dispatch", "einsum"], "has no --dispatch: it is index"),
    (["--fusion", "fused"], "kernels of Megatron-Core"),
    (["--overlap", "none"], "gradients under the backward pass"),
    (["--ir-compute", "separate"], "with rectified rows among the others, as grouped: give grouped"),
    (["--recompute", "full", "--checkpointing", "none"], "leave --checkpointing out"),
    (["--jitter", "0.1"], "has no --jitter"),
    (["--losses"], "without --losses"),
    (["--experts", "16"], "which has the model's experts"),
    (["--tokens-per-gpu", "8192"], "with a layout one of them says it all"),
    (["--capacity-factor", "1,2"], "'moesim sweep' takes both"),
    (["--recompute", "core_attn", "--checkpointing", "full"], "full is the same of both"),
    (["--measured", "1s"], "unknown option --measured"),
]


@pytest.mark.parametrize(("words", "part"), REFUSED, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_what_layouts_do_not_have_is_refused(words, part):
    expect_error(moesim("simulate", *LAYOUT, *words), 2, part)


@pytest.mark.parametrize("flag", ["--baseline", "--shard"])
def test_a_sweep_of_layouts_refuses_what_only_scenarios_have(flag):
    value = "router=top2" if flag == "--baseline" else "1/2"
    expect_error(moesim("sweep", *LAYOUT, flag, value), 2, f"without {flag}")


def test_a_dispatcher_that_only_training_jobs_have_asks_for_one():
    rows = as_rows("sweep", *MIXTRAL, "--dispatcher", "all-to-all,allgather")
    assert [row["dispatcher"] for row in rows] == ["all-to-all", "allgather"]
    gathered, sent = float(rows[1]["dispatch_ms"]), float(rows[0]["dispatch_ms"])
    # All tokens of 8 ranks in the place of 2 rows of each token.
    assert 2 < gathered / sent < 4
    assert rows[1] == as_rows("simulate", *MIXTRAL, "--dispatcher", "allgather")[0]
    assert "dispatcher allgather" in rows[1]["not_measured"]


def test_help_says_that_layouts_are_taken():
    for command in ("simulate", "sweep"):
        text = " ".join(succeed(command, "--help").split())
        assert "'moesim train --help' lists" in text
        assert "Defaults stay those of this command: --capacity-convention paper (train: library)" in text
