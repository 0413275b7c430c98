"""What one question may cost: everybody waits while it is answered, and its answers are in memory at once.

buckets x what each takes     numbers: a few µs; a sketch or a collection: 0.4 ms
keys x lookbacks              50 µs each
values in lists and blobs     those of all answers together
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sash_engine.errors import InvalidArgument
from sash_engine.forest.external import is_large
from sash_engine.monoids import Collect, CollectDistinct, FrequentItems, Monoid
from sash_engine.windows.answers import Answer

__all__ = ["MAX_ANSWERS", "MAX_BUCKETS", "MAX_LARGE_BUCKETS", "MAX_VALUES", "Costs"]

MAX_BUCKETS = 1_000_000
MAX_LARGE_BUCKETS = 10_000
MAX_ANSWERS = 100_000
MAX_VALUES = 2_000_000

_STEP_US = 2_000
_ANSWER_US, _NUMBER_US, _LARGE_US = 15, 1, 200
"""What an answer costs, and more for each aggregate, and for each sketch or collection: the least of what was measured,
over keys of ten entries, and of a few blocks."""

_MANY = (list, dict, bytes)
_OF_ENTRIES: dict[type[Monoid], int] = {Collect: 1, CollectDistinct: 1, FrequentItems: 4}
"""How many values an answer has for each entry, at most."""


class Costs:
    """Limits of the questions about one window.

    Args:
        monoids: its aggregates by name.
    """

    def __init__(self, monoids: Mapping[str, Monoid]) -> None:
        large = [name for name, monoid in monoids.items() if is_large(monoid)]
        self._answer_us = _ANSWER_US + len(monoids) * _NUMBER_US + len(large) * _LARGE_US
        self._large = large[0] if large else None
        self._many = {name: type(monoid) for name, monoid in monoids.items() if monoid.answer in _MANY}

    def takes_a_step(self, answers: int) -> bool:
        """Whether so many answers take no longer than about 2 ms."""
        return answers * self._answer_us <= _STEP_US

    @property
    def sized(self) -> bool:
        """Whether answers are of different sizes."""
        return bool(self._many)

    def check_buckets(self, buckets: int) -> None:
        """Raise `InvalidArgument` for a series of too many buckets."""
        if buckets > MAX_BUCKETS:
            raise InvalidArgument(f"{buckets} buckets in one series", field="step", limit=f"{MAX_BUCKETS} buckets")
        if self._large is not None and buckets > MAX_LARGE_BUCKETS:
            raise InvalidArgument(
                f"{buckets} buckets in one series, each with the sketch or collection of {self._large!r}",
                field="step",
                limit=f"{MAX_LARGE_BUCKETS} buckets",
            )

    def check_series(self, entries: int, whole: Mapping[str, Any], buckets: int, overlap: int) -> None:
        """Raise `InvalidArgument` for a series whose answers may have too many values.

        Args:
            entries: how many there are in all its buckets.
            whole: the answers over these, than which none of a bucket is larger.
            buckets: how many there are.
            overlap: in how many of them one entry may be.
        """
        values = 0
        for name, function in self._many.items():
            most = size_of(whole[name]) * buckets
            values += min(most, _OF_ENTRIES[function] * entries * overlap) if function in _OF_ENTRIES else most
        if values > MAX_VALUES:
            raise InvalidArgument(
                f"up to {values} values in the answers of one series", field="step", limit=f"{MAX_VALUES} values"
            )

    def check_answers(self, keys: int, lookbacks: int) -> None:
        """Raise `InvalidArgument` for so many lookbacks of so many keys."""
        if keys * max(lookbacks, 1) > MAX_ANSWERS:
            what = f"{keys} keys" + f" times {lookbacks} lookbacks" * (lookbacks > 1)
            raise InvalidArgument(f"{what} in one query", field="keys", limit=f"{MAX_ANSWERS} answers")

    def check_values(self, values: int) -> None:
        """Raise `InvalidArgument` where the answers of several keys have too many values."""
        if values > MAX_VALUES:
            raise InvalidArgument(
                f"more than {MAX_VALUES} values in the answers of one query", field="keys", limit=f"{MAX_VALUES} values"
            )

    def values_of(self, answer: Answer) -> int:
        """How many values an answer has in its lists and blobs, those of its partials, too."""
        values = sum(size_of(answer.aggregates[name]) for name in self._many)
        for columns in (answer.partials or {}).values():
            values += sum(size_of(blob) for column in columns if column.dtype.hasobject for blob in column.tolist())
        return values


def size_of(answer: Any) -> int:
    """How many values an answer has; a blob, one for every eight bytes.

    >>> size_of([1.5, 2.5]), size_of([{"item": "a", "count": 1}]), size_of(bytes(16)), size_of(None)
    (2, 2, 2, 1)
    """
    if isinstance(answer, bytes):
        return len(answer) // 8
    if isinstance(answer, Mapping):
        return sum(map(size_of, answer.values()))
    if isinstance(answer, Sequence) and not isinstance(answer, str):
        # Those of one list are alike.
        return len(answer) * size_of(answer[0]) if answer else 0
    return 1
