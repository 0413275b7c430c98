"""The questions to windows whose keys are spread over shards."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from sash.calls import each
from sash.plane import Parts, observed
from sash.shards.merging import merged_answers, merged_series_steps
from sash.shards.sharded_calls import Call
from sash.shards.sharded_groups import ShardedGroups
from sash_engine.windows.answers import Answer, Series
from sash_engine.windows.batch import AnyBatch
from sash_engine.windows.costs import costs_of
from sash_engine.windows.questions import AllKeys, EntriesQuery, KeyList, Query, RangeQuery, SeriesQuery, Where
from sash_engine.windows.spec import WindowSpec

__all__ = ["ShardedQuestions"]

R = TypeVar("R")


class ShardedQuestions(ShardedGroups):
    """Questions: each shard answers for its keys, and the answers are merged."""

    @observed
    async def query(self, name: str, question: Query) -> builtins.list[Answer]:
        asked = await self._asked(name, question.key, question.keys, question.selection.selects)
        if len(asked) == 1 or question.key is not None:
            ((shard, keys),) = asked.items()
            return await self._on(shard, lambda plane: plane.query(name, replace(question, keys=keys)))
        spec = await self._spec(name)
        if question.combine:
            return await self._combined(spec, question, asked)
        if question.selection.is_grouped:
            return await self._query_groups(spec, question, asked)
        costs, lookbacks = costs_of(spec, question.selection.aggregates), len(question.lookbacks)
        listed = () if isinstance(question.keys, AllKeys) or question.selection.where else question.keys
        if listed:
            costs.check_answers(len(listed), lookbacks)
        found = await self._ask(asked, lambda keys: lambda plane: plane.query(name, replace(question, keys=keys)))
        answers = [answer for shard in sorted(found) for answer in found[shard]]
        costs.check_answers(len(answers) // max(lookbacks, 1), lookbacks)
        if question.partials or costs.sized:
            costs.check_values(sum(map(costs.values_of, answers)))
        if not listed:
            return answers
        by_key: dict[str | None, builtins.list[Answer]] = {}
        for answer in answers:
            by_key.setdefault(answer.key, []).append(answer)
        return [answer for key in dict.fromkeys(listed) for answer in by_key.get(key, ())]

    async def _combined(self, spec: WindowSpec, question: Query, asked: Mapping[int, KeyList]) -> builtins.list[Answer]:
        """One answer for each lookback, over the entries of all shards."""
        name, partly = spec.name, replace(question, partials=True)
        found = await self._ask(asked, lambda keys: lambda plane: plane.query(name, replace(partly, keys=keys)))
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

                def ranged(keys: KeyList, start: int = start, end: int = end) -> Call[Answer]:
                    return lambda plane: plane.range_query(
                        name,
                        RangeQuery(start, end, None, keys, True, selection=question.selection),
                    )

                again = await self._ask(others, ranged) if others else {}
                for shard in others:
                    if shard in again:
                        found[shard][place] = replace(again[shard], lookback=lookback)
                    else:
                        del found[shard]  # its answer has another now
        places = zip(*(found[shard] for shard in sorted(found)), strict=True)
        return [merged_answers(spec, answers, question.partials) for answers in places]

    @observed
    async def range_query(self, name: str, question: RangeQuery) -> Answer:
        asked = await self._asked(name, question.key, question.keys, question.selection.selects)
        if len(asked) == 1:
            ((shard, keys),) = asked.items()
            return await self._on(shard, lambda plane: plane.range_query(name, replace(question, keys=keys)))
        partly = replace(question, partials=True)
        found = await self._ask(asked, lambda keys: lambda plane: plane.range_query(name, replace(partly, keys=keys)))
        return merged_answers(await self._spec(name), [found[shard] for shard in sorted(found)], question.partials)

    @observed
    async def series(self, name: str, question: SeriesQuery) -> Series:
        asked = await self._asked(name, question.key, question.keys, question.selection.selects)
        if len(asked) == 1:
            ((shard, keys),) = asked.items()
            return await self._on(shard, lambda plane: plane.series(name, replace(question, keys=keys)))
        partly = replace(question, partials=True)
        found = await self._ask(asked, lambda keys: lambda plane: plane.series(name, replace(partly, keys=keys)))
        parts = [found[shard] for shard in sorted(found)]
        return await self.in_slices(merged_series_steps(await self._spec(name), parts, question.partials))

    async def entries(self, name: str, question: EntriesQuery) -> Parts[AnyBatch]:
        self._access.require("entries", name)
        asked = await self._asked(name, question.key, question.keys, bool(question.where))
        found = await self._ask(asked, lambda keys: lambda plane: plane.entries(name, replace(question, keys=keys)))
        return _chained([found[shard] for shard in sorted(found)])

    async def keys(
        self, name: str, prefix: str = "", limit: int = 1000, position: int = 0, where: Sequence[Where] = ()
    ) -> tuple[builtins.list[str], int | None]:
        self._access.require("keys", name)
        shards = len(self._all)
        if shards == 1 or position < 0:
            return await self._on(self._all[0], lambda plane: plane.keys(name, prefix, limit, position, where))
        place, shard = divmod(position, shards)
        found, next_ = await self._on(shard, lambda plane: plane.keys(name, prefix, limit, place, where))
        if next_ is not None:
            return found, next_ * shards + shard
        return found, shard + 1 if shard + 1 < shards else None


async def _chained(parts: Sequence[Parts[R]]) -> AsyncIterator[R]:
    for some in parts:
        async for part in each(some):
            yield part
