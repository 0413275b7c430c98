"""The command ``sash reshard``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sash.cli import LOCAL, Target, connected
from sash.cli_output import cell
from sash_client.resharding import reshard as copy_all

__all__ = ["reshard"]


def reshard(
    into: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The gRPC address of the deployment to copy into.")],
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where the file of one window has room at a time.")
    ] = None,
    target: Target = LOCAL,
) -> None:
    """Copy all windows into another deployment, with another number of shards, while their producers rest."""
    with connected(target) as source, connected(into) as new:
        found = copy_all(source, new, folder)
    failed = {name: error for name, error in found.items() if error is not None}
    typer.echo(f"{len(found) - len(failed)} of {len(found)} windows are copied")
    for name, error in failed.items():
        typer.echo(f"sash: {cell(name)}: {error.message}", err=True)
    if failed:
        sys.exit(1)
