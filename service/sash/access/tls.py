"""Certificates of the service, for both ports; new files count for new connections, and old connections go on.

    files ──▶ SSLContext, checked as a whole ──┬─▶ HTTP: wrap_bio of the context of now, for each connection
                                               └─▶ gRPC: asked for at each handshake (rpc/access.py)

The context is made anew and not loaded again: an authority that is no longer in the file must not be trusted any more,
and a certificate whose key is not there yet must not be served.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from sash.access.files import FromFiles, read_file
from sash_engine.errors import InvalidArgument

_URI = re.compile(r"urn:|[A-Za-z][A-Za-z0-9+.-]*://")

CERTIFIED = "sash.certified"
"""Where a request of HTTP has the names in its client's certificate."""


@dataclass(frozen=True, slots=True)
class Pem:
    """The contents of the files; `client_ca` is None where clients need no certificate."""

    cert: bytes
    key: bytes
    client_ca: bytes | None
    peer_ca: bytes | None = None

    @property
    def of_peers(self) -> bytes | None:
        """The authorities of other processes, which need certificates as clients, too; None where they do not."""
        return self.peer_ca or self.client_ca


class Certificates:
    """Certificate, key and the authorities of clients, as the files have them.

    Args:
        cert: the service's certificate, with those between it and its authority.
        key: its private key, without a password.
        client_ca: the authorities that clients' certificates must come from; None: clients need none.
        peer_ca: the authorities of other processes of the deployment; None: `client_ca`.

    Raises:
        InvalidArgument: a file cannot be read, or they do not fit together.
    """

    def __init__(self, cert: Path, key: Path, client_ca: Path | None = None, peer_ca: Path | None = None) -> None:
        self._cert, self._key, self._client_ca, self._peer_ca = cert, key, client_ca, peer_ca
        self.context = _Current(ssl.PROTOCOL_TLS_SERVER)
        """For a server that takes one context for all its life."""
        paths = [path for path in (cert, key, client_ca, peer_ca) if path is not None]
        self._files = FromFiles("certificates", paths, self._load, self._use)

    async def refresh(self) -> None:
        """Read the files again if one has changed."""
        await self._files.refresh()

    def _load(self) -> tuple[Pem, ssl.SSLContext]:
        pem = Pem(
            read_file(self._cert, "tls_cert"),
            read_file(self._key, "tls_key"),
            None if self._client_ca is None else read_file(self._client_ca, "tls_client_ca"),
            None if self._peer_ca is None else read_file(self._peer_ca, "tls_peer_ca"),
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._cert, self._key, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            wrong = f"SASH_TLS_CERT, SASH_TLS_KEY: {self._cert} and {self._key}: {_reason(error)}"
            raise InvalidArgument(wrong, field="tls_cert") from None
        if pem.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(cadata=pem.client_ca.decode("ascii"))
            except (ssl.SSLError, ValueError) as error:
                wrong = f"SASH_TLS_CLIENT_CA: {self._client_ca}: {_reason(error)}"
                raise InvalidArgument(wrong, field="tls_client_ca") from None
        if pem.peer_ca is not None:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.peer_ca.decode("ascii"))
            except (ssl.SSLError, ValueError) as error:
                wrong = f"SASH_TLS_PEER_CA: {self._peer_ca}: {_reason(error)}"
                raise InvalidArgument(wrong, field="tls_peer_ca") from None
        return pem, context

    def _use(self, loaded: tuple[Pem, ssl.SSLContext]) -> None:
        self.pem, self.context.current = loaded


class _Current(ssl.SSLContext):
    """A context that hands each new connection to the one that is current."""

    current: ssl.SSLContext

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        return self.current.wrap_bio(*args, **kwargs)


def names_in(certificate: Mapping[str, Any]) -> list[str]:
    """The common names of a certificate, then its alternative names.

    Args:
        certificate: as `SSLObject.getpeercert` returns it; empty where there is none.

    >>> names_in({"subject": ((("commonName", "a"),),), "subjectAltName": (("DNS", "a.example.com"), ("URI", "b://c"))})
    ['a', 'a.example.com', 'b://c']
    """
    common = [
        value
        for attributes in certificate.get("subject", ())
        for attribute, value in attributes
        if attribute == "commonName"
    ]
    others = [
        value
        for kind, value in certificate.get("subjectAltName", ())
        if isinstance(value, str) and is_name(value, kind == "URI")
    ]
    return [name for name in common if is_name(name, False)] + others


def is_name(value: str, is_uri: bool) -> bool:
    """Whether a name in a certificate is of the kind that it looks like.

    An authority looks at a URI, a host and a common name in different ways. So none of them is taken for another: a URI
    `billing.example.com` is not the host of that name.
    """
    return is_uri == (_URI.match(value) is not None)


def _no_password() -> NoReturn:
    # Without this, OpenSSL would ask whoever sits at the terminal, and wait.
    raise ValueError("the key has a password; store it without one")


def _reason(error: ssl.SSLError | ValueError) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) else None) or str(error)
