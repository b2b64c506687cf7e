#!/usr/bin/env python3
"""Puts what the program prints today under the examples of the tree's pages.

    tools/refresh_examples.py --moesim PROGRAM [PAGE ...]

An example is an indented block that begins with "    $ "; page_examples.py says when one still holds. In a
block with lines left out ("...") each line takes the printed one with the same words; lines without one are
listed, to be mended by hand, and the exit status is 1.
"""
import argparse
import difflib
import re
import shlex
import subprocess
import sys
from pathlib import Path

from page_examples import BLOCK, examples, gallery, is_shown, pages

ROOT = Path(__file__).resolve().parents[1]


def words(line):
    """A line without its numbers and the width of its columns."""
    return re.sub(r"[-+]?[\d][\d.,]*", "0", re.sub(r"\s+", " ", line)).strip()


def refreshed(shown, printed):
    """(lines to show, those of `shown` that nothing printed matches)."""
    if "..." not in shown:
        return printed, []
    lost, lines = [], []
    first, left_out = 0, True  # lines may be left out before the first, too
    for line in shown:
        if line == "...":
            lines.append(line)
            left_out = True
            continue
        alike = [at for at in range(first, len(printed)) if words(printed[at]) == words(line)]
        if not alike:
            close = difflib.get_close_matches(words(line), [words(each) for each in printed[first:]], 1, 0.9)
            alike = [first + [words(each) for each in printed[first:]].index(close[0])] if close else []
        if not alike:
            lost.append(line)
            lines.append(line)
            continue
        # Right behind the line before, but where lines are left out: there the most similar.
        best = (max(alike, key=lambda at: difflib.SequenceMatcher(None, line, printed[at]).ratio()) if left_out
                else alike[0])
        lines.append(printed[best])
        first, left_out = best + 1, False
    return lines, lost


def refresh(page, program):
    """Writes a page anew; the lines that must be mended by hand."""
    text = page.read_text(encoding="utf-8")
    lost = []

    def block_of(match):
        block = match.group(0)
        lines = block.splitlines()
        if not lines[0].startswith("    $ "):
            return block
        [(command, shown)] = examples(block)
        result = subprocess.run([program, *shlex.split(command)[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            lost.append(f"{command}: {result.stderr.strip()}")
            return block
        printed = result.stdout.splitlines()
        if is_shown(shown, printed):
            return block
        now, missing = refreshed(shown, printed)
        lost.extend(missing)
        head = lines[:len(lines) - len(shown)]
        return "\n".join(head + ["    " + line if line else "    " for line in now]) + "\n"

    written = BLOCK.sub(block_of, text)
    if written != text:
        page.write_text(written, encoding="utf-8")
        print(f"{page.relative_to(ROOT)}: written")
    return [f"{page.relative_to(ROOT)}: {line}" for line in lost]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moesim", required=True, help="the program to run")
    parser.add_argument("pages", nargs="*", type=Path, help="pages; all of the tree without any")
    options = parser.parse_args()
    found = [page.resolve() for page in options.pages] or [page for page in pages(ROOT) if page != gallery(ROOT)]
    lost = [line for page in found for line in refresh(page, str(Path(options.moesim).resolve()))]
    for line in lost:
        print(line)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
