"""Which band a chart draws around speeds, and how far the level of all of them may be off: ends and words.

Where the rows were compared with a baseline (`sweep --baseline`, `train --baseline`), the band is that of this
comparison: one of a sweep reaches the baseline's line exactly where the sweep says "within the noise". Otherwise it is the
band of each row by itself; training steps have none, because most of their error is one factor of all rows. That of a
sweep's row lacks what software and machine add, which does not say whether two rows differ: errors that both share make the difference surer, those between two
configurations of one software, such as padded and dropless, less sure.
"""
import option_columns

RATIO, LOW, HIGH = "speed_over_baseline", "speed_over_baseline_p05", "speed_over_baseline_p95"
TRAINING_ENDS = ("speed_over_baseline_low", "speed_over_baseline_high")  # of moesim train, at the level baseline_level
ALONE = "p05 to p95 of each alone, on the same software and machine; of a difference: sweep --baseline"


def compares(rows):
    """Whether the rows were compared with a baseline."""
    return any(row.get(LOW) or row.get(TRAINING_ENDS[0]) for row in rows)


def ratio_columns(row):
    """The ratio to the baseline and the ends of its band, of a row that was compared with one."""
    return (RATIO, *TRAINING_ENDS) if row.get(TRAINING_ENDS[0]) else (RATIO, LOW, HIGH)


def is_baseline(row):
    """Whether others were compared with the row."""
    return bool(row.get(LOW)) and float(row[LOW]) == float(row[HIGH]) == 1


def _singled_out(rows, columns):
    """"capacity factor 1": what a baseline has in each option in which other rows of its router differ from it; of options
    that follow from others only what still tells it apart."""
    baselines = [row for row in rows if is_baseline(row)]
    routers = {row.get("router", "") for row in baselines}
    chosen = [*columns.chosen(), *(["gpus"] if "gpus" in columns.derived else [])]
    found = {}
    for name in [*chosen, *(name for name in columns.options if name not in chosen)]:
        own = {row.get(name, "") for row in baselines}
        beside = [row for row in rows if row.get("router", "") in routers and not is_baseline(row)
                  and (name in chosen or all(row.get(other, "") == value for other, value in found.items()))]
        if name != "router" and len(own) == 1 and "" not in own and {row.get(name, "") for row in beside} - own - {""}:
            found[name] = own.pop()
    return [f"{option_columns.words(name)} {value}" for name, value in found.items()]


def legend_text(rows, columns):
    """What the shade, or a bar, is. `columns`: option_columns.OptionColumns."""
    if not compares(rows):
        return ALONE
    steps = [row for row in rows if row.get(TRAINING_ENDS[0])]
    if steps:
        names = list(dict.fromkeys(row["baseline"] for row in steps))
        return (f"{_levels(steps)} band of the speed over that of {names[0] if len(names) == 1 else 'its baseline'}: "
                "compare with that alone")
    routers = {row.get("router", "") for row in rows if is_baseline(row)}
    told = _singled_out(rows, columns)
    if len(routers) != 1:
        return "p05 to p95 of the speed over that of " + ", ".join(["its baseline", *told])
    return f"p05 to p95 of the speed over that of {', '.join([*routers, *told])}, the baseline: compare with it alone"


def _levels(steps):
    return " or ".join(f"{100 * level:g} %" for level in sorted({float(row["baseline_level"]) for row in steps}))


def _step_ratios(rows, column):
    """Step time over that in the column, of rows that have both."""
    return [float(row["step_ms"]) / float(row[column]) for row in rows if row.get("step_ms") and row.get(column)]


def _times(value):
    return f"{value:.2g}" if value < 0.995 or value >= 9.95 else f"{value:.2f}".rstrip("0").rstrip(".")


def _span(values):
    low, high = map(_times, (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


# (likely step time if measured, the ends of its band): columns of moesim sweep, of moesim train.
LEVEL_COLUMNS = (("step_ms_p50", "step_ms_p05", "step_ms_p95"), ("step_ms_likely", "step_ms_low", "step_ms_high"))


def level_columns(rows):
    """The entry of LEVEL_COLUMNS that the rows have, or None."""
    return next((names for names in LEVEL_COLUMNS if _step_ratios(rows, names[0])), None)


def likely_text(rows):
    """"0.6": how many times a speed is likely measured; "" where the rows do not say, or it is the same."""
    names = level_columns(rows)
    ratios = _step_ratios(rows, names[0]) if names else []
    return "" if all(abs(ratio - 1) < 0.03 for ratio in ratios) else _span(ratios)


def level_of(rows, names):
    """The level of a band in per cent. `names`: its columns, one of LEVEL_COLUMNS."""
    return 90 if names is LEVEL_COLUMNS[0] else 100 * float(next((row["band_level"] for row in rows if row.get("band_level")), 0.8))


def ends_text(rows):
    """"p05 to p95", "80 % band": what the band of a measured step is, of rows of moesim sweep or train."""
    names = level_columns(rows) or LEVEL_COLUMNS[0]
    return "p05 to p95" if names is LEVEL_COLUMNS[0] else f"{level_of(rows, names):.0f} % band"


def _lacks_baseline(rows):
    """Whether the rows are steps of moesim train, not of a search, that a baseline would tell apart."""
    return (level_columns(rows) is LEVEL_COLUMNS[1] and not compares(rows)
            and not any(row.get("rank") or row.get("scaling_pays") for row in rows))


def level_text(rows, of_steps=False):
    """A sentence on the error that all speeds (or steps) have in common, which no band shows; "" where rows do not say."""
    names = level_columns(rows)
    if not names:
        return ""
    likely, fast, slow = (_step_ratios(rows, name) for name in names)
    level = level_of(rows, names)
    if of_steps:
        likely, fast, slow = ([1 / ratio for ratio in ratios] for ratios in (likely, slow, fast))
    of_two = "; of a difference: train --baseline" if _lacks_baseline(rows) and len(rows) > 1 else ""
    ends = f" ({level:.0f} %: {_times(min(slow))} to {_times(max(fast))}{of_two})" if slow and fast else ""
    return f"Measured {'steps' if of_steps else 'speeds'}: likely {_span(likely)} times these{ends}"
