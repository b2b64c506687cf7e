"""Sums JUnit results: skip reasons, failures, and one line of counts.

summarise.py [--times N] [--slow-list FILE] NAME=RESULTS.xml...; exit code 1 if anything failed or a file
of results is missing. --times lists the N tests that took longest, with their labels; --slow-list writes
the names of those that took more than 0.3 s to FILE.
"""

import argparse
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple


class Result(NamedTuple):
    name: str
    state: str  # passed, failed or skipped
    reason: str = ""
    seconds: float = 0.0
    labels: str = ""


def reason_of(case, skipped):
    """Why a test was skipped: the line it printed, or what pytest noted."""
    printed = case.findtext("system-out") or ""
    found = re.search(r"SKIPPED: *(.+)", printed) or re.search(
        r"SKIPPED: *(.+)", skipped.get("message") or ""
    )
    reason = found.group(1) if found else skipped.get("message") or "no reason given"
    return reason.strip()


def labels_of(case):
    """The labels of ctest, or what tests/python/conftest.py notes of pytest's marks."""
    found = {each.get("name"): each.get("value") for each in case.iter("property")}
    return found.get("cmake_labels") or found.get("marks") or ""


def read_results(path):
    """The Result of every test case in a file."""
    results = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        skipped = case.find("skipped")
        bad = case.find("failure") is not None or case.find("error") is not None
        name = case.get("name")
        if case.get("classname") not in (None, name):
            name = f"{case.get('classname')}: {name}"
        state = "passed"
        if bad or case.get("status") == "fail":
            state = "failed"
        elif skipped is not None:
            state = "skipped"
        reason = reason_of(case, skipped) if state == "skipped" else ""
        results.append(Result(name, state, reason, float(case.get("time") or 0), labels_of(case)))
    return results


def print_times(results, count):
    for each in sorted(results, key=lambda result: -result.seconds)[:count]:
        labels = f" [{each.labels}]" if each.labels else ""
        print(f"{each.seconds:8.2f} s  {each.name}{labels}")
    if count:
        print(f"{sum(each.seconds for each in results):8.2f} s  all {len(results)} tests")


SLOW_SECONDS = 0.3


def write_slow(results, path):
    """A line a test; comments say what the file is."""
    slow = sorted({each.name for each in results if each.seconds > SLOW_SECONDS})
    path.write_text("# Tests that took more than 0.3 s: tools/test --quick leaves them out.\n"
                    "# Written by tools/test --slow-list.\n" + "".join(f"{name}\n" for name in slow),
                    encoding="utf-8")


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=0)
    parser.add_argument("--slow-list", type=Path)
    parser.add_argument("files", nargs="+")
    options = parser.parse_args(arguments)
    results = []
    for argument in options.files:
        name, path = argument.split("=", 1)
        try:
            found = read_results(path)
        except (OSError, ElementTree.ParseError) as error:
            found = [Result(f"{name}: no results ({error})", "failed")]
        results += found or [Result(f"{name}: no test was run", "failed")]
    print_times(results, options.times)
    if options.slow_list:
        write_slow(results, options.slow_list)
    for each in results:
        if each.state == "skipped":
            print(f"skipped: {each.name}: {each.reason}")
    for each in results:
        if each.state == "failed":
            print(f"failed: {each.name}")
    counts = {state: sum(each.state == state for each in results)
              for state in ("passed", "failed", "skipped")}
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
