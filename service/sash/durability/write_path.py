"""The path of a write to a stored window: admitted, applied in memory, logged, waited for.

    admit ── in order of arrival; no image is being taken; the journal is not congested; the tier has space
    apply ── window, in memory, at a time that stands still ──▶ record ──▶ journal
    settled ── durability "sync": when the tier has the record

The write is applied before it is logged, so that its answer and its record are of one moment. Readers may see it a
moment before it is durable.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from sash.context import serving
from sash.durability import formats as values
from sash.durability.hosting import Applied
from sash.durability.images.capacity import Capacity
from sash.durability.images.checkpoints import Checkpoints
from sash.durability.images.stored_window import StoredWindow
from sash.durability.journal.session import MAKING_ROOM, TierSession
from sash.durability.records import commands as records
from sash.durability.records.columns import batch_to, size_of
from sash.durability.records.commands import Operation, Stage, Write
from sash.durability.records.derived import Derive, Drop
from sash.durability.records.shared_texts import coded_to
from sash.durability.recovery.recoverer import Recoverer
from sash_engine.clock import Clock
from sash_engine.errors import DataLoss, SashError, Unavailable
from sash_engine.windows.answers import Staged, WriteResult
from sash_engine.windows.batches.batch import AnyBatch, Origin
from sash_engine.windows.batches.ledger import Part

_RETRY_S = 1.0

R = TypeVar("R", WriteResult, Staged)

_Puts = Callable[[], Mapping[bytes, bytes]]


class WritePath:
    """The state that the writes to all stored windows of a service share.

    Args:
        session: the tier.
        checkpoints: told after each write.
        capacity: the space in the tier.
        recoverer: recovers a window in which a write failed half-way.
        list_again: writes `meta` again; returns the number of the record to wait for.
        clock: tells wall time.
    """

    def __init__(
        self,
        session: TierSession,
        checkpoints: Checkpoints,
        capacity: Capacity,
        recoverer: Recoverer,
        list_again: Callable[[], int],
        clock: Clock,
    ) -> None:
        self.session, self.checkpoints, self.capacity = session, checkpoints, capacity
        self.recoverer, self.list_again, self.clock = recoverer, list_again, clock

    # ---------------------------------------------------------------- admission

    async def admit(
        self,
        admission: asyncio.Lock,
        current: Callable[[], StoredWindow | None],
        size: int,
        applied: Applied,
        makes_room: bool,
    ) -> None:
        """Wait until a window accepts a write; see `WindowStorage.admit`.

        Args:
            admission: the window's lock: a producer's next write must not overtake this one.
            current: returns the window as it is now; None if it was deleted. Raises why it is not served.
        """
        journal = self.session.journal
        async with admission:
            while True:
                if journal.lost:
                    journal.check()
                stored = current()
                if stored is None or applied(stored.window.ledger):
                    return
                journal.check()
                if not await self._waited(stored, size, makes_room):
                    return

    def admits(self, stored: StoredWindow, size: int) -> bool:
        """Whether `admit` would let a write pass at once: nobody is before it, and it waits for nothing."""
        journal = self.session.journal
        return (
            not (stored.lock.contended or stored.admission.users)
            and stored.failure is None
            and stored.writable.is_set()
            and not (journal.congested or journal.lost)
            and journal.error is None
            and self.capacity.has_room(size)
        )

    async def _waited(self, stored: StoredWindow, size: int, makes_room: bool) -> bool:
        """Wait for one thing that the write needs. False if there is none; else anything may have changed meanwhile."""
        session = self.session
        if not stored.writable.is_set():
            await stored.writable.wait()
            return True
        if stored.lock.held:  # a question began while this write waited for something else
            await stored.lock.wait_to_write()
            return True
        if session.journal.congested:
            await session.journal.uncongested()
            return True
        if makes_room:
            session.check_room(size, MAKING_ROOM)
            return False
        return await self.capacity.reserve(size)

    # ---------------------------------------------------------------- waiting

    @property
    def last_record(self) -> int:
        """Number of the last record in the journal."""
        return self.session.journal.last

    async def durable(self, record: int) -> None:
        """Wait until the tier has what was applied, up to a record.

        Raises:
            Unavailable: it has not, for whatever reason. The write is applied, so this is no refusal.
        """
        try:
            await self.session.journal.durable(record)
        except SashError as error:
            raise _may_be_applied(error) from None


class TieredWindow:
    """A `HostedWindow` that the tier stores.

    Args:
        stored: the window.
        path: the path of its writes.
    """

    def __init__(self, stored: StoredWindow, path: WritePath) -> None:
        self.window = stored.window
        self._stored, self._path = stored, path

    @property
    def last_record(self) -> int:
        return self._path.last_record

    def apply(
        self, operation: Operation, origin: Origin | None = None, puts: _Puts | None = None, size: int = 0
    ) -> tuple[WriteResult, int]:
        """Change the window and log the write; `puts` and their `size` go into the commit of the record."""
        write = Write(operation, self._path.clock.now_ns(), origin)
        write.check(self.window)
        result = self._apply_at(write)
        return result, self.log(write, puts, size)

    def log(self, write: Write, puts: _Puts | None = None, size: int = 0) -> int:
        """Log a write that was applied just now, and do what it makes necessary; return the number to wait for."""
        if not write.changed:
            return 0
        stored, path, operation = self._stored, self._path, write.operation
        number = self._append(write, stored.durability == "sync", puts, size)
        if isinstance(operation, records.Evict):
            stored.backoff.reset()
            path.capacity.check()
        if isinstance(operation, records.Commit | records.Expire):
            stored.drop_parts(operation.dropped)  # before a checkpoint covers the write, which must list them
        if isinstance(operation, Derive | Drop):
            number = path.list_again()
        path.checkpoints.after_write(stored)
        path.session.cache.trim()
        return number

    def stage(self, operation: Stage, batch: AnyBatch) -> int:
        key = values.staged_key(self._stored.number, self.window.ledger.next_part)
        store = self._path.session.id

        def puts() -> Mapping[bytes, bytes]:
            return {key: values.seal("part", batch_to(batch, coded_to), key, store)}

        return self.apply(operation, None, puts, size_of(batch))[1]

    def tidy(self) -> None:
        stored, session = self._stored, self._path.session
        if stored.lock.held:
            stored.lock.drain()
            return
        stored.backoff.tick()
        if not stored.writable.is_set() or stored.failure is not None:
            return
        if session.journal.error is not None or not session.tier.healthy:
            return
        session.check_room(0, MAKING_ROOM)
        write = Write(records.Tidy(), self._path.clock.now_ns())
        before = self.window.left
        self._apply_at(write)
        if before != self.window.left:
            self._append(write, urgent=False)
        if expired := self.window.ledger.expired(write.now_ns):
            self.apply(records.Expire(expired))

    def _apply_at(self, write: Write) -> WriteResult:
        """Apply a write at its time."""
        with self._applying(write):
            return write.apply(self.window)

    @contextlib.contextmanager
    def _applying(self, write: Write) -> Iterator[None]:
        """Let time stand still while a write is applied, and recover the window if the write fails half-way."""
        with self._stored.clock.stopped(write.now_ns):
            try:
                yield
            except (Unavailable, DataLoss) as error:
                self._path.recoverer.begin(self._stored, error)
                raise
            except SashError:
                raise  # refused before anything was changed
            except Exception as error:
                failure = Unavailable(f"a write failed half-way: {error!r}", retry_after_s=_RETRY_S)
                self._path.recoverer.begin(self._stored, failure)
                raise

    @contextlib.contextmanager
    def alone(self, write: Write) -> Iterator[None]:
        """As `HostedWindow.alone`. The bytes of the write count as pending, and as not in blocks yet."""
        size, session = 2 * write.operation.size, self._path.session
        with self._stored.lock.exclusive():
            self._stored.begin_write()
            session.count_unstored(size)
            try:
                with self._applying(write):
                    yield
            finally:
                session.count_unstored(-size)
                self._stored.end_write()

    def _append(self, write: Write, urgent: bool, puts: _Puts | None = None, size: int = 0) -> int:
        size += write.operation.size
        self._stored.count_logged(size)
        return self._path.session.journal.append(self._stored.number, write.record, size, urgent, puts)

    async def read_parts(self, parts: Sequence[Part]) -> list[AnyBatch]:
        """As `HostedWindow.read_parts`. They stay in the tier until they are read."""
        session = self._path.session
        session.journal.check()
        with session.pins.pin(self._stored.number):
            await session.journal.durable(self.last_record)  # a part may be on its way still
            return await asyncio.to_thread(self._stored.read_together, parts)

    async def settled(self, result: R, record: int) -> R:
        result.durability = self._stored.durability
        if self._stored.durability == "sync":
            serving().applied()
            await self._path.durable(record)
        return result


def _may_be_applied(error: SashError) -> Unavailable:
    """The error for a writer whose write was applied before the tier failed."""
    return Unavailable(
        f"the write may be applied: the service has it in memory, and the tier has not confirmed it. {error.message}",
        field=error.field,
        limit=error.limit,
        retry_after_s=error.retry_after_s or _RETRY_S,
    )
