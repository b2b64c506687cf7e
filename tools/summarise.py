"""Sums JUnit results: skip reasons, failures, and one line of counts.

summarise.py NAME=RESULTS.xml...; exit code 1 if anything failed or a file of results is missing.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree


def reason_of(case, skipped):
    """Why a test was skipped: the line it printed, or what pytest noted."""
    printed = case.findtext("system-out") or ""
    found = re.search(r"SKIPPED: *(.+)", printed) or re.search(
        r"SKIPPED: *(.+)", skipped.get("message") or ""
    )
    reason = found.group(1) if found else skipped.get("message") or "no reason given"
    return reason.strip()


def read_results(path):
    """(name, state, reason) of every test case in a file; state passed, failed or skipped."""
    rows = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        skipped = case.find("skipped")
        bad = case.find("failure") is not None or case.find("error") is not None
        name = case.get("name")
        if case.get("classname") not in (None, name):
            name = f"{case.get('classname')}: {name}"
        if bad or case.get("status") == "fail":
            rows.append((name, "failed", ""))
        elif skipped is not None:
            rows.append((name, "skipped", reason_of(case, skipped)))
        else:
            rows.append((name, "passed", ""))
    return rows


def main(arguments):
    rows = []
    for argument in arguments:
        name, path = argument.split("=", 1)
        try:
            found = read_results(path)
        except (OSError, ElementTree.ParseError) as error:
            found = [(f"{name}: no results ({error})", "failed", "")]
        rows += found or [(f"{name}: no test was run", "failed", "")]
    for name, state, reason in rows:
        if state == "skipped":
            print(f"skipped: {name}: {reason}")
    for name, state, _ in rows:
        if state == "failed":
            print(f"failed: {name}")
    counts = {state: sum(row[1] == state for row in rows) for state in ("passed", "failed", "skipped")}
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
