"""Exports: a window as a file that does not depend on how the window is stored.

    frame     length | value of kind "export"                  length: 4 bytes, little-endian
    header    spec, counts, newest (the high-water mark), ledger
    keys      names, in the order in which they were created
    entries   a bulk, as it could be written again             (times, fields, keys; with panes partials)
    removed   a bulk of what was retracted or corrected, with `known`      (entries have the numbers of their arrivals)
    states    of the keys, in the same order: now, late_through, touched
    end       how much there was

Every frame has its number. So a frame that is missing, repeated or out of place is noticed. A file that is damaged or
cut short is refused as a whole, and the error names the frame. Anybody can write a file with correct checksums, so
every value is checked before it is used (forms.py), and at the end whether the values fit together. An import neither
evicts entries nor drops late ones: the window gives the same answers and counts as the exported one.

A window that another one feeds is exported as one that nobody feeds, with its source beside its spec. If the files of
both follow one another, an import can make the one the cascade of the other again:

    requests: header ... end   minutes: header ... end   hours: header ... end      each is as of the same moment

Export: one copy of small keys in memory; the rest bulk by bulk.  Import: O(entries), bulk by bulk.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sash.durability.formats import seal, unseal
from sash.durability.images.forms import Header, Totals, batch_of, checked, names_of, states_of
from sash.durability.images.image import reached
from sash.durability.records.columns import batch_to, columns_to, size_of
from sash.durability.records.splitting import rows_of
from sash_engine.errors import DataLoss, FailedPrecondition, InvalidArgument
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, finished, spans_of
from sash_engine.windows.batches.batch import MAX_COUNTED, AnyBatch, Batch, PartialBatch
from sash_engine.windows.derived.views import View
from sash_engine.windows.keys.keys import NEVER
from sash_engine.windows.known import kept_spec, removed_spec
from sash_engine.windows.reading.entries import Entries
from sash_engine.windows.spec.window import WindowSpec, check_name
from sash_engine.windows.window import Window

FRAME_BYTES_MAX = 256 << 20
"""No frame is longer. A frame that claims to be longer is damaged."""

_FRAME_BYTES = 8 << 20
_KEYS = 16_384
_ROWS = 65_536
_LENGTH = struct.Struct("<I")
_PARTIALS = 1_024
"""Rows of partials that one step loads: sketches take 3 µs each to be checked, and some to be combined."""
_TEXT_MAX = 500
"""Characters of what an error says."""


def export(window: Window | View) -> Iterator[bytes]:
    """Iterate over the frames of a window as it is now. Later writes do not change them. Staged parts are left out."""
    window = window.at_rest() if isinstance(window, View) else window
    keys = window.keys
    numbers = keys.numbers()
    kept = Entries(kept_spec(window.spec), keys, numbers, None, None, window.cold, _ROWS)
    bulks = {"entries": finished(kept.captured())}
    if isinstance(window, Window) and (removed := window.removed) is not None:
        of = removed.keys.numbers()
        gone = Entries(removed.spec, removed.keys, of, None, None, removed.cold, _ROWS)
        bulks["removed"] = finished(gone.captured())
    header = {
        "spec": _alone(window.spec),
        **({} if window.spec.source is None else {"from": window.spec.document()["from"]}),
        "counts": window.counts.document(),
        **reached(window),
        "extra": {"ledger": window.ledger.document(parts=False)},
    }
    states = [keys.now[numbers], keys.late_through[numbers], keys.touched[numbers]]
    return _framed(_records(header, keys.names(), bulks, states))


def _alone(spec: WindowSpec) -> dict[str, Any]:
    """A spec that needs no other window: an imported cascade, or view, is a window that is written to."""
    return {name: value for name, value in spec.document().items() if name not in ("from", "of")}


def _records(
    header: dict[str, Any], names: list[str], bulks: Mapping[str, Entries], states: list[Array]
) -> Iterator[list[Any]]:
    rows = sum(each.rows for each in bulks.values())
    yield ["header", header]
    for a in range(0, len(names), _KEYS):
        yield ["keys", names[a : a + _KEYS]]
    for kind, entries in bulks.items():
        for bulk in entries:
            for batch in _small_enough(bulk):
                yield [kind, batch_to(batch)]
    for a in range(0, len(names), _KEYS):
        yield ["states", columns_to([state[a : a + _KEYS] for state in states])]
    yield ["end", {"keys": len(names), "rows": rows}]


def _framed(records: Iterator[list[Any]]) -> Iterator[bytes]:
    for number, record in enumerate(records):
        value = seal("export", [number, *record])
        yield _LENGTH.pack(len(value)) + value


def _small_enough(batch: AnyBatch) -> Iterator[AnyBatch]:
    n = len(batch.times)
    if n > 1 and size_of(batch) > _FRAME_BYTES:
        yield from _small_enough(rows_of(batch, slice(n // 2)))
        yield from _small_enough(rows_of(batch, slice(n // 2, n)))
    else:
        yield batch


class Importer:
    """Makes a window from an export, which is fed in pieces of any size.

    Args:
        make: makes the empty window of a spec. It is called again for each of `derived`, with a spec that says which
            window feeds it.
        name: the name of the window; None for the exported name. It is checked before anything is read.
        derived: the windows that it feeds, itself or by others, whose files follow in this order.

    Attributes:
        window: the window so far, once the header is read. Use it when `finish` has returned it.

    Errors of `feed` and `finish`; do not use the importer and its window afterwards:

    Raises:
        InvalidArgument: this is not an export, or it is damaged or incomplete; or a value is wrong, which `field`
            names.
        FailedPrecondition: a newer version wrote it.
        ResourceExhausted: it has more keys than a window may have.
    """

    def __init__(
        self, make: Callable[[WindowSpec], Window], name: str | None = None, derived: Sequence[str] = ()
    ) -> None:
        if name is not None:
            check_name(name, "name")
        self._make = make
        self._name = name
        self._left = bytearray()
        self._awaited = list(derived)
        self._sources: dict[str, str] = {}  # the names of the windows so far, by those in the file
        self._begin_file()
        self.window: Window | None = None

    def _begin_file(self) -> None:
        """Expect the header of a window."""
        self._reading: Window | None = None
        self._frames = 0
        self._rows = 0
        self._expected = 0  # entries of the window that were not read yet
        self._uncounted = False
        self._arrivals: int | None = None
        self._states: list[list[Array]] = []
        self._ended = False

    def feed(self, data: bytes) -> None:
        """Read the next piece."""
        finished(self.feed_steps(data))

    def feed_steps(self, data: bytes) -> Steps[None]:
        """As `feed`, in steps."""
        left = self._left
        left += data
        at = 0
        while len(left) - at >= _LENGTH.size:
            if self._ended and self._awaited:
                self._begin_file()
            (length,) = _LENGTH.unpack_from(left, at)
            start = at + _LENGTH.size
            if not self._frames:
                self._check_start(bytes(left[start : start + 4]))
            if length > FRAME_BYTES_MAX:
                raise _wrong(f"{self._called} is damaged: it says that it has {length} bytes")
            if len(left) < start + length:
                break
            yield from self._take(bytes(left[start : start + length]))
            yield
            at = start + length
        del left[:at]

    def finish(self) -> Window:
        """Return the complete window."""
        if self._left or not self._ended or self.window is None:
            began = self._frames or self._left
            raise _wrong(f"the export is cut short in {self._called}" if began else "the export is empty")
        if self._awaited:
            raise _wrong(f"the export of window {self._awaited[0]!r} is missing behind that of its source")
        return self.window

    @property
    def _called(self) -> str:
        return f"frame {self._frames} of the export"

    def _check_start(self, magic: bytes) -> None:
        if magic != b"SASH"[: len(magic)]:
            raise _wrong("this is not an exported window")

    def _take(self, value: bytes) -> Steps[None]:
        called = self._called
        try:
            payload = unseal("export", value, called)
        except DataLoss as error:
            raise _wrong(error.message) from None  # the file is damaged, and nothing that is stored
        try:
            taker, content = self._placed(payload)
            steps = taker(self, content)
            if steps is not None:
                yield from steps
        except InvalidArgument as error:
            field = _quoted(error.field or "body")
            raise type(error)(_quoted(f"{called}: {error.message}"), field=field, limit=error.limit) from None
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise _wrong(_quoted(f"{called} is not what an export has there: {error!r}")) from error
        self._frames += 1

    def _placed(self, payload: Any) -> tuple[Callable[..., Steps[None] | None], Any]:
        """The method for a frame, and its content."""
        match payload:
            case [int(number), str(kind), content] if kind in self._takers:
                if number != self._frames or self._ended or (self._reading is None) != (kind == "header"):
                    raise _wrong(f"it was written as frame {number}, {kind}")
                return self._takers[kind], content
        raise _wrong("its kind is not one of an export")

    def _take_header(self, payload: Any) -> None:
        header = checked(Header, payload, "header")
        if self.window is None:
            spec = WindowSpec.parse(header.spec if self._name is None else {**header.spec, "name": self._name})
            self._check_alone(spec, header)
        else:
            spec = self._fed(header)
        self._sources[header.spec["name"]] = spec.name
        counts = header.counts.counts()
        self._expected = MAX_COUNTED if header.uncounted else counts.present
        self._uncounted = header.uncounted
        self._reading = window = self._make(spec)
        self._arrivals = header.arrivals
        if window.known is not None and self._arrivals is None:
            raise InvalidArgument("a window with known has a newest arrival", field="header.arrivals")
        window.resume(counts, header.newest, header.punctuated, self._arrivals)
        if self.window is None:
            self.window = window
            window.ledger = header.extra.ledger.ledger()
            window.ledger.next_part = 1  # staged parts are not imported, so no number is used yet

    def _check_alone(self, spec: WindowSpec, header: Header) -> None:
        """Refuse the spec of the first window if it needs another one, or if entries are lacking."""
        if spec.source is not None:
            raise InvalidArgument("an exported window is fed by none", field="from")
        if spec.of is not None:
            raise InvalidArgument("an exported window has its entries itself", field="of")
        if header.extra.ledger.parts:
            raise InvalidArgument("staged parts are not exported", field="header.extra.ledger.parts")

    def _fed(self, header: Header) -> WindowSpec:
        """The spec of a window that one of those before it feeds."""
        name, source = self._awaited.pop(0), header.source
        if header.spec.get("name") != name:
            raise InvalidArgument(f"it is not the export of window {name!r}", field="derived")
        if source is None or source.get("window") not in self._sources:
            raise InvalidArgument(f"no window before it feeds {name!r}", field="from.window")
        if name in self._sources.values():
            raise InvalidArgument(f"there are two windows {name!r}", field="derived")
        return WindowSpec.parse({**header.spec, "from": {**source, "window": self._sources[source["window"]]}})

    def _take_keys(self, payload: Any) -> None:
        window = self._window
        names = names_of(payload, "keys", keyed=window.spec.keyed)
        if (window.keys.find_each(names) >= 0).any():
            raise InvalidArgument("a key is there twice", field="keys")
        window.check_room(len(names))
        window.keys.create(names)

    def _take_entries(self, payload: Any) -> Steps[None]:
        window = self._window
        batch = batch_of(payload, kept_spec(window.spec), "entries")
        entries = float(batch.entries.sum(dtype=np.float64)) if isinstance(batch, PartialBatch) else len(batch.times)
        if entries > self._expected:
            raise InvalidArgument(
                "there are more entries than the counts say", field="header.counts", limit=str(self._expected)
            )
        try:
            for part in _parts(batch):
                window.load(part)
                yield
        except FailedPrecondition as error:  # the window's order policy allows no such entries
            raise InvalidArgument(error.message, field=error.field, limit=error.limit) from None
        self._rows += len(batch.times)
        self._expected -= int(batch.entries.sum()) if isinstance(batch, PartialBatch) else len(batch.times)

    def _take_removed(self, payload: Any) -> None:
        known = self._window.known
        if known is None:
            raise InvalidArgument("the window does not keep what was removed", field="known")
        batch = batch_of(payload, removed_spec(self._window.spec), "removed")
        assert isinstance(batch, Batch), "panes have no known"
        known.load(batch)
        self._rows += len(batch.times)

    def _take_states(self, payload: Any) -> None:
        self._states.append(states_of(payload, "states"))

    def _take_end(self, payload: Any) -> None:
        window = self._window
        totals, keys = checked(Totals, payload, "end"), len(window.keys)
        if (totals.keys, totals.rows) != (keys, self._rows):
            raise InvalidArgument(
                f"{totals.keys} keys and {totals.rows} rows were written, {keys} and {self._rows} read", field="end"
            )
        if self._uncounted:
            window.counts.inserted += MAX_COUNTED - self._expected
            window.resume(window.counts, window.mark, window.punctuated, self._arrivals)
        elif self._expected:
            raise InvalidArgument(f"{self._expected} entries less are there than counted", field="header.counts")
        if keys != sum(len(now) for now, *_ in self._states):
            raise InvalidArgument("there are not as many times of keys as keys", field="states")
        if keys:
            self._resume_keys(window)
        self._ended = True

    def _resume_keys(self, window: Window) -> None:
        """Give the keys their times. What is checked here holds for every window."""
        keys, slide = window.keys, window.spec.slide
        numbers = keys.numbers()
        now, late_through, touched = (np.concatenate(parts) for parts in zip(*self._states, strict=True))
        if (now < keys.now[numbers]).any() or int(now.max()) > window.mark:
            raise InvalidArgument("an entry is newer than now, of its key or of the window", field="states.now")
        if (keys.bulk_evict_each(numbers, late_through) > 0).any():
            raise InvalidArgument("an entry is older than what is late", field="states.late_through")
        if slide.clock == "event" and slide.until is None:
            wrong = (late_through >= now) & (late_through != NEVER)
            if (age := window.spec.kept_ticks) is not None:
                wrong |= (now > NEVER + age) & (now - age > late_through)
            if wrong.any():
                raise InvalidArgument("what is late does not go with a key's now", field="states.late_through")
        if slide.max_count is not None and int(keys.entries_each(numbers).max()) > slide.max_count:
            raise InvalidArgument(
                "a key has more entries", field="header.spec.slide.max_count", limit=str(slide.max_count)
            )
        keys.now[numbers], keys.late_through[numbers], keys.touched[numbers] = now, late_through, touched
        window.derived.resume_marks()

    @property
    def _window(self) -> Window:
        assert self._reading is not None, "the header is the first frame"
        return self._reading

    _takers: Mapping[str, Callable[..., Steps[None] | None]] = {
        "header": _take_header,
        "keys": _take_keys,
        "entries": _take_entries,
        "removed": _take_removed,
        "states": _take_states,
        "end": _take_end,
    }


def _quoted(text: str) -> str:
    """Shorten the text of an error, which may quote the file, and make it valid Unicode."""
    return text[:_TEXT_MAX].encode(errors="replace").decode()


def _parts(batch: AnyBatch) -> Iterator[AnyBatch]:
    """A bulk in parts that one step loads; values of entries at once, partials some at a time."""
    n = len(batch.times)
    if not isinstance(batch, PartialBatch) or n <= _PARTIALS or not _is_even(batch):
        yield batch
        return
    for a, b in spans_of(n, _PARTIALS):
        yield rows_of(batch, slice(a, b))


def _is_even(batch: PartialBatch) -> bool:
    """Whether all columns have as many rows as there are times, and codes are of the dictionary."""
    n, keys = len(batch.times), batch.keys
    columns = [batch.entries, *(part for parts in batch.partials.values() for part in parts)]
    if any(len(column) != n for column in columns) or (keys is not None and len(keys.codes) != n):
        return False
    return keys is None or (int(keys.codes.min()) >= 0 and int(keys.codes.max()) < len(keys.dictionary))


def _wrong(message: str) -> InvalidArgument:
    """The error for a file that is not an export, or a damaged one."""
    return InvalidArgument(message, field="body")
