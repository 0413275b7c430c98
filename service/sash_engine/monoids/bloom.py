"""Bloom filters: has a value occurred in the window? "No" is certain; "yes" is wrong with a chosen probability.

    bits     0 1 0 0 1 0 0 1 0 …       value -> h0, h1 = xxh64(value), xxh64(value, seed h0)
               ^     ^     ^           bit i = ((h0 + i h1) mod 2^64 >> 1) mod bits,  i = 1 … hashes

The binary form, the hashes and the bits are those of the Bloom filter in Apache DataSketches' Java and C++ libraries,
which can read the answer. The Python package of DataSketches has no Bloom filter.

Source: Bloom, "Space/time trade-offs in hash coding with allowable errors", CACM 1970; Kirsch, Mitzenmacher, "Less
hashing, same performance", 2006; XXH64 after the xxHash specification 0.1.1.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any

import numpy as np

from sash_engine.errors import InvalidArgument
from sash_engine.monoids.base import ANY, Array, FieldType, Monoid, Partial, Partials, Read, Values, whole

SEED = 9001
_HEADER = struct.Struct("<BBBBHxxQIxxxx")
_UNCOUNTED = 2**64 - 1  # Java counts the bits only on request
_PREAMBLE_EMPTY, _PREAMBLE, _VERSION, _FAMILY, _EMPTY_FLAG = 3, 4, 1, 21, 4


class Bloom(Monoid):
    """A Bloom filter of a field's values: bytes that `BloomFilter` reads.

    All NaN count as one value, and so do -0.0 and 0.0. A bool counts as 0 or 1.

    Args:
        capacity: the number of distinct values that it is made for, 1 to 10,000,000.
        error: the probability of a wrong "yes" with that many values, 1e-9 to 0.5.

    It takes 1.44 log2(1 / error) bits per value of the capacity: 12 KB at the defaults.

    Partial: the bits as one Python integer.

    Flags: commutative, exact.

    >>> import numpy as np
    >>> from sash_engine.monoids import Bloom, BloomFilter
    >>> bloom = Bloom("string", capacity=100)
    >>> seen = BloomFilter(bloom.lower(bloom.reduce([np.array(["N14228", "N24211"], object)])))
    >>> "N14228" in seen, "N00000" in seen
    (True, False)
    """

    function = "bloom"
    parts = ("filter",)
    blob = "a Bloom filter of DataSketches, of the same size"
    reads = (Read("field", ANY),)
    commutative = True
    large = True
    answer = bytes
    identity = 0

    def __init__(self, *types: FieldType, capacity: int = 10_000, error: float = 0.01) -> None:
        super().__init__(*types)
        whole("capacity", capacity, 1, 10_000_000)
        if isinstance(error, bool) or not isinstance(error, (int, float)) or not 1e-9 <= error <= 0.5:
            raise InvalidArgument("error must be a probability in range", field="error", limit="1e-9 to 0.5")
        self.hashes = math.ceil(-math.log2(error))
        self.bits = math.ceil(-capacity * math.log(error) / math.log(2) ** 2 / 64) * 64

    def lift(self, value: Any) -> Partial:
        return reduce(or_, (1 << bit for bit in _bits_of(_bytes_of(value), SEED, self.hashes, self.bits)))

    def combine(self, older: Partial, newer: Partial) -> Partial:
        return older | newer

    def lower(self, partial: Partial) -> bytes:
        return self.encode(partial)

    def reduce(self, values: Values) -> Partial:
        if not len(values[0]):
            return 0
        marks = np.zeros(self.bits, np.bool_)
        for group in _by_length(values[0]):
            marks[np.concatenate(_bits_of(group, SEED, self.hashes, self.bits)).astype(np.int64)] = True
        return int.from_bytes(np.packbits(marks, bitorder="little").tobytes(), "little")

    def combine_columns(self, older: Partials, newer: Partials) -> Partials:
        return (older[0] | newer[0],)

    def fold(self, partials: Partials) -> Partial:
        return reduce(or_, partials[0].tolist(), 0)

    def encode(self, partial: Partial) -> bytes:
        """Write the DataSketches form: 24 bytes if the filter is empty, else 32 bytes and the bits."""
        preamble, flags = (_PREAMBLE, 0) if partial else (_PREAMBLE_EMPTY, _EMPTY_FLAG)
        header = _HEADER.pack(preamble, _VERSION, _FAMILY, flags, self.hashes, SEED, self.bits // 64)
        if not partial:
            return header
        return header + partial.bit_count().to_bytes(8, "little") + partial.to_bytes(self.bits // 8, "little")  # type: ignore[no-any-return]

    def decode(self, data: bytes) -> Partial:
        """Read the DataSketches form.

        Raises:
            InvalidArgument: `data` is not a Bloom filter, or has another size, seed or number of hashes.
        """
        found = BloomFilter(data)
        if (found.bits, found.hashes, found.seed) != (self.bits, self.hashes, SEED):
            raise InvalidArgument(
                f"a Bloom filter of {found.bits} bits, {found.hashes} hashes and seed {found.seed} does not "
                f"combine with ones of {self.bits} bits, {self.hashes} hashes and seed {SEED}"
            )
        return found.marks


class BloomFilter:
    """A reader of Bloom filters in the binary form of DataSketches.

    Args:
        data: an answer of the aggregate `bloom`.

    Raises:
        InvalidArgument: `data` is not a Bloom filter.
    """

    def __init__(self, data: bytes) -> None:
        size = _HEADER.size
        try:
            preamble, version, family, flags, self.hashes, self.seed, words = _HEADER.unpack_from(data)
        except struct.error:
            raise InvalidArgument(f"{len(data)} bytes are too few for a Bloom filter") from None
        empty = bool(flags & _EMPTY_FLAG)
        longs = _PREAMBLE_EMPTY if empty else _PREAMBLE
        if (preamble, version, family) != (longs, _VERSION, _FAMILY) or not self.hashes or not words:
            raise InvalidArgument("not a Bloom filter of DataSketches")
        if len(data) != (size if empty else size + 8 + words * 8):
            raise InvalidArgument(f"a Bloom filter of {words} words does not have {len(data)} bytes")
        self.bits = words * 64
        self.marks = 0 if empty else int.from_bytes(data[size + 8 :], "little")
        count = 0 if empty else int.from_bytes(data[size : size + 8], "little")
        if count not in (self.marks.bit_count(), _UNCOUNTED if self.marks else 0):
            raise InvalidArgument(f"a Bloom filter with {self.marks.bit_count()} bits set claims {count}")

    def __contains__(self, value: Any) -> bool:
        """Return whether the filter may have the value. The value must have the field's type: 1 and 1.0 differ."""
        bits = _bits_of(_bytes_of(value), self.seed, self.hashes, self.bits)
        return all(self.marks >> bit & 1 for bit in bits)


def _bits_of(data: bytes | Array, seed: int, hashes: int, bits: int) -> list[Any]:
    """Return the bits that a value sets; for n values of one length, uint8 (n, length), `hashes` arrays (n,)."""
    first = xxh64(data, seed)
    second = xxh64(data, first)
    return [(((first + i * second) & _ALL) >> 1) % bits for i in range(1, hashes + 1)]


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, float):
        return struct.pack("<d", math.nan if value != value else value + 0.0)
    return struct.pack("<q", value)


def _by_length(column: Array) -> list[Array]:
    """Return the column's values as bytes, in groups of equal length: uint8 (n, length) each."""
    if column.dtype == np.float64:
        canonical = np.where(column == column, column + 0.0, math.nan)
        return [canonical.astype("<f8").view(np.uint8).reshape(-1, 8)]
    if column.dtype != object:
        return [column.astype("<i8").view(np.uint8).reshape(-1, 8)]
    groups: dict[int, list[bytes]] = {}
    for value in dict.fromkeys(column.tolist()):
        data = _bytes_of(value)
        groups.setdefault(len(data), []).append(data)
    return [np.frombuffer(b"".join(group), np.uint8).reshape(len(group), length) for length, group in groups.items()]


_ALL = 2**64 - 1
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def xxh64(data: bytes | Array, seed: Any) -> Any:
    """Return the XXH64 hash of some bytes, an int; or of n strings of equal length, uint8 (n, length), a uint64 (n,).

    Args:
        seed: an integer below 2^64, or uint64 (n,), one for each string.

    >>> hex(xxh64(b"abc", 0))
    '0x44bc2cf5ad770999'
    """
    read, length = _reader(data)
    seed = seed if isinstance(data, bytes) else np.zeros(len(data), np.uint64) + seed
    at = 0
    if length < 32:
        h = (seed + _P5) & _ALL
    else:
        sums = [(seed + start) & _ALL for start in (_P1 + _P2 & _ALL, _P2, 0, _ALL + 1 - _P1)]
        while at + 32 <= length:
            sums = [_round(total, read(at + 8 * i, 8)) for i, total in enumerate(sums)]
            at += 32
        h = sum(_turn(total, by) for total, by in zip(sums, (1, 7, 12, 18), strict=True)) & _ALL
        for total in sums:
            h = ((h ^ _round(0, total)) * _P1 + _P4) & _ALL
    h = (h + length) & _ALL
    while at + 8 <= length:
        h = (_turn(h ^ _round(0, read(at, 8)), 27) * _P1 + _P4) & _ALL
        at += 8
    if at + 4 <= length:
        h = (_turn(h ^ (read(at, 4) * _P1 & _ALL), 23) * _P2 + _P3) & _ALL
        at += 4
    while at < length:
        h = _turn(h ^ (read(at, 1) * _P5 & _ALL), 11) * _P1 & _ALL
        at += 1
    h = (h ^ h >> 33) * _P2 & _ALL
    h = (h ^ h >> 29) * _P3 & _ALL
    return h ^ h >> 32


def _reader(data: bytes | Array) -> tuple[Callable[[int, int], Any], int]:
    """Return a function that reads `size` bytes from an offset as an integer, or as uint64 (n,); and the length."""
    if isinstance(data, bytes):
        return (lambda at, size: int.from_bytes(data[at : at + size], "little")), len(data)

    def read(at: int, size: int) -> Array:
        return np.ascontiguousarray(data[:, at : at + size]).view(f"<u{size}")[:, 0].astype(np.uint64)

    return read, data.shape[1]


def _turn(word: Any, by: int) -> Any:
    return (word << by | word >> (64 - by)) & _ALL


def _round(total: Any, lane: Any) -> Any:
    return _turn((total + lane * _P2) & _ALL, 31) * _P1 & _ALL
