"""Some shards refuse, are away, or lack what others have."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sash.context import CALL, CallContext
from sash.durability.records.commands import BulkEvict, BulkInsert, Insert, Update
from sash.limits.memory import unlimited
from sash.prometheus.app import PREFIX, PrometheusApp
from sash.prometheus.remote_write import RemoteWrite
from sash.runtime.metrics import Metrics
from sash.shards.hosted import HostedShards
from sash_engine.clock import ManualClock
from sash_engine.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
    Unsupported,
)
from sash_engine.windows.batches.batch import Origin
from sash_engine.windows.questions import ALL_KEYS, Query, SeriesQuery
from sash_wire.placement import shard_of
from tests.prometheus.test_remote_write import HEADERS, body_of
from tests.shards.test_sharded_plane import KEYS, bulk, spec
from tests.support.sharded import ShardedPlane, file_of, in_process, pieces, without

SHARDS = 4
ROWS = [(key, time, 1) for time, key in enumerate(KEYS)]


@pytest.fixture
async def plane() -> ShardedPlane:
    made = in_process(SHARDS)
    await made.create(spec())
    return made


@pytest.fixture
def for_shard_1() -> Iterator[None]:
    token = CALL.set(CallContext(shard=1))
    yield
    CALL.reset(token)


async def test_a_write_that_failed_on_one_shard_is_sent_again_and_counts_once(plane: ShardedPlane) -> None:
    told = "applied on 3 of its 4 shards, and not, or perhaps, on 2"
    with without(plane, 2), pytest.raises(Unavailable, match=told):
        await plane.write("w", BulkInsert(bulk(ROWS)), Origin("p", 1))
    result = await plane.write("w", BulkInsert(bulk(ROWS)), Origin("p", 1))
    assert not result.already_applied
    assert (await plane.write("w", BulkInsert(bulk(ROWS)), Origin("p", 1))).already_applied
    assert (await plane.window("w")).counts.inserted == len(ROWS)


async def test_other_keys_are_served_while_a_shard_is_away(plane: ShardedPlane) -> None:
    await plane.write("w", BulkInsert(bulk(ROWS)))
    plane.shards.hosted.pop(2)
    for key in KEYS:
        if shard_of("w", key, SHARDS) == 2:
            with pytest.raises(Unavailable, match="shard 2") as raised:
                await plane.ask("w", Query(key))
            assert raised.value.retry_after_s
        else:
            assert (await plane.ask("w", Query(key)))[0].entries == 1
    with pytest.raises(Unavailable, match="shard 2"):
        await plane.ask("w", Query(keys=ALL_KEYS))


async def test_a_bulk_that_some_shards_might_reject_is_refused_whole() -> None:
    plane = in_process(SHARDS)
    await plane.create(spec(order={"late": "reject"}))
    with pytest.raises(Unsupported, match="late"):
        await plane.write("w", BulkInsert(bulk(ROWS)))
    assert (await plane.window("w")).counts.inserted == 0
    await plane.write("w", BulkInsert(bulk([("k1", 1, 1), ("k1", 2, 1)])))
    assert (await plane.window("w")).counts.inserted == 2


async def test_a_wrong_bulk_changes_no_shard(plane: ShardedPlane) -> None:
    wrong = bulk([*ROWS, ("", 1, 1)])
    with pytest.raises(InvalidArgument):
        await plane.write("w", BulkInsert(wrong))
    assert (await plane.window("w")).counts.inserted == 0


async def test_a_gap_in_numbers_is_noticed_on_every_shard(plane: ShardedPlane) -> None:
    await plane.write("w", BulkInsert(bulk(ROWS[:1])), Origin("p", 1))
    with pytest.raises(FailedPrecondition):
        await plane.write("w", BulkInsert(bulk(ROWS[1:2])), Origin("p", 3))
    assert (await plane.window("w")).counts.inserted == 1


async def test_a_call_for_one_shard_has_keys_of_that_shard_only(plane: ShardedPlane, for_shard_1: None) -> None:
    mine = [row for row in ROWS if shard_of("w", row[0], SHARDS) == 1]
    assert (await plane.write("w", BulkInsert(bulk(mine)), Origin("p", 1))).inserted == len(mine)
    assert (await plane.write("w", Insert(1, {"v": 1}, mine[0][0]), Origin("p", 2))).inserted == 1
    for call in (
        plane.write("w", BulkInsert(bulk(ROWS))),
        plane.ask("w", Query(keys=KEYS)),
        *(plane.write("w", Insert(1, {"v": 1}, key)) for key in KEYS if shard_of("w", key, SHARDS) != 1),
    ):
        with pytest.raises(InvalidArgument, match="shard 1"):
            await call
    plane.shards.hosted.pop(1)
    plane.shards._elsewhere = lambda shard: pytest.fail("forwarded")
    with pytest.raises(Unavailable, match="not here"):
        await plane.write("w", BulkInsert(bulk(mine)))


async def test_a_window_exists_on_all_shards_or_on_none() -> None:
    plane = in_process(SHARDS)
    with without(plane, 3), pytest.raises(Unavailable):
        await plane.create(spec())
    for shard in range(SHARDS):
        assert await plane.shards.plane(shard).windows() == []
    assert (await plane.create(spec()))[1]
    assert not (await plane.create(spec()))[1]
    with pytest.raises(AlreadyExists):
        await plane.create(spec(granularity=5))


async def left_over(plane: ShardedPlane, shard: int) -> None:
    """Delete the window on all shards but one, as earlier versions did when that one could not be reached."""
    for other, hosted in plane.shards.hosted.items():
        if other != shard:
            await hosted.local.delete("w")


async def test_what_is_left_over_on_a_shard_goes_and_what_it_lacks_comes(plane: ShardedPlane) -> None:
    away = plane.shards.hosted[2]
    await left_over(plane, 2)
    with pytest.raises(NotFound):
        await plane.window("w")
    await plane.deployment.lifecycle.reconcile_one(2)
    assert await away.local.windows() == []

    await plane.create(spec(name="v"))
    await away.local.delete("v")
    await plane.shards.hosted[0].local.add_aggregates("v", {"min": {"function": "min"}})
    for shard in range(1, SHARDS):
        await plane.deployment.lifecycle.reconcile_one(shard)
    for shard in range(SHARDS):
        (info,) = await plane.shards.plane(shard).windows()
        assert "min" in info.spec.aggregates


async def test_a_left_over_window_has_no_entries_when_it_is_created_again(plane: ShardedPlane) -> None:
    await plane.write("w", BulkInsert(bulk(ROWS)))
    await left_over(plane, 2)
    await plane.create(spec())
    assert (await plane.window("w")).entries == 0


async def test_a_window_is_not_created_where_its_old_entries_may_be(
    plane: ShardedPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    await plane.write("w", BulkInsert(bulk(ROWS)))
    await left_over(plane, 2)

    async def cannot(*_: str) -> int:
        raise Unavailable("it starts again")

    for operation in ("close", "delete"):
        with monkeypatch.context() as patched:
            patched.setattr(plane.shards.hosted[2].local, operation, cannot)
            with pytest.raises(Unavailable, match="it starts again"):
                await plane.create(spec())
    assert (await plane.create(spec()))[1]
    assert (await plane.window("w")).entries == 0


async def test_questions_are_answered_while_an_aggregate_is_added() -> None:
    plane = in_process(SHARDS)
    await plane.create(spec(aggregates={"n": {"function": "count"}, "sum": {"function": "sum"}}))
    await plane.write("w", BulkInsert(bulk(ROWS)))
    await plane.shards.hosted[0].local.add_aggregates("w", {"min": {"function": "min"}})
    (answer,) = await plane.ask("w", Query(keys=ALL_KEYS, combine=True))
    assert (answer.aggregates["n"], "min" in answer.aggregates) == (len(ROWS), False)
    series = await plane.ask("w", SeriesQuery(0, 100, 100, 100, keys=ALL_KEYS))
    assert (series.entries.tolist(), "min" in series.aggregates) == ([len(ROWS)], False)
    await plane.add_aggregates("w", {"min": {"function": "min"}})
    (answer,) = await plane.ask("w", Query(keys=ALL_KEYS, combine=True))
    assert answer.aggregates["min"] == 1


async def test_a_damaged_file_makes_no_window(plane: ShardedPlane) -> None:
    await plane.write("w", BulkInsert(bulk(ROWS)))
    data = await file_of(plane)
    for cut in range(0, len(data), 37):
        with pytest.raises(InvalidArgument):
            await plane.restore(pieces(data[:cut]), "copy")
        assert [info.spec.name for info in await plane.windows()] == ["w"]
    for shard in range(SHARDS):
        assert len(await plane.shards.plane(shard).windows()) == 1


async def test_a_file_that_home_refuses_leaves_nothing(plane: ShardedPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    await plane.write("w", BulkInsert(bulk(ROWS)))
    data = await file_of(plane)

    async def refuse(parts, name):
        async for _ in parts:
            pass
        raise ResourceExhausted("full")

    with pytest.raises(AlreadyExists):
        await plane.restore(pieces(data))
    with monkeypatch.context() as patch:
        patch.setattr(plane.shards.hosted[0].local, "restore", refuse)
        with pytest.raises(ResourceExhausted):
            await plane.restore(pieces(data), "copy")
    for shard in range(SHARDS):
        assert len(await plane.shards.plane(shard).windows()) == 1
    assert (await plane.restore(pieces(data), "copy")).entries == len(ROWS)


KEY_OF = {shard_of("w", key, SHARDS): key for key in KEYS}


def wrong(command: Any) -> Any:
    return pytest.param(command, id=f"{command!r}"[:60])


@pytest.mark.parametrize(
    "command",
    [
        wrong(Insert(1, {"v": "x"}, KEY_OF[1])),
        wrong(Insert(1, {"v": 1}, None)),
        wrong(Insert(2**63 - 1, {"v": 1}, KEY_OF[1])),
        wrong(Insert(1, {"v": 1}, KEY_OF[1], True, ["5s"])),
        wrong(Insert(1, {"v": 1}, KEY_OF[1])),  # it is late
        wrong(BulkInsert(bulk([(KEY_OF[1], 1, 1)]))),  # it is late
        wrong(Update(bulk([(KEY_OF[1], 1, 1)]))),
        wrong(BulkEvict(2**63 - 1, KEY_OF[1])),
    ],
)
async def test_a_refused_write_of_a_producer_uses_no_number(command: Any) -> None:
    plane = in_process(SHARDS)
    await plane.create(spec(order={"late": "reject"}, slide={"max_age": 10}))
    await plane.write("w", Insert(100, {"v": 1}, KEY_OF[1]), Origin("p", 1))
    with pytest.raises((InvalidArgument, FailedPrecondition, Unsupported)) as raised:
        await plane.write("w", command, Origin("p", 2))
    assert "shards" not in raised.value.message
    result = await plane.write("w", Insert(100, {"v": 2}, KEY_OF[2]), Origin("p", 2))
    assert (result.inserted, result.already_applied) == (1, False)


async def test_writes_of_a_producer_do_not_wait_for_answers_where_entries_are_rejected() -> None:
    plane = in_process(SHARDS)
    await plane.create(spec(order={"late": "reject"}))
    origins = [Origin("p", number) for number in range(1, 20)]
    results = await asyncio.gather(
        *(plane.write("w", Insert(1, {"v": 1}, KEYS[origin.sequence % 8]), origin) for origin in origins)
    )
    assert [result.inserted for result in results] == [1] * len(origins)


@pytest.mark.parametrize(
    "why",
    [
        Unavailable("shard 2 is moving; nothing was changed on it", field="shard", unchanged=True),
        NotFound("there is no window 'w': somebody has deleted it meanwhile", field="window"),
    ],
    ids=["away", "deleted"],
)
async def test_a_change_that_cannot_be_described_afterwards_is_not_called_none(
    plane: ShardedPlane, why: Exception
) -> None:
    """Else the client says that the call has changed nothing."""
    window = plane.deployment.window

    async def away(name: str) -> Any:
        raise why

    data = await file_of(plane)
    aggregates = {"min": {"function": "min", "field": "v"}}
    for name, change in [
        ("new", lambda: plane.create(spec(name="new"))),
        ("w", lambda: plane.add_aggregates("w", aggregates)),
        ("copy", lambda: plane.restore(pieces(data), "copy")),
    ]:
        plane.deployment.window = away
        with pytest.raises(Unavailable, match="cannot be described now") as raised:
            await change()
        assert not raised.value.unchanged
        plane.deployment.window = window
        assert (await plane.window(name)).spec.name == name
    assert "min" in (await plane.window("w")).spec.aggregates


async def test_a_process_without_shards_learns_the_windows_from_others(plane: ShardedPlane) -> None:
    """PromQL goes by what the process knows: it answered that there is nothing."""
    other = ShardedPlane(HostedShards(SHARDS, plane.shards.local), ManualClock())
    assert not list(other.list())
    with pytest.raises(NotFound):
        other.spec("w")
    await other.learn()
    assert [info.spec.name for info in other.list()] == ["w"]
    assert other.spec("w") == plane.spec("w")
    await plane.delete("w")
    await other.learn()
    assert not list(other.list())


@pytest.mark.parametrize(("path", "known"), [("metadata", b'"w:'), ("write", b"'w'")])
async def test_prometheus_asks_others_for_windows(plane: ShardedPlane, path: str, known: bytes) -> None:
    await plane.delete("w")
    await plane.create(spec(time_unit="ms"))
    other = ShardedPlane(HostedShards(SHARDS, plane.shards.local), ManualClock())
    metrics, memory = Metrics(CollectorRegistry()), unlimited()
    remote_write = RemoteWrite(other, memory, 1 << 20, 1000)
    app = PrometheusApp(other, metrics, ManualClock(), remote_write, memory)
    body, method = body_of(({"__name__": "w:v", "key": "a"}, [(1, 1.0)])), "POST" if path == "write" else "GET"
    headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
    scope = {"method": method, "path": f"{PREFIX}api/v1/{path}", "query_string": b"", "headers": headers}
    said = list[Any]()

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        said.append(message)

    await app(scope, receive, send)
    found = b"".join(message.get("body", b"") for message in said)
    assert known in found
    assert b"no window" not in found


async def test_aggregates_that_a_shard_lacks_may_be_there(plane: ShardedPlane) -> None:
    aggregates = {"min": {"function": "min", "field": "v"}}
    with without(plane, 2), pytest.raises(Unavailable, match="shard 2") as raised:
        await plane.add_aggregates("w", aggregates)
    assert not raised.value.unchanged, "home has them"
    assert "min" in (await plane.add_aggregates("w", aggregates)).spec.aggregates


async def test_a_write_that_every_shard_would_refuse_uses_no_number_on_any(plane: ShardedPlane) -> None:
    with pytest.raises(InvalidArgument):
        await plane.write("w", Insert(1, {"v": "x"}, KEY_OF[1]), Origin("p", 1))
    assert not (await plane.write("w", Insert(1, {"v": 1}, KEY_OF[2]), Origin("p", 1))).already_applied


async def test_a_command_for_all_keys_and_one_without_rows(plane: ShardedPlane) -> None:
    assert (await plane.write("w", BulkInsert(bulk([])))).inserted == 0
    await plane.write("w", BulkInsert(bulk(ROWS)))
    token = CALL.set(CallContext(shard=1))
    there = await plane.write("w", BulkEvict(10**6))
    CALL.reset(token)
    of_all = await plane.write("w", BulkEvict(10**6))
    assert 0 < there.evicted < len(ROWS)
    assert there.evicted + of_all.evicted == len(ROWS)
