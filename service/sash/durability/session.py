"""The tier as the windows of one service use it: values to read, work to do in the background, keys to delete.

Deleting waits while somebody holds: an iteration over a window as it was may still need blocks that have left it. It
waits for nobody who stands still: a reader that took nothing for long loses its hold, and is told so when it goes on.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from sash.durability import formats as values
from sash.durability.journal import BackgroundWrite, Journal
from sash.durability.roots import End, Group, Meta, Start
from sash.durability.tier import ColdTier
from sash_engine.clock import Clock
from sash_engine.errors import DataLoss, Unavailable
from sash_engine.forest.cold import Cache

__all__ = ["MAKING_ROOM", "STORING", "Hold", "TierSession"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

_KEYS_PER_JOB = 4096
_GROUPS_PER_TRIP = 4
_PROBES = 32

STORING, MAKING_ROOM = 2 / 3, 1.0
"""How much of the tier's reserve is for what: blocks and images, and the records of evictions. New entries get none."""
_STALLED_S = 300.0
"""A reader of a window as it was keeps deletes waiting for no longer than this after it last took something."""


class Hold:
    """Somebody reads a window as it was.

    Attributes:
        window: its number.
        at_s: when the reader last took something.
        lost: it stood still for too long, and what it has still to read may be gone.
    """

    __slots__ = ("at_s", "lost", "window")

    def __init__(self, window: int, at_s: float) -> None:
        self.window, self.at_s, self.lost = window, at_s, False

    def check(self, now_s: float) -> None:
        """The reader goes on; raises Unavailable where it has lost its hold."""
        if self.lost:
            raise Unavailable(
                f"nothing was read for more than {_STALLED_S:.0f} s, and what was still to be read may have been "
                "deleted: begin again",
                retry_after_s=1.0,
            )
        self.at_s = now_s


class TierSession:
    """One tier, its journal, and what of it is in memory.

    Args:
        tier: acquired before anything is read.
        cache_bytes: how much of all sealed blocks that are in the tier may be in memory as well.
        interval_s: how long records that nobody waits for may gather.
        clock: tells which readers stand still.
    """

    def __init__(self, tier: ColdTier, cache_bytes: int, interval_s: float, clock: Clock) -> None:
        self.tier = tier
        self.journal = Journal(tier, interval_s)
        self.cache = Cache(cache_bytes)
        self.damaged: set[str] = set()
        """What was found damaged or missing."""
        self.unstored_bytes = 0
        """Of records that are not in blocks or images yet; see `StoredWindow.owes`."""
        self._clock = clock
        self._holds: set[Hold] = set()
        self._postponed: dict[int, list[BackgroundWrite]] = {}
        """Deletes that wait, by window."""

    # ---------------------------------------------------------------- reading

    def read(self, kind: str, key: bytes, bound: bool = False) -> Any:
        """One value, None where there is none; raises DataLoss where it is damaged, see `values.unseal`."""
        (data,) = self.tier.get_many([key])
        return None if data is None else values.unseal(kind, data, key, bound=bound)

    def roots(self) -> tuple[Meta, Start, End] | None:
        """What all windows need; None where the tier was never used.

        Raises:
            DataLoss: some of it is damaged, missing or out of date.
        """
        listed = self.read("meta", values.meta_key())
        pointer = self.read("pointer", values.journal_key())
        last = self.read("last", values.last_group_key())
        if listed is None and pointer is None and last is None:
            return None
        for value, name in ((listed, "meta"), (pointer, "journal")):
            if value is None:
                raise DataLoss(f"value {name!r} is missing")
        meta, start = Meta.of(listed), Start.of(pointer)
        if last is None and (meta.record or start.bound is not None):
            raise DataLoss("value 'journal/last' is missing")
        end = End(start.first - 1, None) if last is None else End.of(last)
        if meta.record < end.listing:
            raise DataLoss("value 'meta' is out of date: windows came or went after it was written")
        if meta.record > end.listing:
            raise _last_out_of_date()
        return meta, start, end

    def groups(self, start: Start, end: End) -> Iterator[Group]:
        """The groups of the journal, in order; one that is damaged or missing has an `error`.

        An earlier version did not say which was the last. Of what it wrote, a group is missing where one of the next
        few is there; whether there was another one at the end, nobody can tell.

        Raises:
            DataLoss: there are more groups than `end` says.
        """
        numbers = [*start.apart, *range(start.first, end.group + 1)]
        for at in range(0, len(numbers), _GROUPS_PER_TRIP):
            some = numbers[at : at + _GROUPS_PER_TRIP]
            for number, data in zip(some, self._found(some), strict=True):
                yield Group.of(number, data, start.is_bound(number), start.apart.get(number))
        number = end.group + 1
        ahead = deque(self._found(range(number, number + _GROUPS_PER_TRIP)))
        while any(data is not None for data in ahead):
            if end.record is not None or any(map(values.is_bound, ahead)):
                raise _last_out_of_date()
            yield Group.of(number, ahead.popleft(), start.is_bound(number))
            ahead += self._found([number + _GROUPS_PER_TRIP])
            number += 1

    def _found(self, numbers: Sequence[int]) -> list[bytes | None]:
        return self.tier.get_many([values.group_key(number) for number in numbers])

    def groups_again(self, numbers: Sequence[int]) -> Iterator[Sequence[tuple[int, int, Sequence[Any]]]]:
        """The records of each of some groups that are known to be there; raises DataLoss where one is damaged."""
        for number in numbers:
            (data,) = self._found([number])
            group = Group.of(number, data, bound=False)
            if group.error is not None:
                raise group.error
            yield group.records

    def run(self, key: Callable[[int], bytes]) -> list[bytes]:
        """The keys that there are among `key(0)`, `key(1)`, …, up to the first that is not."""
        found: list[bytes] = []
        while True:
            keys = [key(len(found) + i) for i in range(_PROBES)]
            there = [data is not None for data in self.tier.get_many(keys)]
            if not all(there):
                return found + keys[: there.index(False)]
            found += keys

    def lost(self, what: str, error: DataLoss) -> None:
        """Note, and log once, that something is damaged or missing."""
        if what not in self.damaged:
            _log.critical("%s: %s", what, error.message)
            self.damaged.add(what)

    # ---------------------------------------------------------------- room

    def check_room(self, size: int, reserve: float = 0.0) -> None:
        """Raise OutOfRoom where so many bytes do not fit behind what is pending; see `ColdTier.check_room`.

        New entries leave room for all that those before them will need. Evictions do not count images that are pending:
        those look for themselves whether there is room for them.
        """
        journal = self.journal
        pending = journal.pending_record_bytes if reserve == MAKING_ROOM else journal.pending_bytes
        self.tier.check_room(pending + (0 if reserve else self.unstored_bytes) + size, reserve)

    # ---------------------------------------------------------------- deleting

    def discard(self, window: int, keys: Iterable[bytes], done: Callable[[], None] | None = None) -> None:
        """Delete keys of a window in the background, some at a time; `done` is called when none is left."""
        rest = iter(keys)

        def some() -> None:
            chunk = list(islice(rest, _KEYS_PER_JOB))
            if chunk:
                self._delete(window, BackgroundWrite(deletes=chunk, size=16 * len(chunk), done=some))
            elif done is not None:
                done()

        some()

    def _delete(self, window: int, job: BackgroundWrite) -> None:
        if any(hold.window == window for hold in self._holds):
            self._postponed.setdefault(window, []).append(job)
        else:
            self.journal.background(job)

    @contextlib.contextmanager
    def hold(self, window: int) -> Iterator[Hold]:
        """Delete nothing of a window as long as it lasts, or until it has stood still for too long."""
        hold = Hold(window, self._clock.monotonic_s())
        self._holds.add(hold)
        try:
            yield hold
        finally:
            self._end(hold)

    def held(self, window: int, parts: Iterator[T]) -> Iterator[T]:
        """Iterate over what is read of a window as it was.

        It holds from now on, until it is exhausted, closed or forgotten; or until it was not read for too long: then it
        raises Unavailable.
        """
        held = self._holding(window, parts)
        next(held)
        return held  # type: ignore[return-value]

    def _holding(self, window: int, parts: Iterator[T]) -> Iterator[T | None]:
        with self.hold(window) as hold:
            yield None
            for part in parts:
                self.cache.trim()
                yield part
                hold.check(self._clock.monotonic_s())

    def end_stalled(self) -> None:
        """Take their hold from readers that stand still, where deletes wait for them."""
        before_s = self._clock.monotonic_s() - _STALLED_S
        for hold in [hold for hold in self._holds if hold.at_s < before_s and hold.window in self._postponed]:
            hold.lost = True
            self._end(hold)

    def _end(self, hold: Hold) -> None:
        self._holds.discard(hold)
        if not any(other.window == hold.window for other in self._holds):
            for job in self._postponed.pop(hold.window, ()):
                self.journal.background(job)


def _last_out_of_date() -> DataLoss:
    return DataLoss("value 'journal/last' is out of date: something was committed after it was written")
