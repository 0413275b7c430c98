"""`top` and `having`: which of many answers a question keeps, by what it compares only.

answers     None   0   9007199254740993   0.5        as they are shown, of groups without entries, too
Column      -      int64, or float64, or objects     whichever has all of them exactly
having      exact, also of an integer with a float
top         the least ranks; of equal ones the first name, or the first place
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from sash_engine.errors import InvalidArgument, refuse
from sash_engine.forest import Layout
from sash_engine.forest.series import at_once, rows_of
from sash_engine.monoids import Monoid
from sash_engine.monoids.base import Array, object_array
from sash_engine.steps import Steps, spans_of
from sash_engine.windows.answers import Answer
from sash_engine.windows.keys.pages import Numbers
from sash_engine.windows.keys.totals import Totals
from sash_engine.windows.questions import Grouped, Having, Top
from sash_engine.windows.reading.costs import MAX_ANSWERS
from sash_wire.meant import instead

MAX_HAVING = 64
_ENTRIES = "entries"
_VALUES = 65_536
"""Values of which one step finds the first ones: 2 ms."""
_OBJECTS = 2_048
"""Objects that one step compares or sorts: 2 ms."""

COMPARISONS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def check_choice(selection: Grouped, monoids: Mapping[str, Monoid]) -> None:
    """Check `top` and `having` of a question; raises InvalidArgument."""
    top = selection.top
    if top is not None:
        check_compared(top.by, monoids, "top.by")
        check_top(top)
    if len(selection.having) > MAX_HAVING:
        raise InvalidArgument(
            f"{len(selection.having)} comparisons in having", field="having", limit=f"{MAX_HAVING} comparisons"
        )
    for having in selection.having:
        check_compared(having.aggregate, monoids, "having.aggregate")
        if having.op not in COMPARISONS:
            raise InvalidArgument(
                f"having.op {str(having.op)[:40]!r} is none", field="having.op", limit=", ".join(COMPARISONS)
            )
        if having.value != having.value:
            raise InvalidArgument("having.value is NaN, with which nothing compares", field="having.value")


def check_top(top: Top) -> None:
    """Check how many answers `top` asks for, and in which order; raises InvalidArgument."""
    if not 1 <= top.n <= MAX_ANSWERS:
        raise InvalidArgument(f"top.n {top.n} is out of range", field="top.n", limit=f"1 to {MAX_ANSWERS}")
    if top.order not in ("asc", "desc"):
        raise InvalidArgument(f"top.order {str(top.order)[:40]!r} is none", field="top.order", limit="asc or desc")


def check_compared(name: str, monoids: Mapping[str, Monoid], field: str) -> None:
    """Check the name of an aggregate whose answers are compared, or `entries`; raises InvalidArgument."""
    if name not in monoids and name != _ENTRIES:
        known = [*monoids, _ENTRIES]
        refuse(field, f"no aggregate {name[:140]!r}{instead(name, known, 'there are')}")
    if name in monoids and monoids[name].answer not in (int, float, bool):
        refuse(field, f"{name!r} does not answer a number that could be compared")


def names_compared(selection: Grouped | None) -> list[str]:
    """Return the names that `top` and `having` of a question compare: of aggregates, and `entries`."""
    if selection is None:
        return []
    names = dict.fromkeys(having.aggregate for having in selection.having)
    return list(names | dict.fromkeys([] if selection.top is None else [selection.top.by]))


class Column:
    """The values of n answers that are compared, exactly.

    Attributes:
        values: int64 or float64 (n,); objects where integers are too large for the one and not all in the other.
        known: bool (n,), where there is an answer that compares: not None, and not NaN.
    """

    def __init__(self, values: Array, known: npt.NDArray[np.bool_] | None = None) -> None:
        self.values = values
        self.known = np.ones(len(values), np.bool_) if known is None else known
        if values.dtype == np.float64:
            self.known = self.known & ~np.isnan(values)

    @classmethod
    def of(cls, answers: Sequence[Any]) -> Column:
        """Of answers, some of which may be None."""
        known = np.array([answer is not None and answer == answer for answer in answers], np.bool_)
        numbers = [answer if there else 0 for answer, there in zip(answers, known.tolist(), strict=True)]
        if all(isinstance(number, int) and -(2**63) <= number < 2**63 for number in numbers):
            return cls(np.array(numbers, np.int64), known)
        if all(map(_has_float, numbers)):
            return cls(np.array(numbers, np.float64), known)
        return cls(object_array(numbers), known)

    @classmethod
    def joined(cls, parts: Sequence[Column]) -> Column:
        """Columns one after the other."""
        alike = len({part.values.dtype for part in parts}) == 1
        values = [part.values if alike else part.values.astype(object) for part in parts]
        return cls(np.concatenate(values), np.concatenate([part.known for part in parts]))

    def spread(self, places: Numbers, n: int, nothing: Any) -> Column:
        """Of n answers, which are these at some places, and `nothing` at the others."""
        if len(places) == n:
            return self
        rest = Column.of([nothing])
        if not rest.values.any():  # a zero, or no answer
            rest = Column(rest.values.astype(self.values.dtype), rest.known)
        both, at = Column.joined([self, rest]), np.full(n, len(places))
        at[places] = np.arange(len(places))
        return Column(both.values[at], both.known[at])


def _has_float(number: Any) -> bool:
    """Whether a float64 is exactly this number."""
    try:
        return bool(float(number) == number)
    except OverflowError:
        return False


class Compared:
    """The aggregates that a question compares.

    Args:
        selection: has `top` or `having`.
        layout: of the window.
        monoids: its aggregates by name.

    Attributes:
        slots: those of the layout that are needed.
    """

    def __init__(self, selection: Grouped, layout: Layout, monoids: Mapping[str, Monoid]) -> None:
        names = names_compared(selection)
        slot_of = dict(zip(layout.names, layout.answers[-len(layout.names) :], strict=True))
        self._slot_of = {name: slot_of[name] if name in monoids else -1 for name in names}
        counting = (0,) if len(layout.answers) > len(layout.names) else ()  # panes count their entries there
        self.slots = sorted({*counting, *(slot for slot in self._slot_of.values() if slot >= 0)})

    def columns(self, totals: Totals) -> Steps[dict[str, Column]]:
        """Return the columns to compare, by name; each has the values of n answers."""
        there, n = np.flatnonzero(totals.there), len(totals.there)
        out = dict[str, Column]()
        for name, slot in self._slot_of.items():
            if slot < 0:
                entries = totals.entries.copy()
                entries[there] = totals.layout.entries_of(
                    totals.entries[there], [rows_of(each, there) for each in totals.partials]
                )
                out[name] = Column(entries)
                continue
            at = self.slots.index(slot)
            monoid, partials = totals.layout.monoids[at], totals.partials[at]
            found = [Column.of([])] if not len(there) else []
            for a, b in spans_of(len(there), at_once(monoid, "lower_columns")):
                some = slice(a, b) if len(there) == n else there[a:b]
                answers = monoid.lower_columns(tuple([part[some] for part in partials]))
                plain = answers.dtype in (np.int64, np.float64)
                found.append(Column(answers) if plain else Column.of(answers.tolist()))
                yield
            out[name] = Column.joined(found).spread(there, n, monoid.lower(monoid.identity))
        return out


def passing(having: Sequence[Having], columns: Mapping[str, Column], n: int) -> Steps[Numbers]:
    """The places of n answers for which all comparisons hold, int64."""
    left = np.ones(n, np.bool_)
    for each in having:
        column = columns[each.aggregate]
        for a, b in spans_of(n, _OBJECTS if column.values.dtype == object else _VALUES):
            left[a:b] &= column.known[a:b] & _holds(each, column.values[a:b])
            yield
    return np.flatnonzero(left)


def _holds(having: Having, values: Array) -> npt.NDArray[np.bool_]:
    """Whether a comparison holds for each of some numbers, exactly: as Python compares an integer with a float."""
    value, compare = having.value, COMPARISONS[having.op]
    if values.dtype == object:
        return np.array([compare(each, value) for each in values.tolist()], np.bool_)
    near: float
    try:
        near = math.floor(value) if values.dtype == np.int64 else float(value)
    except OverflowError:  # infinite as an integer, or too large for a float
        near = math.inf if value > 0 else -math.inf
    if near == value or having.op in ("=", "!="):
        return compare(values, near) if near == value else np.full(len(values), having.op == "!=")
    # No number of the column is between `near` and the value.
    below, least = near < value, having.op in ("<", "<=")
    if least:
        return values <= near if below else values < near
    return values > near if below else values >= near


def chosen(top: Top, column: Column, among: Numbers, name: Callable[[int], str | None] | None = None) -> Steps[Numbers]:
    """The places of those `among` answers that are first, in order.

    Args:
        among: int64, rising.
        name: of a place; of equal answers the one with the first name comes first. None: the one with the first place.
    """
    among = among[column.known[among]]
    yield
    first: Callable[[int], Any] = name or int
    falling = top.order == "desc"
    if column.values.dtype == object:
        values, sign = column.values, -1 if falling else 1
        return (yield from _least(among, lambda place: (sign * values[place], first(place)), top.n))
    rank = column.values[among]
    if falling:
        rank = ~rank if rank.dtype == np.int64 else -rank
    if len(rank) > top.n:
        least = rank[:0]
        for a, b in spans_of(len(rank), max(_VALUES, top.n)):
            least = np.concatenate((least, rank[a:b]))
            least = np.partition(least, top.n - 1)[: top.n] if len(least) > top.n else least
            yield
        last = least.max()
        better, equal = np.flatnonzero(rank < last), np.flatnonzero(rank == last)
        missing = top.n - len(better)
        if name is not None and len(equal) > missing:
            equal = yield from _least(equal, lambda i: name(among.item(i)), missing)
        left = np.concatenate((better, equal[:missing]))
        among, rank = among[left], rank[left]
        yield
    order = np.lexsort((among, rank))
    among, rank = among[order], rank[order]
    if name is not None and (rank[1:] == rank[:-1]).any():
        places = np.arange(len(among))
        among = among[(yield from _least(places, lambda i: (rank.item(i), name(among.item(i))), len(among)))]
    return among


def chosen_answers(selection: Grouped, answers: Sequence[Answer], each: int) -> Steps[list[Answer]]:
    """Return the answers that pass `having` and `top`, in order.

    Args:
        answers: `each` of every group, or key, one after the other; the first of them is compared.
    """
    firsts = answers[::each]
    columns = dict[str, Column]()
    for name in names_compared(selection):
        parts = [Column.of([])]
        for a, b in spans_of(len(firsts), _OBJECTS):
            parts.append(Column.of([one.entries if name == _ENTRIES else one.aggregates[name] for one in firsts[a:b]]))
            yield
        columns[name] = Column.joined(parts)
    left = yield from passing(selection.having, columns, len(firsts))
    if selection.top is not None:
        named = (lambda place: firsts[place].key) if selection.by is None else None
        left = yield from chosen(selection.top, columns[selection.top.by], left, named)
    return [answer for place in left.tolist() for answer in answers[place * each : (place + 1) * each]]


def _least(places: Numbers, key: Callable[[int], Any], n: int) -> Steps[Numbers]:
    """The n of some places that have the least keys, in order."""
    runs, found = list[list[int]](), list[int]()
    for a, b in spans_of(len(places), _OBJECTS):
        runs.append(sorted(places[a:b].tolist(), key=key)[:n])
        yield
    for place in islice(merge(*runs, key=key), n):
        found.append(place)
        if not len(found) % _OBJECTS:
            yield
    return np.array(found, np.int64)
