"""Streams with accidents: rows in files, a checkpoint to forget things from, tasks that die, and the fold of it all."""

import os
import uuid

import pandas as pd
from pyspark.errors import StreamingQueryException

KEYED = {
    "name": "w",
    "time_unit": "us",
    "keyed": True,
    "fields": {"v": "int64"},
    "aggregates": {
        "n": {"function": "count"},
        "sum": {"function": "sum", "field": "v"},
        "all": {"function": "collect", "field": "v"},
    },
}


def rows(first, last):
    numbers = pd.Series(range(first, last))
    times = pd.to_datetime(numbers * 1000, unit="us")
    return pd.DataFrame({"at": times, "k": "k" + (numbers % 2).astype(str), "v": numbers})


class Stream:
    """A directory of files, read as a stream with a checkpoint."""

    def __init__(self, spark, directory):
        self.spark, self.directory = spark, directory
        self.checkpoint = directory / f"checkpoint-{uuid.uuid4().hex}"
        (directory / "in").mkdir(exist_ok=True)
        self.fed = []

    def feed(self, frame):
        self.fed.append(frame)
        name = f"{len(self.fed):03}.parquet"
        file = self.directory / "in" / f".{name}"  # a stream that runs does not see it until it is complete
        frame.to_parquet(file, coerce_timestamps="us")
        os.utime(file, (len(self.fed), len(self.fed)))  # the source goes by age
        file.rename(file.with_name(name))

    def read(self):
        reader = self.spark.readStream.schema("at timestamp, k string, v long").option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.directory / "in"))

    def run(self, writer):
        """Run a query until it has read all files."""
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()

    def push(self, sink, change=lambda batch: batch):
        self.run(self.read().writeStream.foreachBatch(lambda batch, batch_id: sink(change(batch), batch_id)))

    def forget_last_commit(self):
        """Leave the checkpoint as Spark leaves it when it is killed after the sink's commit, before its own."""
        commits = self.checkpoint / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink()


def assert_fold(window, *frames):
    """The window has these rows, and answers what pandas makes of them."""
    expected = pd.concat(frames)
    info = window.describe()
    assert info.entries == info.counts.inserted == len(expected)
    for key, group in expected.groupby("k"):
        (answer,) = window.query(key=key)
        in_time = group.sort_values("at", kind="stable")
        assert answer.aggregates == {"n": len(group), "sum": group["v"].sum(), "all": in_time["v"].tolist()}


def began_too_late(error):
    """Whether a query failed because its Python worker took longer to start than Spark waits."""
    return "Python worker failed to connect back" in str(error)


def settled(start, query=None, wait=lambda query: query.processAllAvailable()):
    """Start a query, unless it runs, and wait until it has read all files; return the query that has.

    Spark gives the Python worker of `transformWithState` ten seconds to start, and has no setting for that. A query
    that fails for it on a busy machine is started again.
    """
    query = query or start()
    while True:
        try:
            wait(query)
        except StreamingQueryException as error:
            if not began_too_late(error):
                raise
            query = start()
        else:
            return query


def staged_parts(address):
    """Return a function that says how many parts the service at a URL was sent; tasks can call it, too."""
    return _metric(address, r'seconds_count\{operation="stage".*\} (\S+)')


def staged_bytes(address):
    """Return a function that says how many bytes of parts wait at the service for a commit, or to expire."""
    return _metric(address, r'sash_memory_bytes\{part="staged"\} (\S+)')


def _metric(address, pattern):
    url = f"{address}/metrics"

    def total():
        import re
        import urllib.request

        # No proxy stands between a machine and itself, whatever the environment says of others.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=60) as response:
            text = response.read().decode()
        return sum(map(float, re.findall(pattern, text)))

    return total


def killer(died, staged):
    """Return what a DataFrame can be mapped by, in Arrow: its task dies, once, when the sink's has staged something."""
    before = staged()

    def dies_once(batches):
        import time

        for i, batch in enumerate(batches):
            if i == 6 and not died.exists():
                died.touch()
                deadline = time.monotonic() + 120
                while staged() < before + 4:
                    assert time.monotonic() < deadline, "nothing was staged"
                    time.sleep(0.05)
                raise RuntimeError("killed")
            yield batch

    return dies_once
