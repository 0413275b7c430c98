"""How stored values are framed, and their keys.

    value     SASH | format | kind | checksum | length, key, store | payload, as MessagePack
              4      1        11     8          1 + up to 200, 8     any length

The checksum is XXH3-64 over everything else. The key is the one that the value was written under, without the prefix or
the directory of its tier. The store is the random id of the tier that it was written to: a directory, or a prefix in
Redis; a copy of a whole store has its id. A value that is damaged, cut short, of another kind, or found under another
key or in another store is a `DataLoss` that names it, and never an answer. So it is noticed if a tier mixes up two
values, if it loses a write and shows an older value, and if a file of another directory is put into one. A value of a
newer version is told from a damaged one, because this frame stays.

Formats 2 and 3 have no store, and the roots of format 2 say less of each other, see `roots.py`. Format 1 had no key.
Their values are read where an earlier version may have left them, see `unseal`. Frames of exports have no key, and are
written in format 1.
"""

from __future__ import annotations

import re
import struct
from typing import Any, NamedTuple

import msgpack
import xxhash

from sash_engine.errors import DataLoss, FailedPrecondition

FORMAT = 4
"""Raise it with every change that an older version cannot read."""

UNBOUND = 1
"""Format of values without a key."""

OWNED = 4
"""First format of values that name their store."""

STORE_BYTES = 8
NO_STORE = bytes(STORE_BYTES)
"""In the place of an id, where there is none."""

VALUE_BYTES_MAX = 64 << 20
"""A tier accepts no longer values."""

_MAGIC = b"SASH"
_HEAD = struct.Struct("<4sB11s")
_SUM = struct.Struct("<Q")
_FRONT = _HEAD.size + _SUM.size
_LONG = 1


# ---------------------------------------------------------------- keys


def meta_key() -> bytes:
    """The list of windows."""
    return b"meta"


def journal_key() -> bytes:
    """The beginning of the journal."""
    return b"journal"


def group_key(number: int) -> bytes:
    """A group of records; groups are numbered from 1."""
    return b"journal/%016x" % number


def last_group_key() -> bytes:
    """The end of the journal."""
    return b"journal/last"


def block_key(window: int, block: int) -> bytes:
    """A sealed block of a window. Digits are padded, so that blocks of one time are neighbours in sorted keys."""
    return b"block/%08x/%016x" % (window, block)


def image_key(window: int, version: int, part: int) -> bytes:
    """A part of an image of a window; parts are numbered from 0."""
    return b"image/%08x/%016x/%08x" % (window, version, part)


def pointer_key(window: int) -> bytes:
    """The pointer to the image of a window."""
    return b"pointer/%08x" % window


def staged_key(window: int, part: int) -> bytes:
    """A staged part of a batch."""
    return b"staged/%08x/%016x" % (window, part)


class Name(NamedTuple):
    """The parts of a key.

    Args:
        kind: kind of the value, as for `seal`.
        window: number of the window; None if it belongs to no single window.
        number: number of the group, block or staged part; version of the image.
        part: number of the part of an image.
    """

    kind: str
    window: int | None = None
    number: int = 0
    part: int = 0


def name_of(key: bytes) -> Name | None:
    """Parse a key; None if none of the functions above makes it."""
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


def seal(kind: str, payload: Any, key: bytes | None = None, store: bytes = NO_STORE) -> bytes:
    """Frame a value.

    Args:
        kind: up to 11 ASCII letters; a reader names the same kind.
        payload: None, bool, int, float, str, bytes, and lists and mappings of them.
        key: the key of the value; None for a frame of an export, which has none.
        store: id of the store that the value is written to.
    """
    assert len(kind) <= 11, f"{kind!r} is too long for a kind"
    head = _HEAD.pack(_MAGIC, UNBOUND if key is None else FORMAT, kind.encode("ascii"))
    packed = pack(payload) if key is None else b"".join((bytes([len(key)]), key, store, pack(payload)))
    return b"".join((head, _SUM.pack(_checksum(head, packed)), packed))


def unseal(
    kind: str,
    data: bytes | None,
    name: bytes | str,
    key: bytes | None = None,
    bound: bool = False,
    store: bytes | None = None,
    owned: bool = False,
) -> Any:
    """Read the payload of a value; tuples become lists.

    Args:
        data: the value; None if it is missing.
        name: its key; or a name for errors, with `key` apart.
        key: its key, if `name` is not the key.
        bound: refuse values of format 1, which have no key: there can be none in this place.
        store: id of the store that it is read from; None if that does not matter.
        owned: refuse values that name no store: there can be none in this place.

    Raises:
        DataLoss: it is missing, damaged, of another kind, or belongs under another key or to another store.
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
    if version >= OWNED:
        found_store, packed = bytes(packed[:STORE_BYTES]), packed[STORE_BYTES:]
        if store is not None and found_store != store:
            raise DataLoss(
                f"{called} is of another store: it was written to {found_store.hex()}, and this is {store.hex()}"
            )
    elif owned or (bound and version == UNBOUND):
        raise DataLoss(f"{called} is in the wrong place: it is older than what was written there")
    if found.rstrip(b"\0") != kind.encode("ascii"):
        raise DataLoss(f"{called} is of kind {found.rstrip(bytes(1)).decode('ascii', 'replace')}, not {kind}")
    try:
        return unpack(packed)
    except ValueError as error:
        raise DataLoss(f"{called} cannot be read: {error}") from None


def checksum(data: bytes) -> bytes:
    """The checksum of a value, as it says."""
    return data[_HEAD.size : _FRONT]


def store_of(data: bytes | None) -> bytes | None:
    """The id of the store that a value names, according to its format; None without one. The value may be damaged."""
    if data is None or data[4:5] < bytes([OWNED]) or len(data) <= _FRONT:
        return None
    start = _FRONT + 1 + data[_FRONT]
    return data[start : start + STORE_BYTES]


def is_bound(data: bytes | None) -> bool:
    """Whether a value has a key, according to its format. The value may be damaged."""
    return data is not None and data[4:5] > bytes([UNBOUND])


def _named(key: bytes) -> str:
    return f"value {key.decode('ascii', 'backslashreplace')!r}"


def pack(payload: Any) -> bytes:
    """Encode as MessagePack. As in JSON, strings may have half a surrogate pair, and ints any number of digits."""
    return msgpack.packb(payload, unicode_errors="surrogatepass", default=_long_to)  # type: ignore[no-any-return]


def unpack(data: bytes | memoryview) -> Any:
    """Decode what `pack` made; raises ValueError for anything else."""
    try:
        return msgpack.unpackb(data, unicode_errors="surrogatepass", strict_map_key=False, ext_hook=_long_from)
    except (msgpack.StackError, msgpack.FormatError) as error:
        raise ValueError(f"no MessagePack: {type(error).__name__}") from None


def _long_to(value: Any) -> msgpack.ExtType:
    """Encode an int of more than 64 bits: a float64 may be written so, and a spec may have one."""
    if not isinstance(value, int):
        raise TypeError(f"a {type(value).__name__} cannot be stored")
    return msgpack.ExtType(_LONG, hex(value).encode("ascii"))


def _long_from(kind: int, data: bytes) -> int:
    if kind != _LONG:
        raise ValueError(f"extension {kind} is not known")
    return int(data, 16)


def _checksum(head: bytes, packed: bytes | memoryview) -> int:
    digest = xxhash.xxh3_64(head)
    digest.update(packed)
    return digest.intdigest()
