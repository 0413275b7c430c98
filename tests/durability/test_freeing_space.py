"""Which windows are checkpointed to free space, and how long a write waits for it."""

import asyncio
from dataclasses import dataclass, field

import pytest

from sash.durability.images.backoff import Backoff
from sash.durability.images.capacity import Capacity
from sash_engine.errors import OutOfRoom, Unavailable
from tests.support.virtual_time import in_virtual_time, now_s, passes

MIB = 2**20


class Place:
    """What `Capacity` sees of a tier with so many bytes free, and of its journal."""

    def __init__(self, free):
        self.free = free
        self.error = None
        self.asked = []
        self.journal = self
        self.drains = 0

    def check_room(self, size):
        self.asked.append(size)
        if size > self.free:
            raise OutOfRoom("full")

    def check(self):
        if self.error is not None:
            raise self.error

    async def drained(self):
        self.check()
        self.drains += 1


@dataclass
class Journalled:
    """What `Capacity` sees of a window: its journal, and what a checkpoint of it frees, after how long."""

    logged_bytes: int
    frees: int = 0
    takes_s: float = 0.0
    can_shrink: bool = True
    backoff: Backoff = field(default_factory=Backoff)
    taken_s: list[float] = field(default_factory=list)


def a_capacity(place, *windows):
    async def checkpoint(window):
        window.taken_s.append(now_s())
        await passes(window.takes_s)
        place.free += window.frees

    return Capacity(place, dict(enumerate(windows)), checkpoint)


@pytest.mark.parametrize(
    ("size", "needed"), [(0, 16_384), (8191, 16_384), (8192, 32_768), (100_000, 13 * 16_384), (10**8, 12_208 * 16_384)]
)
def test_a_write_needs_twice_its_size_in_whole_commits(size, needed):
    async def main():
        assert not await a_capacity(Place(needed)).reserve(size)
        with pytest.raises(OutOfRoom):
            await a_capacity(Place(needed - 1)).reserve(size)

    in_virtual_time(main())


def test_windows_with_most_journal_are_checkpointed_first_and_no_more_than_it_takes():
    async def main():
        place = Place(0)
        windows = [
            Journalled(5, 10_000),
            Journalled(30, 10_000, 1.0),
            Journalled(20, 10_000, 1.0),
            Journalled(10, 10_000),
        ]
        idle, resting = Journalled(0, 10**6, can_shrink=False), Journalled(99, 10**6)
        resting.backoff.fail(OutOfRoom("full"))
        assert await a_capacity(place, *windows, idle, resting).reserve(0)
        assert [window.taken_s for window in windows] == [[], [0.0], [1.0], []]
        assert not idle.taken_s
        assert not resting.taken_s
        assert place.drains == 2, "what a checkpoint deletes is room when it is committed"

    in_virtual_time(main())


def test_a_write_waits_five_seconds_and_making_room_goes_on():
    async def main():
        place, window = Place(0), Journalled(1, 10**6, 60.0)
        capacity = a_capacity(place, window)
        with pytest.raises(OutOfRoom):
            await capacity.reserve(0)
        assert now_s() == 5.0
        with pytest.raises(OutOfRoom):
            await capacity.reserve(0)
        assert window.taken_s == [0.0], "one at a time"
        await passes(60)
        assert not await capacity.reserve(0)
        assert window.taken_s == [0.0]

    in_virtual_time(main())


def test_a_tier_that_notices_late_that_it_is_not_full_is_asked_again():
    async def main():
        place = Place(0)
        asyncio.get_running_loop().call_later(0.35, lambda: setattr(place, "free", 10**6))
        assert await a_capacity(place, Journalled(1)).reserve(0)
        assert now_s() == pytest.approx(0.4)
        place = Place(0)
        asyncio.get_running_loop().call_later(0.1, lambda: setattr(place, "free", 10**6))
        before_s = now_s()
        with pytest.raises(OutOfRoom):
            await a_capacity(place, Journalled(1, can_shrink=False)).reserve(0)
        assert now_s() == before_s, "nothing was tried that could change it"

    in_virtual_time(main())


def test_a_tier_that_fails_while_room_is_made_is_why_a_write_is_refused():
    async def main():
        place = Place(0)
        capacity = a_capacity(place, Journalled(1, 10**6, 1.0))
        asyncio.get_running_loop().call_later(0.5, lambda: setattr(place, "error", Unavailable("gone")))
        with pytest.raises(Unavailable, match="gone"):
            await capacity.reserve(0)

    in_virtual_time(main())


def test_it_is_full_as_long_as_what_was_refused_last_or_a_mib_does_not_fit():
    async def main():
        place = Place(10 * 16_384)
        capacity = a_capacity(place)
        assert capacity.full() is None
        with pytest.raises(OutOfRoom):
            await capacity.reserve(100_000)
        assert isinstance(capacity.full(), OutOfRoom)
        place.free = 13 * 16_384 - 1
        assert isinstance(capacity.full(), OutOfRoom)
        place.free += 1
        assert capacity.full() is None
        place.free = 16_384
        assert capacity.full() is None, "what was refused fitted meanwhile: from now on it is full where nothing fits"
        with pytest.raises(OutOfRoom):
            await capacity.reserve(10**8)
        place.free = MIB - 1
        assert isinstance(capacity.full(), OutOfRoom)
        place.free = MIB
        assert capacity.full() is None

    in_virtual_time(main())


def test_a_look_makes_room_where_it_is_full_and_stopping_ends_that():
    async def main():
        place, window = Place(10**6), Journalled(1, 10**6, 10.0)
        capacity = a_capacity(place, window)
        capacity.check()
        await passes(1)
        assert not window.taken_s
        place.free = 0
        for _ in range(3):
            capacity.check()
            await passes(1)
        assert window.taken_s == [1.0]
        await capacity.stop()
        await passes(60)
        assert place.free == 0
        await a_capacity(place).stop()

    in_virtual_time(main())
