"""Days and cost of a run of training steps."""

import re

import pytest
from command_line import as_json, as_rows, expect_error, moesim, needs_binary, succeed
from train_command import QWEN

pytestmark = needs_binary


def test_the_cost_of_a_run():
    words = (*QWEN, "--gpus", 64, "--train-tokens", "15T", "--gpu-hour-price", 2.5)
    result = as_json(*words)
    hours = 15 * result["gpu_hours_per_1e12_tokens"]
    assert result["train_tokens"] == 15e12
    assert result["run_days"] == pytest.approx(hours / 64 / 24)
    assert result["run_cost"] == pytest.approx(2.5 * hours)
    widest = result["step_ms_high"] / result["step_ms"]
    assert result["run_cost_high"] == pytest.approx(widest * result["run_cost"])
    table = succeed(*words)
    assert (f"{hours:,.0f} GPU hours for 15 trillion tokens, {hours / 64 / 24:.1f} days; "
            f"{2.5 * hours:,.0f} at 2.5 a GPU hour") in table
    assert f"{result['run_days_low']:.1f} to {result['run_days_high']:.1f}" in table
    assert as_json(*words[:-4], "--gpu-hour-price", 2.5)["cost_per_1e12_tokens"] == pytest.approx(result["run_cost"] / 15)
    assert not [name for name in as_json(*words[:-4]) if "cost" in name or "run_" in name]


def test_tables_have_the_cost_of_runs(tmp_path):
    words = (*QWEN, "--gpus", "32,64", "--gpu-hour-price", 2.5)
    heading, one, two = succeed(*words, "--train-tokens", "15T").splitlines()[:3]
    assert re.search(r"memory GiB +days +cost", heading)
    row = as_json(*words[:-4], "--gpus", 64, *words[-2:], "--train-tokens", "15T")
    assert re.search(rf" {row['run_days']:.1f} +{row['run_cost']:.0f}\b", two), (one, two)
    assert "cost/1e12 tokens" in succeed(*words).splitlines()[0]
    expect_error(moesim(*words, "--train-tokens", "15T,20T"), 2, "--train-tokens: '15T,20T' is no")
    path = tmp_path / "steps.csv"
    succeed(*words, "--train-tokens", "15T", "--out", path)
    assert "GPU hours for 15 trillion tokens" in succeed("recommend", "--from", f"{path}:2")


@pytest.mark.parametrize("command", ["train", "recommend"])
def test_a_run_has_the_tokens_of_a_step_at_least(command):
    words = (command, "--model", "qwen3-30b-a3b", "--gpus", 64, "--global-batch", 1024, "--sequence-length", 4096)
    expect_error(moesim(*words, "--train-tokens", 10), 2, "--train-tokens 10: one step has 4,194,304 tokens")


def test_a_wrong_cost_is_said_before_a_search():
    expect_error(moesim("recommend", "--model", "no-such-model", "--train-tokens", "15t"), 2, "--train-tokens: '15t' is no")


@pytest.mark.parametrize("flag,value", [("train-tokens", value) for value in ("T", "15X", "15t", "-1", "nan", "inf", "1e305T")]
                         + [("gpu-hour-price", value) for value in ("0", "-2", "$2", "nan")])
def test_no_cost_of_a_run_without_numbers(flag, value):
    expect_error(moesim(*QWEN, "--gpus", 64, f"--{flag}", value), 2, f"--{flag}: '{value}' is no")


def test_the_band_has_a_cost():
    words = (*QWEN, "--gpus", 64, "--software", "megatron-bridge")
    row = as_json(*words)
    low, high = (f"{1e12 / row[f'tokens_per_s_per_gpu_{end}'] / 3600:,.0f}" for end in ("high", "low"))
    assert re.search(rf"\n90 % .* {low} to {high}\n", succeed(*words))


def test_several_profiles_of_train_have_a_price_each():
    words = ("train", "--model", "mixtral-8x7b", "--gpus", "16,32", "--profile", "h200-sxm,b200-sxm", "--gpu-hour-price", "3,5.5")
    rows = as_rows(*words)
    assert [(row["profile"], row["gpu_hour_price"]) for row in rows] == [("h200-sxm", "3"), ("b200-sxm", "5.5")] * 2
    for row in rows:
        assert float(row["cost_per_1e12_tokens"]) == pytest.approx(
            float(row["gpu_hour_price"]) * float(row["gpu_hours_per_1e12_tokens"]), rel=1e-6)
    heading, *lines = succeed(*words).splitlines()
    place = re.split(r"  +", heading).index("a GPU hour")
    assert [re.split(r"  +", line)[place] for line in lines[:4]] == ["3", "5.5", "3", "5.5"]
    assert "a GPU hour" not in succeed(*words[:-1], "3")


@pytest.mark.parametrize(("words", "told"), [
    (("--gpus", "8", "--profile", "h200-sxm,b200-sxm", "--gpu-hour-price", "3,4,5"), "3 prices for 2 profiles: give one for all"),
    (("--gpus", "8,16", "--gpu-hour-price", "3,4"), "2 prices for 1 profile: give one for all"),
    (("--gpus", "8", "--gpu-hour-price", "3,4"), "2 prices for 1 profile: give one for all"),
    (("--gpus", "8", "--profile", "h200-sxm,b200-sxm", "--gpu-hour-price", "3,cheap"), "'cheap' is no price above 0"),
])
def test_another_number_of_prices_than_profiles_is_refused(words, told):
    expect_error(moesim("train", *words), 2, told)
