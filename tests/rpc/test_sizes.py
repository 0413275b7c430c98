"""Messages with many map entries are refused before they are parsed, at a cost that does not depend on how many."""

import sys

import grpc
import numpy as np
import pytest

from sash.rpc import sizes
from sash.rpc.sizes import MAP_ENTRIES_MAX, check_size
from sash_engine.errors import InvalidArgument
from sash_engine.windows.costs import MAX_ANSWERS
from sash_proto.v1 import windows_pb2 as pb


def bulk(fields, rows=1):
    message = pb.BulkInsertRequest(window="w", time=np.arange(rows).tobytes(), key=pb.Strings(dictionary=["a"]))
    for i in range(fields):
        message.fields[f"field {i}"].float64 = bytes(8 * rows)
    return message


def insert(fields):
    message = pb.InsertRequest(window="w", time=5, answer=True)
    for i in range(fields):
        message.fields[f"field {i}"].float64 = i
    return message


def create(fields):
    return pb.CreateWindowRequest(spec=pb.WindowSpec(name="w", fields={f"field {i}": "float64" for i in range(fields)}))


def staged(fields):
    return pb.StageBatchRequest(entries=bulk(fields), query="q", batch=0)


MADE = [bulk, insert, create, staged]


@pytest.fixture
def all_are_long(monkeypatch):
    monkeypatch.setattr(sizes, "_LONG_BYTES", 0)


@pytest.mark.parametrize("make", MADE)
def test_so_many_names_are_taken_and_no_more(make, all_are_long):
    check_size(type(make(1)), make(MAP_ENTRIES_MAX).SerializeToString())
    with pytest.raises(InvalidArgument, match="too many names") as error:
        check_size(type(make(1)), make(MAP_ENTRIES_MAX + 1).SerializeToString())
    assert error.value.field == "fields"


@pytest.mark.parametrize("make", MADE)
def test_any_message_that_is_cut_short_is_left_to_the_parser(make, all_are_long):
    data = make(3).SerializeToString()
    for stop in range(len(data)):
        check_size(type(make(1)), data[:stop])
    for at in range(len(data)):
        for byte in (0, 0x7F, 0x80, 0xFF, 3, 4, 6):
            check_size(type(make(1)), data[:at] + bytes([byte]) + data[at + 1 :])


def test_columns_are_skipped_and_not_looked_into(all_are_long):
    assert calls(lambda: check_size(pb.BulkInsertRequest, bulk(3, 10).SerializeToString())) == calls(
        lambda: check_size(pb.BulkInsertRequest, bulk(3, 100_000).SerializeToString())
    )


def test_a_message_without_maps_is_not_looked_into(all_are_long):
    def keys(count):
        return pb.ListKeysRequest(window="w", prefix="a" * count).SerializeToString()

    assert calls(lambda: check_size(pb.ListKeysRequest, keys(10))) == calls(
        lambda: check_size(pb.ListKeysRequest, keys(100_000))
    )


@pytest.mark.parametrize("length", [0, 1, 127, 128])
def test_a_query_may_name_as_many_keys_as_it_may_have_answers(length):
    most = pb.QueryRequest(window="w" * 200, keys=["a" * length] * MAX_ANSWERS, lookbacks=["5m"], as_of=5, combine=True)
    check_size(pb.QueryRequest, most.SerializeToString())
    most.keys.extend(["a" * length] * 16)
    with pytest.raises(InvalidArgument, match="more than 100000 keys and lookbacks") as error:
        check_size(pb.QueryRequest, most.SerializeToString())
    assert (error.value.field, error.value.limit) == ("keys", f"{MAX_ANSWERS} answers")


def test_many_lookbacks_are_refused_like_many_keys():
    with pytest.raises(InvalidArgument, match="keys and lookbacks"):
        check_size(pb.QueryRequest, pb.QueryRequest(lookbacks=["1s"] * 2 * MAX_ANSWERS).SerializeToString())


def test_a_long_query_that_is_cut_short_is_left_to_the_parser(monkeypatch):
    monkeypatch.setattr(sizes, "_QUERY_FIELDS_MAX", 8)
    query = pb.QueryRequest(window="w" * 200, keys=["a", "b" * 130], lookbacks=["5m"], as_of=-5, combine=True)
    data = query.SerializeToString()
    for stop in range(len(data)):
        check_size(pb.QueryRequest, data[:stop])
    for at in range(len(data)):
        for byte in (3, 4, 6, 7):
            check_size(pb.QueryRequest, data[:at] + bytes([byte]))


def test_a_query_of_too_many_keys_is_refused_before_its_window_is_looked_for(stub):
    asked = pb.QueryRequest(window="nowhere", keys=["a"] * 3 * MAX_ANSWERS)
    with pytest.raises(grpc.RpcError) as error:
        stub.Query(asked)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "keys and lookbacks" in error.value.details()


def test_a_refusal_costs_the_same_however_many_names_there_are():
    def refuse(count):
        data = bulk(count).SerializeToString()

        def refused():
            with pytest.raises(InvalidArgument):
                check_size(pb.BulkInsertRequest, data)

        return refused

    assert calls(refuse(10_000)) == calls(refuse(20_000))


def calls(work):
    """How many functions a piece of work calls, in Python and in C."""
    count = 0

    def called(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count
