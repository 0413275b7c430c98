"""Prints answers, tables, progress and errors of the command line."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from math import isfinite
from typing import Any, NoReturn, Self

import numpy as np
import typer

from sash_client import Answer, Series

__all__ = ["Progress", "cell", "fail", "instants", "json_line", "show", "show_series", "size_text", "table", "time_of"]


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


def size_text(size: int) -> str:
    return f"{size:,} bytes" if size < 2**20 else f"{size / 2**20:,.1f} MiB"


def instants(series: Series) -> list[str]:
    if series.time_unit == "none":
        return [str(tick) for tick in series.times.tolist()]
    return [str(text) for text in np.datetime_as_string(series.datetimes(), timezone="UTC")]


def show(answers: Sequence[Answer], as_json: bool, by_key: bool = False) -> None:
    if as_json:
        for answer in answers:
            document = asdict(answer)
            del document["partials"]  # the command line never asks for them
            if answer.parts is None:
                del document["parts"]
            typer.echo(json_line(document))
        return
    aggregates = list(answers[0].aggregates) if answers else []
    parts = list(answers[0].parts or {}) if by_key and answers else []
    by_key = by_key and not parts
    header = (*parts, *(["key"] if by_key else []), "lookback", "entries", *aggregates)
    rows = [
        (
            *((answer.parts or {})[name] for name in parts),
            *([answer.key] if by_key else []),
            *(answer.lookback or "all", answer.entries),
            *(answer.aggregates[name] for name in aggregates),
        )
        for answer in answers
    ]
    typer.echo(table(header, rows))


def show_series(found: Series, as_json: bool) -> None:
    columns = [values.tolist() for values in found.aggregates.values()]
    ends = {} if found.last is None else {"last": found.last}
    if as_json:
        heads = {"time": found.times, **ends, "entries": found.entries}
        parts = {} if found.parts is None else {"parts": dict(found.parts)}
        for *head, values in zip(*(each.tolist() for each in heads.values()), _rows(columns, len(found)), strict=True):
            aggregates = dict(zip(found.aggregates, values, strict=True))
            typer.echo(json_line({**parts, **dict(zip(heads, head, strict=True)), "aggregates": aggregates}))
        return
    shown = [instants(found), *(instants(replace(found, times=last)) for last in ends.values())]
    rows = zip(*shown, found.entries.tolist(), *columns, strict=True)
    typer.echo(table(("time", *ends, "entries", *found.aggregates), rows))


def _rows(columns: list[list[Any]], n: int) -> list[tuple[Any, ...]]:
    return list(zip(*columns, strict=True)) if columns else [()] * n


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


def time_of(text: str) -> int | datetime:
    """Return a time that was written as ticks or as ISO 8601; exit with a message if it is neither."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{text!r} is not a time: write ticks, or ISO 8601 (2013-01-01T06:00Z)")
    return found if found.tzinfo else found.replace(tzinfo=UTC)
