"""Calls of Connect: requests and responses of HTTP/1.1, and connections that block or are awaited.

    POST /sash.v1.Windows/Insert    application/proto ──▶ 200 application/proto: the answer
                                                          else application/json: code, message, details of an error

Each call in progress has a connection, which is kept for the next one.

Source: connectrpc.com/docs/protocol, unary calls.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import select
import socket
import ssl
import threading
import time
from base64 import b64decode
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar, cast

from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.message import DecodeError

from sash_client.calls.targets import Endpoint
from sash_client.data.libraries import imported
from sash_client.errors import DeadlineExceeded, SashClientError, Unavailable, described, unreachable
from sash_proto.v1 import windows_pb2 as pb

CONNECTIONS_MAX = 64
"""Connections of one client. Further calls wait for one of these to end."""
_SERVICE = pb.DESCRIPTOR.services_by_name["Windows"]
RESPONSES: dict[str, Any] = {
    method.name: getattr(pb, method.output_type.name)
    for method in _SERVICE.methods
    if not method.client_streaming and not method.server_streaming
}
"""The message that answers each method with one request and one answer."""

_PREFIX = "type.googleapis.com/"
# What a status means that does not come from Connect, but from a proxy, or from HTTP itself; as the protocol has it.
_BY_STATUS = {
    400: "INTERNAL",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    413: "RESOURCE_EXHAUSTED",
    429: "UNAVAILABLE",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "UNAVAILABLE",
}


def head_of(endpoint: Endpoint, method: str, size: int, timeout_s: float, metadata: Sequence[tuple[str, str]]) -> bytes:
    """Return the head of a request.

    Args:
        endpoint: where it goes.
        method: of `sash.v1.Windows`.
        size: bytes of the message behind it.
        timeout_s: after which the service need not go on.
        metadata: further headers: plain ASCII, checked where they are made.
    """
    further = "".join(f"{name}: {value}\r\n" for name, value in metadata)
    return (
        f"POST /sash.v1.Windows/{method} HTTP/1.1\r\nhost: {endpoint.authority}\r\n"
        "content-type: application/proto\r\nconnect-protocol-version: 1\r\n"
        f"connect-timeout-ms: {min(max(math.ceil(timeout_s * 1000), 1), 9_999_999_999)}\r\n{further}"
        f"content-length: {size}\r\n\r\n"
    ).encode("ascii")


class Response:
    """What a connection receives: one response after the other, each until it is complete."""

    def __init__(self) -> None:
        self._parser = imported("httptools", "a client over Connect").HttpResponseParser(self)
        self.begin()

    def begin(self) -> None:
        """Wait for the next response."""
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.parts: list[bytes] = []
        self.is_complete = False
        self.may_be_kept = False

    def feed(self, data: bytes) -> None:
        """Take what was received. After bytes behind the response, the connection may not be kept.

        Raises:
            Unavailable: it is no HTTP; the connection cannot go on.
        """
        try:
            self._parser.feed_data(data)
        except Exception as error:  # httptools has no public base for its errors
            if not self.is_complete:
                raise Unavailable(
                    "the service does not speak HTTP at this address, which may be its port of gRPC: give that without "
                    f"http://, or the port of REST (by default 7071). {error}"
                ) from None
            self.may_be_kept = False

    def on_message_begin(self) -> None:
        """A response begins."""
        if self.is_complete:
            raise ValueError("a response that nobody asked for")  # `feed` gets it from httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by httptools, as the other methods of this kind."""
        if not self.status:  # else it is a trailer, which nobody reads
            self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self.status = self._parser.get_status_code()

    def on_body(self, part: bytes) -> None:
        """A part of the body."""
        self.parts.append(part)

    def on_message_complete(self) -> None:
        """The response is complete."""
        if self.status < 200:  # such as 100 Continue: the response follows
            self.begin()
            return
        self.may_be_kept = self._parser.should_keep_alive()
        self.is_complete = True


def answer_of(method: str, response: Response) -> Any:
    """Return the message of a response.

    Raises:
        SashClientError: that the service, or a proxy before it, answers with.
    """
    body = b"".join(response.parts) if len(response.parts) != 1 else response.parts[0]
    kind = response.headers.get(b"content-type", b"").partition(b";")[0].strip()
    if response.status != 200:
        raise _error_of(response, kind, body)
    try:
        if kind == b"application/proto":
            return RESPONSES[method].FromString(body)
    except DecodeError:
        pass
    raise SashClientError(f"what answered is no service of sash.v1: {kind.decode('latin-1')[:80]!r}", code="UNKNOWN")


def _error_of(response: Response, kind: bytes, body: bytes) -> SashClientError:
    document: Any = None
    if kind in (b"application/json", b"application/problem+json"):
        try:
            document = json.loads(body)
        except ValueError:
            document = None
    if isinstance(document, dict) and isinstance(document.get("code"), str):
        code = {"canceled": "CANCELLED"}.get(document["code"], document["code"].upper())
        details = document.get("details")
        packed = map(_packed, details) if isinstance(details, list) else ()
        found = described(code, str(document.get("message") or code), packed)
    else:
        found = _of_http(response.status, document if isinstance(document, dict) else {})
    if found.retry_after_s is None:
        wait = response.headers.get(b"retry-after", b"")
        found.retry_after_s = float(wait) if wait.isdigit() else None
    return found


def _of_http(status: int, problem: dict[str, Any]) -> SashClientError:
    """The error for a status of HTTP, with a document of RFC 9457 where there is one."""
    code = _BY_STATUS.get(status, "UNKNOWN")
    found = described(code, str(problem.get("detail") or f"the answer has the HTTP status {status}"), ())
    found.reason, found.field = problem.get("reason"), problem.get("field")
    found.limit, found.request_id = problem.get("limit"), problem.get("request_id")
    return found


def _packed(detail: Any) -> Packed:
    try:
        value = str(detail["value"])
        return Packed(type_url=_PREFIX + str(detail["type"]), value=b64decode(value + "=" * (-len(value) % 4)))
    except (KeyError, TypeError, ValueError):
        return Packed()  # a proxy's garbage must not hide the error itself


def late(timeout_s: float) -> DeadlineExceeded:
    """The error of a call that took too long."""
    return DeadlineExceeded(f"no answer within {timeout_s:g} s")


def not_connected(endpoint: Endpoint, error: OSError | UnicodeError) -> Unavailable:
    """The error of a call that has no connection. The name may be one that DNS cannot have (UnicodeError)."""
    return unreachable(f"{endpoint}: {getattr(error, 'strerror', None) or error}")


def broken(endpoint: Endpoint, error: OSError, is_closed: bool) -> Unavailable:
    """The error of a call whose connection ended before its answer."""
    if is_closed:
        return Unavailable("the client is closed")
    return Unavailable(f"the connection to {endpoint} broke: {error.strerror or error}")


_JOINED_BYTES = 65_536
_RECEIVED_BYTES = 262_144


class _Closable(Protocol):
    def close(self) -> None: ...


W = TypeVar("W", bound=_Closable)


class _Calls(Generic[W]):
    """The connections of a client: those in use, and those that are kept for the next call.

    Args:
        endpoint: where the service is.
        context: for TLS; None: without it.
        name: that the service's certificate has; None: the host.
    """

    def __init__(self, endpoint: Endpoint, context: ssl.SSLContext | None, name: str | None) -> None:
        self._endpoint = endpoint
        self._context = context
        self._name = name or endpoint.host
        self._idle: list[W] = []
        self._all: set[W] = set()
        self._is_closed = False

    def _made(self, wire: W) -> W:
        """Take a new connection into account; raise an error if the client was closed meanwhile."""
        self._all.add(wire)
        if self._is_closed:
            self._drop(wire)
            raise Unavailable("the client is closed")
        return wire

    def _drop(self, wire: W) -> None:
        self._all.discard(wire)
        wire.close()


class BlockingCalls(_Calls["_BlockingWire"]):
    """Makes calls; threads may share it."""

    def __init__(self, endpoint: Endpoint, context: ssl.SSLContext | None, name: str | None) -> None:
        super().__init__(endpoint, context, name)
        self._places = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._process = os.getpid()

    def call(self, method: str, request: Any, timeout_s: float, metadata: tuple[tuple[str, str], ...]) -> Any:
        """Make a call; return its answer.

        Raises:
            SashClientError: the call failed.
        """
        deadline_s = time.monotonic() + timeout_s
        if not self._places.acquire(timeout=timeout_s):
            raise late(timeout_s)
        try:
            wire = self._wire(deadline_s, timeout_s)
            try:
                body = request.SerializeToString()
                head = head_of(self._endpoint, method, len(body), deadline_s - time.monotonic(), metadata)
                return answer_of(method, wire.exchange(head, body, deadline_s))
            except TimeoutError:
                raise late(timeout_s) from None
            except OSError as error:
                raise broken(self._endpoint, error, self._is_closed) from None
            finally:
                self._keep(wire)
        finally:
            self._places.release()

    def connect(self, timeout_s: float) -> None:
        """Make a connection, for the next call.

        Raises:
            Unavailable: there is no service.
        """
        self._keep(self._wire(time.monotonic() + timeout_s, timeout_s))

    def close(self) -> None:
        """End all connections; calls in progress fail. In a forked process, the other one keeps its connections."""
        self._is_closed = True
        if os.getpid() == self._process:
            for wire in list(self._all):
                wire.interrupt()
        while self._idle:
            with suppress(IndexError):  # another thread has it
                self._drop(self._idle.pop())

    def _wire(self, deadline_s: float, timeout_s: float) -> _BlockingWire:
        """A connection for one call, which may take `timeout_s` until the deadline."""
        while self._idle:
            with suppress(IndexError):  # another thread has it
                wire = self._idle.pop()
                if not wire.is_stale:
                    return wire
                self._drop(wire)
        try:
            wire = _BlockingWire(self._opened(deadline_s))
        except TimeoutError:
            raise late(timeout_s) from None
        except (OSError, UnicodeError) as error:
            raise not_connected(self._endpoint, error) from None
        return self._made(wire)

    def _opened(self, deadline_s: float) -> socket.socket:
        """Connect to the first address that answers; all of them together have until the deadline."""
        refused = OSError("the name has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(
            self._endpoint.host, self._endpoint.port, type=socket.SOCK_STREAM
        ):
            plain = socket.socket(family, kind, protocol)
            try:
                _wait_until(plain, deadline_s)
                plain.connect(address)
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._context is None:
                    return plain
                _wait_until(plain, deadline_s)
                return self._context.wrap_socket(plain, server_hostname=self._name)
            except BaseException as error:
                plain.close()
                if isinstance(error, TimeoutError) or not isinstance(error, OSError):
                    raise
                refused = error
        raise refused

    def _keep(self, wire: _BlockingWire) -> None:
        """Keep a connection for the next call, if the last one is complete."""
        if not wire.may_be_kept:
            self._drop(wire)
            return
        self._idle.append(wire)
        if self._is_closed:
            self.close()


class _BlockingWire:
    """One connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._response = Response()
        self.may_be_kept = True
        """Whether it can have another call."""

    @property
    def is_stale(self) -> bool:
        """Whether the service has closed the connection, or has said something that nobody asked for."""
        return bool(self._poll.poll(0))

    def exchange(self, head: bytes, body: bytes, deadline_s: float) -> Response:
        """Send a request, and receive its response; raises OSError, and TimeoutError after the deadline."""
        self.may_be_kept = False
        response = self._response
        response.begin()
        # A service that refuses a request may not read all of it: its answer says why.
        with suppress(BrokenPipeError, ConnectionResetError):
            for part in (head + body,) if len(body) <= _JOINED_BYTES else (head, body):
                self._send(part, deadline_s)
        while True:
            _wait_until(self._socket, deadline_s)
            data = self._socket.recv(_RECEIVED_BYTES)
            if not data:
                raise ConnectionResetError("it was closed before the answer")
            response.feed(data)
            if response.is_complete:
                self.may_be_kept = response.may_be_kept
                return response

    def interrupt(self) -> None:
        """Make a call in progress fail, in whatever thread it is; that thread closes the connection."""
        with suppress(OSError):
            # Not by the method of a socket with TLS: it drops TLS first, and that thread would then send in the clear.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def _send(self, part: bytes, deadline_s: float) -> None:
        # `sendall` with TLS would have the whole time for each record.
        left = memoryview(part)
        while left:
            _wait_until(self._socket, deadline_s)
            left = left[self._socket.send(left) :]


def _wait_until(sock: socket.socket, deadline_s: float) -> None:
    """Let the next operation of a socket take until the deadline; raises TimeoutError after it."""
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    sock.settimeout(left_s)


class AsyncCalls(_Calls["_AwaitedWire"]):
    """Makes calls; tasks of one event loop may share it."""

    def __init__(self, endpoint: Endpoint, context: ssl.SSLContext | None, name: str | None) -> None:
        super().__init__(endpoint, context, name)
        self._places = asyncio.Semaphore(CONNECTIONS_MAX)

    async def call(self, method: str, request: Any, timeout_s: float, metadata: tuple[tuple[str, str], ...]) -> Any:
        """Make a call; return its answer. A task that is cancelled ends its call.

        Raises:
            SashClientError: the call failed.
        """
        deadline_s = time.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s), self._places:
                wire = await self._wire()
                try:
                    body = request.SerializeToString()
                    head = head_of(self._endpoint, method, len(body), deadline_s - time.monotonic(), metadata)
                    return answer_of(method, await wire.exchange(head, body))
                except OSError as error:
                    raise broken(self._endpoint, error, self._is_closed) from None
                finally:
                    self._keep(wire)
        except TimeoutError:
            raise late(timeout_s) from None

    async def connect(self) -> None:
        """Make a connection, for the next call.

        Raises:
            Unavailable: there is no service.
        """
        self._keep(await self._wire())

    async def close(self) -> None:
        """End all connections; calls in progress fail. Waits until the connections have ended."""
        self._is_closed = True
        self._idle.clear()
        for wire in (wires := list(self._all)):
            self._drop(wire)
        await asyncio.gather(*(wire.ended.wait() for wire in wires))

    async def _wire(self) -> _AwaitedWire:
        """A connection for one call."""
        while self._idle:
            wire = self._idle.pop()
            if wire.may_be_kept:
                return wire
            self._drop(wire)
        name = self._name if self._context is not None else None
        try:
            _, made = await asyncio.get_running_loop().create_connection(
                _AwaitedWire, self._endpoint.host, self._endpoint.port, ssl=self._context, server_hostname=name
            )
        except (OSError, UnicodeError) as error:
            raise not_connected(self._endpoint, error) from None
        return self._made(made)

    def _keep(self, wire: _AwaitedWire) -> None:
        """Keep a connection for the next call, if the last one is complete."""
        if wire.may_be_kept and not self._is_closed:
            self._idle.append(wire)
        else:
            self._drop(wire)


class _AwaitedWire(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._response = Response()
        self._transport: asyncio.Transport | None = None
        self._answered: asyncio.Future[Response] | None = None
        self.ended = asyncio.Event()
        self.may_be_kept = True
        """Whether it can have another call."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop, as the other methods of this kind."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Take a part of the response."""
        answered, response = self._answered, self._response
        if answered is None or answered.done():
            self.may_be_kept = False  # nobody asked for it
            return
        try:
            response.feed(data)
        except SashClientError as error:
            answered.set_exception(error)
            return
        if response.is_complete:
            assert self._transport is not None
            self.may_be_kept = response.may_be_kept and not self._transport.get_write_buffer_size()
            answered.set_result(response)

    def eof_received(self) -> None:
        """The service closed the connection."""
        self.may_be_kept = False

    def connection_lost(self, error: Exception | None) -> None:
        """The connection has ended."""
        self.may_be_kept = False
        self.ended.set()
        if self._answered is not None and not self._answered.done():
            gone = error if isinstance(error, OSError) else ConnectionResetError("it was closed before the answer")
            self._answered.set_exception(gone)

    async def exchange(self, head: bytes, body: bytes) -> Response:
        """Send a request, and receive its response; raises OSError."""
        assert self._transport is not None
        self.may_be_kept = False
        self._response.begin()
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.writelines((head, body))
        return await self._answered

    def close(self) -> None:
        """End the connection, and the call that it has."""
        assert self._transport is not None
        self._transport.abort()  # what is not sent yet is not waited for
