"""What a subtitle says of options in which rows differ and that no axis and no label of the chart names."""
import option_columns
import rows

MOST_PLACES = 8  # of an axis or labels, at which the value of an option is told
MOST_VALUES = 4
WORDS = {"fidelity": "fidelity of routing"}


def _listed(values):
    """"256, 128, 64", or the ends of many numbers."""
    if len(values) <= MOST_VALUES or not all(map(rows.is_number, values)):
        return ", ".join(values)
    numbers = sorted(values, key=float)
    return f"{numbers[0]} to {numbers[-1]}"


def _by_place(table, name, column):
    """{value: the values of a column where it holds}; nothing where rows of one differ, or there are many."""
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
    """["fidelity of routing differs: tokens (GPUs 16, 32), counts (GPUs 64, 128)"]; nothing where rows agree or the chart
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
