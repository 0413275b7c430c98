"""The answers of the operations: plain values that an edge translates."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sash_engine.monoids.base import Array, Partials
from sash_engine.windows.spec.window import Durability, WindowSpec
from sash_wire.labels import split

T = TypeVar("T")


@dataclass(slots=True)
class Answer:
    """The aggregates of the entries with `start <= time <= end`.

    `start` and `end` are None only where the answer is over everything and there are no entries. `lookback` is the
    lookback as it was asked for, None for a range or for everything. `key` is None where the window has no keys, or
    the answer is over several. An aggregate over no entries is its `lower(identity)`: mostly None.
    """

    key: str | None
    start: int | None
    end: int | None
    entries: int
    aggregates: dict[str, Any]
    lookback: str | None = None
    partials: dict[str, Partials] | None = None
    """Where they were asked for: each aggregate's partial as columns of one row (none where there are no entries)."""
    parts: dict[str, str] | None = None
    """The parts of the key, or of the group, by name; None where it has none."""
    known_at: int | None = None
    """The number of the last arrival that it knows, for the `known_at` of later questions; None where the window keeps
    no arrivals, or the answer is over several keys."""


class Page(list[T]):
    """Some answers, and where the next ones begin.

    Attributes:
        position: what a question says to go on; None after the last answer.
    """

    position: str | None = None


@dataclass(slots=True)
class WriteResult:
    """The entries of a write, counted: it carried `inserted + late + duplicates + ahead` entries.

    `duplicates` are entries whose time had an entry already, where the window keeps one: they were dropped, or replaced
    that entry. `history` of the inserted ones were too old for the slide, and are only in the window's history. `ahead`
    are entries that were dropped as too far ahead of wall time. An insert that asked for answers
    has `answers`. `already_applied` says that a producer's retry, or a batch's second commit, changed nothing; then all
    counts are 0.

    A retraction or an update names `retracted + corrected + missing` entries; the missing ones are not in the window.
    """

    inserted: int = 0
    late: int = 0
    evicted: int = 0
    duplicates: int = 0
    answers: list[Answer] = field(default_factory=list)
    already_applied: bool = False
    durability: Durability = "memory"
    ahead: int = 0
    retracted: int = 0
    corrected: int = 0
    missing: int = 0
    history: int = 0


@dataclass(slots=True)
class LimitAnswers:
    """What one limit answered about the n rows of a write. Where a row was not decided, None stands for its answers.

    Of the lookbacks that have the row, the answers are over the one that is nearest to the limit. Of a row that went in
    they are with it, and of one that did not, without it.

    Args:
        answers: the answer that was compared.
        remaining: how far it is from the limit, at least 0; None where there is no answer.
        holds: whether the limit holds with the row.
    """

    answers: list[Any] = field(default_factory=list)
    remaining: list[Any] = field(default_factory=list)
    holds: list[bool] = field(default_factory=list)


@dataclass(slots=True)
class Admission(WriteResult):
    """What became of the n rows of a write that decides; `inserted + late + ahead + refused` is n.

    Of a retry of a producer, `admitted` is what was decided, and `limits` and `retry_after` are empty.

    Args:
        admitted: whether each row went in.
        retry_after: in how many ticks from its own time a refused row would go in, if nothing else came; None: never,
            or it was not refused by a limit. Where that is after more than 1,024 changes, it would not go in before.
        limits: the answers of each limit, in the order of the write.
        refused: how many rows a limit refused.
    """

    admitted: list[bool] = field(default_factory=list)
    retry_after: list[int | None] = field(default_factory=list)
    limits: list[LimitAnswers] = field(default_factory=list)
    refused: int = 0

    @classmethod
    def undecided(cls, rows: int, limits: int) -> Admission:
        """What became of so many rows by so many limits, before the first is decided."""
        return cls(
            admitted=[False] * rows,
            retry_after=[None] * rows,
            limits=[LimitAnswers([None] * rows, [None] * rows, [False] * rows) for _ in range(limits)],
        )

    def count(self, result: WriteResult) -> None:
        """Take over the counts of the insert of the rows."""
        for name in WriteResult.__slots__:
            setattr(self, name, getattr(result, name))


@dataclass(slots=True)
class Staged:
    """A part of a batch that is kept, invisible, until the batch is committed or the part expires.

    `stage` is the token by which a commit names it.
    """

    stage: str
    entries: int
    durability: Durability = "memory"


@dataclass(slots=True)
class Series:
    """Answers over n buckets: bucket i has the entries with `times[i] <= time < times[i] + width`.

    `times` and `entries` are int64 (n,); `aggregates` has an array (n,) each, of dtype object where answers are no
    numbers or are missing (None). `partials` is there where it was asked for: each aggregate's partials as columns, one
    row for each bucket that has entries, in order.

    Of sessions, `times` and `last` are the times of the first and of the last entry of each, and `width` is the gap.
    """

    key: str | None
    times: npt.NDArray[np.int64]
    width: int
    entries: npt.NDArray[np.int64]
    aggregates: dict[str, Array]
    partials: dict[str, Partials] | None = None
    parts: dict[str, str] | None = None
    last: npt.NDArray[np.int64] | None = None


@dataclass(slots=True)
class AnswerColumns:
    """The answers about n pairs over one lookback: row i is about pair i.

    `entries` is int64 (n,); `aggregates` has an array (n,) each, of dtype object where answers are no numbers or are
    missing (None). So is `entries` where the shards of some pairs are away: None stands there. `lookback` is as it was
    asked for; None: everything up to the times of the pairs.
    """

    entries: npt.NDArray[np.int64]
    aggregates: dict[str, Array]
    lookback: str | None = None


@dataclass(slots=True)
class Counts:
    """The counts of all entries that a window was ever sent: `inserted - evicted - retracted` of them are in it.

    `corrected` counts corrections: an entry may have had several.
    """

    inserted: int = 0
    late: int = 0
    evicted: int = 0
    duplicates: int = 0
    ahead: int = 0
    retracted: int = 0
    corrected: int = 0

    @property
    def present(self) -> int:
        """How many entries are in the window."""
        return self.inserted - self.evicted - self.retracted

    def document(self) -> dict[str, int]:
        """They as plain values. Later counts are left out where they are 0, so that earlier versions read the rest."""
        document = asdict(self)
        return {name: count for name, count in document.items() if count or name not in LATER_COUNTS}


LATER_COUNTS = ("ahead", "retracted", "corrected")
"""Counts that earlier versions do not know."""


@dataclass(slots=True)
class WindowInfo:
    """A window as `describe` and `list` show it.

    `keys` counts the keys that have entries. `oldest` and `newest` are the times of the oldest and of the newest entry,
    None where there is none; a keyed window shows no `oldest`. `high_water_mark` is the newest time that was ever
    inserted, None before the first; it does not go back when entries leave. `problem` says why the window answers
    nothing at the moment, None where it does; where it cannot be recovered, there is no telling what it has, and the
    counts are of nothing.
    """

    spec: WindowSpec
    entries: int
    keys: int
    oldest: int | None
    newest: int | None
    counts: Counts
    durability: Durability = "memory"
    problem: str | None = None
    high_water_mark: int | None = None
    punctuated: int | None = None
    """Entries of this time and older are final; None without punctuation, and before the first one."""
    evicted_through: int | None = None
    """No newer entry was evicted by the slide policy; None if none was."""
    refused: int = 0
    """Entries that limits refused since the window was made or recovered. What is refused leaves no record."""


def parts_of(spec: WindowSpec, key: str | None) -> dict[str, str] | None:
    """The parts of a key by name; None where the window's keys have none."""
    if spec.keys is None or key is None:
        return None
    return dict(zip(spec.keys, split(key, len(spec.keys)), strict=True))
