"""What a document is called on the command line changes no figure."""

import shutil
from pathlib import Path

import pytest
from command_line import as_rows, needs_binary

pytestmark = needs_binary
PROFILES = Path(__file__).resolve().parents[3] / "profiles"
STEP = ("simulate", "--gpus", 8, "--mode", "prefill", "--replicas", 1, "--router", "top1", "--sequence-length", 512)


@pytest.mark.parametrize("profile, more", [("a100-sxm-80gb-deepspeed", ("--dispatch", "einsum")), ("h100-sxm", ())])
@pytest.mark.parametrize("kind, option, name", [
    ("models", "--model", "llama2-7b-moe8"), ("clusters", "--cluster", "dgx-a100")])
def test_a_path_and_a_name_give_one_band(tmp_path, profile, more, kind, option, name):
    shutil.copy(PROFILES / kind / f"{name}.json", tmp_path / "copy.json")
    typed = [as_rows(*STEP, "--profile", profile, *more, option, each)[0] for each in (name, tmp_path / "copy.json")]
    figures = [{key: value for key, value in row.items() if key not in ("model", "cluster")} for row in typed]
    assert figures[0]["step_ms_p05"] and figures[0] == figures[1]
