"""Windows with `known: arrival` answer what was known at a number of an arrival, as a plain model does."""

from __future__ import annotations

import random
from bisect import bisect_left
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sash.durability.records.commands import BulkInsert, Command, Insert, Update
from sash_engine.errors import Unsupported
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import EntriesQuery
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.known_model import NEVER_REMOVED, Apply, KnownModel, applying, write
from tests.support.pairs import FIELDS, bits, columns_of, every_aggregate
from tests.support.refused import refused
from tests.support.windows import functions

AGGREGATES = functions(n="count", total="sum value", most="max value", first="first value", last="last value")
DOCUMENT: dict[str, Any] = {
    "name": "w",
    "time_unit": "none",
    "keyed": True,
    "fields": {"value": "int64", "id": "int64"},
    "aggregates": AGGREGATES,
    "identity": "id",
    "known": "arrival",
}


def answered(values: list[int]) -> tuple[Any, ...]:
    """What the aggregates answer over some values."""
    if not values:
        return 0, 0, 0, None, None, None
    return len(values), len(values), sum(values), max(values), values[0], values[-1]


def shown(answer: Any) -> tuple[Any, ...]:
    """An answer as `answered` shows it."""
    return answer.entries, *(answer.aggregates[name] for name in AGGREGATES)


def rows_of(window: Window, known: str, key: Any, **more: Any) -> list[tuple[int, ...]]:
    """The entries of a key, or what was removed of it: time, value, id and numbers."""
    bulks = list(window.reader.entries(EntriesQuery(key=key, known=known, **more), rows=7))
    return [
        row for bulk in bulks for row in zip(bulk.times.tolist(), *map(_listed, bulk.columns.values()), strict=True)
    ]


def _listed(column: Any) -> list[int]:
    return column.tolist()


def check_entries(window: Window, model: KnownModel, key: Any) -> None:
    """Both have the same entries, and the same that was removed, each with the writes that its numbers are of."""

    def write_of(number: int) -> int:
        return bisect_left(model.tokens, number)

    there = [v for v in model.versions if v.key == key and v.time > model.through(key)]
    there = [v for v in there if write_of(v.since) != write_of(v.removed)]  # which nobody could know
    kept = [(v.time, v.value, v.id, write_of(v.since)) for v in there if v.removed == NEVER_REMOVED]
    removed = [
        (v.time, v.value, v.id, *map(write_of, (v.since, v.placed, v.removed)))
        for v in there
        if v.removed != NEVER_REMOVED
    ]
    rows = rows_of(window, "kept", key)
    assert sorted((*row[:3], write_of(row[3])) for row in rows) == sorted(kept)
    assert [row[:3] for row in rows] == [row[:3] for row in rows_of(window, "kept", key, reverse=True)[::-1]]
    gone = rows_of(window, "removed", key)
    assert sorted((*row[:3], *map(write_of, row[3:])) for row in gone) == sorted(removed)
    # What was corrected ends with the arrival of what is there in its place.
    arrivals = {row[3] for row in rows + gone}
    followed = {v.since for v in there if v.since != v.placed}
    assert len([row for row in gone if row[5] in arrivals]) == len(followed)
    if rows:
        first = rows[len(rows) // 2][0]
        assert rows_of(window, "removed", key, start=first) == [row for row in gone if row[0] >= first]


def check(window: Window, model: KnownModel, rng: random.Random, keys: list[Any], newest: int) -> None:
    """Ask both about random pairs, lookbacks and numbers."""
    assert window.known is not None
    assert window.known.number == model.applied
    pairs = [(rng.choice(keys), rng.randrange(newest + 2), rng.choice(model.tokens)) for _ in range(40)]
    spans = [3, 20, 200]
    times, known = np.array([t for _, t, _ in pairs]), np.array([k for _, _, k in pairs])
    names = [key for key, _, _ in pairs] if window.spec.keyed else None
    columns = window.answers_at(times, names, spans, known_at=known)
    whole = window.answers_at(times, names, known_at=known)
    for i, (key, time, at) in enumerate(pairs):
        for place, span in enumerate(spans):
            expected = answered(model.values(key, time - span + 1, time, at))
            row = columns[place]
            assert (row.entries[i], *(row.aggregates[name][i] for name in AGGREGATES)) == expected, (key, time, at)
        everything = model.values(key, 0, time, at)
        assert (whole[0].entries[i], *(whole[0].aggregates[name][i] for name in AGGREGATES)) == answered(everything)
        if i < 10:
            (one,) = window.query(key, [20], time, known_at=at)
            assert shown(one) == answered(model.values(key, time - 19, time, at))
            assert one.known_at == at
            (one,) = window.query(key, (), time, known_at=at)
            assert shown(one) == answered(everything)
            oldest = [
                v.time
                for v in model.versions
                if v.key == key and model.through(key) < v.time <= time and v.since <= at < v.removed
            ]
            assert one.start == min(oldest, default=None)
    for key in keys:
        if window.spec.history is None:  # entries are of the slide
            check_entries(window, model, key)
    (now,) = window.query(keys[0], as_of=2**40)
    assert shown(now) == answered(model.values(keys[0], 0, 2**40, model.applied))
    assert now.known_at == model.applied


@pytest.mark.parametrize(
    "seed", [seed if seed < 2 else pytest.param(seed, marks=pytest.mark.soak) for seed in range(8)]
)
@pytest.mark.parametrize("max_age", [None, 120])
@pytest.mark.parametrize(
    ("keyed", "pages", "block"), [(True, (2, 16), 8), (True, (2, 16), 1024), (True, None, 1024), (False, None, 8)]
)
def test_it_answers_as_the_model(
    seed: int, max_age: int | None, keyed: bool, pages: tuple[int, int] | None, block: int
) -> None:
    rng = random.Random(seed)
    slide = {} if max_age is None else {"slide": {"max_age": max_age}}
    window = Window(WindowSpec.parse({**DOCUMENT, "keyed": keyed, **slide}), block=block, pages=pages)
    model, keys, next_id = KnownModel(max_age), ["a", "b", "c", "d"] if keyed else [None], 0
    for _ in range(60):
        next_id = write(applying(window), model, rng, keys, rng.choice([2, 30, 300]), next_id)
        if rng.random() < 0.1:
            check(window, model, rng, keys, next_id // 3)
    window.check_invariants()
    check(window, model, rng, keys, next_id // 3)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("per_tick", [1, 20, 200])
def test_times_that_blocks_share(seed: int, per_tick: int) -> None:
    """What was removed has its place among entries of one time, which may be in several blocks."""
    rng, model, next_id = random.Random(seed), KnownModel(), 0
    window = Window(WindowSpec.parse({**DOCUMENT, "keyed": False}), block=8)
    for _ in range(50):
        next_id = write(applying(window), model, rng, [None], rng.choice([2, 9]), next_id, per_tick=per_tick)
    window.check_invariants()
    check(window, model, rng, [None], next_id // per_tick)


def filling(window: Window) -> Apply:
    """Applies commands to a window whose entries have fields of all types in the place of the value."""

    def filled(batch: Batch) -> Batch:
        columns = {**columns_of(batch.columns["value"].tolist()), "id": batch.columns["id"]}
        return Batch.of(window.spec, batch.times, columns, batch.keys.decode().tolist())

    def apply(command: Command[Any]) -> None:
        if isinstance(command, Insert):
            columns = {name: [value] for name, value in command.values.items()}
            command = BulkInsert(Batch.of(WindowSpec.parse(DOCUMENT), [command.time], columns, [command.key]))
        if isinstance(command, BulkInsert | Update):
            command = replace(command, batch=filled(command.batch))
        applying(window)(command)

    return apply


@pytest.mark.parametrize("part", range(6))
def test_every_aggregate_is_the_fold_of_what_had_arrived(part: int) -> None:
    """A window without arrivals to which only that was written, in order."""
    aggregates = dict(list(every_aggregate().items())[part::6])
    document = {**DOCUMENT, "fields": {**FIELDS, "id": "int64"}, "aggregates": aggregates}
    alone = WindowSpec.parse({**document, "known": None, "identity": None})
    rng, model, next_id = random.Random(part), KnownModel(), 0
    window = Window(WindowSpec.parse(document), block=8, pages=(2, 16))
    for _ in range(40):
        next_id = write(filling(window), model, rng, ["a", "b"], rng.choice([2, 30, 300]), next_id)
    pairs = [(rng.choice("abc"), rng.randrange(next_id // 3 + 2), rng.choice(model.tokens)) for _ in range(25)]
    times, known = np.array([t for _, t, _ in pairs]), np.array([k for _, _, k in pairs])
    (columns,) = window.answers_at(times, [key for key, _, _ in pairs], [60], known_at=known)
    exact = {name: monoid.exact for name, (monoid, _) in alone.monoids().items()}
    for i, (key, time, at) in enumerate(pairs):
        there = [
            version
            for version in model.versions
            if version.key == key and time - 60 < version.time <= time and version.since <= at < version.removed
        ]
        there.sort(key=lambda version: (version.time, version.placed))
        fold = Window(alone, block=8)
        if there:
            columns_there = {**columns_of([each.value for each in there]), "id": [each.id for each in there]}
            fold.bulk_insert(Batch.of(alone, [each.time for each in there], columns_there, [key] * len(there)))
        (expected,) = fold.query(key, [60], time)
        (one,) = window.query(key, [60], time, known_at=at)
        assert columns.entries[i] == expected.entries == one.entries
        for name, answer in expected.aggregates.items():
            found = columns.aggregates[name].tolist()[i]
            assert bits(found) == bits(one.aggregates[name]), name
            if exact[name]:
                assert bits(found) == bits(answer), name
            elif isinstance(answer, float):  # a list of groups, or of clusters, has sums that round elsewhere
                assert found == pytest.approx(answer, nan_ok=True), name


@pytest.mark.parametrize("pages", [(2, 16), None])
def test_pairs_and_queries_round_alike(pages: tuple[int, int] | None) -> None:
    aggregates = {"sum": {"function": "sum", "field": "x"}, "sd": {"function": "stddev", "field": "x"}}
    document = {**DOCUMENT, "fields": {"x": "float64", "id": "int64"}, "aggregates": aggregates}
    window, rng, tokens = Window(WindowSpec.parse(document), block=8, pages=pages), random.Random(3), [0]
    for step in range(30):
        n = rng.randrange(1, 20)
        times = [step * 5 + rng.randrange(-60, 5) for _ in range(n)]
        columns = {"x": [rng.random() for _ in range(n)], "id": [step * 20 + i for i in range(n)]}
        window.bulk_insert(Batch.of(window.spec, times, columns, [rng.choice("ab") for _ in range(n)]))
        tokens.append(window.info().counts.inserted)
    pairs = [(rng.choice("ab"), rng.randrange(-60, 150), rng.choice(tokens)) for _ in range(200)]
    times, known = np.array([t for _, t, _ in pairs]), np.array([k for _, _, k in pairs])
    (columns,) = window.answers_at(times, [key for key, _, _ in pairs], [90], known_at=known)
    for i, (key, time, at) in enumerate(pairs):
        (answer,) = window.query(key, [90], time, known_at=at, partials=True)
        assert answer.entries == columns.entries[i]
        assert answer.aggregates == {name: column[i] for name, column in columns.aggregates.items()}
        assert answer.partials is not None


def test_what_is_not_known_is_refused() -> None:
    window = Window(WindowSpec.parse(DOCUMENT))
    plain = Window(WindowSpec.parse({**DOCUMENT, "known": None}))
    window.insert(1, {"value": 1, "id": 1}, "a")
    for wrong in (-1, 2):
        refused(window.query, "a", (), 5, known_at=wrong, match="known_at")
        refused(window.answers_at, np.array([5]), ["a"], known_at=np.array([wrong]), match="known_at")
    refused(window.query, "a", known_at=1, match="as_of")
    refused(window.query, as_of=5, keys=["a"], known_at=1, match="one key")
    refused(plain.query, "a", (), 5, known_at=0, error=Unsupported, match="known")
    for known in ("kept", "removed"):
        refused(plain.reader.entries, EntriesQuery(key="a", known=known), error=Unsupported, match="known")
        refused(window.reader.entries, EntriesQuery(keys=["a"], known=known), match="one key")
        assert rows_of(window, known, "nobody") == []
    refused(window.reader.entries, EntriesQuery(key="a", known="all"), match="'all' is unknown")
    assert window.query("a", (), 5, known_at=1)[0].entries == 1
    assert window.query("a", (), 5, known_at=0)[0].entries == 0
    assert window.query("nobody", (), 5, known_at=1)[0].known_at == 1


def test_what_was_removed_and_has_left_opens_nothing_behind_it() -> None:
    """A range begins before what has left, and all blocks of the rest of it are as they were known."""
    window = Window(WindowSpec.parse({**DOCUMENT, "keyed": False, "slide": {"max_age": 100}}), block=8)
    for time in range(100):
        window.insert(time, {"value": time, "id": time})
    window.retract(Batch.of(window.spec, [2], {"id": [2]}))
    for time in range(100, 151):
        window.insert(time, {"value": time, "id": time})
    (answer,) = window.query(None, [80], 80, known_at=100)
    assert shown(answer) == answered(list(range(51, 81)))


def test_what_was_removed_leaves_with_the_slide() -> None:
    window = Window(WindowSpec.parse({**DOCUMENT, "slide": {"max_age": 10}}))
    for step in range(50):
        window.insert(step * 10, {"value": step, "id": step}, "a")
        window.retract(Batch.of(window.spec, [step * 10], {"id": [step]}, ["a"]))
    assert window.removed is not None
    assert window.removed.info().entries == 1
    # What left since is not told, though it is still there.
    window.insert(600, {"value": 0, "id": 0}, "a")
    assert rows_of(window, "removed", "a") == []
    window.check_invariants()
