"""Large answers as JSON, in steps: each makes some hundred values, and the whole is joined from the pieces.

{"answers":[ a, a, a │ a, a, a │ … ]}               so many answers in a step
{…,"aggregates":{"mean":[ 1.5, 2.5 │ … ], … }}      so many buckets of one column in a step
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from sash.calls import joined
from sash.rest.answers import (
    answer_document,
    column,
    iso,
    iso_column,
    json_bytes,
    parts_document,
    series_document,
)
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, spans_of
from sash_engine.windows.answers import Answer, AnswerColumns, Page, Series
from sash_engine.windows.spec.window import WindowSpec

__all__ = ["answers_json", "series_groups_json", "series_json"]

_VALUES = 2_000
"""Values of a step: 1 ms, most of it for answers one by one."""

_NUMBERS = 16_384
"""Numbers of a step, where they come as an array: 1 ms."""

Run = Callable[[Steps[list[bytes]]], Coroutine[Any, Any, list[bytes]]]
"""Takes steps in slices."""


async def answers_json(
    answers: list[Answer], spec: WindowSpec | None, run: Run, name: str = "answers", unit: str | None = None
) -> bytes:
    """The answers of a query as a JSON document. They are handed over.

    Args:
        spec: the window's, where answers have partials.
        run: takes the steps of a large document.
        name: of the member that has them.
        unit: of the window's time, where times are written in ISO 8601.
    """
    size = max(_VALUES // (1 + len(answers[0].aggregates)), 1) if answers else 1
    position = answers.position if isinstance(answers, Page) else None
    if len(answers) <= size:
        return json_bytes({name: [answer_document(answer, spec, unit) for answer in answers], **next_of(position)})
    answers.reverse()
    return await joined(await run(_answers(answers, spec, size, name, position, unit)))


def next_of(position: str | None) -> dict[str, str]:
    """Return the member that says where to go on."""
    return {} if position is None else {"next": position}


def _answers(
    answers: list[Answer], spec: WindowSpec | None, size: int, name: str, position: str | None, unit: str | None
) -> Steps[list[bytes]]:
    """The document of many answers, the last ones first; memory of millions of values is freed bit by bit."""
    pieces = [b"{" + json_bytes(name) + b":["]
    while answers:
        some = [answer_document(answer, spec, unit) for answer in reversed(answers[-size:])]
        del answers[-size:]
        pieces += [json_bytes(some)[1:-1], b","]
        yield
    pieces[-1] = b"]}" if position is None else b"]," + json_bytes(next_of(position))[1:]
    return pieces


async def series_json(series: Series, start: int, end: int, step: int, run: Run, unit: str | None = None) -> bytes:
    """A series as a JSON document; see `series_document`."""
    if len(series.times) * (1 + len(series.aggregates)) <= _VALUES:
        return json_bytes(series_document(series, start, end, step, unit))
    return await joined(await run(_series(series, start, end, step, unit)))


def _series(series: Series, start: int, end: int, step: int, unit: str | None) -> Steps[list[bytes]]:
    head = {
        "key": series.key,
        "start": iso(start, unit),
        "end": iso(end, unit),
        "step": step,
        "width": series.width,
    }
    pieces = [
        json_bytes(head | parts_document(series))[:-1],
        b',"time":',
        *(yield from _column(iso_column(series.times, unit))),
    ]
    if series.last is not None:
        pieces += [b',"last":', *(yield from _column(iso_column(series.last, unit)))]
    return [*pieces, b",", *(yield from _buckets(series)), b"}"]


async def series_groups_json(
    groups: Page[Series], start: int, end: int, step: int, run: Run, unit: str | None = None
) -> bytes:
    """A series of each group as a JSON document: what all have in common, and `groups`."""
    return await joined(await run(_series_groups(groups, start, end, step, unit)))


def _series_groups(groups: Page[Series], start: int, end: int, step: int, unit: str | None) -> Steps[list[bytes]]:
    head: dict[str, Any] = {"start": iso(start, unit), "end": iso(end, unit), "step": step}
    times = [b"[]"]
    if groups:
        head["width"], times = groups[0].width, (yield from _column(iso_column(groups[0].times, unit)))
    pieces = list[bytes]()
    for series in groups:
        of_group = json_bytes({"key": series.key} | parts_document(series))[:-1]
        pieces += [b"," if pieces else b"", of_group, b",", *(yield from _buckets(series)), b"}"]
    tail = b"}" if groups.position is None else b"," + json_bytes(next_of(groups.position))[1:]
    return [json_bytes(head)[:-1], b',"time":', *times, b',"groups":[', *pieces, b"]", tail]


def _buckets(series: Series | AnswerColumns) -> Steps[list[bytes]]:
    """The members `entries` and `aggregates` of a series, or of answers about pairs."""
    pieces = [b'"entries":', *(yield from _column(series.entries)), b',"aggregates":{']
    for i, (name, answers) in enumerate(series.aggregates.items()):
        pieces += [b"," if i else b"", json_bytes(name), b":", *(yield from _column(answers))]
    return [*pieces, b"}"]


async def pairs_json(found: Sequence[AnswerColumns], run: Run) -> bytes:
    """Answers about pairs as a JSON document: for each lookback a list for each column."""
    return await joined(await run(_pairs(found)))


def _pairs(found: Sequence[AnswerColumns]) -> Steps[list[bytes]]:
    pieces = [b'{"answers":[']
    for i, each in enumerate(found):
        head = b"{" if each.lookback is None else b'{"lookback":' + json_bytes(each.lookback) + b","
        pieces += [b"," if i else b"", head, *(yield from _buckets(each)), b"}"]
    return [*pieces, b"]}"]


def _column(values: Array) -> Steps[list[bytes]]:
    pieces = [b"["]
    for a, b in spans_of(len(values), _VALUES if values.dtype.kind in "OM" else _NUMBERS):
        pieces += [b"," if a else b"", json_bytes(column(values[a:b]))[1:-1]]
        yield
    return [*pieces, b"]"]
