"""The floors of the architecture: an include only points down."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

# Lowest first; rooms on one floor do not include each other, unless CMakeLists.txt links them.
FLOORS = [
    ["base"],
    ["shell"],
    ["profile", "cluster", "model"],
    ["routing", "network", "parallel"],
    ["engine", "training"],
    ["scenario", "uncertainty"],
    ["step", "job"],
    ["study"],
    ["report"],
]
# The floors inside the large rooms, lowest first; a folder may use those before it. A file in the
# room itself, in no folder, is above all of them.
INNER_FLOORS = {
    "sim/routing": [
        "rules",
        "tokens",
        "traces",
        "scores",
        "jobs",
        "groups",
        "routers",
        "counts",
        "simulation",
    ],
    "sim/network": ["topology", "flows", "ports", "schedules", "exchange"],
    "sim/uncertainty": ["statistics", "steps", "published", "software", "bands", "ratios"],
    "sim/study": ["sweep", "calibration", "validation", "logs", "search", "explain"],
    "sim/study/validation": ["tables", "paper", "layers", "routing", "exchanges", "training"],
    "kernels/measure": ["timing", "points", "suites", "ranks", "devices", "fit", "documents", "sessions",
                        "benchmarks", "cuda"],
    "tools/moesim": ["base", "rows", "command_line", "scenario", "megatron", "bands", "train", "layout",
                     "sweep", "predict", "calibrate", "route", "profiling", "recommend"],
    "tools/moesim/recommend": ["request", "tables", "search", "best", "report", "several", "prefill"],
}
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
KERNELS_MAY_USE = {"base", "profile", "routing"}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
DEVICE_HEADER = re.compile(
    r"(^|/)(cuda|cublas|cub/|cupti|nccl|nvml|nvToolsExt|nvtx3/|mma\.h|cooperative_groups)"
)
HEAVY_HEADER = re.compile(r"^(fmt|boost|nlohmann|valijson)/")
SOURCE_SUFFIXES = {".hpp", ".cpp", ".h", ".cuh", ".cu"}


def linked_rooms(cmake_text):
    """The rooms that each room of CMakeLists.txt links, directly or through others."""
    direct = {
        name: set(re.findall(r"\bmoesim_(\w+)", uses))
        for name, uses in re.findall(r"moesim_room\(\s*(\w+)([^)]*)\)", cmake_text)
    }
    reached = {}
    for room in direct:
        found, open_rooms = set(), set(direct[room])
        while open_rooms:
            other = open_rooms.pop()
            found.add(other)
            open_rooms |= direct[other] - found
        reached[room] = found
    return reached


def sim_violation(room, target, bracket, linked):
    """What is wrong with one include from sim/<room>, or None."""
    if target.startswith("kernels/") or (DEVICE_HEADER.search(target) and target[:4] != "sim/"):
        return "sim never includes kernels or CUDA"
    if target.startswith(("tools/", "tests/")):
        return "sim does not know its users"
    if not target.startswith("sim/"):
        return None if bracket == "<" else "includes are written from the project root"
    other = target.split("/")[1]
    if other == room:
        return None
    if other not in FLOOR_OF:
        return f"there is no room sim/{other}"
    if FLOOR_OF[other] > FLOOR_OF[room]:
        return f"sim/{other} is above sim/{room}"
    if other not in linked[room]:
        return f"CMakeLists.txt does not link sim/{other} to sim/{room}"
    return None


def kernels_violation(path, target):
    """What is wrong with one include from kernels/, or None."""
    if target.startswith("sim/") and target.split("/")[1] not in KERNELS_MAY_USE:
        return "kernels use sim/base, sim/profile and sim/routing only"
    if path.suffix == ".cu" and HEAVY_HEADER.match(target):
        return "no fmt, Boost or JSON in device code"
    return None


def inner_violation(path, target):
    """What is wrong with one include between folders of one large room, or None."""

    def floor(file, room):
        floors = INNER_FLOORS[room]
        parts = file[len(room) + 1 :].split("/")
        return floors.index(parts[0]) if len(parts) > 1 else len(floors)

    for room in INNER_FLOORS:
        if path.startswith(room + "/") and target.startswith(room + "/"):
            if floor(target, room) > floor(path, room):
                return f"{target} is above {path}"
    return None


def violations(root):
    """Every include in the rooms that breaks a floor, as readable lines."""
    linked = linked_rooms((root / "CMakeLists.txt").read_text())
    found = []
    trees = ("sim", "kernels", "tools/moesim")
    for path in [path for tree in trees for path in sorted((root / tree).glob("**/*"))]:
        if path.suffix not in SOURCE_SUFFIXES:
            continue
        parts = path.relative_to(root).parts
        for bracket, target in INCLUDE.findall(path.read_text()):
            wrong = None
            if parts[0] == "sim":
                wrong = sim_violation(parts[1], target, bracket, linked)
            elif parts[0] == "kernels":
                wrong = kernels_violation(path, target)
            wrong = wrong or inner_violation("/".join(parts), target)
            if wrong:
                found.append(f"{'/'.join(parts)}: {target}: {wrong}")
    return found


def test_every_room_has_a_floor_and_a_target():
    rooms = {path.name for path in (ROOT / "sim").iterdir() if path.is_dir()}
    linked = linked_rooms((ROOT / "CMakeLists.txt").read_text())
    assert rooms <= set(FLOOR_OF)
    assert set(linked) == set(FLOOR_OF)


def test_every_folder_of_a_large_room_has_a_floor():
    for room, floors in INNER_FLOORS.items():
        folders = {path.name for path in (ROOT / room).iterdir() if path.is_dir()}
        assert folders == set(floors), room


def test_cmake_links_only_downwards_or_sideways():
    for room, others in linked_rooms((ROOT / "CMakeLists.txt").read_text()).items():
        for other in others:
            assert FLOOR_OF[other] <= FLOOR_OF[room], f"{room} links {other}"
            assert other != room


def test_includes_point_down():
    assert violations(ROOT) == []


@pytest.fixture
def small_house(tmp_path):
    """A tree with this project's CMakeLists.txt and one clean file per room."""
    (tmp_path / "CMakeLists.txt").write_text((ROOT / "CMakeLists.txt").read_text())
    for room in FLOOR_OF:
        (tmp_path / "sim" / room).mkdir(parents=True)
        (tmp_path / "sim" / room / "a.hpp").write_text('#pragma once\n#include "sim/base/a.hpp"\n')
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "a.cu").write_text('#include "sim/routing/a.hpp"\n')
    assert violations(tmp_path) == []
    return tmp_path


@pytest.mark.parametrize(
    "file, line, reason",
    [
        ("sim/base/b.cpp", '#include "sim/step/a.hpp"', "sim/step is above sim/base"),
        ("sim/routing/b.hpp", '#include "sim/engine/a.hpp"', "sim/engine is above sim/routing"),
        ("sim/profile/b.hpp", '#include "sim/model/a.hpp"', "does not link sim/model"),
        ("sim/routing/b.hpp", '#include "sim/network/a.hpp"', "does not link sim/network"),
        ("sim/step/b.cpp", '  #  include "sim/report/a.hpp"', "sim/report is above sim/step"),
        ("sim/base/b.cpp", '#include "kernels/a.cuh"', "never includes kernels"),
        ("sim/engine/b.cpp", "#include <cuda_runtime.h>", "never includes kernels or CUDA"),
        ("sim/engine/b.cpp", "#include <nccl.h>", "never includes kernels or CUDA"),
        ("sim/engine/b.cpp", "#include <cub/cub.cuh>", "never includes kernels or CUDA"),
        ("sim/report/b.cpp", '#include "tools/moesim/a.hpp"', "does not know its users"),
        ("sim/base/b.cpp", '#include "a.hpp"', "from the project root"),
        ("sim/base/b.cpp", '#include "sim/bace/a.hpp"', "there is no room sim/bace"),
        (
            "sim/routing/rules/b.hpp",
            '#include "sim/routing/tokens/a.hpp"',
            "sim/routing/tokens/a.hpp is above",
        ),
        (
            "sim/study/validation/paper/b.hpp",
            '#include "sim/study/validation/training/a.hpp"',
            "sim/study/validation/training/a.hpp is above",
        ),
        (
            "tools/moesim/base/b.cpp",
            '#include "tools/moesim/train/a.hpp"',
            "tools/moesim/train/a.hpp is above",
        ),
        (
            "tools/moesim/recommend/request/b.hpp",
            '#include "tools/moesim/recommend/report/a.hpp"',
            "tools/moesim/recommend/report/a.hpp is above",
        ),
        ("kernels/b.cuh", '#include "sim/step/a.hpp"', "kernels use sim/base"),
        ("kernels/b.cu", "#include <fmt/format.h>", "no fmt, Boost or JSON"),
    ],
)
def test_a_planted_violation_is_caught(small_house, file, line, reason):
    (small_house / file).parent.mkdir(parents=True, exist_ok=True)
    (small_house / file).write_text(f"{line}\n")
    found = violations(small_house)
    assert len(found) == 1
    assert found[0].startswith(f"{file}: ") and reason in found[0]
