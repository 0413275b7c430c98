"""A tier that retries while it is unavailable, for the start of a service.

A running service survives a tier that fails for a moment: it refuses questions that need the tier, and retries commits.
A starting service would end with the first failed read. So it retries reads, for 30 seconds at most:

    read ── unavailable ── 0.1 s ── read ── unavailable ── 0.2 s ── … 2 s ── read ── found
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sash.durability.tier import ColdTier
from sash_engine.clock import Clock
from sash_engine.errors import Unavailable

_log = logging.getLogger(__name__)

_PATIENCE_S = 30.0
_PAUSE_FIRST_S, _PAUSE_MOST_S = 0.1, 2.0

T = TypeVar("T")


class RetryingTier:
    """A `ColdTier` that passes all calls on to another one; `acquire` and `get_many` retry while it is unavailable.

    Args:
        tier: the other tier.
        clock: measures how long calls are retried.
        sleep: waits for so many seconds, and blocks.
    """

    def __init__(self, tier: ColdTier, clock: Clock, sleep: Callable[[float], None]) -> None:
        self._tier, self._clock, self._sleep = tier, clock, sleep
        self._end_s: float | None = None  # when to give up, while it fails

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tier, name)

    def acquire(self) -> None:
        """See `ColdTier`; raises Unavailable if it stays unavailable."""
        self._tried(self._tier.acquire)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `ColdTier`; raises Unavailable if it stays unavailable."""
        return self._tried(lambda: self._tier.get_many(keys))

    def _tried(self, call: Callable[[], T]) -> T:
        pause_s = _PAUSE_FIRST_S
        while True:
            try:
                result = call()
            except Unavailable as error:
                now_s = self._clock.monotonic_s()
                if self._end_s is None:
                    self._end_s = now_s + _PATIENCE_S
                    _log.warning("%s It is tried again for %.0f s.", error.message, _PATIENCE_S)
                if now_s >= self._end_s:
                    raise
            else:
                self._end_s = None
                return result
            self._sleep(min(pause_s, self._end_s - now_s))
            pause_s = min(2 * pause_s, _PAUSE_MOST_S)
