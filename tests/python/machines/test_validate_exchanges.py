"""`moesim validate exchanges`: on small made-up tables whose answers are known."""

import csv
import gzip
import io
import json
import re
from pathlib import Path

import pytest

from command_line import as_rows, moesim, needs_binary, succeed
from public_tables import folder_of, validated

ROOT = Path(__file__).resolve().parents[3]
COLUMNS = ("system", "device", "source_dir", "nccl_version_recorded", "op_name", "nccl_dtype",
           "num_gpus", "size_bytes", "time_us", "busbw_GBps", "rep")

pytestmark = needs_binary


def saturated(gpus, size):
    """An H100 whose ports are saturated: (n - 1) / n of the size at 0.7 of 450 GB/s, after 10 us."""
    return 10 + size * (gpus - 1) / gpus / 0.7 / 450e3


def rows(time_us, slower=1.0, device="NVIDIA H100 80GB HBM3", counts=(2, 4, 8), version="2.30"):
    for gpus in counts:
        for power in range(9, 30):
            for dtype in ("half", "int8"):
                time = time_us(gpus, 2**power) * (slower if gpus == 8 else 1)
                yield ("h100_sxm", device, f"h100_sxm/comm/nccl/{version}", version, "alltoall", dtype,
                       gpus, 2**power, time, 1, 0)


def write(folder, content, packed=False):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *content])
    if packed:
        (folder / "nccl_intranode.csv.gz").write_bytes(gzip.compress(text.getvalue().encode()))
    else:
        (folder / "nccl_intranode.csv").write_text(text.getvalue())
    return folder


def errors(output):
    """Subject: median error in percent."""
    return {row["subject"]: 100 * float(row["median_error"])
            for row in csv.DictReader(io.StringIO(output))}


@pytest.mark.parametrize("packed", [False, True])
def test_saturated_ports_are_predicted_exactly(tmp_path, packed):
    write(tmp_path, rows(saturated), packed)
    found = errors(succeed("validate", "exchanges", "--data", tmp_path, "--format", "csv"))
    large, small = (found[f"h100_sxm: all-to-all, 8 GPUs from 2 and 4, {region}"]
                    for region in ("from 1 MiB", "below 1 MiB, least"))
    # The line through 2 and 4 GPUs holds for 8: as saturated() is one. Below, the law counts bytes
    # per peer, which differs from bytes sent by less than a microsecond in 11.
    assert large < 0.01
    assert 0 < small < 5


def test_larger_counts_are_asked_for_as_predict_answers(tmp_path):
    write(tmp_path, rows(saturated))
    found = errors(succeed("validate", "exchanges", "--data", tmp_path, "--format", "csv"))
    steps = ("4 GPUs from 2", "8 GPUs from 2", "8 GPUs from 2 and 4", "4 GPUs from 2 and 8")
    for step in steps:
        assert found[f"all-to-all by predict: {step}, above 1 MiB"] < 0.5, step
        assert found[f"all-to-all by predict: {step}, up to 1 MiB"] < 10, step
    # The law of one run of one machine: nobody else says how far off it is, so that it has the errors
    # of all machines. 8 GPUs that take twice as long are outside, 4 from 2 are not.
    write(tmp_path, rows(saturated, slower=2))
    said, _ = verdicts(tmp_path)
    doubled, = [text for text in said if text.startswith("all-to-all by predict: 2 times the GPUs: ")]
    assert "90 % band: 42 of 84 inside" in doubled
    fourfold, = [text for text in said if text.startswith("all-to-all by predict: 4 times the GPUs: ")]
    assert re.search(r"90 % band: \d of 42 inside", fourfold)


def test_the_law_s_errors_are_those_of_the_public_tables():
    folder = folder_of("vidur_network_allreduce_sendrecv.csv.gz")
    found = [re.search(r"bands from all machines reach (.*) in logs, by size; as shipped (.*)", each["text"])
             for each in validated(folder)["verdicts"]]
    pairs = [told.groups() for told in found if told]
    assert len(pairs) == 6
    for fitted, shipped in pairs:
        assert fitted == shipped


def test_a_missed_bar_is_named_and_ends_with_5(tmp_path):
    # 8 GPUs take a tenth longer than any law could know: 1 / 1.1 - 1 is 9.1 % off.
    write(tmp_path, rows(saturated, slower=1.1))
    result = moesim("validate", "exchanges", "--data", tmp_path)
    assert result.returncode == 5
    unmet = [line for line in result.stdout.splitlines() if "UNMET" in line]
    assert len(unmet) == 1 and "9.09 %" in unmet[0] and "bar 2.5 %" in unmet[0]
    assert "deepep_normal.csv left out" in result.stdout


def verdicts(folder):
    """Text: whether met, None where not judged; and the exit code."""
    result = moesim("validate", "exchanges", "--data", folder, "--format", "json")
    document = json.loads(result.stdout)
    assert all(row["predicted"] is None for row in document["rows"])
    return {each["text"]: each["met"] for each in document["verdicts"]}, result.returncode


def test_a_bar_without_its_rows_is_not_judged_and_says_so(tmp_path):
    # 4 GPUs from 2 is another question than the bar's, though no law could meet it here either.
    write(tmp_path, [row for row in rows(saturated, slower=3) if row[6] != 8])
    found, code = verdicts(tmp_path)
    bars = [text for text in found if "; bar " in text]
    assert code == 0 and len(bars) == 4
    for text in bars:
        assert found[text] is None and "not judged" in text, text
    assert any(text.startswith("a100_sxm: all-to-all among 8 GPUs from 2 and 4") for text in bars)


def test_versions_measured_among_other_counts_are_pooled_apart(tmp_path):
    # 2.31 was measured among 4 and 8 only, where 8 took three times as long: not the bar's counts.
    write(tmp_path, [*rows(saturated), *rows(saturated, slower=3, counts=(4, 8), version="2.31"),
                     *rows(saturated, counts=(8,), version="2.32")])
    found, _ = verdicts(tmp_path)
    bars = [met for text, met in found.items() if " bar " in text]
    assert bars.count(True) == 2 and bars.count(None) == 2
    assert any("left out for too few GPU counts: NCCL 2.32 (among 8)" in text for text in found)
    # Ends with 5: no band holds runs that differ by three times.
    output = moesim("validate", "exchanges", "--data", tmp_path, "--format", "csv").stdout
    pooled = errors(output)
    assert pooled["h100_sxm: all-to-all, 8 GPUs from 2 and 4, from 1 MiB"] < 0.01
    assert pooled["h100_sxm: all-to-all, 8 GPUs from 4, from 1 MiB"] > 50


RANKS = ("system", "op_name", "kernel_source", "moe_dtype", "version", "hidden_size", "num_experts",
         "topk", "moe_ep_size", "num_tokens", "latency_us")


def ranks(version, slower=1.0, sizes=(2, 4, 8)):
    for size in sizes:
        for tokens in (16, 64, 256, 1024, 4096):
            time = 10 + tokens * (size - 1) / 100
            yield ("gb200", "alltoall_prepare", "one", "fp8", version, 7168, 256, 8, size, tokens,
                   time * (slower if size == 8 else 1))


def test_every_version_of_a_kernel_counts_and_sizes_are_named_as_they_are(tmp_path):
    def found(content):
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([RANKS, *content])
        (tmp_path / "trtllm_moe_alltoall_gb200.csv").write_text(text.getvalue())
        return errors(succeed("validate", "exchanges", "--data", tmp_path, "--format", "csv"))

    write(tmp_path, rows(saturated))
    subject = "gb200 TensorRT-LLM prepare, EP 8 from 2 and 4, from 512 tokens"
    one = found(ranks("1"))[subject]
    both = found([*ranks("1"), *ranks("2", slower=9)])[subject]
    assert both > one + 10  # half of the rows took nine times as long
    assert "gb200 TensorRT-LLM prepare, EP 16 from 4 and 8, from 512 tokens" in found(
        ranks("1", sizes=(4, 8, 16)))
    found([*ranks("1", sizes=(2, 4)), *[(*row[:2], "two", *row[3:]) for row in ranks("1")]])
    said, _ = verdicts(tmp_path)
    assert "gb200 TensorRT-LLM prepare: one fp8 left out: measured among 2 and 4 ranks only" in said


def test_the_table_keeps_errors_out_of_the_columns_of_times(tmp_path):
    write(tmp_path, rows(saturated))
    lines = succeed("validate", "exchanges", "--data", tmp_path).splitlines()
    head = next(line for line in lines if "equal bytes sent" in line)
    assert head.split("  ")[0] == "median error in %" and "measured" not in head
    # One column more where an error of the table has two digits before the point.
    widest = any(re.search(r"\S  +[0-9]{2}\.[0-9]  ", line) for line in lines)
    assert max(len(line) for line in lines if line.startswith("h100_sxm")) < 160 + widest


def test_a_device_without_a_profile_is_left_out_by_name(tmp_path):
    write(tmp_path, rows(saturated, device="NVIDIA X1"))
    result = moesim("validate", "exchanges", "--data", tmp_path)
    assert result.returncode == 1
    assert "no exchange" in result.stderr


def test_tables_that_are_absent_or_malformed_are_named(tmp_path):
    assert moesim("validate", "exchanges").returncode == 2
    absent = moesim("validate", "exchanges", "--data", tmp_path)
    assert absent.returncode == 2 and "nccl_intranode.csv" in absent.stderr
    write(tmp_path, [("h100_sxm", "NVIDIA H100", "2.30", "2.30", "alltoall", "half", 8, 1024, "fast",
                      1, 0)])
    malformed = moesim("validate", "exchanges", "--data", tmp_path)
    assert malformed.returncode == 2
    assert "nccl_intranode.csv, line 2, column time_us: 'fast' is not a number" in malformed.stderr
    (tmp_path / "nccl_intranode.csv").unlink()
    (tmp_path / "nccl_intranode.csv.gz").write_bytes(gzip.compress(b"system,device\n" * 99)[:30])
    assert "unpacked" in moesim("validate", "exchanges", "--data", tmp_path).stderr


CROSSING = ("source", "system", "fabric", "nodes", "gpus", "library", "op", "size_bytes", "workload",
            "metric", "value", "unit", "std", "internode", "notes")


def crossings(slower, sizes=(2**24, 2**26, 2**28, 2**30)):
    """Rows of two machines on the law of hgx-h100, whose second takes `slower` times as long."""
    for system, factor in (("p5.48xlarge", 1), ("H100 (8/node)", slower)):
        for gpus in (16, 32):
            for size in sizes:
                row = as_rows("predict", "--op", "all-to-all", "--gpus", gpus, "--bytes", f"{size}B", "--profile",
                              "h100-sxm", "--cluster", "hgx-h100")[0]
                time = float(row["time_us"]) * factor
                yield ("made up", system, "", gpus // 8, gpus, "nccl-tests", "alltoall", size, "",
                       "latency", time, "us", "", "yes", "")


def write_crossings(folder, content):
    write(folder, rows(saturated))
    with (folder / "internode_alltoall.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([CROSSING, *content])


# nccl-tests inside one rack of GB300 (an OCI acceptance document): GPUs, GiB, busbw in GB/s, two runs.
RACK = ((4, 8, 624.98), (4, 16, 627.69), (8, 8, 679.65), (8, 16, 685.06), (64, 8, 649.03), (64, 16, 666.92),
        (4, 4, 611.52), (4, 8, 615.30), (8, 8, 657.81), (8, 16, 662.27), (64, 8, 566.30), (64, 16, 622.92))


def rack(slower_run=1):
    for number, (gpus, gib, busbw) in enumerate(RACK):
        yield ("quoted", "GB300 NVL72 (4 GPU/host)", "NVL72 in rack", gpus // 4, gpus, "nccl-tests",
               "alltoall", gib * 2**30, "", "busbw", busbw / (slower_run if number > 5 else 1), "GB/s", "",
               "NVLink domain", "")


def test_a_rack_is_predicted_from_its_other_run_and_gpu_counts(tmp_path):
    write_crossings(tmp_path, rack())
    found = errors(succeed("validate", "exchanges", "--data", tmp_path, "--format", "csv"))
    assert found["GB300 in one rack: all-to-all, run left out"] < 5
    assert found["GB300 in one rack: all-to-all, GPU count left out"] < 5
    said, code = verdicts(tmp_path)
    assert code == 0 and any("12 of 12 points in the 90 % band of profile gb300" in text for text in said)
    # From a log of 4 GPUs alone the largest sizes are within a tenth, in a band of less than a factor of 2.
    for step in ("8 GPUs from 4", "64 GPUs from 4", "64 GPUs from 4 and 8"):
        assert found[f"GB300 in one rack: all-to-all by predict, {step}"] < 10, step
    band, = [text for text in said if "rack: all-to-all by predict: " in text]
    assert "12 of 12 inside" in band and int(re.search(r"(\d+) % wide", band)[1]) < 50
    # A run twice as slow is 50 % off from the other and the other way round.
    write_crossings(tmp_path, rack(slower_run=2))
    said, code = verdicts(tmp_path)
    assert code == 5
    assert [met for text, met in said.items() if "rack: all-to-all, run left out" in text] == [False]


def test_machines_on_the_law_between_nodes_are_predicted_from_each_other(tmp_path):
    write_crossings(tmp_path, crossings(slower=1))
    found = errors(succeed("validate", "exchanges", "--data", tmp_path, "--format", "csv"))
    for system in ("p5.48xlarge", "H100 (8/node)"):
        assert found[f"{system}: all-to-all between nodes, machine left out, above 1 MiB"] < 1e-6
        assert found[f"{system}: all-to-all on 2, 4 nodes, each left out, above 1 MiB"] < 1  # between sizes
        assert found[f"{system}: all-to-all by predict, 4 nodes from up to 2, above 1 MiB"] < 1


def test_a_machine_off_the_law_misses_its_bar_and_its_band(tmp_path):
    # Three times as slow: the other machine cannot tell, its own other node count tells half.
    write_crossings(tmp_path, crossings(3, (2**20, 2**22, 2**24, 2**26, 2**28, 2**30)))
    found = errors(succeed_with(5, tmp_path))
    assert found["H100 (8/node): all-to-all between nodes, machine left out, above 1 MiB"] == \
        pytest.approx(100 * 2 / 3, abs=0.1)
    assert found["H100 (8/node): all-to-all on 2, 4 nodes, each left out, above 1 MiB"] == \
        pytest.approx(100 * (1 - 1 / 3**0.5), abs=1)
    assert found["H100 (8/node): all-to-all by predict, 4 nodes from up to 2, above 1 MiB"] == \
        pytest.approx(100 * (1 - 1 / 3**0.5), abs=1)
    said, code = verdicts(tmp_path)
    assert code == 5
    assert sorted(text.split(":")[0] for text, met in said.items() if met is False) == [
        "H100 (8/node)", "all-to-all between nodes, machines left out",
        "all-to-all between nodes, numbers of nodes left out, above 1 MiB", "p5.48xlarge"]
    # Two of four groups outside happen one time in nineteen: not judged, but shown.
    assert any("numbers of nodes left out: 90 % band: 12 of 24 inside" in text for text in said)


def succeed_with(code, folder):
    result = moesim("validate", "exchanges", "--data", folder, "--format", "csv")
    assert result.returncode == code
    return result.stdout


def test_the_bars_between_nodes_hold_on_the_shipped_excerpt():
    said, _ = verdicts(ROOT / "tests" / "data")
    judged = {text: met for text, met in said.items() if "between nodes" in text and met is not None}
    # Four machines above 1 MiB, numbers of nodes above 1 MiB and their bands; 5 machines are too few for bands.
    assert len(judged) == 7 and all(judged.values()), judged


def test_a_table_between_nodes_with_a_bad_cell_is_named(tmp_path):
    content = list(crossings(slower=1))
    content[3] = (*content[3][:10], "fast", *content[3][11:])
    write_crossings(tmp_path, content)
    result = moesim("validate", "exchanges", "--data", tmp_path)
    assert result.returncode == 2
    assert "internode_alltoall.csv, line 5, column value: 'fast' is not a number" in result.stderr


def test_a_dispatcher_whose_number_of_sms_cannot_be_read_is_named(tmp_path):
    dispatcher = ("HybridEP README", "H100", "IB (8/node)", 2, 16, "HybridEP x SMs (kernel only)", "combine", "",
                  "4096 tok", "algbw", 52, "GB/s", "", "yes", "")
    write_crossings(tmp_path, [*crossings(slower=1), dispatcher])  # lines 2 to 17, and 18
    result = moesim("validate", "exchanges", "--data", tmp_path)
    assert result.returncode == 2
    assert "internode_alltoall.csv, line 18, column library: 'x' is not a whole number" in result.stderr
