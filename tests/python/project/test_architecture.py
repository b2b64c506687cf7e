"""The drawing of the architecture shows what the includes say."""

import html
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))

import draw_architecture  # noqa: E402

HINT = "run tools/draw_architecture.py (needs Graphviz) and look at sim/architecture.svg"


def test_the_drawing_is_that_of_the_includes():
    kept = (ROOT / "sim" / "architecture.dot").read_text(encoding="utf-8")
    assert kept == draw_architecture.describe(ROOT), HINT


def test_the_picture_has_every_arrow_and_every_box_of_the_drawing():
    dot = (ROOT / "sim" / "architecture.dot").read_text(encoding="utf-8")
    arrows = set(re.findall(r'^ +"([^"]+)" -> "([^"]+)"', dot, re.MULTILINE))
    boxes = set(re.findall(r'^ +"([^"]+)" \[', dot, re.MULTILINE))
    picture = (ROOT / "sim" / "architecture.svg").read_text(encoding="utf-8")
    titles = [html.unescape(title) for title in re.findall(r"<title>([^<]*)</title>", picture)]
    drawn = {tuple(title.split("->")) for title in titles if "->" in title}
    assert len(arrows) > 20 and drawn == arrows, HINT
    rooms = {title for title in titles if "->" not in title and "/" in title}
    assert {room for room in rooms if not room.startswith("cluster_")} == boxes, HINT


def test_rooms_of_the_page_are_those_of_the_tree():
    page = (ROOT / "sim" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(sim/\w+)`", page))
    assert named == {f"sim/{path.name}" for path in (ROOT / "sim").iterdir() if path.is_dir()}


@pytest.fixture
def tree(tmp_path):
    """base <- low <- high, where high has folders of which one uses the other."""
    files = {"sim/base/a.hpp": [], "sim/low/a.hpp": ["sim/base/a.hpp"],
             "sim/high/top/a.cpp": ["sim/high/under/a.hpp", "sim/low/a.hpp", "sim/base/a.hpp"],
             "sim/high/under/a.hpp": ["sim/low/a.hpp"]}
    for name, includes in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text("".join(f'#include "{include}"\n' for include in includes))
    return tmp_path


def test_arrows_that_follow_from_others_are_left_out(tree):
    rooms, outer, inner = draw_architecture.read_includes(tree)
    assert rooms["sim/high"] == {"sim/high/top", "sim/high/under"} and rooms["sim/base"] == set()
    assert draw_architecture.reduced(outer) == [("sim/high", "sim/low"), ("sim/low", "sim/base")]
    assert inner == {("sim/high/top", "sim/high/under")}
    text = draw_architecture.describe(tree)
    # An arrow leaves a room at its lowest folder, and is cut at the room's border.
    assert '"sim/high/under" -> "sim/low" [ltail="cluster_sim/high"];' in text


def test_a_new_include_changes_the_drawing(tree):
    before = draw_architecture.describe(tree)
    (tree / "sim" / "low" / "b.cpp").write_text('#include "sim/high/under/a.hpp"\n')
    assert draw_architecture.describe(tree) != before


def test_rooms_that_include_each_other_are_drawn_with_both_arrows(tree):
    (tree / "sim" / "base" / "b.cpp").write_text('#include "sim/low/a.hpp"\n')
    _, outer, _ = draw_architecture.read_includes(tree)
    assert {("sim/base", "sim/low"), ("sim/low", "sim/base")} <= set(draw_architecture.reduced(outer))
