"""All commands: those of `sash_cli`, which are clients; ``serve``, ``check`` and ``token``."""

from __future__ import annotations

from sash.commands import token
from sash.commands.check import check
from sash.serve import MORE, serve
from sash_cli.app import app, groups, run
from sash_cli.command import Command

__all__ = ["app", "run"]

groups["admin"].command(cls=Command)(check)
groups["admin"].add_typer(token.app)
app.command(cls=Command, hidden=True)(check)  # as they were called before there were groups
app.add_typer(token.app, hidden=True)
app.command(cls=Command, epilog=MORE)(serve)
