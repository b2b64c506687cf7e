"""Timelines of `simulate` and `train` as other programs read them: Holistic Trace Analysis and Perfetto's
page where they are installed, and their figures against intervals counted here."""

import gzip
import json

import pytest

import perfetto_page
from command_line import as_json, moesim, needs_binary, succeed

pytestmark = needs_binary
JOB = ("simulate", "--gpus", 4, "--expert-parallel", 4, "--replicas", 1, "--sequence-length", 512, "--micro-batch", 1,
       "--router", "top2", "--capacity-factor", 1.25)


def ranks(folder, *more):
    """Writes a file per GPU; the JSON of the step, and the events of each GPU."""
    step = as_json(*JOB, *more, "--timeline", folder / "rank{rank}.json.gz")
    traces = {}
    for rank in range(4):
        traces[rank] = json.loads(gzip.decompress((folder / f"rank{rank}.json.gz").read_bytes()))
    return step, traces


def kernels(trace):
    return [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]


def spans(events):
    """Merged [begin, end] in nanoseconds."""
    merged = []
    for begin, end in sorted((round(event["ts"] * 1e3), round((event["ts"] + event["dur"]) * 1e3)) for event in events):
        if end == begin:
            continue
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return merged


def length(merged):
    return sum(end - begin for begin, end in merged)


def is_exchange(event):
    return event["name"].startswith("ncclDevKernel_")


def shares(trace):
    """Time in computation, in communication, in both, in ns."""
    computation = spans(event for event in kernels(trace) if not is_exchange(event))
    communication = spans(event for event in kernels(trace) if is_exchange(event))
    either = spans(kernels(trace))
    both = length(computation) + length(communication) - length(either)
    return length(computation), length(communication), both


def test_a_file_of_each_gpu_with_the_names_of_kineto(tmp_path):
    step, traces = ranks(tmp_path)
    for rank, trace in traces.items():
        assert trace["distributedInfo"] == {"backend": "nccl", "rank": rank, "world_size": 4}
        assert {event["args"]["device"] for event in kernels(trace)} == {rank}
        steps = [event for event in trace["traceEvents"] if event["name"] == "ProfilerStep#0"]
        assert len(steps) == 1 and steps[0]["ts"] == 0
        end = max(event["ts"] + event["dur"] for event in kernels(trace))
        assert steps[0]["dur"] == pytest.approx(end)
        exchanges = [event for event in kernels(trace) if event["args"].get("Collective name") == "all_to_all"]
        assert exchanges and {event["name"] for event in exchanges} == {"ncclDevKernel_SendRecv"}
        # Equal blocks: E C rows of the hidden size in bf16.
        rows = 8 * step["capacity"] * 4096 * 2
        assert {event["args"]["bytes"] for event in exchanges} == {rows}
        assert {event["args"]["Group size"] for event in exchanges} == {4}
        assert exchanges[0]["args"]["Process Group Description"] == "expert_parallel"
    assert max(event["ts"] + event["dur"] for trace in traces.values() for event in kernels(trace)) == pytest.approx(
        step["step_ms"] * 1e3)


def test_bytes_of_unequal_exchanges_are_the_rows_kept(tmp_path):
    step, traces = ranks(tmp_path, "--router", "dropless", "--mode", "prefill")
    sent = [event["args"]["bytes"] for trace in traces.values() for event in kernels(trace)
            if event["args"].get("Collective name") == "all_to_all"]
    layers = 2 * 16  # dispatch and combine
    # Dispatch: 512 tokens of 2 rows each. Combine: what experts got, in all the same.
    assert sum(sent) == layers * 4 * 512 * 2 * 4096 * 2


def test_collectives_say_elements_in_and_out(tmp_path):
    step, traces = ranks(tmp_path, "--router", "dropless", "--router-dialect", "megatron", "--zero", 1)
    events = [event["args"] for event in kernels(traces[0])]
    counts = [args for args in events if args["part"] == "exposed_exchange"
              and args.get("Collective name") == "all_gather"]
    # 8 counts, int64, of each of 4 ranks.
    assert {(args["dtype"], args["In msg nelems"], args["Out msg nelems"]) for args in counts} == {("Long", 8, 32)}
    rows, probabilities = ([args["In msg nelems"] for args in events if args.get("Collective name") == "all_to_all"
                            and args["dtype"] == dtype] for dtype in ("BFloat16", "Float"))
    assert probabilities and rows[0] == 4096 * probabilities[0]
    parameters = [args for args in events if args["part"] == "gradient"]
    reduced = max(args["In msg nelems"] for args in parameters if args["Collective name"] == "reduce_scatter")
    gathered = max(args["Out msg nelems"] for args in parameters if args["Collective name"] == "all_gather")
    assert reduced == gathered
    assert all(args["In msg nelems"] * 4 == args["Out msg nelems"] for args in parameters
               if args["Collective name"] == "all_gather")


def test_chosen_gpus_and_packed_files(tmp_path):
    succeed(*JOB, "--timeline", tmp_path / "all.json")
    succeed(*JOB, "--timeline", tmp_path / "some.json.gz", "--timeline-gpus", "0,3")
    whole = json.loads((tmp_path / "all.json").read_text())
    some = json.loads(gzip.decompress((tmp_path / "some.json.gz").read_bytes()))
    assert {event["pid"] for event in whole["traceEvents"]} == {0, 1, 2, 3}
    assert some["traceEvents"] == [event for event in whole["traceEvents"] if event["pid"] in (0, 3)]
    succeed(*JOB, "--timeline", tmp_path / "r{rank}.json", "--timeline-gpus", "2")
    assert (tmp_path / "r2.json").exists() and not (tmp_path / "r0.json").exists()
    succeed(*JOB, "--timeline", tmp_path / "new" / "{rank}" / "trace.json")
    assert [path.name for path in sorted((tmp_path / "new").iterdir())] == ["0", "1", "2", "3"]
    for words, part in [(("--timeline-gpus", "0"), "--timeline FILE"),
                        (("--timeline", tmp_path / "t.json", "--timeline-gpus", "4"), "--timeline-gpus")]:
        result = moesim(*JOB, *words)
        assert result.returncode == 2 and part in result.stderr


@pytest.mark.parametrize("more", [("--mode", "prefill"), ("--overlap", "gradient"), ("--router", "dropless")])
def test_holistic_trace_analysis_finds_the_same_shares(tmp_path, more, monkeypatch):
    reason = "Holistic Trace Analysis (PyPI: HolisticTraceAnalysis, psutil) is not installed"
    pytest.importorskip("hta", reason=reason)
    pytest.importorskip("psutil", reason=reason)  # which it needs and does not ask for
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    from hta.trace_analysis import TraceAnalysis

    _, traces = ranks(tmp_path, *more)
    analysis = TraceAnalysis(trace_dir=str(tmp_path))
    overlap = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")["comp_comm_overlap_pctg"]
    times = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
    assert sorted(overlap.index) == sorted(times.index) == [0, 1, 2, 3]
    for rank, trace in traces.items():
        computation, communication, both = shares(trace)
        assert communication > 0
        assert overlap[rank] == pytest.approx(100 * both / communication, abs=0.02)
        assert times.loc[rank, "compute_time(us)"] == pytest.approx(computation * 1e-3, rel=1e-3)
        assert times.loc[rank, "non_compute_time(us)"] == pytest.approx((communication - both) * 1e-3, rel=1e-3, abs=1)
    if "gradient" in more:
        assert overlap.max() > 1


TRAIN = ("train", "--model", "qwen3-30b-a3b", "--gpus", 16, "--pipeline-parallel", 2, "--virtual-pipeline", 2)


@pytest.mark.parametrize("words", [JOB, (*JOB, "--overlap", "gradient"), TRAIN], ids=["step", "overlap", "train"])
def test_no_bar_starts_before_the_last_one_of_its_stream_ends(tmp_path, words):
    """Read in whole nanoseconds, start and duration each by itself: Perfetto drops a bar that does."""
    succeed(*words, "--timeline", tmp_path / "all.json")
    ends = {}
    bars = [event for event in json.loads((tmp_path / "all.json").read_text())["traceEvents"] if event["ph"] == "X"]
    for bar in sorted(bars, key=lambda event: event["ts"]):
        for us in (bar["ts"], bar["dur"]):
            assert us * 1e3 == pytest.approx(round(us * 1e3), abs=1e-3)
        stream = bar["pid"], bar["tid"]
        begin = round(bar["ts"] * 1e3)
        assert begin >= ends.get(stream, 0)
        ends[stream] = begin + round(bar["dur"] * 1e3)


@pytest.mark.parametrize("words", [JOB, TRAIN], ids=["step", "train"])
def test_perfetto_shows_every_bar(tmp_path, words):
    if perfetto_page.missing():
        pytest.skip(perfetto_page.missing())
    succeed(*words, "--timeline", tmp_path / "all.json.gz")
    events = json.loads(gzip.decompress((tmp_path / "all.json.gz").read_bytes()))["traceEvents"]
    bars = [event for event in events if event["ph"] == "X"]
    (count,), names, faults, streams = perfetto_page.ask(tmp_path / "all.json.gz", [
        "select count(*) as bars, sum(dur) as ns from slice", "select distinct name from slice",
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
        "select thread.name, process.name as gpu from thread join process using (upid)"])
    assert faults == []
    assert int(count["bars"]) == len(bars)
    assert int(count["ns"]) == sum(round(bar["dur"] * 1e3) for bar in bars)
    assert {row["name"] for row in names} == {bar["name"] for bar in bars}
    named = {(event["args"]["name"], event["pid"]) for event in events if event["name"] == "thread_name"}
    assert {(row["name"], row["gpu"]) for row in streams} >= {(name, f"GPU {gpu}") for name, gpu in named}
