"""Media types of bodies, and JSON as RFC 8259 defines it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np
import orjson
from starlette.types import Receive

from sash.calls import joined
from sash_engine.errors import InvalidArgument, TooLarge

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"
CSV = "text/csv"
LINES = (NDJSON, CSV)
"""Bodies of one entry a line."""
YAML = "application/yaml"
OCTETS = "application/octet-stream"

_SEARCHED_BYTES = 1 << 16
"""In a longer body, the place of a mistake is not searched for: it takes 0.15 µs a byte and holds the loop."""

_OBJECT_BYTES = 64
_CONTAINER_BYTES = 128
"""What parsed JSON takes: 32 to 62 bytes for a number or a short text, 67 for [], 189 for {"a":1}; measured on a
million of each. Each but the first of a list has a comma before it."""


class Gone(Exception):
    """The caller hung up before the request was whole."""


async def parts_of(receive: Receive) -> AsyncGenerator[bytes, None]:
    """Yield the parts of a body, of any size."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        more = message.get("more_body", False)
        yield message.get("body", b"")


async def whole_body(receive: Receive, bytes_max: int, too_large: TooLarge) -> bytes:
    """Read a body, but no more of it than is allowed; raises `too_large`."""
    parts, size = list[bytes](), 0
    async for part in parts_of(receive):
        parts.append(part)
        size += len(part)
        if size > bytes_max:
            raise too_large
    return await joined(parts)


def parsed_bytes(part: bytes) -> int:
    """How many bytes of memory a part of a body of JSON takes when it is parsed, at most."""
    return _OBJECT_BYTES * part.count(b",") + _CONTAINER_BYTES * (part.count(b"[") + part.count(b"{"))


def parse_json(body: bytes, colons: int | None = None) -> dict[str, Any]:
    """Parse a JSON object.

    Args:
        colons: how many there are outside texts, if that was counted.

    Raises:
        InvalidArgument: it is not JSON, or not an object, or an object has a name twice. The message has the path of a
            NaN or Infinity, which JSON does not have although many programs write them, and of such a name.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise not_json(body, error) from None
    if not isinstance(document, dict):
        raise InvalidArgument("the body must be a JSON object", field="body")
    # A colon follows each name: with one for each member, no name is there twice, and no object inside has any.
    if (body.count(b":") != len(document)) if colons is None else (colons != _names(document)):
        _check_names(body, document)
    return document


def not_json(body: bytes, error: orjson.JSONDecodeError) -> InvalidArgument:
    """Say why the parser refused a body, or a piece of one."""
    if (path := _literal_path(body)) is not None:
        return InvalidArgument(
            f'{path}: NaN and Infinity are not JSON numbers; write them as "NaN", "Infinity" and '
            '"-Infinity" for a float64',
            field=path,
        )
    return InvalidArgument(f"the body is not JSON: {error}", field="body")


def _check_names(body: bytes, document: dict[str, Any]) -> None:
    """Raise InvalidArgument if an object of the body has a name twice; the parser keeps the last value silently.

    A colon follows each name. If the body has as many colons as the document has names, no name is there twice. Text
    can contain colons, so the second count leaves out those within text. If there are more of them than names, a name
    is there twice. A bulk of 16,384 with text keys parses in 1.3 ms, and the first count takes 0.04 ms of that.
    """
    names, pending = 0, [document]
    for each in pending:  # grows
        names += len(each)
        pending += [value for value in each.values() if type(value) is dict]
    if body.count(b":") == names or _colons(body) == _names(document):
        return
    # To find it takes a parse in Python. A long body waits for no such thing.
    path = _duplicate_path(body) if len(body) <= _SEARCHED_BYTES else None
    wrong = "a name is given twice" if path is None else f"the name {path!r} is given twice"
    raise InvalidArgument(wrong, field=path or "body")


def _colons(body: bytes) -> int:
    """How many colons of valid JSON are not within text."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    characters = np.frombuffer(body, np.uint8)
    quotes = np.flatnonzero(characters == ord('"'))
    return int(np.count_nonzero(np.searchsorted(quotes, np.flatnonzero(characters == ord(":"))) % 2 == 0))


def _names(document: dict[str, Any]) -> int:
    """How many names all objects of a document have."""
    names, pending = 0, list[Any]([document])
    for each in pending:  # grows
        if type(each) is dict:
            names += len(each)
            each = each.values()
        pending += [value for value in each if type(value) in (dict, list)]
    return names


class _Mark:
    """Takes the place of a forbidden value in a document."""


def _literal_path(body: bytes) -> str | None:
    """Return the path of NaN, Infinity or -Infinity in a document that the parser refused; None if it has none."""
    if b"NaN" not in body and b"Infinity" not in body:
        return None
    if len(body) > _SEARCHED_BYTES:
        return "body"
    mark = _Mark()
    try:
        path = _path_to(mark, json.loads(body, parse_constant=lambda _: mark))
    except (ValueError, RecursionError):
        return None
    return path or "body"


def _duplicate_path(body: bytes) -> str | None:
    """Return the path of a name that a valid document has for the second time; None if there is none."""
    mark = _Mark()

    def unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in members:
            found[name] = mark if name in found else value
        return found

    try:
        return _path_to(mark, json.loads(body, object_pairs_hook=unique))
    except RecursionError:
        raise InvalidArgument("the body is nested too deep", field="body") from None


def _path_to(mark: _Mark, document: Any) -> str | None:
    """Return the path of the first mark in a document, in the document's order; None if it has none."""
    pending: list[tuple[str, Any]] = [("", document)]  # no recursion: documents may be deep
    while pending:
        path, item = pending.pop()
        if item is mark:
            return path
        if isinstance(item, dict):
            pending.extend(reversed([(f"{path}.{name}" if path else name, value) for name, value in item.items()]))
        elif isinstance(item, list):
            inside = [(i, value) for i, value in enumerate(item) if isinstance(value, dict | list | _Mark)]
            pending.extend([(f"{path}[{i}]", value) for i, value in reversed(inside)])
    return None
