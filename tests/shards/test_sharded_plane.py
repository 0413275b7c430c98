"""A plane over several shards answers as one over a single store."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sash.calls import each, key_names
from sash.durability.records.commands import (
    Admit,
    BulkEvict,
    BulkInsert,
    Commit,
    Insert,
    Punctuate,
    Retract,
    StageBatch,
    Update,
)
from sash_engine.clock import ManualClock
from sash_engine.errors import (
    FailedPrecondition,
    NotFound,
    SashError,
    Unsupported,
)
from sash_engine.windows.batches.batch import Batch, Coded, Origin, untimed
from sash_engine.windows.questions import ALL_KEYS, EntriesQuery, KeysQuery, Limit, Query, RangeQuery, SeriesQuery
from sash_engine.windows.spec.window import WindowSpec
from tests.support.sharded import Turns, file_of, hosts, in_process, pieces, single

KEYS = [f"k{i}" for i in range(8)]
AGGREGATES = {
    "n": {"function": "count"},
    "sum": {"function": "sum"},
    "max": {"function": "max"},
    "mean": {"function": "mean"},
    "distinct": {"function": "collect_distinct"},
}
SLIDES: list[dict[str, Any]] = [
    {},
    {"slide": {"max_age": 20}},
    {"slide": {"max_count": 3}},
    {"granularity": 4},
    {"identity": "v"},
    {"slide": {"max_age": 20, "every": 8, "until": "punctuation"}},
]


def spec(**parts: Any) -> WindowSpec:
    document = {"name": "w", "keyed": True, "time_unit": "none", "fields": {"v": "int64"}, "aggregates": AGGREGATES}
    return WindowSpec.parse(document | parts)


def bulk(entries: list[tuple[str, int, int]], keyed: bool = True) -> Batch:
    keys = Coded.of([key for key, _, _ in entries]) if keyed else None
    times = np.array([time for _, time, _ in entries], np.int64)
    return Batch(times, {"v": np.array([value for *_, value in entries], np.int64)}, keys)


keys = st.sampled_from(KEYS)
times = st.integers(0, 60)
entries = st.lists(st.tuples(keys, times, st.integers(-9, 9)), max_size=12)
some_keys = st.one_of(st.just(ALL_KEYS), st.lists(keys, min_size=1, max_size=5))
lookbacks = st.lists(st.integers(1, 40), max_size=2)
as_of = st.one_of(st.none(), times)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), keys, times, st.integers(-9, 9), st.booleans()),
        st.tuples(st.just("bulk"), entries),
        st.tuples(st.just("evict"), times, st.one_of(st.none(), keys)),
        st.tuples(st.just("changes"), entries, st.integers(0, 2)),
        st.tuples(st.just("punctuate"), times),
        st.tuples(st.just("producer"), entries, st.booleans()),
        st.tuples(st.just("admit"), entries, st.integers(1, 20), st.integers(0, 5), st.integers(0, 2)),
        st.tuples(st.just("batch"), st.lists(entries, max_size=3), st.booleans()),
        st.tuples(st.just("key"), keys, lookbacks, as_of),
        st.tuples(st.just("keys"), some_keys, lookbacks, as_of, st.booleans()),
        st.tuples(st.just("range"), some_keys, times, times, st.booleans()),
        st.tuples(st.just("series"), some_keys, times, st.integers(1, 9), st.integers(1, 15)),
        st.tuples(st.just("add"), st.sampled_from(["min", "var"])),
        st.tuples(st.just("entries"), some_keys),
        st.tuples(st.just("info")),
        st.tuples(st.just("export")),
        st.tuples(st.just("delete")),
    ),
    max_size=14,
)


class Pair:
    """Does the same on both planes, and compares what they say."""

    def __init__(self, clock: ManualClock, sharded: Any, spec: WindowSpec) -> None:
        self.spec = spec
        self.planes = (single(clock), sharded)
        self.sequence, self.batch_number = 0, -1

    async def both(self, call: Any, ordered: bool = True) -> Any:
        found = []
        for plane in self.planes:
            try:
                found.append(await call(plane))
            except SashError as error:
                found.append((type(error), error.field))
        one, other = (_plain(answer, ordered) for answer in found)
        assert other == one
        return found[0]

    async def do(self, step: tuple[Any, ...]) -> None:
        kind, *rest = step
        await getattr(self, kind)(*rest)

    async def create(self, spec: WindowSpec) -> None:
        await self.both(lambda plane: plane.create(spec))

    async def insert(self, key: str, time: int, value: int, answer: bool) -> None:
        back = [5] if answer else []
        await self.both(lambda plane: plane.write("w", Insert(time, {"v": value}, key, answer, back)))

    async def bulk(self, rows: Any) -> None:
        await self.both(lambda plane: plane.write("w", BulkInsert(bulk(rows))))

    async def evict(self, time: int, key: str | None) -> None:
        await self.both(lambda plane: plane.write("w", BulkEvict(time, key)))

    async def changes(self, rows: Any, number: int) -> None:
        """Insert entries, and correct and retract some of them; with numbers, and again, if there are any."""
        await self.bulk(rows)
        number = number if self.spec.identity else 0  # a write that is refused uses no number
        for change in (Update, Retract):
            self.sequence += bool(number)
            origin = Origin("p", self.sequence) if number else None
            for _ in range(max(number, 1)):
                await self.both(
                    lambda plane, change=change, origin=origin: plane.write("w", change(bulk(rows[::2])), origin)
                )
            names = bulk(rows[1::2])
            names = replace(names, times=untimed(len(names.times)))
            await self.both(lambda plane, change=change, names=names: plane.write("w", change(names)))

    async def punctuate(self, time: int) -> None:
        await self.both(lambda plane: plane.write("w", Punctuate(time)))

    async def producer(self, rows: Any, again: bool) -> None:
        self.sequence += 1
        for _ in range(1 + again):
            await self.both(lambda plane: plane.write("w", BulkInsert(bulk(rows)), Origin("p", self.sequence)))

    async def admit(self, rows: Any, lookback: int, most: int, number: int) -> None:
        """A write that decides; with a number, and again, if there is one. A refused one uses no number."""
        limits = (Limit("n", lookback, "<=", most), Limit("sum", str(lookback), "<", 3 * most, ["key"]))
        kept = self.spec.slide.max_age is None or lookback <= 13
        number = number if kept else 0
        self.sequence += bool(number)
        origin = Origin("p", self.sequence) if number else None
        for _ in range(max(number, 1)):
            await self.both(lambda plane: plane.write("w", Admit(bulk(rows), limits), origin))

    async def batch(self, parts: Any, again: bool) -> None:
        self.batch_number += 1

        async def whole(plane: Any) -> Any:
            tokens = [(await plane.write("w", StageBatch(bulk(rows), "q", self.batch_number))).stage for rows in parts]
            found = [await plane.write("w", Commit("q", self.batch_number, tokens)) for _ in range(1 + again)]
            with pytest.raises(FailedPrecondition):
                await plane.write("w", StageBatch(bulk([]), "q", self.batch_number))
            return found

        await self.both(whole)

    async def key(self, key: str, back: Any, as_of: int | None) -> None:
        await self.both(lambda plane: plane.ask("w", Query(key, back, as_of)))

    async def keys(self, keys: Any, back: Any, as_of: int | None, combine: bool) -> None:
        ordered = keys is not ALL_KEYS
        await self.both(lambda plane: plane.ask("w", Query(None, back, as_of, keys, combine)), ordered)

    async def range(self, keys: Any, start: int, end: int, exclusive: bool) -> None:
        await self.both(lambda plane: plane.ask("w", RangeQuery(start, end, None, keys, False, exclusive)))

    async def series(self, keys: Any, start: int, step: int, width: int) -> None:
        await self.both(lambda plane: plane.ask("w", SeriesQuery(start, start + 40, step, width, None, keys)))

    async def add(self, name: str) -> None:
        function = {"min": {"function": "min"}, "var": {"function": "variance"}}[name]
        await self.both(lambda plane: plane.add_aggregates("w", {name: function}))

    async def entries(self, keys: Any) -> None:
        async def rows(plane: Any, **more: Any) -> list[tuple[Any, ...]]:
            found = []
            async for batch in each(await plane.ask("w", EntriesQuery(None, None, None, keys, **more))):
                values = batch.partials["sum"][0] if batch.of_partials else batch.columns["v"]
                for code, *row in zip(batch.keys.codes, batch.times.tolist(), values.tolist(), strict=True):
                    found.append((batch.keys.dictionary[code], *row))
            return found

        async def read(plane: Any) -> Any:
            found = await rows(plane)
            assert await rows(plane, limit=3) == found[:3]
            assert await rows(plane, limit=3, reverse=True) == found[::-1][:3]
            return {key: [row for row in found if row[0] == key] for key, *_ in found}

        await self.both(read)

    async def info(self) -> None:
        async def look(plane: Any) -> Any:
            names, end = await key_names(plane, "w", KeysQuery())
            assert end is None
            return await plane.window("w"), await plane.windows(), sorted(names)

        await self.both(look)

    async def export(self) -> None:
        """Move the window through a file of each into the other."""

        files = []
        for plane in self.planes:
            try:
                files.append(await file_of(plane))
            except NotFound:
                return
        for plane, data in zip(self.planes, reversed(files), strict=True):
            await plane.delete("w")
            await plane.restore(pieces(data, 100))

    async def delete(self) -> None:
        await self.both(lambda plane: plane.delete("w"))
        self.sequence, self.batch_number = 0, -1
        await self.create(self.spec)

    async def history(self, steps: list[Any]) -> None:
        await self.create(self.spec)
        for step in steps:
            await self.do(step)
        for step in (("info",), ("keys", ALL_KEYS, [7], None, True), ("keys", ALL_KEYS, [], None, False)):
            await self.do(step)


def _plain(answer: Any, ordered: bool) -> Any:
    """Something that can be compared, floats to 9 digits."""
    if isinstance(answer, np.ndarray):
        return _plain(answer.tolist(), ordered)
    if isinstance(answer, float):
        return float(f"{answer:.9g}")
    if isinstance(answer, list | tuple):
        found = [_plain(one, ordered) for one in answer]
        return found if ordered else sorted(found, key=repr)
    if isinstance(answer, dict):
        return {name: _plain(value, True) for name, value in answer.items()}
    if isinstance(answer, WindowSpec):
        return answer.document()
    if hasattr(answer, "__dataclass_fields__"):
        return {name: _plain(getattr(answer, name), True) for name in answer.__dataclass_fields__ if name != "stage"}
    return answer


@given(st.integers(1, 5), st.sampled_from(SLIDES), operations)
def test_same_as_a_single_store(shards: int, slide: dict[str, Any], steps: list[Any]) -> None:
    clock = ManualClock()
    asyncio.run(Pair(clock, in_process(shards, clock), spec(**slide)).history(steps))


@settings(max_examples=25)
@given(st.integers(2, 5), st.sampled_from(SLIDES), operations)
async def test_same_over_two_processes(shards: int, slide: dict[str, Any], steps: list[Any]) -> None:
    clock = ManualClock()
    async with hosts(shards, 2, clock) as made:
        await Pair(clock, Turns([host.plane for host in made]), spec(**slide)).history(steps)


async def test_a_limit_about_keys_of_several_shards_is_refused():
    plane = in_process(4)
    await plane.create(spec(keys=["tenant", "user"]))
    row = Batch(np.array([1]), {"v": np.array([1])}, Coded.of(["a|x"]))
    for by in ((), ("tenant",)):
        with pytest.raises(Unsupported, match="4 shards") as told:
            await plane.write("w", Admit(row, (Limit("n", 10, "<=", 3, by),)))
        assert told.value.field == "limits.by"
    whole = Limit("n", 10, "<=", 3, ("user", "tenant"))
    assert (await plane.write("w", Admit(row, (whole,)))).admitted == [True]
    assert (await plane.window("w")).entries == 1
