"""A store with windows that are stored together: what they feed, their rollups and their views, on several levels.

server, models = await stored_family()      a server that died; models of all windows that have entries
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sash.durability import formats as values
from sash.durability.images.image_reader import forest_of, restore
from sash.durability.records.commands import BulkInsert, Commit, StageBatch
from sash.durability.storage import Storage
from sash_engine.forest import Forest
from sash_engine.forest.cold import Cache, Cold
from sash_engine.forest.image import ForestImage
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.questions import ALL_KEYS, EntriesQuery, Grouped, Query
from sash_engine.windows.spec.derived import completed
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.stored import StorageServer

_COMMON = {
    "time_unit": "none",
    "keys": ["a", "b"],
    "fields": {"v": "int64", "w": "string"},
    "aggregates": {
        "n": {"function": "count"},
        "sum": {"function": "sum", "field": "v"},
        "users": {"function": "distinct_count", "field": "w"},
    },
}
_REQUESTS = WindowSpec.parse({**_COMMON, "name": "requests", "slide": {"max_age": 900}, "rollups": [["a"], []]})
_MINUTES = WindowSpec.parse(
    {**_COMMON, "name": "minutes", "from": {"window": "requests", "granularity": 5}, "rollups": [["b"]]}
)
_HOURS = WindowSpec.parse({**_COMMON, "name": "hours", "from": {"window": "minutes", "granularity": 10}})
_SHORT = WindowSpec.parse(
    {
        "name": "short",
        "of": "requests",
        "slide": {"max_age": 120},
        "aggregates": {"often": {"function": "frequent_items", "field": "w"}, "n": {"function": "count"}},
    }
)
_RECENT = WindowSpec.parse(
    {"name": "recent", "of": "minutes", "slide": {"max_age": 200}, "aggregates": {"n": {"function": "count"}}}
)
_OTHER = WindowSpec.parse({**_COMMON, "name": "other"})

FAMILY: dict[str, WindowSpec] = {
    each.name: each
    for each in (*(_REQUESTS, _MINUTES, _HOURS, completed(_SHORT, _REQUESTS), completed(_RECENT, _MINUTES), _OTHER),)
}
"""All windows, in an order in which they can be created."""

ROOT_OF = {name: "other" if name == "other" else "requests" for name in FAMILY}
FED = ("minutes", "hours")
VIEWS = ("short", "recent")


def bulk(step: int, n: int = 80) -> Batch:
    """Entries of two keys, in order."""
    random = np.random.default_rng(step)
    keys = [["x|p", "y|q"][i] for i in random.integers(0, 2, n)]
    users = Coded.of([f"u{i}" for i in random.integers(0, 9, n)])
    return Batch(
        np.sort(200 * step + random.integers(0, 200, n)), {"v": random.integers(-9, 9, n), "w": users}, Coded.of(keys)
    )


async def stored_family(steps: int = 6) -> StorageServer:
    """A server that died, with blocks of all windows, an image, and some journal behind it."""
    server = StorageServer(checkpoint_bytes=10**7, store_entries=8, block=16)
    storage = await server.start()
    for spec in FAMILY.values():
        await storage.create(spec)
    for step in range(steps):
        if step == steps - 2:
            storage = await server.restart()
        await _write(storage, bulk(step))
        await server.settled()
    for name in ("requests", "other"):  # the parts of a batch, and one that nobody commits
        staged = await storage.write(name, StageBatch(bulk(steps, 6), "q", 1))
        await storage.write(name, StageBatch(bulk(steps, 3), "q", 2))
        await storage.write(name, Commit("q", 1, [staged.stage]))
    await server.settled()
    await server.die()
    return server


async def _write(storage: Storage, batch: Batch) -> None:
    for name in ("requests", "other"):
        await storage.write(name, BulkInsert(batch))


def answers(storage: Storage, name: str) -> dict[str, Any]:
    """What a window answers: by key, by group (from a rollup, where there is one), and its entries."""
    window = storage.find(name)
    reader = window.reader
    questions: Mapping[str, Any] = {
        "key": Query(keys=ALL_KEYS),
        "lately": Query(keys=ALL_KEYS, lookbacks=["100"]),
        "a": Query(keys=ALL_KEYS, selection=Grouped(by=("a",))),
        "b": Query(keys=ALL_KEYS, selection=Grouped(by=("b",))),
        "all": Query(keys=ALL_KEYS, combine=True),
    }
    found: dict[str, Any] = {each: str(reader.query(question)) for each, question in questions.items()}
    if window.spec.granularity is None:
        found["entries"] = [
            sorted(zip([bulk.keys.dictionary[c] for c in bulk.keys.codes], bulk.times.tolist(), strict=True))
            for bulk in reader.entries(EntriesQuery(keys=ALL_KEYS))
            if bulk.keys is not None
        ]
    info = window.info()
    return found | {"counted": (info.entries, info.keys, info.newest)}


def owners(stored: Mapping[bytes, bytes], number: int) -> dict[int, tuple[str, list[str] | None, int]]:
    """By number of a block in the image of a window: whose it is, the parts of its rollup, and how many entries it has.

    A partial has none.
    """
    key = values.pointer_key(number)
    pointer = values.unseal("pointer", stored[key], key)
    keys = [values.image_key(number, pointer["image"], i) for i in range(1, pointer["parts"])]
    forests: list[tuple[Window, ForestImage]] = []

    def made(window: Window, image: ForestImage) -> Forest:
        forests.append((window, image))
        return forest_of(window, image)

    cold = Cold(lambda numbers: [], Cache(0), lambda numbers, layout: [])
    root = restore([stored[key] for key in keys], key=keys.__getitem__, cold=cold, forest=made)
    named: dict[Window, tuple[str, list[str] | None]] = {}
    for window in root.family:
        named[window] = window.spec.name, None
        named |= {rollup.window: (window.spec.name, sorted(rollup.parts)) for rollup in window.derived.rollups}
    found = {}
    for window, image in forests:
        entries = window.layout.entries_of(image.counts, image.partials)
        counted = dict(zip(image.ids.tolist(), [int(count) for count in entries], strict=True))
        found |= {each: (*named[window], counted.get(each, 0)) for each in image.numbers}
    return found
