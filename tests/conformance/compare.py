"""Compares 'moesim route --logits' with the routers of libraries: see tests/conformance/README.md."""
import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import torch

import libraries

PAGE = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- table: written by compare.py -->", "<!-- end of table -->"
RANKS = 4            # each a case by itself: capacities are of a source GPU
SKEWS = (0.0, 0.8)   # standard deviation of a bias per expert over unit noise
SEEDS = 2
WEIGHT_ERROR = 2e-6  # relative to the largest weight: some ulps of fp32


def draw(experts, tokens, skew, seed):
    random = numpy.random.default_rng([seed, experts, tokens])
    popularity = skew * random.normal(size=experts)
    return (random.normal(size=(RANKS, tokens, experts)) + popularity).astype(numpy.float32)


def route(binary, folder, rule, logits):
    """(kept, weights), [rank, token, expert], of moesim."""
    source, target = folder / "logits.npy", folder / "routes.npy"
    numpy.save(source, logits)
    words = [str(binary), "route", "--logits", str(source), "--out", str(target), *rule.options]
    if rule.bias is not None:
        numpy.save(folder / "bias.npy", rule.bias)
        words += ["--expert-bias", str(folder / "bias.npy")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    routes = numpy.load(target)
    on = routes[routes["slot"] >= 0]
    kept = numpy.zeros(logits.shape, dtype=bool)
    weights = numpy.zeros(logits.shape, dtype=numpy.float64)
    kept[on["rank"], on["token"], on["expert"]] = True
    weights[on["rank"], on["token"], on["expert"]] = on["weight"]
    return kept, weights


def compare(binary, folder, rule):
    """(cases, cases with the same routes, cases with the same weights too)."""
    cases = same = exact = 0
    for tokens in rule.tokens:
        for skew in SKEWS:
            for seed in range(SEEDS):
                logits = draw(rule.experts, tokens, skew, seed)
                kept, weights = route(binary, folder, rule, logits)
                for rank in range(RANKS):
                    expected, expected_weights = rule.run(logits[rank].copy())
                    cases += 1
                    if not (kept[rank] == expected).all():
                        continue
                    same += 1
                    error = numpy.abs(weights[rank] - expected_weights).max()
                    exact += int(error <= WEIGHT_ERROR * max(1.0, numpy.abs(expected_weights).max()))
    return cases, same, exact


def table_of(found):
    lines = ["| library | version | router | cases | same routes | same weights |", "|---|---|---|---|---|---|"]
    for library in found:
        if library.skipped:
            lines.append(f"| {library.name} | {library.version or '-'} | skipped: {library.skipped} | | | |")
        totals = {}
        for rule, counts in library.found:
            before = totals.get(rule.name, (0, 0, 0))
            totals[rule.name] = tuple(map(sum, zip(before, counts)))
        for name, (cases, same, exact) in totals.items():
            lines.append(f"| {library.name} | {library.version} | {name} | {cases} | {same} | {exact} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moesim", required=True, type=Path)
    parser.add_argument("--check", action="store_true", help="leave the table as it is")
    arguments = parser.parse_args()
    failed = 0
    torch.set_num_threads(1)  # the cases are small: threads would wait for each other
    found = libraries.libraries()
    with tempfile.TemporaryDirectory() as name:
        for library in found:
            library.load()
            rules, library.found = library.found, []
            for rule in rules:
                counts = compare(arguments.moesim, Path(name), rule)
                library.found.append((rule, counts))
                print(f"{library.name}: {rule.name}: {counts[2]} of {counts[0]}", file=sys.stderr, flush=True)
                if counts[0] != counts[1] or counts[0] != counts[2]:
                    failed += 1
                    print(f"{library.name}: {rule.name}: {counts[1]} of {counts[0]} routes, {counts[2]} weights: "
                          f"{' '.join(rule.options)}", file=sys.stderr)
            print(f"{library.name} {library.version}: "
                  f"{library.skipped or f'{len(library.found)} rules compared'}", file=sys.stderr)
    table = table_of(found)
    if arguments.check:
        print(table)
    else:
        text = PAGE.read_text()
        parts = re.split(f"{re.escape(BEGIN)}.*?{re.escape(END)}", text, flags=re.DOTALL)
        PAGE.write_text(f"{parts[0]}{BEGIN}\n{table}\n{END}{parts[1]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
