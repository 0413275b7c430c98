"""The manifest of a window: what its pointer says, and what a crash leaves for the next checkpoint to delete."""

import pytest

from sash.durability import formats as values
from sash.durability.images.manifest import Manifest, StoredImage
from sash.durability.records.commands import BulkInsert, Commit, StageBatch
from sash_engine.errors import OutOfRoom
from tests.support.damage import SMALL
from tests.support.stored import batch, running, spec
from tests.support.waiting import until

POINTER = {
    "image": 3,
    "parts": 5,
    "bytes": 700,
    "bound": (7, 2),
    "next_block": 40,
    "staged": (2, 4),
    "through": 99,
    "blocks": [(1, 4), (20, 40)],
    "sum": b"12345678",
}
FORMAT_1 = {name: POINTER[name] for name in ("image", "parts", "bytes", "next_block", "staged", "through")}


def test_what_a_pointer_says_is_read_as_it_was_written():
    image = StoredImage.of(POINTER)
    assert image.document((7, 2)) == POINTER
    assert list(image.document((7, 2))) == list(POINTER), "in the same order"
    assert StoredImage.of(values.unpack(values.pack(POINTER))) == image


def test_a_pointer_of_format_1_names_all_blocks_and_has_no_checksum():
    image = StoredImage.of(FORMAT_1)
    assert (image.blocks, image.checksum) == ([(1, 40)], None)


def test_values_that_may_be_of_format_1_are_those_before_the_bounds():
    manifest = Manifest(1)
    assert manifest.block_is_bound(1)
    assert manifest.part_is_bound(1)
    manifest.read(POINTER)
    assert [manifest.block_is_bound(number) for number in (1, 6, 7)] == [False, False, True]
    assert [manifest.part_is_bound(number) for number in (1, 2)] == [False, True]
    manifest.read(FORMAT_1)
    assert not manifest.block_is_bound(10**6)
    assert not manifest.part_is_bound(10**6)


@pytest.mark.parametrize("what", [b"image/", b"block/"])
async def test_what_a_crash_leaves_behind_the_image_is_deleted_by_the_next_checkpoint(what):
    """The process ends when the blocks and the image are stored, and before the pointer is."""
    server, storage = await running(spec(aggregates=SMALL), checkpoint_bytes=10**9, store_entries=10**9)
    await storage.write("w", BulkInsert(batch([("a", time) for time in range(100)], 0)))
    await server.settled()
    commit = server.tier.commit

    def dies_before_the_pointer(puts, deletes=()):
        server.tier.unreachable = server.tier.unreachable or values.pointer_key(1) in puts
        commit(puts, deletes)

    server.tier.commit = dies_before_the_pointer
    storage.store.checkpoints.begin(storage.store.windows["w"])
    await until(lambda: server.tier.unreachable)
    await server.die()
    left = {key for key in server.left if key.startswith(what)}
    assert left
    storage = await server.start()
    before = storage.store.windows["w"].manifest.image
    assert before.version == 0
    await storage.store.checkpoints.take(storage.store.windows["w"])
    await server.settled()
    assert not left & server.left
    assert storage.store.windows["w"].manifest.image.version > before.version
    storage = await server.restart()
    assert storage.find("w").query("a", [], None)[0].entries == 100


async def test_garbage_of_an_image_that_was_refused_is_deleted_with_the_next_one():
    server, storage = await running(spec(aggregates=SMALL), checkpoint_bytes=10**9, store_entries=10**9)
    staged = await storage.write("w", StageBatch(batch([("a", 1)], 1), "q", 0))
    await storage.write("w", Commit("q", 0, [staged.stage]))
    await server.settled()
    stored = storage.store.windows["w"]

    def full(size, reserve=0.0):
        raise OutOfRoom("as told")

    server.tier.check_room = full
    storage.store.checkpoints.begin(stored)
    await server.settled()
    assert stored.backoff.waiting
    assert values.staged_key(1, 1) in server.left, "a recovery needs it, as there is no image"
    del server.tier.check_room
    stored.backoff.reset()
    storage.store.checkpoints.begin(stored)
    await server.settled()
    assert values.staged_key(1, 1) not in server.left
