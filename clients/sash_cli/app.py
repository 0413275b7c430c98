"""The command line's client side: answers go to standard output, as a table or (``--json``) one JSON document a line.

Errors go to standard error, and the exit status is 1. `sash.main` adds the commands of the service.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from sash_cli import questions, windows, writes
from sash_cli.ingest import ingest
from sash_cli.load import load
from sash_cli.mcp import mcp
from sash_cli.options import LOGIN, Login, spelled
from sash_cli.output import drop_output, fail
from sash_cli.pairs import answers_at
from sash_cli.rules import rules
from sash_cli.top import top

__all__ = ["app", "run"]

_NOBODY = Login()
app = typer.Typer(
    name="sash",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(asked: bool) -> None:
    if asked:
        from sash_engine.version import engine, version  # what only asks a service needs no engine

        typer.echo(f"sash {version()} (engine: {engine()})")
        raise typer.Exit


def sash(
    _: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version, and end.")
    ] = False,
    login: Login = _NOBODY,
) -> None:
    """Sliding-window aggregates as a service."""
    LOGIN.clear()
    LOGIN.update(login.arguments())


app.callback()(spelled(sash))

_COMMANDS: dict[str, Callable[..., None]] = {
    "create": windows.create,
    "list": windows.list_windows,
    "describe": windows.describe,
    "query": questions.query,
    "series": questions.series,
    "answers-at": answers_at,
    "keys": questions.keys,
    "watch": questions.watch,
    "top": top,
    "mcp": mcp,
    "rules": rules,
    "insert": writes.insert,
    "load": load,
    "ingest": ingest,
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
    app.command(_name)(spelled(_command))


def run() -> None:
    """Run the command line. An error of the service is one line on standard error."""
    try:
        app(prog_name="sash")  # the name by which shells ask for completion
    except OSError as error:  # such as a full disk behind standard output
        drop_output()
        fail(error.strerror or str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        from sash_client import SashClientError

        if not isinstance(error, SashClientError):
            raise
        limit = f" (limit: {error.limit})" if error.limit else ""
        fail(f"{error.message}{limit}")
