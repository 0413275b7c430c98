"""What only messages say of writes: streams of them, codes of strings, and partials."""

import numpy as np
import pytest

from sash_proto.v1 import windows_pb2 as pb
from tests.rpc.conftest import made
from tests.support.messages import aggregates, bulk, float64, int64, strings
from tests.support.rpc_errors import refuse


def entries(stub, window):
    return stub.GetWindow(pb.GetWindowRequest(name=window)).entries


# ---------------------------------------------------------------- once


def test_a_stream_is_applied_once(stub, window):
    requests = [bulk(window, [i], [i]) for i in range(20)]
    for sequence, request in enumerate(requests, 1):
        request.producer, request.sequence = "sensor-7", sequence
    assert not any(each.already_applied for each in stub.InsertStream(iter(requests)))
    assert all(each.already_applied for each in stub.InsertStream(iter(requests)))
    assert entries(stub, window) == 20


def test_a_stream_ends_at_a_used_number_with_other_data(stub, window):
    requests = [bulk(window, [i], [i]) for i in range(5)]
    for sequence, request in enumerate(requests, 1):
        request.producer, request.sequence = "sensor-7", sequence
    assert len(list(stub.InsertStream(iter(requests)))) == 5
    requests[3].fields["value"].float64 = np.array([9.0]).tobytes()
    refuse(lambda sent: list(stub.InsertStream(sent)), iter(requests), "FAILED_PRECONDITION", "sequence", "6",
           "SEQUENCE_REUSED")  # fmt: skip
    assert entries(stub, window) == 5


# ---------------------------------------------------------------- columns and partials


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


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"entries": b"123"}, "entries"),
        ({"fields": {"value": pb.Column(float64=float64(1))}}, "partials"),  # values and partials
        ({"partials": {"mean": pb.PartialColumns(columns=[pb.Column(int64=b"123")])}}, "partials.mean"),
        ({"partials": {"mean": pb.PartialColumns(columns=[pb.Column()])}}, "partials.mean"),
        ({"partials": {"mean": pb.PartialColumns(columns=[pb.Column(string=strings(["x"], 0))])}}, "partials.mean"),
    ],
)
def test_wrong_partials(stub, window, change, field):
    request = pb.BulkInsertRequest(window=window, time=int64(1), **{"entries": int64(1), **change})
    refuse(stub.BulkInsert, request, "INVALID_ARGUMENT", field)


def test_a_field_that_is_called_partials_or_entries(stub):
    """Fields have a map of their own: nothing is mistaken for them."""
    mean = pb.PartialColumns(columns=[pb.Column(int64=int64(2)), pb.Column(float64=float64(8))])
    for name in ("partials", "entries"):
        mean_of = {"mean": pb.AggregateSpec(function="mean", field=name)}
        spec = pb.WindowSpec(name="odd", time_unit="s", granularity="10", fields={name: "float64"}, aggregates=mean_of)
        for window in made(stub, spec):
            one = {name: pb.Value(float64=1)}
            assert stub.Insert(pb.InsertRequest(window=window, time=10, fields=one)).inserted == 1
            some = {name: pb.Column(float64=float64(2, 5))}
            request = pb.BulkInsertRequest(window=window, time=int64(10, 10), fields=some)
            assert stub.BulkInsert(request).inserted == 2
            request = pb.BulkInsertRequest(window=window, time=int64(10), partials={"mean": mean}, entries=int64(2))
            assert stub.BulkInsert(request).inserted == 2
            (answer,) = stub.Query(pb.QueryRequest(window=window, partials=True)).answers
            assert (answer.entries, aggregates(answer)) == (5, {"mean": 3.2})
            again = next(stub.Entries(pb.EntriesRequest(window=window)))
            assert stub.BulkInsert(again).inserted == 5
