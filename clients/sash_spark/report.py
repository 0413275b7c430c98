"""What became of the rows of micro-batches."""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["BatchReport"]


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The outcome of the rows of one micro-batch, or of several:

    `inserted + late + duplicates + ahead + bad + corrected + retracted + missing + merged == arrived`.

    Args:
        batch_id: Spark's id of the (last) micro-batch; -1 before the first.
        arrived: rows that the tasks have read.
        inserted: rows that are, or were, in the window.
        late: rows older than what the window has evicted.
        evicted: entries that the window's slide policy has evicted.
        seconds: time that it took, end to end.
        duplicates: rows of a time that the window already has, if it keeps one entry of each time.
        already_applied: the micro-batch (of several: one of them) was committed before, by a run that ended before
            Spark knew. This changed nothing and is in no other count, except `arrived` if it showed only at the end.
        staged: rows that went to the service; panes with pre-aggregation.
        ahead: rows too far ahead of wall time, by the window's `order.ahead`.
        bad: rows that were dropped because the window would refuse them.
        corrected, retracted: entries that the rows of a change feed have updated, and deleted.
        missing: entries that such rows name, and that are not in the window.
        merged: rows of a change feed that became part of another row of the same entry, or of nothing.
    """

    batch_id: int = -1
    arrived: int = 0
    inserted: int = 0
    late: int = 0
    evicted: int = 0
    seconds: float = 0.0
    duplicates: int = 0
    already_applied: bool = False
    staged: int = 0
    ahead: int = 0
    bad: int = 0
    corrected: int = 0
    retracted: int = 0
    missing: int = 0
    merged: int = 0

    def plus(self, later: BatchReport) -> BatchReport:
        """Add a later report to this one."""
        both = {each.name: getattr(self, each.name) + getattr(later, each.name) for each in fields(self)}
        already_applied = self.already_applied or later.already_applied
        return BatchReport(**both | {"batch_id": later.batch_id, "already_applied": already_applied})
