"""How many long questions of one caller are in progress at a time: the others have not begun, and hold nothing.

    caller A   [q1 ─────][q3 ────            q1, q2, …: each has lists of the keys that it is about, megabytes of them,
               [q2 ────────────][q4 ──       from its first step until it is answered
    caller B   [q1 ──]

Long questions take slices in rotation. If all of them began, the memory of hundreds would be held for as long as all of
them take together, and none would be answered any sooner.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

MOST = 4
"""80 callers with one token asked for the entries of 50,000 keys on 400 connections: 240 of the questions had begun,
and held 250 MB."""


class LongQuestions:
    """The long questions in progress.

    Args:
        most: how many of one caller.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._callers: dict[str, asyncio.Semaphore] = {}
        self._counts: dict[str, int] = {}
        """Of those in progress and those that wait."""

    @asynccontextmanager
    async def one(self, caller: str) -> AsyncIterator[None]:
        """Wait until one more question of a caller may begin; it is in progress inside the `async with` block.

        What the service asks by itself (`caller` is empty) waits for nobody.
        """
        if not caller:
            yield
            return
        places = self._callers.setdefault(caller, asyncio.Semaphore(self._most))
        self._counts[caller] = self._counts.get(caller, 0) + 1
        try:
            async with places:
                yield
        finally:
            self._counts[caller] -= 1
            if not self._counts[caller]:
                del self._counts[caller], self._callers[caller]
