"""Options that commands share, what they make of them, and how shells complete them.

Completion asks the service, with a short timeout. Any failure completes nothing and prints nothing. Anybody may have
written a key, and shells evaluate what is completed. So only names are completed of which no shell evaluates a part:
letters, digits and some signs.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from sash_cli.output import fail
from sash_client import TLS, Client, Unavailable
from sash_client.keys import Grouping

__all__ = [
    "LOCAL",
    "LOGIN",
    "Aggregates",
    "Ascending",
    "Bys",
    "Havings",
    "Json",
    "Key",
    "Keys",
    "Lookbacks",
    "N",
    "Name",
    "Sparklines",
    "Target",
    "Ticks",
    "TopBy",
    "Wheres",
    "connected",
    "grouping_of",
    "login_of",
]

LOCAL = "127.0.0.1:7070"

LOGIN: dict[str, Any] = {}
"""What clients of this process show: arguments of `Client`."""

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


Target = Annotated[
    str, typer.Option("--target", "-t", envvar="SASH_TARGET", metavar="HOST[:PORT]", help="The service's gRPC address.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the window.", autocompletion=complete_windows)]
Key = Annotated[
    str | None,
    typer.Option("--key", "-k", help="The key, where the window is keyed.", autocompletion=complete_keys),
]
Keys = Annotated[
    list[str] | None,
    typer.Option("--key", "-k", help="The key, where the window is keyed; repeatable.", autocompletion=complete_keys),
]
Lookbacks = Annotated[
    list[str] | None,
    typer.Option("--lookback", "-l", metavar="DURATION", help="5m, 1h30m, or ticks; repeatable. None: everything."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document a line.")]
Ticks = Annotated[bool, typer.Option("--ticks", help="Times as ticks, not as ISO 8601.")]
Aggregates = Annotated[
    list[str] | None, typer.Option("--aggregate", "-a", metavar="NAME", help="Only this aggregate; repeatable.")
]
Sparklines = Annotated[
    bool | None,
    typer.Option(
        "--sparkline/--no-sparkline", help="Draw each aggregate below the table. [on a terminal]", show_default=False
    ),
]
Wheres = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        "-w",
        metavar="CONDITION",
        help="Only keys for which it holds: carrier=AA, carrier!=AA, 'carrier in (AA, B6)', airport=~J.*; repeatable.",
    ),
]
Bys = Annotated[
    list[str] | None,
    typer.Option("--by", "-b", metavar="PART", help="An answer for each group of keys that agree in it; repeatable."),
]
TopBy = Annotated[
    str | None, typer.Option("--top", metavar="AGGREGATE", help="Only the first answers by it, or by entries.")
]
N = Annotated[int, typer.Option("-n", min=1, help="With --top: how many.")]
Ascending = Annotated[bool, typer.Option("--ascending", help="With --top: the smallest first.")]
Havings = Annotated[
    list[str] | None,
    typer.Option("--having", metavar="COMPARISON", help="Only answers for which it holds: 'mean>10'; repeatable."),
]


def grouping_of(
    where: list[str] | None,
    by: list[str] | None,
    top: str | None,
    n: int,
    ascending: bool,
    having: list[str] | None,
) -> Grouping:
    """How a question selects and groups keys."""
    found: Grouping = {}
    if where:
        found["where"] = where
    if by:
        found["by"] = by
    if top is not None:
        found |= {"top": top, "n": n, "order": "asc" if ascending else "desc"}
    if having:
        found["having"] = having
    return found


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


@contextmanager
def connected(target: str) -> Iterator[Client]:
    """Connect to the service; exit with a message if nothing listens."""
    with Client(target, **LOGIN) as sash:
        try:
            yield sash
        except Unavailable as error:
            if error.unreachable and "refused" in error.message:
                fail(f"nothing listens on {sash.target}; is `sash serve` running?")
            raise
