"""The command ``sash data load``: files of entries into a window, each row once; see `loading`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TextIO

import typer

from sash_cli import missing
from sash_cli.options import LOCAL, Name, Target, connected, one_of
from sash_cli.output import fail, files_named, interrupts, reason, rows_progress


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
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="csv, ndjson, parquet or arrow. [by the file's name]",
            autocompletion=one_of("csv", "ndjson", "parquet", "arrow"),
        ),
    ] = None,
    producer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The name under which the rows are loaded once, all files together. [one for each path]",
        ),
    ] = None,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave out rows in which a column has no value, and count them.")
    ] = False,
    bad_rows: Annotated[
        str | None,
        typer.Option(
            metavar="skip|FILE",
            help="Leave out all wrong rows, and count them; with a FILE, write them there, a JSON object a line.",
        ),
    ] = None,
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
        from sash_cli import load_files, loading, wrong_rows
    except ModuleNotFoundError as error:
        fail(missing(error, "load"))
    kinds = [kind or load_files.format_of(file) for file in files]
    for file, found in zip(files, kinds, strict=True):
        if found not in set(load_files.FORMATS.values()):
            fail(f"{file}: give --format csv, ndjson, parquet or arrow")
    if before is not None and not history:
        fail("--before goes with --history")
    named = [(file, str(found)) for file, found in zip(files, kinds, strict=True)]
    loads = (
        [(producer, named)] if producer is not None else [(loading.producer_of(file), [(file, k)]) for file, k in named]
    )
    from sash_client import SashClientError  # as in `options`

    with connected(target) as sash, interrupts() as interrupted, _kept(bad_rows) as out:
        window = sash.window(name)
        mapped = loading.mapped_of(window, mapping, time_column, key_column, field or [], part or [])
        past = loading.past_of(window, before) if history else None
        bad = wrong_rows.BadRows(skip_missing, bad_rows is not None, out)
        for writer, some in loads:
            loaded = loading.Load(window, writer, mapped, bad, past)
            try:
                with rows_progress() as progress:
                    for done, file in loaded.chunks(some):
                        if interrupted.is_set():
                            raise KeyboardInterrupt
                        progress(file, loaded.rows, done)
            except (SashClientError, wrong_rows.WrongFile, OSError) as error:
                if loaded.rows:
                    typer.echo(loaded.summary())
                text = error.message if isinstance(error, SashClientError) else reason(error)
                fail(f"{loaded.file}: {text}")
            typer.echo(loaded.summary())


@contextmanager
def _kept(bad_rows: str | None) -> Iterator[TextIO | None]:
    """Open the file for wrong rows, where there is one."""
    if bad_rows in (None, "skip"):
        yield None
        return
    path = Path(str(bad_rows))
    with files_named(path):
        file = path.open("w", encoding="utf-8")
    with file:
        yield file
