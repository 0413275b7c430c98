"""The answers of the aggregate `theta_sketch`: sets of distinct values, with union, intersection and difference.

    a        x   x x    x  x|                 hashes of values below theta, as numbers from 0 to 1
    b          x   x x    x     x  |
    a & b          x        |                 below the smaller theta: hashes in both; estimate: their number / theta

The binary form is that of Apache DataSketches (compact, serial version 3), which reads it in Java, C++ and Python.

Source: Dasgupta, Lang, Rhodes, Thaler, "A framework for estimating stream expression cardinalities", ICDT 2016.
"""

from __future__ import annotations

import math
import struct
from typing import Any, TypeAlias

import numpy as np

from sash_client.errors import InvalidArgument

_Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
_ONE = 2**63 - 1
_SAME = (3, 3, 0x93CC)  # version, family, hash of the seed
_EMPTY, _COMPACT, _ORDERED = 4, 8, 24


class ThetaSketch:
    """A set of distinct values, exact while it is small, estimated above that.

    `a | b` has the values of both sketches, `a & b` those that are in each of them, and `a - b` those of `a` that are
    not in `b`. The sketches may be answers about other windows, keys and times. The fields must have the same type.

    Args:
        data: what the aggregate answers: `bytes` in Python, base64 in JSON.

    Raises:
        InvalidArgument: `data` is no theta sketch.

    >>> nobody = ThetaSketch(bytes.fromhex("01030300001ecc93"))
    >>> nobody.estimate(), (nobody | nobody).estimate()
    (0.0, 0.0)
    """

    def __init__(self, data: bytes) -> None:
        try:
            self._theta, self._hashes = _read(data)
        except (struct.error, TypeError, ValueError):
            raise InvalidArgument("this is no theta sketch", field="data") from None

    @property
    def exact(self) -> bool:
        """Whether no value was left out, so that the estimate is the number of values."""
        return self._theta == _ONE

    def estimate(self) -> float:
        """How many distinct values the set has."""
        return len(self._hashes) / self._share

    def error(self) -> float:
        """The standard error of the estimate, in values; 0 if it is exact.

        For an intersection or a difference it depends on the size of the larger sets that it was made of: theta keeps
        what share of all values is left.
        """
        return 0.0 if self.exact else math.sqrt(max(len(self._hashes), 1) * (1 - self._share)) / self._share

    def __or__(self, other: ThetaSketch) -> ThetaSketch:
        return self._with(other, np.union1d(self._hashes, other._hashes))

    def __and__(self, other: ThetaSketch) -> ThetaSketch:
        return self._with(other, np.intersect1d(self._hashes, other._hashes, assume_unique=True))

    def __sub__(self, other: ThetaSketch) -> ThetaSketch:
        return self._with(other, np.setdiff1d(self._hashes, other._hashes, assume_unique=True))

    def __bytes__(self) -> bytes:
        """The compact form of DataSketches."""
        if self.exact and not len(self._hashes):
            return struct.pack("<BBBBBBH", 1, 3, 3, 0, 0, 2 | _EMPTY | _ORDERED, _SAME[2])
        head = struct.pack("<BBBBBBH", 3, 3, 3, 0, 0, 2 | _ORDERED, _SAME[2])
        return head + struct.pack("<IIQ", len(self._hashes), 0, self._theta) + self._hashes.astype("<u8").tobytes()

    def _with(self, other: ThetaSketch, hashes: _Array) -> ThetaSketch:
        both = object.__new__(ThetaSketch)
        both._theta = min(self._theta, other._theta)
        both._hashes = hashes[hashes < np.uint64(both._theta)]
        return both

    @property
    def _share(self) -> float:
        """The share of all values that have a hash below theta."""
        return self._theta / _ONE


def _read(data: bytes) -> tuple[int, _Array]:
    words, version, family, _, _, flags, seed_hash = struct.unpack_from("<BBBBBBH", data)
    if (version, family, seed_hash) != _SAME or not flags & _COMPACT or not 1 <= words <= 3:
        raise ValueError("it is of another kind")
    count, theta, at = 0 if flags & _EMPTY else 1, _ONE, 8
    if words > 1:
        count, at = struct.unpack_from("<I", data, 8)[0], 16
    if words > 2:
        theta, at = struct.unpack_from("<Q", data, 16)[0], 24
    hashes = np.sort(np.frombuffer(data, "<u8", offset=at)) if len(data) > at else np.zeros(0, np.uint64)
    if len(data) != at + 8 * count or not 0 < theta <= _ONE or (count and int(hashes[-1]) >= theta):
        raise ValueError("it is damaged")
    return theta, hashes
