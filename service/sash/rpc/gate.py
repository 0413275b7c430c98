"""A limit on calls in progress, for every protocol that carries the methods."""

from __future__ import annotations

import asyncio

from sash.calls import going
from sash.limits.caller import caller_of
from sash.limits.places import Places
from sash.limits.unfinished import when_over

__all__ = ["Gate"]


class Gate:
    """Gives calls their places, and refuses all of them once the service closes; a context for the call of a task.

    Args:
        places: how many calls there may be.
        closing: is set when the service is about to end.
    """

    def __init__(self, places: Places, closing: asyncio.Event) -> None:
        self._places = places
        self._closing = closing

    def check(self) -> None:
        """Raise `Unavailable` where the call would be refused now: before its message is read."""
        if self._closing.is_set():
            raise going(unchanged=True)
        self._places.check(caller_of())

    def __enter__(self) -> None:
        if self._closing.is_set():
            raise going(unchanged=True)
        self._places.enter(caller_of())

    def __exit__(self, *error: object) -> None:
        name = caller_of()
        when_over(lambda: self._places.leave(name))
