"""The command line's client side: answers go to standard output, as a table or (``--json``) one JSON document a line.

Errors go to standard error, and the exit status is 1. `sash.main` adds the commands of the service.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from sash_cli import questions, windows, writes
from sash_cli.load import load
from sash_cli.options import LOGIN, login_of
from sash_cli.output import drop_output, fail
from sash_cli.top import top
from sash_client import SashClientError

__all__ = ["app", "run"]

app = typer.Typer(
    name="sash",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        from sash_engine.version import engine, version  # what only asks a service needs no engine

        typer.echo(f"sash {version()} (engine: {engine()})")
        raise typer.Exit


@app.callback()
def sash(
    _: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version, and end.")
    ] = False,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="SASH_TOKEN",
            show_envvar=True,
            help="The token to call with. Others on this machine can see it here; prefer the variable, or a file.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(envvar="SASH_TOKEN_FILE", metavar="FILE", help="A file with the token.")
    ] = None,
    tls: Annotated[
        bool | None,
        typer.Option(
            "--tls/--no-tls",
            envvar="SASH_TLS",
            help="Use TLS; --no-tls sends a token in the clear, even to another machine.",
        ),
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(envvar="SASH_TLS_CA", metavar="FILE", help="Use TLS, with the authorities of this file (PEM)."),
    ] = None,
    cert: Annotated[
        Path | None,
        typer.Option(envvar="SASH_CLIENT_CERT", metavar="FILE", help="Use TLS, with this certificate of one's own."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(envvar="SASH_CLIENT_KEY", metavar="FILE", help="The private key of --cert.")
    ] = None,
) -> None:
    """Sliding-window aggregates as a service."""
    LOGIN.clear()
    LOGIN.update(login_of(token=token, token_file=token_file, tls=tls, tls_ca=tls_ca, cert=cert, key=key))


_COMMANDS: dict[str, Callable[..., None]] = {
    "create": windows.create,
    "list": windows.list_windows,
    "describe": windows.describe,
    "query": questions.query,
    "series": questions.series,
    "keys": questions.keys,
    "watch": questions.watch,
    "top": top,
    "insert": writes.insert,
    "load": load,
    "retract": writes.retract,
    "update": writes.update,
    "evict": writes.evict,
    "punctuate": writes.punctuate,
    "delete": windows.delete,
    "export": windows.export_window,
    "import": windows.import_window,
    "backup": windows.backup,
    "restore": windows.restore,
    "reshard": windows.reshard,
    "topology": windows.topology,
    "shards": windows.topology,
    "move": windows.move,
}
for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)


def run() -> None:
    """Run the command line. An error of the service is one line on standard error."""
    try:
        app(prog_name="sash")  # the name by which shells ask for completion
    except SashClientError as error:
        limit = f" (limit: {error.limit})" if error.limit else ""
        fail(f"{error.message}{limit}")
    except OSError as error:  # such as a full disk behind standard output
        drop_output()
        fail(error.strerror or str(error))
    except KeyboardInterrupt:
        sys.exit(130)
