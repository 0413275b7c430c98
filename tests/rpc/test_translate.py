"""Bulks are read in steps as they are read at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash.rpc import bulks
from sash_engine.errors import InvalidArgument
from sash_engine.steps import finished
from sash_engine.windows.spec.window import WindowSpec
from sash_proto.v1 import windows_pb2 as pb

SPEC = WindowSpec.parse(
    {"name": "w", "keyed": True, "fields": {"s": "string"}, "aggregates": {"n": {"function": "count"}}}
)
texts = st.lists(st.sampled_from(["a", "b", "ab", "é", "a" * 9]), min_size=1, max_size=9)


@pytest.fixture
def small_steps(monkeypatch):
    monkeypatch.setattr(bulks, "ROWS", 2)
    monkeypatch.setattr(bulks, "_CODES", 3)


def strings(dictionary, codes):
    return pb.Strings(dictionary=dictionary, codes=np.array(codes, "<u4").tobytes())


@given(texts, st.data())
def test_strings_in_steps_are_the_strings(dictionary, data):
    codes = data.draw(st.lists(st.integers(0, len(dictionary) - 1), max_size=9))
    message = pb.BulkInsertRequest(window="w", time=bytes(8 * len(codes)), key=strings(dictionary, codes))
    message.fields["s"].string.CopyFrom(message.key)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulks, "ROWS", 2)
        patch.setattr(bulks, "_CODES", 3)
        batch = bulks.batch_of(message, 100, SPEC)
    batch.checked(SPEC)
    for found in (batch.keys, batch.columns["s"]):
        assert found.decode().tolist() == [dictionary[code] for code in codes]
        assert len(set(found.dictionary)) == len(found.dictionary)


def test_a_long_dictionary_may_repeat_texts_behind_one_that_nothing_uses(small_steps):
    message = pb.BulkInsertRequest(window="w", time=bytes(16), key=strings(["a", "b", "b"], [1, 2]))
    message.fields["s"].string.CopyFrom(message.key)
    batch = bulks.batch_of(message, 100, SPEC)
    batch.checked(SPEC)
    assert batch.keys.decode().tolist() == ["b", "b"]
    assert list(batch.keys.dictionary) == ["b"]


def test_a_code_outside_a_long_dictionary_is_refused(small_steps):
    message = pb.BulkInsertRequest(window="w", time=bytes(16), key=strings(["a", "b", "c"], [0, 3]))
    message.fields["s"].string.CopyFrom(strings(["a"], [0, 0]))
    with pytest.raises(InvalidArgument, match="a code outside its dictionary") as error:
        bulks.batch_of(message, 100, SPEC).checked(SPEC)
    assert error.value.field == "key"


def test_bytes_that_are_no_whole_number_of_codes_are_refused(small_steps):
    message = pb.BulkInsertRequest(window="w", key=pb.Strings(dictionary=["a"] * 9, codes=b"123"))
    with pytest.raises(InvalidArgument, match="no whole number of values") as error:
        bulks.batch_of(message, 100, SPEC)
    assert error.value.field == "key"


def test_a_long_dictionary_takes_steps():
    message = pb.BulkInsertRequest(window="w", key=strings([str(i) for i in range(200_000)], range(200_000)))
    steps = bulks.batch_steps(message, 10**6, SPEC)
    assert sum(1 for _ in steps) >= 200_000 // bulks.ROWS
    assert finished(bulks.batch_steps(message, 10**6, SPEC)).keys.dictionary[-1] == "199999"


def test_a_stream_reads_its_next_bulk_when_the_last_one_was_read(stub):
    """Bulks of a stream are applied in their order, also where one takes slices to be read and the next one none."""
    name = "in-order"
    spec = pb.WindowSpec(name=name, keyed=True, fields={"value": "float64"}, order=pb.OrderPolicy(equal_times="first"))
    spec.aggregates["last"].function = "last"
    stub.CreateWindow(pb.CreateWindowRequest(spec=spec))
    n = 20_000
    long = pb.BulkInsertRequest(window=name, time=bytes(8 * n), key=strings([f"k{i}" for i in range(n)], range(n)))
    long.fields["value"].float64 = np.full(n, 1.0).tobytes()
    short = pb.BulkInsertRequest(window=name, time=bytes(8), key=strings(["k0"], [0]))
    short.fields["value"].float64 = np.full(1, 2.0).tobytes()
    answers = list(stub.InsertStream(iter([long, short])))
    assert [(answer.inserted, answer.duplicates) for answer in answers] == [(n, 0), (0, 1)]
    found = stub.Query(pb.QueryRequest(window=name, key="k0")).answers[0]
    assert found.aggregates["last"].float64 == 1.0
