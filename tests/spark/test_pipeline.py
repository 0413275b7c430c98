"""The pipeline: records that are put aside, restarts, and the flights end to end."""

import contextlib
import datetime as dt
import os
import re
import signal
import urllib.request
from decimal import Decimal

import pandas as pd
import pytest
import yaml

from sash_client import Client, InvalidArgument
from sash_spark import pipeline
from sash_spark.config import KafkaSource, parse
from sash_spark.demo import (
    Row,
    departures_of,
    differences,
    expected_present,
    expected_rows,
    flights_config,
)
from sash_spark.flights import load_flights, write_feed
from sash_spark.pipeline import Pipeline, Progress, main
from sash_spark.records import judged, parsed
from sash_spark.writing.sink import BatchReport
from tests.support.pipelines import DDL, DOCUMENT, SPEC, config_in, feed, record
from tests.support.profile import THOROUGH
from tests.support.servers import running_service

pytestmark = pytest.mark.spark


# ---------------------------------------------------------------- records


@pytest.mark.parametrize(
    ("value", "good", "bad"),
    [
        ("json", b'{"at": "2013-01-01 00:00:01", "k": "x", "v": 2}', (b"{", b'{"v": "two"}', None)),
        ("csv", b"2013-01-01 00:00:01;x;2.0", (b"2013-01-01 00:00:01;x;two", None)),
    ],
)
def test_records_of_kafka_are_parsed(spark, value, good, bad):
    document = {"format": "kafka", "servers": "h:1", "topic": "t", "schema": DDL, "value": value}
    if value == "csv":
        document["parse"] = {"sep": ";"}
    source = KafkaSource.model_validate(document)
    now = dt.datetime(2013, 1, 1)
    values = [good, *bad]
    rows = [("t", 0, i, now, b"key", each) for i, each in enumerate(values)]
    frame = spark.createDataFrame(
        rows, "topic string, partition int, offset long, timestamp timestamp, key binary, value binary"
    )
    config = parse(DOCUMENT | {"source": document})
    found = judged(parsed(frame, source), config, [SPEC]).rows.collect()
    assert [row["verdict"] for row in found] == [None, *["cannot be parsed"] * len(bad)]
    assert [row["record"] for row in found] == [None, *((each or b"").decode() for each in bad)]
    assert [found[0][name] for name in ("c1", "c2")] == ["x", 2.0]
    whole = parsed(frame, source).first()
    assert (whole["kafka_topic"], whole["kafka_offset"], whole["kafka_key"]) == ("t", 0, "key")


def test_bad_records_are_counted_and_put_aside(spark, client, target, tmp_path):
    feed(
        tmp_path,
        *[record(i, v=float(i)) for i in range(5)],
        "{ not json",
        '{"at": "2013-01-01 00:00:00", "k": "x", "v": "word"}',
        record(7) | {"at": "yesterday"},
        record(8, k=None),
        record(9, v=None),
        record(10, k=""),
        record(11, k="é" * 257),
        record(12, v=-1.0),
    )
    config = config_in(tmp_path, target, where="v is null or v >= 0", bad_records={"path": str(tmp_path / "bad")})
    seen = []
    total = Pipeline(config, spark, on_batch=seen.append).run()
    assert seen == [total]
    assert (total.rows, total.left_out) == (13, 1)
    reasons = {
        "cannot be parsed": 2,
        "time (time_of_it) is null": 1,
        "key (k) is null": 1,
        "v is null": 1,
        "key is not 1 to 512 bytes long": 2,
    }
    assert total.bad == reasons
    report = total.windows["w"]
    assert (report.arrived, report.staged, report.inserted, report.late) == (5, 5, 5, 0)
    assert client.window("w").query(key="x")[0].aggregates["all"] == [0, 1, 2, 3, 4]
    aside = spark.read.json(str(tmp_path / "bad")).collect()
    assert {why: sum(row["reason"] == why for row in aside) for why in reasons} == reasons
    records = {row["record"] for row in aside}
    assert {"{ not json", '{"at": "2013-01-01 00:00:00", "k": "x", "v": "word"}'} <= records
    assert '{"at":"yesterday","k":"x","v":1.0}' in records
    # The micro-batch again, as after a driver that died before Spark had noted its end: nothing doubles.
    for path in (tmp_path / "checkpoint" / "commits").glob("*"):
        path.unlink()
    again = Pipeline(config, spark).run()
    assert again.bad == reasons
    assert again.windows["w"].already_applied
    assert client.window("w").describe().counts.inserted == 5
    assert spark.read.json(str(tmp_path / "bad")).count() == sum(reasons.values())


@pytest.mark.parametrize(
    ("bad_records", "field"), [(None, "bad_records"), ({"share_max": 0.4}, "bad_records.share_max")], ids=str
)
def test_bad_records_that_may_not_be_stop_the_pipeline(spark, client, target, tmp_path, bad_records, field):
    feed(tmp_path, record(0), "{")
    aside = bad_records and bad_records | {"path": str(tmp_path / "bad")}
    with pytest.raises(InvalidArgument, match="cannot be parsed: 1") as caught:
        Pipeline(config_in(tmp_path, target, bad_records=aside), spark).run()
    assert caught.value.field == field
    assert client.window("w").describe().counts.inserted == 0
    aside = aside and aside | {"share_max": 0.5}
    if aside:
        assert Pipeline(config_in(tmp_path, target, bad_records=aside), spark).run().windows["w"].inserted == 1


def test_rows_and_panes_of_one_stream(spark, client, target, tmp_path):
    """Two windows, decimals, an order without keys, CSV; one of them pre-aggregated."""
    (tmp_path / "feed").mkdir()
    lines = [f"{60 * (i % 3)},{Decimal(i) / 4}" for i in reversed(range(12))]
    (tmp_path / "feed" / "a.csv").write_text("\n".join(["t,d", *lines, "x,1"]) + "\n")
    spec = SPEC | {"keyed": False, "time_unit": "s"}
    source = {
        "format": "csv",
        "path": str(tmp_path / "feed"),
        "schema": "t long, d decimal(10,2)",
        "options": {"header": True},
    }
    windows = [
        {"spec": spec, "fields": {"v": "d"}},
        {"spec": spec | {"name": "panes", "granularity": "1m"}, "fields": {"v": "d + 1"}, "preaggregate": True},
    ]
    config = config_in(tmp_path, target, source=source, columns={}, time="t", key=None, windows=windows, order_by=["d"])
    config = config.model_copy(update={"bad_records": parse(DOCUMENT | {"bad_records": {"path": "b"}}).bad_records})
    config = config.model_copy(
        update={"bad_records": config.bad_records.model_copy(update={"path": str(tmp_path / "b")})}
    )
    total = Pipeline(config, spark).run()
    assert total.bad == {"cannot be parsed": 1}
    assert [(r.arrived, r.staged, r.inserted) for r in total.windows.values()] == [(12, 12, 12), (12, 3, 12)]
    rows = [i / 4 for first in range(3) for i in range(first, 12, 3)]
    assert client.window("w").query()[0].aggregates["all"] == rows
    assert sorted(client.window("panes").query()[0].aggregates["all"]) == sorted(v + 1 for v in rows)


def test_a_stream_without_end_is_stopped(spark, client, target, tmp_path):
    spec = SPEC | {"keyed": False, "fields": {"v": "int64"}}
    config = config_in(
        tmp_path,
        target,
        source={"format": "rate", "rows_per_second": 50},
        columns={},
        time="timestamp",
        key=None,
        trigger="100 milliseconds",
        windows=[{"spec": spec, "fields": {"v": "value"}}],
    )
    running = []

    def stop(progress):
        if progress.rows:
            running[0].stop()

    running.append(Pipeline(config, spark, on_batch=stop))
    total = running[0].run()
    n = total.windows["w"].inserted
    assert 0 < n <= client.window("w").describe().counts.inserted
    assert client.window("w").query()[0].aggregates["all"][:n] == list(range(n))
    assert 0 <= total.lag_s < 60


# ---------------------------------------------------------------- the flights


@pytest.fixture(scope="module")
def flights():
    """Some real flights: the days around both changes of the clock, long flights, and some that never left."""
    whole = load_flights()
    days = whole["time_hour"].str[:10]
    return whole[days.isin(["2013-03-09", "2013-03-10", "2013-11-03"])]


def test_cleaning_is_what_pandas_makes_of_it(spark, flights, tmp_path):
    write_feed(flights, tmp_path / "feed", files=2)
    config = flights_config("127.0.0.1:1", tmp_path)
    frame = spark.read.schema(config.source.ddl).parquet(str(tmp_path / "feed"))
    plan = judged(frame, config, [target.spec for target in config.windows])
    good = plan.ordered(plan.rows).where("verdict is null").toPandas()
    expected = departures_of(flights)
    assert 0 < len(expected) < len(flights)
    assert len(good) == len(expected)
    columns = plan.targets[0]
    for airport, group in expected.groupby("airport"):
        ours = good[good[columns.parts["airport"]] == airport]
        assert ours[columns.fields["delay"]].tolist() == group["delay"].tolist()
        assert ours[columns.parts["carrier"]].tolist() == group["carrier"].tolist()
        for column, name in ((columns.time, "departure"), (plan.order[0], "landed")):
            assert ours[column].tolist() == group[name].dt.tz_localize(None).tolist()


def test_the_pipeline_ends_with_the_fold_and_goes_on_where_it_stopped(spark, flights, tmp_path):
    half = 2 if THOROUGH else 1
    files = write_feed(flights, tmp_path / "all", files=2 * half)
    (tmp_path / "feed").mkdir()
    departures, arrived = departures_of(flights), 0
    for pushed in (files[:half], files[half:]):
        for path in pushed:
            path.rename(tmp_path / "feed" / path.name)
        with running_service(data=str(tmp_path / "data")) as service:  # another one each time, on the same data
            total = Pipeline(flights_config(service.grpc_target, tmp_path), spark).run()
            assert total.rows == sum(len(part) for part in read_back(tmp_path, pushed))
            assert not total.bad
            (n,) = {report.arrived for report in total.windows.values()}
            arrived += n
            assert not any(report.already_applied for report in total.windows.values())
    assert arrived == len(departures)
    assert total.left_out > 0
    last = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()  # the driver died between the windows' commit and Spark's own
    (last.parent / f".{last.name}.crc").unlink()
    with running_service(data=str(tmp_path / "data")) as service:
        config = flights_config(service.grpc_target, tmp_path)
        again = Pipeline(config, spark).run()
        assert again.rows > 0
        assert all(report.already_applied for report in again.windows.values())
        with Client(service.grpc_target) as client:
            for target in config.windows:
                window, max_age = client.window(target.name), target.spec["slide"]["max_age"]
                info = window.describe()
                assert info.counts.inserted + info.counts.late == arrived
                assert info.counts.inserted - info.counts.evicted == info.entries
                assert info.entries == expected_present(departures, max_age)
                for by in (("airport",), ("airport", "carrier")):
                    found = [
                        Row.of(answer.parts, str(answer.lookback), answer.aggregates)
                        for answer in window.query(by=by, lookbacks=["1h", "6h"])
                    ]
                    assert differences(expected_rows(departures, by, ("1h", "6h")), found, "gRPC").wrong == ()


def read_back(tmp_path, paths):
    return [pd.read_parquet(tmp_path / "feed" / path.name) for path in paths]


# ---------------------------------------------------------------- what is shown


def test_progress_adds_up():
    one = Progress(0, 10, 2, {"a": 1}, {"w": BatchReport(0, arrived=7, staged=3, late=1)}, 0.5, 7200.0)
    two = Progress(1, 5, 0, {"b": 2}, {"w": BatchReport(1, arrived=3, staged=3, already_applied=True)}, 0.25)
    ahead = Progress(2, 1, 0, {}, {"w": BatchReport(2, arrived=1, staged=1, ahead=1)}, 0.25)
    both = Progress().plus(one).plus(two)
    assert one.line() == "batch 0: 10 in, 1 bad, 2 left out, 3 staged, 1 late; 0.50 s, lag 2 h"
    assert two.line() == "batch 1: 5 in, 2 bad, 0 left out, 3 staged, 0 late, applied before; 0.25 s"
    assert (both.batch_id, both.rows, both.left_out, both.bad, both.lag_s) == (1, 15, 2, {"a": 1, "b": 2}, 7200.0)
    assert both.summary().splitlines() == [
        "15 records in 0.8 s: 3 bad, 2 left out",
        "  bad, a: 1",
        "  bad, b: 2",
        "  w: 10 arrived, 6 staged, 0 inserted, 1 late, 0 evicted",
    ]
    assert ahead.line() == "batch 2: 1 in, 0 bad, 0 left out, 1 staged, 0 late, 1 too far ahead; 0.25 s"
    last = both.plus(ahead).summary().splitlines()[-1]
    assert last == "  w: 11 arrived, 7 staged, 0 inserted, 1 late, 0 evicted, 1 too far ahead"


@pytest.fixture
def handlers():
    """Whatever hears signals now does so afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_command_runs_shows_metrics_and_hears_signals(
    spark, client, target, tmp_path, monkeypatch, capsys, handlers
):
    feed(tmp_path, *[record(i) for i in range(3)])
    document = DOCUMENT | {
        "checkpoint": str(tmp_path / "checkpoint"),
        "source": {"format": "json", "path": str(tmp_path / "feed"), "schema": DDL},
        "trigger": "1 second",
        "metrics_port": 0,
    }
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(document))
    pages = []

    class Meters(pipeline._Meters):
        def observe(self, progress):
            super().observe(progress)
            open_ = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
            with open_(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as response:
                pages.append(response.read().decode())
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(pipeline, "_Meters", Meters)
    monkeypatch.setattr(pipeline, "_session", lambda name: contextlib.nullcontext(spark))
    assert main([str(tmp_path / "p.yaml"), "--service", target]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"metrics on http://0.0.0.0:\d+/metrics", lines[0])
    assert lines[1].startswith("batch 0: 3 in, 0 bad, 0 left out, 3 staged, 0 late; ")
    assert lines[-1] == "  w: 3 arrived, 3 staged, 3 inserted, 0 late, 0 evicted"
    assert 'sash_pipeline_records_total{outcome="good",pipeline="p"} 3.0' in pages[0]
    assert 'sash_pipeline_staged_total{pipeline="p",window="w"} 3.0' in pages[0]
    assert client.window("w").describe().entries == 3
