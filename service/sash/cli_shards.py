"""The commands ``sash topology`` (or ``sash shards``) and ``sash move``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from sash.cli import LOCAL, Json, Target, connected
from sash.cli_output import json_line, table
from sash_client.answers import Topology

__all__ = ["move", "topology"]


def topology(target: Target = LOCAL, as_json: Json = False) -> None:
    """Show which processes serve the windows, and the shards of each with entries and bytes that wait for a commit."""
    with connected(target) as sash:
        found = sash.topology()
    _show(found, as_json)


def move(
    shard: Annotated[int, typer.Argument(metavar="SHARD", help="The shard, from 0.")],
    process: Annotated[int, typer.Argument(metavar="PROCESS", help="The number of the process that takes it.")],
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """Have a process take a shard, where processes share them over Redis; wait until it has it."""
    with connected(target) as sash:
        found = sash.move_shard(shard, process)
    _show(found, as_json)


def _show(found: Topology, as_json: bool) -> None:
    if as_json:
        typer.echo(json_line(asdict(found)))
        return
    rows = [
        (
            each.number,
            "yes" if each.up else "no",
            each.address or each.grpc_port,
            sum(size.entries for size in each.sizes) if each.sizes else "",
            sum(size.pending_bytes for size in each.sizes) if each.sizes else "",
            " ".join(map(str, each.shards)),
        )
        for each in found.processes
    ]
    typer.echo(table(["process", "up", "own grpc", "entries", "pending bytes", "shards"], rows))
    served = {shard for each in found.processes if each.up for shard in each.shards}
    if missing := [str(shard) for shard in range(found.shards) if shard not in served]:
        typer.echo(f"nobody serves: {' '.join(missing)}")
