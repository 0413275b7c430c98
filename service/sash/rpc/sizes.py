"""What a message costs to parse, found before it is parsed.

Protobuf's parser takes 4 µs for an entry of a map, which may be six bytes long, and holds the event loop. So the
entries of maps are counted first, in messages that are long. To count costs 1 µs for each field, so a message with very
many fields is refused as well. What costs less is parsed in steps (`parsing.py`).

    06 0a 02 66 31 12 00 …      a message is fields, each with a tag and, where it is a map's entry, its length

Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from functools import cache
from typing import Any

from google.protobuf.message import Message

from sash_engine.errors import InvalidArgument
from sash_engine.steps import Steps

MAP_ENTRIES_MAX = 1_024
"""A window has no more than 64 fields and 64 aggregates."""

FIELDS_MAX = 16_384
"""Of a message with maps, and of those within it that lead to maps. Their other fields have few values."""

_DEPTH_MAX = 100
"""The parser refuses messages that are nested deeper."""

_STEP_FIELDS = 1_024
"""So many fields are counted in a step: 1 ms."""


def check_size(kind: type[Message], data: bytes) -> Steps[None]:
    """Check how many entries the maps of a message have, and of those messages within it that may have maps.

    Raises:
        InvalidArgument: too many, or too many fields.
    """
    yield from _check(kind.DESCRIPTOR, data, 0, len(data), 0, 0)


def _check(kind: Any, data: bytes, at: int, stop: int, fields: int, depth: int) -> Generator[None, None, int]:
    """Count in data[at:stop], and return the fields, with those before. The parser refuses a message that is cut."""
    maps, inner = _plan(kind)
    counted = 0
    if (not maps and not inner) or depth > _DEPTH_MAX:
        return fields
    while at < stop:
        fields += 1
        if fields % _STEP_FIELDS == 0:
            yield
        if fields > FIELDS_MAX:
            raise InvalidArgument("the request has too many fields", field="request", limit=f"{FIELDS_MAX} fields")
        tag, at = varint(data, at)
        number, wire = tag >> 3, tag & 7
        start, at = span(data, at, wire)
        if at < 0:
            break  # the parser refuses it
        if wire == 2 and number in maps:
            counted += 1
            if counted > MAP_ENTRIES_MAX:
                name = maps[number]
                raise InvalidArgument(f"{name} has too many names", field=name, limit=f"{MAP_ENTRIES_MAX} names")
        if wire == 2 and number in inner:
            fields = yield from _check(inner[number], data, start, min(at, stop), fields, depth + 1)
    return fields


@cache
def _plan(kind: Any) -> tuple[Mapping[int, str], Mapping[int, Any]]:
    """The maps of a kind of message, and the kinds within it that lead to maps; by the numbers of their fields."""
    maps = {field.number: field.name for field in kind.fields if _is_map(field)}
    inner = {
        field.number: field.message_type
        for field in kind.fields
        if field.message_type is not None
        and any(_is_map(each) for found in _kinds(field.message_type, {}).values() for each in found.fields)
    }
    return maps, inner


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _kinds(kind: Any, found: dict[str, Any]) -> dict[str, Any]:
    """Add to `found` a kind of message and those within it, by name; a value may have values within."""
    if kind.full_name not in found:
        found[kind.full_name] = kind
        for field in kind.fields:
            if field.message_type is not None:
                _kinds(field.message_type, found)
    return found


def span(data: bytes, at: int, wire: int) -> tuple[int, int]:
    """Where the value of a field begins and ends, by how it is written; it ends at -1 where no version writes so."""
    match wire:
        case 0:
            return at, varint(data, at)[1]
        case 1:
            return at, at + 8
        case 2:
            length, at = varint(data, at)
            return at, at + length
        case 5:
            return at, at + 4
    return at, -1


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a number; return where it ends, too."""
    value = shift = 0
    for byte in data[at : at + 10]:
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            break
        shift += 7
    return value, at
