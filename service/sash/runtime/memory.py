"""Memory that was freed goes back to the system, not only to the allocator; and what the collector looks at.

A bulk's arrays come and go by hundreds of kilobytes, in an order that leaves glibc's heap full of holes: after 2^25
entries had passed through a window with a 16 MiB cache, the process held 100 MiB more than it used.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_KEPT_BYTES = 64 << 20
_MAPPED_BYTES = 32 << 20
"""glibc takes no more."""
_ARENAS = 2
"""One for the event loop, one for gRPC's threads. By default each thread may get one of its own, up to eight for each
core, and what is free in one is of no use to the others: under attack sixteen of them kept a third of the memory."""

_OLD_AFTER = 100
"""After so many collections of the middle generation the collector looks through the oldest one, which is what lives
for long: 35 to 100 ms among the calls of 200 callers. Python's 10 made that once in seven seconds."""

_LOOK_EVERY_S = 900.0
_LOOK_WHEN_FULL_EVERY_S = 30.0
"""Seconds between two searches for garbage where the collector does not look by itself."""
_LOOK_SHARE, _LOOK_WHEN_FULL_SHARE = 0.001, 0.01
"""Of the loop's time, for such searches. One holds the loop: a service with 300,000 objects for 0.4 s. When memory is
full, what it finds is worth more."""

_settled = False


def _find(name: str) -> Callable[..., int] | None:
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None  # another C library: it does as it likes
    return function


_trim, _tune = _find("malloc_trim"), _find("mallopt")


def keep_free() -> None:
    """Have the allocator keep some free memory; does nothing where the C library is not glibc.

    By default it gives the memory of each message of more than 128 KiB back at once, and the system clears each page
    again for the next one, while the loop waits: 7 MB took 10 ms to receive, and take 2 ms.
    """
    if _tune is not None:
        _tune(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        _tune(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def keep_together() -> None:
    """Have the allocator take memory from few places; to be called before threads begin."""
    if _tune is not None:
        _tune(_M_ARENA_MAX, _ARENAS)


def give_back() -> None:
    """Give free memory back; does nothing where the C library is not glibc."""
    if _trim is not None:
        _trim(0)


def settle() -> None:
    """Have the collector leave out what there is now. To be called once, when a process begins to serve.

    The modules of a service are 88,000 objects. To look through them holds the loop for 50 to 90 ms, every few seconds
    under load.
    """
    global _settled
    _settled = True
    gc.collect()
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], _OLD_AFTER)


def unsettle() -> None:
    """Have the collector look at everything again: at the end of a process, so that nothing outlives its module.

    The module of the sketches says so of each of its objects that does, in hundreds of lines.
    """
    global _settled
    _settled = False
    gc.unfreeze()


def grow_old() -> None:
    """Have the collector leave out what there is now, in a process that has settled.

    Work in slices makes objects that live for a second: an image of 20,000 forests a quarter of a million. Where they
    grow old one by one, the collector looks through the whole process, which holds the loop for 150 ms with so many
    forests.
    """
    if _settled:
        gc.freeze()


def look_again() -> None:
    """Collect all garbage, also where the collector did not look any more: a second for millions of objects."""
    if _settled:
        gc.unfreeze()
    gc.collect()
    if _settled:
        gc.freeze()


class GarbageSearch:
    """Searches for garbage where the collector does not look, now and then: more often when memory is full.

    Args:
        clock_s: tells when, and how long a search takes.
    """

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._looked_s = clock_s()
        self._took_s = 0.0

    def look_if_due(self, is_full: bool) -> None:
        """Search, if the last time is long enough ago; `is_full` says whether memory is."""
        began_s = self._clock_s()
        if is_full:
            every_s = max(_LOOK_WHEN_FULL_EVERY_S, self._took_s / _LOOK_WHEN_FULL_SHARE)
        else:
            every_s = max(_LOOK_EVERY_S, self._took_s / _LOOK_SHARE)
        if began_s - self._looked_s > every_s:
            look_again()
            self._looked_s = self._clock_s()
            self._took_s = self._looked_s - began_s
