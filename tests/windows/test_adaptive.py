"""Adaptive windows (ADWIN): the test against its definition, against river, and in windows with other policies."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from river._river_rust.drift import AdaptiveWindowing

from sash_engine.monoids import VariancePopulation
from sash_engine.monoids.laws import close
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.sliding.adaptive import Adaptive, leaving
from sash_engine.windows.spec.policies import AdaptivePolicy
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window

LEAST = 5


def window(adaptive=None, block=16, **parts):
    document = {"name": "w", "time_unit": "none", "aggregates": {"mean": {"function": "mean", "field": "value"}}}
    slide = {"adaptive": {"every": 1} if adaptive is None else adaptive} | parts.pop("slide", {})
    return Window(WindowSpec.parse(document | {"slide": slide} | parts), block=block)


def insert_all(w, values, first=0):
    """The times at which entries left, and how many stayed."""
    out = []
    for time, value in enumerate(values, first):
        if w.insert(time, {"value": float(value)}, None).evicted:
            out.append((time, w.info().entries))
    return out


# -------------------------------------------------------------------- the test


def plainly(pieces, delta, width):
    """The paper's loop over lists: drop the oldest piece until no cut between two pieces shows a change."""
    dropped = 0
    while len(pieces) > 1:
        values = np.concatenate(pieces)
        n, variance = len(values), values.var()
        if n < 2 * LEAST:
            break
        changed = False
        for cut in np.cumsum([len(piece) for piece in pieces])[:-1].tolist():
            n0, n1 = cut, n - cut
            if min(n0, n1) < LEAST:
                continue
            m, logarithm = 1 / (1 / n0 + 1 / n1), math.log(2 * math.log(n) / delta)
            epsilon = math.sqrt(2 / m * variance * logarithm) + 2 / (3 * m) * width * logarithm
            changed |= abs(values[:cut].mean() - values[cut:].mean()) > epsilon
        if not changed:
            break
        dropped += len(pieces[0])
        pieces = pieces[1:]
    return dropped


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 20)), max_size=12),
    st.sampled_from([0.002, 0.3]),
    st.sampled_from([1.0, 0.01, 50.0]),
    st.integers(0, 2**32),
)
def test_it_is_the_papers_test(shape, delta, width, seed):
    random = np.random.default_rng(seed)
    pieces = [random.normal(mean / 4, 0.3, count) for count, mean in shape]
    moments = [VariancePopulation().reduce([piece]) for piece in pieces]
    assert leaving([len(piece) for piece in pieces], moments, delta, width) == plainly(pieces, delta, width)


def test_a_large_mean_does_not_hide_a_change():
    random = np.random.default_rng(3)
    pieces = [random.normal(1e9 + (i > 5), 0.1, 40) for i in range(12)]
    moments = [VariancePopulation().reduce([piece]) for piece in pieces]
    assert leaving([40] * 12, moments, 0.002) == 240


def test_a_piece_with_nan_counts_for_nothing():
    still = [VariancePopulation().reduce([np.array([1.0, 2.0] * 10)])] * 6
    odd = VariancePopulation().reduce([np.array([math.nan, 1e300] * 30)])
    assert leaving([20] * 6 + [60], [*still, odd], 0.002) == 0
    changed = [VariancePopulation().reduce([np.array([9.0, 10.0] * 10)])] * 6
    assert leaving([20] * 6 + [60] + [20] * 6, [*still, odd, *changed], 0.002) >= 120


@pytest.mark.parametrize("every", [1, 7, 32])
@pytest.mark.parametrize("keys", [1, 7, 32, 100])
def test_each_key_is_tested_about_so_often(every, keys):
    adaptive = Adaptive(AdaptivePolicy(every=every), 0)
    tests = np.zeros(keys)
    for inserted in range(300 * keys):
        tests[inserted % keys] += adaptive.is_due(inserted, inserted % keys, 1)
    assert (tests >= 300 / every / 4).all()
    assert tests.mean() == pytest.approx(300 / every, rel=0.1)


def test_the_keys_of_a_bulk_are_not_tested_all_at_once():
    adaptive = Adaptive(AdaptivePolicy(every=32), 0)
    for inserted in (0, 7, 123_456):
        assert 50 < sum(adaptive.is_due(inserted, number, 1) for number in range(3200)) < 200


# -------------------------------------------------------------------- windows


def of_river():
    """What `river.drift.ADWIN` wraps: that package imports scikit-learn, which takes seconds."""
    return AdaptiveWindowing(delta=0.002, clock=1, max_buckets=5, min_window_length=5, grace_period=10)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["bits", "normal", "falling"])
def test_it_finds_a_change_as_soon_as_river(seed, kind):
    random, n = np.random.default_rng(seed), 800
    before, after = {
        "bits": (random.random(n) < 0.2, random.random(n) < 0.6),
        "normal": (random.normal(0.3, 0.1, n), random.normal(0.5, 0.1, n)),
        "falling": (random.random(n), random.random(n) / 3),
    }[kind]
    stream = np.concatenate((before, after)).astype(float)
    theirs, found = of_river(), []
    for time, value in enumerate(stream.tolist()):
        if found and found[-1] == time - 1:
            theirs = of_river()  # it begins anew behind a change
        if theirs.update(value):
            found.append(time)
    w = window(block=1024)
    ours = insert_all(w, stream)
    assert n <= ours[0][0] <= found[0] + 40
    assert found[0] <= ours[0][0] + 40
    assert abs(w.info().entries - theirs.get_width()) < 300
    assert w.info().oldest >= n - 60, "what is left is from after the change"


@pytest.mark.parametrize("seed", range(3))
def test_nothing_leaves_while_nothing_changes(seed):
    w = window({"every": 32}, block=64)
    assert insert_all(w, np.random.default_rng(seed).random(3000)) == []


def test_bulks_find_the_same_change():
    random, w = np.random.default_rng(5), window({}, block=64)
    stream = np.concatenate((random.normal(0, 1, 5000), random.normal(3, 1, 5000)))
    evicted = 0
    for first in range(0, 10_000, 250):
        times = np.arange(first, first + 250)
        evicted += w.bulk_insert(Batch(times, {"value": stream[first : first + 250]})).evicted
        w.check_invariants(lambda monoid, a, b: close(a, b, 1e-9))
    assert 4900 <= evicted <= 5400
    (answer,) = w.query(None, [], None)
    assert answer.aggregates["mean"] == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize("block", [8, 1024])
@pytest.mark.parametrize(("newer", "most"), [(40, 30), (1000, 8)])
def test_how_many_entries_from_before_a_change_stay(block, newer, most):
    """Of a change as large as `range`: what the documentation says."""
    for older in (20, 1001):
        for every in (1, 32):
            w = window({"every": every}, block=block)
            insert_all(w, [0.0] * older + [1.0] * newer)
            (answer,) = w.query(None, [], None)
            assert answer.entries - newer <= most


def test_entries_that_have_left_are_late():
    w = window(block=4)
    insert_all(w, [0.0] * 100 + [5.0] * 100)
    oldest = w.info().oldest
    assert oldest >= 100
    assert w.insert(oldest - 2, {"value": 0.0}, None).late == 1
    assert w.insert(oldest, {"value": 5.0}, None).inserted == 1


def test_keys_change_apart():
    w = window({"every": 4}, block=8, keyed=True)
    times, half = np.arange(400), np.arange(400) // 200
    keys = Coded(["still", "moved"], np.tile([0, 1], 400))
    values = np.stack((np.zeros(400), 9.0 * half), axis=1).ravel()
    for a in range(0, 800, 16):
        rows = slice(a, a + 16)
        batch = Batch(np.repeat(times, 2)[rows], {"value": values[rows]}, Coded(keys.dictionary, keys.codes[rows]))
        w.bulk_insert(batch)
    (still,), (moved,) = w.query("still", [], None), w.query("moved", [], None)
    assert still.entries == 400
    assert moved.aggregates["mean"] == 9.0


def test_with_other_policies_and_aggregates_that_come_later():
    w = window(slide={"max_count": 50, "when": "total.entries - old.entries >= 45"}, block=8)
    insert_all(w, [1.0] * 300)
    assert w.info().entries == 45
    w.add_aggregates({"most": {"function": "max"}})
    insert_all(w, [7.0] * 20, first=300)
    (answer,) = w.query(None, [], None)
    assert answer.aggregates["most"] == 7.0
    assert answer.aggregates["mean"] > 5.9, "at most four of the old entries are left"
    w.check_invariants(lambda monoid, a, b: close(a, b, 1e-9))


def test_the_default_field_is_the_only_one():
    assert window({}).spec.slide.adaptive == AdaptivePolicy()
    both = {"fields": {"value": "float64", "n": "int64"}}
    w = window({"field": "n", "every": 1}, **both)
    for time in range(200):
        w.insert(time, {"value": 0.0, "n": 100 * (time >= 100)}, None)
    assert w.info().oldest >= 100
