"""Fields that may be null: every aggregate against the fold over the entries that have the values it reads."""

from random import Random

import numpy as np
import pytest
from hypothesis import settings

from sash_engine.errors import InvalidArgument
from sash_engine.monoids.laws import close
from sash_engine.windows.answers import Answer
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import ALL_KEYS, Query
from sash_engine.windows.spec.derived import completed
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.aggregates import FIELDS, HALVES
from tests.support.refused import refused
from tests.support.windows import functions

KEYS = ["a", "b", "c"]
VALUED = {"count_x": {"function": "count", "field": "x"}, "count_s": {"function": "count", "field": "s"}}
SMALL = functions(sum="sum x", max="max n", n="count", nx="count x")

HISTORIES = range(max(3, settings.default.max_examples // 30))
"""Seeds. No shrinking: a window with 64 aggregates takes long."""


def document(aggregates, **others):
    fields = {"fields": FIELDS, "nullable": ["x", "n", "s"]}
    return {"name": "w", "time_unit": "none", "keyed": True, **fields, "aggregates": aggregates} | others


def send(window, entries, alone):
    """Write entries, by key, one by one or in a bulk."""
    if alone:
        for key, entry in entries:
            window.insert(entry["time"], {name: entry[name] for name in FIELDS if entry[name] is not None}, key)
    elif entries:
        columns = {name: [entry[name] for _, entry in entries] for name in FIELDS}
        times, keys = [entry["time"] for _, entry in entries], [key for key, _ in entries]
        window.bulk_insert(Batch.of(window.spec, times, columns, keys))


def written(window, seed):
    """Write entries of which a third, or most, of the values are null; return them by key."""
    random, held, time = Random(seed), {key: [] for key in KEYS}, 0

    def maybe(value):
        return None if random.random() < (0.33, 0.9)[seed % 2] else value

    for _ in range(5):
        made = []
        for _ in range(random.randint(0, 12)):
            time += random.randint(0, 3)
            values = {"x": random.randint(1, 40) / 4, "n": random.randint(0, 9), "s": random.choice(["", "a", "b"])}
            entry = {"time": time} | {name: maybe(value) for name, value in values.items()}
            made.append((random.choice(KEYS), entry))
        send(window, made, random.random() < 0.3)
        for key, entry in made:
            held[key].append(entry)
    return held


def expected(spec, entries):
    """What each aggregate answers over entries, by its own definition."""
    plain = WindowSpec.parse({**spec.document(), "nullable": None})
    out = {}
    for name, (monoid, columns) in plain.monoids().items():
        some = [each for each in entries if all(each[column] is not None for column in columns)]
        total = monoid.identity
        for each in some:
            values = tuple([each[column] for column in columns])
            total = monoid.combine(total, monoid.lift(values if len(values) > 1 else values[0]))
        out[name] = None if monoid.function in ("sum", "decayed_sum") and not some else monoid.lower(total)
    return out


def same(spec, answer, entries):
    assert isinstance(answer, Answer)
    assert answer.entries == len(entries)
    for name, value in expected(spec, entries).items():
        assert close(value, answer.aggregates[name], 1e-7), (name, value, answer.aggregates[name])


@pytest.mark.parametrize("granularity", [None, 4])
@pytest.mark.parametrize("aggregates", HALVES, ids=["even", "odd"])
@pytest.mark.parametrize("seed", HISTORIES)
def test_every_aggregate_is_over_the_entries_with_values(aggregates, granularity, seed):
    others = {} if granularity is None else {"granularity": granularity}
    spec = WindowSpec.parse(document({**aggregates, **VALUED}, **others))
    w = Window(spec, block=4, pages=(2, 4))
    held = written(w, seed)
    end = max((each["time"] for entries in held.values() for each in entries), default=0) // 4 * 4
    for key, entries in held.items():
        if entries:
            same(spec, w.query(key)[0], entries)
            same(spec, w.range_query(4, end + 3, key), [each for each in entries if each["time"] >= 4])
    copy = Window(spec, block=4, pages=(2, 4))
    for bulk in w.entries(keys=ALL_KEYS):
        copy.bulk_insert(bulk)
    for key in (key for key in KEYS if held[key]):
        same(spec, copy.query(key)[0], held[key])
    w.check_invariants(lambda monoid, one, other: close(monoid.lower(one), monoid.lower(other), 1e-7))


@pytest.mark.parametrize("granularity", [None, 4])
@pytest.mark.parametrize("seed", HISTORIES)
def test_several_keys_series_and_rollups(seed, granularity):
    others = {} if granularity is None else {"granularity": granularity}
    spec = WindowSpec.parse(document(SMALL, rollups=[[]], **others))
    w = Window(spec, block=4, pages=(2, 4))
    held = written(w, seed)
    everything = sorted((each for entries in held.values() for each in entries), key=lambda each: each["time"])
    answer = w.range_query(0, 10**6, keys=ALL_KEYS)
    same(spec, answer, everything)
    for key in KEYS:
        if held[key]:
            series = w.series(0, everything[-1]["time"] + 1, 4, None, key)
            for i, start in enumerate(series.times.tolist()):
                bucket = [each for each in held[key] if start <= each["time"] < start + 4]
                for name, value in expected(spec, bucket).items():
                    assert close(value, series.aggregates[name].tolist()[i] if bucket else value, 1e-9), name


def test_nan_is_a_value_and_a_placeholder_is_none():
    spec = WindowSpec.parse(document({"last": {"function": "last", "field": "s"}, **SMALL}, keyed=False))
    w = Window(spec)
    w.bulk_insert(Batch.of(spec, [1, 2], {"x": [float("nan"), None], "n": [None, None], "s": [None, "a"]}))
    answer = w.query()[0].aggregates
    assert answer["nx"] == 1
    assert np.isnan(answer["sum"])
    assert (answer["last"], answer["max"], answer["n"]) == ("a", None, 2)
    masked = np.ma.masked_array([7.0, 8.0], [True, False])
    w.bulk_insert(Batch.of(spec, [3, 4], {"x": masked, "n": [1, 2], "s": ["b", "c"]}))
    assert w.query(lookbacks=[2])[0].aggregates == {"last": "c", "sum": 8.0, "max": 2, "n": 2, "nx": 1}


def test_aggregates_of_one_field_with_other_parameters_are_apart():
    ranks = {f"q{q}": {"function": "quantile", "field": "x", "q": q} for q in (0.0, 0.5, 1.0)}
    spec = WindowSpec.parse(document(ranks, keyed=False))
    w = Window(spec)
    w.bulk_insert(Batch.of(spec, [1, 2, 3, 4], {"x": [1.0, None, 2.0, 5.0], "n": [None] * 4, "s": [None] * 4}))
    assert w.query()[0].aggregates == {"q0.0": 1.0, "q0.5": 2.0, "q1.0": 5.0}


@pytest.mark.parametrize("equal_times", ["first", "last"])
def test_entries_of_equal_times(equal_times):
    spec = WindowSpec.parse(document(SMALL, keyed=False, order={"equal_times": equal_times}))
    w = Window(spec, block=2)
    held = {}
    rows = [(i, float(i), i) for i in range(6)] + [(1, None, 7), (5, 50.0, None), (3, None, None), (4, 1.0, 1)]
    for time, x, n in rows:
        w.insert(time, {"x": x, "n": n})
        held[time] = held[time] if time in held and equal_times == "first" else {"x": x, "n": n, "s": None}
    bulk = [(3, 2.0, None), (4, None, 3), (4, None, None), (9, None, 2)]
    columns = {"x": [x for _, x, _ in bulk], "n": [n for _, _, n in bulk], "s": [None] * 4}
    w.bulk_insert(Batch.of(spec, [time for time, _, _ in bulk], columns))
    for time, x, n in bulk:
        held[time] = held[time] if time in held and equal_times == "first" else {"x": x, "n": n, "s": None}
    same(spec, w.query()[0], [{"time": time} | held[time] for time in sorted(held)])


def test_one_spec_has_one_form():
    one, other = (WindowSpec.parse(document(SMALL, nullable=names)) for names in (["x", "n"], ["n", "x"]))
    assert one == other
    assert WindowSpec.parse(document(SMALL, nullable=[])).document() == {
        name: value for name, value in one.document().items() if name != "nullable"
    }


def test_a_null_in_a_field_that_may_not_be_null_is_refused():
    spec = WindowSpec.parse(document(SMALL, nullable=["x"]))
    w = Window(spec)
    with pytest.raises(InvalidArgument, match="field 'n' is null in row 1: only fields that the spec names") as caught:
        w.bulk_insert(Batch.of(spec, [1, 2], {"x": [None, 1.0], "n": [3, None], "s": ["a", "b"]}, ["a", "a"]))
    assert caught.value.field == "n"
    refused(w.insert, 1, {"s": "a"}, "a", match="field 'n' is missing")
    refused(w.insert, 1, {"s": "a", "n": 1, "y": 2}, "a", match="has no field 'y'")
    assert w.info().entries == 0


def test_a_condition_on_a_null_does_not_hold():
    spec = WindowSpec.parse(document(SMALL, keyed=False, slide={"when": "total.sum > 10.0"}))
    w = Window(spec)
    w.insert(1, {})
    w.insert(2, {"n": 1})
    assert w.info().entries == 2
    w.insert(3, {"x": 11.0})
    assert w.info().entries == 0


@pytest.mark.parametrize("source_granularity", [None, 2])
def test_cascades_and_views(source_granularity):
    panes = {} if source_granularity is None else {"granularity": source_granularity}
    spec = WindowSpec.parse(document(SMALL, **panes))
    w = Window(spec, block=4, pages=(2, 4))
    own = {"name": "c", "from": {"window": "w", "granularity": 4}, "slide": {}}
    cascade = WindowSpec.parse({**document(SMALL), **own})
    view = completed(WindowSpec.parse({"name": "v", "of": "w", "aggregates": SMALL}), spec)
    with pytest.raises(InvalidArgument) as caught:
        w.derive(WindowSpec.parse({**document(SMALL), **own, "nullable": ["x"]}))
    assert caught.value.field == "nullable"
    fed, shown = w.derive(cascade), w.derive(view)
    values = [(1, None, 3, "a"), (2, 2.0, None, "a"), (5, 4.0, 1, None)]
    held = [dict(zip(("time", "x", "n", "s"), each, strict=True)) for each in values]
    send(w, [("a", each) for each in held], False)
    for each in (w, fed, shown):
        same(spec, each.reader.query(Query("a"))[0], held)
    assert shown.spec.nullable == ["n", "s", "x"]


def test_retractions_and_updates():
    spec = WindowSpec.parse(document(SMALL, keyed=False, identity="n", nullable=["x", "s"]))
    w = Window(spec, block=2)
    columns = {"x": [1.0, None, 3.0, None], "n": [1, 2, 3, 4], "s": [None, "b", "c", "d"]}
    w.bulk_insert(Batch.of(spec, [1, 2, 3, 4], columns))
    w.update(Batch.of(spec, [1, 2], {"x": [None, 2.0], "n": [1, 2], "s": ["a", None]}))
    w.retract(Batch.of(spec, [3], {"n": [3]}))
    assert w.query()[0].aggregates == {"sum": 2.0, "max": 4, "n": 3, "nx": 1}
    w.check_invariants(None)
