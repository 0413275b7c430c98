"""The strings of staged parts: each part has a dictionary of its own, and their write has one for all.

    part 1    a b d   codes 0 2 1                  dictionary    a b d c
    part 2    b c     codes 1 0 1         ──▶      part 1        0 2 1
                                                   part 2        3 1 3

A batch of 10 million rows of 100,000 keys comes in 153 parts, each with 48,000 of the keys. So the texts of a part are
stored as one string and their lengths, and Arrow joins the dictionaries without an object for each text: that takes
3.4 ms for each, where a look-up of each text takes 17 ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from sash.durability.records.columns import batch_from, codes_from, plain_coded_to
from sash_engine.monoids.base import Array
from sash_engine.windows.batches.batch import AnyBatch, Batch, Coded

_FEW = 1_024
"""A dictionary of so many texts is stored as a list."""
_LENGTH = np.dtype("<u4")


def coded_to(column: Coded) -> list[Any]:
    """Turn a column of strings of a part into a value for `pack`."""
    texts, codes = plain_coded_to(column)
    if len(texts) <= _FEW:
        return [texts, codes]
    data, lengths = _packed(texts)
    return [data, lengths.tobytes(), codes]


def coded_from(*stored: Any) -> Coded:
    """Read what `coded_to` made, and what earlier versions stored."""
    *texts, codes = stored
    found = texts[0] if len(texts) == 1 else _listed(*_checked(*texts))
    return Coded(found, codes_from(codes, len(found)))


def read_together(payloads: Iterable[Sequence[Any]]) -> list[AnyBatch]:
    """Read staged parts; a column of strings has one dictionary in all of them.

    Raises:
        ValueError, TypeError: they are something else.
    """
    return with_one_dictionary([batch_from(payload, _unread) for payload in payloads])


def with_one_dictionary(batches: list[Any]) -> list[AnyBatch]:
    """Give each column of strings one dictionary in all of some bulks of one window."""
    values: list[Any] = [batch for batch in batches if isinstance(batch, Batch)]
    keys = _joined([batch.keys for batch in batches if batch.keys is not None])
    columns: dict[str, Iterator[Coded]] = {}
    for name, column in values[0].columns.items() if values else ():
        if isinstance(column, Coded | _Unread):
            columns[name] = _joined([batch.columns[name] for batch in values])
    for i, batch in enumerate(batches):
        if batch.keys is not None:
            batch = batches[i] = replace(batch, keys=next(keys))
        if isinstance(batch, Batch) and columns:
            batches[i] = replace(batch, columns={**batch.columns, **{name: next(columns[name]) for name in columns}})
    return batches


class _Unread(NamedTuple):
    """A column of strings as it is stored: the texts together, their lengths in bytes, and the codes."""

    data: bytes
    lengths: Array
    codes: Array


def _unread(*stored: Any) -> Any:
    """Read no text yet."""
    *texts, codes = stored
    data, lengths = _packed(*texts) if len(texts) == 1 else _checked(*texts)
    return _Unread(data, lengths, codes_from(codes, len(lengths)))


def _checked(data: bytes, lengths: bytes) -> tuple[bytes, Array]:
    """Read the texts of a part."""
    sizes = np.frombuffer(lengths, _LENGTH)
    if int(sizes.sum()) != len(data):
        raise ValueError("the texts of a dictionary have another length together than each by itself")
    return data, sizes


def _joined(columns: Sequence[Coded | _Unread]) -> Iterator[Coded]:
    """Yield the columns with one dictionary: of the texts that were different, in the order in which they came."""
    if not columns:
        return
    chunks = [_with_own_dictionary(column) for column in columns]
    import pyarrow as pa  # a tenth of a second, which a service without staged parts starts sooner

    # With a part of no rows: Arrow leaves one dictionary alone as it is, which may have a text twice.
    found = pa.chunked_array([*chunks, chunks[0][:0]]).unify_dictionaries()
    _, ends, data = found.chunk(0).dictionary.buffers()
    lengths = np.diff(np.frombuffer(ends, np.int32, len(found.chunk(0).dictionary) + 1)).astype(_LENGTH)
    dictionary = _listed(b"" if data is None else data.to_pybytes()[: int(lengths.sum())], lengths)
    for column, new in zip(columns, found.iterchunks(), strict=False):
        indices = np.frombuffer(new.indices.buffers()[1], np.int32)[new.indices.offset :]
        yield Coded(dictionary, indices.astype(np.uint32)[column.codes])


def _with_own_dictionary(column: Coded | _Unread) -> Any:
    """Each text of a column once, as Arrow's dictionary and codes."""
    data, lengths = (column.data, column.lengths) if isinstance(column, _Unread) else _packed(column.dictionary)
    import pyarrow as pa  # as in `_joined`

    texts = len(lengths)
    ends = np.zeros(texts + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    dictionary = pa.Array.from_buffers(pa.binary(), texts, [None, pa.py_buffer(ends), pa.py_buffer(data)])
    # `pa.array` and `to_numpy` import pandas, where it is installed: 0.29 s of the first commit.
    indices = pa.Array.from_buffers(pa.int32(), texts, [None, pa.py_buffer(np.arange(texts, dtype=np.int32))])
    return pa.DictionaryArray.from_arrays(indices, dictionary)


def _packed(texts: Sequence[str]) -> tuple[bytes, Array]:
    """Texts as one string in UTF-8, and the length of each in bytes."""
    joined = "".join(texts)
    data = joined.encode("utf-8", "surrogatepass")
    lengths = map(len, texts if len(data) == len(joined) else [text.encode("utf-8", "surrogatepass") for text in texts])
    return data, np.fromiter(lengths, _LENGTH, len(texts))


def _listed(data: bytes, lengths: Array) -> list[str]:
    """The texts that `_packed` took."""
    spans = pairwise([0, *np.cumsum(lengths).tolist()])
    if data.isascii():
        text = data.decode("ascii")
        return [text[a:b] for a, b in spans]
    return [data[a:b].decode("utf-8", "surrogatepass") for a, b in spans]
