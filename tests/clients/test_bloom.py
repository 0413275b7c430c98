"""The client's reader of Bloom filters agrees with the service that writes them."""

import doctest
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_client import BloomFilter, InvalidArgument
from sash_client.sketches import bloom
from sash_engine import monoids

VALUES = {
    "string": st.text(max_size=100),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.floats() | st.sampled_from([0.0, -0.0, math.nan]),
    "bool": st.booleans(),
}
DTYPES = {"string": object, "int64": np.int64, "float64": np.float64, "bool": np.bool_}


@pytest.mark.parametrize("kind", VALUES)
def test_it_says_what_the_service_says(kind):
    """Of values that are in it, and of others, of which a filter this small takes many for its own."""
    monoid = monoids.Bloom(kind, capacity=10, error=0.2)

    @given(st.lists(VALUES[kind], max_size=20), st.lists(VALUES[kind], max_size=20))
    def agrees(inside, others):
        answer = monoid.lower(monoid.reduce([np.array(inside, DTYPES[kind])]))
        reader, oracle = BloomFilter(answer), monoids.BloomFilter(answer)
        assert all(reader.may_contain(value) for value in inside)
        for value in others:
            assert reader.may_contain(value) == (value in oracle) == (value in reader)

    agrees()


def test_it_reads_an_answer(client):
    aggregates = {"seen": {"function": "bloom"}, "unread": {"function": "bloom", "capacity": 10, "error": 1e-9}}
    window = client.create_window({"name": "w", "fields": {"tail": "string"}, "aggregates": aggregates})
    (nothing,) = window.query()
    assert "N14228" not in BloomFilter(nothing.aggregates["seen"])
    tails = [f"N{i}" for i in range(10)]
    window.bulk_insert(range(10), {"tail": tails})
    (answer,) = window.query()
    for name in aggregates:
        seen = BloomFilter(answer.aggregates[name])
        assert all(map(seen.may_contain, tails))
        assert not seen.may_contain("a tail that never flew")


@pytest.mark.parametrize("change", ["", "short", "long", "family", "version", "words"])
def test_what_is_no_filter_is_refused(change):
    monoid = monoids.Bloom("int64", capacity=10)
    data = bytearray(monoid.lower(monoid.reduce([np.arange(3)])))
    BloomFilter(bytes(data))
    changed = {
        "": b"",
        "short": data[:-1],
        "long": data + b"\0",
        "family": data[:2] + b"\7" + data[3:],
        "version": data[:1] + b"\2" + data[2:],
        "words": data[:16] + struct.pack("<I", 0) + data[20:32],
    }
    with pytest.raises(InvalidArgument, match="no Bloom filter"):
        BloomFilter(bytes(changed[change]))
    with pytest.raises(InvalidArgument, match="no value of a field"):
        BloomFilter(bytes(data)).may_contain(None)


def test_the_example_runs():
    failed, ran = doctest.testmod(bloom)
    assert (failed, ran) == (0, 1)
