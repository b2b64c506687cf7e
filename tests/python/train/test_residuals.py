"""The shipped error models are of what the program prices today."""

import json
from pathlib import Path

import pytest

from command_line import moesim, needs_binary
from public_tables import ROOT, folder_of

pytestmark = needs_binary
TABLES = {"steps": ("moe_training_steps.csv", "smartmoe_gpt_step_times.csv", "smartmoe_routing_trace.npz"),
          "training": ("moe_training_steps.csv", "deepseek_train_kernels.csv.gz")}


@pytest.mark.slow
@pytest.mark.parametrize("what", TABLES)
def test_shipped_residuals_are_those_of_today(what, tmp_path):
    out = tmp_path / "residuals.json"
    result = moesim("validate", what, "--data", folder_of(*TABLES[what]), "--residuals", out)
    assert result.returncode in (0, 5), result.stderr
    shipped = Path(ROOT) / "profiles" / "residuals" / f"{what}.json"
    assert json.loads(out.read_text()) == json.loads(shipped.read_text()), "run tools/regenerate_bands.py"
