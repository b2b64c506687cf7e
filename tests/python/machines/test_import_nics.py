"""`moesim import --cluster`: logs of perftest and nvbandwidth into the rates of links."""

import json
import subprocess

import pytest
from cluster_imports import BASE, LOGS, imported, refused, timed
from command_line import BINARY, as_json, needs_binary

pytestmark = needs_binary


def test_perftest_sets_the_rate_that_a_nic_reaches(tmp_path):
    document, _ = imported(tmp_path, LOGS / "ib_write_bw.log")
    efficiency = document["nic"]["efficiency"]
    assert efficiency["value"] == pytest.approx(388.8 / 400, abs=1e-4)
    assert efficiency["low"] < efficiency["value"] <= efficiency["high"] <= 1
    assert efficiency["origin"].startswith("measured: RDMA_Write BW test on mlx5_0")
    assert "exchanges" not in document
    # An exchange across nodes says more than two NICs alone.
    both, _ = imported(tmp_path, LOGS / "ib_write_bw.log", LOGS / "alltoall_2nodes.log")
    alone, _ = imported(tmp_path, LOGS / "alltoall_2nodes.log")
    assert both["nic"]["efficiency"] == alone["nic"]["efficiency"]
    # A ring only bounds it: the NICs' own figure stays.
    ring = timed(tmp_path / "ring.log", "all_gather_perf", 15 / 16, 5)
    both, said = imported(tmp_path, LOGS / "ib_write_bw.log", ring)
    assert both["nic"]["efficiency"] == efficiency
    assert "rings and trees only say" in said and "all-gather of 16 GPUs on 2 nodes" in said
    # But where the NICs together do not reach it, the ring's end.
    slow = timed(tmp_path / "slow.log", "all_gather_perf", 15 / 16, 3)
    both, said = imported(tmp_path, LOGS / "ib_write_bw.log", slow)
    assert both["nic"]["efficiency"]["value"] < 0.65
    assert both["nic"]["efficiency"]["unfitted"] == efficiency
    assert "warning: ib_write_bw.log: single transfers reach 0.972" in said
    later, _ = imported(tmp_path, ring, cluster=(tmp_path / "my_cluster.json").rename(tmp_path / "base.json"))
    assert later["nic"]["efficiency"] == efficiency


def nic_log(path, nic, gbit_per_s):
    text = (LOGS / "ib_write_bw.log").read_text()
    assert "mlx5_0" in text and "388.80" in text
    large = "".join(line for line in text.splitlines(True) if not line.startswith((" 65536", " 1048576")))
    path.write_text(large.replace("mlx5_0", nic).replace("388.80", f"{gbit_per_s:.2f}"))
    return path


def test_the_slowest_of_several_nics_counts(tmp_path):
    logs = [nic_log(tmp_path / f"n{nic}.log", f"mlx5_{nic}", 196.4 if nic == 5 else 387.2)
            for nic in range(8)]
    document, said = imported(tmp_path, *logs)
    efficiency = document["nic"]["efficiency"]
    assert efficiency["value"] == pytest.approx(196.4 / 400, abs=1e-4)
    assert efficiency["low"] == pytest.approx(0.95 * 196.4 / 400, abs=1e-4)
    assert efficiency["high"] == 1  # with the others' 5 % it holds the line rate
    assert "warning: n5.log: mlx5_5 reaches 0.491 of the line rate, others 0.968" in said
    # Half of GPU 5's 256 MiB are for the other node.
    exchange = as_json("predict", "--op", "all-to-all", "--profile", "h100-sxm", "--gpus", 16, "--bytes", 1 << 28,
                       "--cluster", tmp_path / "my_cluster.json")
    assert exchange["time_us"] > (1 << 28) / 2 / (196.4e9 / 8) * 1e6
    # NICs that are alike get no warning.
    assert "warning" not in imported(tmp_path, *logs[:5])[1]


def test_repeats_of_one_nic_have_their_median(tmp_path):
    logs = [nic_log(tmp_path / f"run{run}.log", "mlx5_0", rate)
            for run, rate in enumerate((380, 384, 330))]
    other = nic_log(tmp_path / "other.log", "mlx5_1", 388)
    document, said = imported(tmp_path, *logs, other)
    assert document["nic"]["efficiency"]["value"] == pytest.approx(380 / 400, abs=1e-4)
    assert document["nic"]["efficiency"]["low"] == pytest.approx(330 / 400, abs=1e-4)
    assert "warning" not in said
    nic_log(logs[2], "mlx5_0", 200)
    assert "warning: run0.log, run1.log, run2.log: transfers of mlx5_0 reach 0.500 to " \
        "0.960 of the line rate; their median is taken" in imported(tmp_path, *logs, other)[1]


def test_perftest_units(tmp_path):
    text = (LOGS / "ib_write_bw.log").read_text()
    megabytes = tmp_path / "megabytes.log"
    megabytes.write_text(text.replace("Gb/sec", "MB/sec").replace("388.80", "40000.00"))
    document, _ = imported(tmp_path, megabytes)
    # MB of 2^20 bytes: 40000 x 2^20 x 8 / 1e9 = 335.54 Gbit/s.
    assert document["nic"]["efficiency"]["value"] == pytest.approx(0.8389, abs=1e-4)
    both_ways = tmp_path / "both_ways.log"
    both_ways.write_text(text.replace("RDMA_Write BW", "RDMA_Write Bidirectional BW"))
    document, _ = imported(tmp_path, both_ways)
    assert document["nic"]["efficiency"]["value"] == pytest.approx(388.8 / 800, abs=1e-4)


def test_the_rate_of_small_messages_is_no_efficiency(tmp_path):
    small = tmp_path / "small.log"
    lines = (LOGS / "ib_write_bw.log").read_text().splitlines()
    small.write_text("\n".join(line for line in lines if not line.startswith((" 65536", " 1048576", " 8388608"))))
    refused(tmp_path, small, parts=["small.log", "RDMA_Write BW", "1024 bytes", "-s 1048576"])


def test_latency_of_the_nics_alone_is_a_lower_bound(tmp_path):
    document, notes = imported(tmp_path, LOGS / "ib_send_lat.log")
    assert document["nic"]["latency_us"] == json.loads(BASE.read_text())["nic"]["latency_us"]
    assert "1.62 us of the NICs alone" in notes
    slow = tmp_path / "slow.log"
    slow.write_text((LOGS / "ib_send_lat.log").read_text().replace("1.62 ", "41.62 "))
    document, _ = imported(tmp_path, slow)
    assert document["nic"]["latency_us"]["value"] == 41.62


def test_a_name_of_bytes_that_are_no_utf8(tmp_path):
    log = tmp_path / "write.log"
    log.write_bytes((LOGS / "ib_write_bw.log").read_bytes().replace(b"mlx5_0", b"mlx5_\xff"))
    out = tmp_path / "my_cluster.json"
    # Its notes have the byte.
    subprocess.run([BINARY, "import", log, "--cluster", "hgx-h100", "--out", out], check=True, stderr=subprocess.PIPE)
    assert "mlx5_\ufffd" in json.loads(out.read_text(encoding="utf-8"))["nic"]["efficiency"]["origin"]


def test_nvbandwidth_sets_the_efficiency_of_the_domain(tmp_path):
    document, _ = imported(tmp_path, LOGS / "nvbandwidth.txt")
    # Pairs at 360 GB/s and one more for the row and the column each: median 363 of 450.
    assert document["domain"]["efficiency"]["value"] == pytest.approx(363 / 450, abs=1e-4)
    document, _ = imported(tmp_path, LOGS / "nvbandwidth.json")
    assert document["domain"]["efficiency"]["value"] == pytest.approx(352 / 450, abs=1e-4)
    assert document["nic"] == json.loads(BASE.read_text())["nic"]


def test_the_latency_of_large_messages_is_none_of_a_nic(tmp_path):
    lines = (LOGS / "ib_send_lat.log").read_text().splitlines()
    rows = [at for at, line in enumerate(lines) if line.split()[:1] and line.split()[0].isdigit()]
    large = lines[rows[0]].replace(lines[rows[0]].split()[0], "8388608", 1)
    path = tmp_path / "large.log"
    path.write_text("\n".join([*lines[:rows[0]], large, *lines[rows[-1] + 1:]]) + "\n")
    refused(tmp_path, path, parts=["large.log", "8388608 bytes", "-s 8"])


def test_a_nic_at_a_fraction_of_its_rate_gets_a_warning(tmp_path):
    path = tmp_path / "slow.log"
    path.write_text((LOGS / "ib_write_bw.log").read_text().replace("Gb/sec", "MB/sec"))
    _, said = imported(tmp_path, path)
    assert "warning" in said and "slow.log" in said and "of the 400 of cluster 'hgx-h100'" in said
