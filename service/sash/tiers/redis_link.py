"""Connections to the one Redis server that has a given hash slot.

    call ──▶ an idle connection, or a new one ──▶ answer ──▶ idle again
                     │ any failure: closed, never used again (a late answer would be taken for the next one)

All keys of a tier lie in one slot. So a tier needs one server of a cluster at a time; `locate` asks which one. A
cluster is recognised by its answer to CLUSTER SLOTS. The URL is the same as for a single server.

The tiers of many shards share a `Pool`: the connections, and what a cluster says of its slots. What it says is asked
again for a link that has failed since.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.connection import Connection, parse_url
from redis.crc import key_slot
from redis.exceptions import ClusterDownError, ConnectionError, RedisError, ResponseError

from sash_engine.errors import Unavailable

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


class _Server:
    """The connections to one server.

    Args:
        connections: most at a time.
    """

    def __init__(self, connections: int) -> None:
        self.permits = threading.Semaphore(connections)
        self._lock = threading.Lock()
        self._idle: list[Any] = []
        self._era = 0  # connections of an earlier era are closed, and not used again

    def take(self) -> tuple[Any, int]:
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

    def keep(self, connection: Any, era: int) -> bool:
        """Keep a connection for later calls; False if it is of an earlier era."""
        with self._lock:
            if era == self._era:
                self._idle.append(connection)
            return era == self._era

    def drop(self) -> int:
        """Close idle connections, and those in use once they are done. Return the new era."""
        with self._lock:
            self._era += 1
            era, idle, self._idle = self._era, self._idle, []
        for connection in idle:
            connection.disconnect()
        return era


class Pool:
    """The connections to the servers of one Redis, for one link or many; safe to use from several threads.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://`` as redis-py reads them, options included.
        timeout_s: longest wait for the server: to connect, and for its answer.
        connections: most at a time to one server.

    Attributes:
        warned: whether somebody has looked how the server is set up.
        used_bytes, limit_bytes: of the server's memory, as it last said; see `measure`.

    Raises:
        ValueError: the URL is wrong.
    """

    def __init__(self, url: str, timeout_s: float, connections: int) -> None:
        options = {"socket_keepalive": True, **parse_url(url)}  # type: ignore[no-untyped-call]
        self._class = options.pop("connection_class", Connection)
        # RESP2 needs no handshake, and nothing here needs RESP3.
        fixed = {"protocol": 2, "driver_info": None, "socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
        self._options = {**options, **fixed}
        try:
            self._class(**self._options)  # does not connect
        except TypeError as error:
            raise ValueError(str(error)) from None
        self.timeout_s, self._connections = timeout_s, connections
        self._servers: dict[Address | None, _Server] = {}
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._told: tuple[float, list[tuple[int, int, list[Address]]] | Exception] | None = None
        self.warned = False
        self.used_bytes: int | None = None
        self.limit_bytes: int | None = None

    def server(self, address: Address | None) -> _Server:
        """The connections to the server at an address; None: the URL's."""
        with self._lock:
            return self._servers.setdefault(address, _Server(self._connections))

    def connected(self, address: Address | None) -> Any:
        """A new connection."""
        options = self._options if address is None else {**self._options, "host": address[0], "port": address[1]}
        connection = self._class(**options)
        connection.connect()
        return connection

    def slots(self, addresses: Iterable[Address | None], since_s: float) -> list[tuple[int, int, list[Address]]]:
        """The ranges of slots, and the servers of each, as one of these servers says; none where it is no cluster.

        Args:
            since_s: what was asked before, by the monotonic clock, may be out of date.

        Raises:
            RedisError, OSError: none of them can tell.
        """
        with self._asking:
            if self._told is not None and self._told[0] >= since_s:  # while this link waited, perhaps
                found = self._told[1]
            else:
                asked_s = time.monotonic()
                found = self._ranges(addresses)
                self._told = asked_s, found
        if isinstance(found, Exception):
            raise found
        return found

    def _ranges(self, addresses: Iterable[Address | None]) -> list[tuple[int, int, list[Address]]] | Exception:
        failure: Exception | None = None
        for address in dict.fromkeys(addresses):
            try:
                return self._asked(address)
            except (RedisError, OSError) as error:
                failure = failure or error
        assert failure is not None
        return failure

    def _asked(self, address: Address | None) -> list[tuple[int, int, list[Address]]]:
        connection = self.connected(address)
        try:
            connection.send_command("CLUSTER SLOTS")
            ranges = connection.read_response()
        except ResponseError:
            return []  # no cluster, or a proxy or a permission that hides it
        finally:
            connection.disconnect()
        home = address or (getattr(connection, "host", "localhost"), getattr(connection, "port", 6379))
        return [(first, last, [_address(server, home) for server in servers]) for first, last, *servers in ranges]

    def measure(self, told: str) -> None:
        """Take note of what the server says of its memory."""
        said = dict(re.findall(r"^(\w+):(\d+)\r?$", told, re.MULTILINE))
        self.used_bytes = int(said["used_memory"]) if "used_memory" in said else None
        self.limit_bytes = int(said.get("maxmemory", 0)) or None


class Link:
    """The way to the server of one slot; safe to use from several threads.

    Args:
        url: as of `Pool`.
        tag: the text between the braces of all keys.
        timeout_s: longest wait for the server: to connect, and for its answer.
        connections: most connections at a time.
        pool: has the connections, with those of other links; None: they are of this link alone.

    Raises:
        ValueError: the URL is wrong.
    """

    def __init__(self, url: str, tag: str, timeout_s: float, connections: int, pool: Pool | None = None) -> None:
        self.pool = pool or Pool(url, timeout_s, connections)
        self._slot = key_slot(tag.encode())
        self._timeout_s = self.pool.timeout_s
        self._address: Address | None = None  # None: the URL's
        self._others: list[Address] = []
        self._failed_s = float("-inf")

    def locate(self) -> None:
        """Find out which server has the slot; later calls go there.

        Raises:
            RedisError, OSError: no known server can tell.
        """
        ranges = self.pool.slots([self._address, *self._others, None], self._failed_s)
        if not ranges:
            self._address, self._others = None, []
            return
        # The first server of each range accepts writes.
        owner = next((servers[0] for first, last, servers in ranges if first <= self._slot <= last), None)
        if owner is None:
            self._failed_s = time.monotonic()
            raise ClusterDownError("no server of the cluster has the slot")
        self._address = owner
        self._others = list(dict.fromkeys(server for *_, servers in ranges for server in servers))

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
        address = self._address
        server = self.pool.server(address)
        if not server.permits.acquire(timeout=self._timeout_s / 2):  # the other half is for the server
            raise Unavailable("All connections to Redis are busy.", retry_after_s=self._timeout_s)
        try:
            connection, era = server.take()
            if connection is not None:
                try:
                    return self._answer(server, connection, era, command(), deadline + extra_s, then)
                except ConnectionError:
                    # It may have ended while idle (a timeout of a proxy or the server): the server may be fine.
                    if time.monotonic() > deadline - self._timeout_s / 2:
                        raise
                    era = server.drop()
            return self._answer(server, self.pool.connected(address), era, command(), deadline + extra_s, then)
        finally:
            server.permits.release()

    def drop(self) -> None:
        """Close idle connections, and those in use once they are done; ask anew who has the slot."""
        self._failed_s = time.monotonic()
        self.pool.server(self._address).drop()

    def _answer(
        self,
        server: _Server,
        connection: Any,
        era: int,
        command: Sequence[Argument],
        deadline: float,
        then: Then | None,
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
            if not (reusable and server.keep(connection, era)):
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
