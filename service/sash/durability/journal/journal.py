"""The journal: records of writes, in order, committed to the tier in groups.

    loop        append r5 r6 r7 ──▶ pending ─┐                          ┌─▶ r5, r6, r7 are durable: their writers go on
                background: blocks, images ──┴─▶ one group ──▶ tier ──┴─▶ the blocks have landed
    thread                                       encode, commit, wait

While one group is being committed, the next one gathers. So many concurrent writes share one commit, and none waits
for a timer. Records go before background writes. A background write never overtakes a record that was appended before
it: a checkpoint may rely on the records that the journal has.

A group whose commit fails is tried again until it succeeds, whatever its writers were told meanwhile. So memory and
tier never differ for long. If another server takes the tier over, the journal never writes to it again.

Source: DeWitt et al., "Implementation techniques for main memory database systems", SIGMOD 1984 (group commit).
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from sash.durability.journal.group_commit import BackgroundWrite, GroupCommit, PendingRecord
from sash.durability.journal.groups import GroupIndex
from sash.durability.journal.roots import End, JournalPosition, Start
from sash.durability.tier import ColdTier
from sash_engine.errors import DataLoss, FailedPrecondition, OutOfRoom, ResourceExhausted, SashError, Unavailable
from sash_wire import traces

_log = logging.getLogger(__name__)

MIB = 2**20
GROUP_BYTES = 8 * MIB
"""Records of one group have no more bytes, unless a single record is larger. Background writes are added to a group
until it has so many bytes of them."""

CHUNK_BYTES = GROUP_BYTES // 2
"""Blocks and images are handed over in chunks of about this size."""

PENDING_BYTES = 16 * MIB
"""While more bytes than this are pending, writers wait."""

_RETRY_FIRST_S, _RETRY_MOST_S = 0.1, 2.0
_LOOK_S = 0.2
_POSITION = JournalPosition()
_PATIENCE_WHILE_DOWN_S = 3.0
"""A service that stops waits so long for a tier that fails. Writes that were acknowledged as `sync` are in it."""


class Journal:
    """Appends records and commits them in groups.

    Args:
        tier: stores it.
        interval_s: how long records may gather that nobody waits for. Such a record waits for this interval, or for
            the commit under way if that takes longer; then for a commit of each 8 MiB of records before it, and for
            its own.

    Attributes: to be read only.
        last: number of the last record that was appended.
        pending_bytes: bytes that are not committed yet.
        pending_record_bytes: those of them that are records. They go before background writes.
        error: why the tier accepts nothing at the moment; None while it does.
        lost: the tier will never accept anything again; `error` says why.
        commits, committed_records: how many there were.

    Call `start` with what recovery found. All methods belong to the event loop.
    """

    def __init__(self, tier: ColdTier, interval_s: float = 0.1) -> None:
        self._tier = tier
        self._interval_s = interval_s
        self._thread = ThreadPoolExecutor(1, "sash-commit")
        self._records: deque[PendingRecord] = deque()
        self._writes: deque[BackgroundWrite] = deque()
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._groups = GroupIndex()
        self._next_group = 1
        self._start, self._end = Start(), End()  # as the tier has them
        self._cut = Start()  # where the journal begins once all cuts that wait are committed
        self._store = _POSITION.store
        self._before: dict[int, int] = {}  # by window, its last record in the tier
        self.last = 0
        self._durable = 0
        self.pending_bytes = 0
        self.pending_record_bytes = 0
        self._appended = 0
        self._work = asyncio.Event()
        self._urgent = asyncio.Event()
        self._uncongested = asyncio.Event()
        self._uncongested.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self.error: SashError | None = None
        self.lost = False
        self.commits = 0
        self.committed_records = 0

    # ---------------------------------------------------------------- life

    def start(self, position: JournalPosition = _POSITION) -> None:
        """Begin to commit, behind what the tier has."""
        self._next_group, self._start, self._end = position.next_group, position.start, position.end
        self._cut, self._store = position.start, position.store
        self.last = self._durable = position.last
        self._before = dict(position.before)
        for group, numbers in position.written:
            self._groups.add(group, numbers, 0)
        self._task = asyncio.create_task(self._run())

    async def stop(self, patience_s: float) -> bool:
        """Commit what is pending for up to `patience_s` seconds, then stop. True if nothing is pending any more.

        Writers that still wait, or come later, get the error that the service shuts down.
        """
        self._urgent.set()
        await self._wait_until_idle(patience_s)
        done = self._idle.is_set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self._thread.shutdown)  # a commit that is on its way may take a while
        self._refuse(Unavailable("the service shuts down", retry_after_s=_RETRY_MOST_S))
        return done

    async def _wait_until_idle(self, patience_s: float) -> None:
        """Wait until nothing is pending, for as long; but only a little longer once the tier fails."""
        now = asyncio.get_running_loop().time
        end_s, down_s = now() + patience_s, float("inf")
        while not self._idle.is_set() and not self.lost and now() < min(end_s, down_s):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), min(_LOOK_S, max(end_s - now(), 0)))
            down_s = float("inf") if self.error is None else min(down_s, now() + _PATIENCE_WHILE_DOWN_S)

    @property
    def ended(self) -> bool:
        """Whether nothing is committed any more: it was stopped, or the tier is lost."""
        return self._task is None or self._task.done()

    # ---------------------------------------------------------------- appending

    def append(
        self,
        window: int,
        encode: Callable[[], Any],
        size: int,
        urgent: bool = True,
        puts: Callable[[], Mapping[bytes, bytes]] | None = None,
        logged: bool = True,
    ) -> int:
        """Append a record of a window; return its number.

        Args:
            encode: makes the record, of values that MessagePack knows; called in the committer's thread.
            size: about how many bytes that will be.
            urgent: somebody waits for it.
            puts: makes further values for the same commit.
            logged: False if there is no record, but only `puts`.
        """
        self.last += 1
        now_s = asyncio.get_running_loop().time()
        trace = None if traces.tracer is None else traces.context()
        self._records.append(PendingRecord(self.last, now_s, window, encode, size, puts, logged, trace))
        self._appended += size
        self.pending_record_bytes += size
        self._added(size)
        if urgent:
            self._urgent.set()
        return self.last

    def background(self, write: BackgroundWrite) -> None:
        """Commit something that nobody waits for, after all records that were appended before it."""
        self._writes.append(write)
        self._added(write.size)
        self._urgent.set()

    def _added(self, size: int) -> None:
        self.pending_bytes += size
        if self.pending_bytes > PENDING_BYTES:
            self._uncongested.clear()
        self._idle.clear()
        self._work.set()

    # ---------------------------------------------------------------- waiting

    @property
    def congested(self) -> bool:
        """Whether so much is pending that a writer must wait for `uncongested` first."""
        return not self._uncongested.is_set()

    async def uncongested(self) -> None:
        """Wait until less is pending; raises as `check` does."""
        await self._watched(self._uncongested)

    def check(self) -> None:
        """Raise why the tier accepts nothing at the moment, if so."""
        if self.error is not None:
            raise anew(self.error)

    async def durable(self, number: int) -> None:
        """Wait until a record, and all before it, are in the tier.

        Raises:
            Unavailable, ResourceExhausted: the tier fails. They stay pending.
            FailedPrecondition, DataLoss: the tier is lost. They will never be in it.
        """
        if number <= self._durable:
            return
        self.check()
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((number, future))
        await future

    async def drained(self) -> None:
        """Wait until nothing is pending, background writes included; raises as `check` does."""
        await self._watched(self._idle)

    async def _watched(self, event: asyncio.Event) -> None:
        """Wait for an event, and check now and then whether the tier still works: otherwise it would never come."""
        if asyncio.current_task() is None:  # a call that began while its request was read
            await asyncio.sleep(0)
        while not event.is_set():
            self.check()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), _LOOK_S)

    async def passed(self) -> None:
        """Wait until everything that was appended so far is in the tier, however long that takes."""
        future = asyncio.get_running_loop().create_future()
        self.background(BackgroundWrite(done=lambda: None if future.done() else future.set_result(None)))
        await future

    # ---------------------------------------------------------------- the committer

    async def _run(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            await self._work.wait()
            if not self._urgent.is_set():
                # Nobody waits: gather records until the first of them has waited for the interval.
                due_s = self._records[0].appended_s + self._interval_s - now()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._urgent.wait(), due_s)
            group = self._take()
            delay_s = _RETRY_FIRST_S
            while not await self._committed(group):
                if self.lost:
                    return
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _RETRY_MOST_S)
            self._landed(group)

    def _take(self) -> GroupCommit:
        records: list[PendingRecord] = []
        writes, size = [], 0
        # A single large record has a group of its own, because values have a limit, too.
        while self._records and (not records or size + self._records[0].size <= GROUP_BYTES):
            records.append(self._records.popleft())
            size += records[-1].size
        size = 0
        while not self._records and self._writes and size < GROUP_BYTES:
            writes.append(self._writes.popleft())
            size += writes[-1].size
        if not self._records and not self._writes:
            self._work.clear()
            self._urgent.clear()
        end = self._end
        if logged := [record.number for record in records if record.logged]:
            end = replace(end, group=self._next_group, record=logged[-1])
            self._next_group += 1
        if listings := [record.number for record in records if not record.logged]:
            end = replace(end, listing=listings[-1])
        cuts = [write.start for write in writes if write.start is not None]
        if not cuts and not listings:
            return GroupCommit(end.group, records, writes, None, end)
        number = self._start.number + 1
        start = replace(cuts[-1] if cuts else self._start, listing=end.listing, number=number)
        return GroupCommit(end.group, records, writes, start, replace(end, start=number))

    async def _committed(self, group: GroupCommit) -> bool:
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, group)
        except (Unavailable, ResourceExhausted) as error:
            if isinstance(error, OutOfRoom) and self._lightened(group, error):
                return await self._committed(group)
            self._fail(error)
            return False
        except (FailedPrecondition, DataLoss) as error:
            _log.critical("the tier is lost: %s", error.message)
            self.lost = True
            self._fail(error)
            return False
        except Exception as error:
            _log.exception("a commit failed; it is tried again")
            self._fail(Unavailable(f"the tier failed: {type(error).__name__}", retry_after_s=_RETRY_MOST_S))
            return False
        if self.error is not None:
            _log.warning("the tier accepts writes again")
            self.error = None
        return True

    def _lightened(self, group: GroupCommit, error: OutOfRoom) -> bool:
        """Remove background writes that may be refused from a group. True if there were any."""
        refused = group.take_refusable()
        for write, refuse in refused:
            self.pending_bytes -= write.size
            refuse(error)
        return bool(refused)

    def _commit(self, group: GroupCommit) -> None:
        """Commit a group; in the committer's thread."""
        attributes = {"sash.records": len(group.records), "sash.bytes": sum(each.size for each in group.records)}
        with traces.commits((each.trace for each in group.records), attributes):
            self._tier.commit(*group.encode(self._before, self._end.record, self._store))

    def _fail(self, error: SashError) -> None:
        if self.error is None:
            _log.warning("the tier accepts no writes: %s", error.message)
        self._refuse(error)

    def _refuse(self, error: SashError) -> None:
        self.error = error
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(anew(error))

    def _landed(self, group: GroupCommit) -> None:
        self.commits += 1
        self.committed_records += len(group.records)
        self._start, self._end = group.start or self._start, group.end
        if last := {record.window: record.number for record in group.records if record.logged}:
            self._before |= last
            self._groups.add(group.number, last, self._appended)
        if group.records:
            self._durable = group.records[-1].number
        waiting = deque[tuple[int, asyncio.Future[None]]]()
        while self._waiting:
            number, future = self._waiting.popleft()
            if number > self._durable:
                waiting.append((number, future))
            elif not future.done():
                future.set_result(None)
        self._waiting = waiting
        record_bytes = sum(record.size for record in group.records)
        self.pending_record_bytes -= record_bytes
        self.pending_bytes -= record_bytes + sum(write.size for write in group.writes)
        if self.pending_bytes <= PENDING_BYTES:
            self._uncongested.set()
        for write in group.writes:
            if write.done is not None:
                try:
                    write.done()
                except Exception:
                    _log.exception("a step after a commit failed")  # it must not end the committer
        if not self._records and not self._writes:
            self._idle.set()

    # ---------------------------------------------------------------- trimming

    def oldest_window(self, through: Mapping[int, int], damaged: Collection[int] = ()) -> int | None:
        """The window that needs the oldest group; None if no group is needed. See `GroupIndex.oldest_window`."""
        return self._groups.oldest_window(through, damaged)

    @property
    def behind_bytes(self) -> int:
        """How much was appended, since the start, after the oldest group that is still needed."""
        oldest = self._groups.oldest_at
        return 0 if oldest is None else self._appended - oldest

    @property
    def groups(self) -> int:
        """How many groups the tier has."""
        return len(self._groups)

    def groups_of(self, window: int) -> list[int]:
        """The groups in the tier with records of a window. They stay there until the next `trim`."""
        return self._groups.groups_of(window)

    def trim(self, through: Mapping[int, int], damaged: Collection[int] = ()) -> None:
        """Delete the groups that no window needs, see `GroupIndex.trim`.

        Args:
            through: by window, the last record that its image covers.
            damaged: windows that cannot be recovered as things are.
        """
        cut = self._groups.trim(through, damaged, self._cut, self._next_group, self.last)
        if cut is None:
            return
        self._cut, keys = cut
        self._before = {window: record for window, record in self._before.items() if window in through}
        self.background(BackgroundWrite(deletes=keys, size=64 * len(keys), start=self._cut))


def anew(error: SashError) -> SashError:
    """Copy an error, to raise it again. An error that is raised repeatedly keeps every caller's frames alive."""
    return copy.copy(error)
