"""The names of columns of answers beside the rows of a table, as REST and the client have them.

    lookback   1h                       none: everything
    entries    entries_1h               entries
    sum        sum_1h                   sum
    entries    aggregates.entries_1h    aggregates.entries     an aggregate of that name

A lookback has no underscore in it, so no two columns of a window have one name. Beside columns of other windows, they
have the window's name before them: payments_sum_1h.
"""

from __future__ import annotations


def feature(name: str, lookback: str | None) -> str:
    """The name of a column over a lookback.

    >>> feature("sum", "1h"), feature("sum", None)
    ('sum_1h', 'sum')
    """
    return f"{name}_{lookback}" if lookback else name


def of_aggregate(name: str) -> str:
    """What stands for an aggregate in the name of a column."""
    return f"aggregates.{name}" if name == "entries" else name


def of_window(window: str, column: str) -> str:
    """The name of a column beside those of other windows."""
    return f"{window}_{column}"
