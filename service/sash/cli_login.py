"""Arguments of a client from the options of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sash.cli_output import fail
from sash_client import TLS

__all__ = ["LOCAL", "login_of"]

LOCAL = "127.0.0.1:7070"


def login_of(
    *,
    token: str | None,
    token_file: Path | None,
    tls: bool | None,
    tls_ca: Path | None,
    cert: Path | None,
    key: Path | None,
) -> dict[str, Any]:
    """Return arguments of `Client`; exit with a message where options exclude each other or a file cannot be read."""
    login: dict[str, Any] = {}
    if token is None and token_file is not None:
        try:
            token = token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            fail(f"cannot read {token_file}: {error}")
    if token is not None:
        login["token"] = token
    if any(path is not None for path in (tls_ca, cert, key)):
        if tls is False:
            fail("give either --no-tls, or files for TLS")
        login["tls"] = TLS(tls_ca, cert, key)
    elif tls is not None:
        login["tls"] = tls
    return login
