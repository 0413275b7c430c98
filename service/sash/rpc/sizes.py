"""What a message costs to parse, found before it is parsed.

Protobuf's parser takes 4 µs for an entry of a map, which may be six bytes long, and holds the event loop. So the
entries of maps are counted first, in messages that are long. So are the names of a query, each of which takes 0.2 µs to
parse and to list: a query of 30 MB has three million. All else costs less than 0.01 µs a byte.

    06 0a 02 66 31 12 00 …      a message is fields, each with a tag and, where it is a map's entry, its length

Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from sash_engine.errors import InvalidArgument
from sash_engine.windows.costs import MAX_ANSWERS
from sash_proto.v1 import windows_pb2 as pb

__all__ = ["MAP_ENTRIES_MAX", "check_size"]

MAP_ENTRIES_MAX = 1_024
"""A window has no more than 64 fields and 64 aggregates."""

_LONG_BYTES = 1 << 16
"""A shorter message has no more than 10,000 entries."""

_QUERY_FIELDS_MAX = MAX_ANSWERS + 16
"""Keys times lookbacks are at most `MAX_ANSWERS`: together they are one more at most. Other fields are few."""


def check_size(kind: type[Message], data: bytes) -> None:
    """Check how many entries the maps of a message have, and of those messages within it that may have maps.

    Of a query, check how many keys and lookbacks it names.

    Raises:
        InvalidArgument: too many.
    """
    if kind is pb.QueryRequest and len(data) > 2 * _QUERY_FIELDS_MAX:
        _check_names(data)
    if len(data) > _LONG_BYTES:
        _check(kind.DESCRIPTOR, data, 0, len(data))


def _check(kind: Any, data: bytes, at: int, stop: int) -> None:
    """Count in data[at:stop]. A message that is cut short is left to the parser."""
    maps = {field.number: field for field in kind.fields if _is_map(field)}
    inner = {field.number: field.message_type for field in kind.fields if _has_maps(field)}
    counted = 0
    while at < stop:
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            _, at = _varint(data, at)
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        elif wire == 2:
            length, at = _varint(data, at)
            if number in maps:
                counted += 1
                if counted > MAP_ENTRIES_MAX:
                    name = maps[number].name
                    raise InvalidArgument(f"{name} has too many names", field=name, limit=f"{MAP_ENTRIES_MAX} names")
            elif number in inner:
                _check(inner[number], data, at, min(at + length, stop))
            at += length
        else:
            return  # the parser refuses it
        if not maps and not inner:
            return


def _check_names(data: bytes) -> None:
    """Count the fields of a query. A message that is cut short is left to the parser."""
    at, stop = 0, len(data) - 1
    for _ in range(_QUERY_FIELDS_MAX):
        if at >= stop:
            return
        length = data[at + 1]
        if data[at] & 0x87 == 2 and length < 0x80:  # a tag and a length of one byte each, as names have
            at += 2 + length
            continue
        tag, at = _varint(data, at)
        if tag & 7 == 2:
            length, at = _varint(data, at)
            at += length
        elif tag & 7 == 0:
            _, at = _varint(data, at)
        elif tag & 7 in (1, 5):
            at += 8 if tag & 7 == 1 else 4
        else:
            return  # the parser refuses it
    if at < stop:
        raise InvalidArgument(
            f"more than {MAX_ANSWERS} keys and lookbacks in one query", field="keys", limit=f"{MAX_ANSWERS} answers"
        )


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _has_maps(field: Any) -> bool:
    """Whether it is one message, some field of which is a map."""
    kind = field.message_type
    return kind is not None and field.has_presence and any(map(_is_map, kind.fields))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = shift = 0
    for byte in data[at : at + 10]:
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            break
        shift += 7
    return value, at
