"""The commands that ask a window."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from sash_cli.answers import show, show_series, view_of
from sash_cli.options import (
    LOCAL,
    Grouped,
    Json,
    Key,
    Keys,
    Lookbacks,
    Name,
    Shown,
    Sparklines,
    Target,
    Wheres,
    connected,
)
from sash_cli.output import cell, fail, interrupts, json_line, time_of

if TYPE_CHECKING:  # as in `options`
    from sash_client import Answer

__all__ = ["keys", "query", "series", "watch"]

_GROUPED, _SHOWN = Grouped(), Shown()


def query(
    name: Name,
    key: Keys = None,
    all_keys: Annotated[bool, typer.Option("--all-keys", help="Every key there is.")] = False,
    combine: Annotated[bool, typer.Option("--combine", help="One answer over the entries of all the keys.")] = False,
    lookback: Lookbacks = None,
    as_of: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="End of the lookbacks: ticks, or ISO 8601. [now]"),
    ] = None,
    groups: Grouped = _GROUPED,
    shown: Shown = _SHOWN,
    target: Target = LOCAL,
) -> None:
    """Show the aggregates of one or more lookbacks, of keys or of groups of them."""
    from sash_client import ALL_KEYS

    grouping = groups.grouping()
    if all_keys and key:
        fail("give either --key or --all-keys")
    several = all_keys or combine or len(key or []) > 1
    one, keys = key[0] if key and not several else None, ALL_KEYS if all_keys else key
    end = None if as_of is None else time_of(as_of)
    with connected(target) as sash:
        window = sash.window(name)
        view = view_of(window, shown)
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


def series(
    name: Name,
    start: Annotated[str, typer.Option(metavar="TIME", help="Where the first bucket starts: ticks, or ISO 8601.")],
    end: Annotated[str, typer.Option(metavar="TIME", help="What all buckets start before.")],
    step: Annotated[str | None, typer.Option(metavar="DURATION", help="From one bucket's start to the next.")] = None,
    gap: Annotated[str | None, typer.Option(metavar="DURATION", help="Instead: sessions that end with it.")] = None,
    width: Annotated[str | None, typer.Option(metavar="DURATION", help="How long a bucket is. [step]")] = None,
    key: Key = None,
    groups: Grouped = _GROUPED,
    shown: Shown = _SHOWN,
    sparkline: Sparklines = None,
    target: Target = LOCAL,
) -> None:
    """Show the aggregates of many buckets, one a line; with --by, of each group of keys."""
    first, last = time_of(start), time_of(end)
    drawn = sys.stdout.isatty() if sparkline is None else sparkline
    with connected(target) as sash:
        window = sash.window(name)
        view = view_of(window, shown)
        if groups.by or groups.top or groups.having:
            if key is not None or step is None:
                fail("give --step, and either --key, or --by, --top and --having")
            found = window.series_groups(first, last, step=step, width=width, **groups.grouping(), **view.asked)
            for i, group in enumerate(found):
                if not shown.as_json:
                    typer.echo(
                        ("\n" if i else "") + ", ".join(f"{k} {cell(v)}" for k, v in (group.parts or {}).items())
                    )
                show_series(group, view, drawn)
            return
        one = window.series(first, last, step=step, width=width, gap=gap, key=key, where=groups.where, **view.asked)
    show_series(one, view, drawn)


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


def watch(
    name: Name,
    key: Key = None,
    lookback: Lookbacks = None,
    every: Annotated[float, typer.Option(min=0.05, help="Seconds between two looks.")] = 1.0,
    times: Annotated[int | None, typer.Option(min=1, help="Stop after so many looks. [never]")] = None,
    groups: Grouped = _GROUPED,
    shown: Shown = _SHOWN,
    target: Target = LOCAL,
) -> None:
    """Show the aggregates again whenever they have changed."""
    before: list[Answer] | None = None
    grouping = groups.grouping()
    with connected(target) as sash, interrupts() as interrupted:
        window = sash.window(name)
        view = view_of(window, shown)
        looks = 0
        while True:
            answers = window.query(key=key, lookbacks=lookback or [], **grouping, **view.asked)
            # As text, because NaN is not equal to itself.
            if before is None or repr(answers) != repr(before):
                show(answers, view, by_key=bool(grouping))
                before = answers
            looks += 1
            if looks == times:
                return
            if interrupted.wait(every):
                raise KeyboardInterrupt
