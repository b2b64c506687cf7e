#!/usr/bin/env python3
"""Writes anew what bands of steps are made of, and how those of training steps did.

    tools/regenerate_bands.py --data FOLDER [--moesim PROGRAM]

FOLDER holds moe_training_steps.csv, smartmoe_gpt_step_times.csv and smartmoe_routing_trace.npz.
Needed after every change of what a step is priced as, by train or by simulate: writes
profiles/residuals/training.json and steps.json, profiles/studies/training-bands.png and the tables
of profiles/ACCURACY.md between the marks "training bands". What `moesim validate steps` prints of
its bands stands in sim/uncertainty/README.md and ACCURACY.md by hand: compare.
"""
import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- training bands: written by tools/regenerate_bands.py -->", "<!-- end of training bands -->"
QUALITY_BAR_NOT_MET = 5
LEVELS = (0.9, 0.8, 0.5)


def run(program, *words, allowed=(0,)):
    result = subprocess.run([program, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode not in allowed:
        sys.exit(f"regenerate_bands: {program} {words[0]}: {result.stderr.strip()}")


def bands_table(rows):
    lines = ["| left out | level | inside | mean width, factor | interval score | constant band |",
             "|---|---|---|---|---|---|"]
    before = ""
    for row in rows:
        if row["level"] not in LEVELS:
            continue
        share = 100 * row["inside"]
        inside = f"{round(row['inside'] * row['points'])} of {row['points']} ({share:.0f} %)"
        if row["level"] == 0.9 and not 84.5 <= share < 95.5:
            inside = f"**{inside}**"
        name = "" if row["left_out"] == before else row["left_out"]
        before = row["left_out"]
        lines.append(f"| {name} | {100 * row['level']:.0f} % | {inside} | {math.exp(row['log_width']):.2f} | "
                     f"{row['interval_score']:.2f} | {row['constant_band_score']:.2f} |")
    return lines


def listed(verdicts, part):
    """The verdicts that say `part`, as items."""
    return [f"- {verdict['text']}" for verdict in verdicts if part in verdict["text"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--data", required=True, help="the folder that holds the public tables")
    parser.add_argument("--moesim", default="moesim", help="the command (default: the one on the PATH)")
    options = parser.parse_args()
    page = ROOT / "profiles" / "ACCURACY.md"
    text = page.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        sys.exit(f"regenerate_bands: {page}: no marks '{BEGIN}' and '{END}'")
    data = Path(options.data).resolve()
    run(options.moesim, "validate", "steps", "--data", data, "--residuals",
        ROOT / "profiles" / "residuals" / "steps.json", allowed=(0, QUALITY_BAR_NOT_MET))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "training.json"
        run(options.moesim, "validate", "training", "--data", data, "--residuals",
            ROOT / "profiles" / "residuals" / "training.json", "--format", "json", "--out", out,
            allowed=(0, QUALITY_BAR_NOT_MET))
        run(options.moesim, "plot", out, "--title", "Bands of predicted training steps",
            "--out", ROOT / "profiles" / "studies" / "training-bands.png")
        document = json.loads(out.read_text(encoding="utf-8"))
    lines = [*bands_table(document["bands"]), "", "90 % bands by machine, whose groups alone are too few for a bar:",
             "",
             *[line for line in listed(document["verdicts"], "mean width a factor of") if "calibrated" not in line],
             "", "`moesim calibrate` with some of a machine's public steps, 40 draws, the prior of other software alone:", "",
             *listed(document["verdicts"], "calibrated with")]
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    page.write_text(head + BEGIN + "\n" + "\n".join(lines) + "\n" + END + tail, encoding="utf-8")


if __name__ == "__main__":
    main()
