"""The command ``sash load``: files of entries into a window, each row once.

    file ──▶ chunks 1, 2, 3, …  ──▶ bulk-insert, with a producer's name and the chunk's number

The service has the number of the last chunk. So the command goes on where it was stopped, and a second run changes
nothing. The service also has digests of the first chunk and of the last ones. The command sends these again, so that a
file that has changed is refused.

With `--history` every row must be older than the slide, as it is when the command begins. So no key gets an entry that
moves its now into the slide. Rows from a time on are left out with `--before`.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol
from uuid import uuid4

import typer

from sash_cli import missing
from sash_cli.options import LOCAL, Name, Target, connected
from sash_cli.output import fail, interrupts, time_of
from sash_client import FailedPrecondition, SashClientError, Window, WriteResult
from sash_client.data.times import to_tick, to_ticks
from sash_wire.durations import NANOSECONDS, parse_duration

if TYPE_CHECKING:
    from sash_cli.load_files import Chunk, Mapped
    from sash_client.data.times import TimeLike

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
        from sash_cli import load_files
    except ModuleNotFoundError as error:
        fail(missing(error, "load"))
    kinds = [kind or load_files.format_of(file) for file in files]
    for file, found in zip(files, kinds, strict=True):
        if found not in set(load_files.FORMATS.values()):
            fail(f"{file}: give --format csv, ndjson, parquet or arrow")
    if before is not None and not history:
        fail("--before goes with --history")
    end = None if before is None else time_of(before)
    named = [(file, str(found)) for file, found in zip(files, kinds, strict=True)]
    loads = [(producer, named)] if producer is not None else [(_producer_of(file), [(file, k)]) for file, k in named]
    with connected(target) as sash, interrupts() as interrupted:
        window = sash.window(name)
        mapped = _mapped(window, time_column, key_column, field or [])
        past = _past(window, end) if history else None
        for writer, some in loads:
            loaded = Load(window, writer, mapped, skip_missing, past)
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


@dataclass(frozen=True)
class Past:
    """Which rows `--history` takes.

    Args:
        unit: the window's time unit.
        before: rows of this time and later are left out; None: none are.
        through: rows of this time and older are older than the slide; None: the window has no now yet.
    """

    unit: str
    before: int | None
    through: int | None

    def of(self, table: Any) -> Any:
        """The rows of a table that are not left out."""
        if self.before is None:
            return table
        taken = to_ticks(table["time"], self.unit) < self.before
        return table if taken.all() else table.filter(taken)

    def check(self, table: Any) -> None:
        """Check that all rows are older than the slide; raises WrongFile."""
        from sash_cli.load_files import WrongFile

        if self.through is not None and table.num_rows:
            newest = int(to_ticks(table["time"], self.unit).max())
            if newest > self.through:
                raise WrongFile(
                    f"a row is of {newest}, and the slide begins behind {self.through}: --before {self.through + 1} "
                    "leaves out what is in the slide; without --history all rows are loaded"
                )


class Load:
    """One sequence of chunks, under one producer's name.

    Args:
        window: where they go.
        producer: the name.
        mapped: where the window's columns come from.
        skip_missing: whether to leave out rows in which a column has no value.
        past: which rows are taken; None: all.
    """

    def __init__(
        self, window: Window, producer: str, mapped: Mapped, skip_missing: bool, past: Past | None = None
    ) -> None:
        self._window, self._producer, self._mapped, self._skip_missing = window, producer, mapped, skip_missing
        self._past = past
        self.file = ""
        """The file that is being read."""
        self.rows = 0
        """Rows read so far."""
        self._before = 0
        self._rejected = 0
        self._left_out = 0
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
                if self._past is not None and number >= next_:
                    self._past.check(self._past.of(chunk.table))
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
        if self._past is not None:
            counts["left out"] = self._left_out
        if done.history:
            counts["only in the history"] = done.history
        return f"{self.file}: {self.rows:,} rows: " + ", ".join(f"{count:,} {name}" for name, count in counts.items())

    def _next(self) -> int:
        """Return the number of the next chunk: the service says it where a number is too high."""
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

        table = chunk.table if self._past is None else self._past.of(chunk.table)
        try:
            done = self._window.bulk_insert(table, time="time", producer=self._producer, sequence=number)
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
            self._left_out += chunk.table.num_rows - table.num_rows
            self._result += done

    def _otherwise(self) -> str:
        return "To load it beside what is there, give another name: --producer"


def _producer_of(file: str) -> str:
    """The producer's name of a file: that of its path. Standard input has a new one each time."""
    if file == "-":
        return f"load - {uuid4().hex}"
    path = Path(file).resolve()
    return f"load {re.sub('[^A-Za-z0-9_.-]', '_', path.name)[:80]} {sha256(bytes(path)).hexdigest()[:16]}"


def _past(window: Window, before: TimeLike | None) -> Past:
    """Which rows belong to the history of a window; ends with a message where it takes none."""
    info = window.describe()
    spec, slide = info.spec, info.spec.get("slide", {})
    unit = spec.get("time_unit", "us")
    if not spec.get("history"):
        fail(f"window {window.name} has no history: its spec says how long it keeps what is older than the slide")
    if info.punctuated is not None:
        fail(f"window {window.name} is final through {info.punctuated}: older entries would be late")
    now = time.time_ns() // NANOSECONDS[unit] if slide.get("clock") == "wall" else info.high_water_mark
    through = None if now is None else now - parse_duration(slide["max_age"], unit, "slide.max_age")
    return Past(unit, None if before is None else to_tick(before, unit, "--before"), through)


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
