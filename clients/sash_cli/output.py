"""Prints tables, times, progress and errors of the command line; its signals and files."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import typer

if TYPE_CHECKING:  # as in `options`
    import numpy as np
    import numpy.typing as npt

    from sash_client import SashClientError


def fail(message: str) -> NoReturn:
    """Print an error and exit with status 1."""
    typer.echo(f"sash: {message}", err=True)
    sys.exit(1)


def reason(error: Exception) -> str:
    """What is wrong with a file, without its path, which an OSError says besides."""
    return getattr(error, "strerror", None) or str(error)


class Progress:
    """Shows on standard error how far a long command is: on a terminal a bar, with rate and remaining time.

        flights: ██████████░░░░░░░░░░  51% 120.4 MiB, 40.1 MiB/s, 0:03 left

    Elsewhere it prints a line now and then, and one at the end of each name.

    Args:
        amount_text: spells an amount.
        ends: whether each name ends with a line where there is no terminal.
        now_s: tells the time.
    """

    def __init__(
        self,
        amount_text: Callable[[int], str] | None = None,
        ends: bool = True,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._text, self._ends, self._now_s = amount_text or size_text, ends, now_s
        self._name, self._amount, self._before = "", 0, 0
        self._began_s = self._shown_s = now_s()
        self._drawn = sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def __call__(self, name: str, amount: int, share: float | None = None) -> None:
        """So much is done of a name; and of all such a part, from 0 to 1, where the caller knows it."""
        if name != self._name:
            self._end()
            self._before += self._amount
        self._name, self._amount = name, amount
        now_s = self._now_s()
        if now_s - self._shown_s > (_BAR_S if self._drawn else _LINE_S):
            self._shown_s = now_s
            typer.echo(
                f"\r{self._line(now_s, share)}\x1b[K" if self._drawn else self._line(now_s, share),
                err=True,
                nl=not self._drawn,
            )

    def _end(self) -> None:
        if self._name and self._drawn:
            typer.echo("\r\x1b[K", err=True, nl=False)
        if self._name and self._ends:
            typer.echo(f"{cell(self._name)}: {self._text(self._amount)}", err=True)

    def _line(self, now_s: float, found: float | None) -> str:
        took_s = max(now_s - self._began_s, 1e-3)
        rate = self._text(int((self._before + self._amount) / took_s))
        if found is None:
            return f"{cell(self._name)}: {self._text(self._amount)}, {rate}/s"
        share = min(max(found, 0.0), 1.0)
        bar = f"{'█' * round(share * _BAR)}{'░' * (_BAR - round(share * _BAR))} " if self._drawn else ""
        left = f", {_clock(took_s / share - took_s)} left" if share else ""
        return f"{cell(self._name)}: {bar}{share:4.0%} {self._text(self._amount)}, {rate}/s{left}"


_BAR = 20
_BAR_S, _LINE_S = 0.1, 5.0
"""So often a bar is drawn again; a line comes where there is no terminal."""


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def rows_progress() -> Progress:
    """Return what shows how many rows of a file are done."""
    return Progress(amount_text=lambda rows: f"{rows:,} rows", ends=False)


def size_text(size: int) -> str:
    return f"{size:,} bytes" if size < 2**20 else f"{size / 2**20:,.1f} MiB"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return rows below a header, if it has names, in columns as wide as they need."""
    lines = [[str(name) for name in header]] * bool(header) + [[cell(value) for value in row] for row in rows]
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
        fail(f"{path}: {reason(error)}")
