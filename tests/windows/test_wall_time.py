"""Windows on wall time that are kept: a question evicts, and may fail; the clock may be set back."""

import numpy as np
import pytest

from sash.durability.records.commands import BulkEvict, BulkInsert, Insert
from sash_engine.clock import ForwardClock, ManualClock
from sash_engine.errors import DataLoss, Unavailable
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.window import ALL_KEYS
from tests.support.failing import failing_read, parts_of
from tests.support.refused import refused
from tests.support.stored import StorageServer, spec
from tests.support.twins import alike
from tests.support.waiting import until
from tests.support.windows import keyed

S = 10**9
COLD = {"cache_bytes": 0, "checkpoint_bytes": 10**9, "store_entries": 1}
SMALL = {"n": {"function": "count"}, "max": {"function": "max"}}
PLAIN, PANES = {}, {"granularity": "1s", "fields": {"value": "int64"}}


def bulk(key=None):
    times = np.arange(200, 1000)
    return BulkInsert(Batch(times, {"value": times}, None if key is None else Coded.of([key] * len(times))))


async def cold(keys=None, **parts):
    """A window of the last 900 s with an entry in each of the seconds 200..999, at 1000 s; all blocks are stored."""
    server = StorageServer(**COLD)
    server.clock.advance(1000 * S)
    storage = await server.start()
    parts |= {"time_unit": "s", "slide": {"max_age": "900s", "clock": "wall"} | parts.pop("slide", {})}
    await storage.create(spec(keyed=keys is not None, aggregates=SMALL, **parts))
    for key in keys or [None]:
        await storage.write("w", bulk(key))
    await server.settled()
    storage.trim()
    return server, storage


@pytest.mark.parametrize("parts", [PLAIN, PANES], ids=["entries", "panes"])
async def test_a_question_that_cannot_evict_is_refused_and_the_next_one_is_right(parts):
    server, storage = await cold(**parts)
    window = storage.find("w")
    server.clock.advance(102 * S)  # in the middle of a block: 202 and older leave
    server.tier.unreachable = True
    for lookbacks in ([], ["900s"]) * 2:
        refused(window.query, None, lookbacks, None, error=Unavailable)
    server.tier.unreachable = False
    for lookbacks in ([], ["900s"]):
        [answer] = window.query(None, lookbacks, None)
        assert (answer.entries, answer.aggregates["max"]) == (797, 999)
    assert window.info().entries == 797
    window.check_invariants(alike)
    await storage.stop()


async def test_a_question_that_meets_a_damaged_block_never_answers_with_what_should_have_left():
    server, storage = await cold()
    server.clock.advance(102 * S)
    for key in [key for key in server.store.values if key.startswith(b"block/")]:
        server.store.values[key] = server.store.values[key][:-1] + b"?"
    for _ in range(3):
        refused(storage.find("w").query, None, [], None, error=DataLoss)
    await server.die()


@pytest.mark.parametrize("parts", [PLAIN, PANES], ids=["entries", "panes"])
@pytest.mark.parametrize("fails", [1, 2, 3])
async def test_where_the_block_of_one_key_cannot_be_read_nothing_leaves_any(fails, parts):
    server, storage = await cold("abc", **parts)
    window = storage.find("w")
    server.clock.advance(102 * S)
    whole = failing_read(server.tier, fails)
    refused(window.range_query, 0, 2000, None, ALL_KEYS, error=Unavailable)
    assert window.info().entries == 3 * 800
    whole()
    assert [answer.entries for answer in window.query(None, [], None, ALL_KEYS)] == [797] * 3
    assert window.range_query(0, 2000, None, ALL_KEYS).entries == window.info().entries == 3 * 797
    window.check_invariants(alike)
    await storage.restore(parts_of(list(storage.export("w"))), "copy")
    storage = await server.restart()
    for name in ("w", "copy"):
        assert storage.find(name).info().entries == 3 * 797
    await storage.stop()


async def test_whether_anybody_asked_changes_nothing_that_a_recovery_would_not_know():
    """This predicate holds for ten more each time it is asked, once time has taken some entries."""
    server, storage = await cold(slide={"when": "total.n < 800 && old.n <= 10"})
    window = storage.find("w")
    server.clock.advance(102 * S)
    for _ in range(3):
        assert window.query(None, [], None)[0].entries == 797
    await storage.write("w", Insert(1000, {"value": 1}))
    assert window.info().entries == 788
    storage = await server.crash()
    assert storage.find("w").info().entries == 788
    storage.tidy()
    assert storage.find("w").info().entries == 778
    storage = await server.restart()
    assert storage.find("w").info().entries == 778
    storage.find("w").check_invariants(alike)
    await storage.stop()


async def test_a_clock_that_is_set_back_changes_nothing_that_was_answered():
    server, storage = await cold()
    parts = {"time_unit": "s", "slide": {"max_age": "100s", "clock": "wall"}, "aggregates": SMALL}
    await storage.create(spec(name="v", **parts))
    await storage.write("v", Insert(950, {"value": 1}, "a"))
    server.clock.advance(40 * S)
    storage.tidy()  # nothing leaves, and so nothing is written of it; but 940 s is late from now on
    server.clock.advance(-20 * S)
    result = await storage.write("v", Insert(930, {"value": 1}, "a"))
    assert (result.inserted, result.late) == (0, 1)
    storage = await server.crash()
    counts = storage.find("v").info().counts
    assert (counts.inserted, counts.late) == (1, 1)
    await storage.stop()


def test_a_clock_that_only_goes_forward():
    manual = ManualClock(50)
    clock = ForwardClock(manual)
    seen = []
    for step in (0, 10, -30, 10, 30):
        manual.advance(step)
        seen.append(clock.now_ns())
    assert seen == [50, 60, 60, 60, 70]
    assert clock.monotonic_s() == manual.monotonic_s()


@pytest.mark.parametrize("parts", [PLAIN, PANES], ids=["entries", "panes"])
async def test_after_a_recovery_time_goes_on(parts):
    """It stood still while the last record of the journal was applied again."""
    server, storage = await cold(**parts)
    storage = await server.crash()
    server.clock.advance(102 * S)
    window = storage.find("w")
    assert [answer.entries for answer in window.query(None, ["900s"], None)] == [797]
    await storage.stop()


async def test_after_a_window_was_recovered_again_time_goes_on():
    server, storage = await cold()
    server.tier.fail_reads = 1
    with pytest.raises(Unavailable):
        await storage.write("w", BulkEvict(217))  # cuts a block that is not in memory
    await until(lambda: storage.store.windows["w"].failure is None)
    server.clock.advance(150 * S)
    assert storage.find("w").query(None, [], None)[0].entries == 749
    storage.tidy()
    assert storage.find("w").info().entries == 749
    await storage.stop()


def test_what_is_too_old_counts_until_something_slides():
    """`describe` does not look at all keys; the service tidies every second, and answers never have it."""
    clock = ManualClock(100 * 10**9)
    w = keyed(clock=clock, time_unit="s", slide={"max_age": 10, "clock": "wall"})
    for key in "ab":
        w.insert(100, {"value": 1}, key)
    clock.advance(10 * 10**9)
    assert w.info().entries == 2
    assert (w.query("a")[0].entries, w.info().entries) == (0, 1)
    w.tidy()
    assert (w.info().entries, w.info().counts.evicted) == (0, 2)
