"""The answers of the aggregate `count_min`: how often has a value occurred?

The binary form is that of Apache DataSketches, whose C++ and Python libraries read it, too.
"""

from __future__ import annotations

import struct

import numpy as np

from sash_client.errors import InvalidArgument
from sash_wire.murmur import hash_of, row_seeds

_HEADER = struct.Struct("<BBBBxxxxIBHx")  # preamble, version, family, flags, buckets, hashes, hash of the seed
_SAME = (1, 18, 0x93CC)  # version, family, hash of the seed
_EMPTY = 1


class CountMin:
    """A CountMin sketch: estimates how often a value occurred, never too low.

    Args:
        data: what the aggregate answers: `bytes` in Python, base64 in JSON.

    Raises:
        InvalidArgument: `data` is no CountMin sketch.

    >>> sketch = CountMin(bytes.fromhex("02011201000000001c00000005cc9300"))
    >>> sketch.entries, sketch.estimate("UA")
    (0, 0)
    """

    entries: int
    """How many entries the answer covers."""

    def __init__(self, data: bytes) -> None:
        try:
            _, version, family, flags, self._buckets, hashes, seed_hash = _HEADER.unpack_from(data)
        except (struct.error, TypeError):
            raise InvalidArgument("this is no CountMin sketch", field="data") from None
        size = self._buckets * hashes
        length = _HEADER.size + (0 if flags & _EMPTY else 8 + 8 * size)
        if (version, family, seed_hash) != _SAME or not size or len(data) != length:
            raise InvalidArgument("this is no CountMin sketch", field="data")
        numbers = np.frombuffer(data, "<f8", offset=_HEADER.size)
        self.entries = int(numbers[0]) if len(numbers) else 0
        self._counters = numbers[1:].astype(np.int64).reshape(-1, self._buckets)

    def estimate(self, value: str | int | bool) -> int:
        """How often a value occurred, or more.

        Raises:
            InvalidArgument: a value that the field cannot hold.
        """
        if not isinstance(value, str | int | np.integer | np.bool_) or not -(2**63) <= _number(value) < 2**63:
            raise InvalidArgument(f"{value!r:.80} is no value of a field", field="value")
        seeds = row_seeds(len(self._counters))  # none, if there are no entries
        counters = zip(self._counters, seeds, strict=True)
        return min((int(row[hash_of(value, seed) % self._buckets]) for row, seed in counters), default=0)


def _number(value: str | int | bool) -> int:
    return 0 if isinstance(value, str) else int(value)
