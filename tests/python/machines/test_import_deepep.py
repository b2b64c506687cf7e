"""`moesim import --cluster`: logs of DeepEP into dispatches of a cluster document."""

import json
import math
from pathlib import Path

import pytest
from cluster_imports import BASE, LOGS, imported, refused
from command_line import as_json, moesim, needs_binary, succeed

pytestmark = needs_binary
MODELS = Path(__file__).resolve().parents[3] / "profiles" / "models"


DISPATCH = ("--profile", "h100-sxm", "--dispatcher", "deepep", "--hidden", 7168, "--k", 8,
            "--experts", 256)


def dispatched(op, tokens, gpus, *words):
    return as_json("predict", "--op", op, *DISPATCH, "--tokens", tokens, "--gpus", gpus, *words)


def test_deepep_across_nodes(tmp_path):
    refused(tmp_path, LOGS / "deepep_internode.log", parts=["deepep_internode.log", "--nodes, 2"])
    refused(tmp_path, LOGS / "deepep_internode.log", more=("--nodes", 8), parts=["4 nodes at most"])
    refused(tmp_path, LOGS / "deepep_low_latency.log", parts=["does not print tokens"])
    # Fewer nodes for a token than there are, and more.
    for groups, part in ((1, "to 1 of the 2 nodes at most"), (3, "on 3 nodes at least, not --nodes 2")):
        limited = tmp_path / f"groups_{groups}.log"
        text = (LOGS / "deepep_internode.log").read_text()
        assert "num_topk_groups=2" in text
        limited.write_text(text.replace("num_topk_groups=2", f"num_topk_groups={groups}"))
        refused(tmp_path, limited, more=("--nodes", 2), parts=[f"groups_{groups}.log: num_topk_groups={groups}", part])
    document, _ = imported(tmp_path, LOGS / "deepep_internode.log", more=("--nodes", 2))
    assert document["nic"] == json.loads(BASE.read_text())["nic"]
    # Without the notify phase; the last line is in the words of another version.
    assert [(each["stage"], each["row_format"], each["time_us"]) for each in document["dispatches"]] \
        == [("dispatch", "fp8", 1000), ("dispatch", "bf16", 1860), ("combine", "bf16", 1900)]
    assert all((each["nodes"], each["gpus"], each["tokens"], each["sms"]) == (2, 16, 4096, 24)
               for each in document["dispatches"])
    mine = ("--cluster", tmp_path / "my_cluster.json")
    combine = dispatched("combine", 4096, 16, *mine)
    assert combine["time_us"] == pytest.approx(1900, rel=1e-3)
    assert "measured: DeepEP's test, deepep_internode.log" in combine["provenance"]
    assert combine["time_us_p05"] == pytest.approx(1900 * 0.94, rel=1e-3)
    # Other sizes are scaled by as much.
    base = ("--cluster", "hgx-h100")
    factor = 1900 / dispatched("combine", 4096, 16, *base)["time_us"]
    assert dispatched("combine", 1024, 16, *mine)["time_us"] == pytest.approx(
        factor * dispatched("combine", 1024, 16, *base)["time_us"], rel=1e-6)
    for row_format, time_us in (("fp8", 1000), ("bf16", 1860)):
        answer = dispatched("dispatch", 4096, 16, "--row-format", row_format, *mine)
        assert answer["time_us"] == pytest.approx(time_us, rel=1e-6)
    # Inside a node nothing was measured; on other numbers of nodes half of the factor is taken.
    assert dispatched("combine", 4096, 8, *mine)["time_us"] == dispatched("combine", 4096, 8, *base)["time_us"]
    four, law = dispatched("combine", 4096, 32, *mine), dispatched("combine", 4096, 32, *base)
    assert four["time_us"] == pytest.approx(factor**0.5 * law["time_us"], rel=1e-6)
    assert four["time_us_p95"] / four["time_us"] > law["time_us_p95"] / law["time_us"]
    assert "half of the factor on 2 nodes (measured: DeepEP's test, deepep_internode.log)" in four["provenance"]


def test_two_sizes_of_deepep_both_come_back(tmp_path):
    text = (LOGS / "deepep_internode.log").read_text()
    few = tmp_path / "few.log"
    few.write_text(text.replace("num_tokens=4096", "num_tokens=128").replace("50 + 1000 us", "50 + 93 us")
                   .replace("50 + 1860 us", "50 + 124 us").replace("transmit: 1900.00", "transmit: 201.00"))
    imported(tmp_path, few, LOGS / "deepep_internode.log", more=("--nodes", 2))
    mine = ("--cluster", tmp_path / "my_cluster.json")
    for tokens, times in ((128, (93, 124, 201)), (4096, (1000, 1860, 1900))):
        for (op, *words), time_us in zip((("dispatch", "--row-format", "fp8"), ("dispatch",), ("combine",)), times):
            answer = dispatched(op, tokens, 16, *words, *mine)
            assert answer["time_us"] == pytest.approx(time_us, rel=1e-6)
            assert answer["time_us_p95"] == pytest.approx(1.06 * time_us, rel=1e-6)
    # The law's own band is back where nothing near was measured.
    for tokens, sms in ((8, 24), (65536, 24), (4096, 8)):
        measured = dispatched("dispatch", tokens, 16, "--sms", sms, *mine)
        law = dispatched("dispatch", tokens, 16, "--sms", sms, "--cluster", "hgx-h100")
        for end in ("time_us_p05", "time_us_p95"):
            assert abs(math.log(measured[end] / measured["time_us"])) >= abs(math.log(law[end] / law["time_us"]))


def test_deepeps_experts_are_asked_for(tmp_path):
    text = (LOGS / "deepep_internode.log").read_text().replace("num_topk_groups=2", "num_topk_groups=3")
    (tmp_path / "three.log").write_text(text)
    refused(tmp_path, tmp_path / "three.log", more=("--nodes", 3), parts=[
        "three.log: --experts 256: not spread evenly over 24 GPUs", "give the number of the run, a multiple of 24"])
    text = (LOGS / "deepep_internode.log").read_text().replace("num_topk=8", "num_topk=24")
    (tmp_path / "many.log").write_text(text)
    refused(tmp_path, tmp_path / "many.log", more=("--nodes", 2, "--experts", 16), parts=["--experts 16: num_topk=24"])


def test_deepeps_times_are_of_the_bases_gpu(tmp_path):
    document, _ = imported(tmp_path, LOGS / "deepep_internode.log", more=("--nodes", 2))
    assert {each["gpu"] for each in document["dispatches"]} == {"H100"}

    def combine(profile, cluster):
        return as_json("predict", "--op", "combine", *DISPATCH[2:], "--profile", profile, "--cluster", cluster, "--tokens", 4096,
                       "--gpus", 16)

    mine = tmp_path / "my_cluster.json"
    # Hopper GPUs share what the SMs take.
    assert "measured: DeepEP's test" in combine("h200-sxm", mine)["provenance"]
    other = combine("b200-sxm", mine)
    assert other["time_us"] == combine("b200-sxm", "hgx-h100")["time_us"]
    assert "measured: DeepEP's test" not in other["provenance"]
    # A base of no product names none.
    unnamed = json.loads(BASE.read_text()) | {"name": "unnamed", "source": "no product"}
    (tmp_path / "unnamed.json").write_text(json.dumps(unnamed))
    document, _ = imported(tmp_path, LOGS / "deepep_internode.log", more=("--nodes", 2),
                           cluster=tmp_path / "unnamed.json")
    assert all("gpu" not in each for each in document["dispatches"])


def test_a_step_goes_by_the_measured_dispatches(tmp_path):
    imported(tmp_path, LOGS / "deepep_internode.log", more=("--nodes", 2))

    def exchange(cluster):
        return as_json("simulate", "--profile", "h100-sxm", "--experts", 32, "--top-k", 4, "--router",
                       "dropless", "--tokens-per-gpu", 2048, "--replicas", 1, "--gpus", 16,
                       "--expert-parallel", 16, "--dispatcher", "deepep", "--cluster", cluster, "--mode",
                       "prefill", "--routing", "balanced")

    mine = tmp_path / "my_cluster.json"
    measured, base = exchange(mine), exchange("hgx-h100")
    assert "measured: DeepEP's test, deepep_internode.log" in measured["provenance"]
    factor = {op: dispatched(op, 2048, 16, "--cluster", mine)["time_us"] /
              dispatched(op, 2048, 16, "--cluster", "hgx-h100")["time_us"]
              for op in ("dispatch", "combine")}
    ratio = measured["exchange_ms"] / base["exchange_ms"]
    # The notify phases are not scaled, nor is what else a step exchanges.
    assert min(1, *factor.values()) < ratio < max(1, *factor.values())
    assert ratio != 1


def test_training_names_and_takes_the_measured_dispatches(tmp_path):
    text = (LOGS / "deepep_internode.log").read_text()
    (tmp_path / "twenty.log").write_text(text.replace("SMs 24", "SMs 20"))
    imported(tmp_path, tmp_path / "twenty.log", more=("--nodes", 2))
    # V3 without groups of experts, as the test draws them.
    model = (MODELS / "deepseek-v3-4layers.json").read_text()
    assert "bias-balanced+groups:8:4" in model
    (tmp_path / "v3.json").write_text(model.replace("+groups:8:4", ""))
    words = ("train", "--model", tmp_path / "v3.json", "--profile", "h100-sxm", "--gpus", 16, "--expert-parallel", 16,
             "--global-batch", 16, "--dispatcher", "deepep", "--cluster", tmp_path / "my_cluster.json")
    text = succeed(*words)
    assert "dispatcher deepep, 20 SMs (measured: DeepEP's test, twenty.log, over derived: fitted" in text
    assert "NIC written to by the GPU" in text and "with 40 us of notify" in text
    # Three MoE layers, rows out and home in forward, as many in backward, not quite even: 4,096 tokens of a GPU.
    step = as_json(*words)
    assert step["dispatch_ms"] == pytest.approx(3 * (1860 + 1900 + 80) / 1e3, rel=5e-3)


def test_deepep_inside_a_node_without_printed_times(tmp_path):
    log = tmp_path / "intranode.log"
    log.write_text("[config] num_tokens=4096, hidden=7168, num_topk=8\n"
                   "[tuning] Best dispatch (FP8): SMs 24, NVL chunk 16, 100.00 GB/s (NVL)\n"
                   "[tuning] Best combine: SMs 24, NVL chunk 4: 150.00 GB/s (NVL)\n")
    document, _ = imported(tmp_path, log)
    # Of 8 GPUs with 32 of 256 experts each a token meets 8 (1 - C(224, 8) / C(256, 8)).
    missed = 1.0
    for drawn in range(8):
        missed *= (224 - drawn) / (256 - drawn)
    rows = 4096 * 8 * (1 - missed)
    times = [each["time_us"] for each in document["dispatches"]]
    assert times == pytest.approx([rows * 7168 * (1 + 4 / 128) / 100e3, rows * 7168 * 2 / 150e3])
    answer = dispatched("combine", 4096, 8, "--cluster", tmp_path / "my_cluster.json")
    assert answer["time_us"] == pytest.approx(times[1], rel=1e-6)
    refused(tmp_path, log, more=("--nodes", 2), parts=["leave --nodes out"])


@pytest.mark.parametrize(("change", "part"), [
    ({"gpus": 9}, "/dispatches/0/gpus: 9 GPUs cannot be spread"),
    ({"gpus": 32}, "/dispatches/0/gpus: 32 GPUs on 2 nodes"),
    ({"experts": 255}, "/dispatches/0/experts"), ({"k": 300}, "/dispatches/0/k: 300 of 256"),
    ({"stage": "send"}, "/dispatches/0/stage"), ({"time_us": 0}, "/dispatches/0/time_us")])
def test_a_contradictory_dispatch_is_refused(change, part, tmp_path):
    document, _ = imported(tmp_path, LOGS / "deepep_internode.log", more=("--nodes", 2))
    document["dispatches"][0].update(change)
    (tmp_path / "bad.json").write_text(json.dumps(document))
    result = moesim("predict", "--op", "all-to-all", "--gpus", 16, "--bytes", 64, "--cluster",
                    tmp_path / "bad.json")
    assert result.returncode == 2 and "bad.json: " + part in result.stderr, result.stderr


def test_no_dispatch_is_faster_than_its_links(tmp_path):
    log = tmp_path / "intranode.log"
    config = "[config] num_tokens=4096, hidden=7168, num_topk=8\n"
    # 4,096 tokens go to 5.3 of 8 GPUs each, 4.6 of them others: 140 MB in FP8.
    log.write_text(config + "[tuning] Best dispatch (FP8): SMs 24, NVL chunk 12, 540.00 GB/s (NVL), t: 290.0 us\n")
    refused(tmp_path, log, parts=["intranode.log: DeepEP dispatch (fp8) in 290.0 us", "450 GB/s (domain.gb_per_s)"])
    log.write_text(config + "[tuning] Best dispatch (FP8): SMs 24, NVL chunk 12, 490.00 GB/s (NVL), t: 320.0 us\n")
    imported(tmp_path, log)
    text = (LOGS / "deepep_internode.log").read_text()
    (tmp_path / "fast.log").write_text(text.replace("transmit: 1900.00 us", "transmit: 1100.00 us"))
    refused(tmp_path, tmp_path / "fast.log", more=("--nodes", 2), parts=["DeepEP combine (bf16)", "50 GB/s (of its NICs"])


def test_dispatches_that_contradict_each_other_are_named(tmp_path):
    logs = {}
    for name, time_us in (("one", 350), ("near", 380), ("slow", 700)):
        logs[name] = tmp_path / f"{name}.log"
        logs[name].write_text("[config] num_tokens=4096, hidden=7168, num_topk=8\n"
                              f"[tuning] Best dispatch (FP8): SMs 24, NVL chunk 12, 300.00 GB/s (NVL), t: {time_us}.0 us\n")
    assert "warning" not in imported(tmp_path, logs["one"], logs["near"])[1]
    document, said = imported(tmp_path, logs["one"], logs["slow"])
    assert "warning: DeepEP dispatch (fp8) on 8 GPUs, 24 SMs, 8 of 256 experts, hidden size 7168: runs contradict each other" in said
    assert f"350.00 us ({logs['one']}) and 700.00 us ({logs['slow']}), 2.00 times as long; their geometric mean" in said
    assert len(document["dispatches"]) == 2
    # As many bytes of rows of another size.
    logs["slow"].write_text(logs["slow"].read_text().replace("num_tokens=4096, hidden=7168", "num_tokens=2048, hidden=14336"))
    assert "warning" not in imported(tmp_path, logs["one"], logs["slow"])[1]
