#!/usr/bin/env python3
"""Charts of moesim results: the plotter behind `moesim plot`.

    plot.py sweep | speed SWEEP.csv --out CHART.png [--measured POINTS.csv] [--title TEXT] [--fits-only]
    plot.py loss SWEEP.csv --out CHART.png [--title TEXT] [--fits-only]
    plot.py accuracy SWEEP.csv --study STUDY.json --out CHART.png [--title TEXT] [--fits-only]
    plot.py axes SWEEP.csv... --x COLUMN --y COLUMN,... [--group COLUMN,...] [--facet COLUMN] --out CHART.png
    plot.py breakdown | scaling | pareto SWEEP.csv... [--group COLUMN,...] --out CHART.png
    plot.py compare BEFORE.csv AFTER.csv [--x COLUMN] [--y COLUMN] [--group COLUMN,...] --out CHART.png
    plot.py report SWEEP.csv... --out PAGE.html
    plot.py routing ROUTE.json --out CHART.png [--title TEXT]
    plot.py curves CURVES.json --out CHART.png
    plot.py bands | checks VALIDATION.json --out CHART.png [--title TEXT]
    plot.py explained EXPLAINED.json --out CHART.png [--title TEXT]

axes, breakdown, scaling, pareto and compare take --where CONDITIONS, --fits-only, --width LENGTH and
--font-size POINTS. Which columns of a sweep are options is said by moesim: `--options FILE` names what `moesim options
--format json` printed; without it option_columns.py looks for a moesim to ask.
speed is sweep, where the losses of moesim route, which have no speeds, are refused instead of drawn by themselves.
The suffix of CHART chooses the format (png, pdf, svg). The file is written whole or not at all.
Exit codes: 0 ok, 1 failure, 2 usage.
"""
import argparse
import os
import re
import sys
import warnings

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from chart_file import save  # noqa: E402

EXIT_FAILURE, EXIT_USAGE, EXIT_MISSING = 1, 2, 3  # 3: as the command where there is no Matplotlib
OF_ROWS = ("axes", "breakdown", "scaling", "pareto", "compare", "report")  # of any rows, by rows.py


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0],
                                     allow_abbrev=False)
    parser.add_argument("kind", choices=["sweep", "speed", "loss", "accuracy", "routing", "curves", "bands", "checks", "explained", *OF_ROWS])
    parser.add_argument("inputs", nargs="+")
    for name in ("x", "y", "group", "facet", "where", "width", "font-size"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--out", required=True)
    parser.add_argument("--measured")
    parser.add_argument("--study")
    parser.add_argument("--title", default="")
    parser.add_argument("--fits-only", action="store_true",
                        help="leave out scenarios that do not fit in the memory of a GPU")
    parser.add_argument("--options", help="output of 'moesim options --format json'")
    return parser.parse_args(words)


def draw_rows(options):
    """The figure of one of OF_ROWS; for a report the text of the page."""
    import axes_chart
    import breakdown_chart
    import compare_chart
    import page
    import pareto_chart
    import rows
    import scaling_chart
    size = page.size_of(options.width, options.font_size)
    table = rows.read(options.inputs, options.where, options.fits_only)
    group = [name for name in options.group.split(",") if name] if options.group else None
    for name in group or []:
        table.require(name, "group")
    x, y = options.x or rows.default_axis(table), options.y or "tokens_per_s_per_gpu"
    if options.kind == "report":
        import report_page
        return report_page.text(table, options.x, y.split(",")[0], group, options.title)
    if options.kind == "axes":
        return axes_chart.draw(table, x, y.split(","), group, options.facet, size, options.title)
    if options.kind == "compare":
        return compare_chart.compare(table, x, y, group, size, options.title)
    draw = {"breakdown": breakdown_chart.breakdown, "scaling": scaling_chart.scaling,
            "pareto": pareto_chart.pareto}[options.kind]
    return draw(table, group, size, options.title)


def draw_found(found, options):
    """What moesim recommend found has a chart of its own, not the lines of a sweep."""
    import front_chart
    from chart_data import BadInput
    if options.kind == "loss" or options.measured or options.where or options.fits_only:
        raise BadInput(f"{options.input}: this is what moesim recommend found, a few candidates: it is drawn with neither "
                       "--chart loss nor --measured, --where, --fits-only: leave them out, or sweep the options in "
                       "question with moesim train")
    return front_chart.draw(found, 0, options.title)


def draw_machines(rows, options):
    """Machines beside each other have a chart of their own, too."""
    import machines_chart
    from chart_data import BadInput
    if options.kind == "loss" or options.measured or options.where or options.fits_only:
        raise BadInput(f"{options.input}: this is what moesim recommend found on several machines: it is drawn with neither "
                       "--chart loss nor --measured, --where, --fits-only: leave them out, or draw the parts of the steps "
                       "with --chart breakdown")
    return machines_chart.draw(rows, options.title)


def is_found_scaling(path):
    """Whether moesim recommend wrote it of several numbers of GPUs."""
    from chart_data import read_csv
    return "scaling_pays" in read_csv(path)[0]


def require_speeds(path):
    from chart_data import BadInput
    from sweep_series import is_of_routing
    if is_of_routing(path):
        raise BadInput(f"{path}: --chart speed: this is what moesim route found, losses without speeds: draw it with "
                       "--chart loss, or run moesim sweep with these options")


def figure_of(options):
    """What `options.kind` draws of the inputs; for a report the text of the page."""
    import front_chart
    import machines_chart
    if options.kind == "sweep" and not options.measured and is_found_scaling(options.input):
        options.kind = "scaling"  # the only one over GPUs that it has the columns for
    if options.kind == "speed":
        require_speeds(options.input)
        options.kind = "sweep"
    found = front_chart.read(options.input) if options.kind in ("sweep", "loss") else []
    if found:
        return draw_found(found, options)
    machines = machines_chart.read(options.input) if options.kind in ("sweep", "loss") else []
    if machines:
        return draw_machines(machines, options)
    if options.kind in OF_ROWS:
        return draw_rows(options)
    if options.kind == "sweep" and not options.measured:
        from sweep_series import is_of_routing
        if is_of_routing(options.input):  # without speeds
            options.kind = "loss"
    if options.kind in ("sweep", "loss"):
        import many_lines
        many = many_lines.draw(options.kind, options.input, options.title, options.fits_only, options.where, options.measured)
        if many:
            return many
    if options.kind == "sweep":
        from sweep_chart import draw
        return draw(options.input, options.measured, options.title, options.fits_only, options.where)
    if options.kind == "loss":
        from loss_chart import draw
        return draw(options.input, options.title, options.fits_only, options.where)
    if options.kind == "accuracy":
        from accuracy_chart import draw
        return draw(options.input, options.study, options.title, options.fits_only)
    if options.kind == "routing":
        from routing_chart import draw
        return draw(options.input, options.title)
    if options.kind == "bands":
        from bands_chart import draw
        return draw(options.input, options.title)
    if options.kind in ("checks", "explained"):
        import measured_chart
        draw = {"checks": measured_chart.draw_checks, "explained": measured_chart.draw_explained}[options.kind]
        return draw(options.input, options.title)
    from curves_chart import draw
    return draw(options.input)


def tell(caught, out):
    """Warnings of Matplotlib; those of letters that its font lacks as one, of the formats that draw them."""
    letters = []
    for warning in caught:
        absent = re.match(r"Glyph (\d+) .*missing from", str(warning.message))
        if absent:
            letters.append(chr(int(absent[1])))
        else:
            warnings.showwarning(warning.message, warning.category, warning.filename, warning.lineno)
    if letters and not out.endswith(".svg"):
        print(f"warning: {out}: boxes stand for letters that the font of charts lacks: {' '.join(dict.fromkeys(letters))}; "
              "an .svg holds them as text", file=sys.stderr)


def main(words):
    options = arguments(words)
    options.input = options.inputs[0]
    import matplotlib
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "moesim"  # ids in SVG files do not change from run to run
    import look
    # Text stays text, whatever the context in which a chart was drawn.
    matplotlib.rcParams.update(look.RC_OF_TEXT)
    from chart_data import BadInput, MissingPackage
    from option_columns import NoOptions, VARIABLE
    if options.options:
        os.environ[VARIABLE] = options.options
    try:
        with warnings.catch_warnings(record=True) as caught:
            save(figure_of(options), options.out)
        tell(caught, options.out)
    except BadInput as error:
        print(f"moesim: error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except MissingPackage as error:
        print(f"moesim: error: {error}", file=sys.stderr)
        return EXIT_MISSING
    except NoOptions as error:
        print(f"moesim: error: {error}", file=sys.stderr)
        return EXIT_FAILURE
    except OSError as error:
        print(f"moesim: error: {options.out}: cannot write: {error.strerror}", file=sys.stderr)
        return EXIT_FAILURE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
