"""What calls return, and bulks, which go both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sash_client.tables import Table, Tabular, Values, with_aggregates

__all__ = [
    "Answer",
    "Bulk",
    "Counts",
    "Page",
    "PartialColumn",
    "Series",
    "ServingProcess",
    "ShardSize",
    "Staged",
    "Topology",
    "WindowInfo",
    "WriteResult",
    "page_of",
]

PartialColumn = npt.NDArray[Any] | list[bytes]
"""One part of n partials: an array (n,), or n blobs of partials that are no numbers."""

T = TypeVar("T")


class Page(list[T]):
    """Some answers of a question.

    Attributes:
        next: the position to go on at; None after the last answers, and without a limit.
    """

    next: str | None = None
    missing_shards: Sequence[int] = ()
    """The shards that are away, whose part the answers lack; only where that is allowed."""


def page_of(answers: Sequence[T], message: Any) -> Page[T]:
    """Return answers with the position that a message says."""
    page = Page(answers)
    page.next = message.next if message.HasField("next") else None
    page.missing_shards = list(message.missing_shards)
    return page


_STRENGTHS = {"memory": 0, "interval": 1, "sync": 2}


@dataclass(frozen=True, slots=True)
class Answer:
    """The aggregates of the entries with `start <= time <= end`.

    Args:
        key: the key; None if the window is not keyed, or the answer is over several keys together.
        start: first tick of the range, inclusive; None only if the answer is over the whole of an empty window.
        end: last tick of the range, inclusive; None as `start`.
        entries: how many entries are in the range.
        aggregates: name -> answer. None stands for "no answer" (the mean of nothing); NaN and infinities are
            themselves. Sorted by name.
        lookback: the lookback as it was asked for; None for a range and for everything.
        partials: if asked for: aggregate -> the parts of its partial, each a column of one row, or of no row if there
            are no entries; as `Window.bulk_insert` takes them. Sorted by name.
        parts: the parts of the key by name, or those of the group; None where it has none.
        missing_shards: of a range: the shards that are away, whose part it lacks; only where that is allowed.
    """

    key: str | None
    start: int | None
    end: int | None
    entries: int
    aggregates: Mapping[str, Any]
    lookback: str | None = None
    partials: Mapping[str, tuple[PartialColumn, ...]] | None = field(default=None, compare=False)
    parts: Mapping[str, str] | None = None
    missing_shards: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The outcome of a write. It carried `inserted + late + duplicates + ahead` entries.

    Args:
        inserted: entries that were inserted.
        late: entries older than what the slide policy had evicted: dropped, and counted.
        evicted: entries that the slide policy evicted because of this write.
        duplicates: entries with a time that was in the window, if it keeps one entry for each time: dropped, or put in
            the place of the other.
        answers: the answers after the write, if it asked for them.
        already_applied: the write, or a part of it, was applied before. That part changed nothing and is not counted.
        durability: what the entries were given before the reply: "sync" (the tier has them), "interval" (it has them
            soon) or "memory".
        sequences: how many of its producer's numbers the write used: one for each message.
        ahead: entries too far ahead of wall time, by the spec's `order.ahead`: dropped, and counted.
        retracted, corrected: entries that a retraction removed, or that an update gave other values.
        missing: entries that a retraction or an update names, and that are not in the window.
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
    retracted: int = 0
    corrected: int = 0
    missing: int = 0

    def __add__(self, other: WriteResult) -> WriteResult:
        """Return the result of two writes together; its durability is the weaker one."""
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
            self.retracted + other.retracted,
            self.corrected + other.corrected,
            self.missing + other.missing,
        )


@dataclass(frozen=True, slots=True)
class Staged:
    """A part of a batch. The service stores it, and nobody sees it, until the batch is committed or the part expires.

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
        columns: n values for each field, by name; or n values alone if the window has one field. From the service,
            arrays (n,) by name: float64, int64, bool, or objects (str). None if there are partials.
        keys: n keys in a keyed window, or one string for all entries; from the service, objects (str) (n,).
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

    @staticmethod
    def from_frame(frame: Any, time: str | None = None, key: str | None = None) -> Bulk:
        """Return the rows of a data frame as a bulk; nothing is copied.

        Args:
            frame: a DataFrame of pandas or Polars, or a Table or RecordBatch of Arrow. Every column besides the two
                below is the field of its name.
            time: the column with the times, ticks or instants; "time" if None. With pandas, it may be a level of the
                index; a `DatetimeIndex` is the time of a frame without such a column.
            key: the column with the keys; if None, "key", if the frame has it.

        Raises:
            InvalidArgument: the frame has no such column, or two columns of one name.
        """
        from sash_client.frames import from_frame  # which needs this class

        return from_frame(frame, time, key)


@dataclass(frozen=True, slots=True, eq=False)
class Series(Tabular):
    """Answers over n buckets: bucket i has the entries with `times[i] <= time < times[i] + width`.

    As a table it has a row for each bucket, with the columns "time", "key" if it has one, or one for each part of it,
    "entries", and one for each aggregate by its name. An aggregate with the name of another column is in
    `aggregates.NAME`.

    Args:
        key: the key; None if the window is not keyed, or the answers are over several keys together.
        times: int64 (n,), ticks: where each bucket starts.
        width: ticks that a bucket is long.
        entries: int64 (n,): how many entries each bucket has.
        aggregates: name -> array (n,): float64 or int64, masked (`numpy.ma`) if some buckets have no answer; under the
            mask stands NaN, or 0. Answers that are no numbers have the dtype object, with None for no answer. Sorted by
            name.
        time_unit: what a tick is: "ns", "us", "ms", "s", or "none".
        parts: as of `Answer`.
        last: of sessions: int64 (n,), the times of their last entries, as `times` are of the first; else None.
        missing_shards: as of `Answer`.
    """

    key: str | None
    times: npt.NDArray[np.int64]
    width: int
    entries: npt.NDArray[np.int64]
    aggregates: Mapping[str, npt.NDArray[Any]]
    time_unit: str
    parts: Mapping[str, str] | None = None
    last: npt.NDArray[np.int64] | None = None
    missing_shards: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.times)

    def datetimes(self) -> npt.NDArray[np.datetime64]:
        """Return `times` as datetime64 (n,) of the window's unit, UTC; ValueError if it counts logical ticks."""
        if self.time_unit == "none":
            raise ValueError("the window counts logical ticks, which are no instants")
        return self.times.view(f"datetime64[{self.time_unit}]")

    def _table(self) -> Table:
        table = {"time": Values.times(self.times, self.time_unit)}
        for name, part in (self.parts or {}).items():
            table[name] = Values.texts([part] * len(self))
        if self.key is not None and self.parts is None:
            table["key"] = Values.texts([self.key] * len(self))
        if self.last is not None:
            table["last"] = Values.times(self.last, self.time_unit)
        table["entries"] = Values.of(self.entries)
        return with_aggregates(table, {name: Values.of(column) for name, column in self.aggregates.items()})


@dataclass(frozen=True, slots=True)
class Counts:
    """What happened to all entries that were ever sent to a window: `inserted - evicted - retracted` are in it."""

    inserted: int
    late: int
    evicted: int
    duplicates: int = 0
    ahead: int = 0
    retracted: int = 0
    corrected: int = 0


@dataclass(frozen=True, slots=True)
class WindowInfo:
    """A window as the service shows it.

    Args:
        name: its name.
        spec: its spec as a plain document, as `Client.create_window` takes it.
        entries: entries in it now, over all keys.
        keys: how many keys have entries now.
        oldest: time of the oldest entry in ticks; None if the window is empty, or keyed.
        newest: time of the newest entry of all keys in ticks; None if the window is empty.
        counts: what happened to all entries that were ever sent to it.
        durability: what writes to it are given: "sync", "interval" or "memory".
        problem: why it answers nothing at the moment; None if it answers.
        high_water_mark: the newest time in ticks that was ever inserted. It stays when entries leave; None before.
        punctuated: entries of this time and older are final; None without `slide.until`, and before the first call.
        evicted_through: no entry newer than this tick was evicted by the slide policy; None if none was.
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
    punctuated: int | None = None
    evicted_through: int | None = None


@dataclass(frozen=True, slots=True)
class ShardSize:
    """How much a shard has: entries, and bytes of writes that wait for a commit."""

    shard: int
    entries: int
    pending_bytes: int


@dataclass(frozen=True, slots=True)
class ServingProcess:
    """A process of the service.

    Args:
        number: from 0.
        up: whether it answers.
        grpc_port: the port that only this process listens on; 0 if there is none, or it is not known.
        shards: the shards that it has.
        address: host and port by which clients on any machine reach it; empty: that of the service, and `grpc_port`.
        sizes: of its shards, as far as it says.
    """

    number: int
    up: bool
    grpc_port: int
    shards: list[int]
    address: str = ""
    sizes: list[ShardSize] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Topology:
    """The processes of a service.

    Args:
        shards: how many there are.
        processes: which serve them.
    """

    shards: int
    processes: list[ServingProcess]
