"""Callers that make transactions: as fast as they are answered, or at a rate.

A card's transactions belong to one caller, which makes them one after the other: all systems see the same order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from bench.fraud.work import Answer, Transaction

Call = Callable[[Transaction], Awaitable[list[Answer]]]


async def flat_out(callers: Sequence[Call], work: Sequence[Transaction]) -> tuple[float, list[list[Answer]]]:
    """Make transactions without a pause; return how many a second, and their answers."""
    answers: list[list[Answer]] = [[]] * len(work)

    async def run(call: Call, mine: Sequence[int]) -> None:
        for number in mine:
            answers[number] = await call(work[number])

    start = time.perf_counter()
    await asyncio.gather(*(run(*pair) for pair in zip(callers, _shared(callers, work), strict=True)))
    return len(work) / (time.perf_counter() - start), answers


async def at_rate(
    callers: Sequence[Call], work: Sequence[Transaction], rate: float
) -> tuple[list[float], list[list[Answer]]]:
    """Make transactions at a rate; return how long after they were due they were answered, and their answers."""
    answers: list[list[Answer]] = [[]] * len(work)
    late_s = [0.0] * len(work)
    start = time.perf_counter() + 0.1

    async def run(call: Call, mine: Sequence[int]) -> None:
        for number in mine:
            due = start + number / rate
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            answers[number] = await call(work[number])
            late_s[number] = time.perf_counter() - due

    await asyncio.gather(*(run(*pair) for pair in zip(callers, _shared(callers, work), strict=True)))
    return late_s, answers


def _shared(callers: Sequence[Call], work: Sequence[Transaction]) -> list[list[int]]:
    shares: list[list[int]] = [[] for _ in callers]
    for number, each in enumerate(work):
        shares[each.card % len(callers)].append(number)
    return shares
