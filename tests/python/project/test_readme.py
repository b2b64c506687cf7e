"""What the pages of the tree show: examples print what is shown, and links lead to files and headings."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import needs_binary, succeed

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))

from page_examples import examples, gallery, is_shown, pages  # noqa: E402

PAGES = pages(ROOT)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
README_EXAMPLES = examples((ROOT / "README.md").read_text())
PAGE_EXAMPLES = [(page, *example) for page in PAGES if page != gallery(ROOT)  # test_gallery.py
                 for example in examples(page.read_text(encoding="utf-8"))]


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def test_readme_has_three_examples_with_output():
    assert len(README_EXAMPLES) >= 3
    assert all(command.startswith("moesim ") and len(shown) >= 2
               for command, shown in README_EXAMPLES)


def test_a_command_of_several_lines_is_one():
    assert examples("Text\n\n    $ moesim a \\\n        --b\n    c\n") == [("moesim a         --b", ["c"])]
    assert {page.parent.name for page, _, _ in PAGE_EXAMPLES} >= {ROOT.name, "training"}


def test_the_comparison_of_examples_can_fail():
    printed = ["a", "b", "c"]
    assert is_shown(["a", "b", "c"], printed) and is_shown(["a", "...", "c"], printed)
    assert not is_shown(["a", "b"], printed)
    assert not is_shown(["c", "...", "a"], printed)
    assert not is_shown(["a", "...", "x"], printed)


@needs_binary
@pytest.mark.slow
@pytest.mark.parametrize(("page", "command", "shown"), PAGE_EXAMPLES,
                         ids=[f"{page.relative_to(ROOT)} {command.split()[1]}" for page, command, _ in PAGE_EXAMPLES])
def test_a_page_shows_what_its_examples_print(page, command, shown):
    printed = succeed(*shlex.split(command)[1:]).splitlines()
    assert is_shown(shown, printed), f"{page}:\n" + "\n".join(printed)


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = [re.sub(r"[`*]|\[|\]\([^)]*\)", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_of_the_tree(page):
    tracked = set()
    # Empty without git, or outside a checkout: then a target only has to exist.
    if shutil.which("git"):
        tracked = set(subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True,
                                     capture_output=True, check=False).stdout.splitlines())
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {link}"
        if target.is_file() and tracked:
            assert str(target.relative_to(ROOT)) in tracked, f"{page.name}: {link} is not in the tree"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"
