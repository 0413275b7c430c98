"""What only gRPC says: which keys, and the columns of series. tests/edges compares the rest with the other edges."""

import math

import numpy as np
import pytest

from sash_proto.v1 import windows_pb2 as pb
from tests.rpc.conftest import made
from tests.support.messages import bulk, int64, plain, strings
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


# ---------------------------------------------------------------- series


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
