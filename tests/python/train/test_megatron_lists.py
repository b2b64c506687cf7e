"""train --megatron FILE with several values of an option: each row is the step of that value alone."""

import csv

import pytest
from command_line import as_json, expect_error, moesim, needs_binary, succeed
from megatron_files import SCRIPT, write

pytestmark = needs_binary

SHORT = SCRIPT.replace("--num-layers 48", "--num-layers 4")


def rows_of(path, *words):
    return list(csv.DictReader(succeed("train", "--megatron", path, *words, "--format", "csv").splitlines()))


@pytest.mark.parametrize("change, flag, values", [
    (("TP=1", "TP=1"), "--tensor-parallel", "1,2,4"),  # slices per expert follow
    (("PP=2", "PP=1"), "--tensor-parallel", "2,4"),
    (("--global-batch-size 512", ""), "--micro-batch", "1,2"),  # one micro-batch each is the batch
    (("--lr 1e-4", "--decoder-first-pipeline-num-layers 1"), "--pipeline-parallel", "2,4"),
    (("--lr 1e-4", "--num-layers-per-virtual-pipeline-stage 1"), "--pipeline-parallel", "1,2,4"),
    (("--num-experts 128", "--moe-expert-capacity-factor 1 --num-experts 128"), "--top-k", "1,2"),
    (("--num-experts 128", "--moe-expert-capacity-factor 1 --num-experts 128"), "--router", "dropless,top1,topk"),
])
def test_a_row_is_the_step_of_its_value_alone(tmp_path, change, flag, values):
    path = write(tmp_path, SHORT.replace(*change))
    rows = rows_of(path, flag, values)
    assert len(rows) == len(values.split(","))
    for row, value in zip(rows, values.split(",")):
        (alone,) = rows_of(path, flag, value)
        assert row.pop("status") == "ok" and row.pop("reason") == ""
        assert {name: cell for name, cell in row.items() if cell} == {name: cell for name, cell in alone.items() if cell}


def test_a_value_that_the_script_does_not_go_with_is_a_refused_row(tmp_path):
    path = write(tmp_path, SHORT.replace("--lr 1e-4", "--decoder-first-pipeline-num-layers 1"))
    rows = rows_of(path, "--pipeline-parallel", "2,3")
    assert [row["status"] for row in rows] == ["ok", "refused"]
    assert "--decoder-first-pipeline-num-layers" in rows[1]["reason"]
    expect_error(moesim("train", "--megatron", path, "--pipeline-parallel", "3,5"), 2, "all 2 steps were refused", "run.sh:3")


def test_tensor_parallelism_that_is_typed_brings_sequence_parallelism(tmp_path):
    without = write(tmp_path, SHORT.replace(" --sequence-parallel", ""))
    assert "--sequence-parallel" not in without.read_text()
    told = moesim("train", "--megatron", without, "--tensor-parallel", 2)
    assert "with --tensor-parallel 2 it is priced as with --sequence-parallel, which it does not have" in told.stderr
    assert "priced as with --sequence-parallel" not in moesim("train", "--megatron", without).stderr
    given = write(tmp_path, SHORT.replace("--num-experts", "--sequence-parallel --num-experts"), "given.sh")
    one, other = (as_json("train", "--megatron", each, "--tensor-parallel", 2) for each in (without, given))
    assert {**one, "model": ""} == {**other, "model": ""} and one["expert_tensor_parallel"] == 2
