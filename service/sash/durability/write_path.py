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
        self._session, self._checkpoints, self._capacity = session, checkpoints, capacity
        self._recoverer, self._list_again, self._clock = recoverer, list_again, clock

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
        journal = self._session.journal
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
        journal = self._session.journal
        return (
            not (stored.lock.contended or stored.admission.users)
            and stored.failure is None
            and stored.writable.is_set()
            and not (journal.congested or journal.lost)
            and journal.error is None
            and self._capacity.has_room(size)
        )

    async def _waited(self, stored: StoredWindow, size: int, makes_room: bool) -> bool:
        """Wait for one thing that the write needs. False if there is none; else anything may have changed meanwhile."""
        session = self._session
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
        return await self._capacity.reserve(size)

    # ---------------------------------------------------------------- applying

    def apply(
        self,
        stored: StoredWindow,
        operation: Operation,
        origin: Origin | None = None,
        puts: _Puts | None = None,
        size: int = 0,
    ) -> tuple[WriteResult, int]:
        """Change a window and log the write; `puts` and their `size` go into the commit of the record."""
        write = Write(operation, self._clock.now_ns(), origin)
        write.check(stored.window)
        result = self._apply_at(stored, write)
        return result, self.log(stored, write, puts, size)

    def log(self, stored: StoredWindow, write: Write, puts: _Puts | None = None, size: int = 0) -> int:
        """Log a write that was applied just now, and do what it makes necessary; return the number to wait for."""
        if not write.changed:
            return 0
        operation = write.operation
        number = self._append(stored, write, stored.durability == "sync", puts, size)
        if isinstance(operation, records.Evict):
            stored.backoff.reset()
            self._capacity.check()
        if isinstance(operation, records.Commit | records.Expire):
            stored.drop_parts(operation.dropped)  # before a checkpoint covers the write, which must list them
        if isinstance(operation, Derive | Drop):
            number = self._list_again()
        self._checkpoints.after_write(stored)
        self._session.cache.trim()
        return number

    def tidy(self, stored: StoredWindow) -> None:
        """Evict what is too old, and drop staged parts that nobody committed in time."""
        if stored.lock.held:
            stored.lock.drain()
            return
        stored.backoff.tick()
        session, window = self._session, stored.window
        if not stored.writable.is_set() or stored.failure is not None:
            return
        if session.journal.error is not None or not session.tier.healthy:
            return
        session.check_room(0, MAKING_ROOM)
        write = Write(records.Tidy(), self._clock.now_ns())
        before = window.left
        self._apply_at(stored, write)
        if before != window.left:
            self._append(stored, write, urgent=False)
        if expired := window.ledger.expired(write.now_ns):
            self.apply(stored, records.Expire(expired))

    def _apply_at(self, stored: StoredWindow, write: Write) -> WriteResult:
        """Apply a write at its time."""
        with self.applying(stored, write):
            return write.apply(stored.window)

    @contextlib.contextmanager
    def applying(self, stored: StoredWindow, write: Write) -> Iterator[None]:
        """Let time stand still while a write is applied, and recover the window if the write fails half-way."""
        with stored.clock.stopped(write.now_ns):
            try:
                yield
            except (Unavailable, DataLoss) as error:
                self._recoverer.begin(stored, error)
                raise
            except SashError:
                raise  # refused before anything was changed
            except Exception as error:
                failure = Unavailable(f"a write failed half-way: {error!r}", retry_after_s=_RETRY_S)
                self._recoverer.begin(stored, failure)
                raise

    @contextlib.contextmanager
    def alone(self, stored: StoredWindow, write: Write) -> Iterator[None]:
        """Hold a window while a write is applied in slices. Its bytes count as pending, and as not in blocks yet."""
        size = 2 * write.operation.size
        with stored.lock.exclusive():
            stored.begin_write()
            self._session.count_unstored(size)
            try:
                with self.applying(stored, write):
                    yield
            finally:
                self._session.count_unstored(-size)
                stored.end_write()

    def _append(
        self, stored: StoredWindow, write: Write, urgent: bool, puts: _Puts | None = None, size: int = 0
    ) -> int:
        size += write.operation.size
        stored.count_logged(size)
        return self._session.journal.append(stored.number, write.record, size, urgent, puts)

    # ---------------------------------------------------------------- waiting

    @property
    def last_record(self) -> int:
        """Number of the last record in the journal."""
        return self._session.journal.last

    @property
    def store(self) -> bytes:
        """Id of the store."""
        return self._session.id

    async def durable(self, record: int) -> None:
        """Wait until the tier has what was applied, up to a record.

        Raises:
            Unavailable: it has not, for whatever reason. The write is applied, so this is no refusal.
        """
        try:
            await self._session.journal.durable(record)
        except SashError as error:
            raise _may_be_applied(error) from None

    async def read_parts(self, stored: StoredWindow, parts: Sequence[Part]) -> list[AnyBatch]:
        """Return the entries of staged parts. They stay in the tier until they are read."""
        journal = self._session.journal
        journal.check()
        with self._session.pin(stored.number):
            await journal.durable(self.last_record)  # a part may be on its way still
            return await asyncio.to_thread(stored.read_together, parts)


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

    def apply(self, operation: Operation, origin: Origin | None = None) -> tuple[WriteResult, int]:
        return self._path.apply(self._stored, operation, origin)

    def alone(self, write: Write) -> contextlib.AbstractContextManager[None]:
        return self._path.alone(self._stored, write)

    def log(self, write: Write) -> int:
        return self._path.log(self._stored, write)

    def stage(self, operation: Stage, batch: AnyBatch) -> int:
        key = values.staged_key(self._stored.number, self.window.ledger.next_part)

        store = self._path.store

        def puts() -> Mapping[bytes, bytes]:
            return {key: values.seal("part", batch_to(batch, coded_to), key, store)}

        return self._path.apply(self._stored, operation, None, puts, size_of(batch))[1]

    async def read_parts(self, parts: Sequence[Part]) -> list[AnyBatch]:
        return await self._path.read_parts(self._stored, parts)

    async def settled(self, result: R, record: int) -> R:
        result.durability = self._stored.durability
        if self._stored.durability == "sync":
            serving().applied()
            await self._path.durable(record)
        return result

    def tidy(self) -> None:
        self._path.tidy(self._stored)


def _may_be_applied(error: SashError) -> Unavailable:
    """The error for a writer whose write was applied before the tier failed."""
    return Unavailable(
        f"the write may be applied: the service has it in memory, and the tier has not confirmed it. {error.message}",
        field=error.field,
        limit=error.limit,
        retry_after_s=error.retry_after_s or _RETRY_S,
    )
