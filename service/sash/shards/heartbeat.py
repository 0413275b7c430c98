"""Keeps a process in the lease table: a heartbeat each second, or each third of a lease, from threads of its own.

    sent   |1   |2   |3   |4   |5            a store that answers after three seconds: each answer keeps the lease
    answer                |1   |2   |3       for the time behind its heartbeat

A heartbeat does not wait for the answer to the last one. So a lease survives a store that is slow, as long as it
answers within a lease less the time between two heartbeats. There is one for all shards of the process.

The threads do not depend on the event loop: a loop that is busy for some seconds would lose its shards, and then be
busy with others. This also decides how long this process may answer for its shards.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sash.shards.fair import Member, Table
from sash.shards.lease_table import LeaseTable, OtherDeployment
from sash_engine.errors import SashError, Unavailable

_log = logging.getLogger(__name__)

_PAUSE_S = 0.25
_EVERY_S = 1.0
_AT_ONCE = 8
"""So many heartbeats may wait for answers."""


class Heartbeat:
    """The heartbeats of one process.

    Args:
        table: where they go.
        member: says what there is to say of this process.
        lease_s: how long each counts.
        told: called on the event loop with what the table says, when the heartbeat was sent (by the monotonic clock),
            and since when they have all come through.
        over: called on the event loop, with the reason, when no further heartbeat follows.
    """

    def __init__(
        self,
        table: LeaseTable,
        member: Callable[[], Member],
        lease_s: float,
        told: Callable[[Table, float, float], None],
        over: Callable[[str], None],
    ) -> None:
        self._table, self._member, self._lease_s, self._told, self._over = table, member, lease_s, told, over
        self._loop = asyncio.get_running_loop()
        self._until_s = 0.0
        self._steady_s: float | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ended = False
        self._waiting = 0
        self._wanted = False  # whether another one shall follow as soon as there is room
        self.problem: str | None = None
        """Why the last one failed; None if it did not."""
        self._senders = ThreadPoolExecutor(_AT_ONCE, "sash-heartbeat-sender")
        self._thread = threading.Thread(target=self._run, name="sash-heartbeat", daemon=True)

    def valid(self) -> bool:
        """Whether no other process can take this one for gone. A process that stood still finds out by this."""
        return time.monotonic() < self._until_s

    def confirm(self, sent_s: float) -> None:
        """Be valid again, for a lease from a heartbeat on: this process has none of the shards that others took."""
        self._until_s = max(self._until_s, sent_s + self._lease_s)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def now(self) -> None:
        """Send the next one at once."""
        self._wake.set()

    async def stop(self) -> None:
        """Send no more."""
        self._ended = True
        self._wake.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._senders.shutdown)

    def beat(self) -> tuple[Table, float, float]:
        """Send one, and return what `told` gets; blocks. Raises as `LeaseTable.beat`."""
        sent_s = time.monotonic()
        try:
            table = self._table.beat(self._member())
        except BaseException:
            self._steady_s = None
            raise
        with self._lock:
            steady_s = self._steady_s = self._steady_s or sent_s
            if self.valid():
                self._until_s = max(self._until_s, sent_s + self._lease_s)  # else others may have taken shards
        return table, sent_s, steady_s

    async def first(self, patience_s: float) -> tuple[Table, float, float]:
        """Send one, again and again for some seconds if Redis is away; as `beat`."""
        end_s = time.monotonic() + patience_s
        while True:
            try:
                return await asyncio.to_thread(self.beat)
            except Unavailable:
                if time.monotonic() > end_s:
                    raise
                await asyncio.sleep(_PAUSE_S)

    def _run(self) -> None:
        while not self._ended:
            self._wake.wait(self._lease_s / 10 if self.problem else min(self._lease_s / 3, _EVERY_S))
            self._wake.clear()
            if self._ended:
                return
            with self._lock:
                self._wanted = self._waiting == _AT_ONCE
                if self._wanted:
                    continue
                self._waiting += 1
            self._senders.submit(self._send)

    def _send(self) -> None:
        problem: str | None = None
        try:
            found = self.beat()
            self._loop.call_soon_threadsafe(self._told, *found)
        except OtherDeployment as error:
            self._end(error.message)
        except SashError as error:
            problem = error.message
            if self.problem is None:
                _log.warning("the lease table cannot be reached: %s", error.message)
        except RuntimeError:
            self._ended = True  # the loop is closed
        except Exception as error:
            problem = repr(error)
            _log.exception("a heartbeat failed; the next one follows")
        self.problem = problem
        with self._lock:
            self._waiting -= 1
            wanted = self._wanted
        if wanted or self._ended:
            self._wake.set()

    def _end(self, reason: str) -> None:
        with self._lock:
            ended, self._ended = self._ended, True
        if not ended:
            self._loop.call_soon_threadsafe(self._over, reason)
