"""--dispatcher: steps whose rows DeepEP, HybridEP or TensorRT-LLM carry; what is refused."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from command_line import as_json, as_rows, moesim, needs_binary, succeed

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = sorted(path.stem for path in (ROOT / "profiles" / "dispatchers").glob("*.json"))
WORDS = ["--profile", "h100-sxm", "--experts", "32", "--top-k", "4", "--tokens-per-gpu", "2048",
         "--replicas", "2", "--expert-parallel", "16", "--gpus", "16"]
INSIDE = [*WORDS[:-4], "--expert-parallel", "8", "--gpus", "8"]

pytestmark = needs_binary


def rows(*words):
    return as_rows("sweep", "--router", "dropless", *words)


def refusal(*words):
    result = moesim("simulate", *words)
    assert result.returncode == 2 and result.stdout == ""
    return result.stderr


def test_every_shipped_dispatcher_is_an_option_that_the_help_names():
    document = as_json("options")
    (option,) = [option for option in document["options"] if option["name"] == "dispatcher"]
    assert [value["name"] for value in option["values"]] == ["all-to-all", *sorted(SHIPPED)]
    assert option["default"] == "all-to-all"


def test_a_row_says_what_carried_it_and_reproduces_itself():
    words = [*WORDS, "--replicas", "5"]
    plain, deepep = rows(*words, "--dispatcher", "all-to-all,deepep")
    assert (plain["dispatcher"], plain["dedup"]) == ("", "none")
    assert (deepep["dispatcher"], deepep["dedup"]) == ("deepep", "node")
    for part in ("dispatcher deepep, 20 SMs (derived", "NIC written to by the GPU", "with 40 us of notify"):
        assert part in deepep["provenance"] and part not in plain["provenance"]
    assert float(deepep["step_ms_p05"]) < float(deepep["step_ms"]) < float(deepep["step_ms_p95"])
    (again,) = rows(*words, "--dispatcher", "deepep", "--dedup", "node", "--fidelity", deepep["fidelity"])
    assert again == deepep


def test_training_steps_have_the_sms_of_training_libraries():
    words = ("simulate", "--router", "dropless", *INSIDE[:2], "--model", "qwen3-30b-a3b", "--sequence-length", 4096,
             "--micro-batch", 1, "--gpus", 8, "--expert-parallel", 8, "--routing", "balanced", "--replicas", 1,
             "--dispatcher", "deepep", "--format", "json")
    for mode, sms, passes in (("train", 20, 2), ("prefill", 24, 1)):
        step = json.loads(succeed(*words, "--mode", mode))
        assert f"dispatcher deepep, {sms} SMs" in step["provenance"]
        kernels_us = sum(as_json("predict", "--op", op, "--profile", "h100-sxm", "--dispatcher", "deepep", "--tokens", 4096, "--hidden", 2048,
                                 "--k", 8, "--experts", 128, "--gpus", 8, "--sms", sms)["time_us"]
            for op in ("dispatch", "combine"))
        # 48 layers, 30 us of notify at either stage. Drawn routing is not quite even.
        assert float(step["exchange_ms"]) == pytest.approx(48 * passes * (kernels_us + 60) / 1e3, rel=5e-3)
    trained = succeed("train", "--model", "qwen3-30b-a3b", "--profile", "h100-sxm", "--gpus", 8, "--expert-parallel", 8,
                      "--global-batch", 8, "--dispatcher", "deepep")
    assert "dispatcher deepep, 20 SMs (derived" in trained and "with 30 us of notify" in trained


def test_all_to_all_is_what_it_is_without_the_option():
    assert rows(*WORDS, "--dispatcher", "all-to-all") == rows(*WORDS)


def test_a_table_names_all_to_all_beside_others():
    for others in (["deepep"], ["deepep", "hybridep"]):
        names = ["all-to-all", *others]
        heading, *lines = succeed("sweep", "--router", "dropless", *WORDS, "--dispatcher", ",".join(names)).splitlines()
        assert "  dispatcher  " in heading
        for name, line in zip(names, lines):
            assert f" {name} " in line
    alone = succeed("sweep", "--router", "dropless", *WORDS, "--seed", "1,2")
    assert "dispatcher" not in alone and "all-to-all" not in alone


@pytest.mark.parametrize("name", SHIPPED)
def test_more_imbalance_takes_longer(name):
    even, skewed = rows(*INSIDE, "--dispatcher", name, "--routing", "gaussian:0,zipf:1.2")
    assert float(even["exchange_ms"]) < float(skewed["exchange_ms"])


def test_the_summary_and_the_timeline_name_the_dispatcher(tmp_path):
    trace = tmp_path / "trace.json"
    text = succeed("simulate", "--router", "dropless", *INSIDE, "--mode", "prefill", "--dispatcher", "trtllm",
                   "--timeline", trace)
    assert "rows carried by trtllm" in text
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"}
    assert {"trtllm:dispatch", "trtllm:combine"} <= names and "nccl:all_to_all" not in names


def test_capacity_without_padding_sends_the_kept_rows_alone():
    words = [*WORDS, "--dispatcher", "deepep", "--padding", "none", "--capacity-factor", "0.5,8", "--format", "csv"]
    few, all_ = csv.DictReader(io.StringIO(succeed("sweep", "--router", "top4", *words)))
    assert float(few["exchange_ms"]) < float(all_["exchange_ms"])


@pytest.mark.parametrize("name", ["deepep", "trtllm"])
def test_counts_give_the_time_of_tokens(name):
    # Top-4 of 32 on 8 GPUs: a token meets 3.0 of them. Counts have their own draws of routing, which move the
    # busiest GPU by a percent or two.
    tokens, counts = rows(*INSIDE, "--dispatcher", name, "--fidelity", "tokens,counts")
    assert float(counts["exchange_ms"]) == pytest.approx(float(tokens["exchange_ms"]), rel=0.03)
    assert "the experts of a token independent" not in counts["provenance"] + tokens["provenance"]
    # What a capacity keeps of a token's routes counts do not say: then the dispatcher estimates it.
    (limited,) = as_rows("sweep", "--router", "top4", "--padding", "none", "--capacity-factor", "6", *INSIDE, "--dispatcher", name,
                         "--fidelity", "counts")
    assert "the experts of a token independent" in limited["provenance"]


def test_what_makes_no_sense_is_refused_with_the_reason():
    padded = refusal("--router", "top4", *WORDS, "--dispatcher", "deepep")
    assert "--dispatcher deepep: router top4 sends every expert a block of its own" in padded
    assert "--padding none" in padded
    assert "a row once to each node: leave it out" in refusal(
        "--router", "dropless", *WORDS, "--dispatcher", "hybridep", "--dedup", "gpu")
    assert "inside one NVLink domain" in refusal("--router", "dropless", *WORDS, "--dispatcher", "trtllm")
    assert "over PCIe" in refusal("--router", "dropless", *INSIDE, "--cluster", "pcie-l40s", "--dispatcher", "deepep")
    crooked = refusal("--router", "dropless", "--profile", "h100-sxm", "--gpus", "12", "--expert-parallel", "12",
                      "--experts", "12", "--tokens-per-gpu", "2048", "--dispatcher", "low-latency")
    assert "--dispatcher low-latency: expert-parallel groups of 12 GPUs have parts of NVLink domains of 8" in crooked
    assert "choose --expert-parallel 1, 2, 4" in crooked
    assert "unknown" in refusal("--router", "dropless", *WORDS, "--dispatcher", "deep-ep")


@pytest.mark.parametrize("choice", [["--dispatcher", "hybridep"], ["--dedup", "node"]])
def test_64_of_72_gpus_of_a_rack_are_one_domain(choice):
    # Every pair of a group of 64 is joined by NVLink, as in a group of 32: none takes a NIC.
    words = ["--profile", "gb200", "--cluster", "gb200-nvl72", "--model", "deepseek-v3-4layers", "--mode", "prefill",
             "--router", "dropless", "--micro-batch", "1", "--sequence-length", "512", "--replicas", "1", "--format", "csv",
             "--gpus", "64"]
    (row,) = csv.DictReader(io.StringIO(succeed("sweep", *words, "--expert-parallel", "64", *choice)))
    (half,) = csv.DictReader(io.StringIO(succeed("sweep", *words, "--expert-parallel", "32", *choice)))
    assert row["status"] == half["status"] == "ok"
    assert 0.8 < float(row["exchange_ms"]) / float(half["exchange_ms"]) < 1.5


def counts_per_gpu(folder):
    """Of 8 GPUs and 4,096 tokens, 8 experts each; one stand-in expert on each GPU."""
    folder.mkdir()
    np.save(folder / "counts.npy", np.full((1, 8, 1, 8), 4096))
    (folder / "trace.json").write_text(json.dumps({
        "format": "moesim trace 1", "name": "per_gpu", "model": "m", "source": "s", "licence": "m", "origin": "synthetic",
        "kind": "counts", "per": "rank", "axes": ["step", "rank", "layer", "expert"], "tokens": 4096, "experts": 8,
        "top_k": 8, "array": "counts.npy"}))
    return folder


def test_counts_per_gpu_say_nothing_of_the_fullest_expert(tmp_path):
    words = ("--profile", "h100-sxm", "--sequence-length", 4096, "--gpus", 8, "--expert-parallel", 8, "--routing",
             f"trace:{counts_per_gpu(tmp_path / 'per_gpu')}")
    steps = ("--model", "qwen3-30b-a3b", "--router", "dropless", "--micro-batch", 1, "--mode", "prefill", "--replicas", 1)
    why = refusal(*words, *steps, "--dispatcher", "low-latency")
    assert "--dispatcher low-latency: trace:" in why and "counts rows per GPU" in why
    assert "record counts per expert, or choose --dispatcher all-to-all" in why
    assert "which routes are of one token" in refusal(*words, *steps, "--dispatcher", "deepep")
    assert succeed("simulate", *words, *steps, "--dispatcher", "all-to-all")
    # A model of one expert on each GPU is what was counted.
    model = json.loads((ROOT / "profiles" / "models" / "mixtral-8x7b.json").read_text())
    model["moe"]["top_k"] = 8
    (tmp_path / "eight.json").write_text(json.dumps(model))
    assert succeed("simulate", *words, "--model", tmp_path / "eight.json", *steps[2:], "--dispatcher", "low-latency")


def test_a_trace_of_counts_has_no_recorded_tokens(tmp_path):
    words = ("train", "--model", "mixtral-8x7b", "--profile", "h100-sxm", "--sequence-length", 4096, "--gpus", 8,
             "--expert-parallel", 8, "--global-batch", 8, "--router", "dropless", "--rank-capacity", 1.5)
    counts = counts_per_gpu(tmp_path / "per_gpu")
    document = json.loads((counts / "trace.json").read_text())
    (counts / "trace.json").write_text(json.dumps({**document, "per": "expert", "top_k": 2}))
    np.save(counts / "counts.npy", np.full((1, 8, 1, 8), 1024))
    result = moesim(*words, "--routing", f"trace:{counts}")
    assert result.returncode == 2 and "per_gpu has recorded counts" in result.stderr, result.stderr


def test_options_without_effect_are_noted():
    result = moesim("simulate", "--router", "dropless", *INSIDE, "--dispatcher", "deepep", "--network", "flows")
    assert result.returncode == 0 and "--network" in result.stderr and "a law of its own" in result.stderr
    alone = moesim("simulate", "--router", "dropless", *WORDS[:-4], "--gpus", "8", "--expert-parallel", "1",
                   "--dispatcher", "deepep")
    assert alone.returncode == 0 and "exchanges nothing" in alone.stderr


def test_routing_alone_is_the_same_with_any_dispatcher():
    words = ["--router", "dropless", "--gpus", "16", "--experts", "32", "--tokens-per-gpu", "256", "--replicas", "1"]
    plain = moesim("route", *words)
    named = moesim("route", *words, "--dispatcher", "deepep")
    assert named.returncode == 0 and named.stdout == plain.stdout
    assert "--dispatcher" in named.stderr and "routing alone" in named.stderr


def test_training_steps_on_efa_take_what_public_steps_there_took():
    words = [*WORDS, "--cluster", "aws-p5", "--dispatcher", "deepep"]
    trained, passed = rows(*words, "--mode", "train,prefill")
    assert "NIC written to by a CPU proxy (derived: in AWS's training steps on p5" in trained["provenance"]
    assert "NIC written to by a CPU proxy (derived: AWS comparison on EFA" in passed["provenance"]
    # Two passes, each as slow as three of the library's own test.
    assert float(trained["exchange_ms"]) > 5 * float(passed["exchange_ms"])
