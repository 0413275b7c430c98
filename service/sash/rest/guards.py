"""Protects the HTTP port from web pages of other sites: first of all that is decided about a request.

    the Host is not allowed         421: a site whose name leads to this address (DNS rebinding)
    a write from another site       403: a page that the reader happens to look at

A browser sends the name in the address bar as Host, and the page's site as Origin with every write. Other programs
send no Origin. Each route refuses bodies of the types that pages of other sites may send. Only
the API of Prometheus takes forms, and none of them changes anything.

Sources: RFC 9110 (Host, 421), the WHATWG's Fetch standard (Origin, CORS).
"""

from __future__ import annotations

import re
from http import HTTPStatus
from ipaddress import ip_address

from starlette.responses import Response
from starlette.types import Scope

from sash.rest.problems import of_error, of_status
from sash.settings import Settings
from sash_engine.errors import PermissionDenied

_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
_VARY = b"vary: Origin\r\n"
_PREFLIGHT = {
    "access-control-allow-methods": "GET, HEAD, POST, DELETE",
    "access-control-allow-headers": "Accept, Authorization, Content-Type, Connect-Protocol-Version, "
    "Connect-Timeout-Ms, X-Request-Id, Traceparent, Tracestate",
    "access-control-max-age": "600",
}
_EXPOSED = b"access-control-expose-headers: Retry-After, X-Request-Id\r\n"
_HOST = re.compile(r"(?:\[(?P<address>[^\[\]]*:[^\[\]]*)\]|(?P<name>[^\[\]:]+))(?::[0-9]*)?")

# Only names that are allowed are remembered; a name may be written in capitals, and with many ports.
_KNOWN_MAX = 1024


class Guard:
    """Refuses requests that pages of other sites make.

    Args:
        settings: the hosts and origins that are allowed, and the address that the service listens on.
    """

    def __init__(self, settings: Settings) -> None:
        self._names = {"localhost", settings.host.lower(), *settings.allowed_hosts}
        self._below = tuple(name[1:] for name in self._names if name.startswith("*."))
        # A service that listens on all addresses of a machine is called by any of them. An address as Host is none that
        # a foreign site's name leads to.
        self._any_address = _is_unspecified(settings.host)
        self._origins = frozenset(origin.encode() for origin in settings.cors_origins)
        self._known: set[bytes] = set()

    def checked(self, scope: Scope) -> tuple[Response | None, bytes]:
        """Check the Host and the Origin of a request.

        Returns:
            What answers it in place of an app, if anything does; further headers of its answer, as lines.
        """
        host, hosts, origin = b"", 0, b""
        for name, value in scope["headers"]:
            if name == b"host":
                host, hosts = value, hosts + 1
            elif name == b"origin":
                origin = value
        cors = b"" if not origin or not self._origins else self._allowed(origin)
        refusal = None
        if hosts != 1 or host not in self._known:
            refusal = self._check_host(host, hosts, scope)
        if refusal is None and origin:
            refusal = self._check_origin(scope, host, origin, cors)
        return refusal, _cors(cors) if self._origins else b""

    def _check_host(self, host: bytes, hosts: int, scope: Scope) -> Response | None:
        """Return a refusal where the Host is not allowed; None where it is."""
        if hosts == 0 and scope["http_version"] == "1.0":
            return None  # browsers speak later versions
        if hosts != 1:
            return of_status(HTTPStatus.BAD_REQUEST, f"a request has one Host, not {hosts}")
        if not self._is_allowed(host.decode("latin-1")):
            return of_status(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"Host {host[:80].decode('latin-1')!r} is not allowed; SASH_ALLOWED_HOSTS names the hosts that are, "
                "beside localhost and the address that the service listens on",
            )
        if len(self._known) < _KNOWN_MAX:
            self._known.add(host)
        return None

    def _is_allowed(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        name = "" if found is None else (found["address"] or found["name"]).lower()
        if name in self._names or "*" in self._names or name.endswith(self._below):
            return name != ""
        try:
            address = ip_address(name)
        except ValueError:
            return False
        return self._any_address or address.is_loopback

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


def _is_unspecified(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def _cors(origin: bytes) -> bytes:
    """Return the headers by which a browser shows an answer to a page of an allowed origin."""
    return b"%baccess-control-allow-origin: %b\r\n%b" % (_VARY, origin, _EXPOSED) if origin else _VARY
