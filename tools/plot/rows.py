"""Rows of one or several sweeps, those that --where keeps, as lines over any column."""
import math
import os
import re
from dataclasses import dataclass, field

import option_columns
import speed_bands
import step_parts
from chart_data import BadInput, band_columns, check_speeds, differing_k, factor_axis, fits, number, read_rows, with_k

FILE = "file"  # a column of its own where several files are read
CAPACITY, NO_CAPACITY = "capacity_factor", "no capacity"
TOTAL_SPEED = "tokens_per_s"  # of all GPUs: written into every row
DISPATCHER, COPIES = "dispatcher", "dedup"  # what carries rows to experts, and to how many places it copies a token
OVER_BASELINE = "_over_baseline"  # set of a row whose band is that of its ratio to a baseline
COMPARISONS = {
    "=": lambda a, b: a == b, "!=": lambda a, b: a != b, "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b, "<": lambda a, b: a < b, ">": lambda a, b: a > b}
# Figures that have an error bar: the power of step time by which they go.
BANDED = {"step_ms": 1, "gpu_hours_per_1e12_tokens": 1, "tokens_per_s_per_gpu": -1,
          "tokens_per_day": -1, "tflops_per_gpu": -1, "mfu": -1, "mfu_kept": -1, TOTAL_SPEED: -1}
# The figure whose band is a column pair of its own, NAME_p05 and NAME_p95, and what these are.
TOKEN_LOSS, LOSS_BAND = "residual_loss", "p05 to p95 of one step's token loss"
COUNTED_LOSS = "counted_loss"  # the same, but of the model's own router what its capacity drops
NAMES = {
    "step_ms": "step time, ms", "tokens_per_s_per_gpu": "speed, tokens/s per GPU",
    TOTAL_SPEED: "speed of all GPUs, tokens/s", "residual_loss": "token loss, %", "counted_loss": "token loss, %",
    "mfu": "MFU, %", "mfu_kept": "MFU over kept routes, %", "tflops_per_gpu": "model TFLOP/s per GPU", "memory_gib": "memory, GiB per GPU",
    "failed": "routes failed before rectification, %", "gpus": "GPUs",
    "run_days": "length of the run, days", "run_cost": "cost of the run",
    "gpu_hours_per_1e12_tokens": "GPU hours per 1e12 tokens", "padded": "slots that stay empty, %"}

# Where routes of the table are dropped.
MFU_WITH_DROPPED = "MFU, % (dropped routes counted)"

# Where a table has counted_loss, which leaves out what a model's own router, or sampling, passes over.
RESIDUAL_BESIDE_COUNTED = "weight of a token's k best experts without their output, %"

# Ends of columns that have the name of a figure before them.
ENDS = {"_low": "low end if measured", "_likely": "likely if measured", "_high": "high end if measured",
        "_same_p05": "p05, software and machine the same", "_same_p95": "p95, software and machine the same",
        "_p05": "p05", "_p50": "p50", "_p95": "p95"}

# What a reader calls a column of `moesim sweep` or `train`.
USUAL_NAMES = {
    "speed": ("tokens_per_s_per_gpu",), "throughput": ("tokens_per_s_per_gpu",), "tokens": ("tokens_per_s_per_gpu",),
    "time": ("step_ms",), "step": ("step_ms",), "loss": ("counted_loss", "residual_loss", "failed"), "memory": ("memory_gib",),
    "cf": ("capacity_factor",), "ep": ("expert_parallel",), "tp": ("tensor_parallel",), "pp": ("pipeline_parallel",),
}


@dataclass
class Table:
    """Rows with status ok as dictionaries of text, and what was left out."""
    rows: list
    columns: option_columns.OptionColumns
    files: list
    refused: int = 0
    unfit_left_out: int = 0
    where: str = ""

    def known(self):
        return [name for name in self.rows[0] if not name.startswith("_")]

    def is_search(self):
        """Whether moesim recommend found the rows: their layouts follow from the GPUs."""
        return "scaling_pays" in self.known()

    def require(self, name, flag):
        if name in self.known():
            return
        near = [known for known in self.known() if name and (name in known or known in name)]
        meant = [known for known in USUAL_NAMES.get(name, ()) if known in self.known()]
        near = meant + [known for known in near if known not in meant]
        raise BadInput(f"--{flag}: there is no column '{name}' in {self.files[0]}"
                       + (f"; near to it are {', '.join(near[:4])}" if near else
                          "; its first line names the columns"))

    def choose(self, where):
        """Leaves the rows that meet `where`. BadInput where none does."""
        for column, comparison, values in conditions(where):
            self.require(column, "where")
            for value in values:
                if comparison not in ("=", "!=") and not is_number(value):
                    raise BadInput(f"--where: {column}{comparison}{value}: '{value}' is not a number")
            kept = [row for row in self.rows if _meets(row, column, comparison, values)]
            if not kept:
                there = sorted({row[column] for row in self.rows})
                raise BadInput(f"--where {column}{comparison}{'|'.join(values)} leaves no row; there are "
                               f"{', '.join(there[:8])}")
            self.rows = kept

    def parts(self):
        """The columns of the parts that sum to a step: those of moesim train differ."""
        own = [name for name in self.columns.training_parts if name in self.rows[0]]
        return own if set(own) - set(self.columns.parts) else [
            name for name in self.columns.parts if name in self.rows[0]]

    def options(self):
        """The option columns, and the file where there are several."""
        several = [FILE] if len(self.files) > 1 else []
        return several + [name for name in self.columns.options if name in self.rows[0]]

    def differing(self, without=()):
        """The options in which rows differ, blanks (does not apply) aside, but for a capacity that a router has in other
        rows; a default that routers set counts only where rows of one router differ in it. Copies that follow from the
        dispatcher are not chosen."""
        found = [name for name in self.options() if _differs(self.rows, name, self.columns.by_router)]
        if {DISPATCHER, COPIES} <= set(found) and _follows(self.rows, COPIES, DISPATCHER):
            found.remove(COPIES)
        return [name for name in found if name not in without]

    def band_words(self, figure="step_ms"):
        """What a legend says that the bands of band_of() of a figure are."""
        if figure in (TOKEN_LOSS, COUNTED_LOSS):
            return LOSS_BAND
        return speed_bands.legend_text(self.rows if len(self.files) == 1 else [], self.columns)

    def level(self, figures):
        """A sentence on the level of the speeds, or the steps, among the figures."""
        if not any(name in BANDED for name in figures):
            return ""
        return speed_bands.level_text(self.rows, of_steps=all(BANDED.get(name, 1) > 0 for name in figures))

    def shared(self):
        result = {}
        for name in self.options():
            values = {row[name] for row in self.rows if row[name]}
            if len(values) == 1:
                result[name] = values.pop()
        return result


def default_axis(table):
    """The capacity factor, or the first option in which rows of one file differ; else of all."""
    if any(row.get("capacity_factor") for row in table.rows):
        return "capacity_factor"
    options = [name for name in table.options() if name != FILE]
    for path in table.files:
        own = [row for row in table.rows if len(table.files) == 1 or row["_path"] == path]
        for name in options:
            if _differs(own, name, table.columns.by_router):
                return name
    return next((name for name in options if _differs(table.rows, name, table.columns.by_router)),
                "capacity_factor")


def _differs(rows, name, by_router):
    values = {}
    for row in rows:
        if row[name]:
            values.setdefault(row.get("router") if name in by_router else None, set()).add(row[name])
    return any(len(group) > 1 for group in values.values()) or name == CAPACITY and bool(_with_and_without_capacity(rows))


def _follows(rows, name, other):
    """Whether rows with one value of `other` have one value of `name`, blanks aside."""
    return len({(row[other], row[name]) for row in rows if row[name]}) == len({row[other] for row in rows if row[name]})


def _with_and_without_capacity(rows):
    """The routers that have a capacity factor in some rows and none in others: there a blank is a choice."""
    found = [{row.get("router", "") for row in rows if bool(row.get(CAPACITY)) == has} for has in (True, False)]
    return found[0] & found[1]


@dataclass
class Line:
    """Points of one combination of the grouped options, by x."""
    label: str
    key: tuple
    rows: list = field(default_factory=list)


def figure_of(row, name):
    """The cell as a number, None where it is blank."""
    text = (row.get(name) or "").strip()
    if text in ("", "true", "false"):
        return {"": None, "true": 1.0, "false": 0.0}[text]
    return number(row["_path"], row["_line"], row, name)


def present(row, name):
    """The cell as a number. BadInput where it is blank."""
    value = figure_of(row, name)
    if value is None:
        raise BadInput(f"{row['_path']}: line {row['_line']}, column {name}: a number is missing")
    return value


def is_number(text):
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def own_band(name):
    """The columns of a figure's own band. Rows that have one count all of their residual loss."""
    return [f"{TOKEN_LOSS if name == COUNTED_LOSS else name}_{share}" for share in ("p05", "p95")]


def band_of(row, name):
    """(low, value, high) of a figure, as speed_bands says; without an error bar all three are the same."""
    value = figure_of(row, name)
    if name in BANDED and row.get(OVER_BASELINE):
        ratio, *ends = (figure_of(row, column) for column in speed_bands.ratio_columns(row))
        if None in (value, ratio, *ends):
            return value, value, value
        low, high = sorted(value * (end / ratio) ** -BANDED[name] for end in ends)
        return low, value, high
    if name == COUNTED_LOSS and TOKEN_LOSS in row and figure_of(row, TOKEN_LOSS) != value:
        return value, value, value  # the band is that of both together
    if name != "step_ms" and own_band(name)[0] in row:
        ends = [figure_of(row, column) for column in own_band(name)]
        return (value, value, value) if None in (value, *ends) else (ends[0], value, ends[1])
    step, low, high = (figure_of(row, column) if column in row else None
                       for column in ("step_ms", *band_columns(row)))
    if value is None or name not in BANDED or not (step and low and high):
        return value, value, value
    power = BANDED[name]
    ends = sorted((value * (low / step) ** power, value * (high / step) ** power))
    return ends[0], value, ends[1]


def measured_band_of(row, name):
    """(low, likely, high) of a figure as it would be measured: with the error of software and machine, which band_of()
    leaves out. Without such a band all three are its value."""
    value, step = figure_of(row, name), figure_of(row, "step_ms")
    names = speed_bands.level_columns([row]) or ("step_ms", "step_ms_p05", "step_ms_p95")  # older files have no likely one
    times = [figure_of(row, column) for column in names]
    if name not in BANDED or None in (value, step, *times):
        return value, value, value
    likely, *ends = (value * (time / step) ** BANDED[name] for time in times)
    return min(ends), likely, max(ends)


def conditions(text):
    """[(column, comparison, values)] of "mode=train,gpus>=16,router=top1|top2"."""
    found = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"([a-z0-9_]+)(!=|<=|>=|=|<|>)(.+)", part)
        if not match:
            raise BadInput(f"--where: '{part}' is not of the form COLUMN=VALUE, such as "
                           "mode=train,router=top1|top2,gpus>=16")
        found.append((match[1], match[2], match[3].split("|")))
    return found


def _meets(row, column, comparison, values):
    text = row[column]
    if comparison == "=":
        return any(_same(text, value) for value in values)
    if comparison == "!=":
        return not any(_same(text, value) for value in values)
    if not is_number(text):
        return False
    return all(COMPARISONS[comparison](float(text), float(value)) for value in values)


def _same(text, value):
    return text == value or (is_number(text) and is_number(value) and float(text) == float(value))


def read(paths, where="", fits_only=False):
    """The rows of the files that meet `where`. BadInput where none is left."""
    rows, refused = [], 0
    names = file_names(paths)
    columns = option_columns.load()
    for path in paths:
        for line, row in read_rows(path, ("status",)):
            if row["status"] != "ok":
                refused += 1
                continue
            check_speeds(path, line, row)
            rows.append({**row, "_path": path, "_line": line,
                         **({FILE: names[path]} if len(paths) > 1 else {})})
    if not rows:
        raise BadInput(f"{paths[0]}: no row with status ok, so there is nothing to draw")
    for row in rows:
        for name in rows[0]:  # columns that some files lack
            row.setdefault(name, "")
    for row in rows:
        if row.get(DISPATCHER) == "" and row.get("experts"):  # blank: the default
            row[DISPATCHER] = columns.dispatcher
    for row in rows:
        gpus, speed = (figure_of(row, name) for name in ("gpus", "tokens_per_s_per_gpu"))
        row[TOTAL_SPEED] = "" if gpus is None or speed is None else repr(gpus * speed)
    table = Table(rows, columns, list(paths), refused, 0, where)
    table.choose(where)
    if fits_only:
        kept = [row for row in table.rows if fits(row)]
        table.unfit_left_out = len(table.rows) - len(kept)
        if not kept:
            raise BadInput(f"{paths[0]}: no scenario fits in the memory of a GPU: leave --fits-only "
                           "out to see how many there are")
        table.rows = kept
    if len(paths) == 1 and speed_bands.compares(table.rows):  # files have a baseline each
        for row in table.rows:
            row[OVER_BASELINE] = "true"
    notes = differing_k([row for row in table.rows if "router" in row])
    for row in table.rows:
        row["_router"] = with_k(row.get("router", ""), notes)
    routers = _with_and_without_capacity(table.rows)
    for row in table.rows:
        row["_capacity"] = NO_CAPACITY if row.get("router", "") in routers and not row[CAPACITY] else ""
    return table


def file_names(paths):
    """{path: the shortest name that tells it from the others}."""
    stems = {path: os.path.splitext(os.path.basename(path))[0] for path in paths}
    if len(set(paths)) != len(paths):
        raise BadInput("the same file is given twice")
    return stems if len(set(stems.values())) == len(paths) else {path: path for path in paths}


def label_of(row, names):
    """"top2, gpus 32": the router by its name alone, and its k where that is not the others'; "no capacity" where other
    rows of the router have one."""
    def part(name):
        if not row[name]:
            return row.get("_capacity", "") if name == CAPACITY else ""
        if name in ("router", FILE):
            return row.get("_router", row[name]) if name == "router" else row[name]
        return f"{option_columns.words(name)} {row[name]}"
    return ", ".join(filter(None, map(part, names)))


def without(names):
    """The label of rows in which none of the options applies."""
    return ", ".join(f"no {option_columns.words(name)}" for name in names) or "all rows"


def names_of(table, x, group, facet=None):
    """The options that labels of lines() name."""
    apart = [name for name in (x, facet) if name]
    return group if group is not None else needed(table, apart, table.differing(apart))


def lines(table, x, group, facet=None):
    """Lines in file order, each with one row at an x. Options in which rows of one line and x still
    differ are refused by name."""
    apart = [name for name in (x, facet) if name]
    names = names_of(table, x, group, facet)
    found = {}
    for row in table.rows:
        key = tuple(row[name] for name in (*([facet] if facet else []), *names))
        line = found.setdefault(key, Line(label_of(row, names) or without(names), key))
        line.rows.append(row)
    for line in found.values():
        _check_one_each(table, x, line, apart + list(names))
        line.rows.sort(key=lambda row: order(row[x]))
    return list(found.values())


def needed(table, apart, names):
    """`names` of options without those that follow from the others: a cluster from its profile, a global batch or
    what --fidelity auto chose from the GPUs on the axis."""
    droppable = [name for name in (FILE, *reversed(names))
                 if name in names and (name == FILE or name in table.columns.derived - set(option_columns.CHOSEN))]
    for name in droppable:
        rest = [other for other in names if other != name]
        keys = {}
        for row in table.rows:
            keys.setdefault(tuple(row[column] for column in (*apart, *rest)), set()).add(row[name])
        if all(len(values) == 1 for values in keys.values()):
            names = rest
    return names


def order(text):
    return (0, float(text), "") if is_number(text) else (1, 0.0, text)


def ordered(table, name):
    """The values of a column: numbers by size, then words as the rows have them, which is the order in which they were
    typed."""
    return sorted(dict.fromkeys(row[name] for row in table.rows), key=lambda text: order(text)[:2])


def _check_one_each(table, x, line, told):
    seen = {}
    kept = []
    for row in line.rows:
        other = seen.setdefault(row[x], row)
        if other is row:
            kept.append(row)
            continue
        differ = [name for name in table.options() if row[name] != other[name] and name not in told]
        if not differ:
            same = all(row[name] == other[name] for name in table.known())
            if same or len(table.files) > 1 and all(
                    row[name] == other[name] for name in table.known() if name != FILE):
                continue  # the very same row again
            raise BadInput(f"{row['_path']}: lines {other['_line']} and {row['_line']} are the same "
                           "scenario with different results: do not mix results of several versions")
        raise BadInput(f"{row['_path']}: lines {other['_line']} and {row['_line']} lie at one {x} of the "
                       f"line '{line.label}' and differ in {', '.join(differ[:4])}: add it to --group or "
                       f"--facet, or choose with --where {differ[0]}={row[differ[0]]}")
    line.rows = kept


def scale_of(table, name):
    """100 for shares, which are drawn in per cent, else 1."""
    return 100 if is_share(table, name) else 1


def is_share(table, name):
    return table.columns.units.get(name) == "share"


def _amount(tokens):
    """"15T", as it is typed."""
    size, letter = next(((size, letter) for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")) if tokens >= size), (1, ""))
    return f"{tokens / size:g}{letter}"


def is_time(name):
    """Whether a figure is a time of a step or of a part of it: step_ms, step_ms_p05, expert_ms."""
    return "ms" in name.split("_")


def run_notes(table, figures):
    """What a subtitle says of days and costs of a run among the figures: its tokens, and the price."""
    def told(column, text):
        values = sorted({figure_of(row, column) for row in table.rows} - {None})
        return " or ".join(text(value) for value in values)
    tokens, price = told("train_tokens", _amount), told("gpu_hour_price", "{:g}".format)
    notes = []
    if tokens and any(name.startswith(("run_days", "run_cost")) for name in figures):
        notes.append(f"a run of {tokens} tokens")
    if price and any(name.startswith(("run_cost", "cost_per_")) for name in figures):
        notes.append(f"{price} per GPU hour")
    return notes


def drops_routes(those):
    return any((figure_of(row, "failed") or 0) > 0 for row in those)


def token_loss(table):
    """The column that has the token loss of all rows."""
    differ = COUNTED_LOSS in table.known() and any(
        row.get(COUNTED_LOSS) and figure_of(row, COUNTED_LOSS) != figure_of(row, TOKEN_LOSS) for row in table.rows)
    return COUNTED_LOSS if differ else TOKEN_LOSS


def axis_name(table, name):
    if name == TOKEN_LOSS and token_loss(table) != name:
        return RESIDUAL_BESIDE_COUNTED
    if name == "mfu" and drops_routes(table.rows):
        return MFU_WITH_DROPPED
    if name in NAMES:
        return NAMES[name]
    if name == "capacity_factor":
        return factor_axis(table.shared())
    for suffix, end in ENDS.items():
        if name.endswith(suffix):
            return f"{axis_name(table, name.removesuffix(suffix))}: {end}"
    if name in table.parts():
        return f"{step_parts.part_of(name).words}, ms"
    unit = table.columns.units.get(name, "")
    words = option_columns.words(name).removesuffix(f" {unit.lower()}")
    return words + (", %" if is_share(table, name) else f", {unit}" if unit else "")


def short_name(table, name):
    """axis_name() without the unit."""
    return step_parts.part_of(name).words if name in table.parts() else axis_name(table, name).split(",")[0]
