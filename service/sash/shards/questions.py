"""The questions to windows whose keys are spread over shards: each answers for its keys, and the answers are merged.

    one key                one shard
    several keys           each shard answers for its own ──▶ answers in the order asked for
    keys together          partials of each shard ──▶ merged                                     merging.py
    groups                                                                                       groups.py
    pairs                  each shard answers for its keys' ──▶ rows in the order of the pairs

Shards answer one after the other. An answer over several of them may have a write on one shard that came after another
shard was asked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from sash.calls import each
from sash.context import only_shard
from sash.durability.records.splitting import rows_of, split_keys
from sash.runtime.slices import Slices
from sash.shard import Parts
from sash.shards.groups import Asked, Groups
from sash.shards.merging import merged_answers, merged_series_steps
from sash.shards.shard_calls import Call, OfKeys, ShardCalls, asking
from sash_engine.monoids.base import Array
from sash_engine.windows.answers import Answer, AnswerColumns
from sash_engine.windows.batches.batch import AnyBatch
from sash_engine.windows.questions import (
    AllKeys,
    AnswersAt,
    EntriesQuery,
    KeyList,
    KeysQuery,
    Query,
    Question,
    RangeQuery,
    SeriesQuery,
)
from sash_engine.windows.reading.costs import costs_of
from sash_engine.windows.spec.window import WindowSpec
from sash_wire.placement import shards_of

A = TypeVar("A")
R = TypeVar("R")


class Questions:
    """Questions to the shards of a deployment.

    Args:
        calls: on its shards.
        slices: take long work.
    """

    def __init__(self, calls: ShardCalls, slices: Slices) -> None:
        self._calls = calls
        self._slices = slices
        self._groups = Groups(calls, slices)

    async def ask(self, name: str, question: Question[A]) -> A:
        """Answer a question; raises as the shards that it concerns."""
        if isinstance(question, KeysQuery):
            return await self._keys(name, question)  # type: ignore[return-value]
        if isinstance(question, AnswersAt):
            return await self._pairs(name, question)  # type: ignore[return-value]
        assert isinstance(question, OfKeys), question
        return await self._ask(name, question)  # type: ignore[no-any-return]

    async def _ask(self, name: str, question: OfKeys) -> Any:
        asked = await self._asked(name, question)
        grouped = isinstance(question, RangeQuery | SeriesQuery) and question.selection.is_grouped
        if len(asked) == 1 or (grouped and question.selection.by is None):  # type: ignore[union-attr]
            shard, keys = next(iter(asked.items()))
            return await self._calls.on(shard, asking(name, question)(keys))
        if isinstance(question, EntriesQuery):
            found = await self._calls.ask(asked, asking(name, question))
            parts = [found[shard] for shard in sorted(found, reverse=question.reverse)]
            return _chained(parts) if question.limit is None else _first(question.limit, _chained(parts))
        spec = await self._calls.spec(name)
        match question:
            case Query():
                return await self._query(spec, question, asked)
            case RangeQuery() if grouped:
                return await self._groups.range(spec, question, asked)
            case SeriesQuery() if grouped:
                return await self._groups.series(spec, question, asked)
        found = await self._calls.ask(asked, asking(name, replace(question, partials=True)))
        parts = [found[shard] for shard in sorted(found)]
        if isinstance(question, RangeQuery):
            return merged_answers(spec, parts, question.partials)
        return await self._slices.take(merged_series_steps(spec, parts, question.partials))

    async def _asked(self, name: str, question: OfKeys) -> Asked:
        """The shards that a question is about, and which of its keys each has."""
        key, keys, only, calls = question.key, question.keys, only_shard(), self._calls
        count = calls.shards.count
        if count == 1:
            return {0: keys}
        spec = calls.shards.spec(name)
        if spec is None and only is None:
            spec = await calls.spec(name)
        if spec is not None and spec.of is not None:
            name = spec.of  # the keys of a view are where its window has them
        selects = question.where if isinstance(question, EntriesQuery) else question.selection.selects
        if key is not None or not (keys or selects) or (only is None and spec is not None and not spec.keyed):
            return {calls.home_of(name, key): keys}
        if isinstance(keys, AllKeys) or not keys:
            return dict.fromkeys(calls.all, keys)
        found: dict[int, KeyList] = {}
        found.update(split_keys(name, keys, count))
        calls.check_here(found)
        return found

    async def _query(self, spec: WindowSpec, question: Query, asked: Asked) -> list[Answer]:
        if question.combine:
            return await self._combined(spec, question, asked)
        if question.selection.is_grouped:
            return await self._groups.query(spec, question, asked)
        costs, lookbacks = costs_of(spec, question.selection.aggregates), len(question.lookbacks)
        listed = () if isinstance(question.keys, AllKeys) or question.selection.where else question.keys
        if listed:
            costs.check_answers(len(listed), lookbacks)
        found = await self._calls.ask(asked, asking(spec.name, question))
        answers = [answer for shard in sorted(found) for answer in found[shard]]
        costs.check_answers(len(answers) // max(lookbacks, 1), lookbacks)
        if question.partials or costs.sized:
            costs.check_values(sum(map(costs.values_of, answers)))
        if not listed:
            return answers
        by_key: dict[str | None, list[Answer]] = {}
        for answer in answers:
            by_key.setdefault(answer.key, []).append(answer)
        return [answer for key in dict.fromkeys(listed) for answer in by_key.get(key, ())]

    async def _combined(self, spec: WindowSpec, question: Query, asked: Asked) -> list[Answer]:
        """One answer for each lookback, over the entries of all shards."""
        found = await self._calls.ask(asked, asking(spec.name, replace(question, partials=True)))
        if question.lookbacks and question.as_of is None:
            # A lookback goes back from the newest mark of all keys, which the shards do not know of each other.
            for place in range(len(question.lookbacks)):
                known = {shard: answers[place] for shard, answers in found.items() if answers[place].start is not None}
                if not known:
                    continue
                start = max(answer.start for answer in known.values() if answer.start is not None)
                end = max(answer.end for answer in known.values() if answer.end is not None)
                others = {
                    shard: asked[shard] for shard, answer in known.items() if answer.end != end or answer.start != start
                }
                lookback = found[next(iter(known))][place].lookback

                between = RangeQuery(start, end, partials=True, selection=question.selection)
                again = await self._calls.ask(others, asking(spec.name, between)) if others else {}
                for shard in others:
                    if shard in again:
                        found[shard][place] = replace(again[shard], lookback=lookback)
                    else:
                        del found[shard]  # its answer has another now
        places = zip(*(found[shard] for shard in sorted(found)), strict=True)
        return [merged_answers(spec, answers, question.partials) for answers in places]

    async def _pairs(self, name: str, question: AnswersAt) -> list[AnswerColumns]:
        """Each shard answers about the pairs of its keys; the rows are put back in the order of the pairs."""
        calls, keys = self._calls, question.keys
        question.check_columns()
        spec = await calls.spec(name)
        costs_of(spec, question.aggregates).check_pairs(len(question.times), len(question.lookbacks))
        of = None if keys is None else shards_of(spec.of or name, keys.dictionary, calls.shards.count)[keys.codes]
        asked: dict[int, Array] = {}
        if of is not None and len(of):
            asked = {shard: np.flatnonzero(of == shard) for shard in np.unique(of).tolist()}
            calls.check_here(asked)
        if len(asked) < 2:
            shard = next(iter(asked), None)
            return await calls.on(calls.home_of(name) if shard is None else shard, lambda one: one.ask(name, question))

        def about(rows: Array) -> Call[list[AnswerColumns]]:
            assert keys is not None
            known_at = None if question.known_at is None else question.known_at[rows]
            part = replace(question, times=question.times[rows], keys=keys.rows(rows), known_at=known_at)
            return lambda shard: shard.ask(name, part)

        found = await calls.ask(asked, about)
        rows = np.concatenate([asked[shard] for shard in found])
        return [_joined(columns, rows, len(question.times)) for columns in zip(*found.values(), strict=True)]

    async def _keys(self, name: str, question: KeysQuery) -> tuple[list[str], int | None]:
        shards, position = self._calls.all, question.position
        if len(shards) == 1 or position < 0:
            return await self._calls.on(shards[0], lambda shard: shard.ask(name, question))
        place, at = divmod(position, len(shards))
        of_shard = replace(question, position=place)
        found, next_ = await self._calls.on(at, lambda shard: shard.ask(name, of_shard))
        if next_ is not None:
            return found, next_ * len(shards) + at
        return found, at + 1 if at + 1 < len(shards) else None


async def _chained(parts: Sequence[Parts[R]]) -> AsyncIterator[R]:
    for some in parts:
        async for part in each(some):
            yield part


async def _first(limit: int, bulks: AsyncIterator[AnyBatch]) -> AsyncIterator[AnyBatch]:
    """The first `limit` entries of some bulks."""
    async for bulk in bulks:
        n = len(bulk.times)
        yield bulk if n <= limit else rows_of(bulk, np.arange(limit))
        limit -= n
        if limit <= 0:
            break


def _joined(parts: Sequence[AnswerColumns], rows: Array, n: int) -> AnswerColumns:
    """The columns of all about n pairs, of which these rows are known; None stands in the others."""

    def whole(columns: Sequence[Array]) -> Array:
        if len(rows) < n or len({column.dtype for column in columns}) > 1:
            columns = [column.astype(object) for column in columns]
        joined = np.concatenate(columns)
        found = np.empty(n, joined.dtype)
        found[rows] = joined
        return found

    names = [name for name in parts[0].aggregates if all(name in part.aggregates for part in parts)]
    aggregates = {name: whole([part.aggregates[name] for part in parts]) for name in names}
    return AnswerColumns(whole([part.entries for part in parts]), aggregates, parts[0].lookback)
