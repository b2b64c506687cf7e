"""Charts of what moesim route wrote, and titles: the model and the machine that figures are of."""

import json
import os
from pathlib import Path

import pytest
from plot_rows import options  # noqa: F401 (a fixture)
import plotter  # noqa: F401 (puts the modules below on the path)

import page
import plot
import rows
import sweep_chart


def losses(path, model=""):
    """What moesim route writes."""
    lines = [f"ok,{model},a100-sxm-80gb,dgx-a100,top2,8,{factor},{0.4 - 0.1 * factor}" for factor in (1, 2)]
    path.write_text("\n".join(["status,model,profile,cluster,router,gpus,capacity_factor,residual_loss", *lines, ""]))
    return path


@pytest.mark.parametrize("model, title", [("", "Residual loss by capacity factor"),
                                          ("mixtral-8x7b", "mixtral-8x7b: residual loss by capacity factor")])
def test_the_title_of_routing_alone_names_no_machine(tmp_path, monkeypatch, model, title):
    described = json.loads(Path(os.environ["MOESIM_OPTIONS"]).read_text())
    described["options"].append({"column": "model"})
    path = tmp_path / "options.json"
    path.write_text(json.dumps(described))
    monkeypatch.setenv("MOESIM_OPTIONS", str(path))
    table = rows.read([losses(tmp_path / "route.csv", model)])
    assert page.heading(table, "residual loss by capacity factor") == title


def test_a_chart_of_routing_alone_is_that_of_losses(tmp_path, capsys):
    path = losses(tmp_path / "route.csv")
    # Measured speeds have no place on it; and these rows lack a column of the chart.
    assert plot.main(["sweep", str(path), "--measured", str(path), "--out", str(tmp_path / "x.svg")]) == 2
    assert plot.main(["sweep", str(path), "--out", str(tmp_path / "x.svg")]) == 2
    assert "column failed is missing" in capsys.readouterr().err
    rows_of_route = path.read_text().splitlines()
    path.write_text("\n".join([rows_of_route[0] + ",failed,padded", *(row + ",0.5,0.25" for row in rows_of_route[1:]), ""]))
    charts = {}
    for kind in ("sweep", "loss"):
        assert plot.main([kind, str(path), "--out", str(tmp_path / "x.svg")]) == 0
        charts[kind] = (tmp_path / "x.svg").read_text()
    assert "several models" not in charts["loss"] and "a100" not in charts["loss"]
    assert charts["sweep"] == charts["loss"] and "after rectification" in charts["loss"] and "slots that stay empty" in charts["loss"]
    assert plot.main(["axes", str(path), "--x", "capacity_factor", "--y", "residual_loss", "--out", str(tmp_path / "x.svg")]) == 0
    text = (tmp_path / "x.svg").read_text()
    assert ">Token loss by capacity factor" in text and "several models" not in text and "a100" not in text


def test_the_title_of_software_names_its_gpu(tmp_path):
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps({"name": "mine", "profile": "h100-sxm"}))
    assert sweep_chart.setting({"model": "m", "profile": str(mine), "gpus": "8"}) == "m on 8 x h100-sxm (mine)"
    assert sweep_chart.setting({"model": "m", "profile": "h100-sxm", "gpus": "8"}) == "m on 8 x h100-sxm"
