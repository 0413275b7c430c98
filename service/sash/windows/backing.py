"""The tier as the windows of one service use it: values to read, work to do in the background, keys to delete.

Deleting waits while somebody holds: an iteration over a window as it was may still need blocks that have left it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from sash.errors import DataLoss
from sash.forest.cold import Cache
from sash.windows import values
from sash.windows.journal import Job, Journal
from sash.windows.tier import ColdTier

__all__ = ["Backing"]

_log = logging.getLogger(__name__)

_KEYS_PER_JOB = 4096
_GROUPS_PER_TRIP = 4
_PROBES = 32


class Backing:
    """One tier, its journal, and what of it is in memory.

    Args:
        tier: acquired before anything is read.
        cache_bytes: how much of all sealed blocks that are in the tier may be in memory as well.
        interval_s: how long records that nobody waits for may gather.
    """

    def __init__(self, tier: ColdTier, cache_bytes: int, interval_s: float) -> None:
        self.tier = tier
        self.journal = Journal(tier, interval_s)
        self.cache = Cache(cache_bytes)
        self.damaged: set[str] = set()
        """What was found damaged or missing."""
        self._holds = 0
        self._postponed: list[Job] = []

    # ---------------------------------------------------------------- reading

    def read(self, kind: str, key: bytes) -> Any:
        """One value, None where there is none; raises DataLoss where it is damaged."""
        (data,) = self.tier.get_many([key])
        return None if data is None else values.unseal(kind, data, key)

    def groups(self) -> Iterator[tuple[int, list[Any]]]:
        """The groups of the journal that are there: number, and its records as (number, window, fields).

        Raises:
            DataLoss: one is damaged, or missing between others.
        """
        pointer = self.read("pointer", values.journal_key())
        first, _, apart = values.unseal("pointer", None, values.journal_key()) if pointer is None else pointer
        for number in apart:
            yield number, self._group(number, self._found([number])[0])
        while True:
            numbers = range(first, first + _GROUPS_PER_TRIP)
            for number, data in zip(numbers, self._found(numbers), strict=True):
                if data is None:
                    if any(later is not None for later in self._found(range(number + 1, number + _GROUPS_PER_TRIP))):
                        self._group(number, None)
                    return
                yield number, self._group(number, data)
            first += _GROUPS_PER_TRIP

    def _found(self, numbers: Sequence[int]) -> list[bytes | None]:
        return self.tier.get_many([values.group_key(number) for number in numbers])

    def _group(self, number: int, data: bytes | None) -> list[Any]:
        return list(values.unseal("journal", data, values.group_key(number)))

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

    # ---------------------------------------------------------------- deleting

    def discard(self, keys: Iterable[bytes], done: Callable[[], None] | None = None) -> None:
        """Delete keys in the background, some at a time; `done` is called when none is left."""
        rest = iter(keys)

        def some() -> None:
            chunk = list(islice(rest, _KEYS_PER_JOB))
            if chunk:
                self._delete(Job(deletes=chunk, size=16 * len(chunk), done=some))
            elif done is not None:
                done()

        some()

    def _delete(self, job: Job) -> None:
        if self._holds:
            self._postponed.append(job)
        else:
            self.journal.background(job)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Delete nothing as long as it lasts."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            if not self._holds:
                postponed, self._postponed = self._postponed, []
                for job in postponed:
                    self.journal.background(job)
