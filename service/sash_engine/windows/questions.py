"""Questions as values: what is asked of a window, the same for every edge and in process.

    Query          as_of - lookback < time <= as_of     the trailing lookbacks, or everything
    RangeQuery     start <= time <= end                 one answer
    SeriesQuery    t <= time < t + width                a bucket for each t = start, start + step, … < end
    EntriesQuery   start <= time <= end                 the entries themselves

A question names one `key`, or several `keys`, or neither where the window has no keys. It may also select keys by their
parts (`where`), and group what it selects (`by`). A question is not checked when it is made: the window that answers it
knows its limits, and raises InvalidArgument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, Literal, TypeVar

__all__ = [
    "ALL_KEYS",
    "AllKeys",
    "EVERYTHING",
    "Comparison",
    "EntriesQuery",
    "Grouped",
    "Having",
    "KeyList",
    "Matcher",
    "Query",
    "Question",
    "RangeQuery",
    "SeriesQuery",
    "Top",
    "Where",
    "selecting",
]


class AllKeys(Enum):
    """Stands for every key that has entries."""

    ALL_KEYS = "all_keys"


ALL_KEYS: Final = AllKeys.ALL_KEYS
KeyList = Sequence[str] | Literal[AllKeys.ALL_KEYS]


Matcher = Literal["=", "!=", "in", "not in", "=~", "!~"]
Comparison = Literal["=", "!=", "<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class Where:
    """A condition on a part of keys.

    Args:
        part: the name of the part; `key` where a key is one text.
        op: how it compares; `=~` and `!~` take a regular expression (RE2) that fits the whole value.
        values: one value, or several for `in` and `not in`.
    """

    part: str
    op: Matcher
    values: Sequence[str]


@dataclass(frozen=True, slots=True)
class Top:
    """Only the `n` answers that are first by an aggregate.

    Answers that are None or NaN are never among them; of equal ones the first key or group in the order of texts comes
    first. Of several lookbacks the first decides.

    Args:
        by: the name of an aggregate that answers a number, or `entries`.
        n: how many.
        order: `desc` for the largest first, `asc` for the smallest first.
    """

    by: str
    n: int = 10
    order: Literal["asc", "desc"] = "desc"


@dataclass(frozen=True, slots=True)
class Having:
    """Only answers that an aggregate of which compares with a value, exactly; None and NaN never do.

    Args:
        aggregate: the name of an aggregate that answers a number, or `entries`. Of several lookbacks the first decides.
        op, value: how it compares, and with what.
    """

    aggregate: str
    op: Comparison
    value: float


@dataclass(frozen=True, slots=True)
class Grouped:
    """Which keys a question selects, how it groups them, and what it asks about them: the `selection` of a question.

    Args:
        where: conditions, all of which must hold. Without `key` and `keys`, they select among all keys.
        by: names of parts: one answer for each group of keys that agree in these. A group has all entries of its keys;
            its now is the newest time that was ever inserted into one of them. Groups are in the order of their values.
        top, having: only some of the answers, of keys or of groups. `having` first.
        limit: at most so many groups, or keys where there is no `by`.
        position: where to go on, as the answers before said.
        aggregates: names: only these are computed and answered; all where empty. `top` and `having` may compare others.
    """

    where: Sequence[Where] = ()
    by: Sequence[str] | None = None
    top: Top | None = None
    having: Sequence[Having] = ()
    limit: int | None = None
    position: str = ""
    aggregates: Sequence[str] = ()

    @property
    def selects(self) -> bool:
        """Whether it is about keys that it does not name."""
        return bool(self.where) or self.is_grouped

    @property
    def is_grouped(self) -> bool:
        """Whether it groups keys, or chooses among answers."""
        return bool(
            self.by is not None or self.top is not None or self.having or self.limit is not None or self.position
        )


EVERYTHING: Final = Grouped()
"""Every key, or the one that a question names, and every aggregate."""


@dataclass(frozen=True, slots=True)
class Query:
    """The answers over the trailing lookbacks; over everything if there are none.

    Args:
        key: one key; a key that was never written has no entries.
        lookbacks: durations ("5m") or ticks.
        as_of: ticks. Where None, a lookback is now - lookback < time, and nothing is cut off at its newer end. Now is
            each key's high-water mark, the newest time ever inserted into it; with `combine` that of all the keys asked
            for; or wall time if that is the window's clock.
        keys: several keys instead of one, or ALL_KEYS. They are answered one after the other, in the order asked for
            (ALL_KEYS: the order of their first entries).
        combine: with `keys`: one answer over the entries of all of them.
        partials: answer with partials, too.
        nows: with `by` and lookbacks: the least now of groups, by their joined values, where a group has keys in other
            windows as well. Then groups without entries are answered, too: their answers have no `start`.
        selection: selects keys by their parts, groups them, and names aggregates.
    """

    key: str | None = None
    lookbacks: Sequence[str | int] = ()
    as_of: int | None = None
    keys: KeyList = ()
    combine: bool = False
    partials: bool = False
    nows: Mapping[str, int] | None = None
    selection: Grouped = EVERYTHING


@dataclass(frozen=True, slots=True)
class RangeQuery:
    """The answer over start <= time <= end, of one key or over the entries of several.

    Args:
        start, end: ticks.
        key, keys, selection: as of `Query`.
        partials: answer with partials, too.
        end_exclusive: answer over start <= time < end instead, so that ranges that meet share no entry. The answer's
            `end` is the last time that it includes.
    """

    start: int
    end: int
    key: str | None = None
    keys: KeyList = ()
    partials: bool = False
    end_exclusive: bool = False
    selection: Grouped = EVERYTHING


@dataclass(frozen=True, slots=True)
class SeriesQuery:
    """The answers over the buckets t <= time < t + width for t = start, start + step, … < end.

    Args:
        start, end: ticks.
        step, width: durations or ticks. `width` is `step` where None; where it is larger, buckets overlap.
        key, keys, selection: as of `Query`; the entries of several keys are answered together.
        partials: answer with partials, too, of the buckets that have entries.
        gap: a duration or ticks, in the place of a step: each bucket is a session of one key, which ends where no entry
            follows within the gap.
    """

    start: int
    end: int
    step: str | int
    width: str | int | None = None
    key: str | None = None
    keys: KeyList = ()
    partials: bool = False
    gap: str | int | None = None
    selection: Grouped = EVERYTHING


Question = Query | RangeQuery | SeriesQuery
Q = TypeVar("Q", Query, RangeQuery, SeriesQuery)


def selecting(question: Q, **changes: Any) -> Q:
    """The same question with another selection."""
    return replace(question, selection=replace(question.selection, **changes))


@dataclass(frozen=True, slots=True)
class EntriesQuery:
    """The entries with start <= time <= end as of now, by key and (time, arrival).

    Args:
        start, end: ticks; None sets no bound.
        key, keys: as of `Query`.
        end_exclusive: take start <= time < end instead; without `end` it changes nothing.
        where: conditions on the parts of keys, as of `Grouped`.
    """

    start: int | None = None
    end: int | None = None
    key: str | None = None
    keys: KeyList = ()
    end_exclusive: bool = False
    where: Sequence[Where] = ()
