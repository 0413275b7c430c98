"""Results that are tables, too: the answers of a query, and the entries of a window.

A table needs the window's spec, which says what a tick is. It is fetched when a table is made, if it is not known.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sash_client.answers import Answer, Bulk
from sash_client.frames import ENTRIES, KEY, TIME, part_name
from sash_client.tables import AsyncTabular, Table, Tabular, Values, with_aggregates
from sash_proto.v1 import windows_pb2 as pb
from sash_wire.coded import Coded
from sash_wire.key_parts import key_columns

__all__ = ["Answers", "AsyncAnswers", "AsyncEntries", "Entries"]

_DTYPES: dict[str, Any] = {"float64": np.float64, "int64": np.int64, "bool": np.bool_, "string": np.object_}


class Answers(Tabular, list[Answer]):
    """The answers of a query: a list, and a table with a row for each answer.

    The table has the columns "key" if the window is keyed, or one for each part of keys, "lookback" if the query had
    lookbacks, "start", "end" (the first and the last time that are included), "entries", and one for each aggregate by
    its name. An aggregate with the name of another column is in `aggregates.NAME`. Partials are not in the table.

    Args:
        answers: the answers.
        spec: returns the window's spec.

    Attributes:
        next: of a question with a limit: the position to go on at; None after the last answers.
        missing_shards: with `partial`: the shards that are away, whose part the answers lack.
    """

    def __init__(self, answers: Iterable[Answer], spec: Callable[[], pb.WindowSpec]) -> None:
        super().__init__(answers)
        self.next = getattr(answers, "next", None)
        self.missing_shards = getattr(answers, "missing_shards", ())
        self._spec = spec

    def _table(self) -> Table:
        return _answers_table(self, self._spec())


class AsyncAnswers(AsyncTabular, list[Answer]):
    """`Answers` of the client for asyncio.

    Args:
        answers: the answers.
        spec: returns the window's spec.
    """

    def __init__(self, answers: Iterable[Answer], spec: Callable[[], Awaitable[pb.WindowSpec]]) -> None:
        super().__init__(answers)
        self.next = getattr(answers, "next", None)
        self.missing_shards = getattr(answers, "missing_shards", ())
        self._spec = spec

    async def _table(self) -> Table:
        return _answers_table(self, await self._spec())


class Entries(Tabular, Iterator[Bulk]):
    """Entries as they arrive: an iterator of bulks; and as a table, which reads all bulks that are still to come.

    A table has the columns "time", "key" if the window is keyed, or one for each part of keys, and one for each field.
    If the window has a granularity, it has "entries" and the parts of partials, `partials.NAME[0]`, instead of fields.
    `Window.bulk_insert` takes it.

    Args:
        bulks: the bulks.
        spec: returns the window's spec.
    """

    def __init__(self, bulks: Iterator[Bulk], spec: Callable[[], pb.WindowSpec]) -> None:
        self._bulks = bulks
        self._spec = spec

    def __next__(self) -> Bulk:
        return next(self._bulks)

    def close(self) -> None:
        """End the call; there are no more bulks then."""
        close: Callable[[], None] | None = getattr(self._bulks, "close", None)
        if close is not None:
            close()

    def _table(self) -> Table:
        bulks = list(self._bulks)
        return _entries_table(bulks, self._spec())


class AsyncEntries(AsyncTabular, AsyncIterator[Bulk]):
    """`Entries` of the client for asyncio.

    Args:
        bulks: the bulks.
        spec: returns the window's spec.
    """

    def __init__(self, bulks: AsyncIterator[Bulk], spec: Callable[[], Awaitable[pb.WindowSpec]]) -> None:
        self._bulks = bulks
        self._spec = spec

    async def __anext__(self) -> Bulk:
        return await anext(self._bulks)

    async def aclose(self) -> None:
        """End the call; there are no more bulks then."""
        close: Callable[[], Awaitable[None]] | None = getattr(self._bulks, "aclose", None)
        if close is not None:
            await close()

    async def _table(self) -> Table:
        bulks = [bulk async for bulk in self._bulks]
        return _entries_table(bulks, await self._spec())


def _answers_table(answers: Sequence[Answer], spec: pb.WindowSpec) -> Table:
    unit = spec.time_unit or "us"
    table: dict[str, Values] = {}
    parts = [name for name in spec.keys if not answers or all(name in (each.parts or {}) for each in answers)]
    for name in parts or sorted(answers[0].parts or {} if answers else ()):
        table[name] = Values.texts([(answer.parts or {}).get(name) for answer in answers])
    if spec.keyed and not table and (not answers or any(answer.key is not None for answer in answers)):
        table[KEY] = Values.texts([answer.key for answer in answers])
    if any(answer.lookback is not None for answer in answers):
        table["lookback"] = Values.texts([answer.lookback for answer in answers])
    table["start"] = Values.times([answer.start for answer in answers], unit)
    table["end"] = Values.times([answer.end for answer in answers], unit)
    table[ENTRIES] = Values.of(np.array([answer.entries for answer in answers], dtype=np.int64))
    # Somebody may have added aggregates since the spec was fetched.
    names = sorted({name for answer in answers for name in answer.aggregates} or spec.aggregates)
    columns = {name: Values.of([answer.aggregates.get(name) for answer in answers]) for name in names}
    return with_aggregates(table, columns)


def _entries_table(bulks: Sequence[Bulk], spec: pb.WindowSpec) -> Table:
    table = {TIME: Values.times(_joined([bulk.times for bulk in bulks], np.int64), spec.time_unit or "us")}
    if spec.keyed:
        keys = _joined([bulk.keys for bulk in bulks], np.object_)
        for name, column in key_columns(Coded.of(keys.tolist()), spec.keys).items():
            table[name] = Values.texts(column.decode())
    if not spec.granularity:
        for name, kind in sorted(spec.fields.items()):
            values = _joined([bulk.columns[name] for bulk in bulks], _DTYPES[kind])
            table[name] = Values.texts(values) if kind == "string" else replace(Values.of(values), tells_nan=True)
        return table
    table[ENTRIES] = Values.of(_joined([bulk.entries for bulk in bulks], np.int64))
    for name, parts in ((bulks[0].partials or {}) if bulks else {}).items():
        for at in range(len(parts)):
            found: list[Any] = [(bulk.partials or {})[name][at] for bulk in bulks]
            blobs = isinstance(found[0], list)
            table[part_name(name, at)] = Values.of(
                [blob for part in found for blob in part] if blobs else _joined(found)
            )
    return table


def _joined(arrays: Sequence[Any], dtype: Any = None) -> npt.NDArray[Any]:
    if any(isinstance(array, np.ma.MaskedArray) for array in arrays):
        return np.ma.concatenate(arrays)  # type: ignore[no-any-return, no-untyped-call]
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)
