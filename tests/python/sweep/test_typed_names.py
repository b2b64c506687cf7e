"""What a document is called on the command line changes no figure."""

import json
import shutil
from pathlib import Path

import pytest
from command_line import as_rows, needs_binary

pytestmark = needs_binary
PROFILES = Path(__file__).resolve().parents[3] / "profiles"
STEP = ("simulate", "--gpus", 8, "--mode", "prefill", "--replicas", 1, "--router", "top1", "--sequence-length", 512)
TRAIN = ("train", "--gpus", 16)
DOCUMENTS = {"models": "model", "clusters": "cluster", "hardware": "profile"}


def figures(command, typed, option, document):
    """The row of a command whose document of `option` is another one than in `typed`, without its names."""
    options = {**typed, option: document}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    row, = as_rows(*command, *words)
    return {key: value for key, value in row.items() if key not in DOCUMENTS.values()}


@pytest.mark.parametrize("profile, more", [("a100-sxm-80gb-deepspeed", {"dispatch": "einsum"}), ("h100-sxm", {})])
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_a_path_and_a_name_give_one_band(tmp_path, profile, more, kind):
    typed = {"profile": profile, "model": "llama2-7b-moe8", "cluster": "dgx-a100", **more}
    name = typed[DOCUMENTS[kind]]
    copy = shutil.copy(PROFILES / kind / f"{name}.json", tmp_path / "copy.json")
    by_name, by_path = (figures(STEP, typed, DOCUMENTS[kind], each) for each in (name, copy))
    assert by_name["step_ms_p05"] and by_name == by_path


@pytest.mark.parametrize("software", [{}, {"software": "megatron-bridge"}])
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_a_path_and_a_name_give_one_band_of_train(tmp_path, software, kind):
    typed = {"profile": "b200-sxm", "model": "qwen3-30b-a3b", "cluster": "hgx-b200", **software}
    name = typed[DOCUMENTS[kind]]
    copy = shutil.copy(PROFILES / kind / f"{name}.json", tmp_path / "copy.json")
    by_name, by_path = (figures(TRAIN, typed, DOCUMENTS[kind], each) for each in (name, copy))
    assert by_name["step_ms_low"] and by_name == by_path
    assert not software or by_name["band_basis"] == "model"


@pytest.mark.parametrize("command, profile, more, low, high", [
    (STEP, "a100-sxm-80gb-deepspeed", {"model": "llama2-7b-moe8", "dispatch": "einsum"}, "step_ms_p05", "step_ms_p95"),
    (TRAIN, "b200-sxm", {"model": "qwen3-30b-a3b", "software": "megatron-bridge"}, "step_ms_low", "step_ms_high")])
def test_both_commands_know_a_model_by_the_name_in_its_document(tmp_path, command, profile, more, low, high):
    """The file's name is no matter; a document of another name is another model, of which no step was measured."""
    document = json.loads((PROFILES / "models" / f"{more['model']}.json").read_text())
    widths = []
    for name in (more["model"], "mine"):
        (tmp_path / "any.json").write_text(json.dumps({**document, "name": name}))
        row = figures(command, {**more, "profile": profile}, "model", tmp_path / "any.json")
        widths.append(float(row[high]) / float(row[low]))
    assert widths[0] < widths[1]
