"""`WindowListener`: the counts of a window, after each micro-batch of a stream by `format("sash")`."""

import pytest

from sash_client import NotFound
from sash_spark import register
from sash_spark.listener import WindowListener
from tests.support.spark_streams import KEYED, Stream, rows
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark


def test_each_micro_batch_is_reported(spark, client, target, tmp_path):
    register(spark)
    client.create_window(KEYED | {"slide": {"max_count": 10}})
    stream, seen = Stream(spark, tmp_path), []
    listener = WindowListener(target, "w", seen.append, query="mine")
    spark.streams.addListener(listener)
    try:
        for first in (0, 30):
            stream.feed(rows(first, first + 30))
        options = {"target": target, "window": "w", "time": "at", "key": "k"}
        stream.run(stream.read().writeStream.format("sash").options(**options).queryName("mine"))
        wait_until(lambda: sum(one.rows for one in seen) == 60)
    finally:
        spark.streams.removeListener(listener)
    assert sum(one.inserted for one in seen) == 60
    assert sum(one.evicted for one in seen) == 40
    assert (seen[-1].name, seen[-1].entries, seen[0].batch_id) == ("mine", 20, 0)
    assert not any(one.late or one.ahead for one in seen)


def test_a_window_that_is_not_there(client, target):
    with pytest.raises(NotFound):
        WindowListener(target, "w", print)
