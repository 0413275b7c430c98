"""Listens on the HTTP port, and ends connections in good order."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import time
from email.utils import formatdate
from typing import Any, cast

from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from sash.limits.connections import Connections
from sash.rest.connection import Connection, Port
from sash.rest.entrance import Entrance
from sash.rest.handshake import Handshake
from sash.rest.traced import traced
from sash.runtime.metrics import Metrics
from sash.settings import Settings
from sash_engine.errors import InvalidArgument

__all__ = ["RestServer"]

_GRACE_S_MIN = 1.0
_WAIT_S = 0.05
_log = logging.getLogger("sash")


class RestServer:
    """Serves the edges over HTTP.

    Args:
        entrance: passes requests on to them.
        closing: is set when the server closes, which ends all watches.
        settings: host and port, and limits of connections.
        metrics: counts the requests that are refused ahead of the edges.
        tls: the context for TLS; without it where None.
        shared: other processes of this service listen on the port, too.
    """

    def __init__(
        self,
        entrance: Entrance,
        closing: asyncio.Event,
        settings: Settings,
        metrics: Metrics,
        tls: ssl.SSLContext | None = None,
        shared: bool = False,
    ) -> None:
        self._shared = shared
        self._closing = closing
        self._settings = settings
        self._tls = tls
        places = Connections(settings.max_connections, settings.max_connections_per_address)
        app = traced(entrance)
        # Of proxies that may say where a request comes from: by default, of those on this machine.
        trusted = os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1")
        forwarded = cast("ASGIApp", ProxyHeadersMiddleware(cast("Any", app), trusted))
        timeout_s, idle_s = settings.body_timeout_s, settings.idle_timeout_s
        self.connections = Port(app, forwarded, entrance.at_once, places, timeout_s, idle_s, metrics)
        self._server: asyncio.Server | None = None
        self._sweeping: asyncio.Task[None] | None = None
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
        self._sweep()
        self._sweeping = asyncio.create_task(self._every_second())
        self._server = await asyncio.get_running_loop().create_server(self._accepted, sock=listening, backlog=1024)

    async def stop(self, grace_s: float) -> None:
        """Take no new requests, end all watches, let the rest finish for `grace_s` seconds, close."""
        self._closing.set()
        if self._server is None or self._sweeping is None:
            return
        port, loop = self.connections, asyncio.get_running_loop()
        self._server.close()
        port.places.end_handshakes()
        for connection in list(port.open):
            connection.shutdown()
        until_s = loop.time() + max(grace_s, _GRACE_S_MIN)
        while (port.open or port.tasks) and loop.time() < until_s:
            await asyncio.sleep(_WAIT_S)
        self._sweeping.cancel()
        if port.tasks:
            _log.error("%d requests are cut off: they took longer than the service gives them", len(port.tasks))
        for task in list(port.tasks):
            task.cancel()

    def _accepted(self) -> asyncio.Protocol:
        return Connection(self.connections) if self._tls is None else Handshake(self.connections, self._tls)

    def _sweep(self) -> None:
        self.connections.date = b"date: %b\r\n" % formatdate(time.time(), usegmt=True).encode()
        self.connections.sweep(asyncio.get_running_loop().time())

    async def _every_second(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._sweep()
