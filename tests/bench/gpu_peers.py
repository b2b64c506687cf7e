#!/usr/bin/env python3
"""What PyTorch takes on this GPU for the operations of bench_gpu_kernels, on the same shapes.

usage: gpu_peers.py [--out FILE]

Each operation is warmed up, then timed by CUDA events with the L2 flushed before every run;
medians with spread. One-hot dispatch and combine are the einsum formulation of GShard (Lepikhin et
al. 2020, algorithm 1). Exit code: 0 done, 2 a wrong option, 3 no PyTorch, or no GPU that it can use.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

S, E, H = 16384, 64, 4096
WARM_UP_S = 0.2
FEWEST, MOST, MOST_S = 30, 300, 3.0


def torch_or_exit():
    try:
        import torch
    except ImportError as error:
        print(f"gpu_peers: no PyTorch here: {error}", file=sys.stderr)
        sys.exit(3)
    if not torch.cuda.is_available():
        print("gpu_peers: PyTorch finds no GPU it can use", file=sys.stderr)
        sys.exit(3)
    return torch


def rank_based_ci(samples):
    """Half the width of the 95 % interval of the median by order statistics (normal approximation)."""
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


class Timer:
    def __init__(self, torch):
        self.torch = torch
        self.flushed = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")

    def once(self, work):
        start = self.torch.cuda.Event(enable_timing=True)
        stop = self.torch.cuda.Event(enable_timing=True)
        self.flushed.zero_()
        # The stream is kept busy until all is queued, so that no gap of the host is timed.
        self.torch.cuda._sleep(1_000_000)
        start.record()
        work()
        stop.record()
        stop.synchronize()
        return 1e3 * start.elapsed_time(stop)

    def __call__(self, work):
        begin = time.monotonic()
        while time.monotonic() - begin < WARM_UP_S:
            self.once(work)
        samples, begin = [], time.monotonic()
        while len(samples) < FEWEST or (
                len(samples) < MOST and time.monotonic() - begin < MOST_S):
            samples.append(self.once(work))
            if len(samples) >= FEWEST and len(samples) % 16 == 0:
                if rank_based_ci(samples) <= 0.005 * statistics.median(samples):
                    break
        return summary(samples)


def gate(torch, time_of):
    x = torch.rand(S, H, device="cuda", dtype=torch.bfloat16) - 0.5
    w = torch.rand(E, H, device="cuda", dtype=torch.bfloat16) - 0.5

    def work():
        torch.topk(torch.softmax((x @ w.t()).float(), dim=-1), 2, dim=-1)

    return time_of(work)


def choose(torch, time_of, experts, k):
    logits = torch.randn(S, experts, device="cuda")
    return time_of(lambda: torch.topk(torch.softmax(logits, dim=-1), k, dim=-1))


def slots(torch, k):
    """A balanced router's routes in random order: [S k] rows, each of one token's choice."""
    order = torch.randperm(S * k, device="cuda")
    return order, order // k


def capacity_by_sort(torch, time_of):
    """Top-2, max-gate priority, 512 slots an expert of S k / E: an argsort, one-hots, a cumsum."""
    gates, experts = torch.topk(torch.softmax(torch.randn(S, E, device="cuda"), dim=-1), 2, dim=-1)
    capacity = S // E

    def work():
        first = torch.argsort(gates[:, 0], descending=True, stable=True)
        chosen = experts[first].t().reshape(-1)  # choice after choice
        mask = torch.nn.functional.one_hot(chosen, E)
        place = (torch.cumsum(mask, dim=0) * mask).sum(dim=1) - 1
        torch.where(place < capacity, place, -1)

    return time_of(work)


def permute(torch, time_of, k):
    x = torch.rand(S, H, device="cuda", dtype=torch.bfloat16)
    _, token = slots(torch, k)
    return time_of(lambda: torch.index_select(x, 0, token))


def combine(torch, time_of, k):
    rows = torch.rand(S * k, H, device="cuda", dtype=torch.bfloat16)
    weight = torch.rand(S * k, 1, device="cuda", dtype=torch.bfloat16)
    _, token = slots(torch, k)

    def work():
        out = torch.zeros(S, H, device="cuda", dtype=torch.bfloat16)
        out.index_add_(0, token, rows * weight)

    return time_of(work)


def one_hot_mask(torch, k):
    order, token = slots(torch, k)
    mask = torch.zeros(S, S * k, device="cuda", dtype=torch.bfloat16)
    mask[token, torch.arange(S * k, device="cuda")] = 1
    return mask.view(S, E, S * k // E)


def einsum_permute(torch, time_of, k):
    x = torch.rand(S, H, device="cuda", dtype=torch.bfloat16)
    mask = one_hot_mask(torch, k)
    return time_of(lambda: torch.einsum("sec,sh->ech", mask, x))


def einsum_combine(torch, time_of, k):
    rows = torch.rand(E, S * k // E, H, device="cuda", dtype=torch.bfloat16)
    mask = one_hot_mask(torch, k)
    return time_of(lambda: torch.einsum("sec,ech->sh", mask, rows))


PEERS = [
    ("gate-bf16", "matmul, torch.softmax, torch.topk", gate),
    ("choose-top2-e64", "torch.softmax, torch.topk", lambda t, f: choose(t, f, 64, 2)),
    ("choose-top8-e256", "torch.softmax, torch.topk", lambda t, f: choose(t, f, 256, 8)),
    ("assign-token-max", "argsort, one_hot, cumsum", capacity_by_sort),
    *[(f"permute-top{k}", "torch.index_select", lambda t, f, k=k: permute(t, f, k))
      for k in (1, 2, 8)],
    *[(f"permute-top{k}", "one-hot einsum", lambda t, f, k=k: einsum_permute(t, f, k))
      for k in (1, 2)],
    *[(f"combine-top{k}", "zeros, mul, index_add_", lambda t, f, k=k: combine(t, f, k))
      for k in (1, 2, 8)],
    *[(f"combine-top{k}", "one-hot einsum", lambda t, f, k=k: einsum_combine(t, f, k))
      for k in (1, 2)],
]


def measure(torch):
    time_of, peers, missing = Timer(torch), [], []
    for benchmark, name, run in PEERS:
        try:
            figures = run(torch, time_of)
        except torch.cuda.OutOfMemoryError:
            missing.append({"benchmark": benchmark, "name": name, "reason": "out of device memory"})
            continue
        finally:
            torch.cuda.empty_cache()
        peers.append({"benchmark": benchmark, "name": name, **figures})
        print(f"{benchmark:<18} {name:<36} {figures['median_us']:>10.2f} us "
              f"({figures['p05_us']:.2f} to {figures['p95_us']:.2f}, n {figures['n']})")
    return {"format": "moesim-gpu-peers", "device": torch.cuda.get_device_name(0),
            "version": f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}",
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "peers": peers, "missing": missing}


def write(path, document):
    folder = os.path.dirname(os.path.abspath(path))
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
        json.dump(document, file, indent=1)
    os.replace(file.name, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="where peers.json goes, for bench_gpu_kernels --peers")
    options = parser.parse_args()
    document = measure(torch_or_exit())
    if options.out:
        write(options.out, document)


if __name__ == "__main__":
    main()
