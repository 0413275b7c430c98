"""Stores that earlier versions wrote: read, gone on with, and bound to their keys as values are written anew.

`fixtures/format-1.msgpack` has the values of a tier after `history`, by key, as the last version of format 1 wrote it.
"""

import asyncio
from pathlib import Path

import msgpack
import pytest

from sash.durability import formats as values
from sash.durability.journal.roots import Meta, Start
from sash.durability.records.commands import BulkEvict, Commit, StageBatch
from sash_engine.errors import DataLoss, Unavailable
from sash_engine.windows.window import Window
from tests.support.damage import SMALL, flipped
from tests.support.failing import rows
from tests.support.salvaged import Salvaged, listed
from tests.support.stored import AGGREGATES, StorageServer, batch, same, spec
from tests.support.waiting import until

FORMAT_1 = Path(__file__).parents[1] / "fixtures" / "format-1.msgpack"
OPTIONS = {"checkpoint_bytes": 10**6, "store_entries": 4}


async def history(server):
    """Two windows with values of all kinds, and what they must answer."""
    storage = await server.start()
    models = {}
    for name, aggregates in (("w", SMALL), ("v", AGGREGATES)):
        document = spec(name=name, aggregates=aggregates)
        await storage.create(document)
        model = models[name] = Window(document, clock=server.clock)
        await storage.write(name, rows(-50, 18))
        model.bulk_insert(rows(-50, 18).batch)
    storage = await server.restart()
    for name, model in models.items():
        staged = await storage.write(name, StageBatch(batch([("b", 30)], 5), "q", 0))
        await storage.write(name, StageBatch(batch([("b", 31)], 6), "q", 1))
        await storage.write(name, Commit("q", 0, [staged.stage]))
        model.bulk_insert(batch([("b", 30)], 5))
        await storage.write(name, rows(30, 36, "c"))
        model.bulk_insert(rows(30, 36, "c").batch)
        await storage.write(name, BulkEvict(-43))  # cuts a block that was stored
        model.bulk_evict(-43, None)
    await server.settled()
    await server.die()
    return models


def store_of_format_1():
    """A server on what the fixture has."""
    server = StorageServer(**OPTIONS)
    server.store.values = msgpack.unpackb(FORMAT_1.read_bytes())
    assert all(value[4] == 1 for value in server.store.values.values())
    return server


async def expected():
    return await history(StorageServer(**OPTIONS))


def is_bound(server, key):
    return values.is_bound(server.store.values[key])


async def test_what_format_1_wrote_is_read_and_gone_on_with():
    models, server = await expected(), store_of_format_1()
    storage = await server.start()
    for name, model in models.items():
        same(storage.find(name), model)
        await storage.write(name, rows(36, 120))
        model.bulk_insert(rows(36, 120).batch)
        await storage.write(name, Commit("q", 1, list(storage.find(name).ledger.parts)))
        model.bulk_insert(batch([("b", 31)], 6))
        same(storage.find(name), model)
    for again in (server.crash, server.restart, server.restart):
        storage = await again()
        for name, model in models.items():
            same(storage.find(name), model)
    await storage.stop()
    old = {key.split(b"/")[0] for key in server.store.values if not is_bound(server, key)}
    assert old == {b"block"}, "blocks are written once"


async def test_a_store_of_format_1_gets_an_id_at_its_first_start():
    server = store_of_format_1()
    other = dict(server.store.values)
    await server.start()
    await server.settled()
    await server.crash()
    [store] = {values.store_of(value) for value in server.store.values.values()} - {None}
    roots = {key for key, value in server.store.values.items() if values.store_of(value)}
    assert roots == {values.meta_key(), values.journal_key(), values.last_group_key()}
    await server.storage.write("w", rows(40, 140))
    await server.storage.create(spec(name="new", aggregates=SMALL))
    await server.storage.write("new", rows(0, 100))
    await server.restart()
    assert {values.store_of(value) for value in server.store.values.values()} == {None, store}
    await server.die()
    whole = server.store.values
    start = Start.of(values.unseal("pointer", whole[values.journal_key()], values.journal_key()))
    meta = Meta.of(values.unseal("meta", whole[values.meta_key()], values.meta_key()))
    before = max(values.name_of(key).number for key in other if key.startswith(b"journal/0"))
    assert (start.owned, meta.owned) == (before + 1, 3)
    for key in roots:
        server.store.values, server.store.owner = whole | {key: other[key]}, None
        with pytest.raises(DataLoss, match="it is older than what was written there"):
            await server.start()


async def test_what_format_1_wrote_without_an_end_is_read_up_to_its_last_group():
    models, server = await expected(), store_of_format_1()
    last = values.last_group_key()
    del server.store.values[last]
    storage = await server.start()
    for name, model in models.items():
        same(storage.find(name), model)
    await storage.write("w", rows(36, 37))
    await server.die()
    assert is_bound(server, last)
    groups = sorted(key for key in server.store.values if key.startswith(b"journal/0"))
    whole = dict(server.store.values)
    del server.store.values[last]
    with pytest.raises(DataLoss, match="'journal/last'"):
        await server.start()
    server.store.values = whole
    del server.store.values[groups[-1]]
    storage = await server.start()
    for name in models:
        with pytest.raises(DataLoss, match=rf"'{groups[-1].decode()}' is missing"):
            storage.find(name)


@pytest.mark.parametrize("which", [3, -1])
async def test_a_group_of_format_1_that_is_missing_stops_the_windows_without_a_later_image(which):
    """Nobody said which records it had; of the last one, what is written later must not be taken for one of them."""
    server = store_of_format_1()
    groups = sorted(key for key in server.store.values if key.startswith(b"journal/0"))
    gone = groups[which]
    group = server.store.values.pop(gone)
    if gone != groups[-1]:
        del server.store.values[values.last_group_key()]
    storage = await server.start()
    for name in ("w", "v"):
        with pytest.raises(DataLoss, match=rf"'{gone.decode()}' is missing"):
            storage.find(name)
    # A window that comes later needs none of it, now and after a restart.
    await storage.create(spec(name="new", aggregates=SMALL))
    await storage.write("new", rows(0, 5))
    for again in (server.crash, server.restart):
        storage = await again()
        assert storage.find("new").query("a", [], None)[0].entries == 5
        assert [info.spec.name for info in storage.all() if info.problem] == ["v", "w"]
    await storage.stop()
    server.store.values[gone] = group
    storage = await server.start()
    for name, model in (await expected()).items():
        same(storage.find(name), model)


async def test_an_old_value_is_refused_where_only_new_ones_are():
    """A disk that loses a write shows what its place held before, maybe from before the upgrade."""
    server = store_of_format_1()
    before = dict(server.store.values)
    storage = await server.start()
    await storage.write("w", rows(40, 140))
    storage = await server.restart()
    await storage.create(spec(name="new", aggregates=SMALL))
    await storage.write("new", rows(0, 100))
    storage = await server.restart()
    for name in ("w", "new"):
        await storage.write(name, rows(140, 141))
        staged = await storage.write(name, StageBatch(batch([("b", 30)], 5), "q", 2))
        await storage.write(name, Commit("q", 2, [staged.stage]))
    await server.die()
    whole = dict(server.store.values)
    old = {key[:9]: value for key, value in before.items() if b"/0" in key}
    told = set()
    for key in whole:
        if key[:9] in old and is_bound(server, key):
            server.store.values = whole | {key: old[key[:9]]}
            storage = await server.start()
            for name in ("w", "new"):
                try:
                    window = storage.find(name)
                    for start in range(-50, 141):
                        window.range_query(start, start, "a")
                except DataLoss as error:
                    told.add((key[:7], name, "it is older than what was written there" in error.message))
            await server.die()
    both = {(kind, name, True) for kind in (b"block/0", b"image/0", b"journal", b"staged/") for name in ("w", "new")}
    older = {(b"pointer", "w", False)}  # it may be as it was, but the image that it names is gone
    assert told == both | older | {(b"pointer", "new", True)}


async def test_what_format_1_wrote_is_salvaged():
    """Blocks and large partials of it, too, one after the other."""
    models, server = await expected(), store_of_format_1()
    for stored in (server.store.values, {k: v for k, v in server.store.values.items() if k != values.last_group_key()}):
        async with Salvaged(stored) as salvaged:
            assert salvaged.found.whole
            for name, model in models.items():
                same(salvaged.storage.find(name), model)
    for key in sorted(key for key in server.store.values if key.startswith(b"block/"))[::5]:
        async with Salvaged(server.store.values | {key: flipped(server.store.values[key], -1)}) as salvaged:
            [damage] = salvaged.found.damages
            for window in salvaged.found.windows:
                assert window.problem is None
                [answer] = salvaged.storage.find(window.name).query("a", [], None)
                whole = models[window.name].query("a", [], None)[0].entries
                assert answer.entries >= whole - window.left_out
                assert window.left_out == (damage.entries or 0) * (damage.window == window.name)


async def test_an_older_block_in_the_place_of_a_new_one_is_found(tmp_path):
    server = store_of_format_1()
    older = server.store.values[values.block_key(1, 1)]
    storage = await server.start()
    await storage.write("w", rows(40, 140))
    await server.restart()
    await server.die()
    key = max(key for key in server.store.values if key.startswith(b"block/00000001/") and is_bound(server, key))
    async with Salvaged(server.store.values | {key: older}) as salvaged:
        [damage] = salvaged.found.damages
        assert "is in the wrong place: it is older" in damage.problem
        assert (damage.key, damage.window, damage.entries) == (key, "w", 4)
        assert 0 < len(listed(salvaged.storage, "w")) < len(listed(salvaged.storage, "v")) + 100


async def test_a_failed_window_of_format_1_is_recovered_from_what_it_has(impatient):
    models, server = await expected(), store_of_format_1()
    server.options["cache_bytes"] = 0
    storage = await server.start()
    server.tier.fail_reads = 1
    with pytest.raises(Unavailable):
        await storage.write("w", BulkEvict(-32))
    await until(lambda: storage.store.windows["w"].failure is None)
    same(storage.find("w"), models["w"])


if __name__ == "__main__":  # on a checkout of the last version that writes format 1

    async def main():
        server = StorageServer(**OPTIONS)
        await history(server)
        FORMAT_1.write_bytes(msgpack.packb(dict(sorted(server.store.values.items()))))

    asyncio.run(main())
