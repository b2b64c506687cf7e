"""What the charts read: rows of a sweep, measured points."""
import csv
from dataclasses import dataclass, field


class BadInput(Exception):
    """A file that cannot be charted; the message says which, where and why."""


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


@dataclass
class Series:
    """The scenarios that differ in capacity factor alone."""
    router: str
    label: str
    points: list = field(default_factory=list)


@dataclass(frozen=True)
class Measured:
    router: str
    capacity_factor: float | None
    speed: float
    source: str
    excluded: bool


# Options that tell one line of the chart from another. `capacity` and others follow from them.
OPTIONS = ("model", "profile", "cluster", "priority", "weights", "fill_order", "ir_compute",
           "dispatch", "mode", "routing", "gpus", "expert_parallel", "experts",
           "capacity_convention", "capacity_scope", "sequence_length", "micro_batch",
           "tokens_per_gpu", "checkpointing", "zero", "network", "replicas", "seed",
           "min_capacity", "ir_duplicates", "global_batch", "overlap", "slow_gpu", "slow_link",
           "jitter", "overlap_slowdown", "router_dialect", "padding", "dedup",
           "expert_placement")
# Some routers fix these themselves: rows that differ in them by their router alone need no label.
FIXED_BY_ROUTERS = ("priority", "weights", "fill_order", "padding")
MOST_LINES = 30
NEEDED = ("status", "router", "capacity_factor", "step_ms", "step_ms_p05", "step_ms_p95",
          "tokens_per_s_per_gpu", "failed", "residual_loss")


def read_rows(path, needed):
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [name for name in needed if name not in (reader.fieldnames or [])]
        if missing:
            raise BadInput(f"{path}: line 1: column {missing[0]} is missing: a chart needs "
                           f"{', '.join(needed)}")
        return [(reader.line_num, row) for row in reader]


def number(path, line, row, column):
    """The cell as a number, None where it is blank."""
    text = (row[column] or "").strip()
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"{path}: line {line}, column {column}: '{text}' is not a number") from None


def present(path, line, row, column):
    value = number(path, line, row, column)
    if value is None:
        raise BadInput(f"{path}: line {line}, column {column}: a number is missing")
    return value


def varying(rows):
    """The options in which rows differ, blanks (does not apply) aside."""
    def differs(name):
        values = {}
        for _, row in rows:
            if row[name]:
                group = row["router"] if name in FIXED_BY_ROUTERS else None
                values.setdefault(group, set()).add(row[name])
        return any(len(group) > 1 for group in values.values())

    return [name for name in OPTIONS if rows and name in rows[0][1] and differs(name)]


def common(rows):
    """The options that are the same in all rows, blanks aside."""
    result = {}
    for name in OPTIONS:
        values = {row.get(name) for _, row in rows if row.get(name)}
        if len(values) == 1:
            result[name] = values.pop()
    return result


def read_point(path, line, row):
    speed = present(path, line, row, "tokens_per_s_per_gpu")
    step = present(path, line, row, "step_ms")
    return Point(number(path, line, row, "capacity_factor"), speed,
                 speed * step / present(path, line, row, "step_ms_p95"),
                 speed * step / present(path, line, row, "step_ms_p05"),
                 number(path, line, row, "residual_loss"), number(path, line, row, "failed"),
                 number(path, line, row, "padded") if "padded" in row else None)


def read_sweep(path):
    """(series in file order, options that all rows share, number of refused rows)."""
    rows = read_rows(path, NEEDED)
    good = [(line, row) for line, row in rows if row["status"] == "ok"]
    if not good:
        raise BadInput(f"{path}: no row with status ok, so there is nothing to draw")
    differing = varying(good)
    series = {}
    for line, row in good:
        distinction = tuple(row[name] for name in differing)
        label = ", ".join([row["router"], *(f"{name.replace('_', ' ')} {value}" for name, value
                                            in zip(differing, distinction) if value)])
        entry = series.setdefault((row["router"], distinction), Series(row["router"], label))
        entry.points.append(read_point(path, line, row))
    if len(series) > MOST_LINES:
        raise BadInput(f"{path}: {len(series)} lines: nobody can "
                       f"tell more than {MOST_LINES} apart: chart fewer rows at a time")
    for entry in series.values():
        entry.points.sort(key=lambda point: point.capacity_factor or 0)
    return list(series.values()), common(good), len(rows) - len(good)


def read_measured(path, mode):
    """The measured points of this mode (of every mode if `mode` is None)."""
    needed = ("router", "capacity_factor", "tokens_per_s_per_gpu")
    points = []
    rows = read_rows(path, needed)
    if rows and "provenance" in rows[0][1]:
        raise BadInput(f"{path}: this is a sweep, and its speeds are predicted, not measured: give "
                       f"a CSV with the columns {', '.join(needed)} and, if you like, mode, source, "
                       "excluded")
    for line, row in rows:
        speed = number(path, line, row, "tokens_per_s_per_gpu")
        if speed is None or (mode and row.get("mode") and row["mode"] != mode):
            continue
        excluded = (row.get("excluded") or "").strip().lower() in ("true", "yes", "1")
        points.append(Measured(row["router"], number(path, line, row, "capacity_factor"), speed,
                               row.get("source") or "", excluded))
    return points
