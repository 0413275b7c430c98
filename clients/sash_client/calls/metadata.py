"""What goes with calls beside their messages: the id of a request, and the trace that it belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sash_client.errors import InvalidArgument
from sash_wire import traces

_PLAIN = re.compile(r"[A-Za-z0-9._:/@+=-]{1,128}")
_Metadata = tuple[tuple[str, str], ...]
_SAID: ContextVar[_Metadata] = ContextVar("said", default=())


@contextmanager
def request_id(given: str) -> Iterator[None]:
    """Choose the id of all calls that are made within; the service's log, its audit log and its errors have it.

    Args:
        given: 1 to 128 letters, digits, and ``. _ : / @ + = -``.

    Raises:
        InvalidArgument: it has other characters, or too many.

    >>> with request_id("nightly-load-7"):
    ...     pass
    """
    if not _PLAIN.fullmatch(given):
        raise InvalidArgument(
            f"request_id must have 1 to 128 letters, digits, or characters of ._:/@+=-, not {given[:40]!r}",
            field="request_id",
            limit="128",
        )
    kept = tuple(pair for pair in _SAID.get() if pair[0] != "x-request-id")
    token = _SAID.set((*kept, ("x-request-id", given)))
    try:
        yield
    finally:
        _SAID.reset(token)


def said_of_request() -> _Metadata:
    """Return the metadata of the next call."""
    return _SAID.get()


def trace_calls(provider: Any = None) -> None:
    """Make an OpenTelemetry span of every call that clients of this process make from now on.

    A call's span is a child of the current span, and the service's spans are children of it. Needs `sash[otel]`.

    Args:
        provider: makes the spans; OpenTelemetry's own tracer provider if it is None.

    Raises:
        ModuleNotFoundError: OpenTelemetry is not installed.
    """
    traces.begin(provider)
