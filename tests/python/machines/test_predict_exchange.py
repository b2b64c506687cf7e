"""moesim predict on clusters: known answers, byte matrices and start times from files, what is refused.

The known answers, in us, hold to 1 ns. On `ideal-switch` every rank has 50e9 B/s each way and routes
take 1 us; `ideal-node8` adds 450e9 B/s (1 us) inside groups of 8 and takes 2 us between them;
`ideal-tree2` lets 16 ranks share 400e9 B/s from leaf to leaf."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from command_line import as_json, as_rows, moesim, needs_binary, succeed

pytestmark = needs_binary
MIB = 1 << 20
SHARING = [[0, 5, 3, 4], [3, 0, 3, 0], [4, 0, 0, 0], [6, 0, 8, 0]]  # MiB
BURSTS = {  # ranks: uniform and zipf1 on each cluster
    8: [(147.801, 433.107), (17.311, 49.012), (147.801, 433.107)],
    16: [(315.573, 1489.781), (169.772, 796.016), (315.573, 1489.781)],
    32: [(651.117, 5126.976), (505.316, 3970.497), (672.089, 5126.976)],
    64: [(1322.206, 17825.434), (1176.405, 15845.941), (2014.266, 17825.434)],
}
CLUSTERS = ("ideal-switch", "ideal-node8", "ideal-tree2")


def matrix(ranks, cell):
    return [[0 if row == column else cell(row, column) for column in range(ranks)]
            for row in range(ranks)]


def uniform(ranks):
    return matrix(ranks, lambda row, column: MIB)


def zipf1(ranks):
    weights = [1 / (column + 1) for column in range(ranks)]
    return matrix(ranks,
                  lambda row, column: round(ranks * MIB * weights[column] / sum(weights)))


def write(path, rows):
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    return path


def exchange(path, *words, cluster="ideal-switch", schedule="burst"):
    return as_json("predict", "--op", "all-to-all", "--cluster", cluster, "--matrix",
                   path, "--schedule", schedule, *words)


@pytest.fixture(name="sharing")
def sharing_file(tmp_path):
    return write(tmp_path / "sharing.csv", [[MIB * cell for cell in row] for row in SHARING])


@pytest.mark.parametrize("network", ["flows", "auto"])
def test_real_sharing(sharing, tmp_path, network):
    answer = exchange(sharing, "--network", network)
    assert answer["time_us"] == pytest.approx(357.516, abs=1e-3)
    assert answer["rank_finish_us"] == pytest.approx([315.573, 252.658, 357.516, 357.516], abs=1e-3)
    assert answer["time_us_p05"] == answer["time_us"] == answer["time_us_p95"]
    start = write(tmp_path / "start.csv", [[0, 50, 0, 100]])
    answer = exchange(sharing, "--start", start, "--network", network)
    assert answer["time_us"] == pytest.approx(413.164, abs=1e-3)


def test_the_port_bound_says_what_it_is(sharing):
    answer = exchange(sharing, "--network", "fast")
    assert answer["time_us"] == pytest.approx(294.601, abs=1e-3)
    assert "fast, certain to be between 294.601 and" in answer["provenance"]
    assert answer["time_us_p95"] >= 357.516
    assert "flows" in exchange(sharing)["provenance"]


@pytest.mark.parametrize("ranks", BURSTS)
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("network", ["flows", "auto"])
def test_bursts(ranks, cluster, network, tmp_path):
    expected = BURSTS[ranks][CLUSTERS.index(cluster)]
    for rows, time_us in zip((uniform(ranks), zipf1(ranks)), expected):
        answer = exchange(write(tmp_path / "m.csv", rows), "--network", network, cluster=cluster)
        assert answer["time_us"] == pytest.approx(time_us, abs=1e-3)
        ends = answer.get("rank_finish_us", ranks * [time_us])  # left out: all ranks end together
        assert max(ends) == pytest.approx(time_us, abs=1e-3) and len(ends) == ranks


def test_keys_and_parameters(sharing):
    answer = exchange(sharing)
    assert list(answer) == ["op", "params", "time_us", "time_us_p05", "time_us_p95", "provenance",
                            "rank_finish_us"]
    assert answer["params"] == {"gpus": 4, "cluster": "ideal-switch", "matrix": str(sharing),
                                "schedule": "burst"}


def test_formats_agree(sharing):
    answer = exchange(sharing)
    words = ["predict", "--op", "all-to-all", "--cluster", "ideal-switch", "--matrix", sharing]
    (row,) = as_rows(*words)
    assert float(row["time_us"]) == answer["time_us"]
    assert [float(time) for time in row["rank_finish_us"].split(";")] == answer["rank_finish_us"]
    assert row["schedule"] == "burst" and row["matrix"] == str(sharing)
    table = succeed(*words)
    assert "357.52" in table
    for time in answer["rank_finish_us"]:
        assert f"{time:.3f}" in table


@pytest.mark.parametrize("dtype", ["int64", "uint64", "int32", "float64"])
def test_numpy_files(sharing, tmp_path, dtype):
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    numpy.save(tmp_path / "m.npy", numpy.array(SHARING, dtype) * numpy.array(MIB, dtype))
    numpy.save(tmp_path / "s.npy", numpy.array([0.0, 50, 0, 100]))
    answer = exchange(tmp_path / "m.npy")
    assert answer["rank_finish_us"] == exchange(sharing)["rank_finish_us"]
    assert exchange(tmp_path / "m.npy", "--start", tmp_path / "s.npy")["time_us"] == \
        pytest.approx(413.164, abs=1e-3)


def test_the_diagonal_is_no_communication(sharing, tmp_path):
    rows = [[MIB * cell + (10**9 if row == column else 0) for column, cell in enumerate(cells)]
            for row, cells in enumerate(SHARING)]
    full = exchange(write(tmp_path / "full.csv", rows))
    assert full["rank_finish_us"] == exchange(sharing)["rank_finish_us"]


def test_queries(sharing, tmp_path):
    start = write(tmp_path / "start.csv", [[0], [50], [0], [100]])
    queries = tmp_path / "queries.csv"
    queries.write_text("op,gpus,bytes,cluster,matrix,start,schedule\n"
                       f"all-to-all,,,ideal-switch,{sharing},,burst\n"
                       f"all-to-all,,,ideal-switch,{sharing},{start},burst\n"
                       "all-to-all,8,8MiB,ideal-switch,,,\n"
                       "all-to-all,8,8MiB,,,,\n")
    rows = list(csv.DictReader(io.StringIO(succeed("predict", "--in", queries))))
    times = [float(row["time_us"]) for row in rows]
    assert times[:3] == pytest.approx([357.516, 413.164, 147.801], abs=1e-3)
    inside = as_json("predict", "--op", "all-to-all", "--gpus", "8", "--bytes", "8MiB")
    assert times[3] == inside["time_us"]
    queries.write_text(f"op,cluster,matrix\nall-to-all,ideal-switch,{sharing}\n"
                       "all-to-all,ideal-switch,absent.csv\n")
    refused = moesim("predict", "--in", queries)
    assert refused.returncode == 2 and "queries.csv: line 3" in refused.stderr
    assert "absent.csv" in refused.stderr


@pytest.mark.parametrize("op", ["all-to-all", "all-reduce", "all-gather", "reduce-scatter"])
def test_uniform_exchanges_cross_nodes(op):
    def ask(*words):
        return as_json("predict", "--op", op, "--bytes", "64MiB", *words)
    # The profile's own cluster, when they do not fit a node.
    own = ask("--gpus", "16", "--profile", "h100-sxm")
    assert own["params"]["cluster"] == "hgx-h100"
    assert own == ask("--gpus", "16", "--profile", "h100-sxm", "--cluster", "hgx-h100")
    assert "rank_finish_us" not in own and "hgx-h100" in own["provenance"]
    assert own["time_us"] >= ask("--gpus", "8", "--profile", "h100-sxm")["time_us"]
    for cluster in ("hgx-b200", "gb200-nvl72", "pcie-l40s", "generic-8x100g"):
        answer = ask("--gpus", "13", "--cluster", cluster)
        assert answer["time_us_p05"] <= answer["time_us"] <= answer["time_us_p95"]
        # Left out where all ranks end together, as in all exchanges of a curve.
        assert len(answer.get("rank_finish_us", 13 * [0])) == 13


def test_closed_forms_of_uniform_exchanges():
    # Each of 16 ranks sends 15 blocks of 1 MiB at 50e9 B/s, 1 us on the way.
    answer = as_json("predict", "--op", "all-to-all", "--gpus", "16", "--bytes", "16MiB", "--cluster", "ideal-switch")
    assert answer["time_us"] == pytest.approx(1 + 15 * MIB / 50e3, abs=1e-3)
    # A ring passes N - 1 blocks one after another: 15 times a block and a route.
    for op, rounds in (("all-gather", 15), ("reduce-scatter", 15), ("all-reduce", 30)):
        answer = as_json("predict", "--op", op, "--gpus", "16", "--bytes", "16MiB", "--cluster", "ideal-switch")
        assert answer["time_us"] == pytest.approx(rounds * (1 + MIB / 50e3), abs=1e-3)


def test_a_profile_calibrates_what_nccl_sends_inside_a_node(tmp_path):
    # 8 MiB to each of 8 ranks is nccl-tests' buffer of 64 MiB: the measured curve's own time.
    even = write(tmp_path / "even.csv", [[8 * MIB] * 8] * 8)
    words = ["--profile", "h100-sxm"]
    curve = as_json("predict", "--op", "all-to-all", "--gpus", "8", "--bytes", "64MiB", *words)
    answer = exchange(even, *words, cluster="hgx-h100", schedule="nccl")
    for key in ("time_us", "time_us_p05", "time_us_p95"):
        assert answer[key] == pytest.approx(curve[key], rel=1e-3)
    # A rank that sends twice as much takes longer, the others finish as they did or later.
    uneven = [[8 * MIB] * 8 for _ in range(8)]
    uneven[3] = [16 * MIB] * 8
    slower = exchange(write(tmp_path / "uneven.csv", uneven), *words, cluster="hgx-h100",
                      schedule="nccl")
    assert slower.get("rank_finish_us", 8 * [slower["time_us"]])[3] == slower["time_us"] > answer["time_us"]


def test_placement(tmp_path):
    # Two ranks that send to each other: inside a group 450e9 B/s, between groups 50e9 B/s.
    pair = write(tmp_path / "pair.csv", [[0, MIB], [MIB, 0]])

    def time_us(placement):
        return exchange(pair, "--placement", placement, cluster="ideal-node8")["time_us"]
    assert time_us("contiguous") == time_us("3,5") == pytest.approx(1 + MIB / 450e3, abs=1e-3)
    assert time_us("3,8") == pytest.approx(2 + MIB / 50e3, abs=1e-3)
    many = write(tmp_path / "many.csv", uniform(12))
    assert exchange(many, "--placement", "round-robin", cluster="ideal-node8")["time_us"] < \
        exchange(many, cluster="ideal-node8")["time_us"]


def refused(path, *words, cluster="ideal-switch"):
    result = moesim("predict", "--op", "all-to-all", "--cluster", cluster, "--matrix", path, *words)
    assert result.returncode == 2 and not result.stdout, result
    return result.stderr


@pytest.mark.parametrize(("text", "parts"), [
    ("0,1\n2,3\n4,5\n", ["3 lines of 2 numbers"]),
    ("0,1\n2\n", ["line 2", "1 numbers", "line 1 has 2"]),
    ("0,1\n-2,0\n", ["line 2, column 1", "-2"]),
    ("0,1\n0.5,0\n", ["line 2, column 1", "whole"]),
    ("0,nan\n1,0\n", ["line 1, column 2", "nan"]),
    ("a,b\n1,0\n", ["line 1, column 1", "header"]),
    ("", ["line 1"]),
])
def test_bad_matrices(text, parts, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    message = refused(path)
    for part in ("bad.csv", *parts):
        assert part in message


@pytest.mark.parametrize(("text", "parts"), [
    ("0,1,2\n", ["3 start times for 4 ranks"]),
    ("0\n-1\n0\n0\n", ["line 2, column 1", "-1"]),
    ("0,0\n0,0\n", ["line 1", "one row or one column"]),
    ("0,0,inf,0\n", ["line 1, column 3", "inf"]),
])
def test_bad_start_times(text, parts, sharing, tmp_path):
    path = tmp_path / "start.csv"
    path.write_text(text)
    message = refused(sharing, "--start", path)
    for part in ("start.csv", *parts):
        assert part in message


def test_bad_requests(sharing, tmp_path):
    assert "choose from burst" in refused(sharing, "--schedule", "bursty")
    assert "network" in refused(sharing, "--network", "slow")
    assert "ideal-switch" in refused(sharing, cluster="ideal-swich")
    assert "leave bytes out" in refused(sharing, "--bytes", "1MiB")
    assert "4 ranks" in refused(sharing, "--gpus", "8")
    assert "3 GPUs are given for 4 ranks" in refused(sharing, "--placement", "0,1,2")
    assert "both on GPU 1" in refused(sharing, "--placement", "0,1,1,2")
    assert "absent.csv" in refused("absent.csv")
    for words, part in ((["--op", "all-to-all", "--matrix", sharing], "on which cluster"),
                        (["--op", "all-reduce", "--cluster", "dgx-a100", "--matrix", sharing],
                         "an all-to-all"),
                        (["--op", "all-to-all", "--cluster", "dgx-a100"], "gpus is missing"),
                        (["--op", "all-to-all", "--cluster", "dgx-a100", "--gpus", "1", "--bytes",
                          "1"], "1 GPU"),
                        (["--op", "all-gather", "--cluster", "dgx-a100", "--gpus", "9", "--bytes",
                          "1", "--schedule", "tree"], "ring"),
                        (["--op", "all-to-all", "--gpus", "16", "--bytes", "1MiB", "--schedule", "tree"],
                         "choose from two-level, burst"),
                        (["--op", "all-reduce", "--cluster", "ideal-node8", "--gpus", "9999",
                          "--bytes", "1GB"], "give a --profile"),
                        (["--op", "gemm", "--m", "1", "--n", "1", "--k", "1", "--cluster",
                          "dgx-a100"], "cluster")):
        result = moesim("predict", *words)
        assert result.returncode == 2 and part in result.stderr, result.stderr


def test_a_matrix_larger_than_the_cluster(sharing, tmp_path):
    shipped = Path(__file__).resolve().parents[3] / "profiles" / "clusters" / "ideal-switch.json"
    document = json.loads(shipped.read_text())
    document["nodes"] = 3
    small = tmp_path / "small.json"
    small.write_text(json.dumps(document))
    message = refused(sharing, cluster=small)
    assert "sharing.csv" in message and "small.json: /nodes" in message
    del document["nodes"]
    document["nic"]["gbit_per_s"]["value"] = 0
    small.write_text(json.dumps(document))
    assert "small.json: /nic/gbit_per_s/value" in refused(sharing, cluster=small)


def test_help_names_the_values():
    text = succeed("predict", "--help")
    for words in (("streaming", "activation", "normalization"), ("forward", "backward"),
                  ("burst", "pairwise", "nccl", "hierarchical", "pxn", "deepep"),
                  ("(n-1)/n",), ("auto", "flows", "fast"), ("contiguous", "round-robin")):
        for word in words:
            assert word in text


def ask(*words):
    return as_json("predict", *words)


def test_the_usual_model_of_collectives_across_nodes_has_a_name():
    words = ("--op", "all-gather", "--profile", "h100-sxm", "--gpus", "16", "--bytes", "64MiB")
    answer = ask(*words)
    assert answer["params"]["schedule"] == "two-level"
    assert "two-level" in answer["provenance"]
    assert answer == ask(*words, "--schedule", "two-level")
    assert ask(*words, "--schedule", "ring")["time_us"] != answer["time_us"]
    for bad, part in ((("--network", "fast"), "message by message"),
                      (("--network", "flows", "--schedule", "two-level"), "no simulation")):
        result = moesim("predict", *words, *bad)
        assert result.returncode == 2 and part in result.stderr
    without = moesim("predict", "--op", "all-gather", "--cluster", "dgx-a100", "--gpus", "16",
                     "--bytes", "1MiB", "--schedule", "two-level")
    assert without.returncode == 2 and "give --profile" in without.stderr


def test_a_gpu_alone_on_its_node():
    # 8/9 of 64 MiB through one NIC of 47.5 GB/s.
    answer = ask("--op", "all-gather", "--profile", "h100-sxm", "--gpus", "9", "--bytes", "64MiB")
    assert answer["time_us"] >= 8 / 9 * 64 * MIB / 47.5e3


def test_a_network_that_is_asked_for_is_used():
    words = ("--op", "all-to-all", "--gpus", "16", "--bytes", "16MiB")
    assert "network flows" in ask(*words, "--network", "flows")["provenance"]
    assert "network fast" in ask(*words, "--network", "fast")["provenance"]


def test_times_are_whole_picoseconds(sharing):
    for schedule in ("burst", "pairwise", "nccl", "pxn"):
        answer = exchange(sharing, cluster="ideal-node8", schedule=schedule)
        for time in (answer["time_us"], *answer.get("rank_finish_us", [])):
            assert len(str(time).partition(".")[2]) <= 6


def test_the_table_labels_the_bounds_of_the_fast_network(sharing):
    text = succeed("predict", "--op", "all-to-all", "--cluster", "ideal-switch", "--matrix",
                   sharing, "--network", "fast")
    assert "294.60 to " in text


def test_one_rank_does_not_communicate(tmp_path):
    assert "among 1 GPU" in refused(write(tmp_path / "one.csv", [[5]]))


def test_placements_end_with_the_cluster(sharing):
    assert "99999999" in refused(sharing, "--placement", "0,8,1,99999999", cluster="hgx-h100")


def test_rows_that_cross_once(tmp_path):
    pair = write(tmp_path / "m.csv", uniform(16))
    words = ("ideal-node8", "deepep")
    half = exchange(pair, "--distinct-share", "0.5", cluster=words[0], schedule=words[1])
    full = exchange(pair, cluster=words[0], schedule=words[1])
    assert half["time_us"] < full["time_us"] and "0.5 of all" in half["provenance"]
    assert "above 0" in refused(pair, "--schedule", "deepep", "--distinct-share", "2")
    assert "goes with" in refused(pair, "--distinct-share", "0.5")


def test_what_would_take_hours_is_refused(tmp_path):
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    numpy.save(tmp_path / "m.npy", numpy.ones((600, 600), "float32").T)
    message = refused(tmp_path / "m.npy", "--schedule", "pxn", cluster="hgx-h100")
    assert "up to 512" in message and "--network fast" in message


@pytest.mark.parametrize(("op", "factor"), [("all-to-all", 7 / 8), ("all-reduce", 14 / 8),
                                            ("all-gather", 7 / 8), ("reduce-scatter", 7 / 8)])
def test_the_bandwidth_is_that_of_nccl_tests(op, factor):
    words = ("predict", "--profile", "h200-sxm", "--op", op, "--gpus", 8, "--bytes", "64MiB")
    found = as_json(*words)
    head, row = succeed(*words).splitlines()[:2]
    busbw = factor * 2**26 / found["time_us"] / 1e3
    assert "busbw GB/s" in head and f" {busbw:.2f}  " in row
    gemm = succeed("predict", "--op", "gemm", "--m", 64, "--n", 64, "--k", 64)
    assert "busbw" not in gemm
    assert found["busbw_gb_per_s"] == pytest.approx(busbw, rel=1e-9)
    assert float(as_rows(*words)[0]["busbw_gb_per_s"]) == pytest.approx(busbw, rel=1e-9)
    assert "busbw_gb_per_s" not in as_json("predict", "--op", "gemm", "--m", 64, "--n", 64, "--k", 64)


def test_ranks_that_do_not_fill_racks_are_spread_evenly():
    """512 on racks of 72: 64 on each of 8, not 8 alone on the last."""
    def all_reduce(gpus, *words):
        return as_json("predict", "--profile", "gb200", "--op", "all-reduce", "--cluster", "gb200-nvl72", "--bytes",
                       "1GiB", "--gpus", gpus, *words)["time_us"]
    assert all_reduce(512) == pytest.approx(all_reduce(504), rel=0.02)
    assert all_reduce(512, "--placement", "contiguous") > 1.5 * all_reduce(512)


def test_a_matrix_between_nodes_says_what_nccl_would_take(tmp_path):
    even = write(tmp_path / "even.csv", matrix(16, lambda row, column: 4 * MIB))
    words = ("predict", "--op", "all-to-all", "--cluster", "hgx-h100")
    said = moesim(*words, "--matrix", even)
    assert said.returncode == 0
    asked = as_json(*words, "--gpus", 16, "--bytes", "64MiB")["time_us"]
    note = re.search(r"note: ([0-9.]+) us is a burst .*--schedule nccl --profile h100-sxm\): ([0-9.]+) us", said.stderr)
    assert float(note[2]) == pytest.approx(asked, rel=1e-3)
    assert f"{float(note[1]):.1f}" in said.stdout
    # The flags that it names give that answer; where the schedule is chosen nothing is said.
    nccl = moesim(*words, "--matrix", even, "--schedule", "nccl", "--profile", "h100-sxm", "--format", "json")
    assert json.loads(nccl.stdout)["time_us"] == pytest.approx(asked, rel=1e-6)
    assert "note" not in nccl.stderr
    inside = write(tmp_path / "inside.csv", uniform(8))
    assert "note" not in moesim(*words, "--matrix", inside).stderr
