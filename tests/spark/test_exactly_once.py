"""Exactly once, whatever runs again: after every accident the window has what pandas makes of the rows, once.

Streams read Parquet files, one a micro-batch. A run ends when all files are read, or with the accident.
"""

import contextlib
import shutil

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

import sash_client
from sash_client import Client
from sash_spark import register, sash_sink
from sash_spark.writing.route import Outcome, Route
from tests.support.clients import client_of
from tests.support.ports import free_port
from tests.support.servers import running_service
from tests.support.spark_streams import KEYED, Stream, assert_fold, killer, rows, staged_parts

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def durable(tmp_path_factory):
    with running_service(data=str(tmp_path_factory.mktemp("data"))) as service:
        yield service


@pytest.fixture
def client(durable):
    with client_of(durable.grpc_target) as client:
        yield client


@pytest.fixture
def window(client):
    return client.create_window(KEYED)


@pytest.fixture
def stream(spark, tmp_path):
    return Stream(spark, tmp_path)


@pytest.fixture
def sink(durable):
    def made(**options):
        return sash_sink(
            durable.grpc_target, **({"window": "w", "time": "at", "key": "k", "rows_per_call": 20} | options)
        )

    return made


def test_a_task_that_dies_after_it_staged_some(spark, window, sink, durable, large_batches, tmp_path):
    died, staged = tmp_path / "died", staged_parts(durable.rest_url)
    frame = spark.createDataFrame(rows(0, 40_000)).coalesce(1)
    one = sink(query="q", rows_per_call=4000)
    one(frame.mapInArrow(killer(died, staged), frame.schema), 0)
    assert died.exists()
    assert one.total.arrived == one.total.inserted == 40_000
    assert_fold(window, rows(0, 40_000))


def test_attempts_that_spark_gave_up(spark, window, sink):
    """Speculation, and tasks that nobody told that their batch is done: what they stage is never seen."""
    one = sink(query="q")
    frame = spark.createDataFrame(rows(0, 90)).repartition(3, "k").sortWithinPartitions("v")
    other = one.route.fitted(frame.schema)
    assert other.stage(iter(frame.toArrow().to_batches()), "q", 0).arrived == 90
    one(frame, 0)
    assert_fold(window, frame.toPandas())
    late = other.stage(iter(frame.toArrow().to_batches()), "q", 0)
    assert late == Outcome(0, (), committed=True)
    assert other.commit("q", 0, [late]).already_applied
    one(frame, 0)
    assert one.total.already_applied
    assert one.total.arrived == 90
    assert_fold(window, frame.toPandas())


def test_partitions_are_committed_in_their_order(spark, client, sink):
    window = client.create_window(KEYED | {"keyed": False})
    frame = spark.createDataFrame(rows(0, 60)).repartitionByRange(4, F.col("v").desc()).withColumn("at", F.lit(0))
    sink(query="q", key=None)(frame, 0)
    expected = [row["v"] for row in frame.collect()]
    assert expected[0] > expected[-1]
    assert window.query()[0].aggregates["all"] == expected


def test_a_micro_batch_is_replayed(stream, window, sink):
    """The driver dies between the sink's commit and Spark's."""
    stream.feed(rows(0, 30))
    stream.feed(rows(30, 60))
    stream.push(sink())
    stream.forget_last_commit()
    again, seen = sink(), []
    again.on_batch = seen.append
    stream.feed(rows(60, 90))
    stream.push(again)
    assert [(one.batch_id, one.already_applied, one.arrived, one.inserted) for one in seen] == [
        (1, True, 0, 0),
        (2, False, 30, 30),
    ]
    assert_fold(window, *stream.fed)


def test_a_driver_that_dies_before_the_commit_and_other_partitions_afterwards(stream, window, sink, monkeypatch):
    stream.feed(rows(0, 30))
    stream.feed(rows(30, 90))
    with monkeypatch.context() as patch:
        commit = Route.commit

        def killed(self, query, batch, staged, streaming):
            if batch == 1:
                raise RuntimeError("killed")
            return commit(self, query, batch, staged, streaming)

        patch.setattr(Route, "commit", killed)
        with pytest.raises(StreamingQueryException):
            stream.push(sink(), lambda batch: batch.repartition(3))
    assert_fold(window, rows(0, 30))
    last = sink()
    stream.push(last, lambda batch: batch.repartitionByRange(2, "v"))
    assert not last.total.already_applied
    assert last.total.arrived == 60
    assert_fold(window, *stream.fed)


def test_a_service_that_restarts_between_the_parts_and_the_commit(spark, tmp_path, monkeypatch):
    settings = {"data": str(tmp_path / "data")}
    with contextlib.ExitStack() as services:
        first = services.enter_context(running_service(**settings, grpc_port=free_port()))
        commit = Route.commit

        def restarted(self, query, batch, staged, streaming):
            assert sum(part.arrived for part in staged) == 50
            first.stop()
            services.enter_context(running_service(**settings, grpc_port=first.grpc_port))
            return commit(self, query, batch, staged, streaming)

        monkeypatch.setattr(Route, "commit", restarted)
        with Client(first.grpc_target) as client:
            window = client.create_window(KEYED)
            one = sash_sink(first.grpc_target, window="w", time="at", key="k", query="q", rows_per_call=7)
            one(spark.createDataFrame(rows(0, 50)).coalesce(1), 0)
            assert one.total.inserted == 50
            assert_fold(window, rows(0, 50))


def test_two_queries_and_a_lost_checkpoint(spark, stream, window, sink, tmp_path):
    stream.feed(rows(0, 30))
    stream.push(sink())
    (tmp_path / "other").mkdir()
    other = Stream(spark, tmp_path / "other")
    other.feed(rows(1000, 1030))
    other.push(sink())
    assert_fold(window, *stream.fed, *other.fed)
    # Another checkpoint is another query, which knows of nothing.
    stream.checkpoint = tmp_path / "another"
    stream.push(sink())
    assert_fold(window, *stream.fed, *other.fed, *stream.fed)


@pytest.mark.parametrize("native", [False, True], ids=["foreachBatch", "format"])
def test_a_checkpoint_that_is_older_than_the_window_is_refused(spark, stream, window, sink, durable, native):
    """Its next batch has a number that the window knows, and other rows."""

    def push():
        if native:
            options = {"target": durable.grpc_target, "window": "w", "time": "at", "key": "k"}
            stream.run(stream.read().writeStream.format("sash").options(**options))
        else:
            stream.push(sink())

    register(spark)
    stream.feed(rows(0, 30))
    push()
    newest, copy = stream.checkpoint, stream.directory / "copy"
    shutil.copytree(newest, copy)
    for first in (30, 60):
        stream.feed(rows(first, first + 30))
    push()
    stream.feed(rows(90, 120))
    stream.checkpoint = copy
    with pytest.raises(StreamingQueryException, match="The checkpoint is older than the window"):
        push()
    assert_fold(window, rows(0, 90))
    stream.checkpoint = newest
    push()
    assert_fold(window, *stream.fed)


def test_two_sinks_of_one_query_need_names(stream, window, sink):
    stream.feed(rows(0, 30))

    def both(one, other):
        def push(batch, batch_id):
            one(batch.where("v % 3 = 0"), batch_id)
            other(batch.where("v % 3 > 0"), batch_id)

        stream.run(stream.read().writeStream.foreachBatch(push))

    with pytest.raises(StreamingQueryException, match="each needs a name"):
        both(sink(), sink())
    both(sink(), sink(query="other"))
    assert window.describe().counts.inserted == 30


def test_micro_batches_without_rows(stream, window, sink):
    for first in (0, 30, 60):
        stream.feed(rows(first, first + 30))
    seen = []
    stream.push(sink(on_batch=seen.append), lambda batch: batch.where("v < 30 or v >= 60"))
    assert [(report.batch_id, report.inserted) for report in seen] == [(0, 30), (1, 0), (2, 30)]
    assert_fold(window, rows(0, 30), rows(60, 90))


def test_a_part_that_has_expired_fails_the_batch(spark, window, sink, monkeypatch):
    commit = Route.commit
    lost = [Outcome(1, ("0123456789abcdef",))]
    monkeypatch.setattr(
        Route, "commit", lambda self, query, batch, _, streaming: commit(self, query, batch, lost, streaming)
    )
    with pytest.raises(sash_client.FailedPrecondition, match="expired"):
        sink(query="q")(spark.createDataFrame(rows(0, 10)), 0)
    assert window.describe().counts.inserted == 0
