"""Waiting for what must come: for a condition, for turns of an event loop, for a tier to work again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sash_engine.errors import SashError, Unavailable

T = TypeVar("T")

_LOOK_S = 0.001
_LOOKS = 120_000
_LONGEST_LOOK_S = 0.05


def wait_until(condition: Callable[[], object], within_s: float = _LOOK_S * _LOOKS, look_s: float = _LOOK_S) -> None:
    """Return as soon as the condition holds; where there is no event loop, or not in this thread.

    The longer it takes, the more rarely this looks: many conditions are calls to a process that needs the processor.
    """
    started = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - started
        if waited_s > within_s:
            raise AssertionError("it never came to pass")
        time.sleep(max(look_s, min(waited_s / 10, _LONGEST_LOOK_S)))


async def until(condition: Callable[[], object]) -> None:
    """Return as soon as the condition holds."""
    for _ in range(_LOOKS):
        if condition():
            return
        await asyncio.sleep(_LOOK_S)
    raise AssertionError("it never came to pass")


async def turns(count: int = 50) -> None:
    """Let everything run that is ready, and what that makes ready: what is not done after it waits for something."""
    for _ in range(count):
        await asyncio.sleep(0)


async def surely(call: Callable[[], Awaitable[T]], error: type[SashError] = Unavailable) -> T:
    """What a call returns; it is made again while it is refused with that error."""
    for _ in range(_LOOKS):
        try:
            return await call()
        except error:
            await asyncio.sleep(_LOOK_S)
    raise AssertionError("it was never taken")


def awaited(call: Callable[..., T]) -> Callable[..., Awaitable[T]]:
    """A function that has to be awaited, and then does what `call` does: it takes the place of such a method."""

    async def replacement(*args: object) -> T:
        return call(*args)

    return replacement
