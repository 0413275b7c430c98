"""The command ``sash load``: files of entries into a window, each row once.

    file ──▶ chunks 1, 2, 3, …  ──▶ bulk-insert, with a producer's name and the chunk's number

The service has the number of the last chunk. So the command goes on where it was stopped, and a second run changes
nothing. The service also has digests of the first chunk and of the last ones. The command sends these again, so that a
file that has changed is refused.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol
from uuid import uuid4

import typer

from sash_cli import missing
from sash_cli.options import LOCAL, Name, Target, connected
from sash_cli.output import fail, interrupts

if TYPE_CHECKING:  # as in `options`; what reads files brings pyarrow
    from sash_cli.load_files import Chunk, Mapped
    from sash_client import Window

__all__ = ["load"]

_CHECKED = 127
"""So many of the last chunks are sent again: the service keeps the digests of a producer's last 128 writes."""

_LINE_S = 5.0
"""Where there is no terminal, a line of progress comes so often."""


def load(
    name: Name,
    files: Annotated[
        list[str], typer.Argument(metavar="FILE…", help="CSV, NDJSON, Parquet or Arrow; - is standard input.")
    ],
    time_column: Annotated[str, typer.Option("--time", metavar="COLUMN", help="The column with the times.")] = "time",
    key_column: Annotated[
        str | None, typer.Option("--key", "-k", metavar="COLUMN", help="The column with the keys. [key]")
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option("--field", "-f", metavar="FIELD=COLUMN", help="A field's column; repeatable. [its own name]"),
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
    target: Target = LOCAL,
) -> None:
    """Load files into a window, each row once: a second run goes on where the first was stopped."""
    try:
        from sash_cli import load_files
    except ModuleNotFoundError as error:
        fail(missing(error, "load"))
    kinds = [kind or load_files.format_of(file) for file in files]
    for file, found in zip(files, kinds, strict=True):
        if found not in set(load_files.FORMATS.values()):
            fail(f"{file}: give --format csv, ndjson, parquet or arrow")
    named = [(file, str(found)) for file, found in zip(files, kinds, strict=True)]
    loads = [(producer, named)] if producer is not None else [(_producer_of(file), [(file, k)]) for file, k in named]
    from sash_client import SashClientError

    with connected(target) as sash, interrupts() as interrupted:
        window = sash.window(name)
        mapped = _mapped(window, time_column, key_column, field or [])
        for writer, some in loads:
            loaded = Load(window, writer, mapped, skip_missing)
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


class Load:
    """One sequence of chunks, under one producer's name.

    Args:
        window: where they go.
        producer: the name.
        mapped: where the window's columns come from.
        skip_missing: whether to leave out rows in which a column has no value.
    """

    def __init__(self, window: Window, producer: str, mapped: Mapped, skip_missing: bool) -> None:
        from sash_client import WriteResult

        self._window, self._producer, self._mapped, self._skip_missing = window, producer, mapped, skip_missing
        self.file = ""
        """The file that is being read."""
        self.rows = 0
        """Rows read so far."""
        self._before = 0
        self._rejected = 0
        self._result = WriteResult()

    def chunks(self, files: Sequence[tuple[str, str]]) -> Iterator[tuple[float | None, str]]:
        """Load files, with their formats, as one sequence; yield after each chunk.

        Yields:
            how much of the file has been read, and the file.

        Raises:
            SashClientError: a chunk is refused.
            WrongFile: a file cannot be read, or is not the one that was loaded before.
        """
        from sash_cli.load_files import WrongFile, chunks

        self.file = files[0][0]
        next_ = self._next()
        number = 0
        for self.file, kind in files:
            for chunk in chunks(self.file, kind, self._mapped, self._skip_missing):
                number += 1
                if number == 1 or number >= next_ - _CHECKED:
                    self._send(chunk, number)
                else:
                    self._before += chunk.rows
                self.rows += chunk.rows
                yield chunk.done, self.file
        if number < next_ - 1:
            raise WrongFile(
                f"{next_ - 1} chunks of it were loaded before, and it has {number}: it has changed. {self._otherwise()}"
            )

    def summary(self) -> str:
        """Say what has become of the rows."""
        done = self._result
        counts = {
            "inserted": done.inserted,
            "late": done.late,
            "duplicates": done.duplicates,
            "too far ahead": done.ahead,
            "rejected": self._rejected,
            "loaded before": self._before,
        }
        return f"{self.file}: {self.rows:,} rows: " + ", ".join(f"{count:,} {name}" for name, count in counts.items())

    def _next(self) -> int:
        """Return the number of the next chunk: the service says it where a number is too high."""
        from sash_client import FailedPrecondition

        nothing: dict[str, Any] = {name: [] for name in self._mapped.types if name != "key"}
        keys: list[str] | None = [] if "key" in self._mapped.types else None
        try:
            self._window.bulk_insert([], nothing, keys=keys, producer=self._producer, sequence=2**63 - 1)
        except FailedPrecondition as error:
            if error.field == "sequence" and error.limit is not None:
                return int(error.limit)
            raise
        raise AssertionError("the service took a number that was too high")

    def _send(self, chunk: Chunk, number: int) -> None:
        from sash_cli.load_files import WrongFile
        from sash_client import FailedPrecondition

        try:
            done = self._window.bulk_insert(chunk.table, time="time", producer=self._producer, sequence=number)
        except FailedPrecondition as error:
            if error.reason != "SEQUENCE_REUSED":
                raise
            raise WrongFile(
                f"chunk {number} was loaded before, with other data: the file or an option has changed. "
                f"{self._otherwise()}"
            ) from None
        assert done.sequences == 1  # a chunk is one message
        if done.already_applied:
            self._before += chunk.rows
        else:
            self._rejected += chunk.rows - chunk.table.num_rows
            self._result += done

    def _otherwise(self) -> str:
        return "To load it beside what is there, give another name: --producer"


def _producer_of(file: str) -> str:
    """The producer's name of a file: that of its path. Standard input has a new one each time."""
    if file == "-":
        return f"load - {uuid4().hex}"
    path = Path(file).resolve()
    return f"load {re.sub('[^A-Za-z0-9_.-]', '_', path.name)[:80]} {sha256(bytes(path)).hexdigest()[:16]}"


def _mapped(window: Window, time_column: str, key_column: str | None, given: Sequence[str]) -> Mapped:
    from sash_cli.load_files import Mapped

    spec = window._spec()
    types = {"key": "string"} if spec.keyed else {}
    if key_column is not None and not spec.keyed:
        fail(f"window {window.name} is not keyed; leave out --key")
    types |= dict(sorted(spec.fields.items()))
    columns = {"time": time_column, **{name: name for name in types}}
    if key_column is not None:
        columns["key"] = key_column
    for each in given:
        name, equals, column = each.partition("=")
        if not equals or name not in spec.fields:
            fail(f"--field {each}: write FIELD=COLUMN, with a field of the window: {', '.join(sorted(spec.fields))}")
        columns[name] = column
    return Mapped(types, columns, frozenset(spec.nullable))


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
