"""Listens on the HTTP port, and ends connections in good order."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from email.utils import formatdate
from typing import Any, cast

from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from sash.limits.connections import Connections, with_room
from sash.limits.memory import MemoryBudget
from sash.limits.turns import Turns
from sash.rest.connection import Connection, Port
from sash.rest.entrance import Entrance
from sash.rest.handshake import Handshake
from sash.rest.traced import traced
from sash.runtime.metrics import Metrics
from sash.settings import Settings
from sash_engine.errors import InvalidArgument

_LOOK_S = 0.05
"""Between two looks for what is still in progress when the server ends."""


class RestServer:
    """Serves the edges over HTTP.

    Args:
        entrance: passes requests on to them.
        closing: is set when the server closes, which ends all watches.
        turns: of all that the loop does.
        settings: host and port, and limits of connections.
        metrics: counts the requests that are refused ahead of the edges.
        memory: connections may take a part of it.
        tls: the context for TLS; without it where None.
        shared: other processes of this service listen on the port, too.
    """

    def __init__(
        self,
        entrance: Entrance,
        closing: asyncio.Event,
        turns: Turns,
        settings: Settings,
        metrics: Metrics,
        memory: MemoryBudget,
        tls: ssl.SSLContext | None = None,
        shared: bool = False,
    ) -> None:
        self._shared = shared
        self._closing = closing
        self._settings = settings
        self._tls = tls
        room = with_room(memory.limit_bytes, tls is not None)
        places = Connections(settings.max_connections, settings.max_connections_per_address, room)
        app = traced(entrance)
        # Of proxies that may say where a request comes from: by default, of those on this machine.
        trusted = os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1")
        forwarded = cast("ASGIApp", ProxyHeadersMiddleware(cast("Any", app), trusted))
        timeout_s, idle_s = settings.body_timeout_s, settings.idle_timeout_s
        self.connections = Port(app, forwarded, entrance.at_once, places, turns, timeout_s, idle_s, metrics)
        self._server: asyncio.Server | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self.port = 0
        """The port it listens on, once started."""

    async def start(self) -> None:
        """Listen.

        Raises:
            InvalidArgument: the address cannot be listened on.
        """
        host, port = self._settings.host, self._settings.rest_port
        try:
            listening = socket.create_server(
                (host, port),
                family=socket.AF_INET6 if ":" in host else socket.AF_INET,
                backlog=1024,
                reuse_port=self._shared,
            )
        except OSError as error:
            raise InvalidArgument(
                f"cannot listen on {host}, port {port} for REST: {error.strerror}", field="rest_port"
            ) from None
        self.port = listening.getsockname()[1]
        self._tick()  # the first answer has a date, too
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accepted, sock=listening, backlog=1024)

    async def stop(self, grace_s: float) -> None:
        """Take no new requests, end all watches, let the rest finish for `grace_s` seconds, close."""
        self._closing.set()
        if self._server is None or self._ticking is None:
            return
        port = self.connections
        self._server.close()
        port.places.end_handshakes()
        for connection in list(port.open):
            connection.shutdown()
        try:
            async with asyncio.timeout(max(1, grace_s)):
                while port.open or port.tasks:
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            for task in port.tasks:
                task.cancel()
        self._ticking.cancel()

    def _tick(self) -> None:
        """Look for slow clients, and at the clock; once a second."""
        loop = asyncio.get_running_loop()
        self.connections.date = b"date: %b\r\n" % formatdate(time.time(), usegmt=True).encode()
        self.connections.sweep(loop.time())
        self._ticking = loop.call_later(1.0, self._tick)

    def _accepted(self) -> asyncio.Protocol:
        return Connection(self.connections) if self._tls is None else Handshake(self.connections, self._tls)
