"""Parameters, errors and streams that several routes have."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from importlib import import_module
from typing import Annotated, Any, TypeVar

from fastapi import Path
from pydantic import Field
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from sash.rest.bodies import OCTETS
from sash.rest.call import Call
from sash.rest.connection import ANSWERS
from sash.rest.models import Parameters
from sash.rest.route import Problems
from sash_engine.errors import InvalidArgument

T = TypeVar("T")

Name = Annotated[str, Path(examples=["departure_delay"])]

NO_VALUES: Problems = {422: "The window keeps panes or partials, and no single values"}
NUMBERED: Problems = {
    409: "Writes of its producer are missing before it. Or the producer has used the number for other data. Or a "
    "higher epoch has taken the producer's name over"
}
BINARY: Mapping[str, Any] = {"schema": {"type": "string", "format": "binary"}}
FILE = {OCTETS: BINARY}

_ARROW = "sash.rest.csv_bodies"
"""It imports `sash.rest.arrow`."""


class Timed(Parameters):
    times: str = Field("ticks", json_schema_extra={"enum": ["ticks", "iso"]})
    """How JSON has times: as ticks, or in ISO 8601. Aggregates that return times return ticks."""

    async def iso_unit(self, call: Call, name: str) -> str | None:
        """The unit of the window's time where times are written in ISO 8601; None: they are ticks.

        Raises:
            InvalidArgument: `times` is something else, or the window counts logical ticks.
        """
        if self.times == "ticks":
            return None
        if self.times != "iso":
            raise InvalidArgument(f"times is ticks or iso, not {self.times[:40]!r}", field="times")
        unit = (await call.plane.look_up(name)).time_unit
        if unit == "none":
            raise InvalidArgument("times is ticks here: the window counts logical ticks", field="times")
        return unit


async def arrow_imported() -> Any:
    """Return the module `arrow`. Import it, and what reads CSV, where no call has needed them yet.

    pyarrow takes 0.1 s, as long as a sixth of a start. Other calls have their turns meanwhile.
    """
    if _ARROW not in sys.modules:
        await asyncio.to_thread(import_module, _ARROW)
    return sys.modules["sash.rest.arrow"]


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
    return _Streamed(parts, headers=headers, media_type=kind)


class _Streamed(StreamingResponse):
    """Makes its parts in the task of the call, and so in its turns. Starlette makes them in a task of their own, and
    waits beside it for the client to go: this looks before each part whether it has gone."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange, parts = scope.get(ANSWERS), self.body_iterator

        async def until_gone() -> AsyncIterator[Any]:
            async for part in parts:
                if exchange is not None and exchange.gone:
                    return
                yield part

        self.body_iterator = until_gone()
        try:
            await self.stream_response(send)
        finally:
            if isinstance(parts, AsyncGenerator):
                await parts.aclose()
