"""A plain model of a window with `known: arrival`: every version of every entry, in a list."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sash.durability.records.commands import BulkInsert, Command, EvictRange, Insert, Retract, Update, Write
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.window import Window

NEVER_REMOVED = 2**63 - 1


@dataclass(slots=True)
class Version:
    """An entry as it was from the arrival `since` until `removed`; `placed` is its place among those of its time."""

    key: str | None
    time: int
    value: int
    id: int
    placed: int
    since: int
    removed: int = NEVER_REMOVED


class KnownModel:
    """What was sent to a window, and what it answers.

    Args:
        max_age: how long entries stay; None: forever.
    """

    def __init__(self, max_age: int | None = None) -> None:
        self.max_age = max_age
        self.now: dict[str | None, int] = {}
        self._late_through: dict[str | None, int] = {}
        self.versions: list[Version] = []
        self.applied = 0
        self.tokens = [0]
        """The numbers between writes; within one, a window may number the entries in another order."""

    def through(self, key: str | None) -> int:
        """Entries of a key of this time and older have left."""
        return -1 if self.max_age is None or key not in self.now else self.now[key] - self.max_age

    def begin(self) -> None:
        """Begin a write: what is late by now is late for all of it."""
        self._late_through = {key: self.through(key) for key in self.now}

    def insert(self, key: str | None, time: int, value: int, id: int) -> None:
        """Take in an entry, unless it is late."""
        if time <= self._late_through.get(key, -1):
            return
        self.now[key] = max(time, self.now.get(key, 0))
        self.applied += 1
        self.versions.append(Version(key, time, value, id, self.applied, self.applied))

    def _named(self, key: str | None, time: int, id: int) -> Version | None:
        there = [
            v
            for v in self.versions
            if v.id == id
            and v.time == time
            and v.key == key
            and v.removed == NEVER_REMOVED
            and time > self.through(key)
        ]
        return min(there, key=lambda version: version.placed, default=None)

    def retract(self, key: str | None, time: int, id: int) -> None:
        """Remove the first entry of a name."""
        found = self._named(key, time, id)
        if found is not None:
            self.applied += 1
            found.removed = self.applied

    def correct(self, key: str | None, time: int, value: int, id: int) -> None:
        """Give the first entry of a name another value."""
        found = self._named(key, time, id)
        if found is not None:
            self.applied += 1
            found.removed = self.applied
            self.versions.append(Version(key, time, value, id, found.placed, self.applied))

    def evict(self, key: str | None, start: int, end: int) -> None:
        """Forget entries, whatever was known of them; None: of all keys."""
        self.versions = [v for v in self.versions if not ((key is None or v.key == key) and start <= v.time <= end)]

    def values(self, key: str | None, start: int, end: int, known_at: int) -> list[int]:
        """The values of the entries with start <= time <= end as known at a number, in order."""
        start = max(start, self.through(key) + 1)
        there = [
            v for v in self.versions if v.key == key and start <= v.time <= end and v.since <= known_at < v.removed
        ]
        return [v.value for v in sorted(there, key=lambda version: (version.time, version.placed))]


Apply = Callable[[Command[Any]], object]


def applying(window: Window) -> Apply:
    """Applies commands to a window."""
    return lambda command: Write(command, 0).apply(window)


def write(
    apply: Apply,
    model: KnownModel,
    rng: random.Random,
    keys: list[str | None],
    late: int,
    next_id: int,
    evicts: bool = True,
    per_tick: int = 3,
) -> int:
    """Make one random write to a window and its model; return the next identity.

    Args:
        apply: gets the command.
        late: how far before the newest time it is at most.
        per_tick: how many entries come until time goes on.
    """
    model.begin()
    next_id = _written(apply, model, rng, keys, late, next_id, evicts, per_tick)
    model.tokens.append(model.applied)
    return next_id


def _written(
    apply: Apply,
    model: KnownModel,
    rng: random.Random,
    keys: list[str | None],
    late: int,
    next_id: int,
    evicts: bool,
    per_tick: int,
) -> int:
    kind = rng.choice(
        ["insert", "insert", "bulk", "bulk", "retract", "correct", "evict" if evicts and not next_id % 9 else "bulk"]
    )

    def time() -> int:
        return max(next_id // per_tick - rng.choice([0, 0, 0, rng.randrange(late)]), 0)

    if kind == "insert":
        key, at, value = rng.choice(keys), time(), rng.randrange(1000)
        apply(Insert(at, {"value": value, "id": next_id}, key))
        model.insert(key, at, value, next_id)
        return next_id + 1
    if kind == "bulk":
        rows = [(rng.choice(keys), time(), rng.randrange(1000), next_id + i) for i in range(rng.randrange(1, 40))]
        apply(BulkInsert(_batch(rows)))
        for row in rows:
            model.insert(*row)
        return next_id + len(rows)
    there = [v for v in model.versions if v.removed == NEVER_REMOVED]
    if kind == "evict" and there:
        key = rng.choice([None, *keys])
        start = rng.choice(there).time
        apply(EvictRange(start, start + 1, key))
        model.evict(key, start, start + 1)
        return next_id
    some = [rng.choice(there) for _ in range(min(len(there), rng.randrange(1, 6)))]
    some.sort(key=lambda v: (v.key or "", v.time))
    rows = [(v.key, v.time, rng.randrange(1000), v.id if rng.random() < 0.9 else -1) for v in some]
    if kind == "retract":
        if rows:
            batch = _batch(rows)
            apply(Retract(replace(batch, columns={"id": batch.columns["id"]})))
        for key, at, _, id in rows:
            model.retract(key, at, id)
    elif rows:
        apply(Update(_batch(rows)))
        for row in rows:
            model.correct(*row)
    return next_id


def _batch(rows: list[tuple[Any, ...]]) -> Batch:
    keys, times, values, ids = zip(*rows, strict=True)
    columns = {"value": np.array(values, np.int64), "id": np.array(ids, np.int64)}
    return Batch(np.array(times, np.int64), columns, None if None in keys else Coded.of(keys))
