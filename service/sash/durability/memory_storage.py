"""Windows in memory only: of a service without a tier, and of durability "memory" in a service with one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TypeVar
from weakref import WeakKeyDictionary

from sash.durability.catalogue import Catalogue
from sash.durability.hosting import Applied, never
from sash.durability.records import commands as records
from sash.durability.records.commands import Operation, Stage, Write
from sash.durability.records.shared_texts import with_one_dictionary
from sash.durability.window_lock import RestingClock, WindowLock
from sash.runtime.storage_status import StorageStatus
from sash_engine.clock import Clock
from sash_engine.errors import FailedPrecondition
from sash_engine.windows.answers import Counts, Staged, WindowInfo, WriteResult
from sash_engine.windows.batches.batch import AnyBatch, Origin
from sash_engine.windows.batches.ledger import Part
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window

R = TypeVar("R", WriteResult, Staged)
T = TypeVar("T")


class MemoryWindow:
    """A `HostedWindow` in memory only.

    Args:
        window: the window.
        clock: tells wall time.
        lock: its lock.
    """

    last_record = 0

    def __init__(self, window: Window, clock: Clock, lock: WindowLock) -> None:
        self.window, self.lock, self._clock = window, lock, clock

    def apply(self, operation: Operation, origin: Origin | None = None) -> tuple[WriteResult, int]:
        write = Write(operation, self._clock.now_ns(), origin)
        write.check(self.window)
        return write.apply(self.window), 0

    @contextlib.contextmanager
    def alone(self, write: Write) -> Iterator[None]:
        with self.lock.exclusive():
            yield

    def log(self, write: Write) -> int:
        return 0

    def stage(self, operation: Stage, batch: AnyBatch) -> int:
        operation.held = batch
        self.apply(operation)
        return 0

    async def read_parts(self, parts: Sequence[Part]) -> list[AnyBatch]:
        return with_one_dictionary([part.held for part in parts if part.held is not None])

    async def settled(self, result: R, record: int) -> R:
        return result

    def tidy(self) -> None:
        if self.lock.held:
            self.lock.drain()
            return
        now_ns = self._clock.now_ns()
        Write(records.Tidy(), now_ns).apply(self.window)
        if expired := self.window.ledger.expired(now_ns):
            self.apply(records.Expire(expired))


class _MemoryImport:
    """An `ImportTarget` in memory only."""

    def __init__(self, window: Window) -> None:
        self.window = window

    async def keep_up(self) -> None:
        pass

    async def complete(self) -> None:
        pass

    async def arrive(self) -> None:
        pass

    def abandon(self) -> None:
        pass


class MemoryStorage:
    """A `WindowStorage` without a tier.

    Args:
        catalogue: the windows.
        clock: tells wall time.
        block: entries per sealed block of new windows.
    """

    problem = None
    taken = False

    def __init__(self, catalogue: Catalogue, clock: Clock, block: int) -> None:
        self._catalogue, self._clock, self._block = catalogue, clock, block
        self._locks: WeakKeyDictionary[Window, WindowLock] = WeakKeyDictionary()
        self._hosts: dict[str, MemoryWindow] = {}
        """By name, of windows that no other window feeds."""

    async def start(self, beside: bool = False) -> None:
        pass

    async def stop(self, patience_s: float, checkpoint: bool = True) -> None:
        pass

    async def confirm(self) -> None:
        pass

    def status(self) -> StorageStatus | None:
        return None

    def check_served(self, name: str) -> None:
        pass

    def describe(self, info: WindowInfo) -> None:
        pass

    def goes_with(self, name: str) -> list[str]:
        return []

    async def create(self, spec: WindowSpec) -> tuple[Window, bool]:
        _refuse_durable(spec)
        return self._catalogue.create(spec, self._make)

    async def delete(self, name: str) -> Counts:
        self._hosts.pop(name, None)
        return self._catalogue.delete(name).counts

    def begin_import(self, spec: WindowSpec) -> _MemoryImport:
        _refuse_durable(spec)
        return _MemoryImport(self._make(spec, self._catalogue.max_keys))

    def check_size(self, name: str, size: int) -> None:
        pass

    def host(self, name: str) -> MemoryWindow:
        hosted = self._hosts.get(name)
        if hosted is None or hosted.window is not self._catalogue.get(name):
            window = self._catalogue.window(name)
            hosted = MemoryWindow(window, self._clock, self.lock(name))
            if window.spec.source is None:
                self._hosts[name] = hosted
        return hosted

    def lock(self, name: str) -> WindowLock:
        hosted = self._hosts.get(name)
        if hosted is not None and hosted.window is self._catalogue.get(name):
            return hosted.lock
        return self._locks[self._catalogue.window(self._catalogue.home(name))]

    async def admit(self, name: str, size: int, applied: Applied = never, makes_room: bool = False) -> MemoryWindow:
        hosted = self.host(name)
        while hosted.lock.contended:
            await hosted.lock.wait_to_write()
            waited, hosted = hosted, self.host(name)
            if hosted.lock is waited.lock:  # else the window was replaced meanwhile
                break
        return hosted

    def pinned(self, name: str, parts: Iterator[T]) -> Iterator[T]:
        return parts

    def trim(self) -> None:
        pass

    def tidy(self) -> None:
        pass

    def _make(self, spec: WindowSpec, max_keys: int) -> Window:
        clock = RestingClock(self._clock)
        window = Window(spec, max_keys, self._block, clock=clock)
        self._locks[window] = WindowLock(clock)
        return window


def _refuse_durable(spec: WindowSpec) -> None:
    if spec.durability in ("sync", "interval"):
        raise FailedPrecondition(
            f"durability {spec.durability!r} is not available: this service keeps windows in memory only",
            field="durability",
        )
