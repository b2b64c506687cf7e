"""Training steps beside a baseline: ratios, and what cancels in them."""

import pytest
from command_line import as_json, expect_error, moesim, needs_binary, succeed
from train_command import LONG, QWEN

pytestmark = needs_binary


@pytest.mark.parametrize("form", ["csv", "json"])
def test_what_both_steps_have_that_none_has_cancels_in_their_ratio(form, tmp_path):
    def band(base, words):
        path = tmp_path / f"base.{form}"
        path.write_text(succeed(*LONG, *base, "--format", form))
        row = as_json(*LONG, *words, "--baseline", path)
        return row["speed_over_baseline_high"] / row["speed_over_baseline_low"]
    zero = ("--zero", 2, "--context-parallel", 2)
    same = band((), ())
    assert band(zero, zero) == pytest.approx(same, rel=0.02)
    assert band((), zero) > 1.01 * same
    assert band(zero, ()) == pytest.approx(band((), zero), rel=0.02)


def test_a_step_beside_a_baseline_says_whether_the_difference_is_noise(tmp_path):
    words = (*QWEN, "--gpus", 64, "--software", "megatron-bridge")
    base = tmp_path / "base.csv"
    succeed(*words, "--out", base)
    alike = as_json(*words, "--launch-us", 14, "--baseline", base)
    assert 1 <= alike["speed_over_baseline"] < 1.1 and alike["within_noise"] is True
    assert alike["speed_over_baseline_low"] < 1 < alike["speed_over_baseline_high"]
    far = as_json(*words, "--launch-us", 300, "--baseline", base)
    assert far["within_noise"] is False and far["speed_over_baseline_high"] < 1
    assert far["beyond_noise_level"] == 0.9 and alike["beyond_noise_level"] is None
    assert "more than noise at 90 %" in succeed(*words, "--launch-us", 300, "--baseline", base)
    expect_error(moesim(*words, "--profile", "h200-sxm", "--baseline", base), 2, "base.csv", "do not cancel")
    elsewhere = ("--profile", "h100-sxm", "--cluster", "hgx-h200")
    expect_error(moesim(*words, *elsewhere, "--baseline", base), 2, "a step on hgx-h100", "do not cancel")
    expect_error(moesim(*words[:-1], "simumax", "--baseline", base), 2, "a step of megatron-bridge", "do not cancel")
    assert as_json(*words[:-2], "--baseline", base)["speed_over_baseline"] == pytest.approx(1)
    base.write_text("model,profile\na,b\n")
    expect_error(moesim(*words, "--baseline", base), 2, "base.csv", "tokens_per_s_per_gpu")


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_a_baseline_of_another_capacity_alone_is_compared_by_pairs_of_capacity(tmp_path, suffix):
    """As sweep --baseline compares them: both padded, all but router and capacity the same."""
    base = tmp_path / f"base.{suffix}"
    words = ("train", "--model", "mixtral-8x7b", "--gpus", 64, "--pipeline-parallel", 4, "--expert-parallel", 8,
             "--software", "megatron-bridge")
    padded = (*words, "--capacity-factor", 1.25)
    succeed(*padded, "--out", base, "--format", suffix)

    def width(*words):
        step = as_json(*words, "--baseline", base)
        return step["speed_over_baseline_high"] / step["speed_over_baseline_low"]

    less = (*words, "--capacity-factor", 1)
    assert width(*less) < 1.25 and width(*less, "--router", "topk+ir", "--seed", 3) < 1.25
    # Another number of choices is another amount of work, and a dispatcher sends what blocks keep.
    assert width(*less, "--top-k", 4) > 1.25
    sent = tmp_path / f"sent.{suffix}"
    succeed(*padded, "--dispatcher", "deepep", "--out", sent, "--format", suffix)
    one = as_json(*less, "--dispatcher", "deepep", "--baseline", sent)
    assert one["speed_over_baseline_high"] > 1.25 * one["speed_over_baseline_low"]
    text = succeed(*less, "--baseline", base)
    assert "more than noise at 90 %; by 48 published pairs that differ in router and capacity alone, as these do" in text
    # More differs, or blocks are not padded: what they take depends on a routing that nobody told.
    for wide in ((*less, "--micro-batch", 2), (*words, "--router", "dropless"), (*less, "--padding", "none")):
        assert width(*wide) > 1.5
        assert "groups of pairs of steps on one machine" in succeed(*wide, "--baseline", base)


def test_a_table_marks_what_is_tight_and_shows_the_baseline(tmp_path):
    base = tmp_path / "base.csv"
    words = ("train", "--model", "qwen3-30b-a3b", "--gpus", 16, "--expert-parallel", 8)
    succeed(*words, "--recompute", "full", "--format", "csv", "--out", base)
    table = succeed(*words, "--recompute", "full/moe_act/none", "--baseline", base)
    rows = [line.split() for line in table.splitlines() if line.split()[:1] in (["full"], ["moe_act"], ["none"])]
    gib = {row[0]: float(row[7]) for row in rows}
    assert "speed over baseline" in table.splitlines()[0]
    for row in rows:
        text = " ".join(row).removesuffix(" host limits").removesuffix(",")
        ends = {"fit": "does not fit", "TIGHT": "TIGHT"}.get(text.split()[-1], "")
        assert ends == ("does not fit" if gib[row[0]] > 80 else "TIGHT" if gib[row[0]] > 72 else "")
    assert "TIGHT" in table and "\nTIGHT: more than 90 % of a GPU's memory; libraries need some too\n" in table
    assert "TIGHT" not in succeed(*words, "--recompute", "full", "--micro-batch", "1,2")
    assert float(rows[0][8]) == pytest.approx(1, abs=0.1)
