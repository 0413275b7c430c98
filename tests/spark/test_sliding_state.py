"""The state of a bucket of keys without Spark: whatever comes and goes, an answer is the fold."""

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType, TimestampType

from sash_client import DataLoss, FailedPrecondition
from sash_spark.sliding import chunk as sliding_chunk
from sash_spark.sliding import fold as sliding_fold
from sash_spark.sliding import state as sliding_state
from sash_spark.sliding.plan import NEVER, Plan, record_batch_of
from sash_spark.sliding.state import Bucket
from sash_spark.sliding.stream import StreamBuckets, _murmur3, spread

SCHEMA = StructType(
    [
        StructField("at", TimestampType()),
        StructField("k", StringType()),
        StructField("v", LongType()),
        StructField("x", DoubleType()),
        StructField("s", StringType()),
    ]
)
AGGREGATES = {
    "n": {"function": "count"},
    "all": {"function": "collect", "field": "v"},
    "sum": {"function": "sum", "field": "v"},
    "mean": {"function": "mean", "field": "x"},
    "distinct": {"function": "distinct_count", "field": "s"},
    "worst": {"function": "arg_max", "field": "x", "returns": "s"},
}


def plan_of(windows=("10s",), aggregates=AGGREGATES, emit="1s"):
    return Plan.of(SCHEMA, "k", "at", list(windows), aggregates, emit)


def columns_for(plan, times, start=0):
    """Rows with these times; values tell them apart."""
    rows = np.arange(start, start + len(times))
    made = {"v": rows, "x": rows % 7 * 1.5, "s": np.array([f"s{i % 5}" for i in rows], object)}
    return [np.array(times, np.int64), *(made[name] for name in plan.fields)]


class Memory:
    """A store that counts what it is asked for."""

    def __init__(self):
        self.values = {}
        self.read, self.written = [], []

    def head(self):
        return self.values.get("head")

    def put_head(self, value):
        self.values["head"] = value

    def clear(self):
        self.values.clear()

    def get(self, number, part):
        self.read.append((number, part))
        return self.values.get((number, part))

    def put(self, number, part, value):
        self.written.append((number, part))
        self.values[number, part] = value

    def remove(self, number, part):
        del self.values[number, part]

    @property
    def size(self):
        return sum(len(value) for value in self.values.values())


class Timers:
    """Spark's part: one bucket's timer, and the watermark. Spark looks for timers between two watermarks only."""

    def __init__(self):
        self.watermark, self.timer = 0, None

    def move(self, watermark):
        assert self.timer is None or self.timer > self.watermark
        self.watermark = watermark

    def getCurrentWatermarkInMs(self):
        return self.watermark

    def registerTimer(self, at):
        assert self.timer is None
        self.timer = at

    def deleteTimer(self, at):
        assert self.timer == at
        self.timer = None


class Query:
    """Micro-batches of one bucket, as Spark makes them. Times are milliseconds."""

    def __init__(self, plan):
        self.plan, self.store, self.timers = plan, Memory(), Timers()
        self.buckets = StreamBuckets(plan, 1, True)
        self.late, self.count = 0, 0

    def batch(self, rows, watermark):
        """Run a micro-batch of rows (key, time) at a watermark; return its answers."""
        self.timers.move(watermark)
        out = []
        packed = [Row(bucket=0, packed=None)] if self.plan.step is not None else []
        half = len(rows) // 2
        packed += [Row(bucket=0, packed=self.packed(part)) for part in (rows[:half], rows[half:]) if part]
        if packed:
            out += self.buckets.rows(self.timers, self.store, 0, packed, self.timers)
        out += self.expired()
        self.late += sum(row["late"] for row in out)
        return self.unpacked(out)

    def empty(self, watermark):
        """Run a micro-batch without data."""
        self.timers.move(watermark)
        return self.unpacked(self.expired())

    def expired(self):
        if self.timers.timer is None or self.timers.timer > self.timers.watermark:
            return []
        self.timers.timer = None
        return list(self.buckets.expired(self.timers, self.store, 0, self.timers))

    def packed(self, rows):
        columns = columns_for(self.plan, [1000 * time for _, time in rows], self.count)
        self.count += len(rows)
        keys = pa.array([key for key, _ in rows], self.plan.key_arrow_type)
        arrays = [keys, *record_batch_of(self.plan, columns).columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.plan.rows_schema).serialize().to_pybytes()

    def unpacked(self, out):
        schema = self.plan.answers_schema
        parts = [pa.ipc.read_record_batch(pa.py_buffer(row["packed"]), schema) for row in out if row["packed"]]
        found = pa.Table.from_batches(parts, schema)
        micros = [found[name].cast(pa.int64()).to_pylist() for name in ("start", "end")]
        rows = [list(row.values()) for row in found.to_pylist()]
        for row, start, end in zip(rows, *micros, strict=True):
            row[2:4] = start // 1000, end // 1000
        return sorted(rows, key=lambda row: tuple(map(str, row[:2])) + tuple(row[2:4]))


class Fold:
    """The same by brute force: all rows that count, and Python's own functions."""

    def __init__(self, widths, step):
        self.widths, self.step = widths, step
        self.rows = []
        self.mark, self.late, self.count = 0, 0, 0

    def batch(self, rows, watermark):
        out, old = [], list(self.rows)
        expired = (watermark or -(10**9)) - max(self.widths)
        for key, time in rows:
            if self.step is None:
                newest = max([t for k, t, _ in old if k == key], default=-(10**9))
                keep = time > max(newest - max(self.widths), expired)
            else:
                keep = any(end > self.mark for width in self.widths for _, end in self.holding(time, width))
            self.late += not keep
            if keep:
                self.rows.append((key, time, self.count))
            self.count += 1
        for width in self.widths:
            for key in dict.fromkeys(k for k, _, _ in self.rows):
                mine = [row for row in self.rows if row[0] == key]
                if self.step is None:
                    if any(row[2] >= self.count - len(rows) for row in mine):
                        end = max(time for _, time, _ in mine)
                        held = [r for r in mine if r[1] > max(end - width, expired)]
                        out.append(self.answer(key, width, end - width, end, held))
                    continue
                windows = {one for _, time, _ in mine for one in self.holding(time, width)}
                for start, end in windows:
                    held = [r for r in mine if start <= r[1] < end]
                    if self.mark < end <= watermark:
                        out.append(self.answer(key, width, start, end, held))
        self.mark = max(self.mark, watermark)
        return sorted(out, key=lambda row: tuple(map(str, row[:2])) + tuple(row[2:4]))

    def holding(self, time, width):
        first = (time - width) // self.step * self.step + self.step
        return [(start, start + width) for start in range(first, time + 1, self.step)]

    def answer(self, key, width, start, end, rows):
        rows = sorted(rows, key=lambda row: row[1:])
        numbers = [number for _, _, number in rows]
        xs = [number % 7 * 1.5 for number in numbers]
        return [
            *(key, f"{width}ms", start, end, len(rows), len(rows), numbers, sum(numbers)),
            *(
                pytest.approx(sum(xs) / len(xs)),
                len({number % 5 for number in numbers}),
                f"s{numbers[xs.index(max(xs))] % 5}",
            ),
        ]


@pytest.fixture(params=[(3, 4, 6), (1024, 4096, 32_768)], ids=["small", "real"])
def sizes(request, monkeypatch):
    """Sizes of segments, chunks and pages."""
    for name, size in zip(("SEGMENT", "INLINE", "_PAGE"), request.param, strict=True):
        monkeypatch.setattr(sliding_chunk, name, size)
    monkeypatch.setattr(sliding_chunk, "_SKETCHED", min(request.param[0], 256))
    monkeypatch.setattr(sliding_state, "INLINE", request.param[1])
    monkeypatch.setattr(sliding_fold, "WINDOWS_AT_ONCE", 7 * request.param[0])
    monkeypatch.setattr(sliding_fold, "_ROWS_AT_ONCE", 3 * request.param[0])


KEYS = st.sampled_from(["a", "b", "c", None])
BATCHES = st.lists(
    st.tuples(st.lists(st.tuples(KEYS, st.integers(-40, 25)), max_size=14), st.sampled_from([0, 1, 3, 8, 60])),
    min_size=1,
    max_size=8,
)


@example([([("a", -20), ("b", 0)], 8), ([], 8), ([("a", -29)], 0)], (10,), None)  # a row of old state does not count
@given(BATCHES, st.sampled_from([(10,), (10, 25), (7,)]), st.sampled_from([None, 1, 3, 5]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_stream_gives_the_fold(sizes, batches, widths, step):
    """Rows out of order and late, keys that are silent for long, micro-batches without rows."""
    plan = plan_of([f"{width}ms" for width in widths], emit="update" if step is None else f"{step}ms")
    query, fold, now = Query(plan), Fold(widths, step), 1000
    watermark = 0
    for offsets, moved in batches:
        rows = [(key, now + offset) for key, offset in offsets]
        found = query.batch(rows, watermark) if rows or step is not None else query.empty(watermark)
        assert found == fold.batch(rows, watermark)
        assert query.late == fold.late
        now += moved
        if moved:
            watermark = max(watermark, now - 20)
            if moved == 8:
                assert query.empty(watermark) == fold.batch([], watermark)
    if step is None and query.timers.timer is not None:
        query.empty(now + 10_000)
        assert not query.store.values, "nothing is left of keys that no window has rows of"


def bucket_with(plan, store, batches):
    """A bucket with chunks of rows, saved after each."""
    rows = 0
    for keys, times in batches:
        bucket = Bucket(plan, store)
        bucket.insert(pa.array(keys), columns_for(plan, times, rows))
        bucket.save()
        rows += len(times)
    return Bucket(plan, store)


def test_a_batch_reads_and_writes_what_it_touches(monkeypatch):
    for name, size in (("SEGMENT", 10), ("INLINE", 20), ("_PAGE", 40), ("_SKETCHED", 1)):
        monkeypatch.setattr(sliding_chunk, name, size)
    monkeypatch.setattr(sliding_state, "INLINE", 20)
    plan = plan_of(["1ms"], emit="1us")
    store = Memory()
    bucket_with(plan, store, [(["a"] * 200, range(at, at + 200)) for at in range(0, 1000, 200)])
    parts = 1 + 200 // 40
    assert len(store.written) == 5 * parts, "chunks stay as they are"
    store.read.clear()
    store.written.clear()
    bucket = Bucket(plan, store)
    bucket.insert(pa.array(["a"]), columns_for(plan, [1000], 1000))
    ((keys, found),) = bucket.steps(1004, 1005)  # [5, 1005) divides the first segment
    assert keys.to_pylist() == ["a"]
    assert found.answers[1][0] == list(range(5, 1001))
    bucket.save()
    assert store.read == [*((number, 0) for number in range(5)), (0, 1)]
    assert store.written == [(5, 0)]
    bucket = Bucket(plan, store)
    bucket.mark = 1999
    bucket.evict(1999, 1004)
    bucket.save()
    assert set(store.values) == {"head", (5, 0)}, "a window that ends after 1999 starts at 1000, or later"


def test_the_state_of_many_keys_is_small():
    plan = plan_of(["10m"], {"n": {"function": "count"}, "mean": {"function": "mean", "field": "x"}})
    store, keys = Memory(), 20_000
    batches = [([f"key-{i}" for i in range(keys)], range(at, at + keys)) for at in range(0, 10 * keys, keys)]
    bucket_with(plan, store, batches)
    assert store.size / keys <= 2048, "bytes of a key with ten rows"


def test_a_value_that_is_gone_is_no_answer(monkeypatch):
    monkeypatch.setattr(sliding_chunk, "INLINE", 4)
    plan = plan_of()
    store = Memory()
    bucket_with(plan, store, [(["a"] * 100, range(100))])
    del store.values[0, 1]
    with pytest.raises(DataLoss, match="part 1 of chunk 0"):
        list(Bucket(plan, store).steps(NEVER, 20_000_000))


def test_state_of_another_version_or_of_other_aggregates_is_refused():
    plan = plan_of()
    store = Memory()
    bucket_with(plan, store, [(["a"] * 3, range(3))])
    for other in (plan_of(["20s"]), plan_of(emit="2s"), plan_of(aggregates={"n": {"function": "count"}})):
        with pytest.raises(FailedPrecondition, match="other keys, fields, aggregates, windows or steps"):
            Bucket(other, store)
    with pytest.raises(FailedPrecondition, match="partitions to 1 again"):
        Bucket(plan, store, 2)
    head = bytearray(store.values["head"])
    struct.pack_into("<H", head, 4, 99)
    store.values["head"] = bytes(head)
    with pytest.raises(FailedPrecondition, match="version 99, this program reads version 2"):
        Bucket(plan, store)


def test_buckets_are_spread_over_the_partitions():
    """These are the partitions that Spark gives to the integers 0 to 9, of four."""
    assert (_murmur3(np.arange(10, dtype=np.int32)) % 4).tolist() == [3, 3, 2, 3, 2, 2, 1, 3, 3, 1]
    for buckets in (1, 2, 7, 200):
        numbers = spread(buckets)
        assert sorted((_murmur3(numbers) % buckets).tolist()) == list(range(buckets))
