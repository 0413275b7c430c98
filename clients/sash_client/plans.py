"""What a call does, apart from how it waits: one text for the client that blocks and for the one that awaits.

    plan      yield Ask(…)     yield Pause(0.1)     yield Ask(…)       return WriteResult(…)
                │     ▲           │      ▲            │     ▲               │
    client      ▼     │           ▼      │            ▼     │               ▼
              call ─ message    sleep ───┘          call ─ message     what the method returns

A plan is a generator. It makes requests and reads answers; a client makes the calls, and throws what went wrong back
into the plan. `Client` calls and sleeps, `aio.AsyncClient` awaits.

When a call is made again:

    send ── lost? ── pause ── send ── lost? ── pause ──┈┈   pauses double from 0.1 s to 2 s, each shortened at random
                                                           by up to a half, so that clients of a service that
                                                           comes back do not all come at once

Only what changes nothing when it is done twice is sent again: reads, writes with a producer's number, parts of a
batch (the service drops a part that no commit names), and commits.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from sash_client.errors import SashClientError

if TYPE_CHECKING:
    from sash_client.connection import Connection

__all__ = ["Ask", "AskStream", "Pause", "Plan", "asked_again", "may_pass", "pauses_s"]

R = TypeVar("R")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
# CANCELLED is what the end of a service, or of a proxy, makes of calls in progress: the client cancels none of these.
_MAY_PASS = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"})


@dataclass(frozen=True, slots=True)
class Ask:
    """Make a call; the plan goes on with its answer, or with the `SashClientError` that it ended with.

    Args:
        method: of `sash.v1.Windows`.
        request: its message.
        timeout_s: seconds it may take; the client's where None.
    """

    method: str
    request: Any
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for so many seconds."""

    seconds: float


Plan: TypeAlias = Generator[Ask | Pause, Any, R]


@dataclass(frozen=True, slots=True)
class AskStream(Generic[R]):
    """What a plan returns where the answer is a stream.

    Args:
        method, request: as in `Ask`.
        read: makes of a message what the caller gets.
        waits: whether a message may take for ever; else it may take the client's `timeout_s`.
    """

    method: str
    request: Any
    read: Callable[[Any], R]
    waits: bool = False


def asked_again(client: Connection, method: str, request: Any) -> Plan[Any]:
    """Make a call that may be made twice, until it is answered or the client's `timeout_s` is over."""
    deadline_s = time.monotonic() + client.timeout_s
    for pause_s in pauses_s():
        try:
            return (yield Ask(method, request, max(deadline_s - time.monotonic(), 0.001)))
        except SashClientError as error:
            pause_s = max(pause_s, error.retry_after_s or 0.0)
            if not may_pass(error) or client._is_closed or time.monotonic() + pause_s >= deadline_s:
                raise
        yield Pause(pause_s)
    raise AssertionError("pauses do not end")


def may_pass(error: SashClientError) -> bool:
    """Whether the same call may succeed later: the service was away, the reply was lost, or it asks to come again."""
    return error.code in _MAY_PASS or error.retry_after_s is not None


def pauses_s(uniform: Callable[[float, float], float] = random.uniform) -> Iterator[float]:
    """Yield the seconds to wait before each next attempt, without end."""
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s * uniform(0.5, 1.0)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
