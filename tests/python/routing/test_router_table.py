"""One file per kind of router: what the rest has to know of a kind stands in its descriptor."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ROUTERS = ROOT / "sim/routing/routers"
# Not kinds: the table, how names are read, and the rules of bias_balanced and sinkhorn.
SHARED = {"router_name", "router_reading", "router_table", "bias_chooser", "sinkhorn_costs", "sinkhorn_kernels"}
SUFFIXES = {".cpp", ".hpp", ".cu", ".cuh", ".inc"}
DEFINED = re.compile(r"^constinit const RouterDescriptor (\w+)", re.MULTILINE)


def sources(*folders):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES:
                yield path.relative_to(ROOT).as_posix(), path.read_text()


def kinds():
    """The descriptors that each file of a kind defines."""
    return {
        path.stem: DEFINED.findall(path.read_text())
        for path in sorted(ROUTERS.glob("*.cpp"))
        if path.stem not in SHARED
    }


def test_every_file_of_a_kind_is_listed_in_the_table():
    table = (ROUTERS / "router_table.hpp").read_text()
    listed = re.findall(r"&(\w+)", table[table.index("router_table[]") :])
    assert len(kinds()) >= 12
    assert sorted(listed) == sorted(f"{kind}_router" for kind in kinds())
    for kind, descriptors in kinds().items():
        assert f"{kind}_router" in descriptors


def test_no_code_but_the_kinds_own_knows_a_kind():
    names = {name for descriptors in kinds().values() for name in descriptors}
    allowed = {"sim/routing/routers/router_table.hpp", "sim/routing/rules/router_descriptor.hpp"}
    allowed.add("sim/routing/rules/router_config.hpp")  # the default, top_k_router
    known = re.compile(r"\b(" + "|".join(sorted(names)) + r")\b")
    found = []
    for path, text in sources("sim", "kernels", "tools"):
        own = f"{Path(path).stem}_router" if path.startswith("sim/routing/routers/") else ""
        for name in set(known.findall(text)):
            if path not in allowed and not (own and name in kinds()[Path(path).stem]):
                found.append(f"{path}: {name}")
    assert found == []


def test_kinds_are_not_compared():
    """Neither an enumeration of kinds nor comparisons of descriptors or of their names."""
    compared = re.compile(
        r"RouterKind::|router\(?\)?\.kind\s*[!=]=|config\.kind\s*[!=]=|->head\s*[!=]=|"
        r"router\(?\)?\.name\(\)\s*[!=]=\s*\"|switch \(\w*(router|config)\w*\.kind\)"
    )
    found = [
        f"{path}: {match}"
        for path, text in sources("sim", "kernels", "tools")
        if not path.startswith("sim/routing/routers/")
        for match in compared.findall(text)
    ]
    assert found == []
