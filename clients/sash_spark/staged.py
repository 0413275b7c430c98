"""What a task of `format("sash")` tells the driver."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from sash_spark.parts import Part

__all__ = ["Staged", "staged_parts"]


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The outcome of a task."""

    query: str
    batch: int
    part: Part


def staged_parts(messages: list[WriterCommitMessage | None]) -> list[Staged]:
    """Join the outcomes of all tasks, which Spark passes in the order of partitions."""
    found = [message for message in messages if isinstance(message, Staged)]
    assert len(found) == len(messages)
    return found
