"""The command line's client side; `main` adds ``serve``.

Answers go to standard output, as a table or (``--json``) one JSON document a line; errors to standard error, and
the exit status is 1.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn, Self

import numpy as np
import typer

from sash.version import version
from sash_client import ALL_KEYS, TLS, Answer, Client, SashClientError, Series, Unavailable
from sash_client import backup as write_backup
from sash_client import restore as read_backup

__all__ = ["app", "fail", "run"]

app = typer.Typer(
    name="sash",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Target = Annotated[
    str, typer.Option("--target", "-t", envvar="SASH_TARGET", metavar="HOST[:PORT]", help="The service's gRPC address.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the window.")]
Key = Annotated[str | None, typer.Option("--key", "-k", help="The key, where the window is keyed.")]
Lookbacks = Annotated[
    list[str] | None,
    typer.Option("--lookback", "-l", metavar="DURATION", help="5m, 1h30m, or ticks; repeatable. None: everything."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document a line.")]
LOCAL = "127.0.0.1:7070"


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"sash {version()}")
        raise typer.Exit


_login: dict[str, Any] = {}
"""What clients of this process show: arguments of `Client`."""


@app.callback()
def sash(
    _: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version, and end.")
    ] = False,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="SASH_TOKEN",
            show_envvar=True,
            help="The token to call with. Others on this machine can see it here; prefer the variable, or a file.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(envvar="SASH_TOKEN_FILE", metavar="FILE", help="A file with the token.")
    ] = None,
    tls: Annotated[
        bool | None,
        typer.Option(
            "--tls/--no-tls",
            envvar="SASH_TLS",
            help="Use TLS; --no-tls sends a token in the clear, even to another machine.",
        ),
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(envvar="SASH_TLS_CA", metavar="FILE", help="Use TLS, with the authorities of this file (PEM)."),
    ] = None,
    cert: Annotated[
        Path | None,
        typer.Option(envvar="SASH_CLIENT_CERT", metavar="FILE", help="Use TLS, with this certificate of one's own."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(envvar="SASH_CLIENT_KEY", metavar="FILE", help="The private key of --cert.")
    ] = None,
) -> None:
    """Sliding-window aggregates as a service."""
    _login.clear()
    if token is None and token_file is not None:
        try:
            token = token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            fail(f"cannot read {token_file}: {error}")
    if token is not None:
        _login["token"] = token
    if any(path is not None for path in (tls_ca, cert, key)):
        if tls is False:
            fail("give either --no-tls, or files for TLS")
        _login["tls"] = TLS(tls_ca, cert, key)
    elif tls is not None:
        _login["tls"] = tls


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
    with _service(target) as sash:
        typer.echo(f"window {sash.create_window(text).name} is there")


@app.command("list")
def list_windows(target: Target = LOCAL, as_json: Json = False) -> None:
    """List all windows."""
    with _service(target) as sash:
        windows = sash.list_windows()
    if as_json:
        for window in windows:
            typer.echo(_json(asdict(window)))
        return
    counts = ("inserted", "late", "evicted", "duplicates", "ahead")
    header = ["window", "entries", "keys", *counts, "oldest", "newest", "durability"]
    rows = [
        (w.name, w.entries, w.keys, *(getattr(w.counts, name) for name in counts), w.oldest, w.newest, w.durability)
        for w in windows
    ]
    typer.echo(_table(header, rows))
    for window in windows:
        if window.problem is not None:
            typer.echo(f"{window.name} answers nothing: {window.problem}")


@app.command()
def query(
    name: Name,
    key: Annotated[
        list[str] | None, typer.Option("--key", "-k", help="The key, where the window is keyed; repeatable.")
    ] = None,
    all_keys: Annotated[bool, typer.Option("--all-keys", help="Every key there is.")] = False,
    combine: Annotated[bool, typer.Option("--combine", help="One answer over the entries of all the keys.")] = False,
    lookback: Lookbacks = None,
    as_of: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="End of the lookbacks: ticks, or ISO 8601. [now]"),
    ] = None,
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """Show the aggregates of one or more lookbacks."""
    if all_keys and key:
        fail("give either --key or --all-keys")
    several = all_keys or combine or len(key or []) > 1
    keys = ALL_KEYS if all_keys else key
    one = key[0] if key and not several else None
    end = None if as_of is None else _time(as_of)
    with _service(target) as sash:
        answers = sash.window(name).query(
            key=one, keys=keys if several else None, lookbacks=lookback or [], as_of=end, combine=combine
        )
    _show(answers, as_json, by_key=several and not combine)


@app.command()
def series(
    name: Name,
    start: Annotated[str, typer.Option(metavar="TIME", help="Where the first bucket starts: ticks, or ISO 8601.")],
    end: Annotated[str, typer.Option(metavar="TIME", help="What all buckets start before.")],
    step: Annotated[str, typer.Option(metavar="DURATION", help="From one bucket's start to the next.")],
    width: Annotated[str | None, typer.Option(metavar="DURATION", help="How long a bucket is. [step]")] = None,
    key: Key = None,
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """Show the aggregates of many buckets, one a line."""
    with _service(target) as sash:
        found = sash.window(name).series(_time(start), _time(end), step=step, width=width, key=key)
    columns = [values.tolist() for values in found.aggregates.values()]
    if as_json:
        for tick, entries, *values in zip(found.times.tolist(), found.entries.tolist(), *columns, strict=True):
            aggregates = dict(zip(found.aggregates, values, strict=True))
            typer.echo(_json({"time": tick, "entries": entries, "aggregates": aggregates}))
        return
    rows = zip(_instants(found), found.entries.tolist(), *columns, strict=True)
    typer.echo(_table(("time", "entries", *found.aggregates), rows))


@app.command()
def keys(
    name: Name,
    prefix: Annotated[str, typer.Option(help="Only keys that start so.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="As many at most.")] = 1000,
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """List the keys that have entries, in the order of their first entries."""
    with _service(target) as sash:
        for key in sash.window(name).keys(prefix, limit=limit):
            typer.echo(_json(key) if as_json else _cell(key))


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
    with _service(target) as sash, _interrupts() as interrupted:
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
            if interrupted.wait(every):
                raise KeyboardInterrupt


@app.command()
def delete(name: Name, target: Target = LOCAL) -> None:
    """Delete a window and its entries."""
    with _service(target) as sash:
        typer.echo(f"window {name} is deleted; it had {sash.delete_window(name)} entries")


@app.command("export")
def export_window(
    name: Name,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to write; - is standard output.")],
    target: Target = LOCAL,
) -> None:
    """Write a window, with all that is known of it, as one file."""
    with _service(target) as sash, _files(file):
        size = sash.export_window(name, sys.stdout.buffer if str(file) == "-" else file)
    typer.echo(f"window {name} is in {file}: {_bytes(size)}", err=str(file) == "-")


@app.command("import")
def import_window(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What export wrote; - is standard input.")],
    name: Annotated[str | None, typer.Option("--name", help="Another name for the window. [its own]")] = None,
    target: Target = LOCAL,
) -> None:
    """Create a window from what export wrote."""
    with _service(target) as sash, _files(file):
        window = sash.import_window(sys.stdin.buffer if str(file) == "-" else file, name)
    typer.echo(f"window {window.name} is there: {window.entries} entries")


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to write: a ZIP file with a member a window.")],
    target: Target = LOCAL,
) -> None:
    """Write all windows into one file, while serving. Each window is as it is at one moment, which differ."""
    with _service(target) as sash, _files(file), _Progress() as progress:
        names = write_backup(sash, file, progress)
    typer.echo(f"{len(names)} windows are in {file}: {_bytes(file.stat().st_size)}")


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What backup wrote.")],
    only: Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="This window; repeatable.")] = None,
    target: Target = LOCAL,
) -> None:
    """Create the windows that backup wrote; one that is there is left as it is, and is an error."""
    with _service(target) as sash, _files(file), _Progress() as progress:
        restored = read_backup(sash, file, only or [], progress)
    failed = {name: error for name, error in restored.items() if error is not None}
    typer.echo(f"{len(restored) - len(failed)} of {len(restored)} windows are restored")
    for name, error in failed.items():
        typer.echo(f"sash: {_cell(name)}: {error.message}", err=True)
    if failed:
        sys.exit(1)


@contextmanager
def _service(target: str) -> Iterator[Client]:
    """A client of the service; where there is none, says so."""
    with Client(target, **_login) as sash:
        try:
            yield sash
        except Unavailable as error:
            if error.unreachable and "refused" in error.message:
                fail(f"nothing listens on {sash.target}; is `sash serve` running?")
            raise


def run() -> None:
    """Run the command line; a refusal of the service is one line on standard error, not a traceback."""
    try:
        app()
    except SashClientError as error:
        limit = f" (limit: {error.limit})" if error.limit else ""
        fail(f"{error.message}{limit}")
    except OSError as error:  # such as a full disk behind standard output
        _drop_output()
        fail(error.strerror or str(error))
    except KeyboardInterrupt:
        sys.exit(130)


def fail(message: str) -> NoReturn:
    """Say what is wrong on standard error and exit with status 1."""
    typer.echo(f"sash: {message}", err=True)
    sys.exit(1)


def _drop_output() -> None:
    """Forget what could not be written, which would fail again as the interpreter ends."""
    with suppress(OSError, ValueError):
        sys.stdout.close()


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Notice Ctrl-C also where it comes while gRPC works, which swallows a KeyboardInterrupt now and then."""
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
def _files(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        fail(f"{path}: {error.strerror or error}")


class _Progress:
    """One line a window on standard error; on a terminal it grows as the bytes pass."""

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
            typer.echo(f"{start}{_cell(self._name)}: {_bytes(self._size)}{end}", err=True, nl=False)


def _bytes(size: int) -> str:
    return f"{size:,} bytes" if size < 2**20 else f"{size / 2**20:,.1f} MiB"


def _time(text: str) -> int | datetime:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{text!r} is no time: write ticks, or ISO 8601 (2013-01-01T06:00Z)")
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _instants(series: Series) -> list[str]:
    if series.time_unit == "none":
        return [str(tick) for tick in series.times.tolist()]
    return [str(text) for text in np.datetime_as_string(series.datetimes(), timezone="UTC")]


def _show(answers: Sequence[Answer], as_json: bool, by_key: bool = False) -> None:
    if as_json:
        for answer in answers:
            document = asdict(answer)
            del document["partials"]  # never asked for here
            typer.echo(_json(document))
        return
    aggregates = list(answers[0].aggregates) if answers else []
    header = (*(["key"] if by_key else []), "lookback", "entries", *aggregates)
    rows = [
        (
            *([answer.key] if by_key else []),
            *(answer.lookback or "all", answer.entries),
            *(answer.aggregates[name] for name in aggregates),
        )
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
