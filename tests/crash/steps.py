"""What writers do to a storage in this process: always the same steps, so that they can be done again, and compared.

    steps of "a"      1 bulk   2 evict   3 batch   4 window   5 insert   …      each has an effect on what must be there

A step may be done twice: the second time finds it done, or does what was not done of it.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from sash.durability.records.commands import BulkEvict, BulkInsert, Commit, Insert, StageBatch
from sash.durability.storage import Storage
from sash_engine.errors import NotFound
from sash_engine.windows.batches.batch import Batch, Coded, Origin
from sash_engine.windows.spec.window import WindowSpec
from tests.crash.writers import MAX_AGE, MAX_COUNT, SPECS, same
from tests.support.model import Slow

Rows = list[tuple[int, int]]

SIZES = {"insert": (1, 1), "large": (16_000, 18_000)}
"""How many entries a write has, at least and at most. A large one has more than 256 KiB, so it is applied in slices."""


@dataclass(slots=True)
class Step:
    """One thing that a writer does.

    Attributes:
        kind: "insert", "bulk", "large", "evict", "batch" or "window".
        number: of the write to its key, of its batch or of its window.
        parts: the entries; of a batch in parts.
        through: up to which time is evicted.
    """

    kind: str
    number: int
    parts: list[Rows]
    through: int = 0


async def create_windows(storage: Storage) -> None:
    """Create the windows that all writers write to; does nothing where they are there."""
    for document in SPECS.values():
        await storage.create(WindowSpec.parse(document))


class Writer:
    """One writer, and what must be there of it after the steps that it has done.

    Args:
        name: its key, its producer and its query.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._steps = _steps(name)
        self._models = {"written": Slow(MAX_AGE, MAX_COUNT), "batched": Slow(MAX_AGE, None)}
        self._window = 0
        self._random = random.Random(name)

    def next(self) -> Step:
        """The next step, which is to be done, and then said to be `done`."""
        return next(self._steps)

    async def do(self, storage: Storage, step: Step) -> None:
        """Do a step; it is durable when this returns."""
        [first, *_] = parts = step.parts or [[]]
        origin = Origin(self.name, step.number)
        if step.kind == "insert":
            [(time, value)] = first
            await storage.write("written", Insert(time, {"value": value}, self.name), origin)
        elif step.kind in ("bulk", "large"):
            await storage.write("written", BulkInsert(self._batch(first)), origin)
        elif step.kind == "evict":
            await storage.write("written", BulkEvict(step.through, self.name), origin)
        elif step.kind == "batch":
            if storage.find("batched").ledger.committed(self.name, step.number):
                return
            staged = [
                await storage.write("batched", StageBatch(self._batch(part), self.name, step.number)) for part in parts
            ]
            await storage.write("batched", Commit(self.name, step.number, [each.stage for each in staged]))
        else:
            window = f"{self.name}-{step.number}"
            await storage.create(WindowSpec.parse({**SPECS["written"], "name": window, "slide": {}}))
            await storage.write(window, BulkInsert(self._batch(first)), Origin(self.name, 1))
            with contextlib.suppress(NotFound):
                await storage.delete(f"{self.name}-{step.number - 1}")

    def done(self, step: Step) -> None:
        """A step was done: from now on it must be there."""
        rows = [row for part in step.parts for row in part]
        if step.kind == "evict":
            self._models["written"].evict(step.through)
        elif step.kind == "window":
            self._window = step.number
            self._models[f"{self.name}-{step.number}"] = model = Slow()
            self._models.pop(f"{self.name}-{step.number - 1}", None)
            model.write(rows)
        else:
            self._models["batched" if step.kind == "batch" else "written"].write(rows)

    def check(self, storage: Storage) -> None:
        """Compare what is answered with what must be there."""
        for check in self.checks(storage):
            check()

    def checks(self, storage: Storage) -> Iterator[Callable[[], None]]:
        """Comparisons of what is answered with what must be there, each by itself."""
        names = {info.spec.name for info in storage.all()}
        mine = {name for name in names if name.startswith(f"{self.name}-")}
        assert mine == self._models.keys() - SPECS.keys(), f"windows {sorted(mine)}"
        for name, model in self._models.items():
            yield partial(self._check_all, storage, name, model)
            for first, last in [(model.entries[0][0], model.entries[-1][0])] if model.entries else ():
                for _ in range(3):
                    start, end = sorted(self._random.randint(first - 5, last + 5) for _ in range(2))
                    yield partial(self._check_range, storage, name, model, start, end)

    def _check_all(self, storage: Storage, name: str, model: Slow) -> None:
        [answer] = storage.find(name).query(self.name, [], None)
        same(self.name, answer, [value for _, value in model.entries], f"all of {name}")

    def _check_range(self, storage: Storage, name: str, model: Slow, start: int, end: int) -> None:
        answer = storage.find(name).range_query(start, end, self.name)
        same(self.name, answer, model.between(start, end), f"{start} to {end} of {name}")

    def _batch(self, rows: Rows) -> Batch:
        times, values = np.array(rows, np.int64).reshape(-1, 2).T.copy()
        return Batch(times, {"value": values}, Coded.of([self.name] * len(rows)))


def _steps(name: str) -> Iterator[Step]:
    chance = random.Random(f"steps of {name}")
    now = value = 0
    numbers = dict.fromkeys(("written", "batch", "window"), 0)

    def rows(count: int) -> Rows:
        nonlocal now, value
        made = []
        for _ in range(count):
            now += chance.choice((0, 1, 1, 2))
            value += 1
            late = chance.randint(0, MAX_AGE + 50) if chance.random() < 0.02 else 0
            made.append((max(now - late, 0), value))
        return made

    while True:
        kind = chance.choices(("insert", "bulk", "large", "evict", "batch", "window"), (12, 16, 2, 3, 9, 3))[0]
        sort = kind if kind in numbers else "written"
        numbers[sort] += 1
        if kind == "evict":
            yield Step(kind, numbers[sort], [], now - chance.randint(0, MAX_AGE))
        elif kind == "batch":
            yield Step(kind, numbers[sort], [rows(chance.randint(1, 300)) for _ in range(chance.randint(1, 3))])
        else:
            least, most = SIZES.get(kind, (1, 400))
            yield Step(kind, numbers[sort], [rows(chance.randint(least, most))])
