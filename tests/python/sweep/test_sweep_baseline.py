"""moesim sweep --baseline: how many times as fast each row is as another, and whether that is more than noise."""

import csv
import io
import json
import math
from pathlib import Path

import pytest
from command_line import moesim, needs_binary, succeed

pytestmark = needs_binary
SMALL = ("--gpus", "8", "--sequence-length", "256", "--micro-batch", "1", "--mode", "prefill", "--replicas", "4",
         "--format", "csv")


def rows(*words):
    return list(csv.DictReader(io.StringIO(succeed("sweep", *SMALL, *words))))


def test_each_row_is_compared_with_the_row_that_has_the_other_options():
    found = rows("--router", "top1,top2", "--capacity-factor", "1,2", "--baseline", "router=top1")
    assert len(found) == 4
    speed = {(row["router"], row["capacity_factor"]): float(row["tokens_per_s_per_gpu"]) for row in found}
    for row in found:
        ratio, low, high = (float(row[f"speed_over_baseline{end}"]) for end in ("", "_p05", "_p95"))
        assert ratio == pytest.approx(speed[row["router"], row["capacity_factor"]]
                                      / speed["top1", row["capacity_factor"]], rel=1e-6)
        assert low < ratio < high or low == ratio == high == 1
        assert row["within_noise"] == ("true" if low <= 1 <= high else "false")
        if row["router"] == "top1":
            assert low == ratio == high == 1 and row["within_noise"] == "true"  # itself


def test_software_and_machine_cancel():
    (_, row) = rows("--router", "top1", "--capacity-factor", "1,4", "--baseline", "capacity_factor=1")
    whole = float(row["step_ms_p95"]) / float(row["step_ms_p05"])
    ratio = float(row["speed_over_baseline_p95"]) / float(row["speed_over_baseline_p05"])
    assert ratio < 0.5 * whole
    (_, other) = rows("--router", "top1", "--profile", "a100-sxm-80gb,h100-sxm", "--capacity-factor", "1",
                      "--baseline", "profile=a100-sxm-80gb")
    # The program is the same on both; what each machine has of its own in it is not.
    assert ratio < width(other) < 0.7 * whole
    mixed = rows("--router", "top1", "--profile", "a100-sxm-80gb,a100-sxm-80gb-deepspeed", "--cluster", "dgx-a100",
                 "--baseline", "profile=a100-sxm-80gb")[1]
    assert width(mixed) > 1.1 * width(other)  # of a software beside any


def test_the_table_says_within_the_noise():
    text = succeed("sweep", *SMALL[:-2], "--sequence-length", "2048", "--router", "top1", "--capacity-factor",
                   "1,1.02,2", "--baseline", "capacity-factor=1")
    lines = text.splitlines()
    assert "speed over baseline" in lines[0] and lines[1].endswith("the baseline")
    assert "within the noise" in lines[2] and "within the noise" not in lines[3]


def width(row):
    return float(row["speed_over_baseline_p95"]) / float(row["speed_over_baseline_p05"])


def test_steps_that_differ_in_capacity_alone_are_compared_more_closely():
    narrow = rows("--router", "top1", "--capacity-factor", "1,2", "--baseline", "capacity-factor=2")[0]
    routers = rows("--router", "top2,top2+ir", "--capacity-factor", "1", "--baseline", "router=top2")[1]
    batch = rows("--router", "top1", "--micro-batch", "1,2", "--baseline", "micro-batch=1")[1]
    unpadded = rows("--router", "top1,dropless", "--top-k", "1", "--capacity-factor", "2", "--baseline",
                    "router=top1")[1]
    assert max(width(narrow), width(routers)) < 1.2 < 1.4 < min(width(batch), width(unpadded))


def test_a_sweep_without_a_baseline_has_blanks():
    (row,) = rows("--router", "top1")
    assert row["speed_over_baseline"] == row["within_noise"] == ""


def test_a_refused_baseline_compares_nothing():
    found = rows("--router", "top1", "--expert-parallel", "3,4", "--baseline", "expert-parallel=3")
    assert [row["status"] for row in found] == ["refused", "ok"]
    assert found[1]["speed_over_baseline"] == ""


@pytest.mark.parametrize(("text", "message"), [
    ("top1", "'top1' is not option=value"),
    ("router=", "is not option=value"),
    ("gpus=8,", "is not option=value"),
    ("experts=8", "--experts is not given"),
    ("router=top3", "no row has --router top3; rows have top1, top2"),
])
def test_a_baseline_that_is_no_row_is_named(text, message):
    result = moesim("sweep", *SMALL, "--router", "top1,top2", "--baseline", text)
    assert result.returncode == 2 and message in result.stderr


def test_an_interrupted_sweep_of_another_baseline_is_not_taken_over(tmp_path):
    out = tmp_path / "s.csv"
    words = ("sweep", *SMALL[:-2], "--router", "top1,top2", "--out", out)
    succeed(*words)
    result = moesim(*words, "--resume", "--baseline", "router=top1")
    assert result.returncode == 2 and "--baseline" in result.stderr


def resume(out, routers, baseline, factors="1"):
    more = ("--baseline", baseline) if baseline else ()
    return moesim("sweep", *SMALL[:-2], "--router", routers, "--capacity-factor", factors, *more, "--out", out, "--resume")


@pytest.fixture
def compared(tmp_path):
    out = tmp_path / "s.csv"
    succeed("sweep", *SMALL[:-2], "--router", "top1,top2", "--capacity-factor", 1, "--baseline", "router=top1", "--out", out)
    return out


def test_a_finished_sweep_of_the_same_baseline_is_complete(compared):
    before, stamp = compared.read_bytes(), compared.stat().st_mtime_ns
    result = resume(compared, "top1,top2", "router=top1")
    assert result.returncode == 0 and "already complete, 2 scenarios" in result.stderr
    assert compared.read_bytes() == before and compared.stat().st_mtime_ns == stamp


def test_a_finished_sweep_of_another_baseline_says_what_to_do(compared, tmp_path):
    before = compared.read_bytes()
    result = resume(compared, "top1,top2", "router=top2")
    assert result.returncode == 2 and compared.read_bytes() == before
    for part in ("another baseline than router=top2", "give the --baseline that it was made with", "leave --resume out"):
        assert part in result.stderr
    none = tmp_path / "none.csv"
    succeed("sweep", *SMALL[:-2], "--router", "top1,top2", "--capacity-factor", 1, "--out", none)
    result = resume(none, "top1,top2", "router=top1")
    assert result.returncode == 2 and "no baseline: leave --baseline out too" in result.stderr
    # Some rows are compared alike, others are not.
    some = tmp_path / "some.csv"
    succeed("sweep", *SMALL[:-2], "--router", "top1", "--capacity-factor", "1,2", "--baseline", "capacity-factor=2", "--out", some)
    result = resume(some, "top1", "router=top1", "1,2")
    assert result.returncode == 2 and "another baseline than router=top1" in result.stderr


def test_more_rows_of_the_same_baseline_are_added(compared, tmp_path):
    for baseline in ("router=top1", ""):  # without one, as if there had never been one
        whole, part = tmp_path / "whole.csv", tmp_path / "part.csv"
        more = ("--baseline", baseline) if baseline else ()
        succeed("sweep", *SMALL[:-2], "--router", "top1,top2,top2+ir", "--capacity-factor", 1, *more, "--out", whole)
        part.write_bytes(compared.read_bytes())
        result = resume(part, "top1,top2,top2+ir", baseline)
        assert result.returncode == 0 and "2 of these 3 scenarios are taken from it" in result.stderr
        assert part.read_text() == whole.read_text()


def test_rows_without_the_row_they_are_compared_with_are_not_taken(compared):
    heading, first, second = compared.read_text().splitlines(keepends=True)
    compared.write_text(heading + second)
    result = resume(compared, "top1,top2", "router=top1")
    assert result.returncode == 2 and "not beside the rows that they are compared with" in result.stderr
    compared.write_text(heading + first)
    assert resume(compared, "top1,top2", "router=top1").returncode == 0
    assert compared.read_text() == heading + first + second


def test_a_finished_sweep_of_a_refused_baseline_is_not_of_another(tmp_path):
    out = tmp_path / "s.csv"
    words = ("sweep", *SMALL[:-2], "--router", "top1", "--expert-parallel", "3,4", "--baseline", "expert-parallel=3", "--out", out)
    succeed(*words)
    before = out.read_bytes()
    result = moesim(*words, "--resume")
    assert result.returncode == 0 and "1 of these 2 scenarios are taken" in result.stderr and out.read_bytes() == before


def test_two_machines_are_compared_in_words():
    words = ("sweep", *SMALL[:-2], "--router", "top1", "--profile", "a100-sxm-80gb,h100-sxm")
    text = succeed(*words, "--baseline", "profile=a100-sxm-80gb")
    (row,) = rows(*words[len(SMALL) - 1:], "--baseline", "profile=a100-sxm-80gb")[1:]
    assert (f"h100-sxm on {row['cluster']} is {float(row['speed_over_baseline']):.2f} times as fast as a100-sxm-80gb on dgx-a100, "
            f"{float(row['speed_over_baseline_p05']):.2f} to {float(row['speed_over_baseline_p95']):.2f} (90 %)") in text
    assert "one program is assumed to run on both" in text
    assert "times as fast as" not in succeed(*words[:-2], "--capacity-factor", "1,2", "--baseline", "capacity-factor=1")


def test_only_rows_that_differ_in_machine_alone_are_compared_in_words():
    words = ("sweep", *SMALL[:-2], "--router", "top1", "--profile")
    text = succeed(*words, "a100-sxm-80gb,h100-sxm", "--capacity-factor", "1,2", "--baseline", "profile=a100-sxm-80gb,capacity-factor=1")
    (line,) = [line for line in text.splitlines() if "times as fast as" in line]
    assert line.startswith("h100-sxm on hgx-h100 is ") and "capacity_factor" not in line
    # A single row of a machine may differ in more, which is said.
    domain = succeed(*words, "h100-sxm,gb200", "--gpus", 8, "--model", "qwen3-30b-a3b", "--baseline", "profile=h100-sxm")
    assert "gb200 on gb200-nvl72 with expert_parallel 4 is " in domain
    assert "times as fast as h100-sxm on hgx-h100 with expert_parallel 8, " in domain
    # Two profiles of one kind of GPU are no two machines.
    assert "times as fast as" not in succeed(*words, "h200-sxm,h200-sxm-measured", "--baseline", "profile=h200-sxm")
    mixed = succeed(*words, "a100-sxm-80gb-deepspeed,h100-sxm", "--baseline", "profile=h100-sxm")
    assert "nothing of the software cancels" in mixed
    assert "both have one profile" in succeed(*words, "h200-sxm", "--cluster", "hgx-h200,aws-p5en", "--baseline", "cluster=hgx-h200")


def test_errors_of_exchanges_do_not_cancel_between_two_clusters(tmp_path):
    mine = tmp_path / "mine.json"
    shipped = Path(__file__).resolve().parents[3] / "profiles" / "clusters" / "dgx-a100.json"
    mine.write_text(json.dumps(json.loads(shipped.read_text(encoding="utf-8")) | {"name": "mine"}))
    words = ("--profile", "a100-sxm-80gb-deepspeed", "--model", "olmoe-1b-7b", "--gpus", 16, "--sequence-length", 2048,
             "--router", "topk", "--capacity-factor", 1, "--expert-parallel", "8,16")
    found = [row for row in rows(*words, "--cluster", f"dgx-a100,{mine}", "--baseline", "cluster=dgx-a100")
             if row["cluster"] == str(mine)]
    (inside, across) = sorted(found, key=lambda row: int(row["expert_parallel"]))
    assert float(across["speed_over_baseline"]) == pytest.approx(1)
    # GPUs, domains and software are the same, and no other configuration is compared.
    assert width(inside) < math.exp(2 * 1.645 * math.hypot(0.02, 0.02, 0.05))
    # An altered document under the old name is another cluster, a copy is not.
    altered, copy = tmp_path / "altered.json", tmp_path / "copy.json"
    document = json.loads(shipped.read_text(encoding="utf-8"))
    copy.write_text(json.dumps(document, indent=3))
    document["source"] = "altered"
    altered.write_text(json.dumps(document))
    beside = rows(*words[:-1], "16", "--cluster", f"dgx-a100,{altered},{copy}", "--baseline", "cluster=dgx-a100")
    assert width(beside[1]) == pytest.approx(width(across), rel=1e-6)
    assert width(beside[2]) < width(across)
    # Of equal shares on one cluster nothing of them would be left: the widths would be the same.
    share = float(across["exposed_exchange_ms"]) / float(across["step_ms"])
    more = sum((math.log(width(row)) / 3.29) ** 2 * sign for row, sign in ((across, 1), (inside, -1)))
    assert share > 0.2 and more == pytest.approx(2 * (0.2 * share) ** 2, rel=0.2)
