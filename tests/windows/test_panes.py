"""Panes: what one is, partials of them in and out, and what is refused. Answers against the fold: test_conformance."""

import json
import math
from dataclasses import replace
from functools import partial

import datasketches as ds
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sash_engine.errors import FailedPrecondition, InvalidArgument, ResourceExhausted, Unsupported
from sash_engine.forest import Forest, Layout, PaneLayout
from sash_engine.monoids import BUILT_IN, Sum, laws
from sash_engine.monoids.base import Monoid, Read, object_array
from sash_engine.monoids.pane import Pane, exported, imported, partials_table
from sash_engine.windows.batches.batch import Coded, PartialBatch
from sash_engine.windows.batches.panes import Panes
from sash_engine.windows.keys.pages import PAGES
from sash_engine.windows.questions import SeriesQuery
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import ALL_KEYS, Window
from tests.support import windows
from tests.support.aggregates import every_case, label, samples
from tests.support.refused import refused
from tests.support.windows import bulk, content, functions

FEW = settings.default.max_examples // 10
AGGREGATES = {name: windows.BASE["aggregates"][name] for name in ("n", "all", "sum")} | {
    "when": {"function": "arg_max"}
}
PANES = {"granularity": 10, "aggregates": AGGREGATES}
BASE = windows.BASE | PANES
window = partial(windows.window, **PANES)

# ---------------------------------------------------------------- what a pane is


def test_a_range_covers_the_panes_that_start_in_it():
    w = window()
    w.bulk_insert(bulk([(5, 0), (15, 1), (19, 2), (25, 3)]))
    assert w.range_query(1, 10, None).aggregates["all"] == [1, 2]
    assert w.range_query(11, 19, None).aggregates["all"] == []
    (answer,) = w.query(None, [20], None)
    assert (answer.start, answer.end, answer.entries) == (1, 20, 3)
    series = w.series(0, 40, 20, None, None)
    assert series.entries.tolist() == [3, 1]
    assert series.entries.dtype == np.int64
    assert series.aggregates["n"].tolist() == [3, 1]
    assert series.aggregates["all"].tolist() == [[0, 1, 2], [3]]
    assert window().series(0, 40, 20, None, None).entries.tolist() == [0, 0]


def test_an_aggregate_that_reads_the_time_reads_the_entrys_own():
    w = window()
    w.bulk_insert(bulk([(11, 1), (17, 8), (19, 2)]))
    assert w.insert(13, {"value": 7}, None, answer=True).answers[0].aggregates["when"] == 17
    w.insert(18, {"value": 9}, None)
    assert w.query(None, [], None)[0].aggregates["when"] == 18


def test_when_is_asked_about_entries_and_evicts_panes():
    w = window(slide={"when": "total.entries - old.entries >= 3"})
    result = w.bulk_insert(bulk([(1, 0), (2, 1), (11, 2), (12, 3), (21, 4)]))
    assert result.evicted == 2
    assert content(w) == [2, 3, 4]
    assert w.insert(22, {"value": 5}, None).evicted == 0
    assert w.insert(23, {"value": 6}, None).evicted == 2
    assert content(w) == [4, 5, 6]


def test_order_goes_by_panes():
    w = window(order={"out_of_order": "reject"})
    w.bulk_insert(bulk([(15, 0), (11, 1), (20, 2)]))
    w.insert(25, {"value": 3}, None)
    w.insert(21, {"value": 4}, None)
    refused(w.insert, 19, {"value": 5}, None, error=FailedPrecondition)
    refused(w.bulk_insert, bulk([(30, 6), (29, 7)]), error=FailedPrecondition)
    assert content(w) == [0, 1, 2, 3, 4]


def test_the_first_time_of_all_has_no_pane():
    w = window(granularity=1000)
    for insert in (
        lambda: w.insert(-(2**63) + 5, {"value": 1}, None),
        lambda: w.bulk_insert(bulk([(-(2**63) + 5, 1)])),
    ):
        assert refused(insert).field == "time"
    w.insert(2**63 - 2, {"value": 1}, None)
    assert w.info().newest == (2**63 - 2) // 1000 * 1000


def test_no_aggregate_can_be_computed_from_panes():
    w = window()
    w.insert(1, {"value": 1}, None)
    assert w.add_aggregates({"sum": {"function": "sum"}}).entries == 1
    assert (
        refused(
            w.add_aggregates,
            {"sum": {"function": "sum"}, "mean": {"function": "mean"}},
            error=Unsupported,
            match="'mean'",
        ).field
        == "aggregates.mean"
    )
    assert set(w.spec.aggregates) == set(BASE["aggregates"])


# ---------------------------------------------------------------- what it costs


class Counting(Sum):
    """Counts what is asked of it."""

    combines = folds = 0

    def combine(self, older, newer):
        Counting.combines += 1
        return super().combine(older, newer)

    def fold(self, partials):
        Counting.folds += len(partials[0])
        return super().fold(partials)


@pytest.mark.parametrize("panes", range(1, 20))
def test_an_entry_of_the_open_pane_and_a_query_cost_a_few_combines(panes):
    forest = Forest(PaneLayout(Layout({"value": "float64"}, {"sum": (Counting(), ["value"])}, block=8)))
    for time in range(panes):
        forest.insert(time, [1, 1.0])
    forest.query()
    Counting.combines = Counting.folds = 0
    for i in range(1, 11):
        forest.insert(panes - 1, [1, 1.0])
        assert forest.query() == [panes + i]
    assert Counting.combines <= 3 * 10
    assert not Counting.folds
    forest.check_invariants()


# ---------------------------------------------------------------- the aggregates of panes


@pytest.mark.parametrize("monoid", every_case(), ids=label)
@settings(max_examples=FEW)
@given(data=st.data())
def test_panes_obey_the_laws(monoid, data):
    values = data.draw(samples(monoid, max_size=6))
    if len(values[0]):
        cuts = data.draw(st.lists(st.integers(0, len(values[0]) - 1), max_size=4))
        starts = np.unique([0, *cuts]).astype(np.int64)
        laws.check(Pane(monoid), monoid.reduce_segments(values, starts))


def test_the_table_of_partials_has_every_aggregate():
    for monoid in every_case():
        assert len(monoid.parts) == len(set(monoid.parts)) == len(monoid.dtypes), "every part has a name"
        assert monoid.fixed == (object not in monoid.dtypes)
    table = {function: (columns, blob) for function, columns, blob in partials_table(BUILT_IN)}
    assert list(table) == [monoid.function for monoid in BUILT_IN]
    assert table["kurtosis"] == ("entries int64, mean float64, m2 float64, m3 float64, m4 float64", "")
    assert table["sum"] == ("sum float64", "int64: the integer in two's complement, little-endian")
    assert all(columns or blob for columns, blob in table.values())


@pytest.mark.parametrize("monoid", every_case(), ids=label)
@settings(max_examples=FEW)
@given(data=st.data())
def test_what_goes_out_comes_in(monoid, data):
    values = data.draw(samples(monoid, special=True))
    n = len(values[0])
    if n:
        partial = monoid.reduce(values)
        (again,) = monoid.unpack(imported(monoid, exported(monoid, [partial]), np.array([n]), "it"))
        assert laws.close(monoid.lower(partial), monoid.lower(again), 0.0)


def test_strings_integers_and_sketches_are_stored_as_bytes_and_strings():
    aggregates = functions(
        mean="mean n",
        sum="sum n",
        min="min s",
        who={"function": "arg_max", "field": "n", "returns": "s"},
        all="collect s",
        users="distinct_count s",
    )
    panes = Panes(WindowSpec.parse(BASE | {"fields": {"n": "int64", "s": "string"}, "aggregates": aggregates}))
    rows = [np.array([0, 10]), np.array([2**62, -3]), np.array(["a", "b"], object), np.array([4, 12])]
    _, columns = panes.folded(rows, np.array([2]), partials=False)
    stored = panes.layout.stored(columns)
    assert all(type(item) in (bytes, str) for column in stored if column.dtype == object for item in column)
    loaded = panes.layout.loaded(stored)
    for row in (0, 1):
        answers = [panes.layout.lower(1, panes.layout.reduce_rows(which, row, row + 1)) for which in (columns, loaded)]
        assert answers[0] == answers[1]


# ---------------------------------------------------------------- partials of panes, in and out of a window


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
    refused_whole(good, {"bars": blob(json.dumps(bars).encode())}, "partials.bars")


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
    refused_whole(good, change, field)


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
    refused_whole(good, {"p50": blob(many.serialize())}, "partials.p50")
    floats = ds.kll_floats_sketch(200)
    floats.update(np.arange(2, dtype=np.float32))
    refused_whole(good, {"p50": blob(floats.serialize())}, "partials.p50")


def refused_whole(good, change, field):
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
