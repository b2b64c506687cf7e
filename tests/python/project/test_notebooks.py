"""The notebooks are executed as shipped, and give the same text again.

MOESIM_UPDATE_GOLDEN=1 executes them and writes their outputs back.
"""
import base64
import io
import os
import pathlib

import pytest
from command_line import BINARY, needs_binary

nbformat = pytest.importorskip("nbformat", reason="no nbformat: install python3-nbclient")

FOLDER = pathlib.Path(__file__).resolve().parents[3] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
UPDATE = os.environ.get("MOESIM_UPDATE_GOLDEN") == "1"


def texts(notebook):
    """What each code cell printed, and whether it showed a picture."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        printed = []
        for output in cell.outputs:
            if output.output_type == "stream":
                printed.append(output.text)
            elif "image/png" in output.data:
                printed.append("picture")
            else:
                printed.append(output.data["text/plain"])
        found.append("".join(printed))
    return found


def join_streams(cell):
    """One output of what a cell prints, in however many pieces it came."""
    joined = []
    for output in cell.get("outputs", []):
        if joined and output.output_type == joined[-1].output_type == "stream" and output.name == joined[-1].name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    if "outputs" in cell:
        cell.outputs = joined


def shrink(notebook):
    """Pictures with 64 colours: a third of the bytes, and no difference to the eye."""
    from PIL import Image
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                picture = Image.open(io.BytesIO(base64.b64decode(output.data["image/png"]))).convert("RGB")
                file = io.BytesIO()
                picture.quantize(64, dither=Image.Dither.NONE).save(file, "png", optimize=True)
                output.data["image/png"] = base64.b64encode(file.getvalue()).decode()


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_shipped_with_its_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "not executed in order"
    outputs = [output for cell in code for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs), "no chart"
    assert not [output for output in outputs if output.output_type == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert "/tmp/" not in "".join(texts(notebook))
    assert path.stat().st_size < 600_000


@needs_binary
@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_gives_the_same_again(path, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="no nbclient: install python3-nbclient")
    pytest.importorskip("ipykernel", reason="no ipykernel: install python3-ipykernel")
    monkeypatch.setenv("PATH", f"{pathlib.Path(BINARY).resolve().parent}{os.pathsep}{os.environ['PATH']}")
    notebook = nbformat.read(path, as_version=4)
    shipped = texts(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    nbclient.NotebookClient(notebook, timeout=900, kernel_name="python3",
                            resources={"metadata": {"path": str(FOLDER)}}).execute()
    if UPDATE:
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
            join_streams(cell)
        shrink(notebook)
        nbformat.write(notebook, path)
        return
    assert texts(notebook) == shipped
