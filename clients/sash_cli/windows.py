"""The commands that concern a service's windows and processes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sash_cli.options import LOCAL, Json, Name, Target, Ticks, connected
from sash_cli.output import Progress, cell, fail, files_named, instant, json_line, reason, size_text, summed_up, table

if TYPE_CHECKING:  # as in `options`
    from sash_client import WindowInfo
    from sash_client.answers import Topology


def create(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.yaml", help="The spec, YAML or JSON; - reads standard input.")],
    target: Target = LOCAL,
) -> None:
    """Create a window from its spec; does nothing where it exists with this very spec."""
    try:
        text = sys.stdin.read() if str(spec) == "-" else spec.read_text()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"cannot read {spec}: {reason(error)}")
    with connected(target) as sash:
        typer.echo(f"window {sash.create_window(text).name} is there")


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


def describe(
    name: Name,
    only_spec: Annotated[bool, typer.Option("--spec", help="Only the spec, as create takes it.")] = False,
    ticks: Ticks = False,
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """Show a window: how much is in it, what happened to its entries, and its spec."""
    with connected(target) as sash:
        info = sash.window(name).describe()
    if as_json:
        typer.echo(json_line(info.spec if only_spec else asdict(info)))
        return
    if not only_spec:
        unit = "none" if ticks else info.spec["time_unit"]
        lines = _state(info, unit)
        width = max(map(len, lines))
        for title, value in lines.items():
            typer.echo(f"{title.ljust(width)}  {cell(value)}")
        typer.echo("")
    typer.echo(_yaml(info.spec), nl=False)


def _state(info: WindowInfo, unit: str) -> dict[str, Any]:
    times = {
        "oldest": info.oldest,
        "newest": info.newest,
        "newest ever": info.high_water_mark,
        "final through": info.punctuated,
    }
    lines = {
        "entries": info.entries,
        "keys": info.keys,
        **{title: instant(tick, unit) for title, tick in times.items()},
        **asdict(info.counts),
        "durability": info.durability,
        "problem": info.problem,
    }
    return {title: value for title, value in lines.items() if value is not None}


def _yaml(spec: Mapping[str, Any]) -> str:
    import yaml  # only this command writes it

    return str(yaml.safe_dump(dict(spec), sort_keys=False, allow_unicode=True))


def delete(name: Name, target: Target = LOCAL) -> None:
    """Delete a window and its entries."""
    with connected(target) as sash:
        typer.echo(f"window {name} is deleted; it had {sash.delete_window(name)} entries")


def export_window(
    name: Name,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to write; - is standard output.")],
    target: Target = LOCAL,
) -> None:
    """Write a window, with all that is known of it, as one file."""
    from sash_client.backups.archive import counted
    from sash_client.files import replacing

    with (
        connected(target) as sash,
        files_named(file),
        replacing(sys.stdout.buffer if str(file) == "-" else file) as out,
        Progress(ends=False) as progress,
    ):
        size = sash.export_window(name, counted(out, name, progress))
    typer.echo(f"window {name} is in {file}: {size_text(size)}", err=str(file) == "-")


def import_window(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What export wrote; - is standard input.")],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Another name for the window. [its own]")
    ] = None,
    target: Target = LOCAL,
) -> None:
    """Create a window from what export wrote."""
    with connected(target) as sash, files_named(file):
        window = sash.import_window(sys.stdin.buffer if str(file) == "-" else file, name)
    typer.echo(f"window {window.name} is there: {window.entries} entries")


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to write: a ZIP file with a member a window.")],
    target: Target = LOCAL,
) -> None:
    """Write all windows into one file, while serving. Each window is as it is at one moment, which differ."""
    from sash_client import backup as write_backup

    with connected(target) as sash, files_named(file):
        entries, begun = {window.name: window.entries for window in sash.list_windows()}, dict[str, int]()

        def progress(name: str, amount: int) -> None:
            begun[name] = entries.get(name, 0)
            shown(name, amount, (sum(begun.values()) - begun[name]) / max(sum(entries.values()), 1))

        with Progress() as shown:
            names = write_backup(sash, file, progress)
    typer.echo(f"{len(names)} windows are in {file}: {size_text(file.stat().st_size)}")


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What backup wrote.")],
    only: Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="This window; repeatable.")] = None,
    target: Target = LOCAL,
) -> None:
    """Create the windows that backup wrote; one that is there is left as it is, and is an error."""
    import zipfile

    from sash_client import restore as read_backup

    with connected(target) as sash, files_named(file):
        size = 0
        if not only and zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                size = sum(each.file_size for each in archive.infolist())

        read = dict[str, int]()

        def progress(name: str, amount: int) -> None:
            read[name] = amount
            shown(name, amount, sum(read.values()) / size if size else None)

        with Progress() as shown:
            restored = read_backup(sash, file, only or [], progress)
    summed_up(restored, "restored")


def reshard(
    into: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The gRPC address of the deployment to copy into.")],
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where the file of one window has room at a time.")
    ] = None,
    target: Target = LOCAL,
) -> None:
    """Copy all windows into another deployment, with another number of shards, while their producers rest."""
    from sash_client.backups.resharding import reshard as copy_all

    with connected(target) as source, connected(into) as new:
        found = copy_all(source, new, folder)
    summed_up(found, "copied")


def topology(target: Target = LOCAL, as_json: Json = False) -> None:
    """Show which processes serve the windows, and the shards of each with entries and bytes that wait for a commit."""
    with connected(target) as sash:
        found = sash.topology()
    _show_topology(found, as_json)


def move(
    shard: Annotated[int, typer.Argument(metavar="SHARD", help="The shard, from 0.")],
    process: Annotated[int, typer.Argument(metavar="PROCESS", help="The number of the process that takes it.")],
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """Have a process take a shard, where processes share them over Redis; wait until it has it."""
    with connected(target) as sash:
        found = sash.move_shard(shard, process)
    _show_topology(found, as_json)


def _show_topology(found: Topology, as_json: bool) -> None:
    if as_json:
        typer.echo(json_line(asdict(found)))
        return
    rows = [
        (
            each.number,
            "yes" if each.up else "no",
            each.address or each.grpc_port,
            sum(size.entries for size in each.sizes) if each.sizes else "",
            sum(size.pending_bytes for size in each.sizes) if each.sizes else "",
            " ".join(map(str, each.shards)),
        )
        for each in found.processes
    ]
    typer.echo(table(["process", "up", "own grpc", "entries", "pending bytes", "shards"], rows))
    served = {shard for each in found.processes if each.up for shard in each.shards}
    if missing := [str(shard) for shard in range(found.shards) if shard not in served]:
        typer.echo(f"nobody serves: {' '.join(missing)}")
