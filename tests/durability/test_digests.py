"""Digests of writes: equal for the same entries however they came, different for any other ones."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash.durability.formats import pack, unpack
from sash.durability.records.columns import batch_from, batch_to
from sash.durability.records.digests import of_bulk, of_entry, of_evict
from sash_engine.monoids.base import object_array
from sash_engine.windows.batches.batch import Batch, Coded, PartialBatch
from sash_engine.windows.batches.ledger import DIGEST_BYTES

NAN = np.array([0x7FF8000000000000, 0xFFF8000000000000, 0x7FF8000000000001], "<u8").view("<f8")
"""Three numbers that are none."""

texts = st.text(st.characters(codec=None), max_size=3) | st.sampled_from(["", "a", "b", "\0"])


def floats(*values):
    return np.array(values, np.float64)


def ints(*values):
    return np.array(values, np.int64)


def bulk(times=(1, 2), keys=("a", "b"), **columns):
    columns = columns or {"x": floats(1, 2)}
    return Batch(ints(*times), columns, None if keys is None else Coded.of(list(keys)))


def test_digests_stay_as_they_are():
    """A ledger keeps them: a retry may reach a later version."""
    batch = Batch(
        ints(1, 2, 3),
        {"b": np.array([True, False, True]), "s": Coded(["x\0y", "z"], ints(1, 0, 1)), "x": floats(1, -0.0, NAN[1])},
        Coded(["k"], ints(0, 0, 0)),
    )
    partials = {"users": (object_array([b"\1\2"]),), "mean": (floats(1.5), ints(2))}
    found = [
        of_entry(-(2**63), {"x": 1.5, "n": 2**53 + 1, "s": "ß\ud800", "b": True}, "k"),
        of_entry(7, {"x": 1}, None),
        of_evict(7, None),
        of_evict(7, "k"),
        of_bulk(batch),
        of_bulk(PartialBatch(ints(1), partials, ints(9))),
        of_bulk(Batch(ints(), {"x": floats()})),
    ]
    written = ["e2674c7d", "0c7170e4", "b041adca", "36ad4715", "fef9f2b5", "bbbd4cb8", "61c84618"]
    assert [digest.hex() for digest in found] == written
    assert {len(digest) for digest in found} == {DIGEST_BYTES}


# ---------------------------------------------------------------- the same


@given(st.lists(texts, min_size=1, max_size=12), st.lists(texts, max_size=4), st.randoms())
def test_strings_count_and_not_how_they_are_coded(strings, unused, random):
    plain = Coded.of(strings)
    dictionary = list(dict.fromkeys([*strings, *unused]))
    random.shuffle(dictionary)
    expected = of_bulk(Batch(ints(*range(len(strings))), {"s": plain}, plain))
    for dtype in (np.uint8, np.int32, np.uint32, np.int64):
        coded = Coded(dictionary, np.array([dictionary.index(text) for text in strings], dtype))
        assert of_bulk(Batch(ints(*range(len(strings))), {"s": coded}, coded)) == expected


@given(st.lists(texts, min_size=1, max_size=6), st.lists(texts, min_size=1, max_size=6))
def test_other_strings_have_another_digest(some, others):
    first, second = (of_bulk(Batch(ints(*range(len(strings))), {"s": Coded.of(strings)})) for strings in (some, others))
    assert (first == second) == (some == others)


def test_the_order_of_fields_does_not_count():
    columns = {"x": floats(1, 2), "n": ints(3, 4)}
    assert of_bulk(bulk(**columns)) == of_bulk(bulk(**dict(reversed(columns.items()))))
    values = {"x": 1.0, "n": 3}
    assert of_entry(1, values, "a") == of_entry(1, dict(reversed(values.items())), "a")


def test_a_null_is_what_is_left_out_and_a_mark_of_all_values_is_no_mark():
    assert of_entry(1, {"x": 1.0, "y": None}, "a") == of_entry(1, {"x": 1.0}, "a")
    assert of_entry(1, {"x": 1.0, "y": 0.0}, "a") != of_entry(1, {"x": 1.0}, "a")
    plain = of_bulk(bulk(x=floats(1, 2)))
    marks = [np.array(mark) for mark in ([True, True], [True, False], [False, True])]
    first, *others = [of_bulk(bulk(**{"x": floats(1, 2), "x?": mark})) for mark in marks]
    assert first == plain
    assert len({plain, *others}) == 3


def test_what_is_not_a_number_is_the_same_whatever_its_bits():
    assert len({of_bulk(bulk((1,), "a", x=NAN[i : i + 1])) for i in range(3)}) == 1
    assert len({of_entry(1, {"x": NAN[i].item()}, None) for i in range(3)}) == 1
    assert of_bulk(bulk(x=floats(NAN[0], 2))) != of_bulk(bulk(x=floats(2, NAN[0])))


def test_an_integer_is_the_float64_that_it_stands_for():
    for number in (0, 5, -5, 2**53, -(2**53)):
        assert of_entry(1, {"x": number}, None) == of_entry(1, {"x": float(number)}, None)
    assert of_entry(1, {"x": 2**53 + 1}, None) != of_entry(1, {"x": 2**53}, None)
    assert of_entry(1, {"x": -(2**53) - 1}, None) != of_entry(1, {"x": -(2**53)}, None)


def test_how_arrays_lie_does_not_count():
    big, wide = floats(1, 2).astype(">f8"), floats(1, 9, 2, 9)[::2]
    assert of_bulk(bulk(x=big)) == of_bulk(bulk(x=wide)) == of_bulk(bulk(x=floats(1, 2)))
    every_other = Coded(["a", "b"], np.array([0, 9, 1, 9], "<u4")[::2])
    assert of_bulk(bulk(x=every_other)) == of_bulk(bulk(x=Coded.of(["a", "b"])))


def test_the_journal_s_form_of_a_bulk_has_the_same_digest():
    batch = bulk(range(300), [f"k{i}" for i in range(300)], x=np.arange(300.0), s=Coded.of(["a", "b", "c"] * 100))
    assert of_bulk(batch_from(unpack(pack(batch_to(batch))))) == of_bulk(batch)


# ---------------------------------------------------------------- others


def test_bulks_that_differ_in_anything():
    partials = {"users": (object_array([b"1", b"23"]),), "mean": (floats(1, 2), ints(1, 1))}
    others = [
        bulk(),
        bulk((2, 1)),
        bulk((1, 3)),
        bulk(keys=("b", "a")),
        bulk(keys=("a", "a")),
        bulk(keys=None),
        bulk(x=floats(1, 3)),
        bulk(x=floats(-0.0, 2)),
        bulk(x=floats(0.0, 2)),
        bulk(x=ints(1, 2)),
        bulk(y=floats(1, 2)),
        bulk(x=floats(1, 2), y=floats(1, 2)),
        bulk(x=np.array([True, False])),
        bulk(x=np.array([True, True])),
        bulk(x=Coded.of(["a", "b"])),
        bulk(x=Coded.of(["b", "a"])),
        bulk(x=Coded.of(["a", "a"])),
        bulk(x=Coded.of(["a\0", "b"])),
        bulk(x=Coded.of(["a", "\0b"])),
        bulk(x=Coded.of(["a\0b", "a\0b"])),
        bulk((1,), "a", x=floats(1)),
        bulk((), (), x=floats()),
        bulk((), None, x=floats()),
        PartialBatch(ints(1, 2), partials, ints(1, 1)),
        PartialBatch(ints(1, 2), partials, ints(1, 2)),
        PartialBatch(ints(1, 2), partials | {"users": (object_array([b"12", b"3"]),)}, ints(1, 1)),
        PartialBatch(ints(1, 2), partials | {"mean": (floats(1, 2), ints(1, 2))}, ints(1, 1)),
        PartialBatch(ints(1, 2), {"mean": (floats(1, 2), ints(1, 1))}, ints(1, 1)),
        PartialBatch(ints(1, 2), {"n": (ints(1, 2),), "m": ()}, ints(1, 1)),
        PartialBatch(ints(1, 2), {"n": (), "m": (ints(1, 2),)}, ints(1, 1)),
        Batch(ints(1, 2), {"n": ints(1, 2)}, None),
    ]
    digests = [of_bulk(batch) for batch in others]
    for (i, one), (j, other) in itertools.combinations(enumerate(digests), 2):
        assert one != other, (others[i], others[j])


def test_entries_and_evictions_that_differ_in_anything():
    digests = [
        of_entry(1, {"x": 1.0}, "a"),
        of_entry(2, {"x": 1.0}, "a"),
        of_entry(1, {"x": 2.0}, "a"),
        of_entry(1, {"x": 0.0}, "a"),
        of_entry(1, {"x": -0.0}, "a"),
        of_entry(1, {"x": True}, "a"),
        of_entry(1, {"x": "1.0"}, "a"),
        of_entry(1, {"x": 2**60}, "a"),
        of_entry(1, {"x": 2**60 + 1}, "a"),
        of_entry(1, {"y": 1.0}, "a"),
        of_entry(1, {"x": 1.0, "y": 1.0}, "a"),
        of_entry(1, {"x": 1.0}, "b"),
        of_entry(1, {"x": 1.0}, None),
        of_evict(1, "a"),
        of_evict(1, "b"),
        of_evict(1, None),
        of_evict(2, None),
        of_bulk(bulk((1,), "a", x=floats(1))),
    ]
    assert len(set(digests)) == len(digests)


# ---------------------------------------------------------------- what no window takes


@pytest.mark.parametrize(
    "batch",
    [
        Batch(ints(1, 2), {"s": Coded(["a"], ints(0, 1))}),
        Batch(ints(1, 2), {"s": Coded([], ints(0, 0))}),
        Batch(ints(1, 2), {"s": Coded(["a", "b"], ints(0, -1))}),
        Batch(ints(1, 2), {"s": Coded(["a", "a"], ints(0, 1))}),
        Batch(ints(1, 2), {"x": floats(1)}, Coded(["a"], ints(0, 0, 0))),
        PartialBatch(ints(1), {"mean": ()}, ints()),
    ],
)
def test_a_bulk_that_will_be_refused_has_some_digest(batch):
    assert of_bulk(batch) != of_bulk(bulk())


def test_an_entry_that_will_be_refused_has_some_digest():
    deep = []
    for _ in range(2000):
        deep = [deep]
    for value in (None, [], {}, deep, 10**400, b"x"):
        assert of_entry(1, {"x": value}, "a") != of_entry(1, {"x": 1.0}, "a")
