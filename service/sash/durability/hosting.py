"""The place that keeps the windows of a `Storage`: memory (memory_storage.py) or a tier (tier_storage.py).

Storage ──▶ WindowStorage ── admit ──▶ HostedWindow ── apply, stage, settled
                 │                          │
          MemoryStorage                MemoryWindow
          TierStorage                  TieredWindow, and MemoryWindow for windows of durability "memory"
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from sash.durability.records.commands import Operation, Stage, Write
from sash.durability.window_lock import WindowLock
from sash.runtime.storage_status import StorageStatus
from sash_engine.windows.answers import Counts, Staged, WindowInfo, WriteResult
from sash_engine.windows.batches.batch import AnyBatch, Origin
from sash_engine.windows.batches.ledger import Ledger, Part
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window

R = TypeVar("R", WriteResult, Staged)
T = TypeVar("T")

Applied = Callable[[Ledger], bool]
"""Whether a window's ledger says that a write was applied before."""


def never(ledger: Ledger) -> bool:
    """The `Applied` of a write that has no number."""
    return False


class HostedWindow(Protocol):
    """A window that accepts a write now. Nothing else may run between its admission and the write."""

    window: Window

    @property
    def last_record(self) -> int:
        """Number of the last record in the journal; 0 without a journal."""

    def apply(self, operation: Operation, origin: Origin | None = None) -> tuple[WriteResult, int]:
        """Change the window, and log the write.

        Returns:
            what became of it, and the number of its record; 0 without a journal.

        Raises:
            SashError: what the operation raises.
        """

    def alone(self, write: Write) -> AbstractContextManager[None]:
        """Hold the window while a write is applied in slices, at its time. Everybody else waits."""

    def log(self, write: Write) -> int:
        """Log a write that was applied just now; return the number of its record, 0 without a journal."""

    def stage(self, operation: Stage, batch: AnyBatch) -> int:
        """Keep a part of a batch; return the number of its record."""

    async def read_parts(self, parts: Sequence[Part]) -> list[AnyBatch]:
        """Return the entries of staged parts, in order; a column of strings has one dictionary in all of them.

        Other writes may run meanwhile.
        """

    async def settled(self, result: R, record: int) -> R:
        """Return a result once the write is as durable as the window's spec says.

        Raises:
            Unavailable: the tier has not confirmed it. The write is applied.
        """

    def tidy(self) -> None:
        """Do what the passing of time requires; raises as a write does."""


class ImportTarget(Protocol):
    """A window that is being imported, and not listed yet."""

    window: Window

    async def keep_up(self) -> None:
        """Store what was imported so far, if there is enough of it; raises as a write does."""

    async def complete(self) -> None:
        """Store the rest; raises as a write does."""

    async def arrive(self) -> None:
        """List the window, and wait until the list is durable; raises as a write does."""

    def abandon(self) -> None:
        """Delete what was stored."""


class WindowStorage(Protocol):
    """Where the windows of a service are kept. All methods belong to the event loop."""

    async def start(self, beside: bool = False) -> None:
        """Begin; windows that were kept are there afterwards. With `beside`, the loop runs meanwhile."""

    async def stop(self, patience_s: float, checkpoint: bool = True) -> None:
        """End, and wait for up to `patience_s` seconds until everything is stored; see `Storage.stop`."""

    @property
    def taken(self) -> bool:
        """Whether another server has taken the tier over, as far as is known without asking."""

    async def confirm(self) -> None:
        """Wait until the tier has all that readers see now, and ask it if another server has taken it over.

        Raises:
            SashError: as `HostedWindow.settled` and `ColdTier.get_many`.
        """

    @property
    def problem(self) -> str | None:
        """Why durable writes are refused at the moment; None while they are accepted."""

    def status(self) -> StorageStatus | None:
        """Figures for the metrics; None without a tier."""

    def check_served(self, name: str) -> None:
        """Raise why the window of that name answers nothing, if so."""

    def describe(self, info: WindowInfo) -> None:
        """Fill in the durability of a window, and its problem."""

    def goes_with(self, name: str) -> list[str]:
        """The windows that are deleted with a window: those that are stored with a lost one. None goes by itself."""

    async def create(self, spec: WindowSpec) -> tuple[Window, bool]:
        """Create a window, or find the one of this spec; the bool says whether it is new."""

    async def delete(self, name: str) -> Counts:
        """Delete a window; return its counts."""

    def begin_import(self, spec: WindowSpec) -> ImportTarget:
        """Make an empty window for an import."""

    def check_size(self, name: str, size: int) -> None:
        """Raise TooLarge if a write of so many bytes is too large for the window of that name."""

    def lock(self, name: str) -> WindowLock:
        """The lock of the window of that name; raises NotFound."""

    def host(self, name: str) -> HostedWindow:
        """The window of that name, without waiting until it accepts a write; raises NotFound."""

    async def admit(self, name: str, size: int, applied: Applied = never, makes_room: bool = False) -> HostedWindow:
        """Wait until a window accepts a write. Nothing else runs before the caller goes on.

        Args:
            name: the window's.
            size: bytes of the write.
            applied: whether it was applied before. Such a write needs no space, and is not refused for what the tier
                lacks: its record may be pending, and becomes durable when the tier accepts it.
            makes_room: it evicts.

        Raises:
            SashError: as a write does, and as `check_served` does.
        """

    def pinned(self, name: str, parts: Iterator[T]) -> Iterator[T]:
        """Iterate over a window as it was, and delete nothing that the iteration may need."""

    def trim(self) -> None:
        """Shrink the cache of blocks to its budget; between operations only."""

    def tidy(self) -> None:
        """Do what the passing of time requires beside the windows."""
