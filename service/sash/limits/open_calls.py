"""How many calls of gRPC may be open, in all and from one address, and on how many of its connections.

    address 10.0.0.7    connection :53124    3 calls          a call is open from its head to its answer,
                        connection :53126    1 call           also while its message does not arrive

    0 ─────────────────────────────── 3/4 ──────── all
    │ who has many: half of what others leave │ who has few

An open call takes memory before anything of its message arrives, and needs no token for that. So there are as many as
have room. Who has many may have half of what others leave of three quarters, as with memory; the last quarter is for
those who have few.

gRPC does not say when a connection comes or goes. So a connection counts while it has a call. `SASH_MAX_CONNECTIONS`
limits connections without calls, and they are closed after five minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sash_engine.errors import Unavailable

FEW = 8
"""Who has fewer calls may have one more, as long as there is room for any."""


class OpenCalls:
    """Calls that are open.

    Args:
        all_max: how many there may be.
        calls_max: how many there may be from one address.
        connections_max: on how many connections.
    """

    def __init__(self, all_max: int, calls_max: int, connections_max: int) -> None:
        self._all_max = all_max
        self._all = 0
        self._calls_max = calls_max
        self._connections_max = connections_max
        self._calls: dict[str, int] = {}
        self._connections: dict[str, dict[str, int]] = {}
        """By address, then by peer: the calls of each connection."""

    @contextmanager
    def call(self, peer: str) -> Iterator[None]:
        """Count a call as open inside the `with` block.

        Args:
            peer: the connection that it comes on, as gRPC writes it.

        Raises:
            Unavailable: there are too many.
        """
        address = address_of_peer(peer)
        calls, connections = self._calls.get(address, 0), self._connections.get(address, {})
        if calls >= self._calls_max:
            raise Unavailable(
                f"{calls} calls of {address} are open",
                limit=f"SASH_MAX_CALLS_PER_ADDRESS, twice: {self._calls_max}",
                retry_after_s=1.0,
            )
        others = self._all - calls
        if self._all >= self._all_max or (calls >= FEW and calls >= (self._all_max * 3 // 4 - others) // 2):
            raise Unavailable(
                f"{self._all} calls are open, {calls} of them of {address}: it may have half of what others leave",
                limit=f"SASH_MEMORY_BYTES: {self._all_max} calls",
                retry_after_s=1.0,
            )
        if peer not in connections and len(connections) >= self._connections_max:
            raise Unavailable(
                f"{address} has calls on {len(connections)} connections",
                limit=f"SASH_MAX_CONNECTIONS_PER_ADDRESS: {self._connections_max}",
                retry_after_s=1.0,
            )
        self._all += 1
        self._calls[address], self._connections[address] = calls + 1, connections
        connections[peer] = connections.get(peer, 0) + 1
        try:
            yield
        finally:
            self._all -= 1
            self._calls[address] -= 1
            connections[peer] -= 1
            if not connections[peer]:
                del connections[peer]
            if not connections:
                del self._calls[address], self._connections[address]


def address_of_peer(peer: str) -> str:
    """The address in what gRPC calls a peer, without its port.

    >>> address_of_peer("ipv4:10.0.0.7:53124"), address_of_peer("ipv6:%5B::1%5D:53124"), address_of_peer("unix:")
    ('10.0.0.7', '::1', 'unix')
    """
    kind, _, rest = peer.partition(":")
    return rest.rpartition(":")[0].replace("%5B", "").replace("%5D", "") or kind
