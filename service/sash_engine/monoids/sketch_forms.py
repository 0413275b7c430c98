"""The binary forms of sketches, checked before the C++ library reads them; and sketches that are written without it.

    HLL   8 bytes | list or set: coupons (value, slot) | or: estimators, registers of 4, 6 or 8 bits, exceptions to 4
    KLL   8 bytes | n, levels, where each begins | least, greatest | level 0, level 1, … (each of these in order)
    t-digest 8 bytes | how many means and values | least, greatest | means with their weights | values
    items 8 bytes | how many, total weight, offset | a weight for each | the items

The library trusts the offsets and counts that it reads. A damaged or hostile sketch makes it read outside its arrays
and crash the process. So every number that the library will use as an offset or a count is compared with the bytes.

HLL sketches are rewritten in the form that the service itself uses (compact, registers of 8 bits). Frequent items get
the smallest table that holds them, so that few bytes cannot claim a large table.

Cost: linear in the bytes; vectorised except for items.
Source: the preambles and the layout of sketches in Apache DataSketches' C++ and Java libraries.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from sash_engine.monoids.base import Array

MOST = 2**62
"""A sketch that claims so many entries is damaged."""

_EMPTY = 4
_HLL_FAMILY, _KLL_FAMILY, _ITEMS_FAMILY, _TDIGEST_FAMILY = 7, 15, 10, 20


def checked_hll(data: bytes) -> bytes:
    """Check an HLL sketch of any form, and rewrite it as compact HLL_8.

    Raises:
        ValueError, struct.error: `data` is not an HLL sketch, or is damaged.
    """
    _, version, family, lg_k, _, flags, count, mode = struct.unpack_from("<8B", data)
    _expect((version, family) == (1, _HLL_FAMILY), "the preamble is of another kind")
    _expect(4 <= lg_k <= 21, f"2^{lg_k} registers")
    match mode & 3:
        case 0:
            return _hll_of(lg_k, _coupons(data[8:], 0 if flags & _EMPTY else count, lg_k))
        case 1:
            (count,) = struct.unpack_from("<I", data, 8)
            return _hll_of(lg_k, _coupons(data[12:], count, lg_k))
    _expect(mode & 3 == 2 and mode >> 2 <= 2, "the mode is unknown")
    registers = _registers(data, lg_k, count, mode >> 2)
    (hip,) = struct.unpack_from("<d", data, 8)
    _expect(0 <= hip <= MOST, "the estimate is not a number of values")
    counts = np.bincount(registers, minlength=64)
    inverse = counts * 0.5 ** np.arange(64)
    sums = float(inverse[:32].sum()), float(inverse[32:].sum())
    head = struct.pack("<8B", 10, 1, _HLL_FAMILY, lg_k, 0, 8 | flags & 16, 0, 2 | _HLL_8)
    return head + struct.pack("<dddII", hip, *sums, counts.item(0), 0) + registers.tobytes()


_HLL_8 = 2 << 2
_LIST = 8  # with so many coupons a list becomes a set, or registers if the sketch is small


def _coupons(body: bytes, count: int, lg_k: int) -> Array:
    """Read `count` coupons from `body`, which may have empty places (zeros) between and after them."""
    _expect(
        len(body) % 4 == 0 and len(body) <= 4 << max(lg_k - 3, 3),
        "too many coupons, or one is cut off",
    )
    places = np.frombuffer(body, "<u4")
    coupons: Array = places[places != 0]
    _expect(len(coupons) == count == len(np.unique(coupons)), f"{len(coupons)} coupons, not {count}")
    _expect(not count or int(coupons.min()) >> 26 > 0, "a coupon without a value")
    return coupons


def _hll_of(lg_k: int, coupons: Array) -> bytes:
    """Write a sketch that still has coupons instead of registers."""
    count = len(coupons)
    if count < _LIST or lg_k < 8:
        _expect(count < _LIST, f"a list of {count} coupons")
        flags = 8 | (0 if count else _EMPTY)
        return struct.pack("<8B", 2, 1, _HLL_FAMILY, lg_k, 3, flags, count, _HLL_8) + coupons.tobytes()
    _expect(count * 4 <= 3 << lg_k - 3, f"a set of {count} coupons for 2^{lg_k} registers")
    head = struct.pack("<8BI", 3, 1, _HLL_FAMILY, lg_k, _lg_table(count, 5), 8, 0, 1 | _HLL_8, count)
    return head + coupons.tobytes()


def _registers(data: bytes, lg_k: int, least: int, kind: int) -> Array:
    """Read the registers: uint8 (2^lg_k,), each up to 63.

    Args:
        least: the value that registers of 4 bits are relative to.
        kind: 0, 1, 2 for registers of 4, 6 and 8 bits.
    """
    k, (exceptions,) = 1 << lg_k, struct.unpack_from("<I", data, 36)
    size = (k // 2, k // 4 * 3 + 1, k)[kind]
    packed = np.frombuffer(data, np.uint8, size, 40)
    rest = np.frombuffer(data[40 + size :], "<u4")
    if kind == 0:
        registers = np.stack((packed & 15, packed >> 4), 1).reshape(k)
        rest = rest[rest != 0]
        slots, values = rest & (1 << 26) - 1, rest >> 26
        over = np.flatnonzero(registers == 15)
        _expect(
            len(rest) == exceptions and np.array_equal(np.sort(slots), over),
            "exceptions do not match registers",
        )
        registers = registers + np.uint8(min(least, 64))
        registers[slots] = values
    elif kind == 1:
        bits = np.unpackbits(packed[:-1], bitorder="little").reshape(k, 6)
        registers = np.packbits(bits, axis=1, bitorder="little").reshape(k)
    else:
        registers = packed
    _expect(int(registers.max()) <= 63 and (kind == 0 or not rest.any()), "a register is out of range")
    return registers


def checked_kll(data: bytes) -> bytes:
    """Check a KLL sketch of doubles, and return it unchanged.

    Raises:
        ValueError, struct.error: `data` is not such a sketch, or is damaged.
    """
    preamble, version, family, flags, k, m = struct.unpack_from("<4BHB", data)
    _expect(family == _KLL_FAMILY and m == 8 <= k, "the preamble is of another kind")
    if flags & 1:
        _expect((preamble, version, len(data)) == (2, 1, 8), "it is not empty")
        return data
    if flags & 4:
        _expect((preamble, version, len(data)) == (2, 2, 16), "it does not have exactly one value")
        (value,) = struct.unpack_from("<d", data, 8)
        _expect(value == value, "NaN has no rank")
        return data
    n, least_k, levels = struct.unpack_from("<QHB", data, 8)
    _expect((preamble, version) == (5, 1) and 8 <= least_k <= k and n < MOST, "the preamble is of another kind")
    _expect(1 <= levels <= 61, f"{levels} levels")
    starts = struct.unpack_from(f"<{levels}I", data, 20)
    items = np.frombuffer(data, "<f8", offset=20 + 4 * levels)
    least, greatest, items = items[0], items[1], items[2:]
    bounds = (*starts, _kll_room(k, levels))
    sizes = [stop - start for start, stop in pairwise(bounds)]
    _expect(min(sizes) >= 0 and sum(sizes) == len(items), "the levels do not fill the items")
    _expect(sum(size << level for level, size in enumerate(sizes)) == n, f"the levels do not add up to {n} values")
    _expect(bool(least <= items.min() and items.max() <= greatest), "an item is NaN or outside the extremes")
    begins = set(accumulate(sizes))
    descents = (np.flatnonzero(items[1:] < items[:-1]) + 1).tolist()
    unsorted = 0 if flags & 2 else sizes[0]
    _expect(all(row < unsorted or row in begins for row in descents), "a level is not sorted")
    return data


def kll_of(k: int, few: Array, weights: Sequence[int], many: Array, level: int, least: float, greatest: float) -> bytes:
    """Write a KLL sketch of doubles.

    Args:
        few, weights: items of the lower levels, and the weight of each, 2^level: falling, and each once.
        many: the items of the highest level, at most k, in rising order.
        level: the highest one, at least 1.
        least, greatest: the extremes.
    """
    lower = {weight.bit_length() - 1: item for item, weight in zip(few.tolist(), weights, strict=True)}
    items = [lower[each] for each in range(level) if each in lower] + many.tolist()
    starts = [_kll_room(k, level + 1) - len(items)]
    for each in range(level):
        starts.append(starts[-1] + (each in lower))
    total = sum(weights) + (len(many) << level)
    head = struct.pack("<4BHBxQHBx", 5, 1, _KLL_FAMILY, 2, k, 8, total, k, level + 1)
    return head + struct.pack(f"<{level + 1}I{2 + len(items)}d", *starts, least, greatest, *items)


def tdigest_of(k: int, means: Array, weights: Array, least: float, greatest: float) -> bytes:
    """Write a t-digest of doubles; of a larger k where there are many means.

    Args:
        means: float64 (n,), in rising order.
        weights: int64 (n,), at least 1.
        least, greatest: the extremes.
    """
    centroids = np.empty(len(means), [("mean", "<f8"), ("weight", "<u8")])
    centroids["mean"], centroids["weight"] = means, weights
    head = struct.pack("<3BHBxxII", 2, 1, _TDIGEST_FAMILY, max(k, len(means) // 2), 0, len(means), 0)
    return head + struct.pack("<dd", least, greatest) + centroids.tobytes()


def _kll_room(k: int, levels: int) -> int:
    """Return the length of a sketch's array of items: each level has two thirds of the level above it, at least 8."""
    return sum(max(8, _two_thirds(k, depth)) for depth in range(levels))


def _two_thirds(k: int, power: int) -> int:
    """Return k (2/3)^power, rounded as in the library: in two steps if the power is large."""
    if power > 30:
        return _two_thirds(_two_thirds(k, power // 2), power - power // 2)
    scaled: int = (k << power + 1) // 3**power
    return scaled + 1 >> 1


def checked_tdigest(data: bytes, largest: float) -> bytes:
    """Check a t-digest of doubles, and return it unchanged.

    Args:
        largest: the greatest absolute value that it may have.

    Raises:
        ValueError, struct.error: `data` is not such a sketch, or is damaged.
    """
    preamble, version, family, k, flags = struct.unpack_from("<3BHB", data)
    _expect((version, family) == (1, _TDIGEST_FAMILY) and k >= 10, "the preamble is of another kind")
    if flags & 1:
        _expect((preamble, len(data)) == (1, 8), "it is not empty")
        return data
    if flags & 2:
        _expect((preamble, len(data)) == (1, 16), "it does not have exactly one value")
        values = np.frombuffer(data, "<f8", offset=8)
        _expect(bool((np.abs(values) <= largest).all()), "a value is out of range")
        return data
    means, others = struct.unpack_from("<II", data, 8)
    _expect(preamble == 2 and means <= 2 * k + 30 and others <= 8 * k + 120, "it has more than k allows")
    _expect(means + others > 0 and len(data) == 32 + 16 * means + 8 * others, "it does not have so many bytes")
    least, greatest = struct.unpack_from("<dd", data, 16)
    centroids = np.frombuffer(data, [("mean", "<f8"), ("weight", "<u8")], means, 32)
    values = np.concatenate((centroids["mean"], np.frombuffer(data, "<f8", others, 32 + 16 * means)))
    _expect(-largest <= least <= greatest <= largest, "the extremes are out of range")
    _expect(bool(((values >= least) & (values <= greatest)).all()), "a value is NaN or outside the extremes")
    _expect(bool((np.diff(centroids["mean"]) >= 0).all()), "the means are not sorted")
    weights = centroids["weight"].astype(np.float64)
    _expect(bool((weights >= 1).all()) and float(weights.sum()) < MOST, "the weights are out of range")
    return data


def checked_frequent_items(data: bytes, strings: bool) -> bytes:
    """Check a frequent items sketch, and rewrite it with the smallest table that holds its items.

    Args:
        data: the sketch.
        strings: whether the items are strings (a length and UTF-8 each), or else int64.

    Raises:
        ValueError, struct.error: `data` is not such a sketch, or is damaged.
    """
    preamble, version, family, lg_most, lg_size, flags = struct.unpack_from("<6B", data)
    _expect((version, family) == (1, _ITEMS_FAMILY), "the preamble is of another kind")
    _expect(3 <= lg_size <= lg_most <= 20, f"a table of 2^{lg_size} items of at most 2^{lg_most}")
    if flags & 5:
        _expect((preamble, len(data)) == (1, 8), "it is not empty")
        return _with_table(data, 0)
    count, weight, offset = struct.unpack_from("<IxxxxQQ", data, 8)
    _expect(preamble == 4 and count > 0 and count * 4 <= 3 << lg_size, f"{count} items in a table of 2^{lg_size}")
    weights = struct.unpack_from(f"<{count}Q", data, 32)
    _expect(min(weights) >= 1, "an item has the weight 0")
    _expect(sum(weights) + offset <= weight < MOST, "the weights of the items do not add up")
    # Java, and with it Spark, leaves eight zero bytes after the last number.
    items = _strings(data, 32 + 8 * count, count) if strings else struct.unpack_from(f"<{count}q", data, 32 + 8 * count)
    _expect(len(set(items)) == count, "an item occurs twice")
    return _with_table(data, count)


def _with_table(data: bytes, count: int) -> bytes:
    return data[:4] + bytes([_lg_table(count, 3)]) + data[5:]


def _lg_table(count: int, least: int) -> int:
    """Return log2 of the size of the smallest hash table that `count` items fill to three quarters at most."""
    return max(least, ((count * 4 + 2) // 3 - 1).bit_length())


def _strings(data: bytes, at: int, count: int) -> list[Any]:
    items = []
    for _ in range(count):
        (length,) = struct.unpack_from("<I", data, at)
        at += 4 + length
        _expect(at <= len(data), "the items are cut off")
        items.append(data[at - length : at].decode())
    _expect(not any(data[at:]), "bytes follow the items")  # Java leaves zeros there
    return items


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
