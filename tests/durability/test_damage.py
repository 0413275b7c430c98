"""Damaged and missing values are named, are never an answer, and affect no other window."""

import pytest

from sash.durability import formats as values
from sash.durability.records.commands import AddAggregates
from sash_engine.errors import DataLoss
from tests.support.damage import flipped, stored_of_all_kinds
from tests.support.failing import BUSY, QUIET, entries, insert, rows
from tests.support.stored import running, same, spec

pytestmark = pytest.mark.usefixtures("impatient")


async def test_a_block_that_the_journal_needs_harms_only_its_window():
    server, models = await stored_of_all_kinds()
    [damaged] = [key for key in server.store.values if key == values.block_key(1, 2)]
    server.store.values[damaged] = flipped(server.store.values[damaged], -1)
    server.store.owner = None
    storage = await server.start()
    with pytest.raises(DataLoss, match=r"block 2 of window 'w'.*backup.*delete"):
        storage.find("w")
    with pytest.raises(DataLoss):
        await storage.write("w", insert(99))
    with pytest.raises(DataLoss):
        await storage.create(storage.store.windows["w"].window.spec)
    same(storage.find("v"), models["v"][0])


async def test_beside_a_damaged_window_the_journal_is_cut_and_what_the_window_needs_is_kept():
    server, models = await stored_of_all_kinds()
    damaged = values.image_key(1, 1, 0)
    whole = server.store.values[damaged]
    server.store.values[damaged] = flipped(whole, -1)
    server.options |= BUSY
    server.store.owner = None
    storage = await server.start()
    sizes = []
    for start in range(100, 1100, 10):
        write = rows(start, start + 10, "b")
        await storage.write("v", write)
        models["v"][0].bulk_insert(write.batch)
        await server.settled()
        sizes.append(storage.status().journal_groups)
    assert max(sizes) < 50, "it does not grow with what is written"
    for again in (server.restart, server.crash):
        storage = await again()
        same(storage.find("v"), models["v"][0])
        with pytest.raises(DataLoss, match="image of window 'w'"):
            storage.find("w")
    await storage.stop()
    server.store.values[damaged] = whole
    storage = await server.start()
    for name, (model, _) in models.items():
        same(storage.find(name), model)
    for start in range(2000, 2100, 10):
        await storage.write("w", rows(start, start + 10, "b"))
        await storage.write("v", rows(start, start + 10, "b"))
    await server.settled()
    storage = await server.crash()
    assert storage.status().journal_groups < 20
    assert storage.find("w").query("b", [], None)[0].entries == 101


@pytest.mark.parametrize("kind", [b"image/00000001", b"pointer/00000001"])
async def test_a_damaged_window_can_be_deleted_with_all_it_has(kind):
    server, _ = await stored_of_all_kinds()
    for key in [key for key in server.store.values if key.startswith(kind)]:
        server.store.values[key] = flipped(server.store.values[key], -1)
    server.store.owner = None
    storage = await server.start()
    await storage.delete("w")
    await storage.delete("v")
    await server.settled()
    left = {key for key in server.left if key.startswith(b"block") or not kind.startswith(b"pointer")}
    assert not left, "but for an image of which only a damaged pointer tells how long it is"
    await storage.create(spec())
    await storage.write("w", insert(1))
    storage = await server.crash()
    assert entries(storage) == [1]


async def test_a_record_that_cannot_be_applied_takes_down_its_window_alone(monkeypatch):
    server, storage = await running(**QUIET)
    for name in ("w", "v"):
        await storage.create(spec(name=name))
        await storage.write(name, insert(1))
    await storage.write("w", AddAggregates({"least": {"function": "min"}}))
    await server.die()
    monkeypatch.setattr(AddAggregates, "apply", lambda self, window, now_ns: 1 / 0)
    storage = await server.start()
    with pytest.raises(DataLoss, match=r"record \d+ of the journal.*division by zero"):
        storage.find("w")
    assert entries(storage, "v") == [1]
