"""The command line's client side; `main` adds ``serve``.

Answers go to standard output, as a table or (``--json``) one JSON document a line; errors to standard error, and
the exit status is 1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from sash.cli_complete import complete_keys, complete_windows
from sash.cli_grouping import Ascending, Bys, Havings, N, TopBy, Wheres, grouping_of
from sash.cli_login import LOCAL, login_of
from sash.cli_output import Progress, cell, fail, instant, json_line, size_text, table, time_of
from sash.cli_system import drop_output, files_named, interrupts
from sash.cli_view import Aggregates, Sparklines, Ticks, show, show_series, view_of
from sash.version import engine, version
from sash_client import ALL_KEYS, Answer, Client, SashClientError, Unavailable
from sash_client import backup as write_backup
from sash_client import restore as read_backup

__all__ = ["LOCAL", "LOGIN", "Json", "Key", "Name", "Target", "app", "connected", "fail", "run"]

app = typer.Typer(
    name="sash",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Target = Annotated[
    str, typer.Option("--target", "-t", envvar="SASH_TARGET", metavar="HOST[:PORT]", help="The service's gRPC address.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the window.", autocompletion=complete_windows)]
Key = Annotated[
    str | None,
    typer.Option("--key", "-k", help="The key, where the window is keyed.", autocompletion=complete_keys),
]
Lookbacks = Annotated[
    list[str] | None,
    typer.Option("--lookback", "-l", metavar="DURATION", help="5m, 1h30m, or ticks; repeatable. None: everything."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document a line.")]


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"sash {version()} (engine: {engine()})")
        raise typer.Exit


LOGIN: dict[str, Any] = {}
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
    LOGIN.clear()
    LOGIN.update(login_of(token=token, token_file=token_file, tls=tls, tls_ca=tls_ca, cert=cert, key=key))


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
    with connected(target) as sash:
        typer.echo(f"window {sash.create_window(text).name} is there")


@app.command("list")
def list_windows(ticks: Ticks = False, target: Target = LOCAL, as_json: Json = False) -> None:
    """List all windows."""
    with connected(target) as sash:
        windows = sash.list_windows()
    if as_json:
        for window in windows:
            typer.echo(json_line(asdict(window)))
        return
    counts = ("inserted", "late", "evicted", "duplicates", "ahead")
    header = ["window", "entries", "keys", *counts, "oldest", "newest", "durability"]
    rows = [
        (w.name, w.entries, w.keys, *(getattr(w.counts, name) for name in counts), *ends, w.durability)
        for w in windows
        for ends in [[instant(tick, "none" if ticks else w.spec["time_unit"]) for tick in (w.oldest, w.newest)]]
    ]
    typer.echo(table(header, rows))
    for window in windows:
        if window.problem is not None:
            typer.echo(f"{window.name} answers nothing: {window.problem}")


@app.command()
def query(
    name: Name,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key", "-k", help="The key, where the window is keyed; repeatable.", autocompletion=complete_keys
        ),
    ] = None,
    all_keys: Annotated[bool, typer.Option("--all-keys", help="Every key there is.")] = False,
    combine: Annotated[bool, typer.Option("--combine", help="One answer over the entries of all the keys.")] = False,
    lookback: Lookbacks = None,
    as_of: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="End of the lookbacks: ticks, or ISO 8601. [now]"),
    ] = None,
    where: Wheres = None,
    by: Bys = None,
    top: TopBy = None,
    n: N = 10,
    ascending: Ascending = False,
    having: Havings = None,
    aggregate: Aggregates = None,
    ticks: Ticks = False,
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """Show the aggregates of one or more lookbacks, of keys or of groups of them."""
    grouping = grouping_of(where, by, top, n, ascending, having)
    if all_keys and key:
        fail("give either --key or --all-keys")
    several = all_keys or combine or len(key or []) > 1
    one, keys = key[0] if key and not several else None, ALL_KEYS if all_keys else key
    end = None if as_of is None else time_of(as_of)
    with connected(target) as sash:
        window = sash.window(name)
        view = view_of(window, as_json, ticks, aggregate)
        answers = window.query(
            key=one,
            keys=(keys or None) if several else None,
            lookbacks=lookback or [],
            as_of=end,
            combine=combine,
            **grouping,
            **view.asked,
        )
    show(answers, view, by_key=(several or bool(grouping)) and not combine)


@app.command()
def series(
    name: Name,
    start: Annotated[str, typer.Option(metavar="TIME", help="Where the first bucket starts: ticks, or ISO 8601.")],
    end: Annotated[str, typer.Option(metavar="TIME", help="What all buckets start before.")],
    step: Annotated[str | None, typer.Option(metavar="DURATION", help="From one bucket's start to the next.")] = None,
    gap: Annotated[str | None, typer.Option(metavar="DURATION", help="Instead: sessions that end with it.")] = None,
    width: Annotated[str | None, typer.Option(metavar="DURATION", help="How long a bucket is. [step]")] = None,
    key: Key = None,
    where: Wheres = None,
    by: Bys = None,
    top: TopBy = None,
    n: N = 10,
    ascending: Ascending = False,
    having: Havings = None,
    aggregate: Aggregates = None,
    ticks: Ticks = False,
    sparkline: Sparklines = None,
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """Show the aggregates of many buckets, one a line; with --by, of each group of keys."""
    grouping, first, last = grouping_of(where, by, top, n, ascending, having), time_of(start), time_of(end)
    drawn = sys.stdout.isatty() if sparkline is None else sparkline
    with connected(target) as sash:
        window = sash.window(name)
        view = view_of(window, as_json, ticks, aggregate)
        if by or top or having:
            if key is not None or step is None:
                fail("give --step, and either --key, or --by, --top and --having")
            groups = window.series_groups(first, last, step=step, width=width, **grouping, **view.asked)
            for i, group in enumerate(groups):
                if not as_json:
                    typer.echo(
                        ("\n" if i else "") + ", ".join(f"{k} {cell(v)}" for k, v in (group.parts or {}).items())
                    )
                show_series(group, view, drawn)
            return
        found = window.series(first, last, step=step, width=width, gap=gap, key=key, where=where, **view.asked)
    show_series(found, view, drawn)


@app.command()
def keys(
    name: Name,
    prefix: Annotated[str, typer.Option(help="Only keys that start so.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="As many at most.")] = 1000,
    where: Wheres = None,
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """List the keys that have entries, in the order of their first entries."""
    with connected(target) as sash:
        for key in sash.window(name).keys(prefix, limit=limit, where=where):
            typer.echo(json_line(key) if as_json else cell(key))


@app.command()
def watch(
    name: Name,
    key: Key = None,
    lookback: Lookbacks = None,
    every: Annotated[float, typer.Option(min=0.05, help="Seconds between two looks.")] = 1.0,
    times: Annotated[int | None, typer.Option(min=1, help="Stop after so many looks. [never]")] = None,
    where: Wheres = None,
    by: Bys = None,
    top: TopBy = None,
    n: N = 10,
    ascending: Ascending = False,
    having: Havings = None,
    aggregate: Aggregates = None,
    ticks: Ticks = False,
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """Show the aggregates again whenever they have changed."""
    shown: list[Answer] | None = None
    grouping = grouping_of(where, by, top, n, ascending, having)
    with connected(target) as sash, interrupts() as interrupted:
        window = sash.window(name)
        view = view_of(window, as_json, ticks, aggregate)
        looks = 0
        while True:
            answers = window.query(key=key, lookbacks=lookback or [], **grouping, **view.asked)
            # As text, because NaN is not equal to itself.
            if shown is None or repr(answers) != repr(shown):
                show(answers, view, by_key=bool(grouping))
                shown = answers
            looks += 1
            if looks == times:
                return
            if interrupted.wait(every):
                raise KeyboardInterrupt


@app.command()
def evict(
    name: Name,
    through: Annotated[str | None, typer.Option(metavar="TIME", help="Entries of this time and older leave.")] = None,
    start: Annotated[str | None, typer.Option(metavar="TIME", help="With --end: a range of time leaves.")] = None,
    end: Annotated[str | None, typer.Option(metavar="TIME", help="The last time of the range.")] = None,
    key: Key = None,
    target: Target = LOCAL,
) -> None:
    """Remove the oldest entries, or those of a range of time."""
    time, first, last = (None if text is None else time_of(text) for text in (through, start, end))
    with connected(target) as sash:
        evicted = sash.window(name).bulk_evict(time, start=first, end=last, key=key).evicted
    typer.echo(f"{evicted} entries are evicted")


@app.command()
def punctuate(
    name: Name,
    time: Annotated[str, typer.Argument(metavar="TIME", help="Entries with this time and older are final.")],
    target: Target = LOCAL,
) -> None:
    """Say what is final, in a window with slide.until."""
    with connected(target) as sash:
        typer.echo(f"{time} is final; {sash.window(name).punctuate(time_of(time)).evicted} entries have left")


@app.command()
def delete(name: Name, target: Target = LOCAL) -> None:
    """Delete a window and its entries."""
    with connected(target) as sash:
        typer.echo(f"window {name} is deleted; it had {sash.delete_window(name)} entries")


@app.command("export")
def export_window(
    name: Name,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to write; - is standard output.")],
    target: Target = LOCAL,
) -> None:
    """Write a window, with all that is known of it, as one file."""
    with connected(target) as sash, files_named(file):
        size = sash.export_window(name, sys.stdout.buffer if str(file) == "-" else file)
    typer.echo(f"window {name} is in {file}: {size_text(size)}", err=str(file) == "-")


@app.command("import")
def import_window(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What export wrote; - is standard input.")],
    name: Annotated[str | None, typer.Option("--name", help="Another name for the window. [its own]")] = None,
    target: Target = LOCAL,
) -> None:
    """Create a window from what export wrote."""
    with connected(target) as sash, files_named(file):
        window = sash.import_window(sys.stdin.buffer if str(file) == "-" else file, name)
    typer.echo(f"window {window.name} is there: {window.entries} entries")


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to write: a ZIP file with a member a window.")],
    target: Target = LOCAL,
) -> None:
    """Write all windows into one file, while serving. Each window is as it is at one moment, which differ."""
    with connected(target) as sash, files_named(file), Progress() as progress:
        names = write_backup(sash, file, progress)
    typer.echo(f"{len(names)} windows are in {file}: {size_text(file.stat().st_size)}")


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What backup wrote.")],
    only: Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="This window; repeatable.")] = None,
    target: Target = LOCAL,
) -> None:
    """Create the windows that backup wrote; one that is there is left as it is, and is an error."""
    with connected(target) as sash, files_named(file), Progress() as progress:
        restored = read_backup(sash, file, only or [], progress)
    failed = {name: error for name, error in restored.items() if error is not None}
    typer.echo(f"{len(restored) - len(failed)} of {len(restored)} windows are restored")
    for name, error in failed.items():
        typer.echo(f"sash: {cell(name)}: {error.message}", err=True)
    if failed:
        sys.exit(1)


@contextmanager
def connected(target: str) -> Iterator[Client]:
    """Connect to the service; exit with a message if nothing listens."""
    with Client(target, **LOGIN) as sash:
        try:
            yield sash
        except Unavailable as error:
            if error.unreachable and "refused" in error.message:
                fail(f"nothing listens on {sash.target}; is `sash serve` running?")
            raise


def run() -> None:
    """Run the command line. An error of the service is one line on standard error."""
    try:
        app(prog_name="sash")  # the name by which shells ask for completion
    except SashClientError as error:
        limit = f" (limit: {error.limit})" if error.limit else ""
        fail(f"{error.message}{limit}")
    except OSError as error:  # such as a full disk behind standard output
        drop_output()
        fail(error.strerror or str(error))
    except KeyboardInterrupt:
        sys.exit(130)
