"""Fits the shipped hardware profiles: python3 -m tools.fit --data DIR --out profiles/hardware."""
import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from tools.fit import profile


def arguments():
    parser = argparse.ArgumentParser(prog="tools.fit", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"),
                        help="folder of the public measurement tables (default %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("profiles/hardware"),
                        help="folder the documents are written to (default %(default)s)")
    parser.add_argument("--profiles", default=",".join(profile.PROFILES),
                        help="which profiles, separated by commas (default %(default)s)")
    parser.add_argument("--only", default=None, metavar="SUITES",
                        help=f"refit these suites alone and keep the others of the document in "
                             f"--out: {', '.join(profile.SUITES)}")
    parser.add_argument("--dtypes", default=None, metavar="NAMES",
                        help=f"refit curves of these data types alone: {', '.join(profile.DTYPES)}")
    return parser.parse_args()


def names(text, known, what):
    chosen = [each.strip() for each in text.split(",") if each.strip()]
    for each in chosen:
        if each not in known:
            sys.exit(f"tools.fit: unknown {what} '{each}'; known: {', '.join(known)}")
    return chosen


def write(path, text):
    """All or nothing: a temporary file, then a rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, suffix=".part") as part:
        part.write(text)
    os.chmod(part.name, 0o644)
    os.replace(part.name, path)


def report(document):
    """One line per figure that a bar is set on."""
    for curve in document["curves"]:
        for check in curve["residual"].get("checks", []):
            bars = (check["bar_median_abs"], check["bar_p90_abs"])
            print(f"{document['name']} {curve['op']}: {check['what']}: median "
                  f"{100 * check['median_abs']:.2f} %, p90 {100 * check['p90_abs']:.2f} % "
                  f"(bars {', '.join('-' if bar is None else f'{100 * bar:g} %' for bar in bars)})",
                  file=sys.stderr)


def main():
    options = arguments()
    if not options.data.is_dir():
        sys.exit(f"tools.fit: no folder {options.data}; give the tables' folder with --data")
    only = None if options.only is None else names(options.only, profile.SUITES, "suite")
    dtypes = None if options.dtypes is None else names(options.dtypes, profile.DTYPES, "data type")
    for name in names(options.profiles, profile.PROFILES, "profile"):
        path = options.out / f"{name}.json"
        existing = json.loads(path.read_text()) if path.exists() else None
        document = profile.build(name, options.data, only, existing, dtypes)
        report(document)
        write(path, profile.text(document) + "\n")
        print(f"wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
