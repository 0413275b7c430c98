"""A limit on calls in progress, for every protocol that carries the methods."""

from __future__ import annotations

import asyncio

from sash.calls import going
from sash_engine.errors import Unavailable

__all__ = ["Gate"]


class Gate:
    """Refuses calls beyond a number in progress, and all calls once the service closes; says when to call again.

    Args:
        calls_max: how many calls may be in progress.
        closing: is set when the service is about to end.
    """

    def __init__(self, calls_max: int, closing: asyncio.Event) -> None:
        self._calls_max = calls_max
        self._closing = closing
        self._calls = 0

    def __enter__(self) -> None:
        if self._closing.is_set():
            raise going()
        if self._calls >= self._calls_max:
            raise Unavailable(f"{self._calls} calls are in progress", limit=str(self._calls_max), retry_after_s=1.0)
        self._calls += 1

    def __exit__(self, *error: object) -> None:
        self._calls -= 1
