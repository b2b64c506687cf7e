"""A capacity asked of a model keeps the model's own router: one that never binds changes no step."""

import json

import pytest
from command_line import as_json, moesim, needs_binary
from train_command import MODELS, short_model

pytestmark = needs_binary


def shipped_moe_models():
    for path in sorted(MODELS.glob("*.json")):
        if "moe" in json.loads(path.read_text(encoding="utf-8")) and path.stem != "switch-base-8":  # an encoder, which train refuses
            yield path.stem


@pytest.mark.parametrize("model", shipped_moe_models())
def test_a_capacity_that_never_binds_makes_the_step_of_none(tmp_path, model):
    """Of four MoE layers: all are routed alike."""
    words = ("train", "--model", short_model(tmp_path, model, 4), "--gpus", 8, "--expert-parallel", 4, "--global-batch", 8, "--micro-batch", 1,
             "--sequence-length", 1024, "--routing", "gaussian:0.1", "--fidelity", "tokens")  # both route the same tokens
    none = as_json(*words)
    wide = as_json(*words, "--capacity-factor", 8, "--padding", "none")
    assert wide["failed"] == 0
    assert wide["counted_loss"] == pytest.approx(0, abs=1e-15)  # a difference of two losses, of which one may round
    assert wide["residual_loss"] == pytest.approx(none["residual_loss"], rel=1e-9, abs=1e-12)  # what the model's own router passes over
    assert wide["step_ms"] == pytest.approx(none["step_ms"], rel=1e-3)
    assert wide["imbalance"] == pytest.approx(none["imbalance"], rel=1e-3) and none["imbalance"] > 1


DEEPSEEK = ("train", "--model", "deepseek-v3-4layers", "--gpus", 64, "--expert-parallel", 64, "--dispatcher", "deepep",
            "--routing", "gaussian:0.1")


def test_a_capacity_of_deepseek_v3_drops_and_is_no_slower():
    none = as_json(*DEEPSEEK)
    rows = [as_json(*DEEPSEEK, "--capacity-factor", factor, "--padding", "none") for factor in (1.25, 1, 0.75)]
    for row in rows:
        assert row["router"].startswith("bias-balanced") and row["router"].endswith("+groups:8:4")
    steps = [none["step_ms"], *(row["step_ms"] for row in rows)]
    # At 1.25 hardly any fail: with a capacity a dispatcher is priced by the rows of each source, without by their sum.
    assert steps[1] == pytest.approx(steps[0], rel=3e-3) and steps[0] > steps[2] > steps[3]
    losses = [row["counted_loss"] for row in rows]
    assert losses == sorted(losses)
    # Trained biases: an expert's load of S = 4,096 tokens is about 128 with a standard deviation of 11, and E|x| / 2 =
    # 0.4 x 11 / 128 of the routes are above it.
    assert rows[1]["failed"] == pytest.approx(0.4 * 11.1 / 128, rel=0.25)
    # What the choice passes over was trained so, and is counted with no capacity.
    not_chosen = [row["residual_loss"] - row["counted_loss"] for row in rows]
    assert not_chosen == pytest.approx([none["residual_loss"]] * 3, rel=0.1) and none["residual_loss"] > 0.005


def test_the_report_tells_what_is_dropped_from_what_is_not_chosen():
    words = (*DEEPSEEK, "--capacity-factor", 1)
    row, result = as_json(*words), moesim(*words)
    assert "in its place" not in result.stderr
    lines = {line.split("  ")[0]: line for line in result.stdout.splitlines()}
    assert f"{100 * row['counted_loss']:.2f} %;" in lines["token loss"]
    assert f"{100 * (row['residual_loss'] - row['counted_loss']):.2f} % of the weight" in lines["not chosen"]
