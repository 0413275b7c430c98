"""Which shard a key belongs to: XXH3 of the window's name, a NUL and the key, modulo the number of shards.

Service and clients must agree on it, and it is what is stored where: it never changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

SHARDS_MAX = 4096

Codes = npt.NDArray[np.uint16]


def shard_of(window: str, key: str | None, shards: int) -> int:
    """Return the shard of a key, or of a window without keys.

    >>> shard_of("departure_delay", "JFK", 16)
    12
    """
    return xxh3_64_intdigest(_bytes(window) + b"\0" + _bytes(key or "")) % shards


def shards_of(window: str, keys: Sequence[str], shards: int) -> Codes:
    """Return the shards of n keys, such as the dictionary of a column: about 0.2 µs each."""
    stem = _bytes(window) + b"\0"
    found = (xxh3_64_intdigest(stem + _bytes(key)) % shards for key in keys)
    return np.fromiter(found, np.uint16, len(keys))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
