"""Questions as values: what is asked of a window, the same for every edge and in process.

    Query          as_of - lookback < time <= as_of     the trailing lookbacks, or everything
    RangeQuery     start <= time <= end                 one answer
    SeriesQuery    t <= time < t + width                a bucket for each t = start, start + step, … < end
    EntriesQuery   start <= time <= end                 the entries themselves

A question names one `key`, or several `keys`, or neither where the window has no keys. A question is not checked when
it is made: the window that answers it knows its limits, and raises InvalidArgument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

__all__ = ["ALL_KEYS", "AllKeys", "EntriesQuery", "KeyList", "Query", "RangeQuery", "SeriesQuery"]


class AllKeys(Enum):
    """Stands for every key that has entries."""

    ALL_KEYS = "all_keys"


ALL_KEYS: Final = AllKeys.ALL_KEYS
KeyList = Sequence[str] | Literal[AllKeys.ALL_KEYS]


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
    """

    key: str | None = None
    lookbacks: Sequence[str | int] = ()
    as_of: int | None = None
    keys: KeyList = ()
    combine: bool = False
    partials: bool = False


@dataclass(frozen=True, slots=True)
class RangeQuery:
    """The answer over start <= time <= end, of one key or over the entries of several.

    Args:
        start, end: ticks.
        key, keys: as of `Query`.
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


@dataclass(frozen=True, slots=True)
class SeriesQuery:
    """The answers over the buckets t <= time < t + width for t = start, start + step, … < end.

    Args:
        start, end: ticks.
        step, width: durations or ticks. `width` is `step` where None; where it is larger, buckets overlap.
        key, keys: as of `Query`; the entries of several keys are answered together.
        partials: answer with partials, too, of the buckets that have entries.
    """

    start: int
    end: int
    step: str | int
    width: str | int | None = None
    key: str | None = None
    keys: KeyList = ()
    partials: bool = False


@dataclass(frozen=True, slots=True)
class EntriesQuery:
    """The entries with start <= time <= end as of now, by key and (time, arrival).

    Args:
        start, end: ticks; None sets no bound.
        key, keys: as of `Query`.
        end_exclusive: take start <= time < end instead; without `end` it changes nothing.
    """

    start: int | None = None
    end: int | None = None
    key: str | None = None
    keys: KeyList = ()
    end_exclusive: bool = False
