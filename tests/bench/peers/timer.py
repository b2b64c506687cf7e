"""Times a peer as kernels/measure/cuda/device/stream_timer.cpp times this project's kernels: cold (L2
flushed by a fill and a read, the stream held until all is queued, events) and hot (a CUDA
graph)."""

import math
import statistics
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    warm_up_s: float = 0.03
    fewest: int = 30
    most: int = 300
    every: int = 16
    half_width: float = 0.005  # of the 95 % interval of the median, over the median
    cold_s: float = 0.15
    hot_s: float = 0.06
    hot_sample_us: float = 1000
    most_hot_calls: int = 1000
    most_unheld: int = 10


least_cycles = 1_000_000  # for which the stream is held; doubled where the host takes longer


class NotMeasurable(Exception):
    pass


def rank_based_ci(samples):
    """Half the width of the 95 % interval of the median by order statistics (normal
    approximation)."""
    ordered = sorted(samples)
    reach = 0.98 * len(ordered) ** 0.5
    low = max(int(len(ordered) / 2 - reach), 0)
    high = min(int(len(ordered) / 2 + reach) + 1, len(ordered) - 1)
    return (ordered[high] - ordered[low]) / 2


def summary(samples):
    ordered = sorted(samples)
    at = lambda share: ordered[min(int(share * len(ordered)), len(ordered) - 1)]
    return {"median_us": statistics.median(ordered), "p05_us": at(0.05), "p95_us": at(0.95),
            "ci95_us": rank_based_ci(ordered), "n": len(ordered)}


def sampled(once, rule, most_s, clock=time.monotonic):
    """Samples of `once` until their median is known well enough, or there is no time left."""
    samples, begin = [], clock()
    while len(samples) < rule.fewest or (len(samples) < rule.most and clock() - begin < most_s):
        samples.append(once())
        if len(samples) >= rule.fewest and len(samples) % rule.every == 0:
            if rank_based_ci(samples) <= rule.half_width * statistics.median(samples):
                break
    return samples


class Timer:
    """On the current device of `torch`. A work is called with the copy of the inputs that it is to
    use, of `copies`."""

    def __init__(self, torch, rule=Rule(), clock=time.monotonic):
        self.torch, self.rule, self.clock = torch, rule, clock
        # Twice the L2 each: what was in it is gone even if replacement is not least-recently-used.
        elements = max(2 * torch.cuda.get_device_properties(0).L2_cache_size, 1 << 20) // 4
        self.filled = torch.zeros(elements, dtype=torch.int32, device="cuda")
        self.clean = torch.zeros(elements, dtype=torch.int32, device="cuda")
        self.cycles, self.turn = least_cycles, 0

    def flush(self):
        """A fill alone leaves the L2 full of lines that are not yet in memory, and the work would
        pay for writing them: reading another buffer drives them out."""
        self.filled.fill_(self.turn & 0xff)
        self.clean.sum()

    def between(self, queue, flush):
        """Microseconds from before to after what `queue` queues."""
        for _ in range(self.rule.most_unheld):
            start = self.torch.cuda.Event(enable_timing=True)
            stop = self.torch.cuda.Event(enable_timing=True)
            self.turn += 1
            if flush:
                self.flush()
            # Held until all is queued, so that no gap of the host is timed.
            self.torch.cuda._sleep(self.cycles)
            start.record()
            queue()
            stop.record()
            held = not start.query()
            stop.synchronize()
            if held:
                return 1e3 * start.elapsed_time(stop)
            self.cycles *= 2
        raise NotMeasurable("the host takes longer to queue a call than the device is held")

    def cold(self, work, copies):
        self.cycles = least_cycles
        once = lambda: self.between(lambda: work(self.turn % copies), flush=True)
        begin = self.clock()
        while self.clock() - begin < self.rule.warm_up_s:
            once()
        return summary(sampled(once, self.rule, self.rule.cold_s, self.clock))

    def captured(self, work, copies, calls):
        """A graph of `calls` calls; the result of the last one, made anew by each replay."""
        graph = self.torch.cuda.CUDAGraph()
        stream = self.torch.cuda.current_stream()
        try:
            with self.torch.cuda.graph(graph):
                for call in range(calls):
                    result = work(call % copies)
        finally:
            # PyTorch stays on the stream of a capture that fails.
            self.torch.cuda.set_stream(stream)
        return graph, result, (calls - 1) % copies

    def hot(self, work, copies, cold_us, check):
        """One call's share of a graph that takes at least a millisecond. `check` gets the last
        call's result and copy, and says what is wrong with it."""
        calls = math.ceil(self.rule.hot_sample_us / max(cold_us, 0.1))
        calls = min(max(calls, 1), self.rule.most_hot_calls)
        graph, result, copy = self.captured(work, copies, calls)
        self.between(graph.replay, flush=False)  # which also loads it
        once = lambda: self.between(graph.replay, flush=False) / calls
        figures = {**summary(sampled(once, self.rule, self.rule.hot_s, self.clock)), "calls": calls}
        wrong = check(result, copy)
        if wrong:
            raise NotMeasurable(f"in a CUDA graph: {wrong}")
        return figures
