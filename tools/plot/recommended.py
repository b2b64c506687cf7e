"""Cells of the rows that moesim recommend writes, also where pandas has read and written them."""


def rank(row):
    """Its place among the best, 0 of a row that is none of them. pandas writes "2.0" where other rows have none."""
    return int(float(row.get("rank") or 0))


def rank_text(row):
    """"2", "" of a row that is none of the best."""
    return str(rank(row) or "")


def is_true(row, column):
    """pandas writes True."""
    return (row.get(column) or "").lower() == "true"
