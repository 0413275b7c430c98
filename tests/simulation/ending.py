"""What the windows answer at the end, in every form of a question, beside plain folds over the model's entries.

    model's entries ──▶ fold by group, bucket, view, expression ──┐
    windows ──▶ by, where, series, view, PromQL ──────────────────┴── equal, or the run is wrong

The checker has pinned what each key holds: it was read as a whole before. Where it follows a key no more, nothing is
compared.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from prometheus_client import CollectorRegistry

from sash.limits.memory import MemoryBudget
from sash.prometheus.app import PREFIX, PrometheusApp
from sash.runtime.metrics import Metrics
from sash_client.aio import AsyncWindow
from sash_client.errors import NotFound, SashClientError, Unavailable
from sash_client.windows.questions import ALL_KEYS
from sash_engine.windows.questions import RangeQuery
from sash_wire.labels import split
from tests.simulation.callers import KEPT, PARTS, ROLLED, TIMES, VIEW, asked
from tests.simulation.history import Entry
from tests.simulation.world import Caller, World

_FOLDED = ["max", "n", "sum"]
_STEPS = 5
Folded = Mapping[str, Any]


def folded(entries: Iterable[Entry]) -> Folded:
    """The plain fold, as answers have it."""
    values = [value for _, _, value in entries]
    return {"max": max(values, default=None), "n": len(values), "sum": sum(values)}


def _by(part: int, entries: Iterable[Entry]) -> dict[str, Folded]:
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(split(entry[0], len(PARTS))[part], []).append(entry)
    return {name: folded(group) for name, group in groups.items()}


async def all_forms(world: World, what: str) -> None:
    """Ask for the window that is kept in every form; fail the world where an answer is not the fold."""
    if world.unchecked or world.failure is not None:
        return
    await _rolled(world, what)
    entries = world.histories[KEPT].held()
    if entries is None:
        return
    client = Caller(world, "reader", 60.0)
    window, view = client.window(KEPT), client.window(VIEW)
    draw = random.Random(
        f"{world.scenario.seed} forms {what}"
    )  # some of them, as all take longer than the rest of a run
    groups = _by(0, entries)
    for each, named in draw.sample(((window, KEPT), (view, VIEW)), 1):
        for part, name in enumerate(PARTS):
            found = await asked(each.query, by=name, aggregates=_FOLDED)
            _same(world, f"{what}: {named} by {name}", {one.parts[name]: _of(one) for one in found}, _by(part, entries))
    for team in sorted({split(key, len(PARTS))[0] for key in world.keys}):
        found = await asked(window.range_query, -1, TIMES * 10**6, where={PARTS[0]: team}, aggregates=_FOLDED)
        _same(world, f"{what}: {KEPT} where {PARTS[0]} is {team}", _of(found), groups.get(team, folded([])))
    if draw.random() < 0.4:
        await _series(world, what, window, entries)
    if draw.random() < 0.4:
        await _promql(world, what, entries)
    for name in sorted(world.added):
        await _added(world, what, window, entries, name)


async def _rolled(world: World, what: str) -> None:
    """What rollups answer, and what the keys answer that they are of."""
    entries = world.histories[ROLLED].held() if ROLLED in world.histories else None
    if entries is None:
        return
    window = Caller(world, "roller", 60.0).window(ROLLED)
    for part, name in enumerate(PARTS):  # the first one has a rollup
        found = await asked(window.query, by=name, aggregates=_FOLDED)
        _same(world, f"{what}: {ROLLED} by {name}", {one.parts[name]: _of(one) for one in found}, _by(part, entries))
    (whole,) = await asked(window.query, keys=ALL_KEYS, combine=True, aggregates=_FOLDED)  # of a rollup, too
    _same(world, f"{what}: {ROLLED} over all keys", _of(whole), folded(entries))
    start, end = TIMES * 10**6 // 4, TIMES * 10**6 * 3 // 4
    inside = [entry for entry in entries if start <= entry[1] <= end]
    found = await asked(window.range_query, start, end, keys=ALL_KEYS, aggregates=_FOLDED)
    _same(world, f"{what}: {ROLLED} over all keys from {start} to {end}", _of(found), folded(inside))
    for team in sorted({split(key, len(PARTS))[0] for key in world.keys}):
        found = await asked(window.range_query, start, end, where={PARTS[0]: team}, aggregates=_FOLDED)
        own = _by(0, inside).get(team, folded([]))
        _same(world, f"{what}: {ROLLED} where {PARTS[0]} is {team}", _of(found), own)


def _of(answer: Any) -> Folded:
    found = {name: answer.aggregates[name] for name in _FOLDED}
    return found | {"sum": found["sum"] or 0}


async def _series(world: World, what: str, window: AsyncWindow, entries: Sequence[Entry]) -> None:
    step = TIMES * 10**6 // _STEPS
    for key in world.keys:
        own = [entry for entry in entries if entry[0] == key]
        found = await asked(window.series, 0, TIMES * 10**6, step=step, key=key, aggregates=_FOLDED)
        buckets = [folded(e for e in own if at * step <= e[1] < (at + 1) * step) for at in range(_STEPS)]
        for name in ("n", "max"):
            seen = found.aggregates[name].tolist()
            _same(world, f"{what}: the series of {name} of {key}", seen, [bucket[name] for bucket in buckets])


async def _promql(world: World, what: str, entries: Sequence[Entry]) -> None:
    """As Prometheus asks each process, which asks the others; one may have no shard."""
    at_ms, width_s = TIMES * 10**6, TIMES * 10**6 // 2000
    inside = [entry for entry in entries if at_ms - width_s * 1000 < entry[1] <= at_ms]
    for expression, part in [
        (f"sum by ({PARTS[0]}) (sum_over_time({KEPT}:value[{width_s}s]))", 0),
        (f'sum by ({PARTS[1]}) ({KEPT}:sum{{__lookback__="{width_s}s"}})', 1),
    ]:
        query = urlencode({"query": expression, "time": at_ms // 1000}).encode()
        for served in world.all_serving():
            found = await asked(
                lambda served=served, query=query: world.done_by(served, _requested(world, served, query))
            )
            seen = {row["metric"][PARTS[part]]: int(row["value"][1]) for row in found["data"]["result"]}
            wanted = {name: each["sum"] for name, each in _by(part, inside).items()}
            _same(world, f"{what}: {expression} of process {served.process.number}", seen, wanted)


async def _requested(world: World, served: Any, query: bytes) -> Any:
    memory = MemoryBudget(2**30, used=lambda: 0, monotonic_s=world.loop.time)
    app = PrometheusApp(served.plane, Metrics(CollectorRegistry()), world.clock, None, memory)  # type: ignore[arg-type]
    said: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("a GET has no body")

    async def send(message: Any) -> None:
        said.append(message)

    path = f"{PREFIX}api/v1/query"
    await app({"type": "http", "method": "GET", "path": path, "query_string": query, "headers": []}, receive, send)
    found = json.loads(b"".join(message.get("body", b"") for message in said))
    if said[0]["status"] == 503:
        raise Unavailable(found["error"])
    assert said[0]["status"] == 200, found
    return found


async def _added(world: World, what: str, window: AsyncWindow, entries: Sequence[Entry], name: str) -> None:
    """An aggregate that was added is there on every shard, or, where nobody knows, on none."""
    there = set()
    for key in world.keys:
        values = [value for held, _, value in entries if held == key]
        answer = await asked(window.range_query, -1, TIMES * 10**6, key=key)
        if name in answer.aggregates:
            there.add(key)
            _same(world, f"{what}: {name} of {key}", answer.aggregates[name], min(values, default=None))
    if there not in ([set(world.keys)] if world.added[name] else [set(), set(world.keys)]):
        world.fail(AssertionError(f"{what}: {name} was added, and only {sorted(there)} have it"))


async def resharded(world: World) -> None:
    """Copy a window into a deployment with another number of shards, and compare what it holds there."""
    entries = None if world.unchecked else world.histories[KEPT].held()
    if entries is None or world.failure is not None or world.random.random() < 0.7:
        return
    served = await world.serving()
    parts = await asked(lambda: world.done_by(served, world.exported(served, KEPT)))
    other = await world.resharded(parts, KEPT)
    for key in world.keys:
        own = folded(entry for entry in entries if entry[0] == key)
        answer = await other.ask(KEPT, RangeQuery(-1, TIMES * 10**6, key))
        _same(world, f"resharded: {key}", _of(answer), own)


async def deleted(world: World) -> None:
    """Delete all windows, each until there is none."""
    client = Caller(world, "last", 60.0)
    for name in [VIEW, *world.copies, *world.histories]:
        for _ in range(100):
            try:
                await client.delete_window(name)
            except NotFound:
                break
            except SashClientError:
                await asyncio.sleep(1.0)
    world.histories.clear()


def _same(world: World, what: str, seen: Any, wanted: Any) -> None:
    if seen != wanted:
        world.fail(AssertionError(f"{what} is {seen}, and the fold is {wanted}"))
