"""Windows that a tier stores.

    write ─▶ window (memory) ─▶ journal ─▶ tier ─▶ answered          write_path.py, journal.py
    sealed blocks ─────────────▶ tier, and out of memory             blocks.py, forest/cold.py
    every 64 MiB of journal: an image of the rest ─▶ tier            checkpoint.py, image.py
    recovery: image, then the journal behind it                      recovery.py

    meta                                  the windows: number, durability, spec            listing.py
    pointer(w), image(w, v, i), block(w, i), staged(w, i)            of window w           manifest.py
    journal, group(1), group(2), …        where the journal begins; records of all windows, in order

A tier that is full refuses new entries, and accepts what frees space (capacity.py). A window in which a write failed
half-way, because a block could not be read, answers nothing until it is recovered (recoverer.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from sash.durability.catalogue import Catalogue
from sash.durability.formats import VALUE_BYTES_MAX
from sash.durability.hosting import Applied, HostedWindow, ImportTarget, never
from sash.durability.images.capacity import Capacity
from sash.durability.images.checkpoint import Checkpoint, Progress
from sash.durability.images.checkpoints import Checkpoints
from sash.durability.images.stored_window import StoredWindow
from sash.durability.journal.journal import MIB
from sash.durability.journal.session import MAKING_ROOM, TierSession
from sash.durability.memory_storage import MemoryStorage
from sash.durability.recovery.listing import Listing
from sash.durability.recovery.recoverer import Recoverer
from sash.durability.recovery.recovery import RecoveredTier, in_thread, recover
from sash.durability.tier import ColdTier
from sash.durability.window_lock import WindowLock
from sash.durability.write_path import TieredWindow, WritePath
from sash.runtime.storage_status import StorageStatus
from sash_engine.clock import Clock
from sash_engine.errors import FailedPrecondition, SashError, TooLarge
from sash_engine.windows.answers import Counts, WindowInfo
from sash_engine.windows.spec.window import Durability, WindowSpec
from sash_engine.windows.window import Window

_log = logging.getLogger(__name__)

_RETRY_S = 1.0
_WRITE_BYTES_MAX = VALUE_BYTES_MAX - MIB
"""A write is one value in the journal, or staged. The rest is for what surrounds it."""

T = TypeVar("T")


class TierStorage:
    """A `WindowStorage` on a tier.

    Args:
        catalogue: the windows.
        clock: tells wall time.
        tier: stores the windows.
        cache_bytes, checkpoint_bytes, store_entries, interval_s, block, sleep, entropy: see `Storage`.

    Attributes:
        session: the tier as windows use it.
        windows: the stored windows, by name.
        checkpoints: when they are stored.
        capacity: whether new entries fit.
        listing: which windows the tier lists.
        recoverer: recovers windows while the service runs.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        clock: Clock,
        tier: ColdTier,
        *,
        cache_bytes: int,
        checkpoint_bytes: int,
        store_entries: int,
        interval_s: float,
        block: int,
        sleep: Callable[[float], None],
        entropy: Callable[[int], bytes],
    ) -> None:
        self._catalogue, self._clock, self._block, self._sleep = catalogue, clock, block, sleep
        self._store_entries = store_entries
        self._memory = MemoryStorage(catalogue, clock, block)
        self._running = False
        windows: dict[str, StoredWindow] = {}
        self._windows = windows
        self.windows: Mapping[str, StoredWindow] = windows
        self.session = session = TierSession(tier, cache_bytes, interval_s, clock, entropy)
        self.checkpoints = Checkpoints(session, windows, clock, checkpoint_bytes, store_entries)
        self.capacity = Capacity(session, windows, self.checkpoints.take)
        self.listing = Listing(session, windows, self.checkpoints.trim)
        self.recoverer = Recoverer(session, self._make, self._serve, self.checkpoints.trimming_paused)
        self._path = WritePath(session, self.checkpoints, self.capacity, self.recoverer, self.listing.write, clock)

    # ---------------------------------------------------------------- life

    async def start(self, beside: bool = False) -> None:
        """Acquire the tier and recover its windows; tries for as long as `RetryingTier` does.

        Args:
            beside: do so in a thread, because the loop serves others meanwhile.

        Raises:
            SashError: as `ColdTier.acquire` and `recover` do.
        """
        session, tier = self.session, self.session.tier
        with session.retrying(self._sleep):
            await self._acquire(beside)
            try:
                found = await in_thread(self._recovered) if beside else self._recovered()
                for stored in found.windows:
                    self._serve(stored)
                session.journal.start(found.journal)
                go_on = self.listing.resume(found)
            except BaseException:
                await session.journal.stop(0)
                tier.close()
                raise
        self._running = True
        if not session.named or found.unlisted:
            # All roots exist from now on, so a missing one is noticed. Everything else follows them.
            self.listing.write()
        go_on()

    async def _acquire(self, beside: bool) -> None:
        if not beside:
            self.session.tier.acquire()
            return
        try:
            await in_thread(self.session.tier.acquire)
        except asyncio.CancelledError:
            self.session.tier.close()
            raise

    def _recovered(self) -> RecoveredTier:
        return recover(self.session, self._make)

    async def stop(self, patience_s: float, checkpoint: bool = True) -> None:
        """See `Storage.stop`."""
        if not self._running:
            return  # windows that were not recovered completely must not be written back
        self._running = False
        await self.recoverer.stop()
        await self.capacity.stop()
        if checkpoint and self.session.journal.error is None:
            await self.checkpoints.bring_up_to_date()
        if not await self.session.journal.stop(patience_s):
            _log.warning("the tier did not accept everything in time; every acknowledged write is in its journal")
        self.session.tier.close()

    @property
    def taken(self) -> bool:
        """Whether another server has taken the tier over, so that this one can write nothing more."""
        try:
            self.session.tier.get_many([])  # asks nothing of the tier, which knows it
        except FailedPrecondition:
            return True
        except SashError:
            pass
        return False

    async def confirm(self) -> None:
        await self._path.durable(self._path.last_record)
        await in_thread(lambda: self.session.tier.get_many([b"journal"]))

    @property
    def problem(self) -> str | None:
        error = self.session.journal.error or self.capacity.full()
        if error is not None:
            return error.message
        tier = self.session.tier
        return None if tier.healthy else f"the tier ({tier.name}) cannot be reached"

    def status(self) -> StorageStatus | None:
        session, journal, cache = self.session, self.session.journal, self.session.cache
        return StorageStatus(
            tier=session.tier.name,
            error=self.problem,
            used_bytes=session.tier.used_bytes,
            limit_bytes=session.tier.limit_bytes,
            pending_bytes=journal.pending_bytes,
            commits=journal.commits,
            records=journal.committed_records,
            journal_groups=journal.groups,
            checkpoints=self.checkpoints.count,
            cache_bytes=cache.used_bytes,
            cache_hits=cache.hits,
            cache_misses=cache.misses,
            damaged=len(session.damaged),
        )

    # ---------------------------------------------------------------- windows

    def check_served(self, name: str) -> None:
        problem = self._problem(name, self._home(name))
        if problem is not None:
            raise problem

    def describe(self, info: WindowInfo) -> None:
        stored = self._home(info.spec.name)
        if stored is not None:
            problem = self._problem(info.spec.name, stored)
            info.durability = stored.durability
            info.problem = None if problem is None else problem.message

    def _problem(self, name: str, stored: StoredWindow | None) -> SashError | None:
        """Why a window answers nothing, as a new error; None while it does."""
        problem = None if stored is None else stored.problem()
        if problem is not None and stored is not None and stored.name != name:
            said = f"window {name!r} is stored with {stored.name!r}: {problem.message}"
            return type(problem)(said, field=problem.field, retry_after_s=problem.retry_after_s)
        return problem

    def goes_with(self, name: str) -> list[str]:
        stored = self._windows.get(name)
        return [] if stored is None or not stored.is_lost else [window.spec.name for window in stored.derived]

    async def create(self, spec: WindowSpec) -> tuple[Window, bool]:
        if spec.durability == "memory":
            return await self._memory.create(spec)
        if spec.name not in self._catalogue:
            self.session.journal.check()
            await self.capacity.reserve(0)
        window, created = self._catalogue.create(spec, lambda spec, _: self._new(spec).window)
        if created:
            manifest = self._windows[spec.name].manifest
            await self._path.durable(self.listing.write(manifest.pointer(manifest.image, self.session.id)))
        else:
            self.check_served(spec.name)
            await self._path.durable(self._path.last_record)  # its first commit may be on its way still
        return window, created

    async def delete(self, name: str) -> Counts:
        if name not in self._windows and name not in self._catalogue:
            await self._path.durable(self._path.last_record)  # the deletion may be on its way still
        stored = self._windows.get(name)  # created meanwhile, it goes as every other one
        if stored is None:
            return await self._memory.delete(name)
        remains = stored.remains()
        self.session.journal.check()
        self.session.check_room(0, MAKING_ROOM)
        for derived in self.goes_with(name):
            self._catalogue.delete(derived)
        counts = self._catalogue.delete(name).counts
        del self._windows[name]
        await self._path.durable(self.listing.delete(stored, remains))
        return counts

    def _new(self, spec: WindowSpec) -> StoredWindow:
        """Make a window, and list it with the next write of the listing."""
        stored = self._windows[spec.name] = self._unlisted(spec)
        return stored

    def _unlisted(self, spec: WindowSpec) -> StoredWindow:
        stored = self._make(self.listing.take_number(), spec, spec.durability or "sync")
        stored.manifest.start_after(self._path.last_record)
        return stored

    def _make(self, number: int, spec: WindowSpec, durability: Durability) -> StoredWindow:
        max_keys = self._catalogue.max_keys
        return StoredWindow(self.session, number, spec, durability, self._clock, max_keys, self._block)

    def _serve(self, stored: StoredWindow) -> None:
        """Serve a window, in the place of another one of its name if there is one."""
        self._windows[stored.name] = stored
        self._catalogue.put_all([stored.window, *stored.derived])

    def _home(self, name: str) -> StoredWindow | None:
        """The stored window of that name, or that the window of that name is stored with."""
        return self._windows.get(self._catalogue.home(name))

    # ---------------------------------------------------------------- writes and reads

    def check_size(self, name: str, size: int) -> None:
        """Refuse a write that would be a longer value than a tier accepts."""
        if size > _WRITE_BYTES_MAX and self._home(name) is not None:
            raise TooLarge(
                f"a write of {size / MIB:.0f} MiB is too large for a stored window: send it in parts",
                field="time",
                limit=f"{_WRITE_BYTES_MAX // MIB} MiB",
            )

    def host(self, name: str) -> HostedWindow:
        stored = self._windows.get(name)
        return self._memory.host(name) if stored is None else TieredWindow(stored, self._path)

    def lock(self, name: str) -> WindowLock:
        stored = self._home(name)
        return self._memory.lock(name) if stored is None else stored.lock

    async def admit(self, name: str, size: int, applied: Applied = never, makes_room: bool = False) -> HostedWindow:
        stored = self._windows.get(name)
        if stored is not None and not makes_room and self._path.admits(stored, size):
            return TieredWindow(stored, self._path)
        while True:
            lock = self.lock(name)
            await lock.wait_to_write()  # before the admission, so that all who wait go before later questions
            stored = self._windows.get(name)
            if stored is not None:
                await self._path.admit(stored.admission, lambda: self._served(name), size, applied, makes_room)
                if name in self._windows:
                    return self.host(name)
            elif self.lock(name) is lock:
                return self.host(name)
            # The window was deleted meanwhile. There may be another one of its name, in memory only.

    def _served(self, name: str) -> StoredWindow | None:
        self.check_served(name)
        return self._windows.get(name)

    def pinned(self, name: str, parts: Iterator[T]) -> Iterator[T]:
        stored = self._home(name)
        return parts if stored is None else self.session.pinned(stored.number, parts)

    def trim(self) -> None:
        self.session.cache.trim()

    def tidy(self) -> None:
        self.checkpoints.shorten_journal()
        self.session.pins.end_idle()
        self.capacity.check()

    # ---------------------------------------------------------------- imports

    def begin_import(self, spec: WindowSpec) -> ImportTarget:
        if spec.durability == "memory":
            return self._memory.begin_import(spec)
        self.session.journal.check()
        return _TierImport(self, self._unlisted(spec), self._store_entries)

    async def arrive(self, stored: StoredWindow) -> None:
        """List an imported window that is stored completely."""
        self._windows[stored.name] = stored
        await self._path.durable(self.listing.arrived(stored))


class _TierImport:
    """An `ImportTarget` that the tier stores. A restart deletes it as long as it is not complete."""

    def __init__(self, storage: TierStorage, stored: StoredWindow, store_entries: int) -> None:
        self.window = stored.window
        self._storage, self._stored, self._store_entries = storage, stored, store_entries

    async def keep_up(self) -> None:
        storage, journal = self._storage, self._storage.session.journal
        journal.check()
        await storage.capacity.reserve(0)
        expected = storage.listing.expect(self._stored)
        if expected is not None:
            await journal.durable(expected)
        self._stored.store(self._store_entries)
        await journal.uncongested()

    async def complete(self) -> None:
        journal = self._storage.session.journal
        journal.check()
        ended = asyncio.Event()
        checkpoint = Checkpoint(self._storage.session, self._stored, lambda _: ended.set())
        while checkpoint.step():
            await asyncio.sleep(0)
        while checkpoint.progress is Progress.WRITING:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), _RETRY_S)
            journal.check()
        if checkpoint.error is not None:
            raise checkpoint.error

    async def arrive(self) -> None:
        await self._storage.arrive(self._stored)

    def abandon(self) -> None:
        self._storage.listing.delete(self._stored, self._stored.remains())
