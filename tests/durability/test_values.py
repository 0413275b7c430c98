"""Stored values and digests: what is written is read, damage is said to be one, and equal writes have one digest."""

from __future__ import annotations

import itertools
import subprocess
import sys
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from sash.durability import formats as values
from sash.durability import write_path
from sash.durability.formats import pack, seal, unpack, unseal
from sash.durability.records import shared_texts
from sash.durability.records.columns import batch_from, batch_to, columns_from, columns_to, plain_coded_to, size_of
from sash.durability.records.commands import Commit, StageBatch
from sash.durability.records.digests import of_bulk, of_entry, of_evict
from sash.durability.records.shared_texts import coded_from, coded_to, read_together, with_one_dictionary
from sash_engine.errors import DataLoss, FailedPrecondition
from sash_engine.monoids.base import object_array
from sash_engine.windows.batches.batch import AnyBatch, Batch, Coded, PartialBatch
from sash_engine.windows.batches.ledger import DIGEST_BYTES
from sash_engine.windows.writing import writer
from tests.support.failing import entries
from tests.support.stored import batch, running, spec

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
dtypes = st.sampled_from([np.float64, np.int64, np.bool_])
any_text = st.text(st.characters(codec=None), max_size=6)  # half surrogate pairs, too


def numbers(n):
    return dtypes.flatmap(lambda dtype: st_numpy.arrays(dtype, n))


def objects(items):
    return np.fromiter(items, object, len(items))


def texts(n):
    kinds = (st.sampled_from(["", "a", "ß", "\ud800"]), any_text, st.binary())
    return st.one_of([st.lists(kind, min_size=n, max_size=n) for kind in kinds]).map(objects)


def same(found, expected):
    assert found.dtype == expected.dtype
    if expected.dtype.hasobject:
        assert found.tolist() == expected.tolist()
    else:
        assert found.tobytes() == expected.tobytes()  # NaN and -0.0 as they were


# ---------------------------------------------------------------- frames


@given(plain)
def test_a_value_is_read_as_it_was_written(payload):
    assert unseal("block", seal("block", payload), b"block/1") == payload
    assert unseal("block", seal("block", payload, b"block/1"), b"block/1", bound=True) == payload


@given(plain, st.data())
def test_every_damaged_bit_is_found(payload, data):
    value = bytearray(seal("image", payload, data.draw(st.sampled_from([None, b"image/7"]))))
    bit = data.draw(st.integers(0, 8 * len(value) - 1))
    value[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DataLoss, match="image/7"):
        unseal("image", bytes(value), b"image/7")


@given(plain, st.data())
def test_a_value_that_is_cut_short_or_too_long_is_damaged(payload, data):
    value = seal("image", payload)
    with pytest.raises(DataLoss, match="part 7 of the image"):
        unseal("image", value[: data.draw(st.integers(0, len(value) - 1))], "part 7 of the image")
    with pytest.raises(DataLoss, match="damaged"):
        unseal("image", value + b"\0", "part 7 of the image")


@given(plain, st.binary(min_size=1, max_size=200), st.binary(min_size=1, max_size=200))
def test_a_value_that_is_found_under_another_key_is_refused(payload, key, other):
    value = seal("block", payload, key)
    assert unseal("block", value, "block 3 of window 'w'", key, True) == payload
    if key != other:
        with pytest.raises(DataLoss, match="block 3 of window 'w' is in the wrong place: it was written as value"):
            unseal("block", value, "block 3 of window 'w'", other)


def test_a_value_of_format_1_is_refused_where_there_can_be_none():
    value = seal("block", [1])
    assert value[4] == 1
    assert unseal("block", value, b"block/1") == [1]
    with pytest.raises(DataLoss, match="'block/1' is in the wrong place: it is older"):
        unseal("block", value, b"block/1", bound=True)
    assert [values.is_bound(each) for each in (value, seal("block", [1], b"x"), None, b"", b"SASH")] == [
        False,
        True,
        False,
        False,
        False,
    ]


def test_a_value_without_a_payload_is_damaged():
    """Anybody can compute a checksum, of an export for instance."""
    value = bytearray(seal("block", None, b""))[:16]
    value += values._checksum(bytes(value), b"").to_bytes(8, "little")
    with pytest.raises(DataLoss, match="cannot be read"):
        unseal("block", bytes(value), "frame 0")


def test_a_value_that_is_missing_or_another_is_named():
    with pytest.raises(DataLoss, match="value 'journal/3' is missing"):
        unseal("journal", None, b"journal/3")
    with pytest.raises(DataLoss, match="value 'x' is of kind image, not block"):
        unseal("block", seal("image", 1), b"x")
    with pytest.raises(DataLoss, match="not one that Sash wrote"):
        unseal("block", b"PK\3\4" + bytes(30), b"x")


def test_a_value_of_a_newer_version_is_not_taken_for_a_damaged_one(monkeypatch):
    now = values.FORMAT
    monkeypatch.setattr(values, "FORMAT", now + 1)
    newer = seal("block", [1], b"x")
    monkeypatch.setattr(values, "FORMAT", now)
    with pytest.raises(FailedPrecondition, match=f"format {now + 1}") as raised:
        unseal("block", newer, b"x")
    assert raised.value.limit == f"format {now}"


def test_what_is_no_message_is_a_value_error():
    for data in (b"", b"\xc1", b"\x92\x01", b"\x01\x02"):
        with pytest.raises(ValueError, match=r"MessagePack|Unpack|extra"):
            unpack(data)


def test_keys_are_short_and_never_the_same():
    keys = [values.meta_key(), values.journal_key(), values.group_key(2**63 - 1), values.group_key(1)]
    for window in (1, 2, 2**31):
        keys += [values.block_key(window, 1), values.block_key(window, 2**63 - 1), values.pointer_key(window)]
        keys += [values.staged_key(window, 1), *(values.image_key(window, v, p) for v in (1, 2) for p in (0, 1))]
    assert len(set(keys)) == len(keys)
    assert all(1 <= len(key) <= 200 for key in keys)
    assert values.block_key(1, 9) < values.block_key(1, 10) < values.block_key(1, 300) < values.block_key(2, 1)


def test_a_key_says_what_it_is_of():
    named = {
        values.meta_key(): values.Name("meta"),
        values.journal_key(): values.Name("pointer"),
        values.last_group_key(): values.Name("last"),
        values.group_key(7): values.Name("journal", None, 7),
        values.pointer_key(3): values.Name("pointer", 3),
        values.block_key(2**31, 2**63 - 1): values.Name("block", 2**31, 2**63 - 1),
        values.staged_key(3, 4): values.Name("part", 3, 4),
        values.image_key(3, 4, 0): values.Name("head", 3, 4, 0),
        values.image_key(3, 4, 5): values.Name("image", 3, 4, 5),
    }
    assert {key: values.name_of(key) for key in named} == named
    for other in (b"", b"met", b"journal/", b"journal/7", b"block/00000001", b"pointer/00000001/0000000000000001"):
        assert values.name_of(other) is None
    assert values.name_of(values.block_key(1, 1).upper()) is None
    assert values.name_of(values.block_key(1, 10).replace(b"a", b"A")) is None


# ---------------------------------------------------------------- columns


@given(st.integers(0, 40).flatmap(lambda n: st.lists(numbers(n) | texts(n), max_size=4)))
def test_columns_are_read_as_they_were_written(columns):
    found = columns_from(unseal("block", seal("block", columns_to(columns)), b"x"))
    assert len(found) == len(columns)
    for column, expected in zip(found, columns, strict=True):
        same(column, expected)


def test_columns_may_be_views_and_of_another_byte_order():
    column = np.arange(20.0)
    for view in (column[::3], column[::-1], column.astype(">f8")[2:5], np.arange(6).reshape(2, 3)[:, 1]):
        (found,) = columns_from(columns_to([view]))
        assert found.tolist() == view.tolist()
        assert found.dtype.isnative


@pytest.mark.parametrize("different", [1, 255, 256, 257, 511, 65_536, 65_537])
def test_strings_are_coded_as_wide_as_they_need(different):
    names = [f"name {i}" for i in range(different)] * 2
    (column,) = columns_to([objects(names)])
    assert len(column) == 2, "each is there twice"
    (found,) = columns_from([column])
    assert found.tolist() == names
    assert len(set(map(id, found.tolist()))) == different, "equal strings are one object"


def test_strings_that_seldom_repeat_are_written_as_they_are():
    names = [f"name {i % 60}" for i in range(100)]
    (column,) = columns_to([objects(names)])
    assert column == [names]


# ---------------------------------------------------------------- batches


def coded(n):
    items = st.lists(st.sampled_from(["a", "bb", "", "ü"]), min_size=n, max_size=n)
    return items.map(Coded.of)


@st.composite
def batches(draw):
    n = draw(st.integers(0, 20))
    times = draw(st_numpy.arrays(np.int64, n))
    keys = draw(st.none() | coded(n))
    if draw(st.booleans()):
        fields = st.dictionaries(st.text(max_size=3), numbers(n) | coded(n), max_size=4)
        return Batch(times, draw(fields), keys)
    blobs = st.lists(st.binary(), min_size=n, max_size=n).map(objects)
    partials = st.dictionaries(st.text(max_size=3), st.lists(numbers(n) | blobs, max_size=3).map(tuple), max_size=3)
    return PartialBatch(times, draw(partials), draw(st_numpy.arrays(np.int64, n)), keys)


@given(batches())
def test_a_batch_is_read_as_it_was_written(batch):
    found = batch_from(unseal("journal", seal("journal", batch_to(batch)), b"x"))
    same(found.times, batch.times)
    assert type(found) is type(batch)
    columns, others = ({} if each.of_partials else each.columns for each in (found, batch))
    assert list(columns) == list(others)
    for column, expected in zip([*columns.values(), found.keys], [*others.values(), batch.keys], strict=True):
        if isinstance(expected, Coded):
            assert column.dictionary == expected.dictionary
            assert column.codes.tolist() == expected.codes.tolist()
        elif expected is None:
            assert column is None
        else:
            same(column, expected)
    if batch.of_partials:
        assert list(found.partials) == list(batch.partials)
        for name, parts in batch.partials.items():
            for part, expected in zip(found.partials[name], parts, strict=True):
                same(part, expected)
        same(found.entries, batch.entries)


@given(batches())
def test_the_size_of_a_batch_is_no_less_than_it_takes(batch):
    parts = sum(len(parts) for parts in batch.partials.values()) if batch.of_partials else 0
    names = batch.partials if batch.of_partials else batch.columns
    frames = 60 + sum(20 + 3 * len(name) for name in names) + 20 * (2 + parts)
    taken = len(seal("journal", batch_to(batch)))
    assert taken - frames - 8 * len(batch.times) <= size_of(batch), "but for the frames, and how many a pane stands for"


def test_the_size_of_a_batch_is_about_what_it_takes():
    n = 5000
    names = [f"key number {i}" for i in range(700)]
    batch = Batch(
        np.arange(n), {"x": np.ones(n), "s": Coded(names, np.arange(n) % 700)}, Coded(names, np.arange(n) % 700)
    )
    assert 0.5 < size_of(batch) / len(seal("journal", batch_to(batch))) < 1.5
    blobs = objects([bytes(100)] * n)
    batch = PartialBatch(np.arange(n), {"q": (blobs,), "s": (np.ones(n), np.ones(n))}, np.ones(n, np.int64))
    assert 0.5 < size_of(batch) / len(seal("journal", batch_to(batch))) < 4


NAN = np.array([0x7FF8000000000000, 0xFFF8000000000000, 0x7FF8000000000001], "<u8").view("<f8")
"""Three numbers that are none."""

any_texts = st.text(st.characters(codec=None), max_size=3) | st.sampled_from(["", "a", "b", "\0"])


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


@given(st.lists(any_texts, min_size=1, max_size=12), st.lists(any_texts, max_size=4), st.randoms())
def test_strings_count_and_not_how_they_are_coded(strings, unused, random):
    plain = Coded.of(strings)
    dictionary = list(dict.fromkeys([*strings, *unused]))
    random.shuffle(dictionary)
    expected = of_bulk(Batch(ints(*range(len(strings))), {"s": plain}, plain))
    for dtype in (np.uint8, np.int32, np.uint32, np.int64):
        coded = Coded(dictionary, np.array([dictionary.index(text) for text in strings], dtype))
        assert of_bulk(Batch(ints(*range(len(strings))), {"s": coded}, coded)) == expected


@given(st.lists(any_texts, min_size=1, max_size=6), st.lists(any_texts, min_size=1, max_size=6))
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


TEXTS = st.lists(st.text(max_size=4) | st.sampled_from(["", "\ud800", "é", "key-1"]), max_size=6)
COLUMNS = st.lists(TEXTS.flatmap(lambda texts: st.tuples(st.just(texts), rows_of(texts))), max_size=5)
FORMS = st.sampled_from([coded_to, plain_coded_to])


def rows_of(texts: list[str]) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, len(texts) - 1), max_size=8) if texts else st.just([])


def stored(column: Coded, form: Any) -> list[Any]:
    found: list[Any] = unpack(pack(form(column)))
    return found


def coded_bulk(texts: list[str], codes: list[int]) -> Batch:
    column = Coded(texts, np.array(codes, np.int64))
    return Batch(np.arange(len(codes)), {"text": column, "value": np.arange(len(codes)) / 2}, column)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_texts, "_FEW", 2)


@given(columns=COLUMNS, form=FORMS)
def test_a_column_is_read_as_it_was(columns: list[tuple[list[str], list[int]]], form: Any) -> None:
    for texts, codes in columns:
        found = coded_from(*stored(Coded(texts, np.array(codes, np.uint8)), form))
        assert (found.dictionary, found.codes.tolist()) == (texts, codes)


def test_parts_are_joined_without_pandas() -> None:
    """Arrow imports it, where it is installed, for a column that comes from NumPy or goes there."""
    code = (
        "import sys, numpy as np\n"
        "from sash.durability.records.shared_texts import with_one_dictionary\n"
        "from sash_engine.windows.batches.batch import Batch, Coded\n"
        "bulks = [Batch(np.arange(2), {}, Coded([text, 'b'], np.array([0, 1]))) for text in 'ac']\n"
        "assert with_one_dictionary(bulks)[1].keys.decode().tolist() == ['c', 'b']\n"
        "print('pyarrow' in sys.modules, 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.split() == ["True", "False"]


@example(columns=[(["a", "b", "a"], [0, 2, 1])], forms=[coded_to])  # one part, which has a text twice
@given(columns=COLUMNS, forms=st.lists(FORMS, min_size=5, max_size=5))
def test_parts_have_one_dictionary_with_each_text_once(
    columns: list[tuple[list[str], list[int]]], forms: list[Any]
) -> None:
    payloads = [
        unpack(pack(batch_to(coded_bulk(texts, codes), form)))
        for (texts, codes), form in zip(columns, forms, strict=False)
    ]
    check_one_dictionary(read_together(payloads), columns)
    check_one_dictionary(with_one_dictionary([coded_bulk(texts, codes) for texts, codes in columns]), columns)


def check_one_dictionary(found: list[AnyBatch], columns: list[tuple[list[str], list[int]]]) -> None:
    assert len(found) == len(columns)
    for read, (texts, codes) in zip(found, columns, strict=True):
        assert isinstance(read, Batch)
        assert read.keys is not None
        text = read.columns["text"]
        assert isinstance(text, Coded)
        wanted = [texts[code] for code in codes]
        assert [read.keys.decode().tolist(), text.decode().tolist()] == [wanted, wanted]
        assert np.array_equal(read.columns["value"], np.arange(len(codes)) / 2)
        assert read.keys.dictionary == list(dict.fromkeys(each for texts, _ in columns for each in texts))


@pytest.mark.parametrize("wrong", [b"abcd", b"ab"])
def test_a_dictionary_that_is_shorter_or_longer_than_its_texts_is_refused(wrong: bytes) -> None:
    _, lengths, codes = coded_to(Coded(["a", "b", "c"], np.zeros(2, np.uint8)))
    for read in (
        lambda: coded_from(wrong, lengths, codes),
        lambda: read_together([[["<i8", b""], {}, [wrong, lengths, codes]]]),
    ):
        with pytest.raises(ValueError, match="another length"):
            read()


async def test_parts_of_both_forms_are_committed_in_slices_and_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_SLICE_ROWS", 8)
    monkeypatch.setattr(writer, "_ROWS_OF_KEY", 1)
    monkeypatch.setattr("sash_engine.windows.batches.stages._STRIDE", 2)
    server, storage = await running(spec(), checkpoint_bytes=10**6)
    names, value, stages = [f"key {i}" for i in range(5)], count(), []
    expected: dict[str, list[int]] = {name: [] for name in names}
    for part in range(8):
        pairs = [(names[(part + i) % 5], 10 * part + i) for i in range(7)]
        first = next(value)
        for key, _ in pairs:
            expected[key].append(first)
            first += 1
        staged = await storage.write("w", StageBatch(batch(pairs, first - len(pairs)), "q", 0))
        stages.append(staged.stage)
        value = count(first)
        if part == 3:
            monkeypatch.setattr(write_path, "coded_to", plain_coded_to)
    done = await storage.write("w", Commit("q", 0, stages))
    assert done.inserted == 56
    for again in (server.storage, await server.crash(), await server.restart()):
        assert {name: list(entries(again, key=name)) for name in names} == expected
        assert (await again.write("w", Commit("q", 0, stages))).already_applied
    server.catalogue.window("w").check_invariants()


def test_parts_without_keys_and_texts_are_as_they_were() -> None:
    plain = Batch(np.arange(3), {"value": np.arange(3) / 2})
    (found,) = read_together([unpack(pack(batch_to(plain, coded_to)))])
    assert isinstance(found, Batch)
    assert (found.keys, found.times.tolist(), found.columns["value"].tolist()) == (None, [0, 1, 2], [0, 0.5, 1])
    assert read_together([]) == []
    assert batch_from(batch_to(plain)).times.tolist() == [0, 1, 2]
