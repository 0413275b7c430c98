"""Messages with many map entries are refused before they are parsed, at a cost that does not depend on how many."""

import sys

import numpy as np
import pytest

from sash.rpc import sizes
from sash.rpc.sizes import FIELDS_MAX, MAP_ENTRIES_MAX
from sash_engine.errors import InvalidArgument
from sash_engine.steps import finished
from sash_proto.v1 import windows_pb2 as pb
from tests.support.collector import no_collection


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
LATER = b"\xa1\x06" + bytes(8) + b"\xa5\x06" + bytes(4)
"""Fields of a later version, of eight bytes and of four."""


def check(kind, data):
    finished(sizes.check_size(kind, data))


@pytest.mark.parametrize("make", MADE)
def test_so_many_names_are_taken_and_no_more(make):
    check(type(make(1)), LATER + make(MAP_ENTRIES_MAX).SerializeToString())
    with pytest.raises(InvalidArgument, match="too many names") as error:
        check(type(make(1)), LATER + make(MAP_ENTRIES_MAX + 1).SerializeToString())
    assert error.value.field == "fields"


@pytest.mark.parametrize("make", MADE)
def test_any_message_that_is_cut_short_is_left_to_the_parser(make):
    data = make(3).SerializeToString()
    for stop in range(len(data)):
        check(type(make(1)), data[:stop])
    for at in range(len(data)):
        for byte in (0, 0x7F, 0x80, 0xFF, 3, 4, 6):
            check(type(make(1)), data[:at] + bytes([byte]) + data[at + 1 :])


def test_columns_are_skipped_and_not_looked_into():
    assert calls(lambda: check(pb.BulkInsertRequest, bulk(3, 10).SerializeToString())) == calls(
        lambda: check(pb.BulkInsertRequest, bulk(3, 100_000).SerializeToString())
    )


def test_a_message_without_maps_is_not_looked_into():
    def keys(count):
        return pb.ListKeysRequest(window="w", prefix="a" * count).SerializeToString()

    assert calls(lambda: check(pb.ListKeysRequest, keys(10))) == calls(lambda: check(pb.ListKeysRequest, keys(100_000)))


def test_a_refusal_costs_the_same_however_many_names_there_are():
    def refuse(count):
        data = bulk(count).SerializeToString()

        def refused():
            with pytest.raises(InvalidArgument):
                check(pb.BulkInsertRequest, data)

        return refused

    assert abs(calls(refuse(10_000)) - calls(refuse(20_000))) <= 5


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (pb.InsertRequest, b"\0"),  # a field that there is not
        (pb.InsertRequest, b"\xa0\x06\x01"),  # one of a later version
        (pb.InsertRequest, b"\x10\x05"),  # `time`, again and again
        (pb.BulkInsertRequest, b"\xa0\x06\x01"),
        (pb.AddAggregatesRequest, b"\xa0\x06\x01"),
        (pb.CreateWindowRequest, b"\x0a\x00"),  # `spec`, again and again
        (pb.CreateWindowRequest, b"\x0a\x05\xa0\x06\x01\xa8\x06"),
        (pb.StageBatchRequest, b"\x0a\x03\xa0\x06\x01"),
    ],
)
def test_many_other_fields_are_refused_at_the_same_cost(kind, field):
    """Fifteen megabytes of them held the event loop for 16 s, whatever rights the caller had."""

    def refuse(count):
        def refused():
            with pytest.raises(InvalidArgument, match="too many fields"):
                check(kind, field * count)

        return refused

    assert abs(calls(refuse(100_000)) - calls(refuse(200_000))) <= 5


@pytest.mark.parametrize("depth", [1, 5])
def test_maps_within_values_are_counted(depth):
    """A map of a million names in one value was parsed: 0.8 s, in which nothing else ran."""

    def nested(names):
        message = pb.InsertRequest(window="w")
        value = message.fields["f"]
        for _ in range(depth - 1):
            value = value.list.items.add()
        for i in range(names):
            value.map.entries[f"{i}"].float64 = i
        return message.SerializeToString()

    check(pb.InsertRequest, nested(MAP_ENTRIES_MAX))
    with pytest.raises(InvalidArgument, match="entries has too many names"):
        check(pb.InsertRequest, nested(MAP_ENTRIES_MAX + 1))


def test_parameters_of_aggregates_are_counted():
    message = pb.AddAggregatesRequest(window="w")
    for i in range(MAP_ENTRIES_MAX + 1):
        message.aggregates["a"].parameters[f"{i}"].float64 = i
    with pytest.raises(InvalidArgument, match="parameters has too many names"):
        check(pb.AddAggregatesRequest, message.SerializeToString())


def test_a_message_that_is_nested_deep_is_left_to_the_parser():
    data = b""
    for _ in range(2000):
        for number in (1, 5):  # an item of a list; the list of a value
            data = bytes([number << 3 | 2]) + length_of(data) + data
    entry = b"\x12" + length_of(data) + data
    check(pb.InsertRequest, b"\x2a" + length_of(entry) + entry)


def length_of(data):
    """How long the data are, as protobuf writes it."""
    length, found = len(data), b""
    while length > 0x7F:
        found, length = found + bytes([length & 0x7F | 0x80]), length >> 7
    return found + bytes([length])


def test_as_many_fields_as_there_may_be():
    field = b"\xa0\x06\x01"
    check(pb.InsertRequest, field * FIELDS_MAX)
    with pytest.raises(InvalidArgument, match="too many fields") as error:
        check(pb.InsertRequest, field * (FIELDS_MAX + 1))
    assert error.value.limit == f"{FIELDS_MAX} fields"


def calls(work):
    """How many functions a piece of work calls, in Python and in C."""
    work()  # what is the same for all messages of a kind is found once
    count = 0

    def called(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    with no_collection():
        sys.setprofile(called)
        try:
            work()
        finally:
            sys.setprofile(None)
    return count
