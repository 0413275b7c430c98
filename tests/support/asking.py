"""Any question to a window in memory, answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from sash_engine.steps import finished
from sash_engine.windows.answers import Answer, Series
from sash_engine.windows.questions import Grouped, Query, RangeQuery, SeriesQuery
from sash_engine.windows.reading.reader import Reader


def answers_of(reader: Reader, question: Query | RangeQuery | SeriesQuery) -> Sequence[Answer | Series]:
    """The answers of a question, of one key or of groups; raises as the reader."""
    found = reader.query(question) if isinstance(question, Query) else finished(reader.steps(question))
    return found if isinstance(found, list) else [found]


def question_of(kind: type[Any], *arguments: Any, **given: Any) -> Any:
    """A question of a kind; what a selection has may be given as if the question had it."""
    names = [each.name for each in fields(Grouped) if each.name in given]
    selection = Grouped(**{name: given.pop(name) for name in names})
    return kind(*arguments, selection=selection, **given)
