"""Keys that conditions find, in steps: what is done between two steps is bounded, and a page looks at its keys only."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash import calls
from sash.durability.records.commands import BulkInsert
from sash.plane import Plane
from sash_engine.clock import ManualClock
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.keys.keys import Keys
from sash_engine.windows.questions import ALL_KEYS, EntriesQuery, Grouped, KeysQuery, Query, Where
from sash_engine.windows.reading import conditions
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.refused import refused
from tests.support.sharded import in_process, single

COUNT = {"fields": {"v": "int64"}, "aggregates": {"n": {"function": "count"}}, "time_unit": "none", "name": "w"}
PLAIN = WindowSpec.parse({**COUNT, "keyed": True})
PARTS = WindowSpec.parse({**COUNT, "keys": ["a", "b"]})
MOST = 5_000
"""Names, or values, that a step may look at; a regular expression takes 2 µs for each."""


def filled(spec, keys):
    window = Window(spec)
    window.bulk_insert(Batch.of(spec, range(len(keys)), {"v": range(len(keys))}, keys))
    return window


@pytest.fixture
def asked(monkeypatch):
    """How often expressions were asked, and names were looked up, since it was cleared."""
    seen = []
    compiled, name = conditions.pattern, Keys.name

    class Counted:
        def __init__(self, text):
            found = compiled(text)
            self.programsize, self._fits = found.programsize, found.fullmatch

        def fullmatch(self, value):
            seen.append("expression")
            return self._fits(value)

    def looked_up(self, number):
        seen.append("name")
        return name(self, number)

    monkeypatch.setattr(conditions, "pattern", Counted)
    monkeypatch.setattr(Keys, "name", looked_up)
    return seen


def most_in_a_step(steps, seen):
    """Take all steps; how much was looked at in one of them at most, and the result."""
    most = 0
    while True:
        seen.clear()
        try:
            next(steps)
        except StopIteration as end:
            return max(most, len(seen)), end.value
        most = max(most, len(seen))


@pytest.mark.parametrize("spec", [PLAIN, PARTS], ids=["plain", "parts"])
@pytest.mark.parametrize("op", ["=~", "!~", "!=", "not in", "in"])
def test_what_a_step_looks_at_is_bounded(asked, spec, op):
    keys = [f"k{i}" if spec is PLAIN else f"k{i}|x" for i in range(20_000)]
    window = filled(spec, keys)
    values = ["k.*7"] if op in ("=~", "!~") else ["k7"] if op == "!=" else [f"k{i}" for i in range(15_000)]
    where = (Where("key" if spec is PLAIN else "a", op, values),)
    reader = window.reader
    for steps in (
        reader.query_steps(Query(selection=Grouped(where=where, limit=5))),
        reader.entries_steps(EntriesQuery(where=where)),
        reader.key_names_steps("", 5, 0, where),
        reader.query_steps(Query(selection=Grouped(by=list(spec.labels), limit=5))),
    ):
        most, _ = most_in_a_step(steps, asked)
        assert most < MOST
    steps = reader.query_steps(Query(combine=True, selection=Grouped(where=where)))
    assert sum(1 for _ in steps) > 1 or op == "in"


@pytest.mark.parametrize("spec", [PLAIN, PARTS], ids=["plain", "parts"])
def test_a_listing_asks_about_each_key_once_however_many_pages_it_has(monkeypatch, asked, spec):
    monkeypatch.setattr(conditions, "PAGE_NAMES", 256)
    monkeypatch.setattr(conditions, "_NAMES_AT_ONCE", 64)
    keys = [f"k{i:04}" if spec is PLAIN else f"k{i:04}|x" for i in range(3_000)]
    window, listed, position, pages = filled(spec, keys), [], 0, 0
    where = (Where("key" if spec is PLAIN else "a", "=~", ["k.*[1-9]"]),)
    asked.clear()
    while position is not None:
        before = len(asked)
        some, position = window.key_names("k", 100, position, where)
        assert len(asked) - before < 2 * 256
        listed, pages = listed + some, pages + 1
    assert (listed, pages > 20) == ([key for key in keys if key[4] != "0"], True)
    assert asked.count("expression") <= 3_000 + pages * 64
    asked.clear()
    found, position = [], 0
    while position is not None:
        some, position = window.key_names("k123", 100, position, (Where(where[0].part, "!~", ["x.*"]),))
        found += some
    assert len(found) == 10
    assert asked.count("expression") == 10, "only keys with the prefix are asked about"


def test_a_label_forgets_no_expression_that_a_question_uses(asked):
    """More of them than are remembered: each page asked about all values again."""
    window = filled(PARTS, [f"k{i}|x" for i in range(50)])
    where = tuple(Where("a", "!~", [f"k{i}"]) for i in range(12))
    assert len(window.key_names("", 100, 0, where)[0]) == 38
    assert asked.count("expression") <= 50 * 12


@pytest.mark.parametrize("make", [lambda clock: in_process(3, clock), single], ids=["shards", "one"])
def test_a_plane_selects_once_for_a_listing_and_for_entries(monkeypatch, asked, make):
    monkeypatch.setattr(conditions, "PAGE_NAMES", 128)
    monkeypatch.setattr(conditions, "_NAMES_AT_ONCE", 32)
    keys = [f"k{i:04}" for i in range(1_000)]
    where = (Where("key", "=~", ["k.*7"]),)

    async def ask() -> None:
        plane: Plane = make(ManualClock(0))
        await plane.create(PLAIN)
        await plane.write("w", BulkInsert(Batch.of(PLAIN, range(1_000), {"v": range(1_000)}, keys)))
        asked.clear()
        found, _ = await calls.key_names(plane, "w", KeysQuery("", 1_000, 0, where))
        assert (sorted(found), asked.count("expression")) == (keys[7::10], 1_000)
        asked.clear()
        rows = 0
        async for batch in calls.each(await plane.ask("w", EntriesQuery(where=where))):
            rows += len(batch.times)
        assert (rows, asked.count("expression")) == (100, 1_000)

    asyncio.run(ask())


values_of = st.sampled_from(["", "a", "ab", "b|c", "\\", "ä"])


@given(
    names=st.lists(st.tuples(values_of, values_of), max_size=12, unique=True),
    where=st.lists(
        st.one_of(
            st.builds(
                Where,
                st.sampled_from("ab"),
                st.sampled_from(["in", "not in"]),
                st.lists(values_of, max_size=3).map(tuple),
            ),
            st.builds(Where, st.sampled_from("ab"), st.sampled_from(["=~", "!~"]), st.sampled_from([("a.*",), ("",)])),
        ),
        max_size=3,
    ),
    limit=st.integers(1, 4),
    prefix=st.sampled_from(["", "a", "b"]),
    plain=st.booleans(),
)
def test_pages_are_what_is_selected(names, where, limit, prefix, plain):
    spec = PLAIN if plain else PARTS
    if plain:
        where = [Where("key", each.op, each.values) for each in where]
        names = sorted({a + b for a, b in names} - {""})
    else:
        names = ["|".join(value.replace("\\", "\\\\").replace("|", "\\|") for value in both) for both in names]
    window = filled(spec, names) if names else Window(spec)
    found = [each.key for each in window.reader.query(Query(keys=ALL_KEYS, selection=Grouped(where=where)))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conditions, "PAGE_NAMES", 3)
        patch.setattr(conditions, "_NAMES_AT_ONCE", 2)
        listed, position = [], 0
        while position is not None:
            some, position = window.key_names(prefix, limit, position, where)
            assert len(some) <= limit
            listed += some
    assert listed == [key for key in found if key.startswith(prefix)]


def test_bad_listings_are_refused():
    window = filled(PLAIN, ["a"])
    for limit, position, field in ((0, 0, "limit"), (100_001, 0, "limit"), (1, -1, "position")):
        assert refused(window.key_names, "", limit, position).field == field
    assert window.key_names("", 100_000) == (["a"], None)


def test_a_value_that_many_keys_have_is_asked_about_once(monkeypatch, asked):
    monkeypatch.setattr(conditions, "PAGE_NAMES", 16)
    window, position = filled(PARTS, [f"k{i % 5}|{i}" for i in range(100)]), 0
    asked.clear()
    while position is not None:
        _, position = window.key_names("", 10, position, (Where("a", "=~", ["k.*"]),))
    assert asked.count("expression") == 5


def test_an_expression_is_asked_about_new_values_only(asked):
    window, question = filled(PARTS, ["a|x", "b|x"]), Query(selection=Grouped(where=[Where("a", "=~", ["a.*"])]))
    assert [answer.key for answer in window.reader.query(question)] == ["a|x"]
    window.bulk_insert(Batch.of(window.spec, [9, 9], {"v": [1, 1]}, ["ab|x", "b|z"]))
    assert [answer.key for answer in window.reader.query(question)] == ["a|x", "ab|x"]
    assert asked.count("expression") == 3
    for i in range(9):
        window.reader.query(Query(selection=Grouped(where=[Where("a", "!~", [f"x{i}"])])))
    asked.clear()
    window.reader.query(question)
    assert asked.count("expression") == 3, "only the last expressions are remembered"
