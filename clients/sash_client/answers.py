"""What calls return: frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Answer", "Counts", "WindowInfo", "WriteResult"]


@dataclass(frozen=True, slots=True)
class Answer:
    """The aggregates of the entries with `start <= time <= end`.

    Args:
        key: the key, None where the window is not keyed.
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
    """What became of a write's entries: `inserted + late` is how many it carried.

    Args:
        inserted: entries that are, or were, in the window.
        late: entries older than what the slide policy had evicted already: dropped, and counted.
        evicted: entries that the slide policy evicted as a result of this write.
    """

    inserted: int = 0
    late: int = 0
    evicted: int = 0

    def __add__(self, other: WriteResult) -> WriteResult:
        """The result of two writes together."""
        return WriteResult(self.inserted + other.inserted, self.late + other.late, self.evicted + other.evicted)


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of all entries a window was ever sent: `inserted - evicted` of them are in it."""

    inserted: int
    late: int
    evicted: int


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
