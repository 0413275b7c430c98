"""Imports of what somebody made up: a checksum anybody can compute, so every value is checked before it is used."""

import asyncio
import contextlib
import logging
import random

import pytest
import xxhash
from prometheus_client import CollectorRegistry, generate_latest

from sash.durability import formats as values
from sash.durability.images import export as module
from sash.durability.records.commands import BulkEvict, BulkInsert, Commit, StageBatch
from sash.plane import Plane
from sash.rest import answers as rest
from sash.rpc import bulks, translate
from sash.runtime.clock import SystemClock
from sash.runtime.metrics import Metrics
from sash_engine.errors import DataLoss, InvalidArgument, Unavailable
from sash_engine.monoids import laws
from sash_engine.steps import finished
from sash_engine.windows.batches.batch import Origin
from sash_engine.windows.questions import ALL_KEYS, EntriesQuery, KeysQuery, Query, RangeQuery, SeriesQuery
from sash_engine.windows.spec.window import WindowSpec
from sash_proto.v1 import windows_pb2 as pb
from tests.support import twins
from tests.support.exports import put
from tests.support.failing import entries, exported, insert, parts_of, rows
from tests.support.mutations import mutated, places
from tests.support.profile import THOROUGH
from tests.support.stored import StorageServer, running, spec
from tests.support.waiting import surely, until

MUTATIONS = 10_000 if THOROUGH else 540
FEW = ("sum", "last_flag", "distinct")
"""Of windows whose exports carry values and no partials."""
ROUNDED = {name: {"function": name, "field": "x"} for name in ("stddev", "kurtosis", "m4", "linear_slope", "min_count")}
MORE = {
    "bars": {"function": "histogram", "field": "x", "bounds": [1, 5]},
    "seen": {"function": "bloom", "field": "word", "capacity": 20},
    "whole": {"function": "mean", "field": "n"},
    "different": {"function": "collect_distinct", "field": "flag"},
    "run": {"function": "longest_increasing_run", "field": "n"},
    "first": {"function": "first", "field": "flag"},
}
KINDS = {
    "unkeyed": {"keyed": False, "slide": {"max_age": 60}, "order": {"equal_times": "last"}},
    "keyed": {"slide": {"max_count": 40}, "idle_expiry": "30d"},
    "panes": {"granularity": 5, "slide": {"max_age": 100}},
}


def spec_of(kind, name="w"):
    aggregates = twins.AGGREGATES | ROUNDED | MORE
    if kind != "panes":
        aggregates = {name: aggregates[name] for name in FEW}
    document = {"name": name, "time_unit": "ms", "keyed": True, "fields": twins.FIELDS, "aggregates": aggregates}
    return WindowSpec.parse(document | KINDS[kind])


async def fed(storage, kind, name="w"):
    """A window with small keys and a large one, where there are keys; with producers and batches that it remembers."""
    await storage.create(spec_of(kind, name))
    keyed = KINDS[kind].get("keyed", True)
    pairs = [("a", time) for time in range(50)] + [(f"key {i}", 20 + time) for i in range(5) for time in range(i)]
    pairs = pairs if keyed else pairs[:50]
    await storage.write(name, BulkInsert(twins.bulk(pairs, 0, keyed)), Origin("sensor", 1))
    await storage.write(name, BulkInsert(twins.bulk([("a", 51), ("a", 55)], 90, keyed)), Origin("ü", 1))
    await storage.write(name, BulkEvict(4, None))
    batch = twins.bulk([("a", 56)], 99, keyed)
    staged = await storage.write(name, StageBatch(batch, "nightly", 0))
    await storage.write(name, Commit("nightly", 0, [staged.stage]))
    await storage.write(name, StageBatch(batch, "nightly", 1))


def close(monoid, a, b):
    """Whether two partials have one answer, but for what floats are rounded to."""
    return laws.close(monoid.lower(a), monoid.lower(b), 1e-9)


def opened(frames):
    """The payloads of frames."""
    return [values.unseal("export", frame[4:], "frame") for frame in frames]


def sealed(payloads):
    """The frames of payloads, with checksums that hold."""
    for payload in payloads:
        value = values.seal("export", payload)
        yield len(value).to_bytes(4, "little") + value


def shown(plane, metrics):
    """All that shows all windows, on both edges; fails where one window spoils it."""
    for window in plane.list():
        message = pb.WindowInfo()
        translate.fill_window(message, window)
        message.SerializeToString()
        rest.json_bytes(rest.window_document(window))
    return generate_latest(metrics).decode()


async def used(plane, name):
    """What is asked of a window, answered on both edges; returns the answers."""
    spec = plane.spec(name)
    keys = {"keys": ALL_KEYS} if spec.keyed else {}
    info = await plane.window(name)
    answers = await plane.ask(name, Query(**keys, partials=True))
    answers += await plane.ask(name, Query(**keys, lookbacks=["7", "1h"] if spec.time_unit != "none" else [7]))
    single = {"key": "a"} if spec.keyed else {}
    answers.append(await plane.ask(name, RangeQuery(5, 40, **single, partials=True)))
    document = []
    for answer in answers:
        translate.fill_answer(pb.Answer(), answer)
        rest.json_bytes(rest.answer_document(answer, spec))
        answer.partials = None  # of one sketch there are several forms
        document.append(rest.json_bytes(rest.answer_document(answer)))
    series = await plane.ask(name, SeriesQuery(0, 60, 5, 11, **single))
    translate.fill_series(pb.SeriesResponse(), series)
    document.append(b"".join(finished(rest.series_steps(series, 0, 60, 5))))
    for bulk in await plane.ask(name, EntriesQuery(**keys)):
        bulks.bulk_of(name, bulk).SerializeToString()
        rest.json_bytes(rest.bulk_document(bulk, spec))
    if spec.keyed:
        document.append(await plane.ask(name, KeysQuery()))
    return info.entries, info.newest, document


async def served(server):
    """The storage, started or started again, as a service wires it: its operations, and the metrics."""
    storage = await (server.start() if server.tier is None else server.restart())
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    plane = Plane.of(storage, metrics, SystemClock())
    metrics.watch(plane.list)
    metrics.watch_storage(storage.status)
    return storage, plane, registry


@pytest.fixture
def small_frames(monkeypatch):
    monkeypatch.setattr(module, "_KEYS", 4)
    monkeypatch.setattr(module, "_ROWS", 40)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


async def test_a_spec_with_an_integer_of_any_size_is_shown():
    """As YAML and gRPC may bring one, or an import: JSON's writer stops at 64 bits."""
    storage, plane, metrics = await served(StorageServer())
    bars = {"function": "histogram", "bounds": [1, 10**30]}
    await storage.create(WindowSpec.parse({"name": "w", "aggregates": {"bars": bars}}))
    assert 'window="w"' in shown(plane, metrics)
    (window,) = plane.list()
    assert b"[1,1" + b"0" * 30 + b"]" in rest.json_bytes(rest.window_document(window))


def cases(payloads, count, chance):
    """`count` ways to change one thing in one frame; each place comes up, and the header's most."""
    everywhere = [(number, place) for number, payload in enumerate(payloads) for place in places(payload)]
    header = [(0, place) for place in places(payloads[0]) if place[:2] != (2, "spec")]
    chosen = everywhere if len(everywhere) < count else chance.sample(everywhere, count // 2)
    while len(chosen) < count:
        chosen.append(chance.choice(chance.choice([header, everywhere])))
    return chosen


async def outcome(storage, payloads):
    """The window that an import makes, or why it was refused."""
    try:
        return await storage.restore(parts_of(sealed(payloads)), "other"), None
    except InvalidArgument as error:
        return None, error


@pytest.mark.usefixtures("small_frames")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))])
async def test_a_made_up_export_is_refused_by_name_or_is_a_window_that_works(kind, seed):
    server = StorageServer(cache_bytes=10**6, checkpoint_bytes=10**6)
    storage, plane, metrics = await served(server)
    await fed(storage, kind)
    payloads = opened(storage.export("w"))
    assert {payload[1] for payload in payloads} >= {"header", "entries", "states", "end"}
    await storage.restore(parts_of(sealed(payloads)), "copy")
    sound = await used(plane, "w")
    assert (await used(plane, "copy"))[:2] == sound[:2]
    await storage.delete("copy")
    told = await plane.window("w")
    chance = random.Random(f"{kind} {seed}")
    refused = working = 0
    for number, place in cases(payloads, MUTATIONS // 9, chance):
        changed = [*payloads]
        changed[number] = mutated(payloads[number], place, chance)
        window, error = await outcome(storage, changed)
        found = None if window is None else await used(plane, "other")
        working += window is not None
        refused += window is None
        assert window is not None or error.field
        assert window is not None or len((error.message + error.field + (error.limit or "")).encode()) < 3000
        text = shown(plane, metrics)
        assert ("other" in text) == (found is not None)
        storage, plane, metrics = await served(server)
        shown(plane, metrics)
        assert (await plane.window("w")) == told
        if found is not None:
            assert await used(plane, "other") == found, (number, place)
            window.check_invariants(close)
            await storage.delete("other")
            assert "other" not in shown(plane, metrics)
    assert await used(plane, "w") == sound
    assert refused > (50 if THOROUGH else 30)
    assert working > 5


# ---------------------------------------------------------------- images that are wrong


async def stopped():
    """A server that was stopped with two windows, each with an image, and what the store has."""
    server = StorageServer(cache_bytes=10**6, checkpoint_bytes=1)
    storage, plane, _ = await served(server)
    await fed(storage, "keyed")
    await fed(storage, "unkeyed", "v")
    await server.settled()
    sound = await used(plane, "v")
    await storage.stop()
    return server, dict(server.store.values), sound


def image_of(stored, number):
    """What the image of a window consists of: its ledger with what is trash; then parts of records, unpacked."""
    pointer = values.pointer_key(number)
    version = values.unseal("pointer", stored[pointer], pointer)["image"]
    head, *parts = (key for part in range(100) if (key := values.image_key(number, version, part)) in stored)
    payloads = [values.unseal("image", stored[part], part) for part in parts]
    return version, [
        values.unseal("head", stored[head], head),
        *([part, [values.unpack(record) for record in records]] for part, records in payloads),
    ]


def with_image(stored, number, version, payloads):
    """What is stored, with an image whose checksums hold, each by itself and all of them together."""
    head, *parts = payloads
    first = values.image_key(number, version, 0)
    store = values.store_of(stored[first])
    changed = {first: values.seal("head", head, first, store)}
    for i, payload in enumerate(parts, 1):
        match payload:
            case [part, list(records)]:
                payload = [part, [values.pack(record) for record in records]]
        key = values.image_key(number, version, i)
        changed[key] = values.seal("image", payload, key, store)
    key = values.pointer_key(number)
    whole = xxhash.xxh3_64(b"".join(map(values.checksum, changed.values()))).digest()
    changed[key] = values.seal("pointer", values.unseal("pointer", stored[key], key) | {"sum": whole}, key, store)
    return stored | changed


HEAD = (1, 1, 0, 1)
KEYS = (1, 1, 1, 1)


@pytest.mark.usefixtures("small_frames")
async def test_an_image_may_count_more_than_an_export():
    """A window whose counts are as large as an import may say goes on, and starts again."""
    server, stored, _ = await stopped()
    version, payloads = image_of(stored, 1)
    counts = payloads[1][1][0][1]["counts"]
    counts["evicted"] += 2**62 + 1
    counts["inserted"] += 2**62 + 1
    server.store.values = with_image(stored, 1, version, payloads)
    _, plane, metrics = await served(server)
    assert (await plane.window("w")).counts.inserted == counts["inserted"]
    shown(plane, metrics)


async def is_lost(server, sound):
    """Start: the window is not served, and says so; the other one is none the worse; and it can be deleted."""
    storage, plane, metrics = await served(server)
    assert "sash_windows 2.0" in shown(plane, metrics)
    (lost,) = [window for window in plane.list() if window.spec.name == "w"]
    assert lost.problem is not None
    assert "window 'w' is not served" in lost.problem
    with pytest.raises(DataLoss, match="not served"):
        await plane.ask("w", Query(keys=ALL_KEYS))
    assert await used(plane, "v") == sound
    await storage.delete("w")
    assert "sash_windows 1.0" in shown(plane, metrics)
    assert await used(plane, "v") == sound
    await storage.stop()


@pytest.mark.usefixtures("small_frames")
@pytest.mark.parametrize(
    "change",
    [
        put(0, "ledger", "next_part", "2"),
        put(0, "ledger", "next_part", 2**63),
        put(0, "ledger", "producers", {"p": 1}),
        put(0, "ledger", "parts", {"token": "part"}),
        put(0, "ledger", None),
        put(0, "trash", None),
        put(0, []),
        put(*HEAD, "counts", "late", "many"),
        put(*HEAD, "counts", "late", 2**63),
        put(*HEAD, "counts", "evicted", -1),
        put(*HEAD, "counts", "evicted", 10**6),
        put(*HEAD, "counts", None),
        put(*HEAD, "newest", "now"),
        put(*HEAD, "newest", 2**64),
        put(*HEAD, "large", ["x"]),
        put(*HEAD, "large", [-1]),
        put(*HEAD, "block", "4"),
        put(*HEAD, "pages", 3),
        put(1, 1, 0, 1, []),
        put(*KEYS, 0, b"a"),
        put(*KEYS, 0, "\ud800"),
        put(*KEYS, 0, ["a"]),
        put(1, 1, 1, 2, 0, ["<i8", "x"]),
        put(1, 1, 1, []),
        put(1, 1, {}),
        put(1, 7),
    ],
)
async def test_a_window_whose_image_is_wrong_is_lost_and_no_other(change):
    server, stored, sound = await stopped()
    version, payloads = image_of(stored, 1)
    change(payloads)
    server.store.values = with_image(stored, 1, version, payloads)
    await is_lost(server, sound)


pytestmark = pytest.mark.usefixtures("impatient")


async def halting(parts, gate, halted):
    """Parts of an import, the last of which comes when the gate opens; `halted` are those that wait there."""
    for part in parts[:-1]:
        yield part
    halted.append(parts)
    await gate.wait()
    yield parts[-1]


async def test_of_two_imports_of_one_name_one_takes_place_and_leaves_nothing_of_the_other():
    parts = await exported()
    server, storage = await running()
    gate, halted = asyncio.Event(), []
    imports = [asyncio.create_task(storage.restore(halting(parts, gate, halted), None)) for _ in range(2)]
    await until(lambda: len(halted) == 2)
    gate.set()
    found = await asyncio.gather(*imports, return_exceptions=True)
    assert sorted(type(result).__name__ for result in found) == ["AlreadyExists", "Window"]
    assert (await storage.write("w", rows(0, 200), Origin("p", 1))).already_applied
    storage = await server.crash()
    assert entries(storage) == list(range(200))
    await storage.delete("w")
    await server.settled()
    assert not server.left


@pytest.mark.parametrize("end", ["crash", "cancel", "stop"])
async def test_an_import_that_ends_half_way_leaves_nothing(end):
    parts = await exported()
    server, storage = await running()
    task = asyncio.create_task(storage.restore(halting(parts, asyncio.Event(), []), None))
    await until(lambda: any(key.startswith(b"block/") for key in server.left))
    if end == "stop":
        storage = await server.restart()
    elif end == "crash":
        storage = await server.crash()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await server.settled()
    assert not server.left
    await storage.create(spec())
    await storage.write("w", insert(1))
    storage = await server.crash()
    assert entries(storage) == [1]


async def test_an_import_that_the_tier_does_not_take_is_refused_and_can_be_repeated():
    parts = await exported()
    server, storage = await running()
    await server.settled()
    server.tier.fail_before = 1
    with pytest.raises(Unavailable):
        await storage.restore(parts_of(parts), None)
    await surely(lambda: storage.restore(parts_of(parts), None))
    storage = await server.crash()
    assert entries(storage) == list(range(200))
