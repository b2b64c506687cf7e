"""What a subtitle says of options in which rows differ and that no axis and no label of the chart names."""
import look
import option_columns
import rows

MOST_PLACES = 8  # of an axis or labels, at which the value of an option is told
MOST_VALUES = 4
BATCH = "global_batch"
# Options that follow from others which say as much: the profile, the numbers of pipeline ranks and chunks, the micro-batch.
FOLLOWING = ("cluster", "pipeline_layout", "micro_batch_group", "tokens_per_gpu")
WORDS = {"fidelity": "routing fidelity"}


def _listed(values):
    """"64, 128, 256", or the ends of many numbers."""
    values = sorted(values, key=lambda text: rows.order(text)[:2])
    if len(values) <= MOST_VALUES or not all(map(rows.is_number, values)):
        return ", ".join(values)
    return f"{values[0]} to {values[-1]}"


def _by_place(table, name, column):
    """{value of an option: the values of `column` at which rows have it}; {} where rows of one such value differ in the
    option, or there are many values."""
    values = {}
    for row in table.rows:
        if row[name]:
            values.setdefault(row[column], set()).add(row[name])
    if len(values) > MOST_PLACES or "" in values or any(len(there) > 1 for there in values.values()):
        return {}
    found = {}
    for place in sorted(values, key=rows.order):
        found.setdefault(values[place].pop(), []).append(place)
    return found


def note(table, name, told):
    """["routing fidelity differs: tokens (GPUs 16, 32), counts (GPUs 64, 128)"]; nothing where rows agree or the chart
    names the option. `told`: the columns that its axis and labels name."""
    if name not in table.differing(told):
        return []
    values = _listed(list(dict.fromkeys(row[name] for row in table.rows if row[name])))
    for column in told:
        places = _by_place(table, name, column)
        if places:
            words = rows.NAMES.get(column) or option_columns.words(column)
            values = ", ".join(f"{value} ({words} {', '.join(there)})" for value, there in places.items())
            break
    return [f"{WORDS.get(name) or option_columns.words(name)} differs: {values}"]


def batch_per_gpu(table):
    """The sequences of a step for each GPU where all rows have as many; None where they differ or are not known."""
    shares = {rows.figure_of(row, BATCH) / rows.figure_of(row, "gpus") if row.get(BATCH) and row.get("gpus") else None
              for row in table.rows}
    return shares.pop() if len(shares) == 1 else None


def batch_note(table, told):
    """As note(), of the global batch: steps of different batches do not compare."""
    found = note(table, BATCH, told)
    per_gpu = batch_per_gpu(table)
    return [f"global batch: {per_gpu:g} per GPU"] if found and per_gpu else found


def notes(table, told, of_times=False):
    """All that a subtitle says of options that the chart does not name. `told`: the columns that its axes and labels name;
    `of_times`: it compares times of steps, which a batch that grows with the GPUs makes longer."""
    batch = batch_note(table, told) if of_times or not batch_per_gpu(table) else []
    differing = table.differing(told)
    needed = rows.needed(table, tuple(told), differing)
    others = [name for name in differing
              if name not in (rows.FILE, "fidelity", BATCH) and (name in needed or name not in FOLLOWING)]
    also = [f"also differ: {', '.join(map(option_columns.words, others))}"] if others else []
    return list(map(look.Minor, note(table, "fidelity", told))) + batch + also


def names(table):
    """The options that tell rows apart, without those that follow from the others; the global batch stays where GPUs
    have different shares of it, as such steps do not compare."""
    differing = table.differing()
    found = rows.needed(table, (), differing)
    return [name for name in differing if name in found or name == BATCH and not batch_per_gpu(table)]
