"""A plain model of a window with `known: arrival`: every version of every entry, in a list."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sash.durability.records.commands import BulkInsert, Command, EvictRange, Insert, Retract, Update
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.spec.window import WindowSpec
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
            if (v.key, v.time, v.id) == (key, time, id) and v.removed == NEVER_REMOVED and time > self.through(key)
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


class Commands:
    """Notes the writes of `write` as commands, in the place of a window.

    Attributes:
        made: the commands.
    """

    def __init__(self, spec: WindowSpec) -> None:
        self.spec = spec
        self.made: list[Command[Any]] = []

    def insert(self, time: int, values: Mapping[str, Any], key: str | None) -> None:
        self.made.append(Insert(time, values, key))

    def bulk_insert(self, batch: Batch) -> None:
        self.made.append(BulkInsert(batch))

    def evict_range(self, start: int, end: int, key: str | None) -> None:
        self.made.append(EvictRange(start, end, key))

    def retract(self, batch: Batch) -> None:
        self.made.append(Retract(batch))

    def update(self, batch: Batch) -> None:
        self.made.append(Update(batch))


def write(
    window: Window | Commands,
    model: KnownModel,
    rng: random.Random,
    keys: list[str | None],
    late: int,
    next_id: int,
    evicts: bool = True,
    per_tick: int = 3,
) -> int:
    """Make one random write to both, about times up to `late` before the newest; return the next identity.

    Args:
        per_tick: how many entries come until time goes on.
    """
    model.begin()
    next_id = _written(window, model, rng, keys, late, next_id, evicts, per_tick)
    model.tokens.append(model.applied)
    return next_id


def _written(
    window: Window | Commands,
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
        window.insert(at, {"value": value, "id": next_id}, key)
        model.insert(key, at, value, next_id)
        return next_id + 1
    if kind == "bulk":
        rows = [(rng.choice(keys), time(), rng.randrange(1000), next_id + i) for i in range(rng.randrange(1, 40))]
        window.bulk_insert(_batch(window, rows))
        for row in rows:
            model.insert(*row)
        return next_id + len(rows)
    there = [v for v in model.versions if v.removed == NEVER_REMOVED]
    if kind == "evict" and there:
        key = rng.choice([None, *keys])
        start = rng.choice(there).time
        window.evict_range(start, start + 1, key)
        model.evict(key, start, start + 1)
        return next_id
    some = [rng.choice(there) for _ in range(min(len(there), rng.randrange(1, 6)))]
    some.sort(key=lambda v: (v.key or "", v.time))
    rows = [(v.key, v.time, rng.randrange(1000), v.id if rng.random() < 0.9 else -1) for v in some]
    if kind == "retract":
        if rows:
            names = [r[0] for r in rows] if window.spec.keyed else None
            window.retract(Batch.of(window.spec, [r[1] for r in rows], {"id": [r[3] for r in rows]}, names))
        for key, at, _, id in rows:
            model.retract(key, at, id)
    elif rows:
        window.update(_batch(window, rows))
        _corrected(model, rows)
    return next_id


def _corrected(model: KnownModel, rows: list[tuple[Any, ...]]) -> None:
    for row in rows:
        model.correct(*row)


def _batch(window: Window | Commands, rows: list[tuple[Any, ...]]) -> Batch:
    columns = {"value": [r[2] for r in rows], "id": [r[3] for r in rows]}
    return Batch.of(window.spec, [r[1] for r in rows], columns, [r[0] for r in rows] if window.spec.keyed else None)
