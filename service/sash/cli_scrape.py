"""Reads the metrics of a service over HTTP, for ``sash top``."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from http.client import HTTPException, HTTPMessage
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

from sash.cli_output import fail
from sash_client import TLS
from sash_client.credentials import check_clear_token, token_of

__all__ = ["Sample", "fetch", "samples"]

TIMEOUT_S = 10.0

Sample = tuple[str, Mapping[str, str], float]
"""Name, labels and value."""

_LINE = re.compile(r'(\w+)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? (\S+)')
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


def samples(text: str) -> Iterator[Sample]:
    """Return the samples of a scrape in the format of Prometheus; lines in another form are left out."""
    for line in text.splitlines():
        if (found := _LINE.match(line)) is None:
            continue
        labels = {name: _ESCAPE.sub(_unescaped, value) for name, value in _LABEL.findall(found[2] or "")}
        try:
            yield found[1], labels, float(found[3])
        except ValueError:
            continue


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


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
        with opener.open(Request(url, headers=headers), timeout=TIMEOUT_S) as answer:
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
