"""Damaged partials from elsewhere are refused, or work: a library would believe sketches, and take the process down."""

import copy
import json
import struct
import subprocess
import sys
from pathlib import Path

import datasketches as ds
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sash_engine.errors import InvalidArgument
from sash_engine.monoids import Bloom, DistinctCount, FrequentItems, Monoid, Quantile, forms
from sash_engine.monoids.sketch_forms import checked_frequent_items, checked_hll, checked_kll
from tests.support.aggregates import column, every_case, label

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


# -------------------------------------------------------------------- each number that the library believes
# The library refuses some of it itself, in this version; so these are asked of the check alone.

EMPTY_HLL = hll(0).serialize_compact()
LIST = hll(5).serialize_compact()
HLL_8 = hll(5000, 8).serialize_compact()
SET = hll(32).serialize_compact()
"""32 coupons, of 2^12 registers."""


def packed(form, number):
    return struct.pack(form, number)


def of_lg(data, lg_k, count=None):
    """The set, of another number of registers, cut to some coupons."""
    data = with_bytes(data, (3, bytes([lg_k])))
    return data if count is None else with_bytes(data, (8, packed("<I", count)))[: 12 + 4 * count]


def kll_of(sizes, *, k=8, n=None, least_k=8, levels=None, flags=0, m=8, shift=0, greatest=None):
    """A KLL sketch with so many items on each level: 0.0, 1.0, 2.0, …"""
    room = sum(max(8, _scaled(k, depth)) for depth in range(len(sizes)))
    starts = [room - sum(sizes[i:]) + shift for i in range(len(sizes))]
    items = np.arange(float(sum(sizes)))
    n = sum(size << level for level, size in enumerate(sizes)) if n is None else n
    head = struct.pack("<4BHBxQHBx", 5, 1, 15, flags, k, m, n, least_k, len(sizes) if levels is None else levels)
    extremes = struct.pack("<dd", 0.0, items[-1] if greatest is None else greatest)
    return head + struct.pack(f"<{len(sizes)}I", *starts) + extremes + items.tobytes()


def _scaled(k, depth):
    """k (2/3)^depth, rounded."""
    return round(k * (2 / 3) ** depth)


def unordered(data):
    """Its first two items change places."""
    at = len(data) - 8 * 8
    return data[:at] + data[at + 8 : at + 16] + data[at : at + 8] + data[at + 16 :]


def frequent(data):
    return checked_frequent_items(data, strings=True)


@pytest.mark.parametrize(
    ("sound", "data"),
    [
        (checked_hll, with_bytes(EMPTY_HLL, (3, b"\x03"))),
        (checked_hll, with_bytes(EMPTY_HLL, (3, b"\x16"))),
        (checked_hll, with_bytes(HLL_8, (8, packed("<d", -1.0)))),
        (checked_hll, with_bytes(HLL_8, (8, packed("<d", 2.0**63)))),
        (checked_hll, with_bytes(HLL_8, (8, packed("<d", float("nan"))))),
        (checked_hll, with_bytes(HLL_8, (50, b"\x40"))),
        (checked_hll, HLL_8 + b"\1\0\0\0"),
        (checked_hll, HLL_8[:-1]),
        (checked_hll, LIST + bytes(2048)),  # more places than a table may have
        (checked_hll, with_bytes(LIST, (8, packed("<I", 5)))),  # a coupon without a value
        (checked_hll, of_lg(SET, 7, 8)),
        (checked_hll, of_lg(SET, 8, 25)),
        (checked_hll, of_lg(SET, 8)),
        (checked_hll, with_bytes(HLL_4, (36, packed("<I", 7)))),  # exceptions
        (checked_hll, with_bytes(hll(2000, 4, ds.HLL_4).serialize_compact(), (6, b"\xfa"), (40, b"\x77" * 8))[:48]),
        (checked_kll, kll_of([5], m=7)),
        (checked_kll, kll_of([5], k=7)),
        (checked_kll, kll_of([5], least_k=9)),
        (checked_kll, kll_of([5], least_k=7)),
        (checked_kll, kll_of([5], n=6)),
        (checked_kll, kll_of([5], levels=0)),
        (checked_kll, kll_of([5], shift=1)),
        (checked_kll, kll_of([5], greatest=3.0)),
        (checked_kll, kll_of([-1, 3, 1], n=9)),
        (checked_kll, kll_of([0] * 60 + [4])),  # 2^62 values
        (checked_kll, kll_of([0] * 61 + [1])),  # 62 levels
        (checked_kll, unordered(kll_of([8], flags=2))),
        (checked_kll, unordered(kll_of([2, 8]))),
        (checked_kll, kll(0).serialize() + bytes(8)),
        (checked_kll, kll(1).serialize() + bytes(8)),
        (checked_kll, with_bytes(kll(1).serialize(), (8, packed("<d", float("nan"))))),
        (frequent, with_bytes(items(2).serialize(), (4, b"\x02"))),
        (frequent, with_bytes(items(2).serialize(), (3, b"\x15"))),
        (frequent, with_bytes(items(7, 4).serialize(), (4, b"\x03"))),
        (frequent, with_bytes(ITEMS, (0, b"\x03"))),
        (frequent, with_bytes(ITEMS, (32, packed("<Q", 0)))),
        (frequent, with_bytes(ITEMS, (24, packed("<Q", 1)))),  # the offset
        (frequent, with_bytes(ITEMS, (16, packed("<Q", 2**62)))),
        (frequent, ITEMS[:-1]),
        (frequent, items(0).serialize() + bytes(8)),
        (frequent, with_bytes(items(0).serialize(), (0, b"\x04"))),
    ],
)
def test_each_check_holds_alone(sound, data):
    with pytest.raises((ValueError, struct.error)):
        sound(data)


@pytest.mark.parametrize(
    ("sound", "data", "expected"),
    [
        (checked_hll, with_bytes(EMPTY_HLL, (6, b"\x05")), EMPTY_HLL),  # an empty list, whatever it says it has
        (checked_hll, HLL_8 + bytes(4), HLL_8),
        (checked_hll, of_lg(SET, 8, 24), None),
        (checked_hll, LIST + bytes(2028), LIST),
        (checked_kll, kll_of([5]), kll_of([5])),
        (checked_kll, kll_of([0] * 60 + [3]), None),
        (checked_kll, unordered(kll_of([8])), unordered(kll_of([8]))),
        (frequent, with_bytes(ITEMS, (16, packed("<Q", 2**62 - 1))), None),
        (frequent, with_bytes(ITEMS, (16, packed("<Q", 16)), (24, packed("<Q", 1))), None),
    ],
)
def test_what_is_at_the_edge_of_a_check_is_sound(sound, data, expected):
    assert sound(data) == (sound(sound(data)) if expected is None else expected)


@pytest.mark.parametrize("kind", [ds.HLL_4, ds.HLL_6, ds.HLL_8])
def test_a_sketch_that_was_merged_says_so_still(kind):
    """Its estimate is another one then."""
    union = ds.hll_union(12)
    union.update(hll(3000))
    union.update(hll(5000))
    merged = union.get_result(kind)
    found = checked_hll(merged.serialize_compact())
    assert found[5] & 16
    assert ds.hll_sketch.deserialize(found).get_estimate() == merged.get_estimate()


@pytest.mark.parametrize("seed", [1, 2])
def test_damage_takes_nobody_down(seed):
    """Some thousand sketches with a few wrong bytes: each is refused, or works in all that is done with partials."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.support.damaged", str(seed), "6000"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
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
            found = checked_hll(data)
            assert ds.hll_sketch.deserialize(found).get_estimate() == theirs.get_estimate()
            # Coupons come in the order of the table that they were in.
            assert (found[:12], sorted(found[12:])) == (ours[:12], sorted(ours[12:]))


@pytest.mark.parametrize("k", [8, 9, 200, 65535])
@pytest.mark.parametrize("n", [0, 1, 2, 200, 5000, 300_000])
def test_every_kll_sketch_stays_as_it_is(k, n):
    sketch = kll(n, k)
    sketch.merge(kll(n // 2, 8))
    assert checked_kll(sketch.serialize()) == sketch.serialize()


def test_a_kll_sketch_of_many_levels():
    """Where capacities of levels are computed in two steps."""
    sketch = kll(100, 8)
    for _ in range(50):
        other = ds.kll_doubles_sketch.deserialize(sketch.serialize())
        sketch.merge(other)
        assert checked_kll(sketch.serialize())
    assert sketch.n == 100 << 50


@pytest.mark.parametrize("lg", [3, 8, 14])
@pytest.mark.parametrize("n", [0, 1, 6, 7, 200, 5000])
def test_every_frequent_items_sketch_stays_what_it_is(lg, n):
    theirs = items(n, lg)
    data = theirs.serialize()
    found = checked_frequent_items(data, strings=True)
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


# ---------------------------------------------------------------- partials in JSON that somebody changed


ODD = [None, -1, 0, 1, 2**63, -(2**70), 1.5, float("nan"), float("inf"), "", "x", "more", True, [], [[]], {}, [1, 2, 3]]
COLUMNS = {"float64": [1.5, -2.0, 1.5], "int64": [3, 1, 3], "string": ["b", "a", "b"], "bool": [True, False, True]}


def in_json(monoid):
    return not monoid.fixed and type(monoid).decode in (Monoid.decode, forms.PartialForm.decode)


def places(tree, path=()):
    """Where there is something in a tree of lists."""
    yield path
    if isinstance(tree, list):
        for i, branch in enumerate(tree):
            yield from places(branch, (*path, i))


def changed(tree, path, value):
    if not path:
        return value
    tree = copy.deepcopy(tree)
    branch = tree
    for i in path[:-1]:
        branch = branch[i]
    if value == "drop":
        del branch[path[-1]]
    elif value == "twice":
        branch.insert(path[-1], branch[path[-1]])
    else:
        branch[path[-1]] = value
    return tree


@pytest.mark.parametrize("monoid", [monoid for monoid in every_case() if in_json(monoid)], ids=label)
@settings(max_examples=settings.default.max_examples // 2)
@given(st.data())
def test_a_changed_partial_is_refused_or_works(monoid, data):
    columns = [
        np.arange(3) if read.option == "time" else column(kind, COLUMNS[kind])
        for read, kind in zip(monoid.reads, monoid.types, strict=True)
    ]
    good = monoid.reduce(columns)
    tree = json.loads(monoid.encode(good))
    path = data.draw(st.sampled_from(list(places(tree))))
    tree = changed(tree, path, data.draw(st.sampled_from([*ODD, "drop", "twice"])))
    try:
        partial = monoid.decode(json.dumps(tree).encode())
    except InvalidArgument:
        return
    if monoid.implausible(monoid.pack([partial]), np.array([3]))[0]:
        return
    for each in (
        partial,
        monoid.combine(partial, good),
        monoid.combine(good, partial),
        monoid.fold(monoid.pack([partial] * 2)),
    ):
        monoid.lower(each)
        monoid.restore(monoid.encode(each))
