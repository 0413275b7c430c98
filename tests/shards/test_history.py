"""Windows with a history over several shards: each keeps the history of its keys."""

import numpy as np
import pytest

from sash.durability.records.commands import BulkInsert
from sash_engine.clock import ManualClock
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import ALL_KEYS, Grouped, Query
from sash_engine.windows.spec.window import WindowSpec
from tests.shards.test_views import SOURCE, answers_of
from tests.support.sharded import in_process

SPEC = WindowSpec.parse(SOURCE.document() | {"slide": {"max_age": "30s"}, "history": "10d"})


def bulk(first, n=400):
    random = np.random.default_rng(first)
    keys = [f"k{i}|{j}" for i, j in zip(random.integers(0, 20, n), random.integers(0, 2, n), strict=True)]
    return Batch.of(SPEC, first + random.integers(0, 200, n), {"v": random.integers(-9, 9, n)}, keys)


async def past_of(plane, name, as_of):
    found = [
        await plane.ask(name, Query("k3|1", as_of=as_of)),
        await plane.ask(name, Query("k4|0", lookbacks=["10s", "90s"], as_of=as_of)),
        await plane.ask(name, Query(keys=["k1|0", "k2|1", "k5|0"], as_of=as_of)),
        await plane.ask(name, Query(keys=ALL_KEYS, combine=True, as_of=as_of)),
        await plane.ask(name, Query(lookbacks=["70s"], as_of=as_of, selection=Grouped(by=["b"]))),
        sorted(str(answer) for answer in await plane.ask(name, Query(keys=ALL_KEYS, as_of=as_of))),
    ]
    return [*map(str, found)]


@pytest.mark.parametrize("shards", [1, 5])
async def test_the_slide_and_the_past_are_those_of_windows_that_keep_them(shards):
    plane = in_process(shards, ManualClock())
    await plane.create(SPEC)
    for name, max_age in (("shown", "30s"), ("kept", "10d")):
        await plane.create(WindowSpec.parse(SOURCE.document() | {"name": name, "slide": {"max_age": max_age}}))
    done = {}
    for first in (1_000, 0, 500):
        for name in ("requests", "shown", "kept"):
            done[name] = await plane.write(name, BulkInsert(bulk(first)))
        assert done["requests"].inserted == 400
        assert done["requests"].history == done["shown"].late
    assert done["shown"].late == 400, "the last ones are too old for every slide"
    assert await answers_of(plane, "requests") == await answers_of(plane, "shown")
    for as_of in (100, 650, 1_150):
        assert await past_of(plane, "requests", as_of) == await past_of(plane, "kept", as_of)
    info, kept = await plane.window("requests"), await plane.window("kept")
    assert (info.entries, info.keys, info.counts) == (kept.entries, kept.keys, kept.counts)
