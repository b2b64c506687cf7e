"""Prints a sweep as one row per capacity factor and one column per router.

sweep_table.py SWEEP.csv: thousand tokens per second and GPU, and the token loss after rectification.
"""

import csv
import sys


def cell(row):
    """"10.3k  4.5 %", or the reason why this scenario cannot be."""
    if row["status"] != "ok":
        return "-"
    speed = float(row["tokens_per_s_per_gpu"]) / 1000
    loss = row["residual_loss"]
    return f"{speed:.1f}k" + (f" {100 * float(loss):5.2f} %" if loss else "")


def main(path):
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    routers = list(dict.fromkeys(row["router"] for row in rows))
    factors = list(dict.fromkeys(row["capacity_factor"] for row in rows))
    cells = {(row["router"], row["capacity_factor"]): cell(row) for row in rows}
    width = max([len(text) for text in cells.values()] + [len(router) for router in routers]) + 2
    print("tokens/s per GPU, and token loss after rectification (residual_loss)")
    print(f"{'CF':>5}" + "".join(f"{router:>{width}}" for router in routers))
    for factor in factors:
        line = "".join(f"{cells.get((router, factor), ''):>{width}}" for router in routers)
        print(f"{factor:>5}{line}")


if __name__ == "__main__":
    main(*sys.argv[1:])
