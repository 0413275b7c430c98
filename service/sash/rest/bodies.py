"""Request bodies: read up to a limit, and parsed as the JSON that RFC 8259 means."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from starlette.requests import Request

from sash.rest.problems import UnsupportedMediaType
from sash_engine.errors import InvalidArgument, TooLarge

__all__ = ["ARROW", "JSON", "OCTETS", "YAML", "media_type", "parse_json", "prefers", "read_body"]

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"
YAML = "application/yaml"
OCTETS = "application/octet-stream"
# What curl -d and the like say of any body when told nothing.
FORM = "application/x-www-form-urlencoded"


def media_type(request: Request, accepted: Sequence[str]) -> str:
    """The body's media type; without a Content-Type, or with a form's, it is taken for the first of `accepted`.

    Raises:
        UnsupportedMediaType: it is none of `accepted`, or the body is compressed.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise UnsupportedMediaType(
            f"Content-Encoding {encoding[:80]!r} is not taken; send the body as it is", field="Content-Encoding"
        )
    found = request.headers.get("content-type", FORM).partition(";")[0].strip().lower()
    if found == FORM:
        return accepted[0]
    if found not in accepted:
        raise UnsupportedMediaType(
            f"Content-Type {found[:80]!r} is not taken here; send {' or '.join(accepted)}", field="Content-Type"
        )
    return found


def prefers(request: Request, kind: str) -> bool:
    """Whether the Accept header names a media type, and JSON not before it."""
    named = [item.partition(";")[0].strip().lower() for item in request.headers.get("accept", "").split(",")]
    return kind in named and JSON not in named[: named.index(kind)]


async def read_body(request: Request, bytes_max: int) -> bytes:
    """Read the whole body, but no more of it than `bytes_max`, whether or not its length was announced.

    Raises:
        TooLarge: it is longer; what was not read yet the server discards.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > bytes_max:
        raise _too_large(f"the body has {announced[:30]} bytes", bytes_max)
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > bytes_max:
            raise _too_large("the body is too large", bytes_max)
        chunks.append(chunk)
    return b"".join(chunks)


def parse_json(body: bytes) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        InvalidArgument: no JSON, or no object. NaN and Infinity, which are no JSON although many write them, are
            named with their path; so is a name that an object has twice.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if (path := _literal_path(body)) is not None:
            raise InvalidArgument(
                f'{path}: NaN and Infinity are no JSON numbers; a float64 takes them as "NaN", "Infinity" and '
                '"-Infinity"',
                field=path,
            ) from None
        raise InvalidArgument(f"the body is not JSON: {error}", field="body") from None
    if not isinstance(document, dict):
        raise InvalidArgument("the body must be a JSON object", field="body")
    _check_names(body, document)
    return document


def _too_large(message: str, bytes_max: int) -> TooLarge:
    mib = f"{bytes_max / 2**20:g} MiB" if bytes_max % 2**20 == 0 else f"{bytes_max} bytes"
    return TooLarge(f"{message}; {mib} are allowed", field="body", limit=mib)


def _check_names(body: bytes, document: dict[str, Any]) -> None:
    """Raise InvalidArgument if an object of the body has a name twice; the parser keeps the last value silently.

    A colon follows each name. If the body has as many colons as the document has names, no name is there twice. Text
    can contain colons, so the second count takes only those behind a quote or a blank. If that differs too, the body is
    parsed again, name by name. A bulk of 16,384 with text keys parses in 1.3 ms. The first count takes 0.04 ms of that
    bulk, the second 0.2 ms, and to parse again takes 16 ms.
    """
    names, pending = 0, [document]
    for each in pending:  # grows
        names += len(each)
        pending += [value for value in each.values() if type(value) is dict]
    at = -1
    for _ in range(names):
        at = body.find(b":", at + 1)
    if body.find(b":", at + 1) < 0:
        return
    characters = np.frombuffer(body, np.uint8)
    before = characters[np.flatnonzero(characters == ord(":")) - 1]
    if np.count_nonzero((before == ord('"')) | (before <= ord(" "))) == names:
        return
    if (path := _duplicate_path(body)) is not None:
        raise InvalidArgument(f"the name {path!r} is given twice", field=path or "body")


class _Mark:
    """Takes the place of a value that a document must not have."""


def _literal_path(body: bytes) -> str | None:
    """Where a document that the strict parser refused has NaN, Infinity or -Infinity, if that is what is wrong."""
    if b"NaN" not in body and b"Infinity" not in body:
        return None
    mark = _Mark()
    try:
        path = _path_to(mark, json.loads(body, parse_constant=lambda _: mark))
    except (ValueError, RecursionError):
        return None
    return path or "body"


def _duplicate_path(body: bytes) -> str | None:
    """Where a valid document has a name for the second time."""
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
    """The path of the first mark in a document, in the document's order; None if it has none."""
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
