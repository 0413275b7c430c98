"""What each method does when all is well."""

import math

import pytest

from sash_proto.v1 import windows_pb2 as pb
from tests.support.messages import aggregates, bulk, float64, int64, strings


def counts(response):
    return response.inserted, response.late, response.evicted


def test_a_window_is_created_once_and_keeps_its_spec(stub):
    spec = pb.WindowSpec(
        name="once",
        time_unit="ns",
        keyed=True,
        fields={"a": "float64", "b": "string"},
        aggregates={"worst": pb.AggregateSpec(function="arg_max", field="a", returns="b")},
        slide=pb.SlidePolicy(max_count=5, max_age="6h", clock="wall"),
        order=pb.OrderPolicy(
            late="reject", out_of_order="reject", equal_times="first", ahead="5m", too_far_ahead="reject"
        ),
        idle_expiry="30d",
    )
    first, again = (stub.CreateWindow(pb.CreateWindowRequest(spec=spec)) for _ in range(2))
    assert (first.created, again.created) == (True, False)
    assert first.window == again.window
    assert first.window.spec == spec
    assert (first.window.entries, first.window.keys) == (0, 0)
    assert not first.window.HasField("oldest")
    assert stub.GetWindow(pb.GetWindowRequest(name="once")) == first.window
    assert list(stub.ListWindows(pb.ListWindowsRequest()).windows) == [first.window]
    assert stub.DeleteWindow(pb.DeleteWindowRequest(name="once")).entries == 0
    assert not stub.ListWindows(pb.ListWindowsRequest()).windows


def test_entries_go_in_and_answers_come_out(stub, window):
    assert counts(stub.Insert(pb.InsertRequest(window=window, time=10, value=1))) == (1, 0, 0)
    assert counts(stub.BulkInsert(bulk(window, [30, 20, 40], [3, 2.5, math.inf]))) == (3, 0, 0)
    recent, whole = stub.Query(pb.QueryRequest(window=window, lookbacks=["11s", "60"])).answers
    assert (recent.start, recent.end, recent.entries, recent.lookback) == (30, 40, 2, "11s")
    assert aggregates(recent) == {"n": 2, "total": math.inf, "all": [3.0, math.inf]}
    assert aggregates(whole)["all"] == [1.0, 2.5, 3.0, math.inf]
    assert not whole.HasField("key")
    (earlier,) = stub.Query(pb.QueryRequest(window=window, lookbacks=["11s"], as_of=30)).answers
    assert aggregates(earlier)["all"] == [2.5, 3.0]
    ranged = stub.RangeQuery(pb.RangeQueryRequest(window=window, start=10, end=30))
    assert aggregates(ranged) == {"n": 3, "total": 6.5, "all": [1.0, 2.5, 3.0]}
    tile = stub.RangeQuery(pb.RangeQueryRequest(window=window, start=10, end=30, end_exclusive=True))
    assert (tile.start, tile.end, aggregates(tile)["all"]) == (10, 29, [1.0, 2.5])
    (found,) = stub.Entries(pb.EntriesRequest(window=window, start=10, end=30, end_exclusive=True))
    assert found.time == int64(10, 20)
    assert stub.BulkEvict(pb.BulkEvictRequest(window=window, time=20)).evicted == 2
    shown = stub.GetWindow(pb.GetWindowRequest(name=window))
    assert (shown.entries, shown.oldest, shown.newest, shown.high_water_mark) == (2, 30, 40, 40)
    stub.BulkEvict(pb.BulkEvictRequest(window=window, time=40))
    shown = stub.GetWindow(pb.GetWindowRequest(name=window))
    assert (shown.entries, shown.HasField("newest"), shown.high_water_mark) == (0, False, 40)
    assert (shown.counts.inserted, shown.counts.late, shown.counts.evicted) == (4, 0, 4)


def test_an_empty_window_answers_with_nothing(stub, window):
    (answer,) = stub.Query(pb.QueryRequest(window=window)).answers
    assert answer.entries == 0
    assert aggregates(answer) == {"n": 0, "total": 0.0, "all": []}


def test_every_type_goes_through(stub, typed):
    values = {
        "f": pb.Value(float64=-0.0),
        "i": pb.Value(int64=-(2**63)),
        "s": pb.Value(string="ä"),
        "b": pb.Value(bool=True),
    }
    assert stub.Insert(pb.InsertRequest(window=typed, key="k", time=1, fields=values)).inserted == 1
    columns = {
        "f": pb.Column(float64=float64(0.5, 1.5, 2.5)),
        "i": pb.Column(int64=int64(2**63 - 1, 0, 1)),
        "s": pb.Column(string=strings(["x", ""], 1, 0, 0)),
        "b": pb.Column(bool=b"\x00\x01\x00"),
    }
    keys = strings(["j", "k", "unused"], 1, 0, 1)
    request = pb.BulkInsertRequest(window=typed, time=int64(2, 3, 4), fields=columns, key=keys)
    assert stub.BulkInsert(request).inserted == 3
    (answer,) = stub.Query(pb.QueryRequest(window=typed, key="k")).answers
    assert answer.key == "k"
    found = aggregates(answer)
    assert found == {
        "n": 3,
        "f": [0.0, 0.5, 2.5],
        "i": [-(2**63), 2**63 - 1, 1],
        "s": ["ä", "", "x"],
        "b": [True, False, False],
    }
    assert math.copysign(1, found["f"][0]) == -1
    assert stub.GetWindow(pb.GetWindowRequest(name=typed)).keys == 2


def test_one_string_under_two_codes_is_one_key(stub, typed):
    columns = {
        "f": pb.Column(float64=float64(1, 2, 3)),
        "i": pb.Column(int64=int64(1, 2, 3)),
        "s": pb.Column(string=strings(["x", "x"], 0, 1, 0)),
        "b": pb.Column(bool=b"\x00\x00\x00"),
    }
    keys = strings(["k", "other", "k"], 0, 2, 0)
    request = pb.BulkInsertRequest(window=typed, time=int64(1, 1, 1), fields=columns, key=keys)
    assert stub.BulkInsert(request).inserted == 3
    (answer,) = stub.Query(pb.QueryRequest(window=typed, key="k")).answers
    assert aggregates(answer)["i"] == [1, 2, 3]  # equal times keep arrival order


def test_an_answer_outside_int64(stub):
    spec = pb.WindowSpec(name="wide", fields={"i": "int64"}, aggregates={"total": pb.AggregateSpec(function="sum")})
    stub.CreateWindow(pb.CreateWindowRequest(spec=spec))
    for sign in (1, -1):
        values = [sign * (2**63 - 1)] * 3
        columns = {"i": pb.Column(int64=int64(*values))}
        stub.BulkInsert(pb.BulkInsertRequest(window="wide", time=int64(1, 2, 3), fields=columns))
        (answer,) = stub.Query(pb.QueryRequest(window="wide")).answers
        total = answer.aggregates["total"]
        assert total.WhichOneof("kind") == "integer"
        assert int.from_bytes(total.integer, "little", signed=True) == sum(values)
        stub.BulkEvict(pb.BulkEvictRequest(window="wide", time=3))
    stub.DeleteWindow(pb.DeleteWindowRequest(name="wide"))


def test_no_answer_is_an_empty_value(stub):
    spec = pb.WindowSpec(name="nothing", aggregates={"mean": pb.AggregateSpec(function="mean")})
    stub.CreateWindow(pb.CreateWindowRequest(spec=spec))
    (answer,) = stub.Query(pb.QueryRequest(window="nothing")).answers
    assert aggregates(answer) == {"mean": None}
    stub.DeleteWindow(pb.DeleteWindowRequest(name="nothing"))


def test_parameters_of_an_aggregate_go_through(stub):
    """A list of numbers, as the bounds of a histogram; shown as it was given."""
    bounds = pb.Value(list=pb.ValueList(items=[pb.Value(float64=0.5), pb.Value(int64=2)]))
    spec = pb.WindowSpec(
        name="bounds", aggregates={"h": pb.AggregateSpec(function="histogram", parameters={"bounds": bounds})}
    )
    created = stub.CreateWindow(pb.CreateWindowRequest(spec=spec))
    assert created.window.spec.aggregates["h"].parameters["bounds"] == bounds
    stub.DeleteWindow(pb.DeleteWindowRequest(name="bounds"))


@pytest.mark.parametrize("n", [0, 1, 1023, 1024, 1025, 20_000])
def test_bulks_of_many_sizes(stub, window, n):
    response = stub.BulkInsert(bulk(window, range(n), range(n)))
    assert counts(response) == (n, 0, 0)
    (answer,) = stub.Query(pb.QueryRequest(window=window)).answers
    assert aggregates(answer)["all"] == list(range(n))
