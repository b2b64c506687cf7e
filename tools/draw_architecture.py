#!/usr/bin/env python3
"""Draws the architecture from the includes: rooms, the folders inside large rooms, and what uses what.

    tools/draw_architecture.py            writes sim/architecture.dot and, with Graphviz, sim/architecture.svg
    tools/draw_architecture.py --check    says what differs from the includes; exit code 1 if anything does

An arrow goes from a room to one that it includes. Arrows that follow from others (a uses b, b uses c: a
may use c) are left out. Graphviz is the Debian package graphviz.
"""
import argparse
import difflib
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TREES = ("sim", "kernels", "tools/moesim")
SUFFIXES = {".hpp", ".cpp", ".h", ".cuh", ".cu"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
FILLS = {"sim": "#DCE9F5", "kernels": "#E2F0DC", "tools": "#EEEEEE"}
INNER_FILL = "#FFFFFF"


def place(parts):
    """(room, folder inside it or None) of a file's path in parts; None outside the rooms."""
    if len(parts) < 3 or parts[0] not in ("sim", "kernels", "tools"):
        return None
    return "/".join(parts[:2]), "/".join(parts[:3]) if len(parts) > 3 else None


def read_includes(root):
    """({room: set of its folders}, {(room, room)}, {(folder, folder)}): who includes whom."""
    rooms, outer, inner = {}, set(), set()
    files = [path for tree in TREES for path in sorted((root / tree).glob("**/*"))
             if path.suffix in SUFFIXES]
    for path in files:
        room, folder = place(path.relative_to(root).parts)
        rooms.setdefault(room, set()).update({folder} - {None})
        for target in INCLUDE.findall(path.read_text(encoding="utf-8")):
            found = place(target.split("/"))
            if found is None:
                continue
            if found[0] != room:
                outer.add((room, found[0]))
            elif found[1] != folder and folder and found[1]:
                inner.add((folder, found[1]))
    return rooms, outer, inner


def reduced(edges):
    """The edges that do not follow from others. Folders that include each other keep all of theirs."""
    above = {}
    for user, used in edges:
        above.setdefault(user, set()).add(used)

    def reaches(start, goal, avoid):
        seen, todo = set(), [start]
        while todo:
            at = todo.pop()
            for other in above.get(at, ()):
                if (at, other) == avoid or other in seen:
                    continue
                if other == goal:
                    return True
                seen.add(other)
                todo.append(other)
        return False

    return sorted(edge for edge in edges if not reaches(edge[0], edge[1], edge))


def levels(nodes, edges):
    """{node: length of the longest way down}; nodes that include each other count once."""
    below = {node: [used for user, used in edges if user == node] for node in nodes}
    found = {}

    def level(node, path):
        if node in path:
            return -1
        if node not in found:
            found[node] = 1 + max((level(other, path | {node}) for other in below[node]), default=-1)
        return found[node]

    for node in sorted(nodes):
        level(node, frozenset())
    return found


def quoted(name):
    return f'"{name}"'


def folder_lines(room, folders, inner):
    """The cluster of a room with folders."""
    own = reduced({edge for edge in inner if edge[0] in folders and edge[1] in folders})
    yield f'  subgraph "cluster_{room}" {{'
    yield f'    label="{room}"; style="rounded,filled"; fillcolor="{FILLS[room.split("/")[0]]}"; color="#888888";'
    for folder in sorted(folders):
        yield f'    {quoted(folder)} [label="{folder.split("/")[-1]}", fillcolor="{INNER_FILL}"];'
    for user, used in own:
        yield f"    {quoted(user)} -> {quoted(used)} [color=\"#777777\", arrowsize=0.6];"
    yield "  }"


def anchor(room, folders, inner, lowest):
    """The node of a room at which arrows between rooms end: its lowest or its highest folder."""
    if not folders:
        return room
    by_level = levels(folders, [edge for edge in inner if edge[0] in folders and edge[1] in folders])
    return (min if lowest else max)(sorted(folders), key=by_level.get)


def describe(root):
    """The graph as DOT text."""
    rooms, outer, inner = read_includes(root)
    lines = ["// Written by tools/draw_architecture.py from the includes: do not edit.",
             "digraph architecture {",
             '  compound=true; rankdir=TB; nodesep=0.3; ranksep=0.4; fontname="Helvetica"; fontsize=13;',
             '  node [shape=box, style="rounded,filled", color="#888888", fontname="Helvetica", fontsize=12, height=0.32];',
             '  edge [color="#222222", arrowsize=0.8];']
    for room in sorted(rooms):
        if rooms[room]:
            lines += folder_lines(room, rooms[room], inner)
        else:
            lines.append(f'  {quoted(room)} [fillcolor="{FILLS[room.split("/")[0]]}"];')
    for user, used in reduced(outer):
        ends = []
        if rooms[user]:
            ends.append(f'ltail="cluster_{user}"')
        if rooms[used]:
            ends.append(f'lhead="cluster_{used}"')
        lines.append(f"  {quoted(anchor(user, rooms[user], inner, True))} -> "
                     f"{quoted(anchor(used, rooms[used], inner, False))} [{', '.join(ends)}];"
                     f"  // {user} -> {used}")
    return "\n".join(lines) + "\n}\n"


def check(dot, text):
    kept = dot.read_text(encoding="utf-8") if dot.is_file() else ""
    if kept == text:
        return 0
    sys.stdout.writelines(difflib.unified_diff(kept.splitlines(True), text.splitlines(True),
                                               "drawn", "included"))
    print("the architecture has changed: run tools/draw_architecture.py and look at the drawing",
          file=sys.stderr)
    return 1


def main(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0], allow_abbrev=False)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    options = parser.parse_args(words)
    text = describe(ROOT)
    dot = ROOT / "sim" / "architecture.dot"
    if options.check:
        return check(dot, text)
    dot.write_text(text, encoding="utf-8")
    if not shutil.which("dot"):
        print("draw_architecture: no picture without Graphviz: install the package graphviz",
              file=sys.stderr)
        return 1
    drawn = subprocess.run(["dot", "-Tsvg"], input=text, capture_output=True, text=True, check=True)
    dot.with_suffix(".svg").write_text(drawn.stdout, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
