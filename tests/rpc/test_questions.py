"""Several keys, series, keys by name, further aggregates, policies, and inserts that are answered."""

import math

import numpy as np
import pytest

from sash_proto.v1 import windows_pb2 as pb
from tests.rpc.conftest import made
from tests.support.messages import aggregates, bulk, int64, plain, strings
from tests.support.rpc_errors import refuse


def of(**functions):
    return {name: pb.AggregateSpec(function=function) for name, function in functions.items()}


@pytest.fixture
def delays(stub):
    """JFK and LGA, commutative aggregates only.

    time   0   5  10  15  20  25
    JFK    1       3       5
    LGA       10              20
    """
    spec = pb.WindowSpec(name="delays", time_unit="s", keyed=True, aggregates=of(n="count", mean="mean"))
    for name in made(stub, spec):
        request = bulk(name, [0, 10, 20, 5, 25], [1, 3, 5, 10, 20])
        request.key.CopyFrom(strings(["JFK", "LGA"], 0, 0, 0, 1, 1))
        assert stub.BulkInsert(request).inserted == 5
        yield name


def numbers(data):
    return np.frombuffer(data, "<i8").tolist()


def test_several_keys(stub, delays):
    def query(**question):
        found = stub.Query(pb.QueryRequest(window=delays, **question)).answers
        return [(each.key, each.entries, aggregates(each)["mean"]) for each in found]

    both = [("LGA", 2, 15.0), ("JFK", 3, 3.0)]
    assert query(keys=["LGA", "JFK"]) == both
    assert query(all_keys=True) == both[::-1]
    assert query(keys=["LGA"]) == both[:1]
    (together,) = stub.Query(pb.QueryRequest(window=delays, all_keys=True, combine=True)).answers
    assert not together.HasField("key")
    assert (together.start, together.end, aggregates(together)) == (0, 25, {"n": 5, "mean": 7.8})
    for which in ({"keys": ["JFK", "LGA"]}, {"all_keys": True}):
        ranged = stub.RangeQuery(pb.RangeQueryRequest(window=delays, start=5, end=10, **which))
        assert aggregates(ranged) == {"n": 2, "mean": 6.5}
        assert not ranged.HasField("key")


def test_key_and_keys_and_all_keys_exclude_one_another(stub, delays):
    for call, request in (
        (stub.Query, pb.QueryRequest(window=delays)),
        (stub.RangeQuery, pb.RangeQueryRequest(window=delays, start=1, end=2)),
        (stub.Series, pb.SeriesRequest(window=delays, start=1, end=2, step="1")),
    ):
        for which, field in (
            ({"key": "JFK", "keys": ["LGA"]}, "keys"),
            ({"key": "JFK", "all_keys": True}, "all_keys"),
            ({"keys": ["LGA"], "all_keys": True}, "keys"),
            ({"key": "JFK", "keys": ["LGA"], "all_keys": True}, "keys"),
            ({}, "key"),
            ({"keys": ["JFK", ""]}, "key"),
        ):
            wrong = type(request)(**which)
            wrong.MergeFrom(request)
            refuse(call, wrong, "INVALID_ARGUMENT", field)
    refuse(stub.Query, pb.QueryRequest(window=delays, key="JFK", combine=True), "INVALID_ARGUMENT", "combine")


def test_what_depends_on_order_is_not_combined(stub, typed):
    refuse(stub.Query, pb.QueryRequest(window=typed, all_keys=True, combine=True), "UNIMPLEMENTED", "keys")
    ranged = pb.RangeQueryRequest(window=typed, start=1, end=2, all_keys=True)
    refuse(stub.RangeQuery, ranged, "UNIMPLEMENTED", "keys")
    series = pb.SeriesRequest(window=typed, start=1, end=2, step="1", keys=["a", "b"])
    refuse(stub.Series, series, "UNIMPLEMENTED", "keys")


# ---------------------------------------------------------------- series


def test_a_series(stub, delays):
    asked = {"window": delays, "start": 0, "end": 25, "step": "10s"}
    found = stub.Series(pb.SeriesRequest(**asked, width="15", key="JFK"))
    # bucket 0 .. 15: 1, 3    10 .. 25: 3, 5    20 .. 35: 5
    assert (found.key, found.width) == ("JFK", 15)
    assert (numbers(found.time), numbers(found.entries)) == ([0, 10, 20], [2, 2, 1])
    assert numbers(found.aggregates["n"].int64) == [2, 2, 1]
    assert np.frombuffer(found.aggregates["mean"].float64, "<f8").tolist() == [2.0, 4.0, 5.0]
    assert not any(column.valid or column.HasField("values") for column in found.aggregates.values())
    together = stub.Series(pb.SeriesRequest(**asked, all_keys=True))
    assert not together.HasField("key")
    assert (together.width, numbers(together.entries)) == (10, [2, 1, 2])


def test_the_columns_of_a_series(stub):
    functions = {"mean": "mean", "last": "last", "all": "collect", "low": "min", "total": "sum"}
    spec = pb.WindowSpec(name="kinds", time_unit="none", fields={"i": "int64"}, aggregates=of(**functions))
    for name in made(stub, spec):
        columns = {"i": pb.Column(int64=int64(7, 2**63 - 1, 2**63 - 1))}
        stub.BulkInsert(pb.BulkInsertRequest(window=name, time=int64(1, 3, 3), fields=columns))
        found = stub.Series(pb.SeriesRequest(window=name, start=1, end=4, step="1")).aggregates
        assert np.frombuffer(found["mean"].float64, "<f8")[::2].tolist() == [7.0, 2.0**63]
        for each in ("mean", "last", "low"):
            assert found[each].valid == bytes([1, 0, 1])
            assert not found[each].HasField("values")
        assert numbers(found["last"].int64)[::2] == numbers(found["low"].int64)[::2] == [7, 2**63 - 1]
        # Integers of more than 64 bits, and lists, are values.
        assert [each.WhichOneof("kind") for each in found["total"].values.items] == ["int64", "int64", "integer"]
        assert [plain(each) for each in found["all"].values.items] == [[7], [], [2**63 - 1] * 2]
        nothing = stub.Series(pb.SeriesRequest(window=name, start=50, end=52, step="1")).aggregates
        assert [plain(each) for each in nothing["last"].values.items] == [None, None]


def test_a_series_of_strings_bools_and_specials(stub):
    fields = {"f": "float64", "s": "string", "b": "bool"}
    each = {name: pb.AggregateSpec(function="first", field=name) for name in fields}
    for name in made(stub, pb.WindowSpec(name="others", fields=fields, aggregates=each)):
        columns = {
            "f": pb.Column(float64=np.array([math.nan, -math.inf, -0.0], "<f8").tobytes()),
            "s": pb.Column(string=strings(["ä", ""], 0, 1, 0)),
            "b": pb.Column(bool=b"\x01\x00\x01"),
        }
        stub.BulkInsert(pb.BulkInsertRequest(window=name, time=int64(1, 2, 3), fields=columns))
        found = stub.Series(pb.SeriesRequest(window=name, start=1, end=4, step="1")).aggregates
        assert found["f"].float64 == columns["f"].float64
        assert [plain(item) for item in found["s"].values.items] == ["ä", "", "ä"]
        assert [plain(item) for item in found["b"].values.items] == [True, False, True]


@pytest.mark.parametrize(
    ("question", "field"),
    [
        ({"end": 2, "step": "1"}, "start"),
        ({"start": 1, "step": "1"}, "end"),
        ({"start": 1, "end": 2}, "step"),
        ({"start": 2, "end": 2, "step": "1"}, "start"),
        ({"start": 1, "end": 2, "step": "0"}, "step"),
        ({"start": 1, "end": 2, "step": "soon"}, "step"),
        ({"start": 1, "end": 2, "step": "1", "width": "-1"}, "width"),
        ({"start": 0, "end": 10**9, "step": "1"}, "step"),
        ({"start": -(2**63), "end": 2, "step": "1"}, "start"),
        ({"start": 0, "end": 2**63 - 1, "step": "1"}, "end"),
    ],
)
def test_a_wrong_series(stub, delays, question, field):
    refuse(stub.Series, pb.SeriesRequest(window=delays, key="JFK", **question), "INVALID_ARGUMENT", field)


def test_too_many_buckets_names_the_limit(stub, delays):
    request = pb.SeriesRequest(window=delays, key="JFK", start=0, end=10**9, step="1")
    refuse(stub.Series, request, "INVALID_ARGUMENT", "step", "buckets")


# ---------------------------------------------------------------- keys and aggregates


def test_keys_are_listed(stub, delays):
    assert list(stub.ListKeys(pb.ListKeysRequest(window=delays)).keys) == ["JFK", "LGA"]
    assert list(stub.ListKeys(pb.ListKeysRequest(window=delays, prefix="L")).keys) == ["LGA"]
    first = stub.ListKeys(pb.ListKeysRequest(window=delays, limit=1))
    assert (list(first.keys), first.HasField("next")) == (["JFK"], True)
    second = stub.ListKeys(pb.ListKeysRequest(window=delays, limit=1, position=first.next))
    assert (list(second.keys), second.HasField("next")) == (["LGA"], False)
    assert not stub.ListKeys(pb.ListKeysRequest(window=delays, position=10**9)).keys
    refuse(stub.ListKeys, pb.ListKeysRequest(window=delays, position=-1), "INVALID_ARGUMENT", "position")
    for limit in (0, -1, 2**63 - 1):
        request = pb.ListKeysRequest(window=delays, limit=limit)
        refuse(stub.ListKeys, request, "INVALID_ARGUMENT", "limit", "1 to")


def test_an_aggregate_is_added_to_a_live_window(stub, delays):
    request = pb.AddAggregatesRequest(window=delays, aggregates=of(longest="max"))
    added = stub.AddAggregates(request)
    assert added.spec.aggregates["longest"].function == "max"
    assert added == stub.AddAggregates(request) == stub.GetWindow(pb.GetWindowRequest(name=delays))
    (answer,) = stub.Query(pb.QueryRequest(window=delays, key="JFK")).answers
    assert aggregates(answer) == {"n": 3, "mean": 3.0, "longest": 5.0}
    for wrong, code, field in (
        (of(mean="max"), "ALREADY_EXISTS", "aggregates.mean"),
        (of(p="nope"), "INVALID_ARGUMENT", "aggregates.p.function"),
        ({"p": pb.AggregateSpec()}, "INVALID_ARGUMENT", "aggregates.p.function"),
    ):
        request = pb.AddAggregatesRequest(window=delays, aggregates=of(good="min") | wrong)
        refuse(stub.AddAggregates, request, code, field)
    assert stub.GetWindow(pb.GetWindowRequest(name=delays)) == added


def test_an_unknown_window(stub):
    for call, request in (
        (stub.Series, pb.SeriesRequest(window="unknown", start=1, end=2, step="1")),
        (stub.ListKeys, pb.ListKeysRequest(window="unknown")),
        (stub.AddAggregates, pb.AddAggregatesRequest(window="unknown", aggregates=of(n="count"))),
    ):
        refuse(call, request, "NOT_FOUND", "window")


# ---------------------------------------------------------------- writes


def test_an_insert_is_answered(stub, delays):
    entry = pb.InsertRequest(window=delays, key="JFK", time=30, value=7)
    assert not stub.Insert(entry).answers
    entry.answer = True
    assert [each.entries for each in stub.Insert(entry).answers] == [5]
    entry.lookbacks.extend(["1s", "21"])
    done = stub.Insert(entry)
    assert done.inserted == 1
    assert [aggregates(each)["mean"] for each in done.answers] == [7.0, 5.8]  # 3, 5 and three times 7
    entry.answer = False
    before = stub.GetWindow(pb.GetWindowRequest(name=delays))
    refuse(stub.Insert, entry, "INVALID_ARGUMENT", "lookbacks")
    entry.answer = True
    entry.lookbacks.append("soon")
    refuse(stub.Insert, entry, "INVALID_ARGUMENT", "lookback")
    assert stub.GetWindow(pb.GetWindowRequest(name=delays)) == before


def test_duplicates_are_answered_for(stub):
    spec = pb.WindowSpec(name="latest", aggregates=of(all="collect"), order=pb.OrderPolicy(equal_times="last"))
    for name in made(stub, spec):
        done = stub.BulkInsert(bulk(name, [1, 2, 2], [1, 2, 3]))
        assert (done.inserted, done.duplicates) == (2, 1)
        assert stub.Insert(pb.InsertRequest(window=name, time=1, value=9)).duplicates == 1
        shown = stub.GetWindow(pb.GetWindowRequest(name=name))
        assert (shown.counts.inserted, shown.counts.duplicates) == (2, 2)
        (answer,) = stub.Query(pb.QueryRequest(window=name)).answers
        assert aggregates(answer)["all"] == [9.0, 3.0]


def test_a_predicate_slides_the_window(stub):
    """What leaves is the longest prefix that leaves more than 10 behind."""
    slide = pb.SlidePolicy(when="total.sum - old.sum > 10.0", clock="event")
    spec = pb.WindowSpec(name="ten", aggregates=of(sum="sum", all="collect"), slide=slide)
    for name in made(stub, spec):
        assert stub.GetWindow(pb.GetWindowRequest(name=name)).spec.slide == slide
        evicted = [
            stub.Insert(pb.InsertRequest(window=name, time=time, value=value)).evicted
            for time, value in enumerate([1, 7, 2, 4, 3])
        ]
        assert evicted == [0, 0, 0, 1, 0]  # 1 + 7 + 2 + 4 is 14 with the 1, and 13 without
        (answer,) = stub.Query(pb.QueryRequest(window=name)).answers
        assert aggregates(answer)["all"] == [7, 2, 4, 3]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"slide": pb.SlidePolicy(clock="sun")}, "slide.clock"),
        ({"slide": pb.SlidePolicy(when="total.n >")}, "slide.when"),
        ({"order": pb.OrderPolicy(out_of_order="sometimes")}, "order.out_of_order"),
        ({"order": pb.OrderPolicy(equal_times="all")}, "order.equal_times"),
        ({"idle_expiry": "soon"}, "idle_expiry"),
        ({"algorithm": "magic"}, "algorithm"),
    ],
)
def test_a_bad_policy(stub, spec, field):
    request = pb.CreateWindowRequest(spec=pb.WindowSpec(name="w", aggregates=of(n="count"), **spec))
    refuse(stub.CreateWindow, request, "INVALID_ARGUMENT", field)


def test_an_order_that_is_rejected(stub):
    order = pb.OrderPolicy(out_of_order="reject", equal_times="reject")
    for name in made(stub, pb.WindowSpec(name="strict", aggregates=of(n="count"), order=order)):
        stub.Insert(pb.InsertRequest(window=name, time=10, value=1))
        for time in (9, 10):
            request = pb.InsertRequest(window=name, time=time, value=1)
            refuse(stub.Insert, request, "FAILED_PRECONDITION", "time")
            refuse(stub.BulkInsert, bulk(name, [20, time], [1, 2]), "FAILED_PRECONDITION", "time")
        assert stub.GetWindow(pb.GetWindowRequest(name=name)).entries == 1
