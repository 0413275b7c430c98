"""Recovers windows that failed while the service runs.

write fails half-way ──▶ RECOVERING ──▶ what is pending is in the tier ──▶ image and journal, read again ──▶ served
                                                    ▲                                 │
                                                    └───────────── 1 s ───────── tier fails
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from sash.durability.images.stored_window import StoredWindow
from sash.durability.journal.session import TierSession
from sash.durability.recovery.recovery import Make, recover_again
from sash_engine.errors import DataLoss, SashError

_log = logging.getLogger(__name__)

_RETRY_S = 1.0
_PAUSE_MAX_S = 60.0
"""A window whose writes meet a damaged block again and again is recovered after each, but not more often than this."""


class Recoverer:
    """Recovers windows in the background, each until it succeeds.

    Args:
        session: the tier.
        make: makes an empty stored window.
        replace: called with a window that was recovered: serve it in the place of the failed one.
        trimming_paused: a context in which the journal is not trimmed.
    """

    def __init__(
        self,
        session: TierSession,
        make: Make,
        replace: Callable[[StoredWindow], None],
        trimming_paused: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._session, self._make, self._replace = session, make, replace
        self._trimming_paused = trimming_paused
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, stored: StoredWindow, error: SashError) -> None:
        """Recover a window in which a write failed half-way."""
        if stored.failure is not None or stored.is_deleted:
            return
        _log.warning("window %r is being recovered from the tier: %s", stored.name, error.message)
        stored.fail(error)
        task = asyncio.get_running_loop().create_task(self._recover(stored))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def running(self) -> int:
        """How many windows are being recovered."""
        return len(self._tasks)

    async def stop(self) -> None:
        """Recover no more windows."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _recover(self, failed: StoredWindow) -> None:
        if isinstance(failed.failure, DataLoss) and failed.losses:
            await asyncio.sleep(min(2.0**failed.losses, _PAUSE_MAX_S))
        while True:
            # Pending records belong to the window, too. So does an image that it has begun.
            await self._session.journal.passed()
            if failed.is_deleted:
                return
            if failed.checkpointing:
                continue
            try:
                with self._trimming_paused():
                    fresh = await recover_again(self._session, failed, self._make)
            except SashError as error:
                _log.warning("window %r cannot be recovered yet: %s", failed.name, error.message)
            except Exception:
                _log.exception("window %r cannot be recovered yet", failed.name)
            else:
                if failed.is_deleted:
                    fresh.close()
                else:
                    failed.close()
                    self._replace(fresh)
                    _log.warning("window %r is recovered", failed.name)
                return
            await asyncio.sleep(_RETRY_S)
