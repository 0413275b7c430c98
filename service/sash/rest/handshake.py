"""A connection from when it is accepted until its TLS handshake is complete.

asyncio says of a connection only when the handshake is complete, and waits a minute for it. A client that says nothing
would take a file for so long, and be counted nowhere.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.utils import get_remote_addr

from sash.calls import resumed
from sash.limits.connections import SPARE_S, Place
from sash.rest.connection import Connection, Port

__all__ = ["Handshake"]

HANDSHAKE_S = 10.0
"""For so long a handshake may take. It takes two ways to the client and back."""


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
        loop = asyncio.get_running_loop()
        securing: Any = loop.start_tls(
            transport,
            self._connection,
            self._context,
            server_side=True,
            ssl_handshake_timeout=SPARE_S if place.limit is not None else HANDSHAKE_S,
        )
        # The first step now: behind this, the transport begins to read, and what it reads is of the handshake.
        waits_for = securing.send(None)
        self._task = loop.create_task(self._complete(resumed(securing, waits_for)))

    async def _complete(self, securing: Awaitable[asyncio.Transport | None]) -> None:
        try:
            transport = await securing
        except OSError:  # a client that speaks no TLS, or has no certificate, or has gone
            transport = None
        place, self._place = self._place, None
        if place is None:
            return
        self._port.places.shaken(place)
        if transport is None or transport.is_closing():
            self._port.places.leave(place)
        else:
            self._connection.begin(transport, place)

    def _end(self) -> None:
        """Close the connection."""
        place, self._place = self._place, None
        assert place is not None
        self._port.places.leave(place)
        self._transport.abort()
