"""How many connections of HTTP there may be, in all and from one address, and which one gives way to another.

accepted ─▶ handshake, of TLS ─▶ requests      a place from the beginning to the end
             │                    └ where there is no place for another, an idle one gives way, of an address that has
             │                      more than the address of the new one: a client loses nothing, and connects again
             └ the oldest one gives way first: it costs a client nothing to begin many

There are as many places as have room in memory: what a connection takes is known to no limit of bodies and answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

SPARE = 64
SPARE_PER_ADDRESS = 16
SPARE_S = 5.0
"""Connections beyond the limits, which are answered on health and metrics only, and for how long they may be idle.
`sash.limits.files` has the files for them."""


_MEMORY_SHARE = 4
"""All connections may take a quarter of the memory, for what they have between two requests."""

_PLAIN_BYTES, _SECURED_BYTES = 65_536, 393_216
"""What a connection takes without and with TLS: 54 KB from its first byte on; after bodies and answers of hundreds of
kilobytes 200 to 700, most of them buffers of TLS, which are kept."""


def with_room(memory_bytes: int, secured: bool) -> int:
    """How many connections have room in so much memory."""
    return memory_bytes // _MEMORY_SHARE // (_SECURED_BYTES if secured else _PLAIN_BYTES)


@dataclass(slots=True, eq=False)
class Place:
    """One of the connections that there may be.

    Attributes:
        address: of the client.
        limit: the limit that it is beyond: it is for monitors only. None: it is within the limits.
        shaking: ends the connection, while its handshake is not complete.
        give_way: ends it if it is idle, and says whether it was, once its handshake is complete.
        left: whether it is counted no more.
    """

    address: str
    limit: str | None
    shaking: Callable[[], None] | None = None
    give_way: Callable[[], bool] | None = None
    left: bool = False


class Connections:
    """The places of one server.

    Args:
        most: how many there are.
        most_per_address: how many of them one address may have.
        room: how many connections there is memory for; None: for all.
    """

    def __init__(self, most: int, most_per_address: int, room: int | None = None) -> None:
        self._most = most if room is None else min(most, room)
        self._setting = "SASH_MAX_CONNECTIONS: {}" if self._most == most else "SASH_MEMORY_BYTES: {} connections"
        self._most_per_address = most_per_address
        self._count = 0
        self._by_address: dict[str, int] = {}
        self._spare: dict[str, int] = {}
        """Connections beyond the limits, by address."""
        self._handshakes: dict[str, dict[Place, None]] = {}
        """Those that are not complete, by address; the oldest comes first."""
        self._spare_handshakes: dict[str, dict[Place, None]] = {}
        """The same, of connections beyond the limits."""
        self._begun: dict[str, dict[Place, None]] = {}
        """Connections that may give way when they are idle, by address; the oldest comes first."""

    def admit(self, address: str) -> Place | None:
        """Count a connection. None: there is no place for it, not even one for monitors."""
        limit = self.limit(address)
        if limit is not None and self._make_room(address):
            limit = self.limit(address)
        if limit is None:
            self._count += 1
            self._by_address[address] = self._by_address.get(address, 0) + 1
            return Place(address, None)
        of_address = self._spare.get(address, 0)
        has_share = of_address >= SPARE_PER_ADDRESS
        is_full = has_share or sum(self._spare.values()) >= SPARE
        if is_full and not _end_oldest(self._spare_handshakes, address if has_share else None):
            return None
        self._spare[address] = self._spare.get(address, 0) + 1
        return Place(address, limit)

    def leave(self, place: Place) -> None:
        """Count a connection no more."""
        if place.left:
            return
        place.left = True
        self.shaken(place)
        if place.give_way is not None:
            _forget(self._begun, place)
            place.give_way = None
        if place.limit is not None:
            _one_less(self._spare, place.address)
        else:
            self._count -= 1
            _one_less(self._by_address, place.address)

    def limit(self, address: str) -> str | None:
        """The limit that one more connection of an address would be beyond."""
        if self._by_address.get(address, 0) >= self._most_per_address:
            return f"SASH_MAX_CONNECTIONS_PER_ADDRESS: {self._most_per_address}"
        return self._setting.format(self._most) if self._count >= self._most else None

    def shaking(self, place: Place, give_way: Callable[[], None]) -> None:
        """Note that a handshake begins. It is ended by `give_way`, which leaves the place."""
        place.shaking = give_way
        self._shaking(place).setdefault(place.address, {})[place] = None

    def shaken(self, place: Place) -> None:
        """Note that a handshake is over, if there was one."""
        if place.shaking is not None:
            place.shaking = None
            _forget(self._shaking(place), place)

    def begun(self, place: Place, give_way: Callable[[], bool]) -> None:
        """Note that a connection is served. `give_way` ends it if it is idle, and says whether it was."""
        if place.limit is not None:
            return  # it is in nobody's way
        place.give_way = give_way
        self._begun.setdefault(place.address, {})[place] = None

    def end_handshakes(self) -> None:
        """End all that are not complete, because the service ends."""
        for of_address in (*self._handshakes.values(), *self._spare_handshakes.values()):
            for place in list(of_address):
                _end(place)

    def _shaking(self, place: Place) -> dict[str, dict[Place, None]]:
        """The handshakes that one is of."""
        return self._handshakes if place.limit is None else self._spare_handshakes

    def _make_room(self, address: str) -> bool:
        """End the oldest handshake, or where there is none an idle connection.

        Where the address has its share, it is a handshake of its own, else one of the address that has most of them.
        """
        has = self._by_address.get(address, 0)
        has_share = has >= self._most_per_address
        if _end_oldest(self._handshakes, address if has_share else None):
            return True
        of = _most(self._begun)
        for place in self._begun.get(of, ()) if self._by_address.get(of, 0) > has else ():
            assert place.give_way is not None
            if place.give_way():
                self.leave(place)
                return True
        return False


def _most(places: dict[str, dict[Place, None]]) -> str:
    """The address that has most of some places."""
    return max(places, key=lambda each: len(places[each]), default="")


def _end_oldest(handshakes: dict[str, dict[Place, None]], address: str | None) -> bool:
    """End the oldest handshake of an address; None: of the one that has most of them. Return whether there was one."""
    oldest = next(iter(handshakes.get(_most(handshakes) if address is None else address, ())), None)
    if oldest is not None:
        _end(oldest)
    return oldest is not None


def _end(place: Place) -> None:
    assert place.shaking is not None
    place.shaking()


def _forget(places: dict[str, dict[Place, None]], place: Place) -> None:
    of_address = places[place.address]
    del of_address[place]
    if not of_address:
        del places[place.address]


def _one_less(counts: dict[str, int], address: str) -> None:
    counts[address] -= 1
    if not counts[address]:
        del counts[address]
