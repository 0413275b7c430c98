"""What routes have in common: parameters, errors, streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Annotated, Any

from starlette.responses import Response, StreamingResponse

from sash.rest.bodies import OCTETS
from sash.rest.declare import Problems
from sash.rest.parameters import Parameter

__all__ = [
    "BINARY",
    "FILE",
    "INVALID",
    "NO_VALUES",
    "NUMBERED",
    "STORED",
    "STORING",
    "UNKNOWN",
    "Name",
    "streamed",
]

Name = Annotated[str, Parameter(example="departure_delay")]

INVALID: Problems = {400: "The request is wrong; `field` says where"}
UNKNOWN: Problems = {404: "There is no such window"}
NO_VALUES: Problems = {422: "The window's algorithm keeps no values"}
NUMBERED: Problems = {
    409: "Writes of its producer are missing before it. Or the producer has used the number for other data. Or a "
    "higher epoch has taken the producer's name over"
}
STORED: Problems = {
    409: "Another server has taken the tier over",
    500: "A stored value that this needs is damaged or lost",
    503: "The tier cannot be reached, or has not confirmed a write, which may be applied then: `detail` says so. "
    "Retry-After says when to try again",
}
STORING: Problems = {**STORED, 507: "The tier is full; evicting entries or deleting windows makes room"}

BINARY: Mapping[str, Any] = {"schema": {"type": "string", "format": "binary"}}
FILE = {OCTETS: BINARY}


def streamed(parts: Iterator[bytes], kind: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response whose parts are made one at a time. Other calls get a turn between them."""

    async def in_turns() -> AsyncIterator[bytes]:
        for part in parts:
            yield part
            await asyncio.sleep(0)

    return StreamingResponse(in_turns(), headers=headers, media_type=kind)
