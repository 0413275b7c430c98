"""Each load of each write to a stored window fails once: it is refused, the window is as before, and then takes it.

    a window whose blocks are stored ── a write whose k-th load fails ──▶ refused ──▶ read back, if half was applied
                                     └─ the write again, with the next load failing, … ──▶ as a window in memory

For each kind of window and of write, and for each k until the write needs no more loads. In short runs every kind has
every second write, and neighbours have different ones.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from sash.durability.records.commands import (
    AddAggregates,
    BulkEvict,
    BulkInsert,
    EvictRange,
    Insert,
    Retract,
    Update,
    Write,
)
from sash_engine.clock import ManualClock
from sash_engine.errors import Unavailable
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.window import Window
from tests.support.failing import failing_read
from tests.support.profile import THOROUGH
from tests.support.stored import AGGREGATES, KEYS, StorageServer, same, spec
from tests.support.waiting import until

N = 66
"""Entries of each key, in blocks of 4; of so many a key has a store of its own."""

COLD = {"cache_bytes": 0, "checkpoint_bytes": 10**9, "store_entries": 1}
COMMUTING = {"n": {"function": "count"}, "max": {"function": "max"}, "distinct": {"function": "collect_distinct"}}
NAMED = {"fields": {"value": "int64", "id": "int64"}, "identity": "id"}
OF_VALUE = {name: each | {"field": "value"} for name, each in AGGREGATES.items() if name != "n"}

WINDOWS: dict[str, dict[str, Any]] = {
    "entries": {"aggregates": AGGREGATES},
    "commuting": {"aggregates": COMMUTING},
    "numbers": {"aggregates": {name: COMMUTING[name] for name in ("n", "max")}},
    "panes": {"aggregates": AGGREGATES, "granularity": 2},
    "max_count": {"aggregates": AGGREGATES, "slide": {"max_count": N}},
    "max_gap": {"aggregates": AGGREGATES, "slide": {"max_gap": 20}},
    "when": {"aggregates": AGGREGATES, "slide": {"when": "total.n - old.n >= 65"}},
    "named": {"aggregates": OF_VALUE, **NAMED},
}


def rows(times: list[int], named: bool, first: int = 1_000) -> Batch:
    """An entry of each key at each time."""
    n = len(times) * len(KEYS)
    values = {"value": np.arange(first, first + n)} | ({"id": np.arange(first, first + n)} if named else {})
    return Batch(np.repeat(times, len(KEYS)), values, Coded.of(KEYS * len(times)))


def names(numbers: list[int], **columns: Any) -> Batch:
    """Entries of the first write by their numbers."""
    return Batch(
        np.array(numbers) // len(KEYS) * 2,
        {"id": np.array(numbers), **columns},
        Coded.of([KEYS[number % len(KEYS)] for number in numbers]),
    )


def writes(kind: str) -> list[Any]:
    """All that can be written to a window, from its old end to its new one."""
    named, newest = kind == "named", 2 * (N - 1)
    values = {"value": 7} | ({"id": 7_000} if named else {})
    found: list[Any] = [
        *(Insert(time, values, "b") for time in (7, newest + 9)),
        *(BulkInsert(rows(times, named)) for times in ([3, 9, 17], [5] * 6, [newest + 25])),
        *(BulkEvict(time) for time in (6, 11)),
        *(EvictRange(start, end) for start, end in ((3, 5), (2, 17), (9, newest))),
    ]
    if named:
        some = [0, 1, 2], [*range(12, 24)], [*range(3 * N - 3)]
        found += [Retract(names(numbers)) for numbers in some]
        found += [Update(names(numbers, value=np.arange(len(numbers)))) for numbers in some]
    if kind in ("entries", "numbers"):
        found.append(AddAggregates({"more": {"function": "sum"}}))
    return found if THOROUGH else found[list(WINDOWS).index(kind) % 2 :: 2]


async def begun(kind: str) -> tuple[StorageServer, Window]:
    """A window whose blocks are stored and not in memory, and one in memory that was sent the same."""
    server, of = StorageServer(**COLD), spec(**WINDOWS[kind])
    storage = await server.start()
    await storage.create(of)
    model = Window(of, block=4, clock=ManualClock())
    first = BulkInsert(rows([2 * i for i in range(N)], kind == "named", 0))
    await storage.write("w", first)
    Write(first, 0).apply(model)
    await server.settled()
    storage.trim()
    return server, model


@pytest.mark.parametrize("kind", WINDOWS)
async def test_a_write_whose_load_fails_is_refused_and_can_be_sent_again(kind):
    most = 0
    for number in range(len(writes(kind))):
        server, model = await begun(kind)
        storage = server.storage
        for at in itertools.count(1):
            write = writes(kind)[number]
            storage.trim()
            whole = failing_read(server.tier, at)
            try:
                await storage.write("w", write)
                break
            except Unavailable:
                whole()
                await until(lambda storage=storage: storage.store.windows["w"].failure is None)
                same(storage.find("w"), model)
        whole()
        Write(write, 0).apply(model)
        same(storage.find("w"), model)
        await storage.stop()
        most = max(most, at - 1)
    assert most > 0, "some writes need loads"
