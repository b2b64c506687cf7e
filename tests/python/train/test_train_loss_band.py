"""How sure the token loss of a training step is: residual_loss_p05, _p95 and _error in rows of train."""

import json

import numpy as np
import pytest
from command_line import as_json, as_rows, needs_binary, succeed
from options_document import document

pytestmark = needs_binary
ROUTED = ("train", "--model", "mixtral-8x7b", "--gpus", 8, "--expert-parallel", 8)  # 32 layers of 8 experts
BAND = ("residual_loss_p05", "residual_loss_p95", "residual_loss_error")
CAPACITY = (*ROUTED, "--router", "topk", "--capacity-factor", 1)


def test_all_formats_have_the_same_band():
    drawn = as_json(*CAPACITY)
    (row,) = as_rows(*CAPACITY)
    assert [float(row[name]) for name in BAND] == [drawn[name] for name in BAND]
    low, high, error = (drawn[name] for name in BAND)
    assert 0 < low < high < 1 and 0 < error < high - low
    assert abs(drawn["residual_loss"] - (low + high) / 2) < 4 * error
    # Of one further step: the mean of four is known to half the error of one. Student's t of 3 x 32 degrees: 1.661.
    assert high - low == pytest.approx(2 * 1.661 * np.sqrt(5 / 4) * error, rel=0.01)
    assert f"             of another step {100 * low:.2f} to {100 * high:.2f} % (p05 to p95), by 4 drawn steps\n" in succeed(*CAPACITY)


def test_columns_are_behind_all_others():
    (row,) = as_rows(*CAPACITY)
    assert list(row)[-4:] == ["mfu_kept", *BAND] and list(row)[-5] == "warnings"


def test_a_table_of_several_has_it_beside_the_loss():
    head, first, *_ = succeed(*ROUTED, "--router", "topk", "--capacity-factor", "1,1.25").splitlines()
    assert "token loss %  of one step, p05 to p95" in head and " to " in first.split("0.00")[0]
    assert "of one step" not in succeed(*ROUTED, "--router", "dropless", "--micro-batch", "1,2").splitlines()[0]


def test_rows_of_a_grid_are_those_of_one_step():
    rows = as_rows(*ROUTED, "--router", "topk", "--capacity-factor", "1,1.25")
    assert [rows[0][name] for name in BAND] == [as_rows(*CAPACITY)[0][name] for name in BAND]
    assert float(rows[1]["residual_loss_p95"]) < float(rows[0]["residual_loss_p05"])


def test_a_router_that_drops_nothing_is_sure_of_it():
    dropless = as_json(*ROUTED, "--router", "dropless")
    assert [dropless[name] for name in BAND] == [0, 0, 0]
    assert " (p05 to p95), by" not in succeed(*ROUTED, "--router", "dropless")


def test_forced_balance_has_none():
    """It draws no routing and takes no capacity: no route is dropped."""
    assert not {"mfu_kept", *BAND} & set(as_json(*ROUTED))
    rows = as_rows(*ROUTED, "--router", "dropless", "--routing-draws", "balanced,per-layer")
    assert [[row[name] for name in BAND] for row in rows] == [["", "", ""], ["0", "0", "0"]]


def trace_of(folder, steps):
    """Counts of 8 experts on one rank, the same in all layers."""
    random = np.random.default_rng(1)
    counts = random.multinomial(4096 * 2, random.dirichlet(np.full(8, 20.0)), size=(steps, 1))  # [step, rank, expert]
    np.save(folder / "array.npy", counts)
    (folder / "trace.json").write_text(json.dumps({
        "format": "moesim trace 1", "name": "t", "model": "m", "source": "test", "licence": "none", "origin": "synthetic",
        "kind": "counts", "axes": ["step", "rank", "expert"], "tokens": 4096, "experts": 8, "top_k": 2, "array": "array.npy"}))
    return ("--routing", f"trace-repeat:{folder}")


def test_steps_of_a_trace_are_its_samples(tmp_path):
    trace = trace_of(tmp_path, 3)
    one, *others = (as_json(*CAPACITY, *trace, "--trace-step", step) for step in (1, 2, 3))
    losses = [each["residual_loss"] for each in (one, *others)]
    assert [one[name] for name in BAND] == [None] * 3  # one step says nothing of others
    drawn = as_json(*CAPACITY, *trace)
    assert drawn["residual_loss"] == pytest.approx(np.mean(losses))
    assert drawn["residual_loss_error"] == pytest.approx(np.std(losses, ddof=1) / np.sqrt(3))
    assert drawn["residual_loss_p05"] < min(losses) and max(losses) < drawn["residual_loss_p95"]
    assert "(p05 to p95), by 3 recorded steps" in succeed(*CAPACITY, *trace)
    assert [as_json(*CAPACITY, *trace, "--routing-draws", "per-micro-batch")[name] for name in BAND] == [None] * 3


def test_mfu_over_kept_routes_leaves_dropped_ones_out():
    dropping, whole = as_json(*CAPACITY), as_json(*ROUTED, "--router", "dropless")
    assert whole["mfu_kept"] == whole["mfu"]
    # A token's 2 experts in each of 32 layers: 3 products of 4,096 x 14,336, of 6 FLOPs per weight, forward and backward.
    share = 1 - dropping["mfu_kept"] / dropping["mfu"]
    experts = 32 * 2 * 3 * 4096 * 14336 * 6 * dropping["tokens_per_s_per_gpu"] * 1e-12 / dropping["tflops_per_gpu"]
    assert share == pytest.approx(dropping["failed"] * experts, rel=1e-6)
    text = succeed(*CAPACITY)
    assert f"\n             {100 * dropping['mfu_kept']:.1f} % of the peak with the kept routes alone\n" in text
    assert "kept routes" not in succeed(*ROUTED, "--router", "dropless")
    head = succeed(*ROUTED, "--router", "topk", "--capacity-factor", "1,1.25").splitlines()[0]
    assert "MFU %  of kept routes" in head


def test_columns_say_how_they_are_reckoned():
    meaning = {column["name"]: column["meaning"] for column in document()["training_columns"]}
    assert "one further step" in meaning["residual_loss_p05"] and "blank of a trace drawn per micro-batch" in meaning["residual_loss_p05"]
    assert "standard error" in meaning["residual_loss_error"] and "kept routes alone" in meaning["mfu_kept"]
