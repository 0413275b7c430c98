"""Connections to the one Redis server that has a given hash slot.

    call ──▶ an idle connection, or a new one ──▶ answer ──▶ idle again
                     │ any failure: closed, never used again (a late answer would be taken for the next one)

All keys of a tier lie in one slot. So a tier needs one server of a cluster at a time; `locate` asks which one. A
cluster is recognised by its answer to CLUSTER SLOTS. The URL is the same as for a single server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.connection import Connection, parse_url
from redis.crc import key_slot
from redis.exceptions import ClusterDownError, ConnectionError, RedisError, ResponseError

from sash_engine.errors import Unavailable

__all__ = ["Link", "Then"]

_PIECE = 1 << 20  # bytes sent at once: a timeout counts from the last piece, so it does not depend on the size

Argument = bytes | str | int
Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Then:
    """A command that is sent behind another one on the same connection, and again until its answer is enough.

    Attributes:
        command: name and arguments; it takes short.
        enough: judges its answer.
    """

    command: Sequence[Argument]
    enough: Callable[[Any], bool]


class Link:
    """A bounded pool of connections; safe to use from several threads.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://`` as redis-py reads them, options included.
        tag: the text between the braces of all keys.
        timeout_s: longest wait for the server: to connect, and for its answer.
        connections: most connections at a time.

    Raises:
        ValueError: the URL is wrong.
    """

    def __init__(self, url: str, tag: str, timeout_s: float, connections: int) -> None:
        options = {"socket_keepalive": True, **parse_url(url)}  # type: ignore[no-untyped-call]
        self._class = options.pop("connection_class", Connection)
        # RESP2 needs no handshake, and nothing here needs RESP3.
        fixed = {"protocol": 2, "driver_info": None, "socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
        self._options = {**options, **fixed}
        try:
            self._class(**self._options)  # does not connect
        except TypeError as error:
            raise ValueError(str(error)) from None
        self._slot = key_slot(tag.encode())
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._permits = threading.Semaphore(connections)
        self._idle: list[Any] = []
        self._era = 0  # connections of an earlier era are closed, and not used again
        self._address: Address | None = None  # None: the URL's
        self._others: list[Address] = []

    def locate(self) -> None:
        """Find out which server has the slot; later calls go there.

        Raises:
            RedisError, OSError: no known server can tell.
        """
        failure: Exception | None = None
        for address in dict.fromkeys([self._address, *self._others, None]):
            try:
                self._address, self._others = self._asked(address)
            except (RedisError, OSError) as error:
                failure = failure or error
            else:
                return
        assert failure is not None
        raise failure

    def call(self, command: Callable[[], Sequence[Argument]], extra_s: float = 0.0, then: Then | None = None) -> Any:
        """Run a command, and return its answer. The command may run twice.

        Args:
            command: makes name and arguments, once for each attempt.
            extra_s: how much longer than usual the answer may take.
            then: what must be true after the command; both answers are returned.

        Raises:
            Unavailable: all connections are busy.
            ResponseError: the server refused the command; the connection stays open.
            RedisError, OSError: anything else; the command may have run.
        """
        deadline = time.monotonic() + self._timeout_s
        if not self._permits.acquire(timeout=self._timeout_s / 2):  # the other half is for the server
            raise Unavailable("All connections to Redis are busy.", retry_after_s=self._timeout_s)
        try:
            connection, era = self._take()
            if connection is not None:
                try:
                    return self._answer(connection, era, command(), deadline + extra_s, then)
                except ConnectionError:
                    # It may have ended while idle (a timeout of a proxy or the server): the server may be fine.
                    if time.monotonic() > deadline - self._timeout_s / 2:
                        raise
                    era = self.drop()
            return self._answer(self._connected(self._address), era, command(), deadline + extra_s, then)
        finally:
            self._permits.release()

    def drop(self) -> int:
        """Close idle connections, and those in use once they are done. Return the new era."""
        with self._lock:
            self._era += 1
            era, idle, self._idle = self._era, self._idle, []
        for connection in idle:
            connection.disconnect()
        return era

    def _asked(self, address: Address | None) -> tuple[Address | None, list[Address]]:
        """The server of the slot, and all others, as the server at `address` says."""
        connection = self._connected(address)
        try:
            connection.send_command("CLUSTER SLOTS")
            ranges = connection.read_response()
        except ResponseError:
            return None, []  # no cluster, or a proxy or a permission that hides it
        finally:
            connection.disconnect()
        home = address or (getattr(connection, "host", "localhost"), getattr(connection, "port", 6379))
        owner = None
        others = []
        for first, last, *servers in ranges:  # the first one of each range accepts writes
            nodes = [_address(server, home) for server in servers]
            others += nodes
            if first <= self._slot <= last:
                owner = nodes[0]
        if owner is None:
            raise ClusterDownError("no server of the cluster has the slot")
        return owner, list(dict.fromkeys(others))

    def _connected(self, address: Address | None) -> Any:
        options = self._options if address is None else {**self._options, "host": address[0], "port": address[1]}
        connection = self._class(**options)
        connection.connect()
        return connection

    def _take(self) -> tuple[Any, int]:
        """The connection that was used last, None if there is none, and the era."""
        while True:
            with self._lock:
                era = self._era
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return None, era
            try:
                if not connection.can_read():
                    return connection, era
            except (RedisError, OSError):
                pass
            connection.disconnect()  # the other side closed it, or sent an unexpected answer

    def _answer(
        self, connection: Any, era: int, command: Sequence[Argument], deadline: float, then: Then | None
    ) -> Any:
        """Send the command, and read its answer. The connection is idle or closed afterwards."""
        reusable = False
        try:
            commands = (command,) if then is None else (command, then.command)
            packed = (memoryview(piece) for each in commands for piece in connection.pack_command(*each))
            connection.send_packed_command(
                [piece[at : at + _PIECE] for piece in packed for at in range(0, len(piece), _PIECE)]
            )
            answer = connection.read_response(timeout=max(deadline - time.monotonic(), 0.01))
            if then is not None:
                answer = answer, self._repeated(connection, then, deadline)
            reusable = True
            return answer
        except ResponseError:
            reusable = then is None  # the other answer may be on its way
            raise
        finally:
            with self._lock:
                reusable = reusable and era == self._era
                if reusable:
                    self._idle.append(connection)
            if not reusable:
                connection.disconnect()

    def _repeated(self, connection: Any, then: Then, deadline: float) -> Any:
        """The last answer to a command that was sent already; it is sent again for half of the time that is left."""
        until = (time.monotonic() + deadline) / 2
        while True:
            answer = connection.read_response(timeout=max(deadline - time.monotonic(), 0.01))
            if then.enough(answer) or time.monotonic() > until:
                return answer
            connection.send_command(*then.command)


def _address(node: Sequence[Any], home: Address) -> Address:
    """Host and port of a node. A server that does not know its own name has the address that it was asked under."""
    return (node[0].decode() if node[0] else home[0]), node[1]
