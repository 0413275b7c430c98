"""Bulks become messages within the limits, in order, with nothing lost, and come back as bulks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_client import Bulk
from sash_client.data.bulks import checked, from_bulk, from_partials
from sash_client.data.wire import from_answer
from sash_proto.v1 import windows_pb2 as pb
from tests.support.refused import field_of

SPEC = pb.WindowSpec(name="w", keyed=True, fields={"delay": "float64", "n": "int64", "carrier": "string", "on": "bool"})
ROOMY = {"entries_max": 1000, "bytes_max": 2**20}


def rows_of(bulk):
    """The rows of a bulk, as plain values."""
    columns = [column.tolist() for _, column in sorted((bulk.columns or {}).items())]
    parts = [list(part) for _, parts in sorted((bulk.partials or {}).items()) for part in parts]
    counts = [] if bulk.entries is None else [bulk.entries.tolist()]
    return list(zip(bulk.times.tolist(), bulk.keys.tolist(), *columns, *parts, *counts, strict=True))


@given(
    n=st.integers(0, 300),
    entries_max=st.integers(1, 400),
    bytes_max=st.integers(1, 4000),
    partials=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_bulk_is_split_under_both_limits(n, entries_max, bytes_max, partials, seed):
    random = np.random.default_rng(seed)
    times, delays = random.integers(-100, 100, n), random.normal(size=n)
    carriers = [f"{'long ' * 5}carrier {i}" for i in random.integers(0, 200, n)]
    keys = [f"key {i}" for i in random.integers(0, 3, n)]
    if partials:
        sketches = [random.bytes(i % 40) for i in range(n)] if n else np.zeros(0)
        parts = {"mean": {"count": times, "mean": delays}, "n": times, "top": [carriers or np.zeros(0), delays > 0]}
        bulk = Bulk(times, keys=keys, partials=parts | {"users": sketches}, entries=np.arange(n))
        expected = zip(times, keys, times, delays, times, carriers, delays > 0, sketches, range(n), strict=True)
    else:
        bulk = Bulk(times, {"delay": delays, "n": times, "carrier": carriers, "on": delays > 0}, keys)
        expected = zip(times, keys, carriers, delays, times, delays > 0, strict=True)
    limits = {"entries_max": entries_max, "bytes_max": bytes_max}
    requests = list(checked(bulk, SPEC).requests("w", **limits))
    assert [row for request in requests for row in rows_of(from_bulk(request))] == list(expected)
    for request in requests:
        entries = len(request.time) // 8
        assert entries <= entries_max
        assert request.ByteSize() <= bytes_max or entries <= 1
        assert request.HasField("key")
    assert len(requests) >= 1


@pytest.mark.parametrize(
    "bulk",
    [
        Bulk([1, 2], {"delay": [1.0, np.inf], "n": [1, -(2**63)], "carrier": ["ü", ""], "on": [True, False]}, "k"),
        Bulk([3], {"delay": [0.5], "n": [1], "carrier": ["a"], "on": [True]}, ["a"]),
        Bulk([1], keys=["a"], partials={"users": [b"\0\1\0"], "sum": np.array([1.5])}, entries=[7]),
    ],
)
def test_what_came_back_may_be_sent_again(bulk):
    (request,) = checked(bulk, SPEC).requests("w", **ROOMY)
    back = from_bulk(request)
    assert len(back) == len(bulk)
    assert list(checked(back, SPEC).requests("w", **ROOMY)) == [request]


def test_a_bulk_within_the_limits_is_one_request_of_the_very_bytes():
    times = np.arange(1000)
    spec = pb.WindowSpec(fields={"on": "bool", "n": "int64"})
    (request,) = checked(Bulk(times, {"on": times % 2 == 0, "n": times}), spec).requests("w", **ROOMY)
    assert request.fields["on"].bool == bytes([1, 0] * 500)
    assert request.fields["n"].int64 == request.time == times.tobytes()
    assert not request.HasField("key")


@pytest.mark.parametrize(
    ("given_as", "kinds"),
    [
        (np.array([1, 2]), ["int64"]),
        ([1, 2], ["int64"]),
        ([1.5, 2.0], ["float64"]),
        ([[1, 2], [1.5, 2]], ["int64", "float64"]),
        ((np.array([1, 2]), np.array([True, False])), ["int64", "bool"]),
        ({"count": np.array([1, 2]), "mean": np.array([1.0, 2])}, ["int64", "float64"]),
        ([b"", b"x\0"], ["blob"]),
        (np.array([b"", b"x\0"], dtype=object), ["blob"]),
        ([[b"", b"x\0"], [1, 2]], ["blob", "int64"]),
        (["a", "b"], ["string"]),
    ],
)
def test_parts_are_given_in_many_ways(given_as, kinds):
    bulk = Bulk([1, 2], keys="k", partials={"agg": given_as}, entries=[1, 1])
    (request,) = checked(bulk, SPEC).requests("w", **ROOMY)
    columns = request.partials["agg"].columns
    assert [column.WhichOneof("data") for column in columns] == kinds
    if kinds[0] == "blob":
        assert list(columns[0].blob.items) == [b"", b"x\0"]


@pytest.mark.parametrize(
    ("bulk", "field"),
    [
        (Bulk([1], {"delay": [1.0]}, partials={"n": [1]}, entries=[1]), "partials"),
        (Bulk([1], [1.0], entries=[1]), "entries"),
        (Bulk([1], partials={"n": [1]}, entries=[1.5]), "entries"),
        (Bulk([1], partials={"n": [1]}, entries=[1, 2]), "entries"),
        (Bulk([1], partials={"n": [1, 2]}, entries=[1]), "partials.n"),
        (Bulk([1], partials={"n": {"count": [None]}}, entries=[1]), "partials.n.count"),
        (Bulk([1, 2], partials={"n": [[1, 2], ["a", 1]]}, entries=[1, 1]), "partials.n[1]"),
        (Bulk([1, 2], partials={"n": [b"a", 1]}, entries=[1, 1]), "partials.n"),
        (Bulk([1]), "columns"),
        (Bulk([1], {"delay": [1.0], "n": [1], "carrier": ["a"], "on": [True], "more": [1]}), "more"),
    ],
)
def test_what_fits_no_message_is_refused(bulk, field):
    assert field_of(checked, bulk, SPEC) == field


def test_answers_have_partials_where_they_were_asked_for():
    part = pb.PartialColumns(columns=[pb.Column(int64=np.array([3]).tobytes()), pb.Column(blob=pb.Blobs(items=[b"x"]))])
    message = pb.Answer(entries=3, partials={"users": part, "none": pb.PartialColumns()})
    assert from_answer(message).partials is None
    answer = from_answer(message, partials=True)
    assert list(answer.partials) == ["none", "users"]
    assert answer.partials["none"] == ()
    count, blob = answer.partials["users"]
    assert (count.tolist(), blob) == ([3], [b"x"])
    assert from_partials(part)[1] == [b"x"]
    assert answer == from_answer(message)  # arrays have no one truth
