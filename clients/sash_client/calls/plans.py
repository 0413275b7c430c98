"""What a call does, apart from how it waits: the same code for the blocking client and for the one that awaits.

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

Only what changes nothing when it is done twice is sent again after any loss: reads, writes with a producer's number,
parts of a batch (the service drops a part that no commit names), and commits. Other writes are sent again where the
service says that it changed nothing, and where it could not be reached. gRPC itself retries reads with one answer, as
`connection` tells it to. `Restarts` retries reads over Connect, and reads that answer with a stream.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from sash_client.errors import SashClientError, Unavailable

R = TypeVar("R")

READS = ("GetWindow", "ListWindows", "ListKeys", "Query", "RangeQuery", "Series", "AnswersAt")
"""Reads with one answer."""

CONNECT_PAUSE_S = 0.1
"""After this time a client that waits for a service to start tries again. A longer pause only delays its return."""

READ_ATTEMPTS = 4
"""How often a read is made at most while the service is unavailable."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
# CANCELLED is what the end of a service, or of a proxy, makes of calls in progress: the client cancels none of these.
_MAY_PASS = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"})


@dataclass(frozen=True, slots=True)
class Ask:
    """Make a call; the plan goes on with its answer, or with the `SashClientError` that it ended with.

    Args:
        method: of `sash.v1.Windows`.
        request: its message.
        timeout_s: seconds it may take; the client's if None.
        owner: the shard whose owner should get it. Only a client that knows the map (see `owners`) looks at it.
        alone: with `owner`: the call is for this shard alone, and no process passes it on.
        target: the address of the process to call; None: that of the client.
    """

    method: str
    request: Any
    timeout_s: float | None = None
    owner: int | None = None
    alone: bool = False
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Together:
    """Perform plans at the same time; go on with what each returned, or the `SashClientError` that it raised."""

    plans: Sequence[Plan[Any]]


Plan: TypeAlias = Generator[Ask | Pause | Together, Any, R]


def performed(plan: Plan[R], answer: Callable[[Ask], Any]) -> R:
    """Perform a plan that makes nothing but calls, each of which `answer` answers; return what the plan returns."""
    try:
        step = next(plan)
        while True:
            assert isinstance(step, Ask)
            try:
                step = plan.send(answer(step))
            except SashClientError as error:
                step = plan.throw(error)
    except StopIteration as end:
        done: R = end.value
        return done


@dataclass(frozen=True, slots=True)
class AskStream(Generic[R]):
    """What a plan returns if the answer is a stream.

    Args:
        method, request: as in `Ask`.
        read: converts a message to what the caller gets.
        waits: whether the client waits for each message without limit; else it waits for `timeout_s` at most.
    """

    method: str
    request: Any
    read: Callable[[Any], R]
    waits: bool = False


class Caller(Protocol):
    """What a plan needs of the client that performs it."""

    timeout_s: float
    _is_closed: bool
    _now_s: Callable[[], float]
    _uniform: Callable[[float, float], float]


def asked_again(
    client: Caller,
    method: str,
    request: Any,
    owner: int | None = None,
    idempotent: bool = True,
) -> Plan[Any]:
    """Make a call again until it is answered or the client's `timeout_s` is over.

    Args:
        idempotent: whether it may be made twice. One that may not is made again only after errors that say that nothing
            was changed, and as often as reads are.
    """
    left_s = client.timeout_s
    deadline_s = client._now_s() + left_s
    for attempt, pause_s in enumerate(pauses_s(client._uniform), 1):
        try:
            return (yield Ask(method, request, max(left_s, 0.001), owner))
        except SashClientError as error:
            pause_s = max(pause_s, error.retry_after_s or 0.0)
            again = may_pass(error) if idempotent else error.unchanged and attempt < READ_ATTEMPTS
            if not again or client._is_closed or client._now_s() + pause_s >= deadline_s:
                raise
        yield Pause(pause_s)
        left_s = deadline_s - client._now_s()
    raise AssertionError("pauses do not end")


class Restarts:
    """Decides whether a read is made again after an error: one that answers with a stream, or one over Connect.

    It is made again while the service is unavailable and nothing has arrived: `READ_ATTEMPTS` times at most, within the
    client's `timeout_s`. After the first message it is not: the service answers as of the call, so a second call does
    not continue the first one.

    Args:
        client: the connection.
    """

    def __init__(self, client: Caller) -> None:
        self.messages = 0
        """Messages that have arrived; the client counts them."""
        self._client = client
        self._deadline_s = client._now_s() + client.timeout_s
        self._pauses_s = islice(pauses_s(client._uniform), READ_ATTEMPTS - 1)

    @property
    def left_s(self) -> float:
        """How long the next attempt may take."""
        return max(self._deadline_s - self._client._now_s(), 0.001)

    def pause_s(self, error: SashClientError) -> float:
        """Return the seconds to wait before the call is made again; raise the error if it is not."""
        if not isinstance(error, Unavailable):
            raise error
        if self.messages:
            error.message = f"the stream broke off after message {self.messages}: {error.message}"
            error.args = (error.message,)
            raise error
        pause_s = max(next(self._pauses_s, math.inf), error.retry_after_s or 0.0)
        if self._client._is_closed or self._client._now_s() + pause_s >= self._deadline_s:
            raise error
        return pause_s


def may_pass(error: SashClientError) -> bool:
    """Whether the same call may succeed later: the service was away, the reply was lost, or it asks to come again."""
    return error.code in _MAY_PASS or error.retry_after_s is not None


def pauses_s(uniform: Callable[[float, float], float] = random.uniform) -> Iterator[float]:
    """Yield the seconds to wait before each next attempt, without end."""
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s * uniform(0.5, 1.0)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
