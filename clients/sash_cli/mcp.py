"""The command ``sash mcp``: windows as tools of a model, over standard input and output."""

from __future__ import annotations

from typing import Annotated

import typer

from sash_cli import missing
from sash_cli.options import LOCAL, Target, connected
from sash_cli.output import fail


def mcp(
    write: Annotated[
        bool, typer.Option("--write", help="Also tools that insert entries and create windows; none deletes.")
    ] = False,
    target: Target = LOCAL,
) -> None:
    """Let a model ask windows: a server of the Model Context Protocol, over standard input and output."""
    try:
        from sash_cli.tools import server
    except ModuleNotFoundError as error:
        fail(missing(error, "mcp"))
    with connected(target) as sash:
        server(sash, write).run("stdio")
