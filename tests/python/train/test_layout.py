"""moesim layout: process groups, pipeline stages, schedules, and what cannot be."""

import gzip
import json

import pytest
from command_line import as_json, as_rows, expect_error, moesim, needs_binary, succeed

pytestmark = needs_binary
QWEN = ("layout", "--model", "qwen3-30b-a3b")  # 48 layers, 32 heads, 4 key/value heads, 128 experts
DEEPSEEK = ("layout", "--model", "deepseek-v3", "--gpus", 256)


def test_groups_are_those_of_megatron():
    """Megatron-LM's RankGenerator (d98e8a6) for 16 GPUs, TP 2, PP 2, EP 4."""
    words = ("layout", "--model", "mixtral-8x7b", "--gpus", 16, "--tensor-parallel", 2,
             "--pipeline-parallel", 2, "--expert-parallel", 4)
    result = as_json(*words, "--groups")
    members = {name: group["members"] for name, group in result["groups"].items()}
    assert members["tp"] == [[rank, rank + 1] for rank in range(0, 16, 2)]
    assert members["pp"] == [[rank, rank + 8] for rank in range(8)]
    assert members["dp"] == [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]
    assert members["ep"] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert members["edp"] == [[0, 4], [1, 5], [2, 6], [3, 7], [8, 12], [9, 13], [10, 14], [11, 15]]
    assert members["cp"] == members["etp"] == [[rank] for rank in range(16)]
    assert (result["data_parallel"], result["expert_data_parallel"]) == (4, 2)
    assert "members" not in as_json(*words)["groups"]["tp"]
    rows = as_rows(*words, "--groups")
    assert [row["ranks"] for row in rows if row["group"] == "dp"] == [
        " ".join(map(str, ranks)) for ranks in members["dp"]]
    table = succeed(*words, "--groups")
    assert "  8 10 12 14\n" in table and "  8 10 12 14\n" not in succeed(*words)


@pytest.mark.parametrize(("ranks", "least", "most"), [(8, 8, 8), (64, 1, 1), (72, 1, 2)])
def test_groups_touch_domains(ranks, least, most):
    result = as_json(*QWEN, "--gpus", 256, "--expert-parallel", 64, "--ranks-per-domain", ranks)
    group = result["groups"]["ep"]
    assert (group["domains_least"], group["domains_most"]) == (least, most)


def one_f_one_b(times, micro_batches):
    """The end of a 1F1B schedule whose stages take `times` for F and twice that for B."""
    ranks = len(times)
    orders = []
    for rank in range(ranks):
        warm_up = min(ranks - 1 - rank, micro_batches)
        order = [("F", at) for at in range(warm_up)]
        for at in range(micro_batches - warm_up):
            order += [("F", warm_up + at), ("B", at)]
        orders.append(order + [("B", at) for at in range(micro_batches - warm_up, micro_batches)])
    ends, free = {}, [0.0] * ranks
    while any(orders):
        for rank, order in enumerate(orders):
            while order:
                kind, at = order[0]
                before = (kind, at, rank - 1 if kind == "F" else rank + 1)
                first = rank == 0 if kind == "F" else rank == ranks - 1
                if not first and before not in ends:
                    break
                start = max(free[rank], 0 if first else ends[before])
                free[rank] = ends[kind, at, rank] = start + times[rank] * (1 if kind == "F" else 2)
                order.pop(0)
    return max(free)


def test_the_bubble_is_that_of_unequal_stages():
    result = as_json(*QWEN, "--gpus", 32, "--pipeline-parallel", 4, "--global-batch", 64)
    assert result["micro_batches"] == 8 and result["pipeline_schedule"] == "1f1b"
    times = [stage["forward_tflop"] for stage in result["stages"]]
    assert times[0] == times[1] < times[3]  # the last has the output head
    end = one_f_one_b(times, 8)
    idle = [1 - 8 * 3 * time / end for time in times]
    assert [stage["idle_share"] for stage in result["stages"]] == pytest.approx(idle, abs=1e-6)
    assert result["bubble_share"] == pytest.approx(sum(idle) / 4, abs=1e-6)
    assert [stage["held_chunks"] for stage in result["stages"]] == [4, 3, 2, 1]
    assert "proportional to the forward FLOPs" in result["time_rules"]


def test_pairs_are_said_to_gain_nothing():
    options = ("--gpus", 32, "--pipeline-parallel", 4)
    said = "takes the sum of its parts"
    assert said in succeed(*QWEN, *options, "--pipeline-schedule", "dualpipe")
    assert said in succeed(*QWEN, *options, "--virtual-pipeline", 2, "--ep-overlap", "on")
    assert said not in succeed(*QWEN, *options)


@pytest.mark.parametrize(("options", "held"), [
    (("--pipeline-schedule", "gpipe"), [8, 8, 8, 8]),
    (("--virtual-pipeline", 2), [11, 9, 7, 5]),
    (("--virtual-pipeline", 4), [19, 17, 15, 13]),
    (("--virtual-pipeline", 2, "--micro-batch-group", 8), [15, 13, 11, 9]),
    (("--virtual-pipeline", 2, "--ep-overlap", "on"), [12, 10, 8, 6]),
    (("--pipeline-schedule", "zb-h1"), [4, 3, 2, 1]),
    (("--pipeline-schedule", "zb-h2"), [7, 5, 3, 1]),
    (("--pipeline-schedule", "dualpipe"), [5, 5, 5, 5]),
    (("--pipeline-schedule", "dualpipe-v"), [9, 9, 9, 9])], ids=str)
def test_held_chunks_of_each_schedule(options, held):
    result = as_json(*QWEN, "--gpus", 32, "--pipeline-parallel", 4, "--global-batch", 64, *options)
    assert [stage["held_chunks"] for stage in result["stages"]] == held
    assert 0 < result["bubble_share"] < 0.5
    copies = 2 if "dualpipe" in options else 1
    assert sum(stage["layers"] for stage in result["stages"]) == 48 * copies


def test_a_pipeline_layout_as_frameworks_write_it():
    result = as_json(*DEEPSEEK, "--pipeline-parallel", 16, "--expert-parallel", 8,
                     "--pipeline-layout", "Et*3|(tt|)*29m|L")
    assert result["virtual_pipeline"] == 2 and result["pipeline_schedule"] == "interleaved"
    chunks = [stage["chunks"] for stage in result["stages"]]
    assert (chunks[0], chunks[14], chunks[15]) == ("Ettt tt", "tt m", "tt L")
    assert result["stages"][0]["layers"] == 5
    assert result["stages"][0]["moe_layers"] == 2  # its first three are dense
    # Two layers and a prediction depth; two layers and the heads of both losses, 7.591 TFLOP each.
    tflop = [stage["forward_tflop"] for stage in result["stages"]]
    assert (tflop[14], tflop[15]) == (pytest.approx(17.288, abs=5e-4), pytest.approx(26.147, abs=5e-4))
    assert result["stages"][14]["logits_gib"] == 0 < result["stages"][15]["logits_gib"]
    again = as_json(*DEEPSEEK, "--pipeline-parallel", 16, "--expert-parallel", 8,
                    "--pipeline-layout", result["pipeline_layout"].replace("|", "/"))
    assert again == result


def test_a_stage_with_a_prediction_depth_has_a_copy_of_the_embedding():
    def states(layout):
        stage = as_json(*DEEPSEEK, "--pipeline-parallel", 4, "--expert-parallel", 8,
                        "--pipeline-layout", layout)["stages"][2]
        return sum(stage[name] for name in ("weights_gib", "gradients_gib", "optimizer_gib"))

    # 0.9267 B parameters at 6 + 12 / 64 bytes; the depth is a layer and a projection besides.
    projection = (2 * 7168 * 7168 + 3 * 7168) * (6 + 12 / 64) / 2**30
    copy = states("Et*30|t*30|tm|L") - states("Et*30|t*29|tt|L") - projection
    assert copy == pytest.approx(5.34, abs=0.01)


def test_formats_agree():
    words = (*QWEN, "--gpus", 64, "--pipeline-parallel", 4, "--tensor-parallel", 2)
    result = as_json(*words)
    rows = as_rows(*words)
    assert [row["pipeline_rank"] for row in rows] == ["0", "1", "2", "3"]
    for row, stage in zip(rows, result["stages"]):
        for name, value in {**stage, "gpus": 64, "bubble_share": result["bubble_share"]}.items():
            assert (row[name] or None) == value or (
                float(row[name]) == pytest.approx(value, rel=1e-8))
    table = succeed(*words)
    assert "TP 2 x CP 1 x DP 8 x PP 4" in table and "proportional to the forward FLOPs" in table
    assert succeed(*words) == table


def test_rows_name_the_options_that_memory_depends_on():
    words = (*QWEN, "--gpus", 64, "--context-parallel", 2, "--context-method", "all-gather", "--zero", 2,
             "--optimizer-instances", 2, "--ranks-per-domain", 4)
    row = as_rows(*words)[0]
    for name, value in {"context_method": "all-gather", "zero": 2, "optimizer_instances": 2,
                        "ranks_per_domain": 4}.items():
        assert as_json(*words)[name] == value and row[name] == str(value)


def test_memory_falls_with_what_shares_it():
    def memory(*options):
        stages = as_json(*QWEN, "--gpus", 64, *options)["stages"]
        for stage in stages:
            parts = [stage[name] for name in stage
                     if name.endswith("_gib") and name != "memory_gib"]
            assert sum(parts) == pytest.approx(stage["memory_gib"], abs=1e-6)
        return max(stage["memory_gib"] for stage in stages)

    assert memory("--expert-parallel", 64) < memory("--expert-parallel", 8)
    assert memory("--pipeline-parallel", 4, "--tensor-parallel", 2) < memory("--pipeline-parallel", 4)
    # GPipe holds every micro-batch, 1F1B as many as there are stages behind.
    held = ("--pipeline-parallel", 4, "--global-batch", 256)
    assert memory(*held, "--pipeline-schedule", "gpipe") > memory(*held)


@pytest.mark.parametrize(("model", "gpus", "options", "states"), [
    ("qwen3-30b-a3b", 8, (), 71.51),
    ("mixtral-8x22b", 128, ("--tensor-parallel", 2, "--pipeline-parallel", 8), 26.48),
    ("deepseek-v3-4layers", 8, (), 92.78)])
def test_states_of_the_fullest_rank(model, gpus, options, states):
    """GiB of Megatron-LM's theoretical_memory_usage.py; the last from the formulas of SimuMax's rows."""
    stages = as_json("layout", "--model", model, "--gpus", gpus, "--expert-parallel", 8,
                     *options)["stages"]
    most = max(stage["weights_gib"] + stage["gradients_gib"] + stage["optimizer_gib"]
               for stage in stages)
    assert most == pytest.approx(states, abs=0.005)


SMALL_V3 = ("layout", "--model", "deepseek-v3-4layers", "--gpus", 8, "--expert-parallel", 8)


def test_activations_of_recomputed_modules():
    """4,096 tokens of 4 layers, one of them dense; bytes per token from the formulas of kept_bytes."""
    def gib(*options):
        stage, = as_json(*SMALL_V3, *options)["stages"]
        return stage["activations_gib"], stage["recomputed_gib"], stage["logits_gib"]

    whole = 4 * 201344 + 139264 + 3 * 256000
    assert gib() == pytest.approx((4096 * whole / 2**30, 0, 4096 * 6 * 129280 / 2**30))
    freed = 28672 + 32768 + 131072  # layernorm, moe_act, mla_up_proj of an MoE layer
    assert gib("--recompute", "layernorm,moe_act,mla_up_proj")[:2] == pytest.approx(
        (4096 * (whole - 4 * freed + 32768) / 2**30, 4096 * freed / 2**30))
    assert gib("--recompute", "full")[0] == pytest.approx(4096 * 4 * 2 * 7168 / 2**30)
    rows = 3 * 8 * (2 * 7168 + 6 * 2048)
    assert gib("--expert-load", 1.25)[0] == pytest.approx(4096 * (whole + rows / 4) / 2**30)


def test_states_of_precisions_and_moments():
    plain, = as_json(*SMALL_V3)["stages"]
    moments, = as_json(*SMALL_V3, "--optimizer-moments", "bf16")["stages"]
    assert moments["optimizer_gib"] == pytest.approx(plain["optimizer_gib"] * 8 / 12)
    # What GEMMs read: not embedding, head, routers and norms.
    others = 2 * 7168 * 129280 + 3 * 7168 * 256 + 4 * (2 * 7168 + 2048) + 7168
    read = plain["weights_gib"] / 2 - others / 2**30

    def more(precision, *words):
        low, = as_json(*SMALL_V3, "--precision", precision, *words)["stages"]
        return (low["weights_gib"] - plain["weights_gib"]) / read

    # By row and by column beside the bf16 copy; one byte instead of two, on Hopper two.
    assert more("fp8-block") == pytest.approx(2, rel=1e-7)
    assert more("fp8-current") == pytest.approx(-1, rel=1e-7)
    assert more("fp8-current", "--profile", "h100-sxm") == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("precision", ["bf16", "fp8-current", "fp8-block"])
def test_memory_is_that_of_train(precision):
    words = (*QWEN, "--gpus", 64, "--pipeline-parallel", 2, "--precision", precision,
             "--expert-load", 1.1, "--profile", "h100-sxm")
    train = as_json("train", *words[1:])["memory_gib_of_rank"]
    assert [stage["memory_gib"] for stage in as_json(*words)["stages"]] == pytest.approx(train)


@pytest.mark.parametrize("words", [
    ("--pipeline-schedule", "zb-h1"), ("--pipeline-schedule", "zb-h2"),
    ("--pipeline-schedule", "gpipe"), ("--virtual-pipeline", 2),
    ("--pipeline-schedule", "dualpipe"), ("--pipeline-schedule", "dualpipe-v"),
    ("--pipeline-schedule", "zb-h2", "--micro-batch", 2, "--recompute", "moe_act")], ids=str)
def test_schedules_hold_in_both_commands_the_same(words):
    words = (*QWEN, "--gpus", 64, "--expert-parallel", 8, "--pipeline-parallel", 4,
             "--global-batch", 256, "--expert-load", 1.1, "--profile", "h100-sxm", *words)
    train = as_json("train", *words[1:])["memory_gib_of_rank"]
    stages = as_json(*words)["stages"]
    assert [stage["memory_gib"] for stage in stages] == pytest.approx(train)
    if "zb-h2" in words:  # the last rank holds 2 PP - 1 passes until their weight gradients
        assert train[3] > max(train[:3])


@pytest.mark.parametrize(("words", "gflop"), [
    ((*QWEN, "--gpus", 8), 23.006), ((*DEEPSEEK, "--pipeline-layout", "Et*61L"), 249.81),
    ((*DEEPSEEK, "--pipeline-parallel", 2, "--pipeline-layout", "Et*31|t*30mL"), 259.99)], ids=str)
def test_model_flops_are_those_of_megatron(words, gflop):
    digits = 3 if gflop == 23.006 else 2
    assert round(as_json(*words)["model_gflop_per_token"], digits) == gflop


def test_what_does_not_fit_says_what_would():
    words = (*QWEN, "--gpus", 8, "--profile", "a100-sxm-80gb")
    assert as_json(*QWEN, "--gpus", 8)["stages"][0]["fits_memory"] is None
    assert as_json(*words)["stages"][0]["fits_memory"] is False
    hint = succeed(*words).split("does not fit; ")[1].split(" would")[0]
    assert as_json(*words, *hint.split())["stages"][0]["fits_memory"] is True
    assert "GiB left for libraries" in succeed(*words, *hint.split())
    offload = ("layout", "--model", "qwen3-30b-a3b", "--gpus", 32, "--micro-batch", 4, "--offload", "moe_act",
               "--profile", "h100-sxm")
    hint = succeed(*offload).split("does not fit; ")[1].split(" would")[0]
    assert "--offload none" in hint
    assert as_json(*offload, *hint.split())["stages"][0]["fits_memory"] is True
    assert "divide it over more ranks" in succeed(*SMALL_V3, "--profile", "a100-sxm-80gb")


def test_the_timeline_shows_the_schedule(tmp_path):
    out = tmp_path / "trace.json"
    words = (*QWEN, "--gpus", 32, "--pipeline-parallel", 4, "--global-batch", 64)
    result = moesim(*words, "--timeline", out)
    assert result.returncode == 0 and "ui.perfetto.dev" in result.stderr
    bars = [event for event in json.loads(out.read_text())["traceEvents"] if event["ph"] == "X"]
    gpus = as_json(*words, "--groups")["groups"]["pp"]["members"][0]
    assert len(bars) == 2 * 8 * 4 and gpus == [0, 8, 16, 24]
    end = max(bar["ts"] + bar["dur"] for bar in bars)
    for rank, gpu in enumerate(gpus):
        own = sorted((bar for bar in bars if bar["pid"] == gpu), key=lambda bar: bar["ts"])
        for bar, following in zip(own, own[1:]):
            assert bar["ts"] + bar["dur"] <= following["ts"] + 1e-6
        idle = 1 - sum(bar["dur"] for bar in own) / end
        assert idle == pytest.approx(as_json(*words)["stages"][rank]["idle_share"], abs=1e-6)
    assert own[0]["name"] == "forward: micro-batch 0, chunk 3"
    succeed(*words, "--timeline", tmp_path / "trace.json.gz")
    assert gzip.decompress((tmp_path / "trace.json.gz").read_bytes()) == out.read_bytes()


@pytest.mark.parametrize(("options", "parts"), [
    (["--gpus", 100, "--tensor-parallel", 2, "--pipeline-parallel", 8],
     ["--gpus 100 is no multiple of --tensor-parallel 2", "= 16",
      "nearest layouts that work: --pipeline-parallel 2; --gpus 96"]),
    (["--gpus", 64, "--pipeline-parallel", 5],
     ["--gpus 64 is no multiple of", "nearest layouts that work: --pipeline-parallel 4; --gpus 65"]),
    (["--gpus", 48, "--expert-parallel", 3],
     ["--expert-parallel 3 does not divide the 128 experts", "--expert-parallel 4"]),
    (["--gpus", 16, "--expert-parallel", 32], ["--expert-parallel 32", "= 32", "nearest"]),
    (["--gpus", 48, "--tensor-parallel", 3], ["32 attention heads", "--tensor-parallel 4"]),
    (["--gpus", 64, "--offload", "moe_act", "--recompute", "full"], ["--offload moe_act with --recompute full"]),
    (["--gpus", 64, "--context-parallel", 8, "--sequence-length", 4090], ["16 pieces"]),
    (["--gpus", 64, "--context-parallel", 8, "--context-method", "all-to-all"],
     ["4 key/value heads", "--context-parallel 4"]),
    (["--gpus", 64, "--global-batch", 100], ["data parallel 64", "--global-batch 128"]),
    (["--gpus", 64, "--pipeline-parallel", 4, "--virtual-pipeline", 5],
     ["48 layers do not divide evenly over 20", "--pipeline-layout", "--virtual-pipeline 4"]),
    (["--gpus", 64, "--virtual-pipeline", 2], ["interleaved needs", "choose 1f1b with --virtual-pipeline 1"]),
    (["--gpus", 64, "--virtual-pipeline", 2, "--pipeline-schedule", "zb-h1"],
     ["zb-h1 has no --virtual-pipeline 2: choose --virtual-pipeline 1"]),
    (["--gpus", 64, "--virtual-pipeline", 2, "--pipeline-parallel", 4, "--pipeline-schedule", "1f1b"],
     ["choose interleaved"]),
    (["--gpus", 64, "--pipeline-parallel", 4, "--ep-overlap", "on"],
     ["--virtual-pipeline is above 1 too"]),
    (["--gpus", 96, "--pipeline-parallel", 3, "--pipeline-schedule", "dualpipe"], ["3 is odd"]),
    (["--gpus", 64, "--pipeline-parallel", 4, "--pipeline-schedule", "dualpipe", "--global-batch", 96],
     ["8 micro-batches, not 6", "--global-batch 128"]),
    (["--pipeline-parallel", 2, "--pipeline-layout", "Et*24|x*24L"], ["character 7, 'x'"]),
    (["--pipeline-parallel", 2, "--pipeline-layout", "Et*24|t*23L"],
     ["47 decoder layers", "the model has 48"]),
    (["--pipeline-parallel", 2, "--pipeline-layout", "Et*24|t*12|t*12L"],
     ["3 chunks do not divide over --pipeline-parallel 2"]),
    (["--pipeline-parallel", 2, "--pipeline-layout", "Et*24|t*24mL"],
     ["0 depths of multi-token prediction"]),
    (["--pipeline-schedule", "1f2b"], ["--pipeline-schedule", "did you mean '1f1b'?"]),
    (["--schedule", "1f1b"], ["unknown option --schedule"]),
    (["--gpus", "0"], ["--gpus: 0 is too small"]),
    (["--ep-overlap", "maybe"], ["--ep-overlap", "off, on"]),
    (["--precision", "fp8"], ["--precision", "fp8-block", "mxfp8"]),
    (["--recompute", "moe,attention"], ["--recompute", "core_attn"]),
    (["--recompute", "full", "--ep-overlap", "on"], ["--ep-overlap", "recomputation"]),
    (["--optimizer-moments", "fp16"], ["--optimizer-moments", "bf16"]),
    (["--expert-load", "0.5"], ["--expert-load", "1.1"]),
    (["--model", "nosuch"], ["unknown model"]),
    (["--micro-batch", 1, "--global-batch", 64000000], ["1,000,000"]),
    (["--gpus", 16, "--pipeline-parallel", 16, "--global-batch", 1000000], ["more than 10000000"]),
    (["--gpus", 1 << 20, "--pipeline-parallel", 1 << 20, "--virtual-pipeline", 1 << 20],
     ["more than 10000 chunks"]),
    (["--gpus", 1024, "--pipeline-parallel", 1024], ["48 layers are fewer than 1024", "--pipeline-parallel"]),
    (["--sequence-length", 1 << 30, "--micro-batch", 1 << 20], ["FLOPs per GPU", "--micro-batch"]),
], ids=lambda value: " ".join(map(str, value)))
def test_what_cannot_be(options, parts):
    expect_error(moesim(*QWEN, *options), 2, *parts)


@pytest.mark.parametrize("words,note", [
    (("--context-method", "all-to-all"), "--context-method has no effect: --context-parallel 1"),
    (("--micro-batch-group", 4), "--micro-batch-group has no effect: only the interleaved schedule"),
    (("--recompute", "mla_up_proj"), "mla_up_proj in --recompute has no effect: no layer of qwen3-30b-a3b has it"),
    (("--recompute", "full"), ""),
])
def test_an_option_that_changes_nothing_is_said(words, note):
    ran = moesim(*QWEN, "--gpus", 64, "--pipeline-parallel", 2, *words)
    assert ran.returncode == 0
    assert f"note: {note}" in ran.stderr if note else "no effect" not in ran.stderr


def test_other_models_that_cannot_be():
    expect_error(moesim("layout", "--model", "llama2-7b", "--expert-parallel", 8), 2, "has no experts")
    expect_error(moesim("layout", "--model", "switch-base-8", "--pipeline-parallel", 2), 2, "encoder")
    # Three GPUs do not divide by two; no other number would do either.
    result = moesim("layout", "--model", "switch-base-8", "--gpus", 3, "--expert-parallel", 2)
    expect_error(result, 2, "switch-base-8 has an encoder")
    assert "nearest" not in result.stderr
    result = moesim(*DEEPSEEK, "--pipeline-parallel", 8, "--expert-parallel", 32)
    expect_error(result, 2, "61 layers do not divide evenly over 8", "--pipeline-layout")
    layout = result.stderr.split("such as '")[1].split("'")[0]
    assert as_json(*DEEPSEEK, "--pipeline-parallel", 8, "--expert-parallel", 32,
                   "--pipeline-layout", layout)["pipeline_layout"] == layout


def test_layers_that_do_not_divide_are_answered_with_an_uneven_layout_and_near_sizes_only():
    words = ("train", "--model", "qwen3-235b-a22b", "--gpus", 64, "--expert-parallel", 8, "--global-batch", 512)
    for sizes in (("--pipeline-parallel", 8), ("--pipeline-parallel", 8, "--virtual-pipeline", 2)):
        result = moesim(*words, *sizes)
        expect_error(result, 2, "94 layers do not divide evenly")
        # PP 2 and 1 divide 94, and are no neighbours of 8.
        assert "nearest" not in result.stderr
        layout = result.stderr.split("such as '")[1].split("'")[0]
        succeed(*words, *sizes, "--pipeline-layout", layout)
    expect_error(moesim(*words, "--pipeline-parallel", 4), 2, "'Et*24|t*24|t*23|t*23L'", "--pipeline-parallel 2")


def test_the_nearest_layouts_work():
    words = (*QWEN, "--gpus", 48, "--tensor-parallel", 3, "--expert-parallel", 3)
    result = moesim(*words)
    expect_error(result, 2, "nearest layouts that work: ")
    proposals = result.stderr.split("nearest layouts that work: ")[1].strip().split("; ")
    assert len(proposals) == 3
    for proposal in proposals:
        succeed(*words, *proposal.split())


@pytest.mark.parametrize("words", [
    ("layout", "--model", "mixtral-8x7b", "--gpus", 96, "--expert-tensor-parallel", 3, "--ep-overlap", "on"),
    ("layout", "--model", "kimi-k2", "--gpus", 31, "--tensor-parallel", 4, "--context-parallel", 2,
     "--expert-tensor-parallel", 4, "--optimizer-instances", 2),
    ("train", "--model", "llama2-7b-moe8", "--gpus", 24, "--pipeline-parallel", 16, "--optimizer-instances", 2)],
    ids=lambda words: " ".join(map(str, words)))
def test_the_nearest_layouts_take_their_own_default_of_expert_ranks(words):
    result = moesim(*words)
    expect_error(result, 2, "nearest layouts that work: ")
    for proposal in result.stderr.split("nearest layouts that work: ")[1].strip().split("; "):
        succeed(*words, *proposal.split())


def test_proposed_tensor_groups_stay_inside_a_node():
    words = (*QWEN, "--gpus", 64, "--global-batch", 100)
    result = moesim(*words)
    expect_error(result, 2, "--global-batch 128; --global-batch 64; ")
    proposals = result.stderr.split("nearest layouts that work: ")[1].strip().split("; ")
    # Data parallelism of 4 divides the batch too, but not by tensor ranks of two nodes.
    assert len(proposals) == 3 and "--tensor-parallel 16" not in proposals
    for proposal in proposals:
        succeed(*words, *proposal.split())


def test_output_that_cannot_be_written(tmp_path):
    expect_error(moesim("layout", "--out", tmp_path / "no" / "x.csv"), 1, "x.csv")
    expect_error(moesim("layout", "--timeline", tmp_path / "no" / "t.json"), 1, "t.json")
    assert succeed("layout", "--out", tmp_path / "x.csv") == ""
    assert (tmp_path / "x.csv").read_text().startswith("model,gpus,")


def test_domains_are_those_of_the_profiles_usual_cluster():
    words = ("layout", "--model", "qwen3-235b-a22b", "--tensor-parallel", 2, "--pipeline-parallel", 2,
             "--expert-parallel", 16)
    assert as_json(*words, "--gpus", 256)["ranks_per_domain"] == 8
    assert as_json(*words, "--gpus", 256, "--profile", "h200-sxm")["ranks_per_domain"] == 8
    rack = as_json(*words, "--gpus", 256, "--profile", "gb200")
    assert rack["ranks_per_domain"] == 64 and rack["groups"]["ep"]["domains_most"] == 1
    assert as_json(*words, "--gpus", 64, "--profile", "gb200")["ranks_per_domain"] == 72
    assert as_json(*words, "--gpus", 256, "--profile", "gb200", "--ranks-per-domain", 4)["ranks_per_domain"] == 4


@pytest.mark.parametrize(("options", "rules"), [
    ((), "fp32 gradients, Adam sharded (ZeRO 1)"), (("--zero", 0), "fp32 gradients, nothing sharded (ZeRO 0)"),
    (("--zero", 2, "--gradients", "bf16"), "bf16 gradients, Adam and gradients sharded (ZeRO 2)"),
    (("--zero", 3), "fp32 gradients, Adam, gradients and weights sharded (ZeRO 3)")])
def test_the_rule_of_memory_is_that_of_its_figures(options, rules):
    words = (*QWEN, "--gpus", 16, *options)
    assert f"memory: GEMMs in bf16, {rules}, recomputed: none" in succeed(*words)


def test_a_domain_larger_than_those_of_the_gpu_is_said():
    words = ("layout", "--gpus", 16, "--profile", "h100-sxm", "--ranks-per-domain")
    assert "note: --ranks-per-domain 16: those of h100-sxm usually have 8 (hgx-h100)" in moesim(*words, 16).stderr
    assert moesim(*words, 4).stderr == ""


def test_groups_of_weights_hold_both_copies_of_a_stage_under_dualpipe():
    words = ("layout", "--model", "qwen3-30b-a3b", "--gpus", 8, "--pipeline-parallel", 4, "--expert-parallel", 2,
             "--groups", "--pipeline-schedule")
    both = (*words, "dualpipe")
    groups = as_json(*both)["groups"]
    assert groups["dp-cp"]["members"] == [[0, 1, 6, 7], [2, 3, 4, 5]] == groups["dp"]["members"]
    assert groups["edp"]["members"] == [[0, 6], [1, 7], [2, 4], [3, 5]]
    assert (groups["edp"]["ranks"], groups["edp"]["groups"], groups["ep"]["ranks"]) == (2, 4, 2)
    assert "optimizer state of experts; of both copies" in succeed(*both)
    assert "of both copies" not in succeed(*words, "1f1b")
    rows = as_rows(*both)
    assert [row["ranks"] for row in rows if row["group"] == "edp"] == ["0 6", "1 7", "2 4", "3 5"]
