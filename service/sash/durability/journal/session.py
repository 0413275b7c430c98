"""One service's use of its tier: reads, background writes, deletes, and how much space is left.

The class wraps the tier, its journal and the cache of blocks, which all windows share. Deletes wait while a reader has
pinned the window: see `pins.py`.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar, cast

from sash.durability import formats as values
from sash.durability.journal.group_commit import BackgroundWrite
from sash.durability.journal.journal import Journal
from sash.durability.journal.pins import Pins
from sash.durability.journal.retrying import RetryingTier
from sash.durability.journal.roots import ROOTS, End, Group, Meta, Start, check_together, last_out_of_date, store_among
from sash.durability.tier import ColdTier
from sash_engine.clock import Clock
from sash_engine.errors import DataLoss
from sash_engine.forest.cold import Cache

T = TypeVar("T")

_log = logging.getLogger(__name__)

_KEYS_PER_WRITE = 4096
_GROUPS_PER_TRIP = 4
_PROBES = 32

STORING, MAKING_ROOM = 2 / 3, 1.0
"""Shares of the tier's reserve: for blocks and images, and for the records of evictions. New entries get none of it."""


class TierSession:
    """The tier of one service, with its journal and its cache.

    Args:
        tier: acquire it before you read anything.
        cache_bytes: budget of the cache of stored blocks.
        interval_s: how long records may gather that nobody waits for.
        clock: measures how long readers are idle.
        entropy: makes so many random bytes, for the id of a new store.
    """

    def __init__(
        self,
        tier: ColdTier,
        cache_bytes: int,
        interval_s: float,
        clock: Clock,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self.tier: ColdTier = tier
        self.journal = Journal(tier, interval_s)
        self.cache = Cache(cache_bytes)
        self.store: bytes | None = None
        """Id of the store; None until `roots` has read it, or given the tier one."""
        self.named = False
        """Whether the tier has the id already."""
        self.damaged: set[str] = set()
        """Names of the values that were found damaged or missing; `report_damage` adds to it."""
        self._clock, self._entropy = clock, entropy
        self._unstored_bytes = 0
        self.pins = Pins(clock, self.journal.background)
        """The readers of windows as they were; deletes wait for them."""

    @contextlib.contextmanager
    def retrying(self, sleep: Callable[[float], None]) -> Iterator[None]:
        """Retry reads while the tier is unavailable, inside the `with` block; see `RetryingTier`."""
        tier = self.tier
        self.tier = cast(ColdTier, RetryingTier(tier, self._clock, sleep))
        try:
            yield
        finally:
            self.tier = tier

    # ---------------------------------------------------------------- reading

    def read(self, kind: str, key: bytes, bound: bool = False, owned: bool = False) -> Any:
        """Read one value; None if there is none. Raises DataLoss if it is damaged. See `unseal` for the rest."""
        (data,) = self.tier.get_many([key])
        return None if data is None else values.unseal(kind, data, key, None, bound, self.store, owned)

    @property
    def id(self) -> bytes:
        """Id of the store, for values that are written to it."""
        assert self.store is not None, "the roots were not read"
        return self.store

    def _identify(self) -> None:
        """Read the id of the store from its roots, or make one."""
        found = store_among(self.tier.get_many(ROOTS))
        self.named = found is not None
        self.store = found or self._entropy(values.STORE_BYTES)

    def roots(self) -> tuple[Meta, Start, End] | None:
        """Read the values that all windows need; None if the tier was never used.

        Raises:
            DataLoss: one of them is damaged, missing, out of date or of another store.
        """
        self._identify()
        listed = self.read("meta", values.meta_key(), owned=self.named)
        pointer = self.read("pointer", values.journal_key(), owned=self.named)
        last = self.read("last", values.last_group_key(), owned=self.named)
        if listed is None and pointer is None and last is None:
            return None
        for value, name in ((listed, "meta"), (pointer, "journal")):
            if value is None:
                raise DataLoss(f"value {name!r} is missing")
        meta, start = Meta.of(listed), Start.of(pointer)
        if last is None and (meta.record or start.bound is not None):
            raise DataLoss("value 'journal/last' is missing")
        end = End(start.first - 1, None) if last is None else End.of(last)
        check_together(meta, start, end)
        return meta, start, end

    def groups(self, start: Start, end: End) -> Iterator[Group]:
        """Read the groups of the journal, in order. A group that is damaged or missing has an `error`.

        Format 1 does not say which group is the last. Of such a journal a group is missing if one of the next few
        exists. A group that is missing at the very end is not noticed.

        Raises:
            DataLoss: there are more groups than `end` says.
        """
        numbers = [*start.apart, *range(start.first, end.group + 1)]
        for at in range(0, len(numbers), _GROUPS_PER_TRIP):
            some = numbers[at : at + _GROUPS_PER_TRIP]
            for number, data in zip(some, self._group_values(some), strict=True):
                owned = start.is_owned(number)
                yield Group.of(number, data, start.is_bound(number), start.apart.get(number), self.store, owned)
        number = end.group + 1
        ahead = deque(self._group_values(range(number, number + _GROUPS_PER_TRIP)))
        while any(data is not None for data in ahead):
            if end.record is not None or any(map(values.is_bound, ahead)):
                raise last_out_of_date()
            yield Group.of(number, ahead.popleft(), start.is_bound(number), store=self.store)
            ahead += self._group_values([number + _GROUPS_PER_TRIP])
            number += 1

    def groups_again(self, numbers: Sequence[int]) -> Iterator[Sequence[tuple[int, int, Sequence[Any]]]]:
        """Read groups that the running journal lists: the records of each. Raises DataLoss if one is damaged."""
        for number in numbers:
            (data,) = self._group_values([number])
            group = Group.of(number, data, bound=False, store=self.store)
            if group.error is not None:
                raise group.error
            yield group.records

    def _group_values(self, numbers: Sequence[int]) -> list[bytes | None]:
        return self.tier.get_many([values.group_key(number) for number in numbers])

    def existing(self, key: Callable[[int], bytes]) -> list[bytes]:
        """Probe `key(0)`, `key(1)`, … and return those that exist, up to the first that does not."""
        found: list[bytes] = []
        while True:
            keys = [key(len(found) + i) for i in range(_PROBES)]
            exist = [data is not None for data in self.tier.get_many(keys)]
            if not all(exist):
                return found + keys[: exist.index(False)]
            found += keys

    def report_damage(self, what: str, error: DataLoss) -> None:
        """Count something that is damaged or missing, and log it once."""
        if what not in self.damaged:
            _log.critical("%s: %s", what, error.message)
            self.damaged.add(what)

    # ---------------------------------------------------------------- space

    def count_unstored(self, size: int) -> None:
        """Count bytes of records that are not in blocks or images yet; a negative size for those that are now."""
        self._unstored_bytes += size

    def check_room(self, size: int, reserve: float = 0.0) -> None:
        """Raise OutOfRoom if so many bytes do not fit behind what is pending; see `ColdTier.check_room`.

        New entries leave space for everything that earlier entries will still need. Evictions do not count pending
        images: those check by themselves whether they fit.
        """
        journal = self.journal
        pending = journal.pending_record_bytes if reserve == MAKING_ROOM else journal.pending_bytes
        self.tier.check_room(pending + (0 if reserve else self._unstored_bytes) + size, reserve)

    # ---------------------------------------------------------------- deleting

    def discard(self, window: int, keys: Iterable[bytes], done: Callable[[], None] | None = None) -> None:
        """Delete keys of a window in the background, some at a time, then call `done`."""
        rest = iter(keys)

        def delete_some() -> None:
            chunk = list(islice(rest, _KEYS_PER_WRITE))
            if chunk:
                deletes = BackgroundWrite(deletes=chunk, size=16 * len(chunk), done=delete_some)
                self.pins.run_unpinned(window, deletes)
            elif done is not None:
                done()

        delete_some()

    def pinned(self, window: int, parts: Iterator[T]) -> Iterator[T]:
        """Iterate over a window as it was, and keep it pinned meanwhile.

        The pin begins with this call. It ends when the iterator is exhausted, closed or collected, or was idle for too
        long. In the last case the iterator raises Unavailable.
        """
        iterator = self._pinned(window, parts)
        next(iterator)
        return iterator  # type: ignore[return-value]

    def _pinned(self, window: int, parts: Iterator[T]) -> Iterator[T | None]:
        with self.pins.pin(window) as pin:
            yield None
            for part in parts:
                self.cache.trim()
                yield part
                self.pins.renew(pin)
