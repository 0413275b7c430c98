"""When windows are stored and checkpointed, and the journal is cut behind them.

after a write   enough sealed blocks ──▶ store            enough journal ──▶ checkpoint
every second    a long journal that one window alone needs ──▶ checkpoint of that window

loop    [ steps of an image: 5 ms ] [ whatever else is ready ] [ steps: 5 ms ] [ … ] …      a checkpoint's own time
window    no writes until the last step; they wait in order of arrival. Readers, and other windows, go on"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Generator, Iterator, Mapping

from sash.durability.backing import Backing
from sash.durability.kept import Kept
from sash.memory import grow_old
from sash_engine.clock import Clock
from sash_engine.errors import DataLoss, OutOfRoom, SashError, Unavailable

__all__ = ["Checkpoints"]

_log = logging.getLogger(__name__)

_TURN_S = 0.005
"""So long an image is taken before the loop does all else that is ready. Steps are of 1 to 3 ms; with turns of 1 ms a
busy loop would make the window's writers wait several times as long, and others hardly shorter."""

_PAUSE_MAX = 64


class Checkpoints:
    """Stores and checkpoints the windows of one service.

    Args:
        backing: where to.
        kept: the windows, by name.
        clock: measures turns.
        checkpoint_bytes: after so much journal a window is checkpointed.
        store_entries: with so many entries in sealed blocks that the tier lacks, a window writes them.

    Attributes:
        count: how many images were written.
    """

    def __init__(
        self, backing: Backing, kept: Mapping[str, Kept], clock: Clock, checkpoint_bytes: int, store_entries: int
    ) -> None:
        self._backing, self._kept, self._clock = backing, kept, clock
        self._checkpoint_bytes, self._store_entries = checkpoint_bytes, store_entries
        self._readers = 0
        self.count = 0

    # ---------------------------------------------------------------- storing

    def relieve(self, kept: Kept) -> None:
        """Store blocks, and take a checkpoint, where enough has gathered.

        Either may have to read blocks to which entries were added. Where that fails the write that led here is none
        the worse: it is in the journal. It is tried again after the next `tidy`.
        """
        if not kept.resting:
            with self._forgiving(kept):
                kept.store(self._store_entries)
                if kept.wants_checkpoint(self._checkpoint_bytes):
                    self.begin(kept)

    def begin(self, kept: Kept) -> None:
        """Take a checkpoint, unless one is under way or cannot be taken now."""

        def counted() -> None:
            self.count += 1
            kept.pause = 1
            self.trim()

        if not (kept.checkpointing or kept.resting or kept.doubt is not None):
            self._go_on(kept, kept.checkpoint(counted, lambda error: self._rest(kept, error)))

    def _go_on(self, kept: Kept, steps: Generator[None]) -> None:
        """Take steps for a while, then let the loop run."""
        if kept.deleted:
            steps.close()
            return
        with self._forgiving(kept):
            until_s = self._clock.monotonic_s() + _TURN_S
            for _ in steps:
                if self._clock.monotonic_s() >= until_s:
                    grow_old()
                    asyncio.get_running_loop().call_soon(self._go_on, kept, steps)
                    return

    @contextlib.contextmanager
    def _forgiving(self, kept: Kept) -> Iterator[None]:
        """Let a window rest that cannot be stored now."""
        try:
            yield
        except (Unavailable, DataLoss, OutOfRoom) as error:
            self._rest(kept, error)
        except Exception as error:
            _log.exception("window %r", kept.name)
            self._rest(kept, Unavailable(f"it failed: {error!r}"))

    def _rest(self, kept: Kept, error: SashError) -> None:
        kept.resting = kept.pause
        if isinstance(error, OutOfRoom):  # what does not fit now is as large a second later
            kept.pause = min(2 * kept.pause, _PAUSE_MAX)
        _log.warning("window %r cannot be stored now: %s", kept.name, error.message)

    async def taken(self, kept: Kept) -> None:
        """Take a checkpoint, unless one is under way or cannot be taken now; wait until it is taken, if not written."""
        self.begin(kept)
        await kept.still.wait()

    async def bring_up_to_date(self) -> None:
        """Take a checkpoint of every window with a journal behind its image, and wait until all are taken."""
        for kept in list(self._kept.values()):
            await kept.still.wait()
            if kept.logged_bytes:
                await self.taken(kept)

    # ---------------------------------------------------------------- the journal

    def through(self) -> dict[int, int]:
        """For each window the last record that its image covers."""
        return {kept.number: kept.through for kept in self._kept.values()}

    def _damaged(self) -> set[int]:
        return {kept.number for kept in self._kept.values() if kept.lost}

    def trim(self) -> None:
        """Delete the groups of the journal that no window needs any more."""
        if not self._readers:
            self._backing.journal.trim(self.through(), self._damaged())

    @contextlib.contextmanager
    def untrimmed(self) -> Iterator[None]:
        """Leave the journal as long as it is while somebody reads it."""
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1

    def shorten_journal(self) -> None:
        """Checkpoint a window that was written to little, and for which alone a long journal is kept."""
        journal = self._backing.journal
        if journal.error is not None or journal.behind_bytes < 2 * self._checkpoint_bytes:
            return
        number = journal.oldest_window(self.through(), self._damaged())
        for kept in self._kept.values():
            if kept.number == number and 2 * kept.logged_bytes < journal.behind_bytes:
                self.begin(kept)
