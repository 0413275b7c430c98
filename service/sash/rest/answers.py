"""Writes answers as JSON.

NaN and the infinities, which JSON does not have, are "NaN", "Infinity" and "-Infinity", as in proto3's JSON mapping.
Bytes are base64. An integer of any size is a JSON integer. A column of finite numbers is written from its array,
without a Python object for each number.

Large answers are made in steps: each makes some hundred values, and the whole is joined from the pieces.

    {"answers":[ a, a, a │ a, a, a │ … ]}               so many answers in a step
    {…,"aggregates":{"mean":[ 1.5, 2.5 │ … ], … }}      so many buckets of one column in a step
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Coroutine, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
import orjson

from sash.calls import joined
from sash.rest.columns import BLOB
from sash_engine.monoids.base import Array, Partials
from sash_engine.monoids.pane import part_names
from sash_engine.steps import Steps, spans_of
from sash_engine.windows.answers import Admission, Answer, AnswerColumns, Page, Series, Staged, WindowInfo, WriteResult
from sash_engine.windows.batches.batch import AnyBatch, Coded, PartialBatch
from sash_engine.windows.spec.window import WindowSpec
from sash_wire.key_parts import key_columns
from sash_wire.nulls import is_mark, mark_of, with_nulls

_VALUES = 2_000
"""Values of a step: 1 ms, most of it for answers one by one."""

_NUMBERS = 16_384
"""Numbers of a step, where they come as an array: 1 ms."""

Run = Callable[[Steps[list[bytes]]], Coroutine[Any, Any, list[bytes]]]
"""Takes steps in slices."""


def json_bytes(document: Any) -> bytes:
    """Return JSON of plain values, and of arrays of finite numbers or bools."""
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def iso(tick: int | None, unit: str | None) -> int | str | None:
    """Return a time in ISO 8601; as it is where `unit` is None. One behind the year 9999 has more digits."""
    if tick is None or unit is None or tick == -(2**63):  # NumPy takes the last one for no time
        return tick
    text: str = np.datetime_as_string(np.array([tick]).view(f"datetime64[{unit}]"), timezone="UTC").tolist()[0]
    return text


def iso_column(times: Array, unit: str | None) -> Array:
    """Return times so that `column` writes them in ISO 8601; as they are where `unit` is None."""
    return times if unit is None else np.ascontiguousarray(times).view(f"datetime64[{unit}]")


def answer_document(answer: Answer, spec: WindowSpec | None = None, unit: str | None = None) -> dict[str, Any]:
    """Return an answer as JSON values.

    Args:
        spec: of the window; needed if the answer has partials.
        unit: of the window's time, where times are written in ISO 8601.
    """
    document = {
        "key": answer.key,
        "lookback": answer.lookback,
        "start": answer.start if unit is None else iso(answer.start, unit),
        "end": answer.end if unit is None else iso(answer.end, unit),
        "entries": answer.entries,
        "aggregates": {name: plain(value) for name, value in answer.aggregates.items()},
    }
    if answer.parts is not None:
        document["parts"] = answer.parts
    if answer.known_at is not None:
        document["known_at"] = answer.known_at
    if answer.partials is not None and spec is not None:
        document["partials"] = _partials(answer.partials, spec)
    return document


def bulk_document(batch: AnyBatch, spec: WindowSpec, unit: str | None = None) -> dict[str, Any]:
    """Return entries of a window as JSON columns that bulk-insert takes; `unit` as of `answer_document`."""
    document: dict[str, Any] = {"time": column(iso_column(batch.times, unit))}
    if batch.keys is not None:
        columns = key_columns(batch.keys, spec.parts)
        keys: dict[str, Any] = {name: values.decode().tolist() for name, values in columns.items()}
        document |= {"key": keys} if spec.parts else keys
    if isinstance(batch, PartialBatch):
        return document | {"partials": _partials(batch.partials, spec), "entries": np.ascontiguousarray(batch.entries)}
    fields = {
        name: _field(values, batch.columns.get(mark_of(name)))
        for name, values in batch.columns.items()
        if not is_mark(name)
    }
    return document | (fields if "fields" in spec.fields else {"fields": fields})


def _field(values: Array | Coded, mark: Array | Coded | None) -> Any:
    """Return the values of a field as JSON values; null where the mark says that there is none."""
    if mark is None or isinstance(mark, Coded) or mark.all():
        return column(values.decode() if isinstance(values, Coded) else values)
    return [plain(value) for value in with_nulls(values, mark)]


def _partials(partials: Mapping[str, Partials], spec: WindowSpec) -> dict[str, Any]:
    """Return partials by aggregate and part. Partials that are not numbers have one part, in base64."""
    monoids, document = spec.monoids(), {}
    for name, columns in partials.items():
        blobs = any(values.dtype.hasobject for values in columns)
        names = [BLOB] if blobs else part_names(monoids[name][0])
        document[name] = {part: column(values) for part, values in zip(names, columns, strict=True)}
    return document


def parts_document(answer: Series) -> dict[str, Any]:
    """Return the parts of a key or group, where it has any."""
    return {} if answer.parts is None else {"parts": answer.parts}


def window_document(window: WindowInfo, unit: str | None = None) -> dict[str, Any]:
    """Return the description of a window as JSON values; `unit` as of `answer_document`."""
    names = ["inserted", "late", "evicted", "duplicates", "ahead"]
    if window.spec.identity is not None:
        names += ["retracted", "corrected"]
    return {
        "spec": plain(window.spec.document()),
        "entries": window.entries,
        "keys": window.keys,
        "oldest": iso(window.oldest, unit),
        "newest": iso(window.newest, unit),
        "high_water_mark": iso(window.high_water_mark, unit),
        **({} if window.spec.slide.until is None else {"punctuated": iso(window.punctuated, unit)}),
        **({} if window.evicted_through is None else {"evicted_through": iso(window.evicted_through, unit)}),
        "counts": {name: getattr(window.counts, name) for name in names},
        "durability": window.durability,
        "problem": window.problem,
    }


def write_document(result: WriteResult, answered: bool = False) -> dict[str, Any]:
    """Return the result of a write as JSON values, with the answers if they were asked for."""
    document: dict[str, Any] = {
        "inserted": result.inserted,
        "late": result.late,
        "evicted": result.evicted,
        "duplicates": result.duplicates,
        "ahead": result.ahead,
    }
    if result.history:
        document["history"] = result.history
    if answered:
        document["answers"] = [answer_document(answer) for answer in result.answers]
    document["durability"] = result.durability
    if result.already_applied:
        document["already_applied"] = True
    return document


def admission_document(result: Admission) -> dict[str, Any]:
    """Return the result of a write that decides as JSON values: columns with a value for each row."""
    document: dict[str, Any] = {"admitted": result.admitted}
    if not result.already_applied:
        document["retry_after"] = result.retry_after
        document["limits"] = [
            {"answers": plain(each.answers), "remaining": plain(each.remaining), "holds": each.holds}
            for each in result.limits
        ]
    counts = write_document(result)
    del counts["duplicates"]
    return document | {"refused": result.refused} | counts


def eviction_document(result: WriteResult) -> dict[str, Any]:
    """Return the result of an eviction as JSON values."""
    return {"evicted": result.evicted} | _given(result)


def change_document(result: WriteResult) -> dict[str, Any]:
    """Return the result of a retraction or an update as JSON values."""
    names = ("retracted", "corrected", "missing", "evicted")
    return {name: getattr(result, name) for name in names} | _given(result)


def staged_document(staged: Staged) -> dict[str, Any]:
    """Return a staged part of a batch as JSON values."""
    return {"stage": staged.stage, "entries": staged.entries, "durability": staged.durability}


def _given(result: WriteResult) -> dict[str, Any]:
    """Return how durable a write is, and whether it is a retry."""
    return {"durability": result.durability} | ({"already_applied": True} if result.already_applied else {})


def column(answers: Array) -> Any:
    """A column of answers as JSON values, or as the array that it is."""
    if answers.dtype.kind in "biu":
        return np.ascontiguousarray(answers)
    if answers.dtype.kind == "M":
        return np.datetime_as_string(answers, timezone="UTC").tolist()
    if answers.dtype.kind == "f":
        finite = np.isfinite(answers)
        if finite.all():
            return np.ascontiguousarray(answers)
        values = answers.tolist()
        for i in np.flatnonzero(~finite).tolist():
            values[i] = plain(values[i])
        return values
    return [plain(value) for value in answers.tolist()]


def plain(value: Any) -> Any:
    """Return a value as JSON values."""
    if isinstance(value, float):
        return value if isfinite(value) else "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and not isinstance(value, bool):
        # orjson writes integers of up to 64 bits. The sum of an int64 field may be larger.
        return value if -(2**63) <= value < 2**64 else orjson.Fragment(str(value))
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, np.generic):
        return plain(value.item())
    return value


# ---------------------------------------------------------------- large answers, in steps


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
        document: dict[str, Any] = {name: [answer_document(answer, spec, unit) for answer in answers]}
        return json_bytes(document if position is None else document | next_of(position))
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


def series_steps(series: Series, start: int, end: int, step: int, unit: str | None = None) -> Steps[list[bytes]]:
    """A series as a JSON document, column by column; `start`, `end` and `step` are the question's, in ticks.

    `unit` as of `answer_document`.
    """
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


def series_groups_steps(
    groups: Page[Series], start: int, end: int, step: int, unit: str | None = None
) -> Steps[list[bytes]]:
    """A series of each group as a JSON document: what all have in common, and `groups`."""
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


def pairs_steps(found: Sequence[AnswerColumns]) -> Steps[list[bytes]]:
    """Answers about pairs as a JSON document: for each lookback a list for each column."""
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
