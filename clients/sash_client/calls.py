"""When a call is made again, and streams that cannot hang.

    send ── lost? ── pause ── send ── lost? ── pause ──┈┈   pauses double from 0.1 s to 2 s, each shortened at random
                                                           by up to a half, so that clients of a service that
                                                           comes back do not all come at once

Only what changes nothing when it is done twice is sent again: reads, writes with a producer's number, parts of a
batch (the service drops a part that no commit names), and commits.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import grpc

from sash_client.errors import DeadlineExceeded, SashClientError, from_rpc

__all__ = ["Feed", "answered", "may_pass", "pauses_s", "received"]

T = TypeVar("T")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
# CANCELLED is what the end of a service, or of a proxy, makes of calls in progress: the client cancels none of these.
_MAY_PASS = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"})


def may_pass(error: SashClientError) -> bool:
    """Whether the same call may succeed later: the service was away, the reply was lost, or it asks to come again."""
    return error.code in _MAY_PASS or error.retry_after_s is not None


def pauses_s(uniform: Callable[[float, float], float] = random.uniform) -> Iterator[float]:
    """Yield the seconds to wait before each next attempt, without end."""
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s * uniform(0.5, 1.0)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


class Feed(Generic[T]):
    """Requests for a call that takes a stream of them.

    gRPC iterates in a thread of its own, and would show an exception in there as the call's end only: `error` keeps it.
    `sent` is how many requests were taken.
    """

    def __init__(self, requests: Iterable[T]) -> None:
        self._requests = iter(requests)
        self.error: Exception | None = None
        self.sent = 0

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            request = next(self._requests)
        except StopIteration:
            raise
        except Exception as error:
            self.error = error
            raise
        self.sent += 1
        return request


def answered(call: Any, timeout_s: float, feed: Feed[Any]) -> Any:
    """Return the answer to a call that takes a stream; cancel it where nothing moves for `timeout_s`.

    Raises:
        SashClientError: the call failed; or what the feed itself raised.
    """
    while True:
        sent = feed.sent
        try:
            return call.result(timeout_s)
        except grpc.FutureTimeoutError:
            if feed.sent == sent:
                call.cancel()
                raise DeadlineExceeded(f"the stream stood still for {timeout_s:g} s") from None
        except grpc.RpcError as error:
            raise feed.error or from_rpc(error) from None


def received(call: Any, timeout_s: float | None, feed: Feed[Any] | None = None) -> Iterator[Any]:
    """Yield the messages of a call as they come; cancel it when the caller stops, or where one takes too long.

    Args:
        call: of gRPC, which yields messages.
        timeout_s: seconds that each message may take; None: any number. A stream may take as long as it likes.
        feed: what the call is fed with: its own exception is the one that is raised.

    Raises:
        SashClientError: the call failed.
    """
    watchdog = _Watchdog(call, timeout_s)
    try:
        while True:
            watchdog.since_s = time.monotonic()
            try:
                message = next(call)
            except StopIteration:
                return
            except grpc.RpcError as error:
                if watchdog.has_bitten:
                    raise DeadlineExceeded(f"the stream stood still for {timeout_s:g} s") from None
                raise (feed and feed.error) or from_rpc(error) from None
            watchdog.since_s = None  # what the caller does with it is its own time
            yield message
    finally:
        watchdog.done.set()
        call.cancel()


class _Watchdog:
    """Cancels a call that somebody has waited for too long: one thread a stream, which looks now and then.

    A timer for each message would be exact, and cost as much as the message.
    """

    def __init__(self, call: Any, timeout_s: float | None) -> None:
        self.since_s: float | None = None
        self.done = threading.Event()
        self.has_bitten = False
        if timeout_s is not None:
            threading.Thread(target=self._run, args=(call, timeout_s), name="sash stream", daemon=True).start()

    def _run(self, call: Any, timeout_s: float) -> None:
        while not self.done.wait(timeout_s / 4):
            since_s = self.since_s
            if since_s is not None and time.monotonic() - since_s > timeout_s:
                self.has_bitten = True
                call.cancel()
                return
