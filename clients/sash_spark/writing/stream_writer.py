"""`writeStream.format("sash")`. It needs Spark 4.1, which has Arrow writers of streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from sash_spark.writing.route import BATCH_ID, QUERY_ID, Route, batch_name
from sash_spark.writing.writers import TaskOutcome, outcomes_of


@dataclass(frozen=True)
class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream. Spark makes one for tasks and one for commits, and only the tasks can find the query's id."""

    route: Route
    query: str | None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a task's rows."""
        context = TaskContext.get()
        assert context is not None
        query = batch_name(context.getLocalProperty(QUERY_ID), self.query)
        batch = int(context.getLocalProperty(BATCH_ID) or -1)
        return TaskOutcome(query, batch, self.route.stage(iterator, query, batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit once. A micro-batch without tasks has nothing to commit, and its query is unknown."""
        outcomes = outcomes_of(messages)
        for query, batch in {(each.query, each.batch) for each in outcomes}:
            assert batch == batchId
            self.route.commit(query, batch, [each.outcome for each in outcomes], streaming=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Leave the stages to expire: another attempt stages its own."""
