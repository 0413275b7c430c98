"""What travels between processes arrives as it was sent; anything else is refused."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash.access.rights import RIGHTS
from sash.durability.records.commands import (
    BulkEvict,
    BulkInsert,
    Commit,
    EvictRange,
    Insert,
    Punctuate,
    Retract,
    StageBatch,
    Update,
)
from sash.shards.codec import pack, unpack
from sash_engine.errors import DataLoss, SashError
from sash_engine.windows.batches.batch import Batch, Coded, PartialBatch
from sash_engine.windows.questions import ALL_KEYS, KeysQuery, Query, Where
from tests.support.errors import ERRORS

plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()),
    lambda inner: st.one_of(
        st.lists(inner), st.tuples(inner, inner), st.dictionaries(st.one_of(st.text(), st.integers(0, 9)), inner)
    ),
    max_leaves=10,
)


@given(plain)
def test_plain_values(value: object) -> None:
    assert unpack(pack(value)) == value


@given(st.text(alphabet=st.characters(codec=None, categories=["Cs", "Lu"])))
def test_texts_that_are_no_unicode(text: str) -> None:
    assert unpack(pack(text)) == text


def test_arrays_and_batches() -> None:
    for array in (np.arange(3.0), np.array([True]), np.empty(0, np.uint16), np.arange(6)[::2], np.zeros((2, 3))):
        found = unpack(pack(array))
        assert found.dtype == array.dtype
        assert found.tolist() == array.tolist()
    objects = np.array([None, 2**70, "x", [1, 2]], object)
    assert unpack(pack(objects)).tolist() == objects.tolist()
    keys = Coded(["a", "b"], np.array([1, 0], np.uint32))
    batch = unpack(pack(Batch(np.array([1, 2]), {"s": keys, "v": np.array([0.5, 1.5])}, keys)))
    assert batch.keys.dictionary == ["a", "b"]
    assert batch.columns["v"].tolist() == [0.5, 1.5]
    partials = unpack(pack(PartialBatch(np.array([1]), {"sum": (np.array([2.0]),)}, np.array([3]), None)))
    assert partials.partials["sum"][0].tolist() == [2.0]
    assert isinstance(partials.partials["sum"], tuple)


def test_questions() -> None:
    question = Query(None, ["5m"], 7, ALL_KEYS, True)
    assert unpack(pack(question)) == question


def test_commands_and_a_question_about_keys() -> None:
    batch = Batch(np.array([1]), {"v": np.array([0.5])}, None)
    commands = [
        *(Insert(1, {"v": 0.5}, "k", True, ["5m"]), BulkEvict(7, "k"), EvictRange(1, 7), Punctuate(7)),
        *(Commit("q", 3, ["a", "b"]), KeysQuery("k", 7, 2, [Where("key", "=", ["k"])])),
    ]
    for command in commands:
        assert unpack(pack(command)) == command
        assert command.operation in RIGHTS
    for made in (BulkInsert(batch), Retract(batch), Update(batch), StageBatch(batch, "q", 3, "t")):
        found = unpack(pack(made))
        assert (type(found), found.operation) == (type(made), made.operation)
        assert found.batch.columns["v"].tolist() == [0.5]


@pytest.mark.parametrize("unchanged", [False, True])
@pytest.mark.parametrize("kind", ERRORS)
def test_errors(kind: type[SashError], unchanged: bool) -> None:
    sent = kind("m", field="f", limit="l", retry_after_s=1.5, unchanged=unchanged)
    found = unpack(pack(sent))
    assert type(found) is type(sent)
    assert isinstance(found, SashError)
    assert (found.message, found.field, found.limit, found.retry_after_s) == ("m", "f", "l", 1.5)
    assert found.unchanged is unchanged


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        pack([1, 2])[:-1],
        msgpack.packb(msgpack.ExtType(3, pack(["Popen", {"args": "ls"}]))),
        msgpack.packb(msgpack.ExtType(3, pack(["Query", {"nothing": 1}]))),
        msgpack.packb(msgpack.ExtType(1, pack(["<i8", [3], b"1"]))),
        msgpack.packb(msgpack.ExtType(99, pack(None))),
        msgpack.packb(msgpack.ExtType(6, pack(["Exception", "m", None, None, None]))),
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(DataLoss):
        unpack(data)


def test_values_of_unknown_classes_do_not_travel() -> None:
    with pytest.raises(TypeError, match="object"):
        pack([object()])
