"""The commands ``sash retract`` and ``sash update``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

import typer

from sash.cli import LOCAL, Key, Name, Target, connected
from sash.cli_output import time_of
from sash.cli_window import entry_of, key_of

__all__ = ["retract", "update"]

Time = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="The time of the entry: ticks, or ISO 8601. Without it, the newest entry of the key with the identity.",
    ),
]


def retract(
    name: Name,
    identity: Annotated[str, typer.Option("--id", metavar="ID", help="Its identity.")],
    time: Time = None,
    key: Key = None,
    target: Target = LOCAL,
) -> None:
    """Remove one entry of a window with an identity."""
    with connected(target) as sash:
        window = sash.window(name)
        spec = window.describe().spec
        integer = spec["fields"].get(spec.get("identity")) == "int64"
        named = int(identity) if integer and identity.removeprefix("-").isdecimal() else identity
        retracted = window.retract(_times(time), [named], keys=key).retracted
    typer.echo("the entry is retracted" if retracted else "there is no such entry")


def update(
    name: Name,
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="FIELD=VALUE…",
            help="Its fields, the identity among them, as they are to be, and the parts of its key.",
        ),
    ],
    time: Time = None,
    key: Key = None,
    target: Target = LOCAL,
) -> None:
    """Give one entry of a window with an identity other values."""
    with connected(target) as sash:
        window = sash.window(name)
        fields, parts = entry_of(values, window.describe().spec)
        columns = {field: [value] for field, value in fields.items()}
        named = key_of(key, parts)
        keys = {part: [value] for part, value in named.items()} if isinstance(named, Mapping) else named
        corrected = window.update(_times(time), columns, keys=keys).corrected
    typer.echo("the entry is corrected" if corrected else "there is no such entry")


def _times(time: str | None) -> list[int | datetime] | None:
    return None if time is None else [time_of(time)]
