"""The interactive page of a sweep."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from plot_rows import options, row, sweep  # noqa: F401 (options: a fixture)
import plotter  # noqa: F401 (puts the modules below on the path)

import plot
import report_page


def page_of(path, tmp_path):
    pytest.importorskip("plotly", reason="the Python package plotly is not installed")
    out = tmp_path / "report.html"
    assert plot.main(["report", path, "--out", str(out)]) == 0
    return out


def test_a_page_is_self_contained(twelve, tmp_path):
    text = page_of(twelve, tmp_path).read_text()
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", text)
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])
    assert len(data["rows"]) == 36 and data["x"] == "gpus" and data["group"] == ["router"]
    assert "measured" in text


def page_text(path, tmp_path, monkeypatch):
    """The page and its data, without the library."""
    monkeypatch.setattr(report_page, "plotly_source", lambda: "")
    out = tmp_path / "report.html"
    assert plot.main(["report", str(path), "--out", str(out)]) == 0
    return out.read_text(), data_of_page(out)


def data_of_page(path):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.S)[1])


def test_a_page_of_training_steps_has_their_figures_their_band_and_what_they_are_based_on(tmp_path, monkeypatch):
    header = ("status,reason,model,profile,cluster,gpus,recompute,step_ms,tokens_per_s_per_gpu,bubble_share,experts_ms,"
              "memory_gib,memory_gib_by_rank,fits_memory,band_level,step_ms_low,step_ms_likely,step_ms_high,band_basis,"
              "widest_term")
    path = tmp_path / "train.csv"
    path.write_text("\n".join([header, *(f"ok,,m,h100,hgx,{gpus},none,{step},1000,0.25,40,60,60;50,true,0.8,{step / 2},"
                                         f"{step * 1.1},{step * 2},nothing,the software is not named"
                                         for gpus, step in ((8, 100), (16, 110)))]) + "\n")
    described = json.loads(Path(os.environ["MOESIM_OPTIONS"]).read_text())
    described["training_options"] = [{"column": "recompute", "default": "none"}]
    (tmp_path / "options.json").write_text(json.dumps(described))
    monkeypatch.setenv("MOESIM_OPTIONS", str(tmp_path / "options.json"))
    text, data = page_text(path, tmp_path, monkeypatch)
    assert {"step_ms", "bubble_share", "experts_ms", "memory_gib", "step_ms_likely"} <= set(data["figures"])
    assert not {"gpus", "memory_gib_by_rank", "band_level", "recompute"} & set(data["figures"])
    assert data["band"] is None and data["ends"] == {"step_ms": ["step_ms_low", "step_ms_high"]}
    assert (data["names"]["bubble_share"], data["scale"]["bubble_share"]) == ("bubble, %", 100)
    assert data["names"]["step_ms_low"] == "step time, ms: low end if measured"
    assert "p05" not in text and "with 80 % chance" in text
    assert "Measured speeds: likely 0.91 times these (80 %: 0.5 to 2; of a difference: train --baseline)</p>" in text
    assert ("<li>curves of h100; links of hgx; band: steps with other software; wide most of all because: the software is "
            "not named <span class=n>(2 of 2 rows)</span></li>") in text


def test_a_page_marks_routers_of_another_k(tmp_path, monkeypatch):
    path = sweep(tmp_path / "s.csv", [row(router, gpus) for gpus in (8, 16) for router in ("base", "top2", "topk")],
                 top_k=[1, 2, 2, 1, 2, 2])
    text, data = page_text(path, tmp_path, monkeypatch)
    assert {line[data["columns"].index("router")] for line in data["rows"]} == {"base (k = 1)", "top2", "topk"}
    assert "does not compare with that of the others" in text and "Error bars: p05 to p95." in text


@pytest.mark.slow
def test_a_page_draws_its_lines_in_a_browser(twelve, tmp_path):
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium is installed")
    out = page_of(twelve, tmp_path)
    dom = subprocess.run([chromium, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000",
                          f"--user-data-dir={tmp_path / 'user'}", "--dump-dom", out.as_uri()], capture_output=True,
                         text=True, timeout=120, check=False).stdout
    assert 'data-lines="12"' in dom
    assert len(re.findall(r'class="legendtext"', dom)) == 12
    assert len(re.findall(r"<tr", dom)) >= 37


# Runs the script of a page without a browser, and prints what it hands to Plotly.
DRAW = """
const nodes = {};
const element = () => ({appendChild() {}, addEventListener() {}, replaceChildren() {}, dataset: {}, selectedOptions: []});
const document = {body: element(), createElement: element, getElementById: id => nodes[id] ??= element()};
const Plotly = {react: (_, traces, layout) => console.log(JSON.stringify({traces, layout}))};
const data = JSON.parse(DATA);
Object.assign(document.getElementById('data'), {textContent: DATA});
for (const id of ['x', 'y']) document.getElementById(id).value = data[id];
document.getElementById('group').selectedOptions = data.group.map(value => ({value}));
"""


@pytest.mark.parametrize("x", ["gpus", "profile"])
def test_names_on_a_page_are_no_markup(tmp_path, monkeypatch, x):
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    names = ["<b>a</b> & <br>b", "c"]
    path = sweep(tmp_path / "s.csv", [row(gpus=gpus, profile=name, router=router) for name in names for gpus in (8, 16)
                                      for router in ("top1", "<i>")])
    monkeypatch.setattr(report_page, "plotly_source", lambda: "")
    assert plot.main(["report", path, "--x", x, "--group", "router" if x == "profile" else "profile,router",
                      *(["--where", "gpus=8"] if x == "profile" else []), "--out", str(tmp_path / "x.html")]) == 0
    data = json.dumps(data_of_page(tmp_path / "x.html"))
    drawn = subprocess.run(["node", "-e", f"const DATA = {json.dumps(data)};\n{DRAW}\n{report_page.SCRIPT}"],
                           capture_output=True, text=True, timeout=60, check=True).stdout
    traces = json.loads(drawn)["traces"]
    escaped = "&lt;b&gt;a&lt;/b&gt; &amp; &lt;br&gt;b"
    if x == "profile":
        assert [trace["name"] for trace in traces] == ["top1", "&lt;i&gt;"] and traces[0]["x"] == [escaped, "c"]
    else:
        assert traces[1]["name"] == f"profile {escaped}, &lt;i&gt;" and traces[0]["x"] == [8, 16]
        assert f"<br>profile {escaped}" in "<br>" + traces[0]["text"][0]


def test_a_page_without_plotly_says_what_to_install(twelve, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert plot.main(["report", twelve, "--out", str(tmp_path / "x.html")]) == plot.EXIT_MISSING == 3
    assert "pip install plotly" in capsys.readouterr().err and not (tmp_path / "x.html").exists()
