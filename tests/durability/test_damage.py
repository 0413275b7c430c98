"""Damaged and missing values are named, are never an answer, and affect no other window."""

import pytest

from sash.durability import formats as values
from sash.durability.records.commands import AddAggregates
from sash_engine.errors import DataLoss
from tests.support.damage import flipped, look, stored_of_all_kinds
from tests.support.failing import BUSY, QUIET, entries, insert, rows
from tests.support.profile import THOROUGH
from tests.support.stored import StorageServer, same, spec

pytestmark = pytest.mark.usefixtures("impatient")


async def test_a_flipped_bit_anywhere_is_named_and_never_an_answer():
    server, models = await stored_of_all_kinds()
    stored = dict(server.store.values)
    assert await look(server, models) == {}
    kinds = set()
    for number, (key, value) in enumerate(sorted(stored.items())):
        kinds.add(key.split(b"/")[0])
        places = (0, 4, 5, 16, 24, len(value) // 2, -1)  # magic, format, kind, checksum, and what there is
        some = {places[number % 7]} | (set() if key.startswith(b"block") else {places[number % 3 - 3]})
        for at in places if THOROUGH else some:
            server.store.values = stored | {key: flipped(value, at)}
            await self_explaining(server, models, key)
    assert kinds == {b"meta", b"journal", b"pointer", b"image", b"block", b"staged"}


async def test_a_missing_value_is_named_and_never_an_answer():
    """As of a Redis that evicts what it likes."""
    server, models = await stored_of_all_kinds()
    stored = dict(server.store.values)
    blocks = sorted(key for key in stored if key.startswith(b"block"))
    for key in stored.keys() - set([] if THOROUGH else blocks[::2]):
        server.store.values = {other: value for other, value in stored.items() if other != key}
        await self_explaining(server, models, key)


async def self_explaining(server, models, key):
    """What is damaged harms at most its own window, or all of them by name where all need it."""
    before = dict(server.store.values)
    kind, *numbers = key.decode().split("/")
    if key in (values.meta_key(), values.journal_key(), values.last_group_key()):
        with pytest.raises(DataLoss, match=f"'{key.decode()}'.*sash admin check --salvage"):
            await look(server, models)
        assert server.store.values == before, "nothing was changed"
        return
    errors = await look(server, models)
    if kind == "journal":
        assert errors
        assert all(f"'{key.decode()}'" in error.message for error in errors.values())
        return
    name = ["w", "v"][int(numbers[0], 16) - 1]
    assert set(errors) <= {name}
    if kind in ("image", "pointer"):
        assert name in errors[name].message
        assert kind in errors[name].message
    elif errors:
        assert kind in errors[name].message.replace("staged/", "staged")
        assert name in errors[name].message or key.decode() in errors[name].message


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
    await storage.stop()


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
    await storage.stop()


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
    await storage.stop()


async def test_a_record_that_cannot_be_applied_takes_down_its_window_alone(monkeypatch):
    server = StorageServer(**QUIET)
    storage = await server.start()
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
    await storage.stop()
