"""How far off exchanges are beyond what was measured: larger sizes, and a sibling's GPU counts.

    python3 -m tools.fit.exchange_errors --data DIR

Prints medians with the largest sizes of every machine hidden (exchange_tail.py), and of machines predicted
from their siblings (exchange_siblings.py).
"""
import argparse
from pathlib import Path

import numpy as np

from tools.fit import collective_rows, exchange_scatter, exchange_tail


def median(errors):
    return np.median(np.abs(errors))


def report_tails(table):
    rows, base = exchange_tail.rack_rows(), collective_rows.rack_base(table)
    factor = exchange_tail.choose_factor(rows, base)
    print(f"all-to-all over 900 GB/s: {factor:.3f} times faster beyond; median error "
          f"{median(exchange_tail.rack_errors(rows, base, factor)):.1%}, straight "
          f"{median(exchange_tail.rack_errors(rows, base, 1.0)):.1%}, "
          f"left out {median(exchange_tail.rack_held_out(rows, base)[0]):.1%}")
    for hide in (1, 2, 3, 4, 6):
        for op in collective_rows.OPS:
            ours, straight = exchange_scatter.hidden_errors(table, op, hide)
            print(f"{op}, last {hide} sizes hidden: {median(ours):.1%}, straight {median(straight):.1%}")


def report_siblings(table):
    for op in collective_rows.OPS:
        for line in (450e3, 900e3):
            found = exchange_scatter.sibling_errors(table, op, line)
            for what, inside in (("from 1 MiB", found.bytes >= 2**20), ("below", found.bytes < 2**20)):
                errors = np.log(found.measured / found.predicted)[inside]
                print(f"{op}, {line / 1e3:g} GB/s, {what}: {median(errors):.1%}")


def main():
    parser = argparse.ArgumentParser(prog="tools.fit.exchange_errors",
                                     description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    table = collective_rows.load(parser.parse_args().data)
    report_tails(table)
    report_siblings(table)


if __name__ == "__main__":
    main()
