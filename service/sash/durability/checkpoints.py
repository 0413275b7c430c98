"""When windows are stored and checkpointed, and the journal is cut behind them.

after a write   enough sealed blocks ──▶ store            enough journal ──▶ checkpoint
every second    a long journal that one window alone needs ──▶ checkpoint of that window

loop    [ steps of an image: 5 ms ] [ whatever else is ready ] [ steps: 5 ms ] [ … ] …      a checkpoint's own time
window    no writes until the last step; they wait in order of arrival. Readers, and other windows, go on"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Generator, Iterator, Mapping

from sash.durability.session import TierSession
from sash.durability.stored_window import StoredWindow
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
        session: where to.
        kept: the windows, by name.
        clock: measures turns.
        checkpoint_bytes: after so much journal a window is checkpointed.
        store_entries: with so many entries in sealed blocks that the tier lacks, a window writes them.

    Attributes:
        count: how many images were written.
    """

    def __init__(
        self,
        session: TierSession,
        stored: Mapping[str, StoredWindow],
        clock: Clock,
        checkpoint_bytes: int,
        store_entries: int,
    ) -> None:
        self._session, self._stored, self._clock = session, stored, clock
        self._checkpoint_bytes, self._store_entries = checkpoint_bytes, store_entries
        self._readers = 0
        self.count = 0

    # ---------------------------------------------------------------- storing

    def relieve(self, stored: StoredWindow) -> None:
        """Store blocks, and take a checkpoint, where enough has gathered.

        Either may have to read blocks to which entries were added. Where that fails the write that led here is none
        the worse: it is in the journal. It is tried again after the next `tidy`.
        """
        if not stored.resting:
            with self._forgiving(stored):
                stored.store(self._store_entries)
                if stored.wants_checkpoint(self._checkpoint_bytes):
                    self.begin(stored)

    def begin(self, stored: StoredWindow) -> None:
        """Take a checkpoint, unless one is under way or cannot be taken now."""

        def counted() -> None:
            self.count += 1
            stored.pause = 1
            self.trim()

        if not (stored.checkpointing or stored.resting or stored.failure is not None):
            self._go_on(stored, stored.checkpoint(counted, lambda error: self._rest(stored, error)))

    def _go_on(self, stored: StoredWindow, steps: Generator[None]) -> None:
        """Take steps for a while, then let the loop run."""
        if stored.deleted:
            steps.close()
            return
        with self._forgiving(stored):
            until_s = self._clock.monotonic_s() + _TURN_S
            for _ in steps:
                if self._clock.monotonic_s() >= until_s:
                    _grow_old()
                    asyncio.get_running_loop().call_soon(self._go_on, stored, steps)
                    return

    @contextlib.contextmanager
    def _forgiving(self, stored: StoredWindow) -> Iterator[None]:
        """Let a window rest that cannot be stored now."""
        try:
            yield
        except (Unavailable, DataLoss, OutOfRoom) as error:
            self._rest(stored, error)
        except Exception as error:
            _log.exception("window %r", stored.name)
            self._rest(stored, Unavailable(f"it failed: {error!r}"))

    def _rest(self, stored: StoredWindow, error: SashError) -> None:
        stored.resting = stored.pause
        if isinstance(error, OutOfRoom):  # what does not fit now is as large a second later
            stored.pause = min(2 * stored.pause, _PAUSE_MAX)
        _log.warning("window %r cannot be stored now: %s", stored.name, error.message)

    async def taken(self, stored: StoredWindow) -> None:
        """Take a checkpoint, unless one is under way or cannot be taken now; wait until it is taken, if not written."""
        self.begin(stored)
        await stored.still.wait()

    async def bring_up_to_date(self) -> None:
        """Take a checkpoint of every window with a journal behind its image, and wait until all are taken."""
        for stored in list(self._stored.values()):
            await stored.still.wait()
            if stored.logged_bytes:
                await self.taken(stored)

    # ---------------------------------------------------------------- the journal

    def through(self) -> dict[int, int]:
        """For each window the last record that its image covers."""
        return {stored.number: stored.through for stored in self._stored.values()}

    def _damaged(self) -> set[int]:
        return {stored.number for stored in self._stored.values() if stored.lost}

    def trim(self) -> None:
        """Delete the groups of the journal that no window needs any more."""
        if not self._readers:
            self._session.journal.trim(self.through(), self._damaged())

    @contextlib.contextmanager
    def trimming_paused(self) -> Iterator[None]:
        """Leave the journal as long as it is while somebody reads it."""
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1

    def shorten_journal(self) -> None:
        """Checkpoint a window that was written to little, and for which alone a long journal is kept."""
        journal = self._session.journal
        if journal.error is not None or journal.behind_bytes < 2 * self._checkpoint_bytes:
            return
        number = journal.oldest_window(self.through(), self._damaged())
        for stored in self._stored.values():
            if stored.number == number and 2 * stored.logged_bytes < journal.behind_bytes:
                self.begin(stored)


def _grow_old() -> None:
    """Have the collector take all objects for old ones, without a look at them.

    An image of 20,000 forests is a quarter of a million objects that live for a second. Where they grow old one by
    one the collector looks through the whole process, which holds the loop for 150 ms with so many forests.
    """
    gc.freeze()
    gc.unfreeze()
