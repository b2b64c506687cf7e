"""Small sweeps, kept: a change of the model shows as a change of these files in review.

golden.py says how new figures are accepted.
"""

import csv

import pytest
from command_line import needs_binary, succeed
from golden import FOLDER, check_table, differences, same_text, set_columns

pytestmark = pytest.mark.golden

SMALL = ("--gpus", 8, "--expert-parallel", 8, "--experts", 16, "--sequence-length", 256,
         "--micro-batch", 1, "--replicas", 2)
NODES = ("--gpus", 16, "--expert-parallel", 16, "--experts", 16, "--sequence-length", 256,
         "--micro-batch", 1, "--replicas", 2)
PAPER = ("--gpus", 16, "--micro-batch", 1, "--replicas", 3, "--capacity-factor", "1,1.5")
ROUTERS = ("dense,top1,top2,topk,top1+fr,top2+ir,top2+fr+ir,top2+fr+ir@node,dropless,expert-choice,"
           "base,base:greedy,random,random:balanced,hash,hash:1.2,soft,scomoe:0.25:0.5,"
           "gating-dropout:0.3+ir,group-limited:4:2,bias-balanced:0.001:50,"
           "bias-balanced:0.001:50+groups:4:2")

SWEEPS = {
    "train": (*PAPER, "--mode", "train", "--checkpointing", "full",
              "--router", "dense,top1,top2+ir,top2+fr+ir"),
    "einsum": (*PAPER, "--mode", "prefill", "--dispatch", "einsum", "--router", "top1+fr,top2"),
    "two-nodes": (*PAPER, "--mode", "prefill", "--expert-parallel", "16", "--experts", "16",
                  "--router", "top2+ir@node"),
    "routers-auto": (*SMALL, "--router", ROUTERS, "--network", "auto"),
    "routers-fast": (*SMALL, "--router", ROUTERS, "--network", "fast", "--mode", "prefill"),
    "routers-flows": (*SMALL, "--router", ROUTERS, "--network", "flows", "--mode", "prefill",
                      "--routing", "dirichlet:0.5"),
    "networks-nodes": (*NODES, "--router", "top2,top2+fr+ir@node,dropless,group-limited:4:2",
                       "--network", "auto,fast,flows", "--dedup", "none,gpu,node"),
    "clusters": (*NODES, "--router", "top2", "--cluster", "hgx-h100,generic-8x100g",
                 "--profile", "a100-sxm-80gb,h100-sxm", "--mode", "prefill"),
    "fidelity": (*SMALL, "--router", "top1,top2+fr+ir,dropless,random,hash,expert-choice",
                 "--fidelity", "tokens,counts,auto", "--routing", "gaussian:0.1,zipf:0.6",
                 "--mode", "prefill"),
    "dialects": (*SMALL, "--router", "top1,top2", "--router-dialect",
                 "paper,deepspeed,megatron,tutel,switch,megablocks", "--mode", "prefill",
                 "--capacity-scope", "source,group"),
    "priorities": (*SMALL, "--router", "top2+fr", "--mode", "prefill", "--priority",
                   "token-max,own-score,own-weight,position,token-order,random",
                   "--weights", "kept,before-drop,raw", "--fill-order", "nominee-score,priority"),
    "rectification": (*SMALL, "--router", "top2+ir", "--ir-compute", "separate,grouped,overlap",
                      "--ir-duplicates", "allow,exclude", "--padding", "none,capacity"),
    "uneven-batches": (*SMALL, "--router", "top2,dropless", "--mode", "prefill", "--routing",
                       "ragged-source:4,empty-rank,hot-rank:4,hot-expert:4,gaussian:0"),
    "disturbed": (*SMALL, "--router", "top2", "--slow-gpu", "none,3:1.5", "--slow-link", "none,2:4",
                  "--jitter", "0,0.02", "--overlap-slowdown", "1.1:1.3"),
    "memory": (*SMALL, "--router", "dense,top2", "--checkpointing", "none,full", "--zero", "0:3:1",
               "--overlap", "none,gradient", "--global-batch", "8,16"),
}


@needs_binary
@pytest.mark.parametrize("name", sorted(SWEEPS))
def test_a_sweep_gives_the_kept_figures(name, tmp_path):
    out = tmp_path / "sweep.csv"
    succeed("sweep", *SWEEPS[name], "--out", out)
    # The words of a refusal may change; that it is one is in the column status. Bands of losses are differences of nearly equal
    # figures, which a last bit moves by more than the tolerance: kept texts have some, test_loss_band.py computes them.
    check_table(out.read_text(), f"sweep/{name}.csv",
                leave_out=["reason", "residual_loss_p05", "residual_loss_p95", "residual_loss_error"])


def kept(name):
    with (FOLDER / "sweep" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_each_sweep_is_kept_and_each_kept_one_is_run():
    assert {path.stem for path in (FOLDER / "sweep").iterdir()} == set(SWEEPS)


def test_only_columns_that_are_set_are_kept():
    for name in SWEEPS:
        rows = kept(name)
        assert set_columns(rows) == list(rows[0]), name


def test_what_differs_is_seen_in_both_directions():
    rows = kept("train")
    assert differences(rows, rows) == []
    assert differences(rows[1:], rows) and differences(rows, rows[1:]) and differences([], rows)
    new = [{**row, "new_ms": "1"} for row in rows]
    assert differences(new, rows) == ["column new_ms is new"]
    assert differences(rows, new) == ["column new_ms is gone"]
    assert differences([{**row, "blank": ""} for row in rows], rows) == []
    moved = [dict(row) for row in rows]
    moved[2]["step_ms"] = str(float(rows[2]["step_ms"]) * (1 + 3e-7))
    assert [text.split(":")[0] for text in differences(moved, rows)] == ["row 2 step_ms"]
    moved[2]["step_ms"] = ""
    assert [text.split(":")[0] for text in differences(moved, rows)] == ["row 2 step_ms"]


def test_numbers_inside_a_text_have_a_tolerance():
    assert same_text("step 1,234.56789 ms", "step 1,234.56789 ms")
    assert same_text("4.00000001e-05 of 8", "4e-05 of 8")
    assert not same_text("4.00001e-05 of 8", "4e-05 of 8")
    assert not same_text("step 12 ms", "step 12 us")
    assert not same_text("step 12", "step 12 12")
