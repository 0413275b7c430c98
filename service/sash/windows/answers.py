"""What the operations answer: plain values that an edge translates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sash.windows.spec import WindowSpec

__all__ = ["Answer", "Counts", "WindowInfo", "WriteResult"]


@dataclass(slots=True)
class Answer:
    """The aggregates of the entries with `start <= time <= end`.

    `start` and `end` are None only where the answer is over everything and there is nothing. `lookback` is the
    lookback as it was asked for, None for a range or for everything. An aggregate over no entries is None
    (count and sum: 0).
    """

    key: str | None
    start: int | None
    end: int | None
    entries: int
    aggregates: dict[str, Any]
    lookback: str | None = None


@dataclass(slots=True)
class WriteResult:
    """What became of a write's entries: `inserted + late` is how many it carried."""

    inserted: int = 0
    late: int = 0
    evicted: int = 0


@dataclass(slots=True)
class Counts:
    """What became of all entries a window was ever sent: `inserted - evicted` of them are in it."""

    inserted: int = 0
    late: int = 0
    evicted: int = 0


@dataclass(slots=True)
class WindowInfo:
    """A window as `describe` and `list` show it; `oldest` and `newest` are times, None where it is empty."""

    spec: WindowSpec
    entries: int
    keys: int
    oldest: int | None
    newest: int | None
    counts: Counts
