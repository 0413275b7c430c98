"""Completion of names of windows and of keys, for shells.

The service is asked, with a short timeout. Any failure completes nothing and prints nothing.

Anybody may have written a key, and shells evaluate what is completed. So only names are completed of which no shell
evaluates a part: letters, digits and some signs.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import typer

from sash.cli_login import LOCAL, login_of
from sash_client import Client

__all__ = ["complete_keys", "complete_windows"]

TIMEOUT_S = 1.0
MOST = 100
"""So many keys are completed."""

_SIGNS = "_.-+,/%"


def complete_windows(ctx: typer.Context, incomplete: str) -> list[str]:
    return _asked(ctx, lambda sash: [w.name for w in sash.list_windows() if w.name.startswith(incomplete)])


def complete_keys(ctx: typer.Context, incomplete: str) -> list[str]:
    # Behind an option that still lacks its value, the parser leaves arguments where they are.
    name = ctx.params.get("name") or next(iter(ctx.args), None)
    return _asked(ctx, lambda sash: sash.window(name).keys(incomplete, limit=MOST)) if name else []


def _asked(ctx: typer.Context, ask: Callable[[Client], list[str]]) -> list[str]:
    given = ctx.find_root().params
    paths = {name: Path(given[name]) if given.get(name) else None for name in ("token_file", "tls_ca", "cert", "key")}
    with contextlib.suppress(Exception, SystemExit), contextlib.redirect_stderr(io.StringIO()):
        login = login_of(token=given.get("token"), tls=given.get("tls"), **paths)
        with Client(ctx.params.get("target") or LOCAL, timeout_s=TIMEOUT_S, **login) as sash:
            return [name for name in ask(sash) if _is_plain(name)]
    return []


def _is_plain(name: str) -> bool:
    return bool(name) and name[0] not in "-+" and all(sign.isalnum() or sign in _SIGNS for sign in name)
