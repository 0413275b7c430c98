"""Stores that earlier versions wrote: read, gone on with, and bound to their keys as values are written anew.

`fixtures/format-1.msgpack` has the values of a tier after `history`, by key, as the last version of format 1 wrote it.
"""

from pathlib import Path

import msgpack

from sash.windows.records import BulkEvict, BulkInsert
from sash.windows.window import Window
from tests.support.stored import AGGREGATES, Server, batch, spec

FORMAT_1 = Path(__file__).parents[1] / "fixtures" / "format-1.msgpack"
OPTIONS = {"checkpoint_bytes": 10**6, "store_entries": 4}
SMALL = {"n": {"function": "count"}, "max": {"function": "max"}}


def rows(start, stop, key="a"):
    return BulkInsert(batch([(key, time) for time in range(start, stop)], start))


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
        staged = await storage.stage(name, batch([("b", 30)], 5), "q", 0)
        await storage.stage(name, batch([("b", 31)], 6), "q", 1)
        await storage.commit(name, "q", 0, [staged.stage])
        model.bulk_insert(batch([("b", 30)], 5))
        await storage.write(name, rows(30, 36, "c"))
        model.bulk_insert(rows(30, 36, "c").batch)
        await storage.write(name, BulkEvict(-43))  # cuts a block that was stored
        model.bulk_evict(-43, None)
    await server.settled()
    await server.die()
    return models


if __name__ == "__main__":
    import asyncio

    async def main():
        server = Server(**OPTIONS)
        await history(server)
        FORMAT_1.write_bytes(msgpack.packb(dict(sorted(server.store.values.items()))))
        for key, value in sorted(server.store.values.items()):
            print(key, len(value), value[4])

    asyncio.run(main())
