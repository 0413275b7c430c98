"""Writes as values: the service applies them, the journal records them, and recovery applies them again.

    [kind, now in ns, None, None, …what the kind needs]
    ["numbered", now in ns, producer, sequence, epoch, digest, kind, …what the kind needs]
    [kind, now in ns, producer, sequence, …what the kind needs]                 a numbered one, by earlier versions

Recovery relies on one rule: a write that is applied to a window in the same state, at the same `now_ns`, leads to the
same state. The result of a write (its counts) follows from it, too, and is not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np

from sash.durability.records import digests
from sash.durability.records.columns import batch_from, batch_to, size_of, texts_bytes
from sash.durability.records.derived import DROPS, Derive, Drop
from sash.durability.records.splitting import owners, split
from sash_engine.errors import DataLoss, FailedPrecondition, InvalidArgument, Unsupported
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, finished
from sash_engine.windows.answers import Admission, Answer, Staged, WriteResult
from sash_engine.windows.batches.batch import AnyBatch, Origin
from sash_engine.windows.batches.ledger import Ledger, Part
from sash_engine.windows.batches.values import Fields
from sash_engine.windows.questions import Limit
from sash_engine.windows.spec.window import WindowSpec, check_time
from sash_engine.windows.window import Window
from sash_engine.windows.writing import changes
from sash_wire.placement import shard_of

R = TypeVar("R")

_NUMBERED = "numbered"

_EXPIRES_NS_UNSAID = 3_600 * 10**9
"""How long a part is kept if its record does not say so. A replay depends on this number, so it never changes."""


class Short(Protocol):
    """One kind of write that is applied at once."""

    @property
    def kind(self) -> str:
        """Its name in a record."""

    def apply(self, window: Window, now_ns: int) -> WriteResult:
        """Change the window, or raise a `SashError` and change nothing."""

    def fields(self) -> list[Any]:
        """Return its fields in a record, as values that MessagePack knows."""

    @property
    def size(self) -> int:
        """About how many bytes `fields` has."""


class Command(Generic[R]):
    """A write that callers ask for, the same from the edge to the window; its result is an R."""

    __slots__ = ()
    kind: ClassVar[str]

    @property
    def operation(self) -> str:
        """Its name among rights and in metrics."""
        return self.kind

    @property
    def entries(self) -> int:
        """How many entries its caller's quota is charged."""
        return 0

    @property
    def size(self) -> int:
        """About how many bytes its record has."""
        return 100

    def digest(self) -> bytes:
        """Return the digest by which a producer's retry is known."""
        raise AssertionError(f"no producer numbers a write of kind {self.kind}")

    def check(self, window: Window) -> None:
        """Raise what every window of this spec would raise, by an empty one."""

    def split(self, window: str, spec: WindowSpec, shards: int) -> Mapping[int, Self]:
        """Return the parts of it by shard, where the keys of the window are spread over several. It was checked."""
        return dict.fromkeys(range(shards), self)


@dataclass(slots=True)
class Write:
    """An operation with its time and its producer."""

    operation: Operation
    now_ns: int
    origin: Origin | None = None

    def check(self, window: Window) -> None:
        """Check that the window can remember the writer. Recovery does not check this again.

        Raises:
            ResourceExhausted: the window remembers too many writers.
        """
        if self.origin is not None:
            window.ledger.check_room(self.origin, self.now_ns)
        if isinstance(self.operation, Commit):
            window.ledger.check_commit(self.operation.query, self.now_ns)

    def apply(self, window: Window) -> WriteResult:
        """Apply it to a window, which remembers its producer; raises as the operation does."""
        operation = self.operation
        if not isinstance(operation, Insert) and isinstance(operation, Long):
            return self._noted(window, finished(operation.steps(window, self.now_ns)))
        result = operation.apply(window, self.now_ns)
        return result if self.origin is None else self._noted(window, result)

    def steps(self, window: Window) -> Steps[WriteResult]:
        """As `apply`, in steps; of an operation that has some. Nobody may use the window from the first to the last."""
        assert isinstance(self.operation, Long), "only these take long"
        return self._noted(window, (yield from self.operation.steps(window, self.now_ns)))

    def _noted(self, window: Window, result: WriteResult) -> WriteResult:
        if self.origin is not None:
            decided = self.operation.decided if isinstance(self.operation, Admit) else None
            window.ledger.note(self.origin, self.now_ns, decided)
        return result

    @property
    def changed(self) -> bool:
        """Whether it changed anything, now that it was applied: else it leaves no record."""
        return self.origin is not None or not isinstance(self.operation, Admit) or len(self.operation.batch.times) > 0

    def record(self) -> list[Any]:
        """Return the record for the journal."""
        operation, origin = self.operation, self.origin
        if origin is None:
            return [operation.kind, self.now_ns, None, None, *operation.fields()]
        numbers = [origin.producer, origin.sequence, origin.epoch, origin.digest]
        return [_NUMBERED, self.now_ns, *numbers, operation.kind, *operation.fields()]


class _OfKey(Command[WriteResult]):
    """A command for one key; without one, for the whole window."""

    __slots__ = ()
    key: str | None

    def split(self, window: str, spec: WindowSpec, shards: int) -> Mapping[int, Self]:
        if self.key is None:
            return dict.fromkeys(range(shards), self)
        return {shard_of(window, self.key, shards): self}


@dataclass(slots=True)
class _OfBatch(Command[R]):
    """A command with rows."""

    batch: AnyBatch

    @property
    def entries(self) -> int:
        return len(self.batch.times)

    def split(self, window: str, spec: WindowSpec, shards: int) -> Mapping[int, Self]:
        if self.batch.keys is None or not len(self.batch.times):  # one shard takes it, or refuses it
            return {shard_of(window, None, shards): self}
        of = owners(window, self.batch, shards)
        return {shard: self._part(part, of, shard) for shard, part in split(self.batch, of).items()}

    def _part(self, batch: AnyBatch, of: Array, shard: int) -> Self:
        """The part of a shard: these rows."""
        return replace(self, batch=batch)

    def fields(self) -> list[Any]:
        return [batch_to(self.batch)]

    @property
    def size(self) -> int:
        return 100 + size_of(self.batch)


@dataclass(slots=True)
class Insert(_OfKey):
    """Insert one entry.

    `answer` and `lookbacks` are a question of the writer. It is answered after the write is logged: see `ask`.
    """

    kind: ClassVar[str] = "insert"
    time: int
    values: Mapping[str, Any]
    key: str | None = None
    answer: bool = False
    lookbacks: Sequence[str | int] = ()

    def apply(self, window: Window, now_ns: int) -> WriteResult:
        if self.lookbacks:
            window.check_answer(self.answer, self.lookbacks)
        return window.insert(self.time, self.values, self.key)

    @property
    def entries(self) -> int:
        return 1

    def digest(self) -> bytes:
        return digests.of_entry(self.time, self.values, self.key)

    def check(self, window: Window) -> None:
        check_time(self.time, "time")
        Fields(window.spec).checked(self.values)
        window.reader.checked_key(self.key)
        window.check_answer(self.answer, self.lookbacks)
        window.check_ahead(self.time)

    def ask(self, window: Window) -> list[Answer]:
        """Answer the writer's question; raises as a query does."""
        return window.query(self.key, self.lookbacks)

    def fields(self) -> list[Any]:
        return [self.time, dict(self.values), self.key]

    @property
    def size(self) -> int:
        size = 100 if self.key is None else 100 + texts_bytes([self.key])
        for value in self.values.values():
            if isinstance(value, str):
                size += texts_bytes([value])
        return size


@dataclass(slots=True)
class BulkInsert(_OfBatch[WriteResult]):
    """Insert many entries."""

    kind: ClassVar[str] = "bulk_insert"

    def steps(self, window: Window, now_ns: int) -> Steps[WriteResult]:
        """Change the window, or raise a `SashError` and change nothing. Others wait from the first step to the last."""
        return window.bulk_insert_steps(self.batch)

    def digest(self) -> bytes:
        return digests.of_bulk(self.batch)

    def check(self, window: Window) -> None:
        window.check(self.batch)


@dataclass(slots=True)
class Admit(_OfBatch[Admission]):
    """Insert the rows of a bulk with which all limits hold.

    Once it is applied, `batch` has the rows that were inserted, or dropped by the order policy, and `decided` a bit for
    each row that was sent, set where it went in. So its record has both, and recovery decides nothing.

    A part of one knows which rows of the whole it has, and its bits are about the whole: those of rows that other
    shards have are not set. So the bits of all parts together say what was decided, however the rows were split.
    """

    kind: ClassVar[str] = "admit"
    limits: Sequence[Limit] = ()
    decided: bytes | None = None
    mine: Array | None = None
    """Which rows of the whole a part has, bool for each; None: all of them."""
    deciding: bool = field(default=False, compare=False)
    """Whether nothing is changed yet by the steps that are being taken."""

    @property
    def _size(self) -> int:
        """How many rows the whole write has."""
        return self.entries if self.mine is None else len(self.mine)

    @property
    def rows(self) -> Array:
        """Where its rows stand in the whole write."""
        return np.arange(self.entries) if self.mine is None else np.flatnonzero(self.mine)

    def steps(self, window: Window, now_ns: int) -> Steps[WriteResult]:
        """As of `BulkInsert`."""
        if self.decided is not None:
            return (yield from window.insert_rows_steps(self.batch))
        self.deciding = True
        admission, rows = yield from window.admitting.decide_steps(self.batch, self.limits)
        self.deciding = False
        yield from window.admit_steps(admission, rows)
        whole = np.zeros(self._size, np.bool_)
        whole[self.rows] = admission.admitted
        self.batch, self.decided = rows, np.packbits(whole).tobytes()
        return admission

    def again(self, ledger: Ledger, origin: Origin) -> Admission:
        """What it decided when it was applied.

        Raises:
            FailedPrecondition: that is not remembered any more.
        """
        n, decided = self._size, ledger.decided(origin)
        if decided is None or len(decided) != (n + 7) // 8:
            raise FailedPrecondition(
                f"producer {origin.producer!r} has sent {origin.sequence} before: it was applied, and what it decided "
                "is not remembered any more",
                field="sequence",
            )
        bits = np.unpackbits(np.frombuffer(decided, np.uint8), count=n).astype(np.bool_)
        return Admission(admitted=bits[self.rows].tolist(), already_applied=True)

    def _part(self, batch: AnyBatch, of: Array, shard: int) -> Self:
        return replace(self, batch=batch, mine=self.mine if batch is self.batch else of == shard)

    def none(self, batch: AnyBatch) -> Self:
        """The part of a shard that has no row of it."""
        return replace(self, batch=batch, mine=np.zeros(len(self.batch.times), np.bool_))

    def digest(self) -> bytes:
        return digests.of_admit(self.batch, self.limits)

    def check(self, window: Window) -> None:
        window.admitting.check(self.batch, self.limits)

    def check_spread(self, spec: WindowSpec, shards: int) -> None:
        """Refuse limits about keys that are spread over several shards.

        Raises:
            Unsupported: each shard knows its own keys only.
        """
        for limit in self.limits:
            if limit.by is not None and shards > 1 and spec.keyed and not set(spec.labels) <= set(limit.by):
                raise Unsupported(
                    f"the keys of a group of window {spec.name!r} are on {shards} shards, none of which can decide "
                    "about all of them: a limit there is about single keys",
                    field="limits.by",
                    limit="a service of one shard",
                )

    def fields(self) -> list[Any]:
        return [batch_to(self.batch), self.decided]


@dataclass(slots=True)
class BulkEvict(_OfKey):
    """Evict all entries up to a time."""

    kind: ClassVar[str] = "bulk_evict"
    time: int
    key: str | None = None

    def apply(self, window: Window, now_ns: int) -> WriteResult:
        return WriteResult(evicted=window.bulk_evict(self.time, self.key))

    def digest(self) -> bytes:
        return digests.of_evict(self.time, self.key)

    def check(self, window: Window) -> None:
        self.apply(window, 0)

    def fields(self) -> list[Any]:
        return [self.time, self.key]


@dataclass(slots=True)
class EvictRange(_OfKey):
    """Evict all entries of a range of time: start <= time <= end."""

    kind: ClassVar[str] = "evict_range"
    start: int
    end: int
    key: str | None = None

    @property
    def operation(self) -> str:
        return BulkEvict.kind

    def apply(self, window: Window, now_ns: int) -> WriteResult:
        return WriteResult(evicted=window.evict_range(self.start, self.end, self.key))

    def digest(self) -> bytes:
        return digests.of_evict_range(self.start, self.end, self.key)

    def check(self, window: Window) -> None:
        self.apply(window, 0)

    def fields(self) -> list[Any]:
        return [self.start, self.end, self.key]


@dataclass(slots=True)
class EvictAndReset(EvictRange):
    """Evict all entries of a range of time, and take back the high-water marks that they have set."""

    kind: ClassVar[str] = "evict_and_reset"

    def apply(self, window: Window, now_ns: int) -> WriteResult:
        return WriteResult(evicted=window.evict_range(self.start, self.end, self.key, reset_mark=True))

    def digest(self) -> bytes:
        return digests.of_evict_range(self.start, self.end, self.key, self.kind)


@dataclass(slots=True)
class _Change(_OfBatch[WriteResult]):
    """A write that names entries by time, identity and key.

    Where it comes without times, it has those of the entries that were found once it is applied: so its record has
    them, and recovery looks nothing up.
    """

    retracts: ClassVar[bool]

    def steps(self, window: Window, now_ns: int) -> Steps[WriteResult]:
        """As of `BulkInsert`."""
        batch, absent = yield from window.timed_steps(self.batch, self.retracts)
        change = window.retract_steps if self.retracts else window.update_steps
        result = yield from change(batch)
        result.missing += absent
        self.batch = batch
        return result

    def digest(self) -> bytes:
        return digests.of_bulk(self.batch, self.kind.encode())

    def check(self, window: Window) -> None:
        changes.checked(window.spec, self.batch, self.retracts)


@dataclass(slots=True)
class Retract(_Change):
    """Remove the entries that a batch names."""

    kind: ClassVar[str] = "retract"
    retracts: ClassVar[bool] = True


@dataclass(slots=True)
class Update(_Change):
    """Give the entries that a batch names the values of the batch."""

    kind: ClassVar[str] = "update"
    retracts: ClassVar[bool] = False


@dataclass(slots=True)
class Punctuate(Command[WriteResult]):
    """Note that entries of a time and older are final."""

    kind: ClassVar[str] = "punctuate"
    time: int

    def apply(self, window: Window, now_ns: int) -> WriteResult:
        return WriteResult(evicted=window.punctuate(self.time))

    def fields(self) -> list[Any]:
        return [self.time]


Evict = BulkEvict | EvictRange | Punctuate | Retract
"""Writes that make room."""


def eviction_of(
    time: int | None, key: str | None, start: int | None, end: int | None, end_exclusive: bool, reset_mark: bool
) -> Evict:
    """Return the write that a call to evict asks for; raises InvalidArgument."""
    if start is None and end is None:
        if time is None:
            raise InvalidArgument("give a time, or start and end", field="time")
        if end_exclusive:
            raise InvalidArgument("end_exclusive is for a start and an end", field="end_exclusive")
        if reset_mark:
            raise InvalidArgument("reset_mark is for a start and an end", field="reset_mark")
        return BulkEvict(time, key)
    if time is not None:
        raise InvalidArgument("give either a time, or start and end", field="time")
    if start is None or end is None:
        missing = "start" if start is None else "end"
        raise InvalidArgument(f"{missing} is missing: give both start and end", field=missing)
    last = end - end_exclusive
    if start > last:
        wrong = "is not before" if end_exclusive else "is after"
        raise InvalidArgument(f"start {start} {wrong} end {end}", field="start", limit=str(last))
    return (EvictAndReset if reset_mark else EvictRange)(start, last, key)


def takes_long(operation: Operation, window: Window, is_large: bool) -> bool:
    """Return whether an operation is to be applied to a window in slices; `is_large` says whether its bulk is."""
    match operation:
        case Insert():
            return False
        case Admit():
            return window.admitting.takes_long(operation.batch, operation.limits)
        case BulkInsert():
            return is_large
        case Retract() | Update():
            return is_large or operation.batch.is_untimed
        case Derive():
            return operation.is_view
        case _:
            return False


@dataclass(slots=True)
class AddAggregates(Command[WriteResult]):
    """Add aggregates to the window."""

    kind: ClassVar[str] = "add_aggregates"
    aggregates: Mapping[str, Any]

    def apply(self, window: Window, now_ns: int) -> WriteResult:
        window.add_aggregates(self.aggregates)
        return WriteResult()

    def fields(self) -> list[Any]:
        return [dict(self.aggregates)]

    @property
    def size(self) -> int:
        return 1000


@dataclass(slots=True)
class Tidy:
    """Do what the passing of time requires."""

    kind: ClassVar[str] = "tidy"

    def apply(self, window: Window, now_ns: int) -> WriteResult:
        before = window.counts.evicted
        window.tidy()
        return WriteResult(evicted=window.counts.evicted - before)

    def fields(self) -> list[Any]:
        return []

    @property
    def size(self) -> int:
        return 100


@dataclass(slots=True)
class StageBatch(_OfBatch[Staged]):
    """Keep rows as a part of batch `number` of a query, invisible until a commit names it; the record is a `Stage`.

    `token` is the name of the part, where other shards have rows of it; None: a new one.
    """

    kind: ClassVar[str] = "stage"
    query: str
    number: int
    token: str | None = None

    def check(self, window: Window) -> None:
        window.check(self.batch)


@dataclass(slots=True)
class Stage:
    """Keep a part of a batch. Its entries are a value of their own in the tier; without a tier they are `held`.

    The part is kept until `expires_ns`, which records of earlier versions do not have.
    """

    kind: ClassVar[str] = "stage"
    token: str
    query: str
    batch: int
    entries: int
    expires_ns: int | None = None
    held: AnyBatch | None = None

    def apply(self, window: Window, now_ns: int) -> WriteResult:
        expires_ns = now_ns + _EXPIRES_NS_UNSAID if self.expires_ns is None else self.expires_ns
        window.ledger.stage(self.token, self.query, self.batch, self.entries, expires_ns, self.held)
        return WriteResult()

    def fields(self) -> list[Any]:
        return [self.token, self.query, self.batch, self.entries, self.expires_ns]

    @property
    def size(self) -> int:
        return 200


@dataclass(slots=True)
class Commit(Command[WriteResult]):
    """Apply staged parts, in this order, as one write.

    Before its steps, `batches` has the entries of its parts: the list is emptied as they are applied, so that they are
    let go. After them, `dropped` has the parts that are no longer needed.
    """

    kind: ClassVar[str] = "commit"
    query: str
    batch: int
    tokens: Sequence[str]
    batches: list[AnyBatch] = field(default_factory=list)
    dropped: list[Part] = field(default_factory=list)

    def steps(self, window: Window, now_ns: int) -> Steps[WriteResult]:
        """As of `BulkInsert`."""
        ledger = window.ledger
        ledger.named(self.query, self.batch, self.tokens)
        result = yield from window.bulk_insert_stages_steps(self.batches)
        self.dropped = ledger.commit(self.query, self.batch, now_ns)
        return result

    def fields(self) -> list[Any]:
        return [self.query, self.batch, list(self.tokens)]

    @property
    def size(self) -> int:
        return 100 + 24 * len(self.tokens)


@dataclass(slots=True)
class Expire:
    """Drop parts that were not committed in time.

    `tokens` names them. Records of earlier versions have no tokens, and mean all parts that have expired.
    """

    kind: ClassVar[str] = "expire"
    tokens: Sequence[str] | None = None
    dropped: list[Part] = field(default_factory=list)

    def apply(self, window: Window, now_ns: int) -> WriteResult:
        ledger = window.ledger
        self.dropped = ledger.drop(ledger.expired(now_ns) if self.tokens is None else self.tokens)
        return WriteResult()

    def fields(self) -> list[Any]:
        return [self.tokens]

    @property
    def size(self) -> int:
        return 100 + 24 * len(self.tokens or ())


Long = BulkInsert | Retract | Update | Admit | Commit | Derive
"""What is applied in steps, with turns for other calls where it takes long: see `takes_long`."""

Operation = Short | Long
"""One kind of write."""

_KINDS: dict[str, Callable[..., Operation]] = {
    cls.kind: cls
    for cls in (Insert, BulkEvict, EvictRange, EvictAndReset, Punctuate, AddAggregates, Tidy, Stage, Commit, Expire)
}
_KINDS["add_cascade"] = _KINDS["add_view"] = Derive
_KINDS.update({kind: partial(Drop, kind) for kind in DROPS})
_KINDS[BulkInsert.kind] = lambda payload: BulkInsert(batch_from(payload))
_KINDS[Retract.kind] = lambda payload: Retract(batch_from(payload))
_KINDS[Update.kind] = lambda payload: Update(batch_from(payload))
_KINDS[Admit.kind] = lambda payload, decided: Admit(batch_from(payload), decided=decided)


def signed(origin: Origin, command: Command[Any] | Operation) -> Origin:
    """Return the origin with the digest of the command."""
    assert isinstance(command, Command), f"no producer numbers a write of kind {command.kind}"
    return replace(origin, digest=command.digest())


def read(record: Sequence[Any], name: str) -> Write:
    """Read a write from its record.

    Args:
        record: what `Write.record` returned.
        name: name of the record, for errors.

    Raises:
        DataLoss: it is not a record.
    """
    try:
        kind, now_ns, producer, sequence, *fields = record
        origin = None if producer is None else Origin(producer, sequence)
        if kind == _NUMBERED:
            epoch, digest, kind, *fields = fields
            origin = Origin(producer, sequence, epoch, digest)
        return Write(_KINDS[kind](*fields), now_ns, origin)
    except (KeyError, TypeError, ValueError) as error:
        raise DataLoss(f"{name} holds no write that this version knows: {error}") from None
