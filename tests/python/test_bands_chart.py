"""moesim plot of the bands that `validate training` judged."""

import json

import pytest
from command_line import expect_error, moesim, needs_binary, succeed

pytestmark = needs_binary


def document(rows):
    return json.dumps({"rows": [], "verdicts": [], "bands": rows})


def row(kind, level, inside, points=20):
    return {"left_out": kind, "level": level, "points": points, "inside": inside, "log_width": level}


def test_bands_are_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    file = tmp_path / "training.json"
    file.write_text(document([row("a model left out", level / 10, level / 10) for level in range(1, 10)]))
    out = tmp_path / "bands.svg"
    succeed("plot", file, "--out", out, "--title", "a title of its own")
    first = out.read_bytes()
    succeed("plot", file, "--out", out, "--title", "a title of its own")
    assert out.read_bytes() == first and len(first) > 10000


@pytest.mark.parametrize(("text", "part"), [
    (document([]), "no bands"),
    (document([{"left_out": "a model", "level": 0.9}]), "a row has no points"),
])
def test_a_document_without_them_is_named(tmp_path, text, part):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    file = tmp_path / "training.json"
    file.write_text(text)
    expect_error(moesim("plot", file, "--out", tmp_path / "bands.png"), 2, "training.json", part)
