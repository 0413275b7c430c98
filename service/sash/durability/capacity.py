"""Room in the tier: whether new entries fit, and what is done when they do not.

    write of new entries ──▶ fits? ──yes──▶ applied
                               │ no
                               ▼
                    checkpoints, one window after the other ──▶ fits now? ──yes──▶ applied
                    (what left the windows, and the journal                │ no
                    behind the images, is deleted)                         ▼
                                                                  refused; nothing has changed

A full tier refuses new entries before anything changes. What makes room goes on, into a reserve that the tier keeps
for it: evictions, deleting windows, and the checkpoints that let the tier have less. So a full service can be emptied
while it runs, and takes new entries again as soon as there is room.

How much fits is an estimate from above: entries are counted twice, as they are in the journal before they are in their
block, and whatever is pending counts, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

from sash.durability.journal import MIB
from sash.durability.session import TierSession
from sash.durability.stored_window import StoredWindow
from sash_engine.errors import OutOfRoom, SashError

__all__ = ["Capacity"]

_COMMIT_BYTES = 16_384
"""What a small write takes in a tier where it has a commit of its own: four pages of LMDB. Others: multiples of it."""

_FULL_BYTES_MAX = MIB
"""A service is not full because a bulk of more does not fit."""

_PATIENCE_S = 5.0
"""So long a write waits for room to be made."""

_LOOKS = 4
_LOOK_S = 0.1
"""A tier may notice a moment later that it is not full any more: a server says so when it is asked the next time."""


class Capacity:
    """The room that a service's windows have in its tier.

    Args:
        session: the tier.
        kept: the windows, by name.
        checkpoint: takes a checkpoint of a window, where it can; done when it is taken, if not written.
    """

    def __init__(
        self,
        session: TierSession,
        stored: Mapping[str, StoredWindow],
        checkpoint: Callable[[StoredWindow], Awaitable[None]],
    ) -> None:
        self._session, self._stored, self._checkpoint = session, stored, checkpoint
        self._refused_bytes = 0  # by the last write that did not fit
        self._making: asyncio.Task[None] | None = None

    async def make(self, size: int) -> bool:
        """Have room for a write of `size` bytes; whether it had to be made, and anything may have changed meanwhile.

        Raises:
            OutOfRoom: none can be made.
        """
        needed = _COMMIT_BYTES * (2 * size // _COMMIT_BYTES + 1)
        try:
            self._session.check_room(needed)
        except OutOfRoom:
            self._refused_bytes = min(needed, _FULL_BYTES_MAX)
            await asyncio.wait([self.begin()], timeout=_PATIENCE_S)
            self._session.journal.check()
            self._session.check_room(needed)
            return True
        return False

    def full(self) -> OutOfRoom | None:
        """Why new entries are refused; None where as much as was refused last, or a MiB of it, would fit."""
        try:
            self._session.check_room(max(self._refused_bytes, _COMMIT_BYTES))
        except OutOfRoom as error:
            return error
        self._refused_bytes = 0
        return None

    def look(self) -> None:
        """Make room where there is none; to be called now and then, and when something was evicted."""
        if self.full() is not None:
            self.begin()

    def begin(self) -> asyncio.Task[None]:
        """Begin to make room, unless that is under way; ends when it is made, or nothing is left to be tried."""
        if self._making is None or self._making.done():
            self._making = asyncio.get_running_loop().create_task(self._make())
        return self._making

    async def stop(self) -> None:
        """Make no more."""
        if self._making is not None:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)

    async def _make(self) -> None:
        """Checkpoint windows until there is room, those with most journal first.

        One at a time, as each needs room for an image before it gives any back.
        """
        session = self._session
        tried = False
        with contextlib.suppress(SashError):  # whoever waits for room looks for himself
            for stored in sorted(self._stored.values(), key=lambda stored: -stored.logged_bytes):
                if stored.can_shrink and not stored.resting:
                    tried = True
                    await self._checkpoint(stored)
                    await session.journal.drained()
                    if self.full() is None:
                        return
            await session.journal.drained()
        for _ in range(_LOOKS if tried else 0):
            if self.full() is None:
                return
            await asyncio.sleep(_LOOK_S)
