"""How a client shows who it is: TLS, and tokens.

Client("sash.example", token="sash_…", tls=True)                           a public certificate
Client("sash.example", token=read_token, tls=TLS(ca="company.pem"))        a company's own; a token that changes
Client("sash.example", tls=TLS(ca="company.pem", cert="me.pem", key="me.key"))     mTLS
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from sash_client.errors import InvalidArgument

if TYPE_CHECKING:
    import ssl

    import grpc

Token: TypeAlias = str | Callable[[], str]
_TOKEN = re.compile(r"[\x21-\x7e]+")
_HOST = re.compile(r"(?:dns:///|ipv4:|ipv6:)?(?P<host>\[[^\]]*\]|[^:]*)")


@dataclass(frozen=True, slots=True)
class TLS:
    """Which certificates a connection goes by; each is a PEM file.

    Args:
        ca: the authorities that the service's certificate must come from; None: the public ones that gRPC knows.
        cert, key: the client's own certificate and its private key, for a service that asks for one.
        name: the name that the service's certificate has, if it is not the host of the target.
    """

    ca: str | os.PathLike[str] | None = None
    cert: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    name: str | None = None


def channel_credentials(tls: TLS) -> grpc.ChannelCredentials:
    """Read the files.

    Raises:
        InvalidArgument: a file cannot be read, or there is a certificate without its key.
    """
    import grpc

    _check_pair(tls)
    return grpc.ssl_channel_credentials(_pem(tls.ca, "ca"), _pem(tls.key, "key"), _pem(tls.cert, "cert"))


def ssl_context(tls: TLS) -> ssl.SSLContext:
    """Read the files, for HTTP; raises as `channel_credentials`, and if a file is no PEM."""
    import ssl

    _check_pair(tls)
    ca = _pem(tls.ca, "ca")
    _pem(tls.cert, "cert"), _pem(tls.key, "key")  # OpenSSL's own errors do not name the file
    try:
        context = ssl.create_default_context(cadata=None if ca is None else ca.decode("ascii"))
        if tls.cert is not None and tls.key is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"tls: a file is no certificate or key in PEM: {error}", field="tls") from None
    context.set_alpn_protocols(["http/1.1"])
    return context


def _check_pair(tls: TLS) -> None:
    if (tls.cert is None) != (tls.key is None):
        raise InvalidArgument("tls: a client's certificate needs both cert and key", field="tls")


def check_clear_token(target: str) -> None:
    """Refuse to send a token to another machine in the clear, where everybody on the way could read it."""
    found = _HOST.match(target)
    host = "" if found is None else found["host"].strip("[]")
    try:
        local = ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        local = host == "localhost" or target.startswith("unix:")
    if not local:
        raise InvalidArgument(
            f"a token to {target} needs tls=True, or tls=TLS(…), or https://; tls=False sends it in the clear",
            field="tls",
        )


def token_of(token: Token) -> str:
    """A token as text; never shown in an error."""
    found = token() if callable(token) else token
    if not isinstance(found, str) or not _TOKEN.fullmatch(found):
        raise InvalidArgument("token must be text of visible ASCII characters, without spaces", field="token")
    return found


def _pem(path: str | os.PathLike[str] | None, name: str) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"tls.{name}: cannot read {path}: {error.strerror}", field=f"tls.{name}") from None
