"""The command ``sash load``; `loading` does it, which brings pyarrow and the client: other commands do without."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sash_cli import missing
from sash_cli.options import LOCAL, Name, Target
from sash_cli.output import fail

__all__ = ["load"]


def load(
    name: Name,
    files: Annotated[
        list[str], typer.Argument(metavar="FILE…", help="CSV, NDJSON, Parquet or Arrow; - is standard input.")
    ],
    time_column: Annotated[
        str | None, typer.Option("--time", metavar="COLUMN", help="The column with the times. [time]")
    ] = None,
    key_column: Annotated[
        str | None, typer.Option("--key", "-k", metavar="COLUMN", help="The column with the keys. [key]")
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option("--field", "-f", metavar="FIELD=COLUMN", help="A field's column; repeatable. [its own name]"),
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option("--part", metavar="PART=COLUMN", help="The column of a part of keys; repeatable. [its own name]"),
    ] = None,
    mapping: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A YAML file with time, key, parts and fields; options go before it."),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--format", metavar="FORMAT", help="csv, ndjson, parquet or arrow. [by the file's name]"),
    ] = None,
    producer: Annotated[
        str | None,
        typer.Option(help="The name under which the rows are loaded once, all files together. [one for each path]"),
    ] = None,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave out rows in which a column has no value, and count them.")
    ] = False,
    history: Annotated[
        bool, typer.Option("--history", help="Load into the window's history: all rows are older than its slide.")
    ] = False,
    before: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="With --history: leave out rows of this time and later, and count them."),
    ] = None,
    target: Target = LOCAL,
) -> None:
    """Load files into a window, each row once: a second run goes on where the first was stopped."""
    try:
        from sash_cli import loading
    except ModuleNotFoundError as error:
        fail(missing(error, "load"))
    columns = (mapping, time_column, key_column, field or [], part or [])
    loading.load_all(target, name, files, kind, columns, producer, skip_missing, history, before)
