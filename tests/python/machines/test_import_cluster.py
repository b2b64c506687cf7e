"""`moesim import --cluster`: logs of several tools into a cluster document.

The logs in tests/data/logs are made up, each of a latency and a bandwidth that the tests repeat."""

import json

import pytest
from cluster_imports import BASE, LOGS, exchanges, imported, one_node_log, two_nodes, usual
from command_line import as_json, as_rows, moesim, needs_binary, succeed

pytestmark = needs_binary


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
        return as_json("predict", "--profile", "h100-sxm", "--cluster", mine, "--op",
                       "all-to-all", "--gpus", gpus, "--bytes", size)

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


def test_logs_of_programs_that_no_step_needs_are_left_out(tmp_path):
    log = LOGS / "alltoall_2nodes.log"
    other = tmp_path / "broadcast.log"
    other.write_text(log.read_text().replace("alltoall_perf", "broadcast_perf"))
    alone, _ = imported(tmp_path, log)
    document, notes = imported(tmp_path, other, log)
    assert document == alone
    assert "broadcast.log: line" in notes and "broadcast_perf is left out" in notes


def test_what_is_to_be_tried_asks_for_what_was_measured(tmp_path):
    def tried(log):
        _, notes = imported(tmp_path, log)
        (line,) = [line for line in notes.splitlines() if line.startswith("try: moesim ")]
        (answer,) = as_rows(*line.removeprefix("try: moesim ").split())
        return answer

    assert tried(LOGS / "alltoall_2nodes.log")["provenance"].startswith("measured")
    # Four GPUs of each of two nodes: not the first eight, of one.
    answer = tried(one_node_log(tmp_path / "half.log", lambda size: 8 * usual(size), hosts=2))
    assert answer["provenance"].startswith("measured") and answer["placement"] == "0,1,2,3,8,9,10,11"


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


def test_a_second_import_replaces_what_was_measured_anew(tmp_path):
    first, _ = imported(tmp_path, LOGS / "alltoall_2nodes.log")
    (tmp_path / "first.json").write_text(json.dumps(first))
    second, _ = imported(tmp_path, LOGS / "batch_2nodes.log", LOGS / "alltoall_2nodes.log",
                         cluster=tmp_path / "first.json")
    assert len(second["exchanges"]) == 3
    assert len(exchanges(second)) == 3


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
        return as_json("predict", "--profile", "h100-sxm", "--cluster", cluster, "--op", "all-to-all",
                       "--gpus", 32, "--bytes", 1024)

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


def test_of_two_versions_of_nccl_the_one_imported_last_answers(tmp_path):
    newer = LOGS / "alltoall_2nodes.log"
    older = two_nodes(tmp_path, "older.log", [("nccl-library=22703", "nccl-library=20909")])
    for files, last in (((newer, older), "2.9.9"), ((older, newer), "2.27.3")):
        document, said = imported(tmp_path, *files)
        assert [each["library"] for each in document["exchanges"]][-1] == f"NCCL {last}"
        assert f"of several versions of NCCL: NCCL {last} answers" in said
    assert "several versions" not in imported(tmp_path, newer)[1]


def test_a_log_is_held_against_what_would_have_been_predicted(tmp_path):
    law = tmp_path / "law.json"
    log = LOGS / "alltoall_2nodes.log"
    document, notes = imported(tmp_path, log, more=("--law-out", law))
    (entry,) = json.loads(law.read_text())
    assert (entry["op"], entry["nodes"], entry["gpus"], entry["sizes"]) == ("all-to-all", 2, 16, len(entry["points"]))
    measured = exchanges(document)["all-to-all", 2, 16]
    assert [point["measured_us"] for point in entry["points"]] == measured["time_us"]
    for point in entry["points"][::5]:  # as predict answers without the log
        row = as_json("predict", "--cluster", "hgx-h100", "--op", "all-to-all", "--gpus", 16, "--bytes", int(point["bytes"]))
        assert point["law_us"] == pytest.approx(row["time_us"], rel=1e-6)
        assert point["inside"] == (row["time_us_p05"] <= point["measured_us"] <= row["time_us_p95"])
    assert entry["inside"] == sum(point["inside"] for point in entry["points"])
    (line,) = [line for line in notes.splitlines() if "the law of h100-sxm" in line]
    at = {point["bytes"]: point["law_over_measured"] for point in entry["points"]}
    assert (f"takes {at[2**20]:.2f} times the measured time at 1 MiB, {at[2**30]:.2f} times at 1 GiB; "
            f"{entry['inside']} of {entry['sizes']} sizes are inside its band") in line
    # What the base measured itself is no log of this import.
    again = tmp_path / "again.json"
    result = moesim("import", LOGS / "reduce_scatter_2nodes.json", "--cluster", tmp_path / "my_cluster.json", "--out",
                    again, "--law-out", law)
    assert result.returncode == 0 and result.stderr.count("the law of h100-sxm") == 1
    assert [each["op"] for each in json.loads(law.read_text())] == ["reduce-scatter"]
    result = moesim("import", log, "--cluster", tmp_path / "my_cluster.json", "--out", again, "--law-out", law)
    assert result.returncode == 0 and json.loads(law.read_text()) == []
    assert f"{law}: empty: the logs have no exchange that" in result.stderr


def test_a_slow_log_is_outside_the_band_of_the_law(tmp_path):
    law = tmp_path / "law.json"
    _, notes = imported(tmp_path, one_node_log(tmp_path / "slow.log", lambda size: 3 * usual(size)), more=("--law-out", law))
    (entry,) = json.loads(law.read_text())
    assert entry["inside"] == 0 and all(point["law_over_measured"] < 0.6 for point in entry["points"])
    assert f"0 of {entry['sizes']} sizes are inside its band" in notes
