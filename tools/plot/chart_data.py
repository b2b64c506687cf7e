"""What the charts read: rows of a sweep, measured points."""
import codecs
import csv
import io
import math
import os
from dataclasses import dataclass

import speed_bands


class BadInput(Exception):
    """A file that cannot be charted; the message says which, where and why."""


class MissingPackage(Exception):
    """A Python package that a chart needs; the message says how to get it."""


@dataclass(frozen=True)
class Measured:
    router: str
    capacity_factor: float | None
    speed: float
    source: str
    excluded: bool


SPEED = "tokens_per_s_per_gpu"


def read_csv(path):
    """(the names of the columns, [(line, cells by name)]). BadInput for bytes that are no UTF-8 and rows cut short."""
    with open(path, "rb") as file:
        data = file.read().removeprefix(codecs.BOM_UTF8)  # spreadsheets write one
    try:
        reader = csv.reader(io.StringIO(data.decode("utf-8"), newline=""))
        header, rows = next(reader, []), []
        for cells in filter(None, reader):
            if len(cells) != len(header):
                raise BadInput(f"{path}: line {reader.line_num}: {len(cells)} fields, but the header has {len(header)}")
            rows.append((reader.line_num, dict(zip(header, cells))))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{path}: line {line}: byte 0x{data[error.start]:02x} is no UTF-8: save the file in UTF-8") from None
    except csv.Error as error:
        raise BadInput(f"{path}: line {reader.line_num}: {error}") from None
    return _as_training(header, rows)


# What moesim simulate and sweep write beside the columns of moesim train, for steps that they price as it does: the band of
# such a step at another level, and the mode that all have.
OF_SCENARIOS = ("step_ms_p05", "step_ms_p50", "step_ms_p95", "mode")


def _as_training(header, rows):
    """The same; of steps with a layout, that moesim sweep wrote, as moesim train writes them."""
    if not {"step_ms_likely", *OF_SCENARIOS} <= set(header):
        return header, rows
    left = [name for name in header if name not in OF_SCENARIOS]
    return left, [(line, {name: cells[name] for name in left}) for line, cells in rows]


def read_rows(path, needed):
    header, rows = read_csv(path)
    missing = [name for name in needed if name not in header]
    if missing and "scaling_pays" in header:
        raise BadInput(f"{path}: this is what moesim recommend found on several numbers of GPUs, which has no column "
                       f"{missing[0]}: draw it with --chart scaling")
    if "router" in missing and "pipeline_parallel" in header:
        raise BadInput(f"{path}: its steps have no router and no capacity factor: draw them over another "
                       "option with --x COLUMN, such as --x micro_batch, or with --chart breakdown, "
                       "scaling or compare")
    if "step_ms" in missing and "residual_loss" in header:
        raise BadInput(f"{path}: this is what moesim route found, losses without times: draw it with --x and --y, such as "
                       "--x capacity_factor --y residual_loss, or --y failed,residual_loss")
    if missing:
        raise BadInput(f"{path}: line 1: column {missing[0]} is missing: a chart takes the CSV of "
                       "moesim sweep or train --out FILE.csv with several values of an option, with "
                       f"the columns {', '.join(needed)}")
    return rows


# No figure of a step lies beyond these, and axes with such labels cannot be laid out.
LARGEST, SMALLEST = 1e30, 1e-30


def number(path, line, row, column):
    """The cell as a number, None where it is blank."""
    text = (row[column] or "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadInput(f"{path}: line {line}, column {column}: '{text}' is not a number")
    if abs(value) > LARGEST or 0 < abs(value) < SMALLEST:
        raise BadInput(f"{path}: line {line}, column {column}: '{text}' is beyond what charts show: {SMALLEST:g} to {LARGEST:g}")
    return value


def check_speeds(path, line, row):
    """BadInput where a time or speed, by which charts divide, is not above 0."""
    for column in row:
        if column == SPEED or column.startswith(("step_ms", speed_bands.RATIO)):
            value = number(path, line, row, column)
            if value is not None and value <= 0:
                raise BadInput(f"{path}: line {line}, column {column}: '{row[column]}' is no time or speed, which are "
                               "above 0")


def differing_k(rows):
    """{router: "k = 1"} of routers whose k is not that of most, where their name does not say it: their loss is a share
    of fewer, or more, experts' weight."""
    found = {}
    for row in rows:
        if row.get("top_k") and row["router"] != "soft":  # which mixes all tokens
            found.setdefault(row["router"], set()).add(row["top_k"])
    found = {router: ks.pop() for router, ks in found.items() if len(ks) == 1}
    counts = {}
    for k in found.values():
        counts[k] = counts.get(k, 0) + 1
    usual = [k for k, count in counts.items() if count == max(counts.values())]
    return {router: f"k = {k}" for router, k in found.items()
            if len(counts) > 1 and usual != [k] and router.split("+")[0] != f"top{k}"}


def with_k(router, notes):
    return f"{router} ({notes[router]})" if router in notes else router


# What a balanced load has, by convention.
CONVENTIONS = {"paper": "capacity factor (k: balanced load)", "library": "capacity factor (1: balanced load)"}


def factor_axis(shared):
    """The name of the axis of capacity factors, with what they are multiples of if all rows agree."""
    return CONVENTIONS.get(shared.get("capacity_convention", ""), "capacity factor")


def band_columns(row):
    """The columns of the band by which steps are compared: software and machine cancel."""
    return (("step_ms_same_p05", "step_ms_same_p95") if row.get("step_ms_same_p05")
            else ("step_ms_p05", "step_ms_p95"))


def training_words(shared):
    """"training step, PP 8, mxfp8" of rows of moesim train, by the options that all share; else nothing."""
    if "cuda_graphs" not in shared and "recompute" not in shared:  # options that only it has
        return []
    sizes = [f"{name} {shared[column]}" for name, column in
             (("TP", "tensor_parallel"), ("CP", "context_parallel"), ("PP", "pipeline_parallel"))
             if shared.get(column, "1") != "1"]
    return ["training step", *sizes, *([shared["precision"]] if "precision" in shared else [])]


def fits(row):
    """Whether the scenario fits in the memory of a GPU; a file without that column does not say."""
    return row.get("fits_memory") != "false"


def warnings(row):
    """Those of a row of moesim train: "TIGHT", "host limits"; not that it does not fit, which charts draw."""
    return [word for word in (row.get("warnings") or "").split(", ") if word not in ("", "does not fit")]


WARNINGS = {"TIGHT": "{} of {} TIGHT in GPU memory", "host limits": "host limits {} of {} steps"}


def warning_notes(found, words=tuple(WARNINGS)):
    """What a subtitle says of warnings(), a list for each row, as far as `words` names them."""
    counts = {word: sum(word in those for those in found) for word in words}
    return [WARNINGS[word].format(count, len(found)) for word, count in counts.items() if count]


def loss_column(row):
    """Where its token loss is: rows of moesim train and recommend count none of the model's own router without a
    capacity."""
    return "counted_loss" if row.get("counted_loss") else "residual_loss"


def memory_notes(path, series, fits_only):
    """What a subtitle says of scenarios that do not fit in the memory of a GPU, or barely."""
    points = [point for entry in series for point in entry.points]
    tight = warning_notes([point.warnings for point in points], ("TIGHT",))
    if fits_only:
        left_out = sum(row["status"] == "ok" and not fits(row) for _, row in read_rows(path, ()))
        return ([f"{left_out} that do not fit in memory left out"] if left_out else []) + tight
    unfit = sum(not point.fits for point in points)
    return ([f"{unfit} of {len(points)} do not fit in GPU memory"] if unfit else []) + tight


def good_rows(path):
    """The rows that have a result, as dictionaries."""
    return [row for _, row in read_rows(path, ()) if row["status"] == "ok"]


JOURNAL = ".partial"  # behind the name of a sweep's file: what an interrupted one has done


def _partial_note(path):
    """Says that a file lacks rows of its sweep, which a chart cannot show; "" where it is whole."""
    name = os.path.basename(path)
    if os.path.exists(path + JOURNAL):
        return f"{name} is partial: its sweep was interrupted, --resume continues it"
    rows = {row["grid_row"] for _, row in read_rows(path, ()) if row.get("grid_row")}  # "17/96:00f3": of a shard
    total = next(iter(rows), "").partition("/")[2].partition(":")[0]
    return f"{name} is partial: {len(rows)} of {total} scenarios" if total.isdigit() and len(rows) < int(total) else ""


def partial_notes(paths):
    """What a subtitle says of files that lack rows of their sweep."""
    return list(filter(None, map(_partial_note, dict.fromkeys(paths))))


def read_measured(path, mode):
    """The measured points of this mode (of every mode if `mode` is None)."""
    needed = ("router", "capacity_factor", SPEED)
    points = []
    rows = read_rows(path, needed)
    if rows and "provenance" in rows[0][1]:
        raise BadInput(f"{path}: this is a sweep, and its speeds are predicted, not measured: give "
                       f"a CSV with the columns {', '.join(needed)} and, if you like, mode, source, "
                       "excluded")
    for line, row in rows:
        check_speeds(path, line, row)
        speed = number(path, line, row, SPEED)
        if speed is None or (mode and row.get("mode") and row["mode"] != mode):
            continue
        excluded = (row.get("excluded") or "").strip().lower() in ("true", "yes", "1")
        points.append(Measured(row["router"], number(path, line, row, "capacity_factor"), speed,
                               row.get("source") or "", excluded))
    return points


MOST_NAMES = 4  # of routers that a note lists


def measured_notes(path, mode, series):
    """What a subtitle says of measured points that have no place on the chart of `series`."""
    points, routers = read_measured(path, mode), {entry.router for entry in series}
    absent = list(dict.fromkeys(point.router for point in points if point.router not in routers))
    more = f" and {len(absent) - MOST_NAMES} more" if len(absent) > MOST_NAMES else ""
    nowhere = sum(point.router in routers and point.capacity_factor is None for point in points)
    others = len(read_measured(path, None)) - len(points)
    left_out = [f"{', '.join(absent[:MOST_NAMES])}{more} (not in the sweep)"] if absent else []
    left_out += [f"{nowhere} without a capacity factor"] if nowhere else []
    left_out += [f"{others} of another mode"] if others else []
    return [f"measured points left out: {'; '.join(left_out)}"] if left_out else []
