"""The strings of staged parts: stored as one string, read with one dictionary, and what earlier versions stored."""

from __future__ import annotations

import subprocess
import sys
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sash.durability import write_path
from sash.durability.formats import pack, unpack
from sash.durability.records import shared_texts
from sash.durability.records.columns import batch_from, batch_to, plain_coded_to
from sash.durability.records.commands import Commit, StageBatch
from sash.durability.records.shared_texts import coded_from, coded_to, read_together, with_one_dictionary
from sash_engine.windows.batches.batch import AnyBatch, Batch, Coded
from sash_engine.windows.writing import writer
from tests.support.failing import entries
from tests.support.stored import batch, running, spec

TEXTS = st.lists(st.text(max_size=4) | st.sampled_from(["", "\ud800", "é", "key-1"]), max_size=6)
COLUMNS = st.lists(TEXTS.flatmap(lambda texts: st.tuples(st.just(texts), rows_of(texts))), max_size=5)
FORMS = st.sampled_from([coded_to, plain_coded_to])


def rows_of(texts: list[str]) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, len(texts) - 1), max_size=8) if texts else st.just([])


def stored(column: Coded, form: Any) -> list[Any]:
    found: list[Any] = unpack(pack(form(column)))
    return found


def bulk(texts: list[str], codes: list[int]) -> Batch:
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
        unpack(pack(batch_to(bulk(texts, codes), form))) for (texts, codes), form in zip(columns, forms, strict=False)
    ]
    check_one_dictionary(read_together(payloads), columns)
    check_one_dictionary(with_one_dictionary([bulk(texts, codes) for texts, codes in columns]), columns)


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
