"""Stores with values of all kinds, in which values are damaged, lost or mixed up, and what is answered then.

server, models = await stored_of_all_kinds()        errors = await look(server, models)
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sash.durability.records.commands import BulkEvict, BulkInsert, Commit, Insert, StageBatch
from sash_engine.errors import DataLoss
from sash_engine.windows.batches.batch import Origin
from sash_engine.windows.window import Window
from tests.support.stored import AGGREGATES, StorageServer, batch, spec

SMALL = {"n": {"function": "count"}, "max": {"function": "max"}}
"""Aggregates whose partials are no values of their own: blocks are numbered from 1, oldest first."""

Models = dict[str, tuple[Window, Window]]
"""What windows must answer: as they are, and after `look` has written to them."""


def flipped(value: bytes, at: int) -> bytes:
    """A value in which one bit is another."""
    at %= len(value)
    return value[:at] + bytes([value[at] ^ 0x40]) + value[at + 1 :]


async def stored_of_all_kinds(
    server: StorageServer | None = None, aggregates: tuple[dict[str, Any], ...] = (SMALL, AGGREGATES)
) -> tuple[StorageServer, Models]:
    """Windows "w", "v", …, with values of all kinds in the tier of a server that died; the models of them."""
    server = server or StorageServer(checkpoint_bytes=10**6, store_entries=4)
    storage = await server.start()
    models: Models = {}
    for name, each in zip("wv", aggregates, strict=False):
        document = spec(name=name, aggregates=each)
        await storage.create(document)
        models[name] = Window(document, clock=server.clock), Window(document, clock=server.clock)
        await _write(server, name, models, [("a", time) for time in range(-60, 20)], ord(name))
    storage = await server.restart()
    for name in models:
        staged = await storage.write(name, StageBatch(batch([("b", 30)], 5), "q", 0))
        await storage.write(name, StageBatch(batch([("b", 31)], 6), "q", 1))
        await storage.write(name, Commit("q", 0, [staged.stage]))
        for model in models[name]:
            model.bulk_insert(batch([("b", 30)], 5))
        await _write(server, name, models, [("c", time) for time in range(30, 42)], 30)
        await storage.write(name, BulkEvict(-54))  # cuts a block that was stored
        for model in models[name]:
            model.bulk_evict(-54, None)
    await server.settled()
    await server.die()
    for _, later in models.values():
        later.insert(50, {"value": 50}, "a")
        later.bulk_insert(batch([("b", 31)], 6))
    return server, models


async def _write(server: StorageServer, name: str, models: Models, pairs: list[tuple[str, int]], first: int) -> None:
    await server.storage.write(name, BulkInsert(batch(pairs, first)))
    for model in models[name]:
        model.bulk_insert(batch(pairs, first))


async def look(server: StorageServer, models: Models) -> dict[str, DataLoss]:
    """Start, and compare what is answered; then write, start again, and compare again.

    Returns:
        the errors there were instead of answers, by window.
    """
    server.store.owner = None
    storage = await server.start()
    errors = {}
    for name, (model, _) in models.items():
        try:
            _same(storage.find(name), model)
            await storage.write(name, Insert(50, {"value": 50}, "a"), Origin("p", 1))
            await storage.write(name, Commit("q", 1, list(storage.find(name).ledger.parts)))
        except DataLoss as error:
            errors[name] = error
    storage = await server.crash()
    for name, (_, model) in models.items():
        try:
            if name not in errors:
                _same(storage.find(name), model)
        except DataLoss as error:
            errors[name] = error
    await server.die()
    return errors


def _same(window: Window, model: Window) -> None:
    assert _answers(window) == _answers_of_model(model, model.counts.inserted)
    assert window.counts == model.counts


@lru_cache(8)
def _answers_of_model(model: Window, inserted: int) -> Any:
    """Asked once: a store is looked at some hundred times. It has so many entries that were inserted."""
    return _answers(model)


def _answers(window: Window) -> Any:
    return [
        (window.query(key, [], None), [window.range_query(start, start + 4, key) for start in range(-60, 51, 5)])
        for key in ("a", "b", "c")
    ]
