"""Streams over Spark Connect into the windows `named` and `unnamed`; prints what came of each run.

python -m tests.support.connect_stream TARGET DIRECTORY PYTHON
"""

import os
import re
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from sash_spark import sash_sink
from tests.support.spark_streams import Stream, rows

REMEDIES = "pass checkpoint=|does not tell the query's id"


def main(target, directory, python):
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = python  # of the server's workers
    os.environ["SPARK_TESTING"] = "1"  # the server takes a free port
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    stream = Stream(spark, directory)
    stream.feed(rows(0, 30))
    stream.feed(rows(30, 60))

    def push(window, **options):
        # Functions travel to the server by value: they may not hold the session, as `Stream.push` would.
        sink = sash_sink(target, window=window, time="at", key="k", query="mine", **options)

        def write(batch, number):
            sink(batch, number)

        try:
            stream.run(stream.read().writeStream.foreachBatch(write))
        except Exception as error:
            if re.search("worker (failed )?to connect back", str(error)):  # it has ten seconds, as in `settled`
                return push(window, **options)
            found = re.search(REMEDIES, str(error))
            return found[0] if found else str(error)
        return "ok"

    first, second = stream.checkpoint, directory / "second"
    assert (said := push("named", checkpoint=str(first))) == "ok", said
    stream.forget_last_commit()
    print("replay:", push("named", checkpoint=str(first)))
    stream.checkpoint = second
    print("new checkpoint:", push("named", checkpoint=str(second)))
    stream.checkpoint = directory / "third"
    assert (said := push("unnamed")) == "ok", said
    stream.checkpoint = directory / "fourth"
    print("new checkpoint, which the sink does not know:", push("unnamed"))
    print("no checkpoint there:", push("unnamed", checkpoint=str(directory / "nowhere")))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
