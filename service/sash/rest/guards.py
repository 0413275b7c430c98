"""Protects the HTTP port from web pages of other sites, ahead of REST, Connect and the page.

    server ──▶ Guard ──▶ Connect | REST | page
                 ├─ the Host is not allowed         421: a site whose name leads to this address (DNS rebinding)
                 ├─ a write from another site       403: a page that the reader happens to look at
                 └─ every answer has headers by which browsers do not frame it, run it or guess its type

A browser sends the name in the address bar as Host, and the page's site as Origin with every write. Other programs
send no Origin. Each route refuses bodies of the types that pages of other sites may send. Only
the API of Prometheus takes forms, and none of them changes anything.

Sources: RFC 9110 (Host, 421), the WHATWG's Fetch standard (Origin, CORS), W3C's Content Security Policy Level 3.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterable
from http import HTTPStatus
from ipaddress import ip_address

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sash.requests import REQUEST, of_scope
from sash.rest.problems import of_error, of_status
from sash.rest.whole import withdraw
from sash.runtime.metrics import Metrics
from sash.settings import Settings
from sash_engine.errors import PermissionDenied

__all__ = ["NO_PAGE_LINES", "Guard", "guarded"]

Headers = list[tuple[bytes, bytes]]

_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
_POLICY = b"content-security-policy"
_HEADERS: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
]
# Of answers that are no pages: nothing in them may be loaded or run.
_NO_PAGE: Headers = [
    *_HEADERS,
    (_POLICY, b"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
]
NO_PAGE_LINES = b"".join(b"%b: %b\r\n" % header for header in _NO_PAGE)
"""The same as lines."""

_VARY: Headers = [(b"vary", b"Origin")]
_PREFLIGHT = {
    "access-control-allow-methods": "GET, HEAD, POST, DELETE",
    "access-control-allow-headers": "Accept, Authorization, Content-Type, Connect-Protocol-Version, "
    "Connect-Timeout-Ms, X-Request-Id, Traceparent, Tracestate",
    "access-control-max-age": "600",
}
_EXPOSED = (b"access-control-expose-headers", b"Retry-After, X-Request-Id")
_HOST = re.compile(r"(?:\[(?P<address>[^\[\]]*:[^\[\]]*)\]|(?P<name>[^\[\]:]+))(?::[0-9]*)?")

# Only names that are allowed are remembered; a name may be written in capitals, and with many ports.
_KNOWN_MAX = 1024


class Guard:
    """Refuses requests that pages of other sites make, and adds headers to every answer.

    Args:
        app: what to protect.
        settings: the hosts and origins that are allowed, and the address that the service listens on.
        metrics: counts the requests that are refused.
    """

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._hosts = _Hosts(settings.host, settings.allowed_hosts)
        self._origins = frozenset(origin.encode() for origin in settings.cors_origins)
        self._known: set[bytes] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of HTTP."""
        REQUEST.set(of_scope(scope))
        host, hosts, origin = b"", 0, b""
        for name, value in scope["headers"]:
            if name == b"host":
                host, hosts = value, hosts + 1
            elif name == b"origin":
                origin = value
        cors = b"" if not origin or not self._origins else self._allowed(origin)

        sends = guarded(send, _cors(cors) if self._origins else ())
        if origin or self._origins:
            withdraw(scope)
        refusal = None
        if hosts != 1 or host not in self._known:
            refusal = self._check_host(host, hosts, scope)
        if refusal is None and origin:
            refusal = self._check_origin(scope, host, origin, cors)
        if refusal is None:
            await self._app(scope, receive, sends)
            return
        if refusal.status_code >= HTTPStatus.BAD_REQUEST:
            self._metrics.count_rejected("rest", str(refusal.status_code))
        await refusal(scope, receive, sends)

    def knows(self, host: bytes) -> bool:
        """Whether a request that names this host, and comes from no page, is served, and answered as all others are."""
        return host in self._known and not self._origins

    def _check_host(self, host: bytes, hosts: int, scope: Scope) -> Response | None:
        """Return a refusal where the Host is not allowed; None where it is."""
        if hosts == 0 and scope["http_version"] == "1.0":
            return None  # browsers speak later versions
        if hosts != 1:
            return of_status(HTTPStatus.BAD_REQUEST, f"a request has one Host, not {hosts}")
        if not self._hosts.allow(host.decode("latin-1")):
            return of_status(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"Host {host[:80].decode('latin-1')!r} is not allowed; SASH_ALLOWED_HOSTS names the hosts that are, "
                "beside localhost and the address that the service listens on",
            )
        if len(self._known) < _KNOWN_MAX:
            self._known.add(host)
        return None

    def _check_origin(self, scope: Scope, host: bytes, origin: bytes, cors: bytes) -> Response | None:
        """Return what answers a preflight, or a refusal of a write from another site; None for all other requests."""
        if cors and scope["method"] == "OPTIONS":
            return Response(status_code=HTTPStatus.NO_CONTENT, headers=_PREFLIGHT)
        if cors or scope["method"] in _SAFE or origin.partition(b"://")[2].lower() == host.lower():
            return None
        error = PermissionDenied(
            f"a page of {origin[:80].decode('latin-1')} may not change anything here; SASH_CORS_ORIGINS names the "
            "origins that may",
            field="Origin",
        )
        return of_error(error, scope["method"], scope["path"])

    def _allowed(self, origin: bytes) -> bytes:
        """Return an origin that the settings allow; nothing for another one."""
        return origin if b"*" in self._origins or origin.lower() in self._origins else b""


def guarded(send: Send, more: Iterable[tuple[bytes, bytes]] = ()) -> Send:
    """Return what sends an answer with the headers that every answer has, and `more`."""

    def sends(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            headers = message.get("headers", ())
            message["headers"] = [*headers, *(_HEADERS if _POLICY in dict(headers) else _NO_PAGE), *more]
        return send(message)

    return sends


class _Hosts:
    """The hosts that requests may name."""

    def __init__(self, bound: str, further: Iterable[str]) -> None:
        self._names = {"localhost", bound.lower(), *further}
        self._below = tuple(name[1:] for name in self._names if name.startswith("*."))
        # A service that listens on all addresses of a machine is called by any of them. An address as Host is none that
        # a foreign site's name leads to.
        self._any_address = _is_unspecified(bound)

    def allow(self, host: str) -> bool:
        name = _name_of(host)
        if name in self._names or "*" in self._names or name.endswith(self._below):
            return name != ""
        try:
            address = ip_address(name)
        except ValueError:
            return False
        return self._any_address or address.is_loopback


def _name_of(host: str) -> str:
    """Return the name or address of a Host, without its port; nothing for what is neither."""
    found = _HOST.fullmatch(host)
    return "" if found is None else (found["address"] or found["name"]).lower()


def _is_unspecified(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def _cors(origin: bytes) -> Headers:
    """Return the headers by which a browser shows an answer to a page of an allowed origin."""
    return [*_VARY, (b"access-control-allow-origin", origin), _EXPOSED] if origin else _VARY
