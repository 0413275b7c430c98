"""Requests and answers of HTTP without a framework. The parameters of a request are those of its query string, and of
its body where that is a form.

GET  …/query?query=1%2B1
POST …/query             content-type: application/x-www-form-urlencoded
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from sash.context import HEADER, request_id
from sash.promql.errors import BadData
from sash.rest.bodies import whole_body
from sash_engine.errors import SashError, TooLarge

FORM = "application/x-www-form-urlencoded"
FORM_BYTES_MAX = 1 << 18
_FIELDS_MAX = 1000
_PARTS = 500
"""Parts of an answer that are sent together."""


class UnsupportedMediaType(BadData):
    """The body is of a type, or compressed in a way, that is not taken."""


class Parameters:
    """The parameters of a request, by name; a name may be there several times."""

    def __init__(self, given: dict[str, list[str]]) -> None:
        self._given = given

    def text(self, name: str, default: str | None = None) -> str:
        """The first value of a parameter.

        Raises:
            BadData: it is missing, and has no default.
        """
        found = self._given.get(name)
        if found and found[0]:
            return found[0]
        if default is None:
            raise BadData(f'invalid parameter "{name}": it is missing', field=name)
        return default

    def all(self, name: str) -> list[str]:
        """All values of a parameter."""
        return self._given.get(name, [])

    def whole(self, name: str) -> int | None:
        """A number of things; None, where it is missing or 0: no limit.

        Raises:
            BadData: it is none.
        """
        text = self.text(name, "")
        if not text:
            return None
        if not text.isdecimal() or not text.isascii() or len(text) > 18:
            raise BadData(f'invalid parameter "{name}": {text[:80]!r} is no whole number', field=name)
        return int(text) or None


async def parameters_of(scope: Scope, receive: Receive) -> Parameters:
    """Read the parameters of a request.

    Raises:
        BadData: they are no UTF-8, or too many.
        UnsupportedMediaType: the body is no form.
        TooLarge: the body is too large.
        Gone: the caller hung up.
    """
    body = b""
    if scope["method"] == "POST":
        body = await read_body(scope, receive, FORM_BYTES_MAX)
        if body and (given := header(scope, b"content-type").partition(";")[0].strip().lower()) != FORM:
            raise UnsupportedMediaType(
                f"Content-Type {given[:80]!r} is not taken here; send {FORM}", field="Content-Type"
            )
    found = dict[str, list[str]]()
    for part in (body, scope["query_string"]):
        try:
            pairs = parse_qsl(part.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_FIELDS_MAX)
        except UnicodeDecodeError:
            raise BadData("the parameters are not UTF-8", field="body") from None
        except ValueError:
            raise BadData("too many parameters", field="body", limit=f"{_FIELDS_MAX} parameters") from None
        for name, value in pairs:
            found.setdefault(name, []).append(value)
    return Parameters(found)


async def read_body(scope: Scope, receive: Receive, bytes_max: int) -> bytes:
    """Read a body, but no more of it than is allowed.

    Raises:
        TooLarge: it is longer.
        Gone: the caller hung up.
    """
    announced = header(scope, b"content-length")
    too_large = TooLarge(f"the body is too large; {bytes_max} bytes are allowed", field="body", limit=f"{bytes_max}")
    if announced.isdecimal() and int(announced) > bytes_max:
        raise too_large
    return await whole_body(receive, bytes_max, too_large)


async def respond(send: Send, status: int, headers: list[tuple[bytes, bytes]], parts: Sequence[bytes]) -> None:
    """Answer a request."""
    if status != HTTPStatus.NO_CONTENT:
        headers = [*headers, (b"content-length", b"%d" % sum(map(len, parts)))]
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    for a in range(0, len(parts), _PARTS):
        body = b"".join(parts[a : a + _PARTS])
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def headers_of(error: Exception, status: int) -> list[tuple[bytes, bytes]]:
    """The headers of an answer that is an error: the id of the request, and when to come again."""
    headers = [(HEADER.encode(), request_id().encode())]
    if isinstance(error, SashError) and error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, -int(-error.retry_after_s // 1))))
    if status == HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def header(scope: Scope, name: bytes) -> str:
    """A header of a request, by its name in lower case; nothing where it is missing."""
    for found, value in scope["headers"]:
        if found == name:
            return str(value.decode("latin-1"))
    return ""
