"""moesim recommend on several machines: the best on each, how they compare, and which is cheaper per token."""

import csv
import re
import shlex

import pytest
from command_line import as_json, as_rows, expect_error, moesim, needs_binary, succeed, written
from recommend_command import SMALL, layout_of

pytestmark = needs_binary
BOTH = ("--profile", "h200-sxm,b200-sxm")
BRIDGE = ("--software", "megatron-bridge")


def ends_of(row, name):
    return [float(row[f"{name}_{end}"]) for end in ("low", "p25", "p75", "high")]


def test_each_machine_has_the_layout_that_a_search_of_its_own_finds():
    rows = as_rows(*SMALL, *BOTH, "--gpu-hour-price", "3,5.5", "--train-tokens", "2T")
    assert [(row["profile"], row["cluster"], row["gpus"]) for row in rows] == [
        ("h200-sxm", "hgx-h200", "16"), ("b200-sxm", "hgx-b200", "16")]
    for row, price in zip(rows, (3, 5.5)):
        alone = as_rows(*SMALL, "--profile", row["profile"], "--gpu-hour-price", price, "--train-tokens", "2T", "--best", 1)[0]
        of_order = {"on_front", "twins"}  # of several layouts
        assert {name: row[name] for name in alone if name not in of_order} == {
            name: value for name, value in alone.items() if name not in of_order}
    assert [as_json(*shlex.split(row["command"])[1:])["step_ms"] for row in rows] == [float(row["step_ms"]) for row in rows]


@pytest.mark.parametrize("words", [
    (*BOTH, *BRIDGE), BOTH,
    (*BOTH, *BRIDGE, "--precision", "fp8-current,mxfp8"),  # each its own
    ("--profile", "h100-sxm,gb200", *BRIDGE),
    ("--profile", "h200-sxm", "--cluster", "hgx-h200,hgx-b200", "--micro-batch", 1, "--expert-parallel", 8),
    # The same drawn routing on both, which then differ in the cluster alone.
    ("--profile", "h200-sxm", "--cluster", "hgx-h200,hgx-b200", "--micro-batch", 1, "--expert-parallel", 8, "--routing", "gaussian:0.1"),
], ids=["bridge", "not named", "precisions", "racks", "clusters", "drawn routing"])
def test_the_ratio_is_that_of_train_beside_a_baseline(tmp_path, words):
    """Of the printed commands: one way to compare two machines."""
    first, other = as_rows(*SMALL, *words)
    base = tmp_path / "a.csv"
    succeed(*shlex.split(first["command"])[1:], "--out", base)
    step = as_json(*shlex.split(other["command"])[1:], "--baseline", base)
    assert float(other["speed_ratio"]) == pytest.approx(step["speed_over_baseline"], rel=1e-6)
    assert float(other["speed_ratio_low"]) == pytest.approx(step["speed_over_baseline_low"], rel=1e-6)
    assert float(other["speed_ratio_high"]) == pytest.approx(step["speed_over_baseline_high"], rel=1e-6)
    assert float(other["speed_ratio_level"]) == step["baseline_level"]
    chance = (1 + step["beyond_noise_level"]) / 2 if step["beyond_noise_level"] else ""
    assert (float(other["token_cost_chance"]) if other["token_cost_chance"] else "") == chance
    ends = ends_of(other, "speed_ratio")
    assert ends == sorted(ends) and ends[1] < float(other["speed_ratio"]) < ends[2]
    assert not first["speed_ratio"] and not first["compared_with"] and other["compared_with"]


def test_machines_compare_as_well_the_other_way_round():
    first = as_rows(*SMALL, *BOTH, *BRIDGE, "--gpu-hour-price", "3,4")
    other = as_rows(*SMALL, "--profile", "b200-sxm,h200-sxm", *BRIDGE, "--gpu-hour-price", "4,3")
    assert [row["profile"] for row in first] == [row["profile"] for row in reversed(other)]
    assert float(first[1]["speed_ratio"]) * float(other[1]["speed_ratio"]) == pytest.approx(1)
    assert [one * two for one, two in zip(ends_of(first[1], "speed_ratio"), reversed(ends_of(other[1], "speed_ratio")))] == \
        pytest.approx([1] * 4)
    assert first[1]["token_cost_chance"] == other[1]["token_cost_chance"]
    assert [row["cheapest"] for row in first] == [row["cheapest"] for row in reversed(other)]


def test_at_the_break_even_price_a_token_costs_the_same():
    def at(price):
        return as_rows(*SMALL, *BOTH, *BRIDGE, "--gpu-hour-price", f"3,{price:.9g}")

    row = at(5)[1]
    even = float(row["break_even_price"])
    low, first, last, high = ends_of(row, "break_even_price")
    assert even == pytest.approx(3 * float(row["speed_ratio"]))
    assert float(at(even)[1]["token_cost_ratio"]) == pytest.approx(1)
    for price, chance in ((0.99 * low, "0.95"), (0.99 * first, "0.75"), (1.01 * first, ""), (0.99 * last, ""), (1.01 * last, "0.75"),
                          (1.01 * high, "0.95")):
        cheap, there = at(price)
        assert there["token_cost_chance"] == chance
        assert (cheap["cheapest"], there["cheapest"]) == (("false", "true") if price < even else ("true", "false"))
        # By what the tokens cost on each.
        costs = float(there["cost_per_1e12_tokens"]) / float(cheap["cost_per_1e12_tokens"])
        assert float(there["token_cost_ratio"]) == pytest.approx(costs)


def test_the_table_says_which_machine_is_cheaper_and_how_sure_that_is():
    table = succeed(*SMALL, *BOTH, *BRIDGE, "--gpu-hour-price", "3,100")
    row = as_rows(*SMALL, *BOTH, *BRIDGE, "--gpu-hour-price", "3,100")[1]
    low, first, last, high = ends_of(row, "speed_ratio")
    assert (f"b200-sxm is {float(row['speed_ratio']):.2f} times as fast per GPU as h200-sxm; "
            f"50 %: {first:.2f} to {last:.2f}, 90 %: {low:.2f} to {high:.2f}; ") in table
    assert "\n  by 28 groups of pairs of machines that ran one release of megatron-bridge, " in table
    even = float(row["break_even_price"])
    assert f"  it is cheaper per token below {even:.2f} per GPU hour when h200-sxm costs 3; 50 %: {3 * first:.2f} to " in table
    more = 100 * (float(row["token_cost_ratio"]) - 1)
    assert f"cheapest per token: h200-sxm\n  b200-sxm costs {more:.1f} % more; dearer at all with a chance of 95 % or more\n" in table
    cents = succeed(*SMALL, *BOTH, *BRIDGE, "--gpu-hour-price", 0.003)
    assert f"  it is cheaper per token below {even / 1000:.3g} per GPU hour when h200-sxm costs 0.003; " in cents
    close = succeed(*SMALL, *BOTH, *BRIDGE, "--gpu-hour-price", f"3,{1.01 * even:.4g}")
    assert re.search(r"cheapest per token: h200-sxm\n  b200-sxm costs [01]\.\d % more; that is within the noise\n", close)
    without = succeed(*SMALL, *BOTH, *BRIDGE)
    assert f"  it is cheaper per token while its GPU hour costs less than {float(row['speed_ratio']):.2f} times one of h200-sxm; 50 %: " in without
    assert "cheapest per token, all at one price of a GPU hour: " in without
    commands = [line.split(maxsplit=1) for line in table.split("to reproduce:\n")[1].splitlines()]
    assert [name for name, _ in commands] == ["h200-sxm", "b200-sxm"]
    assert [re.search(r"--gpu-hour-price (\S+)", command)[1] for _, command in commands] == ["3", "100"]


def test_of_three_machines_the_cheapest_is_compared_with_both_others():
    words = (*SMALL, "--profile", "h100-sxm,h200-sxm,b200-sxm", *BRIDGE, "--gpu-hour-price", "3,3,3")
    rows, table = as_rows(*words), succeed(*words)
    costs = {row["profile"]: float(row["cost_per_1e12_tokens"]) for row in rows}
    cheapest = min(costs, key=costs.get)
    assert [row["profile"] for row in rows if row["cheapest"] == "true"] == [cheapest]
    told = re.search(r"^cheapest per token: (\S+)\n  (\S+) costs ([\d.]+) % more.*\n  (\S+) costs ([\d.]+) % more", table, re.M).groups()
    assert told[0] == cheapest and {told[1], told[3]} == set(costs) - {cheapest}
    for name, more in ((told[1], told[2]), (told[3], told[4])):
        assert float(more) == pytest.approx(100 * (costs[name] / costs[cheapest] - 1), abs=0.051)


def test_one_price_is_of_all_machines_also_of_three():
    rows = as_rows(*SMALL, "--profile", "h100-sxm,h200-sxm,b200-sxm", "--gpu-hour-price", 3)
    assert [row["gpu_hour_price"] for row in rows] == ["3", "3", "3"]


@pytest.mark.parametrize(("words", "told"), [
    ((*BOTH, "--gpu-hour-price", "3,4,5"), "3 prices for 2 profiles"),
    (("--profile", "h200-sxm", "--gpu-hour-price", "3,4"), "2 prices for 1 profile:"),
    ((*BOTH, "--cluster", "hgx-h200,hgx-b200", "--gpu-hour-price", "3,4,5"), "3 prices for 2 profiles on 4 machines"),
    ((*BOTH, "--gpu-hour-price", "3,cheap"), "'cheap' is no price"),
    (("--profile", "h200-sxm,h200-sxm"), "h200-sxm is there twice"),
    (("--profile", "h200-sxm,b20-sxm"), "--profile: unknown profile 'b20-sxm'"),
    ((*BOTH, "--best", 2), "--best with several values of --profile"),
    (("--cluster", "hgx-h100,hgx-h200", "--all", "x.csv"), "--all with several values of --cluster"),
    ((*BOTH, "--max-loss", "7"), "--max-loss: '7' is no share"),
])
def test_what_no_machine_can_be_asked_is_one_error(words, told):
    expect_error(moesim(*SMALL, *words), 2, told)


def test_what_one_machine_refuses_is_said_and_the_other_is_answered():
    words = (*SMALL, *BOTH, "--precision", "mxfp8")
    rows = as_rows(*words)
    assert [(row["profile"], row["status"]) for row in rows] == [("h200-sxm", "refused"), ("b200-sxm", "ok")]
    assert "--precision mxfp8: the GPU of profile h200-sxm has no such products" in rows[0]["reason"]
    assert not rows[1]["speed_ratio"] and rows[1]["cheapest"] == "true"
    table = succeed(*words)
    assert f"\nno layout on h200-sxm: {rows[0]['reason']}\n" in table
    assert "\nonly b200-sxm has a layout: there is nothing to compare\n" in table
    both = moesim(*SMALL, "--profile", "h200-sxm,h100-sxm", "--precision", "mxfp8")
    assert both.returncode == 1 and "none of the machines has a layout" in both.stderr
    assert "h200-sxm: --precision mxfp8" in both.stderr and "h100-sxm: --precision mxfp8" in both.stderr


@pytest.mark.parametrize("gpus", ["16", "8,16"])
def test_of_several_precisions_each_machine_searches_its_own(gpus):
    words = [gpus if word == 16 else word for word in SMALL]
    found = moesim(*words, *BOTH, "--precision", "bf16,mxfp8", "--format", "csv")
    assert found.returncode == 0, found.stderr
    assert found.stderr.count("note: not searched on h200-sxm: --precision mxfp8") == 1 and "on b200-sxm" not in found.stderr
    rows = list(csv.DictReader(found.stdout.splitlines()))
    assert {(row["profile"], row["precision"]) for row in rows} == {("h200-sxm", "bf16"), ("b200-sxm", "mxfp8")}


def test_several_numbers_of_gpus_compare_machines_on_each(tmp_path):
    words = [word for word in SMALL if word not in ("--gpus", 16)]
    path = tmp_path / "found.csv"
    table = succeed(*words, *BOTH, *BRIDGE, "--gpus", "1,8,16")
    succeed(*words, *BOTH, *BRIDGE, "--gpus", "1,8,16", "--out", path)
    rows = list(csv.DictReader(path.open(encoding="utf-8")))
    assert [(row["gpus"], row["profile"], row["status"]) for row in rows] == [
        (gpus, profile, "refused" if gpus == "1" else "ok") for gpus in ("1", "8", "16") for profile in ("h200-sxm", "b200-sxm")]
    for gpus, row in (("8", rows[3]), ("16", rows[5])):
        alone = as_rows(*words, *BOTH, *BRIDGE, "--gpus", gpus)[1]
        assert {name: row[name] for name in alone} == alone
    for part in ("\non 8 GPUs:\nb200-sxm is ", "\non 16 GPUs:\nb200-sxm is ", "\nno layout on 1 x h200-sxm: ", "\n  16 x b200-sxm  moesim train "):
        assert part in table
    assert as_json("train", "--from", f"{path}:6")["step_ms"] == float(rows[5]["step_ms"])


def test_of_two_profiles_of_one_gpu_no_band_is_known():
    words = (*SMALL, "--profile", "h200-sxm,h200-sxm-measured")
    row = as_rows(*words)[1]
    assert float(row["speed_ratio"]) > 0 and not row["speed_ratio_low"] and not row["token_cost_chance"]
    table = succeed(*words)
    assert "; no band is known: two profiles of one kind of GPU, whose ratio is of the profiles\n" in table
    assert "how sure that is is not known" in table


def test_a_document_of_ones_own_software_is_of_its_machine_alone(tmp_path):
    predicted = as_rows("train", "--model", "qwen3-30b-a3b", "--profile", "h200-sxm", "--gpus", 16, "--expert-parallel", "4,8")
    path, own = written(tmp_path / "steps.csv", [{**row, "measured_ms": 1.2 * float(row["step_ms"])} for row in predicted]), tmp_path / "own.json"
    succeed("calibrate", path, "--out", own)
    found = as_rows(*SMALL, *BOTH, "--software", own)
    assert [row["status"] for row in found] == ["ok", "refused"]
    assert "this step is one of NVIDIA B200" in found[1]["reason"]


def test_clusters_of_one_gpu_are_machines_too():
    rows = as_rows(*SMALL, "--profile", "h200-sxm", "--cluster", "hgx-h100,hgx-h200", "--gpu-hour-price", "2.5,3")
    assert [(row["profile"], row["cluster"], row["gpu_hour_price"]) for row in rows] == [
        ("h200-sxm", "hgx-h100", "2.5"), ("h200-sxm", "hgx-h200", "3")]
    alone = as_rows(*SMALL, "--profile", "h200-sxm", "--cluster", "hgx-h100", "--best", 1)[0]
    assert layout_of(rows[0]) == layout_of(alone) and rows[0]["step_ms"] == alone["step_ms"]
    all_four = as_rows(*SMALL, *BOTH, "--cluster", "hgx-h100,hgx-h200", "--gpu-hour-price", "3,4")
    assert [(row["profile"], row["cluster"], row["gpu_hour_price"]) for row in all_four] == [
        (profile, cluster, price) for profile, price in (("h200-sxm", "3"), ("b200-sxm", "4")) for cluster in ("hgx-h100", "hgx-h200")]
    assert all_four[2]["compared_with"] == "h200-sxm on hgx-h100"


def test_a_layout_of_ones_own_is_compared_on_each_machine(tmp_path):
    path = tmp_path / "mine.csv"
    succeed("train", *SMALL[1:7], "--expert-parallel", 4, "--recompute", "full", "--out", path)
    table = succeed("recommend", "--from", f"{path}:1", *BOTH, *SMALL[7:])
    for machine in ("h200-sxm", "b200-sxm"):
        assert re.search(rf"^{machine}: yours \(mine.csv:1\) is .*the best there", table, re.M), table


def test_a_search_that_is_stopped_says_of_which_machine():
    stopped = moesim("recommend", "--model", "qwen3-235b-a22b", "--gpus", 256, *BOTH, "--max-loss", "1%", "--time-limit", "0.2s",
                     "--jobs", 1)
    assert stopped.returncode == 124
    told = stopped.stdout + stopped.stderr
    for machine in ("h200-sxm", "b200-sxm"):
        assert re.search(rf"{machine}: (stopped after|no step is simulated|none of the|not proven|proven)", told) or \
            f"no layout on {machine}: " in told, told


def test_machines_have_a_chart_of_their_own(tmp_path):
    path, chart = tmp_path / "found.csv", tmp_path / "found.svg"
    drawn = moesim(*SMALL, *BOTH, *BRIDGE, "--gpu-hour-price", "3,5.5", "--out", path, "--chart", chart)
    if "matplotlib" in drawn.stderr:
        pytest.skip("charts need matplotlib")
    assert drawn.returncode == 0, drawn.stderr
    text = chart.read_text(encoding="utf-8")
    for part in ("h200-sxm", "b200-sxm", "price of a GPU hour", "90 % band of the ratio to h200-sxm", "price given"):
        assert part in text
    again = tmp_path / "again.svg"
    succeed("plot", path, "--out", again)
    assert again.read_bytes() == chart.read_bytes()
    succeed("plot", path, "--chart", "breakdown", "--out", tmp_path / "parts.svg")
    expect_error(moesim("plot", path, "--chart", "loss", "--out", again), 2, "on several machines", "--chart breakdown")
