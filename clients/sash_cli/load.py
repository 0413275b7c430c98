"""The command ``sash load``: files of entries into a window, each row once; see `loading`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from sash_cli import missing
from sash_cli.options import LOCAL, Name, Target, connected
from sash_cli.output import fail, interrupts

if TYPE_CHECKING:  # as in `options`; what reads files brings pyarrow
    pass

__all__ = ["load"]

_LINE_S = 5.0
"""Where there is no terminal, a line of progress comes so often."""


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
        from sash_cli import load_files, loading
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

    with connected(target) as sash, interrupts() as interrupted:
        window = sash.window(name)
        mapped = loading.mapped_of(window, mapping, time_column, key_column, field or [], part or [])
        past = loading.past_of(window, before) if history else None
        for writer, some in loads:
            loaded = loading.Load(window, writer, mapped, skip_missing, past)
            try:
                with _shown() as show:
                    for at, file in loaded.chunks(some):
                        if interrupted.is_set():
                            raise KeyboardInterrupt
                        show(file, loaded.rows, at)
            except (SashClientError, load_files.WrongFile, OSError) as error:
                if loaded.rows:
                    typer.echo(loaded.summary())
                text = error.message if isinstance(error, SashClientError) else str(error)
                fail(f"{loaded.file}: {text}")
            typer.echo(loaded.summary())


# ---------------------------------------------------------------- progress


class _Show(Protocol):
    def __call__(self, file: str, rows: int, done: float | None) -> None: ...


@contextmanager
def _shown() -> Iterator[_Show]:
    """Show progress on standard error: a bar on a terminal, else a line now and then."""
    began_s = time.monotonic()

    def rate(rows: int) -> str:
        return f"{rows:,} rows, {rows / max(time.monotonic() - began_s, 1e-3):,.0f} rows/s"

    if not sys.stderr.isatty():
        due_s = began_s + _LINE_S

        def line(file: str, rows: int, done: float | None) -> None:
            nonlocal due_s
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + _LINE_S
                part = "" if done is None else f", {done:.0%}"
                typer.echo(f"{file}: {rate(rows)}{part}", err=True)

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[rate]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None, rate="")

        def bar(file: str, rows: int, done: float | None) -> None:
            total = None if done is None else 1.0
            progress.update(task, description=file, total=total, completed=done or 0.0, rate=rate(rows))

        yield bar
