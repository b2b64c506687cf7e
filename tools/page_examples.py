"""The examples on the tree's pages, and whether they show what the program prints."""

import re

BLOCK = re.compile(r"(?:^    .*\n)+", re.MULTILINE)


def pages(root):
    """The pages of a checkout, without those of builds and hidden folders."""
    found = [path for path in sorted(root.glob("**/*.md")) if path.relative_to(root).parts[0] not in ("build", "out")]
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(root).parts)]


def gallery(root):
    """The page whose commands need each other's files: tools/gallery.py writes it."""
    return root / "notebooks" / "gallery.md"


def examples(text):
    """[(command, the lines shown below it)] of the blocks that begin with "    $ "."""
    found = []
    for block in BLOCK.findall(text):
        lines = [line[4:] for line in block.replace("\\\n", "").splitlines()]
        if lines[0].startswith("$ "):
            found.append((lines[0][2:], lines[1:]))
    return found


def is_shown(shown, printed):
    """Whether the printed lines are those shown; "..." stands for any lines that are left out, and
    lines may be left out at either end."""
    expected = [line for line in shown if line != "..."]
    if "..." not in shown:
        return shown == printed
    rest = iter(printed)
    return all(line in rest for line in expected)
