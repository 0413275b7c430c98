"""Groups of the journal that are missing, or about to be: noticed, never taken for the journal's end."""

import asyncio
import threading

import pytest

from sash.durability import formats as values
from sash.durability.records.commands import BulkEvict, BulkInsert, Insert
from sash_engine.errors import DataLoss, Unavailable
from tests.support.stored import batch, running, spec
from tests.support.waiting import until

SMALL = {"n": {"function": "count"}}
WHOLE = {"checkpoint_bytes": 10**9, "store_entries": 10**9}
"""Everything stays in the journal."""


async def journal_of(groups):
    """A server that died with so many groups of one entry each; the keys of the groups."""
    server, storage = await running(spec(keyed=False, aggregates=SMALL), **WHOLE)
    for time in range(groups):
        await storage.write("w", Insert(time, {"value": time}))
    await server.die()
    keys = [values.group_key(number) for number in range(1, groups + 1)]
    assert server.store.values.keys() >= set(keys)
    return server, keys


@pytest.mark.parametrize(
    ("start", "stop"),
    [(0, 1), (0, 4), (5, 6), (5, 9), (1, 19), (19, 20), (16, 20), (0, 20)],
    ids=lambda number: str(number),
)
async def test_groups_that_are_missing_are_a_loss_wherever_they_were(start, stop):
    server, keys = await journal_of(20)
    for key in keys[start:stop]:
        del server.store.values[key]
    before = dict(server.store.values)
    for _ in range(2):
        storage = await server.start()
        with pytest.raises(DataLoss, match=rf"'w' is not served: .*'{keys[start].decode()}' is missing.*backup"):
            storage.find("w")
        await storage.stop()
        assert server.store.values == before


async def test_a_journal_that_is_cut_while_a_failed_window_is_recovered_loses_nothing(impatient):
    """The first groups are deleted after the recovery looked where the journal begins, and before it reads them."""
    server, storage = await running(
        *[spec(name=name, aggregates=SMALL) for name in ("v", "w")],
        cache_bytes=0,
        checkpoint_bytes=10**9,
        store_entries=4,
    )
    for time in range(8):
        await storage.write("v", Insert(time, {"value": time}, "a"))
    await storage.write("w", BulkInsert(batch([("a", time) for time in range(100)], 0)))
    await server.settled()
    storage.trim()

    tier = server.tier
    commit, get_many = tier.commit, tier.get_many
    looked, cut = threading.Event(), threading.Event()

    def held_commit(puts, deletes=()):
        cuts = any(key.startswith(b"journal/") for key in deletes)
        assert not cuts or looked.wait(120), "nobody recovers"
        commit(puts, deletes)
        if cuts:
            cut.set()

    def watched_get_many(keys):
        journal = any(key.startswith(b"journal") for key in keys)
        found = None if journal and keys[0] != values.journal_key() else get_many(keys)
        if journal:
            looked.set()
            assert cut.wait(120), "nobody cuts the journal"
        return get_many(keys) if found is None else found

    tier.commit, tier.get_many = held_commit, watched_get_many
    tier.open_gate.clear()
    tier.fail_reads = 1
    with pytest.raises(Unavailable):
        await storage.write("w", BulkEvict(17))
    assert await asyncio.to_thread(tier.arrived.wait, 10), "the recovery waits for what was pending"
    storage.store.windows["v"].start_after(storage.store.session.journal.last)  # as if it had an image
    storage.store.checkpoints.trim()
    tier.open_gate.set()
    assert await asyncio.to_thread(cut.wait, 10)
    await until(lambda: storage.store.windows["w"].failure is None)
    assert storage.find("w").query("a", [], None)[0].entries == 100
