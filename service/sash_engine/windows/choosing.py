"""`top` and `having`: which of many answers a question keeps, by what it compares only."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence

import numpy as np

from sash_engine.errors import InvalidArgument
from sash_engine.forest import Layout
from sash_engine.forest.series import at_once
from sash_engine.monoids import Monoid
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, spans_of
from sash_engine.windows.costs import MAX_ANSWERS
from sash_engine.windows.pages import Numbers
from sash_engine.windows.questions import Grouped, Having, Top
from sash_engine.windows.totals import Totals, rows_of

__all__ = ["Compared", "check_choice", "check_top", "chosen", "names_compared", "passing"]

MAX_HAVING = 64
_ENTRIES = "entries"
_VALUES = 65_536
"""Values of which one step finds the first ones: 2 ms."""

_COMPARE = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def check_choice(question: Grouped, monoids: Mapping[str, Monoid]) -> None:
    """Check `top` and `having` of a question; raises InvalidArgument."""
    top = question.top
    if top is not None:
        _check_name(top.by, monoids, "top.by")
        check_top(top)
    if len(question.having) > MAX_HAVING:
        raise InvalidArgument(
            f"{len(question.having)} comparisons in having", field="having", limit=f"{MAX_HAVING} comparisons"
        )
    for having in question.having:
        _check_name(having.aggregate, monoids, "having.aggregate")
        if having.op not in _COMPARE:
            raise InvalidArgument(
                f"having.op {str(having.op)[:40]!r} is none", field="having.op", limit=", ".join(_COMPARE)
            )
        if math.isnan(having.value):
            raise InvalidArgument("having.value is NaN, with which nothing compares", field="having.value")


def check_top(top: Top) -> None:
    """Check how many answers `top` asks for, and in which order; raises InvalidArgument."""
    if not 1 <= top.n <= MAX_ANSWERS:
        raise InvalidArgument(f"top.n {top.n} is out of range", field="top.n", limit=f"1 to {MAX_ANSWERS}")
    if top.order not in ("asc", "desc"):
        raise InvalidArgument(f"top.order {str(top.order)[:40]!r} is none", field="top.order", limit="asc or desc")


def _check_name(name: str, monoids: Mapping[str, Monoid], field: str) -> None:
    if name not in monoids and name != _ENTRIES:
        known = ", ".join([*monoids, _ENTRIES])
        raise InvalidArgument(f"{field}: no aggregate {name[:140]!r}; there are {known}", field=field)
    if name in monoids and monoids[name].answer not in (int, float, bool):
        raise InvalidArgument(f"{field}: {name!r} does not answer a number that could be compared", field=field)


def names_compared(question: Grouped | None) -> list[str]:
    """What `top` and `having` of a question compare: names of aggregates, and `entries`."""
    if question is None:
        return []
    names = dict.fromkeys(having.aggregate for having in question.having)
    return list(names | dict.fromkeys([] if question.top is None else [question.top.by]))


class Compared:
    """What a question compares.

    Args:
        question: has `top` or `having`.
        layout: of the window.
        monoids: its aggregates by name.

    Attributes:
        slots: those of the layout that are needed.
    """

    def __init__(self, question: Grouped, layout: Layout, monoids: Mapping[str, Monoid]) -> None:
        names = names_compared(question)
        slot_of = dict(zip(layout.names, layout.answers[-len(layout.names) :], strict=True))
        self._slot_of = {name: slot_of[name] if name in monoids else -1 for name in names}
        counting = (0,) if len(layout.answers) > len(layout.names) else ()  # panes count their entries there
        self.slots = sorted({*counting, *(slot for slot in self._slot_of.values() if slot >= 0)})

    def values(self, totals: Totals) -> Steps[dict[str, Array]]:
        """What is compared, by name: int64 or float64 (n,), NaN where there is no answer."""
        there = np.flatnonzero(totals.there)
        out = dict[str, Array]()
        for name, slot in self._slot_of.items():
            if slot < 0:
                entries = totals.entries.copy()
                entries[there] = totals.layout.entries_of(
                    totals.entries[there], [rows_of(each, there) for each in totals.partials]
                )
                out[name] = entries
                continue
            at = self.slots.index(slot)
            monoid, partials = totals.layout.monoids[at], totals.partials[at]
            values = np.full(len(totals.there), np.nan)
            whole = len(there) == len(values)
            for a, b in spans_of(len(there), at_once(monoid, "lower_columns")):
                some = slice(a, b) if whole else there[a:b]
                found = monoid.lower_columns(tuple([part[some] for part in partials]))
                if found.dtype == np.int64 and whole and not a:
                    values = np.empty(len(there), np.int64)
                if found.dtype == object:
                    found = np.array([math.nan if each is None else float(each) for each in found.tolist()])
                    values = values.astype(np.float64, copy=False)
                values[some] = found
                yield
            out[name] = values
        return out


def passing(having: Sequence[Having], values: Mapping[str, Array], n: int) -> Numbers:
    """The places of n answers for which all comparisons hold, int64."""
    if not having:
        return np.arange(n)
    left = np.ones(n, np.bool_)
    for each in having:
        column = values[each.aggregate]
        holds = _COMPARE[each.op](column, each.value)
        left &= holds if column.dtype != np.float64 else holds & ~np.isnan(column)
    return np.flatnonzero(left)


def chosen(top: Top, values: Array, among: Numbers) -> Steps[Numbers]:
    """The places of those `among` answers that are first, in order; of equal ones those that come first."""
    best = among[:0]
    for a, b in spans_of(len(among), max(_VALUES, top.n)):
        best = _first(top, values, np.concatenate((best, among[a:b])))
        yield
    return best


def _first(top: Top, values: Array, among: Numbers) -> Numbers:
    column = values[among]
    if column.dtype == np.float64:
        number = ~np.isnan(column)
        among, column = among[number], column[number]
        rank = -column if top.order == "desc" else column
    else:
        rank = ~column if top.order == "desc" else column
    if len(rank) > top.n:
        last = np.partition(rank, top.n - 1)[top.n - 1]
        better, equal = np.flatnonzero(rank < last), np.flatnonzero(rank == last)
        left = np.concatenate((better, equal[: top.n - len(better)]))
        among, rank = among[left], rank[left]
    return among[np.lexsort((among, rank))]
