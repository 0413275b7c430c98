"""Nulls in messages of gRPC and in entries: what may be sent, what is kept, and what is refused."""

import numpy as np
import pytest

from sash_proto.v1 import windows_pb2 as pb
from tests.support.nulls import ROWS, SPEC, A


def test_no_part_of_a_partial_is_null(service, http):
    assert http.post("/v1/windows", json={**SPEC, "name": "p", "nullable": ["x"], "granularity": 5}).status_code == 201
    stub = service.stub()
    assert http.post("/v1/windows/p/bulk-insert", json=ROWS | {"n": [1] * 3, "s": [""] * 3, "b": [True] * 3}).is_success
    (sent,) = stub.Entries(pb.EntriesRequest(window="p", all_keys=True))
    sent.window = "p"
    wrong = pb.BulkInsertRequest()
    wrong.CopyFrom(sent)
    wrong.partials["sum"].columns[1].valid = b"\1" * len(wrong.entries)
    with pytest.raises(Exception, match=r"column 'partials.sum' has valid; no part of a partial may be null"):
        stub.BulkInsert(wrong)
    assert stub.BulkInsert(sent).inserted == 3
    http.delete("/v1/windows/p")


@pytest.mark.parametrize("size", [1, 9_000, 20_000])
def test_anything_may_stand_in_the_place_of_a_null(service, window, size):
    """Also in long dictionaries, which are read in another way."""
    request = pb.BulkInsertRequest(window="w", time=np.arange(2).astype("<i8").tobytes())
    request.key.CopyFrom(pb.Strings(dictionary=["a"], codes=bytes(8)))
    dictionary = [f"text {i}" for i in range(size)]
    request.fields["x"].float64, request.fields["x"].valid = np.array([np.nan, 1.5]).tobytes(), b"\0\1"
    request.fields["n"].int64, request.fields["n"].valid = np.array([99, 7], "<i8").tobytes(), b"\0\1"
    request.fields["s"].string.dictionary.extend(dictionary)
    request.fields["s"].string.codes = np.array([2**32 - 1, size - 1], "<u4").tobytes()
    request.fields["s"].valid = b"\0\1"
    request.fields["b"].bool, request.fields["b"].valid = b"\7\1", b"\0\1"
    service.stub().BulkInsert(request)
    assert window.query(key="a")[0].aggregates == A | {"texts": [dictionary[-1]]}
    (kept,) = service.stub().Entries(pb.EntriesRequest(window="w", key="a"))
    texts = kept.fields["s"].string
    assert np.frombuffer(kept.fields["x"].float64).tolist() == [0.0, 1.5]
    assert np.frombuffer(kept.fields["n"].int64, "<i8").tolist() == [0, 7]
    assert [texts.dictionary[code] for code in np.frombuffer(texts.codes, "<u4")] == ["", dictionary[-1]]
    assert kept.fields["b"].bool == b"\0\1"
    for code, valid, told in (
        (2**32 - 1, b"\1\1", "has a code outside its dictionary"),
        (size, b"\1\0", "has a code outside its dictionary"),
        (0, b"\0", "has 2 values, and 1 in valid"),
    ):
        request.fields["s"].string.codes = np.array([code, 0], "<u4").tobytes()
        request.fields["s"].valid = valid
        with pytest.raises(Exception, match=told):
            service.stub().BulkInsert(request)


def test_a_column_without_nulls_comes_back_unmasked(window):
    window.bulk_insert([1, 2], {"x": [1.0, 2.0], "n": [None, 1], "s": ["a", "b"], "b": [True, False]}, keys="a")
    (bulk,) = window.entries(key="a")
    masked = {name for name, column in bulk.columns.items() if isinstance(column, np.ma.MaskedArray)}
    assert masked == {"n"}


def test_an_entry_of_nulls_alone(window, http):
    window.insert(1, fields={}, key="a")
    assert http.post("/v1/windows/w/insert", json={"time": 2, "key": "a"}).is_success
    assert window.query(key="a")[0].aggregates == A | {"sum": None, "max": None, "values": 0, "texts": [], "flags": []}


@pytest.mark.parametrize("edges", [("rest", "grpc"), ("grpc", "rest")])
def test_a_write_that_is_repeated_on_another_edge_is_applied_once(service, http, edges):
    """A null may be said or left out."""
    values = {"x": pb.Value(float64=1.5), "n": pb.Value()}

    def rest():
        document = {"time": 1, "key": "a", "fields": {"x": 1.5, "s": None}, "producer": "p", "sequence": 1}
        assert http.post("/v1/windows/w/insert", json=document).is_success

    def grpc():
        request = pb.InsertRequest(window="w", time=1, key="a", fields=values, producer="p", sequence=1)
        service.stub().Insert(request)

    for edge in edges:
        {"rest": rest, "grpc": grpc}[edge]()
    assert http.get("/v1/windows/w").json()["entries"] == 1


def test_nobody_gives_a_mark_by_its_name(service, http):
    """There are as many columns as fields."""
    column = pb.Column(bool=b"\1")
    fields = {"x": pb.Column(float64=bytes(8)), "n": pb.Column(int64=bytes(8)), "b": column, "x?": column}
    request = pb.BulkInsertRequest(window="w", time=bytes(8), fields=fields)
    request.key.CopyFrom(pb.Strings(dictionary=["a"], codes=bytes(4)))
    with pytest.raises(Exception, match=r"window 'w' has no field 'x\?'; it has x, n, s, b"):
        service.stub().BulkInsert(request)
    assert http.get("/v1/windows/w").json()["entries"] == 0
