"""The commands that ask a window."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sash_cli.answers import show, show_entries, show_series, view_of
from sash_cli.options import (
    LOCAL,
    TIMES,
    Grouped,
    Json,
    Key,
    Keys,
    Lookbacks,
    Name,
    Shown,
    Sparklines,
    Target,
    Ticks,
    Wheres,
    connected,
)
from sash_cli.output import cell, fail, interrupts, json_line

if TYPE_CHECKING:  # as in `options`
    from sash_client import Answer, Window

_GROUPED, _SHOWN = Grouped(), Shown()

AllKeys = Annotated[bool, typer.Option("--all-keys", help="Every key there is.")]


def query(
    name: Name,
    key: Keys = None,
    all_keys: AllKeys = False,
    combine: Annotated[bool, typer.Option("--combine", help="One answer over the entries of all the keys.")] = False,
    lookback: Lookbacks = None,
    as_of: Annotated[
        str | None,
        typer.Option(metavar="TIME", help=f"End of the lookbacks: {TIMES}. [the newest entry]"),
    ] = None,
    known_at: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", help="With --as-of, of a window with known: what had been applied by then."),
    ] = None,
    groups: Grouped = _GROUPED,
    shown: Shown = _SHOWN,
    target: Target = LOCAL,
) -> None:
    """Show the aggregates of one or more lookbacks, of keys or of groups of them."""
    grouping, asked = groups.grouping(), _keys(key, all_keys, combine)
    with connected(target) as sash:
        window = sash.window(name)
        view = view_of(window, shown)
        answers = window.query(
            **asked,
            lookbacks=lookback or [],
            as_of=as_of,
            combine=combine,
            known_at=known_at,
            **grouping,
            **view.asked,
        )
    show(answers, view, by_key=("keys" in asked or bool(grouping)) and not combine)


def range_query(
    name: Name,
    start: Annotated[str, typer.Option(metavar="TIME", help=f"The first time: {TIMES}.")],
    end: Annotated[str, typer.Option(metavar="TIME", help="The last time.")],
    end_exclusive: Annotated[bool, typer.Option("--end-exclusive", help="Without the entries of --end.")] = False,
    key: Keys = None,
    all_keys: AllKeys = False,
    groups: Grouped = _GROUPED,
    shown: Shown = _SHOWN,
    target: Target = LOCAL,
) -> None:
    """Show the aggregates of a range of time, all keys together; with --by, of each group of keys."""
    asked = _keys(key, all_keys, bool(groups.by or groups.top or groups.having)) | {"end_exclusive": end_exclusive}
    with connected(target) as sash:
        window = sash.window(name)
        view = view_of(window, shown)
        if groups.by or groups.top or groups.having:
            answers = list(window.range_groups(start, end, **asked, **groups.grouping(), **view.asked))
        else:
            answers = [window.range_query(start, end, where=groups.where, **asked, **view.asked)]
    show(answers, view, by_key=bool(groups.by), ranges=True)


def _keys(key: list[str] | None, all_keys: bool, several: bool = False) -> dict[str, Any]:
    """Return the key or the keys that are meant as an argument of a question; `several`: one is a list of one, too."""
    from sash_client import ALL_KEYS

    if all_keys and key:
        fail("give either --key or --all-keys")
    if all_keys or several or len(key or []) > 1:
        return {"keys": ALL_KEYS if all_keys else key or None}
    return {"key": key[0] if key else None}


def series(
    name: Name,
    start: Annotated[str | None, typer.Option(metavar="TIME", help=f"Where the first bucket starts: {TIMES}.")] = None,
    end: Annotated[str | None, typer.Option(metavar="TIME", help="What all buckets start before.")] = None,
    last: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="In their place: the buckets that reach so far back from the newest entry."
        ),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="From one bucket's start to the next. [with --last: up to 60]"),
    ] = None,
    gap: Annotated[str | None, typer.Option(metavar="DURATION", help="Instead: sessions that end with it.")] = None,
    width: Annotated[str | None, typer.Option(metavar="DURATION", help="How long a bucket is. [step]")] = None,
    key: Key = None,
    groups: Grouped = _GROUPED,
    shown: Shown = _SHOWN,
    sparkline: Sparklines = None,
    target: Target = LOCAL,
) -> None:
    """Show the aggregates of many buckets, one a line; with --by, of each group of keys."""
    if (last is None) == (start is None or end is None) or (last is not None and (start or end)):
        fail("give either --start and --end, or --last")
    first, until = start or "", end or ""
    drawn = sys.stdout.isatty() if sparkline is None else sparkline
    with connected(target) as sash:
        window = sash.window(name)
        view = view_of(window, shown)
        if last is not None:
            first, until, step = trailing(window, last, step, gap)
        if groups.by or groups.top or groups.having:
            if key is not None or step is None:
                fail("give --step, and either --key, or --by, --top and --having")
            found = window.series_groups(first, until, step=step, width=width, **groups.grouping(), **view.asked)
            for i, group in enumerate(found):
                if not shown.as_json:
                    typer.echo(
                        ("\n" if i else "") + ", ".join(f"{k} {cell(v)}" for k, v in (group.parts or {}).items())
                    )
                show_series(group, view, drawn)
            return
        one = window.series(first, until, step=step, width=width, gap=gap, key=key, where=groups.where, **view.asked)
    show_series(one, view, drawn)


_NICE_NS = [n * 10**e for e in range(9) for n in (1, 2, 5)] + [
    n * 10**9 for n in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
]
_BUCKETS = 60


def trailing(window: Window, last: str, step: str | None, gap: str | None) -> tuple[Any, Any, str | None]:
    """Return start, end and step of the buckets up to the newest entry, or up to now where that is the window's clock.

    Args:
        last: how far back they reach.
        step: where None, and no `gap` is given, one of which there are at most 60. Buckets start at multiples of it.
    """
    from sash_client.errors import refusing
    from sash_wire.durations import NANOSECONDS, parse_duration

    info = window.describe()
    unit = info.spec["time_unit"]
    length = refusing(parse_duration)(last, unit, "--last")
    newest = info.high_water_mark
    if info.spec.get("slide", {}).get("clock") == "wall":
        newest = time.time_ns() // NANOSECONDS[unit]
    if newest is None:
        fail(f"window {window.name} has had no entries yet")
    if gap is not None:
        return newest + 1 - length, newest + 1, step
    if step is None:
        per_tick = NANOSECONDS.get(unit, 1)
        nice = [ns // per_tick for ns in _NICE_NS if ns >= per_tick]
        ticks = next((each for each in nice if each * _BUCKETS >= length), -(-length // _BUCKETS))
    else:
        ticks = refusing(parse_duration)(step, unit, "--step")
    return (newest + 1 - length) // ticks * ticks, newest + 1, str(ticks)


def keys(
    name: Name,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Only keys that start so.")] = "",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="As many at most.")] = 1000,
    where: Wheres = None,
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """List the keys that have entries, in the order of their first entries."""
    with connected(target) as sash:
        for key in sash.window(name).keys(prefix, limit=limit, where=where):
            typer.echo(json_line(key) if as_json else cell(key))


def entries(
    name: Name,
    start: Annotated[str | None, typer.Option(metavar="TIME", help=f"The first time: {TIMES}. [any]")] = None,
    end: Annotated[str | None, typer.Option(metavar="TIME", help="The last time. [any]")] = None,
    key: Keys = None,
    where: Wheres = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="As many at most.")] = 20,
    reverse: Annotated[bool, typer.Option("--reverse", help="The newest entries of a key first.")] = False,
    known: Annotated[
        str,
        typer.Option(
            metavar="kept|removed",
            help="Of a window with known: with the number of each arrival, or what was retracted or corrected.",
        ),
    ] = "",
    ticks: Ticks = False,
    target: Target = LOCAL,
    as_json: Json = False,
) -> None:
    """Show the entries of a window, key by key, the oldest of a key first."""
    with connected(target) as sash:
        window = sash.window(name)
        spec = window.spec
        asked: dict[str, Any] = {"where": where, "limit": limit, "reverse": reverse, "known": known}
        for i, bulk in enumerate(window.entries(start, end, **_keys(key, all_keys=False), **asked)):
            show_entries(bulk, spec, "none" if ticks else spec["time_unit"], as_json, header=not i)


def watch(
    name: Name,
    key: Keys = None,
    all_keys: AllKeys = False,
    lookback: Lookbacks = None,
    every: Annotated[float, typer.Option(min=0.05, metavar="SECONDS", help="Seconds between two looks.")] = 1.0,
    times: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after so many looks. [never]")] = None,
    groups: Grouped = _GROUPED,
    shown: Shown = _SHOWN,
    target: Target = LOCAL,
) -> None:
    """Show the aggregates again whenever they have changed."""
    before: list[Answer] | None = None
    grouping, asked = groups.grouping(), _keys(key, all_keys)
    with connected(target) as sash, interrupts() as interrupted:
        window = sash.window(name)
        view = view_of(window, shown)
        looks = 0
        while True:
            answers = window.query(**asked, lookbacks=lookback or [], **grouping, **view.asked)
            # As text, because NaN is not equal to itself.
            if before is None or repr(answers) != repr(before):
                show(answers, view, by_key="keys" in asked or bool(grouping))
                before = answers
            looks += 1
            if looks == times:
                return
            if interrupted.wait(every):
                raise KeyboardInterrupt
