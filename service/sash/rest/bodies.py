"""Request bodies: read up to a limit, and parsed as the JSON that RFC 8259 means."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import orjson
from starlette.requests import Request

from sash.errors import InvalidArgument, TooLarge
from sash.rest.problems import UnsupportedMediaType

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
            named with their path.
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
    return document


def _too_large(message: str, bytes_max: int) -> TooLarge:
    mib = f"{bytes_max / 2**20:g} MiB" if bytes_max % 2**20 == 0 else f"{bytes_max} bytes"
    return TooLarge(f"{message}; {mib} are allowed", field="body", limit=mib)


class _Literal:
    """Stands for NaN, Infinity or -Infinity in a document that would be JSON otherwise."""


def _literal_path(body: bytes) -> str | None:
    """Where a document that the strict parser refused has the first of these literals, if that is what it is."""
    if b"NaN" not in body and b"Infinity" not in body:
        return None
    literal = _Literal()
    try:
        document = json.loads(body, parse_constant=lambda _: literal)
    except (ValueError, RecursionError):
        return None
    # Depth first, in the document's order, without recursion.
    pending: list[tuple[str, Any]] = [("", document)]
    while pending:
        path, item = pending.pop()
        if item is literal:
            return path or "body"
        if isinstance(item, dict):
            pending.extend(reversed([(f"{path}.{name}" if path else name, value) for name, value in item.items()]))
        elif isinstance(item, list):
            pending.extend(reversed([(f"{path}[{i}]", value) for i, value in enumerate(item)]))
    return None
