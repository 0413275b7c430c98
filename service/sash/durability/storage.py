"""Storage: what keeps windows through restarts, and keeps most of a large one out of memory.

    write ─▶ window (memory) ─▶ journal ─▶ tier ─▶ answered          journal.py
    sealed blocks ─────────────▶ tier, and out of memory             stored_window.py, forest/cold.py
    every 64 MiB of journal: an image of the rest ─▶ tier            stored_window.py, image.py
    recovery: image, then the journal behind it

    meta                                  the windows: number, durability, spec
    pointer(w), image(w, v, i), block(w, i), staged(w, i)            of window w: see stored_window.py
    journal, group(1), group(2), …        where the journal begins; records of all windows, in order

A write is applied in memory first, so that what it answers and what the journal keeps are of one moment; readers may
see it a moment before it is durable. It is *answered* when it is as durable as the window's spec says.

A tier that is full takes no new entries, and all that makes room: see capacity.py.

A window whose state is in doubt (the tier failed in the middle of a write that had to read a cold block) answers
nothing until it is recovered from the tier, by itself.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sash.durability import formats as values
from sash.durability import records
from sash.durability.capacity import Capacity
from sash.durability.catalogue import Catalogue
from sash.durability.checkpoints import Checkpoints
from sash.durability.export import Importer, export
from sash.durability.footprint import COPIES, ROW_BYTES, footprint
from sash.durability.journal import MIB, anew
from sash.durability.listing import Listing
from sash.durability.records import Operation, Write
from sash.durability.recovery import recover, recover_again
from sash.durability.retrying import RetryingTier
from sash.durability.roots import Start
from sash.durability.session import MAKING_ROOM, TierSession
from sash.durability.stored_window import StoredWindow
from sash.durability.tier import ColdTier
from sash.limits.memory import MemoryBudget, StagedBytes, unlimited
from sash_engine.clock import Clock, ForwardClock
from sash_engine.errors import AlreadyExists, DataLoss, FailedPrecondition, SashError, TooLarge, Unavailable
from sash_engine.forest import BLOCK
from sash_engine.windows.answers import Staged, WindowInfo, WriteResult
from sash_engine.windows.batch import Batch, Origin
from sash_engine.windows.ledger import PART_EXPIRES_NS, Ledger, Part
from sash_engine.windows.questions import EntriesQuery
from sash_engine.windows.spec import Durability, WindowSpec
from sash_engine.windows.window import Window

__all__ = ["Storage", "StorageStatus"]

_log = logging.getLogger(__name__)

_RETRY_S = 1.0
_WRITE_BYTES_MAX = values.VALUE_BYTES_MAX - MIB
"""A write is one value in the journal, or staged; more than enough is left for what is around it."""
_RECOVERY_PAUSE_MAX_S = 60.0
"""A window in which writes meet a damaged block again and again is recovered after each, but no more often than so."""

T = TypeVar("T")


@dataclass(slots=True)
class StorageStatus:
    """What metrics show of a storage."""

    tier: str
    error: str | None
    used_bytes: int | None
    limit_bytes: int | None
    pending_bytes: int
    commits: int
    records: int
    journal_groups: int
    checkpoints: int
    cache_bytes: int
    cache_hits: int
    cache_misses: int
    damaged: int


class Storage:
    """The windows of one service, on a tier or in memory only.

    Args:
        catalogue: the windows.
        clock: tells wall time.
        tier: where windows are kept; None keeps them in memory.
        cache_bytes: how much of all sealed blocks that are in the tier may be in memory as well.
        checkpoint_bytes: after so much journal a window is checkpointed.
        store_entries: with so many entries in sealed blocks that the tier lacks, a window writes them.
        interval_s: how long writes to windows of durability "interval" may gather.
        block: entries per sealed block of new windows.
        sleep: waits for so many seconds, and blocks: while the tier is unavailable at the start.
        memory: bounds what windows and staged parts may take; None: nothing does.

    All methods belong to the event loop.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        clock: Clock,
        tier: ColdTier | None = None,
        *,
        cache_bytes: int = 256 * MIB,
        checkpoint_bytes: int = 64 * MIB,
        store_entries: int = 32_768,
        interval_s: float = 0.1,
        block: int = BLOCK,
        sleep: Callable[[float], None] = time.sleep,
        memory: MemoryBudget | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._memory = memory or unlimited()
        self._staged = StagedBytes(self._memory)
        # What wall time brings in between leaves no record; set back, it would be undone by a recovery.
        self._clock = clock = ForwardClock(clock)
        self._block = block
        self._sleep = sleep
        self._store_entries = store_entries
        self._session = None if tier is None else TierSession(tier, cache_bytes, interval_s, clock)
        self._stored: dict[str, StoredWindow] = {}
        self._checkpoints: Checkpoints | None = None
        self._capacity: Capacity | None = None
        self._listing: Listing | None = None
        if self._session is not None:
            self._checkpoints = Checkpoints(self._session, self._stored, clock, checkpoint_bytes, store_entries)
            self._capacity = Capacity(self._session, self._stored, self._checkpoints.taken)
            self._listing = Listing(self._session, self._stored, self._checkpoints.trim)
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = False

    # ---------------------------------------------------------------- life

    async def start(self) -> None:
        """Take the tier and recover what it has, for as long as `RetryingTier` tries.

        Raises:
            SashError: what `ColdTier.acquire` and `recover` do.
        """
        session = self._session
        if session is None:
            return
        tier = session.tier
        session.tier = RetryingTier(tier, self._clock, self._sleep)
        try:
            session.tier.acquire()
            try:
                found = recover(session, self._make_stored)
                for stored in found.windows:
                    self._put(stored)
                session.journal.start(*found.journal)
                go_on = self._listing_there.resume(found)
            except BaseException:
                await session.journal.stop(0)
                tier.close()
                raise
        finally:
            session.tier = tier
        self._running = True
        if not session.journal.last:
            # Both are there from now on, so that one that is missing is noticed. All else comes behind them.
            self._listing_there.write(Start().puts())
        go_on()

    async def stop(self, patience_s: float = 30.0) -> None:
        """Bring the tier up to date, so that the next start is quick, and let go of it."""
        session = self._session
        if session is None or not self._running:
            return  # what was not recovered in full must not be written back
        self._running = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._capacity_there.stop()
        if session.journal.error is None:
            await self._checkpoints_there.bring_up_to_date()
        if not await session.journal.stop(patience_s):
            _log.warning("the tier did not take everything in time; what was acknowledged is in its journal")
        session.tier.close()

    @property
    def problem(self) -> str | None:
        """Why durable writes are refused at the moment; None where they are taken."""
        if self._session is None or self._capacity is None:
            return None
        error = self._session.journal.error or self._capacity.full()
        if error is not None:
            return error.message
        tier = self._session.tier
        return None if tier.healthy else f"the tier ({tier.name}) cannot be reached"

    @property
    def cache_bytes(self) -> int:
        """How many bytes of stored blocks are in memory."""
        return 0 if self._session is None else self._session.cache.used_bytes

    @property
    def pending_bytes(self) -> int:
        """How many bytes of writes wait for a commit."""
        return 0 if self._session is None else self._session.journal.pending_bytes

    def status(self) -> StorageStatus | None:
        """Figures for the metrics; None where there is no tier."""
        session = self._session
        if session is None:
            return None
        journal, cache = session.journal, session.cache
        return StorageStatus(
            tier=session.tier.name,
            error=self.problem,
            used_bytes=session.tier.used_bytes,
            limit_bytes=session.tier.limit_bytes,
            pending_bytes=journal.pending_bytes,
            commits=journal.commits,
            records=journal.committed_records,
            journal_groups=journal.groups,
            checkpoints=self._checkpoints_there.count,
            cache_bytes=cache.used_bytes,
            cache_hits=cache.hits,
            cache_misses=cache.misses,
            damaged=len(session.damaged),
        )

    # ---------------------------------------------------------------- windows

    def find(self, name: str) -> Window:
        """The window of that name, to read it.

        Raises:
            NotFound: there is none.
            Unavailable: it is being recovered.
            DataLoss, FailedPrecondition: it cannot be.
        """
        stored = self._stored.get(name)
        if stored is not None and stored.failure is not None:
            raise _unserved(stored)
        window = self._catalogue.find(name)
        window.reader.check_memory = self._check_answer
        return window

    def _check_answer(self, needed: int) -> None:
        self._memory.check(needed, transient=True)

    def info(self, window: Window) -> WindowInfo:
        """A window as `describe` shows it."""
        info = window.info()
        stored = self._stored.get(window.spec.name)
        if stored is not None:
            info.durability = stored.durability
            info.problem = None if stored.failure is None else _unserved(stored).message
        return info

    def all(self) -> list[WindowInfo]:
        """All windows as `list` shows them."""
        return [self.info(window) for window in self._catalogue.all()]

    async def create(self, spec: WindowSpec) -> tuple[Window, bool]:
        """Create a window, or find the one of this very spec; raises as `Catalogue.create`, and as a write does."""
        durability = self._durability(spec)
        if spec.name not in self._catalogue:
            self._memory.check(0)
        if durability == "memory":
            return self._catalogue.create(spec, self._in_memory)
        if spec.name not in self._catalogue:
            self._checked_session()
            await self._capacity_there.make(0)

        def make(spec: WindowSpec, max_keys: int) -> Window:
            stored = self._stored[spec.name] = self._new(spec, durability)
            return stored.window

        window, created = self._catalogue.create(spec, make)
        if created:
            await self._in_tier(self._listing_there.write(self._stored[spec.name].first_pointer()))
        else:
            self.find(spec.name)
            await self._in_tier(self._last())  # its first commit may be on its way still
        return window, created

    async def delete(self, name: str) -> int:
        """Delete a window and all that the tier has of it; return how many entries it had."""
        stored = self._stored.get(name)
        if stored is not None:
            remains = stored.remains()
            self._checked_session().check_room(0, MAKING_ROOM)
            counts = self._catalogue.delete(name).counts
            self._staged.forget(name)
            del self._stored[name]
            await self._in_tier(self._listing_there.give_up(stored, remains))
        else:
            if self._session is not None and name not in self._catalogue:
                await self._in_tier(self._last())  # that there is none may be on its way still
            counts = self._catalogue.delete(name).counts
            self._staged.forget(name)
        return counts.inserted - counts.evicted

    def _durability(self, spec: WindowSpec) -> Durability:
        """What writes to a window of this spec are given; FailedPrecondition where it asks for more than there is."""
        wanted = spec.durability
        lacking = None
        if self._session is None:
            lacking = "this service keeps windows in memory only"
        elif spec.algorithm is not None:
            lacking = f"{spec.algorithm} keeps partials and no values, so that its windows are in memory only"
        if lacking is None:
            return wanted or "sync"
        if wanted in ("sync", "interval"):
            raise FailedPrecondition(f"durability {wanted!r} cannot be had: {lacking}", field="durability")
        return "memory"

    def _in_memory(self, spec: WindowSpec, max_keys: int) -> Window:
        return Window(spec, max_keys, self._block, clock=self._clock)

    def _new(self, spec: WindowSpec, durability: Durability) -> StoredWindow:
        stored = self._make_stored(self._listing_there.take_number(), spec, durability)
        stored.through = self._last()  # no record up to now is one of it
        return stored

    def _make_stored(self, number: int, spec: WindowSpec, durability: Durability) -> StoredWindow:
        assert self._session is not None
        return StoredWindow(self._session, number, spec, durability, self._clock, self._catalogue.max_keys, self._block)

    def _put(self, stored: StoredWindow) -> None:
        """Serve a window, in the place of one of its name if there is one."""
        self._stored[stored.name] = stored
        self._catalogue.put(stored.window)

    # ---------------------------------------------------------------- writes

    async def write(self, name: str, operation: Operation, origin: Origin | None = None) -> WriteResult:
        """Apply a write to a window, and wait until it is as durable as the window's spec says.

        Raises:
            Unavailable: the tier does not take it now. Where the message says that the write may be applied, it is in
                the window, and becomes durable when the tier takes it; a producer's retry finds out. Else nothing has
                changed.
            OutOfRoom: the tier is full. Nothing has changed.
            SashError: what the operation raises; nothing has changed, unless the message says that the entry is taken:
                then the writer has asked for an answer, and there is none.
        """
        size = operation.size
        self._check_size(name, size)
        origin = None if origin is None else records.signed(origin, operation)

        def applied(ledger: Ledger) -> bool:
            return origin is not None and ledger.applied(origin)

        window, stored = await self._admit(name, size, applied, isinstance(operation, records.BulkEvict))
        if applied(window.ledger):
            return await self._settled(WriteResult(already_applied=True), self._last(), stored)
        if isinstance(operation, records.BulkInsert):
            self._memory.check(footprint(window.spec, operation.batch))
        elif not isinstance(operation, records.BulkEvict):
            self._memory.check(COPIES * size)
        result, number = self._apply(window, stored, operation, origin)
        failed = self._answer(window, operation, result)
        result = await self._settled(result, number, stored)
        if failed is not None:
            raise _unanswered(failed, result)
        return result

    def _answer(self, window: Window, operation: Operation, result: WriteResult) -> SashError | None:
        """Answer who inserted and asked, or say why that cannot be done: the entry is taken and logged all the same."""
        if not isinstance(operation, records.Insert) or not operation.answer:
            return None
        try:
            result.answers = operation.ask(window)
        except SashError as error:
            return error
        finally:
            self.trim()
        return None

    async def stage(self, name: str, batch: Batch, query: str, number: int, token: str | None = None) -> Staged:
        """Keep a part of a batch, see `Plane.stage`; under a `token` that it had elsewhere, or a new one."""
        size = values.size_of(batch)
        self._check_size(name, size)
        window, stored = await self._admit(name, size)
        window.ledger.check_stage(query, number)
        window.check(batch)
        self._staged.check(size)
        self._memory.check(COPIES * size)
        token, entries, part = token or secrets.token_hex(8), len(batch.times), window.ledger.next_part
        operation = records.Stage(token, query, number, entries, self._clock.now_ns() + PART_EXPIRES_NS)
        if stored is None:
            operation.held = batch
            _, logged = self._apply(window, None, operation)
        else:
            key = values.staged_key(stored.number, part)

            def puts() -> Mapping[bytes, bytes]:
                return {key: values.seal("part", values.batch_to(batch), key)}

            _, logged = self._apply(window, stored, operation, None, puts, size)
        self._staged.add(name, part, size)
        return await self._settled(Staged(token, entries), logged, stored)

    async def commit(self, name: str, query: str, number: int, stages: Sequence[str]) -> WriteResult:
        """Apply staged parts, once; see `Plane.commit`."""

        def committed(ledger: Ledger) -> bool:
            return ledger.committed(query, number)

        window, stored = await self._admit(name, 0, committed)
        batches: Sequence[Batch] = ()
        if not committed(window.ledger):
            parts = window.ledger.named(query, number, stages)
            self._memory.check(sum(COPIES * ROW_BYTES * part.entries for part in parts))
            if stored is None:
                batches = [part.held for part in parts if part.held is not None]
            else:
                batches = await self._brought(stored, parts)
                # Meanwhile another commit may have been quicker, or the window may be gone.
                if (await self._admit(name, 0, committed))[0] is not window:
                    raise Unavailable(f"window {name!r} is another one now", retry_after_s=_RETRY_S)
        if committed(window.ledger):
            return await self._settled(WriteResult(already_applied=True), self._last(), stored)
        operation = records.Commit(query, number, stages, lambda _: batches)
        result, logged = self._apply(window, stored, operation)
        return await self._settled(result, logged, stored)

    def _check_size(self, name: str, size: int) -> None:
        """Refuse what would be a longer value than a tier takes."""
        if name in self._stored and size > _WRITE_BYTES_MAX:
            raise TooLarge(
                f"a write of {size / MIB:.0f} MiB is too large where windows are kept: send it in parts",
                field="time",
                limit=f"{_WRITE_BYTES_MAX // MIB} MiB",
            )

    async def _brought(self, stored: StoredWindow, parts: Sequence[Part]) -> list[Batch]:
        """The entries of staged parts, which stay in the tier for as long as it takes."""
        session = self._checked_session()
        with session.pin(stored.number):
            await session.journal.durable(self._last())  # a part may be on its way still
            return await asyncio.to_thread(stored.read_parts, parts)

    def tidy(self) -> None:
        """Do what time alone brings, to every window; to be called about once a second."""
        for window in self._catalogue.all():
            try:
                self._tidy(window, self._stored.get(window.spec.name))
            except SashError as error:
                _log.warning("window %r cannot be tidied now: %s", window.spec.name, error.message)
            except Exception:
                _log.exception("window %r cannot be tidied", window.spec.name)  # others can
        if self._session is not None:
            self._checkpoints_there.shorten_journal()
            self._session.end_idle_pins()
            self._capacity_there.look()
        self.trim()

    def _tidy(self, window: Window, stored: StoredWindow | None) -> None:
        if stored is not None:
            stored.resting = max(stored.resting - 1, 0)
            session = self._session
            assert session is not None
            if not stored.still.is_set() or stored.failure is not None:
                return
            if session.journal.error is not None or not session.tier.healthy:
                return
            session.check_room(0, MAKING_ROOM)
        write = Write(records.Tidy(), self._clock.now_ns())
        before = window.counts.evicted, window.keys_there
        self._at(window, stored, write)
        if stored is not None and before != (window.counts.evicted, window.keys_there):
            self._log(stored, write, urgent=False)
        if expired := window.ledger.expired(write.now_ns):
            self._apply(window, stored, records.Expire(expired))

    def trim(self) -> None:
        """Let columns of stored blocks go that are too many; between operations only."""
        if self._session is not None:
            self._session.cache.trim()

    def _apply(
        self,
        window: Window,
        stored: StoredWindow | None,
        operation: Operation,
        origin: Origin | None = None,
        puts: Callable[[], Mapping[bytes, bytes]] | None = None,
        size: int = 0,
    ) -> tuple[WriteResult, int]:
        """Change the window and append the record; the number of the record, 0 where there is none."""
        write = Write(operation, self._clock.now_ns(), origin)
        write.check(window)
        result = self._at(window, stored, write)
        if isinstance(operation, records.Commit | records.Expire):
            for part in operation.dropped:
                self._staged.drop(window.spec.name, part.number)
        if stored is None:
            return result, 0
        number = self._log(stored, write, stored.durability == "sync", puts, size)
        if isinstance(operation, records.BulkEvict):
            stored.resting, stored.pause = 0, 1
            self._capacity_there.look()
        if isinstance(operation, records.Commit | records.Expire):
            stored.drop_parts(operation.dropped)  # before a checkpoint covers it, which is to name them
        self._checkpoints_there.relieve(stored)
        self.trim()
        return result, number

    def _at(self, window: Window, stored: StoredWindow | None, write: Write) -> WriteResult:
        """Apply a write at its time."""
        if stored is None:
            return write.apply(window)
        stored.clock.stopped = write.now_ns
        try:
            return write.apply(window)
        except (Unavailable, DataLoss) as error:
            self._fail(stored, error)
            raise
        except SashError:
            raise  # refused before anything was changed
        except Exception as error:
            self._fail(stored, Unavailable(f"a write failed half-way: {error!r}", retry_after_s=_RETRY_S))
            raise
        finally:
            stored.clock.stopped = None

    def _log(
        self,
        stored: StoredWindow,
        write: Write,
        urgent: bool,
        puts: Callable[[], Mapping[bytes, bytes]] | None = None,
        size: int = 0,
    ) -> int:
        assert self._session is not None
        size += write.operation.size
        stored.logged_bytes += size
        stored.add_unstored(size)
        return self._session.journal.append(stored.number, write.record, size, urgent, puts)

    async def _admit(
        self, name: str, size: int, applied: Callable[[Ledger], bool] = lambda _: False, makes_room: bool = False
    ) -> tuple[Window, StoredWindow | None]:
        """Return the window to write to, once the tier takes the write; nothing else runs before it is applied.

        Args:
            name: the window's.
            size: how many bytes the write has.
            applied: whether it was applied before. Such a write needs no room, and is not refused for what the tier
                lacks: its record may be pending, and becomes durable when the tier takes it.
            makes_room: it evicts.

        Raises:
            SashError: what `write` and `find` do.
        """
        if name in self._stored:
            journal = self._session_there.journal
            async with self._stored[name].admission:  # in order: a producer's next write must not overtake this one
                while journal.lost or not applied(self.find(name).ledger):
                    journal.check()
                    if not await self._waited(name, size, makes_room):
                        break
        return self.find(name), self._stored.get(name)

    async def _waited(self, name: str, size: int, makes_room: bool) -> bool:
        """Wait for one of the things that a write needs; whether there was any. Meanwhile anything may have changed."""
        session = self._session_there
        stored = self._stored.get(name)
        if stored is not None and not stored.still.is_set():  # an image of it is taken
            await stored.still.wait()
            return True
        if session.journal.congested:
            await session.journal.uncongested()
            return True
        if makes_room:
            session.check_room(size, MAKING_ROOM)
            return False
        return await self._capacity_there.make(size)

    @property
    def _listing_there(self) -> Listing:
        assert self._listing is not None, "there is a tier where there is a window that it keeps"
        return self._listing

    @property
    def _checkpoints_there(self) -> Checkpoints:
        assert self._checkpoints is not None, "there is a tier where there is a window that it keeps"
        return self._checkpoints

    @property
    def _capacity_there(self) -> Capacity:
        assert self._capacity is not None, "there is a tier where there is a window that it keeps"
        return self._capacity

    @property
    def _session_there(self) -> TierSession:
        assert self._session is not None, "there is a tier where there is a window that it keeps"
        return self._session

    def _checked_session(self) -> TierSession:
        """The tier, where it takes writes; raises why not."""
        self._session_there.journal.check()
        return self._session_there

    async def _settled(self, result: T, number: int, stored: StoredWindow | None) -> T:
        """The result of a write, once it is durable."""
        if stored is not None:
            result.durability = stored.durability  # type: ignore[attr-defined]  # results of writes have it
            if stored.durability == "sync":
                await self._in_tier(number)
        return result

    async def _in_tier(self, number: int) -> None:
        """Wait until the tier has what was applied, up to record `number`.

        Raises:
            Unavailable: it does not, whatever the reason: what was applied is no refusal.
        """
        try:
            await self._session_there.journal.durable(number)
        except SashError as error:
            raise _may_be_applied(error) from None

    def _last(self) -> int:
        return 0 if self._session is None else self._session.journal.last

    # ---------------------------------------------------------------- whole windows out and in

    def entries(self, name: str, question: EntriesQuery) -> Iterator[Batch]:
        """See `Plane.entries`."""
        return self._pinned(name, iter(self.find(name).reader.entries(question)))

    def export(self, name: str) -> Iterator[bytes]:
        """See `Plane.export`."""
        window = self.find(name)
        return self._pinned(name, export(window))

    def _pinned(self, name: str, parts: Iterator[T]) -> Iterator[T]:
        """Iterate, while nothing is deleted that the rest of the iteration may need."""
        stored = self._stored.get(name)
        return parts if stored is None or self._session is None else self._session.pinned(stored.number, parts)

    async def restore(self, parts: AsyncIterator[bytes], name: str | None) -> Window:
        """See `Plane.restore`."""
        made: list[StoredWindow] = []

        def make(spec: WindowSpec) -> Window:
            self._check_new(spec)
            durability = self._durability(spec)
            if durability == "memory":
                return self._in_memory(spec, self._catalogue.max_keys)
            self._checked_session()
            made.append(self._new(spec, durability))
            return made[0].window

        importer = Importer(make, name)
        try:
            async for part in parts:
                self._memory.check(COPIES * len(part))
                importer.feed(part)
                if made:
                    await self._keep_up(made[0])
                self.trim()
            window = importer.finish()
            if made:
                await self._keep_up(made[0])
                await self._keep(made[0])
            self._check_new(window.spec)
        except BaseException:
            for stored in made:
                self._listing_there.give_up(stored, stored.remains())
            raise
        self._catalogue.put(window)
        for stored in made:
            self._stored[stored.name] = stored
            await self._in_tier(self._listing_there.arrived(stored))
        return window

    async def _keep_up(self, stored: StoredWindow) -> None:
        """Store what was imported so far of a window that is not listed yet."""
        session = self._checked_session()
        await self._capacity_there.make(0)
        expected = self._listing_there.expect(stored)
        if expected is not None:
            await session.journal.durable(expected)
        stored.store(self._store_entries)
        await session.journal.uncongested()

    def _check_new(self, spec: WindowSpec) -> None:
        self._catalogue.check_room()
        if any(window.spec.name == spec.name for window in self._catalogue.all()):
            raise AlreadyExists(f"there is a window {spec.name!r} already", field="name")

    async def _keep(self, stored: StoredWindow) -> None:
        """Bring a window that is not listed yet into the tier, whole."""
        journal = self._checked_session().journal
        counts = asyncio.get_running_loop().create_future()
        for _ in stored.checkpoint(lambda: counts.set_result(None), counts.set_exception):
            await asyncio.sleep(0)
        while not counts.done():
            await asyncio.wait([counts], timeout=_RETRY_S)
            journal.check()
        counts.result()

    # ---------------------------------------------------------------- doubt

    def _fail(self, stored: StoredWindow, error: SashError) -> None:
        """A write failed half-way: recover the window."""
        if stored.failure is not None or stored.deleted:
            return
        _log.warning("window %r is recovered from the tier: %s", stored.name, error.message)
        stored.failure = error
        task = asyncio.get_running_loop().create_task(self._recover_failed(stored))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _recover_failed(self, stored: StoredWindow) -> None:
        assert self._session is not None
        if isinstance(stored.failure, DataLoss) and stored.losses:
            await asyncio.sleep(min(2.0**stored.losses, _RECOVERY_PAUSE_MAX_S))
        while True:
            # What is pending belongs to the window, too; and so does an image that it has begun.
            await self._session.journal.passed()
            if stored.deleted:
                return
            if stored.checkpointing:
                continue
            try:
                with self._checkpoints_there.trimming_paused():
                    fresh = await recover_again(self._session, stored, self._make_stored)
            except SashError as error:
                _log.warning("window %r cannot be recovered yet: %s", stored.name, error.message)
            except Exception:
                _log.exception("window %r cannot be recovered yet", stored.name)
            else:
                if stored.deleted:
                    fresh.clear_unstored()
                    fresh.cold.forget()
                else:
                    self._replace(stored, fresh)
                return
            await asyncio.sleep(_RETRY_S)

    def _replace(self, stored: StoredWindow, fresh: StoredWindow) -> None:
        """Serve a window as it was recovered."""
        stored.deleted = True  # nothing of it is under way
        stored.clear_unstored()
        stored.cold.forget()
        self._put(fresh)
        _log.warning("window %r is recovered", stored.name)


def _may_be_applied(error: SashError) -> Unavailable:
    """What a writer is told whose write was applied before the tier failed."""
    return Unavailable(
        f"the write may be applied: the service has it in memory, and the tier has not confirmed it. {error.message}",
        field=error.field,
        limit=error.limit,
        retry_after_s=error.retry_after_s or _RETRY_S,
    )


def _unanswered(error: SashError, result: WriteResult) -> SashError:
    """What a writer is told who asked for an answer in vain."""
    kind = DataLoss if isinstance(error, DataLoss) else Unavailable
    return kind(
        f"the entry is taken ({result.inserted} inserted, {result.late} late; durability {result.durability}) and is "
        f"not to be sent again, but the answer that was asked for cannot be given: {error.message}"
    )


def _unserved(stored: StoredWindow) -> SashError:
    """Why a window answers nothing."""
    assert stored.failure is not None
    if stored.lost or isinstance(stored.failure, DataLoss):
        return anew(stored.failure)
    return Unavailable(f"window {stored.name!r} is being recovered: {stored.failure.message}", retry_after_s=_RETRY_S)
