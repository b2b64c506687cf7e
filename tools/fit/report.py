"""The tables of the shipped curves, profiles/curves.csv and those in ACCURACY.md, written from the documents
themselves.

    python3 -m tools.fit.report --write profiles/curves.csv --kernels profiles/ACCURACY.md
"""
import argparse
import csv
import io
import json
from pathlib import Path

FORMAT = "moesim-profile"
COLUMNS = ("profile", "is", "name", "origin", "points", "median_percent", "p90_percent", "bar_median_percent",
           "bar_p90_percent", "regions_median_p90_percent")
KERNELS_BEGIN, KERNELS_END = "<!-- kernels: written by tools.fit.report -->", "<!-- end of kernels -->"
# Operations by data type: (operation, what its goal is, median and 90th percentile in percent)
KERNELS = (("gemm", (3, 10)), ("attention", (3, 10)), ("latent-attention", (3, 10)),
           ("expert-ffn", (4, 15)), ("quantize", None))
DTYPES = ("bf16", "fp8", "fp8_block", "nvfp4", "mxfp4")
KEYS = ("kernel", "head_dim", "nccl", "distribution")


def percent(share):
    return "" if share is None else f"{100 * share:.3g}"


def name(curve):
    keys = [str(curve["params"][key]) for key in KEYS if key in curve["params"]]
    if curve["params"].get("dtype", "bf16") != "bf16":
        keys.insert(0, curve["params"]["dtype"])
    return " ".join([curve["op"], *keys])


def regions(residual):
    return "; ".join(f"{each['region']} {percent(each['median_abs'])} / {percent(each['p90_abs'])}"
                     for each in residual["regions"])


def row(label, origin, figures, bars=("", ""), by_region=""):
    return (label, origin, figures.get("n", 0) or "", percent(figures["median_abs"]), percent(figures["p90_abs"]), *bars, by_region)


def curve_rows(curve):
    """The curve's own errors, and those of GPU counts that a law or a branch answers for."""
    found = [(name(curve), curve["origin"], curve["residual"])]
    law = curve.get("law")
    if law is not None:
        found.append((f"{name(curve)}, up to {law['up_to']} GPUs", "derived", law["residual"]))
    found += [(f"{name(curve)}, {each['gpus']} GPUs", each["origin"], each["residual"])
              for each in curve.get("branches", []) if "residual" in each]
    return [row(*each, by_region=regions(each[-1])) for each in found]


def check_rows(curve):
    return [row(f"{curve['op']}: {check['what']}", curve["origin"], check,
                bars=(percent(check["bar_median_abs"]), percent(check["bar_p90_abs"])))
            for check in curve["residual"].get("checks", [])]


def section(document):
    """Rows of a profile: the figures that bars are set on, then every curve a query can meet by default."""
    curves = document["curves"]
    checks = [row for curve in curves for row in check_rows(curve)]
    others = [row for curve in curves if curve.get("default", True) for row in curve_rows(curve)]
    return [(document["name"], kind, *cells) for kind, found in (("check", checks), ("curve", others)) for cells in found]


def table(documents):
    """The CSV: the rows of each profile."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(COLUMNS)
    for document in documents:
        out.writerows(section(document))
    return text.getvalue()


def first_check(document, op, dtype):
    """(figures of the first check among the curves of an operation and a data type, the curve), or
    None without such a curve. Measured curves have no checks: the one of most points stands for
    them, as other data have more points of what is asked most."""
    curves = [each for each in document["curves"]
              if each["op"] == op and each["params"].get("dtype", "bf16") == dtype]
    for curve in curves:
        if "checks" in curve["residual"]:
            return curve["residual"]["checks"][0], curve
    measured = [each for each in curves if each["origin"] == "measured"]
    if not curves:
        return None
    curve = max(measured, key=lambda each: each["residual"]["n"]) if measured else curves[0]
    return curve["residual"], curve


def cell(found, goal):
    """"2.5 / 7.8", bold where the goal is missed."""
    if found is None:
        return ""
    figures = [100 * found[0][key] for key in ("median_abs", "p90_abs")]
    text = " / ".join(f"{each:.1f}" for each in figures)
    missed = goal is not None and any(each > most for each, most in zip(figures, goal))
    return f"**{text}**" if missed else text


def roughness(found):
    noise = {} if found is None else found[1].get("noise", {}).get("above_100_us", {})
    return "" if not noise else f"{100 * noise['median_abs']:.1f} / {100 * noise['p90_abs']:.1f}"


def new_sizes(found):
    known = None if found is None else found[1].get("new_sizes")
    return "" if known is None else cell((known["residual"], None), None)


def kernels_table(documents):
    """Markdown: held-out errors by operation, data type and GPU; of products also how rough the
    sweep itself is."""
    chosen = [each for each in documents if any(curve["op"] == "gemm" for curve in each["curves"])]
    lines = ["| curve, data type | goal | " + " | ".join(each["name"] for each in chosen) + " |",
             "|---" * (2 + len(chosen)) + "|"]
    for op, goal in KERNELS:
        for dtype in DTYPES:
            found = [first_check(each, op, dtype) for each in chosen]
            if not any(found):
                continue
            wanted = "" if goal is None else f"{goal[0]} / {goal[1]}"
            lines.append(f"| {op}, {dtype} | {wanted} | "
                         + " | ".join(cell(each, goal) for each in found) + " |")
            if op == "expert-ffn":
                lines.append(f"| the same, sizes that were not measured, {dtype} | | "
                             + " | ".join(new_sizes(each) for each in found) + " |")
            if op == "gemm":
                lines.append(f"| roughness of that sweep above 100 us, {dtype} | | "
                             + " | ".join(roughness(each) for each in found) + " |")
    return "\n".join(lines)


def replace_between(path, begin, end, text):
    page = path.read_text()
    before, rest = page.split(begin)
    _, after = rest.split(end)
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def documents(folder):
    """The hardware profiles of a folder; other documents may lie beside them."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return [document for document in found if document["format"] == FORMAT]


def main():
    parser = argparse.ArgumentParser(prog="tools.fit.report", description=__doc__.split("\n")[0])
    parser.add_argument("--profiles", type=Path, default=Path("profiles/hardware"))
    parser.add_argument("--write", type=Path, default=None, metavar="CURVES",
                        help="write the CSV of every curve there (default: print it)")
    parser.add_argument("--kernels", type=Path, default=None, metavar="ACCURACY",
                        help="replace the table by data type and GPU between its marks there")
    options = parser.parse_args()
    found = documents(options.profiles)
    if options.write is None and options.kernels is None:
        print(table(found), kernels_table(found), sep="\n")
    if options.write is not None:
        options.write.write_text(table(found))
    if options.kernels is not None:
        replace_between(options.kernels, KERNELS_BEGIN, KERNELS_END, kernels_table(found))


if __name__ == "__main__":
    main()
