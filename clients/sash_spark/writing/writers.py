"""`write.format("sash")`: what a task tells the driver, and the writer of `save`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from sash_spark.writing.route import Outcome, Route


@dataclass(frozen=True)
class TaskOutcome(WriterCommitMessage):
    """The outcome of a task."""

    query: str
    batch: int
    outcome: Outcome


def outcomes_of(messages: list[WriterCommitMessage | None]) -> list[TaskOutcome]:
    """Join the outcomes of all tasks, which Spark passes in the order of partitions."""
    found = [message for message in messages if isinstance(message, TaskOutcome)]
    assert len(found) == len(messages)
    return found


@dataclass(frozen=True)
class BatchWriter(DataSourceArrowWriter):
    """Pickled: the tasks and the commit have the same name of the query."""

    route: Route
    query: str
    batch: int

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a task's rows."""
        return TaskOutcome(self.query, self.batch, self.route.stage(iterator, self.query, self.batch))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit once."""
        self.route.commit(self.query, self.batch, [each.outcome for each in outcomes_of(messages)])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave the stages to expire: another attempt stages its own."""
