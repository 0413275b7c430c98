"""Reads a service's metrics over HTTP."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from http.client import HTTPException, HTTPMessage
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

from sash_cli.output import fail
from sash_client import TLS
from sash_client.calls.credentials import check_clear_token, token_of
from sash_client.calls.targets import to_endpoint, to_target

_REST_PORT = 7071
_TIMEOUT_S = 10.0


def metrics_url(target: str, secure: bool) -> str:
    """Return where the service of a target has its metrics, unless it was told otherwise; a URL is that port."""
    if (endpoint := to_endpoint(target)) is not None:
        return f"{endpoint}/metrics"
    host = to_target(target).rpartition("/")[2].rpartition(":")[0]
    return f"http{'s' * secure}://{host}:{_REST_PORT}/metrics"


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirect: the token is for this address only."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


def fetch(url: str, login: Mapping[str, Any]) -> str:
    """Read the metrics; exit with a message if they cannot be read.

    Args:
        url: their address.
        login: arguments of `Client`.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        fail(f"{url!r:.80} is no address of metrics: write http://HOST:PORT/metrics")
    headers = {"Accept": "text/plain"}
    if "token" in login:
        if parts.scheme == "http" and login.get("tls") is not False:
            check_clear_token(f"[{host}]" if ":" in host else host)
        headers["Authorization"] = f"Bearer {token_of(login['token'])}"
    try:
        opener = build_opener(ProxyHandler({}), _NoRedirect, HTTPSHandler(context=_context(login.get("tls"))))
        with opener.open(Request(url, headers=headers), timeout=_TIMEOUT_S) as answer:
            text: str = answer.read().decode("utf-8", "replace")
            return text
    except HTTPError as error:
        error.close()
        fail(f"cannot read {url}: {error.code} {error.reason}")
    except (OSError, HTTPException, ValueError) as error:
        fail(f"cannot read {url}: {getattr(error, 'reason', None) or error}")


def _context(tls: Any) -> ssl.SSLContext:
    if not isinstance(tls, TLS):
        return ssl.create_default_context()
    context = ssl.create_default_context(cafile=tls.ca)
    if tls.cert is not None:
        context.load_cert_chain(tls.cert, tls.key)
    return context
