"""The shipped clusters against their schema, and what the schema refuses."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CLUSTERS = sorted((ROOT / "profiles" / "clusters").glob("*.json"))
ORIGINS = ("published", "assumed", "measured", "datasheet")


def problems_of(document):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    schema = json.loads((ROOT / "profiles" / "schema" / "cluster.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    return [f"{list(each.absolute_path)}: {each.message}"
            for each in jsonschema.Draft7Validator(schema).iter_errors(document)]


def figures(node):
    if isinstance(node, dict):
        if "value" in node:
            yield node
        for child in node.values():
            yield from figures(child)
    elif isinstance(node, list):
        for child in node:
            yield from figures(child)


@pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.stem)
def test_shipped_cluster_meets_its_schema(path):
    document = json.loads(path.read_text())
    assert not problems_of(document)
    assert document["name"] == path.stem
    assert len(list(figures(document))) >= 3
    for figure in figures(document):
        assert figure["origin"].split(":")[0].split()[0] in ORIGINS


def test_the_presets_are_there():
    assert {path.stem for path in CLUSTERS} >= {
        "dgx-a100", "hgx-h100", "hgx-h800", "hgx-h200", "hgx-b200", "hgx-b300", "hgx-b300-400g", "gb200-nvl72", "gb300-nvl72",
        "aws-p5", "aws-p5en", "aws-p6-b200", "aws-p6-b300", "pcie-l40s", "generic-8x100g", "ideal-switch", "ideal-node8", "ideal-tree2"}


@pytest.mark.parametrize("change", [
    lambda d: d["nic"]["gbit_per_s"].update(value=0),
    lambda d: d["nic"]["efficiency"].update(value=1.5),
    lambda d: d["nic"]["efficiency"].pop("low"),
    lambda d: d["nic"].update(start={"value": -1, "low": -1, "high": 1, "origin": "assumed"}),
    lambda d: d["nic"].update(start={"value": 1, "origin": "assumed"}),
    lambda d: d["domain"]["gb_per_s"].pop("origin"),
    lambda d: d["domain"].update(kind="carrier pigeon"),
    lambda d: d["domain"].update(gpus=1),
    lambda d: d["fabric"]["levels"][0].pop("nodes"),
    lambda d: d["fabric"]["levels"][0]["latency_us"].update(value=-1),
    lambda d: d["fabric"]["levels"].extend(d["fabric"]["levels"] * 3),
    lambda d: d.update(format="moesim cluster 1"),
    lambda d: d.update(gpus_per_rack=8),
    lambda d: d.pop("gpus_per_node"),
])
def test_schema_refuses(change):
    document = json.loads((ROOT / "profiles" / "clusters" / "hgx-h100.json").read_text())
    change(document)
    assert problems_of(document)


def test_page_lists_every_cluster():
    page = (ROOT / "profiles" / "CLUSTERS.md").read_text()
    for path in CLUSTERS:
        assert f"| `{path.stem}` |" in page
