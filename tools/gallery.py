#!/usr/bin/env python3
"""Writes notebooks/gallery.md: what three users type, and what they get.

Every output and chart on the page is what the command printed or drew when this script ran.

usage: tools/gallery.py [--moesim PATH] [--out FOLDER]
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = "gallery.md"
CHARTS = "gallery"

# (heading, what the user wants, [(command, chart it draws or None)])
USERS = [
    ("A training engineer", "64 H100 and Mixtral: which layout, and what would a little token loss buy?", [
        ("moesim recommend --model mixtral-8x7b --gpus 64 --tensor-parallel 1,2 --context-parallel 1 "
         "--micro-batch 1,2 --max-loss 2% --chart front.png", "front.png"),
    ]),
    ("A researcher", "Which of the paper's rectifications pays at which capacity factor?", [
        ("moesim sweep --router top2,top2+fr,top2+ir,top2+fr+ir --capacity-factor 0.5:2:0.5 --mode prefill "
         "--replicas 4 --out routers.csv", None),
        ("moesim plot routers.csv --out routers.png", "routers.png"),
    ]),
    ("A cluster operator", "How do steps scale over the nodes, and what does an exchange between them take?", [
        ("moesim predict --profile h100-sxm --cluster hgx-h100 --op all-to-all --gpus 64 --bytes 64MiB", None),
        ("moesim sweep --model mixtral-8x7b --profile h100-sxm --gpus 32,64,128,256 --expert-parallel 8 "
         "--micro-batch 1 --router dropless,top2 --capacity-factor 2 --replicas 4 --out nodes.csv", None),
        ("moesim plot nodes.csv --chart scaling --out nodes.png", "nodes.png"),
    ]),
]


def run(command, moesim, folder):
    """What it says on stderr, in which progress has no place, and prints."""
    words = shlex.split(command)
    result = subprocess.run([moesim, *words[1:]], cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{command}\n{result.stderr}")
    notes = [line for line in result.stderr.splitlines()
             if line.startswith(("warning: ", "note: ")) or line.split(":")[0] in ("chart",)]
    return [*notes, *(line.rstrip() for line in result.stdout.splitlines())]


def page(moesim, folder):
    """The page's text; the charts are left in `folder`."""
    lines = ["# Three users, their commands, what they get", "",
             "Made by `tools/gallery.py`: all outputs and charts are what the commands printed and drew.", ""]
    for heading, wish, commands in USERS:
        lines += [f"## {heading}", "", wish, ""]
        for command, chart in commands:
            lines += [f"    $ {command}", *(f"    {line}".rstrip() for line in run(command, moesim, folder)), ""]
            if chart:
                lines += [f"![{heading}: {chart}]({CHARTS}/{chart})", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moesim", default=os.environ.get("MOESIM_BIN", "moesim"), help="the command")
    parser.add_argument("--out", default=ROOT / "notebooks", type=Path, help="where the page goes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = page(options.moesim, folder)
        (options.out / CHARTS).mkdir(parents=True, exist_ok=True)
        for _, _, commands in USERS:
            for _, chart in commands:
                if chart:
                    (options.out / CHARTS / chart).write_bytes((Path(folder) / chart).read_bytes())
    (options.out / PAGE).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
