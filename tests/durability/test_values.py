"""Stored values: what is written is read, and what is damaged is said to be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from sash.durability import formats as values
from sash.durability.formats import seal, unpack, unseal
from sash.durability.records.columns import batch_from, batch_to, columns_from, columns_to, size_of
from sash_engine.errors import DataLoss, FailedPrecondition
from sash_engine.windows.batches.batch import Batch, Coded, PartialBatch

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
