"""The answers of the aggregate `bloom`, to look values up in.

    bits     0 1 0 0 1 0 0 1 0 …       value -> h0, h1 = xxh64(value), xxh64(value, seed h0)
               ^     ^     ^           bit i = ((h0 + i h1) mod 2^64 >> 1) mod bits,  i = 1 … hashes

The binary form is that of Apache DataSketches, which reads it in Java and C++, too.

Source: Bloom, "Space/time trade-offs in hash coding with allowable errors", CACM 1970; Kirsch, Mitzenmacher, "Less
hashing, same performance", 2006.
"""

from __future__ import annotations

import math
import struct

import numpy as np
from xxhash import xxh64_intdigest

from sash_client.errors import InvalidArgument

_HEADER = struct.Struct("<xBBBHxxQIxxxx")  # version, family, flags, hashes, seed, words of 64 bits
_VERSION, _FAMILY, _EMPTY_FLAG = 1, 21, 4
_COUNT_BYTES = 8


class BloomFilter:
    """A Bloom filter: has a value occurred? "No" is certain, "yes" is wrong with the probability that the spec allows.

    Args:
        data: what the aggregate answers: `bytes` in Python, base64 in JSON.

    Raises:
        InvalidArgument: `data` is no Bloom filter.

    >>> BloomFilter(bytes.fromhex("0301150407000000292300000000000005000000") + bytes(4)).may_contain("N14228")
    False
    """

    def __init__(self, data: bytes) -> None:
        try:
            version, family, flags, self._hashes, self._seed, words = _HEADER.unpack_from(data)
        except (struct.error, TypeError):
            raise InvalidArgument("this is no Bloom filter", field="data") from None
        bits = b"" if flags & _EMPTY_FLAG else data[_HEADER.size + _COUNT_BYTES :]
        if (version, family) != (_VERSION, _FAMILY) or not words or len(bits) not in (0, words * 8):
            raise InvalidArgument("this is no Bloom filter", field="data")
        self._size, self._bits = words * 64, bits

    def may_contain(self, value: str | float | bool) -> bool:
        """Whether a value may have been in the window.

        Args:
            value: of the field's type: the integer 1 and the float 1.0 differ. All NaN are one value.

        Raises:
            InvalidArgument: a value that no field can hold.
        """
        if not self._bits:
            return False
        data = _bytes_of(value)
        first = xxh64_intdigest(data, self._seed)
        second = xxh64_intdigest(data, first)
        places = ((((first + i * second) & (2**64 - 1)) >> 1) % self._size for i in range(1, self._hashes + 1))
        return all(self._bits[place >> 3] >> (place & 7) & 1 for place in places)

    __contains__ = may_contain


def _bytes_of(value: str | float | bool) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, float | np.floating):
        return struct.pack("<d", math.nan if value != value else float(value) + 0.0)
    try:
        return struct.pack("<q", value)
    except struct.error:
        raise InvalidArgument(f"{value!r:.80} is no value of a field", field="value") from None
