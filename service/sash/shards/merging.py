"""The answers of the shards of one window, merged into one.

    counts, sizes    added
    answers          partials of each shard ──▶ combined ──▶ lowered
    series           buckets of each shard ──▶ combined bucket by bucket ──▶ lowered

Only commutative aggregates are merged: the shards have refused the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from sash_engine.forest import BLOCK, Layout
from sash_engine.monoids import Monoid
from sash_engine.monoids.base import Array
from sash_engine.monoids.pane import exported, imported
from sash_engine.steps import Steps
from sash_engine.windows.answers import Admission, Answer, Counts, LimitAnswers, Series, WindowInfo, WriteResult
from sash_engine.windows.keys.totals import partials_of_buckets
from sash_engine.windows.reading.group_series import PaneFolds
from sash_engine.windows.spec.window import WindowSpec


def merged_writes(found: Mapping[int, WriteResult]) -> WriteResult:
    """Return the outcome of a write whose parts went to several shards; it is one that no part was applied before."""
    results = [found[shard] for shard in sorted(found)]
    fresh = [result for result in results if not result.already_applied]
    merged = replace(results[0], already_applied=not fresh)
    counted = ("inserted", "late", "evicted", "duplicates", "ahead", "retracted", "corrected", "missing", "history")
    for name in counted:
        setattr(merged, name, sum(getattr(result, name) for result in results))
    merged.answers = [answer for result in results for answer in result.answers]
    return merged


def merged_admissions(n: int, rows: Mapping[int, Array], found: Mapping[int, WriteResult]) -> Admission:
    """Return the outcome of a write that decides.

    Args:
        n: how many rows it has.
        rows: int64, which of them went to each shard; others got its number only.
    """
    decided = {shard: each for shard, each in found.items() if shard in rows and isinstance(each, Admission)}
    merged = Admission.undecided(n, max([len(each.limits) for each in decided.values()]))
    merged.refused = sum([each.refused for each in decided.values()])
    merged.count(merged_writes(decided))
    for shard, each in decided.items():
        columns: list[tuple[list[Any], list[Any]]] = [(merged.admitted, each.admitted)]
        columns.append((merged.retry_after, each.retry_after))
        for whole, part in zip(merged.limits, each.limits, strict=False):
            columns += [(getattr(whole, column), getattr(part, column)) for column in LimitAnswers.__slots__]
        for into, values in columns:
            for row, value in zip(rows[shard].tolist(), values, strict=False):
                into[row] = value
    if merged.already_applied:
        merged.retry_after = []
    return merged


def merged_infos(infos: Sequence[WindowInfo], labels: Sequence[int]) -> WindowInfo:
    """Return a window as a whole, from its parts.

    Args:
        labels: the shards of the parts, for the problem.
    """
    counts = Counts(*(sum(getattr(info.counts, part.name) for info in infos) for part in fields(Counts)))
    problems = [
        f"shard {label}: {info.problem}" for label, info in zip(labels, infos, strict=True) if info.problem is not None
    ]
    return WindowInfo(
        spec=infos[0].spec,
        entries=sum(info.entries for info in infos),
        keys=sum(info.keys for info in infos),
        oldest=min((info.oldest for info in infos if info.oldest is not None), default=None),
        newest=max((info.newest for info in infos if info.newest is not None), default=None),
        counts=counts,
        durability=infos[0].durability,
        problem="; ".join(problems) or None,
        punctuated=_final([info.punctuated for info in infos]),
        high_water_mark=max((info.high_water_mark for info in infos if info.high_water_mark is not None), default=None),
        evicted_through=max((info.evicted_through for info in infos if info.evicted_through is not None), default=None),
        refused=sum(info.refused for info in infos),
    )


def _final(times: Sequence[int | None]) -> int | None:
    """Entries of this time and older are final on every shard."""
    known = [time for time in times if time is not None]
    return min(known) if len(known) == len(times) else None


def _shared(spec: WindowSpec, parts: Sequence[Answer] | Sequence[Series]) -> dict[str, tuple[Monoid, tuple[str, ...]]]:
    """The aggregates that all shards answer: those that were named, and one that is being added comes to one shard
    after the other."""
    return {
        name: aggregate
        for name, aggregate in spec.monoids().items()
        if all(name in (part.partials or {}) for part in parts)
    }


def merged_answers(spec: WindowSpec, answers: Sequence[Answer], partials: bool) -> Answer:
    """Return the answer over the entries of all, which have partials.

    Args:
        partials: whether the answer has partials, too.
    """
    filled = [answer for answer in answers if answer.entries]
    entries = np.array([answer.entries for answer in filled], np.int64)
    count = int(entries.sum())
    values, out = {}, {}
    for name, (monoid, _) in _shared(spec, answers).items():
        if monoid.counts_entries:
            values[name], total = count, count
        else:
            rows = [answer.partials[name] for answer in filled if answer.partials is not None]
            columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
            total = monoid.fold(imported(monoid, columns, entries, name)) if rows else monoid.identity
            values[name] = monoid.lower(total)
        if partials:
            out[name] = exported(monoid, [total] if count else [])
    some = filled or answers
    start = min((answer.start for answer in some if answer.start is not None), default=None)
    end = max((answer.end for answer in some if answer.end is not None), default=None)
    return Answer(None, start, end, count, values, answers[0].lookback, out if partials else None)


def merged_series_steps(spec: WindowSpec, parts: Sequence[Series], partials: bool) -> Steps[Series]:
    """Return the series over the entries of all, which have partials; in steps."""
    layout, times = Layout(spec.columns, _shared(spec, parts), BLOCK), parts[0].times
    n = len(times)
    folds = PaneFolds(layout, np.arange(n + 1))
    for part in parts:
        filled = np.flatnonzero(part.entries)
        entries = part.entries[filled]
        assert part.partials is not None, "the shards were asked for them"
        slots = []
        for slot, monoid in enumerate(layout.monoids):
            name = layout.names[layout.answers.index(slot)]
            slots.append(imported(monoid, part.partials[name], entries, name))
            yield
        yield from folds.totals.add(filled, entries, slots)
    entries, answers, columns = yield from folds.answers(np.arange(n), np.arange(1, n + 1))
    out = partials_of_buckets(layout, entries, columns) if partials else None
    return Series(None, times, parts[0].width, entries, dict(zip(layout.names, answers, strict=True)), out)
