"""Imports that end half-way, that the tier refuses, or that race for one name, leave nothing."""

import asyncio
import contextlib

import pytest

from sash_engine.errors import Unavailable
from sash_engine.windows.batches.batch import Origin
from tests.support.failing import entries, exported, insert, parts_of, rows
from tests.support.stored import running, spec
from tests.support.waiting import surely, until

pytestmark = pytest.mark.usefixtures("impatient")


async def halting(parts, gate, halted):
    """Parts of an import, the last of which comes when the gate opens; `halted` are those that wait there."""
    for part in parts[:-1]:
        yield part
    halted.append(parts)
    await gate.wait()
    yield parts[-1]


async def test_of_two_imports_of_one_name_one_takes_place_and_leaves_nothing_of_the_other():
    parts = await exported()
    server, storage = await running()
    gate, halted = asyncio.Event(), []
    imports = [asyncio.create_task(storage.restore(halting(parts, gate, halted), None)) for _ in range(2)]
    await until(lambda: len(halted) == 2)
    gate.set()
    found = await asyncio.gather(*imports, return_exceptions=True)
    assert sorted(type(result).__name__ for result in found) == ["AlreadyExists", "Window"]
    assert (await storage.write("w", rows(0, 200), Origin("p", 1))).already_applied
    storage = await server.crash()
    assert entries(storage) == list(range(200))
    await storage.delete("w")
    await server.settled()
    assert not server.left


@pytest.mark.parametrize("end", ["crash", "cancel", "stop"])
async def test_an_import_that_ends_half_way_leaves_nothing(end):
    parts = await exported()
    server, storage = await running()
    task = asyncio.create_task(storage.restore(halting(parts, asyncio.Event(), []), None))
    await until(lambda: any(key.startswith(b"block/") for key in server.left))
    if end == "stop":
        storage = await server.restart()
    elif end == "crash":
        storage = await server.crash()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await server.settled()
    assert not server.left
    await storage.create(spec())
    await storage.write("w", insert(1))
    storage = await server.crash()
    assert entries(storage) == [1]


async def test_an_import_that_the_tier_does_not_take_is_refused_and_can_be_repeated():
    parts = await exported()
    server, storage = await running()
    await server.settled()
    server.tier.fail_before = 1
    with pytest.raises(Unavailable):
        await storage.restore(parts_of(parts), None)
    await surely(lambda: storage.restore(parts_of(parts), None))
    storage = await server.crash()
    assert entries(storage) == list(range(200))
