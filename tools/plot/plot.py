#!/usr/bin/env python3
"""Charts of moesim results: the plotter behind `moesim plot`.

    plot.py sweep SWEEP.csv --out CHART.png [--measured POINTS.csv] [--title TEXT] [--fits-only]
    plot.py loss SWEEP.csv --out CHART.png [--title TEXT] [--fits-only]
    plot.py accuracy SWEEP.csv --study STUDY.json --out CHART.png [--title TEXT] [--fits-only]
    plot.py routing ROUTE.json --out CHART.png [--title TEXT]
    plot.py curves CURVES.json --out CHART.png
    plot.py bands VALIDATION.json --out CHART.png [--title TEXT]

Which columns of a sweep are options is said by moesim: `--options FILE` names what `moesim options
--format json` printed; without it option_columns.py looks for a moesim to ask.
The suffix of CHART chooses the format (png, pdf, svg). The file is written whole or not at all.
Exit codes: 0 ok, 1 failure, 2 usage.
"""
import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

EXIT_FAILURE, EXIT_USAGE = 1, 2


def save(figure, path):
    """Writes the figure beside its destination, then renames: no half-written chart is left."""
    suffix = os.path.splitext(path)[1].lower()
    temporary = f"{path}.{os.getpid()}.tmp"
    # No date and no version in the file: the same rows give the same bytes.
    metadata = {".png": {"Software": None}, ".pdf": {"CreationDate": None, "Producer": None},
                ".svg": {"Date": None}}[suffix]
    try:
        figure.savefig(temporary, format=suffix[1:], dpi=160, metadata=metadata)
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0],
                                     allow_abbrev=False)
    parser.add_argument("kind", choices=["sweep", "loss", "accuracy", "routing", "curves", "bands"])
    parser.add_argument("input")
    parser.add_argument("--out", required=True)
    parser.add_argument("--measured")
    parser.add_argument("--study")
    parser.add_argument("--title", default="")
    parser.add_argument("--fits-only", action="store_true",
                        help="leave out scenarios that do not fit in the memory of a GPU")
    parser.add_argument("--options", help="output of 'moesim options --format json'")
    return parser.parse_args(words)


def main(words):
    options = arguments(words)
    import matplotlib
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "moesim"  # ids in SVG files do not change from run to run
    from chart_data import BadInput
    from option_columns import NoOptions, VARIABLE
    if options.options:
        os.environ[VARIABLE] = options.options
    try:
        if options.kind == "sweep":
            from sweep_chart import draw
            figure = draw(options.input, options.measured, options.title, options.fits_only)
        elif options.kind == "loss":
            from loss_chart import draw
            figure = draw(options.input, options.title, options.fits_only)
        elif options.kind == "accuracy":
            from accuracy_chart import draw
            figure = draw(options.input, options.study, options.title, options.fits_only)
        elif options.kind == "routing":
            from routing_chart import draw
            figure = draw(options.input, options.title)
        elif options.kind == "bands":
            from bands_chart import draw
            figure = draw(options.input, options.title)
        else:
            from curves_chart import draw
            figure = draw(options.input)
        save(figure, options.out)
    except BadInput as error:
        print(f"moesim: error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except NoOptions as error:
        print(f"moesim: error: {error}", file=sys.stderr)
        return EXIT_FAILURE
    except OSError as error:
        print(f"moesim: error: {options.out}: cannot write: {error.strerror}", file=sys.stderr)
        return EXIT_FAILURE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
