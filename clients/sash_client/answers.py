"""What calls return, but tables (`tables`) and bulks, which go both ways (`bulks`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from html import escape
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

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


class _Short:
    """What is shown in Python without the members that have their defaults."""

    __slots__ = ()

    def __repr__(self) -> str:
        shown = [each for each in fields(self) if each.repr]  # type: ignore[arg-type]
        members = [(each.name, getattr(self, each.name), each.default) for each in shown]
        texts = [f"{name}={value!r}" for name, value, default in members if value != default]
        return f"{type(self).__name__}({', '.join(texts)})"


_NOT_ADDED = ("already_applied", "durability")
_STRENGTHS = {"memory": 0, "interval": 1, "sync": 2}


@dataclass(frozen=True, slots=True, repr=False)
class Answer(_Short):
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
        known_at: of a query about a key, of a window with `known`: the number of the last arrival that the answer
            knows, so that `query` and `answers_at` can give it again; else None.
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
    known_at: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class WriteResult(_Short):
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
        history: inserted entries that were too old for the slide: they are only in the window's history.
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
    history: int = 0

    def __add__(self, other: WriteResult) -> WriteResult:
        """Return the result of two writes together; its durability is the weaker one."""
        added = [each.name for each in fields(self) if each.name not in _NOT_ADDED]
        both = {name: getattr(self, name) + getattr(other, name) for name in added}
        already_applied = self.already_applied or other.already_applied
        durability = min(self.durability, other.durability, key=lambda given: _STRENGTHS.get(given, 0))
        return WriteResult(**both, already_applied=already_applied, durability=durability)


@dataclass(frozen=True, slots=True, repr=False)
class Limit(_Short):
    """A condition for an entry to go in: an aggregate over a trailing lookback that has the entry.

        Limit("requests", "1m", 100)                         at most 100 of the key in every minute
        Limit("tokens", "1d", 5_000_000, by=["tenant"])      over all keys of the tenant together

    Args:
        aggregate: the name of an aggregate that answers a number, or `entries`.
        lookback: a duration ("1m") or ticks, as of `query`.
        value: what it is compared with.
        op: how: "<=", "<", ">=" or ">". No answer, and NaN, never compare.
        by: names of parts of keys: over all keys that agree with the entry's key in these; none: over all keys. None:
            over the entry's own key.
    """

    aggregate: str
    lookback: Any
    value: float
    op: str = "<="
    by: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class LimitAnswers:
    """The answers of one limit about n entries; None where an entry was not decided, or there is no answer.

    Args:
        answers: of the lookbacks that have the entry, the answer over the one that is nearest to the limit: with the
            entry where it went in, and without it where it did not.
        remaining: how far that is from the limit, at least 0.
        holds: whether the limit holds with the entry.
    """

    answers: tuple[Any, ...]
    remaining: tuple[Any, ...]
    holds: tuple[bool, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Admission(_Short):
    """The outcome of a write that decides, for n entries. It is true if all of them went in.

    Args:
        admitted: whether each entry went in.
        retry_after: in how many ticks from its own time a refused entry would go in, if nothing else came. None: never;
            or it went in, or no limit refused it. Where that takes more than 1,024 changes, it would not go in before.
        limits: the answers of each limit, in the order of the call.
        refused: how many entries a limit refused.
        inserted, late, evicted, ahead, history, already_applied, durability, sequences: as of `WriteResult`. If it was
            applied already, `admitted` is what was decided then, and `limits` and `retry_after` are empty.
    """

    admitted: tuple[bool, ...]
    retry_after: tuple[int | None, ...] = ()
    limits: tuple[LimitAnswers, ...] = ()
    refused: int = 0
    inserted: int = 0
    late: int = 0
    evicted: int = 0
    ahead: int = 0
    history: int = 0
    already_applied: bool = False
    durability: str = "memory"
    sequences: int = 0

    def __bool__(self) -> bool:
        return all(self.admitted)


@dataclass(frozen=True, slots=True)
class LastWrite:
    """The last write of a producer, as a window remembers it; zeros where it knows no producer of that name.

    Args:
        number: of its last write.
        epoch: of that write.
    """

    number: int
    epoch: int


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


@dataclass(frozen=True, slots=True, repr=False)
class Counts(_Short):
    """Counts of all entries that were ever sent to a window: `inserted - evicted - retracted` are in it."""

    inserted: int
    late: int
    evicted: int
    duplicates: int = 0
    ahead: int = 0
    retracted: int = 0
    corrected: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class WindowInfo(_Short):
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
    spec: Mapping[str, Any] = field(repr=False)
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

    def _repr_html_(self) -> str:
        """Return the window as HTML, which notebooks show."""
        shown = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("spec", "counts")}
        shown |= {each.name: getattr(self.counts, each.name) for each in fields(self.counts)}
        unit = self.spec.get("time_unit", "us")
        for name in ("oldest", "newest", "high_water_mark", "punctuated", "evicted_through") if unit != "none" else ():
            if (tick := shown[name]) is not None:
                shown[name] = f"{np.datetime64(tick, unit)}Z"
        shown["aggregates"] = ", ".join(self.spec.get("aggregates", {}))
        rows = [
            f"<tr><th>{name}</th><td>{escape(str(value))}</td></tr>"
            for name, value in shown.items()
            if value is not None
        ]
        return f"<table>{''.join(rows)}</table>"


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
