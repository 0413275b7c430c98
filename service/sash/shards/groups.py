"""The questions that group keys, or choose among them, where the keys are spread over shards.

    a group's keys are on several shards     partials of each shard ──▶ merged ──▶ having, top, limit
    a group is one key                       each shard chooses ──▶ top again

The now of a group is the newest of all its keys. A shard that knows an older one is asked again, with the newest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from sash.context import missing_shards
from sash.runtime.slices import Slices
from sash.shards.merging import merged_answers, merged_series_steps
from sash.shards.shard_calls import ShardCalls, asking
from sash_engine.errors import InvalidArgument, Unavailable
from sash_engine.steps import finished
from sash_engine.windows.answers import Answer, Page, Series
from sash_engine.windows.questions import Grouped, GroupedQuestion, KeyList, Query, RangeQuery, SeriesQuery, selecting
from sash_engine.windows.reading.bounds import buckets_of
from sash_engine.windows.reading.choosing import chosen_answers, names_compared
from sash_engine.windows.reading.costs import costs_of
from sash_engine.windows.spec.window import WindowSpec
from sash_wire.errors import WireError
from sash_wire.labels import join, split

Q = TypeVar("Q", Query, RangeQuery, SeriesQuery)

Asked = Mapping[int, KeyList]
_ByValues = dict[tuple[str, ...], dict[int, Sequence[Answer]]]
"""By values and shard, the answers of a group: one for each lookback."""


class Groups:
    """Groups: merged from those of the shards.

    Args:
        calls: on the shards.
        slices: take long work.
    """

    def __init__(self, calls: ShardCalls, slices: Slices) -> None:
        self._calls = calls
        self._slices = slices

    async def range(self, spec: WindowSpec, question: RangeQuery, asked: Asked) -> Page[Answer]:
        """The answers of a range query that groups keys."""
        assert question.selection.by is not None, "what chooses among keys asks one shard, which refuses it"
        finished(self._calls.checker(spec).reader.range_groups(question))
        found = await self._calls.ask(asked, asking(spec.name, _of_shards(question, _pushed(question), compared=True)))
        return self._page(spec, question, _by_values(question.selection.by, found, 1), 1, _more(found))

    async def series(self, spec: WindowSpec, question: SeriesQuery, asked: Asked) -> Page[Series]:
        """The series of a question that groups keys."""
        assert question.selection.by is not None, "what chooses among keys asks one shard, which refuses it"
        finished(self._calls.checker(spec).reader.series_groups(question))
        costs = costs_of(spec, question.selection.aggregates)
        starts, stops, _, _ = buckets_of(question, spec, costs)
        first, last = int(starts[0]), int(stops[-1]) - 1
        chosen = await self.range(spec, _over(question, first, last), asked)
        found = await self._calls.ask(asked, asking(spec.name, _of_shards(question, _pushed(question), compared=False)))
        by_values: dict[tuple[str, ...], list[Series]] = {}
        for shard in sorted(found):
            for series in found[shard]:
                by_values.setdefault(_values(question.selection.by, series), []).append(series)
        costs.check_buckets(len(chosen) * len(starts))
        out = Page[Series]()
        for answer in chosen:
            parts = by_values.get(_values(question.selection.by, answer))
            if parts is None:
                continue  # its entries have left meanwhile
            if len(parts) > 1:
                merged = await self._slices.take(merged_series_steps(spec, parts, question.partials))
                merged.key, merged.parts = answer.key, answer.parts
            else:
                merged = parts[0] if question.partials else replace(parts[0], partials=None)
            out.append(merged)
        out.position = chosen.position
        return out

    async def query(self, spec: WindowSpec, question: Query, asked: Asked) -> Page[Answer]:
        """The answers of a query that groups keys or chooses among them."""
        selection = question.selection
        of_a_shard = selection.position and selection.by is None  # with the number of the shard, see `_query_keys`
        self._calls.checker(spec).reader.query(selecting(question, position="0") if of_a_shard else question)
        if selection.by is None:
            return await self._query_keys(spec, question, asked)
        times = max(len(question.lookbacks), 1)
        asks_now = bool(question.lookbacks) and question.as_of is None
        has_now = asks_now and spec.slide.clock != "wall" and spec.slide.until is None
        limit = None if has_now else _pushed(question)
        first: dict[str, int] | None = {} if has_now else None
        plain = replace(_of_shards(question, limit, compared=True), nows=first)
        found = await self._calls.ask(asked, asking(spec.name, plain))
        groups = _by_values(selection.by, found, times)
        if has_now:
            ends = {values: [part[0].end for part in parts.values()] for values, parts in groups.items()}
            nows = {join(values): max(end for end in of_group if end is not None) for values, of_group in ends.items()}
            behind = {
                shard: asked[shard]
                for shard in found
                if any(shard in parts and parts[shard][0].end != nows[join(values)] for values, parts in groups.items())
            }
            again = {} if not behind else await self._calls.ask(behind, asking(spec.name, replace(plain, nows=nows)))
            kept = {shard: answers for shard, answers in found.items() if shard not in behind}
            groups = _by_values(selection.by, {**kept, **again}, times)
            groups = {
                values: parts
                for values, parts in groups.items()
                if any(part[0].start is not None for part in parts.values())
            }
        elif asks_now and spec.slide.until is not None:
            finals = {answer.end for answers in found.values() for answer in answers}
            if len(finals) > 1:  # a punctuation has not come to all shards: the newest counts
                final = max(end for end in finals if end is not None)
                found = await self._calls.ask(asked, asking(spec.name, replace(plain, as_of=final)))
                groups = _by_values(selection.by, found, times)
        return self._page(spec, question, groups, times, _more(found))

    async def _query_keys(self, spec: WindowSpec, question: Query, asked: Asked) -> Page[Answer]:
        """Answers of single keys: shard by shard, or the first ones of all."""
        if question.selection.limit is None:
            found = await self._calls.ask(asked, asking(spec.name, _compared_too(question)))
            times = max(len(question.lookbacks), 1)
            answers = [answer for shard in sorted(found) for answer in found[shard]]
            chosen = await self._slices.take(chosen_answers(replace(question.selection, having=()), answers, times))
            costs_of(spec).check_answers(len(chosen) // times, len(question.lookbacks))
            return Page([_named(answer, question.selection) for answer in chosen])
        at, inner = _place(question.selection.position)
        page, left = Page[Answer](), question.selection.limit
        times = max(len(question.lookbacks), 1)
        for shard in sorted(asked):
            if shard < at:
                continue
            if not left:
                page.position = f"{shard}:"
                break
            part = selecting(question, limit=left, position=inner if shard == at else "")
            try:
                more = await self._calls.on(shard, asking(spec.name, part)(asked[shard]))
            except Unavailable:
                if (missing := missing_shards()) is None:
                    raise
                missing.add(shard)  # the page goes on with the next shard
                continue
            page += more
            left -= len(more) // times
            position = getattr(more, "position", None)
            if position is not None:
                page.position = f"{shard}:{position}"
                break
        return page

    def _page(
        self, spec: WindowSpec, question: Query | RangeQuery, groups: _ByValues, times: int, more: bool
    ) -> Page[Answer]:
        """Merge groups, and choose among them."""
        selection = question.selection
        after = _after(selection)
        merged = list[Answer]()
        for values in sorted(groups):
            if after is not None and values <= after:
                continue
            parts = list(groups[values].values())
            merged += [_merged(spec, [part[i] for part in parts], question.partials) for i in range(times)]
        chosen = [_named(answer, selection) for answer in finished(chosen_answers(selection, merged, times))]
        found = [chosen[at : at + times] for at in range(0, len(chosen), times)]
        limit = selection.limit
        position = None
        if limit is not None and found and (len(found) > limit or (len(found) == limit and more)):
            found = found[:limit]
            assert selection.by is not None
            position = join(_values(selection.by, found[-1][0]))
        costs = costs_of(spec, selection.aggregates)
        costs.check_answers(len(found), times)
        if question.partials or costs.sized:
            costs.check_values(sum(costs.values_of(answer) for group in found for answer in group))
        page = Page([answer for group in found for answer in group])
        page.position = position
        return page


def _compared_too(question: Q) -> Q:
    """The question for shards, which answer what is compared here as well."""
    if not question.selection.aggregates:
        return question
    compared: list[str] = [name for name in names_compared(question.selection) if name != "entries"]
    return selecting(question, aggregates=[*question.selection.aggregates, *compared])


def _of_shards(question: Q, limit: int | None, compared: bool) -> Q:
    """The question for shards, which answer with partials, and choose nothing.

    Args:
        limit: what they may apply. A page begins there only where it also ends there.
        compared: whether they answer what is compared here as well.
    """
    asked = selecting(_compared_too(question) if compared else question, top=None, having=(), limit=limit)
    return replace(asked if limit is not None else selecting(asked, position=""), partials=True)


def _named(answer: Answer, selection: Grouped) -> Answer:
    """An answer with the aggregates that a question names."""
    names = selection.aggregates
    if not names or len(answer.aggregates) == len(set(names)):
        return answer
    values = {name: value for name, value in answer.aggregates.items() if name in names}
    partials = answer.partials and {name: answer.partials[name] for name in values}
    return replace(answer, aggregates=values, partials=partials)


def _merged(spec: WindowSpec, answers: Sequence[Answer], partials: bool) -> Answer:
    if len(answers) == 1:
        return answers[0] if partials else replace(answers[0], partials=None)
    merged = merged_answers(spec, answers, partials)
    merged.key, merged.parts = answers[0].key, answers[0].parts
    return merged


def _values(by: Sequence[str], answer: Answer | Series) -> tuple[str, ...]:
    parts = answer.parts or {}
    return tuple([parts[name] for name in by])


def _by_values(by: Sequence[str], found: Mapping[int, Sequence[Answer]], times: int) -> _ByValues:
    groups: _ByValues = {}
    for shard in sorted(found):
        answers = found[shard]
        for at in range(0, len(answers), times):
            groups.setdefault(_values(by, answers[at]), {})[shard] = answers[at : at + times]
    return groups


def _pushed(question: GroupedQuestion) -> int | None:
    """The limit that shards may apply: they cannot where `having` chooses among groups that are merged first."""
    return None if question.selection.having else question.selection.limit


def _more(found: Mapping[int, Sequence[Any]]) -> bool:
    """Whether a shard has further groups."""
    return any(getattr(page, "position", None) is not None for page in found.values())


def _after(selection: Grouped) -> tuple[str, ...] | None:
    """The group behind which a page begins."""
    if not selection.position:
        return None
    assert selection.by is not None
    try:
        return tuple(split(selection.position, len(selection.by)))
    except (WireError, ValueError):
        raise _wrong(selection.position) from None


def _place(position: str) -> tuple[int, str]:
    """The shard and the position there at which a page of keys begins."""
    if not position:
        return 0, ""
    shard, colon, inner = position.partition(":")
    if not colon or not shard.isdigit() or len(shard) > 4:
        raise _wrong(position)
    return int(shard), inner


def _wrong(position: str) -> InvalidArgument:
    return InvalidArgument(f"position {position[:100]!r} is none that an answer gave", field="position")


def _over(question: SeriesQuery, first: int, last: int) -> RangeQuery:
    """The range over all buckets, which says which groups a series has."""
    return RangeQuery(first, last, None, question.keys, selection=question.selection)
