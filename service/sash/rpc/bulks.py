"""Bulks of entries: messages of `sash.v1` to batches and back. Columns are not copied on the way in."""

from __future__ import annotations

import numpy as np

from sash.calls import refusing
from sash_engine.errors import InvalidArgument, TooLarge
from sash_engine.monoids.base import Array, Partials, object_array
from sash_engine.steps import ROWS, Steps, finished, spans_of
from sash_engine.windows.batches.batch import AnyBatch, Batch, PartialBatch
from sash_engine.windows.batches.values import no_field
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.writing.changes import times_of
from sash_proto.v1 import windows_pb2 as pb
from sash_wire.coded import Coded
from sash_wire.columns import fill_column, fill_strings, read_column, read_int64, read_strings, read_valid, to_bytes
from sash_wire.key_parts import check_named, joined
from sash_wire.nulls import is_mark, mark_of, named_by, without_nulls

_CODES = 16 * ROWS
"""Codes that are looked at in a step: 1 ms."""


def batch_of(request: pb.BulkInsertRequest, entries_max: int, spec: WindowSpec) -> AnyBatch:
    """Return the columns of a bulk; raises as `batch_steps`."""
    return finished(batch_steps(request, entries_max, spec))


def batch_steps(
    request: pb.BulkInsertRequest, entries_max: int, spec: WindowSpec, names: bool = False
) -> Steps[AnyBatch]:
    """Return the columns of a bulk for a window of this spec, over the bytes that protobuf holds.

    Args:
        names: whether the rows name entries, by their identity and perhaps their time.

    Raises:
        InvalidArgument: the bytes of a column are not a whole number of values; the error names the column.
        TooLarge: more than `entries_max` entries.
    """
    times = _int64(request.time, "time")
    if len(times) > entries_max:
        raise TooLarge(f"a write of {len(times)} entries is too large", field="time", limit=f"{entries_max} entries")
    columns: dict[str, Array | Coded] = {}
    for name, column in request.fields.items():
        if is_mark(name):
            raise no_field(spec.name, name, spec.fields)
        if column.WhichOneof("data") == "string":
            columns[name] = yield from _strings(column.string, name, column.valid)
        else:
            columns[name] = _field(column, name)
        if column.valid:
            there = _valid(column, name, len(columns[name]))
            columns[name], columns[mark_of(name)] = without_nulls(columns[name], there), there
    keys = (yield from _strings(request.key, "key")) if request.HasField("key") else None
    if request.parts:
        keys = yield from _joined(request, spec)
    if not request.partials and not request.entries:
        identity = columns.get(spec.identity or "")
        if names and identity is not None:
            if len(identity) > entries_max:
                raise TooLarge(
                    f"a write of {len(identity)} entries is too large",
                    field=spec.identity,
                    limit=f"{entries_max} entries",
                )
            times = times_of(times if request.time else None, len(identity))
        return Batch(times, columns, keys)
    if columns:
        raise InvalidArgument(
            "a write carries values of every field, or partials of every aggregate and how many entries each row "
            "stands for",
            field="partials",
        )
    partials = {
        name: tuple(_part(column, f"partials.{name}") for column in found.columns)
        for name, found in request.partials.items()
    }
    return PartialBatch(times, partials, _int64(request.entries, "entries"), keys)


def pairs_steps(request: pb.AnswersAtRequest, spec: WindowSpec) -> Steps[tuple[Array, Coded | None, Array | None]]:
    """Return the times and the keys of pairs, and what each is known at; raises as `batch_steps`."""
    keys = (yield from _strings(request.key, "key")) if request.HasField("key") else None
    if request.parts:
        keys = yield from _joined(request, spec)
    known_at = _int64(request.known_at, "known_at") if request.known_at else None
    return _int64(request.time, "time"), keys, known_at


def _joined(request: pb.BulkInsertRequest | pb.AnswersAtRequest, spec: WindowSpec) -> Steps[Coded]:
    """The keys of a bulk that gives their parts."""
    if request.HasField("key"):
        raise InvalidArgument("give either key or parts", field="parts")
    _check_parts(request, spec)
    parts = {}
    for name in spec.parts:
        parts[name] = yield from _strings(request.parts[name], f"parts.{name}")
    return joined(parts)


@refusing
def _check_parts(request: pb.BulkInsertRequest | pb.AnswersAtRequest, spec: WindowSpec) -> None:
    check_named(request.parts, spec.parts, f"window {spec.name!r}")


@refusing
def _int64(data: bytes, name: str) -> Array:
    return read_int64(data, name)


def _strings(strings: pb.Strings, name: str, valid: bytes = b"") -> Steps[Coded]:
    """The strings of a column or of the keys; each string has one code."""
    if len(strings.dictionary) <= ROWS:
        return _few_strings(strings, name, valid)
    codes = _codes(strings, name, valid)
    used = yield from _used(codes, len(strings.dictionary))
    if used is None:
        return Coded([], codes)  # the check of codes that follows refuses it
    texts, dictionary, seen = strings.dictionary, list[str](), set[str]()
    for a, b in spans_of(len(used), ROWS):
        wanted = np.flatnonzero(used[a:b])
        dictionary += texts[a:b] if len(wanted) == b - a else [texts[a + i] for i in wanted.tolist()]
        seen.update(dictionary[len(dictionary) - len(wanted) :])
        yield
    # The texts before the first used one have no number; any will do, as no code names them.
    recoded = np.maximum(np.cumsum(used, dtype=np.uint32), 1) - np.uint32(1)
    if len(seen) < len(dictionary):
        dictionary, numbers = yield from _once(dictionary)
        recoded = numbers[recoded]
    found = np.empty(len(codes), np.uint32)
    for a, b in spans_of(len(codes), _CODES):
        found[a:b] = recoded[codes[a:b]]
        yield
    return Coded(dictionary, found)


def _once(texts: list[str]) -> Steps[tuple[list[str], Array]]:
    """Each of some texts once, and the number of each of them among these: uint32 (k,)."""
    numbers, found = dict[str, int](), np.empty(len(texts), np.uint32)
    for a, b in spans_of(len(texts), ROWS):
        for text in texts[a:b]:
            numbers.setdefault(text, len(numbers))
        found[a:b] = np.fromiter(map(numbers.__getitem__, texts[a:b]), np.uint32, b - a)
        yield
    return list(numbers), found


def _used(codes: Array, size: int) -> Steps[Array | None]:
    """Which numbers below `size` are codes, as bools (size,); None where a code is none of them."""
    found = np.zeros(size, np.bool_)
    for a, b in spans_of(len(codes), _CODES):
        some = codes[a:b]
        if some.max() >= size:
            return None
        found[some] = True
        yield
    return found


@refusing
def _few_strings(strings: pb.Strings, name: str, valid: bytes) -> Coded:
    return read_strings(strings, name, valid)


@refusing
def _codes(strings: pb.Strings, name: str, valid: bytes) -> Array:
    return read_strings(pb.Strings(codes=strings.codes), name, valid).codes


@refusing
def _field(column: pb.Column, name: str) -> Array | Coded:
    """The values of a field."""
    found = read_column(column, name)
    if isinstance(found, list):
        raise InvalidArgument(f"column {name!r} has no data", field=name)
    return found


@refusing
def _valid(column: pb.Column, name: str, n: int) -> Array:
    """Which values of a column are there."""
    return read_valid(column, name, n)


@refusing
def _part(column: pb.Column, name: str) -> Array:
    """One part of n partials; blobs as objects."""
    if column.valid:
        raise InvalidArgument(f"column {name!r} has valid; no part of a partial may be null", field=name)
    found = read_column(column, name)
    if isinstance(found, Coded):
        raise InvalidArgument(f"column {name!r} has strings; partials are numbers or blobs", field=name)
    return object_array(found) if isinstance(found, list) else found


def bulk_of(window: str, batch: AnyBatch) -> pb.BulkInsertRequest:
    """Return entries of a window as a bulk that can be inserted again."""
    message = pb.BulkInsertRequest(window=window, time=to_bytes(batch.times))
    if batch.keys is not None:
        fill_strings(message.key, batch.keys)
    if isinstance(batch, PartialBatch):
        for name, partials in batch.partials.items():
            fill_partials(message.partials[name], partials)
        message.entries = to_bytes(batch.entries)
    else:
        for name, column in batch.columns.items():
            if not is_mark(name) or isinstance(column, Coded):
                fill_column(message.fields[name], column)
            elif not column.all():
                message.fields[named_by(name)].valid = column.tobytes()
    return message


def fill_partials(message: pb.PartialColumns, partials: Partials) -> None:
    message.SetInParent()
    for part in partials:
        fill_column(message.columns.add(), part.tolist() if part.dtype.hasobject else part)
