"""Messages of protobuf, parsed in steps: one parse of ten million short strings holds the event loop for a second.

    message   [ window │ time │ key: ┌ dictionary: 2,000 texts │ 2,000 texts │ … │ codes ┐ │ fields │ … ]
    steps       ──────────────▶       ────────────────────────▶ ────────────▶ …             ──────────▶

Protobuf reads pieces of a message, one after the other, as the whole message (`MergeFromString`). So a long message is
cut between two of its fields. A long message within it is read in the same way, in its place. Values that are long but
cost little, such as the bytes of a column, are not cut. To find the fields costs 0.1 µs each, half of what it costs to
parse a short text.

Source: protobuf.dev/programming-guides/encoding, "Last One Wins".
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from sash.rpc.sizes import check_size, varint
from sash_engine.errors import InvalidArgument
from sash_engine.steps import Steps
from sash_engine.windows.reading.costs import MAX_ANSWERS
from sash_proto.v1 import windows_pb2 as pb

M = TypeVar("M", bound=Message)

LONG_BYTES = 8192
"""A shorter message is parsed in at most 6 ms, even one that is all entries of maps."""

PLAIN_BYTES = 1 << 17
"""A shorter message without maps is parsed in at most 6 ms, even one of texts of one byte."""

NAMES_MAX = 2**22
"""Fields of one message, such as the texts of a dictionary. A write has fewer entries."""

_QUERY_FIELDS_MAX = MAX_ANSWERS + 16
"""Keys times lookbacks are at most `MAX_ANSWERS`: together they are one more at most. Other fields are few."""

_COST = 2_048
"""Of a step, in fields: 0.4 ms of texts, 2 ms of entries of maps."""

_ALIKE = 8
"""After so many texts of one length, those that follow are looked at with NumPy, all together."""

_FIELD_BYTES = 4
"""So many bytes of a message within are counted as a field."""

_DEPTH_MAX = 100
"""The parser refuses messages that are nested deeper."""


def parsed(kind: type[M], data: bytes) -> Steps[M]:
    """Parse a message.

    Raises:
        InvalidArgument: its parts are too many.
        DecodeError: it is none.
    """
    if len(data) <= LONG_BYTES:
        return kind.FromString(data)
    yield from check_size(kind, data)
    message = kind()
    yield from _merge(message, data, 0, len(data), 0)
    return message


def _merge(message: Message, data: bytes, at: int, stop: int, depth: int) -> Steps[None]:
    """Parse data[at:stop] into a message."""
    if depth > _DEPTH_MAX or stop > len(data):
        raise DecodeError("it is nested too deep, or cut short")
    fields: Any = message.DESCRIPTOR.fields_by_number
    messages = {number for number, field in fields.items() if field.message_type is not None}
    most = _QUERY_FIELDS_MAX if isinstance(message, pb.QueryRequest) else NAMES_MAX
    found = cost = alike = 0
    start, end, last = at, stop - 1, -1
    while at < end:  # a field has two bytes or more
        begin, found, cost = at, found + 1, cost + 1
        if found > most:
            raise _too_many(message)
        if cost > _COST:
            _merged(message, data[start:at])
            start, cost = at, 0
            yield
        tag, length = data[at], data[at + 1]
        if tag & 0x87 == 2 and length < 0x80:  # a tag and a length of one byte each, as short texts have
            at += 2 + length
            if messages and tag >> 3 in messages:
                cost += length // _FIELD_BYTES
            elif length != last:
                last, alike = length, 0
            elif (alike := alike + 1) == _ALIKE:
                alike = 0
                run = _run(data, at, stop, tag, length)
                at, found, cost = at + run * (2 + length), found + run, cost + run
            continue
        tag, at = varint(data, at)
        match tag & 7:
            case 2:
                length, at = varint(data, at)
                if tag >> 3 in messages:
                    if length > (PLAIN_BYTES if _is_plain(fields[tag >> 3].message_type) else LONG_BYTES):
                        _merged(message, data[start:begin])
                        yield
                        yield from _merge_field(message, fields[tag >> 3], data, at, at + length, depth + 1)
                        start, cost = at + length, 0
                    else:
                        cost += length // _FIELD_BYTES
                at += length
            case 0:
                _, at = varint(data, at)
            case 1:
                at += 8
            case 5:
                at += 4
            case _:  # groups, which no version has
                raise DecodeError("it has a group")
    if at > stop:
        raise DecodeError("it is cut short")
    _merged(message, data[start:stop])
    yield


def _run(data: bytes, at: int, stop: int, tag: int, length: int) -> int:
    """How many fields from `at` on have this tag and this length, up to the rest of a step."""
    size = 2 + length
    count = min(_COST, (stop - at) // size)
    if count <= 0:  # the last one was cut short, or there is no other one
        return 0
    heads = np.frombuffer(data, np.uint8, count * size, at).reshape(count, size)
    same = (heads[:, 0] == tag) & (heads[:, 1] == length)
    return count if same.all() else int(same.argmin())


@cache
def _is_plain(kind: Any) -> bool:
    """Whether a kind of message has no messages within it, and is no entry of a map."""
    return not kind.GetOptions().map_entry and all(field.message_type is None for field in kind.fields)


def _merged(message: Message, piece: bytes) -> None:
    """Parse a piece of a message: what takes time in a step."""
    message.MergeFromString(piece)


def _merge_field(message: Message, field: Any, data: bytes, at: int, stop: int, depth: int) -> Steps[None]:
    """Parse data[at:stop], which is a field that is a message."""
    value = getattr(message, field.name)
    if field.message_type.GetOptions().map_entry:
        yield from _merge_entry(value, field.message_type, data, at, stop, depth)
        return
    if isinstance(value, Message):
        value.SetInParent()
    else:
        value = value.add()
    yield from _merge(value, data, at, stop, depth)


def _merge_entry(entries: Any, kind: Any, data: bytes, at: int, stop: int, depth: int) -> Steps[None]:
    """Parse data[at:stop], which is an entry of a map: a name and a value. A later entry replaces an earlier one."""
    if kind.fields_by_number[2].message_type is None or stop > len(data):
        raise DecodeError("a value is too long, or cut short")
    name, spans = b"", []
    while at < stop:
        tag, at = varint(data, at)
        if tag & 7 != 2 or tag >> 3 not in (1, 2):
            raise DecodeError("an entry of a map has other fields")
        length, at = varint(data, at)
        if at + length > stop:
            raise DecodeError("it is cut short")
        if tag >> 3 == 1:
            name = data[at : at + length]
        else:
            spans.append((at, at + length))
        at += length
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise DecodeError("a name is not UTF-8") from None
    entries.pop(text, None)
    value = entries[text]
    for start, end in spans:
        yield from _merge(value, data, start, end, depth)


def _too_many(message: Message) -> InvalidArgument:
    if isinstance(message, pb.QueryRequest):
        return InvalidArgument(
            f"more than {MAX_ANSWERS} keys and lookbacks in one query", field="keys", limit=f"{MAX_ANSWERS} answers"
        )
    name = message.DESCRIPTOR.name
    return InvalidArgument(f"{name} has too many fields", field="request", limit=f"{NAMES_MAX} fields")
