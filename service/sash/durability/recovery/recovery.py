"""Recovery: reading windows back from the tier, at the start of a service or after a write failed half-way.

    meta ─▶ for each window pointer ─▶ image (no block is read) ─▶ all groups behind it, applied again

A window that cannot be recovered is *lost*: something of it is damaged, a group of the journal that it may need is
damaged, or an aggregate of it is not installed. It is listed with its problem, answers nothing, and the tier keeps what
it has of it. All other windows are served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sash.durability.images.manifest import Remains
from sash.durability.images.stored_window import StoredWindow, spec_as_known
from sash.durability.journal.roots import End, JournalPosition, check_covered
from sash.durability.journal.session import TierSession
from sash.durability.records import commands as records
from sash.durability.recovery.replay import Replay
from sash_engine.errors import DataLoss, FailedPrecondition, InvalidArgument, SashError, Unavailable
from sash_engine.windows.spec.window import Durability, WindowSpec

_log = logging.getLogger(__name__)

T = TypeVar("T")

Make = Callable[[int, WindowSpec, Durability], StoredWindow]
"""Makes an empty stored window from its number, spec and durability."""


@dataclass(slots=True)
class RecoveredTier:
    """The windows that a tier has.

    Args:
        windows: all windows, including lost ones.
        next_window: the first number that was never given to a window.
        bound: windows from this number on have no values of format 1.
        owned: windows from this number on have only values that name their store.
        discarded: by number, windows whose values are being deleted.
        journal: where the journal goes on, for `Journal.start`.
        unlisted: `meta` does not list all cascades and views, or others: a crash came first, or an earlier version
            wrote it.
    """

    windows: list[StoredWindow] = field(default_factory=list)
    next_window: int = 1
    bound: int = 1
    owned: int = 1
    discarded: dict[int, Remains] = field(default_factory=dict)
    journal: JournalPosition = field(default_factory=JournalPosition)
    unlisted: bool = False


def recover(session: TierSession, make: Make) -> RecoveredTier:
    """Read all windows from the tier.

    Raises:
        DataLoss: a value that all windows need is damaged.
        FailedPrecondition: a newer version wrote the tier.
        Unavailable: the tier cannot be reached.
    """
    try:
        roots = session.roots()
        if roots is None:
            return RecoveredTier(journal=JournalPosition(store=session.id))
        meta, start, end = roots
        windows = [
            _recover_window(session, make, *each, each[0] < meta.bound, each[0] >= meta.owned, meta.derived_of(each[0]))
            for each in meta.windows
        ]
        for stored in windows:
            check_covered(end, stored.through, stored.name)
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
    following = last_group + 1
    start = replace(start, bound=start.bound or following, owned=start.owned or following)
    end = End(last_group, replay.last, end.listing, end.start)
    journal = JournalPosition(following, last, replay.written.items(), start, end, replay.at, session.id)
    discarded = {number: Remains.of(remains) for number, remains in meta.discarded}
    unlisted = any(stored.derived_documents() != (meta.derived_of(stored.number) or []) for stored in windows)
    return RecoveredTier(windows, meta.next_window, meta.bound, meta.owned, discarded, journal, unlisted)


async def recover_again(session: TierSession, failed: StoredWindow, make: Make) -> StoredWindow:
    """Read a window back that failed. The loop runs meanwhile; the journal must not be trimmed.

    The running journal says which groups there are. The pointer in the tier may be of before or after a cut that is on
    its way.

    Raises:
        SashError: it cannot be recovered now.
    """
    fresh = make(failed.number, failed.window.spec, failed.durability)
    fresh.inherit(failed)
    numbers = session.journal.groups_of(failed.number)  # later groups have no records of the window
    try:
        await in_thread(lambda: fresh.recover(failed.older, failed.manifest.owned))
        groups = session.groups_again(numbers)
        while (records := await in_thread(lambda: next(groups, None))) is not None and not failed.is_deleted:
            for record, window, fields in records:
                if window == failed.number:
                    apply_again(session, fresh, record, fields)
                    await asyncio.sleep(0)
    except BaseException:
        fresh.close()
        raise
    return fresh


async def in_thread(call: Callable[[], T]) -> T:
    """Run a call that reads the tier. A cancelled one waits for the call: the tier may be closed after that."""
    future = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


def _recover_window(
    session: TierSession,
    make: Make,
    number: int,
    durability: Durability,
    document: Mapping[str, Any],
    older: bool,
    owned: bool,
    derived: Sequence[Mapping[str, Any]] | None,
) -> StoredWindow:
    problem: SashError | None = None
    try:
        spec = WindowSpec.parse(document)
    except InvalidArgument as error:
        spec, problem = spec_as_known(document), error
    stored = make(number, spec, durability)
    stored.listed = derived
    try:
        stored.recover(older, owned)
    except (DataLoss, InvalidArgument) as error:
        problem = problem or error
    except SashError:
        raise
    except Exception as error:  # the checksum is right, and the content is not
        _log.exception("window %r", stored.name)
        problem = problem or DataLoss(f"the image of window {stored.name!r} cannot be read: {error!r}")
    if problem is not None:
        stored.keep_document(document)
        _lose(session, stored, problem)
    return stored


def _recover_record(session: TierSession, stored: StoredWindow, record: int, fields: Sequence[Any]) -> None:
    """Apply a record to a window. If that fails, the window is lost."""
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
    """Serve all other windows, and leave this one as it is."""
    what = f"window {stored.name!r}"
    if isinstance(error, DataLoss):
        session.report_damage(f"{what}, which is not served", error)
        lost: SashError = DataLoss(
            f"{what} is not served: {error.message}. Nothing of it was changed: put what is damaged back from a backup "
            "and start again, write what is whole to a new place with `sash admin check --salvage`, or delete the "
            "window"
        )
    else:
        lost = FailedPrecondition(
            f"{what} is not served: {error.message}. Nothing of it was changed: install what is missing and start "
            "again, or delete the window",
            field=error.field,
        )
        _log.error("%s", lost.message)
    stored.lose(lost)


def apply_again(session: TierSession, stored: StoredWindow, record: int, fields: Sequence[Any]) -> None:
    """Apply a record of the journal to a window, unless the window's image covers it."""
    if record <= stored.through:
        return
    write = records.read(fields, f"record {record} of the journal")
    operation = write.operation
    if isinstance(operation, records.Commit):
        parts = stored.window.ledger.named(operation.query, operation.batch, operation.tokens)
        operation.batches = stored.read_together(parts)
    with stored.clock.stopped(write.now_ns):
        write.apply(stored.window)
    stored.count_logged(operation.size)
    if isinstance(operation, records.Commit | records.Expire):
        stored.drop_parts(operation.dropped)
    session.cache.trim()


def _nothing_served(error: DataLoss) -> DataLoss:
    return DataLoss(
        f"{error.message}. All windows need it, so none is served, and nothing was changed: put that value back from a "
        "backup, or write what is whole to a new place with `sash admin check --salvage`"
    )
