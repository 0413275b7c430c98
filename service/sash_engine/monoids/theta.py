"""Theta sketches: the distinct values of a window, for unions, intersections and differences with other windows.

    hashes   0 ──x─x──x───x─x──|───────────────▶ 1       the k smallest hashes of distinct values, all below theta
                             theta                       estimate: 4 hashes below theta = 0.3 are 13 values

A partial keeps the k smallest hashes, and theta is the next larger one. So it depends on the values alone, and not on
how combines are grouped. The binary form and the hashes are those of Apache DataSketches (compact, serial version 3).

Source: Dasgupta, Lang, Rhodes, Thaler, "A framework for estimating stream expression cardinalities", ICDT 2016.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from sash_engine.errors import InvalidArgument
from sash_engine.monoids.base import ANY, Array, FieldType, Joined, Partial, Partials, Read, Values, whole
from sash_wire.murmur import hash_of, hashes_of

ONE = 2**63 - 1
"""Theta as DataSketches writes it where no value was left out."""

_VERSION, _COMPRESSED, _FAMILY, _SEED_HASH = 3, 4, 3, 0x93CC
_AT_ONCE = 65_536
"""Hashes that are unpacked at once; a multiple of 8."""
_READ_ONLY, _EMPTY, _COMPACT, _ORDERED = 2, 4, 8, 16


class ThetaSketch(Joined):
    """A theta sketch of a field's distinct values: bytes that `ThetaSketch` of `sash_client` reads.

    Answers of several windows, keys or lookbacks combine in the client: `a | b` are the values of both, `a & b` those
    in each of them, and `a - b` those of `a` that are not in `b`; `estimate()` says how many. It is exact up to 2^lg_k
    values. Above, the relative standard error of one sketch is 1 / sqrt(2^lg_k), which is 1.6 % at the default. The
    fields must have the same type: 1 and 1.0 differ.

    All NaN count as one value, and so do -0.0 and 0.0. The empty string counts as the int64 -1, as in `distinct_count`.

    Args:
        lg_k: 5 to 20; a sketch takes up to 8 * 2^lg_k bytes.

    Flags: commutative, exact.

    >>> import numpy as np
    >>> from sash_engine.monoids import ThetaSketch
    >>> sketch = ThetaSketch("string")
    >>> len(sketch.lower(sketch.reduce([np.array(["ann", "bob", "ann"], object)])))
    32
    """

    function = "theta_sketch"
    parts = ("sketch",)
    blob = "a compact theta sketch of DataSketches; of strings it has the int64 -1 in place of the empty one"
    reads = (Read("field", ANY),)
    commutative = True
    large = True
    sparse_suffixes = True
    answer = bytes

    def __init__(self, *types: FieldType, lg_k: int = 12) -> None:
        super().__init__(*types)
        self.lg_k = whole("lg_k", lg_k, 5, 20)

    def lift(self, value: Any) -> Partial:
        return ONE, np.array([hash_of(value) >> 1], np.uint64)

    def join(self, older: Any, newer: Any) -> Any:
        return self._of(min(older[0], newer[0]), np.concatenate((older[1], newer[1])))

    def reduce(self, values: Values) -> Partial:
        (column,) = values
        if not len(column):
            return None
        if column.dtype == object:
            distinct = dict.fromkeys(column.tolist())
            column = np.fromiter(distinct, object, len(distinct))
        return self._of(ONE, hashes_of(column) >> np.uint64(1))

    def fold(self, partials: Partials) -> Partial:
        items = partials[0].tolist()
        if not items:
            return None
        return self._of(min(theta for theta, _ in items), np.concatenate([hashes for _, hashes in items]))

    def _of(self, theta: int, hashes: Array) -> Partial:
        """Keep the k smallest distinct hashes below theta."""
        hashes = np.sort(hashes, kind="stable")  # merges sorted runs, where `np.unique` sorts anew
        if len(hashes) > 1:
            hashes = hashes[np.concatenate(([True], hashes[1:] != hashes[:-1]))]
        hashes = hashes[: hashes.searchsorted(np.uint64(theta))]
        k = 1 << self.lg_k
        return (hashes.item(k), hashes[:k]) if len(hashes) > k else (theta, hashes)

    def lower(self, partial: Partial) -> bytes:
        if partial is None:
            flags = _READ_ONLY | _EMPTY | _COMPACT | _ORDERED
            return struct.pack("<BBBBBBH", 1, _VERSION, _FAMILY, 0, 0, flags, _SEED_HASH)
        return self.encode(partial)

    def encode(self, partial: Partial) -> bytes:
        """Write the compact form: 16 bytes, or 24 with theta, and the hashes in order; one hash follows 8 bytes."""
        theta, hashes = partial
        flags = _READ_ONLY | _COMPACT | _ORDERED
        words = 3 if theta < ONE else 1 if len(hashes) == 1 else 2
        data = struct.pack("<BBBBBBH", words, _VERSION, _FAMILY, 0, 0, flags, _SEED_HASH)
        if words > 1:
            data += struct.pack("<II", len(hashes), 0)
        if words > 2:
            data += struct.pack("<Q", theta)
        return data + hashes.astype("<u8").tobytes()  # type: ignore[no-any-return]

    def decode(self, data: bytes) -> Partial:
        """Read a compact theta sketch of serial version 3 or 4, of any size.

        Raises:
            InvalidArgument: `data` is not a theta sketch, is empty, or is damaged.
        """
        try:
            return self._of(*_read(data))
        except (struct.error, ValueError) as error:
            raise InvalidArgument(f"not a theta sketch of DataSketches: {error}") from None

    def implausible(self, partials: Partials, entries: Array) -> Array:
        found = zip(partials[0].tolist(), entries.tolist(), strict=True)
        return np.array([not 1 <= len(hashes) <= n and theta == ONE for (theta, hashes), n in found], np.bool_)


def _read(data: bytes) -> tuple[int, Array]:
    words, version, family, bits, size, flags, seed_hash = struct.unpack_from("<BBBBBBH", data)
    if (family, seed_hash) != (_FAMILY, _SEED_HASH) or not flags & _COMPACT or flags & _EMPTY or not 1 <= words <= 3:
        raise ValueError("it is of another kind, has another seed, or is empty")
    if version == _COMPRESSED:
        return _read_compressed(data, words, bits, size)
    if version != _VERSION:
        raise ValueError(f"it has the serial version {version}")
    count, theta, at = 1, ONE, 8
    if words > 1:
        count, at = struct.unpack_from("<I", data, 8)[0], 16
    if words > 2:
        (theta,), at = struct.unpack_from("<Q", data, 16), 24
    if len(data) != at + 8 * count or not 0 < theta <= ONE:
        raise ValueError(f"{len(data)} bytes do not hold {count} hashes")
    hashes = np.frombuffer(data, "<u8", offset=at).astype(np.uint64)
    if len(np.unique(hashes)) < count or (count and not 0 < hashes.min() <= hashes.max() < theta):
        raise ValueError("a hash occurs twice or is out of range")
    return theta, hashes


def _read_compressed(data: bytes, words: int, bits: int, size: int) -> tuple[int, Array]:
    """Read serial version 4, which Spark writes: the differences of sorted hashes, `bits` bits each, highest first."""
    theta, at = (ONE, 8) if words == 1 else (struct.unpack_from("<Q", data, 8)[0], 16)
    count, at = int.from_bytes(data[at : at + size], "little"), at + size
    if not 32 <= bits <= 63 or not 0 < theta <= ONE or len(data) != at + -(-count * bits // 8):
        raise ValueError(f"{len(data)} bytes do not hold {count} hashes of {bits} bits")
    hashes = np.empty(count, np.uint64)
    packed = np.frombuffer(data, np.uint8, offset=at)
    for first in range(0, count, _AT_ONCE):
        n = min(_AT_ONCE, count - first)
        wide = np.zeros((n, 64), np.uint8)
        wide[:, 64 - bits :] = np.unpackbits(packed[first * bits // 8 :], count=n * bits).reshape(n, bits)
        hashes[first : first + n] = np.packbits(wide, axis=1).view(">u8")[:, 0]
    np.cumsum(hashes, out=hashes)
    if count and (hashes[0] == 0 or (hashes[1:] <= hashes[:-1]).any() or int(hashes[-1]) >= theta):
        raise ValueError("a hash occurs twice or is out of range")
    return theta, hashes
