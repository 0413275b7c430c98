"""Callers that make calls: as fast as they are answered, or at a rate.

What belongs to one card, or one user, belongs to one caller, which makes its calls one after the other: all systems see
the same order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

Call = Callable[[Any], Awaitable[Any]]


@dataclass
class Made:
    """Calls that were made.

    Attributes:
        per_s: how many a second.
        answers: to each.
        late_s: how long after it was due each was answered; at a rate only.
        ended_s: when each was answered, on the clock of `time.perf_counter`.
        longest_s: what the slowest took.
    """

    per_s: float
    answers: list[Any]
    late_s: list[float]
    ended_s: list[float]
    longest_s: float


async def make(callers: Sequence[Call], work: Sequence[Any], rate: float = 0.0) -> Made:
    """Make a call for each item, whose first member says whose it is; at a rate, or without a pause."""
    made = Made(0.0, [None] * len(work), [0.0] * len(work), [0.0] * len(work), 0.0)
    shares: list[list[int]] = [[] for _ in callers]
    for i, (whose, *_) in enumerate(work):
        shares[whose % len(callers)].append(i)
    start = time.perf_counter() + (0.1 if rate else 0.0)

    async def run(call: Call, mine: list[int]) -> None:
        for i in mine:
            due = start + i / rate if rate else 0.0
            if rate and (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            asked = time.perf_counter()
            made.answers[i] = await call(work[i])
            made.ended_s[i] = time.perf_counter()
            made.late_s[i] = made.ended_s[i] - due
            made.longest_s = max(made.longest_s, made.ended_s[i] - asked)

    await asyncio.gather(*(run(*pair) for pair in zip(callers, shares, strict=True)))
    made.per_s = len(work) / (time.perf_counter() - start)
    return made
