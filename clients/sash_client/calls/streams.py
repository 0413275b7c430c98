"""Streams that cannot hang, for the client that blocks.

caller ──▶ received ──▶ call ──▶ service           a thread looks now and then whether somebody has waited for
             ▲                                     longer than is allowed, and cancels the call
         _Watchdog ── Patience
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from sash_client.errors import DeadlineExceeded, from_rpc

T = TypeVar("T")


class Patience:
    """Measures how long a caller has waited for a message of a stream.

    Time counts only while the caller waits and an answer is due. A producer that sends nothing for an hour keeps its
    stream.

    Args:
        timeout_s: seconds that a message may take; None: any number.
        owed: whether messages are due from the start; if not, one is due for each `sent` without its `answered`.
        now_s: the clock, in seconds.
    """

    def __init__(self, timeout_s: float | None, owed: bool = True, now_s: Callable[[], float] = time.monotonic) -> None:
        self.timeout_s = timeout_s
        self._now_s = now_s
        self._waiting_since_s: float | None = None
        self._owed_since_s: float | None = -math.inf if owed else None
        self._owed = 0
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Begin to wait for a message; a wait that has begun goes on, over the restarts of a stream."""
        if self._waiting_since_s is None:
            self._waiting_since_s = self._now_s()

    def rest(self) -> None:
        """End the wait: the time in which the caller uses a message does not count."""
        self._waiting_since_s = None

    def sent(self) -> None:
        """Count a request that was sent: its answer is due."""
        with self._lock:
            self._owed += 1
            if self._owed == 1:
                self._owed_since_s = self._now_s()

    def answered(self) -> None:
        """Count an answer that has arrived."""
        with self._lock:
            self._owed -= 1
            self._owed_since_s = self._now_s() if self._owed else None

    @property
    def is_over(self) -> bool:
        """Whether the stream stands still."""
        waiting_s, owed_s = self._waiting_since_s, self._owed_since_s
        if self.timeout_s is None or waiting_s is None or owed_s is None:
            return False
        return self._now_s() - max(waiting_s, owed_s) > self.timeout_s


def stood_still(timeout_s: float | None) -> DeadlineExceeded:
    """The error of a stream on which nothing moves any more."""
    return DeadlineExceeded(f"the stream stood still for {timeout_s:g} s")


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
    """Return the answer to a call that takes a stream; cancel it when nothing moves for `timeout_s`.

    Raises:
        SashClientError: the call failed; or what the feed itself raised.
    """
    import grpc

    while True:
        sent = feed.sent
        try:
            return call.result(timeout_s)
        except grpc.FutureTimeoutError:
            if feed.sent == sent:
                call.cancel()
                raise stood_still(timeout_s) from None
        except grpc.RpcError as error:
            raise feed.error or from_rpc(error) from None


def received(call: Any, patience: Patience, feed: Feed[Any] | None = None) -> Iterator[Any]:
    """Yield the messages of a call as they come; cancel it when the caller stops, or when one takes too long.

    Args:
        call: of gRPC, which yields messages.
        patience: how long each message may take. A stream may take as long as it likes.
        feed: what the call is fed with: its own exception is the one that is raised.

    Raises:
        SashClientError: the call failed.
    """
    import grpc

    watchdog = _Watchdog(call, patience)
    try:
        while True:
            patience.wait()
            try:
                message = next(call)
            except StopIteration:
                return
            except grpc.RpcError as error:
                if watchdog.has_bitten:
                    raise stood_still(patience.timeout_s) from None
                raise (feed and feed.error) or from_rpc(error) from None
            patience.rest()
            yield message
    finally:
        watchdog.done.set()
        call.cancel()


class _Watchdog:
    """Cancels a call that somebody has waited for too long, a quarter of the timeout late at most.

    It is one thread a stream, which looks now and then. A timer for each message would be exact, and cost as much as
    the message.
    """

    def __init__(self, call: Any, patience: Patience) -> None:
        self.done = threading.Event()
        self.has_bitten = False
        if patience.timeout_s is not None:
            arguments = (call, patience, patience.timeout_s / 4)
            threading.Thread(target=self._run, args=arguments, name="sash stream", daemon=True).start()

    def _run(self, call: Any, patience: Patience, every_s: float) -> None:
        while not self.done.wait(every_s):
            if patience.is_over:
                self.has_bitten = True
                call.cancel()
                return
