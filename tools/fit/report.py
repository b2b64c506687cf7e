"""The table of the shipped curves in profiles/README.md, written from the documents themselves.

    python3 -m tools.fit.report --write profiles/README.md
"""
import argparse
import json
from pathlib import Path

FORMAT = "moesim-profile"
BEGIN, END = "<!-- curves: written by tools.fit.report -->", "<!-- end of curves -->"
HEADER = ["| profile | curve | origin | points | median | p90 | bars | by region: median / p90 |",
          "|---|---|---|---|---|---|---|---|"]
KEYS = ("kernel", "head_dim", "nccl", "distribution")


def percent(share):
    return "-" if share is None else f"{100 * share:.3g} %"


def name(curve):
    keys = [str(curve["params"][key]) for key in KEYS if key in curve["params"]]
    if curve["params"].get("dtype", "bf16") != "bf16":
        keys.insert(0, curve["params"]["dtype"])
    return " ".join([curve["op"], *keys])


def regions(residual):
    return "; ".join(f"{each['region']} {percent(each['median_abs'])} / {percent(each['p90_abs'])}"
                     for each in residual["regions"])


def row(profile, label, origin, figures, bars="", text=""):
    return (f"| {profile} | {label} | {origin} | {figures.get('n', 0) or '-'} "
            f"| {percent(figures['median_abs'])} | {percent(figures['p90_abs'])} | {bars} | {text} |")


def branch_rows(profile, curve):
    """GPU counts that a law answers for have errors of their own."""
    law = curve.get("law")
    by_law = [] if law is None else [
        row(profile, f"{name(curve)}, up to {law['up_to']} GPUs", "derived", law["residual"],
            text=regions(law["residual"]))]
    return by_law + [row(profile, f"{name(curve)}, {each['gpus']} GPUs", each["origin"], each["residual"],
                text=regions(each["residual"]))
            for each in curve.get("branches", []) if "residual" in each]


def check_rows(profile, curve):
    rows = []
    for check in curve["residual"].get("checks", []):
        bars = f"{percent(check['bar_median_abs'])}, {percent(check['bar_p90_abs'])}"
        bars = "" if bars == "-, -" else bars
        rows.append(row(profile, f"**{curve['op']}: {check['what']}**", curve["origin"], check, bars))
    return rows


def table(documents):
    """Markdown: the figures that bars are set on, then every curve a query can meet by default."""
    bars, lines = [], []
    for document in documents:
        for curve in document["curves"]:
            bars += check_rows(document["name"], curve)
            if curve.get("default", True):
                lines.append(row(document["name"], name(curve), curve["origin"], curve["residual"],
                                 text=regions(curve["residual"])))
                lines += branch_rows(document["name"], curve)
    return "\n".join(HEADER + bars + lines)


def documents(folder):
    """The hardware profiles of a folder; other documents may lie beside them."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return [document for document in found if document["format"] == FORMAT]


def main():
    parser = argparse.ArgumentParser(prog="tools.fit.report", description=__doc__.split("\n")[0])
    parser.add_argument("--profiles", type=Path, default=Path("profiles/hardware"))
    parser.add_argument("--write", type=Path, default=None, metavar="README",
                        help="replace the table between its marks there (default: print it)")
    options = parser.parse_args()
    text = table(documents(options.profiles))
    if options.write is None:
        print(text)
        return
    page = options.write.read_text()
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    options.write.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    main()
