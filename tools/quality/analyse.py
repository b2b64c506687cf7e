#!/usr/bin/env python3
"""The table of claims and the chart of a quality experiment, by the plan in experiment.py.

    analyse.py RESULTS.csv [--chart CHART.png] [--table TABLE.md]

The table goes to stdout unless --table names a file. A seed counts when all its runs are there.
"""
import argparse
import os
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from claims import EXPECTED, Results, Term, claims, interval, reference, verdict  # noqa: E402
from experiment import CAPACITY_FACTORS, SUFFIXES, arms, write_atomically  # noqa: E402


KINDS = ("", ", upcycled")


def table(results):
    lines = ["| | claim | difference | nats per byte, 95 % interval | expected | |",
             "|---|---|---|---|---|---|"]
    last = None
    for claim in claims():
        mean, half = interval(results.differences(claim))
        head = (f"{claim.number}", claim.title) if claim.number != last else ("", "")
        last = claim.number
        lines.append(f"| {head[0]} | {head[1]} | {claim.what} | {mean:+.4f} ± {half:.4f} | "
                     f"{EXPECTED[claim.expected]} | {verdict(mean, half, claim.expected)} |")
    return "\n".join(lines) + "\n"


def slopes(results):
    """What lost mass costs: excess loss over lost mass, through the origin, by router."""
    lines = ["| router | nats per byte and unit of lost mass | residual scatter |", "|---|---|---|"]
    for kind, base in ((kind, base) for kind in KINDS for base in ("top1", "top2")):
        for suffix in SUFFIXES:
            terms = [Term(base + kind, base + suffix, factor) for factor in CAPACITY_FACTORS]
            excess = np.array([results.excess(term, reference(base, kind)) for term in terms])
            lost = np.array([[results.lost[term][seed] for seed in results.seeds]
                             for term in terms])
            slope = (excess * lost).sum(0) / (lost * lost).sum(0)
            scatter = np.sqrt(((excess - slope * lost) ** 2).mean())
            mean, half = interval(slope)
            lines.append(f"| {base}{suffix}{kind} | {mean:.3f} ± {half:.3f} | {scatter:.4f} |")
    return "\n".join(lines) + "\n"


def levels(results):
    """Held-out loss of each arm under its own router, and what it loses."""
    lines = ["| arm | nats per byte | lost mass |", "|---|---|---|"]
    for arm in arms():
        term = Term(arm.name, arm.router, arm.capacity_factor if arm.experts else "",
                    arm.experts_per_gpu)
        mean, half = interval(np.array([results.loss[term][seed] for seed in results.seeds]))
        lost = np.mean([results.lost[term][seed] for seed in results.seeds])
        lines.append(f"| {arm.name} | {mean:.4f} ± {half:.4f} | "
                     f"{'' if np.isnan(lost) else f'{100 * lost:.1f} %'} |")
    return "\n".join(lines) + "\n"


def main(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0],
                                     allow_abbrev=False)
    parser.add_argument("results")
    parser.add_argument("--chart", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args(words)
    results = Results(options.results)
    text = "\n".join([f"Seeds: {', '.join(map(str, results.seeds))}.\n", table(results),
                      slopes(results), levels(results)])
    if options.table:
        write_atomically(options.table, lambda path: path.write_text(text, encoding="utf-8"))
    else:
        print(text, end="")
    if options.chart:
        from quality_chart import draw
        figure = draw(results)
        write_atomically(options.chart, lambda path: figure.savefig(
            path, format="png", dpi=120, metadata={"Software": None}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
