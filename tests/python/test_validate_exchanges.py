"""`moesim validate exchanges`: on a small made-up table whose answers are known, and on the public
tables where they are there."""

import csv
import gzip
import io
import json
import os
from pathlib import Path

import pytest

from command_line import moesim, needs_binary, succeed

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("MOESIM_DATA", ROOT.parent / "shared" / "data"))
COLUMNS = ("system", "device", "source_dir", "nccl_version_recorded", "op_name", "nccl_dtype",
           "num_gpus", "size_bytes", "time_us", "busbw_GBps", "rep")

pytestmark = needs_binary


def saturated(gpus, size):
    """An H100 whose ports are saturated: (n - 1) / n of the size at 0.7 of 450 GB/s, after 10 us."""
    return 10 + size * (gpus - 1) / gpus / 0.7 / 450e3


def rows(time_us, slower=1.0, device="NVIDIA H100 80GB HBM3"):
    for gpus in (2, 4, 8):
        for power in range(9, 30):
            for dtype in ("half", "int8"):
                time = time_us(gpus, 2**power) * (slower if gpus == 8 else 1)
                yield ("h100_sxm", device, "h100_sxm/comm/nccl/2.30", "2.30", "alltoall", dtype,
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
    return {row["subject"]: float(row["predicted"]) for row in csv.DictReader(io.StringIO(output))}


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


def test_a_missed_bar_is_named_and_ends_with_5(tmp_path):
    # 8 GPUs take a tenth longer than any law could know: 1 / 1.1 - 1 is 9.1 % off.
    write(tmp_path, rows(saturated, slower=1.1))
    result = moesim("validate", "exchanges", "--data", tmp_path)
    assert result.returncode == 5
    unmet = [line for line in result.stdout.splitlines() if "UNMET" in line]
    assert len(unmet) == 1 and "9.09 %" in unmet[0] and "bar 2.5 %" in unmet[0]
    assert "deepep_normal.csv left out" in result.stdout


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
    assert "nccl_intranode.csv:2: time_us is 'fast'" in malformed.stderr
    (tmp_path / "nccl_intranode.csv").unlink()
    (tmp_path / "nccl_intranode.csv.gz").write_bytes(gzip.compress(b"system,device\n" * 99)[:30])
    assert "unpacked" in moesim("validate", "exchanges", "--data", tmp_path).stderr


@pytest.mark.skipif(not list(DATA.glob("nccl_intranode.csv*")),
                    reason=f"the public tables are not in {DATA}; set MOESIM_DATA")
def test_the_bars_on_the_public_tables_hold():
    result = moesim("validate", "exchanges", "--data", DATA, "--format", "json")
    document = json.loads(result.stdout)
    judged = {each["text"]: each["met"] for each in document["verdicts"] if each["met"] is not None}
    assert result.returncode == 0, judged
    assert len(judged) == 4
    # The bars, restated here so that they cannot be loosened with the program.
    found = {row["subject"]: row["predicted"] for row in document["rows"]}
    for system, large, small in (("h100_sxm", 2.5, 12), ("a100_sxm", 2.5, 4)):
        subject = f"{system}: all-to-all, 8 GPUs from 2 and 4, "
        assert float(found[subject + "from 1 MiB"]) <= large
        assert float(found[subject + "below 1 MiB, least"]) <= small


@pytest.mark.skipif(not list(DATA.glob("nccl_intranode.csv*")),
                    reason=f"the public tables are not in {DATA}; set MOESIM_DATA")
def test_the_law_beats_every_baseline_where_its_bars_are():
    output = succeed("validate", "exchanges", "--data", DATA, "--format", "json")
    for row in json.loads(output)["rows"]:
        if not row["subject"].startswith(("h100_sxm: all-to-all, 8 GPUs from 2 and 4, from",
                                          "a100_sxm: all-to-all, 8 GPUs from 2 and 4, from")):
            continue
        for name in ("equal bytes sent", "alpha-beta", "nearest row"):
            baseline = float(row["note"].split(name + " ")[1].split(",")[0].split(";")[0])
            assert float(row["predicted"]) < baseline, (row["subject"], name)
