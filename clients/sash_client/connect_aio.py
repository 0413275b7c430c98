"""Calls over Connect for asyncio: a connection for each call in progress, kept for the next one."""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Any, cast

from sash_client.connect_messages import CONNECTIONS_MAX, Response, answer_of, broken, head_of, late, not_connected
from sash_client.errors import SashClientError, Unavailable
from sash_client.targets import Endpoint

__all__ = ["AsyncCalls"]


class AsyncCalls:
    """Makes calls; tasks of one event loop may share it.

    Args:
        endpoint: where the service is.
        context: for TLS; None: without it.
        name: that the service's certificate has; None: the host.
    """

    def __init__(self, endpoint: Endpoint, context: ssl.SSLContext | None, name: str | None) -> None:
        self._endpoint = endpoint
        self._context = context
        self._name = name or endpoint.host
        self._idle: list[_Wire] = []
        self._all: set[_Wire] = set()
        self._places = asyncio.Semaphore(CONNECTIONS_MAX)
        self._is_closed = False

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

    async def _wire(self) -> _Wire:
        """A connection for one call."""
        while self._idle:
            wire = self._idle.pop()
            if wire.may_be_kept:
                return wire
            self._drop(wire)
        name = self._name if self._context is not None else None
        try:
            _, made = await asyncio.get_running_loop().create_connection(
                _Wire, self._endpoint.host, self._endpoint.port, ssl=self._context, server_hostname=name
            )
        except (OSError, UnicodeError) as error:
            raise not_connected(self._endpoint, error) from None
        self._all.add(made)
        if self._is_closed:
            self._drop(made)
            raise Unavailable("the client is closed")
        return made

    def _keep(self, wire: _Wire) -> None:
        """Keep a connection for the next call, if the last one is complete."""
        if wire.may_be_kept and not self._is_closed:
            self._idle.append(wire)
        else:
            self._drop(wire)

    def _drop(self, wire: _Wire) -> None:
        self._all.discard(wire)
        wire.close()


class _Wire(asyncio.Protocol):
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
