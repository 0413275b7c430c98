"""Bodies of one entry a line: read block by block, applied part by part, or whole where they have a number.

    body   [ message ][ message ][ message ] …
    blocks     [ whole lines ][ whole lines ] …         each is parsed in one step
    parts      [ 16,384 entries, or 4 MiB  ] …         each is one write

Memory: one block, one part and the longest line, however long the body is. A numbered body is one write, so it is read
whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import numpy as np

from sash.calls import unbroken
from sash.durability.records.commands import BulkInsert
from sash.plane import Plane
from sash_engine.errors import InvalidArgument, SashError, TooLarge
from sash_engine.steps import Steps
from sash_engine.windows.answers import WriteResult
from sash_engine.windows.batches.batch import Batch, Origin
from sash_engine.windows.batches.stages import joined

PART_ENTRIES = 16_384
"""Entries of a part of a body without a number, at least: a bulk costs little more for each entry than a larger one."""

PART_BYTES = 4 * 2**20
"""So many bytes of lines are a part, too, however few entries they have."""

LINE_BYTES_MAX = 2**20


class LineError(InvalidArgument):
    """A line is wrong. `line` is its number, from 1 on."""

    def __init__(self, line: int, message: str, *, field: str | None = None, limit: str | None = None) -> None:
        super().__init__(f"line {line}: {message}", field=field, limit=limit)
        self.line = line

    @classmethod
    def of(cls, line: int, error: SashError) -> LineError:
        """Return the error of one line."""
        return cls(line, error.message, field=error.field, limit=error.limit)


class LineReader(Protocol):
    """Parses the lines of one body."""

    block_bytes: int
    """The length of a block: a step takes about 2 ms."""

    def read(self, block: bytes, line: int) -> Steps[Batch]:
        """Parse whole lines.

        Args:
            block: ends with a line break.
            line: the number of its first line, from 1 on.

        Raises:
            LineError: one of the lines is wrong; it names the first.
        """


class Lines:
    """The lines of one body, as they are applied to a window.

    Args:
        plane, name: the window.
        reader: parses the lines.
        entries_max: entries that one write may have.
    """

    def __init__(self, plane: Plane, name: str, reader: LineReader, entries_max: int) -> None:
        self._plane, self._name, self._reader = plane, name, reader
        self._entries_max = entries_max
        self.applied_entries = 0
        """Entries of the body that have been applied: the first ones."""
        self.result = WriteResult()
        """What has become of them."""

    async def apply(self, body: AsyncIterator[bytes]) -> WriteResult:
        """Apply a body in parts, each whole or not at all. An error ends it; the parts before stay applied.

        Raises:
            SashError: a line is wrong, or a part is refused. `applied_entries` and `result` say what was applied.
        """
        part_entries = min(PART_ENTRIES, self._entries_max)
        batches: list[Batch] = []
        entries = size = 0
        async for batch, block_bytes in self._batches(body):
            batches.append(batch)
            entries, size = entries + len(batch.times), size + block_bytes
            if entries >= part_entries or size >= PART_BYTES:
                await self._apply(batches, entries)
                batches, entries, size = [], 0, 0
        if batches:
            await self._apply(batches, entries)
        return self.result

    async def apply_whole(self, body: bytes, origin: Origin) -> WriteResult:
        """Apply a body as one write, whole or not at all.

        Raises:
            TooLarge: it has more than `entries_max` entries.
            SashError: a line is wrong, or the write is refused. Nothing was applied.
        """

        async def one() -> AsyncIterator[bytes]:
            yield body

        batches, entries = list[Batch](), 0
        async for batch, _ in self._batches(one()):
            batches.append(batch)
            entries += len(batch.times)
            if entries > self._entries_max:
                raise TooLarge(
                    f"a write of {entries} entries or more is too large",
                    field="time",
                    limit=f"{self._entries_max} entries",
                )
        return await unbroken(self._plane.write(self._name, BulkInsert(_whole(batches, entries)), origin))

    async def _batches(self, body: AsyncIterator[bytes]) -> AsyncIterator[tuple[Batch, int]]:
        """Parse a body block by block; yield each one and its length. An empty body is a block, too."""
        line = 1
        async for block in blocks_of(body, self._reader.block_bytes):
            yield await self._plane.in_slices(self._reader.read(block, line)), len(block)
            line += block.count(b"\n")
            await asyncio.sleep(0)  # the next block may be there already
        if line == 1:
            yield await self._plane.in_slices(self._reader.read(b"", line)), 0

    async def _apply(self, batches: Sequence[Batch], entries: int) -> None:
        whole = _whole(batches, entries)
        for start in range(0, max(entries, 1), self._entries_max):
            stop = min(start + self._entries_max, entries)
            try:
                part = whole.rows(np.arange(start, stop))
                done = await unbroken(self._plane.write(self._name, BulkInsert(part)))
            except SashError as error:
                first, last = self.applied_entries + 1, self.applied_entries + stop - start
                error.message = f"entries {first} to {last}: {error.message}"
                raise
            self.applied_entries += stop - start
            for name in ("inserted", "late", "evicted", "duplicates", "ahead", "history"):
                setattr(self.result, name, getattr(self.result, name) + getattr(done, name))
            self.result.durability = done.durability


async def blocks_of(body: AsyncIterator[bytes], block_bytes: int) -> AsyncIterator[bytes]:
    """Cut a body into blocks of whole lines. A last line without a line break gets one.

    Args:
        block_bytes: the length of a block, at most, unless a single line is longer.

    Raises:
        LineError: a line is longer than `LINE_BYTES_MAX`.
    """
    rest, has_line, lines = bytearray(), False, 0
    async for part in body:
        rest += part
        has_line = has_line or b"\n" in part
        if not has_line:
            _check_length(rest, lines)
        if not has_line or len(rest) < block_bytes:  # a body in small parts has no more blocks than another one
            continue
        data = bytes(rest)
        start = 0
        while stop := _end_of_block(data, start, block_bytes):
            block = data[start:stop]
            yield block
            lines += block.count(b"\n")
            start = stop
        rest, has_line = bytearray(data[start:]), False
        _check_length(rest, lines)
    if rest:
        yield bytes(rest) if rest.endswith(b"\n") else bytes(rest) + b"\n"


def _end_of_block(data: bytes, start: int, block_bytes: int) -> int:
    """Return where the next block ends; 0 if there is no whole line left."""
    if stop := data.rfind(b"\n", start, start + block_bytes) + 1:
        return stop
    return data.find(b"\n", start + block_bytes) + 1


def _check_length(line: bytearray, lines_before: int) -> None:
    if len(line) > LINE_BYTES_MAX:
        raise LineError(lines_before + 1, "the line is too long", field="body", limit=f"{LINE_BYTES_MAX} bytes")


def _whole(batches: Sequence[Batch], entries: int) -> Batch:
    """Return several batches of one window as one; there is at least one."""
    whole = joined(batches, entries)
    assert isinstance(whole, Batch)
    return whole
