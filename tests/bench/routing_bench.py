"""What run_routing and run_routers share: finding programs, timing a peer."""

import os
import pathlib
import statistics
import sys
import time


def find(build, name):
    found = [path for path in pathlib.Path(build).rglob(name)
             if path.is_file() and os.access(path, os.X_OK)]
    if not found:
        sys.exit(f"{pathlib.Path(sys.argv[0]).name}: no {name} below {build}: build it first "
                 f"(cmake --build {build})")
    return found[0]


def seconds_of_peer(peer, logits, rounds=5):
    peer.route(logits)
    times = []
    for _ in range(rounds):
        start = time.thread_time()
        peer.route(logits)
        times.append(time.thread_time() - start)
    return statistics.median(times)
