"""`moesim import` of nccl-tests output into a profile: what predict then says, what is refused."""

import json

import pytest

from command_line import as_json, moesim, needs_binary, refused, succeed

pytestmark = needs_binary
SIZES = [2**power for power in range(10, 28)]


def output(gpus, time_us, device="NVIDIA H200", hosts=("node1",), dtype="bfloat16", wrong="0", bus=None):
    lines = ["# nThread 1 nGpus 8 minBytes 1024 maxBytes 134217728 step: 2(factor) iters: 20", "#",
             "# Using devices"]
    for rank in range(gpus):
        host = hosts[rank % len(hosts)]
        lines.append(f"#  Rank {rank:2d} Group  0 Pid  123{rank} on {host:>10} device {rank:2d} "
                     f"[0x{rank:02x}] {device}")
    lines += ["#", "#  size  count  type  redop  root  time  algbw  busbw  #wrong  time  ..."]
    for size in SIZES:
        algbw = size / time_us(size) / 1e3
        times = f"{time_us(size):9.2f}  {algbw:6.2f}  {algbw * (bus or (gpus - 1) / gpus):6.2f}  {wrong:>5}"
        lines.append(f"{size:12d}  {size // 2:12d}  {dtype:>8}    none      -1  {times}  {times}")
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 42.0", ""])


def linear(size):
    return 20 + size / 200e3  # 200 GB/s after 20 us


def words(tmp_path, *files):
    return ("import", *files, "--op", "all-to-all", "--nccl", "9.9.9", "--base", "h200-sxm",
            "--out", tmp_path / "mine.json")


def predicted(profile, gpus, size):
    return as_json("predict", "--profile", profile, "--op", "all-to-all", "--gpus", gpus, "--bytes", size)


def test_imported_times_are_predicted_and_the_rest_is_the_base(tmp_path):
    (tmp_path / "two.txt").write_text(output(2, linear))
    (tmp_path / "eight.txt").write_text(output(8, lambda size: 2 * linear(size)))
    result = moesim(*words(tmp_path, tmp_path / "two.txt", tmp_path / "eight.txt"))
    assert result.returncode == 0, result.stderr
    profile = tmp_path / "mine.json"
    document = json.loads(profile.read_text())
    curves = [curve for curve in document["curves"] if curve["op"] == "all-to-all"]
    assert [curve["params"]["nccl"] for curve in curves if curve["default"]] == ["9.9.9"]
    assert len(curves) > 1 and document["name"] == "mine"
    for size in (1024, 2**20, 2**27):  # two decimals of a microsecond in the output
        assert predicted(profile, 2, size)["time_us"] == pytest.approx(linear(size), abs=0.006)
        answer = predicted(profile, 8, size)
        assert answer["time_us"] == pytest.approx(2 * linear(size), abs=0.006)
        assert "measured" in answer["provenance"]
    # Four GPUs were not run: the base's own branch, of the same device, answers.
    assert predicted(profile, 4, 2**20)["time_us"] == pytest.approx(
        predicted("h200-sxm", 4, 2**20)["time_us"])
    gemm = ("predict", "--op", "gemm", "--m", 4096, "--n", 4096, "--k", 4096)
    assert succeed(*gemm, "--profile", profile) == succeed(*gemm, "--profile", "h200-sxm")


@pytest.mark.parametrize("version", ["2.26.2", "9.9.9"])
def test_gpu_counts_that_were_not_run_keep_the_band_of_the_base(version, tmp_path):
    (tmp_path / "eight.txt").write_text(output(8, linear))
    command = [version if word == "9.9.9" else word for word in words(tmp_path, tmp_path / "eight.txt")]
    assert moesim(*command).returncode == 0
    for gpus in (2, 4):
        for size in (512, 4096, 3 * 2**20, 2**30):
            answer = predicted(tmp_path / "mine.json", gpus, size)
            assert answer == predicted("h200-sxm", gpus, size)
            assert answer["time_us_p05"] < answer["time_us"] < answer["time_us_p95"]
    asked = ("predict", "--op", "all-to-all", "--gpus", 4, "--bytes", 4096, "--format", "json", "--nccl", version,
             "--profile", tmp_path / "mine.json")
    answer = json.loads(succeed(*asked))
    # Of a version that only eight GPUs ran, four have no measured point.
    assert answer["provenance"] == ("published, measured point" if version == "2.26.2" else "derived, interpolated")
    assert answer["time_us_p05"] < answer["time_us"] < answer["time_us_p95"]


def test_measured_sizes_are_those_of_their_gpu_count(tmp_path):
    (tmp_path / "eight.txt").write_text(output(8, linear))
    odd = output(4, linear)
    for size in reversed(SIZES):  # 1.5 times the sizes of the other run, times and bandwidths too
        odd = odd.replace(f"{size:12d}  {size // 2:12d}", f"{size * 3 // 2:12d}  {size * 3 // 4:12d}")
    (tmp_path / "four.txt").write_text(odd)
    assert moesim(*words(tmp_path, tmp_path / "eight.txt", tmp_path / "four.txt")).returncode == 0
    profile = tmp_path / "mine.json"
    assert predicted(profile, 8, 4 * 2**20)["provenance"] == "measured, measured point"
    assert predicted(profile, 8, 6 * 2**20)["provenance"] == "measured, interpolated"
    assert predicted(profile, 4, 6 * 2**20)["provenance"] == "measured, measured point"
    assert predicted(profile, 4, 4 * 2**20)["provenance"] == "measured, interpolated"
    assert predicted(profile, 8, 2**20 * 192)["provenance"] == "measured, extrapolated"


@pytest.mark.parametrize(("file", "name"), [
    ("my_h200.json", "my_h200"), ("My Node_2.json", "My-Node_2"), ("_.json", "imported")])
def test_the_name_is_that_of_the_file(file, name, tmp_path):
    (tmp_path / "two.txt").write_text(output(2, linear))
    command = words(tmp_path, tmp_path / "two.txt")[:-1]
    result = moesim(*command, tmp_path / file)
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / file).read_text())["name"] == name
    assert predicted(tmp_path / file, 2, 1024)["time_us"] == pytest.approx(linear(1024), abs=0.006)


def test_output_that_cannot_count_is_refused(tmp_path):
    def wrong(text, *parts, name="run.txt"):
        (tmp_path / name).write_text(text)
        refused(*words(tmp_path, tmp_path / name), parts=[name, *parts])
        assert not (tmp_path / "mine.json").exists()

    wrong(output(2, linear, wrong="7"), "line 8", "7 wrong values")
    wrong(output(4, linear, hosts=("node1", "node2")), "2 hosts")
    wrong("# nothing\n", "no output of nccl-tests")
    wrong(output(2, linear).replace("    2048  ", "    2048 x", 1), "line 9")
    whole = output(2, linear)
    wrong(whole[:whole.index("    none", 2000)] + "\n# Out of bounds values : 0 OK\n", "cut off")
    (tmp_path / "run.txt").write_text(output(2, linear))
    (tmp_path / "other.txt").write_text(output(4, linear, device="NVIDIA A100"))
    refused(*words(tmp_path, tmp_path / "run.txt", tmp_path / "other.txt"), parts=["NVIDIA A100"])
    start = ("import", tmp_path / "run.txt", "--out", tmp_path / "mine.json")
    refused(*start, parts=["--op is missing", "does not say which program ran"])
    refused(*start, "--op", "all2all", "--nccl", "1", "--base", "h200-sxm",
            parts=["--op", "all-to-all"])
    refused(*words(tmp_path, tmp_path / "run.txt"), "--top-k", 2, parts=["--top-k: means nothing"])
    (tmp_path / "run.txt").write_text(output(2, linear, dtype="float", bus=1))
    refused(*start, "--op", "all-reduce", "--nccl", "1", "--base", "h200-sxm",
            parts=["type float", "-d bfloat16"])


def test_a_time_that_contradicts_its_bandwidth_is_named(tmp_path):
    text = output(2, linear)
    (tmp_path / "good.txt").write_text(text)
    assert "algbw" not in moesim(*words(tmp_path, tmp_path / "good.txt")).stderr
    time = f"{linear(2**20):9.2f}"
    (tmp_path / "bad.txt").write_text(text.replace(time, f"{10 * linear(2**20):9.2f}", 1))
    result = moesim(*words(tmp_path, tmp_path / "bad.txt"))
    assert result.returncode == 0
    assert "bad.txt: line 18: 1048576 bytes in 252.43 us are 4.15 GB/s, but algbw says 41.54" in result.stderr


def test_runs_that_contradict_each_other_and_times_that_fall_are_named(tmp_path):
    fast, slow = tmp_path / "fast.txt", tmp_path / "slow.txt"
    fast.write_text(output(8, linear))
    slow.write_text(output(8, lambda size: 1.6 * linear(size)))
    said = moesim(*words(tmp_path, fast, slow)).stderr
    assert f"us ({fast}) and " in said and f"us ({slow}), 1.60 times as long" in said
    assert "warning" not in moesim(*words(tmp_path, fast)).stderr
    slow.write_text(output(8, lambda size: 99 if size == 2**20 else linear(size)))
    said = moesim(*words(tmp_path, slow)).stderr
    assert f"warning: {slow}: 1048576 bytes (line 24) in 99.00 us, but 2097152 bytes (line 25) in 30.49 us" in said


def test_times_that_fall_are_averaged_with_a_band_that_holds_them(tmp_path):
    bent = {2**16: 60.0, 2**17: 41.0, 2**18: 22.78}
    (tmp_path / "bent.txt").write_text(output(8, lambda size: bent.get(size, linear(size))))
    said = moesim(*words(tmp_path, tmp_path / "bent.txt")).stderr
    profile = tmp_path / "mine.json"
    # Up to 2 MiB times are below the average of those before.
    pool = {**{2**power: linear(2**power) for power in range(16, 22)}, **bent}
    average = sum(pool.values()) / len(pool)
    for size, time_us in pool.items():
        answer = predicted(profile, 8, size)
        assert answer["time_us_p05"] <= time_us <= answer["time_us_p95"]
        assert answer["time_us"] == pytest.approx(average, rel=1e-3)
        assert answer["provenance"] == "measured, interpolated"
    assert f"65536 bytes {average:.2f} us (measured 60.00), 131072 bytes {average:.2f} us (measured 41.00)" in said
    assert ", and 2 more" in said
    # Half-way between two measured sizes the straight line is held.
    assert predicted(profile, 8, 3 * 2**15)["time_us_p95"] >= 50.5
    assert "all-to-all of 8 GPUs: times that fall with size are averaged: " in said and "both are taken" not in said
    assert predicted(profile, 8, 2**22)["provenance"] == "measured, measured point"
    # Beside a run of another GPU count it keeps them.
    (tmp_path / "two.txt").write_text(output(2, linear))
    again = ("import", tmp_path / "two.txt", "--op", "all-to-all", "--nccl", "9.9.9", "--base", profile, "--out", profile)
    result = moesim(*again)
    assert result.returncode == 0, result.stderr  # a profile may be added to in place
    assert "averaged" not in result.stderr and predicted(profile, 8, 2**16)["time_us_p95"] >= 60
    # Noise of less than repeats differ by is none.
    (tmp_path / "noisy.txt").write_text(output(8, lambda size: 1.01 * linear(size) if size == 2**12 else linear(size)))
    assert "averaged" not in moesim(*words(tmp_path, tmp_path / "noisy.txt")).stderr
    assert "measured_time_us" not in profile.read_text()
    assert predicted(profile, 8, 2**12)["provenance"] == "measured, measured point"


@pytest.mark.parametrize("first,last", [(2**23, 2**27), (2**10, 2**21)])
def test_outside_the_sizes_of_a_log_the_base_goes_on_by_the_ratio_at_the_edge(tmp_path, monkeypatch, first, last):
    sizes = [size for size in SIZES if first <= size <= last]
    base = {size: predicted("h200-sxm", 8, size) for size in (*sizes, 2**12, 2**17, 2**20, 2**28, 2**30)}
    monkeypatch.setitem(globals(), "SIZES", sizes)
    for factor in (1, 1.5):
        (tmp_path / "eight.txt").write_text(output(8, lambda size: factor * base[size]["time_us"]))
        succeed(*words(tmp_path, tmp_path / "eight.txt"))
        for size in sorted(set(base) - set(sizes)):
            answer, usual = predicted(tmp_path / "mine.json", 8, size), base[size]["time_us"]
            assert answer["provenance"] == "measured, extrapolated"
            assert usual * 0.99 < answer["time_us"] < 1.01 * factor * usual, size
            assert answer["time_us_p95"] > factor * usual * 0.999, size
    # What is half as slow again at 8 MiB may be so at 4 KiB, or in its bytes alone.
    if first > 2**20:
        answer = predicted(tmp_path / "mine.json", 8, 2**12)
        assert answer["time_us_p05"] < base[2**12]["time_us"] * 1.02


def test_the_version_is_that_of_the_log(tmp_path):
    (tmp_path / "two.txt").write_text("NCCL version 2.21.5+cuda12.4\n" + output(2, linear))
    command = [word for word in words(tmp_path, tmp_path / "two.txt") if word not in ("--nccl", "9.9.9")]
    assert moesim(*command).returncode == 0
    curves = json.loads((tmp_path / "mine.json").read_text())["curves"]
    assert [curve["params"]["nccl"] for curve in curves
            if curve["op"] == "all-to-all" and curve["default"]] == ["2.21.5"]
    refused(*words(tmp_path, tmp_path / "two.txt"), parts=["--nccl 9.9.9", "two.txt is of NCCL 2.21.5"])
    (tmp_path / "two.txt").write_text(output(2, linear))
    refused(*command, parts=["--nccl is missing", "does not say"])


def test_a_log_of_another_gpu_is_refused_unless_meant(tmp_path):
    (tmp_path / "v100.txt").write_text(output(2, linear, device="Tesla V100-SXM2-16GB"))
    command = words(tmp_path, tmp_path / "v100.txt")
    refused(*command, parts=["v100.txt", "Tesla V100-SXM2-16GB", "NVIDIA H200", "--base h200-sxm", "--other-gpu"])
    assert not (tmp_path / "mine.json").exists()
    assert moesim(*command, "--other-gpu").returncode == 0
    answer = predicted(tmp_path / "mine.json", 2, 2**20)
    assert answer["time_us"] == pytest.approx(linear(2**20), abs=0.006)


def test_a_run_says_no_more_than_another_day_would(tmp_path):
    (tmp_path / "eight.txt").write_text(output(8, linear))
    assert moesim(*words(tmp_path, tmp_path / "eight.txt")).returncode == 0
    profile = tmp_path / "mine.json"
    for size, least in ((2**20, 0.06), (3 * 2**20, 0.06), (2**29, 0.12)):  # the last two octaves beyond
        answer = predicted(profile, 8, size)
        assert answer["time_us_p05"] <= (1 - least) * answer["time_us"] * 1.0001
        assert answer["time_us_p95"] >= (1 + least) * answer["time_us"] * 0.9999


def test_more_than_the_links_carry_is_refused(tmp_path):
    (tmp_path / "fast.txt").write_text(output(8, lambda size: 20 + size / 900e3))
    refused(*words(tmp_path, tmp_path / "fast.txt"), parts=["fast.txt", "times the line rate of NVLink", "h200-sxm"])
    # NVLink's switches add up, so that busbw may be above the 450 GB/s of a link; algbw may not.
    for rate, code in ((420e3, 0), (500e3, 2)):
        (tmp_path / "fast.txt").write_text(output(8, lambda size, rate=rate: 5 + size / rate, bus=1.75))
        command = [word if word != "all-to-all" else "all-reduce" for word in words(tmp_path, tmp_path / "fast.txt")]
        result = moesim(*command)
        assert result.returncode == code, result.stderr
    assert "algbw 4" in result.stderr and "times the line rate of NVLink" in result.stderr


def test_a_line_of_megabytes_is_passed_over(tmp_path):
    (tmp_path / "long.log").write_text("#  Rank  0 " + "a " * 1000000 + "\n")
    refused(*words(tmp_path, tmp_path / "long.log"), parts=["long.log", "no output of nccl-tests"])


def test_output_that_names_its_program_needs_no_op(tmp_path):
    start = ("import", tmp_path / "run.txt", "--base", "h200-sxm", "--nccl", "2.27.3", "--out", tmp_path / "mine.json")
    (tmp_path / "run.txt").write_text("# Collective test starting: alltoall_perf\n" + output(2, linear))
    ran = moesim(*start)
    assert ran.returncode == 0, ran.stderr
    assert "all-to-all on 2 GPUs" in ran.stderr
    assert predicted(tmp_path / "mine.json", 2, 1024)["time_us"] == pytest.approx(linear(1024), abs=0.006)
    # busbw is 1.5 of algbw: an all-reduce's.
    (tmp_path / "run.txt").write_text("# Collective test starting: alltoall_perf\n" + output(4, linear, bus=1.5))
    refused(*start, parts=["run.txt", "another operation"])
    (tmp_path / "run.txt").write_text("# Collective test starting: alltoall_perf\n" + output(2, linear))
    (tmp_path / "other.txt").write_text("# Collective test starting: all_gather_perf\n" + output(4, linear, bus=0.75))
    refused(*start[:2], tmp_path / "other.txt", *start[2:], parts=["other.txt: all-gather", "one operation at a time"])


def json_output(gpus, time_us, program="alltoall_perf"):
    """What nccl-tests -J writes of a run on one node."""
    devices = [{"rank": rank, "group": 0, "pid": 4100 + rank, "hostname": "node1", "device": rank,
                "device_hex": "0000:1b:00", "device_info": "NVIDIA H200"} for rank in range(gpus)]
    def half(size):
        rate = size / time_us(size) / 1e3
        return {"time": time_us(size), "alg_bw": rate, "bus_bw": rate * (gpus - 1) / gpus, "nwrong": 0}
    return {"version": 2, "args": [f"./build/{program}", "-J", "out.json"], "nccl_version": 22907,
            "config": {"nthreads": 1, "ngpus": 1, "aggregated_iterations": 1, "graph": 0, "devices": devices},
            "results": [{"size": size, "count": size // 2, "type": "bfloat16", "redop": "none", "root": -1,
                         "out_of_place": half(size), "in_place": half(size)} for size in SIZES],
            "out_of_bounds": {"count": 0, "okay": True}, "average_bus_bandwidth": {"bandwidth": 42}}


def test_json_output_goes_into_a_profile_as_the_printed_one(tmp_path):
    (tmp_path / "eight.json").write_text(json.dumps(json_output(8, linear)))
    command = ("import", tmp_path / "eight.json", "--base", "h200-sxm", "--out", tmp_path / "mine.json")
    result = moesim(*command)
    assert result.returncode == 0, result.stderr
    for size in (1024, 2**20, 2**27):
        assert predicted(tmp_path / "mine.json", 8, size)["time_us"] == pytest.approx(linear(size), rel=1e-6)
    # A profiler trace is none.
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": []}))
    refused("import", tmp_path / "trace.json", "--base", "h200-sxm", "--out", tmp_path / "mine.json",
            parts=["trace.json"])


@pytest.mark.parametrize(("key", "value"), [("time", -3), ("size", -1024)])
def test_json_rows_below_zero_are_refused(key, value, tmp_path):
    document = json_output(8, linear)
    row = document["results"][4]
    (row["out_of_place"] if key == "time" else row)[key] = value
    (tmp_path / "eight.json").write_text(json.dumps(document))
    for base in (("--base", "h200-sxm"), ("--cluster", "hgx-h200")):
        result = moesim("import", tmp_path / "eight.json", *base, "--out", tmp_path / "mine.json")
        assert result.returncode == 2 and "/results/4" in result.stderr and f"{value} is below 0" in result.stderr


def test_a_json_row_whose_time_and_rate_disagree_is_named(tmp_path):
    document = json_output(8, linear)
    document["results"][4]["out_of_place"]["time"] *= 3
    (tmp_path / "eight.json").write_text(json.dumps(document))
    result = moesim("import", tmp_path / "eight.json", "--cluster", "hgx-h200", "--out", tmp_path / "mine.json")
    assert result.returncode == 0, result.stderr
    assert "eight.json: /results/4/out_of_place: 16384 bytes in" in result.stderr and "one of these is wrong" in result.stderr


def test_messages_about_json_name_no_line(tmp_path):
    document = json_output(8, linear)
    del document["args"]
    (tmp_path / "run.json").write_text(json.dumps(document))
    result = moesim("import", tmp_path / "run.json", "--cluster", "hgx-h200", "--out", tmp_path / "mine.json")
    assert result.returncode == 2 and "run.json: the output does not say which program ran" in result.stderr
    assert "line 0" not in result.stderr
