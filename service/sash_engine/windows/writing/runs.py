"""Runs of rows that all go in: the newest of their keys or groups, decided in one pass.

    limits            count 60 <= 3
    rows of a key     105   110   150   170   175        in order of time, behind all entries of the key
    entries before      2     2     1     0     0        in the lookback of each row
    rows with it        1     2     3     3     4        of this write in it, if all before it go in
    sum                 3     4     …                    105 goes in; 110 does not, and ends the run of its key

What a row of a run finds is right because all rows before it go in. With the first that does not, the run of its key or
group ends: from there on, rows are decided one by one. So a write that no limit refuses costs what a question about as
many ranges costs, and an insert.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sash_engine.forest import Layout, RangeAnswers
from sash_engine.kernels import quiet
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps
from sash_engine.windows.keys.keys import Keys
from sash_engine.windows.keys.pages import Numbers
from sash_engine.windows.keys.range_answers import keys_of
from sash_engine.windows.spec.window import TICK_MAX, TICK_MIN

_ADDED = ("count", "sum")
"""Functions whose answers over two parts of a range are added."""


def can_add(part: Layout) -> bool:
    """Whether the answers of a layout over entries and over rows are added to those over both."""
    return all(monoid.function in _ADDED for monoid in part.monoids)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The rows of a write that may be in runs, sorted by scope, then time, then arrival.

    Args:
        rows: int64 (m,), which rows of the write.
        times: int64 (m,).
        scope: int64 (m,), a scope each: a key, or a group.
        numbers: int64 (g,), the keys with entries before, rising: the last scopes are theirs.
        lengths: int64 (g,), how many rows each of these has.
    """

    rows: Array
    times: Array
    scope: Array
    numbers: Numbers
    lengths: Numbers

    def went(self, hold: Sequence[bool]) -> Array:
        """Which go in, bool (m,): of each scope those before the first with which a limit does not hold."""
        refused = np.cumsum(~np.array(hold, np.bool_))
        first = np.flatnonzero(np.diff(self.scope, prepend=-1))
        before = np.append(0, refused)[first]
        goes: Array = refused == np.repeat(before, np.diff(first, append=len(refused)))
        return goes


def candidates(
    keys: Keys, rows: Array, times: Array, scope: Array, number_of: Numbers, span: int, horizon: Numbers | None
) -> Candidates | None:
    """Find the rows that may be in runs: of the scopes that have no entry that is newer than a row.

    Args:
        keys: of the window, or of a rollup.
        rows: int64 (m,), the rows that are decided, by their times.
        times: int64 (n,), of all rows.
        scope: int64 (n,), of all rows.
        number_of: int64 (s,), the key of each scope; -1: it has no entries.
        span: of the longest lookback.
        horizon: int64, of each key: it has no entries up to here that it should have; None: all have all.

    Returns:
        None where there are none.
    """
    least, known = np.full(len(number_of), TICK_MIN), number_of >= 0
    least[known] = keys.now[number_of[known]]
    if horizon is not None:
        least[known] = np.maximum(least[known], np.minimum(horizon[number_of[known]], TICK_MAX - span) + span)
    outside = np.zeros(len(number_of), np.bool_)
    outside[scope[rows[times[rows] < least[scope[rows]]]]] = True
    rows = rows[~outside[scope[rows]]]
    if not len(rows):
        return None
    rows = rows[np.lexsort((scope[rows], number_of[scope[rows]]))]
    return Candidates(rows, times[rows], scope[rows], *keys_of(number_of[scope[rows]]))


def ranges_steps(
    keys: Keys, found: Candidates, span: int, part: Layout, columns: Sequence[Array]
) -> Steps[tuple[Array, list[Array]]]:
    """Answer over the lookback that ends with each candidate, if all before it in its scope go in, in steps.

    Args:
        span: of the lookback.
        part: what is answered; see `can_add`.
        columns: of the write, times first.

    Returns:
        the number of entries, int64 (m,), and per name of the layout the answers, an array (m,).
    """
    m, times = len(found.rows), found.times
    starts = np.maximum(times, TICK_MIN + span - 1) - (span - 1)
    entries, answers = yield from keys.answers_steps(found.numbers, found.lengths, starts, times + 1, part)
    yield
    # The times of each scope are moved behind those of the scope before: they rise from the first row to the last.
    begun = np.flatnonzero(np.diff(found.scope, prepend=-1))
    oldest = int(times.min())
    width = int(times.max()) - oldest + 1
    own = np.arange(m)
    lengths = np.diff(begun, append=m)
    if width * len(begun) <= TICK_MAX:
        moved = np.repeat(np.arange(len(begun)) * width, lengths)
        first = (moved + (times - oldest)).searchsorted(moved + np.maximum(starts, oldest) - oldest)
    else:
        of_each = [times[a : a + n].searchsorted(starts[a : a + n]) + a for a, n in zip(begun, lengths, strict=True)]
        first = np.concatenate(of_each)
    yield
    out = RangeAnswers(part, m)
    out.rows[:] = own + 1 - first
    yield from out.put_rows(own, [column[found.rows] for column in columns], first, own + 1)
    more, newer = yield from out.answers_steps()
    return entries + more, [_added(older, each) for older, each in zip(answers, newer, strict=True)]


@quiet
def _added(older: Array, newer: Array) -> Array:
    """The answers over two parts of ranges as those over both; None where no part has one: all values are null."""
    if older.dtype != object and newer.dtype != object:
        return older + newer
    out = np.empty(len(older), object)
    for i, (a, b) in enumerate(zip(older.tolist(), newer.tolist(), strict=True)):
        out[i] = b if a is None else a if b is None else a + b
    return out
