"""When windows are stored and checkpointed, and when the journal is cut.

after a write   enough sealed blocks ──▶ store them       enough journal ──▶ checkpoint
every second    a long journal that only one window needs ──▶ checkpoint of that window

loop     [ steps of an image: 5 ms ] [ everything else that is ready ] [ steps: 5 ms ] [ … ] …
window   no writes until the last step; writers wait in order of arrival. Readers, and other windows, go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping

from sash.durability.images.checkpoint import Checkpoint
from sash.durability.images.stored_window import StoredWindow
from sash.durability.journal.session import TierSession
from sash.runtime.memory import grow_old
from sash_engine.clock import Clock
from sash_engine.errors import DataLoss, OutOfRoom, SashError, Unavailable

_log = logging.getLogger(__name__)

_TURN_S = 0.005
"""Steps of an image run for so long before the loop runs everything else that is ready. A step takes 1 to 3 ms. With
turns of 1 ms, a busy loop made writers of the window wait several times as long, and others hardly shorter."""


class Checkpoints:
    """Stores and checkpoints the windows of one service.

    Args:
        session: the tier.
        windows: the stored windows, by name.
        clock: measures turns.
        checkpoint_bytes: a window is checkpointed after so many bytes of journal.
        store_entries: a window stores its sealed blocks when those that the tier lacks have so many entries.

    Attributes:
        count: how many images were stored.
    """

    def __init__(
        self,
        session: TierSession,
        windows: Mapping[str, StoredWindow],
        clock: Clock,
        checkpoint_bytes: int,
        store_entries: int,
    ) -> None:
        self._session, self._windows, self._clock = session, windows, clock
        self._checkpoint_bytes, self._store_entries = checkpoint_bytes, store_entries
        self._journal_readers = 0
        self.count = 0

    # ---------------------------------------------------------------- storing

    def after_write(self, stored: StoredWindow) -> None:
        """Store blocks, and begin a checkpoint, if enough has gathered.

        Either may have to read blocks to which entries were added. If that fails, the write is not affected: it is in
        the journal. The next attempt comes after the next `tidy`.
        """
        if not stored.backoff.waiting:
            with self._backing_off(stored):
                stored.store(self._store_entries)
                if stored.wants_checkpoint(self._checkpoint_bytes):
                    self.begin(stored)

    def begin(self, stored: StoredWindow) -> None:
        """Begin a checkpoint, unless one is under way or cannot be taken now."""
        busy = stored.checkpointing or not stored.writable.is_set()
        if not (busy or stored.backoff.waiting or stored.failure is not None):
            self._run_turn(stored, Checkpoint(self._session, stored, lambda ended: self._ended(stored, ended)))

    def _run_turn(self, stored: StoredWindow, checkpoint: Checkpoint) -> None:
        """Run steps for a while, then let the loop run."""
        if stored.is_deleted:
            checkpoint.cancel()
            return
        with self._backing_off(stored):
            until_s = self._clock.monotonic_s() + _TURN_S
            while checkpoint.step():
                if self._clock.monotonic_s() >= until_s:
                    grow_old()
                    asyncio.get_running_loop().call_soon(self._run_turn, stored, checkpoint)
                    return

    def _ended(self, stored: StoredWindow, checkpoint: Checkpoint) -> None:
        if checkpoint.error is not None:
            self._back_off(stored, checkpoint.error)
            return
        self.count += 1
        stored.backoff.succeed()
        self.trim()

    @contextlib.contextmanager
    def _backing_off(self, stored: StoredWindow) -> Iterator[None]:
        """Let a window wait that cannot be stored now."""
        try:
            yield
        except (Unavailable, DataLoss, OutOfRoom) as error:
            self._back_off(stored, error)
        except Exception as error:
            _log.exception("window %r", stored.name)
            self._back_off(stored, Unavailable(f"it failed: {error!r}"))

    def _back_off(self, stored: StoredWindow, error: SashError) -> None:
        stored.backoff.fail(error)
        _log.warning("window %r cannot be stored now: %s", stored.name, error.message)

    async def take(self, stored: StoredWindow) -> None:
        """Begin a checkpoint, unless one is under way or cannot be taken now. Wait until its image is taken.

        If a long write runs, the checkpoint comes after it.
        """
        while not stored.writable.is_set():
            await stored.writable.wait()
        self.begin(stored)
        await stored.writable.wait()

    async def bring_up_to_date(self) -> None:
        """Take an image of each window that has a journal behind its last image."""
        for stored in list(self._windows.values()):
            await stored.writable.wait()
            if stored.logged_bytes:
                await self.take(stored)

    # ---------------------------------------------------------------- the journal

    def _through(self) -> dict[int, int]:
        """By window, the last record that its image covers."""
        return {stored.number: stored.through for stored in self._windows.values()}

    def _lost(self) -> set[int]:
        return {stored.number for stored in self._windows.values() if stored.is_lost}

    def trim(self) -> None:
        """Delete the groups of the journal that no window needs, unless somebody reads the journal."""
        if not self._journal_readers:
            self._session.journal.trim(self._through(), self._lost())

    @contextlib.contextmanager
    def trimming_paused(self) -> Iterator[None]:
        """Do not trim the journal inside the `with` block."""
        self._journal_readers += 1
        try:
            yield
        finally:
            self._journal_readers -= 1

    def shorten_journal(self) -> None:
        """Checkpoint a window that has few writes, if a long journal is kept for it alone."""
        journal = self._session.journal
        if journal.error is not None or journal.behind_bytes < 2 * self._checkpoint_bytes:
            return
        number = journal.oldest_window(self._through(), self._lost())
        for stored in self._windows.values():
            if stored.number == number and 2 * stored.logged_bytes < journal.behind_bytes:
                self.begin(stored)
