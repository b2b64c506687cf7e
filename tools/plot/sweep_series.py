"""The lines of a chart of a sweep: its rows by router and by the options in which they differ."""
import math
from dataclasses import dataclass, field

import option_columns
import rows
from chart_data import SPEED, BadInput, fits, loss_column, read_csv, read_rows, warnings

MOST_LINES = 30
NEEDED_OF_LOSSES = ("status", "router", "capacity_factor", "failed", "residual_loss")
NEEDED = ("status", "router", "capacity_factor", "step_ms", SPEED, "failed", "residual_loss")
DRAWN = ("router", "capacity_factor")  # options that every chart of lines draws


@dataclass(frozen=True)
class Point:
    """One scenario on the chart: capacity factor, speed with error bar, losses in shares."""
    capacity_factor: float | None  # None: the router has none (dense)
    speed: float
    speed_low: float
    speed_high: float
    token_loss: float | None
    failed: float | None
    padded: float | None = None
    fits: bool = True  # in the memory of a GPU
    warnings: tuple = ()  # chart_data.warnings()
    loss_low: float | None = None  # the band of token_loss; both its value where it has none
    loss_high: float | None = None


@dataclass
class Series:
    """The scenarios that differ in capacity factor alone. `options`: those that its label names beside the router,
    chosen ones before those that follow from others."""
    router: str
    label: str
    points: list = field(default_factory=list)
    options: dict = field(default_factory=dict)


def is_of_routing(path):
    """Whether these are losses without times, as moesim route finds them."""
    header, _ = read_csv(path)
    return "residual_loss" in header and "step_ms" not in header


def _point(row):
    low = speed = high = math.nan
    if "step_ms" in row:
        if not row.get(rows.OVER_BASELINE):  # else the band is that of the ratio alone
            rows.present(row, "step_ms")
        low, _, high = rows.band_of(row, SPEED)
        speed = rows.present(row, SPEED)
    loss_low, loss, loss_high = rows.band_of(row, loss_column(row))
    return Point(rows.figure_of(row, "capacity_factor"), speed, low, high, loss, rows.figure_of(row, "failed"),
                 rows.figure_of(row, "padded"), fits(row), tuple(warnings(row)), loss_low, loss_high)


def _refuse_twice(table, one, other):
    """Two different rows of one scenario: says in which columns they differ."""
    lines = f"{one['_path']}: lines {one['_line']} and {other['_line']}"
    differ = [name for name in table.known() if one[name] != other[name] and name != rows.TOTAL_SPEED]
    unknown = [name for name in differ if name not in table.columns.options and name not in table.columns.results]
    if unknown:
        raise BadInput(f"{lines} differ in {', '.join(unknown)}, which this version of moesim does not know: plot with the "
                       "version that wrote the file")
    raise BadInput(f"{lines} are the same scenario with different results ({', '.join(differ[:4])}): do not mix results of "
                   "several versions in one file")


def _untold(table, differing):
    """An option that tells two rows of one line and capacity factor apart; None where there are none."""
    seen = {}
    for row in table.rows:
        place = (row["router"], *(row[name] for name in differing), rows.figure_of(row, "capacity_factor"))
        other = seen.setdefault(place, row)
        if all(row[name] == other[name] for name in table.known()):  # the very same row again
            continue
        # One that is blank in one of the two tells them apart as well.
        option = next((name for name in table.options() if name not in DRAWN and row[name] != other[name]), None)
        if option is None:
            _refuse_twice(table, other, row)
        return option
    return None


def _lines_of(table):
    """(the columns that tell lines apart, {(router, *their values): rows}): no line has two scenarios at one capacity
    factor."""
    differing = table.differing(DRAWN)
    while option := _untold(table, differing):
        differing = [name for name in table.options() if name in differing or name == option]
    names = rows.needed(table, ("router",), differing)
    lines = {}
    for row in table.rows:
        by_factor = lines.setdefault((row["router"], *(row[name] for name in names)), {})
        by_factor.setdefault(rows.figure_of(row, "capacity_factor"), row)
    return names, {values: list(by_factor.values()) for values, by_factor in lines.items()}


def read_sweep(path, fits_only=False, where=""):
    """(series in file order, options that all rows share, number of refused rows). `fits_only`
    leaves out scenarios that do not fit in the memory of a GPU, `where` those that do not meet it."""
    read_rows(path, NEEDED_OF_LOSSES if is_of_routing(path) else NEEDED)
    table = rows.read([path], where, fits_only)
    names, lines = _lines_of(table)
    if len(lines) > MOST_LINES:
        router, *values = next(iter(lines))
        such = f"{names[0]}={values[0]}" if names else f"router={router}"
        raise BadInput(f"{path}: {len(lines)} lines, and more than {MOST_LINES} cannot be distinguished: choose "
                       f"some with --where, such as --where '{such}'")
    series = []
    for (router, *values), members in lines.items():
        options = {name: value for name, value in zip(names, values) if value}
        label = ", ".join([members[0]["_router"], *(f"{option_columns.words(name)} {value}" for name, value in options.items())])
        chosen_first = dict(sorted(options.items(), key=lambda option: option[0] in table.columns.derived))
        points = sorted(map(_point, members), key=lambda point: point.capacity_factor or 0)
        series.append(Series(router, label, points, chosen_first))
    return series, {name: value for name, value in table.shared().items() if name not in DRAWN}, table.refused
