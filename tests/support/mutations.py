"""Payloads with one thing changed that was right: each value, list and mapping in them is hit, whatever its kind.

wrong type, beyond int64, negative, NaN, huge, empty, missing, extra, nested, twice, swapped with another one
"""

from __future__ import annotations

import copy
import random
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sash.durability import formats as values

Place = tuple[Any, ...]
"""How to get to a value from the payload: indices and names."""

NUMBERS = [-1, 0, 1, 7, 2**31, 2**62, 2**63 - 2, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63), -(2**63) - 1, -(10**30)]
ODD = [None, True, False, 1.5, float("nan"), float("inf"), "", "x", "1", "\ud800", "x" * 70_000, b"", b"x", [], {}]
WORDS = [struct.pack("<q", number) for number in NUMBERS if -(2**63) <= number < 2**63]
WORDS += [struct.pack("<d", number) for number in (float("nan"), float("inf"), -1e308)]


def with_counts(exported: bytes, counts: Mapping[str, Any]) -> bytes:
    """An export whose header counts otherwise, sealed again."""
    size = 4 + int.from_bytes(exported[:4], "little")
    payload = values.unseal("export", exported[4:size], "the header")
    payload[2]["counts"] |= counts
    header = values.seal("export", payload)
    return len(header).to_bytes(4, "little") + header + exported[size:]


def places(value: Any, here: Place = ()) -> Iterator[Place]:
    """Where there is something: all values in a payload, those that have others in them first."""
    if here:
        yield here
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, part in items:
        yield from places(part, (*here, step))


def mutated(payload: Any, place: Place, chance: random.Random) -> Any:
    """A copy with another thing at a place, or nothing."""
    payload = copy.deepcopy(payload)
    *path, last = place
    parent = payload
    for step in path:
        parent = parent[step]
    changes = [_replaced, _replaced, _deleted, _nested, _extended, _swapped]
    value = parent[last]
    if isinstance(value, bytes):
        changes += [_damaged] * 6
    if isinstance(value, int):
        changes += [_renumbered] * 6
    chance.choice(changes)(payload, parent, last, chance)
    return payload


Change = Callable[[Any, Any, Any, random.Random], None]


def _replaced(_: Any, parent: Any, last: Any, chance: random.Random) -> None:
    deep: Any = 0
    for _ in range(300):
        deep = [deep]
    parent[last] = chance.choice([*ODD, *NUMBERS[:3], deep])


def _renumbered(_: Any, parent: Any, last: Any, chance: random.Random) -> None:
    parent[last] = chance.choice([*NUMBERS, parent[last] + 1, parent[last] - 1, float(parent[last]), str(parent[last])])


def _deleted(_: Any, parent: Any, last: Any, chance: random.Random) -> None:
    del parent[last]


def _nested(_: Any, parent: Any, last: Any, chance: random.Random) -> None:
    parent[last] = chance.choice([[parent[last]], {"x": parent[last]}])


def _extended(_: Any, parent: Any, last: Any, chance: random.Random) -> None:
    """Something more, of the value's own kind or beside it."""
    value = parent[last]
    if isinstance(value, dict):
        value[chance.choice(["x", "", "\ud800", 7, b"x"])] = chance.choice([*value.values(), 1])
    elif isinstance(value, list) and value:
        value.append(copy.deepcopy(chance.choice(value)))
    elif isinstance(parent, list):
        parent.insert(last, value)
    else:
        parent[f"{last}x"] = parent.pop(last)


def _swapped(payload: Any, parent: Any, last: Any, chance: random.Random) -> None:
    """Change places with another value of the payload; with one beside it, mostly."""
    others: list[Any] = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
    there, other = parent, chance.choice(others)
    if chance.random() < 0.3:
        *path, other = chance.choice(list(places(payload)))
        there = payload
        for step in path:
            there = there[step]
    mine, theirs = copy.deepcopy(parent[last]), copy.deepcopy(there[other])
    there[other] = mine
    parent[last] = theirs


def _damaged(_: Any, parent: Any, last: Any, chance: random.Random) -> None:
    """Bytes are others, fewer or more."""
    image = bytearray(parent[last])
    kind = chance.randrange(7)
    if kind == 0:
        del image[chance.randrange(len(image) + 1) :]
    elif kind == 1:
        image += bytes(chance.choice([1, 4, 8, 64]))
    elif kind == 2 and image:
        image[chance.randrange(len(image))] ^= 1 << chance.randrange(8)
    elif kind == 3 and image:
        image[chance.randrange(len(image))] = chance.choice([0, 1, 2, 3, 8, 127, 128, 255])
    elif kind == 4:
        image = bytearray(b"\xff" * len(image))
    elif kind == 5:
        image = bytearray(len(image))
    else:
        at = 8 * chance.randrange(len(image) // 8 + 1)
        image[at : at + 8] = chance.choice(WORDS)
    parent[last] = bytes(image)
