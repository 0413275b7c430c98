"""Limits of one query. The event loop waits while a query is answered, and all its answers are in memory at once.

buckets of a series           a few µs each; with sketches or collections 0.4 ms each
keys x lookbacks              50 µs each
pairs x lookbacks             some µs each; with sketches up to 0.2 ms each
values in lists and blobs     of all answers together
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sash_engine.errors import InvalidArgument
from sash_engine.monoids import Monoid
from sash_engine.windows.answers import Answer
from sash_engine.windows.spec.window import WindowSpec

MAX_BUCKETS = 1_000_000
MAX_LARGE_BUCKETS = 10_000
MAX_ANSWERS = 100_000
MAX_PAIR_ANSWERS = 1_000_000
MAX_VALUES = 2_000_000

ENTRY_BYTES = 100
"""What an answer with lists takes for each entry: the value in Python, and what is sent of it."""

_ANSWER_BYTES, _AGGREGATE_BYTES, _PARTS_BYTES, _PARTIAL_BYTES = 450, 60, 300, 350
"""What an answer takes, and more for each aggregate, for the parts of its key, and for the partial of each aggregate:
in Python, as JSON, and joined. Measured on 100,000 keys, with one aggregate and with five."""

_COLUMN_BYTES = 40
"""What a bucket takes in each column of a series, measured in the same way: 18 bytes, and twice what is sent of it."""

_STEP_US = 2_000
_ANSWER_US, _NUMBER_US, _LARGE_US = 15, 1, 200
"""What an answer costs, and more for each aggregate, and for each sketch or collection: the least of what was measured,
over keys of ten entries, and of a few blocks."""

_MANY = (list, dict, bytes)


class Costs:
    """The limits of queries about one window.

    Args:
        monoids: the window's aggregates by name.
    """

    def __init__(self, monoids: Mapping[str, Monoid]) -> None:
        large = [name for name, monoid in monoids.items() if monoid.external]
        self._aggregates = len(monoids)
        self._answer_us = _ANSWER_US + len(monoids) * _NUMBER_US + len(large) * _LARGE_US
        self._large = large[0] if large else None
        self.need: Callable[[int], None] = _ignore
        """Called with the bytes that an answer, or more of it, may take, before it is made; raises if there is no room
        for so many."""
        self._many = {name: monoid for name, monoid in monoids.items() if monoid.answer in _MANY}
        self._lists_entries = any(monoid.values_per_entry is not None for monoid in self._many.values())

    def takes_a_step(self, answers: int) -> bool:
        """Whether so many answers take no longer than about 2 ms."""
        return answers * self._answer_us <= _STEP_US

    @property
    def sized(self) -> bool:
        """Whether an answer may have many values, because an aggregate answers a list, a dict or a blob."""
        return bool(self._many)

    def check_entries(self, entries: int) -> None:
        """Check that there is memory for an answer over so many entries, if it may list them."""
        if self._lists_entries:
            self.need(ENTRY_BYTES * entries)

    def need_answers(self, answers: int, partials: bool, parts: bool, name_bytes: int = 0) -> None:
        """Check that there is memory for so many answers.

        Args:
            partials: whether they have partials.
            parts: whether their keys have parts.
            name_bytes: what the names of their keys take, all together.
        """
        each = _ANSWER_BYTES + self._aggregates * (_AGGREGATE_BYTES + _PARTIAL_BYTES * partials) + _PARTS_BYTES * parts
        self.need(answers * each + 2 * name_bytes)

    def need_buckets(self, buckets: int) -> None:
        """Check that there is memory for so many buckets of series."""
        self.need(buckets * _COLUMN_BYTES * (self._aggregates + 3))

    def check_buckets(self, buckets: int) -> None:
        """Check the number of buckets of a series.

        Raises:
            InvalidArgument: there are more than the aggregates allow.
        """
        if buckets > MAX_BUCKETS:
            raise InvalidArgument(f"{buckets} buckets in one series", field="step", limit=f"{MAX_BUCKETS} buckets")
        if self._large is not None and buckets > MAX_LARGE_BUCKETS:
            raise InvalidArgument(
                f"{buckets} buckets in one series, each with the sketch or collection of {self._large!r}",
                field="step",
                limit=f"{MAX_LARGE_BUCKETS} buckets",
            )

    def check_series(self, entries: int, whole: Mapping[str, Any], buckets: int, overlap: int, before: int = 0) -> int:
        """Check how many values the answers of a series may have, and return how many.

        Args:
            entries: the number of entries in all buckets together.
            whole: the answers over these entries. No answer of a bucket is larger.
            buckets: the number of buckets.
            overlap: the greatest number of buckets that have the same entry.
            before: how many values other series of the same question have.

        Raises:
            InvalidArgument: the answers may have too many values.
        """
        values = before
        for name, monoid in self._many.items():
            most = size_of(whole[name]) * buckets
            each = monoid.values_per_entry
            values += most if each is None else min(most, each * entries * overlap)
        if values > MAX_VALUES:
            raise InvalidArgument(
                f"up to {values} values in the answers of one series", field="step", limit=f"{MAX_VALUES} values"
            )
        self.need((values - before) * ENTRY_BYTES)
        return values

    def check_answers(self, keys: int, lookbacks: int) -> None:
        """Check the number of answers of a query.

        Raises:
            InvalidArgument: keys times lookbacks are too many.
        """
        if keys * max(lookbacks, 1) > MAX_ANSWERS:
            what = f"{keys} keys" + f" times {lookbacks} lookbacks" * (lookbacks > 1)
            raise InvalidArgument(f"{what} in one query", field="keys", limit=f"{MAX_ANSWERS} answers")

    def check_pairs(self, pairs: int, lookbacks: int) -> None:
        """Check the number of pairs of a question, and that there is memory for their answers.

        Raises:
            InvalidArgument: pairs times lookbacks are too many.
        """
        answers = pairs * max(lookbacks, 1)
        if answers > MAX_PAIR_ANSWERS:
            what = f"{pairs} pairs" + f" times {lookbacks} lookbacks" * (lookbacks > 1)
            raise InvalidArgument(f"{what} in one question", field="times", limit=f"{MAX_PAIR_ANSWERS} answers")
        self.need_buckets(answers)

    def check_compared(self, groups: int, monoids: Sequence[Monoid]) -> None:
        """Check the number of groups, or keys, that `top` and `having` compare; all their partials are there at once.

        Raises:
            InvalidArgument: there are too many, and an aggregate is a sketch or collection.
        """
        large = [monoid.function for monoid in monoids if monoid.external]
        if large and groups > MAX_ANSWERS:
            raise InvalidArgument(
                f"{groups} answers of {large[0]} to compare", field="top.by", limit=f"{MAX_ANSWERS} answers"
            )

    def check_values(self, before: int, more: int = 0) -> int:
        """Check the number of values in the answers of a query about several keys, and return it.

        Raises:
            InvalidArgument: there are too many.
        """
        values = before + more
        self.need(more * ENTRY_BYTES)
        if values > MAX_VALUES:
            raise InvalidArgument(
                f"more than {MAX_VALUES} values in the answers of one query", field="keys", limit=f"{MAX_VALUES} values"
            )
        return values

    def values_of(self, answer: Answer) -> int:
        """Return the number of values in the lists and blobs of an answer, including those of its partials."""
        values = sum(size_of(answer.aggregates[name]) for name in self._many)
        for columns in (answer.partials or {}).values():
            values += sum(size_of(blob) for column in columns if column.dtype.hasobject for blob in column.tolist())
        return values


def costs_of(spec: WindowSpec, names: Sequence[str] | None = None) -> Costs:
    """The limits of questions about one window that name some aggregates; None or empty: that ask for all."""
    return Costs({name: monoid for name, (monoid, _) in spec.monoids().items() if not names or name in names})


def size_of(answer: Any) -> int:
    """Return the number of values of an answer; eight bytes of a blob are one value.

    >>> size_of([1.5, 2.5]), size_of([{"item": "a", "count": 1}]), size_of(bytes(16)), size_of(None)
    (2, 2, 2, 1)
    """
    if isinstance(answer, bytes):
        return len(answer) // 8
    if isinstance(answer, Mapping):
        return sum(map(size_of, answer.values()))
    if isinstance(answer, Sequence) and not isinstance(answer, str):
        # All items of a list have the same form.
        return len(answer) * size_of(answer[0]) if answer else 0
    return 1


def _ignore(needed: int) -> None:
    """Takes what no service limits."""
