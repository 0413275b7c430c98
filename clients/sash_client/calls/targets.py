"""Where a service is: what people write for it, and what gRPC is told.

127.0.0.1              ->   127.0.0.1:7070        gRPC itself would take port 443, and wait there
sash.example:80        ->   sash.example:80
::1                    ->   [::1]:7070
http://127.0.0.1:7071  ->   calls by Connect, on the HTTP port
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sash_client.errors import InvalidArgument

PORT = 7070
"""Where `sash serve` listens for gRPC, unless it is told otherwise."""

_OWN = re.compile(r"(dns:///|ipv4:|ipv6:|unix:).")
_PLAIN = re.compile(r"(?P<host>[^\s\[\]:/@?#,]+|\[[0-9A-Fa-f:.]+(?:%\w+)?\])(?::(?P<port>[0-9]{1,5}))?")
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>[^\s\[\]:/@?#,]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?/?", re.ASCII | re.I
)
_BARE_IPV6 = re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The HTTP port of a service, where Connect is."""

    host: str
    port: int
    is_tls: bool

    @property
    def authority(self) -> str:
        """Host and port as the header `Host` has them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.authority}"


def to_endpoint(target: str) -> Endpoint | None:
    """Return the HTTP port that a URL names; None if the target is no URL, but an address of gRPC.

    Args:
        target: ``http://HOST:PORT`` or ``https://HOST:PORT``; as everywhere, without a port they mean 80 and 443.

    Raises:
        InvalidArgument: it begins as a URL, and is none, or has a path.
    """
    if not isinstance(target, str) or not target.lower().startswith(("http://", "https://")):
        return None
    found = _URL.fullmatch(target)
    is_tls = found is not None and found["scheme"].lower() == "https"
    port = int((found and found["port"]) or (443 if is_tls else 80))
    if found is None or not 1 <= port <= 65535 or not found["host"].isascii():
        raise InvalidArgument(
            f"{target!r:.80} is no address of a service: write http://HOST:PORT or https://HOST:PORT for Connect, "
            f"without a path, or HOST:PORT for gRPC",
            field="target",
        )
    return Endpoint(found["host"].strip("[]"), port, is_tls)


def to_target(target: str) -> str:
    """Return host and port as gRPC takes them, with port 7070 if it has none.

    Args:
        target: a host, or host and port; or an address in gRPC's own form: ``dns:///…``, ``ipv4:…``, ``ipv6:…``,
            ``unix:…``.

    Raises:
        InvalidArgument: it is neither.
    """
    if not isinstance(target, str):
        raise _refused(target)
    if _OWN.match(target):
        return target
    found = _PLAIN.fullmatch(f"[{target}]" if _BARE_IPV6.fullmatch(target) else target)
    if found is None or not 1 <= int(found["port"] or PORT) <= 65535:
        raise _refused(target)
    return f"{found['host']}:{found['port'] or PORT}"


def _refused(target: object) -> InvalidArgument:
    return InvalidArgument(
        f"{target!r:.80} is no address of a service: write HOST:PORT, as in 127.0.0.1:{PORT}, or "
        "http://HOST:PORT for Connect",
        field="target",
    )
