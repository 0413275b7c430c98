"""The README's blocks about Spark, run on a local one."""

import datetime as dt

import pytest
from pyspark.sql import functions as F

from sash_client import Client
from sash_client.local import local_service
from tests.support.readme import Reader, needs_spark, readme_blocks

pytestmark = pytest.mark.spark


@pytest.fixture
def service(tmp_path):
    with local_service(data=str(tmp_path / "data")) as service:
        yield service


def test_the_blocks_of_the_readme_run(spark, service, tmp_path):
    reader = Reader(service, tmp_path)
    first = dt.datetime(2013, 1, 1, 5, tzinfo=dt.UTC)
    rows = [(first + dt.timedelta(minutes=i), "JFK", float(i), "UA") for i in range(100)]
    frame = spark.createDataFrame(rows, "departed_at timestamp, airport string, delay double, carrier string")
    frame.write.parquet(str(tmp_path / "departures"))
    # What the README takes for granted: a session, a stream and a table, and a directory for a checkpoint.
    departures = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "departures"))
    reader.session |= {"spark": spark, "departures": departures, "yesterday": frame}
    blocks = readme_blocks()
    for block in blocks:
        if block.language == "yaml":
            reader.run(block)
    spark_blocks = [block for block in blocks if needs_spark(block)]
    assert len(spark_blocks) == 2
    for i, block in enumerate(spark_blocks):
        reader.session["checkpoint"] = str(tmp_path / f"checkpoint-{i}")
        reader.run(block)
        query = reader.session["query"]
        query.processAllAvailable()
        query.stop()
    with Client(service.target) as client:
        assert client.window("departure_delay").describe().counts.inserted == 300
    assert reader.session["rows"].count() == 3 * 40
    assert [(row["lookback"], row["flights"]) for row in reader.session["now"].collect()] == [("1h", 180), ("6h", 300)]
    assert reader.session["chart"].agg(F.sum("entries")).collect()[0][0] == 3 * (10 * 91 + sum(range(10)))
