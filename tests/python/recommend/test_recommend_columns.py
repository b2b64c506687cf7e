"""Every column of a row of recommend is that of the step of its command."""

import csv
import io

import pytest
from command_line import as_json, needs_binary
from recommend_command import SMALL, reproduced

pytestmark = needs_binary
CAPACITY = ("--router", "topk,topk+fr+ir", "--capacity-factor", "1,1.25", "--max-loss", "50%")

SEARCHES = {
    "forced balance": (),
    "a capacity": CAPACITY,
    "no padding": (*CAPACITY, "--padding", "none"),
    "popular experts": ("--router", "dropless", "--routing", "gaussian:0.5"),
    "software": (*CAPACITY, "--software", "megatron-bridge"),
    "numbers of GPUs": (*CAPACITY, "--gpus", "16,32"),
    "machines": ("--router", "dropless", "--routing", "zipf:1", "--profile", "h100-sxm,h200-sxm"),
}


@pytest.mark.parametrize("more", SEARCHES.values(), ids=SEARCHES)
def test_a_row_has_the_figures_of_its_command(more):
    words = list(SMALL)
    if "--gpus" in more:
        at = words.index("--gpus")
        del words[at:at + 2]
    rows = as_json(*words, *more)
    assert len(rows) >= 2
    drawn = "--router" in more
    for row in rows:
        step = reproduced(row["command"])
        shared = [name for name in row if name in step]
        assert len(shared) > 60 and ("balanced_step_ms" in shared) == drawn
        assert {name: row[name] for name in shared} == {name: step[name] for name in shared}
        if drawn:
            assert 0 < row["balanced_step_ms"]


def test_rows_of_all_candidates_leave_out_what_they_do_not_price(tmp_path):
    """A step under forced balance for each candidate would take as long as the search."""
    out = tmp_path / "all.csv"
    as_json(*SMALL, "--pipeline-parallel", 1, "--expert-parallel", 8, "--zero", 1, "--recompute", "full", *CAPACITY, "--all", out)
    rows = list(csv.DictReader(io.StringIO(out.read_text(encoding="utf-8"))))
    assert len(rows) > 8 and {row["balanced_step_ms"] for row in rows} == {""}
