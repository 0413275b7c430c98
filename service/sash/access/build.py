"""Makes what the settings ask for, and refuses settings that let anybody in."""

from __future__ import annotations

import logging
from ipaddress import IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit

from sash.access.access import Access, Source
from sash.access.tls import Certificates
from sash.settings import Settings
from sash_engine.clock import Clock
from sash_engine.errors import InvalidArgument

_log = logging.getLogger("sash")


def access_of(settings: Settings, clock: Clock) -> Access:
    """Make the access control of a service.

    Raises:
        InvalidArgument: a file that a setting names cannot be read, or is wrong.
    """
    sources: list[Source] = []
    certified = None
    if settings.tokens is not None:
        from sash.access.tokens import Tokens

        tokens = Tokens(settings.tokens, clock)
        sources.append(tokens)
        if settings.tls_client_ca is not None:
            certified = tokens.certified
        elif tokens.certificates:
            wrong = "has certificates, which need SASH_TLS_CLIENT_CA: clients are not asked for one"
            raise InvalidArgument(f"SASH_TOKENS: {settings.tokens} {wrong}", field="tokens")
    if settings.jwt_jwks is not None:
        sources.append(_jwts(settings, settings.jwt_jwks, clock))
    return Access(clock, sources, certified)


def _jwts(settings: Settings, jwks: str, clock: Clock) -> Source:
    from sash.access.jwt import JwtRules, Jwts  # brings cryptography, a twentieth of a start

    # Without them, a token that the provider made for another service would do.
    issuer, audience = (_needed(settings, name, "SASH_JWT_JWKS needs it") for name in ("jwt_issuer", "jwt_audience"))
    if jwks.startswith("http://") and not is_loopback(urlsplit(jwks).hostname or ""):
        raise InvalidArgument("SASH_JWT_JWKS must be https: keys over http are anybody's", field="jwt_jwks")
    return Jwts(JwtRules(jwks, issuer, audience, settings.jwt_role_claim, settings.jwt_windows_claim), clock)


def _needed(settings: Settings, name: str, why: str) -> Any:
    """The value of a setting that another one needs; raises InvalidArgument."""
    value = getattr(settings, name)
    if value is None:
        raise InvalidArgument(f"SASH_{name.upper()} is missing: {why}", field=name)
    return value


def certificates_of(settings: Settings) -> Certificates | None:
    """Make the certificates of a service; None where it serves without TLS.

    Raises:
        InvalidArgument: a setting lacks another one; a file cannot be read, or is wrong.
    """
    client_ca, peer_ca = settings.tls_client_ca, settings.tls_peer_ca
    if settings.tls_cert is None and settings.tls_key is None and client_ca is None and peer_ca is None:
        return None
    why = "TLS needs a certificate and its key"
    return Certificates(_needed(settings, "tls_cert", why), _needed(settings, "tls_key", why), client_ca, peer_ca)


def check_exposure(settings: Settings) -> None:
    """Refuse to serve other machines while nothing says who may call.

    Raises:
        InvalidArgument: names the settings that would.
    """
    if is_loopback(settings.host) or settings.insecure:
        return
    if settings.tokens is None and settings.jwt_jwks is None and settings.tls_client_ca is None:
        raise InvalidArgument(
            f"SASH_HOST={settings.host} lets other machines call, and nothing says who may. Set SASH_TOKENS, "
            "SASH_JWT_JWKS or SASH_TLS_CLIENT_CA; or SASH_INSECURE=1, to let everybody do everything",
            field="host",
        )
    if settings.tls_cert is None:
        _log.warning("SASH_TLS_CERT is not set: tokens cross the network in the clear, unless something ahead has TLS")


def is_loopback(host: str) -> bool:
    """Whether only this machine can call an address. A name other than localhost may lead anywhere."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host.lower() == "localhost"
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
