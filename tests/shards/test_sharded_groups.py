"""Groups over several shards are those of a single store."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash.durability.records.commands import BulkEvict, BulkInsert
from sash_engine.clock import ManualClock
from sash_engine.errors import InvalidArgument
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.questions import (
    ALL_KEYS,
    EntriesQuery,
    Grouped,
    Having,
    KeysQuery,
    Query,
    RangeQuery,
    SeriesQuery,
    Top,
    Where,
    selecting,
)
from sash_engine.windows.reading import costs
from sash_wire.labels import join
from tests.shards.test_sharded_plane import Pair, _plain
from tests.support.asking import question_of
from tests.support.sharded import Turns, hosts, in_process
from tests.windows.test_groups import AIRPORTS, CARRIERS, KINDS, PARTS, conditions, entries_of, keys_of, spec_of

SLIDES: list[dict[str, Any]] = [
    {},
    {"slide": {"max_age": 20}},
    {"slide": {"max_count": 2}},
    {"granularity": 4},
    {"slide": {"max_age": 20}, "rollups": [["airport"], ["carrier", "kind"], []]},
]
NAMES = ["n", "sum", "mean", "entries"]

tops = st.builds(Top, st.sampled_from(NAMES), st.integers(1, 5), st.sampled_from(["asc", "desc"]))
havings = st.builds(Having, st.sampled_from(NAMES), st.sampled_from([">", "<=", "!="]), st.integers(-3, 6))
groupings = st.one_of(
    st.lists(st.sampled_from(PARTS), max_size=3, unique=True).map(lambda by: {"by": by}),
    st.just({"by": ["airport"]}),
    st.just({}),
)
choices = st.one_of(
    st.just({}),
    st.builds(lambda having: {"having": [having]}, havings),
    st.fixed_dictionaries({"top": tops, "having": st.lists(havings, max_size=1)}),
    st.builds(
        lambda limit, having: {"limit": limit, "having": having}, st.integers(1, 4), st.lists(havings, max_size=1)
    ),
)
selections = st.one_of(
    st.just(()),
    st.just(ALL_KEYS),
    st.lists(keys_of, min_size=1, max_size=6, unique=True).map(lambda some: [*map(join, some)]),
)
times = st.integers(0, 60)
questions = st.fixed_dictionaries(
    {
        "grouping": groupings,
        "choice": choices,
        "where": st.lists(conditions(), max_size=2),
        "keys": selections,
        "lookbacks": st.lists(st.integers(1, 40), max_size=2),
        "as_of": st.one_of(st.none(), times),
        "start": times,
        "partials": st.booleans(),
        "aggregates": st.one_of(st.just(()), st.lists(st.sampled_from(["n", "sum", "users", "hist"]), min_size=1)),
    }
)


def bulk(entries: list[tuple[tuple[str, ...], int, int]]) -> Batch:
    columns = {"v": np.array([value for *_, value in entries], np.int64)}
    return Batch(
        np.array([time for _, time, _ in entries], np.int64), columns, Coded.of([join(key) for key, *_ in entries])
    )


async def pages(plane: Any, ask: Any, question: Any) -> list[Any]:
    """All pages of the answers."""
    found, position = [], ""
    while True:
        page = await ask(plane, selecting(question, position=position))
        found += page
        position = getattr(page, "position", None)
        if position is None:
            return found


async def compare(pair: Pair, asked: dict[str, Any]) -> None:
    named = {"aggregates": asked.get("aggregates", ())}
    shared = {**asked["grouping"], **asked["choice"], **named, "where": asked["where"], "keys": asked["keys"]}
    grouped = "by" in shared
    by_itself = not grouped and "top" in shared  # of equal keys, any may be among the first

    def comparable(answers: Any) -> Any:
        if by_itself:
            name = shared["top"].by
            return sorted(
                a.entries if name == "entries" else a.aggregates.get(name, 0) for a in answers[:: max(len(back), 1)]
            )
        found = [_plain(replace(answer, partials=None), True) for answer in answers]
        return found if grouped else sorted(found, key=repr)

    async def both(ask: Any, question: Any) -> None:
        async def call(plane: Any) -> Any:
            return comparable(await pages(plane, ask, question))

        await pair.both(call)

    back = asked["lookbacks"]
    start, partials = asked["start"], asked["partials"]
    await both(
        lambda plane, question: plane.ask("w", question),
        question_of(Query, lookbacks=back, as_of=asked["as_of"], partials=partials, **shared),
    )
    if not grouped:
        where, keys = asked["where"], asked["keys"]
        chosen = Grouped(where, **named)
        everything = RangeQuery(start, start + 20, keys=keys, selection=chosen)
        await pair.both(lambda plane: plane.ask("w", everything))
        combined = Query(lookbacks=back, as_of=asked["as_of"], combine=True, keys=keys, selection=chosen)
        await pair.both(lambda plane: plane.ask("w", combined))
        series = SeriesQuery(start, start + 20, 5, keys=keys, selection=chosen)
        await pair.both(lambda plane: plane.ask("w", series))

        async def names(plane: Any) -> Any:
            found, position = [], 0
            while position is not None:
                some, position = await plane.ask("w", KeysQuery("", 1000, position, where))
                found += some
            return sorted(found)

        await pair.both(names)
        return
    back = []
    await both(
        lambda plane, question: plane.ask("w", question),
        question_of(RangeQuery, start, start + 20, partials=partials, **shared),
    )
    await both(
        lambda plane, question: plane.ask("w", question),
        question_of(SeriesQuery, start, start + 20, 5, 8, partials=partials, **shared),
    )


async def history(pair: Pair, writes: list[Any], cut: int, asked: list[dict[str, Any]]) -> None:
    await pair.create(pair.spec)
    for rows in writes:
        await pair.both(lambda plane, rows=rows: plane.write("w", BulkInsert(bulk(rows))))
    if cut:
        await pair.both(lambda plane: plane.write("w", BulkEvict(cut)))
    for question in asked:
        await compare(pair, question)


histories = st.lists(entries_of, max_size=3), st.integers(0, 40), st.lists(questions, min_size=1, max_size=4)


@given(st.integers(1, 5), st.sampled_from(SLIDES), *histories)
def test_groups_are_those_of_a_single_store(shards: int, slide: Any, writes: Any, cut: int, asked: Any) -> None:
    clock = ManualClock()
    asyncio.run(history(Pair(clock, in_process(shards, clock), spec_of(**slide)), writes, cut, asked))


async def test_groups_over_two_processes() -> None:
    clock = ManualClock()
    rows = [
        ((a, c, k), time, time)
        for time, (a, c, k) in enumerate((a, c, k) for a in AIRPORTS for c in CARRIERS for k in KINDS)
    ]
    async with hosts(5, 2, clock) as made:
        pair = Pair(clock, Turns([host.plane for host in made]), spec_of())
        plain = {"where": (), "keys": (), "lookbacks": [7, 20], "as_of": None, "start": 0, "partials": True}
        choices: list[dict[str, Any]] = [{}, {"limit": 3}, {"top": Top("sum", 4)}, {"having": [Having("sum", ">", 20)]}]
        asked = [{**plain, "grouping": {"by": by}, "choice": c} for by in ([], ["kind"], list(PARTS)) for c in choices]
        await history(pair, [rows], 3, asked)


@pytest.mark.parametrize(
    "wrong",
    [
        {"by": ["none"]},
        {"by": ["kind"], "limit": 0},
        {"by": ["kind"], "position": "x"},
        {"by": ["kind"], "limit": 2, "position": "a|b"},
        {"limit": 2, "position": "x"},
        {"limit": 2, "position": "0:x"},
        {"by": ["kind"], "top": Top("nothing")},
        {"by": ["kind"], "top": Top("n", 0)},
        {"by": ["kind"], "limit": 2, "top": Top("n")},
        {"by": ["kind"], "combine": True},
    ],
)
async def test_wrong_questions(wrong: dict[str, Any]) -> None:
    plane = in_process(4)
    await plane.create(spec_of())
    await plane.write("w", BulkInsert(bulk([((a, "AA", "x"), 1, 1) for a in AIRPORTS])))
    with pytest.raises(InvalidArgument) as raised:
        await plane.ask("w", question_of(Query, lookbacks=[5], **wrong))
    assert raised.value.field


async def test_entries_of_selected_keys() -> None:
    plane = in_process(4)
    await plane.create(spec_of())
    await plane.write("w", BulkInsert(bulk([((a, c, "x"), 1, 1) for a in AIRPORTS for c in CARRIERS])))
    question = EntriesQuery(where=[Where("airport", "=", ["JFK"])])
    found = [batch async for batch in await plane.ask("w", question)]
    assert sum(len(batch.times) for batch in found) == len(CARRIERS)


async def test_answers_of_all_shards_together_have_as_many_values_as_those_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    question = question_of(Query, by=["airport", "carrier"])
    for plane in (in_process(1), in_process(4)):
        await plane.create(spec_of(aggregates={"top": {"function": "frequent_items"}}))
        await plane.write("w", BulkInsert(bulk([((a, c, "x"), 1, 1) for a in AIRPORTS for c in CARRIERS])))
        values = 4 * len(AIRPORTS) * len(CARRIERS)
        monkeypatch.setattr(costs, "MAX_VALUES", values)
        assert len(await plane.ask("w", question)) == values // 4
        monkeypatch.setattr(costs, "MAX_VALUES", values - 1)
        with pytest.raises(InvalidArgument, match=f"more than {values - 1} values"):
            await plane.ask("w", question)
