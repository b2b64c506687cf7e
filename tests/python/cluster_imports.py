"""Runs `moesim import --cluster` on logs for the tests of it."""

import json
from pathlib import Path

from command_line import moesim

LOGS = Path(__file__).resolve().parents[1] / "data" / "logs"
BASE = Path(__file__).resolve().parents[2] / "profiles" / "clusters" / "hgx-h100.json"


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


def one_node_log(path, time_us, sizes=tuple(2**power for power in range(10, 28)), hosts=1):
    """8 GPUs of one node, or of several; the first row of times is line 13."""
    lines = ["# nccl-library=22703", "# Collective test starting: alltoall_perf"]
    lines += [f"#  Rank {rank} Group 0 Pid 1{rank} on host{rank * hosts // 8} device {rank} [0x{rank:02x}] NVIDIA H100"
              for rank in range(8)]
    lines += ["#", "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong"]
    for size in sizes:
        rate = size / time_us(size) / 1e3
        cells = f"{time_us(size):.2f} {rate:.2f} {rate * 7 / 8:.2f} 0"
        lines.append(f" {size} {size // 2} half none -1 {cells} {cells}")
    path.write_text("\n".join([*lines, "# Out of bounds values : 0 OK", ""]))
    return path


def usual(size):
    return 25 + size / 377e3


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
