"""The command ``sash answers-at``: a file of pairs of a key and a time into a file with their answers beside them.

pairs.parquet ──▶ batches of rows ──▶ answers_at of the client ──▶ features.parquet      any number of rows: one batch
                                                                                         is in memory
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sash_cli import missing
from sash_cli.options import LOCAL, Aggregates, Lookbacks, Name, Target, Wheres, connected
from sash_cli.output import fail, rows_progress

if TYPE_CHECKING:  # as in `options`
    from sash_client.windows.keys import Pairing

_ROWS = 65_536


def answers_at(
    name: Name,
    pairs: Annotated[
        str, typer.Argument(metavar="FILE", help="CSV, Parquet or Arrow, with a time and a key in a row.")
    ],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="CSV, Parquet or Arrow, by its name.")],
    time_column: Annotated[str, typer.Option("--time", metavar="COLUMN", help="The column with the times.")] = "time",
    key_column: Annotated[
        str | None, typer.Option("--key", "-k", metavar="COLUMN", help="The column with the keys. [key]")
    ] = None,
    others: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="WINDOW[=COLUMN]", help="Another window, and the column with its keys."),
    ] = None,
    known_at: Annotated[
        str | None,
        typer.Option("--known-at", metavar="COLUMN", help="The column with known_at of earlier answers, one in a row."),
    ] = None,
    lookback: Lookbacks = None,
    where: Wheres = None,
    aggregate: Aggregates = None,
    target: Target = LOCAL,
) -> None:
    """Answer about many keys, each as of a time of its own: a training set, a row for each pair of a file.

    With several windows, columns have the names of their windows before their own: cards_sum_1h.
    """
    try:
        from sash_cli.load_files import format_of
        from sash_cli.pair_files import WrongFile, batches, written
    except ModuleNotFoundError as error:
        fail(missing(error, "load"))
    kinds = {file: format_of(file) for file in (pairs, output)}
    for file, kind in kinds.items():
        if kind not in ("csv", "parquet", "arrow"):
            fail(f"{file}: a name that ends with .csv, .parquet or .arrow says what is in it")
    options: dict[str, Any] = {"time": time_column, "key": key_column, "lookbacks": lookback or []}
    options |= {"where": where, "aggregates": aggregate, "known_at": known_at}
    part = Path(f"{output}.part")
    from sash_client import SashClientError

    with connected(target) as sash:
        answered = partial(sash.window(name).answers_at, **options)
        if others:
            answered = partial(sash.answers_at, windows={name: {}, **dict(map(_named, others))}, **options)
        try:
            with rows_progress() as show:
                tables = _answered(answered, batches(pairs, str(kinds[pairs]), _ROWS), partial(show, pairs))
                rows = written(part, str(kinds[output]), tables)
            os.replace(part, output)
        except (SashClientError, WrongFile, OSError) as error:
            fail(f"{pairs}: {error.message if isinstance(error, SashClientError) else error}")
        finally:
            with suppress(OSError):
                part.unlink()
    typer.echo(f"{rows:,} rows in {output}")


def _named(window: str) -> tuple[str, Pairing]:
    """A window, and its options."""
    name, _, column = window.partition("=")
    return name, {"key": column} if column else {}


def _answered(
    ask: Callable[[Any], Any], tables: Iterator[tuple[Any, float | None]], show: Callable[[int, float | None], None]
) -> Iterator[Any]:
    rows = 0
    for table, done in tables:
        yield ask(table)
        rows += table.num_rows
        show(rows, done)
