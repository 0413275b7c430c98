"""Refusals that come from a connection itself: of its heads, of slow clients, of too many connections."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

import orjson
from starlette.types import ASGIApp, Receive, Scope, Send

from sash.requests import HEADER, new_id
from sash.rest.front import ALWAYS
from sash.rest.problems import MEDIA_TYPE, of_error
from sash_engine.errors import Unavailable

__all__ = ["monitors_only", "raw"]


def monitors_only(app: ASGIApp, limit: str, refused: Callable[[HTTPStatus], None]) -> Any:
    """An app for connections beyond the limits."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in ALWAYS:
            await app(scope, receive, send)
            return
        refused(HTTPStatus.SERVICE_UNAVAILABLE)
        error = Unavailable("there are too many connections", limit=limit, retry_after_s=1.0)
        response = of_error(error, scope["method"], scope["path"])
        response.headers["connection"] = "close"
        await response(scope, receive, send)

    return answer


def raw(status: HTTPStatus, detail: str, defaults: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """A problem document as the bytes of a response, for requests that no app sees.

    Args:
        defaults: headers that every answer has.
    """
    # The head may not have arrived, so the id is always a new one.
    request = new_id()
    body = orjson.dumps(
        {
            "type": "about:blank",
            "title": status.phrase,
            "status": int(status),
            "detail": detail,
            "request_id": request,
        }
    )
    retry = "retry-after: 1\r\n" if status is HTTPStatus.SERVICE_UNAVAILABLE else ""
    lines = "".join(f"{name.decode()}: {value.decode()}\r\n" for name, value in defaults)
    head = (
        f"HTTP/1.1 {int(status)} {status.phrase}\r\n{lines}"
        f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n"
        f"{retry}{HEADER}: {request}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
