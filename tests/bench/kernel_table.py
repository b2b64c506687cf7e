#!/usr/bin/env python3
"""Prints the table of kernels/README.md from what bench_gpu_kernels measured.

usage: kernel_table.py gpu_kernels.json
"""

import json
import sys


def time_of(peer, kind):
    return peer.get(f"{kind}_us")


def best_peer(row):
    """The fastest peer of the kind that the row is judged by, and its time over the row's."""
    kind = row["timed"]
    own = row["point"][kind]["median"]
    timed = [(time_of(peer, kind), peer["name"]) for peer in row["peers"] if time_of(peer, kind)]
    if not timed:
        return "", ""
    time_us, name = min(timed)
    return f"{name}, {time_us:.1f} us", f"{time_us / own:.2f}"


def bar_of(row):
    """The row's own bar, apart from its peers, which its verdict counts as well."""
    if not row["bar"]:
        return ""
    words = row["bar"].split()
    most, value = words[1] == "most", float(words[2])
    figure = (row["of_floor"] if "floor" in words else
              100 * row["of_copy"] if "copy" in words else row["time_us"])
    met = figure <= value if most else figure >= value
    return f"{row['bar']}: {'met' if met else '**not met**'}"


def table(document):
    lines = ["| benchmark | us | GB/s over a device copy's | bar | fastest peer | its time over ours |",
             "|---|---|---|---|---|---|"]
    for row in document["rows"]:
        if row["trouble"]:
            lines.append(f"| {row['benchmark']} | {row['trouble']} | | | | |")
            continue
        peer, ratio = best_peer(row)
        lines.append(f"| {row['benchmark']} | {row['time_us']:.2f}, {row['timed']} | "
                     f"{100 * row['of_copy']:.0f} % | {bar_of(row)} | {peer} | {ratio} |")
    return "\n".join(lines)


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    with open(sys.argv[1], encoding="utf-8") as file:
        print(table(json.load(file)))


if __name__ == "__main__":
    main()
