"""Parameters, errors and streams that several routes have."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from importlib import import_module
from typing import Annotated, Any, TypeVar

from fastapi import Path
from starlette.responses import Response, StreamingResponse

from sash.rest.bodies import OCTETS
from sash.rest.route import Problems

__all__ = [
    "BINARY",
    "FILE",
    "NO_VALUES",
    "NUMBERED",
    "Name",
    "arrow_imported",
    "begun",
    "streamed",
]

T = TypeVar("T")

Name = Annotated[str, Path(examples=["departure_delay"])]

NO_VALUES: Problems = {422: "The window's algorithm keeps no values"}
NUMBERED: Problems = {
    409: "Writes of its producer are missing before it. Or the producer has used the number for other data. Or a "
    "higher epoch has taken the producer's name over"
}
BINARY: Mapping[str, Any] = {"schema": {"type": "string", "format": "binary"}}
FILE = {OCTETS: BINARY}

_ARROW = "sash.rest.separated"
"""It imports `sash.rest.arrow`."""


async def arrow_imported() -> None:
    """Import what reads and writes Arrow and CSV where no call has needed it yet.

    pyarrow takes 0.1 s, as long as a sixth of a start. Other calls have their turns meanwhile.
    """
    if _ARROW not in sys.modules:
        await asyncio.to_thread(import_module, _ARROW)


async def begun(parts: AsyncIterator[T]) -> AsyncIterator[T]:
    """Wait for the first part, so that an error comes before the response begins; return all parts."""
    try:
        first = [await anext(parts)]
    except StopAsyncIteration:
        first = []

    async def again() -> AsyncIterator[T]:
        for part in first:
            yield part
        async for part in parts:
            yield part

    return again()


def streamed(parts: AsyncIterator[bytes], kind: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response whose parts are made one at a time. Other calls get a turn between them."""
    return StreamingResponse(parts, headers=headers, media_type=kind)
