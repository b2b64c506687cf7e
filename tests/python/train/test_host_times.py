"""Whether a time of the host is the user's own is whether it was given, the default's value too, also in a row."""

import csv
import re
import shlex

from command_line import as_json, as_rows, needs_binary, succeed

pytestmark = needs_binary
STEP = ("train", "--model", "qwen3-30b-a3b", "--gpus", 64, "--software", "megatron-bridge", "--tensor-parallel", 8)
ENDS = ("step_ms", "step_ms_low", "step_ms_high")


def ends(row):
    return [float(row[name]) for name in ENDS]


def width(row):
    _, low, high = ends(row)
    return high / low


def test_the_band_has_no_jump_at_the_default():
    assumed, given, other = (as_json(*STEP, *more) for more in ((), ("--launch-us", 15), ("--launch-us", 15.001)))
    assert given["step_ms"] == assumed["step_ms"] and width(given) < 0.9 * width(assumed)
    assert abs(width(other) / width(given) - 1) < 1e-3
    assert "host_times_given" not in assumed and given["host_times_given"] == "launch_us"


def test_the_advice_says_what_a_given_time_does():
    assumed, given = (succeed(*STEP, *more) for more in ((), ("--launch-us", 15)))
    assert "because: host launches, assumed to a factor of two" in assumed
    assert re.search(r"\nnarrower with:? --launch-us from a trace of the framework; or ", assumed)
    assert "assumed: 15 us of the host per kernel launched, 2 ms per step" in assumed
    assert "host launches" not in given and "--launch-us" not in given and "kernel launched" not in given
    assert "host" not in as_json(*STEP, "--launch-us", 15)["widest_term"]


def test_reads_that_are_given_leave_the_doubt_about_launches():
    assumed, reads, both = (as_json(*STEP, *more) for more in
                            ((), ("--host-read-us", 20), ("--host-read-us", 20, "--launch-us", 15)))
    assert 0.95 * width(assumed) < width(reads) < width(assumed)
    assert width(both) < 0.9 * width(reads)
    assert reads["widest_term"] == assumed["widest_term"]
    assert both["host_times_given"] == "launch_us host_read_us"


def test_a_row_keeps_the_band_of_its_step(tmp_path):
    path = tmp_path / "rows.csv"
    for more in ((), ("--launch-us", 15), ("--host-read-us", 20), ("--launch-us", 14), ("--launch-us", "14,15"),
                 ("--launch-us", 15, "--host-read-us", "20,30")):
        succeed(*STEP, *more, "--format", "csv", "--out", path)
        for at, row in enumerate(as_rows(*STEP, *more)):
            again = as_json("train", "--from", f"{path}:{at + 1}")
            assert ends(again) == ends(row), more
            assert again.get("host_times_given", "") == row.get("host_times_given", "")
    # What is typed goes before the row.
    succeed(*STEP, "--format", "csv", "--out", path)
    assert ends(as_json("train", "--from", f"{path}:1", "--launch-us", 15)) == ends(as_json(*STEP, "--launch-us", 15))


def test_rows_of_before_say_by_their_value_what_was_given(tmp_path):
    path = tmp_path / "rows.csv"
    row, = as_rows(*STEP, "--launch-us", 14)
    assert row.pop("host_times_given") == "launch_us"
    with path.open("w", newline="") as file:
        written = csv.DictWriter(file, row)
        written.writeheader()
        written.writerow(row)
    assert ends(as_json("train", "--from", f"{path}:1")) == ends(row)


def test_a_search_from_a_row_keeps_it(tmp_path):
    path = tmp_path / "row.csv"
    for more in ((), ("--launch-us", 15)):
        succeed(*STEP, *more, "--format", "csv", "--out", path)
        best, *_, yours = as_rows("recommend", "--from", f"{path}:1", "--tensor-parallel", 8, "--pipeline-parallel", 1,
                                  "--expert-parallel", "1,8", "--best", 1)
        assert width(yours) == width(as_json(*STEP, *more))
        assert ("--launch-us 15" in best["command"]) == bool(more)
        assert width(best) == width(as_json(*shlex.split(best["command"])[1:]))


def test_a_fixed_time_that_is_given_is_not_assumed(tmp_path):
    assumed, given, both = (succeed(*STEP, *more) for more in
                            ((), ("--step-overhead-ms", 2), ("--step-overhead-ms", 2, "--launch-us", 15)))
    assert "assumed: 15 us of the host per kernel launched, 2 ms per step, fp32 gradients; " in assumed
    assert "assumed: 15 us of the host per kernel launched, fp32 gradients; " in given
    assert "assumed: fp32 gradients; " in both
    path = tmp_path / "row.csv"
    succeed(*STEP, "--step-overhead-ms", 2, "--format", "csv", "--out", path)
    assert as_json(*STEP, "--step-overhead-ms", 2)["host_times_given"] == "step_overhead_ms"
    assert as_json("train", "--from", f"{path}:1")["host_times_given"] == "step_overhead_ms"


def test_a_search_from_a_row_keeps_its_fixed_time(tmp_path):
    path = tmp_path / "row.csv"
    for more in ((), ("--step-overhead-ms", 2)):
        succeed(*STEP, *more, "--format", "csv", "--out", path)
        best, *_ = as_rows("recommend", "--from", f"{path}:1", "--tensor-parallel", 8, "--pipeline-parallel", 1,
                           "--expert-parallel", 8, "--best", 1)
        assert ("--step-overhead-ms 2" in best["command"]) == bool(more)
