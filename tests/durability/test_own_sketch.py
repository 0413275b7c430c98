"""A new sketch is one class: this file has all of it, and windows, panes, tiers and partials work with it."""

import struct
from hashlib import blake2b
from importlib.metadata import EntryPoint
from inspect import isawaitable

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from sash.durability.records.commands import BulkEvict, BulkInsert
from sash.plane import Plane
from sash.runtime.metrics import Metrics
from sash_engine.errors import InvalidArgument
from sash_engine.monoids import Monoid, Read, catalogue, laws
from sash_engine.windows.batches.batch import Batch, Coded, PartialBatch
from sash_engine.windows.questions import Query, RangeQuery, SeriesQuery
from sash_engine.windows.reading.costs import MAX_LARGE_BUCKETS
from sash_engine.windows.spec.window import WindowSpec
from tests.support.stored import running

MAGIC = b"BottomK!"


class Sketch:
    """The distinct values with the smallest hashes, of some size at most; opaque to everything but its aggregate."""

    def __init__(self, values):
        self.values = tuple(values)


class BottomK(Monoid):
    """A sample of the distinct values of a field: those with the k smallest hashes."""

    function = "bottom_k"
    parts = ("sample",)
    blob = "BottomK! and int64 values, little-endian"
    reads = (Read("field", ("int64",)),)
    commutative = True
    large = True
    sparse_suffixes = True
    answer = list
    values_per_entry = 1

    def __init__(self, *types, k=8):
        super().__init__(*types)
        self.k = k

    @property
    def schema(self):
        return [self.types[0]]

    def lift(self, value):
        return Sketch([value])

    def combine(self, older, newer):
        if older is None or newer is None:
            return newer if older is None else older
        return Sketch(smallest(older.values + newer.values, self.k))

    def lower(self, partial):
        return [] if partial is None else list(partial.values)

    def encode(self, partial):
        return MAGIC + struct.pack(f"<{len(partial.values)}q", *partial.values)

    def decode(self, data):
        if not data.startswith(MAGIC) or len(data) % 8:
            raise InvalidArgument("not a sample")
        return Sketch(struct.unpack(f"<{len(data) // 8 - 1}q", data[8:]))

    def implausible(self, partials, entries):
        return np.array([len(sketch.values) for sketch in partials[0]]) > entries


def smallest(values, k):
    return sorted(set(values), key=lambda value: blake2b(str(value).encode(), digest_size=8).digest())[:k]


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    entry = EntryPoint("bottom_k", f"{__name__}:BottomK", "sash.aggregates")
    monkeypatch.setattr("sash_engine.monoids.entry_points", lambda group: [entry])
    catalogue.cache_clear()
    yield
    catalogue.cache_clear()


def spec(name="w", **parts):
    aggregates = {
        "n": {"function": "count"},
        "some": {"function": "bottom_k"},
        "wide": {"function": "bottom_k", "k": 32},
    }
    document = {"name": name, "keyed": True, "time_unit": "none", "fields": {"v": "int64"}, "aggregates": aggregates}
    return WindowSpec.parse(document | parts)


def plane_of(server):
    return Plane.of(server.storage, Metrics(CollectorRegistry()), server.clock)


TIMES = np.arange(400)
VALUES = TIMES * 7919 % 101
ROWS = Batch(TIMES, {"v": VALUES}, Coded(["a"], np.zeros(400, np.int64)))


async def asked(answer):
    """Wait for the answer of the plane, if it is one to wait for."""
    return await answer if isawaitable(answer) else answer


def check(answer, start, end):
    """The answer is the one over the values of the times start..end."""
    values = VALUES[start : end + 1].tolist()
    assert answer.entries == len(values)
    assert answer.aggregates == {"n": len(values), "some": smallest(values, 8), "wide": smallest(values, 32)}


def test_it_obeys_the_laws():
    for values in ([], [3], [5, 1, 5, -7, 2**62, 0, 3], VALUES[:40].tolist()):
        laws.check(BottomK("int64", k=3), [np.array(values, np.int64)])


async def test_its_partials_are_stored_one_by_one_and_survive():
    server, _ = await running(spec())
    plane = plane_of(server)
    await plane.write("w", BulkInsert(ROWS))
    await plane.write("w", BulkEvict(49))
    for again in (server.restart, server.crash):
        await server.settled()
        await again()
        plane = plane_of(server)
        check((await asked(plane.ask("w", Query("a"))))[0], 50, 399)
        check((await asked(plane.ask("w", Query("a", [100]))))[0], 300, 399)
        check(await asked(plane.ask("w", RangeQuery(61, 333, "a"))), 61, 333)
    alone = [value for value in server.store.values.values() if value.count(MAGIC) == 1]
    assert len(alone) >= 2 * 350 // server.options["block"], "a value for each block and aggregate"


async def test_panes_of_it_and_partials_out_and_in():
    server, _ = await running(spec("rows", granularity=10), spec("panes", granularity=10))
    plane = plane_of(server)
    await plane.write("rows", BulkInsert(ROWS))
    starts = np.arange(0, 400, 10)
    out = [await asked(plane.ask("rows", RangeQuery(t, t + 9, "a", partials=True))) for t in starts.tolist()]
    partials = {name: (np.concatenate([answer.partials[name][0] for answer in out]),) for name in ("some", "wide")}
    assert all(blob.startswith(MAGIC) for blob in partials["some"][0])
    keys = Coded(["a"], np.zeros(40, np.int64))
    result = await plane.write("panes", BulkInsert(PartialBatch(starts, partials, np.full(40, 10), keys)))
    assert result.inserted == 400
    await server.settled()
    await server.restart()
    plane = plane_of(server)
    for name in ("rows", "panes"):
        check((await asked(plane.ask(name, Query("a"))))[0], 0, 399)
        check(await asked(plane.ask(name, RangeQuery(100, 249, "a"))), 100, 249)
        series = await asked(plane.ask(name, SeriesQuery(0, 400, 20, 50, "a")))
        expected = [smallest(VALUES[t : t + 50].tolist(), 8) for t in range(0, 400, 20)]
        assert series.aggregates["some"].tolist() == expected


@pytest.mark.parametrize(
    ("blob", "says"), [(b"BottomK?", "not a sample"), (MAGIC + bytes(8 * 11), "cannot be the bottom_k of 10 entries")]
)
async def test_partials_that_are_none_are_refused(blob, says):
    server, _ = await running(spec(granularity=10))
    plane = plane_of(server)
    good = np.array([MAGIC + bytes(8)], object)
    partials = {"some": (good,), "wide": (np.array([blob], object),)}
    batch = PartialBatch(np.array([0]), partials, np.array([10]), Coded(["a"], np.array([0])))
    with pytest.raises(InvalidArgument, match=says) as caught:
        await plane.write("w", BulkInsert(batch))
    assert caught.value.field == "partials.wide"
    assert (await asked(plane.window("w"))).entries == 0


@pytest.mark.parametrize("each", [1, None])
async def test_what_a_series_of_it_may_cost(monkeypatch, each):
    """400 entries, each in 400 of 10,000 buckets: 160,000 values, and 4,000,000 if each bucket may have them all."""
    monkeypatch.setattr(BottomK, "values_per_entry", each)
    server, _ = await running(spec(aggregates={"all": {"function": "bottom_k", "k": 1000}}))
    plane = plane_of(server)
    await plane.write("w", BulkInsert(Batch(TIMES, {"v": TIMES}, ROWS.keys)))
    with pytest.raises(InvalidArgument, match="10001 buckets") as caught:
        await asked(plane.ask("w", SeriesQuery(0, MAX_LARGE_BUCKETS + 1, 1, None, "a")))
    assert caught.value.limit == f"{MAX_LARGE_BUCKETS} buckets"
    wide = SeriesQuery(0, 10_000, 1, 400, "a")
    if each is None:
        with pytest.raises(InvalidArgument, match="4000000 values"):
            await asked(plane.ask("w", wide))
    else:
        assert len((await asked(plane.ask("w", wide))).times) == 10_000
