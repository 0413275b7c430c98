"""The command line's client side: answers go to standard output, as a table or (``--json``) one JSON document a line.

Errors go to standard error, and the exit status is 1. `sash.main` adds the commands of the service.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
import typer.core

from sash_cli import command, questions, windows, writes
from sash_cli.command import STYLE, Command
from sash_cli.ingest import ingest
from sash_cli.load import load
from sash_cli.mcp import mcp
from sash_cli.options import Login, log_in, spelled, take_login
from sash_cli.pairs import answers_at
from sash_cli.rules import rules
from sash_cli.top import top

_NOBODY = Login()

HEADINGS = {
    "Questions": ("query", "range", "series", "entries", "keys", "watch", "answers-at", "rules", "mcp"),
    "Groups of commands": ("window", "data", "admin"),
    "The service": ("serve", "top"),
}
"""The headings of the help, with their commands."""

GROUPS = {
    "window": "Windows: create, list, describe, delete, export, import.",
    "data": "Entries: insert, admit, load, ingest, retract, update, evict, punctuate.",
    "admin": "What is stored, and who serves it: backup, restore, reshard, topology, move, check, token.",
}
"""Commands that have commands. Each of these is one of `sash`, too, as it was before there were groups."""


_WHOLE = 1_000
"""Characters of a command's first sentence: it is broken into lines, and not cut."""


class ClientCommand(Command):
    """A command that calls a service: who calls may also stand behind it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words behind the command."""
        return super().parse_args(ctx, take_login(ctx, args))

    def invoke(self, ctx: Any) -> Any:
        """Call the command."""
        log_in(ctx)
        return super().invoke(ctx)


class _Grouped(typer.core.TyperGroup):
    """Shows the commands in groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in HEADINGS.items():
            known = [(name, self.commands[name]) for name in names if name in self.commands]
            if rows := [(name, each.get_short_help_str(_WHOLE)) for name, each in known]:
                with formatter.section(title):
                    formatter.write_dl(rows)


app = typer.Typer(
    name="sash",
    cls=_Grouped,
    no_args_is_help=True,
    epilog="--target, --token, --token-file, --tls, --tls-ca and --cert may stand before or behind a command.",
    **STYLE,
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
    target: Annotated[
        str | None,
        typer.Option(
            "--target", "-t", metavar="HOST[:PORT]", help="The service's gRPC address.  [env var: SASH_TARGET]"
        ),
    ] = None,
    login: Login = _NOBODY,
) -> None:
    """Sliding-window aggregates as a service."""
    login.arguments()  # an error of theirs comes before that of a command


app.callback()(spelled(sash))

_COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "": {
        "query": questions.query,
        "range": questions.range_query,
        "series": questions.series,
        "entries": questions.entries,
        "keys": questions.keys,
        "watch": questions.watch,
        "answers-at": answers_at,
        "rules": rules,
        "mcp": mcp,
        "top": top,
    },
    "window": {
        "create": windows.create,
        "list": windows.list_windows,
        "describe": windows.describe,
        "delete": windows.delete,
        "export": windows.export_window,
        "import": windows.import_window,
    },
    "data": {
        "insert": writes.insert,
        "admit": writes.admit,
        "load": load,
        "ingest": ingest,
        "retract": writes.retract,
        "update": writes.update,
        "evict": writes.evict,
        "punctuate": writes.punctuate,
    },
    "admin": {
        "backup": windows.backup,
        "restore": windows.restore,
        "reshard": windows.reshard,
        "topology": windows.topology,
        "move": windows.move,
    },
}
groups = {
    name: typer.Typer(name=name, help=text, no_args_is_help=True, rich_markup_mode=None)
    for name, text in GROUPS.items()
}
"""The commands that have commands, by name."""
for _group in groups.values():
    app.add_typer(_group)
for _of, _commands in _COMMANDS.items():
    for _name, _command in _commands.items():
        if _of:
            groups[_of].command(_name, cls=ClientCommand)(spelled(_command))
        app.command(_name, cls=ClientCommand, hidden=bool(_of))(spelled(_command))
app.command("shards", cls=ClientCommand, hidden=True)(spelled(windows.topology))


def run() -> None:
    """Run the command that the command line names."""
    command.run(app, "sash", sys.argv[1:])  # the name by which shells ask for completion
