"""moesim predict --op dispatch, and combine by a dispatcher: known answers, shipped documents, what is
refused."""

import csv
import io
import json
import math
from pathlib import Path

import pytest
from command_line import as_json, moesim, needs_binary, succeed

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = sorted(path.stem for path in (ROOT / "profiles" / "dispatchers").glob("*.json"))
QUERY = {"tokens": 4096, "hidden": 7168, "k": 8, "experts": 256}

pytestmark = needs_binary


def flags(query):
    return [text for name, value in query.items() for text in (f"--{name}", value)]


def ask(op="dispatch", **more):
    query = {**QUERY, "profile": "h100-sxm", **{name.replace("_", "-"): value for name, value in more.items()}}
    return as_json("predict", "--op", op, *flags(query))


def refusal(op="dispatch", **more):
    query = {**QUERY, "profile": "h100-sxm", **{name.replace("_", "-"): value for name, value in more.items()}}
    result = moesim("predict", "--op", op, *flags(query))
    assert result.returncode != 0 and result.stdout == ""
    return result.stderr


def document(**more):
    stage = {"fixed_us": 10, "link_efficiency": {"value": 0.5, "low": 0.25, "high": 1},
             "factor": {"low": 1, "high": 1}}
    return {"format": "moesim dispatcher 1", "name": "mine", "help": "of mine", "source": "a test",
            "sent_once_per": "gpu",
            "machines": [{"origin": "assumed: a test", "inside": {"dispatch": stage, "combine": stage}}],
            **more}


def test_rows_over_nvlink_take_their_bytes_over_the_rate(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document()))
    # 8 experts of 8 on 8 GPUs: each of 1000 tokens goes to the 7 others, 900 bytes each, at half of
    # 450 GB/s: 28 us; 14 at the whole of it, 56 at a quarter.
    found = ask(dispatcher=path, tokens=1000, hidden=450, experts=8, gpus=8)
    assert found["time_us"] == pytest.approx(10 + 28)
    assert found["time_us_p05"] == pytest.approx(10 + 14)
    assert found["time_us_p95"] == pytest.approx(10 + 56)
    # fp8 rows are 450 + 450 / 128 * 4 bytes, on dispatch alone.
    half = ask(dispatcher=path, tokens=1000, hidden=450, experts=8, gpus=8, row_format="fp8")
    assert half["time_us"] == pytest.approx(10 + 28 * (450 + 450 / 32) / 900)


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("op", ["dispatch", "combine"])
def test_shipped_dispatchers_answer_with_bands_and_take_longer_for_more(name, op):
    times = []
    for tokens in (16, 512, 4096):
        found = ask(op, dispatcher=name, gpus=8, tokens=tokens)
        assert found["time_us_p05"] < found["time_us"] < found["time_us_p95"]
        assert f"dispatcher {name}" in found["provenance"]
        times.append(found["time_us"])
    assert times == sorted(times) and times[0] < times[-1]


def test_more_nodes_fewer_sms_and_a_proxy_take_longer():
    def time(**more):
        return ask(dispatcher="deepep", **more)["time_us"]
    assert time(gpus=8) < time(gpus=16) < time(gpus=32) < time(gpus=64)
    assert time(gpus=16, sms=24) < time(gpus=16, sms=8)
    assert time(gpus=32) < time(gpus=32, transport="proxy")
    # DeepEP's README: H800 on 4 nodes, FP8, 58 GB/s of rows to 3.61 of 4 nodes: 1887 us.
    found = ask(dispatcher="deepep", gpus=32, row_format="fp8")
    assert found["time_us_p05"] < 1887 < found["time_us_p95"]


def test_a_limit_of_nodes_takes_less():
    limited, free = (ask(dispatcher="deepep", gpus=64, **more)["time_us"] for more in ({"node_limit": 4}, {}))
    # Rows cross to 7/8 of 4 nodes instead of 5.29; the NIC is what both wait for.
    assert limited == pytest.approx(free * 4 / 5.29, rel=0.05)


def test_what_it_assumes_is_said():
    found = ask(dispatcher="deepep", gpus=16)
    assert found["params"]["sms"] == 24 and found["params"]["cluster"] == "hgx-h100"
    assert "without 40 us of notify" in found["provenance"]
    assert "NIC written to by the GPU (" in found["provenance"]
    unknown = ask(dispatcher="deepep", gpus=16, cluster="generic-8x100g")
    assert "assumed, the band has both" in unknown["provenance"]


def test_combine_without_a_dispatcher_is_the_kernel():
    query = {"tokens": 4096, "hidden": 7168, "k": 8, "profile": "h100-sxm"}
    kernel = as_json("predict", "--op", "combine", *flags(query))
    assert "dispatcher" not in kernel["provenance"]
    result = moesim("predict", "--op", "combine", *flags(query), "--gpus", 8)
    assert result.returncode == 2 and "gpus goes with dispatcher" in result.stderr


def test_queries_come_from_a_file_too(tmp_path):
    path = tmp_path / "queries.csv"
    path.write_text("op,dispatcher,tokens,hidden,k,experts,gpus,row_format\n"
                    "dispatch,deepep,4096,7168,8,256,16,fp8\ncombine,deepep,4096,7168,8,256,16,\n")
    rows = list(csv.DictReader(io.StringIO(succeed("predict", "--profile", "h100-sxm", "--in", path))))
    assert float(rows[0]["time_us"]) == pytest.approx(ask(dispatcher="deepep", gpus=16, row_format="fp8")["time_us"])
    assert float(rows[1]["time_us"]) == pytest.approx(ask("combine", dispatcher="deepep", gpus=16)["time_us"])


def test_what_makes_no_sense_is_refused_with_the_reason():
    assert "dispatcher is missing" in refusal(gpus=8)
    assert "unknown" in refusal(dispatcher="deep-ep", gpus=8) and "deepep" in refusal(dispatcher="deep-ep", gpus=8)
    assert "inside one NVLink domain" in refusal(dispatcher="trtllm", gpus=16)
    assert "12 GPUs are not as many on each of its domains: choose a multiple of 8" in refusal(dispatcher="deepep", gpus=12)
    assert "250 experts on 8 GPUs" in refusal(dispatcher="deepep", gpus=8, experts=250)
    assert "k 9: there are 8 experts" in refusal(dispatcher="deepep", gpus=8, k=9, experts=8)
    assert "expected bf16 or fp8" in refusal(dispatcher="deepep", gpus=8, row_format="fp4")
    assert "expected gpu or proxy" in refusal(dispatcher="deepep", gpus=16, transport="efa")
    assert "a CPU proxy writes to (EFA)" in refusal(dispatcher="hybridep", gpus=16, transport="proxy")
    assert "take what they find" in refusal(dispatcher="low-latency", gpus=8, sms=20)
    assert "the GPU has 132" in refusal(dispatcher="deepep", gpus=8, sms=133)
    assert "over PCIe" in refusal(dispatcher="deepep", gpus=8, cluster="pcie-l40s")
    assert "takes no --schedule: its kernels have an order of their own" in refusal(
        dispatcher="deepep", gpus=8, schedule="nccl")
    assert "takes no --bytes" in refusal(dispatcher="deepep", gpus=8, bytes=8)
    assert "combined rows are bf16" in refusal("combine", dispatcher="deepep", gpus=8, row_format="fp8")
    assert "ask --op all-to-all" in refusal(dispatcher="all-to-all", gpus=8)
    assert "a row for each expert, wherever it lies" in refusal(dispatcher="low-latency", gpus=64, node_limit=4)
    assert "in one domain" in refusal(dispatcher="deepep", gpus=8, node_limit=1)
    assert "there are 2" in refusal(dispatcher="deepep", gpus=16, node_limit=4)
    assert "they hold 8 experts" in refusal(dispatcher="deepep", gpus=16, node_limit=1, experts=16, k=9)
    assert "one GPU exchanges nothing" in refusal(dispatcher="deepep", gpus=1)


def test_a_document_that_breaks_the_schema_is_named_by_file_and_key(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document(sent_once_per="rack")))
    found = refusal(dispatcher=path, gpus=8)
    assert "mine.json" in found and "sent_once_per" in found


def test_tokens_beyond_what_was_measured_are_extrapolated():
    def width(answer):
        return answer["time_us_p95"] / answer["time_us_p05"]

    inside = [ask(dispatcher="low-latency", gpus=8, tokens=tokens) for tokens in (16, 2048)]
    beyond = [ask(dispatcher="low-latency", gpus=8, tokens=tokens) for tokens in (4096, 65536)]
    assert all("extrapolated" not in answer["provenance"] for answer in inside)
    for answer in beyond:
        assert "extrapolated from 1 to 2048 tokens of a GPU" in answer["provenance"]
    assert width(inside[1]) < width(beyond[0]) < width(beyond[1])
    assert "extrapolated" not in ask(dispatcher="deepep", gpus=16, tokens=65536)["provenance"]
    assert "extrapolated from 4096 tokens" in ask(dispatcher="hybridep", gpus=16, tokens=1024)["provenance"]
    assert "extrapolated" not in ask(dispatcher="hybridep", gpus=16, tokens=4096)["provenance"]


def test_what_was_not_measured_widens_the_band_and_is_said(tmp_path):
    def half_widths(answer):
        return [math.log(answer["time_us"] / answer["time_us_p05"]), math.log(answer["time_us_p95"] / answer["time_us"])]

    known = ask(dispatcher="deepep", gpus=16, sms=24)
    assert "not measured" not in known["provenance"] and "extrapolated" not in known["provenance"]
    # By 0.23 for each root of a factor of two away from 7168 values, over a document that does not say.
    unsaid = json.loads((ROOT / "profiles" / "dispatchers" / "deepep.json").read_text())
    del unsaid["measured_hidden"]
    header = unsaid.get("header_bytes", 0)
    (tmp_path / "unsaid.json").write_text(json.dumps(unsaid))
    for hidden, octaves in ((3584, 1), (14336, 1), (28672, 2)):
        far, usual = (ask(dispatcher=name, gpus=16, hidden=hidden) for name in ("deepep", tmp_path / "unsaid.json"))
        assert far["provenance"].endswith("; extrapolated from rows of 7168 values")
        assert "extrapolated" not in usual["provenance"] and usual["time_us"] == far["time_us"]
        below, above = (math.hypot(own, 0.23 * math.sqrt(octaves)) for own in half_widths(usual))
        # No earlier than the bytes pass the NICs at line rate: a row for each token that has an expert on the other of 2 nodes.
        wire_us = 4096 * (1 - math.comb(128, 8) / math.comb(256, 8)) * (2 * hidden + header) / 50e3
        assert half_widths(far) == pytest.approx([min(below, math.log(far["time_us"] / wire_us)), above])
    nodes = ask(dispatcher="deepep", gpus=128)
    assert nodes["provenance"].endswith("; extrapolated from 16 to 64 GPUs")
    assert half_widths(nodes)[1] > half_widths(ask(dispatcher="deepep", gpus=64))[1]
    # Tokens and hidden size at once.
    assert "extrapolated from 4096 tokens of a GPU, rows of 7168 values" in ask(
        dispatcher="hybridep", gpus=16, tokens=1024, hidden=4096)["provenance"]


def test_sms_that_were_not_measured_have_a_wide_band():
    """Of six numbers of SMs one copies 1.4 times as slowly as the others suggest: another may."""
    def across(op="dispatch", **more):
        return ask(op, dispatcher="deepep", gpus=16, **more, **({"row_format": "fp8"} if op == "dispatch" else {}))
    found = {sms: across(sms=sms) for sms in (8, 10, 12, 14, 16, 48)}
    for sms in (8, 12, 16):
        assert "not measured" not in found[sms]["provenance"] and found[sms]["time_us_p95"] < 1.2 * found[sms]["time_us"]
    for sms in (10, 14):
        assert found[sms]["provenance"].endswith(f"; {sms} SMs were not measured (4, 8, 12, 16, 20, 24 were)")
        assert 1.35 * found[sms]["time_us"] < found[sms]["time_us_p95"]
    assert found[48]["provenance"].endswith("; extrapolated from 4 to 24 SMs")
    # aiconfigurator's table, 12 SMs and 4096 tokens: 1725 us; 16 SMs: 1021 us.
    assert found[12]["time_us"] == pytest.approx(1725, rel=0.06)
    assert found[12]["time_us_p05"] < 1725 < found[12]["time_us_p95"]
    assert found[16]["time_us"] == pytest.approx(1021, rel=0.06)
    # Combined rows and one node show no such number.
    assert across("combine", sms=10)["time_us_p95"] < 1.2 * across("combine", sms=10)["time_us"]
    assert "10 SMs were not measured" in ask(dispatcher="deepep", gpus=8, sms=10)["provenance"]


def test_one_s_own_logs_say_how_far_they_are_themselves(tmp_path):
    cluster = json.loads((ROOT / "profiles" / "clusters" / "hgx-h100.json").read_text())
    entry = {"dispatcher": "deepep", "stage": "dispatch", "gpus": 16, "nodes": 2, "tokens": 4096, "hidden": 2048, "k": 8,
             "experts": 256, "sms": 10, "time_us": 900, "row_format": "bf16", "origin": "measured: a test"}
    cluster["dispatches"] = [entry]
    path = tmp_path / "own.json"
    path.write_text(json.dumps(cluster))
    found = ask(dispatcher="deepep", gpus=16, hidden=2048, sms=10, cluster=path)
    assert found["time_us"] == pytest.approx(900) and found["time_us_p95"] < 1.1 * 900
    assert "not measured" not in found["provenance"] and "extrapolated" not in found["provenance"]


@pytest.mark.parametrize("key, value, told", [
    ("measured_hidden", {"inside": [7168, 2048]}, "the least and the most values of a row"),
    ("measured_gpus", {"across": [0.5, 8]}, "measured_gpus"),
    ("measured_sms", {"inside": [8, 4]}, "expected to ascend")])
def test_what_was_measured_is_checked(tmp_path, key, value, told):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document(**{key: value})))
    found = refusal(dispatcher=path, tokens=1000, hidden=450, experts=8, gpus=8)
    assert "mine.json" in found and told in found


def test_the_range_of_measured_tokens_has_two_ends(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document(measured_tokens={"inside": [128, 64]})))
    told = refusal(dispatcher=path, tokens=1000, hidden=450, experts=8, gpus=8)
    assert "mine.json: /measured_tokens/inside" in told and "the least and the most tokens" in told
