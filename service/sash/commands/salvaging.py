"""What ``sash admin check`` does: looks through the shards of a store, and copies what is whole to a new place."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import typer

from sash.durability import formats as values
from sash.durability.catalogue import Catalogue
from sash.durability.check.check import MAX_KEYS, CheckedDerived, CheckedWindow, Damage, Found, check
from sash.durability.check.salvage import salvage
from sash.durability.storage import Storage
from sash.runtime.clock import SystemClock
from sash.settings import Settings, load_settings
from sash.shards.layout import completed_shards, new_places, note_shards, places, store_of
from sash.tiers import open_tier
from sash.tiers.views import open_view
from sash_engine.errors import FailedPrecondition, SashError
from sash_engine.windows.spec.window import WindowSpec


def check_all(data: str, prefix: str | None, new: str | None, new_prefix: str | None) -> bool:
    """Check every shard of `data`; salvage it to `new` unless that is None; return whether everything is whole."""
    settings = load_settings(data=data, redis_prefix=prefix)
    found = places(settings)
    targets: list[tuple[str, str]] = []
    if new is not None:
        theirs = load_settings(data=new, redis_prefix=new_prefix or settings.redis_prefix, shards=len(found))
        targets = new_places(theirs)
    whole = True
    specs: dict[str, WindowSpec] = {}
    for i in range(len(found)) if new is None else reversed(range(len(found))):  # the first one comes last: `_salvage`
        place, shard_prefix = found[i]
        if len(found) > 1:
            typer.echo(f"{place} {shard_prefix}:" if place == data else f"{place}:")
        whole &= _check(place, shard_prefix, targets[i] if targets else None, specs)
    if new is not None and len(found) > 1:
        note_shards(theirs)  # no service starts there before all of them are there
    elif new is not None and (shards := completed_shards(data, new)) is not None:
        _complete(load_settings(data=str(Path(new).parent), shards=shards))
    return whole


def _complete(settings: Settings) -> None:
    """Note how many shards a new store has, when the last one was salvaged by itself; see `_salvage`."""
    shards = settings.shards or 1
    home, *others = [store_of(settings, shards, shard)[0] for shard in range(shards)]
    specs: dict[str, WindowSpec] = {}
    for place in others:
        view = open_view(place)
        try:
            for window in check(view, SystemClock()).windows:
                if window.partial is not None:
                    found = window.partial.window
                    specs[found.spec.name] = found.spec
                    specs |= {view.spec.name: view.spec for view in found.views}
        finally:
            view.close()

    async def complete() -> None:
        async with _stored_in(home, settings.redis_prefix) as (storage, catalogue):
            await _create_missing(specs, storage, catalogue, home)

    asyncio.run(complete())
    note_shards(settings)


def _check(data: str, prefix: str, new: tuple[str, str] | None, specs: dict[str, WindowSpec]) -> bool:
    """Check `data`, and salvage it to `new` unless that is None; return whether everything is whole."""
    view = open_view(data, prefix)
    try:
        found = check(view, SystemClock())
        _show(found)
        all_there = True
        if new is not None:
            all_there = asyncio.run(_salvage(found, *new, specs))
            for problem in view.problems():
                if problem not in found.problems:
                    typer.echo(problem)
    finally:
        view.close()
    return found.whole and all_there


def _show(found: Found) -> None:
    for problem in found.problems:
        typer.echo(problem)
    for damage in found.damages:
        typer.echo(f"{damage.problem}{_concern(damage)}")
    for window in found.windows:
        typer.echo(_state(window))
        for derived in window.derived:
            typer.echo(_derived_state(derived, window))
    windows = sum(1 + len(window.derived) for window in found.windows)
    size = f"{windows} windows, {found.values:,} values, {found.size:,} bytes"
    typer.echo(f"{size}: all is well" if found.whole else f"{size}: {len(found.damages)} values are damaged or missing")


def _concern(damage: Damage) -> str:
    if damage.window is None:
        return ""
    what = f"window {damage.window!r}"
    if damage.rollup is not None:
        return f" ({what}, rollup [{', '.join(damage.rollup)}]: no entry is lost, as the window has them)"
    entries = "" if damage.entries is None else f", {damage.entries:,} entries"
    return f" ({what}{entries})"


def _state(window: CheckedWindow) -> str:
    what = f"window {window.name!r}"
    journal = f"the journal has {window.writes:,} of its writes, with {window.entries:,} entries"
    if window.unread:
        journal += f", and groups that cannot be read have up to {window.unread:,}, with nobody knows how many entries"
    if window.partial is None:
        with_all = ", with those of all that is stored with it," if window.derived else ""
        stored = f"Its stored blocks{with_all} have {window.stored:,} rows"
        return f"{what} cannot be read: {window.problem}. {stored}, and {journal}"
    said = f"{what}: {window.partial.window.info().entries:,} entries{_lacking(window.left_out)}"
    if window.problem is not None:
        said += f"; it would not be served: {window.problem}. These are its entries before that; behind it {journal}"
    return said


def _derived_state(derived: CheckedDerived, window: CheckedWindow) -> str:
    kind = "a view of" if derived.is_view else "fed by"
    what = f"window {derived.name!r}, {kind} {derived.of!r},"
    if derived.entries is None:
        return f"{what} cannot be read: see window {window.name!r}"
    served = "" if window.problem is None else f"; it would not be served, as {window.name!r}"
    return f"{what} has {derived.entries:,} entries{_lacking(derived.left_out)}{served}"


def _lacking(entries: int) -> str:
    return f", and {entries:,} in values that are damaged or missing" if entries else ""


async def _salvage(found: Found, new: str, prefix: str, specs: dict[str, WindowSpec]) -> bool:
    """Copy all windows that can be read to a new place, with what is stored with them.

    Args:
        specs: of the windows that are in other shards of the new place. Those of this one are added; those that this
            one lacks are created in it, without entries: a window that the first shard lacks is deleted in all others.

    Returns:
        whether all is there that can be read.
    """
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
    all_there = True
    async with _stored_in(new, prefix) as (storage, catalogue):
        for window in found.windows:
            if window.partial is None:
                for name in (window.name, *(each.name for each in window.derived)):
                    typer.echo(f"window {name!r} is left behind")
                continue
            try:
                await salvage(window, storage)
            except SashError as error:  # others can be salvaged
                typer.echo(f"window {window.name!r} is left behind: {error.message}")
                all_there = False
            else:
                _show_salvaged(window, storage, new)
        await _create_missing(specs, storage, catalogue, new)
        specs.update({info.spec.name: info.spec for info in storage.all()})
    return all_there


@asynccontextmanager
async def _stored_in(new: str, prefix: str) -> AsyncIterator[tuple[Storage, Catalogue]]:
    """A storage on a new place, and its windows."""
    catalogue = Catalogue(max_windows=sys.maxsize, max_keys=MAX_KEYS)  # what was stored there is stored here
    storage = Storage(catalogue, SystemClock(), open_tier(new, prefix))
    await storage.start()
    try:
        yield storage, catalogue
    finally:
        await storage.stop()


async def _create_missing(specs: dict[str, WindowSpec], storage: Storage, catalogue: Catalogue, new: str) -> None:
    """Create windows that other shards have; views come last."""
    for name in sorted(specs, key=lambda name: (specs[name].of is not None, name)):
        if name not in catalogue:
            await storage.create(specs[name])
            typer.echo(f"window {name!r} is in {new}: no entries; other shards have some")


def _show_salvaged(window: CheckedWindow, storage: Storage, new: str) -> None:
    """Say what a new place has of a window, and of those that are stored with it, and what it lacks."""
    behind = [(window.name, window.left_out), *((each.name, each.left_out) for each in window.derived)]
    unread = {each.name for each in window.derived if each.entries is None}
    views = {each.name for each in window.derived if each.is_view}
    for name, left_out in behind:
        if name in unread:
            typer.echo(f"window {name!r} is left behind")
            continue
        left = ""
        if name not in views and (left_out or window.problem is not None):
            at_least = "at least " if window.unread else ""
            left = f"; {at_least}{left_out + window.entries:,} entries and {window.writes:,} writes are left behind"
            if window.unread:
                left += f", and up to {window.unread:,} writes in groups that cannot be read"
        typer.echo(f"window {name!r} is in {new}: {storage.find(name).info().entries:,} entries{left}")
