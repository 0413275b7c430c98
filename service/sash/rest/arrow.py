"""Arrow IPC streams to the plane's columns, and series and entries as such streams.

Numbers are not copied on the way in where a stream has one batch. Integers and floats of other widths, and
timestamps, are converted where nothing is lost, and refused otherwise.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sash.calls import refusing
from sash.rest.columns import BLOB
from sash_engine.errors import InvalidArgument, TooLarge, Unsupported
from sash_engine.monoids.base import NUMPY_TYPES, Array, FieldType, Partials, object_array
from sash_engine.monoids.pane import exported, part_names
from sash_engine.windows.answers import AnswerColumns, Page, Series
from sash_engine.windows.batches.batch import AnyBatch, Batch, Coded, PartialBatch
from sash_engine.windows.batches.values import no_field
from sash_engine.windows.reading.costs import MAX_PAIR_ANSWERS
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.writing.changes import times_of
from sash_wire.features import feature, of_aggregate
from sash_wire.key_parts import check_named, joined, key_columns
from sash_wire.nulls import PLACEHOLDERS, mark_of

_LISTED = 8_192
"""Values that become objects of Python in one call, during which no other thread runs: 1 ms."""

_TYPES = {"float64": pa.float64(), "int64": pa.int64(), "bool": pa.bool_()}
# What parts of partials are, by the kind of their dtype; those that are objects and come as numbers are integers.
_PARTS: dict[str, FieldType] = {"f": "float64", "i": "int64", "b": "bool", "O": "int64"}


def batch_of(body: bytes, spec: WindowSpec, entries_max: int, named: bool = False) -> AnyBatch:
    """The columns of a stream: ``time``, ``key`` or each part of it where keyed, and each field by its name.

    ``time`` is integers (ticks) or timestamps (converted to the window's unit); strings may be dictionary-coded. Where
    the window takes partials, they may stand in the place of fields: ``entries``, and ``partials.NAME.PART`` for each
    part of each aggregate, or ``partials.NAME.blob``.

    Args:
        named: whether the rows name entries, by their identity and perhaps their ``time``.

    Raises:
        InvalidArgument: no such stream, or names the column that is wrong.
        TooLarge: more than `entries_max` entries.
    """
    return batch_of_table(_table(body, spec, entries_max), spec, named)


def batch_of_table(table: Any, spec: WindowSpec, named: bool = False) -> AnyBatch:
    """The columns of a table, as `batch_of` takes them; the names are checked already."""
    names = table.column_names
    for name, column in zip(names, table.columns, strict=True):
        if column.null_count and name not in (spec.nullable or ()):
            why = ", and the window's spec does not name it in nullable" if name in spec.fields else ""
            raise InvalidArgument(f"column {name!r} has {column.null_count} nulls{why}", field=name)
    if "time" not in names and not named:
        raise InvalidArgument("time is missing", field="time")
    times = _times(table["time"], spec) if "time" in names else None
    if named or times is None:
        times = times_of(times, len(table))
    keys = _keys(table, spec)
    if spec.granularity is not None and "entries" in names and _are_partials(names, spec):
        return _partial_batch(table, spec, times, keys)
    columns: dict[str, npt.NDArray[Any] | Coded] = {}
    for name in names:
        if name in ("time", "key", *spec.parts):
            continue
        if name in (spec.nullable or ()):
            columns |= _nullable(table[name], spec.fields[name], name)
        else:
            columns[name] = _column(table[name], spec.fields[name], name)
    return Batch(times, columns, keys)


def pairs_of(body: bytes, spec: WindowSpec) -> tuple[Array, Coded | None, Array | None]:
    """The times and keys of pairs: the columns ``time``, and ``key`` or each part of it; and ``known_at``, if there.

    Raises as `batch_of`.
    """
    table = _table(body, spec, MAX_PAIR_ANSWERS, fields=False)
    if "time" not in table.column_names:
        raise InvalidArgument("time is missing", field="time")
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.null_count:
            raise InvalidArgument(f"column {name!r} has {column.null_count} nulls", field=name)
    known_at: Array | None = None
    if "known_at" in table.column_names and "known_at" not in spec.parts:
        read = _column(table["known_at"], "int64", "known_at")
        assert not isinstance(read, Coded)
        known_at = read
    return _times(table["time"], spec), _keys(table, spec), known_at


def stream_of_pairs(found: Sequence[AnswerColumns]) -> bytes:
    """Answers about pairs as a stream of one batch, with the columns that `sash_wire.features` names.

    Raises:
        Unsupported: as `stream_of`.
    """
    columns = {}
    for each in found:
        columns[feature("entries", each.lookback)] = pa.array(each.entries, pa.int64())
        for name, answers in each.aggregates.items():
            columns[feature(of_aggregate(name), each.lookback)] = _answers(answers, name)
    return _stream(pa.table(columns))


@refusing
def _keys(table: Any, spec: WindowSpec) -> Coded | None:
    """The keys, in one column or in one for each part."""
    given = [name for name in spec.parts if name in table.column_names]
    if "key" in table.column_names:
        if given:
            raise InvalidArgument("give either a column key or a column for each part", field=given[0])
        return _strings(table["key"], "key")
    if not given:
        return None
    check_named(given, spec.parts, f"window {spec.name!r}")
    return joined({name: _strings(table[name], name) for name in spec.parts})


def _check_names(names: Sequence[str], spec: WindowSpec, fields: bool) -> None:
    """Check the names of columns, before there is a look at any value."""
    seen = set[str]()
    for name in names:
        if name in seen:
            raise InvalidArgument(f"there are two columns {name!r}", field=name)
        seen.add(name)
    if fields and spec.granularity is not None and "entries" in seen and _are_partials(names, spec):
        return  # `_partial_batch` says which parts there are
    own = ("time", "key", *spec.parts)
    for name in names:
        if name not in own and not (fields and name in spec.fields):
            if not fields and name == "known_at":
                continue
            if not fields:
                raise InvalidArgument(f"{name[:80]!r} is unknown here; pairs have time and key", field=name)
            raise no_field(spec.name, name, spec.fields)


def _are_partials(names: Sequence[str], spec: WindowSpec) -> bool:
    """Whether columns are of partials, ``entries`` among them, which may be a field as well."""
    return "entries" not in spec.fields or any(n.startswith("partials.") and n not in spec.fields for n in names)


def _partial_batch(table: Any, spec: WindowSpec, times: npt.NDArray[np.int64], keys: Coded | None) -> PartialBatch:
    left, partials = set(table.column_names) - {"time", "key", "entries", *spec.parts}, dict[str, Partials]()
    for name, (monoid, _) in spec.monoids().items():
        blob, parts = f"partials.{name}.{BLOB}", [f"partials.{name}.{part}" for part in part_names(monoid)]
        if blob in left:
            left.remove(blob)
            partials[name] = (_blobs(table[blob], blob),)
        elif found := left.intersection(parts):
            for part in parts:
                if part not in found:
                    raise InvalidArgument(f"column {part!r} is missing", field=part)
            left -= found
            kinds = [_PARTS[dtype.kind] for dtype in monoid.dtypes]
            partials[name] = tuple(_number(table[part], kind, part) for part, kind in zip(parts, kinds, strict=True))
    for name in sorted(left):
        raise InvalidArgument(f"{name[:200]!r} is no part of a partial of window {spec.name!r}", field=name)
    return PartialBatch(times, partials, _number(table["entries"], "int64", "entries"), keys)


def _blobs(column: Any, name: str) -> Array:
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        raise InvalidArgument(f"column {name!r} must be binary, not {column.type}", field=name)
    return object_array(_listed(column))


def stream_of(found: Series | Page[Series], by: Sequence[str]) -> bytes:
    """A series, or one of each group, as a stream of one batch: ``time``, ``entries``, and ``aggregates.NAME`` for each
    aggregate; before them, a column for each name of `by`.

    Where there is no answer is a null.

    Raises:
        Unsupported: answers of an aggregate have no common type in Arrow, as integers of more than 64 bits.
    """
    groups = found if isinstance(found, Page) else [found]
    codes = np.repeat(np.arange(len(groups)), [len(series.times) for series in groups])
    parts = [series.parts or {} for series in groups]
    columns = {name: _text(Coded([each[name] for each in parts], codes)) for name in by}
    columns["time"] = pa.array(_stacked([series.times for series in groups]))
    metadata = {"width": str(groups[0].width)} if groups else {}
    if isinstance(found, Page):
        metadata |= {} if found.position is None else {"next": found.position}
    else:
        columns |= {} if found.last is None else {"last": pa.array(found.last)}
        metadata |= {} if found.key is None else {"key": found.key}
    columns["entries"] = pa.array(_stacked([series.entries for series in groups]))
    for name in groups[0].aggregates if groups else ():
        columns[f"aggregates.{name}"] = _answers(_stacked([series.aggregates[name] for series in groups]), name)
    return _stream(pa.table(columns).replace_schema_metadata(metadata))


def _stream(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _stacked(columns: Sequence[Array]) -> Array:
    """Columns one after the other; integers where there are none."""
    return np.concatenate(columns) if columns else np.empty(0, np.int64)


async def stream_of_bulks(bulks: AsyncIterator[AnyBatch], spec: WindowSpec) -> AsyncIterator[bytes]:
    """Entries of a window as the parts of a stream that bulk-insert takes, a record batch for each bulk."""
    sink, writer = BytesIO(), None
    async for bulk in bulks:
        batch = _record_batch(bulk, spec)
        if writer is None:
            writer = pa.ipc.new_stream(sink, batch.schema)
        writer.write_batch(batch)
        yield _taken(sink)
    if writer is None:
        writer = pa.ipc.new_stream(sink, _record_batch(_nothing(spec), spec).schema)
    writer.close()
    yield _taken(sink)


def _record_batch(bulk: AnyBatch, spec: WindowSpec) -> Any:
    columns = {"time": pa.array(bulk.times)}
    if bulk.keys is not None:
        columns |= {name: _text(column) for name, column in key_columns(bulk.keys, spec.parts).items()}
    if isinstance(bulk, Batch):
        for name, kind in spec.fields.items():
            column, mark = bulk.columns[name], bulk.columns.get(mark_of(name))
            values = _text(column) if isinstance(column, Coded) else pa.array(column, _TYPES.get(kind, pa.string()))
            columns[name] = values if mark is None else pc.if_else(pa.array(mark), values, None)
    else:
        columns["entries"] = pa.array(bulk.entries)
        monoids = spec.monoids()
        for name, parts in bulk.partials.items():
            blobs = any(part.dtype.hasobject for part in parts)
            for part, column in zip([BLOB] if blobs else part_names(monoids[name][0]), parts, strict=True):
                columns[f"partials.{name}.{part}"] = pa.array(column, pa.binary()) if blobs else pa.array(column)
    return pa.record_batch(columns)


def _nothing(spec: WindowSpec) -> AnyBatch:
    """No entries of a window."""
    none, keys = np.empty(0, np.int64), Coded([], np.empty(0, np.int64)) if spec.keyed else None
    if spec.granularity is not None:
        partials = {name: exported(monoid, []) for name, (monoid, _) in spec.monoids().items()}
        return PartialBatch(none, partials, none, keys)
    columns = {
        name: Coded([], none) if kind == "string" else np.empty(0, NUMPY_TYPES[kind])
        for name, kind in spec.fields.items()
    }
    return Batch(none, columns, keys)


def _text(column: Coded) -> Any:
    dictionary = pa.array(column.dictionary, pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(column.codes), dictionary).dictionary_decode()


def _taken(sink: BytesIO) -> bytes:
    data = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return data


def _answers(answers: Array, name: str) -> Any:
    if answers.dtype.kind != "O":
        return pa.array(answers)
    try:
        return pa.array(answers.tolist())
    except (pa.ArrowException, OverflowError) as error:
        raise Unsupported(
            f"aggregate {name!r} has answers that are no Arrow column ({error}); ask for JSON",
            field=f"aggregates.{name}",
        ) from None


def _table(body: bytes, spec: WindowSpec, entries_max: int, fields: bool = True) -> Any:
    batches, entries = [], 0
    try:
        with pa.ipc.open_stream(body) as reader:
            _check_names(reader.schema.names, spec, fields)
        for message in pa.ipc.MessageReader.open_stream(body):
            if message.type in ("record batch", "dictionary") and _is_compressed(message):
                raise InvalidArgument("compressed Arrow buffers are not taken; send them as they are", field="body")
        with pa.ipc.open_stream(body) as reader:
            for batch in reader:
                entries += batch.num_rows
                if entries > entries_max:
                    text = (
                        f"a body of {entries} rows or more is too large"
                        if not fields
                        else f"a write of {entries} entries or more is too large"
                    )
                    raise TooLarge(text, field="time", limit=f"{entries_max} entries")
                batches.append(batch)
            table = pa.Table.from_batches(batches, reader.schema)
        # Whoever sends the stream also chose its offsets and codes; reading through bad ones is no error but a crash.
        table.validate(full=True)
        # Names, also those within types, are read only when somebody asks for them.
        table.schema.to_string(show_field_metadata=False, show_schema_metadata=False)
    except (pa.ArrowException, OSError, ValueError, IndexError, KeyError, OverflowError) as error:
        raise InvalidArgument(f"the body is no Arrow IPC stream: {error}", field="body") from None
    return table


def _is_compressed(message: Any) -> bool:
    """Whether a batch's buffers are compressed, in which case a small body may stand for any amount of memory.

    pyarrow does not tell before it has unpacked them, so this looks into the flatbuffer, which pyarrow has
    verified: the root is a Message, its slot 2 the header; a DictionaryBatch has its RecordBatch in slot 1; a
    RecordBatch has its compression in slot 3, if any.

    Source: format/Message.fbs of Apache Arrow, and the binary format of FlatBuffers.
    """
    data = message.metadata.to_pybytes()
    batch = _table_at(data, _uint32(data, 0), 2)
    if message.type == "dictionary" and batch is not None:
        batch = _table_at(data, batch, 1)
    return batch is not None and _table_at(data, batch, 3) is not None


def _table_at(data: bytes, table: int, slot: int) -> int | None:
    """Where the table in a slot of another one starts; None where the slot is empty."""
    vtable = table - int.from_bytes(data[table : table + 4], "little", signed=True)
    size, at = _uint16(data, vtable), 4 + 2 * slot
    offset = _uint16(data, vtable + at) if at < size else 0
    return None if offset == 0 else table + offset + _uint32(data, table + offset)


def _uint16(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "little")


def _uint32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _times(column: Any, spec: WindowSpec) -> npt.NDArray[np.int64]:
    if pa.types.is_timestamp(column.type):
        if spec.time_unit == "none":
            raise InvalidArgument("time is a timestamp, but the window counts logical ticks", field="time")
        # Whatever the zone is called: instants count in UTC in all of them.
        instants = _cast(_cast(column, pa.int64(), "time"), pa.timestamp(column.type.unit), "time")
        return _numbers(_cast(_cast(instants, pa.timestamp(spec.time_unit), "time"), pa.int64(), "time"))
    if not pa.types.is_integer(column.type):
        raise InvalidArgument(f"time must be integers or timestamps, not {column.type}", field="time")
    return _numbers(_cast(column, pa.int64(), "time"))


def _column(column: Any, kind: FieldType, name: str) -> npt.NDArray[Any] | Coded:
    return _strings(column, name) if kind == "string" else _number(column, kind, name)


def _nullable(column: Any, kind: FieldType, name: str) -> dict[str, npt.NDArray[Any] | Coded]:
    """The values of a field that may be null, and its mark."""
    wanted = _TYPES.get(kind, pa.large_string())
    if pa.types.is_null(column.type) or (kind == "string" and pa.types.is_dictionary(column.type)):
        column = _cast(column, wanted, name)  # a dictionary may have a null in it
    mark = _numbers(pc.is_valid(column))
    if not column.null_count:
        return {name: _column(column, kind, name), mark_of(name): mark}
    if kind != "string":
        column = _of_kind(column, kind, name)
    elif not _is_text(column.type):
        return {name: _column(column, kind, name)}  # which refuses it
    return {name: _column(pc.fill_null(column, PLACEHOLDERS[kind]), kind, name), mark_of(name): mark}


def _number(column: Any, kind: FieldType, name: str) -> npt.NDArray[Any]:
    return _numbers(_of_kind(column, kind, name))


def _of_kind(column: Any, kind: FieldType, name: str) -> Any:
    """The numbers or bools of a column in the type of a field."""
    found, is_number = column.type, pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    fits = {"float64": is_number, "int64": pa.types.is_integer(found), "bool": pa.types.is_boolean(found)}
    if not fits[kind]:
        raise InvalidArgument(f"column {name!r} is a {kind}, not a {found}", field=name)
    return _cast(column, _TYPES[kind], name)


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _strings(column: Any, name: str) -> Coded:
    found = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not _is_text(found):
        raise InvalidArgument(f"column {name!r} must be strings, not {found}", field=name)
    if pa.types.is_dictionary(column.type) and column.num_chunks == 1:
        dictionary = _listed(column.chunk(0).dictionary)
        if None not in dictionary and len(set(dictionary)) == len(dictionary):
            return Coded(dictionary, column.chunk(0).indices.to_numpy(zero_copy_only=False))
    # Plain strings, a dictionary per batch, or one with a string twice or a null in it.
    whole = pc.dictionary_encode(_cast(column, pa.large_string(), name)).combine_chunks()
    if whole.null_count:
        raise InvalidArgument(f"column {name!r} has {whole.null_count} nulls", field=name)
    return Coded(_listed(whole.dictionary), whole.indices.to_numpy(zero_copy_only=False))


def _listed(values: Any) -> list[Any]:
    """Values as a list. Between two parts, other threads may have their turns."""
    found = list[Any]()
    for start in range(0, len(values), _LISTED):
        found += values.slice(start, _LISTED).to_pylist()
    return found


def _cast(column: Any, kind: Any, name: str) -> Any:
    if column.type == kind:
        return column
    try:
        return pc.cast(column, kind)
    except pa.ArrowInvalid as error:
        raise InvalidArgument(f"column {name!r}: {error}", field=name) from None


def _numbers(column: Any) -> npt.NDArray[Any]:
    return column.combine_chunks().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
