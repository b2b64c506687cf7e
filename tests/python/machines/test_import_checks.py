"""`moesim import --cluster`: logs that contradict each other, the cluster or physics."""

import re

import pytest
from cluster_imports import LOGS, exchanges, imported, one_node_log, refused, timed, two_nodes, usual
from command_line import as_json, moesim, needs_binary

pytestmark = needs_binary


def test_contradictions_with_the_base_are_refused(tmp_path):
    log = LOGS / "alltoall_2nodes.log"
    refused(tmp_path, LOGS / "all_gather_old.txt",
            parts=["all_gather_old.txt", "V100", "'hgx-h100' is of H100"])
    refused(tmp_path, log, cluster="dgx-a100", parts=["H100 80GB HBM3", "is of A100"])
    # A rack of nodes of 4 GPUs, with the H100 made a GB200: 8 on each host.
    gb200 = tmp_path / "gb200.log"
    gb200.write_text(log.read_text().replace("NVIDIA H100 80GB HBM3", "NVIDIA GB200"))
    refused(tmp_path, gb200, cluster="gb200-nvl72", parts=["gb200.log", "8 GPUs on each of 2 hosts",
                                                          "has 4"])
    refused(tmp_path, log, gb200, cluster="generic-8x100g", parts=["GB200", "one kind of GPU"])
    # 36 GB/s through NICs of 12.5.
    refused(tmp_path, log, cluster="generic-8x100g", parts=["2.87 times the line rate of the NICs"])
    refused(tmp_path, LOGS / "ib_write_bw.log", cluster="generic-8x100g",
            parts=["388.8 Gbit/s", "100 Gbit/s (nic.gbit_per_s)"])
    refused(tmp_path, LOGS / "ib_write_bw.log", cluster="ideal-none", parts=["ideal-node8"])


def test_output_that_cannot_count_is_refused(tmp_path):
    log = (LOGS / "alltoall_2nodes.log").read_text()

    def wrong(text, *parts, more=(), name="run.log"):
        (tmp_path / name).write_text(text)
        refused(tmp_path, tmp_path / name, more=more, parts=[name, *parts])

    wrong("nothing\n", "no output of nccl-tests")
    wrong(log.replace("     0      N/A", "     3      N/A", 1), "line 28", "3 wrong values")
    wrong(log.replace("values : 0 OK", "values : 5 FAILED"), "5 values out of bounds")
    wrong(log.replace("on  made-up-b device  7", "on  made-up-a device  7"), "same number on each")
    wrong(log.replace("Group  0 Pid   4115", "Group  1 Pid   4115"), "2 groups at once")
    wrong(log.replace("Rank  1 ", "Rank  0 "), "built without MPI")
    wrong(log.replace("alltoall_perf", "broadcast_perf"), "broadcast_perf is left out", "known are alltoall_perf")
    wrong(log.replace("alltoall_perf", "halltoall_perf"), "halltoall_perf: known are alltoall_perf")
    wrong(log.replace("    time  ", " cputime  ", 1), "CPU times")
    wrong(log[:log.index("bfloat16", 2900) + 30] + "\n# Out of bounds values : 0 OK\n", "cut off")
    nameless = "\n".join(line for line in log.splitlines() if "alltoall_perf" not in line)
    wrong(nameless, "give --op")
    wrong(nameless, "as of all-to-all", more=("--op", "all-reduce"))
    document, _ = imported(tmp_path, tmp_path / "run.log", more=("--op", "all-to-all"))
    assert ("all-to-all", 2, 16) in exchanges(document)
    (tmp_path / "my_all-to_all.log").write_text(nameless)
    imported(tmp_path, tmp_path / "my_all-to_all.log")
    wrong(log, "is all-to-all, not all-gather", more=("--op", "all-gather"))
    wrong(log, "is of NCCL 2.27.3", more=("--nccl", "2.20.5"))
    refused(tmp_path, tmp_path / "run.log", more=("--top-k", 2), parts=["--top-k: means nothing"])


def scaled_log(tmp_path, gb_per_s):
    """The run on two nodes with another bandwidth across them, instead of 36 GB/s."""
    lines = []
    for line in (LOGS / "alltoall_2nodes.log").read_text().splitlines():
        fields = line.split()
        if len(fields) == 13 and fields[0].isdigit():
            size = int(fields[0])
            fields[5] = f"{45 + size * 8 / 16 / (gb_per_s * 1e3):.2f}"
            fields[6] = f"{size / float(fields[5]) / 1e3:.2f}"
            fields[7] = f"{size / float(fields[5]) / 1e3 * 15 / 16:.2f}"
            line = " ".join(fields)
        lines.append(line)
    path = tmp_path / f"scaled_{gb_per_s}.log"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_rate_that_no_healthy_fabric_has_gets_a_warning(tmp_path):
    _, said = imported(tmp_path, LOGS / "alltoall_2nodes.log")
    assert "warning" not in said
    document, said = imported(tmp_path, scaled_log(tmp_path, 4.5))
    assert "warning" in said and "0.090 of the line rate" in said and "RDMA" in said
    assert document["nic"]["efficiency"]["value"] < 0.15
    # The exchange inside the node goes before: the model needs more than the NICs have, and more
    # of it the faster the log is, up to the line rate itself.
    factors = []
    for rate in (46, 48, 49.5):
        document, said = imported(tmp_path, scaled_log(tmp_path, rate))
        assert document["nic"]["efficiency"]["value"] == 1
        told = re.search(rf"reaches {rate / 50:.2f} of the line rate; the model takes at least ([0-9.]+) times as long", said)
        factors.append(float(told[1]))
    assert 1.05 < factors[0] < factors[1] < factors[2] < 1.3


def test_logs_that_contradict_each_other_are_named_and_lie_inside_the_band(tmp_path):
    one = one_node_log(tmp_path / "one.log", usual)
    slow = one_node_log(tmp_path / "slow.log", lambda size: 1.64 * usual(size))
    document, said = imported(tmp_path, one, slow)
    assert f"us ({one}, line " in said and f"us ({slow}, line " in said
    assert "contradict each other at 18 of 18 sizes" in said and "1.64 times as long" in said
    curve = exchanges(document)["all-to-all", 1, 8]
    answer = as_json("predict", "--cluster", tmp_path / "my_cluster.json", "--op", "all-to-all",
                     "--gpus", 8, "--bytes", "64MiB")
    at = curve["bytes"].index(2**26)
    assert answer["time_us_p05"] <= curve["time_us_p05"][at] == pytest.approx(usual(2**26), abs=0.006)
    assert answer["time_us_p95"] >= curve["time_us_p95"][at] == pytest.approx(1.64 * usual(2**26), abs=0.006)
    share = document["domain"]["efficiency"]
    assert share["high"] / share["low"] > 1.6
    # A third run puts neither of the first two outside; of 20, single ones lie there.
    third = one_node_log(tmp_path / "third.log", lambda size: 1.3 * usual(size))
    document, said = imported(tmp_path, one, slow, third)
    curve = exchanges(document)["all-to-all", 1, 8]
    assert curve["time_us_p05"][at] == pytest.approx(usual(2**26), abs=0.006)
    assert curve["time_us_p95"][at] == pytest.approx(1.64 * usual(2**26), abs=0.006)
    assert "a band that holds all of fewer than 20 runs" in said
    document, _ = imported(tmp_path, one, slow, *[third] * 18)
    curve = exchanges(document)["all-to-all", 1, 8]
    assert curve["time_us_p05"][at] > 1.2 * usual(2**26) and curve["time_us_p95"][at] < 1.4 * usual(2**26)
    # A day's difference is none; a size of one run has the others' spread.
    near = one_node_log(tmp_path / "near.log", lambda size: 1.08 * usual(size), [2**power for power in range(10, 25)])
    document, said = imported(tmp_path, one, near)
    assert "warning" not in said
    curve = exchanges(document)["all-to-all", 1, 8]
    for place, size in enumerate(curve["bytes"]):
        middle = usual(size) * (1.04 if size < 2**25 else 1)
        assert curve["time_us"][place] == pytest.approx(middle, rel=1e-3)
        assert curve["time_us_p95"][place] / curve["time_us_p05"][place] == pytest.approx(1.08, rel=1e-3)


def test_times_that_fall_as_bytes_grow_are_named(tmp_path):
    _, said = imported(tmp_path, one_node_log(tmp_path / "good.log", usual))
    assert "warning" not in said
    bent = {2**20: 69.45, 2**12: 32.0}
    log = one_node_log(tmp_path / "kink.log", lambda size: bent.get(size, usual(size)))
    document, said = imported(tmp_path, log)
    assert f"warning: {log}: 1048576 bytes (line 23) in 69.45 us, but 2097152 bytes (line 24) in 30.56 us, 56 % less" in said
    # NCCL changes its protocol at small sizes: public curves fall by more there.
    assert "(line 15)" not in said
    assert exchanges(document)["all-to-all", 1, 8]["time_us"][10] == 69.45
    # Of many falls those that lose most time are named, and the others counted.
    log = one_node_log(tmp_path / "many.log", lambda size: (3 if size.bit_length() % 2 else 1) * usual(size))
    _, said = imported(tmp_path, log)
    falls = [line for line in said.splitlines() if "% less" in line]
    assert [re.search(r"many.log: (\d+) bytes", line)[1] for line in falls] == [str(2**power) for power in (26, 24, 22)]
    assert [line.partition("; and ")[2] for line in falls] == ["", "", "6 more that lose less time"]


def test_a_log_whose_sizes_end_where_latency_decides_is_refused(tmp_path):
    lines = (LOGS / "alltoall_2nodes.log").read_text().splitlines()
    def size_of(line):
        return int(line.split()[0]) if line.split()[:1] and line.split()[0].isdigit() else None
    short = tmp_path / "short.log"
    short.write_text("\n".join(line for line in lines if size_of(line) is None or size_of(line) <= 4096) + "\n")
    refused(tmp_path, short, parts=("short.log", "its sizes end at 4096 bytes", "up to 1 MiB or more"))
    headless = tmp_path / "headless.log"
    headless.write_text("\n".join(line for line in lines if "#" not in line) + "\n")
    result = moesim("import", headless, "--op", "all-to-all", "--base", "h100-sxm", "--out", tmp_path / "p.json")
    assert result.returncode == 2 and "or its lines with # are missing" in result.stderr


def test_no_exchange_is_faster_than_its_links_whatever_else_is_imported(tmp_path):
    all_to_all = LOGS / "alltoall_2nodes.log"
    gather = timed(tmp_path / "gather.log", "all_gather_perf", 15 / 16, 8)
    for files in ((gather,), (all_to_all, gather)):
        refused(tmp_path, *files, parts=["gather.log", "all-gather of 16 GPUs on 2 nodes", "times the line rate of the NICs"])
    # Switches that add up let a GPU send half of what a ring would.
    imported(tmp_path, timed(tmp_path / "nvls.log", "all_reduce_perf", 7 / 4, 4, hosts=1))
    refused(tmp_path, timed(tmp_path / "inside.log", "all_reduce_perf", 7 / 4, 8, hosts=1),
            parts=["inside.log", "all-reduce of 8 GPUs on 1 node", "1.12 times the line rate of the domain", "even where switches add up"])


@pytest.mark.parametrize(("changes", "part"), [
    ([("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 21.5 \n", "")],
     "line 38: no 'Avg bus bandwidth' line below this row"),
    ([("agg iters: 1", "agg iters: 100")], "100 operations in one group (-m)"),
    ([("graph: 0", "graph: 10")], "10 operations in one CUDA graph (-G)")])
def test_runs_that_say_less_than_they_seem_get_a_warning(tmp_path, changes, part):
    _, said = imported(tmp_path, two_nodes(tmp_path, "odd.log", changes))
    assert "warning: " in said and "odd.log" in said and part in said
    assert "warning" not in imported(tmp_path, LOGS / "alltoall_2nodes.log")[1]


def test_a_folder_that_is_named_like_a_program_is_none(tmp_path):
    old = [("# Collective test starting: alltoall_perf\n", ""), ("# Collective test concluded: alltoall_perf", ""),
           ("./build/alltoall_perf", "/home/me/nccl_perf/build/alltoall_perf")]
    document, _ = imported(tmp_path, two_nodes(tmp_path, "old.log", old))
    assert ("all-to-all", 2, 16) in exchanges(document)


@pytest.mark.parametrize("change", [('"out_of_bounds": {"count": 0', '"out_of_bounds": {"count": 8'),
                                    ('"nwrong": 0.0}, "actual', '"nwrong": 8.0}, "actual')])
def test_json_output_that_cannot_count_is_refused(tmp_path, change):
    path = tmp_path / "wrong.json"
    path.write_text((LOGS / "reduce_scatter_2nodes.json").read_text().replace(*change))
    refused(tmp_path, path, parts=["wrong.json", "measured nothing that counts"])
