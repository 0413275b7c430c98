"""Retractions and corrections of a stored window: journalled, applied once, and there after a restart on each tier."""

import numpy as np
import pytest

from sash.durability.records.commands import BulkInsert, EvictRange, Punctuate, Retract, Update, takes_long
from sash_engine.errors import SequenceReused
from sash_engine.windows.batches.batch import Batch, Origin, untimed
from tests.support.stored import running, spec

FIELDS = {"id": "int64", "value": "int64"}
ALL = {"all": {"function": "collect", "field": "value"}, "max": {"function": "max", "field": "value"}}
ENTRIES = Batch(np.arange(40), {"id": np.arange(40), "value": np.arange(40)})


def named(places, **columns):
    places = np.array(places)
    return Batch(places, {"id": places, **columns})


COLD = {"cache_bytes": 0, "checkpoint_bytes": 300, "store_entries": 1}
"""Options of a server that keeps no block in memory, and takes an image after each few writes."""


async def started(aggregates=ALL, **options):
    server, storage = await running(spec(keyed=False, fields=FIELDS, aggregates=aggregates, identity="id"), **options)
    await storage.write("w", BulkInsert(ENTRIES))
    return server, storage


def held(storage):
    return storage.find("w").query()[0].aggregates


async def test_changes_survive_restarts_on_each_tier(place):
    server, storage = await started(place=place, **COLD)
    await server.spilled()
    await storage.write("w", EvictRange(10, 19))
    await storage.write("w", Retract(named([3, 25, 39, 12])))
    await storage.write("w", Update(named([0, 30], value=np.array([100, 7]))))
    left = [100 if i == 0 else 7 if i == 30 else i for i in range(40) if not 10 <= i < 20 and i not in (3, 25, 39)]
    for _ in range(2):
        assert held(storage) == {"all": left, "max": 100}
        counts = storage.find("w").counts
        assert (counts.evicted, counts.retracted, counts.corrected, counts.present) == (10, 3, 2, 27)
        storage = await server.restart()


def unknown(ids, **columns):
    return Batch(untimed(len(ids)), {"id": np.array(ids), **columns})


async def test_entries_are_found_without_times_in_cold_blocks_and_stay_changed_on_each_tier(place):
    server, storage = await started(place=place, **COLD)
    await storage.write("w", BulkInsert(Batch(np.arange(40, 44), {"id": np.arange(4), "value": np.arange(40, 44)})))
    await server.spilled()
    cached = storage.cache_bytes
    done = await storage.write("w", Retract(unknown([1, 1, 30, 77])))
    assert (done.retracted, done.missing) == (3, 1)
    done = await storage.write("w", Update(unknown([2, 25], value=np.array([200, 250]))))
    assert (done.corrected, done.missing) == (2, 0)
    storage.trim()
    assert storage.cache_bytes <= cached
    left = [250 if i == 25 else 200 if i == 42 else i for i in range(44) if i not in (1, 41, 30)]
    for _ in range(2):
        assert held(storage) == {"all": left, "max": 250}
        storage.find("w").check_invariants()
        storage = await server.restart()


async def test_recovery_applies_the_times_that_were_found_and_looks_nothing_up(monkeypatch):
    server, storage = await started(checkpoint_bytes=10**9)
    await storage.write(
        "w", BulkInsert(Batch(np.array([7, 60]), {"id": np.array([3, 5]), "value": np.array([70, 600])}))
    )
    operation = Retract(unknown([3, 99]))
    assert (await storage.write("w", operation, Origin("p", 1))).retracted == 1
    assert operation.batch.times.tolist() == [7]
    assert (await storage.write("w", Update(unknown([5], value=np.array([5_000]))))).corrected == 1
    again = await storage.write("w", Retract(unknown([3, 99])), Origin("p", 1))
    assert again.already_applied

    def looked_up(*_):
        raise AssertionError("recovery has the times")

    monkeypatch.setattr("sash_engine.windows.writing.changes.untimed", looked_up)
    storage = await server.crash()
    assert held(storage) == {"all": [*range(40), 5_000], "max": 5_000}
    assert (await storage.write("w", Retract(unknown([3, 99])), Origin("p", 1))).already_applied


@pytest.mark.parametrize("step", ["retract", "update"])
async def test_a_long_change_loads_its_blocks_in_slices(step, monkeypatch):
    """All names were looked up in one go: with 2^18 of them, every window waited for 0.8 s."""
    monkeypatch.setattr("sash_engine.windows.writing.changes._NAMES", 4)
    server, storage = await started(cache_bytes=0, store_entries=1)
    await server.spilled()
    loaded, read = [], server.tier.get_many
    monkeypatch.setattr(server.tier, "get_many", lambda keys: loaded.append(len(keys)) or read(keys))
    places, window = np.arange(1, 39), storage.find("w")
    steps = (
        window.retract_steps(named(places)) if step == "retract" else window.update_steps(named(places, value=places))
    )
    most = before = 0
    for _ in steps:
        most, before = max(most, sum(loaded) - before), sum(loaded)
    assert before >= 9
    assert most <= 5, "4 names, in blocks of 4 entries, and blocks behind them"
    assert window.info().entries == (2 if step == "retract" else 40)


async def test_blocks_that_wait_to_be_folded_are_stored_as_they_are(place):
    """Nobody asks between the changes and the image: it has the folds of the rows that are left."""
    numbers = {"sum": {"function": "sum", "field": "value"}, "max": {"function": "max", "field": "value"}}
    server, storage = await started(numbers, place=place, **COLD)
    await server.spilled()
    await storage.write("w", Retract(named([5, 14, 22])))
    await storage.write("w", Update(named([6, 17], value=np.array([100, 7]))))
    await server.settled()
    left = [100 if i == 6 else 7 if i == 17 else i for i in range(40) if i not in (5, 14, 22)]
    for _ in range(2):
        storage = await server.restart()
        assert held(storage) == {"sum": sum(left), "max": 100}
        storage.find("w").check_invariants()


@pytest.mark.parametrize("make", [Retract, lambda batch: Update(named(batch.times, value=batch.times))])
async def test_a_numbered_change_is_applied_once_and_its_number_takes_nothing_else(make):
    _, storage = await started()
    first = await storage.write("w", make(named([1, 2])), Origin("p", 1))
    again = await storage.write("w", make(named([1, 2])), Origin("p", 1))
    assert (first.already_applied, again.already_applied) == (False, True)
    with pytest.raises(SequenceReused):
        await storage.write("w", make(named([1, 3])), Origin("p", 1))
    other = Update(named([1, 2], value=np.array([1, 2]))) if make is Retract else Retract(named([1, 2]))
    with pytest.raises(SequenceReused):
        await storage.write("w", other, Origin("p", 1))


async def test_a_long_change_is_applied_in_slices():
    server, storage = await started(block=128)
    n = 34_000
    await storage.write("w", BulkInsert(Batch(np.arange(n), {"id": np.arange(n) + 1000, "value": np.arange(n)})))
    odd = np.arange(1, n, 2)
    retraction = Retract(Batch(odd, {"id": odd + 1000}))
    for each in (retraction, Update(named([1], value=np.array([1]))), BulkInsert(ENTRIES)):
        assert [takes_long(each, storage.find("w"), is_large) for is_large in (False, True)] == [False, True]
    result = await storage.write("w", retraction)
    assert (result.retracted, result.missing) == (len(odd), 0)
    storage = await server.crash()
    assert storage.find("w").info().entries == 40 + n // 2


@pytest.mark.parametrize("checkpoint_bytes", [1, 10**9])
async def test_what_is_final_stays_final_after_a_restart_on_each_tier(place, checkpoint_bytes):
    slide = {"max_age": 10, "every": 5, "until": "punctuation"}
    document = spec(keyed=False, fields=FIELDS, aggregates=ALL, slide=slide)
    server, storage = await running(document, place=place, checkpoint_bytes=checkpoint_bytes)
    await storage.write("w", BulkInsert(ENTRIES))
    assert (await storage.write("w", Punctuate(27))).evicted == 20
    for _ in range(2):
        window = storage.find("w")
        assert window.info().punctuated == 27
        assert (await storage.write("w", Punctuate(3))).evicted == 0
        assert (await storage.write("w", BulkInsert(named([27], value=np.array([1]))))).late == 1
        (answer,) = window.query(None, [4])
        assert (answer.start, answer.end, answer.aggregates["all"]) == (24, 27, [24, 25, 26, 27])
        storage = await server.restart()
