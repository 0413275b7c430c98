"""A plain model of a write that decides: every lookback is folded from the list of entries, and every time is tried.

decide(entries, rows, limits, parts)        entries and rows: (key, time, value), in order of arrival
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sash_engine.windows.questions import Limit

Entry = tuple[str, int, Any]
Answers = Mapping[str, Callable[[Sequence[Any]], Any]]

ANSWERS: Answers = {
    "n": len,
    "entries": len,
    "sum": sum,
    "max": lambda values: max(values, default=None),
    "min": lambda values: min(values, default=None),
    "last": lambda values: values[-1] if values else None,
}


def _of_values(fold: Callable[[Sequence[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
    def answer(values: Sequence[Any]) -> Any:
        some = [value for value in values if value is not None]
        return fold(some) if some or fold is len else None

    return answer


OF_NULLABLE: Answers = {name: each if each is len else _of_values(each) for name, each in ANSWERS.items()} | {
    "values": _of_values(len)
}
"""As `ANSWERS`, of values that may be null."""

_COMPARE = {"<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt}


class Decision(NamedTuple):
    """What became of one row: of each limit, the answer, what remains, and whether it holds."""

    admitted: bool
    retry_after: int | None
    limits: list[tuple[Any, Any, bool]]


def decide(
    entries: Sequence[Entry],
    rows: Sequence[Entry],
    limits: Sequence[Limit],
    parts: Sequence[str],
    most: int,
    answers: Answers = ANSWERS,
    granule: int = 1,
) -> list[Decision]:
    """Decide about rows in order of time, then of arrival.

    Args:
        entries: what is there; those of one key and time in order.
        parts: the names of the parts of keys, which `|` joins.
        most: so many ticks later a row is tried.
        answers: what aggregates answer over values.
        granule: entries and rows have the times of the panes of so many ticks.
    """
    there, out = list(entries), dict[int, Decision]()
    sent, rows = rows, [(key, time - time % granule, value) for key, time, value in rows]
    for i in sorted(range(len(rows)), key=lambda i: rows[i][1]):
        key, time, value = sent[i]
        asked = [(limit, [each for each in there if _same(each[0], key, limit, parts)]) for limit in limits]
        found = [_found(mine, rows[i], limit, answers) for limit, mine in asked]
        admitted, retry_after = all(each[3] for each in found), None
        told = []
        for (limit, mine), (end, answer, _, holds) in zip(asked, found, strict=True):
            if not admitted:
                answer = answers[limit.aggregate](_values(mine, limit, end))
            left = _left(limit, answer)
            told.append((answer, None if left is None else max(left, 0), holds))
        if admitted:
            there.append(rows[i])
        else:
            for d in range(1, most):
                later = key, time + d - (time + d) % granule, value
                if all(_found(mine, later, limit, answers)[3] for limit, mine in asked):
                    retry_after = d
                    break
        out[i] = Decision(admitted, retry_after, told)
    return [out[i] for i in range(len(rows))]


def _found(mine: Sequence[Entry], row: Entry, limit: Limit, answers: Answers) -> tuple[int, Any, Any, bool]:
    """Where the answer with the row is the nearest to the limit, that answer, what is left, and whether all hold."""
    span, time = int(limit.lookback), row[1]
    later = {each[1] for each in mine if time < each[1] < time + span}
    tightest, holds = None, True
    for end in sorted({time, *later}):
        answer = answers[limit.aggregate](_values([*mine, row], limit, end))
        left = _left(limit, answer)
        holds = holds and answer is not None and _COMPARE[limit.op](answer, limit.value)
        if tightest is None or (tightest[2] is not None and (left is None or left < tightest[2])):
            tightest = end, answer, left
    assert tightest is not None
    return *tightest, holds


def _values(mine: Sequence[Entry], limit: Limit, end: int) -> list[Any]:
    """The values in the lookback that ends with a time, in order of time, then of arrival."""
    inside = [each for each in mine if end - int(limit.lookback) < each[1] <= end]
    return [value for _, _, value in sorted(inside, key=lambda each: each[1])]


def _same(some: str, other: str, limit: Limit, parts: Sequence[str]) -> bool:
    if limit.by is None:
        return some == other
    mine, theirs = dict(zip(parts, some.split("|"))), dict(zip(parts, other.split("|")))  # noqa: B905
    return all(mine[part] == theirs[part] for part in limit.by)


def _left(limit: Limit, answer: Any) -> Any:
    if answer is None:
        return None
    return limit.value - answer if limit.op in ("<=", "<") else answer - limit.value
