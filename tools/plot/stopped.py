"""What a chart says of rows that moesim recommend wrote when its search was stopped, by Ctrl-C or --time-limit."""
import math

import recommended


def _is_unproven(row):
    return (row.get("proven") or "").lower() == "false"  # pandas writes False


def _gain(row):
    """The share by which a layout that was not simulated may be faster; infinite where it is not known."""
    return float(row.get("unproven_gain") or "inf")


def _is_of_several(row):
    """Whether each row has a search of its own, on a number of GPUs or on a machine."""
    return bool(row.get("scaling_pays") or row.get("cheapest"))


def _place(row):
    """How the row is named: by its rank, or by its number of GPUs or machine where each has a search of its own."""
    if row.get("cheapest"):
        return f"the best on {row['profile']}"
    return f"the best on {row['gpus']} GPUs" if row.get("scaling_pays") else recommended.rank_text(row)


def notes(rows):
    """[what a subtitle says of these rows], [] of a search that ended."""
    unproven = [row for row in rows if _is_unproven(row)]
    if not unproven:
        return []
    named = [row for row in unproven if _place(row)]
    if not named:
        return ["search stopped: points of the front beside the best are not proven"]
    first = max(named, key=_gain) if _is_of_several(named[0]) else min(named, key=recommended.rank)
    place, gain = _place(first), _gain(first)
    if math.isinf(gain):
        return [f"search stopped: not proven, others may be faster than {place}, by how much is not known"]
    return [f"search stopped: not proven, others may be up to {100 * gain:.1f} % faster than {place}"]
