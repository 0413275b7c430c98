"""Any question to a window in memory, answered."""

from __future__ import annotations

from collections.abc import Sequence

from sash_engine.steps import finished
from sash_engine.windows.answers import Answer, Series
from sash_engine.windows.questions import Query, RangeQuery, SeriesQuery
from sash_engine.windows.reader import Reader

__all__ = ["answers_of"]


def answers_of(reader: Reader, question: Query | RangeQuery | SeriesQuery) -> Sequence[Answer | Series]:
    """The answers of a question, of one key or of groups; raises as the reader."""
    match question:
        case Query():
            return reader.query(question)
        case RangeQuery(by=None):
            return [reader.range_query(question)]
        case RangeQuery():
            return finished(reader.range_groups(question))
        case SeriesQuery(by=None):
            return [reader.series(question)]
        case SeriesQuery():
            return finished(reader.series_groups(question))
