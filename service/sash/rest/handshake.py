"""A connection from when it is accepted until its TLS handshake is complete.

    accepted ─▶ place ─▶ first bytes ─▶ turn of its address ─▶ handshake ─▶ Connection

asyncio says of a connection only when the handshake is complete, and waits a minute for it. A client that says nothing
would take a file for so long, and be counted nowhere. And all that come at once would have their handshakes at once:
each holds the loop for as long as several calls do.
"""

from __future__ import annotations

import asyncio
import ssl
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.utils import get_remote_addr

from sash.calls import resumed
from sash.limits.connections import SPARE_S, Place
from sash.rest.connection import Connection, Port

HANDSHAKE_S = 10.0
"""For so long a handshake may take. It takes two ways to the client and back."""

SHAKING_S = 0.0006
"""So long the loop is held by a handshake, with a key of P-256; half of it is cryptography."""


class Handshake(asyncio.Protocol):
    """The handshake of one connection.

    Args:
        port: what the connections share.
        context: for TLS.
    """

    def __init__(self, port: Port, context: ssl.SSLContext) -> None:
        self._port = port
        self._connection = Connection(port)
        self._context = context
        self._place: Place | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        peer = get_remote_addr(transport)
        place = self._port.places.admit(peer[0] if peer else "")
        if place is None:
            self._port.refused(HTTPStatus.SERVICE_UNAVAILABLE)
            transport.abort()
            return
        self._place = place
        self._port.places.shaking(place, self._end)
        self._patience_s = SPARE_S if place.limit is not None else HANDSHAKE_S
        self._silent = asyncio.get_running_loop().call_later(self._patience_s, self._end)

    def data_received(self, data: bytes) -> None:
        assert self._place is not None
        self._transport.pause_reading()
        self._silent.cancel()
        self._task = asyncio.get_running_loop().create_task(self._complete(self._place, data))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._place is not None:
            self._end()

    async def _complete(self, place: Place, hello: bytes) -> None:
        turn = self._port.turns.goes_on(place.address, SHAKING_S)
        if turn is not None:
            await turn
        try:
            transport = await self._secured(hello)
        except OSError:  # a client that speaks no TLS, or has no certificate, or has gone
            transport = None
        self._port.places.shaken(place)
        if transport is None or transport.is_closing():
            self._port.places.leave(place)
        else:
            self._connection.begin(transport, place)

    async def _secured(self, hello: bytes) -> asyncio.Transport | None:
        loop = asyncio.get_running_loop()
        securing: Any = loop.start_tls(
            self._transport,
            self._connection,
            self._context,
            server_side=True,
            ssl_handshake_timeout=self._patience_s,
        )
        waits_for = securing.send(None)

        def read() -> None:
            """Give TLS what was read before."""
            tls: Any = self._transport.get_protocol()
            tls.get_buffer(len(hello))[: len(hello)] = hello
            tls.buffer_updated(len(hello))

        loop.call_soon(read)  # behind what makes TLS ready
        return await resumed(securing, waits_for)

    def _end(self) -> None:
        """Close the connection."""
        place, self._place = self._place, None
        assert place is not None
        self._silent.cancel()
        if self._task is not None:
            self._task.cancel()
        self._port.places.leave(place)
        self._transport.abort()
