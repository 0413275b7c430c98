"""Digests of numbered writes over several shards: each shard has that of the whole write, and so has an export."""

from __future__ import annotations

from typing import Any

import pytest

from sash.calls import each
from sash.durability.records.commands import BulkEvict, BulkInsert, Insert, Retract, Update
from sash.plane import Plane
from sash_engine.clock import ManualClock
from sash_engine.errors import SequenceReused
from sash_engine.windows.batches.batch import Origin
from tests.shards.test_sharded_plane import KEYS, bulk, spec
from tests.support.sharded import hosts, in_process, single

ROWS = [(key, time, 1) for time, key in enumerate(KEYS)]


async def write(plane: Plane, kind: str, sequence: int, value: int, origin: Origin | None = None) -> bool:
    """A write of a kind, whose data depends on a value in one place; whether it was applied before."""
    origin = origin or Origin("p", sequence)
    rows = [*ROWS[:-1], (*ROWS[-1][:2], value)]
    match kind:
        case "bulk":
            result = await plane.write("w", BulkInsert(bulk(rows)), origin)
        case "insert":
            result = await plane.write("w", Insert(5, {"v": value}, KEYS[0]), origin)
        case "evict":
            result = await plane.write("w", BulkEvict(-value, KEYS[0]), origin)
        case "update":
            result = await plane.write("w", Update(bulk(rows)), origin)
        case _:
            result = await plane.write("w", Retract(bulk(rows)), origin)
    return result.already_applied


def made(count: int) -> Any:
    return single(ManualClock()) if count == 1 else in_process(count)


KINDS = ["bulk", "insert", "evict", "update", "retract"]


@pytest.mark.parametrize("kind", KINDS)
async def test_all_shards_refuse_other_data(kind: str) -> None:
    async with hosts(4) as of:
        plane = of[0].plane
        await plane.create(spec(identity="v"))
        assert not await write(plane, kind, 1, 1)
        before = {shard: await of[0].shards.plane(shard).window("w") for shard in range(4)}
        assert await write(of[1].plane, kind, 1, 1)
        with pytest.raises(SequenceReused) as raised:
            await write(of[1].plane, kind, 1, 2)
        assert "the write is applied on" not in raised.value.message
        assert {shard: await of[0].shards.plane(shard).window("w") for shard in range(4)} == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("source", "target"), [(4, 3), (4, 1), (1, 4), (3, 4)])
async def test_an_export_has_them(source: int, target: int, kind: str) -> None:
    one, other = made(source), made(target)
    await one.create(spec(identity="v"))
    for sequence in (1, 2, 3):
        await write(one, kind, sequence, sequence)
    await other.restore(each(await one.export("w")))
    for sequence in (1, 3, 2):
        assert await write(other, kind, sequence, sequence)
        with pytest.raises(SequenceReused):
            await write(other, kind, sequence, 7)
    assert not await write(other, kind, 4, 4)


async def test_a_write_of_an_earlier_version_is_known_by_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    plane = in_process(4)
    await plane.create(spec())
    with monkeypatch.context() as earlier:
        earlier.setattr("sash.shards.commands.signed", lambda origin, operation: origin)
        assert not await write(plane, "bulk", 1, 1)
    assert await write(plane, "bulk", 1, 1)
    with pytest.raises(SequenceReused):
        await write(plane, "bulk", 1, 2)
    assert not await write(plane, "bulk", 2, 1)
    # Shards agree about the second write only, so the copy does not know the data of the first one.
    copy = in_process(3)
    await copy.restore(each(await plane.export("w")))
    assert await write(copy, "bulk", 1, 2)
    with pytest.raises(SequenceReused):
        await write(copy, "bulk", 2, 2)
