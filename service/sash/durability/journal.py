"""The journal: records of writes, in order, committed to the tier in groups.

    loop        append r5 r6 r7 ──▶ pending ─┐                          ┌─▶ r5, r6, r7 are durable: their writers go on
                background: blocks, images ──┴─▶ one group ──▶ tier ──┴─▶ the blocks have landed
    thread                                       encode, commit, wait

While one group is on its way, the next one gathers: so many concurrent writes share one commit, and none waits for a
timer. Records go before background values, and a background value never overtakes a record that was appended before
it: what a checkpoint says to be in the journal is there.

A tier that cannot be reached keeps its group waiting; it is tried again until it succeeds, whatever was said to the
writers meanwhile, so that memory and tier never differ for long. A tier that another server has taken over is never
written again.

Source: group commit is as old as DeWitt et al., "Implementation techniques for main memory database systems",
SIGMOD 1984.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from sash.durability import formats as values
from sash.durability.roots import End, Group, Start
from sash.durability.tier import ColdTier
from sash_engine.errors import DataLoss, FailedPrecondition, OutOfRoom, ResourceExhausted, SashError, Unavailable

__all__ = ["BackgroundWrite", "Journal", "JournalPosition", "anew"]

_log = logging.getLogger(__name__)

MIB = 2**20
GROUP_BYTES = 8 * MIB
"""A group has no more bytes of records, but for one that is larger; and takes no more once it has so many of background
values."""

PENDING_BYTES = 16 * MIB
"""With so many bytes waiting, writers wait, too."""

_RETRY_FIRST_S, _RETRY_MOST_S = 0.1, 2.0
_LOOK_S = 0.2
_START, _END = Start(), End()
_NOTHING: Mapping[int, int] = MappingProxyType({})
_PATIENCE_WHILE_DOWN_S = 3.0
"""So long the end of a service waits for a tier that takes nothing: what was acknowledged as `sync` is there."""


@dataclass(slots=True)
class BackgroundWrite:
    """Background work for the tier.

    Args:
        puts: makes the values; called in the committer's thread.
        deletes: keys.
        size: about how many bytes.
        done: called on the loop once the tier has it.
        refused: called on the loop instead where the tier has no room for it; None where it is tried until there is.
    """

    puts: Callable[[], Mapping[bytes, bytes]] | None = None
    deletes: Sequence[bytes] = ()
    size: int = 0
    done: Callable[[], None] | None = None
    refused: Callable[[OutOfRoom], None] | None = None


@dataclass(slots=True)
class _Record:
    number: int
    appended_s: float
    window: int
    encode: Callable[[], Any]
    size: int
    puts: Callable[[], Mapping[bytes, bytes]] | None
    logged: bool


@dataclass(slots=True)
class _Group:
    number: int
    records: list[_Record]
    jobs: list[BackgroundWrite]
    end: End
    """Where the journal ends with it."""


class JournalPosition(NamedTuple):
    """Where a journal goes on, as `Journal.start` takes it."""

    next_group: int = 1
    last: int = 0
    written: Iterable[tuple[int, Mapping[int, int]]] = ()
    start: Start = _START
    end: End = _END
    before: Mapping[int, int] = _NOTHING


@dataclass(slots=True)
class _Written:
    """A group in the tier: for each of its windows the last record."""

    number: int
    last: dict[int, int] = field(default_factory=dict)
    at: int = 0
    """How many bytes had been appended when it landed."""

    def needed(self, through: Mapping[int, int]) -> list[int]:
        """The windows that need it, as their checkpoints do not cover all of it."""
        return [window for window, number in self.last.items() if window in through and number > through[window]]


class Journal:
    """Appends records and commits them in groups.

    Args:
        tier: where to.
        interval_s: how long records that nobody waits for may gather. So such a record is in the tier at the latest
            when it has waited for so long, or for the commit under way if that takes longer, and its own commit is
            done; and that of each 8 MiB of records before it.

    Call `start` with what recovery found; all methods belong to the event loop.
    """

    def __init__(self, tier: ColdTier, interval_s: float = 0.1) -> None:
        self._tier = tier
        self._interval_s = interval_s
        self._thread = ThreadPoolExecutor(1, "sash-commit")
        self._records: deque[_Record] = deque()
        self._jobs: deque[BackgroundWrite] = deque()
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._written: deque[_Written] = deque()
        self._apart: list[_Written] = []
        self._next_group = 1
        self._start, self._end = Start(), End()  # as the tier has them, or will once it takes the next commit
        self._before: dict[int, int] = {}  # by window, its last record in the tier
        self.last = 0
        """Number of the last record that was appended."""
        self._durable = 0
        self.pending_bytes = 0
        self.pending_record_bytes = 0
        """Those of them that are records, which go before all else."""
        self._appended = 0
        self._work = asyncio.Event()
        self._urgent = asyncio.Event()
        self._uncongested = asyncio.Event()
        self._uncongested.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self.error: SashError | None = None
        """Why the tier takes nothing at the moment; None where it does."""
        self.lost = False
        """Whether the tier will never take anything again; `error` says why."""
        self.commits = 0
        self.committed_records = 0

    # ---------------------------------------------------------------- life

    def start(
        self,
        next_group: int = 1,
        last: int = 0,
        written: Iterable[tuple[int, Mapping[int, int]]] = (),
        start: Start = _START,
        end: End = _END,
        before: Mapping[int, int] = _NOTHING,
    ) -> None:
        """Begin to commit.

        Args:
            next_group: number of the next group.
            last: number of the last record.
            written: the groups in the tier: number, and for each window its last record there.
            start, end: where the journal begins and ends there.
            before: by window, its last record there, or a later one that its image covers.
        """
        self._next_group, self.last, self._durable = next_group, last, last
        self._start, self._end, self._before = start, end, dict(before)
        self._written.extend(_Written(number, dict(numbers)) for number, numbers in written)
        self._task = asyncio.create_task(self._run())

    async def stop(self, patience_s: float) -> bool:
        """Commit what is pending for up to `patience_s` seconds, then stop; whether nothing is left.

        Who still waits then, or comes later, is told that the service shuts down.
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
        """Wait as long, but only a little while the tier takes nothing, from whenever that is."""
        now = asyncio.get_running_loop().time
        end_s, down_s = now() + patience_s, float("inf")
        while not self._idle.is_set() and not self.lost and now() < min(end_s, down_s):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), min(_LOOK_S, max(end_s - now(), 0)))
            down_s = float("inf") if self.error is None else min(down_s, now() + _PATIENCE_WHILE_DOWN_S)

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
            puts: makes values that go into the same commit.
            logged: False where `puts` are all there is.
        """
        self.last += 1
        now_s = asyncio.get_running_loop().time()
        self._records.append(_Record(self.last, now_s, window, encode, size, puts, logged))
        self._appended += size
        self.pending_record_bytes += size
        self._added(size)
        if urgent:
            self._urgent.set()
        return self.last

    def background(self, job: BackgroundWrite) -> None:
        """Commit something that nobody waits for, after all records that were appended before."""
        self._jobs.append(job)
        self._added(job.size)
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
        """Whether a writer should wait for `room` first."""
        return not self._uncongested.is_set()

    async def uncongested(self) -> None:
        """Wait until not too much is pending; raises what `check` does."""
        await self._watched(self._uncongested)

    def check(self) -> None:
        """Raise why the tier takes nothing at the moment, if it does not."""
        if self.error is not None:
            raise anew(self.error)

    async def durable(self, number: int) -> None:
        """Wait until a record, and all before it, are in the tier.

        Raises:
            Unavailable, ResourceExhausted: they are not, and it is not known when they will be. They stay pending.
            FailedPrecondition, DataLoss: they never will be.
        """
        if number <= self._durable:
            return
        self.check()
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((number, future))
        await future

    async def drained(self) -> None:
        """Wait until nothing is pending, background work included; raises as `durable`."""
        await self._watched(self._idle)

    async def _watched(self, event: asyncio.Event) -> None:
        """Wait for an event, and look now and then whether the tier still takes what would bring it."""
        while not event.is_set():
            self.check()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), _LOOK_S)

    async def passed(self) -> None:
        """Wait until all that was appended so far is in the tier, however long that takes, and whatever comes after."""
        future = asyncio.get_running_loop().create_future()
        self.background(BackgroundWrite(done=lambda: None if future.done() else future.set_result(None)))
        await future

    # ---------------------------------------------------------------- the committer

    async def _run(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            await self._work.wait()
            if not self._urgent.is_set():
                # Nobody waits: let some more come, until the first of them has waited for the interval.
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

    def _take(self) -> _Group:
        records: list[_Record] = []
        jobs, size = [], 0
        # A record that is large by itself has a group of its own: a value has its limit, too.
        while self._records and (not records or size + self._records[0].size <= GROUP_BYTES):
            records.append(self._records.popleft())
            size += records[-1].size
        size = 0
        while not self._records and self._jobs and size < GROUP_BYTES:
            jobs.append(self._jobs.popleft())
            size += jobs[-1].size
        if not self._records and not self._jobs:
            self._work.clear()
            self._urgent.clear()
        end = self._end
        if logged := [record.number for record in records if record.logged]:
            end = replace(end, group=self._next_group, record=logged[-1])
            self._next_group += 1
        if listings := [record.number for record in records if not record.logged]:
            end = replace(end, listing=listings[-1])
        return _Group(end.group, records, jobs, end)

    async def _committed(self, group: _Group) -> bool:
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
            _log.warning("the tier takes writes again")
            self.error = None
        return True

    def _lightened(self, group: _Group, error: OutOfRoom) -> bool:
        """Take out of a group what need not be committed; whether there was something."""
        refused = [job for job in group.jobs if job.refused is not None]
        group.jobs = [job for job in group.jobs if job.refused is None]
        for job in refused:
            self.pending_bytes -= job.size
            assert job.refused is not None
            job.refused(error)
        return bool(refused)

    def _commit(self, group: _Group) -> None:
        puts: dict[bytes, bytes] = {}
        deletes: dict[bytes, None] = {}
        logged = [record for record in group.records if record.logged]
        if logged:
            entries = [(record.number, record.window, record.encode()) for record in logged]
            before = {record.window: self._before.get(record.window, 0) for record in logged}
            puts |= Group(group.number, entries, self._end.record, before).puts()
        if group.records:
            puts |= group.end.puts()
        for record in group.records:
            puts.update(record.puts() if record.puts is not None else {})
        for job in group.jobs:
            made = job.puts() if job.puts is not None else {}
            puts.update(made)
            # A tier takes them in no order: of one key only the last that was said of it may be there.
            for key in made:
                deletes.pop(key, None)
            for key in job.deletes:
                puts.pop(key, None)
                deletes[key] = None
        self._tier.commit(puts, deletes)

    def _fail(self, error: SashError) -> None:
        if self.error is None:
            _log.warning("the tier takes no writes: %s", error.message)
        self._refuse(error)

    def _refuse(self, error: SashError) -> None:
        self.error = error
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(anew(error))

    def _landed(self, group: _Group) -> None:
        self.commits += 1
        self.committed_records += len(group.records)
        self._end = group.end
        if last := {record.window: record.number for record in group.records if record.logged}:
            self._before |= last
            self._written.append(_Written(group.number, last, self._appended))
        if group.records:
            self._durable = group.records[-1].number
        kept = deque[tuple[int, asyncio.Future[None]]]()
        while self._waiting:
            number, future = self._waiting.popleft()
            if number > self._durable:
                kept.append((number, future))
            elif not future.done():
                future.set_result(None)
        self._waiting = kept
        record_bytes = sum(record.size for record in group.records)
        self.pending_record_bytes -= record_bytes
        self.pending_bytes -= record_bytes + sum(job.size for job in group.jobs)
        if self.pending_bytes <= PENDING_BYTES:
            self._uncongested.set()
        for job in group.jobs:
            if job.done is not None:
                try:
                    job.done()
                except Exception:
                    _log.exception("what follows a commit failed")  # and must not end all commits
        if not self._records and not self._jobs:
            self._idle.set()

    # ---------------------------------------------------------------- trimming

    def oldest_window(self, through: Mapping[int, int], damaged: Collection[int] = ()) -> int | None:
        """The window whose records the oldest group is kept for; None where no group is needed.

        Args:
            through: for each window the last record that its checkpoint covers.
            damaged: windows that cannot be recovered as things are: no checkpoint will ever cover their records.
        """
        for written in self._written:
            for window in written.needed(through):
                if window not in damaged:
                    return window
        return None

    @property
    def behind_bytes(self) -> int:
        """How much was appended, since the start, after the oldest group that is still kept."""
        return self._appended - self._written[0].at if self._written else 0

    @property
    def groups(self) -> int:
        """How many groups the tier has."""
        return len(self._written) + len(self._apart)

    def groups_of(self, window: int) -> list[int]:
        """Which groups with records of a window the tier has, and will not be told to delete before the next `trim`."""
        return [written.number for written in (*self._apart, *self._written) if window in written.last]

    def trim(self, through: Mapping[int, int], damaged: Collection[int] = ()) -> None:
        """Delete the groups that no window needs any more.

        Those that only damaged windows need stay, set apart: should somebody put right what is damaged, they are
        needed again, and until then they must not keep the rest of the journal from being cut. They do not grow in
        number, as nothing is written to such a window.

        Args:
            through, damaged: as in `oldest_window`.
        """
        done = [written for written in self._apart if not written.needed(through)]
        apart = [written for written in self._apart if written.needed(through)]
        while self._written:
            needed = self._written[0].needed(through)
            if any(window not in damaged for window in needed):
                break
            oldest = self._written.popleft()
            (apart if needed else done).append(oldest)
        if not done and len(apart) == len(self._apart):
            return
        self._apart = apart
        # What was set apart in an earlier life comes before the first that is not.
        first = max(self._start.first, self._written[0].number if self._written else self._next_group)
        before_first = {written.number: max(written.last.values(), default=0) for written in (*apart, *self._written)}
        cut = dict(self._start.cut)
        for written in done:
            for window, record in written.last.items():
                cut[window] = max(record, cut.get(window, 0))
        self._start = Start(
            first,
            self.last,
            {number: record for number, record in before_first.items() if number < first},
            {window: record for window, record in cut.items() if window in through},
            self._start.bound,
        )
        self._before = {window: record for window, record in self._before.items() if window in through}
        pointer = self._start.puts()
        keys = [values.group_key(written.number) for written in done]
        self.background(BackgroundWrite(lambda: pointer, keys, 64 * len(done)))


def anew(error: SashError) -> SashError:
    """The same error, to be raised once more: one that is raised again and again holds on to every caller's frames."""
    return copy.copy(error)
