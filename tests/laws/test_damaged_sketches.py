"""Sketches from elsewhere that are damaged are refused: the library would believe them, and take the process down."""

import struct
import subprocess
import sys
from pathlib import Path

import datasketches as ds
import numpy as np
import pytest

from sash_engine.errors import InvalidArgument
from sash_engine.monoids import Bloom, DistinctCount, FrequentItems, Quantile
from sash_engine.monoids.sketch_forms import sound_frequent_items, sound_hll, sound_kll

ROOT = Path(__file__).parents[2]


def hll(n, lg_k=12, kind=ds.HLL_8):
    sketch = ds.hll_sketch(lg_k, kind)
    for i in range(n):
        sketch.update(i)
    return sketch


def kll(n, k=200):
    sketch = ds.kll_doubles_sketch(k)
    sketch.update(np.arange(float(n)))
    return sketch


def items(n, lg=3):
    sketch = ds.frequent_strings_sketch(lg)
    for i in range(n):
        sketch.update(f"item {i}", i + 1)
    return sketch


def with_bytes(data, *changes):
    image = bytearray(data)
    for at, found in changes:
        image[at : at + len(found)] = found
    return bytes(image)


HLL_4 = hll(2000, 4, ds.HLL_4).serialize_compact()
KLL = kll(2000, 8).serialize()
FEW = kll(5).serialize()
ITEMS = items(5).serialize()
NUMBERS = FrequentItems("int64").encode(FrequentItems("int64").reduce([np.arange(5)]))
OTHER = b"\x01"


@pytest.mark.parametrize(
    ("monoid", "data"),
    [
        (DistinctCount(), with_bytes(hll(5000).serialize_compact(), (3, b"\0"))),  # 2^0 registers
        (DistinctCount(), with_bytes(hll(5000).serialize_compact(), (3, b"\x0d"))),  # more than there are
        (DistinctCount(), with_bytes(hll(5000).serialize_compact(), (8, struct.pack("<d", float("inf"))))),
        (DistinctCount(), with_bytes(hll(5000).serialize_compact(), (50, b"\xff"))),  # a register of 255
        (DistinctCount(), with_bytes(HLL_4, (40, b"\xff"))),  # exceptions that are not there
        (DistinctCount(), HLL_4 + bytes(3)),
        (DistinctCount(), with_bytes(hll(5).serialize_compact(), (6, b"\x09"))),  # nine coupons in a list of five
        (DistinctCount(), with_bytes(hll(5).serialize_compact(), (8, hll(5).serialize_compact()[12:16]))),  # one twice
        (DistinctCount(), with_bytes(hll(100).serialize_compact(), (8, b"\xff\xff\xff\x7f"))),
        (Quantile(), with_bytes(KLL, (28, b"\0\0\0\x7f"))),  # a level far behind the end
        (Quantile(), with_bytes(KLL, (20, b"\1\0\0\0"))),
        (Quantile(), with_bytes(KLL, (18, b"\xff"))),  # 255 levels
        (Quantile(), with_bytes(FEW, (8, OTHER))),  # of one value, where five are
        (Quantile(), with_bytes(FEW, (40, struct.pack("<d", float("nan"))))),
        (Quantile(), with_bytes(FEW, (24, struct.pack("<d", 1.0)))),  # the least is not
        (Quantile(), with_bytes(kll(1).serialize(), (8, struct.pack("<d", float("nan"))))),
        (Quantile(), KLL[:-8]),
        (Quantile(), KLL + bytes(8)),
        (FrequentItems("string"), with_bytes(ITEMS, (3, b"\x1b"), (4, b"\x1b"))),  # a table of 2^27 items
        (FrequentItems("string"), with_bytes(ITEMS, (4, b"\x04"))),  # larger than the largest
        (FrequentItems("string"), with_bytes(ITEMS, (8, b"\x07"))),
        (FrequentItems("string"), with_bytes(ITEMS, (16, b"\x02"))),  # less weight than the items have
        (FrequentItems("string"), ITEMS.replace(b"item 2", b"item 3")),  # one twice
        (FrequentItems("string"), ITEMS.replace(b"item 2", b"item \xff")),  # no UTF-8
        (FrequentItems("string"), ITEMS[:-1]),
        (FrequentItems("string"), ITEMS + b"x"),
        (FrequentItems("int64"), NUMBERS[:-1]),
        (FrequentItems("int64"), with_bytes(NUMBERS, (4, b"\x02"))),
        (Bloom("int64", capacity=10), with_bytes(Bloom("int64", capacity=10).lower(7), (24, b"\x09"))),  # nine bits
        (Bloom("int64", capacity=10), with_bytes(Bloom("int64", capacity=10).lower(7), (0, OTHER))),
        (Bloom("int64", capacity=10), Bloom("int64", capacity=10).lower(0) + bytes(8)),
    ],
)
def test_what_is_damaged_is_refused(monoid, data):
    with pytest.raises(InvalidArgument):
        monoid.decode(data)


@pytest.mark.parametrize("seed", [1, 2])
def test_damage_takes_nobody_down(seed):
    """Some thousand sketches with a few wrong bytes: each is refused, or works in all that is done with partials."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.support.damaged", str(seed), "6000"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert found.returncode == 0, found.stderr[-3000:]
    taken = int(found.stdout.split()[0])
    assert 500 < taken < 5500, found.stdout


# -------------------------------------------------------------------- what is sound


@pytest.mark.parametrize("lg_k", [4, 7, 8, 12])
@pytest.mark.parametrize("n", [0, 1, 7, 8, 24, 25, 100, 300, 5000])
def test_every_form_of_an_hll_sketch_becomes_ours(lg_k, n):
    ours = hll(n, lg_k).serialize_compact()
    for kind in (ds.HLL_4, ds.HLL_6, ds.HLL_8):
        theirs = hll(n, lg_k, kind)
        for data in (theirs.serialize_compact(), theirs.serialize_updatable()):
            found = sound_hll(data)
            assert ds.hll_sketch.deserialize(found).get_estimate() == theirs.get_estimate()
            # Coupons come in the order of the table that they were in.
            assert (found[:12], sorted(found[12:])) == (ours[:12], sorted(ours[12:]))


@pytest.mark.parametrize("k", [8, 9, 200, 65535])
@pytest.mark.parametrize("n", [0, 1, 2, 200, 5000, 300_000])
def test_every_kll_sketch_stays_as_it_is(k, n):
    sketch = kll(n, k)
    sketch.merge(kll(n // 2, 8))
    assert sound_kll(sketch.serialize()) == sketch.serialize()


def test_a_kll_sketch_of_many_levels():
    """Where capacities of levels are computed in two steps."""
    sketch = kll(100, 8)
    for _ in range(50):
        other = ds.kll_doubles_sketch.deserialize(sketch.serialize())
        sketch.merge(other)
        assert sound_kll(sketch.serialize())
    assert sketch.n == 100 << 50


@pytest.mark.parametrize("lg", [3, 8, 14])
@pytest.mark.parametrize("n", [0, 1, 6, 7, 200, 5000])
def test_every_frequent_items_sketch_stays_what_it_is(lg, n):
    theirs = items(n, lg)
    data = theirs.serialize()
    found = sound_frequent_items(data, strings=True)
    assert found[:4] + found[5:] == data[:4] + data[5:], "but for the size of the table"
    kind = ds.frequent_items_error_type.NO_FALSE_NEGATIVES
    ours = ds.frequent_strings_sketch.deserialize(found)
    assert sorted(ours.get_frequent_items(kind)) == sorted(theirs.get_frequent_items(kind))


@pytest.mark.parametrize("kind", ["int64", "string"])
def test_java_leaves_zeros_behind_the_items(kind):
    frequent = FrequentItems(kind)
    data = NUMBERS if kind == "int64" else ITEMS
    assert frequent.lower(frequent.decode(data + bytes(8))) == frequent.lower(frequent.decode(data))


def test_larger_sketches_become_as_large_as_ours():
    """A few bytes of theirs may stand for a table of megabytes."""
    assert Quantile(k=200).decode(kll(3, 65535).serialize()).k == 200
    assert Quantile(k=200).decode(kll(3, 50).serialize()).k == 50
    small = FrequentItems("string", lg_max_map_size=3)
    assert small.encode(small.decode(items(5, 20).serialize()))[3] == 3
    assert DistinctCount(lg_k=4).decode(hll(5000).serialize_compact()).lg_config_k == 4
