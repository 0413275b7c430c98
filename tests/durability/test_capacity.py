"""A full tier: new entries are refused and change nothing, room can be made, and then all goes on; each tier.

fill until refused ──▶ evict, delete, or let time pass ──▶ fill again ──▶ restart        answers equal the fold
"""

import asyncio
import contextlib
from dataclasses import dataclass, field

import numpy as np
import pytest

from sash.durability.catalogue import Catalogue
from sash.durability.images.backoff import Backoff
from sash.durability.images.capacity import Capacity
from sash.durability.records.commands import AddAggregates, BulkEvict, BulkInsert, Commit, Insert, StageBatch, Write
from sash.durability.storage import Storage
from sash.tiers.lmdb import LmdbTier
from sash.tiers.memory import MemoryStore, MemoryTier
from sash.tiers.redis import RedisTier
from sash_engine.clock import ManualClock
from sash_engine.errors import OutOfRoom, Unavailable
from sash_engine.windows.batches.batch import Batch, Coded, Origin
from sash_engine.windows.window import Window
from tests.support.failing import parts_of
from tests.support.redis_servers import BINARIES, EVERYSEC, redis_server
from tests.support.stored import same, spec
from tests.support.virtual_time import now_s, passes, virtual
from tests.support.waiting import surely, until

SMALL = {"n": {"function": "count"}, "sum": {"function": "sum"}, "max": {"function": "max"}}
MIB = 2**20
OPTIONS = {"cache_bytes": 10_000, "checkpoint_bytes": 10**9, "store_entries": 500, "block": 64}
"""A checkpoint is taken only to make room."""


@contextlib.contextmanager
def a_directory(folder):
    yield lambda: LmdbTier(folder / "data", max_bytes=MIB)


@contextlib.contextmanager
def a_redis(folder):
    with redis_server(next(iter(BINARIES.values())), EVERYSEC, "maxmemory-policy noeviction") as server:
        used = int(server.ask("INFO", "memory").split(b"used_memory:")[1].split()[0])
        server.ask("CONFIG", "SET", "maxmemory", used + MIB // 4)
        yield lambda: RedisTier(server.url, timeout_s=60)


PLACES = {"lmdb": a_directory} | ({"redis": a_redis} if BINARIES else {})


class Service:
    """A storage on a tier that has little room, and models of its windows.

    Args:
        open_tier: opens the tier.
        steady: whether the tier is as full as it was while nobody writes. A server's memory goes up and down by itself.
    """

    def __init__(self, open_tier, steady=True):
        self.open_tier, self.steady = open_tier, steady
        self.clock = ManualClock()
        self.models = {}
        self.time = {}
        self.refused = None

    async def start(self, **options):
        catalogue = Catalogue(clock=self.clock)
        self.storage = Storage(catalogue, self.clock, self.open_tier(), **OPTIONS | options)
        await self.storage.start()

    async def restart(self):
        await self.storage.stop(5)
        await self.start()
        self.check()

    async def create(self, name="w", **parts):
        document = spec(name=name, aggregates=SMALL, **parts)
        await self.storage.create(document)
        self.models[name] = Window(document, clock=self.clock)
        self.time[name] = 0

    async def write(self, operation, name="w"):
        """A write that is acknowledged, or refused and not there."""
        result = await self.storage.write(name, operation)
        Write(operation, self.clock.now_ns()).apply(self.models[name])
        return result

    def rows(self, name="w", n=500):
        first = self.time[name]
        keys = Coded(["a", "b"], np.arange(n) % 2)
        return BulkInsert(Batch(np.arange(first, first + n), {"value": np.arange(first, first + n) * 7}, keys))

    async def insert(self, name="w", n=500):
        await self.write(self.rows(name, n), name)
        self.time[name] += n

    async def fill(self, name="w"):
        """Insert until it is refused; how many bulks it took."""
        self.refused = None
        count = 0
        while self.refused is None:
            try:
                await self.insert(name)
                count += 1
            except OutOfRoom as error:
                self.refused = error
        assert self.refused.field == "data"
        assert self.refused.limit in ("300,000 bytes", "1,048,576 bytes", "maxmemory")
        self.check()
        return count

    async def until_it_fits(self, write=None):
        """Insert, or do that write, as soon as that is possible; a server may take a moment to notice."""
        return await surely(write or self.insert, OutOfRoom)

    async def until_ready(self):
        def ready():
            self.storage.tidy()  # as the service does once a second
            return self.storage.problem is None

        await until(ready)

    def check(self):
        assert {info.spec.name for info in self.storage.all()} == set(self.models)
        for name, model in self.models.items():
            same(self.storage.find(name), model)


@pytest.fixture(params=PLACES)
async def service(request, tmp_path):
    with PLACES[request.param](tmp_path) as open_tier:
        service = Service(open_tier, request.param == "lmdb")
        await service.start()
        yield service
        await service.storage.stop(5)


@pytest.fixture
async def small():
    """On the tier that needs no time."""
    store = MemoryStore(max_bytes=300_000)
    service = Service(lambda: MemoryTier(store))
    await service.start()
    return service


async def test_what_is_evicted_makes_room(service):
    await service.create()
    assert service.storage.problem is None
    first = await service.fill()
    await service.write(BulkEvict(service.time["w"] // 2))
    service.check()
    await service.until_it_fits()
    await service.until_ready()
    await service.fill()
    if service.steady:
        assert "full" in service.storage.problem
    await service.restart()
    await service.write(BulkEvict(service.time["w"]))
    await service.until_it_fits()
    assert await service.fill() > first // 2
    service.check()


async def test_a_window_that_is_deleted_makes_room(service):
    for name in ("v", "w"):
        await service.create(name)
    await service.insert("v")
    await service.fill()
    await service.storage.delete("w")
    del service.models["w"]
    await service.until_it_fits(lambda: service.insert("v"))
    await service.until_ready()
    await service.create("w")
    await service.until_it_fits()
    await service.restart()


async def test_what_time_evicts_makes_room(small):
    small.clock.advance(10**9)
    await small.create(time_unit="s", slide={"max_age": "1000000s", "clock": "wall"})
    await small.fill()
    small.clock.advance((1_000_000 + small.time["w"] // 2) * 10**9)
    small.storage.tidy()
    model = small.models["w"]
    model.tidy()
    assert 0 < model.info().entries < small.time["w"]
    await small.until_it_fits()
    await small.restart()


async def test_a_full_service_starts_full_and_can_be_emptied(small):
    await small.create()
    await small.fill()
    await small.restart()
    refused = 0
    for _ in range(50):  # a restart may have made a little room
        try:
            await small.insert()
        except OutOfRoom:
            refused += 1
    assert refused
    await small.write(BulkEvict(small.time["w"] // 2))
    await small.until_it_fits()
    await small.restart()


async def test_a_window_that_slides_is_never_refused(small):
    """Ten times what there is room for goes through a window of a twentieth of it."""
    await small.create(slide={"max_count": 1000})
    for _ in range(120):
        await small.until_it_fits()
    small.check()
    await small.restart()


async def test_many_small_evictions_make_room_as_one_does(small):
    await small.create()
    await small.fill()
    for through in range(0, small.time["w"] // 2, small.time["w"] // 40):
        await small.write(BulkEvict(through))
    await small.until_it_fits()
    await small.restart()


async def test_a_refused_write_changes_nothing_and_may_be_repeated(small):
    await small.create()
    first = small.rows()
    await small.storage.write("w", first, Origin("p", 1))
    Write(first, 0).apply(small.models["w"])
    await small.fill()
    for _ in range(3):
        with pytest.raises(OutOfRoom):
            await small.storage.write("w", small.rows(), Origin("p", 2))
    again = await small.storage.write("w", first, Origin("p", 1))
    assert again.already_applied, "what was applied needs no room"
    small.check()
    await small.write(BulkEvict(small.time["w"]))
    result = await small.until_it_fits(lambda: small.storage.write("w", small.rows(), Origin("p", 2)))
    assert (result.inserted, result.already_applied) == (500, False)


async def test_all_that_brings_something_is_refused_and_nothing_is_left_of_it(small):
    await small.create()
    await small.insert()
    parts = list(small.storage.export("w"))
    staged = await small.storage.write("w", StageBatch(small.rows().batch, "q", 0))
    await small.fill()
    with contextlib.suppress(OutOfRoom):
        while True:
            await small.insert(n=2)

    storage = small.storage
    for call in (
        lambda: storage.write("w", Insert(10**9, {"value": 1}, "a")),
        lambda: storage.write("w", AddAggregates({"min": {"function": "min"}})),
        lambda: storage.write("w", StageBatch(small.rows().batch, "q", 1)),
        lambda: storage.write("w", Commit("q", 0, [staged.stage])),
        lambda: storage.create(spec(name="v")),
        lambda: storage.restore(parts_of(parts), "x"),
    ):
        with pytest.raises(OutOfRoom, match="full"):
            await call()
    assert await storage.create(storage.find("w").spec) == (storage.find("w"), False), "it is there already"
    small.check()
    await small.write(BulkEvict(small.time["w"] - 100))
    await small.until_it_fits()
    result = await storage.write("w", Commit("q", 0, [staged.stage]))
    assert result.inserted == 500
    restored = await storage.restore(parts_of(parts), "x")
    assert restored.info().entries == 500


async def test_an_image_that_does_not_fit_is_given_up(small):
    """Small keys are in images only: the next one is larger than the reserve, and goes without a trace."""
    await small.create(keyed=True)
    keys = [f"{number:05}" for number in range(300)]

    def rows(turn):
        columns = np.arange(len(keys)), {"value": np.full(len(keys), turn)}, Coded(keys, np.arange(len(keys)))
        return BulkInsert(Batch(*columns))

    turns = 0
    with contextlib.suppress(OutOfRoom):
        for turns in range(100):
            await small.write(rows(turns))
    assert turns
    store = small.storage.store.session.tier._store
    stored = small.storage.store.windows["w"]
    await small.storage.store.session.journal.drained()
    assert stored.backoff.waiting, "one was tried, and given up"
    assert not stored.checkpointing
    versions = {key.split(b"/")[2] for key in store.values if key.startswith(b"image/")}
    assert len(versions) <= 1
    for _ in range(3):
        with pytest.raises(OutOfRoom):
            await small.write(rows(100))
    await small.restart()
    await small.write(BulkEvict(290))
    await small.until_it_fits(lambda: small.write(rows(100)))
    await small.restart()


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
@virtual
async def test_a_write_needs_twice_its_size_in_whole_commits(size, needed):
    assert not await a_capacity(Place(needed)).reserve(size)
    with pytest.raises(OutOfRoom):
        await a_capacity(Place(needed - 1)).reserve(size)


@virtual
async def test_windows_with_most_journal_are_checkpointed_first_and_no_more_than_it_takes():
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


@virtual
async def test_a_write_waits_five_seconds_and_making_room_goes_on():
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


@virtual
async def test_a_tier_that_notices_late_that_it_is_not_full_is_asked_again():
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


@virtual
async def test_a_tier_that_fails_while_room_is_made_is_why_a_write_is_refused():
    place = Place(0)
    capacity = a_capacity(place, Journalled(1, 10**6, 1.0))
    asyncio.get_running_loop().call_later(0.5, lambda: setattr(place, "error", Unavailable("gone")))
    with pytest.raises(Unavailable, match="gone"):
        await capacity.reserve(0)


@virtual
async def test_it_is_full_as_long_as_what_was_refused_last_or_a_mib_does_not_fit():
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


@virtual
async def test_a_look_makes_room_where_it_is_full_and_stopping_ends_that():
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
