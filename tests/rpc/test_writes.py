"""What only messages say: streams of writes, codes of strings, partials, and columns of series."""

import numpy as np

from sash_proto.v1 import windows_pb2 as pb
from tests.rpc.conftest import made
from tests.support.messages import aggregates, bulk, float64, int64, plain, strings
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


# ---------------------------------------------------------------- columns of series


def numbers(data):
    return np.frombuffer(data, "<i8").tolist()


def test_the_columns_of_a_series(stub):
    functions = {"mean": "mean", "last": "last", "all": "collect", "low": "min", "total": "sum"}
    each = {name: pb.AggregateSpec(function=function) for name, function in functions.items()}
    spec = pb.WindowSpec(name="kinds", time_unit="none", fields={"i": "int64"}, aggregates=each)
    for window in made(stub, spec):
        columns = {"i": pb.Column(int64=int64(7, 2**63 - 1, 2**63 - 1))}
        stub.BulkInsert(pb.BulkInsertRequest(window=window, time=int64(1, 3, 3), fields=columns))
        found = stub.Series(pb.SeriesRequest(window=window, start=1, end=4, step="1")).aggregates
        assert np.frombuffer(found["mean"].float64, "<f8")[::2].tolist() == [7.0, 2.0**63]
        for name in ("mean", "last", "low"):
            assert found[name].valid == bytes([1, 0, 1])
            assert not found[name].HasField("values")
        assert numbers(found["last"].int64)[::2] == numbers(found["low"].int64)[::2] == [7, 2**63 - 1]
        # Integers of more than 64 bits, and lists, are values.
        assert [each.WhichOneof("kind") for each in found["total"].values.items] == ["int64", "int64", "integer"]
        assert [plain(each) for each in found["all"].values.items] == [[7], [], [2**63 - 1] * 2]
        nothing = stub.Series(pb.SeriesRequest(window=window, start=50, end=52, step="1")).aggregates
        assert [plain(each) for each in nothing["last"].values.items] == [None, None]
