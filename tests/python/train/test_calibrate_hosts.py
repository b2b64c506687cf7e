"""moesim calibrate with hosts that launch at another speed."""

import csv
import io
import json
import shlex

import pytest
from command_line import as_json, expect_error, moesim, needs_binary, succeed, written

pytestmark = needs_binary
HOSTS = {"half": (7.5, 10), "same": (15, 20), "twice": (30, 40)}
HOST_JOB = ("--model", "qwen3-30b-a3b", "--profile", "h100-sxm", "--gpus", 16, "--sequence-length", 4096)


def host_step(stages, expert, batch, recompute, micro):
    return {"pipeline_parallel": stages, "expert_parallel": expert, "global_batch": batch, "recompute": recompute,
            "micro_batch": micro}


# Small micro-batches wait for the host, one of four does not.
HOST_ROWS = [host_step(1, 8, 64, "full", 1), host_step(2, 8, 64, "none", 1), host_step(2, 4, 64, "moe_act", 1),
             host_step(4, 4, 64, "none", 1), host_step(1, 16, 64, "full", 1), host_step(1, 8, 128, "full", 4)]
HELD_OUT = [host_step(2, 8, 64, "full", 2), host_step(2, 8, 128, "full", 2), host_step(1, 8, 64, "full", 2),
            host_step(2, 4, 64, "full", 2)]


def host_train(step, *words):
    flags = [word for key, value in step.items() for word in (f"--{key.replace('_', '-')}", value)]
    return as_json("train", *HOST_JOB, *flags, *words)


def host_calibrated(tmp_path, launch_us, read_us):
    words = ("--launch-us", launch_us, "--host-read-us", read_us)
    rows = [{**step, "measured_ms": host_train(step, *words)["step_ms"]} for step in HOST_ROWS]
    out = tmp_path / "mine.json"
    table = succeed("calibrate", written(tmp_path / "steps.csv", rows), *HOST_JOB, "--out", out)
    return out, table, words


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_of_another_speed_is_found_by_pricing_rows_with_it(tmp_path, host):
    out, table, words = host_calibrated(tmp_path, *HOSTS[host])
    assert "factor on the host's times" in table
    document = json.loads(out.read_text())
    assert document["version"] == 3 and "host" not in document["fitted"]
    factor = document["fitted"]["host_times"]
    assert {"half": 0.4 < factor < 0.75, "same": 0.93 < factor < 1.07, "twice": 1.75 < factor < 2.25}[host]
    for step in HELD_OUT:  # at a micro-batch that no row has
        truth, answer = host_train(step, *words), host_train(step, "--software", out)
        assert answer["step_ms"] == pytest.approx(truth["step_ms"], rel=0.04)
        assert answer["step_ms_low"] < truth["step_ms"] < answer["step_ms_high"]
        assert host_train(step, "--profile", out)["step_ms"] == answer["step_ms"]
        assert answer["host_gain_ms"] > 0 and answer["launch_us"] == 15  # as typed


def test_a_factor_on_the_wait_of_an_older_document_is_one(tmp_path):
    out, _, _ = host_calibrated(tmp_path, *HOSTS["twice"])
    document = json.loads(out.read_text())
    document["version"] = 2
    document["fitted"] = {key: 1 for key in document["fitted"] if key != "host_times"}
    document["fitted"].update(host=2, fixed_ms=0)
    older = tmp_path / "older.json"
    older.write_text(json.dumps(document))
    usual, answer = host_train(HOST_ROWS[1]), host_train(HOST_ROWS[1], "--software", older)
    assert usual["host_ms"] > 100
    assert answer["step_ms"] == pytest.approx(usual["step_ms"] + usual["host_ms"])
    assert "host_gain_ms" not in answer
    document["fitted"]["host_times"] = 2  # one or the other
    older.write_text(json.dumps(document))
    expect_error(moesim("train", *HOST_JOB, "--software", older), 2, "older.json")


def test_searches_lists_and_baselines_price_the_host_of_a_document(tmp_path):
    out, _, _ = host_calibrated(tmp_path, *HOSTS["twice"])
    search = as_json("recommend", *HOST_JOB, "--global-batch", 64, "--tensor-parallel", 1,
                     "--context-parallel", 1, "--pipeline-parallel", 2, "--virtual-pipeline", 1,
                     "--expert-parallel", 8, "--expert-tensor-parallel", 1, "--zero", 1, "--micro-batch",
                     "1,2", "--recompute", "full", "--software", out)
    assert len(search) == 2
    for row in search:
        same = as_json(*shlex.split(row["command"])[1:])
        assert same["host_gain_ms"] > same["step_ms"] / 2
        for column in ("step_ms", "step_ms_low", "step_ms_high", "host_gain_ms"):
            assert row[column] == pytest.approx(same[column])
    listed = succeed("train", *HOST_JOB, *"--pipeline-parallel 2 --expert-parallel 8 --global-batch 64 --recompute "
                     "full --micro-batch 1,2 --format csv --software".split(), out)
    for row, micro in zip(csv.DictReader(io.StringIO(listed)), (1, 2)):
        step = HOST_ROWS[1] | {"recompute": "full", "micro_batch": micro}
        assert float(row["step_ms"]) == pytest.approx(host_train(step, "--software", out)["step_ms"])
    # Both wait for all of the host: what it takes cancels in their ratio.
    base = tmp_path / "base.csv"
    flags = "--pipeline-parallel 2 --expert-parallel 8 --recompute full --micro-batch 1".split()
    succeed("train", *HOST_JOB, *flags, "--global-batch", 64, "--software", out, "--format", "csv", "--out", base)

    def width(path):
        row = host_train(HOST_ROWS[1] | {"recompute": "full", "global_batch": 128}, "--software", out, "--baseline",
                         path)
        return row["speed_over_baseline_high"] / row["speed_over_baseline_low"]
    (row,) = csv.DictReader(base.open(encoding="utf-8"))
    gains = written(tmp_path / "gains.csv", [row | {"host_gain_ms": 0}])
    assert width(base) < 0.99 * width(gains)
