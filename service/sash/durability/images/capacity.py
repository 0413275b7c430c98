"""Capacity: whether new entries fit into the tier, and how space is freed if they do not.

    write of new entries ──▶ fits? ──yes──▶ applied
                               │ no
                               ▼
                    checkpoints, one window after the other ──▶ fits now? ──yes──▶ applied
                    (they delete what left the windows,                    │ no
                    and the journal behind the images)                     ▼
                                                                  refused; nothing has changed

A full tier refuses new entries before anything changes. Operations that free space go on, in a reserve that the tier
keeps for them: evictions, deleting windows, and checkpoints after which the tier has less. So a full service can be
emptied while it runs. It accepts new entries again as soon as there is space.

The estimate is an upper bound: entries count twice, because they are in the journal before they are in a block, and
everything pending counts, too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

from sash.durability.images.stored_window import StoredWindow
from sash.durability.journal.journal import MIB
from sash.durability.journal.session import TierSession
from sash_engine.errors import OutOfRoom, SashError

_COMMIT_BYTES = 16_384
"""Space that a small write takes if it has a commit of its own: four pages of LMDB. Larger writes take multiples."""

_FULL_BYTES_MAX = MIB
"""A service is not full only because a bulk of more than this does not fit."""

_PATIENCE_S = 5.0
"""A write waits for so long until space is freed."""

_LOOKS = 4
_LOOK_S = 0.1
"""A tier may notice a moment later that it is not full any more: a server says so the next time it is asked."""


class Capacity:
    """The space that a service's windows have in its tier.

    Args:
        session: the tier.
        windows: the stored windows, by name.
        checkpoint: takes a checkpoint of a window if it can; returns when the image is taken.
    """

    def __init__(
        self,
        session: TierSession,
        windows: Mapping[str, StoredWindow],
        checkpoint: Callable[[StoredWindow], Awaitable[None]],
    ) -> None:
        self._session, self._windows, self._checkpoint = session, windows, checkpoint
        self._refused_bytes = 0  # of the last write that did not fit
        self._freeing: asyncio.Task[None] | None = None

    async def reserve(self, size: int) -> bool:
        """See that a write of `size` bytes fits. True if it had to wait for that: anything may have changed meanwhile.

        Raises:
            OutOfRoom: it does not fit, and no space can be freed.
        """
        needed = _needed(size)
        try:
            self._session.check_room(needed)
        except OutOfRoom:
            self._refused_bytes = min(needed, _FULL_BYTES_MAX)
            await asyncio.wait([self.begin()], timeout=_PATIENCE_S)
            self._session.journal.check()
            self._session.check_room(needed)
            return True
        return False

    def has_room(self, size: int) -> bool:
        """Whether a write of `size` bytes fits."""
        try:
            self._session.check_room(_needed(size))
        except OutOfRoom:
            return False
        return True

    def full(self) -> OutOfRoom | None:
        """Why new entries are refused. None if the last refused write would fit now, or a MiB of it."""
        try:
            self._session.check_room(max(self._refused_bytes, _COMMIT_BYTES))
        except OutOfRoom as error:
            return error
        self._refused_bytes = 0
        return None

    def check(self) -> None:
        """Free space if the tier is full. Call it now and then, and after an eviction."""
        if self.full() is not None:
            self.begin()

    def begin(self) -> asyncio.Task[None]:
        """Begin to free space, unless that is under way. The task ends when there is space, or nothing left to try."""
        if self._freeing is None or self._freeing.done():
            self._freeing = asyncio.get_running_loop().create_task(self._free())
        return self._freeing

    async def stop(self) -> None:
        """Stop freeing space."""
        if self._freeing is not None:
            self._freeing.cancel()
            await asyncio.gather(self._freeing, return_exceptions=True)

    async def _free(self) -> None:
        """Checkpoint windows until there is space, those with most journal first.

        One at a time: each needs space for an image before it frees any.
        """
        session = self._session
        tried = False
        with contextlib.suppress(SashError):  # whoever waits for space checks again
            for stored in sorted(self._windows.values(), key=lambda stored: -stored.logged_bytes):
                if stored.can_shrink and not stored.backoff.waiting:
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


def _needed(size: int) -> int:
    return _COMMIT_BYTES * (2 * size // _COMMIT_BYTES + 1)
