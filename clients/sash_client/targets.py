"""Where a service is: what people write for it, and what gRPC is told.

127.0.0.1        ->   127.0.0.1:7070        gRPC itself would take port 443, and wait there
sash.example:80  ->   sash.example:80
::1              ->   [::1]:7070
"""

from __future__ import annotations

import re

from sash_client.errors import InvalidArgument

__all__ = ["PORT", "to_target"]

PORT = 7070
"""Where `sash serve` listens for gRPC, unless it is told otherwise."""

_OWN = re.compile(r"(dns:///|ipv4:|ipv6:|unix:).")
_PLAIN = re.compile(r"(?P<host>[^\s\[\]:/@?#,]+|\[[0-9A-Fa-f:.]+(?:%\w+)?\])(?::(?P<port>[0-9]{1,5}))?")
_BARE_IPV6 = re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*")


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
    said = f"{target!r:.80} is no address of a service: write HOST:PORT, as in 127.0.0.1:{PORT}"
    if str(target).startswith(("http://", "https://")):
        said += ", the port being that of gRPC and not of REST, without http://"
    return InvalidArgument(said, field="target")
