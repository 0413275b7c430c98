"""What was known when, on each tier, over restarts, crashes and images; and what an export has of it."""

import random

import numpy as np
import pytest

from sash.durability.formats import unseal
from sash.durability.images import export as exports
from sash.durability.images.export import export
from sash.durability.records.commands import BulkInsert, Commit, EvictRange, StageBatch, Update
from sash_engine.errors import InvalidArgument
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import Query
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.exports import GONE, changed, first_of, imported, imported_or_refused, put
from tests.support.known_model import KnownModel, applying, write
from tests.support.salvaged import Salvaged
from tests.support.stored import running
from tests.support.tiers import kinds
from tests.windows.test_known import DOCUMENT, check

SPEC = WindowSpec.parse({**DOCUMENT, "slide": {"max_age": 100}, "history": 100_000})


@pytest.mark.parametrize("place", kinds("lmdb"), indirect=True)
async def test_answers_as_known_survive_restarts_and_crashes(place):
    rng, model, next_id, logged = random.Random(1), KnownModel(), 0, []
    keys = ["a", "b", "c"]
    server, storage = await running(SPEC, place=place, cache_bytes=0, checkpoint_bytes=3000, store_entries=4)
    for step in range(60):
        commands = []
        next_id = write(commands.append, model, rng, keys, rng.choice([2, 30, 300]), next_id, evicts=False)
        for command in commands:
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
        await server.spilled()
        if step % 10 == 9:
            storage = await (server.restart() if step % 20 == 9 else server.crash())
            window = storage.find("w")
            window.check_invariants()
            check(window, model, rng, keys, next_id // 3)
    reproduced(storage.find("w"), logged)


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


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("keyed", [True, False])
def test_an_export_has_what_was_known(seed, keyed, monkeypatch):
    """A window that is imported answers as the model does, also about what is written to it later."""
    monkeypatch.setattr(exports, "_ROWS", 50)
    rng, model, next_id = random.Random(seed), KnownModel(120), 0
    keys = ["a", "b", "c"] if keyed else [None]
    window = Window(WindowSpec.parse({**DOCUMENT, "keyed": keyed, "slide": {"max_age": 120}}), block=8)
    for _ in range(4):
        for _ in range(25):
            next_id = write(applying(window), model, rng, keys, rng.choice([2, 30, 300]), next_id)
        window = imported(b"".join(export(window)))
        window.check_invariants()
        check(window, model, rng, keys, next_id // 3)


def test_what_was_removed_has_keys_of_fields_that_may_be_null():
    document = {**DOCUMENT, "fields": {"value": "int64", "id": "string"}, "nullable": ["value"]}
    window = Window(WindowSpec.parse(document))
    window.bulk_insert(Batch.of(window.spec, [1, 1], {"value": [None, 4], "id": ["x", "y"]}, ["a", "b"]))
    window.update(Batch.of(window.spec, [1], {"value": [5], "id": ["x"]}, ["a"]))
    window.retract(Batch.of(window.spec, [1], {"id": ["y"]}, ["b"]))
    found = imported(b"".join(export(window)))
    for key in ("a", "b"):
        for number in range(5):
            assert found.query(key, [9], 1, known_at=number) == window.query(key, [9], 1, known_at=number)


def known_frames():
    """The export of a window: "a" has one that was corrected, "b" one that was retracted."""
    window = Window(WindowSpec.parse(DOCUMENT))
    window.bulk_insert(Batch.of(window.spec, [1, 2], {"value": [3, 4], "id": [5, 6]}, ["a", "b"]))
    window.update(Batch.of(window.spec, [1], {"value": [9], "id": [5]}, ["a"]))
    window.retract(Batch.of(window.spec, [2], {"id": [6]}, ["b"]))
    return list(export(window))


def numbers(*those):
    return ["<i8", np.array(those, np.int64).tobytes()]


@pytest.mark.parametrize(
    ("kind", "change", "field"),
    [
        ("header", put(2, "arrivals", GONE), "header.arrivals"),
        ("header", put(2, "arrivals", -1), "header.arrivals"),
        ("header", put(2, "arrivals", 2**63 - 1), "header.arrivals"),
        ("header", put(2, "arrivals", 2), "arrival!"),  # the correction has the number 3
        ("header", put(2, "arrivals", 3), "removed!"),  # the retraction has the number 4
        ("header", put(2, "spec", "known", GONE), "entries.columns.arrival!"),
        ("entries", put(2, 1, "arrival!", GONE), "arrival!"),
        ("entries", put(2, 1, "arrival!", numbers(0)), "arrival!"),
        ("removed", put(2, 1, "arrival!", GONE), "arrival!"),
        ("removed", put(2, 1, "placed!", numbers(0, 2)), "placed!"),
        ("removed", put(2, 1, "placed!", numbers(1, 3)), "placed!"),
        ("removed", put(2, 1, "removed!", numbers(1, 4)), "arrival!"),
        ("removed", put(2, 1, "removed!", numbers(3, 5)), "removed!"),
        ("removed", put(2, 0, numbers(1, 2**63 - 1)), "time"),
        ("removed", put(2, 0, numbers(-(2**63), 2)), "time"),
        ("removed", put(2, 2, [["a", "nobody"], b"\0\1"]), "key"),
        ("end", put(2, "rows", 1), "end"),
    ],
)
def test_numbers_that_cannot_be_are_refused(kind, change, field):
    frames = known_frames()
    imported_or_refused(frames, first_of(frames, kind), change, field)


def test_a_window_without_known_has_nothing_that_was_removed():
    frames, plain = known_frames(), Window(WindowSpec.parse({**DOCUMENT, "known": None}))
    removed = unseal("export", frames[3][4:], "frame")
    assert removed[1] == "removed"
    plain.keys.create(["a", "b"])
    others = list(export(plain))
    with pytest.raises(InvalidArgument, match="does not keep what was removed"):
        imported(changed(others, 2, lambda payload: payload.__setitem__(slice(None), [2, *removed[1:]])))


def test_a_key_may_be_there_twice_in_a_bulk_of_what_was_removed():
    frames = known_frames()
    found = imported(changed(frames, 3, put(2, 2, [["a", "b", "b"], b"\0\2"])))
    assert [found.query("b", (), 5, known_at=number)[0].entries for number in (1, 2, 3, 4)] == [0, 1, 1, 0]
    found.check_invariants()


def test_two_keys_of_what_were_two_shards_have_the_same_numbers():
    """The number by which a version of "b" was removed is that of the arrival of another entry of "a"."""
    window = Window(WindowSpec.parse(DOCUMENT))
    window.bulk_insert(Batch.of(window.spec, [1, 1, 1], {"value": [3, 4, 7], "id": [5, 6, 8]}, ["a", "a", "b"]))
    window.retract(Batch.of(window.spec, [1], {"id": [5]}, ["a"]))
    window.update(Batch.of(window.spec, [1], {"value": [9], "id": [8]}, ["b"]))
    frames, kinds = list(export(window)), ["header", "keys", "entries", "removed", "states", "end"]
    assert [unseal("export", frame[4:], "frame")[1] for frame in frames] == kinds
    frames[2] = changed(frames, 2, put(2, 1, "arrival!", numbers(2, 2)))[len(b"".join(frames[:2])) :]
    frames[2] = frames[2][: -len(b"".join(frames[3:]))]

    def removed(payload):
        columns = payload[2][1]
        columns["arrival!"], columns["placed!"] = numbers(3, 1), numbers(3, 1)
        columns["removed!"] = numbers(6, 2)

    frames[0] = changed(frames, 0, put(2, "arrivals", 6))[: -len(b"".join(frames[1:]))]
    found = imported(changed(frames, 3, removed))
    (columns,) = found.answers_at(np.array([1, 1]), ["a", "b"], [9], known_at=np.array([5, 1]))
    assert columns.entries.tolist() == [2, 1]
    assert columns.aggregates["first"].tolist() == [4, 7]
    assert columns.aggregates["last"].tolist() == [3, 7]
    found.check_invariants()


async def test_salvage_keeps_what_was_known():
    rng, model, next_id = random.Random(5), KnownModel(), 0
    server, storage = await running(SPEC)
    for _ in range(40):
        commands = []
        next_id = write(commands.append, model, rng, ["a", "b"], 30, next_id)
        for command in commands:
            await storage.write("w", command)
    await storage.stop(5)
    async with Salvaged(dict(server.store.values)) as salvaged:
        check(salvaged.storage.find("w"), model, rng, ["a", "b"], next_id // 3)


async def test_each_block_that_is_missing_is_named_also_of_what_was_removed():
    server, storage = await running(SPEC, store_entries=4)
    rows = range(100)
    for command, value in ((BulkInsert, 1), (Update, 2)):
        await storage.write("w", command(Batch.of(SPEC, rows, {"value": [value] * 100, "id": rows}, ["a"] * 100)))
    await storage.stop()
    stored = server.store.values
    blocks = [key for key in stored if key.startswith(b"block/")]
    assert len(blocks) > 100 // 4, "those of what was removed are among them"
    for key in blocks[::7]:
        async with Salvaged({other: value for other, value in stored.items() if other != key}) as salvaged:
            assert [(damage.key, damage.window) for damage in salvaged.found.damages] == [(key, "w")]


async def test_entries_are_read_without_their_arrivals():
    _, storage = await running(SPEC)
    await storage.write("w", BulkInsert(Batch.of(SPEC, [1, 2], {"value": [3, 4], "id": [5, 6]}, ["a", "a"])))
    await storage.write("w", Update(Batch.of(SPEC, [1], {"value": [9], "id": [5]}, ["a"])))
    await storage.write("w", EvictRange(2, 2, "a"))
    (bulk,) = storage.find("w").entries(key="a")
    assert (list(bulk.columns), bulk.columns["value"].tolist()) == (["value", "id"], [9])
