"""Answers about many pairs of a key and a time: of each what `Query(key, lookbacks, as_of=time)` answers.

    pairs       (b, 9)  (a, 5)  (b, 7)            in any order, as often as they like
    sorted      a: 5    b: 7, 9                   by key, then time
    ranges      a: (5 - L, 5]   b: (7 - L, 7]  (9 - L, 9]         for each lookback L
    answers     of all ranges of many keys at once (keys/range_answers.py), back in the order of the pairs

A part of the pairs is answered at once, so that what is there beside the answers is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sash_engine.errors import InvalidArgument
from sash_engine.forest import Layout
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, spans_of
from sash_engine.windows.answers import AnswerColumns
from sash_engine.windows.keys.keys import UNKEYED
from sash_engine.windows.keys.pages import Numbers
from sash_engine.windows.keys.range_answers import keys_of
from sash_engine.windows.known import Known, no_known
from sash_engine.windows.questions import AnswersAt
from sash_engine.windows.reading.costs import size_of
from sash_engine.windows.reading.key_finder import KeyFinder
from sash_engine.windows.reading.labels import Labels
from sash_engine.windows.spec.window import TICK_MAX, TICK_MIN
from sash_wire.coded import Coded

_PAIRS, _SIZED_PAIRS = 65_536, 1_024
"""Pairs that are answered together; fewer where answers may be lists, which are counted after each part."""

Spans = Sequence[tuple[str, int]]


class Pairs:
    """Answers questions about pairs of one window.

    Args:
        asked: finds keys by name.
        labels: finds keys by label.
        layout: what is answered.
        known, wide: what was known when, and the layout that it needs; None where the window does not keep it.
    """

    def __init__(
        self, asked: KeyFinder, labels: Labels, layout: Layout, known: Known | None, wide: Layout | None
    ) -> None:
        self._asked, self._labels, self._layout, self._known, self._wide = asked, labels, layout, known, wide
        self._spec, self._keys, self._costs = asked.spec, asked.keys, asked.costs

    def answers(self, question: AnswersAt, spans: Spans) -> Steps[list[AnswerColumns]]:
        """The answers over each lookback, or over everything up to the times of the pairs; in steps."""
        self._check(question, len(spans))
        n, lookbacks = len(question.times), max(len(spans), 1)
        numbers = yield from self._numbers(question)
        order = _by_key_and_time(numbers, question.times)
        yield
        found, values = list[tuple[Array, list[Array]]](), 0
        for a, b in spans_of(n, max((_SIZED_PAIRS if self._costs.sized else _PAIRS) // lookbacks, 1)):
            some = order[a:b]
            known_at = None if question.known_at is None else question.known_at[some]
            found.append((yield from self._some(numbers[some], question.times[some], spans, known_at)))
            if self._costs.sized:
                values = self._costs.check_values(values, sum(map(_values_in, found[-1][1])))
            yield
        back = np.empty(n, np.int64)
        back[order] = np.arange(n)
        out = []
        for i in range(lookbacks):
            columns = list[Array]()
            for column in range(1 + len(self._layout.names)):
                parts = [(entries, *answers)[column].reshape(-1, lookbacks)[:, i] for entries, answers in found]
                columns.append(np.concatenate(parts)[back] if parts else np.empty(0, np.int64))
                yield
            answers = dict(zip(self._layout.names, columns[1:], strict=True))
            out.append(AnswerColumns(columns[0], answers, spans[i][0] if spans else None))
        return out

    def _check(self, question: AnswersAt, lookbacks: int) -> None:
        times, keys = question.times, question.keys
        n = len(times)
        self._costs.check_pairs(n, lookbacks)
        if n and not TICK_MIN < int(times.min()) <= int(times.max()) < TICK_MAX:
            raise InvalidArgument("a time is out of range", field="times", limit="-2^63 < time < 2^63 - 1")
        if self._spec.keyed != (keys is not None):
            wrong = "is keyed: say the key of each pair" if self._spec.keyed else "is not keyed"
            raise InvalidArgument(f"window {self._spec.name!r} {wrong}", field="keys")
        question.check_columns()
        if question.known_at is not None:
            if self._known is None:
                raise no_known(self._spec.name)
            if n:
                self._known.check(int(question.known_at.min()))
                self._known.check(int(question.known_at.max()))
        self._labels.check(question.where, None)

    def _numbers(self, question: AnswersAt) -> Steps[Numbers]:
        """The key of each pair, int64 (n,); -1 for one that is not there, or does not meet the conditions."""
        keys = question.keys
        if keys is None:
            keys = Coded([UNKEYED], np.zeros(len(question.times), np.int64))
        else:
            yield from self._asked.check_each(keys.dictionary)
        numbers = self._keys.find_each(keys.dictionary)
        there = np.unique(numbers[numbers >= 0])
        yield
        if question.where:
            there = np.sort((yield from self._labels.select(question.where, there)))
            numbers[~np.isin(numbers, there)] = -1
        self._asked.age(there)
        each: Numbers = numbers[keys.codes]
        return each

    def _some(
        self, numbers: Numbers, times: Array, spans: Spans, known_at: Array | None
    ) -> Steps[tuple[Array, list[Array]]]:
        """The answers about some sorted pairs, one lookback's behind the other's for each."""
        lookbacks = max(len(spans), 1)
        starts = np.full((len(times), lookbacks), TICK_MIN)
        for i, (_, span) in enumerate(spans):
            inside = times >= TICK_MIN + span - 1
            starts[inside, i] = times[inside] - (span - 1)
        stops = np.repeat(times + 1, lookbacks)
        keys, lengths = keys_of(numbers)
        lengths *= lookbacks
        if known_at is not None and self._known is not None and self._wide is not None:
            at = np.repeat(known_at, lookbacks)
            return self._known.answers_steps(keys, lengths, starts.reshape(-1), stops, at, self._wide, self._layout)
        return self._keys.answers_steps(keys, lengths, starts.reshape(-1), stops, self._layout)


def _by_key_and_time(numbers: Numbers, times: Array) -> Array:
    """The order of pairs by key, then time. As single integers they are sorted in a tenth of the time."""
    if not len(times):
        return np.empty(0, np.int64)
    oldest, newest, most = int(times.min()), int(times.max()), int(numbers.max()) + 2
    if (newest - oldest + 1) * most > TICK_MAX:
        return np.lexsort((times, numbers))
    return np.argsort((numbers + 1) * (newest - oldest + 1) + (times - oldest), kind="stable")


def _values_in(answers: Array) -> int:
    return sum(map(size_of, answers.tolist())) if answers.dtype.hasobject else 0
