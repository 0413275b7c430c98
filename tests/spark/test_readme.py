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
    spark = spark.newSession()  # what the reader sets stays with the reader
    spark.conf.set("spark.sql.shuffle.partitions", "1")
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
    assert len(spark_blocks) == 3
    for i, block in enumerate(spark_blocks):
        reader.session["checkpoint"] = str(tmp_path / f"checkpoint-{i}")
        reader.run(block)
        if "query" in reader.session:
            await_all(reader.session.pop("query"))
    with Client(service.target) as client:
        assert client.window("departure_delay").describe().counts.inserted == 300
    assert reader.session["rows"].count() == 3 * 40
    assert [(row["lookback"], row["flights"]) for row in reader.session["now"].collect()] == [("1h", 180), ("6h", 300)]
    assert reader.session["chart"].agg(F.sum("entries")).collect()[0][0] == 3 * (10 * 91 + sum(range(10)))
    assert_slides_as_the_fold(reader.session["means"], frame, tmp_path / "sliding")


def assert_slides_as_the_fold(means, frame, checkpoint):
    """The answers up to the watermark; of those of each second, the ones that begin with a twentieth minute."""
    await_all(
        means.writeStream.format("memory").queryName("means").option("checkpointLocation", str(checkpoint)).start()
    )
    answers = frame.sparkSession.table("means").where("second(start) = 0 AND minute(start) % 20 = 0").collect()
    assert {answer["width"] for answer in answers} == {"10m", "1h"}
    rows = [(row["departed_at"], row["delay"]) for row in frame.collect()]
    for answer in answers:
        inside = [delay for departed, delay in rows if answer["start"] <= departed < answer["end"]]
        assert answer["entries"] == len(inside)
        assert answer["mean"] == pytest.approx(sum(inside) / len(inside))


def await_all(query):
    query.processAllAvailable()
    query.stop()
