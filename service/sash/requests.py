"""The request that a call belongs to: its id, and the headers that came with it.

    edge ──▶ REQUEST.set(Request(headers)) ──▶ errors, the audit log and the log ask for `request_id()`

A caller may choose the id (`X-Request-Id`; in gRPC the metadata `x-request-id`). It is written into logs and answers,
so only short ids of plain characters are taken over; for others the service makes one. Most calls never need their id:
the headers are read, or an id is made, when somebody asks for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, MutableMapping
from contextvars import ContextVar
from typing import Any

__all__ = ["HEADER", "REQUEST", "Request", "new_id", "of_metadata", "of_scope", "request_id"]

HEADER = "x-request-id"

_TRACE = ("traceparent", "tracestate")
_PLAIN = re.compile(r"[A-Za-z0-9._:/@+=-]{1,128}")

Headers = Iterable[tuple[str | bytes, str | bytes]]


class Request:
    """One request.

    Args:
        headers: returns its headers, names in lower case.
    """

    __slots__ = ("_headers", "_id")

    def __init__(self, headers: Callable[[], Headers]) -> None:
        self._headers = headers
        self._id: str | None = None

    @property
    def id(self) -> str:
        """The id that the caller chose; one that is made here if it chose none, or none that may be used."""
        if self._id is None:
            given = self.header(HEADER)
            self._id = given if given is not None and _PLAIN.fullmatch(given) else new_id()
        return self._id

    def header(self, name: str) -> str | None:
        """Return a header; None where there is none, or more than one."""
        found = [_text(value) for each, value in self._headers() if _text(each) == name]
        return found[0] if len(found) == 1 else None

    def trace(self) -> dict[str, str]:
        """Return the headers of W3C Trace Context."""
        found = ((name, self.header(name)) for name in _TRACE)
        return {name: value for name, value in found if value is not None}


REQUEST: ContextVar[Request | None] = ContextVar("request", default=None)
"""The request that is being served; None in work that no caller asked for."""


def of_scope(scope: MutableMapping[str, Any]) -> Request:
    """Return the request of an ASGI scope."""
    return Request(lambda: scope["headers"])


def of_metadata(metadata: Callable[[], Headers | None]) -> Request:
    """Return the request of a gRPC call, by what returns its metadata."""
    return Request(lambda: metadata() or ())


def request_id() -> str:
    """Return the id of the request that is being served; a new one where none is."""
    request = REQUEST.get()
    return new_id() if request is None else request.id


def new_id() -> str:
    """Return a new id."""
    return os.urandom(16).hex()


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
