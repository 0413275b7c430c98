"""What calls return: frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Answer", "Counts", "Series", "WindowInfo", "WriteResult"]


@dataclass(frozen=True, slots=True)
class Answer:
    """The aggregates of the entries with `start <= time <= end`.

    Args:
        key: the key; None where the window is not keyed, or the answer is over several keys together.
        start: first tick of the range, inclusive; None only where the answer is over everything and there is nothing.
        end: last tick of the range, inclusive; None as `start`.
        entries: how many entries are in the range.
        aggregates: name -> answer. None stands for "no answer" (the mean of nothing); NaN and infinities are
            themselves. Sorted by name.
        lookback: the lookback as it was asked for; None for a range and for everything.
    """

    key: str | None
    start: int | None
    end: int | None
    entries: int
    aggregates: Mapping[str, Any]
    lookback: str | None = None


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What became of a write's entries: `inserted + late + duplicates` is how many it carried.

    Args:
        inserted: entries that are, or were, in the window.
        late: entries older than what the slide policy had evicted already: dropped, and counted.
        evicted: entries that the slide policy evicted as a result of this write.
        duplicates: entries of a time that was there already, where the window keeps one: they were not kept, or took
            the other's place.
        answers: the answers after the write, where it asked for them.
    """

    inserted: int = 0
    late: int = 0
    evicted: int = 0
    duplicates: int = 0
    answers: tuple[Answer, ...] = ()

    def __add__(self, other: WriteResult) -> WriteResult:
        """The result of two writes together."""
        return WriteResult(
            self.inserted + other.inserted,
            self.late + other.late,
            self.evicted + other.evicted,
            self.duplicates + other.duplicates,
            self.answers + other.answers,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Answers over n buckets: bucket i has the entries with `times[i] <= time < times[i] + width`.

    Args:
        key: the key; None where the window is not keyed, or the answers are over several keys together.
        times: int64 (n,), ticks: where each bucket starts.
        width: ticks that a bucket is long.
        entries: int64 (n,): how many entries each bucket has.
        aggregates: name -> array (n,): float64 or int64, masked (`numpy.ma`) where some buckets have no answer; under
            the mask stands NaN, or 0. Of dtype object, with None for no answer, where answers are no numbers. Sorted
            by name.
        time_unit: what a tick is: "ns", "us", "ms", "s", or "none".
    """

    key: str | None
    times: npt.NDArray[np.int64]
    width: int
    entries: npt.NDArray[np.int64]
    aggregates: Mapping[str, npt.NDArray[Any]]
    time_unit: str

    def __len__(self) -> int:
        return len(self.times)

    def datetimes(self) -> npt.NDArray[np.datetime64]:
        """Return `times` as datetime64 (n,) of the window's unit, UTC; ValueError where it counts logical ticks."""
        if self.time_unit == "none":
            raise ValueError("the window counts logical ticks, which are no instants")
        return self.times.view(f"datetime64[{self.time_unit}]")


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of all entries a window was ever sent: `inserted - evicted` of them are in it."""

    inserted: int
    late: int
    evicted: int
    duplicates: int = 0


@dataclass(frozen=True, slots=True)
class WindowInfo:
    """A window as the service shows it.

    Args:
        name: its name.
        spec: its spec as a plain document, as `Client.create_window` takes it.
        entries: entries in it now, over all keys.
        keys: keys in it now.
        oldest: time of the oldest entry in ticks; None where it is empty.
        newest: time of the newest entry in ticks; None where it is empty.
        counts: what became of all entries it was ever sent.
    """

    name: str
    spec: Mapping[str, Any]
    entries: int
    keys: int
    oldest: int | None
    newest: int | None
    counts: Counts
