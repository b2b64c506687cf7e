"""What the commands print for a model of two layers, kept: a change of a text shows in review.

golden.py says how new texts are accepted.
"""

import pytest
from command_line import needs_binary, succeed
from golden import FOLDER, check_text

pytestmark = [pytest.mark.golden, needs_binary]

SMALL = ("--model", "two-layers.json", "--gpus", 2, "--expert-parallel", 2, "--micro-batch", 1,
         "--replicas", 2)
EXCHANGE = ("predict", "--op", "all-to-all", "--cluster", "dgx-a100", "--matrix", "matrix.csv")
TEXTS = {
    "simulate.txt": ("simulate", *SMALL, "--router", "top2+fr+ir"),
    "simulate.json": ("simulate", *SMALL, "--router", "top2+fr+ir", "--format", "json"),
    "simulate.csv": ("simulate", *SMALL, "--router", "dropless", "--format", "csv"),
    "route.txt": ("route", *SMALL, "--router", "top2+fr+ir"),
    # One replica: the spread of several of this router, whose losses have other last bits elsewhere, is not kept.
    "route.json": ("route", *SMALL[:-1], 1, "--router", "expert-choice", "--format", "json"),
    "route.csv": ("route", *SMALL, "--router", "top1+ir", "--format", "csv"),
    "sweep.txt": ("sweep", *SMALL, "--router", "dense,top2", "--capacity-factor", "1,2"),
    "predict-matrix.txt": EXCHANGE,
    "predict-matrix.json": (*EXCHANGE, "--schedule", "nccl", "--format", "json"),
    "predict-matrix.csv": (*EXCHANGE, "--schedule", "pairwise", "--network", "flows",
                           "--format", "csv"),
    "layout.txt": ("layout", "--model", "two-layers.json", "--gpus", 8, "--pipeline-parallel", 2,
                   "--global-batch", 32, "--groups"),
    "predict-gemm.txt": ("predict", "--op", "gemm", "--m", 512, "--n", 1024, "--k", 2048),
}


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_command_prints_the_kept_text(name):
    check_text(succeed(*TEXTS[name], cwd=FOLDER / "text"), f"text/{name}")


@pytest.mark.parametrize("name, more", [("train", ()), ("prefill", ("--mode", "prefill"))])
def test_a_timeline_is_the_kept_one(name, more, tmp_path):
    out = tmp_path / "timeline.json"
    succeed("simulate", *SMALL, "--router", "top2+ir", *more, "--timeline", out,
            cwd=FOLDER / "text")
    check_text(out.read_text(), f"text/timeline-{name}.json")
