"""Keys by their parts, and questions that select and group them, over gRPC."""

import numpy as np
import pytest

from sash_proto.v1 import windows_pb2 as pb
from sash_wire.coded import Coded
from sash_wire.columns import fill_strings
from tests.support.messages import bulk
from tests.support.rpc_errors import refuse

FLIGHTS = [("JFK", "AA", 1.0), ("JFK", "B6", 2.0), ("LGA", "AA", 4.0), ("JFK", "AA", 8.0)]


@pytest.fixture
def flights(stub):
    spec = pb.WindowSpec(name="flights", time_unit="s", keys=["airport", "carrier"])
    spec.aggregates["n"].function = "count"
    spec.aggregates["sum"].function = "sum"
    created = stub.CreateWindow(pb.CreateWindowRequest(spec=spec))
    assert (created.window.spec.keyed, list(created.window.spec.keys)) == (True, ["airport", "carrier"])
    request = bulk("flights", [10, 11, 12, 13], [value for *_, value in FLIGHTS])
    fill_strings(request.parts["airport"], Coded.of([airport for airport, *_ in FLIGHTS]))
    fill_strings(request.parts["carrier"], Coded.of([carrier for _, carrier, _ in FLIGHTS]))
    assert stub.BulkInsert(request).inserted == 4
    yield "flights"
    stub.DeleteWindow(pb.DeleteWindowRequest(name="flights"))


def sums(answers):
    return [(dict(answer.parts), answer.aggregates["sum"].float64) for answer in answers]


def test_one_entry_with_parts(stub, flights):
    request = pb.InsertRequest(window=flights, time=14, value=16, parts={"carrier": "a|b", "airport": ""}, answer=True)
    (answer,) = stub.Insert(request).answers
    assert (answer.key, dict(answer.parts)) == ("|a\\|b", {"airport": "", "carrier": "a|b"})
    assert stub.Query(pb.QueryRequest(window=flights, key="|a\\|b")).answers[0].entries == 1


def test_query_by_a_part_with_top_having_and_pages(stub, flights):
    by_carrier = stub.Query(pb.QueryRequest(window=flights, by=["carrier"]))
    assert sums(by_carrier.answers) == [({"carrier": "AA"}, 13.0), ({"carrier": "B6"}, 2.0)]
    assert not by_carrier.HasField("next")
    top = pb.QueryRequest(window=flights, by=["carrier"], top=pb.Top(by="sum", n=1, order="asc"))
    assert sums(stub.Query(top).answers) == [({"carrier": "B6"}, 2.0)]
    having = pb.QueryRequest(window=flights, by=["carrier"], having=[pb.Having(aggregate="n", op=">", value=1)])
    assert sums(stub.Query(having).answers) == [({"carrier": "AA"}, 13.0)]
    first = stub.Query(pb.QueryRequest(window=flights, by=["carrier"], limit=1))
    assert sums(first.answers) == [({"carrier": "AA"}, 13.0)]
    then = stub.Query(pb.QueryRequest(window=flights, by=["carrier"], limit=1, position=first.next))
    assert (sums(then.answers), then.HasField("next")) == ([({"carrier": "B6"}, 2.0)], False)


def test_where(stub, flights):
    where = [pb.Condition(part="airport", values=["JFK"]), pb.Condition(part="carrier", op="=~", values=["B.*"])]
    (answer,) = stub.Query(pb.QueryRequest(window=flights, where=where)).answers
    assert (answer.key, dict(answer.parts)) == ("JFK|B6", {"airport": "JFK", "carrier": "B6"})
    jfk = where[:1]
    assert stub.RangeQuery(pb.RangeQueryRequest(window=flights, start=0, end=99, where=jfk)).entries == 3
    assert list(stub.ListKeys(pb.ListKeysRequest(window=flights, where=jfk)).keys) == ["JFK|AA", "JFK|B6"]
    (found,) = stub.Entries(pb.EntriesRequest(window=flights, where=jfk))
    assert list(found.key.dictionary) == ["JFK|AA", "JFK|B6"]
    combined = stub.Query(pb.QueryRequest(window=flights, where=jfk, combine=True))
    assert [answer.entries for answer in combined.answers] == [3]


def test_ranges_and_series_of_groups(stub, flights):
    found = stub.RangeQuery(pb.RangeQueryRequest(window=flights, start=11, end=13, by=["airport"]))
    assert sums(found.groups) == [({"airport": "JFK"}, 10.0), ({"airport": "LGA"}, 4.0)]
    series = stub.Series(pb.SeriesRequest(window=flights, start=10, end=14, step="2", by=["airport"], limit=1))
    (group,) = series.groups
    assert dict(group.parts) == {"airport": "JFK"}
    assert np.frombuffer(series.time, "<i8").tolist() == [10, 12]
    assert np.frombuffer(group.entries, "<i8").tolist() == [2, 1]
    assert np.frombuffer(group.aggregates["sum"].float64, "<f8").tolist() == [3.0, 8.0]
    assert series.HasField("next")


def test_many_groups_come_in_parts_with_their_position(stub, flights):
    names = [f"c{i:04}" for i in range(900)]
    request = bulk(flights, [20] * 900, [1.0] * 900)
    fill_strings(request.parts["airport"], Coded.of(["X"] * 900))
    fill_strings(request.parts["carrier"], Coded.of(names))
    stub.BulkInsert(request)
    found = stub.Query(pb.QueryRequest(window=flights, by=["carrier"], limit=901))
    assert [answer.parts["carrier"] for answer in found.answers] == ["AA", "B6", *names[:899]]
    assert found.next == names[898]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.QueryRequest(by=["carriers"]), "by"),
        (pb.QueryRequest(by=["carrier", "carrier"]), "by"),
        (pb.QueryRequest(where=[pb.Condition(part="key", values=["x"])]), "where"),
        (pb.QueryRequest(where=[pb.Condition(part="carrier")]), "where"),
        (pb.QueryRequest(where=[pb.Condition(part="carrier", op="~", values=["x"])]), "where"),
        (pb.QueryRequest(where=[pb.Condition(part="carrier", op="=~", values=["("])]), "where"),
        (pb.QueryRequest(by=["carrier"], top=pb.Top(by="nope")), "top.by"),
        (pb.QueryRequest(by=["carrier"], top=pb.Top(by="n", n=-1)), "top.n"),
        (pb.QueryRequest(by=["carrier"], top=pb.Top(by="n", order="up")), "top.order"),
        (pb.QueryRequest(by=["carrier"], having=[pb.Having(aggregate="n", op="~", value=1)]), "having.op"),
        (pb.QueryRequest(by=["carrier"], limit=0), "limit"),
        (pb.QueryRequest(by=["carrier"], position="x"), "position"),
        (pb.QueryRequest(by=["carrier"], position="a|b", limit=1), "position"),
        (pb.QueryRequest(key="JFK|AA", by=["carrier"]), "key"),
        (pb.QueryRequest(key="JFK"), "key"),
        (pb.QueryRequest(keys=["JFK|AA|x", "JFK|AA"]), "key"),
        (pb.QueryRequest(by=["carrier"], combine=True, all_keys=True), "combine"),
    ],
)
def test_wrong_questions_name_the_field(stub, flights, request_, field):
    request_.window = flights
    refuse(stub.Query, request_, "INVALID_ARGUMENT", field)


@pytest.mark.parametrize(
    ("parts", "field"),
    [({"airport": "a"}, "parts.carrier"), ({"airport": "a", "carrier": "b", "c": "d"}, "parts.c")],
)
def test_wrong_parts_name_the_field(stub, flights, parts, field):
    refuse(stub.Insert, pb.InsertRequest(window=flights, time=1, value=1, parts=parts), "INVALID_ARGUMENT", field)


def test_a_key_of_other_parts_is_refused(stub, flights):
    refuse(stub.Insert, pb.InsertRequest(window=flights, time=1, value=1, key="JFK"), "INVALID_ARGUMENT", "key")
