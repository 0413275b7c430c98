"""Listens on the HTTP port, and ends connections in good order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import Any, cast

import uvicorn
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
        self._server = _Server(self.connections, self._accepted)
        self._task: asyncio.Task[None] | None = None
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
        self._task = asyncio.create_task(self._server.serve(sockets=[listening]))
        up = asyncio.create_task(self._server.up.wait())
        await asyncio.wait([self._task, up], return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if self._task.done():
            await self._task  # raises the error

    async def stop(self, grace_s: float) -> None:
        """Take no new requests, end all watches, let the rest finish for `grace_s` seconds, close."""
        self._closing.set()
        if self._task is not None:
            # uvicorn counts in whole seconds, and takes 0 for no limit.
            self._server.config.timeout_graceful_shutdown = max(1, round(grace_s))
            self._server.should_exit = True
            self.connections.places.end_handshakes()
            await self._task

    def _accepted(self, **_: Any) -> asyncio.Protocol:
        return Connection(self.connections) if self._tls is None else Handshake(self.connections, self._tls)


class _Server(uvicorn.Server):
    """uvicorn, over our protocol; signals are the caller's, and `up` is set when it accepts connections.

    Args:
        port: has what uvicorn waits for when it shuts down: connections and tasks. It is looked at once a second.
        accepted: makes the protocol of a connection.
    """

    def __init__(self, port: Port, accepted: Callable[..., asyncio.Protocol]) -> None:
        config = uvicorn.Config(
            port.app,
            http=cast("type[asyncio.Protocol]", accepted),
            backlog=1024,
            ws="none",
            lifespan="off",
            log_config=None,
            date_header=False,
            server_header=False,
        )
        super().__init__(config)
        self.up = asyncio.Event()
        self._port = port
        port.open, port.tasks = cast("set[Connection]", self.server_state.connections), self.server_state.tasks

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # uvicorn ticks every 100 ms
            self._port.date = b"date: %b\r\n" % formatdate(time.time(), usegmt=True).encode()
            self._port.sweep(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.on_tick(0)  # the first answer has a date, too
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
