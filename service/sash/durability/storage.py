"""Storage: the windows of one service, their writes, and whole windows out and in.

    Storage ──▶ WindowStorage: memory_storage.py, or tier_storage.py                    hosting.py

A write is applied in memory, and then logged. It is *answered* when it is as durable as the window's spec says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from sash.context import payer
from sash.durability import deriving
from sash.durability.catalogue import Catalogue
from sash.durability.hosting import Applied, HostedWindow, ImportTarget, WindowStorage, never
from sash.durability.images.export import Importer, export
from sash.durability.images.footprint import COPIES, ROW_BYTES, footprint, held_bytes, view_footprint
from sash.durability.journal.journal import MIB
from sash.durability.memory_storage import MemoryStorage
from sash.durability.records import commands as records
from sash.durability.records.columns import size_of
from sash.durability.records.commands import Command, Commit, Operation, StageBatch, Write
from sash.durability.records.derived import Derive
from sash.durability.tier import ColdTier
from sash.durability.tier_storage import TierStorage
from sash.limits.long_questions import LongQuestions
from sash.limits.memory import MemoryBudget, StagedBytes, unlimited
from sash.runtime.slices import Slices
from sash.runtime.storage_status import StorageStatus
from sash_engine.clock import Clock, ForwardClock
from sash_engine.errors import (
    AlreadyExists,
    DataLoss,
    FailedPrecondition,
    NotFound,
    SashError,
    SequenceReused,
    Unavailable,
)
from sash_engine.forest import BLOCK
from sash_engine.steps import Steps, finished
from sash_engine.windows.answers import Staged, WindowInfo, WriteResult
from sash_engine.windows.batches.batch import AnyBatch, Origin
from sash_engine.windows.batches.ledger import PART_EXPIRES_NS, Ledger
from sash_engine.windows.derived.views import View
from sash_engine.windows.questions import EntriesQuery, KeysQuery, Query, Question
from sash_engine.windows.reading.entries import BULK_ROWS
from sash_engine.windows.reading.reader import Reader
from sash_engine.windows.spec.algorithms import DEPRECATED
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window

__all__ = ["Storage", "StorageStatus"]

_log = logging.getLogger(__name__)

_RETRY_S = 1.0
_STANDBY_S = 0.25
"""So often a standby looks whether the tier is free."""
_LONG_BYTES = 257 * 1024
"""A larger write is applied in slices, as it takes a few ms. 16,384 entries of one number are not larger."""
_BULK_VALUE_BYTES = 40
"""What a value of a bulk of entries takes that is read and sent."""
_NAME_BYTES = 100
"""What the name of a key takes in a list of names, and in what is sent of it, beside its letters."""

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")


class Storage:
    """The windows of one service, on a tier or in memory only.

    Args:
        catalogue: the windows.
        clock: tells wall time.
        tier: stores the windows; None keeps them in memory only.
        cache_bytes: budget of the cache of stored blocks.
        checkpoint_bytes: a window is checkpointed after so many bytes of journal.
        store_entries: a window stores its sealed blocks when those that the tier lacks have so many entries.
        interval_s: how long writes to windows of durability "interval" may gather.
        block: entries per sealed block of new windows.
        sleep: waits for so many seconds, and blocks; used while the tier is unavailable at the start.
        entropy: makes so many random bytes: the id of a new store, the names of staged parts.
        memory: bounds what windows and staged parts may take; nothing does where None.

    Attributes:
        catalogue: the windows.
        store: where the windows are kept.
        slices: runs long work.

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
        entropy: Callable[[int], bytes] = secrets.token_bytes,
        memory: MemoryBudget | None = None,
    ) -> None:
        self._catalogue = self.catalogue = catalogue
        self._memory = memory or unlimited()
        self._staged = StagedBytes(self._memory)
        self.need = self._memory.need
        """Reserves bytes for the answer of the request that is served; raises where there is no room for them."""
        # What wall time brings leaves no record. If the clock was set back, a recovery would undo it.
        self.slices = Slices(clock)
        self._clock = clock = ForwardClock(clock)
        self._questions = LongQuestions()
        self._entropy = entropy
        self.store: WindowStorage
        if tier is None:
            self.store = MemoryStorage(catalogue, clock, block)
        else:
            self.store = TierStorage(
                catalogue,
                clock,
                tier,
                cache_bytes=cache_bytes,
                checkpoint_bytes=checkpoint_bytes,
                store_entries=store_entries,
                interval_s=interval_s,
                block=block,
                sleep=sleep,
                entropy=entropy,
            )

    async def start(self, standby: bool = False, beside: bool = False) -> None:
        """Acquire the tier and recover its windows.

        Args:
            standby: wait until the lease of the server that has the tier runs out.
            beside: recover in a thread, because the loop serves other windows meanwhile.

        Raises:
            SashError: as `TierStorage.start` does.
        """
        told = False
        while True:
            try:
                await self.store.start(beside)
            except FailedPrecondition as error:
                if not standby or error.retry_after_s is None:
                    raise
                if not told:
                    _log.info("standing by: %s", error.message)
                    told = True
                await asyncio.sleep(min(error.retry_after_s, _STANDBY_S))
            else:
                return

    async def stop(self, patience_s: float = 30.0, checkpoint: bool = True) -> None:
        """Commit what is written, and release the tier; with `checkpoint`, so that the next start is quick."""
        await self.store.stop(patience_s, checkpoint)

    @property
    def taken(self) -> bool:
        """Whether another server has taken the tier over: this one can write nothing more."""
        return self.store.taken

    async def confirm(self) -> None:
        """See `WindowStorage.confirm`."""
        await self.store.confirm()

    @property
    def problem(self) -> str | None:
        """Why durable writes are refused at the moment; None while they are accepted."""
        return self.store.problem

    @property
    def cache_bytes(self) -> int:
        """How many bytes of stored blocks are in memory."""
        status = self.status()
        return 0 if status is None else status.cache_bytes

    @property
    def window_bytes(self) -> int:
        """How many bytes of memory the windows have, at most; all of them are looked at."""
        return sum(held_bytes(window) for window in self._catalogue.all() if isinstance(window, Window))

    @property
    def pending_bytes(self) -> int:
        """How many bytes of writes wait for a commit."""
        status = self.status()
        return 0 if status is None else status.pending_bytes

    def status(self) -> StorageStatus | None:
        """Figures for the metrics; None without a tier."""
        return self.store.status()

    # ---------------------------------------------------------------- windows

    def find(self, name: str) -> Window | View:
        """Return the window of that name, to read it.

        Raises:
            NotFound: there is none.
            Unavailable: it is being recovered.
            DataLoss, FailedPrecondition: it cannot be recovered.
        """
        self.store.check_served(name)
        window = self._catalogue.find(name)
        window.reader.limit_memory(self.need)
        if window.past is not window.reader:
            window.past.limit_memory(self.need)
        return window

    def info(self, window: Window | View) -> WindowInfo:
        """Return a window as `describe` shows it."""
        info = window.info()
        self.store.describe(info)
        return info

    def all(self) -> list[WindowInfo]:
        """Return all windows as `list` shows them."""
        return [self.info(window) for window in self._catalogue.all()]

    async def described(self, name: str) -> WindowInfo:
        """As `info`, in slices for a view: its entries are counted. Raises as `find`."""
        async with self.shared(name) as view:
            if not isinstance(view, View):  # it may have taken the view's name meanwhile
                return self.info(view)
            info = await self.slices.run(view.info_steps(), lambda: self.check_same(name, view))
        self.store.describe(info)
        return info

    async def all_described(self) -> list[WindowInfo]:
        """As `all`, with the entries of views counted in slices."""
        found = []
        for window in self._catalogue.all():
            name = window.spec.name
            if isinstance(window, View):
                with contextlib.suppress(SashError):  # it answers nothing, or it is gone
                    found.append(await self.described(name))
                    continue
            if self._catalogue.get(name) is window:
                found.append(self.info(window))
        return found

    def kept(self) -> list[WindowInfo]:
        """Return the windows that keep entries: all but views, whose entries would count twice."""
        return [self.info(window) for window in self._catalogue.all() if isinstance(window, Window)]

    def size(self) -> tuple[int, int]:
        """Return how many entries the windows keep, and the bytes of writes that wait for a commit."""
        return sum(info.entries for info in self.kept()), self.pending_bytes

    async def create(self, spec: WindowSpec) -> tuple[Window | View, bool]:
        """Create a window, or find the one of this spec; raises as `Catalogue.create` and as a write does."""
        if spec.name not in self._catalogue:
            self._memory.check(0)
        if spec.algorithm is not None:
            _log.warning("window %r: %s", spec.name, DEPRECATED)
        if spec.feeds_on:
            return await deriving.create(self._catalogue, self.store, spec, self._apply_derived)
        return await self.store.create(spec)

    def goes_with(self, name: str) -> list[str]:
        """The windows that are deleted with a window, see `WindowStorage.goes_with`."""
        return self.store.goes_with(name)

    async def delete(self, name: str) -> int:
        """Delete a window with all its values; return how many entries it had."""
        try:
            counts = None
            alone = not self.goes_with(name)
            if name in self._catalogue and alone:
                deriving.check_deletable(self._catalogue.find(name))
                counts = await deriving.delete(self._catalogue, self.store, name)
            counts = counts or await self.store.delete(name)
        finally:
            if name not in self._catalogue:  # it is gone, also where the tier has not confirmed that
                self._staged.forget(name)
        return counts.present

    # ---------------------------------------------------------------- locks

    @contextlib.asynccontextmanager
    async def shared(self, name: str) -> AsyncIterator[Window | View]:
        """Hold a window as it is while a question is answered in slices; its writers wait. Raises as `find`."""
        window = self.find(name)
        async with self.store.lock(name).shared():
            self.check_same(name, window)
            yield window

    async def whole(self, name: str) -> None:
        """Wait until no long write to a window is under way, so that a short question sees all of it or nothing."""
        while (lock := self.store.lock(name)).held_exclusively:
            await lock.wait_for_long_write()

    def check_same(self, name: str, window: Window | View) -> None:
        """Check that a window is still the one that was asked, after others had their turns.

        Raises:
            SashError: as `find` does; Unavailable if it was replaced.
        """
        if self.find(name) is not window:
            raise Unavailable(f"window {name!r} was replaced meanwhile", retry_after_s=_RETRY_S)

    # ---------------------------------------------------------------- questions

    async def ask(self, name: str, question: Question[A]) -> A:
        """Answer a question; raises as `find`, and what its answer raises.

        Short ones are answered at once. While others are answered in slices, the window's writers wait.
        """
        if question.is_short:
            if self.store.lock(name).held_exclusively:
                await self.whole(name)
            reader = self.find(name).reader_of(question)
            if not isinstance(question, Query):
                return self._told(name, question, finished(reader.steps(question)))
            if reader.is_quick(question):
                return reader.query(question)  # type: ignore[return-value]

        def told(reader: Reader) -> Steps[A]:
            return self._told(name, question, (yield from reader.steps(question)))

        async with self._questions.one(payer()), self.shared(name) as window:

            def before_each() -> None:
                self.check_same(name, window)
                self.trim()

            return await self.slices.run(told(window.reader_of(question)), before_each)

    def _told(self, name: str, question: Question[A], answer: Any) -> A:
        """Return the answer to send for that of a reader; raise ResourceExhausted if there is no memory for it."""
        if isinstance(question, EntriesQuery):
            # The window's values are kept until they are read.
            columns = 2 + len(self._catalogue.find(name).spec.columns)
            self.need(_BULK_VALUE_BYTES * columns * min(answer.rows, BULK_ROWS) + answer.held_bytes)
            answer = self.store.pinned(name, iter(answer))
        elif isinstance(question, KeysQuery):
            names, _ = answer
            self.need(sum(map(len, names)) * 2 + len(names) * _NAME_BYTES)
        return answer  # type: ignore[no-any-return]

    # ---------------------------------------------------------------- writes

    def write(self, name: str, command: Command[R], origin: Origin | None = None) -> Coroutine[Any, Any, R]:
        """Do what a caller asks for, and wait until it is as durable as the window's spec says.

        Raises:
            Unavailable: the tier does not accept it now. If the message says that the write may be applied, it is in
                the window, and becomes durable when the tier accepts it; a producer's retry finds out. Otherwise
                nothing has changed.
            OutOfRoom: the tier or the memory is full. Nothing has changed.
            SashError: what the operation raises. Nothing has changed, unless the message says that the entry is taken:
                then the answer that the writer asked for cannot be given.
        """
        match command:
            case StageBatch():
                return self._stage(name, command)  # type: ignore[return-value]
            case Commit():
                return self._commit(name, command)  # type: ignore[return-value]
            case _:
                return self._write(name, command, origin)  # type: ignore[arg-type,return-value]

    async def _write(self, name: str, operation: Operation, origin: Origin | None) -> WriteResult:
        asked = name, operation
        if isinstance(operation, records.AddAggregates):
            name, operation = deriving.redirected(self._catalogue, name, operation)
        size = operation.size
        deriving.check_writable(self._catalogue.get(name))
        self.store.check_size(name, size)
        makes_room = isinstance(operation, records.Evict)
        applied: Applied = never
        if origin is not None:
            of_whole = origin.digest is not None
            origin = origin if of_whole else records.signed(origin, operation)
            applied = partial(_is_applied, origin=origin, operation=operation, of_whole=of_whole)
        hosted = await self.store.admit(name, size, applied, makes_room)
        if origin is not None and applied(hosted.window.ledger):
            again = WriteResult(already_applied=True)
            if isinstance(operation, records.Admit):
                again = operation.again(hosted.window.ledger, origin)
            return await hosted.settled(again, hosted.last_record)
        needed = COPIES * size
        match operation:
            case records.Insert():
                pass
            case records.BulkInsert() | records.Admit():
                needed = _footprint(hosted.window, [operation.batch], size)
            case Derive():
                if deriving.redirected(self._catalogue, *asked) != (name, operation):
                    return await self._write(*asked, origin)  # the view was changed or deleted meanwhile
                needed += _view_footprint(hosted.window, operation)
        if not makes_room:
            self._memory.check(needed)
        if records.takes_long(operation, hosted.window, size > _LONG_BYTES):
            result, record = await self._apply_in_slices(hosted, operation, needed, origin)
        else:
            result, record = hosted.apply(operation, origin)
        failed = None
        if isinstance(operation, records.Insert) and operation.answer:
            failed = self._answer(hosted.window, operation, result)
        result = await hosted.settled(result, record)
        if failed is not None:
            raise _unanswered(failed, result)
        return result

    def _answer(self, window: Window, operation: records.Insert, result: WriteResult) -> SashError | None:
        """Answer an insert that asks, or return why that fails. The entry is taken and logged all the same."""
        try:
            result.answers = operation.ask(window)
        except SashError as error:
            return error
        finally:
            self.trim()
        return None

    async def _stage(self, name: str, command: StageBatch) -> Staged:
        query, number, batch = command.query, command.number, command.batch
        size = size_of(batch)
        deriving.check_writable(self._catalogue.get(name))
        self.store.check_size(name, size)
        hosted = await self.store.admit(name, size)
        ledger = hosted.window.ledger
        ledger.check_stage(query, number)
        hosted.window.check(batch)
        self._staged.check(size)
        self._memory.check(COPIES * size)
        token, part = command.token or self._entropy(8).hex(), ledger.next_part
        expires_ns = self._clock.now_ns() + PART_EXPIRES_NS
        record = hosted.stage(records.Stage(token, query, number, command.entries, expires_ns), batch)
        self._staged.add(name, part, size)
        return await hosted.settled(Staged(token, command.entries), record)

    async def _commit(self, name: str, command: Commit) -> WriteResult:
        """Apply staged parts, once: a batch that was committed already changes nothing.

        Raises:
            FailedPrecondition: a part is not there (any more), or belongs to another batch.
        """
        query, number = command.query, command.batch

        def committed(ledger: Ledger) -> bool:
            return ledger.committed(query, number)

        deriving.check_writable(self._catalogue.get(name))

        hosted = await self.store.admit(name, 0, committed)
        window = hosted.window
        batches = list[AnyBatch]()
        if not committed(window.ledger):
            parts = window.ledger.named(query, number, command.tokens)
            self._memory.check(sum(COPIES * ROW_BYTES * part.entries for part in parts))
            batches = await hosted.read_parts(parts)
            hosted = await self.store.admit(name, 0, committed)  # another commit may have been quicker
            if hosted.window is not window:
                raise Unavailable(f"window {name!r} was replaced meanwhile", retry_after_s=_RETRY_S)
        if committed(window.ledger):
            return await hosted.settled(WriteResult(already_applied=True), hosted.last_record)
        size = size_of(*batches)
        needed = _footprint(window, batches, size)
        self._memory.check(needed)
        operation = Commit(query, number, command.tokens, batches)
        if size > _LONG_BYTES:
            result, record = await self._apply_in_slices(hosted, operation, needed)
        else:
            result, record = hosted.apply(operation)
        self._drop_staged(window)
        return await hosted.settled(result, record)

    def _drop_staged(self, window: Window) -> None:
        """Count the staged parts no more that a window has no more: they were committed, or have expired."""
        self._staged.keep(window.spec.name, (part.number for part in window.ledger.parts.values()))

    async def _apply_derived(self, hosted: HostedWindow, operation: Derive) -> tuple[WriteResult, int]:
        """Begin to feed a window; or add a view, if there is memory for it."""
        if not operation.is_view:
            return hosted.apply(operation)
        needed = COPIES * operation.size + _view_footprint(hosted.window, operation)
        self._memory.check(needed)
        return await self._apply_in_slices(hosted, operation, needed)

    async def _apply_in_slices(
        self, hosted: HostedWindow, operation: Operation, needed: int, origin: Origin | None = None
    ) -> tuple[WriteResult, int]:
        """As `HostedWindow.apply`, with turns for other calls. Users of the window see all of the write or nothing.

        If the caller is cancelled, the write is applied at once: it has begun. One that is still deciding is given up.

        Args:
            needed: about how many bytes of memory it adds. They are promised until it is applied: others are checked
                meanwhile, before it has taken them.
        """
        window = hosted.window
        write, name = Write(operation, self._clock.now_ns(), origin), window.spec.name
        write.check(window)
        steps, cancelled = write.steps(window), None
        with self._memory.promised(needed), hosted.alone(write):
            try:
                result = await self.slices.run(_shielded(steps), lambda: self.check_same(name, window))
            except asyncio.CancelledError as error:
                gone = self._catalogue.get(name) is not window
                if gone or (isinstance(operation, records.Admit) and operation.deciding):
                    steps.close()
                    raise
                result, cancelled = finished(steps), error
        record = hosted.log(write)
        if cancelled is not None:
            raise cancelled
        return result, record

    def tidy(self) -> None:
        """Do what the passing of time requires, for every window. Call it about once a second."""
        for window in self._catalogue.all():
            name = window.spec.name
            if isinstance(window, View) or window.spec.source is not None:
                continue  # the window that it is stored with does it
            try:
                self.store.host(name).tidy()
                self._drop_staged(window)
            except SashError as error:
                _log.warning("window %r cannot be tidied now: %s", name, error.message)
            except Exception:
                _log.exception("window %r cannot be tidied", name)  # others can
        self.store.tidy()
        self.trim()

    def trim(self) -> None:
        """Shrink the cache of stored blocks to its budget; between operations only."""
        self.store.trim()

    # ---------------------------------------------------------------- whole windows out and in

    def export(self, name: str) -> Iterator[bytes]:
        """See `Plane.export`."""
        return self.store.pinned(name, export(self.find(name)))

    def export_together(self, name: str, derived: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """See `Plane.export_together`."""
        window = self.find(name)
        fed = {} if isinstance(window, View) else {each.spec.name: each for each in window.derived.fed}
        for each in derived:
            if each not in fed:
                raise NotFound(f"derived: window {name!r} feeds no window {each[:140]!r}", field="derived")
        files = [(each.spec.name, export(each)) for each in (window, *map(fed.__getitem__, derived))]
        return self.store.pinned(name, ((each, frame) for each, frames in files for frame in frames))

    async def restore(
        self,
        parts: AsyncIterator[bytes],
        name: str | None,
        admit: Callable[[str], None] = lambda _: None,
        derived: Sequence[str] = (),
    ) -> Window:
        """See `Plane.restore`; `admit` gets the name of each window before it is made, and may refuse it."""
        targets: list[ImportTarget] = []  # one, once the header is read

        def make(spec: WindowSpec) -> Window:
            admit(spec.name)
            self._check_new(spec)
            if targets:
                fed = targets[0].window.derive(spec)
                assert isinstance(fed, Window), "views are not in an export"
                return fed
            targets.append(self.store.begin_import(spec))
            return targets[0].window

        importer = Importer(make, name, derived)
        try:
            async for part in parts:
                self._memory.check(COPIES * len(part))
                await self.slices.run(importer.feed_steps(part), lambda: None)
                for target in targets:
                    await target.keep_up()
                self.trim()
            window = importer.finish()
            for target in targets:
                await target.keep_up()
                await target.complete()
            family = window.family
            for each in family:
                self._check_new(each.spec, len(family))
        except BaseException:
            for target in targets:
                target.abandon()
            raise
        self._catalogue.put_all(family)
        for target in targets:
            await target.arrive()
        return window

    def _check_new(self, spec: WindowSpec, more: int = 1) -> None:
        self._catalogue.check_room(spec.name, more)
        if spec.name in self._catalogue:
            raise AlreadyExists(f"there is a window {spec.name!r} already", field="name")


def _footprint(window: Window, batches: Sequence[AnyBatch], written: int) -> int:
    """`footprint` of a window and of those that it feeds."""
    return sum(footprint(each.spec, batches, written) for each in window.family)


def _view_footprint(window: Window, operation: Derive) -> int:
    """`view_footprint` of what an operation adds to a window, or to one that it feeds."""
    spec = WindowSpec.parse(operation.document)
    source = window.find(spec.of or "")
    return view_footprint(source, spec) if isinstance(source, Window) else 0


def _shielded(steps: Steps[T]) -> Steps[T]:
    """The same steps; closing these does not close those."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        yield


def _is_applied(ledger: Ledger, origin: Origin, operation: Operation, of_whole: bool) -> bool:
    """Whether a window has a write; `of_whole` says whether its digest is of one that was split over shards."""
    try:
        return ledger.applied(origin)
    except SequenceReused:
        if not of_whole:
            raise
        return ledger.applied(records.signed(origin, operation))  # earlier versions signed the parts of a write


def _unanswered(error: SashError, result: WriteResult) -> SashError:
    """The error for a writer whose entry is taken, and whose question cannot be answered."""
    kind = DataLoss if isinstance(error, DataLoss) else Unavailable
    return kind(
        f"the entry is taken ({result.inserted} inserted, {result.late} late; durability {result.durability}): do not "
        f"send it again. The answer to its question cannot be given: {error.message}"
    )
