"""Prints the measured points of a shipped study as the CSV that `moesim plot --measured` reads.

measured_points.py STUDY.json > POINTS.csv
"""

import csv
import json
import sys

COLUMNS = ["router", "capacity_factor", "tokens_per_s_per_gpu", "mode", "source", "excluded"]


def points(study):
    """One row per measured speed of a study that its own sweep can show."""
    short = study["source"].split(",")[0]
    for row in study["rows"]:
        if row.get("tokens_per_s_per_gpu") is None:
            continue
        options = {**study["options"], **row.get("options", {})}
        yield {
            "router": options["router"],
            "capacity_factor": options.get("capacity-factor", ""),
            "tokens_per_s_per_gpu": row["tokens_per_s_per_gpu"],
            "mode": options["mode"],
            "source": short,
            "excluded": "true" if row["role"] == "excluded" else "false",
        }


def main(path):
    with open(path, encoding="utf-8") as file:
        study = json.load(file)
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(points(study))


if __name__ == "__main__":
    main(*sys.argv[1:])
