"""Serves the methods over HTTP/1.1 as an ASGI app.

    POST /sash.v1.Windows/Query   application/proto          one message in, one out; reads also with GET
                                  application/json           the same in JSON
    POST /sash.v1.Windows/Watch   application/connect+proto  envelopes out; the last one has the status
                                  application/connect+json

Unary calls use no web framework: on one core, the request, response and routing of a framework cost twice as much as
the call itself.

Source: connectrpc.com/docs/protocol. Requests may be compressed with gzip; answers are not compressed. `InsertStream`
and `AnswersAtStream` exist in gRPC only, because a stream in both directions needs HTTP/2.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, TypeVar

import orjson

from sash.calls import joined, resumed, shielded, unbroken
from sash.connect.codec import CODECS, Codec
from sash.connect.compression import SMALL_BYTES, unpacked, unpacked_size
from sash.connect.envelopes import END, opened, sealed
from sash.connect.errors import CODES, DeadlineExceeded, document_of
from sash.connect.heads import is_packed, media_type, of_query, timeout_of
from sash.context import HEADER, request_id
from sash.limits.memory import MemoryBudget, mine
from sash.rest.bodies import Gone, parsed_bytes, parts_of, whole_body
from sash.rest.connection import Whole
from sash.rest.entrance import BODY
from sash.rpc.methods import SERVICE, Method, methods
from sash.rpc.operations import Operations
from sash.rpc.parsing import LONG_BYTES
from sash.rpc.parts import Parts
from sash.runtime.metrics import Metrics
from sash_engine.errors import TooLarge, Unauthenticated, Unavailable, Unsupported
from sash_engine.steps import Steps, spans_of
from sash_wire import traces

PREFIX = f"/{SERVICE}/"

R = TypeVar("R")

Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Headers = Mapping[bytes, bytes]

_UNARY = {f"application/{name}".encode(): codec for name, codec in CODECS.items()}
_STREAM = {f"application/connect+{name}".encode(): codec for name, codec in CODECS.items()}
_LONG_JSON_BYTES = 1 << 14
"""The event loop parses a shorter message in at most 5 ms, even one that is a list of short strings."""


_COUNTED_BYTES = 1 << 20
"""Of JSON, to find out what it takes when it is parsed: 1 ms."""

_COPIES = 2
"""An unpacked message's parts are joined, so it is in memory twice for a moment."""

_PARSED = 4
"""So many times its length a message of protobuf takes once it is parsed; see `sash.rpc.server`."""


class ConnectApp:
    """Serves the methods under `PREFIX`.

    Args:
        operations: run on the event loop that serves the app.
        metrics: counts failed calls.
        body_bytes_max: most bytes of a message, also when it is unpacked.
        memory: where memory for messages is reserved that were compressed.
    """

    def __init__(self, operations: Operations, metrics: Metrics, body_bytes_max: int, memory: MemoryBudget) -> None:
        self._memory = memory
        self._metrics = metrics
        self._bytes_max = body_bytes_max
        self._in_slices = operations.parsed
        self._parser = ThreadPoolExecutor(1, "json")
        self._methods = {PREFIX + name: method for name, method in methods(operations).items()}
        streams = [path for path, each in self._methods.items() if each.streams_requests or each.streams_responses]
        self._unary_paths = self._methods.keys() - streams

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Return what answers one request; `scope` is one of HTTP."""
        method = self._methods.get(scope["path"])
        if method is None:
            error = Unsupported(f"{SERVICE} has no method {scope['path'][len(PREFIX) :][:80]!r}")
            return self._refuse(send, error, "", HTTPStatus.NOT_FOUND)
        if traces.tracer is not None:
            traces.rename(scope["path"][1:])
        if method.streams_requests and method.streams_responses:
            return _respond(send, HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, [])
        return (self._unary if scope["path"] in self._unary_paths else self._stream)(method, scope, receive, send)

    # ---------------------------------------------------------------- one message in, one out

    def at_once(self, scope: Scope) -> bool:
        """Whether the answer to a small request may begin without a task: a unary call's may."""
        return scope["path"] in self._unary_paths

    async def _unary(self, method: Method, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        read = scope["method"] == "GET" and method.reads_only
        if scope["method"] != "POST" and not read:
            allowed = b"GET, POST" if method.reads_only else b"POST"
            await _respond(send, HTTPStatus.METHOD_NOT_ALLOWED, [(b"allow", allowed)])
            return
        kind = b"" if read else media_type(headers)
        if not read and kind not in _UNARY:
            await _unknown_type(send, _UNARY)
            return
        try:
            timeout_s = timeout_of(headers)
            if read:
                encoding, data, packed = of_query(scope["query_string"])
                kind = b"application/" + encoding
            else:
                packed = is_packed(headers, b"content-encoding")
                data = scope.get(BODY)
                if data is None or len(data) > self._bytes_max:
                    data = await self._body(headers, receive)
            codec = _UNARY[kind]
            work = method.call(await self._read(codec, method, data, packed))
            response = await _within(timeout_s, work if method.reads_only else unbroken(work))
            if isinstance(response, Parts):
                body = await _within(timeout_s, response.written(codec))
            else:
                body = codec.write(response)
        except Gone:
            return
        except Exception as error:
            await self._refuse(send, error, method.name)
            return
        await Whole(200, kind, body)(scope, receive, send)

    async def _read(self, codec: Codec, method: Method, data: bytes, packed: bool) -> Any:
        """Parse a message, which may be compressed. One thread reads long JSON, as protobuf does that in Python."""
        if packed and data:
            data = await self._unpacked(codec, data)
        is_json = codec is CODECS["json"]
        if len(data) <= (_LONG_JSON_BYTES if is_json else LONG_BYTES):
            return codec.read(method.request, data)
        made = await self._in_slices(codec.steps(method.request, data))
        return await asyncio.get_running_loop().run_in_executor(self._parser, made) if is_json else made()

    async def _unpacked(self, codec: Codec, data: bytes) -> bytes:
        size = unpacked_size(data)
        if size > self._bytes_max:
            raise self._too_large()
        reserved = mine()
        if size > SMALL_BYTES and reserved is not None:
            reserved.take(_COPIES * size, size)
        message = await joined(await self._in_slices(unpacked(data, size)))
        if size > SMALL_BYTES and reserved is not None:
            reserved.arrived(_COPIES * size)
            reserved.take(await self._in_slices(_parsed_bytes(codec, message)))
        return message

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        """Read the whole body. A body with a `Content-Length` that is too large is not read."""
        if int(headers.get(b"content-length", 0)) > self._bytes_max:
            raise self._too_large()
        return await whole_body(receive, self._bytes_max, self._too_large())

    def _too_large(self) -> TooLarge:
        return TooLarge("the body is too large", field="body", limit=f"{self._bytes_max:,} bytes")

    async def refuse(self, scope: Scope, _: Receive, send: Send, error: Exception) -> None:
        """Answer a request with an error without reading it."""
        method, kind = self._methods.get(scope["path"]), media_type(dict(scope["headers"]))
        is_stream = method is not None and method.streams_responses != method.streams_requests
        if is_stream and kind in _STREAM and isinstance(error, Unavailable):
            await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": [(b"content-type", kind)]})
            await self._end(send, error, scope["path"])
        else:
            await self._refuse(send, error, scope["path"])

    async def _refuse(self, send: Send, error: Exception, method: str, status: int | None = None) -> None:
        """Answer with an error, and the HTTP status of its code, unless there is another one."""
        code, document = document_of(error, method)
        self._metrics.count_rejected("connect", code.name)
        headers = [(b"content-type", b"application/json"), (HEADER.encode(), request_id().encode())]
        if isinstance(error, Unauthenticated):
            headers.append((b"www-authenticate", b"Bearer"))
        retry_after_s = getattr(error, "retry_after_s", None)
        if retry_after_s is not None:
            headers.append((b"retry-after", str(-int(-retry_after_s // 1)).encode()))
        await _respond(send, status or CODES[code], headers, orjson.dumps(document))

    # ---------------------------------------------------------------- streams

    async def _stream(self, method: Method, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if scope["method"] != "POST":
            await _respond(send, HTTPStatus.METHOD_NOT_ALLOWED, [(b"allow", b"POST")])
            return
        kind = media_type(headers)
        if kind not in _STREAM:
            await _unknown_type(send, _STREAM)
            return
        codec = _STREAM[kind]
        await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": [(b"content-type", kind)]})
        failed = None
        try:
            timeout_s = timeout_of(headers)
            packed = is_packed(headers, b"connect-content-encoding")
            messages = self._messages(method, codec, receive, packed)
            if method.streams_requests:
                response = await _within(timeout_s, shielded(method.call(messages)))
                await _send_part(send, sealed(codec.write(response)))
            else:
                await _within(timeout_s, self._answers(method, codec, messages, receive, send))
        except Gone:
            return
        except Exception as error:
            failed = error
        await self._end(send, failed, method.name)

    async def _end(self, send: Send, error: Exception | None, method: str) -> None:
        """End a stream of answers."""
        end: dict[str, Any] = {}
        if error is not None:
            code, end["error"] = document_of(error, method)
            self._metrics.count_rejected("connect", code.name)
        await _send_part(send, sealed(orjson.dumps(end), END), more=False)

    async def _messages(self, method: Method, codec: Codec, receive: Receive, packed: bool) -> AsyncIterator[Any]:
        reserved = mine() or self._memory.reservation("")
        async for data, is_compressed in opened(parts_of(receive), self._bytes_max, packed):
            with reserved.apart():
                yield await self._read(codec, method, data, is_compressed)

    async def _answers(
        self, method: Method, codec: Codec, messages: AsyncIterator[Any], receive: Receive, send: Send
    ) -> None:
        """Answer one message with many, until there are no more or the caller disconnects (which ends a watch)."""
        request = None
        async for message in messages:
            if request is not None:
                raise Unsupported(f"{method.name} takes one message, not several", field="body")
            request = message
        if request is None:
            raise Unsupported(f"{method.name} takes one message, not none", field="body")

        async def answer() -> None:
            async with contextlib.aclosing(method.call(request)) as responses:
                async for response in responses:
                    await _send_part(send, sealed(codec.write(response)))

        # The request is complete, so the only event that can follow is that the caller disconnects.
        answering, gone = asyncio.ensure_future(answer()), asyncio.ensure_future(receive())
        try:
            await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise Gone
            answering.result()
        finally:
            gone.cancel()
            answering.cancel()
            await asyncio.wait((answering,))


def _parsed_bytes(codec: Codec, message: bytes) -> Steps[int]:
    """How many bytes of memory a message takes when it is parsed, at most."""
    if codec is not CODECS["json"]:
        return _PARSED * len(message)
    found = 0
    for a, b in spans_of(len(message), _COUNTED_BYTES):
        found += parsed_bytes(message[a:b])
        yield
    return found


# -------------------------------------------------------------------- what is answered


def _within(timeout_s: float | None, work: Coroutine[Any, Any, R]) -> Coroutine[Any, Any, R]:
    """Return work that ends when its caller waits no more."""
    return work if timeout_s is None else _limited(timeout_s, work)


async def _limited(timeout_s: float, work: Coroutine[Any, Any, R]) -> R:
    if asyncio.current_task() is None:  # a quick call, which has a task from its first wait on
        try:
            waits_for = work.send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        work = resumed(work, waits_for)
        await asyncio.sleep(0)
    try:
        async with asyncio.timeout(timeout_s) as limit:
            return await work
    except TimeoutError:
        if limit.expired():
            raise DeadlineExceeded from None
        raise


async def _respond(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> None:
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _unknown_type(send: Send, known: Mapping[bytes, Codec]) -> None:
    await _respond(send, HTTPStatus.UNSUPPORTED_MEDIA_TYPE, [(b"accept-post", b", ".join(known))])


async def _send_part(send: Send, part: bytes, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": more})
