"""What was known when, on each tier, over restarts, crashes and images; and what an export has of it."""

import random

import numpy as np
import pytest

from sash.durability.images.export import export
from sash.durability.records.commands import BulkInsert, Commit, EvictRange, Insert, StageBatch, Update
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import Query
from sash_engine.windows.spec.window import WindowSpec
from tests.support.exports import imported
from tests.support.known_model import Commands, KnownModel, write
from tests.support.stored import StorageServer
from tests.support.tiers import KINDS
from tests.windows.test_known import DOCUMENT, check

SPEC = WindowSpec.parse({**DOCUMENT, "slide": {"max_age": 100}, "history": 100_000})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [1, 2])
async def test_answers_as_known_survive_restarts_and_crashes(kind, seed, tmp_path):
    rng, model, next_id, logged = random.Random(seed), KnownModel(), 0, []
    keys = ["a", "b", "c"]
    with KINDS[kind](tmp_path) as stored:
        server = StorageServer(cache_bytes=0, checkpoint_bytes=3000, store_entries=4)
        server.open = stored.open
        storage = await server.start()
        await storage.create(SPEC)
        for step in range(60):
            commands = Commands(SPEC)
            next_id = write(commands, model, rng, keys, rng.choice([2, 30, 300]), next_id, evicts=False)
            for command in commands.made:
                await storage.write("w", command)
            for key in keys:  # online: nothing says as of when
                (answer,) = await storage.ask("w", Query(key, [50]))
                logged.append(answer)
            if step % 15 == 7:
                rows = [rng.randrange(next_id // 3 + 1) for _ in range(30)]
                columns = {"value": rows, "id": range(next_id, next_id + 30)}
                staged = await storage.write("w", StageBatch(Batch.of(SPEC, rows, columns, ["a"] * 30), "q", step))
                await storage.write("w", Commit("q", step, [staged.stage]))
                for i, row in enumerate(rows):
                    model.insert("a", row, row, next_id + i)
                model.tokens.append(model.applied)
                next_id += 30
            await server.settled()
            storage.trim()
            if step % 10 == 9:
                storage = await (server.restart() if step % 20 == 9 else server.crash())
                window = storage.find("w")
                window.check_invariants()
                check(window, model, rng, keys, next_id // 3)
        reproduced(storage.find("w"), logged)
        await server.storage.stop(5)


def reproduced(window, logged):
    """Ask again for logged answers, one by one and all at once."""
    with_entries = [each for each in logged if each.end is not None]
    assert len(with_entries) > len(logged) // 2
    for answer in with_entries[::7]:
        (again,) = window.query(answer.key, [50], answer.end, known_at=answer.known_at)
        assert again == answer
    times, known = (np.array([getattr(each, name) for each in with_entries]) for name in ("end", "known_at"))
    (columns,) = window.answers_at(times, [each.key for each in with_entries], [50], known_at=known)
    for i, answer in enumerate(with_entries):
        assert columns.entries[i] == answer.entries
        assert {name: column[i] for name, column in columns.aggregates.items()} == answer.aggregates


async def test_an_export_is_of_a_window_without_arrivals():
    server = StorageServer()
    storage = await server.start()
    await storage.create(SPEC)
    await storage.write("w", Insert(7, {"value": 1, "id": 2}, "a"))
    found = imported(b"".join(export(storage.find("w"))))
    assert found.spec.known is None
    assert found.query("a")[0].entries == 1
    await storage.stop(5)


async def test_entries_are_read_without_their_arrivals():
    server = StorageServer()
    storage = await server.start()
    await storage.create(SPEC)
    await storage.write("w", BulkInsert(Batch.of(SPEC, [1, 2], {"value": [3, 4], "id": [5, 6]}, ["a", "a"])))
    await storage.write("w", Update(Batch.of(SPEC, [1], {"value": [9], "id": [5]}, ["a"])))
    await storage.write("w", EvictRange(2, 2, "a"))
    (bulk,) = storage.find("w").entries(key="a")
    assert (list(bulk.columns), bulk.columns["value"].tolist()) == (["value", "id"], [9])
    await storage.stop(5)
