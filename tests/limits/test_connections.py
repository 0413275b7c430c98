"""How many connections there may be, and which one gives way to another."""

import pytest

from sash.limits.connections import SPARE, SPARE_PER_ADDRESS, Connections, with_room

PER_ADDRESS = "SASH_MAX_CONNECTIONS_PER_ADDRESS: 3"
ALL = "SASH_MAX_CONNECTIONS: 5"


def connections(most=5, most_per_address=3):
    return Connections(most, most_per_address)


class Half:
    """A connection whose handshake is not complete."""

    def __init__(self, limits, address):
        self.limits, self.address, self.place = limits, address, limits.admit(address)
        assert self.place is not None
        limits.shaking(self.place, self.end)

    def over(self):
        self.limits.shaken(self.place)

    def end(self):
        self.limits.leave(self.place)
        self.place = None


class Served:
    """A connection that is served."""

    def __init__(self, limits, address, idle=True):
        self.limits, self.idle, self.place = limits, idle, limits.admit(address)
        limits.begun(self.place, lambda: self.idle)

    @property
    def gave_way(self):
        return self.place.left


def is_empty(limits):
    of_addresses = limits._by_address, limits._spare, limits._handshakes, limits._spare_handshakes, limits._begun
    return limits._count == 0 and of_addresses == ({}, {}, {}, {}, {})


def test_connections_beyond_a_limit_have_spare_places():
    limits = connections(most=3)
    places = [limits.admit("a") for _ in range(3 + SPARE_PER_ADDRESS)]
    assert [place.limit for place in places] == [None] * 3 + [PER_ADDRESS] * SPARE_PER_ADDRESS
    assert limits.admit("a") is None
    # The address is at its own limit; others see that of all.
    places.append(limits.admit("b"))
    assert places[-1].limit == "SASH_MAX_CONNECTIONS: 3"
    for place in places:
        limits.leave(place)
    assert is_empty(limits)


def test_one_address_does_not_take_all_spare_places():
    limits = connections(most=2, most_per_address=1000)
    places = [limits.admit("a") for _ in range(2 + SPARE_PER_ADDRESS)]
    assert places[-1].limit == "SASH_MAX_CONNECTIONS: 2"
    assert limits.admit("a") is None
    assert limits.admit("b").limit == "SASH_MAX_CONNECTIONS: 2"


def test_spare_places_have_an_end():
    limits = connections(most=0)
    for number in range(SPARE):
        assert limits.admit(f"{number}").limit == "SASH_MAX_CONNECTIONS: 0"
    assert limits.admit("one more") is None


def test_a_place_that_is_left_is_free_for_another():
    limits = connections()
    places = [limits.admit("a") for _ in range(4)]
    limits.leave(places[0])
    limits.leave(places[3])
    assert limits.admit("a").limit is None
    assert limits.admit("a").limit == PER_ADDRESS


def test_the_oldest_handshake_of_an_address_gives_way_to_its_next_connection():
    limits = connections()
    other, *halves = (Half(limits, address) for address in "baaa")
    assert limits.admit("a").limit is None
    assert [half.place is None for half in (other, *halves)] == [False, True, False, False]
    halves[1].over()  # it is complete now
    assert limits.admit("a").limit is None
    assert [half.place is None for half in (other, *halves)] == [False, True, False, True]
    assert limits.admit("a").limit == PER_ADDRESS
    assert other.place is not None


def test_the_address_with_most_handshakes_gives_way_where_there_are_too_many():
    limits = connections()
    one, *many, third = (Half(limits, address) for address in "abbbc")
    assert limits.admit("d").limit is None
    assert [half.place is None for half in (one, *many, third)] == [False, True, False, False, False]
    for half in (one, *many[1:], third):
        half.over()
    assert limits.admit("d").limit == ALL


def test_a_spare_handshake_gives_way_to_a_monitor():
    limits = connections(most=1, most_per_address=1)
    assert limits.admit("a").limit is None
    halves = [Half(limits, "a") for _ in range(2 * SPARE_PER_ADDRESS)]
    assert [half.place is None for half in halves] == [True] * SPARE_PER_ADDRESS + [False] * SPARE_PER_ADDRESS
    assert limits.admit("a").limit == "SASH_MAX_CONNECTIONS_PER_ADDRESS: 1"
    assert halves[SPARE_PER_ADDRESS].place is None, "the oldest one"


def test_all_handshakes_end_with_the_service():
    limits = connections()
    halves = [Half(limits, address) for address in "aab"]
    limits.end_handshakes()
    assert all(half.place is None for half in halves)
    assert is_empty(limits)


def test_the_oldest_idle_connection_of_the_address_with_most_gives_way():
    limits = connections()
    served = [Served(limits, address, idle) for address, idle in (("a", False), ("b", True), ("a", True), ("a", True))]
    served.append(Served(limits, "b"))
    assert Served(limits, "c").place.limit is None
    assert [each.gave_way for each in served] == [False, False, True, False, False]
    half = Half(limits, "d")  # of a and b, which have two each, the first one, whose other connection is busy
    assert half.place.limit is None
    assert [each.gave_way for each in served] == [False, False, True, True, False]
    assert Served(limits, "e").place.limit is None
    assert half.place is None, "handshakes come first"
    assert [each.gave_way for each in served] == [False, False, True, True, False]


def test_nobody_gives_way_to_an_address_that_has_as_many():
    limits = connections()
    served = [Served(limits, address) for address in "aabbc"]
    assert Served(limits, "b").place.limit == ALL
    assert not any(each.gave_way for each in served)
    assert Served(limits, "d").place.limit is None


def test_what_is_busy_gives_no_way():
    limits = connections()
    served = [Served(limits, "a", idle=False) for _ in range(3)] + [Served(limits, "b", idle=False) for _ in range(2)]
    assert limits.admit("c").limit == ALL
    assert not any(each.gave_way for each in served)


def test_a_place_is_left_once():
    """A connection that gave way ends later."""
    limits = connections(most=1)
    first, second = Served(limits, "a"), Served(limits, "a")
    assert second.place.limit == "SASH_MAX_CONNECTIONS: 1"
    limits.leave(second.place)
    limits.leave(first.place)
    limits.leave(first.place)
    assert is_empty(limits)


def test_an_address_with_its_share_takes_nothing_from_others():
    limits = connections()
    for _ in range(3):
        Served(limits, "a")
    assert Served(limits, "a").place.limit == PER_ADDRESS


@pytest.mark.parametrize(("secured", "most"), [(False, 2048), (True, 341)])
def test_there_are_as_many_as_have_room_in_memory(secured, most):
    room = with_room(512 * 2**20, secured)
    assert room == most
    limits = Connections(10_000, 10_000, room)
    for number in range(room):
        assert limits.admit(f"{number}").limit is None
    assert limits.admit("one more").limit == f"SASH_MEMORY_BYTES: {most} connections"
    assert Connections(3, 3, room).limit("a") is None
    assert Connections(0, 3, room).limit("a") == "SASH_MAX_CONNECTIONS: 0"


def test_a_connection_beyond_the_limits_is_in_nobodys_way():
    limits = connections(most=3)
    for _ in range(3):
        Served(limits, "a", idle=False)
    spare = Served(limits, "a")
    assert limits.admit("b").limit == "SASH_MAX_CONNECTIONS: 3"
    assert not spare.gave_way


def test_an_address_with_its_share_of_spare_places_ends_a_handshake_of_its_own():
    limits = connections(most=0)
    others = [Half(limits, "b") for _ in range(SPARE_PER_ADDRESS)]
    own = [Half(limits, "a") for _ in range(SPARE_PER_ADDRESS)]
    assert limits.admit("a").limit == "SASH_MAX_CONNECTIONS: 0"
    assert [half.place is None for half in own] == [True] + [False] * (SPARE_PER_ADDRESS - 1)
    assert not any(half.place is None for half in others)
