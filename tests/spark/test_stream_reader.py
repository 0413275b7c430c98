"""`readStream.format("sash")`: what a window holds comes once, in order, however often a micro-batch is read again.

Most tests drive the reader as Spark does, without Spark.
"""

import os
import pickle
import random
import signal
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from sash_client import DataLoss, FailedPrecondition, InvalidArgument
from sash_spark import register
from sash_spark.options import Options
from sash_spark.reading.question import Question
from sash_spark.source import SashDataSource
from tests.support.clients import client_of
from tests.support.servers import service_process

pytestmark = pytest.mark.spark

WINDOW = {
    "name": "w",
    "time_unit": "none",
    "fields": {"v": "int64"},
    "aggregates": {"n": {"function": "count"}, "sum": {"function": "sum", "field": "v"}},
}
KEYED = WINDOW | {"keys": ["a", "b"]}


class Query:
    """A streaming query that reads: it keeps offsets as Spark's checkpoint does."""

    def __init__(self, target, **options):
        self.options = {"target": target, "window": "w"} | options
        self.offsets = []
        self.batches = []

    def reader(self):
        source = SashDataSource(self.options)
        return pickle.loads(pickle.dumps(source.streamReader(source.schema())))

    def plan(self):
        """Plan a micro-batch; nothing is there where the offset stands still."""
        reader = self.reader()
        if not self.offsets:
            self.offsets.append(reader.initialOffset())
        end = reader.latestOffset(self.offsets[-1], None)
        if end != self.offsets[-1]:
            self.offsets.append(end)
            self.batches.append(None)

    def read(self, batch):
        """Read a micro-batch, maybe again: the rows must be the same."""
        reader = self.reader()
        parts = reader.partitions(*self.offsets[batch : batch + 2])
        found = [batch for part in parts for batch in reader.read(pickle.loads(pickle.dumps(part)))]
        rows = sorted(row for some in found for row in zip(*some.to_pydict().values(), strict=True))
        assert self.batches[batch] in (None, rows)
        self.batches[batch] = rows
        return rows

    def step(self):
        self.plan()
        for batch, rows in enumerate(self.batches):
            if rows is None:
                self.read(batch)

    @property
    def rows(self):
        return [row for rows in self.batches for row in rows]


@pytest.mark.parametrize("seed", range(4))
def test_each_entry_comes_once_after_restarts_and_replays(client, target, seed):
    rng = random.Random(seed)
    window = client.create_window(KEYED | {"slide": {"max_age": "500"}})
    query = Query(target, delay="20", partitions=str(1 + seed % 3))
    now, written = 100, []
    for turn in range(12):
        for _ in range(rng.randrange(4)):
            now += rng.randrange(30)
            bulk = [(now - rng.randrange(min(20, now)), rng.choice("xy|"), rng.choice("pq"), turn) for _ in range(9)]
            written += [(a, b, t, v) for t, a, b, v in bulk]
            times, a, b, values = zip(*bulk, strict=True)
            window.bulk_insert(times, {"v": values}, keys={"a": a, "b": b})
            now = max(t for _, _, t, _ in written)
        query.step()  # a new reader: nothing is remembered but offsets
        if query.batches and rng.random() < 0.5:
            query.read(len(query.batches) - 1)
    assert sorted(query.rows) == sorted(row for row in written if row[2] < now - 20)
    window.bulk_insert([now + 21], {"v": [0]}, keys={"a": "x", "b": "p"})
    query.step()
    assert sorted(query.rows) == sorted(written)


def test_the_newest_tick_waits_for_a_newer_one(client, target):
    window = client.create_window(WINDOW)
    query = Query(target)
    query.step()
    assert query.rows == []
    window.insert(5, fields={"v": 1})
    query.step()
    assert query.rows == []
    window.insert(5, fields={"v": 2})
    window.insert(6, fields={"v": 3})
    query.step()
    assert query.rows == [(5, 1), (5, 2)]


def test_a_punctuated_window_is_read_up_to_there(client, target):
    window = client.create_window(WINDOW | {"slide": {"max_age": "100", "until": "punctuation"}})
    query = Query(target)
    window.bulk_insert([1, 5, 9], [1, 2, 3])
    query.step()
    assert query.rows == []
    window.punctuate(5)
    query.step()
    assert query.rows == [(1, 1), (5, 2)]
    with pytest.raises(InvalidArgument, match="without a delay"):
        Query(target, delay="5").reader()


def test_keys_on_several_shards_need_a_delay(tmp_path):
    """Parts of a write that meets a process that ends are applied at different moments, so no time is final."""
    with (
        service_process("--processes", "2", SASH_DATA=str(tmp_path)) as service,
        client_of(service.grpc_target) as client,
    ):
        client.create_window(KEYED)
        client.create_window(WINDOW | {"name": "plain"})
        client.create_window(KEYED | {"name": "told", "slide": {"max_age": "100", "until": "punctuation"}})
        with pytest.raises(InvalidArgument, match=r"on \d+ shards") as caught:
            Query(service.grpc_target).reader()
        assert caught.value.field == "delay"
        Query(service.grpc_target, delay="5").reader()
        Query(service.grpc_target, window="plain").reader()
        Query(service.grpc_target, window="told").reader()


def test_a_series_has_each_bucket_once(client, target):
    window = client.create_window(WINDOW | {"slide": {"max_age": "100"}})
    query = Query(target, what="series", step="10", delay="3", aggregates="sum")
    window.bulk_insert([7, 12, 19, 23], [1, 2, 4, 8])
    query.step()
    assert query.rows == [(0, 1, 1), (10, 2, 6)]  # 20 may come still
    window.bulk_insert([33, 41], [16, 32])
    query.step()
    assert query.rows[2:] == [(20, 1, 8)]
    window.insert(44, fields={"v": 64})
    query.step()
    assert query.rows[3:] == [(30, 1, 16)]


def test_it_begins_behind_what_has_left(client, target):
    window = client.create_window(WINDOW | {"slide": {"max_age": "10"}})
    window.bulk_insert([1, 5, 20, 22], [1, 2, 3, 4])
    assert window.describe().evicted_through == 12
    query = Query(target)
    query.step()
    assert query.offsets[0] == {"time": 12}
    assert query.rows == [(20, 3)]
    series = Query(target, what="series", step="10")
    series.step()
    assert series.offsets[0] == {"time": 19}  # of the bucket 10 a part may be gone
    later = Query(target, start="21")
    later.step()
    assert later.rows == []


def test_entries_that_left_before_they_were_read_are_an_error(client, target):
    window = client.create_window(WINDOW | {"slide": {"max_age": "10"}})
    window.bulk_insert([1, 5, 9], [1, 2, 3])
    query, behind = Query(target), Query(target, start="0")
    query.step()
    window.bulk_insert([17, 19], [4, 5])  # 9 has left
    query.plan()
    with pytest.raises(DataLoss, match=r"evicted entries up to 9 \(none\), and the stream had read up to 8"):
        query.read(1)
    behind.plan()
    with pytest.raises(DataLoss, match="had read up to -1"):
        behind.read(0)


def test_nothing_was_read_when_entries_left(client, target):
    window = client.create_window(WINDOW | {"slide": {"max_age": "10"}})
    query = Query(target)
    query.step()
    window.bulk_insert([1, 5, 9], [1, 2, 3])
    query.step()
    assert query.rows == [(1, 1), (5, 2)]
    window.bulk_insert([12, 13], [4, 5])
    with pytest.raises(DataLoss, match=r"evicted entries up to 3 \(none\), and the stream had read nothing"):
        query.read(0)


def test_entries_that_leave_after_they_were_read_are_no_loss(client, target):
    window = client.create_window(WINDOW | {"slide": {"max_age": "10"}})
    window.bulk_insert([1, 5, 9], [1, 2, 3])
    query = Query(target)
    query.step()
    window.bulk_insert([17, 18], [4, 5])
    query.plan()
    assert query.read(1) == [(9, 3), (17, 4)]


def test_an_evicted_time_of_one_key_counts(client, target):
    window = client.create_window(KEYED | {"slide": {"max_age": "10"}})
    window.bulk_insert([1, 2, 3], {"v": [1, 2, 3]}, keys={"a": "x", "b": "p"})
    query = Query(target)
    query.step()
    window.bulk_insert([4, 30], {"v": [4, 5]}, keys={"a": "y", "b": "p"})
    query.plan()
    with pytest.raises(DataLoss):
        query.read(1)


def test_another_window_of_the_same_name_is_refused(client, target):
    client.create_window(WINDOW).bulk_insert([1, 5, 9], [1, 2, 3])
    query = Query(target)
    query.step()
    client.delete_window("w")
    client.create_window(WINDOW).insert(3, fields={"v": 1})
    with pytest.raises(FailedPrecondition, match="it is another one"):
        query.plan()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"what": "answers"}, "what"),
        ({"end": "5"}, "end"),
        ({"what": "series", "step": "5", "width": "10"}, "width"),
        ({"lookback": "5"}, "lookback"),
        ({"delay": "soon"}, "delay"),
        ({"window": "idle"}, "window"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_a_stream(client, target, options, field):
    client.create_window(WINDOW)
    client.create_window(KEYED | {"name": "idle", "time_unit": "s", "slide": {"max_age": "1h"}, "idle_expiry": "1d"})
    with pytest.raises(InvalidArgument) as caught:
        Query(target, **options).reader()
    assert caught.value.field == field


def test_a_read_takes_no_delay(client, target):
    client.create_window(WINDOW)
    source = SashDataSource({"target": target, "window": "w", "delay": "5"})
    with pytest.raises(InvalidArgument, match=r"spark\.readStream"):
        source.reader(Question.of(Options(source.options)).schema())


def test_a_query_goes_on_from_its_checkpoint(spark, client, target, tmp_path):
    goes_on_from_its_checkpoint(spark, client, target, tmp_path, lambda: None)


def test_a_query_over_several_shards_goes_on_after_a_process_has_died(spark, tmp_path):
    data = {"SASH_DATA": str(tmp_path / "data")}
    with service_process("--processes", "2", **data) as service, client_of(service.grpc_target) as client:

        def die():
            pid = service.process.pid
            worker = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
            os.kill(int(worker), signal.SIGKILL)

        goes_on_from_its_checkpoint(spark, client, service.grpc_target, tmp_path, die)


def goes_on_from_its_checkpoint(spark, client, target, tmp_path, between):
    register(spark)
    window = client.create_window(KEYED | {"time_unit": "s", "slide": {"max_age": "1h"}})

    def run():
        rows = spark.readStream.format("sash").options(target=target, window="w", delay="10s", partitions=2).load()
        writer = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()

    def insert(*times):
        keys = {"a": [f"{time % 7}" for time in times], "b": "p"}
        with window.producer(f"p-{times[0]}") as producer:
            producer.bulk_insert(list(times), {"v": list(times)}, keys=keys)

    def written():
        return sorted(row.v for row in spark.read.parquet(str(tmp_path / "out")).collect())

    insert(100, 101, 102, 103, 120, 130)
    run()
    assert written() == [100, 101, 102, 103]
    between()
    insert(122, 121, 131, 150)
    run()
    assert written() == [100, 101, 102, 103, 120, 121, 122, 130, 131]
    insert(9000, 9001)
    with pytest.raises(StreamingQueryException, match="evicted entries up to 5401"):
        run()
