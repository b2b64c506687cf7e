"""Marks of these tests, and the note of them in the results that tools/test --times reads."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
# Names as the results have them, of tests that were measured to be slow.
SLOW = set((HERE.parent / "slow.txt").read_text(encoding="utf-8").splitlines())
MARKS = {
    "slow": "takes more than some seconds; tools/test --quick leaves it out",
    "golden": "compares with kept figures or texts",
}


def pytest_configure(config):
    for name, meaning in MARKS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def pytest_collection_modifyitems(items):
    for item in items:
        module = ".".join(item.path.relative_to(HERE).with_suffix("").parts)
        if f"tests.python.{module}: {item.name}" in SLOW:
            item.add_marker("slow")
        marks = [name for name in MARKS if item.get_closest_marker(name)]
        if marks:
            item.user_properties.append(("marks", " ".join(marks)))


@pytest.fixture(autouse=True)
def closed_figures():
    """Figures that a test drew and did not save are not kept until the end of the run."""
    yield
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close("all")
