"""Training steps beside a baseline: ratios, and what cancels in them."""

import csv
import json
import math
from pathlib import Path

import pytest
from command_line import as_json, expect_error, moesim, needs_binary, succeed, written
from train_command import LONG, QWEN

pytestmark = needs_binary
PROFILES = Path(__file__).resolve().parents[3] / "profiles"


@pytest.mark.parametrize("form", ["csv", "json"])
def test_what_both_steps_have_that_none_has_cancels_in_their_ratio(form, tmp_path):
    def band(base, words):
        path = tmp_path / f"base.{form}"
        path.write_text(succeed(*LONG, *base, "--format", form))
        row = as_json(*LONG, *words, "--launch-us", 14.99, "--baseline", path)  # else it is the same step
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
    expect_error(moesim(*words[:-1], "simumax", "--baseline", base), 2, "a step of megatron-bridge", "do not cancel")
    assert as_json(*words[:-2], "--baseline", base)["speed_over_baseline"] == pytest.approx(1)
    base.write_text("model,profile\na,b\n")
    expect_error(moesim(*words, "--baseline", base), 2, "base.csv", "tokens_per_s_per_gpu")


def test_the_same_step_again_differs_by_the_noise_of_two_runs(tmp_path):
    words = (*QWEN, "--gpus", 64, "--software", "megatron-bridge")
    base = tmp_path / "base.csv"
    succeed(*words, "--out", base)
    row = as_json(*words, "--baseline", base)
    assert row["speed_over_baseline"] == pytest.approx(1) and width(row) < 0.06
    assert "the noise of two runs: it is the same step" in succeed(*words, "--baseline", base)
    # The least difference makes it another configuration, whose scatter counts.
    assert width(as_json(*words, "--launch-us", 14.99, "--baseline", base)) > 2 * width(row)


def width(row):
    return math.log(row["speed_over_baseline_high"] / row["speed_over_baseline_low"]) / 2


JOB = (*QWEN, "--gpus", 64, "--expert-parallel", 32)


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_step_on_another_machine_is_compared_by_pairs_of_machines(tmp_path, form):
    base = tmp_path / f"base.{form}"
    named = ("--software", "megatron-bridge")
    succeed(*JOB, "--profile", "h200-sxm", *named, "--format", form, "--out", base)
    there = (*JOB, "--profile", "b200-sxm", "--baseline", base)
    row = as_json(*there, *named)
    # Public pairs: 90 % of 146 within some 20 %. What the host and NICs add is beyond theirs.
    assert 0.15 < width(row) < 0.35
    assert row["within_noise"] == (row["speed_over_baseline_low"] < 1 < row["speed_over_baseline_high"])
    text = succeed(*there, *named)
    assert (f"b200-sxm on hgx-b200 is {row['speed_over_baseline']:.3f} times as fast as h200-sxm on hgx-h200 ({base}), "
            f"{row['speed_over_baseline_low']:.2f} to {row['speed_over_baseline_high']:.2f} (90 %)") in text
    # Another software than the one that ran on several machines.
    unnamed = tmp_path / "unnamed.csv"
    succeed(*JOB, "--profile", "h200-sxm", "--out", unnamed)
    other = as_json(*JOB, "--profile", "b200-sxm", "--baseline", unnamed)
    assert other["speed_over_baseline"] == pytest.approx(row["speed_over_baseline"])
    assert 1.2 * width(row) < width(other) < 3 * width(row)
    assert "another program is assumed to run on both" in succeed(*JOB, "--profile", "b200-sxm", "--baseline", unnamed)
    # A layout that none of the pairs is as far from, and another number of GPUs.
    far = ("--tensor-parallel", 4, "--expert-parallel", 1, "--micro-batch", 8, "--recompute", "full")
    assert width(as_json(*there, *named, *far)) > 1.3 * width(row)
    more = succeed("train", *(128 if word == 64 else word for word in there[1:]), *named)
    assert "128 x b200-sxm on hgx-b200 is " in more and " times as fast per GPU as 64 x h200-sxm on hgx-h200 (" in more
    # A host that was measured on both moves nothing.
    host = ("--launch-us", 15, "--host-read-us", 20)
    succeed(*JOB, "--profile", "h200-sxm", *named, *host, "--out", unnamed)
    assert as_json(*JOB, "--profile", "b200-sxm", *named, "--baseline", unnamed, *host)["host_slower"] == 0


def test_on_two_clusters_of_one_gpu_the_links_count_alone(tmp_path):
    base = tmp_path / "base.csv"
    slow = tmp_path / "slow.json"
    document = json.loads((PROFILES / "clusters" / "hgx-h200.json").read_text(encoding="utf-8"))
    document["nic"]["efficiency"] |= {"value": 0.6, "low": 0.6, "high": 0.6}
    slow.write_text(json.dumps(document))
    here, there = ((*JOB, "--profile", "h200-sxm", "--cluster", name) for name in ("hgx-h200", slow))
    succeed(*here, "--out", base)
    first, second = as_json(*here), as_json(*there, "--baseline", base)
    parts = ("dispatch_ms", "combine_ms", "gradients_ms", "parameters_ms")
    nics = [sum(row[part] for part in parts) / row["step_ms"] for row in (first, second)]
    assert min(nics) > 0.1
    expected = 1.645 * math.hypot(0.2 * nics[0], 0.2 * nics[1], 0.02, 0.02)
    assert width(second) == pytest.approx(expected, rel=0.1)
    assert "GPUs are the same; software taken to be the same" in succeed(*there, "--baseline", base)
    # A micro-batch is another layout, too: pairs of steps on one machine count.
    assert width(as_json(*there, "--micro-batch", 2, "--baseline", base)) > 1.2 * width(second)
    # Inside a node no exchange takes the NICs that differ.
    small = (*QWEN, "--gpus", 8, "--profile", "h200-sxm")
    succeed(*small, "--cluster", "hgx-h200", "--out", base)
    alike = as_json(*small, "--cluster", slow, "--baseline", base)
    assert alike["speed_over_baseline"] == pytest.approx(1) and width(alike) == pytest.approx(1.645 * 0.02 * 2**0.5, rel=0.01)


NAMED = ("--software", "megatron-bridge")


def test_the_more_two_steps_differ_the_wider_is_their_ratio(tmp_path):
    base = tmp_path / "base.csv"
    on = {"one": ("--profile", "h200-sxm", "--cluster", "hgx-h200"), "links": ("--profile", "h200-sxm", "--cluster", "aws-p5en"),
          "machine": ("--profile", "b200-sxm",)}
    layout = ("--tensor-parallel", 4, "--expert-parallel", 1, "--micro-batch", 8, "--recompute", "full")
    succeed(*JOB, *on["one"], *NAMED, "--out", base)
    same = {place: width(as_json(*JOB, *words, *NAMED, "--baseline", base)) for place, words in on.items()}
    other = {place: width(as_json(*JOB, *words, *NAMED, *layout, "--baseline", base)) for place, words in on.items()}
    assert same["one"] < same["links"] < same["machine"] < other["machine"]
    assert same["one"] < other["one"] <= other["links"] and same["links"] < other["links"]


@pytest.mark.parametrize(("first", "second"), [
    (("h200-sxm",), ("b200-sxm",)),
    (("h100-sxm",), ("gb200",)),
    (("h200-sxm",), ("h200-sxm", "--cluster", "aws-p5en")),
    (("h200-sxm", "--zero", 3), ("b200-sxm",)),
    (("h200-sxm", "--zero", 3), ("b200-sxm", "--zero", 3, "--context-parallel", 2)),
    (("h200-sxm", "--zero", 3, "--context-parallel", 2), ("h200-sxm", "--zero", 3, "--tensor-parallel", 2)),
])
def test_a_ratio_and_its_reciprocal_are_known_alike(first, second, tmp_path):
    def ends(one, other):
        base = tmp_path / "base.csv"
        succeed(*QWEN, "--gpus", 32, *NAMED, "--profile", *other, "--out", base)
        row = as_json(*QWEN, "--gpus", 32, *NAMED, "--profile", *one, "--baseline", base)
        return row["speed_over_baseline_low"], row["speed_over_baseline_high"]
    (low, high), (least, most) = ends(first, second), ends(second, first)
    assert (1 / most, 1 / least) == pytest.approx((low, high), rel=1e-6)


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_row_tells_how_much_each_of_several_unmeasured_traits_adds(form, tmp_path):
    path = tmp_path / f"row.{form}"
    words = (*QWEN, "--gpus", 32, "--zero", 3, "--context-parallel", 2)
    succeed(*words, "--format", form, "--out", path)
    row = json.loads(path.read_text()) if form == "json" else next(csv.DictReader(path.open(encoding="utf-8")))
    each = row["not_measured_deviations"]
    each = [float(one) for one in (each if form == "json" else each.split("; "))]
    assert len(each) == 2 and math.hypot(*each) == pytest.approx(float(row["not_measured_deviation"]))
    assert "not_measured_deviations" not in as_json(*QWEN, "--gpus", 32, "--zero", 3)
    # A file that does not tell: all that it has counts where something is shared, on the safe side.
    beside = (*QWEN, "--gpus", 32, "--zero", 3, "--launch-us", 14.99, "--baseline", path)
    told = width(as_json(*beside))
    path.write_text(path.read_text().replace("not_measured_deviations", "another"))
    assert width(as_json(*beside)) > 1.005 * told


@pytest.mark.parametrize("form", ["csv", "json"])
@pytest.mark.parametrize("router", [(), ("--router", "topk+fr", "--capacity-factor", 1.25, "--min-capacity", 8)])
def test_routing_drawn_alike_on_two_clusters_is_the_same_step(form, router, tmp_path):
    base = tmp_path / f"base.{form}"
    words = ("train", "--model", "mixtral-8x7b", "--expert-parallel", 8, "--gpus", 32, *NAMED, "--profile", "h200-sxm", "--routing", "zipf:0.5", *router)
    there = (*words, "--cluster", "aws-p5en")
    succeed(*words, "--cluster", "hgx-h200", "--format", form, "--out", base)
    row = as_json(*there, "--baseline", base)
    assert 0.04 < width(row) < 0.1
    assert "GPUs and software are the same" in succeed(*there, "--baseline", base)
    assert "it is the same step" in succeed(*words, "--baseline", base)
    for other in (("--seed", 2), ("--routing", "zipf:0.6"), ("--routing-draws", "per-micro-batch")):
        assert width(as_json(*there, *other, "--baseline", base)) > 2 * width(row)


def test_what_is_taken_to_be_the_same_is_said(tmp_path):
    base = tmp_path / "base.csv"
    taken = "software taken to be the same"
    there = (*JOB, "--profile", "b200-sxm", "--baseline", base)
    succeed(*JOB, "--profile", "h200-sxm", "--out", base)
    assert taken in succeed(*there, *NAMED) and taken in succeed(*there)
    assert taken in succeed(*JOB, "--profile", "h200-sxm", *NAMED, "--launch-us", 14, "--baseline", base)
    succeed(*JOB, "--profile", "h200-sxm", *NAMED, "--out", base)
    assert taken in succeed(*there) and taken not in succeed(*there, *NAMED)
    assert taken not in succeed(*JOB, "--profile", "h200-sxm", *NAMED, "--launch-us", 14, "--baseline", base)


def test_what_two_machines_do_not_share_is_refused(tmp_path):
    base = tmp_path / "base.csv"
    succeed(*JOB, "--profile", "h200-sxm", "--software", "megatron-bridge", "--out", base)
    mixtral = ("train", "--model", "mixtral-8x7b", "--gpus", 64, "--profile", "b200-sxm")
    expect_error(moesim(*mixtral, "--baseline", base), 2, "base.csv", "one model is compared on both")
    expect_error(moesim(*JOB, "--profile", "h200-sxm-measured", "--cluster", "hgx-h200", "--baseline", base), 2, "two profiles of one kind of GPU")
    expect_error(moesim(*JOB, "--profile", "b200-sxm", "--software", "simumax", "--baseline", base), 2, "do not cancel")
    text = base.read_text()
    header, line = csv.reader(text.splitlines())
    kept = [(name, cell) for name, cell in zip(header, line) if not name.startswith("host_")]  # as an older version wrote it
    with base.open("w", encoding="utf-8") as file:
        csv.writer(file).writerows(zip(*kept))
    expect_error(moesim(*JOB, "--profile", "b200-sxm", "--baseline", base), 2, "base.csv", "write it again")
    base.write_text(text.replace("h200-sxm", "gone"))
    expect_error(moesim(*JOB, "--profile", "b200-sxm", "--baseline", base), 2, "no such profile here")


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
    assert "speed over baseline  ratio if measured, 90 %  more than noise at" in table.splitlines()[0]
    steps = as_json(*words, "--recompute", "full/moe_act", "--baseline", base)
    for step in steps:
        assert f"  {step['speed_over_baseline_low']:.2f} to {step['speed_over_baseline_high']:.2f}  " in table
    for row in rows:
        text = " ".join(row).removesuffix(" host limits").removesuffix(",")
        ends = {"fit": "does not fit", "TIGHT": "TIGHT"}.get(text.split()[-1], "")
        assert ends == ("does not fit" if gib[row[0]] > 80 else "TIGHT" if gib[row[0]] > 72 else "")
    assert "TIGHT" in table and "\nTIGHT: more than 90 % of a GPU's memory; libraries need some too\n" in table
    assert "TIGHT" not in succeed(*words, "--recompute", "full", "--micro-batch", "1,2")
    assert float(rows[0][8]) == pytest.approx(1, abs=0.1)


def test_a_table_of_two_machines_says_how_to_ask_for_their_ratio(tmp_path):
    words = ("train", "--model", "qwen3-30b-a3b", "--gpus", 16, "--profile", "h200-sxm,b200-sxm")
    said = "how sure the ratio of two machines is: predict one with --out a.csv, then the others with --baseline a.csv\n"
    assert said in succeed(*words)
    base = tmp_path / "a.csv"
    succeed(*words[:-1], "h200-sxm", "--out", base)
    assert "how sure" not in succeed(*words, "--baseline", base)
    assert "how sure" not in succeed(*words, "--software", "megatron-bridge,simumax")
    assert "the ratio of two clusters" in succeed(*words[:-1], "h200-sxm", "--cluster", "hgx-h200,aws-p5en")


SIZES = ("gpus", "pipeline_parallel", "tensor_parallel", "context_parallel", "expert_parallel", "ranks_per_domain")


def test_a_baseline_whose_layout_is_not_told_or_damaged(tmp_path):
    succeed(*JOB, "--format", "csv", "--out", tmp_path / "base.csv")
    with open(tmp_path / "base.csv", encoding="utf-8") as file:
        row = next(csv.DictReader(file))

    def compared(**cells):
        cells = {name: text for name, text in {**row, **cells}.items() if text is not None}
        written(tmp_path / "other.csv", [cells])
        return moesim(*JOB, "--precision", "fp8-current", "--baseline", tmp_path / "other.csv")

    told = compared()
    assert told.returncode == 0, told.stderr
    for name in SIZES:
        for text in ("", None):
            assert compared(**{name: text}).returncode == 0, name
        for text in ("0", "-1", "2.5", "1e300", "x"):
            expect_error(compared(**{name: text}), 2, "other.csv", f"{name}: '{text}' is no ")
        # As pandas writes a column of numbers that has an empty cell.
        assert compared(**{name: f"{row[name]}.0"}).stdout == told.stdout
