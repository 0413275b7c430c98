"""The client's readers of Bloom filters, of CountMin and theta sketches, and of naive Bayes models."""

import doctest
import math
import struct
from collections import Counter

import datasketches as ds
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_client import BloomFilter, CountMin, InvalidArgument, NaiveBayes, ThetaSketch
from sash_client.sketches import bloom, count_min, naive_bayes, theta
from sash_engine import monoids
from tests.support.refused import field_of

RANDOM = np.random.default_rng(29)
DTYPES = {"string": object, "int64": np.int64, "bool": np.bool_, "float64": np.float64}
VALUES = {
    "string": st.text(max_size=30),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False),
}
SPECIAL = {"float64": st.sampled_from([0.0, -0.0, math.nan])}


def answer_of(monoid, items):
    return monoid.lower(monoid.reduce([np.fromiter(items, DTYPES[monoid.types[0]], len(items))]))


# -------------------------------------------------------------------- Bloom filters


@pytest.mark.parametrize("kind", VALUES)
def test_a_filter_says_what_the_service_says(kind):
    """Of values that are in it, and of others, of which a filter this small takes many for its own."""
    monoid, values = monoids.Bloom(kind, capacity=10, error=0.2), VALUES[kind] | SPECIAL.get(kind, st.nothing())

    @given(st.lists(values, max_size=20), st.lists(values, max_size=20))
    def agrees(inside, others):
        answer = answer_of(monoid, inside)
        reader, oracle = BloomFilter(answer), monoids.BloomFilter(answer)
        assert all(reader.may_contain(value) for value in inside)
        for value in others:
            assert reader.may_contain(value) == (value in oracle) == (value in reader)

    agrees()


@pytest.mark.parametrize("change", ["", "short", "long", "family", "version", "words"])
def test_what_is_no_filter_is_refused(change):
    data = answer_of(monoids.Bloom("int64", capacity=10), range(3))
    BloomFilter(data)
    changed = {
        "": b"",
        "short": data[:-1],
        "long": data + b"\0",
        "family": data[:2] + b"\7" + data[3:],
        "version": data[:1] + b"\2" + data[2:],
        "words": data[:16] + struct.pack("<I", 0) + data[20:32],
    }
    with pytest.raises(InvalidArgument, match="no Bloom filter"):
        BloomFilter(changed[change])


# -------------------------------------------------------------------- CountMin


@pytest.mark.parametrize("kind", ["string", "int64", "bool"])
def test_counts_of_few_values_are_exact(kind):
    monoid = monoids.CountMin(kind, error=0.001)

    @given(st.lists(VALUES[kind], max_size=20))
    def exact(items):
        sketch = CountMin(answer_of(monoid, items))
        assert sketch.entries == len(items)
        for value, count in Counter(items).items():
            assert sketch.estimate(value) == count

    exact()


def test_counts_of_many_values_are_within_the_error():
    items = RANDOM.zipf(1.3, 50_000) % 5000
    for error, confidence in ((0.01, 0.99), (0.001, 0.9)):
        monoid = monoids.CountMin("int64", error=error, confidence=confidence)
        sketch = CountMin(answer_of(monoid, items.tolist()))
        over = [sketch.estimate(value) - count for value, count in Counter(items.tolist()).items()]
        assert min(over) >= 0
        assert np.mean(np.array(over) > error * len(items)) <= 1 - confidence


def test_it_reads_a_sketch_of_datasketches():
    theirs = ds.count_min_sketch(4, 100)
    for i in range(1000):
        theirs.update(f"v{i % 37}")
    ours = CountMin(theirs.serialize())
    assert ours.entries == 1000
    for i in range(60):
        assert ours.estimate(f"v{i}") == theirs.get_estimate(f"v{i}")


# -------------------------------------------------------------------- theta sketches


@pytest.mark.parametrize("kind", VALUES)
def test_sets_of_few_values_are_sets(kind):
    monoid = monoids.ThetaSketch(kind)

    @given(st.lists(VALUES[kind], max_size=20), st.lists(VALUES[kind], max_size=20))
    def agrees(left, right):
        a, b = ThetaSketch(answer_of(monoid, left)), ThetaSketch(answer_of(monoid, right))
        xs, ys = set(left), set(right)
        assert (a | b).estimate() == len(xs | ys)
        assert (a & b).estimate() == len(xs & ys)
        assert (a - b).estimate() == len(xs - ys)
        assert (a - b).exact
        assert (a - b).error() == 0.0

    agrees()


@pytest.mark.parametrize("sizes", [(100, 100_000), (50_000, 60_000), (100_000, 3)])
def test_sets_of_many_values_are_those_of_datasketches_and_close(sizes):
    left, right = np.arange(sizes[0]), np.arange(sizes[0] // 2, sizes[0] // 2 + sizes[1])
    monoid = monoids.ThetaSketch("int64", lg_k=11)
    answers = [answer_of(monoid, items) for items in (left, right)]
    a, b = map(ThetaSketch, answers)
    theirs_a, theirs_b = map(ds.compact_theta_sketch.deserialize, answers)
    union = ds.theta_union(14)
    union.update(theirs_a)
    union.update(theirs_b)
    pairs = [
        (a | b, union.get_result(), len(np.union1d(left, right))),
        (a & b, ds.theta_intersection(), len(np.intersect1d(left, right))),
        (a - b, ds.theta_a_not_b().compute(theirs_a, theirs_b), len(np.setdiff1d(left, right))),
    ]
    pairs[1][1].update(theirs_a)
    pairs[1][1].update(theirs_b)
    for ours, theirs, expected in pairs:
        theirs = theirs.get_result() if isinstance(theirs, ds.theta_intersection) else theirs
        assert ours.estimate() == pytest.approx(theirs.get_estimate(), rel=1e-9)
        assert abs(ours.estimate() - expected) <= 4 * ours.error()
        read = ds.compact_theta_sketch.deserialize(bytes(ours))
        assert read.get_estimate() == pytest.approx(ours.estimate(), rel=1e-9)
        assert list(read) == sorted(theirs)


def test_the_error_of_a_theta_sketch_is_as_stated():
    monoid = monoids.ThetaSketch("int64", lg_k=8)
    found = [ThetaSketch(answer_of(monoid, range(i * 10**6, i * 10**6 + 5000))).estimate() for i in range(200)]
    assert np.sqrt(np.mean((np.array(found) / 5000 - 1) ** 2)) == pytest.approx(1 / math.sqrt(256), rel=0.25)


def test_a_set_of_which_no_hash_is_left_has_the_error_of_one_value():
    monoid = monoids.ThetaSketch("int64", lg_k=5)
    a, b = (ThetaSketch(answer_of(monoid, range(at, at + 1000))) for at in (0, 1000))
    share = struct.unpack_from("<Q", bytes(a & b), 16)[0] / (2**63 - 1)
    assert share < 0.1
    assert ((a & b).estimate(), (a & b).error()) == (0.0, math.sqrt(1 - share) / share)


# -------------------------------------------------------------------- naive Bayes


def test_labels_are_those_with_the_greatest_likelihood():
    labels = RANDOM.integers(0, 3, 600)
    x, words = RANDOM.normal(size=600) * 2 + 3 * labels, (labels + RANDOM.integers(0, 2, 600)) % 4
    monoid = monoids.NaiveBayes("int64", "float64", "string")
    texts = np.array([f"w{word}" for word in words], object)
    model = NaiveBayes(monoid.lower(monoid.reduce([labels, x, texts])))
    hits = 0
    for i in range(600):
        likelihoods = []
        for label in range(3):
            of_label = labels == label
            variance = x[of_label].var()
            density = np.exp(-((x[i] - x[of_label].mean()) ** 2) / variance / 2) / np.sqrt(2 * np.pi * variance)
            same = (words[of_label] == words[i]).sum()
            likelihoods.append(of_label.mean() * density * (1 + same) / (4 + of_label.sum()))
        shares = np.array(likelihoods) / sum(likelihoods)
        found = model.scores([x[i], f"w{words[i]}"])
        assert list(found.values()) == pytest.approx(shares.tolist(), rel=1e-6, abs=1e-12)
        assert model.predict([x[i], f"w{words[i]}"]) == int(shares.argmax())
        hits += int(shares.argmax() == labels[i])
    assert hits > 400


def test_a_value_that_no_label_had_and_a_feature_of_one_value():
    monoid = monoids.NaiveBayes("bool", "float64", "bool")
    columns = [np.array([True, False]), np.array([1.0, 1.0]), np.array([True, True])]
    scores = NaiveBayes(monoid.lower(monoid.reduce(columns))).scores([1.0, False])
    assert scores == {False: 0.5, True: 0.5}


# -------------------------------------------------------------------- through the service


def test_they_read_answers(client):
    aggregates = {
        "often": {"function": "count_min", "field": "tail", "error": 0.001},
        "who": {"function": "theta_sketch", "field": "tail"},
        "model": {"function": "naive_bayes", "field": "late", "features": ["delay", "tail"]},
        "seen": {"function": "bloom", "field": "tail"},
        "few": {"function": "bloom", "field": "tail", "capacity": 10, "error": 1e-9},
    }
    fields = {"tail": "string", "late": "bool", "delay": "float64"}
    window = client.create_window({"name": "w", "keyed": True, "fields": fields, "aggregates": aggregates})
    (nothing,) = window.query(key="JFK")
    assert "N1" not in BloomFilter(nothing.aggregates["seen"])
    tails, times = ["N1", "N2", "N1", "N3"], [1, 2, 3, 4]
    for key, shift in (("JFK", 0), ("BOS", 2)):
        named = [f"N{int(tail[1:]) + shift}" for tail in tails]
        delays, late = [60.0, 5.0, 45.0, 1.0], [True, False, True, False]
        window.bulk_insert(times, {"tail": named, "delay": delays, "late": late}, keys=[key] * 4)
    (jfk,), (bos,) = window.query(key="JFK"), window.query(key="BOS")
    for name in ("seen", "few"):
        seen = BloomFilter(jfk.aggregates[name])
        assert all(map(seen.may_contain, tails))
        assert not seen.may_contain("a tail that never flew")
    assert CountMin(jfk.aggregates["often"]).estimate("N1") == 2
    a, b = ThetaSketch(jfk.aggregates["who"]), ThetaSketch(bos.aggregates["who"])
    assert ((a | b).estimate(), (a & b).estimate(), (a - b).estimate()) == (5.0, 1.0, 2.0)
    model = NaiveBayes(jfk.aggregates["model"])
    assert (model.predict([50.0, "N1"]), model.predict([3.0, "N2"])) == (True, False)


# -------------------------------------------------------------------- bad input


@pytest.mark.parametrize("reader", [CountMin, ThetaSketch])
@pytest.mark.parametrize("change", ["nothing", "none", "short", "long", "family", "version", "seed"])
def test_what_is_no_sketch_is_refused(reader, change):
    monoid = {CountMin: monoids.CountMin, ThetaSketch: monoids.ThetaSketch}[reader]("int64")
    data = answer_of(monoid, range(3))
    reader(data)
    at = {"version": 1, "family": 2, "seed": 13 if reader is CountMin else 6}.get(change, 0)
    changed = {"nothing": b"", "none": None, "short": data[:-1], "long": data + b"\0"}
    with pytest.raises(InvalidArgument, match="this is no"):
        reader(changed.get(change, data[:at] + bytes([data[at] ^ 64]) + data[at + 1 :]))


@pytest.mark.parametrize("value", [None, 1.5, 2**63, b"UA"])
def test_a_value_that_no_field_has_is_refused(value):
    asked = [CountMin(answer_of(monoids.CountMin("int64"), range(3))).estimate]
    if value is None:
        asked.append(BloomFilter(answer_of(monoids.Bloom("int64", capacity=10), range(3))).may_contain)
    for ask in asked:
        with pytest.raises(InvalidArgument, match="no value of a field"):
            ask(value)


@pytest.mark.parametrize("model", [None, [], [{}], [3], [{"label": 1, "entries": 1, "means": 3, "values": []}]])
def test_what_is_no_model_is_refused(model):
    assert field_of(NaiveBayes, model) == "model"


@pytest.mark.parametrize("features", [[], [1.0, 2.0], ["a"], [1.0, "a"]])
def test_features_that_the_model_does_not_have_are_refused(features):
    model = NaiveBayes([{"label": "a", "entries": 1, "means": [1.0], "variances": [0.0], "values": []}])
    assert field_of(model.predict, features) == "features"


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-8],
        lambda data: data + bytes(8),
        lambda data: data[:-1],
        lambda data: data[:16] + bytes(8) + data[24:],  # no hash is below 0
        lambda data: data[:16] + struct.pack("<Q", 2**63) + data[24:],  # more than all hashes
        lambda data: data[:8] + bytes(16),  # of no hashes, all that are below 0
        lambda data: data[:-8] + data[16:24],  # a hash that theta leaves out
        lambda data: data[:1] + b"\x09" + data[2:],
        lambda data: b"\x04" + data[1:],
        lambda data: data[:7],
    ],
)
def test_damaged_theta_sketches_are_refused(change):
    """Three words of head, then theta, then hashes in order; all of them are below theta."""
    data = answer_of(monoids.ThetaSketch("int64", lg_k=5), np.arange(1000))
    assert ThetaSketch(data).estimate() == pytest.approx(1000, rel=0.5)
    assert data[0] == 3
    with pytest.raises(InvalidArgument, match="no theta sketch"):
        ThetaSketch(change(data))


@pytest.mark.parametrize("module", [bloom, count_min, theta, naive_bayes])
def test_the_examples_run(module):
    failed, ran = doctest.testmod(module)
    assert failed == 0
    assert ran > 0
