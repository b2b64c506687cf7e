#!/usr/bin/env python3
"""What others take on this GPU for the operations of bench_gpu_kernels, on the same shapes.

usage: gpu_peers.py [--out FILE] [--resume] [--seconds N] [--wheels FOLDER] [--check]

Peers are PyTorch, call after call and compiled, and Triton kernels of SGLang and TransformerEngine
from unpacked wheels. Each is first compared with a plain reference, then timed cold (L2 flushed by
a fill and a read, the stream held until all is queued, events) and hot (a CUDA graph of at least a
millisecond), and after that compared once more; medians with spread. FILE is written whole after
each. One-hot dispatch and combine are the einsum formulation of GShard (Lepikhin et al. 2020,
algorithm 1). Exit code: 0 done, 1 the device was lost or, with --check, a peer was wrong, 2 a wrong
option, 3 no PyTorch, or no GPU that it can use.
"""

import argparse
import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

LATE = "the time limit of {:g} s was over"
# Said, since one may look for them here.
NOT_HERE = [
    {"benchmark": "route-top8-e256", "name": "SGLang: moe_align_block_size",
     "reason": "CUDA source that is compiled with tvm_ffi when it is first called"},
    {"benchmark": "route-top8-e256", "name": "vLLM: moe_align_block_size",
     "reason": "a function of its compiled extension"},
]


def torch_or_exit(needs_gpu):
    try:
        import torch
    except ImportError as error:
        print(f"gpu_peers: no PyTorch here: {error}", file=sys.stderr)
        sys.exit(3)
    if needs_gpu and not torch.cuda.is_available():
        print("gpu_peers: PyTorch finds no GPU it can use", file=sys.stderr)
        sys.exit(3)
    return torch


class Tools:
    """What the builders of peers need beside their case."""

    def __init__(self, torch, device, wheels):
        self.torch, self.device, self.wheels = torch, device, wheels

    def compiled(self, function, mode=None):
        """On the CPU, where only the result counts, without making code."""
        if self.device == "cpu":
            return self.torch.compile(function, dynamic=False, backend="aot_eager")
        return self.torch.compile(function, dynamic=False, mode=mode)


class DeviceLost(Exception):
    pass


class Bench:
    """Builds, compares and times a peer."""

    def __init__(self, torch, device, shapes, wheels, timer=None):
        self.torch, self.device, self.shapes, self.timer = torch, device, shapes, timer
        self.tools = Tools(torch, device, wheels)
        self.case_id, self.case = None, None

    def case_of(self, benchmark):
        from peers import cases
        if benchmark != self.case_id:
            self.case_id, self.case = None, None
            self.empty()
            self.case = cases.make(benchmark, self.shapes, cases.Place(self.device))
            self.case_id = benchmark
        return self.case

    def empty(self):
        if self.device != "cpu":
            self.torch.cuda.empty_cache()

    def poison(self):
        """What the next results are allocated from, so that one who writes nothing is not given
        the right result of the peer before."""
        if self.device == "cpu":
            return
        free, _ = self.torch.cuda.mem_get_info()
        # Small results come from blocks of their own.
        sizes = [min(free // 2, 2 << 30)] + 16 * [1 << 19]
        made = [self.torch.full((size,), 0xff, dtype=self.torch.uint8, device="cuda")
                for size in sizes]
        del made

    def run(self, peer):
        """Figures of a peer, or of nothing but its result where there is no timer. Throws what
        says why there are none."""
        if self.device == "cpu" and not peer.interpreted:
            raise NotImplementedError("Triton's interpreter cannot run it")
        case = self.case_of(peer.benchmark)
        built = peer.build(case, self.tools)
        work, read = built if isinstance(built, tuple) else (built, lambda result: result)
        check = lambda result, copy: case.check(read(result), copy)
        self.empty()
        self.poison()
        for copy in range(case.copies):
            wrong = check(work(copy), copy)
            if wrong:
                raise ValueError(f"wrong: {wrong}")
        if self.timer is None:
            return {}
        self.empty()
        cold = self.timer.cold(work, case.copies)
        figures = {"cold": cold, "hot": None}
        try:
            figures["hot"] = self.timer.hot(work, case.copies, cold["median_us"], check)
        except Exception as error:
            self.alive(error)
            # That a capture could not end comes of what broke it.
            figures["no_hot"] = reason_of(error.__context__ or error)
        wrong = check(work(0), 0)
        if wrong:
            raise ValueError(f"wrong after it was timed: {wrong}")
        return figures

    def alive(self, error):
        """Throws DeviceLost if the device does not outlive `error`."""
        if self.device == "cpu":
            return
        try:
            self.torch.cuda.synchronize()
        except Exception as lost:
            raise DeviceLost(reason_of(error)) from lost


def reason_of(error):
    text = str(error).strip().split("\n")[0][:200]
    plain = type(error).__name__ in ("Absent", "NotImplementedError", "NotMeasurable", "ValueError")
    return text if plain and text else f"{type(error).__name__}: {text}"


def measure(bench, peers, document, write, seconds=0, clock=time.monotonic, say=print, begin=None):
    """Fills `document`, which `write` is given after each peer. No peer begins `seconds` after
    `begin`, or after now. False if the device was lost."""
    begin, lost = clock() if begin is None else begin, ""
    for peer in peers:
        key = {"benchmark": peer.benchmark, "name": peer.name}
        reason = lost
        if not reason and seconds and clock() - begin > seconds:
            reason = LATE.format(seconds)
        if not reason:
            try:
                figures = bench.run(peer)
                document["peers"].append({**key, **figures})
            except DeviceLost as error:
                reason = lost = f"the device was lost: {error}"
            except Exception as error:  # of whatever a peer throws: the others go on
                reason = reason_of(error)
                try:
                    bench.alive(error)
                except DeviceLost:
                    reason = lost = f"the device was lost: {reason}"
        if reason:
            document["missing"].append({**key, "reason": reason})
        say(line_of(key, reason, None if reason else document["peers"][-1]))
        write(document)
    return not lost


def line_of(key, reason, figures):
    head = f"{key['benchmark']:<21} {key['name']:<46}"
    if reason:
        return f"{head} missing: {reason}"
    if "cold" not in figures:
        return f"{head} right"
    part = lambda each: (f"{each['median_us']:>9.2f} us ({each['p05_us']:.2f} to "
                         f"{each['p95_us']:.2f}, n {each['n']})")
    hot = part(figures["hot"]) if figures["hot"] else f"none: {figures['no_hot']}"
    return f"{head} cold {part(figures['cold'])}, hot {hot}"


def document_of(torch, device, wheels):
    versions = {"PyTorch": torch.__version__, "CUDA": torch.version.cuda, **wheels.versions()}
    try:
        import triton
        versions["Triton"] = triton.__version__
    except ImportError:
        pass
    return {"format": "moesim-gpu-peers",
            "device": "cpu" if device == "cpu" else torch.cuda.get_device_name(0),
            "version": ", ".join(f"{name} {version}" for name, version in versions.items()),
            "versions": versions,
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "peers": [], "missing": list(NOT_HERE)}


def write_whole(path, document):
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
    os.replace(path + ".part", path)


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="where peers.json goes, for bench_gpu_kernels --peers")
    parser.add_argument("--resume", action="store_true",
                        help="keep the peers that --out has of the same device and versions")
    parser.add_argument("--seconds", type=float, default=0,
                        help="begin no peer after so many seconds (default: 0, no limit)")
    parser.add_argument("--wheels", default=os.environ.get("MOESIM_PEER_WHEELS", ""),
                        help="a folder with the Python files of the wheels of sglang and "
                             "transformer_engine (default: $MOESIM_PEER_WHEELS)")
    parser.add_argument("--only", default="", help="only benchmarks and names that contain this")
    parser.add_argument("--check", action="store_true",
                        help="only compare results, at small shapes; without a GPU on the CPU")
    options = parser.parse_args(words)
    if options.seconds < 0:
        parser.error("--seconds: expected 0 or more")
    if options.wheels and not os.path.isdir(options.wheels):
        parser.error(f"--wheels: no folder '{options.wheels}'")
    return options


def take_over(path, document, peers):
    """Gives `document` the measured peers of the file at `path`, if they are of the same device and
    versions. Returns those of `peers` that are left to measure."""
    try:
        with open(path, encoding="utf-8") as file:
            earlier = json.load(file)
    except (OSError, ValueError):
        return peers
    if any(earlier.get(key) != document[key] for key in ("format", "device", "versions")):
        return peers
    document["peers"] = earlier["peers"]
    measured = {(peer["benchmark"], peer["name"]) for peer in earlier["peers"]}
    return [peer for peer in peers if (peer.benchmark, peer.name) not in measured]


def prepare(options):
    """The bench, and the document it fills."""
    torch = torch_or_exit(needs_gpu=not options.check)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    from peers import shapes, timer, wheels
    found = wheels.Wheels(options.wheels, torch, device)
    sizes = shapes.SMALL if options.check else shapes.FULL
    bench = Bench(torch, device, sizes, found, None if options.check else timer.Timer(torch))
    return bench, document_of(torch, device, found)


def main():
    begin = time.monotonic()  # importing PyTorch takes seconds, too
    options = parse(sys.argv[1:])
    bench, document = prepare(options)
    from peers.catalogue import PEERS
    chosen = [peer for peer in PEERS if options.only in f"{peer.benchmark} {peer.name}"]
    if options.resume and options.out:
        chosen = take_over(options.out, document, chosen)
    write = (lambda each: write_whole(options.out, each)) if options.out else (lambda each: None)
    with bench.torch.no_grad():
        kept = measure(bench, chosen, document, write, options.seconds,
                       say=lambda text: print(text, flush=True), begin=begin)
    wrong = [each for each in document["missing"] if each["reason"].startswith("wrong")]
    sys.exit(0 if kept and not (options.check and wrong) else 1)


if __name__ == "__main__":
    main()
