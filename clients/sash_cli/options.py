"""Options that commands share, what they make of them, and how shells complete them.

Completion asks the service, with a short timeout. Any failure completes nothing and prints nothing. Anybody may have
written a key, and shells evaluate what is completed. So only names are completed of which no shell evaluates a part:
letters, digits and some signs.
"""

from __future__ import annotations

import contextlib
import inspect
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from sash_cli.output import fail

if TYPE_CHECKING:  # the client brings NumPy and protobuf: commands import it where they call, help does without it
    from sash_client import Client, Window
    from sash_client.windows.keys import Grouping

LOCAL = "127.0.0.1:7070"

LOGIN: dict[str, Any] = {}
"""What clients of this process show: arguments of `Client`."""

TIMES = "ticks, ISO 8601 (2013-01-01T05:30Z), now or -1h"
"""How a time is written."""

T = TypeVar("T")

TIMEOUT_S = 1.0
MOST = 100
"""So many keys are completed."""

_SIGNS = "_.-+,/%"


def complete_windows(ctx: typer.Context, incomplete: str) -> list[str]:
    return _asked(ctx, lambda sash: [w.name for w in sash.list_windows() if w.name.startswith(incomplete)])


def complete_keys(ctx: typer.Context, incomplete: str) -> list[str]:
    return _of_window(ctx, lambda window: window.keys(incomplete, limit=MOST))


def complete_aggregates(ctx: typer.Context, incomplete: str) -> list[str]:
    return _of_window(ctx, lambda window: [each for each in window.spec["aggregates"] if each.startswith(incomplete)])


def complete_parts(ctx: typer.Context, incomplete: str) -> list[str]:
    return _of_window(ctx, lambda window: [each for each in window.spec["keys"] if each.startswith(incomplete)])


def _of_window(ctx: typer.Context, ask: Callable[[Window], list[str]]) -> list[str]:
    """Ask the window that the command is about; nothing while it has no name."""
    # Behind an option that still lacks its value, the parser leaves arguments where they are.
    name = ctx.params.get("name") or next(iter(ctx.args), None)
    return _asked(ctx, lambda sash: ask(sash.window(name))) if name else []


def one_of(*names: str) -> Callable[[str], list[str]]:
    """Return what completes one of some names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def _asked(ctx: typer.Context, ask: Callable[[Client], list[str]]) -> list[str]:
    from sash_client import Client

    with contextlib.suppress(Exception, SystemExit), contextlib.redirect_stderr(io.StringIO()):
        who = _login(ctx).arguments()
        with Client(_target_of(ctx, ctx.params.get("target")) or LOCAL, timeout_s=TIMEOUT_S, **who) as sash:
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
    typer.Option(
        "--key", "-k", metavar="KEY", help="The key, where the window is keyed.", autocompletion=complete_keys
    ),
]
Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        "-k",
        metavar="KEY",
        help="The key, where the window is keyed; repeatable.",
        autocompletion=complete_keys,
    ),
]
Lookbacks = Annotated[
    list[str] | None,
    typer.Option("--lookback", "-l", metavar="DURATION", help="5m, 1h30m, or ticks; repeatable. None: everything."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document a line.")]
Ticks = Annotated[bool, typer.Option("--ticks", help="Times as ticks, not as ISO 8601.")]
Aggregates = Annotated[
    list[str] | None,
    typer.Option(
        "--aggregate",
        "-a",
        metavar="NAME",
        help="Only this aggregate; repeatable.",
        autocompletion=complete_aggregates,
    ),
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
    typer.Option(
        "--by",
        "-b",
        metavar="PART",
        help="An answer for each group of keys that agree in it; repeatable.",
        autocompletion=complete_parts,
    ),
]
TopBy = Annotated[
    str | None,
    typer.Option(
        "--top",
        metavar="AGGREGATE",
        help="Only the first answers by it, or by entries.",
        autocompletion=complete_aggregates,
    ),
]
N = Annotated[int, typer.Option("-n", min=1, metavar="N", help="With --top: how many.")]
Ascending = Annotated[bool, typer.Option("--ascending", help="With --top: the smallest first.")]
Havings = Annotated[
    list[str] | None,
    typer.Option("--having", metavar="COMPARISON", help="Only answers for which it holds: 'mean>10'; repeatable."),
]


@dataclass(frozen=True)
class Grouped:
    """The options that select and group keys."""

    where: Wheres = None
    by: Bys = None
    top: TopBy = None
    n: N = 10
    ascending: Ascending = False
    having: Havings = None

    def grouping(self) -> Grouping:
        """Return them as arguments of a question."""
        found: Grouping = {}
        if self.where:
            found["where"] = self.where
        if self.by:
            found["by"] = self.by
        if self.top is not None:
            found |= {"top": self.top, "n": self.n, "order": "asc" if self.ascending else "desc"}
        if self.having:
            found["having"] = self.having
        return found


@dataclass(frozen=True)
class Shown:
    """The options that say how answers are shown."""

    aggregate: Aggregates = None
    ticks: Ticks = False
    as_json: Json = False


@dataclass(frozen=True)
class Login:
    """The options that say who calls."""

    token: Annotated[
        str | None,
        typer.Option(
            envvar="SASH_TOKEN",
            show_envvar=True,
            metavar="TOKEN",
            help="The token to call with. Others on this machine can see it here; prefer the variable, or a file.",
        ),
    ] = None
    token_file: Annotated[
        Path | None, typer.Option(envvar="SASH_TOKEN_FILE", metavar="FILE", help="A file with the token.")
    ] = None
    tls: Annotated[
        bool | None,
        typer.Option(
            "--tls/--no-tls",
            envvar="SASH_TLS",
            help="Use TLS; --no-tls sends a token in the clear, even to another machine.",
        ),
    ] = None
    tls_ca: Annotated[
        Path | None,
        typer.Option(envvar="SASH_TLS_CA", metavar="FILE", help="Use TLS, with the authorities of this file (PEM)."),
    ] = None
    cert: Annotated[
        Path | None,
        typer.Option(envvar="SASH_CLIENT_CERT", metavar="FILE", help="Use TLS, with this certificate of one's own."),
    ] = None
    key: Annotated[
        Path | None, typer.Option(envvar="SASH_CLIENT_KEY", metavar="FILE", help="The private key of --cert.")
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Return them as arguments of `Client`; exit with a message if they exclude each other or cannot be read."""
        found: dict[str, Any] = {}
        token = self.token
        if token is None and self.token_file is not None:
            try:
                token = self.token_file.read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                fail(f"cannot read {self.token_file}: {error}")
        if token is not None:
            found["token"] = token
        if any(path is not None for path in (self.tls_ca, self.cert, self.key)):
            if self.tls is False:
                fail("give either --no-tls, or files for TLS")
            from sash_client import TLS

            found["tls"] = TLS(self.tls_ca, self.cert, self.key)
        elif self.tls is not None:
            found["tls"] = self.tls
        return found


@cache
def _hints(group: Any) -> dict[str, Any]:
    """The annotations of a class of options: one for all commands, as they take a millisecond to evaluate."""
    return get_type_hints(group, include_extras=True)


def spelled(command: Callable[..., T]) -> Callable[..., T]:
    """Return a command with an option for each field of a parameter that is a class of options, in its place."""
    kinds: dict[str, Any] = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in kinds.items() if is_dataclass(kind)}

    def run(**given: Any) -> T:
        made = {
            name: kind(**{each.name: given.pop(each.name) for each in fields(kind)}) for name, kind in groups.items()
        }
        return command(**given, **made)

    parameters = []
    for name, one in inspect.signature(command).parameters.items():
        group = groups.get(name)
        for each in inspect.signature(group).parameters.values() if group else [one]:
            kind = _hints(group)[each.name] if group else kinds[name]
            parameters.append(each.replace(annotation=kind, kind=each.KEYWORD_ONLY))
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


_LATE = {"--token": "token", "--token-file": "token_file", "--tls-ca": "tls_ca", "--cert": "cert"}
"""Options before a command that may stand behind it, too. Not --key: it is the key of a window there."""
_LATE_FLAGS = {"--tls": True, "--no-tls": False}
_GIVEN = "sash.login"


def take_login(ctx: Any, words: Sequence[str]) -> list[str]:
    """Take the options that say who calls out of the words behind a command, and note them; return the others."""
    found, rest, left = dict[str, Any](), list[str](), iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        if word == "--":
            rest += [word, *left]
        elif word in _LATE_FLAGS:
            found["tls"] = _LATE_FLAGS[word]
        elif name not in _LATE:
            rest.append(word)
        elif equals:
            found[_LATE[name]] = value
        elif (following := next(left, None)) is not None:
            found[_LATE[name]] = following
        elif not ctx.resilient_parsing:
            fail(f"{name} needs a value")
    ctx.meta[_GIVEN] = found
    return rest


def log_in(ctx: Any) -> None:
    """Note who calls, and where: behind the command, before it, or by variables."""
    LOGIN.clear()
    LOGIN.update(_login(ctx).arguments())
    ctx.params["target"] = _target_of(ctx, ctx.params["target"])


def _login(ctx: Any) -> Login:
    root, late = ctx.find_root().params, ctx.meta.get(_GIVEN, {})
    found: dict[str, Any] = {each.name: root.get(each.name) for each in fields(Login)}
    if "token_file" in late and "token" not in late:
        found["token"] = None  # of the environment, or before the command
    paths = ("token_file", "tls_ca", "cert", "key")
    found |= late
    found |= {name: Path(found[name]) for name in paths if found[name]}
    return Login(**found)


def _target_of(ctx: Any, here: str | None) -> str | None:
    """The target of a command: given behind it, before it, or as its default says."""
    before: str | None = ctx.find_root().params.get("target")
    source = ctx.get_parameter_source("target")
    return here if before is None or (source is not None and source.name == "COMMANDLINE") else before


@contextmanager
def connected(target: str) -> Iterator[Client]:
    """Connect to the service; exit with a message if nothing listens."""
    from sash_client import Client, Unavailable

    with Client(target, **LOGIN) as sash:
        try:
            yield sash
        except Unavailable as error:
            if error.unreachable and "refused" in error.message:
                fail(f"nothing listens on {sash.target}; is `sash serve` running?")
            raise
