"""What a model's own router passes over is no token loss, in every command and chart."""

import re

import pytest

from command_line import as_json, as_rows, needs_binary, succeed

pytestmark = needs_binary

FLAGS = ("--model", "deepseek-v3-4layers", "--profile", "h200-sxm", "--gpus", 8, "--expert-parallel", 8,
         "--sequence-length", 512, "--micro-batch", 1)
PASS = (*FLAGS, "--mode", "prefill", "--replicas", 2)
LIBRARY = ("--capacity-convention", "library")  # the default of recommend and train


def test_a_pass_counts_what_capacity_drops():
    rows = as_rows("sweep", *PASS, *LIBRARY, "--capacity-factor", "1,1.25,8")
    none, = as_rows("sweep", *PASS)
    counted = [float(row["counted_loss"]) for row in rows]
    residual = [float(row["residual_loss"]) for row in rows]
    # Of a capacity that never binds nothing is lost, whatever the groups pass over; all have that in common.
    assert counted[0] > counted[1] > counted[2] == 0 == float(none["counted_loss"]) == float(rows[2]["failed"])
    passed_over = float(none["residual_loss"])
    assert passed_over > 0.005
    assert [loss - own for loss, own in zip(residual, counted)] == pytest.approx([passed_over] * 3, rel=0.02)


def test_another_router_counts_all_of_its_residual_loss():
    rows = as_rows("sweep", *PASS, *LIBRARY, "--router", "top8,top8+fr,dense", "--capacity-factor", 1)
    assert [row["counted_loss"] == row["residual_loss"] for row in rows] == [True] * 3
    assert float(rows[0]["counted_loss"]) > float(rows[1]["counted_loss"]) > 0 and rows[2]["counted_loss"] == ""


def test_a_search_of_passes_limits_the_loss_that_a_sweep_counts():
    row, = as_rows("sweep", *PASS, *LIBRARY, "--capacity-factor", 1)
    assert float(row["counted_loss"]) + 0.003 < float(row["residual_loss"])
    limit = f"{100 * float(row['counted_loss']) + 0.1:.3f}%"  # less than residual_loss
    found = as_rows("recommend", *PASS, "--capacity-factor", 1, "--max-loss", limit)
    assert found[0]["rank"] == "1" and found[0]["counted_loss"] == row["counted_loss"]
    wide = as_rows("recommend", *PASS, "--capacity-factor", 8, "--max-loss", "0%")
    assert wide[0]["rank"] == "1" and float(wide[0]["counted_loss"]) == 0


def test_texts_call_the_counted_loss_token_loss():
    options = (*PASS, *LIBRARY, "--capacity-factor")
    first, second = as_rows("sweep", *options, "1,1.25")
    table = succeed("sweep", *options, "1,1.25")
    heads, *lines = (re.split(r"  +", line) for line in table.splitlines()[:3])
    place = heads.index("token loss %")
    assert [line[place] for line in lines] == [f"{100 * float(row['counted_loss']):.2f}" for row in (first, second)]
    (least, most), = re.findall(r"token loss: not counted is ([\d.]+) to ([\d.]+) % of the weight|$", table)[:1] or [("", "")]
    shares = sorted(100 * (float(row["residual_loss"]) - float(row["counted_loss"])) for row in (first, second))
    if least:
        assert (float(least), float(most)) == pytest.approx(shares, abs=0.006)
    else:
        assert f"token loss: not counted is {shares[0]:.2f} % of the weight" in table
    one = succeed("simulate", *options, 1)
    assert re.search(rf"counted_loss +{100 * float(first['counted_loss']):.2f} %  token loss: what capacity drops", one)
    assert re.search(rf"residual_loss +{100 * float(first['residual_loss']):.2f} %  counted_loss and ", one)
    plain = succeed("sweep", *PASS, *LIBRARY, "--router", "top8", "--capacity-factor", 1)
    assert "not counted" not in plain


def test_route_has_both_where_they_differ():
    words = ("route", *FLAGS, *LIBRARY, "--replicas", 2, "--capacity-factor", "1,1.25")
    rows = as_rows(*words)
    table = succeed(*words)
    heads, *lines = (re.split(r"  +", line) for line in table.splitlines())
    for name, column in (("residual loss %", "residual_loss"), ("token loss %", "counted_loss")):
        assert [line[heads.index(name)] for line in lines] == [f"{100 * float(row[column]):.2f}" for row in rows]
    other = succeed(*words, "--router", "top8")
    assert other.splitlines()[0].count("loss %") == 1 and "token loss %" in other.splitlines()[0]


def test_the_table_of_training_steps_says_what_is_not_counted():
    words = ("train", *FLAGS, "--global-batch", 8, "--routing", "gaussian:0.1", "--capacity-factor")
    row = as_json(*words, 1)
    table = succeed(*words, "1,1.25")
    low = 100 * (row["residual_loss"] - row["counted_loss"])
    said = re.search(r"token loss: not counted is ([\d.]+)", table)
    assert float(said[1]) == pytest.approx(low, abs=0.02) and "no route is dropped" not in table


@pytest.mark.parametrize("model", ["mixtral-8x7b", "llama2-7b-moe8"])  # whose own router is another, and top2
def test_sampling_the_second_expert_is_no_loss(model):
    """DeepSpeed counts as dropped what its capacity drops; by the name of the model's router 12 % were counted or none."""
    small = ("--model", model, "--gpus", 8, "--tokens-per-gpu", 1024, "--router-dialect", "deepspeed", "--router", "top2")
    wide, narrow = as_rows("route", *small, "--replicas", 2, "--capacity-factor", "8,1")
    assert wide["second_expert"] == "sampled" and float(wide["failed"]) == float(wide["counted_loss"]) == 0
    passed_over = float(wide["residual_loss"])
    assert passed_over > 0.05 and 0 < float(narrow["counted_loss"]) < float(narrow["failed"])
    assert float(narrow["residual_loss"]) - float(narrow["counted_loss"]) == pytest.approx(passed_over, rel=0.02)
    best, = as_rows("route", *small, "--replicas", 2, "--capacity-factor", 1, "--second-expert", "best")
    assert best["counted_loss"] == best["residual_loss"]
    text = succeed("simulate", *small, "--sequence-length", 1024, "--mode", "prefill", "--replicas", 2, "--capacity-factor", 8)
    assert "no token loss: of the weight of a token's 2 best experts, which the router's groups, bias or sampling pass over" in text


def test_a_search_of_steps_limits_the_counted_loss():
    """Of the model's own router, whose groups pass over more than the limit, no candidate was acceptable but the first."""
    words = ("recommend", *FLAGS[:4], "--gpus", 64, "--global-batch", 256, "--tensor-parallel", 1, "--pipeline-parallel", 1,
             "--expert-parallel", "8,16", "--expert-tensor-parallel", 1, "--micro-batch", 1, "--recompute", "full", "--capacity-factor", 8)
    rows = as_rows(*words, "--max-loss", "0.1%")
    assert rows == as_rows(*words, "--max-loss", "5%")
    assert [row["rank"] for row in rows] == ["1", "2"]
    assert all(float(row["counted_loss"]) == 0 and float(row["residual_loss"]) > 0.005 for row in rows)
