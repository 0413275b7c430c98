"""One request, as the handler of a route sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry
from starlette.types import Receive, Scope

from sash.plane import Plane
from sash.rest.bodies import JSON, joined, parse_json
from sash.rest.declare import SAFE, Body
from sash.rest.long_json import LISTED_MAX, SHORT_BYTES, is_long, parse_long_json
from sash.rest.problems import UnsupportedMediaType
from sash.settings import Settings
from sash_engine.errors import InvalidArgument, TooLarge
from sash_engine.windows.spec_text import read_yaml

__all__ = ["Call", "Collect", "Edge", "Gone"]

Collect = Callable[[], Awaitable[CollectorRegistry]]


R = TypeVar("R")


class Gone(Exception):
    """The caller hung up before the request was whole."""


@dataclass(frozen=True)
class Edge:
    """The objects that the handlers of all routes share.

    Attributes:
        plane: the operations.
        settings: limits.
        registry: the metrics that ``/metrics`` shows.
        not_ready: returns why ``/readyz`` asks for no requests; None if it asks for them.
        closing: is set when the service is about to end.
        collected: returns the metrics of more than this process, if there are such.
    """

    plane: Plane
    settings: Settings
    registry: CollectorRegistry
    not_ready: Callable[[], str | None]
    closing: asyncio.Event
    collected: Collect | None = None
    reader: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "reader"))
    """Reads long bodies that are no JSON, one at a time."""

    async def metrics(self) -> CollectorRegistry:
        """The metrics that ``/metrics`` shows."""
        return self.registry if self.collected is None else await self.collected()


class Call:
    """One request."""

    __slots__ = ("_bytes_max", "_headers", "_receive", "_whole", "edge", "kind", "plane")

    def __init__(
        self, edge: Edge, scope: Scope, receive: Receive, body: Body | None, whole: bytes | None = None
    ) -> None:
        """Look at the head of a request.

        Args:
            whole: its body, where that is there already, and not too large.

        Raises:
            UnsupportedMediaType: the body is none that the route takes.
        """
        self.edge = edge
        self.plane = edge.plane
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._receive = receive
        self._whole = whole
        self._bytes_max = edge.settings.max_body_bytes
        self.kind: str | None = None
        """The media type of the body; None where the route takes no body."""
        if body is not None:
            self.kind = self._media_type(body)
            if body.bytes_max is not None:
                self._bytes_max = min(body.bytes_max, self._bytes_max)
        elif scope["method"] not in SAFE and (given := self.header(b"content-type")) and _kind(given) != JSON:
            raise _not_taken(given, "send no body")

    def header(self, name: bytes, default: str = "") -> str:
        """Return a header, by its name in lower case."""
        for found, value in self._headers:
            if found == name:
                return value.decode("latin-1")
        return default

    def prefers(self, kind: str) -> bool:
        """Whether the Accept header names a media type, and JSON not before it."""
        named = [item.partition(";")[0].strip().lower() for item in self.header(b"accept").split(",")]
        return kind in named and JSON not in named[: named.index(kind)]

    async def body(self) -> bytes:
        """Read the whole body, but no more of it than is allowed, whether or not its length was announced.

        Raises:
            TooLarge: it is longer. The server discards what was not read yet.
        """
        if self._whole is not None and len(self._whole) <= self._bytes_max:
            return self._whole
        announced = self.header(b"content-length")
        if announced.isdecimal() and int(announced) > self._bytes_max:
            raise self._too_large(f"the body has {announced[:30]} bytes")
        parts, size, more = [], 0, True
        while more:
            part, more = await self._part()
            size += len(part)
            if size > self._bytes_max:
                raise self._too_large("the body is too large")
            parts.append(part)
        return await joined(parts)

    async def json(self, columns: bool = False) -> dict[str, Any]:
        """Read the body as a JSON object, with turns for other calls where it is long; raises as `body` and parsing do.

        Args:
            columns: whether its long lists are `LongList`s.
        """
        body = await self.body()
        if not is_long(body):
            return parse_json(body)
        return await self.plane.parsed(parse_long_json(body, None if columns else LISTED_MAX))

    async def read(self, read: Callable[[bytes], R]) -> R:
        """What a function reads of the body; a long body is read beside the event loop. Raises as `body` and `read`."""
        body = await self.body()
        if len(body) <= SHORT_BYTES:
            return read(body)
        return await asyncio.get_running_loop().run_in_executor(self.edge.reader, read, body)

    async def text(self) -> str:
        """Read the body as text.

        Raises:
            InvalidArgument: it is not UTF-8.
        """
        try:
            return (await self.body()).decode()
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"the body is not UTF-8: {error.reason}", field="body") from None

    async def yaml(self) -> Any:
        """Read the body as YAML, with turns for other calls; raises as `text` and `read_yaml`."""
        return await self.plane.parsed(read_yaml(await self.text()))

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the body part by part, of any size."""
        more = True
        while more:
            part, more = await self._part()
            yield part

    async def _part(self) -> tuple[bytes, bool]:
        """Wait for the next part of the body; return whether there are more."""
        if self._whole is not None:
            return self._whole, False
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise Gone
        return message.get("body", b""), message.get("more_body", False)

    def _media_type(self, body: Body) -> str:
        encoding = self.header(b"content-encoding", "identity")
        if encoding.lower() != "identity":
            raise UnsupportedMediaType(
                f"Content-Encoding {encoding[:80]!r} is not taken; send the body as it is", field="Content-Encoding"
            )
        given = self.header(b"content-type")
        found = body.kinds.get(given) or body.kinds.get(_kind(given))
        if found is None:
            raise _not_taken(given, f"send {' or '.join(body.kinds)}")
        return found

    def _too_large(self, message: str) -> TooLarge:
        most = self._bytes_max
        mib = f"{most / 2**20:g} MiB" if most % 2**20 == 0 else f"{most} bytes"
        return TooLarge(f"{message}; {mib} are allowed", field="body", limit=mib)


def _kind(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _not_taken(given: str, instead: str) -> UnsupportedMediaType:
    """Refuse a body by its type.

    A web page of any site may send forms, plain text and bodies without a type. It may send other types only where the
    service allows that site (CORS). So a type that is missing is not guessed.
    """
    said = f"Content-Type {given[:80]!r} is not taken here" if given else "Content-Type is missing"
    return UnsupportedMediaType(f"{said}; {instead}", field="Content-Type")
