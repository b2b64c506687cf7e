"""`moesim explain`: recomputation that was not told and uneven routing are named as such, and no other part is suspect for them."""

import json

import pytest

from command_line import as_json, needs_binary, succeed

pytestmark = needs_binary
JOB = ("--gpus", 4, "--expert-parallel", 4, "--replicas", 2, "--sequence-length", 512, "--micro-batch", 1)
ROUTED = (*JOB, "--router", "top2+fr", "--capacity-factor", 1.25)
DROPLESS = (*JOB, "--router", "dropless", "--routing", "gaussian:0.1")


def timelines(folder, *job):
    succeed("simulate", *job, "--timeline", folder / "rank{rank}.json")
    return [folder / f"rank{rank}.json" for rank in range(4)]


@pytest.mark.parametrize("job", [ROUTED, DROPLESS, (*ROUTED, "--zero", 3), (*ROUTED, "--global-batch", 8)])
@pytest.mark.parametrize("is_told", [False, True])
def test_recomputation_that_was_not_told_is_the_only_suspect(tmp_path, job, is_told):
    done, told = ((), ("--checkpointing", "full")) if is_told else (("--checkpointing", "full"), ())
    files = timelines(tmp_path, *job, *done)
    result = as_json("explain", *files, *job, *told)
    assert [one["computed_again"] for one in result["suspicions"]] == [True]
    only = result["suspicions"][0]
    assert not only["slow_gpu"] and not only["within_error"] and only["share"] > 0.9
    assert only["difference_ms"] == pytest.approx(result["measured_ms"] - result["simulated_ms"], rel=0.1)
    assert only["next"].startswith("--checkpointing none" if is_told else "--checkpointing full")
    assert ("--recompute" in only["next"]) and {"attention", "expert", "exposed_exchange"} <= set(only["parts"])
    # What is left of each part is as simulated: its calls are neither longer nor shorter.
    rows = {"+".join(row["parts"]): row for row in result["parts_exposed"]}
    for part in ("attention", "dense_ffn", "expert", "router"):
        assert rows[part]["more_calls_ms"] == pytest.approx(rows[part]["difference_ms"], rel=5e-3, abs=1e-3)
        assert rows[part]["inside"]
    layers = 32 * (2 if "--global-batch" in job else 1)
    calls = f"{layers} for {2 * layers}" if is_told else f"{2 * layers} for {layers}"
    assert f"attention {calls}, experts" in only["suspect"]
    # Dispatch and combine in both passes of each second layer; `dropless` exchanges counts in the forward pass too.
    forward, backward = layers // 2 * (3 if "dropless" in job else 2), layers // 2 * 2
    once, twice = forward + backward, 2 * forward + backward
    both = f"{once} for {twice}" if is_told else f"{twice} for {once}"
    assert f"exchanges of both passes {both}" in only["suspect"]
    text = succeed("explain", *files, *job, *told)
    name = "forward pass not computed again" if is_told else "forward pass computed again"
    assert f"how often kernels run, then the largest first\n  {name}: " in text


def test_gradients_that_recomputation_hides_are_what_is_left_with_overlap(tmp_path):
    job = (*ROUTED, "--overlap", "gradient")
    files = timelines(tmp_path, *job, "--checkpointing", "full")
    first, *others = as_json("explain", *files, *job)["suspicions"]
    assert first["computed_again"] and all(one["parts"] == ["gradient"] for one in others)


def test_what_takes_longer_beside_recomputation_is_still_named(tmp_path):
    """Half as fast a GPU computes its forward passes twice: both are found, each with its own size."""
    files = timelines(tmp_path, *ROUTED, "--checkpointing", "full", "--slow-gpu", "2:1.5")
    result = as_json("explain", *files, *ROUTED)
    assert result["suspicions"][0]["computed_again"]
    assert [one["device"] for one in result["slow_gpus"]] == ["2"]
    assert any(one["slow_gpu"] for one in result["suspicions"])
    # Told, the slow GPU alone is left.
    told = as_json("explain", *files, *ROUTED, "--checkpointing", "full")
    assert not any(one["computed_again"] for one in told["suspicions"]) and told["suspicions"][0]["slow_gpu"]


def test_uneven_routing_is_named_where_traces_of_all_gpus_show_it(tmp_path):
    files = timelines(tmp_path, *DROPLESS, "--routing", "zipf:1.2")
    result = as_json("explain", *files, *DROPLESS)
    uneven = result["uneven_routing"]
    assert uneven["measured"] > 1.2 * uneven["simulated"] and uneven["more_wait_ms"] > 0
    exchange = next(one for one in result["suspicions"] if one["parts"] == ["exposed_exchange"])
    assert exchange["suspect"].startswith("uneven routing: ") and f"{uneven['measured']:.2f} times" in exchange["suspect"]
    assert "--routing trace:FOLDER" in exchange["next"]
    assert "traces of all" not in exchange["next"] and "nccl-tests" not in exchange["next"]
    # With the routing told nothing is left of it.
    told = as_json("explain", *files, *DROPLESS, "--routing", "zipf:1.2")
    assert told["suspicions"] == []
    assert told["uneven_routing"]["measured"] == pytest.approx(told["uneven_routing"]["simulated"], rel=1e-3)


def test_routing_more_even_than_drawn_is_named_where_traces_of_all_gpus_show_it(tmp_path):
    """Forced balance, held against drawn routing: no links are suspect of what the exchange does not wait."""
    files = timelines(tmp_path, *DROPLESS, "--routing", "balanced")
    result = as_json("explain", *files, *DROPLESS, "--routing", "zipf:1.2")
    uneven = result["uneven_routing"]
    assert uneven["simulated"] > 1.2 * uneven["measured"] and uneven["more_wait_ms"] < 0
    found = {"+".join(one["parts"]): one for one in result["suspicions"]}
    for part in ("exposed_exchange", "expert"):
        assert found[part]["difference_ms"] < 0
        assert found[part]["suspect"].startswith("routing more even than drawn: ")
        assert f"{uneven['measured']:.2f} times" in found[part]["suspect"]
        assert found[part]["next"].startswith("--routing balanced") and "--routing trace:FOLDER" in found[part]["next"]
        assert "links" not in found[part]["suspect"] and "nccl-tests" not in found[part]["next"]
    # One trace cannot say it.
    alone = as_json("explain", files[0], *DROPLESS, "--routing", "zipf:1.2")["suspicions"]
    assert alone and not any("more even" in one["suspect"] for one in alone)


def test_how_uneven_is_the_longest_over_the_mean_of_each_layer(tmp_path):

    files = timelines(tmp_path, *DROPLESS, "--routing", "zipf:1.2")
    ranks = [[event["dur"] for event in json.loads(file.read_text())["traceEvents"]
              if event.get("cat") == "kernel" and event["args"]["part"] == "expert"] for file in files]
    layers = list(zip(*ranks))
    assert len(layers) > 30 and len({len(rank) for rank in ranks}) == 1
    ratio = sum(map(max, layers)) / (sum(map(sum, layers)) / 4)
    assert as_json("explain", *files, *DROPLESS)["uneven_routing"]["measured"] == pytest.approx(ratio, rel=1e-3)


def test_a_trace_of_some_gpus_asks_for_the_others_and_the_routing(tmp_path):
    files = timelines(tmp_path, *DROPLESS, "--routing", "zipf:1.2")
    result = as_json("explain", *files[:3], *DROPLESS)
    assert "uneven_routing" not in result
    exchange = next(one for one in result["suspicions"] if one["parts"] == ["exposed_exchange"])
    assert "traces of all ranks" in exchange["next"] and "--routing trace:FOLDER" in exchange["next"]


def test_a_slow_link_or_gpu_is_no_uneven_routing(tmp_path):
    for folder, slow in (("link", ("--slow-link", "1:4")), ("gpu", ("--slow-gpu", "1:1.6"))):
        (tmp_path / folder).mkdir()
        files = timelines(tmp_path / folder, *DROPLESS, *slow)
        result = as_json("explain", *files, *DROPLESS)
        uneven = result["uneven_routing"]
        assert uneven["measured"] == pytest.approx(uneven["simulated"], rel=0.02)
        suspects = [one["suspect"] for one in result["suspicions"]]
        assert suspects and not any("uneven routing:" in suspect for suspect in suspects)
        if folder == "link":
            exchange = next(one for one in result["suspicions"] if one["parts"] == ["exposed_exchange"])
            assert "slower links" in exchange["suspect"] and "traces of all ranks" not in exchange["next"]
