"""Authentication on the HTTP port: an ASGI layer ahead of an app, before any body is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from sash.access.access import Access
from sash.access.caller import CALLER, PEER
from sash.access.rights import Right
from sash.access.tls import CERTIFIED
from sash_engine.errors import SashError

__all__ = ["HttpAccess", "Refuse", "http_admit"]

Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
_SCOPE: ContextVar[Scope] = ContextVar("scope")
Refuse = Callable[[Scope, Receive, Send, SashError], Awaitable[None]]


class HttpAccess:
    """Lets requests through to an app that have a valid token.

    Args:
        app: an ASGI app.
        access: who may come in.
        refuse: answers a refused request in the form of the app.
        is_open: whether a path needs no token.
        of_every_window: a path that shows something of every window, so that the caller must see them all.
    """

    def __init__(
        self,
        app: App,
        access: Access,
        refuse: Refuse,
        is_open: Callable[[str], bool] = lambda _: False,
        of_every_window: str = "",
    ) -> None:
        self._app = app
        self._access = access
        self._refuse = refuse
        self._is_open = is_open
        self._of_every_window = of_every_window

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        self._enter(scope)
        if self._access.is_on and not self._is_open(path):
            try:
                values = [value for name, value in scope["headers"] if name == b"authorization"]
                if self._access.asks_for_certificate(values):
                    CALLER.set(self._access.caller_with(scope.get(CERTIFIED, ())))
                else:
                    CALLER.set(await self._access.caller_of(values))
                if path == self._of_every_window:
                    self._access.require_every_window(_what(scope))
            except SashError as error:
                self._access.audit_entry(_what(scope), error)
                await self._refuse(scope, receive, send, error)
                return
        await self._app(scope, receive, send)

    def recognises(self, scope: Scope) -> bool:
        """Find out who makes a call that needs a token, where that takes no time; False where `__call__` must do it.

        `charge` follows. Until then nothing has changed but context variables.
        """
        self._enter(scope)
        if self._access.is_on:
            values = [value for name, value in scope["headers"] if name == b"authorization"]
            caller = self._access.known(values)
            CALLER.set(caller)
            return caller is not None
        return True

    def charge(self) -> None:
        """Charge the caller of a call for it; raises as `Access.caller_of`."""
        caller = CALLER.get()
        if caller is not None:
            self._access.charge_call(caller)

    def _enter(self, scope: Scope) -> None:
        PEER.set(lambda: _address(scope))
        _SCOPE.set(scope)


def http_admit(access: Access, is_open: Callable[[str], bool]) -> Callable[[str, str | None], None]:
    """Return what checks a right of the caller of this request on a window, before the body is read."""

    rights = {str(right): right for right in Right}

    def admit(right: str, window: str | None) -> None:
        if access.is_on and not access.allows(rights[right], window) and not is_open(_SCOPE.get()["path"]):
            access.admit(_what(_SCOPE.get()), rights[right], window)

    return admit


def _what(scope: Scope) -> str:
    return f"{scope['method']} {scope['path']}"


def _address(scope: Scope) -> str:
    client = scope.get("client")
    if client is None:
        return "-"
    host, port = client[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
