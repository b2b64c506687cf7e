"""Timelines of training steps."""

import json

import pytest
from command_line import expect_error, moesim, needs_binary
from train_command import QWEN, ROUTED, as_json

pytestmark = needs_binary


def slices_of(path):
    document = json.loads(path.read_text())
    streams = {(event["pid"], event["tid"]): event["args"]["name"].split(" ", 2)[2]
               for event in document["traceEvents"] if event["name"] == "thread_name"}
    tracks = {}
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], streams[event["pid"], event["tid"]]), []).append(event)
    for events in tracks.values():
        events.sort(key=lambda event: event["ts"])
    return tracks


@pytest.mark.parametrize("words", [
    ("--virtual-pipeline", 2), ("--virtual-pipeline", 2, "--ep-overlap", "on"), ("--pipeline-schedule", "zb-h1"),
    ("--recompute", "full:block:6"), ("--pipeline-schedule", "dualpipe"), ("--host-read-us", 500)])
def test_the_timeline_has_every_pass_piece_and_bucket(tmp_path, words):
    out = tmp_path / "step.json"
    job = (*QWEN, "--gpus", 64, "--pipeline-parallel", 4, "--routing-draws", "per-micro-batch", *words)
    result = as_json(*job, "--timeline", out)
    tracks = slices_of(out)
    assert sorted({gpu for gpu, _ in tracks}) in ([0, 16, 32, 48], [8, 24, 40, 56])  # of one of two groups
    end = max(event["ts"] + event["dur"] for events in tracks.values() for event in events)
    assert end == pytest.approx(result["step_ms"] * 1e3, rel=1e-8)  # printed with nine digits
    for (gpu, stream), events in tracks.items():
        for one, other in zip(events, events[1:]):
            assert one["ts"] + one["dur"] <= other["ts"] + 1e-5, (gpu, stream, one, other)
    for gpu in {gpu for gpu, _ in tracks}:
        passes = tracks[gpu, "pipeline"]
        texts = [text for event in passes for text in event["name"].split("; ")]
        assert len(set(texts)) == len(texts)
        forward = [text for text in texts if text.startswith("forward")]
        assert len(forward) == result["micro_batches"] * (2 if "--virtual-pipeline" in words else 1)
        pieces = [event for stream in ("compute", "communication", "host") for event in tracks.get((gpu, stream), [])
                  if event["name"] not in ("gradient norm, optimizer", "fixed part of the step")]
        busy, inside = (sum(event["dur"] for event in events) for events in (passes, pieces))
        if "--ep-overlap" in words or "dualpipe" in words:
            assert busy < inside  # exchanges run beside computation
        else:
            assert busy == pytest.approx(inside, rel=1e-6)
        # Kernels between, which exchange or wait, divide a bucket into several.
        numbers = [int(event["args"]["detail"].split()[1]) for event in buckets_of(tracks, gpu)
                   if event["args"]["Process Group Description"] == "expert_data_parallel"]
        assert numbers == sorted(numbers) and set(numbers) == set(range(1, max(numbers) + 1))


def buckets_of(tracks, gpu):
    return [event for event in tracks[gpu, "gradients"] if event["args"].get("detail", "").startswith("bucket")]


@pytest.mark.parametrize("schedule,share", [("1f1b", 1), ("dualpipe", 0.5)])
def test_the_timeline_shows_one_of_the_reductions_of_zero_2(tmp_path, schedule, share):
    """Each micro-batch of a stage reduces its gradients; the end of the last one is drawn. Behind it DualPipe's copies
    of a stage exchange their shards, once."""
    out = tmp_path / "step.json"
    result = as_json(*QWEN, "--gpus", 64, "--pipeline-parallel", 4, "--pipeline-schedule", schedule, "--zero", 2,
                     "--timeline", out)
    tracks = slices_of(out)
    ends = {}
    for gpu in {gpu for gpu, _ in tracks}:
        last = max(event["ts"] + event["dur"] for event in tracks[gpu, "pipeline"])
        ends[gpu] = max(event["ts"] + event["dur"] for event in buckets_of(tracks, gpu)) - last
    longest = max(ends, key=ends.get)
    shards = sum(event["dur"] for event in buckets_of(tracks, longest) if "other copy" in event["args"]["detail"])
    assert (shards > 0) == (schedule == "dualpipe")
    each = (1e3 * result["gradients_ms"] - shards) / (share * result["micro_batches"])
    assert ends[longest] == pytest.approx(each + shards, rel=1e-6)


def test_a_timeline_that_cannot_be_written_is_named(tmp_path):
    expect_error(moesim(*ROUTED, "--timeline", tmp_path / "no" / "t.json"), 1, "t.json")
