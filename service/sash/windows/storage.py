"""Storage: what keeps windows through restarts, and keeps most of a large one out of memory.

    write ─▶ window (memory) ─▶ journal ─▶ tier ─▶ answered          journal.py
    sealed blocks ─────────────▶ tier, and out of memory             kept.py, forest/cold.py
    every 64 MiB of journal: an image of the rest ─▶ tier            kept.py, image.py
    recovery: image, then the journal behind it

    meta                                  the windows: number, durability, spec
    pointer(w), image(w, v, i), block(w, i), staged(w, i)            of window w: see kept.py
    journal, group(1), group(2), …        where the journal begins; records of all windows, in order

A write is applied in memory first, so that what it answers and what the journal keeps are of one moment; readers may
see it a moment before it is durable. It is *answered* when it is as durable as the window's spec says.

A window whose state is in doubt (the tier failed in the middle of a write that had to read a cold block) answers
nothing until it is recovered from the tier, by itself.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sash.clock import Clock
from sash.errors import AlreadyExists, DataLoss, FailedPrecondition, SashError, Unavailable
from sash.forest import BLOCK
from sash.windows import records, values
from sash.windows.answers import Staged, WindowInfo, WriteResult
from sash.windows.backing import Backing
from sash.windows.batch import Batch, Origin
from sash.windows.catalogue import Catalogue
from sash.windows.export import Importer, export
from sash.windows.journal import MIB, anew
from sash.windows.kept import Kept, Left, discard_all
from sash.windows.ledger import Ledger, Part
from sash.windows.reader import KeyList
from sash.windows.records import Operation, Write
from sash.windows.spec import Durability, WindowSpec
from sash.windows.tier import ColdTier
from sash.windows.window import Window

__all__ = ["Storage", "StorageStatus"]

_log = logging.getLogger(__name__)

_RETRY_S = 1.0
_RECOVERY_PAUSE_MAX_S = 60.0
"""A window in which writes meet a damaged block again and again is recovered after each, but no more often than so."""

T = TypeVar("T")


@dataclass(slots=True)
class StorageStatus:
    """What metrics show of a storage."""

    tier: str
    error: str | None
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
    ) -> None:
        self._catalogue = catalogue
        self._clock = clock
        self._checkpoint_bytes = checkpoint_bytes
        self._store_entries = store_entries
        self._block = block
        self._backing = None if tier is None else Backing(tier, cache_bytes, interval_s)
        self._kept: dict[str, Kept] = {}
        self._next_window = 1
        self._discarded: dict[int, Left] = {}
        """Windows whose values are being deleted, or are to be if this service dies while it imports them."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._admission = asyncio.Lock()
        self._checkpoints = 0
        self._running = False

    # ---------------------------------------------------------------- life

    async def start(self) -> None:
        """Take the tier and recover what it has; raises what `ColdTier.acquire` does, and DataLoss."""
        backing = self._backing
        if backing is None:
            return
        backing.tier.acquire()
        try:
            backing.journal.start(*self._recover(backing))
            discarded = {number: left.found(backing, number) for number, left in self._discarded.items()}
        except BaseException:
            await backing.journal.stop(0)
            backing.tier.close()
            raise
        self._running = True
        if not backing.journal.last:
            # Both are there from now on, so that one that is missing is noticed. All else comes behind them.
            begin = {values.journal_key(): values.seal("pointer", [1, 0, []])}
            self._log_windows(backing, begin)
        for number, left in discarded.items():
            self._discard(number, left)

    async def stop(self, patience_s: float = 30.0) -> None:
        """Bring the tier up to date, so that the next start is quick, and let go of it."""
        backing = self._backing
        if backing is None or not self._running:
            return  # what was not recovered in full must not be written back
        self._running = False
        for task in self._tasks:
            task.cancel()
        if backing.journal.error is None:
            for kept in self._kept.values():
                if kept.logged_bytes:
                    self._checkpoint(kept)
        if not await backing.journal.stop(patience_s):
            _log.warning("the tier did not take everything in time; what was acknowledged is in its journal")
        backing.tier.close()

    @property
    def problem(self) -> str | None:
        """Why durable writes are refused at the moment; None where they are taken."""
        if self._backing is None:
            return None
        error, tier = self._backing.journal.error, self._backing.tier
        if error is None:
            return None if tier.healthy else f"the tier ({tier.name}) cannot be reached"
        return error.message

    def status(self) -> StorageStatus | None:
        """Figures for the metrics; None where there is no tier."""
        backing = self._backing
        if backing is None:
            return None
        journal, cache = backing.journal, backing.cache
        return StorageStatus(
            tier=backing.tier.name,
            error=self.problem,
            pending_bytes=journal.pending_bytes,
            commits=journal.commits,
            records=journal.committed_records,
            journal_groups=journal.groups,
            checkpoints=self._checkpoints,
            cache_bytes=cache.used_bytes,
            cache_hits=cache.hits,
            cache_misses=cache.misses,
            damaged=len(backing.damaged),
        )

    # ---------------------------------------------------------------- windows

    def find(self, name: str) -> Window:
        """The window of that name, to read it.

        Raises:
            NotFound: there is none.
            Unavailable: it is being recovered.
            DataLoss: it cannot be.
        """
        kept = self._kept.get(name)
        if kept is not None and kept.doubt is not None:
            raise _recovering(kept)
        return self._catalogue.find(name)

    def info(self, window: Window) -> WindowInfo:
        """A window as `describe` shows it."""
        info = window.info()
        kept = self._kept.get(window.spec.name)
        info.durability = "memory" if kept is None else kept.durability
        return info

    async def create(self, spec: WindowSpec) -> tuple[Window, bool]:
        """Create a window, or find the one of this very spec; raises as `Catalogue.create`, and as a write does."""
        durability = self._durability(spec)
        if durability == "memory":
            return self._catalogue.create(spec, self._in_memory)
        backing = self._checked_backing()

        def make(spec: WindowSpec, max_keys: int) -> Window:
            kept = self._kept[spec.name] = self._new(backing, spec, durability)
            return kept.window

        window, created = self._catalogue.create(spec, make)
        if created:
            await backing.journal.durable(self._log_windows(backing, self._kept[spec.name].first_pointer()))
        else:
            self.find(spec.name)
            await backing.journal.durable(backing.journal.last)  # its first commit may be on its way still
        return window, created

    async def delete(self, name: str) -> int:
        """Delete a window and all that the tier has of it; return how many entries it had."""
        kept = self._kept.get(name)
        if kept is not None:
            left = kept.left()
            backing = self._checked_backing()
            counts = self._catalogue.delete(name).counts
            del self._kept[name]
            self._discarded[kept.number] = left
            number = self._log_windows(backing)
            self._give_up(kept)
            await backing.journal.durable(number)
        else:
            if self._backing is not None and name not in self._catalogue:
                await self._backing.journal.durable(self._last())  # that there is none may be on its way still
            counts = self._catalogue.delete(name).counts
        return counts.inserted - counts.evicted

    def _durability(self, spec: WindowSpec) -> Durability:
        """What writes to a window of this spec are given; FailedPrecondition where it asks for more than there is."""
        wanted = spec.durability
        lacking = None
        if self._backing is None:
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

    def _new(self, backing: Backing, spec: WindowSpec, durability: Durability) -> Kept:
        number, self._next_window = self._next_window, self._next_window + 1
        return self._kept_as(backing, number, spec, durability)

    def _kept_as(self, backing: Backing, number: int, spec: WindowSpec, durability: Durability) -> Kept:
        return Kept(backing, number, spec, durability, self._clock, self._catalogue.max_keys, self._block)

    def _log_windows(self, backing: Backing, new: Mapping[bytes, bytes] | None = None) -> int:
        """Write which windows there are, in order with the records; the number to wait for.

        Args:
            new: what goes into the same commit.
        """
        windows = [
            [kept.number, kept.durability, kept.document()]
            for kept in sorted(self._kept.values(), key=lambda kept: kept.number)
        ]
        discarded = [[number, left.document()] for number, left in self._discarded.items()]
        meta = {"windows": windows, "next": self._next_window, "discarded": discarded}
        puts = {values.meta_key(): values.seal("meta", meta), **(new or {})}
        return backing.journal.append(0, lambda: None, 1000, puts=lambda: puts, logged=False)

    def _give_up(self, kept: Kept) -> None:
        """Delete all that the tier has of a window that is not listed any more."""
        kept.give_up(lambda: self._discard(kept.number, kept.left()))

    def _discard(self, number: int, left: Left) -> None:
        """Delete all values of a window in the background, then forget that there were any."""
        assert self._backing is not None
        backing = self._backing

        def forgotten() -> None:
            self._discarded.pop(number, None)
            self._log_windows(backing)
            self._trim(backing)

        discard_all(backing, number, left, forgotten)

    # ---------------------------------------------------------------- writes

    async def write(self, name: str, operation: Operation, origin: Origin | None = None) -> WriteResult:
        """Apply a write to a window, and wait until it is as durable as the window's spec says.

        Raises:
            Unavailable, ResourceExhausted: the tier does not take it now. Nothing has changed, unless it failed while
                this write was on its way: then it is applied, and may be durable later; a producer's retry finds out.
            SashError: what the operation raises; nothing has changed.
        """
        window, kept = await self._admit(name)
        if origin is not None and window.ledger.applied(origin):
            result, number = WriteResult(already_applied=True), self._last()
        else:
            result, number = self._apply(window, kept, operation, origin)
        return await self._settled(result, number, kept)

    async def stage(self, name: str, batch: Batch, query: str, number: int) -> Staged:
        """Keep a part of a batch; see `Plane.stage`."""
        window, kept = await self._admit(name)
        window.ledger.check_stage(query, number)
        window.check(batch)
        token, entries = secrets.token_hex(8), len(batch.times)
        if kept is None:
            _, logged = self._apply(window, None, records.Stage(token, query, number, entries, batch))
        else:
            key = values.staged_key(kept.number, window.ledger.next_part)

            def puts() -> Mapping[bytes, bytes]:
                return {key: values.seal("part", values.batch_to(batch))}

            operation = records.Stage(token, query, number, entries)
            _, logged = self._apply(window, kept, operation, None, puts, values.size_of(batch))
        return await self._settled(Staged(token, entries), logged, kept)

    async def commit(self, name: str, query: str, number: int, stages: Sequence[str]) -> WriteResult:
        """Apply staged parts, once; see `Plane.commit`."""
        window, kept = await self._admit(name)
        batches: Sequence[Batch] = ()
        if not window.ledger.committed(query, number):
            parts = window.ledger.named(query, number, stages)
            if kept is None:
                batches = [part.held for part in parts if part.held is not None]
            else:
                batches = await self._brought(kept, parts)
                # Meanwhile another commit may have been quicker, or the window may be gone.
                if (await self._admit(name))[0] is not window:
                    raise Unavailable(f"window {name!r} is another one now", retry_after_s=_RETRY_S)
        if window.ledger.committed(query, number):
            return await self._settled(WriteResult(already_applied=True), self._last(), kept)
        operation = records.Commit(query, number, stages, lambda _: batches)
        result, logged = self._apply(window, kept, operation)
        return await self._settled(result, logged, kept)

    async def _brought(self, kept: Kept, parts: Sequence[Part]) -> list[Batch]:
        """The entries of staged parts, which stay in the tier for as long as it takes."""
        backing = self._checked_backing()
        with backing.hold():
            await backing.journal.durable(self._last())  # a part may be on its way still
            return await asyncio.to_thread(kept.read_parts, parts)

    def tidy(self) -> None:
        """Do what time alone brings, to every window; to be called about once a second."""
        for window in self._catalogue.all():
            try:
                self._tidy(window, self._kept.get(window.spec.name))
            except SashError as error:
                _log.warning("window %r cannot be tidied now: %s", window.spec.name, error.message)
            except Exception:
                _log.exception("window %r cannot be tidied", window.spec.name)  # others can
        self._shorten_journal()
        self.trim()

    def _tidy(self, window: Window, kept: Kept | None) -> None:
        if kept is not None:
            kept.resting = False
            if kept.doubt is not None or self.problem is not None:
                return
        write = Write(records.Tidy(), self._clock.now_ns())
        before = window.counts.evicted, window.keys_there
        self._at(window, kept, write)
        if kept is not None and before != (window.counts.evicted, window.keys_there):
            self._log(kept, write, urgent=False)
        if window.ledger.expired(write.now_ns):
            self._apply(window, kept, records.Expire())

    def trim(self) -> None:
        """Let columns of stored blocks go that are too many; between operations only."""
        if self._backing is not None:
            self._backing.cache.trim()

    def _apply(
        self,
        window: Window,
        kept: Kept | None,
        operation: Operation,
        origin: Origin | None = None,
        puts: Callable[[], Mapping[bytes, bytes]] | None = None,
        size: int = 0,
    ) -> tuple[WriteResult, int]:
        """Change the window and append the record; the number of the record, 0 where there is none."""
        write = Write(operation, self._clock.now_ns(), origin)
        result = self._at(window, kept, write)
        if kept is None:
            return result, 0
        number = self._log(kept, write, kept.durability == "sync", puts, size)
        if isinstance(operation, records.Commit | records.Expire):
            kept.drop_parts(operation.dropped)  # before a checkpoint covers it, which is to name them
        self._relieve(kept)
        self.trim()
        return result, number

    def _at(self, window: Window, kept: Kept | None, write: Write) -> WriteResult:
        """Apply a write at its time."""
        if kept is None:
            return write.apply(window)
        kept.clock.stopped = write.now_ns
        try:
            return write.apply(window)
        except (Unavailable, DataLoss) as error:
            self._doubt(kept, error)
            raise
        except SashError:
            raise  # refused before anything was changed
        except Exception as error:
            self._doubt(kept, Unavailable(f"a write failed half-way: {error!r}", retry_after_s=_RETRY_S))
            raise
        finally:
            kept.clock.stopped = None

    def _log(
        self,
        kept: Kept,
        write: Write,
        urgent: bool,
        puts: Callable[[], Mapping[bytes, bytes]] | None = None,
        size: int = 0,
    ) -> int:
        assert self._backing is not None
        size += write.operation.size
        kept.logged_bytes += size
        return self._backing.journal.append(kept.number, write.record, size, urgent, puts)

    async def _admit(self, name: str) -> tuple[Window, Kept | None]:
        """The window to write to, as it is after waiting where too much is pending; raises as `write`, and `find`."""
        if name in self._kept:
            journal = self._checked_backing().journal
            async with self._admission:  # in order of arrival: the next write of a producer must not overtake this one
                if journal.full:
                    await journal.room()
        return self.find(name), self._kept.get(name)

    def _checked_backing(self) -> Backing:
        """The tier, where it takes writes; raises why not."""
        assert self._backing is not None, "there is a tier where there is a window that it keeps"
        self._backing.journal.check()
        return self._backing

    async def _settled(self, result: T, number: int, kept: Kept | None) -> T:
        """The result of a write, once it is durable."""
        if kept is not None:
            result.durability = kept.durability  # type: ignore[attr-defined]  # results of writes have it
            if kept.durability == "sync":
                assert self._backing is not None
                await self._backing.journal.durable(number)
        return result

    def _last(self) -> int:
        return 0 if self._backing is None else self._backing.journal.last

    # ---------------------------------------------------------------- checkpoints

    def _relieve(self, kept: Kept) -> None:
        """Store blocks, and take a checkpoint, where enough has gathered.

        Either may have to read blocks to which entries were added. Where that fails the write that led here is none
        the worse: it is in the journal. It is tried again after the next `tidy`.
        """
        if kept.resting:
            return
        try:
            kept.store(self._store_entries)
        except (Unavailable, DataLoss) as error:
            self._rest(kept, error)
        else:
            if kept.wants_checkpoint(self._checkpoint_bytes):
                self._checkpoint(kept)

    def _checkpoint(self, kept: Kept) -> None:
        """Take a checkpoint, unless one is under way or cannot be taken now."""
        assert self._backing is not None
        backing = self._backing

        def counted() -> None:
            self._checkpoints += 1
            self._trim(backing)

        if kept.checkpointing or kept.resting or kept.doubt is not None:
            return
        try:
            kept.checkpoint(counted)
        except (Unavailable, DataLoss) as error:
            self._rest(kept, error)

    def _rest(self, kept: Kept, error: SashError) -> None:
        kept.resting = True
        _log.warning("window %r cannot be stored now: %s", kept.name, error.message)

    def _through(self) -> dict[int, int]:
        return {kept.number: kept.through for kept in self._kept.values()}

    def _damaged(self) -> set[int]:
        return {kept.number for kept in self._kept.values() if kept.lost}

    def _trim(self, backing: Backing) -> None:
        backing.journal.trim(self._through(), self._damaged())

    def _shorten_journal(self) -> None:
        """Checkpoint a window that was written to little, and for which alone a long journal is kept."""
        if self._backing is None or self._backing.journal.error is not None:
            return
        journal = self._backing.journal
        if journal.behind_bytes < 2 * self._checkpoint_bytes:
            return
        number = journal.oldest_window(self._through(), self._damaged())
        for kept in self._kept.values():
            if kept.number == number and 2 * kept.logged_bytes < journal.behind_bytes:
                self._checkpoint(kept)

    # ---------------------------------------------------------------- whole windows out and in

    def entries(self, name: str, start: int | None, end: int | None, key: str | None, keys: KeyList) -> Iterator[Batch]:
        """See `Plane.entries`."""
        return self._held(self.find(name).entries(start, end, key, keys))

    def export(self, name: str) -> Iterator[bytes]:
        """See `Plane.export`."""
        window = self.find(name)
        return self._held(export(window, {"ledger": window.ledger.document(parts=False)}))

    def _held(self, parts: Iterator[T]) -> Iterator[T]:
        """Iterate, while nothing is deleted that the rest of the iteration may need."""
        if self._backing is None:
            return parts
        held = self._holding(self._backing, parts)
        next(held)  # the hold begins now, and ends when the iterator is exhausted, closed or forgotten
        return held  # type: ignore[return-value]

    def _holding(self, backing: Backing, parts: Iterator[T]) -> Iterator[T | None]:
        with backing.hold():
            yield None
            for part in parts:
                yield part
                backing.cache.trim()

    async def restore(self, parts: AsyncIterator[bytes], name: str | None) -> Window:
        """See `Plane.restore`."""
        made: list[Kept] = []

        def make(spec: WindowSpec) -> Window:
            self._check_new(spec)
            durability = self._durability(spec)
            if durability == "memory":
                return self._in_memory(spec, self._catalogue.max_keys)
            made.append(self._new(self._checked_backing(), spec, durability))
            return made[0].window

        importer = Importer(make, name)
        try:
            async for part in parts:
                importer.feed(part)
                if made:
                    await self._keep_up(made[0])
                self.trim()
            window = importer.finish()
            window.ledger = Ledger.of(importer.extra["ledger"])
            if made:
                await self._keep_up(made[0])
                await self._keep(made[0])
            self._check_new(window.spec)
        except BaseException:
            for kept in made:
                self._discarded[kept.number] = kept.left()
                self._give_up(kept)
            raise
        self._catalogue.put(window)
        for kept in made:
            assert self._backing is not None
            self._kept[kept.name] = kept
            self._discarded.pop(kept.number)
            await self._backing.journal.durable(self._log_windows(self._backing))
        return window

    async def _keep_up(self, kept: Kept) -> None:
        """Store what was imported so far of a window that is not listed yet."""
        backing = self._checked_backing()
        if kept.number not in self._discarded:
            # Should this service die, the next one deletes what was stored, and gives the number to no other window.
            self._discarded[kept.number] = Left()
            await backing.journal.durable(self._log_windows(backing))
        kept.store(self._store_entries)
        await backing.journal.room()

    def _check_new(self, spec: WindowSpec) -> None:
        self._catalogue.check_room()
        if any(window.spec.name == spec.name for window in self._catalogue.all()):
            raise AlreadyExists(f"there is a window {spec.name!r} already", field="name")

    async def _keep(self, kept: Kept) -> None:
        """Bring a window that is not listed yet into the tier, whole."""
        journal = self._checked_backing().journal
        counts = asyncio.get_running_loop().create_future()
        kept.checkpoint(lambda: counts.set_result(None))
        while not counts.done():
            await asyncio.wait([counts], timeout=_RETRY_S)
            journal.check()

    # ---------------------------------------------------------------- recovery

    def _recover(self, backing: Backing) -> tuple[int, int, list[tuple[int, dict[int, int]]], int]:
        """Read all windows from the tier; where the journal goes on.

        Raises:
            DataLoss: something is damaged that all windows need.
        """
        try:
            meta = backing.read("meta", values.meta_key())
            pointer = backing.read("pointer", values.journal_key())
            for value, name in ((meta, "meta"), (pointer, "journal")):
                if value is None and (meta, pointer) != (None, None):
                    raise DataLoss(f"value {name!r} is missing")
            if meta is None or pointer is None:
                return 1, 0, [], 1
            self._next_window = meta["next"]
            self._discarded = {number: Left(**left) for number, left in meta["discarded"]}
            for number, durability, document in meta["windows"]:
                self._recover_window(backing, number, durability, WindowSpec.parse(document))
            group, last, _ = pointer
            first = group
            by_number = {kept.number: kept for kept in self._kept.values()}
            written = []
            for number, entries in backing.groups():
                written.append((number, {window: record for record, window, _ in entries}))
                for record, window, fields in entries:
                    last = max(last, record)
                    if (kept := by_number.get(window)) is not None and kept.doubt is None:
                        self._recover_record(backing, kept, record, fields)
                group = max(group, number + 1)
        except DataLoss as error:
            raise _nothing_served(error) from None
        last = max([last, *self._through().values()])
        _log.info("recovered %d windows, %d groups of journal", len(self._kept), len(written))
        return group, last, written, first

    def _recover_window(self, backing: Backing, number: int, durability: Durability, spec: WindowSpec) -> None:
        kept = self._kept_as(backing, number, spec, durability)
        try:
            kept.recover()
        except DataLoss as error:
            self._lose(backing, kept, error)
        self._kept[spec.name] = kept
        self._catalogue.put(kept.window)

    def _recover_record(self, backing: Backing, kept: Kept, record: int, fields: Sequence[Any]) -> None:
        """Apply a record to a window; where that fails it is lost, and all others are none the worse."""
        try:
            self._apply_again(backing, kept, record, fields)
        except Unavailable:
            raise
        except DataLoss as error:
            self._lose(backing, kept, error)
        except Exception as error:
            _log.exception("record %d of the journal", record)
            self._lose(backing, kept, DataLoss(f"record {record} of the journal cannot be applied: {error!r}"))

    def _lose(self, backing: Backing, kept: Kept, error: DataLoss) -> None:
        """Serve all other windows, and of this one nothing; it is left as it is."""
        backing.lost(f"window {kept.name!r}, which is not served", error)
        kept.doubt = DataLoss(
            f"window {kept.name!r} is not served: {error.message}. Nothing of it was changed: put what is damaged back "
            "from a backup and start again, or delete the window"
        )
        kept.lost = True
        kept.cold.forget()

    def _apply_again(self, backing: Backing, kept: Kept, record: int, fields: Sequence[Any]) -> None:
        """Apply a record of the journal to a window, unless its image covers it."""
        if record <= kept.through:
            return
        write = records.read(fields, f"record {record} of the journal")
        operation = write.operation
        if isinstance(operation, records.Commit):
            operation.bring = kept.read_parts
        kept.clock.stopped = write.now_ns
        try:
            write.apply(kept.window)
        finally:
            kept.clock.stopped = None
        kept.logged_bytes += operation.size
        if isinstance(operation, records.Commit | records.Expire):
            kept.drop_parts(operation.dropped)
        backing.cache.trim()

    # ---------------------------------------------------------------- doubt

    def _doubt(self, kept: Kept, error: SashError) -> None:
        """A write failed half-way: recover the window."""
        if kept.doubt is not None or kept.deleted:
            return
        _log.warning("window %r is recovered from the tier: %s", kept.name, error.message)
        kept.doubt = error
        task = asyncio.get_running_loop().create_task(self._recover_doubted(kept))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _recover_doubted(self, kept: Kept) -> None:
        assert self._backing is not None
        if isinstance(kept.doubt, DataLoss) and kept.losses:
            await asyncio.sleep(min(2.0**kept.losses, _RECOVERY_PAUSE_MAX_S))
        while True:
            # What is pending belongs to the window, too; and so does an image that it has begun.
            await self._backing.journal.passed()
            if kept.deleted:
                return
            if kept.checkpointing:
                continue
            try:
                self._recover_again(self._backing, kept)
            except SashError as error:
                _log.warning("window %r cannot be recovered yet: %s", kept.name, error.message)
            except Exception:
                _log.exception("window %r cannot be recovered yet", kept.name)
            else:
                return
            await asyncio.sleep(_RETRY_S)

    def _recover_again(self, backing: Backing, kept: Kept) -> None:
        spec = kept.window.spec
        fresh = self._kept_as(backing, kept.number, spec, kept.durability)
        fresh.losses = kept.losses + isinstance(kept.doubt, DataLoss)
        try:
            fresh.recover()
            for _, entries in backing.groups():
                for record, window, fields in entries:
                    if window == kept.number:
                        self._apply_again(backing, fresh, record, fields)
        except BaseException:
            fresh.cold.forget()
            raise
        kept.deleted = True  # nothing of it is under way
        kept.cold.forget()
        self._kept[kept.name] = fresh
        self._catalogue.put(fresh.window)
        _log.warning("window %r is recovered", kept.name)


def _nothing_served(error: DataLoss) -> DataLoss:
    return DataLoss(
        f"{error.message}. All windows need it, so that none is served, and nothing was changed: put that value back "
        "from a backup, or start with an empty place and import or restore what was saved"
    )


def _recovering(kept: Kept) -> SashError:
    assert kept.doubt is not None
    if isinstance(kept.doubt, DataLoss):
        return anew(kept.doubt)
    return Unavailable(f"window {kept.name!r} is being recovered: {kept.doubt.message}", retry_after_s=_RETRY_S)
