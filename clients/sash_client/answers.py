"""What calls return, and bulks, which go both ways: frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Answer", "Bulk", "Counts", "PartialColumn", "Series", "Staged", "WindowInfo", "WriteResult"]

PartialColumn = npt.NDArray[Any] | list[bytes]
"""One part of n partials: an array (n,), or n blobs of partials that are no numbers."""

_STRENGTHS = {"memory": 0, "interval": 1, "sync": 2}


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
        partials: where they were asked for: aggregate -> its partial's parts, each a column of one row, or of none
            where there are no entries; as `Window.bulk_insert` takes them. Sorted by name.
    """

    key: str | None
    start: int | None
    end: int | None
    entries: int
    aggregates: Mapping[str, Any]
    lookback: str | None = None
    partials: Mapping[str, tuple[PartialColumn, ...]] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What became of a write's entries: `inserted + late + duplicates + ahead` is how many it carried.

    Args:
        inserted: entries that are, or were, in the window.
        late: entries older than what the slide policy had evicted already: dropped, and counted.
        evicted: entries that the slide policy evicted as a result of this write.
        duplicates: entries of a time that was there already, where the window keeps one: they were not kept, or took
            the other's place.
        answers: the answers after the write, where it asked for them.
        already_applied: it was a retry, or part of it was: that changed nothing, and is not in the counts.
        durability: what the entries were given before the reply: "sync" (the tier has them), "interval" (it has them
            soon) or "memory".
        sequences: how many of its producer's numbers it used: one a message.
        ahead: entries too far ahead of wall time, by the spec's `order.ahead`: dropped, and counted.
    """

    inserted: int = 0
    late: int = 0
    evicted: int = 0
    duplicates: int = 0
    answers: tuple[Answer, ...] = ()
    already_applied: bool = False
    durability: str = "memory"
    sequences: int = 0
    ahead: int = 0

    def __add__(self, other: WriteResult) -> WriteResult:
        """The result of two writes together; its durability is the weaker one."""
        return WriteResult(
            self.inserted + other.inserted,
            self.late + other.late,
            self.evicted + other.evicted,
            self.duplicates + other.duplicates,
            self.answers + other.answers,
            self.already_applied or other.already_applied,
            min(self.durability, other.durability, key=lambda given: _STRENGTHS.get(given, 0)),
            self.sequences + other.sequences,
            self.ahead + other.ahead,
        )


@dataclass(frozen=True, slots=True)
class Staged:
    """A part of a batch that the service keeps, invisible, until the batch is committed or the part expires.

    Args:
        stage: its name, for `Window.commit`.
        entries: how many entries it has.
        durability: as in `WriteResult`.
    """

    stage: str
    entries: int
    durability: str = "memory"


@dataclass(frozen=True, slots=True, eq=False)
class Bulk:
    """n entries as columns, as `Window.bulk_insert` takes them and `Window.entries` gives them.

    Args:
        times: n ticks or instants; from the service, int64 (n,), ticks.
        columns: n values for each field, by name; or n values alone where the window has one field. From the service,
            arrays (n,) by name: float64, int64, bool, or objects (str). None where there are partials.
        keys: n keys where the window is keyed, or one string for all of them; from the service, objects (str) (n,).
        partials: in the place of columns, for windows with a granularity: for each aggregate the parts of n partials.
        entries: with partials: int64 (n,), how many entries each row stands for.
    """

    times: Any
    columns: Any = None
    keys: Any = None
    partials: Mapping[str, Any] | None = None
    entries: Any = None

    def __len__(self) -> int:
        return len(self.times)


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
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class WindowInfo:
    """A window as the service shows it.

    Args:
        name: its name.
        spec: its spec as a plain document, as `Client.create_window` takes it.
        entries: entries in it now, over all keys.
        keys: how many keys have entries now.
        oldest: time of the oldest entry in ticks; None where it is empty, and where it is keyed.
        newest: time of the newest entry of all keys in ticks; None where it is empty.
        counts: what became of all entries it was ever sent.
        durability: what writes to it are given: "sync", "interval" or "memory".
        problem: why it answers nothing at the moment; None where it does.
        high_water_mark: the newest time in ticks that was ever inserted. It stays when entries leave; None before.
    """

    name: str
    spec: Mapping[str, Any]
    entries: int
    keys: int
    oldest: int | None
    newest: int | None
    counts: Counts
    durability: str = "memory"
    problem: str | None = None
    high_water_mark: int | None = None
