"""What moesim train refuses, and the layouts and options that it says would work."""

import json
import pathlib
import re
import shlex

import pytest
from command_line import as_json, expect_error, moesim, needs_binary, succeed
from train_command import QWEN

pytestmark = needs_binary


def working_layouts(*words):
    said = moesim("train", *words)
    assert said.returncode == 2 and said.stdout == ""
    proposals = said.stderr.split("nearest layouts that work: ")[1].strip().split("; ")
    changed = []
    for proposal in proposals:
        options = dict(zip(words[::2], words[1::2]))
        typed = shlex.split(proposal)
        changed.append({**options, **dict(zip(typed[::2], typed[1::2]))})
    return said.stderr, changed


@pytest.mark.parametrize("words,refused", [
    (("--model", "mixtral-8x7b", "--gpus", 16, "--tensor-parallel", 4, "--pipeline-parallel", 4, "--expert-parallel", 2,
      "--micro-batch", 12, "--global-batch", 128, "--optimizer-instances", 2), "is no multiple of --micro-batch"),
    (("--model", "deepseek-v2", "--profile", "h100-sxm", "--gpus", 512, "--tensor-parallel", 2, "--pipeline-parallel", 2,
      "--expert-parallel", 64, "--expert-tensor-parallel", 4, "--dispatcher", "trtllm"), "does not divide the 160 experts"),
    (("--model", "qwen3-30b-a3b", "--gpus", 16, "--expert-parallel", 16, "--dispatcher", "trtllm"),
     "works inside one NVLink domain"),
    (("--model", "qwen3-30b-a3b", "--gpus", 64, "--rank-capacity", 1.2, "--tensor-parallel", 5, "--sequence-length", 512),
     "is no multiple of --tensor-parallel 5"),
    (("--model", "qwen3-30b-a3b", "--gpus", 64, "--fidelity", "counts", "--tensor-parallel", 4, "--sequence-length", 512),
     "128 tokens per GPU are too few"),
    (("--model", "qwen3-30b-a3b", "--gpus", 128, "--pipeline-parallel", 4, "--expert-tensor-parallel", 3,
      "--dispatcher", "low-latency", "--sequence-length", 1000), "is no multiple of --expert-tensor-parallel 3"),
    (("--model", "kimi-k2", "--gpus", 24, "--expert-parallel", 3, "--dispatcher", "deepep"),
     "--expert-parallel 3 x --expert-tensor-parallel 1 = 3 ranks do not divide among 2 domains"),
    (("--model", "qwen3-30b-a3b", "--gpus", 6, "--expert-parallel", 2, "--expert-tensor-parallel", 3,
      "--dispatcher", "deepep"), "--expert-tensor-parallel 3 does not divide 8 ranks of a domain"),
    # Its experts fit no ranks either, which the layout decides.
    (("--model", "mixtral-8x7b", "--gpus", 128, "--pipeline-parallel", 5, "--expert-parallel", 32, "--dispatcher", "deepep",
      "--capacity-factor", 1), "--gpus 128 is no multiple of"),
])
def test_layouts_that_are_said_to_work_do(words, refused):
    said, changed = working_layouts(*words)
    assert refused in said and changed
    for options in changed:
        ran = moesim("train", *(word for pair in options.items() for word in pair))
        assert ran.returncode == 0, (options, ran.stderr)


def test_more_tokens_than_a_gpu_holds_are_a_fault_of_the_request():
    expect_error(moesim("train", "--model", "deepseek-v3", "--profile", "h100-sxm", "--gpus", 64, "--expert-parallel", 8,
                        "--micro-batch", 8, "--global-batch", 512, "--sequence-length", 131072), 2,
                 "permute of 126 GiB", "take fewer tokens")


def test_a_batch_that_no_replica_divides_is_refused():
    expect_error(moesim("train", "--gpus", 8, "--tensor-parallel", 16, "--global-batch", 32, "--micro-batch-group", 4),
                 2, "--gpus 8 is no multiple of --tensor-parallel 16")


def test_a_recomputed_dense_layer_needs_no_room_for_an_moe_layer():
    words = ("train", "--model", "deepseek-v2-lite", "--gpus", 8, "--expert-parallel", 8, "--format", "json")
    plain, block = (json.loads(succeed(*words, *more)) for more in ((), ("--recompute", "full:block:1")))
    assert block["memory_gib"] <= plain["memory_gib"] + 2 * 2048 * 4096 / 2**30


def test_a_head_in_low_precision_needs_a_low_precision():
    expect_error(moesim(*QWEN, "--gpus", 64, "--head-precision", "low"), 2, "--head-precision low with --precision bf16")


def test_memory_that_does_not_fit_is_said():
    words = ("train", "--model", "deepseek-v3", "--gpus", 256, "--pipeline-parallel", 2,
             "--pipeline-layout", "Et*30|t*31mL", "--expert-parallel", 8)
    assert as_json(*words)["fits_memory"] is False
    assert "DOES NOT FIT" in succeed(*words)
    assert as_json(*QWEN, "--gpus", 64)["fits_memory"] is True


def test_where_no_option_is_enough_the_search_is_a_command_to_paste(tmp_path):
    shipped = pathlib.Path(__file__).resolve().parents[3] / "profiles/models/deepseek-v3.json"
    model = tmp_path / "my model.json"
    model.write_text(json.dumps(json.loads(shipped.read_text()) | {"name": "mine"}))
    words = ("train", "--model", model, "--gpus", 256, "--expert-parallel", 8, "--global-batch", 2048)
    note = moesim(*words).stderr
    assert "needs 691" in note and "no option alone is enough" in note
    command = shlex.split(note.splitlines()[-1])
    assert command[:2] == ["moesim", "recommend"] and str(model) in command and "--expert-parallel" not in command
    found = as_json(*command[1:], "--best", 1, "--jobs", 1)
    assert found[0]["memory_gib"] < 80


def test_what_is_said_to_fit_does_and_has_the_speed_that_is_said():
    words = ("train", "--model", "mixtral-8x7b", "--gpus", 32, "--pipeline-parallel", 2, "--expert-parallel", 8,
             "--micro-batch", 4)
    before = as_json(*words)
    warning = moesim(*words).stderr
    assert before["fits_memory"] is False and f"needs {before['memory_gib']:.1f} of 80 GiB" in warning
    hints = re.findall(r"(--[^(]+) \((\d+) GiB, ([+-]\d+) % speed\)", warning)
    assert len(hints) >= 3 and {"--micro-batch", "--recompute"} <= {hint[0].split()[0] for hint in hints}
    for options, gib, faster in hints:
        after = as_json(*words, *options.split())
        assert after["global_batch"] == before["global_batch"]  # the default of another layout is another
        assert after["memory_gib"] < 0.9 * 80 and after["memory_gib"] == pytest.approx(int(gib), abs=0.51)
        assert "TIGHT" not in succeed(*words, *options.split())
        ratio = after["tokens_per_s_per_gpu"] / before["tokens_per_s_per_gpu"]
        assert 100 * (ratio - 1) == pytest.approx(int(faster), abs=0.51)
    assert "moesim recommend" in moesim("train", "--model", "kimi-k2", "--gpus", 64).stderr


@pytest.mark.parametrize(("words", "text"), [
    (("--gpus", 64, "--software", "megatron-bridg"), "did you mean 'megatron-bridge'?"),
    (("--gpus", 12), "--gpus 12 is no multiple"),
    (("--gpus", 64, "--attention-precision", "fp8"), "give --precision, such as fp8-current"),
    (("--gpus", 64, "--gradients", "fp8"), "--gradients"),
    (("--gpus", 64, "--launch-us", "-1"), "--launch-us: '-1' is not a number from 0 to 1000"),
    (("--gpus", 64, "--cuda-graphs", "layers"), "--cuda-graphs layers"),
    (("--gpus", 64, "--expert-load", "0.5"), "--expert-load"),
    (("--gpus", 64, "--expert-load", "8.1"), "--expert-load 8.1: at most 8 times balance on one of 8 expert-parallel ranks"),
    (("--gpus", 64, "--recompute", "attention"), "--recompute"),
    (("--gpus", 64, "--expert-load", "2", "--capacity-factor", "1"), "give one of them"),
    (("--gpus", 64, "--router", "soft"), "--router: soft mixes all tokens"),
    (("--gpus", 64, "--router", "top2", "--top-k", 4), "it says 2 experts per token"),
    (("--gpus", 64, "--capacity-factor", "0"), "leaves the experts no slot"),
    (("--gpus", 64, "--routing", "gausian:1"), "--routing"),
    (("--gpus", 64, "--routing", "gaussian:-1"), "choose one of gaussian:SIGMA, zipf:A, dirichlet:A, counts:FILE, balanced, "
     "hot-expert:X, hot-rank:X, spread-heat:X, rotating:X, burst:X:SHARE, scores:FILE, trace:FILE, trace-repeat:FILE ("),
    (("--gpus", 64, "--router", "group-limited:7:2"), "choose a number of groups that divides 128, or a --model whose experts "
     "number 126 or 133"),
    (("--gpus", 64, "--router", "top200"), "use a smaller k or a --model with more experts"),
    (("--gpus", 64, "--rank-capacity", "0.9"), "from 1 (balanced)"),
    (("--gpus", 64, "--rank-capacity", "1.5", "--capacity-factor", "1"), "leave --capacity-factor out"),
    (("--gpus", 64, "--rank-capacity", "1.5", "--router", "sinkhorn"), "from counts"),
    (("--gpus", 64, "--routing-draws", "each"), "--routing-draws"),
    (("--gpus", 64, "--routing-draws", "balanced", "--router", "dropless"), "draws no routing"),
    (("--gpus", 64, "--precision", "mxfp8"), "it has bf16, fp8-delayed, fp8-current, fp8-block"),
    (("--gpus", 64, "--precision", "nvfp4"), "--precision nvfp4: the GPU of profile h100-sxm has no such products"),
    (("--gpus", 64, "--dispatch-precision", "low"), "give --precision, such as fp8-block"),
    (("--gpus", 64, "--offload", "experts"), "--offload: unknown value 'experts'"),
    (("--gpus", 64, "--offload", "moe_act", "--recompute", "full"), "--recompute full"),
    (("--gpus", 64, "--optimizer-instances", 5), "must divide the ranks that have the same weights: 64"),
    (("--gpus", 64, "--zero", 0, "--optimizer-instances", 2), "--zero 0"),
    (("--gpus", 64, "--ranks-per-domain", 9), "a domain of hgx-h100 has 8 GPUs"),
    (("--gpus", 64, "--redundant-experts", 8), "draw routing"),
    (("--gpus", 64, "--redundant-experts", 4, "--router", "dropless"), "132 experts and copies"),
    (("--gpus", 64, "--redundant-experts", 8, "--capacity-factor", 1), "leave the capacity out"),
    (("--gpus", 64, "--redundant-experts", 904, "--router", "dropless"), "at most 896"),
    (("--gpus", 64, "--rank-capacity", 9), "--rank-capacity 9: at most 8 times balance on one of 8 expert-parallel ranks"),
    (("--gpus", 64, "--capacity-factor", 100000000), "take fewer tokens: a lower --capacity-factor"),
    (("--gpus", 64, "--capacity-factor", 1, "--min-capacity", 1000000000), "take fewer tokens: a lower --min-capacity"),
    (("--gpus", 64, "--micro-batch", 1000000), "take fewer tokens: a lower --micro-batch or --sequence-length"),
    (("--gpus", 64, "--sequence-length", 1000000000), "--sequence-length 1000000000: attention over 1000000000 tokens"),
    (("--gpus", 64, "--recompute", "moe,moe"), "--recompute: 'moe' is named twice"),
    (("--gpus", 64, "--offload", "moe_act,moe_act"), "--offload: 'moe_act' is named twice"),
    (("--gpus", 64, "--expert-bias", "Trained:zipf:1", "--router", "dropless"), "did you mean 'trained:zipf:1'?"),
    (("--gpus", 64, "--expert-bias", "abc", "--router", "dropless"), "--expert-bias: abc: cannot read"),
    (("--gpus", 64, "--profile", "1,2"), "--profile: unknown profile '1'"),
    (("--gpus", "64,128", "--baseline", "abc,b"), "--baseline: abc,b: cannot read"),
    (("--megatron", "1,2"), "--megatron: 1,2: cannot read"),
    (("--config", "abc"), "--config: abc: cannot read"),
    (("--config", ""), "--config: : cannot read"),
    (("--from", "a:1"), "--from: a: cannot read"),
    (("--profile", "/dev/null"), "--profile: /dev/null: line 1"),
    (("--gpus", 64, "--dispatcher", "nccl"), "unknown dispatcher 'nccl'"),
])
def test_what_cannot_be_is_named(words, text):
    expect_error(moesim(*QWEN, *words), 2, text)


@pytest.mark.parametrize("drawn", [("--rank-capacity", 1.2), ("--capacity-factor", 1, "--fidelity", "counts")])
def test_what_drawn_routing_refuses_is_no_hint_against_full_memory(drawn):
    """More tensor ranks would leave a GPU fewer tokens than counts can be drawn of."""
    result = moesim("train", "--model", "mixtral-8x7b", "--gpus", 8, "--sequence-length", 256, *drawn)
    assert result.returncode == 0, result.stderr
    assert "GiB per GPU" in result.stderr and "too few" not in result.stderr


def test_a_profile_without_the_curves_is_refused_with_what_is_missing():
    expect_error(moesim(*QWEN, "--gpus", 8, "--profile", "l40s"), 1, "profile l40s has no curve")


@pytest.mark.parametrize("words", [("--offload", "expert_fc1", "--micro-batch", 2, "--expert-parallel", 8),
                                   ("--redundant-experts", 8, "--router", "dropless", "--expert-parallel", 4),
                                   ("--optimizer-instances", 4, "--expert-parallel", 4, "--micro-batch", 4)])
def test_a_hint_that_cannot_be_does_not_end_a_step(words):
    result = moesim("train", "--model", "qwen3-30b-a3b", "--gpus", 16, *words)
    assert result.returncode == 0, result.stderr
    assert "DOES NOT FIT" in result.stdout


def test_the_search_that_a_hint_names_is_of_the_same_step():
    result = moesim("train", "--model", "mixtral-8x7b", "--gpus", 8, "--dispatch-precision", "low", "--precision",
                    "fp8-current")
    command = next(line for line in result.stderr.splitlines() if "moesim recommend" in line).strip()
    assert "--global-batch 32" in command and "--dispatch-precision low" in command
    search = moesim(*command.split()[1:])
    assert search.returncode == 0 or "fits in" in search.stderr, search.stderr


@pytest.mark.parametrize("words,option", [
    (("--model", "deepseek-v3", "--gpus", 64, "--pipeline-layout", "Et*61mL"), " --mtp 1"),
    (("--model", "kimi-k2", "--gpus", 64, "--ranks-per-domain", 4), " --ranks-per-domain 4"),
    (("--model", "kimi-k2", "--gpus", 64, "--rank-capacity", 1.2), "searches all layouts, without --rank-capacity:"),
])
def test_the_search_that_a_hint_names_keeps_what_is_no_choice_of_layout(words, option):
    said = moesim("train", *words).stderr
    assert "moesim recommend" in said and option in said


@pytest.mark.parametrize("words,other", [
    (("--capacity-factor", 1), "a padded capacity: add --padding none"),
    (("--ep-overlap", "on", "--pipeline-parallel", 2, "--virtual-pipeline", 2), "--ep-overlap: leave it out"),
    (("--precision", "fp8-block", "--dispatch-precision", "low"), "--dispatch-precision low: leave it out"),
    (("--rank-capacity", 1.5), "--rank-capacity: leave it out"),
])
def test_what_gathered_tokens_cannot_have_is_named(words, other):
    gathered = (*QWEN, "--gpus", 32, "--dispatcher", "allgather")
    expect_error(moesim(*gathered, *words), 2, "--dispatcher allgather sends whole tokens", other)
    succeed(*gathered, "--capacity-factor", 1, "--padding", "none")
