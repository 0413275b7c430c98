"""How stored values are written, and what they are called.

    value     SASH | format | kind | checksum | length, key        | payload, as MessagePack
              4      1        11     8          1 + up to 200        any length
    column    [dtype, raw little-endian bytes]            numbers and bools
              [texts]                                     strings or bytes, most of them different
              [texts, codes]                              the same where each is there twice or more, on average

The checksum is XXH3-64 over all else. The key is the one that the value was written under, without the prefix or the
directory of its tier. A value that is damaged, cut short, of another kind or found under another key is a `DataLoss`
that names it, and never an answer. So a tier that mixes up two values, or loses a write and shows what its place held
before, is noticed. What a newer version wrote is told from what is damaged, because this frame stays.

Format 1 had no key. Its values are read where an older version may have left them, see `unseal`. Frames of exports are
stored under no key and are written in it.

At 1,024 strings a plain list takes 30 µs to write and 52 µs to read, whatever they are. With codes it takes 65 to
110 µs to write and 9 to 30 µs to read, and equal strings are one object in memory afterwards; so that where they
repeat. One text with lengths was slower than both to read (120 µs).

Arrays that are read are views of the bytes that they came in: read-only, as are those that come over the network.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack
import numpy as np
import xxhash

from sash_engine.errors import DataLoss, FailedPrecondition
from sash_engine.forest.cold import PendingBlock
from sash_engine.forest.layout import Layout
from sash_engine.monoids.base import Array, object_array
from sash_engine.windows.batch import Batch, Coded

__all__ = [
    "FORMAT",
    "UNBOUND",
    "Name",
    "VALUE_BYTES_MAX",
    "batch_from",
    "batch_to",
    "block_key",
    "coded_from",
    "columns_from",
    "columns_to",
    "group_key",
    "image_key",
    "journal_key",
    "last_group_key",
    "meta_key",
    "name_of",
    "pack",
    "pointer_key",
    "checksum",
    "is_bound",
    "seal",
    "sealed_from",
    "sealed_to",
    "size_of",
    "staged_key",
    "texts_bytes",
    "unpack",
    "unseal",
]

FORMAT = 2
"""Raised with every change that an older version could not read."""

UNBOUND = 1
"""Format of values that do not say what they were stored under."""

VALUE_BYTES_MAX = 64 << 20
"""A tier takes no longer ones."""

_MAGIC = b"SASH"
_HEAD = struct.Struct("<4sB11s")
_SUM = struct.Struct("<Q")
_FRONT = _HEAD.size + _SUM.size
_LONG = 1
_WIDTHS = (np.dtype("<u1"), np.dtype("<u2"), np.dtype("<u4"))


# ---------------------------------------------------------------- what values are called


def meta_key() -> bytes:
    """What is said of all windows: which there are, and where each one's image is."""
    return b"meta"


def journal_key() -> bytes:
    """Where the journal begins."""
    return b"journal"


def group_key(number: int) -> bytes:
    """A group of the journal's records; groups are numbered from 1."""
    return b"journal/%016x" % number


def last_group_key() -> bytes:
    """Number of the last group of the journal."""
    return b"journal/last"


def block_key(window: int, block: int) -> bytes:
    """A sealed block of a window. Digits are padded, so that blocks of one time lie together where keys are sorted."""
    return b"block/%08x/%016x" % (window, block)


def image_key(window: int, version: int, part: int) -> bytes:
    """A part of an image of a window; parts are numbered from 0."""
    return b"image/%08x/%016x/%08x" % (window, version, part)


def pointer_key(window: int) -> bytes:
    """Which image of a window counts."""
    return b"pointer/%08x" % window


def staged_key(window: int, part: int) -> bytes:
    """A staged part of a batch."""
    return b"staged/%08x/%016x" % (window, part)


class Name(NamedTuple):
    """What a key says of its value.

    Args:
        kind: of the value, as it is sealed.
        window: number of the window; None where it is nobody's alone.
        number: of the group, block or staged part; of an image its version.
        part: of an image.
    """

    kind: str
    window: int | None = None
    number: int = 0
    part: int = 0


def name_of(key: bytes) -> Name | None:
    """What the functions above made a key of; None where it is none of theirs."""
    one = _ONE.get(key)
    if one is not None:
        return one
    found = _MANY.fullmatch(key)
    if found is None:
        return None
    sort, *numbers = found.groups()
    first, second, third = (0 if digits is None else int(digits, 16) for digits in numbers)
    name = {
        b"journal/": Name("journal", None, first),
        b"pointer/": Name("pointer", first),
        b"block/": Name("block", first, second),
        b"staged/": Name("part", first, second),
        b"image/": Name("image" if third else "head", first, second, third),
    }[sort]
    return name if _key_of(name) == key else None


def _key_of(name: Name) -> bytes:
    window = name.window or 0
    match name.kind:
        case "journal":
            return group_key(name.number)
        case "pointer":
            return pointer_key(window)
        case "block":
            return block_key(window, name.number)
        case "part":
            return staged_key(window, name.number)
        case _:
            return image_key(window, name.number, name.part)


_ONE = {meta_key(): Name("meta"), journal_key(): Name("pointer"), last_group_key(): Name("last")}
_MANY = re.compile(rb"(journal/|pointer/|block/|staged/|image/)([0-9a-f]{8,16})(?:/([0-9a-f]{16}))?(?:/([0-9a-f]{8}))?")


# ---------------------------------------------------------------- frames


def seal(kind: str, payload: Any, key: bytes | None = None) -> bytes:
    """Frame a value.

    Args:
        kind: up to 11 ASCII letters; who reads the value says the same.
        payload: None, bool, int, float, str, bytes, and lists and mappings of them.
        key: what the value will be stored under; None where that is nothing, as with a frame of an export.
    """
    assert len(kind) <= 11, f"{kind!r} is too long for a kind"
    head = _HEAD.pack(_MAGIC, UNBOUND if key is None else FORMAT, kind.encode("ascii"))
    packed = pack(payload) if key is None else b"".join((bytes([len(key)]), key, pack(payload)))
    return b"".join((head, _SUM.pack(_checksum(head, packed)), packed))


def unseal(kind: str, data: bytes | None, name: bytes | str, key: bytes | None = None, bound: bool = False) -> Any:
    """The payload of a value, lists where there were lists or tuples.

    Args:
        data: the value; None where there is none.
        name: what to call it in an error, or its key.
        key: what it was found under, where `name` does not say so.
        bound: refuse a value that does not say what it was stored under: an older version wrote it, and none was there
            when this place was written to.

    Raises:
        DataLoss: there is none, or it is damaged, of another kind, or belongs elsewhere.
        FailedPrecondition: a newer version wrote it.
    """
    if isinstance(name, bytes):
        called, key = _named(name), name
    else:
        called = name
    if data is None:
        raise DataLoss(f"{called} is missing")
    if len(data) < _FRONT:
        raise DataLoss(f"{called} is cut short: it has {len(data)} bytes, and no value has less than {_FRONT}")
    head = data[: _HEAD.size]
    packed = memoryview(data)[_FRONT:]
    magic, version, found = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise DataLoss(f"{called} is not one that Sash wrote: it begins with {magic!r}")
    if _SUM.unpack_from(data, _HEAD.size)[0] != _checksum(head, packed):
        raise DataLoss(f"{called} is damaged: its checksum is another")
    if version > FORMAT:
        raise FailedPrecondition(
            f"{called} is of format {version}, which a newer version of Sash wrote", limit=f"format {FORMAT}"
        )
    if version > UNBOUND:
        stop = 1 + int.from_bytes(packed[:1])
        written = bytes(packed[1:stop])
        packed = packed[stop:]
        if key is not None and written != key:
            raise DataLoss(f"{called} is in the wrong place: it was written as {_named(written)}")
    elif bound:
        raise DataLoss(f"{called} is in the wrong place: it is older than what was written there")
    if found.rstrip(b"\0") != kind.encode("ascii"):
        raise DataLoss(f"{called} is of kind {found.rstrip(bytes(1)).decode('ascii', 'replace')}, not {kind}")
    try:
        return unpack(packed)
    except ValueError as error:
        raise DataLoss(f"{called} cannot be read: {error}") from None


def checksum(data: bytes) -> bytes:
    """The checksum that a value carries."""
    return data[_HEAD.size : _FRONT]


def is_bound(data: bytes | None) -> bool:
    """Whether a value says what it was stored under; of one that may be damaged, as far as it says."""
    return data is not None and data[4:5] > bytes([UNBOUND])


def _named(key: bytes) -> str:
    return f"value {key.decode('ascii', 'backslashreplace')!r}"


def pack(payload: Any) -> bytes:
    """MessagePack; strings may hold half a surrogate pair, and ints any number of digits, as JSON's may."""
    return msgpack.packb(payload, unicode_errors="surrogatepass", default=_long_to)  # type: ignore[no-any-return]


def unpack(data: bytes | memoryview) -> Any:
    """The opposite of `pack`; raises ValueError where it is none."""
    try:
        return msgpack.unpackb(data, unicode_errors="surrogatepass", strict_map_key=False, ext_hook=_long_from)
    except (msgpack.StackError, msgpack.FormatError) as error:
        raise ValueError(f"no MessagePack: {type(error).__name__}") from None


def _long_to(value: Any) -> msgpack.ExtType:
    """An int that has more than 64 bits: it stands for a float64, or in a spec."""
    if not isinstance(value, int):
        raise TypeError(f"a {type(value).__name__} is nothing that can be stored")
    return msgpack.ExtType(_LONG, hex(value).encode("ascii"))


def _long_from(kind: int, data: bytes) -> int:
    if kind != _LONG:
        raise ValueError(f"no extension {kind} is known")
    return int(data, 16)


def _checksum(head: bytes, packed: bytes | memoryview) -> int:
    digest = xxhash.xxh3_64(head)
    digest.update(packed)
    return digest.intdigest()


# ---------------------------------------------------------------- columns


def columns_to(columns: Sequence[Array]) -> list[Any]:
    """Columns of numbers, bools, strings or bytes as what `pack` takes."""
    return [_column_to(column) for column in columns]


def columns_from(payload: Sequence[Any]) -> list[Array]:
    """The opposite of `columns_to`: arrays that are not to be written to."""
    return [_column_from(*column) for column in payload]


def sealed_to(block: PendingBlock, layout: Layout) -> Any:
    """A sealed block or a partial as what `pack` takes: columns as lists, or the partial's bytes."""
    return block.columns[0].item(0) if block.partial else columns_to(layout.stored(block.columns))


def sealed_from(payload: Any, layout: Layout) -> list[Array]:
    """The opposite of `sealed_to`: the columns."""
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


def _coded_to(column: Coded) -> list[Any]:
    texts = column.dictionary
    return [texts, column.codes.astype(_width(len(texts)), copy=False).tobytes()]


def coded_from(texts: list[str], codes: bytes) -> Coded:
    """Texts and the bytes of codes into them, of the width that so many texts need; ValueError for other bytes."""
    return Coded(texts, np.frombuffer(codes, _width(len(texts))))


def _width(texts: int) -> np.dtype[Any]:
    """What a code into so many texts is written as."""
    return _WIDTHS[(texts > 1 << 8) + (texts > 1 << 16)]


# ---------------------------------------------------------------- batches


def batch_to(batch: Batch) -> list[Any]:
    """A bulk of entries as what `pack` takes."""
    columns = {
        name: _coded_to(column) if isinstance(column, Coded) else _column_to(column)
        for name, column in batch.columns.items()
    }
    keys = None if batch.keys is None else _coded_to(batch.keys)
    if batch.partials is None:
        return [_column_to(batch.times), columns, keys]
    assert batch.entries is not None, "rows of partials say how many entries they stand for"
    partials = {name: columns_to(parts) for name, parts in batch.partials.items()}
    return [_column_to(batch.times), columns, keys, partials, _column_to(batch.entries)]


def batch_from(payload: Sequence[Any]) -> Batch:
    """The opposite of `batch_to`: strings are `Coded`, codes as narrow as they can be.

    Raises:
        ValueError, TypeError: it is no such payload.
    """
    times, columns, keys, *rest = payload
    read: dict[str, Array | Coded] = {
        name: _column_from(*column) if isinstance(column[0], str) else coded_from(*column)
        for name, column in columns.items()
    }
    coded = None if keys is None else coded_from(*keys)
    if not rest:
        return Batch(_column_from(*times), read, coded)
    partials, entries = rest
    parts = {name: tuple(columns_from(columns)) for name, columns in partials.items()}
    return Batch(_column_from(*times), read, coded, parts, _column_from(*entries))


def size_of(batch: Batch) -> int:
    """How many bytes a bulk takes when it is written: no fewer than are needed, but for a few hundred."""
    n, size = len(batch.times), 8 * len(batch.times)
    for column in (batch.keys, *batch.columns.values()):
        if isinstance(column, Coded):
            size += n * _width(len(column.dictionary)).itemsize + texts_bytes(column.dictionary)
        elif column is not None:
            size += column.nbytes
    for parts in (batch.partials or {}).values():
        size += sum(5 * n + sum(map(len, part)) if part.dtype.hasobject else part.nbytes for part in parts)
    return size


def texts_bytes(texts: Sequence[str]) -> int:
    """How many bytes strings take when they are written."""
    joined = "".join(texts)
    plain = joined.isascii()
    return 5 * len(texts) + (len(joined) if plain else len(joined.encode("utf-8", "surrogatepass")))
