"""Prints tables, times, progress and errors of the command line; its signals and files."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from math import isfinite
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self

import typer

if TYPE_CHECKING:  # as in `options`
    import numpy as np
    import numpy.typing as npt

    from sash_client import SashClientError

__all__ = [
    "Progress",
    "RowsShown",
    "cell",
    "drop_output",
    "fail",
    "files_named",
    "instant",
    "instants",
    "interrupts",
    "json_line",
    "rows_shown",
    "size_text",
    "summed_up",
    "table",
    "time_of",
]

_LINE_S = 5.0
"""Where there is no terminal, a line of progress comes so often."""


def fail(message: str) -> NoReturn:
    """Print an error and exit with status 1."""
    typer.echo(f"sash: {message}", err=True)
    sys.exit(1)


class Progress:
    """Prints a line for each window on standard error; on a terminal the line shows the bytes so far."""

    def __init__(self) -> None:
        self._name = ""
        self._size = 0
        self._shown_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._line("\n")

    def __call__(self, name: str, size: int) -> None:
        if name != self._name:
            self._line("\n")
        self._name, self._size = name, size
        if sys.stderr.isatty() and time.monotonic() - self._shown_s > 0.1:
            self._shown_s = time.monotonic()
            self._line("")

    def _line(self, end: str) -> None:
        if self._name:
            start = "\r" if sys.stderr.isatty() else ""
            typer.echo(f"{start}{cell(self._name)}: {size_text(self._size)}{end}", err=True, nl=False)


class RowsShown(Protocol):
    def __call__(self, file: str, rows: int, done: float | None) -> None: ...


@contextmanager
def rows_shown() -> Iterator[RowsShown]:
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


def size_text(size: int) -> str:
    return f"{size:,} bytes" if size < 2**20 else f"{size / 2**20:,.1f} MiB"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [[str(name) for name in header], *[[cell(value) for value in row] for row in rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    # The first column is a name, the others are mostly numbers.
    return "\n".join(
        "  ".join(
            text.ljust(width) if i == 0 else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def cell(value: Any) -> str:
    if value is None:
        return "-"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    # Anybody may have written the values: do not let them control the terminal.
    return "".join(c if c.isprintable() else "�" for c in text)


def json_line(document: Any) -> str:
    return json.dumps(_plain(document), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Replace NaN and the infinities by strings, as REST does."""
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


def instants(ticks: npt.NDArray[np.int64], unit: str) -> list[str]:
    """Return times as ISO 8601 in the unit; the ticks themselves where the unit is "none"."""
    if unit == "none":
        return [str(tick) for tick in ticks.tolist()]
    import numpy as np

    return [str(text) for text in np.datetime_as_string(ticks.view(f"datetime64[{unit}]"), timezone="UTC")]


def instant(tick: int | None, unit: str) -> str | None:
    if tick is None:
        return None
    import numpy as np

    return instants(np.array([tick]), unit)[0]


def time_of(text: str) -> int | datetime:
    """Return a time that was written as ticks or as ISO 8601; exit with a message if it is neither."""
    from sash_client import InvalidArgument
    from sash_client.data.times import read_time

    try:
        return read_time(text)
    except InvalidArgument as error:
        fail(error.message)


def summed_up(found: Mapping[str, SashClientError | None], done: str) -> None:
    """Say of how many windows something is done, and why not of the others; exit with status 1 if there are any."""
    failed = {name: error for name, error in found.items() if error is not None}
    typer.echo(f"{len(found) - len(failed)} of {len(found)} windows are {done}")
    for name, error in failed.items():
        typer.echo(f"sash: {cell(name)}: {error.message}", err=True)
    if failed:
        sys.exit(1)


def drop_output() -> None:
    """Close standard output, so that the interpreter does not fail to flush it again at exit."""
    with suppress(OSError, ValueError):
        sys.stdout.close()


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """Note Ctrl-C in an event, because gRPC sometimes swallows the KeyboardInterrupt."""
    interrupted = threading.Event()

    def note(number: int, frame: FrameType | None) -> NoReturn:
        interrupted.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def files_named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        fail(f"{path}: {error.strerror or error}")
