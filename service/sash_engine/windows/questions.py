"""Questions as values: what is asked of a window, the same for every edge and in process.

    Query          as_of - lookback < time <= as_of     the trailing lookbacks, or everything
    RangeQuery     start <= time <= end                 one answer
    SeriesQuery    t <= time < t + width                a bucket for each t = start, start + step, … < end
    EntriesQuery   start <= time <= end                 the entries themselves
    KeysQuery      names                                the keys that have entries, page by page
    AnswersAt      time_i - lookback < time <= time_i   of many pairs (key_i, time_i), each as a Query as of time_i

A question names one `key`, or several `keys`, or neither where the window has no keys. It may also select keys by their
parts (`where`), and group what it selects (`by`). A question is not checked when it is made: the window that answers it
knows its limits, and raises InvalidArgument.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar

from sash_engine.errors import InvalidArgument
from sash_engine.monoids.columns import Array
from sash_engine.windows.answers import Answer, AnswerColumns, Page, Series
from sash_engine.windows.batches.batch import AnyBatch
from sash_wire.coded import Coded


class AllKeys(Enum):
    """Stands for every key that has entries."""

    ALL_KEYS = "all_keys"


ALL_KEYS: Final = AllKeys.ALL_KEYS
KeyList = Sequence[str] | Literal[AllKeys.ALL_KEYS]


A = TypeVar("A", covariant=True)

KEYS = 1000
"""So many keys are listed where a question does not say how many."""

Matcher = Literal["=", "!=", "in", "not in", "=~", "!~"]
Comparison = Literal["=", "!=", "<", "<=", ">", ">="]


class Question(Generic[A]):
    """A question to a window; its answer is an A."""

    __slots__ = ()
    name: ClassVar[str]

    @property
    def operation(self) -> str:
        """Its name among rights and in metrics."""
        return self.name

    @property
    def is_short(self) -> bool:
        """Whether it takes no longer than a step; a `Query` perhaps, as `Reader.is_quick` says."""
        return False

    @property
    def is_about_the_past(self) -> bool:
        """Whether the history of a window answers it, and not its slide."""
        return False


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
class Limit:
    """What must hold for a row to go in: an aggregate over a trailing lookback that has the row compares with a value.

    None and NaN never do.

    Args:
        aggregate: the name of an aggregate that answers a number, or `entries`.
        lookback: a duration ("1m") or ticks.
        op, value: how it compares, and with what: `<=`, `<`, `>=` or `>`.
        by: the names of parts of keys: over all keys that agree with the row's key in these; none: over all keys. None:
            over the row's own key.
    """

    aggregate: str
    lookback: str | int
    op: Comparison
    value: float
    by: Sequence[str] | None = None


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
class Query(Question[list[Answer]]):
    """The answers over the trailing lookbacks; over everything if there are none.

    Args:
        key: one key; a key that was never written has no entries.
        lookbacks: durations ("5m") or ticks.
        as_of: ticks. Where None, a lookback is now - lookback < time, and nothing is cut off at its newer end. Now is
            each key's high-water mark, the newest time ever inserted into it; with `combine` that of all the keys asked
            for; or wall time if that is the window's clock. With it, the question is about the past: all entries count
            that the window keeps, also those that are too old for the slide.
        keys: several keys instead of one, or ALL_KEYS. They are answered one after the other, in the order asked for
            (ALL_KEYS: the order of their first entries).
        combine: with `keys`: one answer over the entries of all of them.
        partials: answer with partials, too.
        nows: with `by` and lookbacks: the least now of groups, by their joined values, where a group has keys in other
            windows as well. Then groups without entries are answered, too: their answers have no `start`.
        selection: selects keys by their parts, groups them, and names aggregates.
        known_at: with `as_of` and one key: only what had been applied at this number of an arrival, as an answer before
            said; entries that came later do not count, and those that were removed later do.
    """

    name: ClassVar[str] = "query"
    key: str | None = None
    lookbacks: Sequence[str | int] = ()
    as_of: int | None = None
    keys: KeyList = ()
    combine: bool = False
    partials: bool = False
    nows: Mapping[str, int] | None = None
    selection: Grouped = EVERYTHING
    known_at: int | None = None

    @property
    def is_short(self) -> bool:
        return True

    @property
    def is_about_the_past(self) -> bool:
        return self.as_of is not None


@dataclass(frozen=True, slots=True)
class RangeQuery(Question[Answer | Page[Answer]]):
    """The answer over start <= time <= end, of one key or over the entries of several.

    Args:
        start, end: ticks.
        key, keys, selection: as of `Query`.
        partials: answer with partials, too.
        end_exclusive: answer over start <= time < end instead, so that ranges that meet share no entry. The answer's
            `end` is the last time that it includes.
    """

    name: ClassVar[str] = "range"
    start: int
    end: int
    key: str | None = None
    keys: KeyList = ()
    partials: bool = False
    end_exclusive: bool = False
    selection: Grouped = EVERYTHING

    @property
    def operation(self) -> str:
        return "range_groups" if self.selection.is_grouped else "range_query"

    @property
    def is_short(self) -> bool:
        return not (self.keys or self.selection.selects)


@dataclass(frozen=True, slots=True)
class SeriesQuery(Question[Series | Page[Series]]):
    """The answers over the buckets t <= time < t + width for t = start, start + step, … < end.

    Args:
        start, end: ticks.
        step, width: durations or ticks. `width` is `step` where None; where it is larger, buckets overlap.
        key, keys, selection: as of `Query`; the entries of several keys are answered together.
        partials: answer with partials, too, of the buckets that have entries.
        gap: a duration or ticks, in the place of a step: each bucket is a session of one key, which ends where no entry
            follows within the gap.
    """

    name: ClassVar[str] = "series"
    start: int
    end: int
    step: str | int = ""
    width: str | int | None = None
    key: str | None = None
    keys: KeyList = ()
    partials: bool = False
    gap: str | int | None = None
    selection: Grouped = EVERYTHING

    @property
    def operation(self) -> str:
        return "series_groups" if self.selection.is_grouped else "series"


GroupedQuestion = Query | RangeQuery | SeriesQuery
Q = TypeVar("Q", Query, RangeQuery, SeriesQuery)


def selecting(question: Q, **changes: Any) -> Q:
    """The same question with another selection."""
    return replace(question, selection=replace(question.selection, **changes))


@dataclass(frozen=True, slots=True)
class EntriesQuery(Question[Iterator[AnyBatch] | AsyncIterator[AnyBatch]]):
    """The entries with start <= time <= end as of now, by key and (time, arrival).

    Args:
        start, end: ticks; None sets no bound.
        key, keys: as of `Query`.
        end_exclusive: take start <= time < end instead; without `end` it changes nothing.
        where: conditions on the parts of keys, as of `Grouped`.
        limit: at most so many.
        reverse: in the other order: the newest of a key first. With `limit`, the newest.
        known: of one key of a window with `known`: "kept", the entries with the number of their arrival; "removed", in
            their place what was retracted or corrected, with the numbers of its arrival, of its first version and of
            its end. The numbers are columns, by the names `ARRIVAL`, `PLACED` and `REMOVED`.
    """

    name: ClassVar[str] = "entries"
    start: int | None = None
    end: int | None = None
    key: str | None = None
    keys: KeyList = ()
    end_exclusive: bool = False
    where: Sequence[Where] = ()
    limit: int | None = None
    reverse: bool = False
    known: str = ""

    @property
    def is_short(self) -> bool:
        return not (self.keys or self.where)


@dataclass(frozen=True, slots=True)
class KeysQuery(Question[tuple[list[str], int | None]]):
    """The keys that have entries, in the order of their first entries, and where to go on; None: there are no more.

    Only keys that have entries are listed: one whose entries have all left is not, though its mark is remembered.

    There may be fewer than `limit` although there are more: one question looks at a bounded number of keys. A key may
    have the place of one that was forgotten; one that is there throughout is listed once.

    Args:
        prefix: only keys that start so.
        limit: at most so many.
        position: where to go on, as the answer before said.
        where: only keys for which all the conditions hold.
    """

    name: ClassVar[str] = "keys"
    prefix: str = ""
    limit: int = KEYS
    position: int = 0
    where: Sequence[Where] = ()

    @property
    def is_short(self) -> bool:
        return not self.where


@dataclass(frozen=True, slots=True)
class AnswersAt(Question[list[AnswerColumns]]):
    """The answers about many pairs of a key and a time, a row for each pair in the order given.

    A row is what `Query(key, lookbacks, as_of=time)` answers, to the last bit. A pair whose key is not there, or does
    not meet the conditions, is answered over no entries.

    Args:
        times: int64 (n,), ticks.
        keys: n keys; None where the window has none.
        lookbacks: as of `Query`; there are columns of answers for each. Without any, over everything up to the times.
        where: conditions on the parts of keys, as of `Grouped`.
        aggregates: as of `Grouped`.
        known_at: int64 (n,): the number of an arrival for each pair, as of `Query`; None: all that is there counts.
    """

    name: ClassVar[str] = "answers_at"
    times: Array
    keys: Coded | None = None
    lookbacks: Sequence[str | int] = ()
    where: Sequence[Where] = ()
    aggregates: Sequence[str] = ()
    known_at: Array | None = None

    @property
    def is_about_the_past(self) -> bool:
        return True

    def check_columns(self) -> None:
        """Raise InvalidArgument where there is not a key for each time."""
        n, keys = len(self.times), self.keys
        if self.known_at is not None and len(self.known_at) != n:
            raise InvalidArgument(f"{len(self.known_at)} known_at for {n} times", field="known_at", limit=str(n))
        if keys is not None:
            if len(keys) != n:
                raise InvalidArgument(f"{len(keys)} keys for {n} times", field="keys", limit=str(n))
            if n and not 0 <= int(keys.codes.min()) <= int(keys.codes.max()) < len(keys.dictionary):
                raise InvalidArgument("a code is none of the keys", field="keys", limit=str(len(keys.dictionary) - 1))
