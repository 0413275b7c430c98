"""Windows with `known: arrival` over shards: an export has what was known, whatever the number of shards it goes to."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from sash.durability.records.commands import Command
from sash.plane import Plane
from sash.shards.files import _merged_header
from sash_engine.clock import ManualClock
from sash_engine.errors import FailedPrecondition
from sash_engine.windows.answers import Answer
from sash_engine.windows.batches.batch import Coded
from sash_engine.windows.questions import AnswersAt, Query
from sash_engine.windows.spec.window import WindowSpec
from tests.support.known_model import KnownModel, write
from tests.support.sharded import file_of, in_process, pieces, single
from tests.support.stored import StorageServer
from tests.windows.test_known import DOCUMENT

SPEC = WindowSpec.parse({**DOCUMENT, "slide": {"max_age": 200}, "history": 100_000})
KEYS: list[str | None] = [f"k{i}" for i in range(6)]


class Live:
    """Writes to a window, and logs answers."""

    def __init__(self, seed: int) -> None:
        self._rng, self._model, self._next = random.Random(seed), KnownModel(), 0
        self.logged: list[Answer] = []

    async def go_on(self, plane: Any, steps: int) -> None:
        for _ in range(steps):
            commands = list[Command[Any]]()
            late = self._rng.choice([2, 30, 300])
            self._next = write(commands.append, self._model, self._rng, KEYS, late, self._next, evicts=False)
            for command in commands:
                await plane.write("w", command)
            key = self._rng.choice(KEYS)
            self.logged += [each for each in await plane.ask("w", Query(key, [50])) if each.end is not None]

    async def check(self, plane: Any) -> None:
        """All answers are given again, one by one and as one table."""
        assert len(self.logged) > 20
        keys = [each.key or "" for each in self.logged]
        ends, known = (np.array([getattr(each, name) for each in self.logged]) for name in ("end", "known_at"))
        (found,) = await plane.ask("w", AnswersAt(ends, Coded.of(keys), [50], known_at=known))
        for i, answer in enumerate(self.logged):
            assert found.entries[i] == answer.entries
            assert {name: column[i] for name, column in found.aggregates.items()} == answer.aggregates
            question = Query(answer.key, [50], as_of=answer.end, known_at=answer.known_at)
            assert await plane.ask("w", question) == [answer]


def plane_of(shards: int | None) -> Plane:
    return single(ManualClock()) if shards is None else in_process(shards)


@pytest.mark.parametrize(("shards", "others"), [(None, 3), (3, None), (3, 5), (5, 3), (2, 1)])
async def test_logged_answers_are_given_again_by_another_number_of_shards(
    shards: int | None, others: int | None
) -> None:
    first, live = plane_of(shards), Live(others or 0)
    await first.create(SPEC)
    await live.go_on(first, 60)
    await live.check(first)
    for there in (others, shards):
        plane, data = plane_of(there), await file_of(first)
        await plane.restore(pieces(data, 1000))
        numbers = {each: {(await each.ask("w", Query(key)))[0].known_at for key in KEYS} for each in (first, plane)}
        assert numbers[plane] == {max(number or 0 for number in numbers[first])}
        await live.check(plane)
        await live.go_on(plane, 30)
        await live.check(plane)
        first = plane


async def test_the_number_goes_on_over_restarts_where_shards_became_one() -> None:
    first, live, server = in_process(4), Live(7), StorageServer()
    await first.create(SPEC)
    await live.go_on(first, 60)
    storage = await server.start()
    window = await storage.restore(pieces(await file_of(first), 1000), None)
    counts = window.counts
    assert window.known is not None
    assert window.known.number < counts.inserted + counts.retracted + counts.corrected
    for _ in range(3):
        await live.go_on(storage, 10)
        number = storage.find("w").known.number  # type: ignore[union-attr]
        storage = await server.restart()
        await live.check(storage)
        storage = await server.crash()
        await live.check(storage)
        assert storage.find("w").known.number == number  # type: ignore[union-attr]
    await storage.stop(5)


async def test_shards_of_two_versions_are_not_one_file() -> None:
    plane = in_process(2)
    await plane.create(SPEC)
    data = await file_of(plane)
    assert data
    header: dict[str, Any] = {"spec": SPEC.document(), "counts": {}, "newest": 0, "extra": {"ledger": {}}}
    with pytest.raises(FailedPrecondition, match="version"):
        _merged_header([{**header, "arrivals": 1}, header])
