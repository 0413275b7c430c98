"""A service that starts on a tier that is away."""

import pytest

from sash.durability import formats as values
from sash.durability.catalogue import Catalogue
from sash.durability.records.commands import BulkInsert, Insert
from sash.durability.storage import Storage
from sash.tiers.memory import MemoryTier
from sash_engine.clock import ManualClock
from sash_engine.errors import DataLoss, FailedPrecondition, SashError, Unavailable
from tests.support.stored import batch, running, spec
from tests.support.tiers import Faulty


class Stumbling(Faulty):
    """A tier whose every call fails so many times before it succeeds."""

    def __init__(self, store, times, error=Unavailable):
        super().__init__(MemoryTier(store))
        self.times = self.left = times
        self.kind = error

    def _stumble(self):
        if self.left:
            self.left -= 1
            raise self.kind("as told")
        self.left = self.times

    def acquire(self):
        self._stumble()
        super().acquire()

    def get_many(self, keys):
        self._stumble()
        return super().get_many(keys)


async def start_on(tier):
    """A storage that starts on a tier, and how long it paused each time."""
    clock, pauses_s = ManualClock(), []

    def sleep(seconds):
        pauses_s.append(seconds)
        clock.advance(round(seconds * 1e9))

    storage = Storage(Catalogue(clock=clock), clock, tier, sleep=sleep)
    try:
        await storage.start()
    except SashError as error:
        return error, pauses_s
    return storage, pauses_s


async def stored():
    server, storage = await running(spec(), checkpoint_bytes=10**9)
    await storage.write("w", BulkInsert(batch([("a", time) for time in range(20)], 0)))
    await server.settled()
    storage.store.checkpoints.begin(storage.store.windows["w"])
    await server.settled()
    await storage.write("w", Insert(20, {"value": 20}, "a"))
    await server.die()
    return server.store


async def test_a_start_tries_a_tier_again_that_fails_for_a_moment():
    tier = Stumbling(await stored(), 6)
    storage, pauses_s = await start_on(tier)
    assert storage.find("w").query("a", [], None)[0].entries == 21
    assert pauses_s[:6] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0], "to become the server"
    assert pauses_s == pauses_s[:6] * (len(pauses_s) // 6)
    assert len(pauses_s) > 5 * 6, "each read is tried for as long as it takes"
    before = len(pauses_s)
    tier.times = tier.left = 0
    tier.fail_reads = 1
    with pytest.raises(Unavailable):
        storage.store.session.read("meta", values.meta_key())
    assert len(pauses_s) == before, "once it runs, it fails at once"


@pytest.mark.parametrize("reads", [0, 1, 3])
async def test_a_start_on_a_tier_that_stays_away_ends_after_30_seconds_and_changes_nothing(reads):
    store = await stored()
    before = dict(store.values)
    tier = Stumbling(store, 10**6)
    stumble = tier._stumble

    def later():
        if reads <= len(tier.reads):
            stumble()

    if reads:
        tier._stumble = later
    error, pauses_s = await start_on(tier)
    assert isinstance(error, Unavailable)
    assert sum(pauses_s) == pytest.approx(30.0)
    assert len(pauses_s) == 19
    assert store.values == before
    assert store.owner is None, "another may start"


@pytest.mark.parametrize("kind", [FailedPrecondition, DataLoss])
async def test_a_start_does_not_wait_for_what_does_not_pass(kind):
    error, pauses_s = await start_on(Stumbling(await stored(), 1, kind))
    assert isinstance(error, kind)
    assert not pauses_s
