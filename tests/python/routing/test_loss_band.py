"""How sure a token loss is: residual_loss_p05, _p95 and _error."""

import json

import numpy as np
import pytest
from command_line import SMALL, as_json, as_rows, needs_binary, succeed
from options_document import document

pytestmark = needs_binary
BAND = ("residual_loss_p05", "residual_loss_p95", "residual_loss_error")
ROUTER = ("--router", "top2", "--capacity-factor", "2")


def band_of(row):
    return [float(row[name]) for name in BAND]


def losses_of(*words):
    return [replica["residual_loss"] for replica in as_json("route", *words)["detail"]["replicas"]]


def test_all_commands_have_the_same_band():
    (simulated,), (swept,), (routed,) = (as_rows(command, *SMALL, *ROUTER) for command in ("simulate", "sweep", "route"))
    assert band_of(simulated) == band_of(swept) == band_of(routed)
    low, high, error = band_of(routed)
    assert 0 < low < float(routed["residual_loss"]) < high < 1 and 0 < error < high - low
    losses = losses_of(*SMALL, *ROUTER)
    assert error == pytest.approx(np.std(losses, ddof=1) / np.sqrt(len(losses)), rel=1e-6)


def test_a_band_of_few_replicas_holds_nine_of_ten_others():
    """16 replicas of each of 8 seeds, as the default has; of the 128 losses 90 % lie inside of bands of other seeds."""
    words = ("--gpus", 8, "--tokens-per-gpu", 512, *ROUTER, "--replicas", 16)
    found = [as_json("route", *words, "--seed", seed) for seed in range(1, 9)]
    losses = [[replica["residual_loss"] for replica in result["detail"]["replicas"]] for result in found]
    inside = [result["residual_loss_p05"] <= loss <= result["residual_loss_p95"]
              for at, result in enumerate(found) for other, those in enumerate(losses) if other != at for loss in those]
    assert 0.84 < np.mean(inside) < 0.96  # the standard error is 0.02: losses of one seed share its band's


def test_one_replica_says_nothing_of_others():
    (row,) = as_rows("simulate", *SMALL, *ROUTER, "--replicas", 1)
    assert [row[name] for name in BAND] == ["", "", ""] and row["residual_loss"]
    assert "standard error" not in succeed("route", *SMALL, *ROUTER, "--replicas", 1)
    assert "mean of 3 steps, +- " in succeed("route", *SMALL, *ROUTER)


def test_replicas_of_a_trace_count_as_its_steps(tmp_path):
    counts = np.array([[[40, 30, 20, 10, 10, 8, 6, 4]], [[20, 20, 20, 20, 20, 20, 4, 4]]])  # [step, rank, expert]
    np.save(tmp_path / "array.npy", counts)
    (tmp_path / "trace.json").write_text(json.dumps({
        "format": "moesim trace 1", "name": "t", "model": "m", "source": "test", "licence": "none", "origin": "synthetic",
        "kind": "counts", "axes": ["step", "rank", "expert"], "tokens": 64, "experts": 8, "top_k": 2, "array": "array.npy"}))
    words = ("--routing", f"trace:{tmp_path}", *ROUTER)
    assert "mean of 2 steps, " in succeed("route", *words, "--replicas", 6)
    two, six = (as_json("route", *words, "--replicas", replicas) for replicas in (2, 6))
    assert [two[name] for name in BAND] == [six[name] for name in BAND]


def test_a_router_that_loses_nothing_is_sure_of_it():
    (row,) = as_rows("simulate", *SMALL, "--router", "dropless")
    assert band_of(row) == [0, 0, 0]
    assert "standard error" not in succeed("route", *SMALL, "--router", "dropless")


def test_a_dense_step_has_no_band():
    (row,) = as_rows("simulate", *SMALL, "--router", "dense")
    assert [row[name] for name in BAND] == ["", "", ""]


def test_logits_are_one_step(tmp_path):
    np.save(tmp_path / "logits.npy", np.random.default_rng(1).normal(size=(2, 64, 8)).astype(np.float32))
    (row,) = as_rows("route", "--logits", tmp_path / "logits.npy", *ROUTER)
    assert [row[name] for name in BAND] == ["", "", ""]


def test_a_table_of_several_has_it_beside_the_loss():
    head, first, *_ = succeed("route", *SMALL, "--router", "top2", "--capacity-factor", "2,3").splitlines()
    assert "token loss %  of one step, p05 to p95" in head
    assert " to " in first


def test_columns_say_how_they_are_reckoned():
    meaning = {column["name"]: column["meaning"] for column in document()["columns"]}
    assert "with 90 % chance" in meaning["residual_loss_p05"] and "one blank" in meaning["residual_loss_p05"]
    assert "standard error" in meaning["residual_loss_error"]
