"""The command line's client side; `main` adds ``serve``.

Answers go to standard output, as a table or (``--json``) one JSON document a line; errors to standard error, and
the exit status is 1.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from sash_client import Answer, Client, SashClientError

__all__ = ["app", "fail", "run"]

app = typer.Typer(
    name="sash",
    help="Sliding-window aggregates as a service.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Target = Annotated[
    str, typer.Option("--target", "-t", envvar="SASH_TARGET", metavar="HOST:PORT", help="The service's gRPC address.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the window.")]
Key = Annotated[str | None, typer.Option("--key", "-k", help="The key, where the window is keyed.")]
Lookbacks = Annotated[
    list[str] | None,
    typer.Option("--lookback", "-l", metavar="DURATION", help="5m, 1h30m, or ticks; repeatable. None: everything."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document a line.")]
LOCAL = "127.0.0.1:7070"


@app.command()
def create(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.yaml", help="The spec, YAML or JSON; - reads standard input.")],
    target: Target = LOCAL,
) -> None:
    """Create a window from its spec; does nothing where it exists with this very spec."""
    try:
        text = sys.stdin.read() if str(spec) == "-" else spec.read_text()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"cannot read {spec}: {error}")
    with Client(target) as sash:
        typer.echo(f"window {sash.create_window(text).name} is there")


@app.command("list")
def list_windows(target: Target = LOCAL, as_json: Json = False) -> None:
    """List all windows."""
    with Client(target) as sash:
        windows = sash.list_windows()
    if as_json:
        for window in windows:
            typer.echo(_json(asdict(window)))
        return
    header = ("window", "entries", "keys", "inserted", "late", "evicted", "oldest", "newest")
    rows = [
        (w.name, w.entries, w.keys, w.counts.inserted, w.counts.late, w.counts.evicted, w.oldest, w.newest)
        for w in windows
    ]
    typer.echo(_table(header, rows))


@app.command()
def query(
    name: Name,
    key: Key = None,
    lookback: Lookbacks = None,
    as_of: Annotated[int | None, typer.Option(help="End of the lookbacks, ticks. [the key's newest entry]")] = None,
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """Show the aggregates of one or more lookbacks."""
    with Client(target) as sash:
        _show(sash.window(name).query(key=key, lookbacks=lookback or [], as_of=as_of), as_json)


@app.command()
def watch(
    name: Name,
    key: Key = None,
    lookback: Lookbacks = None,
    every: Annotated[float, typer.Option(min=0.05, help="Seconds between two looks.")] = 1.0,
    times: Annotated[int | None, typer.Option(min=1, help="Stop after so many looks. [never]")] = None,
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """Show the aggregates again whenever they have changed."""
    shown: list[Answer] | None = None
    with Client(target) as sash:
        window = sash.window(name)
        looks = 0
        while True:
            answers = window.query(key=key, lookbacks=lookback or [])
            # As text, because NaN is not equal to itself.
            if shown is None or repr(answers) != repr(shown):
                _show(answers, as_json)
                shown = answers
            looks += 1
            if looks == times:
                return
            time.sleep(every)


@app.command()
def delete(name: Name, target: Target = LOCAL) -> None:
    """Delete a window and its entries."""
    with Client(target) as sash:
        typer.echo(f"window {name} is deleted; it had {sash.delete_window(name)} entries")


def run() -> None:
    """Run the command line; a refusal of the service is one line on standard error, not a traceback."""
    try:
        app()
    except SashClientError as error:
        limit = f" (limit: {error.limit})" if error.limit else ""
        fail(f"{error.message}{limit}")
    except KeyboardInterrupt:
        sys.exit(130)


def fail(message: str) -> NoReturn:
    """Say what is wrong on standard error and exit with status 1."""
    typer.echo(f"sash: {message}", err=True)
    sys.exit(1)


def _show(answers: Sequence[Answer], as_json: bool) -> None:
    if as_json:
        for answer in answers:
            typer.echo(_json(asdict(answer)))
        return
    aggregates = list(answers[0].aggregates) if answers else []
    header = ("lookback", "entries", *aggregates)
    rows = [
        (answer.lookback or "all", answer.entries, *(answer.aggregates[name] for name in aggregates))
        for answer in answers
    ]
    typer.echo(_table(header, rows))


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [[str(cell) for cell in header], *[[_cell(cell) for cell in row] for row in rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    # The first column is a name, the others are mostly numbers.
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    # What a window holds came from anywhere: keep it from steering the terminal.
    return "".join(c if c.isprintable() else "�" for c in text)


def _json(document: Any) -> str:
    return json.dumps(_plain(document), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """With NaN and the infinities as strings, as the REST edge writes them."""
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value
