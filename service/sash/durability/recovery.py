"""Recovery: windows as the tier has them, at the start of a service, or of one whose state is in doubt.

    meta ─▶ for each window pointer ─▶ image (no block is read) ─▶ all groups behind it, applied again

A window that cannot be recovered is *lost*: something of it is damaged, or a group of the journal that it may need, or
an aggregate of it is not installed. It is listed and says why. It answers nothing and is left as it is. All others are
served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sash.durability import records
from sash.durability.journal import JournalPosition
from sash.durability.replay import Replay
from sash.durability.roots import End
from sash.durability.session import TierSession
from sash.durability.stored_window import Remains, StoredWindow
from sash_engine.errors import DataLoss, FailedPrecondition, InvalidArgument, SashError, Unavailable
from sash_engine.monoids import catalogue
from sash_engine.windows.spec import Durability, WindowSpec

__all__ = ["Make", "RecoveredTier", "apply_again", "recover", "recover_again"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

Make = Callable[[int, WindowSpec, Durability], StoredWindow]
"""Makes a window that is kept, empty, of its number, spec and durability."""


@dataclass(slots=True)
class RecoveredTier:
    """What a tier had.

    Args:
        windows: all of them, those that are lost too.
        next_window: the first number that was never a window's.
        bound: windows from this number on have no values of format 1.
        discarded: by number, windows of which something is left that is to be deleted.
        journal: where it goes on, as `Journal.start` takes it.
    """

    windows: list[StoredWindow] = field(default_factory=list)
    next_window: int = 1
    bound: int = 1
    discarded: dict[int, Remains] = field(default_factory=dict)
    journal: JournalPosition = field(default_factory=JournalPosition)


def recover(session: TierSession, make: Make) -> RecoveredTier:
    """Read all windows from the tier.

    Raises:
        DataLoss: something is damaged that all windows need.
        FailedPrecondition: a newer version wrote it.
        Unavailable: the tier cannot be reached.
    """
    try:
        roots = session.roots()
        if roots is None:
            return RecoveredTier()
        meta, start, end = roots
        older = {number for number, _, _ in meta.windows if number < meta.bound}
        windows = [_recover_window(session, make, *each, each[0] in older) for each in meta.windows]
        replay = Replay(
            windows,
            lambda stored, record, fields: _recover_record(session, stored, record, fields),
            lambda stored, error: _lose(session, stored, error),
        )
        replay.begin(start.cut)
        last_group = end.group
        for group in session.groups(start, end):
            if group.error is not None:
                session.report_damage(f"group {group.number} of the journal", group.error)
            replay.take(group)
            last_group = max(last_group, group.number)
        replay.finish(end.record)
    except DataLoss as error:
        raise _nothing_served(error) from None
    last = max(replay.last, start.record, end.listing)
    _log.info("recovered %d windows, %d groups of journal", len(windows), len(replay.written))
    if start.bound is None:
        start = replace(start, bound=last_group + 1)
    end = End(last_group, replay.last, end.listing)
    journal = JournalPosition(last_group + 1, last, replay.written.items(), start, end, replay.at)
    discarded = {number: Remains.of(remains) for number, remains in meta.discarded}
    return RecoveredTier(windows, meta.next_window, meta.bound, discarded, journal)


async def recover_again(session: TierSession, stored: StoredWindow, make: Make) -> StoredWindow:
    """A window in doubt as the tier has it; the loop runs meanwhile, and the journal may not be trimmed.

    Which groups there are the running journal says: deletes of some may be on their way to the tier, whose own pointer
    is of before or after them, as luck will have it.

    Raises:
        SashError: it cannot be recovered now.
    """
    fresh = make(stored.number, stored.window.spec, stored.durability)
    fresh.losses = stored.losses + isinstance(stored.failure, DataLoss)
    fresh.admission = stored.admission
    numbers = session.journal.groups_of(stored.number)  # none of the window's comes after them
    try:
        await _in_thread(lambda: fresh.recover(stored.older))
        groups = session.groups_again(numbers)
        while (records := await _in_thread(lambda: next(groups, None))) is not None and not stored.deleted:
            for record, window, fields in records:
                if window == stored.number:
                    apply_again(session, fresh, record, fields)
                    await asyncio.sleep(0)
    except BaseException:
        fresh.clear_unstored()
        fresh.cold.forget()
        raise
    return fresh


async def _in_thread(call: Callable[[], T]) -> T:
    """What a call returns that reads the tier; who is cancelled waits for it, as the tier may be closed after that."""
    future = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


def _recover_window(
    session: TierSession, make: Make, number: int, durability: Durability, document: Mapping[str, Any], older: bool
) -> StoredWindow:
    problem: SashError | None = None
    try:
        spec = WindowSpec.parse(document)
    except InvalidArgument as error:
        spec, problem = _as_far_as_known(document), error
    stored = make(number, spec, durability)
    try:
        stored.recover(older)
    except (DataLoss, InvalidArgument) as error:
        problem = problem or error
    except SashError:
        raise
    except Exception as error:  # what is stored holds, and is not what it should be
        _log.exception("window %r", stored.name)
        problem = problem or DataLoss(f"the image of window {stored.name!r} cannot be read: {error!r}")
    if problem is not None:
        stored.keep_document(document)
        _lose(session, stored, problem)
    return stored


def _as_far_as_known(document: Mapping[str, Any]) -> WindowSpec:
    """A spec without what this service does not know: of a window that is shown, and does nothing."""
    known = {name: each for name, each in document["aggregates"].items() if each["function"] in catalogue()}
    try:
        return WindowSpec.parse({**document, "aggregates": known})
    except InvalidArgument:
        return WindowSpec.parse({"name": document["name"], "aggregates": {"entries": {"function": "count"}}})


def _recover_record(session: TierSession, stored: StoredWindow, record: int, fields: Sequence[Any]) -> None:
    """Apply a record to a window; where that fails it is lost."""
    try:
        apply_again(session, stored, record, fields)
    except Unavailable:
        raise
    except (DataLoss, InvalidArgument) as error:
        _lose(session, stored, error)
    except Exception as error:
        _log.exception("record %d of the journal", record)
        _lose(session, stored, DataLoss(f"record {record} of the journal cannot be applied: {error!r}"))


def _lose(session: TierSession, stored: StoredWindow, error: SashError) -> None:
    """Serve all other windows, and of this one nothing; it is left as it is."""
    what = f"window {stored.name!r}"
    if isinstance(error, DataLoss):
        session.report_damage(f"{what}, which is not served", error)
        stored.failure = DataLoss(
            f"{what} is not served: {error.message}. Nothing of it was changed: put what is damaged back from a backup "
            "and start again, write what is whole to a new place with `sash check --salvage`, or delete the window"
        )
    else:
        stored.failure = FailedPrecondition(
            f"{what} is not served: {error.message}. Nothing of it was changed: install what is missing and start "
            "again, or delete the window",
            field=error.field,
        )
        _log.error("%s", stored.failure.message)
    stored.lost = True
    stored.clear_unstored()
    stored.cold.forget()


def apply_again(session: TierSession, stored: StoredWindow, record: int, fields: Sequence[Any]) -> None:
    """Apply a record of the journal to a window, unless its image covers it."""
    if record <= stored.through:
        return
    write = records.read(fields, f"record {record} of the journal")
    operation = write.operation
    if isinstance(operation, records.Commit):
        operation.bring = stored.read_parts
    stored.clock.stopped = write.now_ns
    try:
        write.apply(stored.window)
    finally:
        stored.clock.stopped = None
    stored.logged_bytes += operation.size
    stored.add_unstored(operation.size)
    if isinstance(operation, records.Commit | records.Expire):
        stored.drop_parts(operation.dropped)
    session.cache.trim()


def _nothing_served(error: DataLoss) -> DataLoss:
    return DataLoss(
        f"{error.message}. All windows need it, so none is served, and nothing was changed: put that value back from a "
        "backup, or write what is whole to a new place with `sash check --salvage`"
    )
