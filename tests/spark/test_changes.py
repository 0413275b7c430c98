"""A change feed in the sinks: the window has what a dictionary of the same changes has, however often they come again.

Most tests stage and commit as Spark's tasks and driver do, without Spark.
"""

import random

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from sash_client import FailedPrecondition, InvalidArgument, SashClientError, Window
from sash_spark import register, sash_sink
from sash_spark.writing.route import Outcome

pytestmark = pytest.mark.spark

WINDOW = {
    "name": "w",
    "time_unit": "none",
    "keys": ["a", "b"],
    "fields": {"id": "string", "v": "int64"},
    "identity": "id",
    "aggregates": {"sum": {"function": "sum", "field": "v"}},
}
SCHEMA = pa.schema(
    [("_op", pa.string()), ("t", pa.int64()), *((name, pa.string()) for name in ("a", "b", "id")), ("v", pa.int64())]
)
WORDS = {
    "insert": ["insert", "Insert", "c", "r"],
    "update": ["update", "U", "update_postimage"],
    "delete": ["delete", "d "],
}


@pytest.fixture
def window(client):
    return client.create_window(WINDOW)


@pytest.fixture
def route(target, window):
    def made(**options):
        sink = sash_sink(target, **({"window": "w", "time": "t", "op": "_op", "rows_per_call": 5} | options))
        return sink.route.fitted(from_arrow_schema(SCHEMA))

    return made


def batches(rows):
    return iter(pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA).to_batches(7))


def write(route, batch, *partitions):
    return route.commit("q", batch, [route.stage(batches(rows), "q", batch) for rows in partitions], streaming=True)


def present(window):
    found = {}
    for bulk in window.entries():
        for t, key, name, v in zip(
            bulk.times.tolist(), bulk.keys.tolist(), bulk.columns["id"], bulk.columns["v"].tolist(), strict=True
        ):
            assert (t, key, name) not in found
            found[t, key, name] = v
    return found


def changes(rng, model, n):
    """Rows of a micro-batch, and what they make of a model."""
    rows = []
    for _ in range(n):
        entry = rng.randrange(6), rng.choice("x|"), rng.choice("pq"), rng.choice("abc")
        known = (entry[0], f"{entry[1]}|{entry[2]}".replace("||", "\\||"), entry[3])
        if known not in model:
            op = "insert" if rng.random() < 0.8 else rng.choice(["update", "delete"])  # of an entry that is not there
        else:
            op = rng.choice(["update", "delete"])
        v = rng.randrange(100)
        rows.append((rng.choice(WORDS[op]), *entry, None if op == "delete" else v))
        if op == "insert" or (op == "update" and known in model):
            model[known] = v
        elif op == "delete":
            model.pop(known, None)
        if rng.random() < 0.1:
            rows.append(("update_preimage", *entry, v))
    return rows


def split(rng, rows, parts):
    """Partitions: all rows of an entry in one, in order."""
    salt = rng.randrange(100)
    found = [[] for _ in range(parts)]
    for row in rows:
        found[hash((salt, row[1:5])) % parts].append(row)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_the_window_has_what_a_dictionary_has(window, route, monkeypatch, seed):
    rng, model = random.Random(seed), {}
    route = route()
    for batch in range(6):
        rows = changes(rng, model, rng.randrange(30))
        parts = split(rng, rows, 1 + rng.randrange(3))
        if rng.random() < 0.5:  # the driver dies before its commit, and maybe before its last change
            staged = [route.stage(batches(part), "q", batch) for part in parts]
            with monkeypatch.context() as patch:
                patch.setattr(Window, rng.choice(["update", "retract", "commit"]), killed)
                patch.setattr(Window, "commit", killed)
                with pytest.raises(RuntimeError):
                    route.commit("q", batch, staged)
            parts = split(rng, rows, 1 + rng.randrange(3))
        done = write(route, batch, *parts)
        assert not done.already_applied
        assert present(window) == model
        assert write(route, batch, *parts).already_applied
        assert present(window) == model


def killed(*_, **__):
    raise RuntimeError("killed")


def test_counts_add_up(window, route):
    rows = [
        ("insert", 1, "x", "p", "a", 1),
        ("update", 1, "x", "p", "a", 2),  # merged
        ("insert", 2, "x", "p", "a", 1),
        ("delete", 2, "x", "p", "a", None),  # both merged
        ("update", 3, "x", "p", "a", 1),  # missing
        ("delete", 4, "x", "p", "a", None),  # missing
        ("insert", 5, "x", "p", "a", 5),
    ]
    route = route()
    part = route.stage(batches(rows), "q", 0)
    assert (part.arrived, part.staged, part.merged, part.bad) == (7, 2, 3, 0)
    done = route.commit("q", 0, [part])
    assert (done.inserted, done.corrected, done.retracted, done.missing) == (2, 0, 0, 2)
    done = write(route, 1, [("d", 1, "x", "p", "a", None), ("u", 5, "x", "p", "a", 7)])
    assert (done.inserted, done.corrected, done.retracted, done.missing) == (0, 1, 1, 0)
    assert present(window) == {(5, "x|p", "a"): 7}


def test_an_earlier_driver_changes_nothing_after_a_later_one(window, route):
    route = route()
    write(route, 0, [("insert", 1, "x", "p", "a", 1)])
    old = route.stage(batches([("update", 1, "x", "p", "a", 2)]), "q", 1)
    write(route, 1, [("update", 1, "x", "p", "a", 2)])
    write(route, 2, [("update", 1, "x", "p", "a", 3)])
    with pytest.raises(FailedPrecondition, match="epoch"):
        route.commit("q", 1, [old])
    assert present(window) == {(1, "x|p", "a"): 3}


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (("upsert", 1, "x", "p", "a", 1), "_op"),
        ((None, 1, "x", "p", "a", 1), "_op"),
        (("delete", 1, "x", "p", None, 1), "id"),
        (("delete", 1, None, "p", "a", 1), "a"),
        (("update", 1, "x", "p", "a", None), "v"),
        (("insert", None, "x", "p", "a", 1), "t"),
    ],
    ids=str,
)
def test_bad_rows(window, route, row, field):
    good = ("insert", 9, "x", "p", "a", 1)
    with pytest.raises(InvalidArgument) as caught:
        route().stage(batches([good, row]), "q", 0)
    assert caught.value.field == field
    dropping = route(bad_rows="drop")
    part = dropping.stage(batches([good, row]), "q", 0)
    assert (part.arrived, part.bad, part.staged) == (2, 1, 1)
    dropping.commit("q", 0, [part])
    assert present(window) == {(9, "x|p", "a"): 1}


def test_a_window_without_an_identity_takes_no_changes(client, target):
    client.create_window({key: value for key, value in WINDOW.items() if key != "identity"})
    with pytest.raises(InvalidArgument, match="has no identity"):
        sash_sink(target, window="w", time="t", op="_op").route.fitted(from_arrow_schema(SCHEMA))


@pytest.mark.parametrize("options", [{"preaggregate": True}, {"bad_rows": print}], ids=str)
def test_options_that_do_not_go_with_changes(target, options):
    with pytest.raises(SashClientError):
        sash_sink(target, window="w", time="t", op="_op", **options)


def test_columns_may_have_any_names(target, window):
    schema = pa.schema([(name, pa.int64() if name in ("row", "code") else pa.string()) for name in NAMED])
    options = {"time": "row", "op": "op", "parts": {"a": "sort", "b": "key"}, "fields": {"id": "time", "v": "code"}}
    route = sash_sink(target, window="w", **options).route.fitted(from_arrow_schema(schema))
    rows = [("insert", 7, "x", "p", "i", 1), ("update", 7, "x", "p", "i", 2), ("insert", 8, "x", "p", "j", 3)]
    for number, some in enumerate((rows, [("delete", 8, "x", "p", "j", None)])):
        table = pa.Table.from_pylist([dict(zip(NAMED, row, strict=True)) for row in some], schema)
        route.commit("q", number, [route.stage(iter(table.to_batches()), "q", number)], streaming=True)
    assert present(window) == {(7, "x|p", "i"): 2}


NAMED = ("op", "row", "sort", "key", "time", "code")


def test_a_task_without_rows(route):
    assert route().stage(iter(()), "q", 0) == Outcome(0, ())


def test_through_spark(spark, client, target, window):
    register(spark)
    schema = "`_op` string, t long, a string, b string, id string, v long"
    rng, model = random.Random(3), {}
    frames = [spark.createDataFrame(changes(rng, model, 30), schema).coalesce(1) for _ in range(2)]
    sink = sash_sink(target, window="w", time="t", op="_op", query="feed")
    sink(frames[0], 0)
    sink(frames[0], 0)
    options = {"target": target, "window": "w", "time": "t", "op": "_op"}
    for _ in range(2):
        frames[1].write.format("sash").mode("append").options(**options, query="save").save()
    assert present(window) == model
    one = sink.total
    counted = one.inserted + one.corrected + one.retracted + one.missing + one.merged + one.bad
    assert (one.arrived, one.already_applied) == (counted, True)
