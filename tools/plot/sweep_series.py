"""The lines of a chart of a sweep: its rows by router and by the options in which they differ."""
import option_columns
import rows
import speed_bands
from chart_data import (BadInput, MOST_LINES, NEEDED, Series, check_speeds, common, differing_k, fits, lines_of, read_point,
                        read_rows, with_k)


def read_sweep(path, fits_only=False, where=""):
    """(series in file order, options that all rows share, number of refused rows). `fits_only`
    leaves out scenarios that do not fit in the memory of a GPU, `where` those that do not meet it."""
    found = read_rows(path, NEEDED)
    good = [(line, row) for line, row in found if row["status"] == "ok"]
    if not good:
        raise BadInput(f"{path}: no row with status ok, so there is nothing to draw")
    for line, row in good:
        check_speeds(path, line, row)
    refused = len(found) - len(good)
    if where:
        table = rows.Table([{**row, "_line": line} for line, row in good], option_columns.load(), [path], refused, 0, where)
        table.choose(where)
        left = {row["_line"] for row in table.rows}
        good = [(line, row) for line, row in good if line in left]
    if fits_only:
        good = [(line, row) for line, row in good if fits(row)]
        if not good:
            raise BadInput(f"{path}: no scenario fits in the memory of a GPU: leave --fits-only out to "
                           "see how many there are")
    columns = option_columns.load()
    differing, lines = lines_of(path, good, columns)
    if len(lines) > MOST_LINES:
        one = next(iter(lines))
        such = f"{differing[0]}={one[1][0]}" if differing else f"router={one[0]}"
        raise BadInput(f"{path}: {len(lines)} lines, and more than {MOST_LINES} cannot be distinguished: choose "
                       f"some with --where, such as --where '{such}'")
    series, notes = [], differing_k([row for _, row in good])
    over_baseline = speed_bands.compares(row for _, row in good)
    for (router, values), members in lines.items():
        label = ", ".join([with_k(router, notes), *(f"{option_columns.words(name)} {value}"
                                     for name, value in zip(differing, values) if value)])
        points = [read_point(path, line, row, over_baseline) for line, row in members]
        options = sorted(filter(lambda option: option[1], zip(differing, values)),
                         key=lambda option: option[0] in columns.derived)
        series.append(Series(router, label, sorted(points, key=lambda point: point.capacity_factor or 0), dict(options)))
    return series, common(good, columns), refused
