"""The command ``sash check``: finds damaged values in a directory or in Redis, and salvages what is not damaged.

sash check DATA                       read-only; exit status 1 if something is damaged
sash check --salvage DATA NEWDATA     copies what is whole to a new place; exit status 1 if something is left behind
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from sash.extras import missing

if TYPE_CHECKING:
    from sash.durability.check import CheckedWindow, Damage, Found

__all__ = ["check"]

_WHERE = "a directory, redis://… or rediss://…"


def check(
    data: Annotated[str, typer.Argument(metavar="DATA", help=f"What to look through: {_WHERE}, without a server.")],
    new: Annotated[
        str | None, typer.Argument(metavar="[NEWDATA]", help=f"Where to salvage to, with --salvage: {_WHERE}; empty.")
    ] = None,
    salvage: Annotated[bool, typer.Option("--salvage", help="Write what is whole to NEWDATA.")] = False,
    prefix: Annotated[
        str | None, typer.Option(help="Prefix of DATA, where it is in Redis. [SASH_REDIS_PREFIX, sash]")
    ] = None,
    new_prefix: Annotated[str | None, typer.Option(help="Prefix of NEWDATA, where it is in Redis. [as DATA's]")] = None,
) -> None:
    """Say which stored values are damaged and whom that concerns; salvage what is whole. DATA is never changed."""
    # This command prints each damaged value and window once: the log of the recovery would repeat them.
    logging.getLogger("sash").setLevel(logging.CRITICAL + 1)
    if salvage != (new is not None):
        _fail("give NEWDATA with --salvage" if salvage else "give --salvage with NEWDATA: nothing else is written")
    # Imported here and below, because all other commands are clients and should not wait for the engine.
    try:
        from sash_engine.errors import SashError

        try:
            whole = _check_all(data, prefix, new, new_prefix)
        except SashError as error:
            _fail(error.message)
    except ModuleNotFoundError as error:
        _fail(missing(error, "server"))
    if not whole:
        sys.exit(1)


def _fail(message: str) -> NoReturn:
    typer.echo(f"sash: {message}", err=True)
    sys.exit(1)


def _check_all(data: str, prefix: str | None, new: str | None, new_prefix: str | None) -> bool:
    """Check every shard of `data`; salvage it to `new` unless that is None; return whether everything is whole."""
    from sash.settings import load_settings
    from sash.shards.layout import places

    found = places(load_settings(data=data, redis_prefix=prefix))
    if len(found) > 1 and new is not None:
        told = ", ".join(place for place, _ in found[:2])
        _fail(f"{data} has {len(found)} shards: salvage each by itself ({told}, …)")
    whole = True
    for place, shard_prefix in found:
        if len(found) > 1:
            typer.echo(f"{place} {shard_prefix}:" if place == data else f"{place}:")
        whole &= _check(place, shard_prefix, new, new_prefix)
    return whole


def _check(data: str, prefix: str, new: str | None, new_prefix: str | None) -> bool:
    """Check `data`, and salvage it to `new` unless that is None; return whether everything is whole."""
    from sash.clock import SystemClock
    from sash.durability.check import check
    from sash.settings import load_settings
    from sash.tiers.views import open_view

    view = open_view(data, prefix)
    try:
        found = check(view, SystemClock())
        _show(found)
        if new is not None:
            asyncio.run(_salvage(found, new, load_settings(redis_prefix=new_prefix or prefix).redis_prefix))
            for problem in view.problems():
                if problem not in found.problems:
                    typer.echo(problem)
    finally:
        view.close()
    return found.whole


def _show(found: Found) -> None:
    for problem in found.problems:
        typer.echo(problem)
    for damage in found.damages:
        typer.echo(f"{damage.problem}{_concern(damage)}")
    for window in found.windows:
        typer.echo(_state(window))
    size = f"{len(found.windows)} windows, {found.values:,} values, {found.size:,} bytes"
    typer.echo(f"{size}: all is well" if found.whole else f"{size}: {len(found.damages)} values are damaged or missing")


def _concern(damage: Damage) -> str:
    if damage.window is None:
        return ""
    entries = "" if damage.entries is None else f", {damage.entries:,} entries"
    return f" (window {damage.window!r}{entries})"


def _state(window: CheckedWindow) -> str:
    what = f"window {window.name!r}"
    journal = f"the journal has {window.writes:,} of its writes, with {window.entries:,} entries"
    if window.partial is None:
        return f"{what} cannot be read: {window.problem}. Its stored blocks have {window.stored:,} rows, and {journal}"
    said = f"{what}: {window.partial.window.info().entries:,} entries"
    if window.left_out:
        said += f", and {window.left_out:,} in values that are damaged or missing"
    if window.problem is not None:
        said += f"; it would not be served: {window.problem}. These are its entries before that; behind it {journal}"
    return said


async def _salvage(found: Found, new: str, prefix: str) -> None:
    """Copy all windows that can be read to a new place."""
    from sash.clock import SystemClock
    from sash.durability import formats as values
    from sash.durability.catalogue import Catalogue
    from sash.durability.salvage import salvage
    from sash.durability.storage import Storage
    from sash.tiers import open_tier
    from sash_engine.errors import FailedPrecondition

    tier = open_tier(new, prefix)
    if tier is None:
        raise FailedPrecondition("NEWDATA must be a place that keeps what is written there", field="data")
    tier.acquire()
    try:
        there = tier.get_many([values.meta_key(), values.journal_key(), values.last_group_key()])
    finally:
        tier.close()
    if any(value is not None for value in there):
        raise FailedPrecondition(f"{new!r} is not empty: salvage to a new place", field="data")
    storage = Storage(Catalogue(max_windows=len(found.windows)), SystemClock(), open_tier(new, prefix))
    await storage.start()
    try:
        for window in found.windows:
            if window.partial is None:
                typer.echo(f"window {window.name!r} is left behind")
                continue
            entries = await salvage(window, storage)
            behind = window.left_out + window.entries
            left = "" if window.whole else f"; {behind:,} entries and {window.writes:,} writes are left behind"
            typer.echo(f"window {window.name!r} is in {new}: {entries:,} entries{left}")
    finally:
        await storage.stop()
