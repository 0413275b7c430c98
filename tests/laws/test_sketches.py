"""Sketches keep within their published errors, in any grouping, and speak the binary form of DataSketches."""

import struct

import datasketches as ds
import numpy as np
import pytest

from sash_engine.errors import InvalidArgument
from sash_engine.monoids import Bloom, BloomFilter, CollectDistinct, DistinctCount, FrequentItems, MinCount, Quantile
from sash_engine.monoids.bloom import xxh64
from sash_engine.monoids.suffixes import STRIDE, Suffixes
from tests.support.aggregates import column

RANDOM = np.random.default_rng(11)


def folded(monoid, values, step):
    return monoid.fold(monoid.reduce_segments([values], np.arange(0, len(values), step)))


# -------------------------------------------------------------------- distinct count


@pytest.mark.parametrize("n", [10, 300, 1000, 10_000, 60_000])
def test_distinct_count_within_three_standard_errors(n):
    """HLL hashes with a fixed seed: the outcome is the same every time."""
    values = np.arange(n)
    distinct = DistinctCount("int64")
    found = distinct.lower(folded(distinct, values, 4096))
    assert abs(found - n) <= (0 if n <= 300 else 3 * 1.04 / 64 * n)


@pytest.mark.parametrize("n", [380, 500, 5000])
def test_distinct_count_does_not_depend_on_grouping_or_order(n):
    values = RANDOM.permutation(n)
    distinct = DistinctCount("int64")
    found = {distinct.lower(folded(distinct, values, step)) for step in (64, 100, 1000, n)}
    found |= {distinct.lower(folded(distinct, values[::-1].copy(), 99))}
    found |= {distinct.lower(distinct.scan_suffix([np.concatenate([values, values])])[0])}
    assert len(found) == 1


def test_distinct_count_reads_every_type():
    assert DistinctCount("string").lower(DistinctCount("string").reduce([column("string", ["a", "b", "a"])])) == 2
    assert DistinctCount("bool").lower(DistinctCount("bool").reduce([np.array([True, False, True])])) == 2
    assert DistinctCount().lower(DistinctCount().reduce([np.array([0.5, 1.5, 0.5, np.nan, np.nan])])) == 3


@pytest.mark.parametrize("others", [[], ["a"], [f"word {i}" for i in range(3000)]])
def test_distinct_count_counts_the_empty_string(others):
    """DataSketches leaves it out; here it is the int64 -1, in every form and in every grouping."""
    distinct = DistinctCount("string")
    without, with_it = column("string", others), column("string", [*others, "", ""])
    sketch = ds.hll_sketch(12, ds.HLL_8)
    for item in others:
        sketch.update(item)
    old = distinct.decode(sketch.serialize_compact()) if others else None
    assert distinct.lower(old) == distinct.lower(distinct.reduce([without])), "a sketch without it is what it was"
    sketch.update(-1)
    expected = distinct.lower(distinct.decode(sketch.serialize_compact()))
    assert expected > distinct.lower(old)
    (segments,) = distinct.reduce_segments([with_it], np.arange(len(with_it)))
    for partial in (
        distinct.reduce([with_it]),
        distinct.fold((segments,)),
        distinct.scan_suffix([with_it])[0],
        distinct.combine(old, distinct.lift("")),
        distinct.combine(distinct.decode(distinct.encode(distinct.lift(""))), old),
    ):
        assert distinct.lower(partial) == expected
    assert ds.hll_sketch.deserialize(distinct.encode(distinct.lift(""))).get_estimate() == pytest.approx(1)


@pytest.mark.parametrize(
    ("monoid", "answer"),
    [
        (DistinctCount("string"), 2),
        (CollectDistinct("string"), ["", "a"]),
        (
            FrequentItems("string"),
            [
                {"item": "", "count": 2, "lower": 2, "upper": 2},
                {"item": "a", "count": 1, "lower": 1, "upper": 1},
            ],
        ),
        (MinCount("string"), 2),
    ],
    ids=repr,
)
def test_the_empty_string_is_a_string_like_any_other(monoid, answer):
    partial = monoid.reduce([column("string", ["", "a", ""])])
    assert monoid.lower(partial) == answer
    assert monoid.lower(monoid.decode(monoid.encode(partial))) == answer


def test_a_foreign_hll_sketch_comes_in_and_goes_out():
    theirs = ds.hll_sketch(12, ds.HLL_4)
    for i in range(2000):
        theirs.update(i)
    distinct = DistinctCount("int64")
    ours = distinct.reduce([np.arange(1000, 3000)])
    both = distinct.combine(distinct.decode(theirs.serialize_updatable()), ours)
    assert distinct.lower(both) == distinct.lower(distinct.reduce([np.arange(3000)]))
    assert ds.hll_sketch.deserialize(distinct.encode(both)).get_estimate() == pytest.approx(3000, rel=0.05)


# -------------------------------------------------------------------- quantiles


@pytest.mark.parametrize("step", [1024, 100, 40_000])
def test_quantile_ranks_within_the_bound(step):
    """Twice the 99 % bound: KLL flips its own coins, and the test must not fail once in a hundred runs."""
    n = 40_000
    values = RANDOM.permutation(n).astype(np.float64)
    ranks = [0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0]
    quantile = Quantile(q=ranks)
    assert quantile.error == pytest.approx(0.0133, abs=1e-4)
    for rank, found in zip(ranks, quantile.lower(folded(quantile, values, step)), strict=True):
        assert abs(found / n - rank) <= 2 * quantile.error


@pytest.mark.parametrize(("q", "expected"), [(0, 1.0), (0.25, 1.0), (0.5, 2.0), (0.51, 3.0), (1, 4.0)])
def test_quantile_of_few_values_is_exact(q, expected):
    quantile = Quantile("int64", q=q)
    assert quantile.lower(quantile.reduce([np.array([4, 1, 3, 2])])) == expected


def test_a_query_does_not_change_a_sketch():
    quantile = Quantile()
    partial = quantile.reduce([np.array([3.0, 1.0, 2.0])])
    before = quantile.encode(partial)
    assert quantile.lower(partial) == 2.0
    assert quantile.encode(partial) == before


def test_a_foreign_kll_sketch_comes_in():
    theirs = ds.kll_doubles_sketch(200)
    theirs.update(np.arange(50.0))
    quantile = Quantile(q=1.0)
    both = quantile.combine(quantile.lift(49.5), quantile.decode(theirs.serialize()))
    assert quantile.lower(both) == 49.5
    assert ds.kll_doubles_sketch.deserialize(quantile.encode(both)).n == 51


# -------------------------------------------------------------------- frequent items


@pytest.mark.parametrize("kind", ["int64", "string"])
@pytest.mark.parametrize("step", [1000, 64])
def test_frequent_items_within_the_bound(kind, step):
    n, lg = 30_000, 8
    numbers = np.minimum(RANDOM.zipf(1.3, n), 5000)
    values = numbers if kind == "int64" else column("string", [f"item {i}" for i in numbers])
    frequent = FrequentItems(kind, limit=1000, lg_max_map_size=lg)
    answer = frequent.lower(folded(frequent, values, step))
    truth = dict(zip(*np.unique(values, return_counts=True), strict=True))
    error = 3.5 / 2**lg * n
    for row in answer:
        assert row["lower"] <= truth[row["item"]] <= row["upper"]
        assert row["upper"] - row["lower"] <= error
        assert row["lower"] <= row["count"] <= row["upper"]
    assert [row["count"] for row in answer] == sorted((row["count"] for row in answer), reverse=True)
    found = {row["item"] for row in answer}
    assert {item for item, count in truth.items() if count > error} <= found
    assert len(found) < len(truth), "the sketch had to forget something"


def test_frequent_items_ties_and_limit():
    frequent = FrequentItems("string", limit=2)
    answer = frequent.lower(frequent.reduce([column("string", ["c", "b", "a", "b", "c"])]))
    assert [(row["item"], row["count"]) for row in answer] == [("b", 2), ("c", 2)]


def test_foreign_frequent_items_come_in():
    theirs = ds.frequent_strings_sketch(10)
    theirs.update("ann", 5)
    frequent = FrequentItems("string")
    both = frequent.combine(frequent.lift("ann"), frequent.decode(theirs.serialize()))
    assert frequent.lower(both) == [{"item": "ann", "count": 6, "lower": 6, "upper": 6}]


# -------------------------------------------------------------------- Bloom filters


@pytest.mark.parametrize("error", [0.1, 0.01, 1e-4])
def test_bloom_has_all_and_little_else(error):
    n = 2000
    bloom = Bloom("int64", capacity=n, error=error)
    seen = BloomFilter(bloom.lower(folded(bloom, np.arange(n), 300)))
    assert all(i in seen for i in range(n))
    wrong = sum(i in seen for i in range(10 * n, 20 * n))
    assert wrong <= 1.3 * error * 10 * n + 3
    assert len(bloom.lower(folded(bloom, np.arange(n), 300))) == 32 + bloom.bits // 8


def test_bloom_reads_every_type():
    for kind, inside, outside in (
        ("string", ["", "a", "ü" * 20, "x" * 100], ["b", "ü", "x" * 99]),
        ("float64", [0.0, 1.5, float("inf"), float("nan")], [1.0, -1.5]),
        ("int64", [0, -1, 2**63 - 1], [1, -(2**63)]),
        ("bool", [True], [False]),
    ):
        bloom = Bloom(kind)
        seen = BloomFilter(bloom.lower(bloom.reduce([column(kind, inside)])))
        assert all(value in seen for value in inside), kind
        assert not any(value in seen for value in outside), kind
    assert -0.0 in BloomFilter(Bloom().lower(Bloom().lift(0.0)))


def test_bloom_of_nothing_has_nothing():
    empty = Bloom().lower(0)
    assert len(empty) == 24
    assert 1.0 not in BloomFilter(empty)


def test_bloom_binary_form():
    """Apache DataSketches: preamble longs, version 1, family 21, flags, hashes; seed; words; bits set; the bits."""
    bloom = Bloom("int64", capacity=10, error=0.1)
    data = bloom.lower(bloom.lift(7))
    assert struct.unpack_from("<BBBBHHQII", data) == (4, 1, 21, 0, 4, 0, 9001, 1, 0)
    (count, bits) = struct.unpack_from("<QQ", data, 24)
    assert count == bits.bit_count() > 0
    assert len(data) == 40
    assert struct.unpack_from("<BBBB", bloom.lower(0)) == (3, 1, 21, 4)


def test_a_bloom_filter_written_by_java():
    """By BloomFilterBuilder.createBySize(192, 5, 9001) of datasketches-java 6.2.0, updated with three types."""
    seen = BloomFilter(
        bytes.fromhex(
            "040115000500000029230000000000000300000000000000ffffffffffffffff"
            "0100008280010020080001200c1002000004000084000224"
        )
    )
    inside = [5, "abc", 1.5, "N14228 departed from Newark, then flew to Houston"]
    assert all(value in seen for value in inside)
    assert sum(value in seen for value in range(100, 200)) < 5


def test_a_foreign_bloom_filter_must_fit():
    bloom = Bloom("int64")
    with pytest.raises(InvalidArgument, match="does not combine"):
        bloom.decode(Bloom("int64", capacity=5).lower(1))
    for bad in (b"", b"x" * 24, bloom.lower(1)[:-1]):
        with pytest.raises(InvalidArgument):
            bloom.decode(bad)


@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [
        (b"", 0, 0xEF46DB3751D8E999),
        (b"a", 0, 0xD24EC4F1A98C6E5B),
        (b"abc", 0, 0x44BC2CF5AD770999),
        (b"xxhash", 20141025, 0xB559B98D844E0635),
        (b"Nobody inspects the spammish repetition", 0, 0xFBCEA83C8A378BF1),
    ],
)
def test_xxh64_published_values(data, seed, expected):
    assert xxh64(data, seed) == expected


@pytest.mark.parametrize("length", [0, 1, 3, 4, 7, 8, 12, 31, 32, 33, 63, 64, 71])
def test_xxh64_of_many_equals_one_by_one(length):
    many = RANDOM.integers(0, 256, (5, length), np.uint8)
    seeds = RANDOM.integers(0, 2**64, 5, np.uint64)
    assert xxh64(many, seeds).tolist() == [xxh64(row.tobytes(), int(s)) for row, s in zip(many, seeds, strict=True)]


# -------------------------------------------------------------------- shared


@pytest.mark.parametrize("n", [1, STRIDE - 1, STRIDE, STRIDE + 1, 3 * STRIDE, 3 * STRIDE + 5])
def test_suffixes_on_demand(n):
    distinct = DistinctCount("int64")
    values = np.arange(n)
    suffixes = Suffixes(distinct, [values])
    values[:] = 0  # the suffixes have their own copy
    assert len(suffixes) == n
    assert [distinct.lower(partial) for partial in suffixes] == list(range(n, 0, -1))
    assert distinct.lower(suffixes[-1]) == 1
    assert [distinct.lower(partial) for partial in suffixes[n // 2 :]] == list(range(n - n // 2, 0, -1))
    with pytest.raises(IndexError):
        suffixes[n]


@pytest.mark.parametrize(
    "monoid", [DistinctCount(), Quantile(), FrequentItems("string"), FrequentItems("int64")], ids=repr
)
@pytest.mark.parametrize("data", [b"", b"\x00" * 8, b"no sketch at all"])
def test_bytes_that_are_no_sketch(monoid, data):
    with pytest.raises(InvalidArgument, match=monoid.function):
        monoid.decode(data)
