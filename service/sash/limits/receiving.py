"""How many messages of gRPC are received at a time, and for how long.

gRPC has a message in memory, whole, before it says how long it is. So what is received is bounded by places: each may
bring the largest message that there may be. A place is given before gRPC is asked for the message, and given back when
it is there. A stream holds up to 320 KiB of a message that nobody has asked for yet.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sash_engine.errors import ResourceExhausted, Unavailable

T = TypeVar("T")

WAITING_MAX = 4000
"""Calls that wait for a place."""


class Receiving:
    """Places for messages that are received.

    Args:
        places: how many there are. One caller has at most a quarter of them at a time, beside slots.
        timeout_s: for how long a call waits for a place, and then for its message.
    """

    def __init__(self, places: int, timeout_s: float) -> None:
        self._free = places
        self._half = max(1, places // 2)
        # Nobody knows whose slots are, and one caller may have all: with half of the places, it would have the others.
        self._of_caller_max = max(1, places // 4)
        self._timeout_s = timeout_s
        self._callers: dict[str, int] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By caller; the one whose turn it is comes first."""
        self._waiting_count = 0

    def slot(self) -> Slot | None:
        """A place for a message that gRPC receives by itself; None where no more than half of the places are free."""
        if self._free <= self._half:
            return None
        self._free -= 1
        return Slot(self)

    async def message(self, caller: str, read: Callable[[], Awaitable[T]]) -> T:
        """What `read` brings.

        Raises:
            ResourceExhausted: there was no place in time.
            Unavailable: the message did not arrive in time.
        """
        if self._free and caller not in self._waiting and self._callers.get(caller, 0) < self._of_caller_max:
            self._take(caller)
        else:
            await self._place(caller)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await read()
        except TimeoutError:
            raise Unavailable(
                f"the message did not arrive within {self._timeout_s:g} s",
                limit=f"SASH_BODY_TIMEOUT_S: {self._timeout_s:g}",
                retry_after_s=1.0,
            ) from None
        finally:
            self._give_back(caller)

    async def _place(self, caller: str) -> None:
        """Wait for a place."""
        if self._waiting_count >= WAITING_MAX:
            raise _no_place()
        place = asyncio.get_running_loop().create_future()
        queue = self._waiting.setdefault(caller, deque())
        queue.append(place)
        self._waiting_count += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled():
                self._give_back(caller)
            if isinstance(error, TimeoutError):
                raise _no_place() from None
            raise
        finally:
            self._waiting_count -= 1

    def ended(self) -> None:
        """Take the place of a slot back."""
        self._free += 1
        if self._waiting:
            self._hand_out()

    def _take(self, caller: str) -> None:
        self._free -= 1
        self._callers[caller] = self._callers.get(caller, 0) + 1

    def _give_back(self, caller: str) -> None:
        self._free += 1
        self._callers[caller] -= 1
        if not self._callers[caller]:
            del self._callers[caller]
        self._hand_out()

    def _hand_out(self) -> None:
        """Give free places to callers in turn, and among the calls of one to the one that has waited longest."""
        for caller in list(self._waiting):
            if not self._free:
                return
            if self._callers.get(caller, 0) >= self._of_caller_max:
                continue
            queue = self._waiting.pop(caller)
            while queue and queue[0].done():
                queue.popleft()
            if queue:
                self._take(caller)
                queue.popleft().set_result(None)
            if queue:
                self._waiting[caller] = queue


class Slot:
    """A place that is given back when it is said that the message is there, or when nobody knows the slot any more.

    gRPC does not say that a call has ended whose message never came. It drops what it knew of the call.
    """

    __slots__ = ("_receiving",)

    def __init__(self, receiving: Receiving) -> None:
        self._receiving: Receiving | None = receiving

    def end(self) -> None:
        """Give the place back."""
        if self._receiving is not None:
            self._receiving.ended()
            self._receiving = None

    def __del__(self) -> None:
        self.end()


def _no_place() -> ResourceExhausted:
    return ResourceExhausted("too many messages are being received", retry_after_s=1.0)
