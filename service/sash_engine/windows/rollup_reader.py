"""The reading side of a window with rollups: what they can answer, they do; the keys answer the rest.

    question                  by carrier, where carrier …         by carrier, where gate …
    parts that it looks at    carrier: the rollup [carrier]       carrier, gate: no rollup has both, so the keys

Of several rollups that have all parts of a question the one with the fewest parts answers. A group of the question is
then one key of the rollup, or a few of them. The answer is the one that the keys would give: a rollup is asked only
about times behind the horizons of its groups, where it has all entries (rollups.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from sash_engine.steps import Steps
from sash_engine.windows.answers import Answer, Counts, Page, Series
from sash_engine.windows.keys import NEVER
from sash_engine.windows.pages import Numbers
from sash_engine.windows.questions import AllKeys, Grouped, GroupedQuestion, Query, RangeQuery, SeriesQuery
from sash_engine.windows.reader import Reader
from sash_engine.windows.rollups import Rollup, Rollups
from sash_engine.windows.spec import TICK_MIN

__all__ = ["RollupReader"]

Answers = TypeVar("Answers", list[Answer], Page[Answer], Page[Series])


class RollupReader(Reader):
    """Answers questions about one window's keys and groups.

    Args:
        rollups: of the window.
        counts: of the window.
        parts: the arguments of `Reader`.
    """

    def __init__(self, rollups: Rollups, counts: Counts, *parts: Any) -> None:
        super().__init__(*parts)
        self._rollups, self._counts = rollups, counts

    def _made(self, *arguments: Any) -> RollupReader:
        return RollupReader(self._rollups, self._counts, *arguments)

    def limit_memory(self, need: Callable[[int], None]) -> None:
        super().limit_memory(need)
        for rollup in self._rollups:
            rollup.window.reader.limit_memory(need)

    def _of_several(self, question: Query) -> Steps[list[Answer]]:
        groups = question.selection.by is not None or question.combine
        able = self._able(question, lambda now: self._oldest(question, now)) if groups else None
        if able is None:
            return (yield from super()._of_several(question))
        return _of_groups((yield from able.query_steps(question)))

    def range_steps(self, question: RangeQuery) -> Steps[Answer]:
        able = self._able(question, lambda _: question.start)
        if able is None:
            return (yield from super().range_steps(question))
        return (yield from able.range_steps(question))

    def range_groups(self, question: RangeQuery) -> Steps[Page[Answer]]:
        able = self._able(question, lambda _: question.start)
        if able is None:
            return (yield from super().range_groups(question))
        return _of_groups((yield from able.range_groups(question)))

    def series_steps(self, question: SeriesQuery) -> Steps[Series]:
        able = self._able(question, lambda _: question.start) if question.gap is None else None
        if able is None:
            return (yield from super().series_steps(question))
        return (yield from able.series_steps(question))

    def series_groups(self, question: SeriesQuery) -> Steps[Page[Series]]:
        able = self._able(question, lambda _: question.start)
        if able is None:
            return (yield from super().series_groups(question))
        return _of_groups((yield from able.series_groups(question)))

    # ---------------------------------------------------------------- which rollup

    def _able(self, question: GroupedQuestion, oldest: Callable[[Numbers], Numbers | int]) -> Reader | None:
        """The reader of the rollup that can answer a question; None where the keys have to; `oldest` as of `_has`."""
        rollup = self._rollup_for(question)
        return rollup.window.reader if rollup is not None and self._has(rollup, oldest) else None

    def _rollup_for(self, question: GroupedQuestion) -> Rollup | None:
        """The smallest rollup that has all parts that a question looks at; None where a question names keys."""
        if question.key is not None or (question.keys and not isinstance(question.keys, AllKeys)):
            return None
        looked_at = _looked_at(question.selection)
        able = [rollup for rollup in self._rollups if rollup.parts >= looked_at]
        return min(able, key=lambda rollup: len(rollup.parts), default=None)

    def _has(self, rollup: Rollup, oldest: Callable[[Numbers], Numbers | int]) -> bool:
        """Whether a rollup has all entries of its keys that a question is about.

        Args:
            oldest: nows of groups, int64 (g,) -> the oldest times that it is about.
        """
        keys, slide = rollup.window.keys, self._slide
        numbers = keys.numbers()
        if slide.wall:
            rollup.window.slide()
        elif self._counts.present == rollup.window.counts.present:
            return True
        horizons = keys.late_through[numbers]
        behind = horizons > slide.gone_through()
        if not behind.any():
            return True
        numbers, horizons = numbers[behind], horizons[behind]
        now = keys.now[numbers]
        if slide.wall:
            now = np.minimum(now, slide.now())
        elif slide.until:
            now = np.full(len(now), slide.punctuated)
        return bool((oldest(now) > horizons).all() and keys.filled_each(numbers).all())

    def _oldest(self, question: Query, now: Numbers) -> Numbers | int:
        spans = [span for _, span in self.spans(question.lookbacks)]
        if not spans:
            return NEVER
        longest = max(spans)
        if question.as_of is not None:
            return question.as_of - longest + 1
        return np.maximum(now, TICK_MIN + longest) - longest + 1


def _looked_at(selection: Grouped) -> frozenset[str]:
    """The parts that a question is about."""
    return frozenset(selection.by or ()) | {condition.part for condition in selection.where}


def _of_groups(answers: Answers) -> Answers:
    """Answers about groups, which are keys of the rollup only."""
    for answer in answers:
        answer.key = None
    return answers
