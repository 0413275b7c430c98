"""Columns, blocks and batches as plain values that MessagePack knows.

    column    [dtype, raw little-endian bytes]            numbers and bools
              [texts]                                     strings or bytes, most of them different
              [texts, codes]                              strings or bytes, each twice or more on average
              [UTF-8, lengths, codes]                     strings of staged parts: joined_texts.py

At 1,024 strings a plain list takes 30 µs to write and 52 µs to read, whatever they are. With codes it takes 65 to
110 µs to write and 9 to 30 µs to read, and equal strings are one object in memory. So codes are for strings that
repeat. One text with lengths was slower than both to read (120 µs).

Arrays that are read are views of the bytes that they came in: read-only, as are those that come over the network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sash_engine.forest.cold import PendingBlock
from sash_engine.forest.layout import Layout
from sash_engine.monoids.base import Array, object_array
from sash_engine.windows.batches.batch import AnyBatch, Batch, Coded, PartialBatch

_WIDTHS = (np.dtype("<u1"), np.dtype("<u2"), np.dtype("<u4"))


def columns_to(columns: Sequence[Array]) -> list[Any]:
    """Turn columns of numbers, bools, strings or bytes into values for `pack`."""
    return [_column_to(column) for column in columns]


def columns_from(payload: Sequence[Any]) -> list[Array]:
    """Read what `columns_to` made. Do not write to the arrays."""
    return [_column_from(*column) for column in payload]


def sealed_to(block: PendingBlock, layout: Layout) -> Any:
    """Turn a sealed block or a partial into a value for `pack`: columns as lists, or the partial's bytes."""
    return block.columns[0].item(0) if block.partial else columns_to(layout.stored(block.columns))


def sealed_from(payload: Any, layout: Layout) -> list[Array]:
    """Read the columns that `sealed_to` wrote."""
    return [object_array([payload])] if isinstance(payload, bytes) else layout.loaded(columns_from(payload))


def _column_to(column: Array) -> list[Any]:
    if column.dtype.hasobject:
        texts = column.tolist()
        different = list(dict.fromkeys(texts))
        if 2 * len(different) > len(texts):
            return [texts]
        index = dict(zip(different, range(len(different)), strict=True))
        return [different, np.fromiter(map(index.__getitem__, texts), _width(len(different)), len(texts)).tobytes()]
    little = column.dtype.newbyteorder("<")
    return [little.str, column.astype(little, copy=False).tobytes()]


def _column_from(first: Any, second: bytes | None = None) -> Array:
    if isinstance(first, str):
        little = np.dtype(first)
        return np.frombuffer(second or b"", little).astype(little.newbyteorder("="), copy=False)
    texts = object_array(first)
    return texts if second is None else texts[np.frombuffer(second, _width(len(first)))]


def plain_coded_to(column: Coded) -> list[Any]:
    """Turn a column of strings into a value for `pack`: texts and codes."""
    texts = column.dictionary
    return [texts, column.codes.astype(_width(len(texts)), copy=False).tobytes()]


def coded_from(texts: list[str], codes: bytes) -> Coded:
    """A string column from its texts and the bytes of its codes; ValueError if these are not whole codes.

    Codes are as wide as the number of texts needs.
    """
    return Coded(texts, codes_from(codes, len(texts)))


def codes_from(codes: bytes, texts: int) -> Array:
    """Codes into so many texts."""
    return np.frombuffer(codes, _width(texts))


def _width(texts: int) -> np.dtype[Any]:
    """The dtype of codes into so many texts."""
    return _WIDTHS[(texts > 1 << 8) + (texts > 1 << 16)]


# ---------------------------------------------------------------- batches


def batch_to(batch: AnyBatch, coded_to: Callable[[Coded], list[Any]] | None = None) -> list[Any]:
    """Turn a bulk of entries into a value for `pack`; `coded_to` turns columns of strings into values."""
    coded_to = coded_to or plain_coded_to
    keys = None if batch.keys is None else coded_to(batch.keys)
    if isinstance(batch, PartialBatch):
        partials = {name: columns_to(parts) for name, parts in batch.partials.items()}
        return [_column_to(batch.times), {}, keys, partials, _column_to(batch.entries)]
    columns = {
        name: coded_to(column) if isinstance(column, Coded) else _column_to(column)
        for name, column in batch.columns.items()
    }
    return [_column_to(batch.times), columns, keys]


def batch_from(payload: Sequence[Any], coded_from: Callable[..., Coded] = coded_from) -> AnyBatch:
    """Read what `batch_to` made. Strings are `Coded`, with codes as narrow as possible; `coded_from` reads them.

    Raises:
        ValueError, TypeError: it is something else.
    """
    times, columns, keys, *rest = payload
    read: dict[str, Array | Coded] = {
        name: _column_from(*column) if isinstance(column[0], str) else coded_from(*column)
        for name, column in columns.items()
    }
    coded = None if keys is None else coded_from(*keys)
    if not rest:
        return Batch(_column_from(*times), read, coded)
    if read:
        raise ValueError("a bulk has values or partials, and this one has both")
    partials, entries = rest
    parts = {name: tuple(columns_from(columns)) for name, columns in partials.items()}
    return PartialBatch(_column_from(*times), parts, _column_from(*entries), coded)


def size_of(*batches: AnyBatch) -> int:
    """About how many bytes bulks have when they are written: an upper bound, apart from a few hundred bytes.

    A dictionary that several of them have is counted once.
    """
    size, dictionaries = 0, dict[int, list[str]]()
    for batch in batches:
        n = len(batch.times)
        size += 8 * n
        columns = batch.columns if isinstance(batch, Batch) else {}
        for column in (batch.keys, *columns.values()):
            if isinstance(column, Coded):
                size += n * _width(len(column.dictionary)).itemsize
                dictionaries[id(column.dictionary)] = column.dictionary
            elif column is not None:
                size += column.nbytes
        for parts in (batch.partials if isinstance(batch, PartialBatch) else {}).values():
            size += sum(5 * n + sum(map(len, part)) if part.dtype.hasobject else part.nbytes for part in parts)
    return size + sum(map(texts_bytes, dictionaries.values()))


def texts_bytes(texts: Sequence[str]) -> int:
    """How many bytes strings take when they are written."""
    joined = "".join(texts)
    plain = joined.isascii()
    return 5 * len(texts) + (len(joined) if plain else len(joined.encode("utf-8", "surrogatepass")))
