"""A window as a file: everything of it, in a form that does not depend on how it is kept.

    frame     length | value of kind "export"                  length: 4 bytes, little-endian
    header    spec, counts, newest (the high-water mark), and what else is to be known of it (producers, …)
    keys      names, in the order in which they were created
    entries   a bulk, as it could be written again             (times, fields, keys; with panes partials)
    states    of the keys, in the same order: now, late_through, touched
    end       how much there was

Every frame carries its number, so that none is missing, there twice or elsewhere. A file that is damaged or cut short
is refused as a whole, and the error names the frame. An import neither slides nor drops what is late: the window
answers, counts and goes on as the exported one.

Export: one copy of what is in memory of small keys; the rest bulk by bulk.  Import: O(entries), bulk by bulk.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from sash.errors import DataLoss, InvalidArgument
from sash.monoids.base import Array
from sash.windows.answers import Counts
from sash.windows.batch import Batch, Coded, check_key
from sash.windows.entries import Entries
from sash.windows.keys import UNKEYED
from sash.windows.spec import WindowSpec, check_name
from sash.windows.values import batch_from, batch_to, columns_from, columns_to, seal, size_of, unseal
from sash.windows.window import Window

__all__ = ["FRAME_BYTES_MAX", "Importer", "export"]

FRAME_BYTES_MAX = 256 << 20
"""No frame is longer; one that says so is damaged."""

_FRAME_BYTES = 8 << 20
_KEYS = 16_384
_ROWS = 65_536
_LENGTH = struct.Struct("<I")


def export(window: Window, extra: Mapping[str, Any] | None = None) -> Iterator[bytes]:
    """The frames of a window as it is now, whatever happens to it while they are read.

    Args:
        extra: what the importer shall have beside, as MessagePack knows it.

    Raises:
        Unsupported: the window runs on an algorithm that keeps no entries.
    """
    keys = window.keys
    numbers = keys.numbers()
    entries = Entries(window.spec, window.layout, keys, numbers, None, None, window.cold, _ROWS)
    header = {
        "spec": window.spec.document(),
        "counts": window.counts.document(),
        "newest": window.mark,
        "extra": dict(extra or {}),
    }
    states = [keys.now[numbers], keys.late_through[numbers], keys.touched[numbers]]
    return _framed(_records(header, keys.names(), entries, states))


def _records(header: dict[str, Any], names: list[str], entries: Entries, states: list[Array]) -> Iterator[list[Any]]:
    rows = entries.rows
    yield ["header", header]
    for a in range(0, len(names), _KEYS):
        yield ["keys", names[a : a + _KEYS]]
    for bulk in entries:
        for batch in _small_enough(bulk):
            yield ["entries", batch_to(batch)]
    for a in range(0, len(names), _KEYS):
        yield ["states", columns_to([state[a : a + _KEYS] for state in states])]
    yield ["end", {"keys": len(names), "rows": rows}]


def _framed(records: Iterator[list[Any]]) -> Iterator[bytes]:
    for number, record in enumerate(records):
        value = seal("export", [number, *record])
        yield _LENGTH.pack(len(value)) + value


def _small_enough(batch: Batch) -> Iterator[Batch]:
    n = len(batch.times)
    if n > 1 and size_of(batch) > _FRAME_BYTES:
        yield from _small_enough(_some(batch, slice(n // 2)))
        yield from _small_enough(_some(batch, slice(n // 2, n)))
    else:
        yield batch


def _some(batch: Batch, rows: slice) -> Batch:
    """Some rows of a bulk."""
    columns = {
        name: _narrowed(column, rows) if isinstance(column, Coded) else column[rows]
        for name, column in batch.columns.items()
    }
    keys = None if batch.keys is None else _narrowed(batch.keys, rows)
    if batch.partials is None or batch.entries is None:
        return Batch(batch.times[rows], columns, keys)
    partials = {name: tuple(part[rows] for part in parts) for name, parts in batch.partials.items()}
    return Batch(batch.times[rows], columns, keys, partials, batch.entries[rows])


def _narrowed(column: Coded, rows: slice) -> Coded:
    used, codes = np.unique(column.codes[rows], return_inverse=True)
    return Coded([column.dictionary[code] for code in used.tolist()], codes)


class Importer:
    """Makes a window of what `export` wrote, fed in pieces of any size.

    Args:
        make: makes the empty window of a spec.
        name: what the window is to be called; None: as it was. Checked before anything is read.

    Attributes:
        window: the window so far, once the header was read; of use when `finish` gave it back.
        extra: what `export` was given.

    Errors of `feed` and `finish`, after which the importer and its window are of no use any more:

    Raises:
        InvalidArgument: this is no exported window, or a damaged one, or not all of it; its spec is none that this
            service knows, or its rows do not fit.
        FailedPrecondition: a newer version wrote it.
        ResourceExhausted: it has more keys than a window may have.
    """

    def __init__(self, make: Callable[[WindowSpec], Window], name: str | None = None) -> None:
        if name is not None:
            check_name(name, "name")
        self._make = make
        self._name = name
        self._left = bytearray()
        self._frames = 0
        self._rows = 0
        self._states: list[list[Array]] = []
        self._ended = False
        self.window: Window | None = None
        self.extra: dict[str, Any] = {}

    def feed(self, data: bytes) -> None:
        """Read on."""
        left = self._left
        left += data
        at = 0
        while len(left) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(left, at)
            start = at + _LENGTH.size
            if not self._frames:
                self._check_start(bytes(left[start : start + 4]))
            if length > FRAME_BYTES_MAX:
                raise _wrong(f"{self._called} is damaged: it says that it has {length} bytes")
            if len(left) < start + length:
                break
            self._take(bytes(left[start : start + length]))
            at = start + length
        del left[:at]

    def finish(self) -> Window:
        """The window, whole."""
        if self._left or not self._ended or self.window is None:
            began = self._frames or self._left
            raise _wrong(f"the export is cut short in {self._called}" if began else "the export is empty")
        window = self.window
        keys = window.keys
        numbers = keys.numbers()
        if self._states:
            now, late_through, touched = (np.concatenate(parts) for parts in zip(*self._states, strict=True))
            keys.now[numbers] = np.maximum(keys.now[numbers], now)
            keys.late_through[numbers], keys.touched[numbers] = late_through, touched
        return window

    @property
    def _called(self) -> str:
        return f"frame {self._frames} of the export"

    def _check_start(self, magic: bytes) -> None:
        if magic != b"SASH"[: len(magic)]:
            raise _wrong("this is not an exported window")

    def _take(self, value: bytes) -> None:
        called = self._called
        try:
            payload = unseal("export", value, called)
        except DataLoss as error:
            raise _wrong(error.message) from None  # of what was sent, and nothing that was stored
        try:
            number, kind, *fields = payload
            if number != self._frames or self._ended or (self.window is None) != (kind == "header"):
                raise _wrong(f"{called} is out of place: it was written as frame {number}, {kind}")
            self._takers[kind](self, *fields)
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise _wrong(f"{called} is not what an export has there: {error!r}") from error
        self._frames += 1

    def _take_header(self, header: Mapping[str, Any]) -> None:
        document = dict(header["spec"])
        if self._name is not None:
            document["name"] = self._name
        spec = WindowSpec.parse(document)
        assert spec.algorithm is None, "an algorithm keeps no entries"
        self.window = self._make(spec)
        self.window.resume(Counts(**header["counts"]), header["newest"])
        self.extra = header["extra"]

    def _take_keys(self, names: list[str]) -> None:
        assert self.window is not None
        window = self.window
        if window.spec.keyed:
            for name in names:
                check_key(name)
        else:
            assert names == [UNKEYED], "a window without keys has the one"
        assert len(set(names)) == len(names), "a key is there twice"
        assert (window.keys.find_each(names) < 0).all(), "a key is there twice"
        window.check_room(len(names))
        window.keys.create(names)

    def _take_entries(self, payload: list[Any]) -> None:
        assert self.window is not None
        batch = batch_from(payload)
        self.window.load(batch)
        self._rows += len(batch.times)

    def _take_states(self, payload: list[Any]) -> None:
        states = columns_from(payload)
        assert len(states) == 3, "a key has three times"
        assert len({len(state) for state in states}) == 1, "each is there for every key"
        self._states.append(states)

    def _take_end(self, totals: Mapping[str, int]) -> None:
        assert self.window is not None
        window = self.window
        keys, states = len(window.keys), sum(len(now) for now, *_ in self._states)
        entries = int(window.keys.entries_each(window.keys.numbers()).sum())
        assert totals == {"keys": keys, "rows": self._rows}, f"{totals} were written, {keys} and {self._rows} read"
        assert keys == states, "every key has its times"
        assert entries == window.counts.inserted - window.counts.evicted, "what was inserted and not evicted is here"
        self._ended = True

    _takers: Mapping[str, Callable[..., None]] = {
        "header": _take_header,
        "keys": _take_keys,
        "entries": _take_entries,
        "states": _take_states,
        "end": _take_end,
    }


def _wrong(message: str) -> InvalidArgument:
    """Whoever sent it is told that it is no export, or a damaged one."""
    return InvalidArgument(message, field="body")
