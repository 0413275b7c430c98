"""The questions to windows whose keys are spread over shards."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from sash.calls import ONLY_SHARD, each
from sash.plane import Parts, observed
from sash.shards.merging import merged_answers, merged_series_steps
from sash.shards.parts import HOME, together, worst
from sash.shards.sharded_calls import Call, ShardedCalls, wrong_shard
from sash.shards.splitting import split_keys
from sash_engine.errors import Unsupported
from sash_engine.windows.answers import Answer, Page, Series
from sash_engine.windows.batch import AnyBatch
from sash_engine.windows.costs import Costs
from sash_engine.windows.questions import (
    ALL_KEYS,
    AllKeys,
    EntriesQuery,
    Grouped,
    KeyList,
    Query,
    RangeQuery,
    SeriesQuery,
    Where,
)
from sash_engine.windows.spec import WindowSpec

__all__ = ["ShardedQuestions"]

R = TypeVar("R")


class ShardedQuestions(ShardedCalls):
    """Questions: each shard answers for its keys, and the answers are merged."""

    @observed
    async def query(self, name: str, question: Query) -> builtins.list[Answer]:
        asked = await self._asked(name, question.key, question.keys, question)
        if len(asked) == 1 or question.key is not None:
            ((shard, keys),) = asked.items()
            return await self._on(shard, lambda plane: plane.query(name, replace(question, keys=keys)))
        spec = await self._spec(name)
        if question.combine:
            return await self._combined(spec, question, asked)
        costs, lookbacks = (
            Costs({each: monoid for each, (monoid, _) in spec.monoids().items()}),
            len(question.lookbacks),
        )
        if not isinstance(question.keys, AllKeys):
            costs.check_answers(len(question.keys), lookbacks)
        found = await self._ask(asked, lambda keys: lambda plane: plane.query(name, replace(question, keys=keys)))
        answers = [answer for shard in sorted(found) for answer in found[shard]]
        costs.check_answers(len(answers) // max(lookbacks, 1), lookbacks)
        if question.partials or costs.sized:
            costs.check_values(sum(map(costs.values_of, answers)))
        if isinstance(question.keys, AllKeys) or question.where:
            return answers
        by_key: dict[str | None, builtins.list[Answer]] = {}
        for answer in answers:
            by_key.setdefault(answer.key, []).append(answer)
        return [answer for key in dict.fromkeys(question.keys) for answer in by_key[key]]

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
                    return lambda plane: plane.range_query(name, RangeQuery(start, end, None, keys, True))

                for shard, answer in (await self._ask(others, ranged)).items():
                    found[shard][place] = replace(answer, lookback=lookback)
        places = zip(*(found[shard] for shard in sorted(found)), strict=True)
        return [merged_answers(spec, answers, question.partials) for answers in places]

    @observed
    async def range_query(self, name: str, question: RangeQuery) -> Answer:
        asked = await self._asked(name, question.key, question.keys, question)
        if len(asked) == 1:
            ((shard, keys),) = asked.items()
            return await self._on(shard, lambda plane: plane.range_query(name, replace(question, keys=keys)))
        partly = replace(question, partials=True)
        found = await self._ask(asked, lambda keys: lambda plane: plane.range_query(name, replace(partly, keys=keys)))
        return merged_answers(await self._spec(name), [found[shard] for shard in sorted(found)], question.partials)

    @observed
    async def series(self, name: str, question: SeriesQuery) -> Series:
        asked = await self._asked(name, question.key, question.keys, question)
        if len(asked) == 1:
            ((shard, keys),) = asked.items()
            return await self._on(shard, lambda plane: plane.series(name, replace(question, keys=keys)))
        partly = replace(question, partials=True)
        found = await self._ask(asked, lambda keys: lambda plane: plane.series(name, replace(partly, keys=keys)))
        parts = [found[shard] for shard in sorted(found)]
        return await self.in_slices(merged_series_steps(await self._spec(name), parts, question.partials))

    @observed
    async def range_groups(self, name: str, question: RangeQuery) -> Page[Answer]:
        await self._asked(name, question.key, question.keys, question)
        return await self._on(HOME, lambda plane: plane.range_groups(name, question))

    @observed
    async def series_groups(self, name: str, question: SeriesQuery) -> Page[Series]:
        await self._asked(name, question.key, question.keys, question)
        return await self._on(HOME, lambda plane: plane.series_groups(name, question))

    async def entries(self, name: str, question: EntriesQuery) -> Parts[AnyBatch]:
        self._access.require("entries", name)
        every = question.where and question.key is None and not question.keys
        asked = await self._asked(name, question.key, ALL_KEYS if every else question.keys)
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

    async def _asked(self, name: str, key: str | None, keys: KeyList, how: Grouped | None = None) -> dict[int, KeyList]:
        """The shards that a question is about, and which of its keys each has.

        Raises:
            Unsupported: the question groups keys, or chooses among answers, of several shards.
        """
        if self._shards.count == 1:
            return {0: keys}
        if how is not None and how.is_grouped:
            raise Unsupported(
                "by, top, having and limit are not answered across shards: ask for the keys, and group their answers",
                field="by",
            )
        if how is not None and how.where and key is None and not keys:
            keys = ALL_KEYS
        only = ONLY_SHARD.get()
        if key is not None or not keys or (only is None and not (await self._spec(name)).keyed):
            return {self._home_of(name, key): keys}
        if isinstance(keys, AllKeys):
            return dict.fromkeys(self._all, keys)
        found: dict[int, KeyList] = {}
        found.update(split_keys(name, keys, self._shards.count))
        if only is not None and set(found) != {only}:
            raise wrong_shard(only, self._shards.count)
        return found

    async def _ask(self, asked: Mapping[int, KeyList], call: Callable[[KeyList], Call[R]]) -> dict[int, R]:
        """Ask each shard about its keys."""
        found, errors = await together({shard: self._on(shard, call(keys)) for shard, keys in asked.items()})
        if errors:
            raise worst(errors.values())
        return found


async def _chained(parts: Sequence[Parts[R]]) -> AsyncIterator[R]:
    for some in parts:
        async for part in each(some):
            yield part
