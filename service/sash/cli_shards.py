"""The command ``sash shards``."""

from __future__ import annotations

from dataclasses import asdict

import typer

from sash.cli import LOCAL, Json, Target, connected
from sash.cli_output import json_line, table

__all__ = ["shards"]


def shards(target: Target = LOCAL, as_json: Json = False) -> None:
    """Show which processes serve the windows, and which shards each has."""
    with connected(target) as sash:
        found = sash.topology()
    if as_json:
        typer.echo(json_line(asdict(found)))
        return
    rows = [
        (each.number, "yes" if each.up else "no", each.grpc_port, " ".join(map(str, each.shards)))
        for each in found.processes
    ]
    typer.echo(table(["process", "up", "own grpc port", "shards"], rows))
