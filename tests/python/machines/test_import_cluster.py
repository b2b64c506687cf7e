"""`moesim import --cluster`: logs of several tools into a cluster document.

The logs in tests/data/logs are made up, each of a latency and a bandwidth that the tests repeat."""

import json
import math
import re
import subprocess
from pathlib import Path

import pytest

from command_line import BINARY, moesim, needs_binary, succeed

pytestmark = needs_binary
LOGS = Path(__file__).resolve().parents[2] / "data" / "logs"
MODELS = Path(__file__).resolve().parents[3] / "profiles" / "models"
BASE = Path(__file__).resolve().parents[3] / "profiles" / "clusters" / "hgx-h100.json"


def imported(tmp_path, *files, cluster="hgx-h100", more=()):
    out = tmp_path / "my_cluster.json"
    result = moesim("import", *files, "--cluster", cluster, "--out", out, *more)
    assert result.returncode == 0, result.stderr
    return json.loads(out.read_text()), result.stderr


def refused(tmp_path, *files, cluster="hgx-h100", more=(), parts):
    out = tmp_path / "refused.json"
    result = moesim("import", *files, "--cluster", cluster, "--out", out, *more)
    assert result.returncode == 2, result.stderr
    for part in parts:
        assert part in result.stderr, result.stderr
    assert not out.exists()


def exchanges(document):
    return {(each["op"], each["nodes"], each["gpus"]): each for each in document["exchanges"]}


def all_to_all_us(size):
    return 45 + size * 8 / 16 / 36e3  # 36 GB/s of what leaves the node


def test_a_run_on_two_nodes_becomes_a_curve_and_an_efficiency(tmp_path):
    document, _ = imported(tmp_path, LOGS / "alltoall_2nodes.log")
    assert document["name"] == "my_cluster"
    assert "hgx-h100" in document["source"] and "alltoall_2nodes.log" in document["source"]
    curve = exchanges(document)["all-to-all", 2, 16]
    assert curve["library"] == "NCCL 2.27.3"
    assert curve["origin"] == "measured: nccl-tests on H100, alltoall_2nodes.log"
    assert curve["bytes"] == [2**power for power in range(10, 31, 2)]
    for size, time_us in zip(curve["bytes"], curve["time_us"]):
        assert time_us == pytest.approx(all_to_all_us(size), rel=1e-3)  # printed with 4 digits
    assert "time_us_p05" not in curve
    # 36 of the NIC's 50 GB/s, while the exchange inside the node takes its time too.
    efficiency = document["nic"]["efficiency"]
    assert 0.72 < efficiency["value"] < 1 and efficiency["low"] < efficiency["value"]
    assert "0.72 of the line rate" in efficiency["origin"]
    start = document["nic"]["start"]
    assert start["low"] < start["value"] < start["high"]
    # The rest is the base's.
    base = json.loads(BASE.read_text())
    assert document["domain"] == base["domain"] and document["fabric"] == base["fabric"]
    assert document["nic"]["gbit_per_s"] == base["nic"]["gbit_per_s"]


def test_predict_takes_the_measured_curve_and_says_so(tmp_path):
    imported(tmp_path, LOGS / "alltoall_2nodes.log")
    mine = tmp_path / "my_cluster.json"

    def predicted(gpus, size):
        return json.loads(succeed("predict", "--profile", "h100-sxm", "--cluster", mine, "--op",
                                  "all-to-all", "--gpus", gpus, "--bytes", size, "--format", "json"))

    for size in (2**10, 2**20, 2**30):
        answer = predicted(16, size)
        assert answer["time_us"] == pytest.approx(all_to_all_us(size), rel=1e-3)
        assert "measured: nccl-tests on H100, alltoall_2nodes.log" in answer["provenance"]
    # The law with the two fitted figures alone says the same at both ends of the curve.
    document = json.loads(mine.read_text())
    del document["exchanges"]
    mine.write_text(json.dumps(document))
    assert predicted(16, 2**10)["time_us"] == pytest.approx(all_to_all_us(2**10), rel=0.01)
    assert predicted(16, 2**30)["time_us"] == pytest.approx(all_to_all_us(2**30), rel=0.01)


def test_repeats_give_the_median_and_quantiles(tmp_path):
    text = (LOGS / "alltoall_2nodes.log").read_text()
    files = []
    for name, factor in (("a", 1), ("b", 1.1), ("c", 1.3)):
        lines = []
        for line in text.splitlines():
            words = line.split()
            if line[:1] == " " and len(words) == 13:
                words[5] = f"{float(words[5]) * factor:.4f}"
                line = "  ".join(words)
            lines.append(line)
        files.append(tmp_path / f"{name}.log")
        files[-1].write_text("\n".join(lines))
    document, _ = imported(tmp_path, *files)
    curve = exchanges(document)["all-to-all", 2, 16]
    for place, size in enumerate(curve["bytes"]):
        time_us = all_to_all_us(size)
        assert curve["time_us"][place] == pytest.approx(1.1 * time_us, rel=1e-3)
        # Of fewer than 20 runs all lie inside.
        assert curve["time_us_p05"][place] == pytest.approx(time_us, rel=1e-3)
        assert curve["time_us_p95"][place] == pytest.approx(1.3 * time_us, rel=1e-3)


def test_a_batch_log_of_several_programs_types_and_operators(tmp_path):
    document, notes = imported(tmp_path, LOGS / "batch_2nodes.log")
    found = exchanges(document)
    assert set(found) == {("all-reduce", 2, 16), ("send-receive", 2, 16)}
    assert {each["library"] for each in found.values()} == {"NCCL 2.20.5"}
    # Of float and bfloat16, sum and max, the sums of bfloat16: 60 us and 20 GB/s.
    reduce = found["all-reduce", 2, 16]
    assert "bfloat16" in reduce["origin"]
    for size, time_us in zip(reduce["bytes"], reduce["time_us"]):
        assert time_us == pytest.approx(60 + size / 20e3, rel=1e-3)
    assert "5 of 20 rows" in notes
    # Send-receive across nodes, 18 us at 1 KiB: what a message takes with NCCL's software.
    assert document["nic"]["latency_us"]["value"] == pytest.approx(18.03, abs=0.01)
    assert document["nic"]["latency_us"]["origin"].startswith("measured: send-receive")


def test_json_output_of_nccl_tests(tmp_path):
    document, _ = imported(tmp_path, LOGS / "reduce_scatter_2nodes.json")
    curve = exchanges(document)["reduce-scatter", 2, 16]
    assert curve["library"] == "NCCL 2.29.7"
    assert curve["time_us"][0] == pytest.approx(80 + 2**20 * 15 / 16 / 340e3, abs=1e-5)
    assert "MADE_UP" not in json.dumps(document)  # nothing of the environment
    # Two processes with a thread for each of 8 GPUs list their first GPU alone.
    threads = json.loads((LOGS / "reduce_scatter_2nodes.json").read_text())
    threads["config"]["nthreads"] = 8
    threads["config"]["devices"] = threads["config"]["devices"][::8]
    (tmp_path / "threads.json").write_text(json.dumps(threads))
    document, _ = imported(tmp_path, tmp_path / "threads.json")
    assert ("reduce-scatter", 2, 16) in exchanges(document)


def test_old_output_inside_a_node(tmp_path):
    v100 = tmp_path / "dgx-v100.json"
    base = json.loads(BASE.read_text())
    base.update(name="dgx-v100", source="made up: 8 V100")
    v100.write_text(json.dumps(base))
    document, _ = imported(tmp_path, LOGS / "all_gather_old.txt", cluster=v100)
    curve = exchanges(document)["all-gather", 1, 8]
    assert "library" not in curve  # the output does not say
    assert curve["time_us"][-1] == pytest.approx(20 + 2**26 * 7 / 8 / 100e3, rel=1e-3)
    assert document["nic"] == base["nic"]


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
    exchange = json.loads(succeed(
        "predict", "--op", "all-to-all", "--profile", "h100-sxm", "--gpus", 16, "--bytes", 1 << 28,
        "--cluster", tmp_path / "my_cluster.json", "--format", "json"))
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


DISPATCH = ("--profile", "h100-sxm", "--dispatcher", "deepep", "--hidden", 7168, "--k", 8,
            "--experts", 256)


def dispatched(op, tokens, gpus, *words):
    return json.loads(succeed("predict", "--op", op, *DISPATCH, "--tokens", tokens, "--gpus", gpus,
                              *words, "--format", "json"))


def test_deepep_across_nodes(tmp_path):
    refused(tmp_path, LOGS / "deepep_internode.log", parts=["deepep_internode.log", "--nodes, 2"])
    refused(tmp_path, LOGS / "deepep_internode.log", more=("--nodes", 8), parts=["4 nodes at most"])
    refused(tmp_path, LOGS / "deepep_low_latency.log", parts=["does not print tokens"])
    # Fewer nodes for a token than there are, and more.
    for groups, part in ((1, "to 1 of the 2 nodes at most"), (3, "on 3 nodes at least, not --nodes 2")):
        limited = tmp_path / f"groups_{groups}.log"
        text = (LOGS / "deepep_internode.log").read_text()
        assert "num_topk_groups=2" in text
        limited.write_text(text.replace("num_topk_groups=2", f"num_topk_groups={groups}"))
        refused(tmp_path, limited, more=("--nodes", 2), parts=[f"groups_{groups}.log: num_topk_groups={groups}", part])
    document, _ = imported(tmp_path, LOGS / "deepep_internode.log", more=("--nodes", 2))
    assert document["nic"] == json.loads(BASE.read_text())["nic"]
    # Without the notify phase; the last line is in the words of another version.
    assert [(each["stage"], each["row_format"], each["time_us"]) for each in document["dispatches"]] \
        == [("dispatch", "fp8", 1000), ("dispatch", "bf16", 1860), ("combine", "bf16", 1900)]
    assert all((each["nodes"], each["gpus"], each["tokens"], each["sms"]) == (2, 16, 4096, 24)
               for each in document["dispatches"])
    mine = ("--cluster", tmp_path / "my_cluster.json")
    combine = dispatched("combine", 4096, 16, *mine)
    assert combine["time_us"] == pytest.approx(1900, rel=1e-3)
    assert "measured: DeepEP's test, deepep_internode.log" in combine["provenance"]
    assert combine["time_us_p05"] == pytest.approx(1900 * 0.94, rel=1e-3)
    # Other sizes are scaled by as much.
    base = ("--cluster", "hgx-h100")
    factor = 1900 / dispatched("combine", 4096, 16, *base)["time_us"]
    assert dispatched("combine", 1024, 16, *mine)["time_us"] == pytest.approx(
        factor * dispatched("combine", 1024, 16, *base)["time_us"], rel=1e-6)
    for row_format, time_us in (("fp8", 1000), ("bf16", 1860)):
        answer = dispatched("dispatch", 4096, 16, "--row-format", row_format, *mine)
        assert answer["time_us"] == pytest.approx(time_us, rel=1e-6)
    # Inside a node, and on other numbers of nodes, nothing was measured.
    for gpus in (8, 32):
        assert dispatched("combine", 4096, gpus, *mine)["time_us"] == \
            dispatched("combine", 4096, gpus, *base)["time_us"]


def test_two_sizes_of_deepep_both_come_back(tmp_path):
    text = (LOGS / "deepep_internode.log").read_text()
    few = tmp_path / "few.log"
    few.write_text(text.replace("num_tokens=4096", "num_tokens=128").replace("50 + 1000 us", "50 + 93 us")
                   .replace("50 + 1860 us", "50 + 124 us").replace("transmit: 1900.00", "transmit: 201.00"))
    imported(tmp_path, few, LOGS / "deepep_internode.log", more=("--nodes", 2))
    mine = ("--cluster", tmp_path / "my_cluster.json")
    for tokens, times in ((128, (93, 124, 201)), (4096, (1000, 1860, 1900))):
        for (op, *words), time_us in zip((("dispatch", "--row-format", "fp8"), ("dispatch",), ("combine",)), times):
            answer = dispatched(op, tokens, 16, *words, *mine)
            assert answer["time_us"] == pytest.approx(time_us, rel=1e-6)
            assert answer["time_us_p95"] == pytest.approx(1.06 * time_us, rel=1e-6)
    # The law's own band is back where nothing near was measured.
    for tokens, sms in ((8, 24), (65536, 24), (4096, 8)):
        measured = dispatched("dispatch", tokens, 16, "--sms", sms, *mine)
        law = dispatched("dispatch", tokens, 16, "--sms", sms, "--cluster", "hgx-h100")
        for end in ("time_us_p05", "time_us_p95"):
            assert abs(math.log(measured[end] / measured["time_us"])) >= abs(math.log(law[end] / law["time_us"]))


def test_deepeps_experts_are_asked_for(tmp_path):
    text = (LOGS / "deepep_internode.log").read_text().replace("num_topk_groups=2", "num_topk_groups=3")
    (tmp_path / "three.log").write_text(text)
    refused(tmp_path, tmp_path / "three.log", more=("--nodes", 3), parts=[
        "three.log: --experts 256: not spread evenly over 24 GPUs", "give the number of the run, a multiple of 24"])
    text = (LOGS / "deepep_internode.log").read_text().replace("num_topk=8", "num_topk=24")
    (tmp_path / "many.log").write_text(text)
    refused(tmp_path, tmp_path / "many.log", more=("--nodes", 2, "--experts", 16), parts=["--experts 16: num_topk=24"])


def test_deepeps_times_are_of_the_bases_gpu(tmp_path):
    document, _ = imported(tmp_path, LOGS / "deepep_internode.log", more=("--nodes", 2))
    assert {each["gpu"] for each in document["dispatches"]} == {"H100"}

    def combine(profile, cluster):
        return json.loads(succeed(
            "predict", "--op", "combine", *DISPATCH[2:], "--profile", profile, "--cluster", cluster, "--tokens", 4096,
            "--gpus", 16, "--format", "json"))

    mine = tmp_path / "my_cluster.json"
    # Hopper GPUs share what the SMs take.
    assert "measured: DeepEP's test" in combine("h200-sxm", mine)["provenance"]
    other = combine("b200-sxm", mine)
    assert other["time_us"] == combine("b200-sxm", "hgx-h100")["time_us"]
    assert "measured: DeepEP's test" not in other["provenance"]
    # A base of no product names none.
    unnamed = json.loads(BASE.read_text()) | {"name": "unnamed", "source": "no product"}
    (tmp_path / "unnamed.json").write_text(json.dumps(unnamed))
    document, _ = imported(tmp_path, LOGS / "deepep_internode.log", more=("--nodes", 2),
                           cluster=tmp_path / "unnamed.json")
    assert all("gpu" not in each for each in document["dispatches"])


def test_a_step_goes_by_the_measured_dispatches(tmp_path):
    imported(tmp_path, LOGS / "deepep_internode.log", more=("--nodes", 2))

    def exchange(cluster):
        return json.loads(succeed(
            "simulate", "--profile", "h100-sxm", "--experts", 32, "--top-k", 4, "--router",
            "dropless", "--tokens-per-gpu", 2048, "--replicas", 1, "--gpus", 16,
            "--expert-parallel", 16, "--dispatcher", "deepep", "--cluster", cluster, "--mode",
            "prefill", "--routing", "balanced", "--format", "json"))

    mine = tmp_path / "my_cluster.json"
    measured, base = exchange(mine), exchange("hgx-h100")
    assert "measured: DeepEP's test, deepep_internode.log" in measured["provenance"]
    factor = {op: dispatched(op, 2048, 16, "--cluster", mine)["time_us"] /
              dispatched(op, 2048, 16, "--cluster", "hgx-h100")["time_us"]
              for op in ("dispatch", "combine")}
    ratio = measured["exchange_ms"] / base["exchange_ms"]
    # The notify phases are not scaled, nor is what else a step exchanges.
    assert min(1, *factor.values()) < ratio < max(1, *factor.values())
    assert ratio != 1


def test_training_names_and_takes_the_measured_dispatches(tmp_path):
    text = (LOGS / "deepep_internode.log").read_text()
    (tmp_path / "twenty.log").write_text(text.replace("SMs 24", "SMs 20"))
    imported(tmp_path, tmp_path / "twenty.log", more=("--nodes", 2))
    # V3 without groups of experts, as the test draws them.
    model = (MODELS / "deepseek-v3-4layers.json").read_text()
    assert "bias-balanced+groups:8:4" in model
    (tmp_path / "v3.json").write_text(model.replace("+groups:8:4", ""))
    words = ("train", "--model", tmp_path / "v3.json", "--profile", "h100-sxm", "--gpus", 16, "--expert-parallel", 16,
             "--global-batch", 16, "--dispatcher", "deepep", "--cluster", tmp_path / "my_cluster.json")
    text = succeed(*words)
    assert "dispatcher deepep, 20 SMs (measured: DeepEP's test, twenty.log, over derived: fitted" in text
    assert "NIC written to by the GPU" in text and "with 40 us of notify" in text
    # Three MoE layers, rows out and home in forward, as many in backward, not quite even: 4,096 tokens of a GPU.
    step = json.loads(succeed(*words, "--format", "json"))
    assert step["dispatch_ms"] == pytest.approx(3 * (1860 + 1900 + 80) / 1e3, rel=5e-3)


def test_deepep_inside_a_node_without_printed_times(tmp_path):
    log = tmp_path / "intranode.log"
    log.write_text("[config] num_tokens=4096, hidden=7168, num_topk=8\n"
                   "[tuning] Best dispatch (FP8): SMs 24, NVL chunk 16, 100.00 GB/s (NVL)\n"
                   "[tuning] Best combine: SMs 24, NVL chunk 4: 150.00 GB/s (NVL)\n")
    document, _ = imported(tmp_path, log)
    # Of 8 GPUs with 32 of 256 experts each a token meets 8 (1 - C(224, 8) / C(256, 8)).
    missed = 1.0
    for drawn in range(8):
        missed *= (224 - drawn) / (256 - drawn)
    rows = 4096 * 8 * (1 - missed)
    times = [each["time_us"] for each in document["dispatches"]]
    assert times == pytest.approx([rows * 7168 * (1 + 4 / 128) / 100e3, rows * 7168 * 2 / 150e3])
    answer = dispatched("combine", 4096, 8, "--cluster", tmp_path / "my_cluster.json")
    assert answer["time_us"] == pytest.approx(times[1], rel=1e-6)
    refused(tmp_path, log, more=("--nodes", 2), parts=["leave --nodes out"])


@pytest.mark.parametrize(("change", "part"), [
    ({"gpus": 9}, "/dispatches/0/gpus: 9 GPUs cannot be spread"),
    ({"gpus": 32}, "/dispatches/0/gpus: 32 GPUs on 2 nodes"),
    ({"experts": 255}, "/dispatches/0/experts"), ({"k": 300}, "/dispatches/0/k: 300 of 256"),
    ({"stage": "send"}, "/dispatches/0/stage"), ({"time_us": 0}, "/dispatches/0/time_us")])
def test_a_contradictory_dispatch_is_refused(change, part, tmp_path):
    document, _ = imported(tmp_path, LOGS / "deepep_internode.log", more=("--nodes", 2))
    document["dispatches"][0].update(change)
    (tmp_path / "bad.json").write_text(json.dumps(document))
    result = moesim("predict", "--op", "all-to-all", "--gpus", 16, "--bytes", 64, "--cluster",
                    tmp_path / "bad.json")
    assert result.returncode == 2 and "bad.json: " + part in result.stderr, result.stderr


def test_no_dispatch_is_faster_than_its_links(tmp_path):
    log = tmp_path / "intranode.log"
    config = "[config] num_tokens=4096, hidden=7168, num_topk=8\n"
    # 4,096 tokens go to 5.3 of 8 GPUs each, 4.6 of them others: 140 MB in FP8.
    log.write_text(config + "[tuning] Best dispatch (FP8): SMs 24, NVL chunk 12, 540.00 GB/s (NVL), t: 290.0 us\n")
    refused(tmp_path, log, parts=["intranode.log: DeepEP dispatch (fp8) in 290.0 us", "450 GB/s (domain.gb_per_s)"])
    log.write_text(config + "[tuning] Best dispatch (FP8): SMs 24, NVL chunk 12, 490.00 GB/s (NVL), t: 320.0 us\n")
    imported(tmp_path, log)
    text = (LOGS / "deepep_internode.log").read_text()
    (tmp_path / "fast.log").write_text(text.replace("transmit: 1900.00 us", "transmit: 1100.00 us"))
    refused(tmp_path, tmp_path / "fast.log", more=("--nodes", 2), parts=["DeepEP combine (bf16)", "50 GB/s (of its NICs"])


def test_dispatches_that_contradict_each_other_are_named(tmp_path):
    logs = {}
    for name, time_us in (("one", 350), ("near", 380), ("slow", 700)):
        logs[name] = tmp_path / f"{name}.log"
        logs[name].write_text("[config] num_tokens=4096, hidden=7168, num_topk=8\n"
                              f"[tuning] Best dispatch (FP8): SMs 24, NVL chunk 12, 300.00 GB/s (NVL), t: {time_us}.0 us\n")
    assert "warning" not in imported(tmp_path, logs["one"], logs["near"])[1]
    document, said = imported(tmp_path, logs["one"], logs["slow"])
    assert "warning: DeepEP dispatch (fp8) on 8 GPUs, 24 SMs, 8 of 256 experts, hidden size 7168: runs contradict each other" in said
    assert f"350.00 us ({logs['one']}) and 700.00 us ({logs['slow']}), 2.00 times as long; their geometric mean" in said
    assert len(document["dispatches"]) == 2
    # As many bytes of rows of another size.
    logs["slow"].write_text(logs["slow"].read_text().replace("num_tokens=4096, hidden=7168", "num_tokens=2048, hidden=14336"))
    assert "warning" not in imported(tmp_path, logs["one"], logs["slow"])[1]


def test_a_second_import_replaces_what_was_measured_anew(tmp_path):
    first, _ = imported(tmp_path, LOGS / "alltoall_2nodes.log")
    (tmp_path / "first.json").write_text(json.dumps(first))
    second, _ = imported(tmp_path, LOGS / "batch_2nodes.log", LOGS / "alltoall_2nodes.log",
                         cluster=tmp_path / "first.json")
    assert len(second["exchanges"]) == 3
    assert len(exchanges(second)) == 3


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
    wrong(log.replace("alltoall_perf", "broadcast_perf"), "broadcast_perf: known are alltoall_perf")
    wrong(log.replace("    time  ", " cputime  ", 1), "CPU times")
    wrong(log[:log.index("bfloat16", 2900) + 30], "cut off")
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


def one_node_log(path, time_us, sizes=tuple(2**power for power in range(10, 28))):
    """8 GPUs of one node; the first row of times is line 13."""
    lines = ["# nccl-library=22703", "# Collective test starting: alltoall_perf"]
    lines += [f"#  Rank {rank} Group 0 Pid 1{rank} on host device {rank} [0x{rank:02x}] NVIDIA H100" for rank in range(8)]
    lines += ["#", "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong"]
    for size in sizes:
        rate = size / time_us(size) / 1e3
        cells = f"{time_us(size):.2f} {rate:.2f} {rate * 7 / 8:.2f} 0"
        lines.append(f" {size} {size // 2} half none -1 {cells} {cells}")
    path.write_text("\n".join([*lines, "# Out of bounds values : 0 OK", ""]))
    return path


def usual(size):
    return 25 + size / 377e3


def test_logs_that_contradict_each_other_are_named_and_lie_inside_the_band(tmp_path):
    one = one_node_log(tmp_path / "one.log", usual)
    slow = one_node_log(tmp_path / "slow.log", lambda size: 1.64 * usual(size))
    document, said = imported(tmp_path, one, slow)
    assert f"us ({one}, line " in said and f"us ({slow}, line " in said
    assert "contradict each other at 18 of 18 sizes" in said and "1.64 times as long" in said
    curve = exchanges(document)["all-to-all", 1, 8]
    answer = json.loads(succeed("predict", "--cluster", tmp_path / "my_cluster.json", "--op", "all-to-all",
                                "--gpus", 8, "--bytes", "64MiB", "--format", "json"))
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


def test_a_log_of_one_node_says_nothing_of_exchanges_between_nodes(tmp_path):
    def reasons(cluster):
        text = succeed("train", "--model", "qwen3-30b-a3b", "--gpus", 16, "--expert-parallel", 16, "--micro-batch", 1,
                       "--global-batch", 512, "--software", "megatron-bridge", "--cluster", cluster)
        return next(line for line in text.splitlines() if line.startswith("wide most of all because"))

    mine = tmp_path / "my_cluster.json"
    imported(tmp_path, one_node_log(tmp_path / "one.log", usual))
    assert "between nodes by one law" in reasons("hgx-h100") and "between nodes by one law" in reasons(mine)
    imported(tmp_path, LOGS / "alltoall_2nodes.log")
    assert "between nodes by one law" not in reasons(mine)


def test_logs_imported_one_after_another_say_the_same_as_together(tmp_path):
    between = LOGS / "alltoall_2nodes.log"
    inside = one_node_log(tmp_path / "slow.log", lambda size: 1.64 * usual(size))

    def answer(cluster):
        return json.loads(succeed("predict", "--profile", "h100-sxm", "--cluster", cluster, "--op", "all-to-all",
                                  "--gpus", 32, "--bytes", 1024, "--format", "json"))

    together, _ = imported(tmp_path, between, inside)
    at_once = answer(tmp_path / "my_cluster.json")
    for first, second in ((between, inside), (inside, between)):
        imported(tmp_path, first)
        base = (tmp_path / "my_cluster.json").rename(tmp_path / "base.json")
        document, said = imported(tmp_path, second, cluster=base)
        # The inside part, now longer, is not counted a second time in what the NICs take.
        assert document["nic"]["start"]["value"] == pytest.approx(together["nic"]["start"]["value"], rel=0.02)
        assert document["nic"]["efficiency"]["value"] == pytest.approx(together["nic"]["efficiency"]["value"], rel=0.02)
        assert "nic.start" in said and "alltoall_2nodes.log" in document["nic"]["start"]["origin"]
        assert document["domain"]["efficiency"] == together["domain"]["efficiency"]
        assert answer(tmp_path / "my_cluster.json")["time_us"] == pytest.approx(at_once["time_us"], rel=0.02)


def between_log(tmp_path, nodes, gb_per_s):
    """An all-to-all of 8 GPUs on each of several nodes."""
    ranks = 8 * nodes
    lines = ["# nccl-library=22703", "# Collective test starting: alltoall_perf"]
    lines += [f"#  Rank {rank} Group 0 Pid {4000 + rank} on host-{rank // 8} device {rank % 8} [0x{rank % 8:02x}] NVIDIA H100"
              for rank in range(ranks)]
    lines += ["#", "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong"]
    for size in (2**power for power in range(16, 29)):
        time_us = 20 * nodes + size / (gb_per_s * 1e3)
        rate = size / time_us / 1e3
        cells = f"{time_us:.2f} {rate:.2f} {rate * (ranks - 1) / ranks:.2f} 0"
        lines.append(f" {size} {size // 2 // ranks} half none -1 {cells} {cells}")
    path = tmp_path / f"between_{nodes}.log"
    path.write_text("\n".join([*lines, "# Out of bounds values : 0 OK", ""]))
    return path


def links(document):
    """All figures of links, without where they are from."""
    return {part: {key: {name: value for name, value in figure.items() if name != "origin"} if isinstance(figure, dict) else figure
                   for key, figure in document[part].items()} for part in ("nic", "domain")}


@pytest.mark.parametrize("others", [("batch_2nodes.log",), ("ib_write_bw.log", "nvbandwidth.txt")])
def test_the_order_of_imports_and_a_second_one_change_no_figure(tmp_path, others):
    """nic.start and nic.efficiency are fitted to each other: no value that an earlier import left in the base may show."""
    files = [between_log(tmp_path, 2, 14), between_log(tmp_path, 4, 11), one_node_log(tmp_path / "inside.log", usual),
             *(LOGS / name for name in others)]
    together = links(imported(tmp_path, *files)[0])
    assert links(imported(tmp_path, *files[::-1])[0]) == together
    for order in (files, files[::-1], files[2:] + files[:2]):
        cluster = "hgx-h100"
        for file in (*order, files[0]):  # the first a second time
            document, _ = imported(tmp_path, file, cluster=cluster)
            cluster = (tmp_path / "my_cluster.json").rename(tmp_path / "base.json")
        for part, figures in links(document).items():
            for key, figure in figures.items():
                assert figure == together[part][key], (order, part, key)


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


def two_nodes(tmp_path, name, changes):
    """The run on two nodes with some of its text changed."""
    text = (LOGS / "alltoall_2nodes.log").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / name
    path.write_text(text)
    return path


def timed(path, program, factor, shorter, hosts=2):
    """The same run as another operation that takes less time, with the busbw of it; one host: eight of its GPUs."""
    lines = []
    for line in (LOGS / "alltoall_2nodes.log").read_text().replace("alltoall_perf", program).splitlines():
        if hosts == 1 and "made-up-b" in line:
            continue
        fields = line.split()
        if len(fields) == 13 and fields[0].isdigit():
            time_us = float(fields[5]) / shorter
            rate = int(fields[0]) / time_us / 1e3
            fields[5:8] = f"{time_us:.3f}", f"{rate:.2f}", f"{rate * factor:.2f}"
            line = " ".join(fields)
        lines.append(line)
    path.write_text("\n".join(lines) + "\n")
    return path


def test_no_exchange_is_faster_than_its_links_whatever_else_is_imported(tmp_path):
    all_to_all = LOGS / "alltoall_2nodes.log"
    gather = timed(tmp_path / "gather.log", "all_gather_perf", 15 / 16, 8)
    for files in ((gather,), (all_to_all, gather)):
        refused(tmp_path, *files, parts=["gather.log", "all-gather of 16 GPUs on 2 nodes", "times the line rate of the NICs"])
    # Switches that add up let a GPU send half of what a ring would.
    imported(tmp_path, timed(tmp_path / "nvls.log", "all_reduce_perf", 7 / 4, 4, hosts=1))
    refused(tmp_path, timed(tmp_path / "inside.log", "all_reduce_perf", 7 / 4, 8, hosts=1),
            parts=["inside.log", "all-reduce of 8 GPUs on 1 node", "1.12 times the line rate of the domain", "even where switches add up"])


def test_of_two_versions_of_nccl_the_one_imported_last_answers(tmp_path):
    newer = LOGS / "alltoall_2nodes.log"
    older = two_nodes(tmp_path, "older.log", [("nccl-library=22703", "nccl-library=20909")])
    for files, last in (((newer, older), "2.9.9"), ((older, newer), "2.27.3")):
        document, said = imported(tmp_path, *files)
        assert [each["library"] for each in document["exchanges"]][-1] == f"NCCL {last}"
        assert f"of several versions of NCCL: NCCL {last} answers" in said
    assert "several versions" not in imported(tmp_path, newer)[1]


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
