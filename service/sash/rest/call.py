"""One request, as the handler of a route sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.types import Receive, Scope

from sash.plane import Plane
from sash.rest.bodies import JSON, YAML, parse_json, parts_of, whole_body
from sash.rest.entrance import BODY
from sash.rest.large_json import LISTED_MAX, SHORT_BYTES, is_long, parse_long_json
from sash.rest.problems import UnsupportedMediaType
from sash.settings import Settings
from sash_engine.errors import InvalidArgument, TooLarge
from sash_engine.windows.spec.text import read_yaml

Collect = Callable[[], Awaitable[CollectorRegistry]]
Admit = Callable[[Scope, Any, str | None], None]
"""Raises if the caller of a request lacks a right on a window; None: the route names no window."""

SAFE = frozenset(("GET", "HEAD"))
"""The methods that change nothing."""

_NAMES = {"application/x-yaml": YAML, "text/yaml": YAML}
"""Other names of media types."""

R = TypeVar("R")


@dataclass(frozen=True)
class Edge:
    """The objects that the handlers of all routes share.

    Attributes:
        plane: the operations.
        settings: limits.
        registry: the metrics that ``/metrics`` shows.
        not_ready: returns why ``/readyz`` asks for no requests; None if it asks for them.
        closing: is set when the service is about to end.
        admit: raises if the caller lacks a right on a window. It is called before the body is read.
        collected: returns the metrics of more than this process, if there are such.
    """

    plane: Plane
    settings: Settings
    registry: CollectorRegistry
    not_ready: Callable[[], str | None]
    closing: asyncio.Event
    admit: Admit | None = None
    collected: Collect | None = None
    reader: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "reader"))
    """Reads long bodies that are no JSON, one at a time."""

    async def metrics(self) -> CollectorRegistry:
        """The metrics that ``/metrics`` shows."""
        return self.registry if self.collected is None else await self.collected()


class Call(Request):
    """One request."""

    def __init__(self, edge: Edge, scope: Scope, receive: Receive, kinds: Sequence[str] = ()) -> None:
        """Look at the head of a request.

        Args:
            kinds: the media types that the route takes; none: it takes no body.

        Raises:
            UnsupportedMediaType: the body is none that the route takes.
        """
        self.scope, self._receive = scope, receive  # all that FastAPI's class needs; its constructor takes 1 µs
        self.edge = edge
        self.plane = edge.plane
        self._whole: bytes | None = scope.get(BODY)
        self._bytes_max = edge.settings.max_body_bytes
        self.kind: str | None = None
        """The media type of the body; None where the route takes no body."""
        if kinds:
            self.kind = self._media_type(kinds)
        elif scope["method"] not in SAFE and (given := self.header(b"content-type")) and _kind(given) != JSON:
            raise _not_taken(given, "send no body")

    def header(self, name: bytes, default: str = "") -> str:
        """Return a header, by its name in lower case."""
        for found, value in self.scope["headers"]:
            if found == name:
                return str(value, "latin-1")
        return default

    def prefers(self, kind: str) -> bool:
        """Whether the Accept header names a media type, and JSON not before it."""
        named = [item.partition(";")[0].strip().lower() for item in self.header(b"accept").split(",")]
        return kind in named and JSON not in named[: named.index(kind)]

    async def body(self, bytes_max: int | None = None) -> bytes:
        """Read the whole body, but no more of it than is allowed, whether or not its length was announced.

        Args:
            bytes_max: a limit below `SASH_MAX_BODY_BYTES`.

        Raises:
            TooLarge: it is longer. The server discards what was not read yet.
        """
        if bytes_max is not None:
            self._bytes_max = min(bytes_max, self._bytes_max)
        if self._whole is not None and len(self._whole) <= self._bytes_max:
            return self._whole
        announced = self.header(b"content-length")
        if announced.isdecimal() and int(announced) > self._bytes_max:
            raise self._too_large(f"the body has {announced[:30]} bytes")
        return await whole_body(self._receive, self._bytes_max, self._too_large("the body is too large"))

    async def json(self, columns: bool = False, bytes_max: int | None = None) -> dict[str, Any]:
        """Read the body as a JSON object, with turns for other calls where it is long; raises as `body` and parsing do.

        Args:
            columns: whether its long lists are `LongList`s.
            bytes_max: as of `body`.
        """
        body = self._whole
        if body is None or bytes_max is not None or len(body) > self._bytes_max:
            body = await self.body(bytes_max)
        if not is_long(body):
            return parse_json(body)
        return await self.plane.parsed(parse_long_json(body, None if columns else LISTED_MAX))

    async def read(self, read: Callable[[bytes], R]) -> R:
        """What a function reads of the body; a long body is read beside the event loop. Raises as `body` and `read`."""
        body = await self.body()
        if len(body) <= SHORT_BYTES:
            return read(body)
        return await asyncio.get_running_loop().run_in_executor(self.edge.reader, read, body)

    async def yaml(self, bytes_max: int | None = None) -> Any:
        """Read the body as YAML, with turns for other calls; raises as `body` and `read_yaml`.

        Raises:
            InvalidArgument: it is not UTF-8.
        """
        try:
            text = (await self.body(bytes_max)).decode()
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"the body is not UTF-8: {error.reason}", field="body") from None
        return await self.plane.parsed(read_yaml(text))

    def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the body part by part, of any size."""
        return parts_of(self._receive)

    @property
    def entries_max(self) -> int:
        """How many entries a write may have."""
        return self.edge.settings.max_entries_per_write

    def _media_type(self, kinds: Sequence[str]) -> str:
        given = encoding = None
        for name, value in self.scope["headers"]:
            if name == b"content-type" and given is None:
                given = str(value, "latin-1")
            elif name == b"content-encoding" and encoding is None:
                encoding = str(value, "latin-1")
        if encoding is not None and encoding.lower() != "identity":
            raise UnsupportedMediaType(
                f"Content-Encoding {encoding[:80]!r} is not taken; send the body as it is", field="Content-Encoding"
            )
        given = given or ""
        if given in kinds:
            return given
        kind = _kind(given)
        if (found := _NAMES.get(kind, kind)) not in kinds:
            known = [*kinds, *(name for name, kind in _NAMES.items() if kind in kinds)]
            raise _not_taken(given, f"send {' or '.join(known)}")
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
