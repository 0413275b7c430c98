"""Authentication on the HTTP port: an ASGI layer ahead of an app, before any body is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sash.access.access import Access
from sash.access.caller import CALLER, PEER
from sash_engine.errors import SashError

__all__ = ["HttpAccess", "Refuse"]

Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Refuse = Callable[[Scope, Receive, Send, SashError], Awaitable[None]]


class HttpAccess:
    """Lets requests through to an app that have a valid token.

    Args:
        app: an ASGI app.
        access: who may come in.
        refuse: answers a refused request in the form of the app.
        is_open: whether a path needs no token.
        reads_all: whether a path shows something of every window, so that the caller must see them all.
    """

    def __init__(
        self,
        app: App,
        access: Access,
        refuse: Refuse,
        is_open: Callable[[str], bool] = lambda _: False,
        reads_all: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._app = app
        self._access = access
        self._refuse = refuse
        self._is_open = is_open
        self._reads_all = reads_all

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        PEER.set(lambda: _address(scope))
        path = scope["path"]
        if self._access.is_on and not self._is_open(path):
            try:
                values = [value for name, value in scope["headers"] if name == b"authorization"]
                CALLER.set(await self._access.caller_of(values))
                if self._reads_all(path):
                    self._access.require_every_window(path)
            except SashError as error:
                self._access.audit_entry(path, error)
                await self._refuse(scope, receive, send, error)
                return
        await self._app(scope, receive, send)


def _address(scope: Scope) -> str:
    client = scope.get("client")
    if client is None:
        return "-"
    host, port = client[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
