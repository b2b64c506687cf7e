"""Timelines of training steps."""

import json

import pytest
from command_line import as_json, expect_error, moesim, needs_binary
from train_command import QWEN, ROUTED

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
        # Kernels between, which exchange or wait, divide a bucket into several. Each chunk has buckets of its own.
        buckets = [event["args"]["detail"].split()[1:4:2] for event in buckets_of(tracks, gpu)
                   if event["args"]["Process Group Description"] == "expert_data_parallel"]
        drawn = [(int(number), int(count.strip(","))) for number, count in buckets]
        once = [bucket for bucket, before in zip(drawn, [None, *drawn]) if bucket != before]
        of_chunk = [(number, once[0][1]) for number in range(1, once[0][1] + 1)]
        assert once[0][1] > 1 and once == of_chunk * once.count((1, once[0][1]))
        chunks = {int(text.rsplit(" ", 1)[1]) for text in texts}
        assert len(chunks) == (2 if "--virtual-pipeline" in words or "dualpipe" in words else 1)
        assert {event["args"]["chunk"] for event in buckets_of(tracks, gpu)} == chunks
        for event in buckets_of(tracks, gpu):
            assert (f", chunk {event['args']['chunk']}" in event["args"]["detail"]) == (len(chunks) > 1)


def buckets_of(tracks, gpu):
    return [event for event in tracks.get((gpu, "gradients"), []) if event["args"].get("detail", "").startswith("bucket")]


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipe"])
def test_the_timeline_shows_each_reduction_of_zero_2_in_its_pass(tmp_path, schedule):
    """Each micro-batch of a stage reduces its gradients. Behind the last one DualPipe's copies of a stage exchange their
    shards, once."""
    out = tmp_path / "step.json"
    result = as_json(*QWEN, "--gpus", 64, "--pipeline-parallel", 4, "--pipeline-schedule", schedule, "--zero", 2,
                     "--timeline", out)
    tracks = slices_of(out)
    exposed = {}
    for gpu in {gpu for gpu, _ in tracks}:
        kernels = [event for (at, stream), events in tracks.items() if at == gpu and stream != "gradients"
                   for event in events if event["name"].startswith("ncclDevKernel_ReduceScatter")]
        assert len(kernels) >= result["micro_batches"]
        exposed[gpu] = sum(event["dur"] for event in kernels)
        details = [event["args"]["detail"] for event in buckets_of(tracks, gpu)]
        assert (details != []) == (schedule == "dualpipe") and all("to the other copy" in detail for detail in details)
    if schedule == "1f1b":
        assert 1e3 * result["gradients_ms"] == pytest.approx(max(exposed[gpu] for gpu in exposed if gpu > 0), rel=1e-6)


def test_a_timeline_that_cannot_be_written_is_named(tmp_path):
    expect_error(moesim(*ROUTED, "--timeline", tmp_path / "no" / "t.json"), 1, "t.json")
