"""Serves the HTTP port with uvicorn on a running event loop: the REST app, and the apps ahead of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from sash.limits.turns import Turns
from sash.rest.connections import Connections
from sash.rest.guards import Guard
from sash.rest.quick import Lane, Quick
from sash.rest.traced import traced
from sash.runtime.metrics import Metrics
from sash.settings import Settings
from sash_engine.errors import InvalidArgument

__all__ = ["RestServer"]


class RestServer:
    """Serves an app over HTTP.

    Args:
        app: what to serve.
        closing: is set when the server closes, which ends all watches.
        settings: host and port, and the hosts and origins that may call.
        metrics: counts the requests that are refused ahead of the app.
        ahead: apps that get the requests under a path prefix, without passing through `app`.
        tls: the context for TLS; without it where None.
        shared: other processes of this service listen on the port, too.
        turns: who goes first when the service is busy.
        lanes: the edges whose small requests are answered while they are read.
    """

    def __init__(
        self,
        app: ASGIApp,
        closing: asyncio.Event,
        settings: Settings,
        metrics: Metrics,
        ahead: Mapping[str, ASGIApp] | None = None,
        tls: ssl.SSLContext | None = None,
        shared: bool = False,
        turns: Turns | None = None,
        lanes: Sequence[Lane] = (),
    ) -> None:
        self._shared = shared
        self._closing = closing
        self._settings = settings
        self.connections = Connections(
            settings.max_connections, settings.max_connections_per_address, settings.body_timeout_s, metrics, tls
        )
        guard = Guard(_by_prefix(ahead or {}, app), settings, metrics)
        if turns is not None and lanes:
            self.connections.quick = Quick(guard, turns, lanes)
        config = uvicorn.Config(
            traced(guard),
            http=cast("type[asyncio.Protocol]", self.connections.protocol),
            timeout_keep_alive=settings.idle_timeout_s,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
        )
        self._config = config
        self._server = _Server(config, self.connections)
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
            self._config.timeout_graceful_shutdown = max(1, round(grace_s))
            self._server.should_exit = True
            self.connections.end_handshakes()
            await self._task


def _by_prefix(ahead: Mapping[str, ASGIApp], rest: ASGIApp) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for prefix, before in ahead.items():
            if scope["path"].startswith(prefix):
                await before(scope, receive, send)
                return
        await rest(scope, receive, send)

    return app


class _Server(uvicorn.Server):
    """uvicorn, but signals are the caller's, `up` is set when it accepts connections, and slow clients are ended."""

    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        super().__init__(config)
        self.up = asyncio.Event()
        self._connections = connections

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # uvicorn ticks every 100 ms
            self._connections.sweep(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
