"""How many connections of HTTP there may be, in all and from one address, and which one gives way to another.

accepted ─▶ handshake, of TLS ─▶ requests      a place from the beginning to the end
             └ the oldest one gives way where there is no place for another: it costs a client nothing to begin many
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["SPARE_PER_ADDRESS", "SPARE_S", "Connections", "Place"]

SPARE = 64
SPARE_PER_ADDRESS = 16
SPARE_S = 5.0
"""Connections beyond the limits, which are answered on health and metrics only, and for how long they may be idle.
`sash.limits.files` has the files for them."""


@dataclass(slots=True, eq=False)
class Place:
    """One of the connections that there may be.

    Attributes:
        address: of the client.
        limit: the limit that it is beyond: it is for monitors only. None: it is within the limits.
        give_way: ends the connection, while its handshake is not complete.
    """

    address: str
    limit: str | None
    give_way: Callable[[], None] | None = None


class Connections:
    """The places of one server.

    Args:
        most: how many there are.
        most_per_address: how many of them one address may have.
    """

    def __init__(self, most: int, most_per_address: int) -> None:
        self._most = most
        self._most_per_address = most_per_address
        self._count = 0
        self._by_address: dict[str, int] = {}
        self._spare: dict[str, int] = {}
        """Connections beyond the limits, by address."""
        self._handshakes: dict[str, dict[Place, None]] = {}
        """Those that are not complete, by address; the oldest comes first."""

    def admit(self, address: str) -> Place | None:
        """Count a connection. None: there is no place for it, not even one for monitors."""
        limit = self.limit(address)
        if limit is not None and self._make_room(address):
            limit = self.limit(address)
        if limit is not None:
            spare = self._spare.get(address, 0)
            if spare >= SPARE_PER_ADDRESS or sum(self._spare.values()) >= SPARE:
                return None
            self._spare[address] = spare + 1
        self._count += 1
        self._by_address[address] = self._by_address.get(address, 0) + 1
        return Place(address, limit)

    def leave(self, place: Place) -> None:
        """Count a connection no more."""
        self.shaken(place)
        self._count -= 1
        _one_less(self._by_address, place.address)
        if place.limit is not None:
            _one_less(self._spare, place.address)

    def limit(self, address: str) -> str | None:
        """The limit that one more connection of an address would be beyond."""
        if self._by_address.get(address, 0) >= self._most_per_address:
            return f"SASH_MAX_CONNECTIONS_PER_ADDRESS: {self._most_per_address}"
        return f"SASH_MAX_CONNECTIONS: {self._most}" if self._count >= self._most else None

    def shaking(self, place: Place, give_way: Callable[[], None]) -> None:
        """Note that a handshake begins. It is ended by `give_way`, which leaves the place."""
        place.give_way = give_way
        self._handshakes.setdefault(place.address, {})[place] = None

    def shaken(self, place: Place) -> None:
        """Note that a handshake is over, if there was one."""
        if place.give_way is not None:
            place.give_way = None
            of_address = self._handshakes[place.address]
            del of_address[place]
            if not of_address:
                del self._handshakes[place.address]

    def end_handshakes(self) -> None:
        """End all that are not complete, because the service ends."""
        for of_address in list(self._handshakes.values()):
            for place in list(of_address):
                _end(place)

    def _make_room(self, address: str) -> bool:
        """End the oldest handshake.

        Where the address has its share, it is one of its own, else one of the address that has most of them.
        """
        if self._by_address.get(address, 0) < self._most_per_address:
            address = max(self._handshakes, key=lambda each: len(self._handshakes[each]), default="")
        oldest = next(iter(self._handshakes.get(address, ())), None)
        if oldest is not None:
            _end(oldest)
        return oldest is not None


def _end(place: Place) -> None:
    assert place.give_way is not None
    place.give_way()


def _one_less(counts: dict[str, int], address: str) -> None:
    counts[address] -= 1
    if not counts[address]:
        del counts[address]
