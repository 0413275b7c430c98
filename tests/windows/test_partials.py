"""Partials of panes, in and out of a window."""

import json
import math
from dataclasses import replace

import datasketches as ds
import numpy as np
import pytest

from sash_engine.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from sash_engine.monoids import laws
from sash_engine.monoids.base import Monoid, Read, object_array
from sash_engine.monoids.pane import imported
from sash_engine.windows.batches.batch import Coded, PartialBatch
from sash_engine.windows.keys.pages import PAGES
from sash_engine.windows.questions import SeriesQuery
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import ALL_KEYS, Window
from tests.support.pane_windows import BASE, window
from tests.support.windows import bulk, functions

# ---------------------------------------------------------------- partials in and out


def partials_of(w, start, end, key=None):
    answer = w.range_query(start, end, key, partials=True)
    return answer.partials, answer.entries


def test_partials_in_are_as_good_as_entries():
    aggregates = BASE["aggregates"] | functions(sd="stddev", p50="quantile", mean="mean")
    w = window(keyed=True, aggregates=aggregates)
    document = BASE | {"aggregates": aggregates}
    del document["granularity"]
    entries = Window(WindowSpec.parse(document))
    entries.bulk_insert(bulk([(t, (t * 7) % 11) for t in range(60)]))
    rows = [(5, 0, 4), (7, 5, 9), (33, 30, 34), (20, 20, 29)]
    found = [partials_of(entries, a, b) for _, a, b in rows]
    columns = {
        name: tuple(np.concatenate(parts) for parts in zip(*(partials[name] for partials, _ in found), strict=True))
        for name in aggregates
        if name != "n"
    }
    counts = np.array([n for _, n in found])
    assert counts.tolist() == [5, 5, 5, 10]
    result = w.bulk_insert(
        PartialBatch(np.array([time for time, _, _ in rows]), columns, counts, Coded.of(["a"] * 4)),
    )
    assert result.inserted == w.info().entries == 25
    plain = window(keyed=True, aggregates=aggregates)
    plain.bulk_insert(bulk([(t, (t * 7) % 11) for t in range(60) if t < 10 or 20 <= t < 35], ["a"] * 25))
    (expected,), (answer,) = plain.query("a", [], None), w.query("a", [], None)
    assert laws.close(expected.aggregates, answer.aggregates, 1e-12)
    assert (expected.start, expected.end) == (answer.start, answer.end)


def test_partials_out_of_nothing_have_no_rows():
    w = window(keyed=True)
    for answer in (*w.query("nobody", [], None, partials=True), w.range_query(1, 2, "nobody", partials=True)):
        assert {name: [len(part) for part in parts] for name, parts in answer.partials.items()} == {
            "n": [0],
            "all": [0],
            "sum": [0],
            "when": [0, 0],
        }
    w.insert(1, {"value": 5}, "a")
    (whole,) = w.query("a", [], None, partials=True)
    (trailing,) = w.query("a", [10], None, partials=True)
    (up_to,) = w.query("a", [], 7, partials=True)
    for answer in (whole, trailing, up_to):
        assert answer.partials["n"][0].tolist() == [1]
        assert answer.partials["all"][0].tolist() == [b"[5]"]
        assert answer.partials["sum"][0].tolist() == [b"\x05"]
        assert [part.tolist() for part in answer.partials["when"]] == [[5], [1]]
    assert w.query("a", [], None)[0].partials is None


@pytest.mark.parametrize("pages", [PAGES, None])
def test_a_series_of_one_key_has_the_partials_of_its_answers(pages):
    document = {name: each for name, each in BASE.items() if name != "granularity"}
    w = Window(WindowSpec.parse(document | {"keyed": True}), pages=pages)
    w.bulk_insert(bulk([(t, (t * 7) % 11) for t in range(40)], ["a"] * 40))
    asked = SeriesQuery(0, 40, 10, key="a")
    plain, given = w.reader.series(asked), w.reader.series(replace(asked, partials=True))
    assert plain.partials is None
    assert given.partials is not None
    for name in ("all", "sum"):
        monoid, _ = w.spec.monoids()[name]
        partials = monoid.unpack(imported(monoid, given.partials[name], given.entries, name))
        assert list(map(monoid.lower, partials)) == plain.aggregates[name].tolist()


def test_partials_of_many_keys_together():
    w = window(keyed=True, aggregates={"sd": {"function": "stddev"}})
    w.bulk_insert(bulk([(1, 1), (2, 3)], ["a", "b"]))
    (answer,) = w.query(None, [], None, ALL_KEYS, combine=True, partials=True)
    assert [part.tolist() for part in answer.partials["sd"]] == [[2], [2.0], [2.0]]


def test_late_partials_count_their_entries():
    w = window(aggregates={"sum": {"function": "sum"}}, slide={"max_age": 10})
    w.insert(50, {"value": 1}, None)
    result = w.bulk_insert(partial_rows([1, 52], {"sum": (np.array([7, 8]),)}, [3, 4]))
    assert (result.inserted, result.late) == (4, 3)
    assert w.query(None, [], None)[0].aggregates["sum"] == 9
    strict = window(aggregates={"sum": {"function": "sum"}}, slide={"max_age": 10}, order={"late": "reject"})
    strict.insert(50, {"value": 1}, None)
    with pytest.raises(FailedPrecondition, match="3 of this write"):
        strict.bulk_insert(partial_rows([1, 52], {"sum": (np.array([7, 8]),)}, [3, 4]))


def partial_rows(times, partials, entries):
    return PartialBatch(np.array(times, np.int64), partials, np.array(entries))


EVERYTHING = functions(
    n="count",
    mean="mean x",
    whole="mean n",
    sum="sum n",
    sd="stddev x",
    low="min_count x",
    span="range x",
    who={"function": "arg_max", "field": "x", "returns": "s"},
    first="first s",
    all="collect n",
    kinds="collect_distinct n",
    bars={"function": "histogram", "field": "x", "bounds": [0, 1]},
    users="distinct_count s",
    p50="quantile x",
    top="frequent_items s",
    seen={"function": "bloom", "field": "s", "capacity": 10},
    run="longest_increasing_run x",
    slope="linear_slope x",
    m4="m4 x",
)


def blob(data):
    return (object_array([data]),)


def ints(*parts):
    return tuple(np.array([part]) for part in parts)


def full_window():
    return window(fields={"x": "float64", "n": "int64", "s": "string"}, aggregates=EVERYTHING)


@pytest.fixture(scope="module")
def good():
    w = full_window()
    for x in (1.0, 2.0):
        w.insert(3, {"x": x, "n": 5, "s": "ann"}, None)
    return w.query(None, [], None, partials=True)[0].partials


@pytest.mark.parametrize("bars", [[1, 1], [0, 1, 1], [0, 2, 1, 0], [0, 1, 1, 0, 0], [0, -1, 3, 0]])
def test_a_histogram_of_another_shape_is_refused(good, bars):
    refused(good, {"bars": blob(json.dumps(bars).encode())}, "partials.bars")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"mean": None}, "partials.mean"),
        ({"other": ints(1)}, "partials.other"),
        ({"n": ints(3)}, "partials.n"),
        ({"mean": ints(2)}, "partials.mean"),
        ({"mean": ints(2, 3)}, "partials.mean"),
        ({"mean": ints(3, 3.0)}, "partials.mean"),
        ({"mean": (np.array([2, 2]), np.array([1.0, 1.0]))}, "partials.mean"),
        ({"mean": blob(b"[2, 3.0]")}, "partials.mean"),
        ({"whole": blob(b"[2, 3.5]")}, "partials.whole"),
        ({"whole": blob(b"[2]")}, "partials.whole"),
        ({"whole": blob(b"[1, 3]")}, "partials.whole"),
        ({"whole": ints(2, 3.0)}, "partials.whole"),
        ({"sum": blob((2**70).to_bytes(20, "little"))}, "partials.sum"),
        ({"sum": blob("5")}, "partials.sum"),
        ({"sum": ints(5.0)}, "partials.sum"),
        ({"sd": ints(2, 1.0, -0.5)}, "partials.sd"),
        ({"sd": ints(1, 1.0, 0.5)}, "partials.sd"),
        ({"low": ints(1.0, 3)}, "partials.low"),
        ({"low": ints(1.0, 0)}, "partials.low"),
        ({"span": ints(2.0, 1.0)}, "partials.span"),
        ({"who": blob(b"[1.5, 7]")}, "partials.who"),
        ({"who": blob(b'[1.5, "\\ud800"]')}, "partials.who"),
        ({"first": blob(b"7")}, "partials.first"),
        ({"first": blob(b"")}, "partials.first"),
        ({"first": blob(b"\xff")}, "partials.first"),
        ({"first": blob(b"[" * 100_000)}, "partials.first"),
        ({"all": blob(b"{}")}, "partials.all"),
        ({"all": blob(b'"ab"')}, "partials.all"),
        ({"all": blob(b"[1]")}, "partials.all"),
        ({"all": blob(b"[1, 2.5]")}, "partials.all"),
        ({"all": blob(b"[1, 9223372036854775808]")}, "partials.all"),
        ({"kinds": blob(b"[1, 2, 3]")}, "partials.kinds"),
        ({"kinds": blob(b"[]")}, "partials.kinds"),
        ({"users": blob(b"no sketch")}, "partials.users"),
        ({"p50": blob(b"")}, "partials.p50"),
        ({"top": blob(b"\x00" * 8)}, "partials.top"),
        ({"seen": blob(b"\x00" * 40)}, "partials.seen"),
        ({"run": ints(2, 1.0, 1.0, 3, 1, 1, 1, 1, 1, 1)}, "partials.run"),
        ({"slope": ints(2, 1, 0.0, 1.0, -1.0, 0.0)}, "partials.slope"),
        ({"m4": ints(*(1, 1.0) * 2, 1, 3.0, 1, 2.0)}, "partials.m4"),
    ],
)
def test_what_is_no_partial_is_named(good, change, field):
    refused(good, change, field)


class Longest(Monoid):
    """An aggregate of somebody else's, which does not check what it reads."""

    function = "longest"
    reads = (Read("field", ("string",)),)
    commutative = True
    answer = int
    identity = ""

    def lift(self, value):
        return value

    def combine(self, older, newer):
        return max(older, newer, key=len)

    def lower(self, partial):
        return len(partial)


def test_numbers_are_no_partials_of_texts():
    with pytest.raises(InvalidArgument, match="must be one column of bytes"):
        imported(Longest(), (np.array([7]),), np.array([1]), "longest")


def test_partials_of_an_aggregate_that_reads_anything_are_tried_out():
    (partial,) = imported(Longest(), blob(b'"ann"'), np.array([1]), "longest")
    assert partial.tolist() == ["ann"]
    with pytest.raises(InvalidArgument, match="row 0 cannot be the longest of 1 entries"):
        imported(Longest(), blob(b"7"), np.array([1]), "longest")


def test_sketches_of_too_many_entries_are_refused(good):
    many = ds.kll_doubles_sketch(200)
    many.update(np.arange(3.0))
    refused(good, {"p50": blob(many.serialize())}, "partials.p50")
    floats = ds.kll_floats_sketch(200)
    floats.update(np.arange(2, dtype=np.float32))
    refused(good, {"p50": blob(floats.serialize())}, "partials.p50")


def refused(good, change, field):
    partials = {name: parts for name, parts in (good | change).items() if parts is not None}
    w = full_window()
    w.bulk_insert(partial_rows([1], good, [2]))
    with pytest.raises(InvalidArgument) as caught:
        w.bulk_insert(partial_rows([1], partials, [2]))
    assert caught.value.field == field
    assert w.info().entries == 2
    assert w.query(None, [], None)[0].aggregates["all"] == [5, 5]


@pytest.mark.parametrize(
    ("batch", "field"),
    [
        (partial_rows([1], {}, [1]), "partials.sum"),
        (partial_rows([1], {"sum": ints(1)}, [0]), "entries"),
        (partial_rows([1], {"sum": ints(1)}, [2**41]), "entries"),
        (partial_rows([1], {"sum": ints(1)}, [1.0]), "entries"),
        (partial_rows([1], {"sum": ints(1)}, [1, 1]), "entries"),
        (PartialBatch(np.array([1]), {"sum": ints(1)}, np.array([1]), Coded.of(["a"])), "key"),
    ],
)
def test_wrong_partials_are_refused_whole(batch, field):
    w = window(aggregates={"sum": {"function": "sum"}})
    with pytest.raises(InvalidArgument) as caught:
        w.bulk_insert(batch)
    assert caught.value.field == field


def test_a_window_of_entries_takes_no_partials():
    w = Window(WindowSpec.parse({"name": "w", "aggregates": {"sum": {"function": "sum"}}}))
    with pytest.raises(InvalidArgument, match="granularity") as caught:
        w.bulk_insert(partial_rows([1], {"sum": ints(1.0)}, [1]))
    assert caught.value.field == "partials"


def test_an_empty_write_of_partials_changes_nothing():
    w = window(aggregates={"sum": {"function": "sum"}})
    assert w.bulk_insert(partial_rows([], {"sum": (np.empty(0, np.int64),)}, np.empty(0, np.int64))).inserted == 0


@pytest.mark.parametrize("kind", [ds.HLL_4, ds.HLL_6, ds.HLL_8])
@pytest.mark.parametrize("lg_k", [8, 12, 17])
@pytest.mark.parametrize("form", ["serialize_compact", "serialize_updatable"])
@pytest.mark.parametrize("n", [0, 5, 3000])
def test_hll_sketches_of_any_size_and_form_come_in(kind, lg_k, form, n):
    sketch = ds.hll_sketch(lg_k, kind)
    for i in range(n):
        sketch.update(str(i))
    w = window(fields={"s": "string"}, aggregates={"users": {"function": "distinct_count"}})
    w.bulk_insert(partial_rows([1], {"users": blob(getattr(sketch, form)())}, [max(n, 1)]))
    w.insert(2, {"s": "0"}, None)
    found = w.query(None, [], None)[0].aggregates["users"]
    assert abs(found - max(n, 1)) <= 0.2 * n
    (out,) = w.query(None, [], None, partials=True)[0].partials["users"][0].tolist()
    assert ds.hll_sketch.deserialize(out).lg_config_k == (min(lg_k, 12) if n > 5 else 12)


@pytest.mark.parametrize("k", [20, 200, 800])
@pytest.mark.parametrize("n", [0, 1, 5000])
def test_kll_sketches_of_any_size_come_in(k, n):
    sketch = ds.kll_doubles_sketch(k)
    sketch.update(np.arange(float(n)))
    w = window(fields={"x": "float64"}, aggregates={"p": {"function": "quantile"}})
    w.bulk_insert(partial_rows([1, 2], {"p": (object_array([sketch.serialize()] * 2),)}, [max(n, 1)] * 2))
    found = w.query(None, [], None)[0].aggregates["p"]
    assert found is None if not n else math.isclose(found, n / 2, abs_tol=0.1 * n + 1)


# ---------------------------------------------------------------- more entries than can be counted


def test_entries_that_are_more_than_can_be_counted_are_refused():
    """Each row may stand for 2^40: whatever is summed of what a window was sent stays an int64."""
    w = Window(WindowSpec.parse(BASE | {"aggregates": {"n": {"function": "count"}}}))
    rows = 2**21
    many = PartialBatch(np.zeros(rows, np.int64), {}, np.full(rows, 2**40))
    assert w.bulk_insert(many).inserted == 2**61
    w.bulk_evict(10, None)
    with pytest.raises(ResourceExhausted) as caught:  # though there is nothing in it now
        w.bulk_insert(many)
    assert (caught.value.field, caught.value.limit) == ("entries", f"{2**62} entries")
    with pytest.raises(ResourceExhausted):
        Window(w.spec).bulk_insert(PartialBatch(np.zeros(2 * rows, np.int64), {}, np.full(2 * rows, 2**40)))
    assert w.insert(20, {"value": 1}, None).inserted == 1
    assert (w.info().entries, w.counts.inserted) == (1, 2**61 + 1)
    w.check_invariants()
